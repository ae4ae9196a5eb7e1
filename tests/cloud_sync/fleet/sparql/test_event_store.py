"""The store has the solutions that Spark's plans have: those of Oxigraph, event by event."""

from collections import Counter
from random import Random

import pyoxigraph as ox
import pytest

from lamplighter.cloud_sync.fleet.sparql.event_store import ROWS_MAX, EventStore, StoredEvent, Triple
from lamplighter.cloud_sync.fleet.sparql.query_text import solutions_text
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from tests.cloud_sync.fleet.sparql.made_up_queries import EventOracle, made_up_event, made_up_queries, stored_event

QUERIES, EVENTS = 150, 40
INTEGER = "<http://www.w3.org/2001/XMLSchema#integer>"
ALL = "SELECT ?s ?p ?o { ?s ?p ?o }"
GOOD = StoredEvent([("<urn:a>", "<urn:p>", "<urn:b>")], [], None)


def rows(store: EventStore, query: str, *numbers: int) -> dict[int, list[tuple[str | None, ...]]]:
    compiled = fleet_query(query)
    return store.rows(solutions_text(compiled), compiled.constants, numbers)


def test_random_queries_have_the_solutions_of_oxigraph() -> None:
    random = Random(2)
    events = [made_up_event(random) for _ in range(EVENTS)]
    oracles = [EventOracle(event) for event in events]
    matched = left = 0
    for _ in range(QUERIES):
        [query] = made_up_queries(random, 1, Counter())
        store = EventStore(dict(enumerate(map(stored_event, events))))
        found = store.rows(solutions_text(query.query), query.query.constants, range(EVENTS))
        left += len(store.left)
        for number, oracle in enumerate(oracles):
            if number in store.left:
                assert number not in found
                continue
            expected = oracle.rows(query)
            some = found.get(number, [])
            assert Counter(some) == expected, f"{query.query.text}, {events[number]}"
            assert query.query.form == "ASK" or some == sorted(some, key=lambda row: [(t is not None, t) for t in row])
            matched += bool(expected)
    assert matched > QUERIES * EVENTS / 50
    assert left < QUERIES * EVENTS / 20


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * { ?s <urn:p> ?o OPTIONAL { VALUES ?x { 1 2 } } }",
        "SELECT * { ?s <urn:p> ?o { VALUES ?x { 1 2 } } UNION { BIND(3 AS ?x) } }",
        "SELECT * { { VALUES ?x { 1 } OPTIONAL { ?z <urn:q> ?y } } ?s <urn:p> ?o }",
        "SELECT * { ?s <urn:p> ?o GRAPH ?g { } }",
        "SELECT * { GRAPH ?g { ?s <urn:p> ?o FILTER(?g = <urn:g1>) } }",
        "SELECT * { ?s <urn:p> ?o OPTIONAL { GRAPH <urn:g0> { ?s ?q ?s } } }",
        "SELECT * { ?s <urn:p> ?o OPTIONAL { ?o <urn:q> ?y FILTER(?y != ?s) } FILTER(!BOUND(?y)) }",
        "SELECT * { ?a <urn:p> ?b . ?c <urn:q> ?d }",
    ],
)
def test_a_solution_is_of_one_event(query: str) -> None:
    events = {
        number: StoredEvent(
            [(f"<urn:{number}>", "<urn:p>", "<urn:o>")],
            [("<urn:o>", "<urn:q>", f"<urn:{number % 2}>")],
            None if number == 2 else f"<urn:g{number}>",
        )
        for number in range(4)
    }
    together = rows(EventStore(events), query, *events)
    alone = {number: rows(EventStore({number: event}), query, number).get(number) for number, event in events.items()}
    assert {number: some for number, some in alone.items() if some} == together
    assert together


@pytest.mark.parametrize(
    "triple",
    [
        ("<urn:s>", "<urn:p>", f'"01"^^{INTEGER}'),
        ("<urn:s>", "<urn:p>", "no term"),
        ("<urn:s>", "<urn:p", "<urn:o>"),
        ("<urn:s>", "<urn:p>", '"a"@EN'),
        ("<urn:s>", "<urn:p>", "<urn:o> .\n<urn:s> <urn:q> <urn:o>"),
        ("<urn:s>", "<urn:p>", "<urn:o> <lamplighter:0> .\n<urn:s> <urn:q> <urn:o>"),
        ("<urn:s>", "<urn:p>", '"""'),
    ],
)
def test_terms_that_the_store_would_change_are_left_to_spark_and_others_are_not(triple: Triple) -> None:
    store = EventStore({0: GOOD, 1: StoredEvent([triple], [], None), 2: GOOD})
    found = rows(store, ALL, 0, 1, 2)
    assert "term" in store.left.pop(1)
    assert (store.left, found) == ({}, {0: GOOD.new, 2: GOOD.new})


def test_a_triple_twice_is_left_to_spark() -> None:
    store = EventStore({0: StoredEvent(GOOD.new, GOOD.new, None), 1: GOOD})
    assert rows(store, ALL, 0, 1) == {1: GOOD.new}
    assert "twice" in store.left[0]


def test_a_join_of_many_triples_is_left_to_spark() -> None:
    query = "SELECT * { ?a <urn:p> ?x . ?b <urn:p> ?y }"
    many = [("<urn:s>", "<urn:p>", f"<urn:o{number}>") for number in range(101)]
    store = EventStore({0: StoredEvent(many[:100], [], None), 1: StoredEvent(many, [], None)})
    found = rows(store, query, 0)  # the store would join the triples of the other one, too
    assert {number: len(some) for number, some in found.items()} == {0: ROWS_MAX}
    assert "many triples" in store.left[1]
    assert not store._store.contains_named_graph(ox.NamedNode("lamplighter:1"))
    assert rows(store, ALL, 0, 1).keys() == {0}
