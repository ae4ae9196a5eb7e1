"""The plan of a fleet subscription: the whole event in one row, without shuffle and state.

Source: Pellegrino 2013, 4.2, where one peer has all triples of a compound event and matches them in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.sparql.joined_rows import conjunction, joined_rows
from lamplighter.cloud_sync.fleet.sparql.nested import nested_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery


def solutions(events: DataFrame, query: FleetQuery) -> DataFrame:
    """The solutions of a query in each event that use a new triple.

    events: a row for each event with at least ``triples ARRAY<STRUCT<s, p, o: STRING, new: BOOLEAN>>``, ``graph
        STRING`` (null for the default graph) and ``constants ARRAY<STRING>``, the terms by number, so that one plan
        serves all queries of a shape.
    Result: the same columns without triples and constants, and ``row ARRAY<STRING>``, one row of the frame for each
    solution: the projected terms, null where unbound; an empty array for an ASK.

    A null row says that the event exceeds a bound of `nested` or `joined_rows`; other rows of the event are then
    incomplete.
    """
    parts = conjunction(query.tree)
    return nested_rows(events, query) if parts is None else joined_rows(events, query, parts)
