"""Star patterns by one grouping have the solutions of Oxigraph, where a table with one value per cell has not."""

import os
from collections import Counter, defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.queries.star_plan import StarPlan
from lamplighter.cloud_sync.fleet.sparql import csma, stars
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from tests.cloud_sync.fleet.sparql.made_up_queries import (
    GRAPHS,
    NODES,
    OBJECTS,
    PREDICATES,
    EventOracle,
    MadeUpQuery,
    QueryMaker,
    made_up_event,
    made_up_queries,
)
from tests.cloud_sync.fleet.sparql.test_csma_datasets import QUADS, _rows, _store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = int(os.environ.get("FLEET_STAR_QUERIES", "1"))
WRITTEN = [
    "{ ?s <urn:p> ?x ; <urn:p> ?y ; <urn:q> ?v }",  # two values of one predicate, with each other
    "{ ?s <urn:p> ?x ; <urn:q> ?x }",  # one variable for two predicates
    "{ ?s <urn:p> ?x ; <urn:q> ?y OPTIONAL { ?s <urn:r> ?v ; <urn:q> ?z FILTER(?z != ?y) } }",  # a missing predicate
    "{ ?s <urn:p> ?x ; <urn:q> ?v . ?x <urn:r> ?y ; <urn:q> ?w FILTER(?v < ?w) }",  # two stars
    "{ <urn:a> <urn:p> ?x ; <urn:q> ?v . ?x <urn:p> ?x ; <urn:r> ?y }",
    "{ GRAPH ?g { ?s <urn:p> ?x ; <urn:q> ?g } }",
    "{ GRAPH ?s { ?s <urn:p> ?x ; <urn:q> ?y } ?s <urn:p> ?x ; <urn:r> ?z }",
]


class StarMaker(QueryMaker):
    """Mostly stars, in few groups."""

    def group(self, depth: int = 0) -> str:
        return super().group(depth + 1 if depth else 0)

    def triples(self) -> str:
        if self.random.random() < 0.3:
            return super().triples()
        subject = self.subject()
        count = self.random.choice((2, 2, 3, 4))
        return "".join(f"{subject} {self.constant(PREDICATES)} {self.object()} . " for _ in range(count))


def _collected(frame: "DataFrame", *key: str) -> dict[tuple[object, ...], Counter]:
    """The rows of each key."""
    found = defaultdict(Counter)
    for row in frame.select(*key, "row").collect():
        found[tuple(row[name] for name in key)][tuple(row.row)] += 1
    return found


def test_stars_over_datasets(spark: "SparkSession") -> None:
    random = Random(11)
    quads = {
        (gateway, random.choice(GRAPHS), random.choice(NODES), random.choice(PREDICATES), random.choice(OBJECTS))
        for gateway in ("gw-1", "gw-2")
        for _ in range(50)
    }
    each = spark.createDataFrame(sorted(quads, key=str), QUADS).cache()
    union = each.drop("gw").distinct().cache()
    stores = {gateway: _store(one[1:] for one in quads if one[0] == gateway) for gateway in ("gw-1", "gw-2")}
    whole = _store(one[1:] for one in quads)
    queries = [MadeUpQuery(fleet_query(f"SELECT * {text}"), f"SELECT * {text}") for text in WRITTEN]
    assert all(stars.star_predicates(one.query) for one in queries)
    while len(queries) < len(WRITTEN) + COUNT:
        [made] = made_up_queries(random, 1, Counter(), StarMaker)
        if "GRAPH" not in made.query.text and stars.star_predicates(made.query):
            queries.append(made)
    answered = 0
    for number, made in enumerate(queries):
        if number % 2:
            found = _collected(csma.solutions(each, made.query, ("gw",), PREDICATES), "gw")
            expected = {(gateway,): _rows(store, made) for gateway, store in stores.items()}
        else:
            found = _collected(csma.solutions(union, made.query, (), PREDICATES))
            expected = {(): _rows(whole, made)}
        assert found == {one: bag for one, bag in expected.items() if bag}, made.query.text
        answered += bool(found)
    assert answered > len(queries) / 2


def test_stars_in_events_use_a_new_triple(spark: "SparkSession") -> None:
    random = Random(3)
    events = [made_up_event(random) for _ in range(60)]
    rows = [(f"{n}", 1, n, one.graph, "added", *triple) for n, one in enumerate(events) for triple in one.triples]
    quads = spark.createDataFrame(
        rows, "gw STRING, epoch INT, seq INT, graph STRING, change STRING, s STRING, p STRING, o STRING, new BOOLEAN"
    ).cache()
    text = "SELECT * { GRAPH ?g { ?s <urn:p> ?x ; <urn:q> ?v OPTIONAL { ?s <urn:r> ?y ; <urn:p> ?y } } }"
    made = MadeUpQuery(fleet_query(text), text)
    found = _collected(csma.solutions(quads, made.query, narrow=PREDICATES), "seq")
    expected = {number: EventOracle(one).rows(made) for number, one in enumerate(events)}
    assert sum(sum(one.values()) for one in expected.values()) > 3
    assert {number: found[(number,)] for number in expected} == expected


def test_a_predicate_with_many_values_is_joined(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    hub = [(None, "<urn:hub>", "<urn:hosts>", f"<urn:{number}>") for number in range(3)]
    quads = spark.createDataFrame(
        [*hub, (None, "<urn:hub>", "<urn:name>", '"h"'), ("<urn:g>", "<urn:hub>", "<urn:name>", '"g"')],
        "graph STRING, s STRING, p STRING, o STRING",
    )
    query = fleet_query("SELECT ?n { ?s <urn:hosts> ?x ; <urn:name> ?n ; <urn:none> ?y . ?x ?p ?s . ?x <urn:name> ?m }")
    plan = StarPlan.of(quads, (), query)
    assert plan.most == {}
    assert list(plan.lines()) == [
        "star, one grouping by subject: ?s <urn:hosts> ?x . ?s <urn:name> ?n . ?s <urn:none> ?y",
        "join, no other pattern has the subject in the same group: ?x <urn:name> ?m",
        "join, the predicate is a variable: ?x ?p ?s",
    ]
    for module in ("queries.star_plan", "sparql.stars"):
        monkeypatch.setattr(f"lamplighter.cloud_sync.fleet.{module}.VALUES_MAX", 2)
    plan = StarPlan.of(quads, (), query)
    assert plan.most == {"<urn:hosts>": 3, "<urn:name>": 1}
    assert list(plan.lines())[:3] == [
        "star, one grouping by subject: ?s <urn:name> ?n . ?s <urn:none> ?y",
        "join, no other pattern has the subject in the same group: ?x <urn:name> ?m",
        "join, a subject has 3 values of the predicate, more than 2: ?s <urn:hosts> ?x",
    ]
