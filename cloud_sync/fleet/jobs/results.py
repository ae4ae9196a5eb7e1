"""The results of the jobs by name, and their files: Parquet and CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lazy import F, pa, pc

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table
    from pyarrow.compute import Expression
    from pyspark.sql import DataFrame

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def _distance(table: Table) -> ChunkedArray:
    return pc.abs(table["z"])


def _severity(table: Table) -> ChunkedArray:
    return pc.index_in(table["health"], value_set=pa.array(["silent", "bad", "watch", "good"]))


# Keys of a sort order that are no columns: of anomalies and of fleet_health.
_COMPUTED_KEYS: dict[str, Callable[[Table], ChunkedArray]] = {"distance": _distance, "severity": _severity}


@dataclass(frozen=True)
class Top:
    """The first rows of a result, and the number of all."""

    rows: list[dict[str, Any]]
    all: int

    @property
    def left_out(self) -> int:
        return self.all - len(self.rows)


@dataclass(frozen=True)
class Result:
    """name: the attribute of `Analysis` and the name of the files; job: the name of their folder, and of the command.

    title: the meaning of its rows; keys: sort order in the files; top: sort order for display, names of columns or of
    computed keys, with `` DESC`` if descending; columns: those shown on a terminal.
    """

    name: str
    job: str
    title: str
    keys: tuple[str, ...]
    top: tuple[str, ...]
    columns: tuple[str, ...]


# name | job | title; below it, keys | top, and columns.
_RESULTS = """
hourly | aggregates | readings by hour, property and feature
    gw property feature unit hour | hour DESC, gw, property, feature
    hour gw property feature count mean min p05 p50 p95 max
daily | aggregates | readings by day, property and feature
    gw property feature unit day | day DESC, gw, property, feature
    day gw property feature count mean min p05 p50 p95 max
trends | aggregates | readings by hour and property over the whole fleet
    property unit hour | hour DESC, property
    hour property unit count mean min p05 p50 p95 max
gaps | uptime | gaps of sensors
    gw stream start | gap_s DESC, gw, stream
    gw stream start end gap_s expected_s reason restarted history_lost
uptime | uptime | uptime of sensors
    gw stream | uptime, gw, stream
    gw stream property readings untimed expected_s gaps down_s longest_s uptime
anomalies | anomalies | readings far from those of the fleet at that hour of the day
    gw epoch seq stream | distance DESC, gw, epoch, seq
    gw seq stream property time number median scale z
anomalous_streams | anomalies | sensors with such readings
    gw stream property unit | anomalies DESC, gw, stream
    gw stream property anomalies first last worst_z
lamp_days | lamps | on-time and energy of lamps by day
    gw actuator day | on_s DESC, gw, actuator, day
    gw actuator day on_s switched_on unknown watts kwh
reactions | reactions | commands that a reading led to
    gw epoch seq actuator | acknowledged_ms DESC, gw, epoch, seq
    gw seq actuator value cause_id property reading reaction_ms acknowledged_ms
reaction_times | reactions | from a reading to the command, and to the device's acknowledgement
    property cause_kind cause_id value | reactions DESC, cause_id
    property cause_id value reactions changes acknowledged reaction_p50_ms reaction_p99_ms acknowledged_p50_ms
    acknowledged_p99_ms
dead_sensors | dead-sensors | silent sensors
    gw stream | state, silent_s DESC, gw, stream
    gw stream property label last silent_s expected_s state
clock_quality | clocks | clocks of the gateways
    gw | untimed DESC, untrusted_share DESC, spread_ms DESC, gw
    gw quality records untrusted_share boots spread_ms repaired untimed result_wrong
fleet_health | health | health of the gateways
    gw | severity, uptime, gw
    gw health why heard streams readings uptime gaps dead anomalies clock
"""


def _results() -> Iterator[Result]:
    for text in re.split(r"\n(?=\w)", _RESULTS.strip()):
        head, order, columns = text.split("\n", 2)
        name, job, title = head.split(" | ")
        keys, top = order.split(" | ")
        yield Result(name, job, title, tuple(keys.split()), tuple(top.split(", ")), tuple(columns.split()))


RESULTS = {result.name: result for result in _results()}


def write(frame: DataFrame, result: Result, out: Lake) -> tuple[DataFrame, int]:
    """Writes ``<out>/<job>/<name>.parquet`` and ``.csv``, one file each, and replaces older ones atomically.

    Returns the rows of the Parquet file, and their number. The CSV is made from the same rows.
    """
    parquet = f"{result.name}.parquet"
    with _at_once(out, result.job, parquet) as folder:
        # Computed in parallel and written by one task, so that the result is one sorted file.
        frame.repartition(1).sortWithinPartitions(*result.keys).write.parquet(out.spark(result.job, folder))
    with _at_once(out, result.job, f"{result.name}.csv") as folder:
        rows = _write_csv(out, out.path(result.job, parquet), out.path(result.job, folder, "part.csv"))
    return frame.sparkSession.read.schema(frame.schema).parquet(out.spark_input(result.job, parquet)), rows


@contextmanager
def _at_once(out: Lake, job: str, name: str) -> Iterator[str]:
    """A temporary folder for one file, which is renamed to its target at the end."""
    folder = f".{name}-{uuid4().hex}"
    suffix = name[name.rindex(".") :]
    try:
        yield folder
        (file,) = [part for part in out.names(job, folder) if part.endswith(suffix)]
        out.fs.mv(out.path(job, folder, file), out.path(job, name))
    finally:
        if out.fs.exists(out.path(job, folder)):
            out.fs.rm(out.path(job, folder), recursive=True)


def _write_csv(out: Lake, source: str, target: str) -> int:
    """Writes the CSV. Returns the number of rows."""
    # Spark would run a job for each small file.
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetFile

    out.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
    with out.fs.open(source, "rb") as file, out.fs.open(target, "wb") as csv:
        rows = ParquetFile(file)
        with CSVWriter(csv, rows.schema_arrow) as writer:
            for batch in rows.iter_batches():
                writer.write_batch(batch)
        return int(rows.metadata.num_rows)


def top_rows(out: Lake, result: Result, rows: int, where: Expression | None = None) -> Top:
    """The first rows of a written result in the order for display. Nulls come last.

    where: a condition on the rows. Only the first rows and one part of the file are in memory at a time. Times are in
    UTC.
    """
    # Without Spark, which would run a job for each result.
    from pyarrow.parquet import ParquetFile

    matched = 0
    with out.fs.open(out.path(result.job, f"{result.name}.parquet"), "rb") as file:
        stored = ParquetFile(file)
        first = stored.schema_arrow.empty_table()
        for batch in stored.iter_batches():
            part = pa.Table.from_batches([batch])
            if where is not None:
                part = part.filter(where)
            matched += part.num_rows
            first = _in_order(pa.concat_tables([first, part]), result.top).slice(0, rows)
    return Top(first.to_pylist(), matched)


def _in_order(table: Table, order: tuple[str, ...]) -> Table:
    """The rows sorted by columns and by _COMPUTED_KEYS; those that are equal keep their order."""
    keys = table.select([])
    directions = []
    for term in order:
        name = term.removesuffix(" DESC")
        keys = keys.append_column(name, _COMPUTED_KEYS[name](table) if name in _COMPUTED_KEYS else table[name])
        directions.append((name, "ascending" if name == term else "descending"))
    # Nulls are put at the end by default. To say so is deprecated from pyarrow 25 on, in another way than before.
    return table.take(pc.sort_indices(keys, sort_keys=directions))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows with times in UTC. PySpark returns naive times in the machine's zone."""
    moments = [name for name, kind in frame.dtypes if kind == "timestamp"]
    rows = [row.asDict() for row in frame.withColumns({name: F.unix_micros(name) for name in moments}).collect()]
    for row in rows:
        row |= {name: _1970 + timedelta(microseconds=row[name]) for name in moments if row[name] is not None}
    return rows
