"""The store has the solutions that Spark's plans have: those of Oxigraph, event by event."""

from collections import Counter
from random import Random

import pytest

from lamplighter.cloud_sync.fleet.sparql.event_store import ROWS_MAX, EventStore, LeftToSparkError
from lamplighter.cloud_sync.fleet.sparql.query_text import solutions_text
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from tests.cloud_sync.fleet.sparql.made_up_queries import EventOracle, made_up_event, made_up_queries

QUERIES, EVENTS = 40, 30
INTEGER = "<http://www.w3.org/2001/XMLSchema#integer>"


def test_random_queries_have_the_solutions_of_oxigraph() -> None:
    random = Random(2)
    events = [made_up_event(random) for _ in range(EVENTS)]
    oracles = [EventOracle(event) for event in events]
    matched = left = 0
    for _ in range(QUERIES):
        [query] = made_up_queries(random, 1, Counter())
        text = solutions_text(query.query)
        for event, oracle in zip(events, oracles, strict=True):
            new, old = ([triple[:3] for triple in event.triples if triple[3] is is_new] for is_new in (True, False))
            try:
                found = EventStore(new, old, event.graph).rows(text, query.query.constants)
            except LeftToSparkError:
                left += 1
                continue
            expected = oracle.rows(query)
            assert Counter(found) == expected, f"{query.query.text}, {event}"
            assert query.query.form == "ASK" or found == sorted(
                found, key=lambda row: [(t is not None, t) for t in row]
            )
            matched += bool(expected)
    assert matched > QUERIES * EVENTS / 50
    assert left < QUERIES * EVENTS / 20


@pytest.mark.parametrize(
    "triple",
    [
        ("<urn:s>", "<urn:p>", f'"01"^^{INTEGER}'),
        ("<urn:s>", "<urn:p>", "no term"),
        ("<urn:s>", "<urn:p", "<urn:o>"),
        ("<urn:s>", "<urn:p>", '"a"@EN'),
        ("<urn:s>", "<urn:p>", "<urn:o> .\n<urn:s> <urn:q> <urn:o>"),
    ],
)
def test_terms_that_the_store_would_change_are_left_to_spark(triple: tuple[str, str, str]) -> None:
    text = solutions_text(fleet_query("SELECT * { ?s ?p ?o }"))
    with pytest.raises(LeftToSparkError, match="term"):
        EventStore([triple], [], None).rows(text, ())


def test_a_triple_twice_is_left_to_spark() -> None:
    query = fleet_query("SELECT * { ?s ?p ?o }")
    triple = ("<urn:s>", "<urn:p>", "<urn:o>")
    with pytest.raises(LeftToSparkError, match="twice"):
        EventStore([triple], [triple], None).rows(solutions_text(query), query.constants)


def test_a_join_of_many_triples_is_left_to_spark() -> None:
    query = fleet_query("SELECT * { ?a <urn:p> ?x . ?b <urn:p> ?y }")
    many = [("<urn:s>", "<urn:p>", f"<urn:o{number}>") for number in range(101)]
    assert len(EventStore(many[:100], [], None).rows(solutions_text(query), query.constants)) == ROWS_MAX
    with pytest.raises(LeftToSparkError, match="many triples"):
        EventStore(many, [], None).rows(solutions_text(query), query.constants)
