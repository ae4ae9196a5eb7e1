"""Rows of MATCH in the driver: their order, and their Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

MatchRow = Mapping[str, Any]
"""The columns of MATCH by name."""


def match_table(rows: Iterable[MatchRow]) -> pyarrow.Table:
    """MATCH in the order in which each gateway committed, as `matching.in_order` sorts a frame."""
    import pyarrow as pa

    text, whole, flag = pa.string(), pa.int32(), pa.bool_()
    schema = pa.schema(
        {
            "subscription": text,
            "version": whole,
            "gw": text,
            "epoch": whole,
            "seq": pa.int64(),
            "ts": pa.timestamp("us", "UTC"),
            "trusted": flag,
            "late": flag,
            "change": text,
            "graph": text,
            "form": text,
            "variables": pa.list_(text),
            "rows": pa.list_(pa.list_(text)),
            "incomplete": flag,
            "request": text,
        }.items()
    )
    return pa.Table.from_pylist(sorted(rows, key=_place), schema)


def _place(row: MatchRow) -> tuple[Any, ...]:
    graph = row["graph"]
    # Of one graph, the deleted triples come first.
    return (
        *(row[name] for name in ("gw", "epoch", "seq")),
        graph is not None,
        graph or "",
        row["change"] == "added",
        row["subscription"],
    )
