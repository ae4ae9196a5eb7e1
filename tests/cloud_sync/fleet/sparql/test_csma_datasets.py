"""The plan with a join for each pattern has the solutions of Oxigraph over datasets with several graphs."""

import os
from collections import Counter, defaultdict
from random import Random
from typing import TYPE_CHECKING

import pyoxigraph as ox
import pytest

from lamplighter.cloud_sync.fleet.sparql import csma
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.engine.errors import UnsupportedRequestError
from tests.cloud_sync.fleet.sparql.made_up_queries import (
    GRAPHS,
    NODES,
    OBJECTS,
    PREDICATES,
    MadeUpQuery,
    made_up_queries,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUADS = "gw STRING, graph STRING, s STRING, p STRING, o STRING"
COUNT = int(os.environ.get("FLEET_DATASET_QUERIES", "6"))
NAMED = [
    "{ ?s <urn:p> ?x . GRAPH ?g { ?x <urn:q> ?v } }",
    "{ GRAPH ?g { ?s ?p ?v } ?s ?p ?v }",
    "{ GRAPH ?g { OPTIONAL { ?s <urn:p> ?x } FILTER(?g = <urn:a>) } }",
    "{ GRAPH <urn:a> { OPTIONAL { ?s <urn:p> 7 } } }",
    "{ OPTIONAL { ?s <urn:p> 7 } }",
    "{ VALUES ?s { <urn:a> <urn:b> } OPTIONAL { ?s <urn:p> ?x } }",
]

Bag = Counter[tuple[str | None, ...]]


def test_datasets_of_gateways_and_their_union(spark: "SparkSession") -> None:
    random = Random(5)
    quads = {
        (gateway, random.choice(GRAPHS), random.choice(NODES), random.choice(PREDICATES), random.choice(OBJECTS))
        for gateway in ("gw-1", "gw-2")
        for _ in range(40)
    }
    each = spark.createDataFrame(sorted(quads, key=str), QUADS).cache()
    union = each.drop("gw").distinct().cache()
    stores = {gateway: _store(one[1:] for one in quads if one[0] == gateway) for gateway in ("gw-1", "gw-2")}
    whole = _store(one[1:] for one in quads)
    queries = [MadeUpQuery(fleet_query(f"SELECT * {text}"), f"SELECT * {text}") for text in NAMED]
    queries += [one for _ in range(COUNT) for one in made_up_queries(random, 1, Counter())]
    answered = 0
    for number, made in enumerate(queries):
        try:
            if number % 2:
                found = {"": Counter(tuple(row.row) for row in csma.solutions(union, made.query, ()).collect())}
                expected = {"": _rows(whole, made)}
            else:
                found = defaultdict(Counter)
                for row in csma.solutions(each, made.query, ("gw",)).collect():
                    found[row.gw][tuple(row.row)] += 1
                expected = {gateway: _rows(store, made) for gateway, store in stores.items()}
        except UnsupportedRequestError:
            continue
        assert {key: bag for key, bag in found.items() if bag} == {key: bag for key, bag in expected.items() if bag}, (
            made.query.text
        )
        answered += any(expected.values())
    assert answered > len(queries) / 2


def test_a_graph_in_a_graph_is_refused(spark: "SparkSession") -> None:
    query = fleet_query("SELECT * { GRAPH ?g { ?s ?p ?o OPTIONAL { GRAPH ?h { ?o ?q ?x } } FILTER(?g != ?s) } }")
    with pytest.raises(UnsupportedRequestError, match="a GRAPH inside of a GRAPH"):
        csma.solutions(spark.createDataFrame([], QUADS), query, ())


def _store(quads: object) -> ox.Store:
    store = ox.Store()
    text = "".join(f"{s} {p} {o} {g or ''} .\n" for g, s, p, o in quads)
    store.load(text.encode(), ox.RdfFormat.N_QUADS)
    return store


def _rows(store: ox.Store, made: MadeUpQuery) -> Bag:
    found: Bag = Counter()
    for solution in store.query(made.all_variables):
        found[tuple(_term(solution, name) for name in made.query.variables)] += 1
    return found


def _term(solution: ox.QuerySolution, name: str) -> str | None:
    try:
        value = solution[name]
    except KeyError:
        return None
    return None if value is None else str(value)
