"""What the rows of each segment in a staged batch of bronze say.

Of Spark's files pyarrow reads it in the driver: Spark would plan and compile a job for it, and decode the quads'
predicates to count them. Only one part of a file is in memory at a time. In a process that has DuckDB already, loading
pyarrow would cost more than the rest of a small batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.lake import Batches, TableBatch
from lamplighter.cloud_sync.fleet.lazy import F, pa, pc
from lamplighter.cloud_sync.fleet.local.session import LocalSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import ChunkedArray, RecordBatch, Table
    from pyspark.sql import Column, DataFrame

    from lamplighter.cloud_sync.fleet.session import Session

_PART_ROWS = 65_536
_COLUMNS = ("segment", "gw", "epoch", "seq", "a.list.element.p", "k.list.element.p")
_KEYS = ["segment", "gw", "epoch"]


@dataclass
class SegmentRows:
    """lines: rows; records: those that are a record; first and last: seq; epochs and gateways: those of records;
    quads_max: the largest number of quads that one of them asserts."""

    lines: int
    records: int
    first: int | None
    last: int | None
    epochs: set[int]
    gateways: set[str]
    quads_max: int


def segment_rows(engine: Session, bronze: Batches, staged: TableBatch) -> dict[str, SegmentRows]:
    """The rows of each segment of a batch, counted and summarised. engine: wrote the batch."""
    found: dict[str, SegmentRows] = {}
    if isinstance(engine, LocalSession):
        groups = (row.asDict() for row in _group_frame(bronze.open(engine, staged.files)).collect())
    else:
        groups = (group for part in _parts(bronze, staged) for group in _groups(part).to_pylist())
    for group in groups:
        _add(found, group)
    return found


def quad_count(name: str) -> Column:
    """The number of quads; 0 if the member is missing."""
    # Counting one member of the quads, so that Parquet need not read the others.
    return F.coalesce(F.size(F.col(f"{name}.p")), F.lit(0))


def _group_frame(rows: DataFrame) -> DataFrame:
    """As `_groups`, of all rows."""
    return rows.groupBy(*_KEYS).agg(
        F.count("*").alias("count_all"),
        F.min("seq").alias("seq_min"),
        F.max("seq").alias("seq_max"),
        F.max(quad_count("a") + quad_count("k")).alias("quads_max"),
    )


def _parts(bronze: Batches, staged: TableBatch) -> Iterator[RecordBatch]:
    from pyarrow.parquet import ParquetFile

    for name in staged.files:
        with bronze.lake.fs.open(bronze.lake.path(bronze.name, name), "rb") as file:
            yield from ParquetFile(file).iter_batches(_PART_ROWS, columns=list(_COLUMNS))


def _groups(part: RecordBatch) -> Table:
    """A row for each segment, gateway and epoch."""
    rows = pa.Table.from_batches([part])

    def quads(name: str) -> ChunkedArray:
        return pc.fill_null(pc.list_value_length(rows.column(name)), 0)

    counted = rows.select([*_KEYS, "seq"]).append_column("quads", pc.add(quads("a"), quads("k")))
    return counted.group_by(_KEYS).aggregate([([], "count_all"), ("seq", "min"), ("seq", "max"), ("quads", "max")])


def _add(found: dict[str, SegmentRows], group: dict[str, Any]) -> None:
    """Adds a row of `_groups`. A line that is no record has no gateway."""
    row = found.setdefault(group["segment"], SegmentRows(0, 0, None, None, set(), set(), 0))
    row.lines += group["count_all"]
    row.quads_max = max(row.quads_max, group["quads_max"])
    if group["epoch"] is not None:
        row.epochs.add(group["epoch"])
    if group["gw"] is not None:
        row.records += group["count_all"]
        row.gateways.add(group["gw"])
    row.first = min((seq for seq in (row.first, group["seq_min"]) if seq is not None), default=None)
    row.last = max((seq for seq in (row.last, group["seq_max"]) if seq is not None), default=None)
