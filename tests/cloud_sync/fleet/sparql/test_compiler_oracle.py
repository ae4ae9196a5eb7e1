"""All plans of random queries have the solutions that Oxigraph has, event by event."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.sparql import csma, osma
from lamplighter.cloud_sync.fleet.sparql.event_store import EventStore
from lamplighter.cloud_sync.fleet.sparql.nested import nested_rows
from lamplighter.cloud_sync.fleet.sparql.osma import conjunction
from lamplighter.cloud_sync.fleet.sparql.query_text import solutions_text
from lamplighter.engine.errors import UnsupportedRequestError
from tests.cloud_sync.fleet.sparql.made_up_queries import (
    EventOracle,
    MadeUpEvent,
    MadeUpQuery,
    made_up_event,
    made_up_queries,
    stored_event,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VARIANTS = 3
SIZE = os.environ.get("FLEET_ORACLE", "24x60")
"""Queries x events. FLEET_SEED chooses others; ``random`` draws a seed and prints it.

The full size, with a line for each three queries: ``FLEET_ORACLE=201x10000 pytest -s`` with this file.
"""

Solutions = dict[tuple[int, int], Counter[tuple[str | None, ...]]]
"""(number of the event, number of the query) -> its rows."""

EVENTS = (
    "event INT, variant INT, graph STRING, triples ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, new: BOOLEAN>>, "
    "constants ARRAY<STRING>"
)


@pytest.mark.timeout(6 * 3600 if "FLEET_ORACLE" in os.environ else 1200)
def test_all_plans_have_the_solutions_of_oxigraph(spark: SparkSession) -> None:
    named = os.environ.get("FLEET_SEED", "1")
    seed = SystemRandom().randrange(10**6) if named == "random" else int(named)
    print(f"FLEET_SEED={seed}")
    random = Random(seed)
    count, size = map(int, SIZE.split("x"))
    events = [made_up_event(random) for _ in range(size)]
    oracles = [EventOracle(event) for event in events]
    refused: Counter[str] = Counter()
    matched = compared = 0
    for _ in range(0, count, VARIANTS):
        queries = made_up_queries(random, VARIANTS, refused)
        expected = {
            (number, variant): rows
            for number, oracle in enumerate(oracles)
            for variant, query in enumerate(queries)
            if (rows := oracle.rows(query))
        }
        frame = _frame(spark, events, queries).persist()
        if conjunction(queries[0].query.tree) is not None:
            _compare("nested", _rows(nested_rows(frame, queries[0].query)), expected, queries, events)
        _compare("osma", _rows(osma.solutions(frame, queries[0].query)), expected, queries, events)
        _compare("store", _in_store(events, queries, expected), expected, queries, events)
        variant = random.randrange(VARIANTS)
        quads = frame.where(f"variant = {variant}").selectExpr("event", "variant", "graph", "inline(triples)")
        one = {key: rows for key, rows in expected.items() if key[1] == variant}
        try:
            joined = csma.solutions(quads, queries[variant].query, ["event", "variant", "graph"])
        except UnsupportedRequestError:
            refused["csma"] += 1
        else:
            _compare("csma", _rows(joined), one, queries, events)
        frame.unpersist()
        compared += len(queries) * len(events)
        matched += len(expected)
        print(f"{compared:,} pairs of query and event, {matched:,} matches", flush=True)
    print(f"refused: {dict(refused)}")
    assert matched > compared / 50
    assert refused["csma"] < count / VARIANTS / 2


def _compare(
    plan: str, found: Solutions, expected: Solutions, queries: list[MadeUpQuery], events: list[MadeUpEvent]
) -> None:
    for key in {*expected, *found}:
        number, variant = key
        text = queries[variant].query.text
        assert found.get(key) == expected.get(key), f"{plan}, {text}, {events[number]}"


def _in_store(events: list[MadeUpEvent], queries: list[MadeUpQuery], expected: Solutions) -> Solutions:
    """What the driver finds, and what is expected where it leaves an event to Spark."""
    found: Solutions = {}
    for variant, query in enumerate(queries):
        store = EventStore(dict(enumerate(map(stored_event, events))))
        rows = store.rows(solutions_text(query.query), query.query.constants, range(len(events)))
        found |= {(number, variant): Counter(some) for number, some in rows.items()}
        keys = ((number, variant) for number in store.left)
        found |= {key: expected[key] for key in keys if key in expected}
    return found


def _frame(spark: SparkSession, events: list[MadeUpEvent], queries: list[MadeUpQuery]) -> DataFrame:
    rows = [
        (number, variant, event.graph, list(event.triples), list(query.query.constants))
        for number, event in enumerate(events)
        for variant, query in enumerate(queries)
    ]
    return spark.createDataFrame(rows, EVENTS)


def _rows(frame: DataFrame) -> Solutions:
    found: Solutions = defaultdict(Counter)
    for row in frame.select("event", "variant", "row").collect():
        found[row.event, row.variant][tuple(row.row)] += 1
    return found
