"""Events x subscriptions -> MATCH: every matching event, no false positive (Pellegrino 2013, 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from lamplighter.cloud_sync.fleet.lake import no_rows
from lamplighter.cloud_sync.fleet.lake.match_batches import match_schema
from lamplighter.cloud_sync.fleet.lake.tables import MATCHES
from lamplighter.cloud_sync.fleet.lazy import F, pa
from lamplighter.cloud_sync.fleet.sparql import osma
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery
from lamplighter.cloud_sync.fleet.subscriptions.index import candidates, entries
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Shapes that one job of Spark matches. Planning takes more time and memory than in proportion to them: the plan of 100
# exceeded 2 GB.
SHAPES_TOGETHER = 10
EVENT_KEY = ("gw", "epoch", "seq", "change", "graph")
_SAME = ("ts", "trusted", "late", "request")
_ONE_A_MATCH = ("subscription", "version", *EVENT_KEY)


class FollowedSubscription(NamedTuple):
    """A subscription and its compiled query."""

    record: SubscriptionRecord
    query: FleetQuery


@contextmanager
def matches(events: DataFrame, followed: Sequence[FollowedSubscription]) -> Iterator[DataFrame]:
    """EVENT with a column `late` -> MATCH, unsorted. The frame is valid within the block.

    Queries that differ only in their constants share one plan, and the index gives each plan only the events that have
    the constants.
    """
    # A plan needs no shuffle; only its rows, which are few, are grouped by event.
    queries = {one.query.shape: one.query for one in followed}
    found = candidates(events, entries(followed)).persist()
    parts: list[DataFrame] = []
    try:
        # A plan costs the driver more than a look at which shapes have candidates.
        shapes = sorted(row["shape"] for row in found.select("shape").distinct().collect())
        for first in range(0, len(shapes), SHAPES_TOGETHER):
            together = shapes[first : first + SHAPES_TOGETHER]
            part = _union([_rows(found, queries[shape]) for shape in together])
            # A checkpoint's frame has no plan. If an executor is lost, so are its rows, and the batch fails.
            parts.append(part if len(shapes) <= SHAPES_TOGETHER else part.localCheckpoint())
        yield _union(parts) if parts else no_rows(events.sparkSession, MATCHES)
    finally:
        found.unpersist()


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _rows(found: DataFrame, query: FleetQuery) -> DataFrame:
    """MATCH of the subscriptions whose query has one shape."""
    solutions = osma.solutions(found.where(F.col("shape") == query.shape), query)
    variables: Column = F.array(*map(F.lit, query.variables)).cast("ARRAY<STRING>")
    # A null row says that the event exceeds a bound; collect_list leaves it out.
    incomplete = F.bool_or(F.col("row").isNull()).alias("incomplete")
    rows = F.sort_array(F.collect_list("row")) if query.form == "SELECT" else F.array().cast("ARRAY<ARRAY<STRING>>")
    return (
        solutions.groupBy(*_ONE_A_MATCH)
        .agg(*(F.first(name).alias(name) for name in _SAME), incomplete, rows.alias("rows"))
        .withColumns({"form": F.lit(query.form), "variables": variables})
        .select(*(name.strip().partition(" ")[0] for name in MATCHES.split(",")))
    )


def in_order(found: DataFrame) -> DataFrame:
    """MATCH in the order in which each gateway committed: one sorted partition, for the matches of a batch are few."""
    order = ("gw", "epoch", "seq", F.asc_nulls_first("graph"), F.desc("change"), "subscription")
    return found.repartition(1).sortWithinPartitions(*order)


# The columns of MATCH by name.
MatchRow = Mapping[str, Any]


def match_table(rows: Iterable[MatchRow]) -> pa.Table:
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
