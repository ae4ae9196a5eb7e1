"""DuckDB at the same work as `benchmarks.fleet`, in one process with two threads; the SQL is that of the tests.

What does not fit into MEMORY goes to a file: without that limit 11.5 M quads took 16 GB.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb

from benchmarks.measuring import Cost, cost_of
from tests.cloud_sync.fleet.jobs import jobs_oracle
from tests.cloud_sync.fleet.tables import silver_oracle

MEMORY = "8GB"
_QUADS = "list_transform({0}, lambda q: {{'s': q[1], 'p': q[2], 'o': q[3], 'g': q[4]}}) AS {0}"
_TIMES = {
    "observations": ("result_time", "arrival"),
    "actuations": ("result_time", "arrival"),
    "gateway_health": ("hour", "first_ts", "last_ts"),
}


def peer_costs(segments: Sequence[Path], streams: Sequence[Path]) -> dict[str, Cost]:
    """Reading the segments into memory, the tables into Parquet, and the results of the jobs from that.

    bronze: the reading, too; streams: the files of that table, which is small and taken as it is.
    """
    with tempfile.TemporaryDirectory() as text, duckdb.connect() as connection:
        folder = Path(text)
        connection.execute("SET threads = 2")
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute(f"SET temp_directory = '{folder / 'spilled'}'")

        def write_bronze() -> None:
            columns = ", ".join([*(_QUADS.format(name) for name in "dak"), "make_timestamptz(ts) AS ts"])
            connection.execute(
                f"COPY (SELECT * REPLACE ({columns}) FROM records) TO '{folder}/bronze.parquet' (CODEC zstd)"
            )

        def silver() -> None:
            connection.execute("CREATE TABLE streams AS FROM read_parquet($1)", [[str(path) for path in streams]])
            silver_oracle.prepare(connection)
            for name, sql in silver_oracle.TABLES.items():
                times = ", ".join(f"make_timestamptz({time}) AS {time}" for time in _TIMES[name])
                rows = f"SELECT * REPLACE ({times}) FROM ({sql})"
                connection.execute(f"COPY ({rows}) TO '{folder / name}.parquet' (CODEC zstd)")
            connection.execute(f"COPY streams TO '{folder}/streams.parquet'")

        def jobs() -> None:
            with jobs_oracle.connect(folder) as oracle:
                for name, sql in jobs_oracle.RESULTS.items():
                    oracle.execute(f"COPY ({sql}) TO '{folder / name}.result' (FORMAT parquet, CODEC zstd)")

        read = cost_of(lambda: silver_oracle.read_segments(connection, segments))
        return {
            "read segments": read,
            "bronze": read + cost_of(write_bronze),
            "silver": cost_of(silver),
            "jobs": cost_of(jobs),
        }
