"""Rows of MATCH in the driver: their order, and their Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.lake.match_batches import match_schema
from lamplighter.cloud_sync.fleet.lazy import pa

if TYPE_CHECKING:
    import pyarrow

MatchRow = Mapping[str, Any]
"""The columns of MATCH by name."""


def match_table(rows: Iterable[MatchRow]) -> pyarrow.Table:
    """MATCH in the order in which each gateway committed, as `matching.in_order` sorts a frame."""
    return pa.Table.from_pylist(sorted(rows, key=_place), match_schema())


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
