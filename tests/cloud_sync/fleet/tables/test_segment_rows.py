"""What a staged batch of bronze says about its segments, against a loop over its rows. Spark does not start."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.local.session import local_session
from lamplighter.cloud_sync.fleet.tables import segment_rows as module
from lamplighter.cloud_sync.fleet.tables.segment_rows import SegmentRows, segment_rows
from tests.support.components import require_module

QUAD = {"s": "<s>", "p": "<p>", "o": '"1"', "g": None}
ONE, OTHER = "gw-1/1-000000000001-000000000004.ndjson.zst", "gw-2/1-000000000001-000000000002.ndjson.zst"
_ROWS = [
    (ONE, "gw-1", 1, 2, 3, None),
    (OTHER, "gw-2", 1, 1, 0, 0),
    (ONE, "gw-1", 1, 1, 1, 4),
    (ONE, None, None, None, 0, 9),
    (OTHER, "gw-3", 2, 7, 2, 2),
    (ONE, "gw-1", 1, 4, 0, None),
    (OTHER, None, 3, 8, 0, None),
]
"""segment, gw, epoch, seq, and the numbers of quads added and asserted again."""
ROWS: list[dict[str, Any]] = [
    {
        **dict(zip(("segment", "gw", "epoch", "seq"), row[:4], strict=True)),
        "a": [QUAD] * row[4],
        "k": None if row[5] is None else [QUAD] * row[5],
    }
    for row in _ROWS
]


def by_loop(rows: list[dict[str, Any]], segment: str) -> SegmentRows:
    own = [row for row in rows if row["segment"] == segment]
    places = [row["seq"] for row in own if row["seq"] is not None]
    return SegmentRows(
        lines=len(own),
        records=len([row for row in own if row["gw"] is not None]),
        first=min(places),
        last=max(places),
        epochs={row["epoch"] for row in own} - {None},
        gateways={row["gw"] for row in own} - {None},
        quads_max=max(len(row["a"]) + len(row["k"] or ()) for row in own),
    )


@pytest.mark.parametrize("part_rows", [1, 2, 100, None])
def test_rows_of_a_segment_are_counted_across_parts_and_files(
    tmp_path: Path, part_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_module("pyarrow")
    import pyarrow as pa

    monkeypatch.setattr(module, "_PART_ROWS", part_rows)
    bronze = table(Lake(str(tmp_path)), "bronze")
    kinds = {"epoch": pa.int32(), "seq": pa.int64()}
    quads = pa.list_(pa.struct([(name, pa.string()) for name in "spog"]))
    schema = pa.schema([(name, quads if name in "ak" else kinds.get(name, pa.string())) for name in ROWS[0]])
    files = []
    for number, rows in enumerate((ROWS[:3], ROWS[3:])):
        staged = bronze.stage_rows(
            pa.Table.from_pylist(rows, schema), TableBatch(id=f"part-{number}", files=[], rows=0)
        )
        files += staged.files
    both = TableBatch(id="both", files=files, rows=len(ROWS))
    with local_session() if part_rows is None else contextlib.nullcontext() as engine:
        found = segment_rows(engine, bronze, both)
    assert found == {ONE: by_loop(ROWS, ONE), OTHER: by_loop(ROWS, OTHER)}
