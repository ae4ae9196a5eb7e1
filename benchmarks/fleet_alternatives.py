"""Alternatives that were measured and not taken; docs/internals/decisions.md has the reasons.

manifests: a batch of a table becomes visible by a manifest of ours, or by a commit of delta-rs. bronze: segments become
Parquet in one process by pyarrow, beside which `make bench-fleet` has the cost on Spark.
"""

import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
import zstandard
from deltalake.transaction import AddAction, CommitProperties, Transaction

from benchmarks import text_table
from benchmarks.measuring import Cost, cost_of, machine
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.demo.fleet.simulate import Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan

BATCHES = (100, 1000)
FILES, SEGMENTS = 4, 25
"""Of a batch."""
GATEWAYS = 4
_QUADS = pa.list_(pa.list_(pa.string()))
_LINE = pa.schema(
    {
        **dict.fromkeys(("type", "gw", "ts", "boot", "request"), pa.string()),
        **dict.fromkeys(("v", "epoch", "seq", "boottime_us"), pa.int64()),
        "trusted": pa.bool_(),
        "cause": pa.struct({"kind": pa.string(), "id": pa.string(), "seq": pa.int64()}),
        **dict.fromkeys("dak", _QUADS),
    }
)


def main() -> int:
    """Prints both tables."""
    with tempfile.TemporaryDirectory(prefix="fleet-alternatives-") as folder:
        print(f"{machine()}\n\n{manifests(Path(folder))}\n\n{bronze(Path(folder))}")
    return 0


def manifests(folder: Path) -> str:
    """Processor milliseconds of a commit, and of reading which files count, on both sides in turns."""
    own = table(Lake(str(folder / "own")), "bronze")
    schema = pa.schema({"gw": pa.string()})
    delta = deltalake.DeltaTable.create(str(folder / "delta"), schema)
    rows, done = [["batches", "commit", "delta-rs", "files", "delta-rs", "delta-rs, with the segments"]], 0
    for most in BATCHES:
        costs = [Cost(), Cost()]
        for number in range(done, most):
            batch = _batch(number)
            costs[0] += cost_of(lambda batch=batch: own.commit(batch))  # type: ignore[misc]
            costs[1] += cost_of(lambda batch=batch, number=number: _commit(delta, schema, batch, number))  # type: ignore[misc]
        read = [cost_of(lambda: [file for batch in own.live() for file in batch.files])]
        read.append(cost_of(lambda: deltalake.DeltaTable(str(folder / "delta")).file_uris()))
        read.append(cost_of(lambda: deltalake.DeltaTable(str(folder / "delta")).history()))
        rows.append([f"{most:,}", *(f"{cost.cpu / (most - done) * 1e3:.2f}" for cost in costs)])
        rows[-1] += [f"{cost.cpu * 1e3:.0f}" for cost in read]
        done = most
    return f"{text_table.table(rows)}\n\nms of CPU for each commit, and to read what counts; {FILES} files a batch"


def _batch(number: int) -> TableBatch:
    id = f"run-{number:06d}"
    segments = [f"gw-{one:06d}/1-{number:012d}-{number:012d}.ndjson.zst" for one in range(SEGMENTS)]
    files = [f"batch={id}/part-{one:05d}.zstd.parquet" for one in range(FILES)]
    return TableBatch(id=id, files=files, rows=FILES, segments=segments, quads_max=8)


def _commit(delta: deltalake.DeltaTable, schema: pa.Schema, batch: TableBatch, version: int) -> None:
    delta.create_write_transaction(
        [AddAction(name, 1000, {}, 0, True, json.dumps({"numRecords": 1})) for name in batch.files],
        "append",
        schema,
        commit_properties=CommitProperties(
            custom_metadata={"segments": json.dumps(batch.segments)}, app_transactions=[Transaction("run", version)]
        ),
    )
    # Otherwise the next commit is refused as one of the same application at the same time.
    delta.update_incremental()


def bronze(folder: Path) -> str:
    """Processor microseconds for each quad, by step, on one thread; commits only, without their created graphs."""
    pa.set_cpu_count(1)
    plan = FleetPlan(1.0, event_share=0.5, states=1)
    list(fleet([Order(number, 1, plan, folder / "fleet", records=10_000) for number in range(1, GATEWAYS + 1)], 1))
    costs: dict[str, Cost] = {}

    def measured(step: str, work: Callable[..., Any], *arguments: Any) -> Any:
        made: list[Any] = []
        costs[step] = costs.get(step, Cost()) + cost_of(lambda: made.append(work(*arguments)))
        return made[0]

    tables = []
    for path in sorted((folder / "fleet" / "shipped").glob("*/*.ndjson.zst")):
        text = measured("decompress", _decompressed, path)
        commits = b"".join(line for line in text.splitlines(keepends=True) if b'"type":"commit"' in line[:60])
        tables.append(measured("convert", _columns, measured("parse", _parsed, commits)))
    whole = pa.concat_tables(tables)
    measured("write", lambda: pq.write_table(whole, folder / "bronze.parquet", compression="zstd"))
    quads = sum(pc.sum(pc.list_value_length(whole[name])).as_py() or 0 for name in "dak")
    costs["all"] = sum(costs.values(), Cost())
    rows = [["step", "us a quad"], *([step, f"{cost.cpu / quads * 1e6:.2f}"] for step, cost in costs.items())]
    return f"{text_table.table(rows)}\n\n{quads:,} quads"


def _decompressed(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def _parsed(lines: bytes) -> pa.Table:
    return pyarrow.json.read_json(
        io.BytesIO(lines),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 22),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
    )


def _columns(found: pa.Table) -> pa.Table:
    """The same rows, each quad as a struct."""
    for name in "dak":
        lists = found[name].combine_chunks()
        terms = lists.flatten().flatten()
        parts = [terms.take(np.arange(place, len(terms), 4)) for place in range(4)]
        quads = pa.StructArray.from_arrays(parts, list("spog"))
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        structs = pa.ListArray.from_arrays(offsets, quads, mask=lists.is_null())
        found = found.set_column(found.schema.get_field_index(name), name, structs)
    return found


if __name__ == "__main__":
    sys.exit(main())
