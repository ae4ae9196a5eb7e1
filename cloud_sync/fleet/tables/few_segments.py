"""What the rows of each segment in a staged batch of bronze say, without Spark: a job for it takes longer than reading
a few thousand rows."""

from __future__ import annotations

from typing import Any

from lamplighter.cloud_sync.fleet.lake import Batches, TableBatch

ROWS_MAX = 20_000


def segment_rows(bronze: Batches, staged: TableBatch) -> dict[str, dict[str, Any]] | None:
    """Segment -> records, lines, first, last, epoch, newest, gw, other and quads_max, as `Ingest` counts them on Spark.

    None if the batch has more than `ROWS_MAX` rows.
    """
    if staged.rows > ROWS_MAX:
        return None
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetFile

    found: dict[str, dict[str, Any]] = {}
    for name in staged.files:
        with bronze.lake.fs.open(bronze.lake.path(bronze.name, name), "rb") as file:
            columns = ["segment", "gw", "epoch", "seq", "a.list.element.p", "k.list.element.p"]
            rows = ParquetFile(file).read(columns=columns)
        plain = (rows.column(one).to_pylist() for one in ("segment", "gw", "epoch", "seq"))
        quads = (pc.fill_null(pc.list_value_length(rows.column(one)), 0).to_pylist() for one in "ak")
        for segment, gw, epoch, seq, added, kept in zip(*plain, *quads, strict=True):
            _count(found.setdefault(segment, {"records": 0, "lines": 0, "quads_max": 0}), gw, epoch, seq, added + kept)
    return found


def _count(row: dict[str, Any], gw: str | None, epoch: int | None, seq: int | None, quads: int) -> None:
    row["lines"] += 1
    row["records"] += gw is not None
    row["quads_max"] = max(row["quads_max"], quads)
    for least, most, value in (("first", "last", seq), ("epoch", "newest", epoch), ("gw", "other", gw)):
        known = [one for one in (row.get(least), row.get(most), value) if one is not None]
        row[least], row[most] = min(known, default=None), max(known, default=None)
