"""One request that changes 100,000 quads, with subscriptions of every class."""

from __future__ import annotations

from collections import Counter

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.terms import XSD
from tests.properties.comparison import SPU_CLASSES, Comparison, Tally
from tests.support.amounts import Amounts

QUADS = 100_000
PREFIX = "PREFIX : <urn:x:> "

SUBSCRIPTIONS = [
    "SELECT ?s ?v { ?s :value ?v FILTER ( ?v > 990 ) }",
    "SELECT ?s { ?s :value ?v . ?s :in :r7 }",
    "SELECT ?v { :s5 :value ?v }",
    "SELECT ?a { ?a :in ?r . ?b :in ?r . ?a :next ?b }",
    "SELECT ( COUNT( * ) AS ?n ) ( SUM( ?v ) AS ?t ) { ?s :value ?v }",
    "SELECT ?r ( COUNT( * ) AS ?n ) { ?s :in ?r } GROUP BY ?r",
    "SELECT ( SUM( ?v ) AS ?t ) { ?s :in :r7 ; :value ?v }",
    "SELECT ?s ?v { ?s :in :r3 OPTIONAL { ?s :value ?v } }",
    "SELECT ?s { ?s :in :r3 FILTER NOT EXISTS { ?s :value ?v } }",
    "SELECT DISTINCT ?r { ?s :in ?r }",
    "SELECT ?s { ?s :in :r4 MINUS { ?s :next ?o } }",
    "SELECT ?s ?v { ?s :value ?v } ORDER BY DESC( ?v ) ?s LIMIT 3",
    "SELECT ?o { :s5 :next+ ?o }",
    "SELECT ?o { :s5 :next+ ?o } LIMIT 100000",
]


def dataset(quads: int) -> bytes:
    lines = []
    for number in range(quads // 4):
        lines.append(f'<urn:x:s{number}> <urn:x:value> "{number % 1000}"^^<{XSD}integer> .')
        lines.append(f"<urn:x:s{number}> <urn:x:in> <urn:x:r{number % 50}> .")
        lines.append(f"<urn:x:s{number}> <urn:x:next> <urn:x:s{number + 50 if number % 5000 < 4900 else number}> .")
        lines.append(f"<urn:x:s{number}> <urn:x:other> <urn:x:o{number % 10}> .")
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("clear", "quads"),
    [
        pytest.param("CLEAR DEFAULT", QUADS, marks=pytest.mark.faults),
        ("DELETE WHERE { ?s ?p ?o }", QUADS // 8),
        ("MOVE DEFAULT TO :g", QUADS // 8),
    ],
)
def test_everything_goes_and_comes_back_at_once(clear: str, quads: int, amounts: Amounts) -> None:
    document = dataset(amounts.of(quads))
    tally = Tally()
    comparison = Comparison(tally, whole_every=1000)

    def load() -> None:
        comparison.change(
            "load",
            lambda: comparison.oracle.load(document, "application/n-triples"),
            lambda: comparison.engine.load(document, media_type="application/n-triples"),
        )

    load()
    for query in SUBSCRIPTIONS:
        comparison.subscribe(PREFIX + query)
    assert {one.spu_class for one in comparison.followers} == set(SPU_CLASSES)
    comparison.update(PREFIX + clear)
    assert sum(one.rows.total() for one in comparison.followers) <= 4  # aggregates of nothing
    load()
    comparison.check_dataset()
    for spu_class in SPU_CLASSES:
        assert tally.counts[f"changed {spu_class}"] >= 2, tally
    comparison.engine.close()


def test_one_quad_is_deleted_and_inserted_with_many_others(amounts: Amounts) -> None:
    """What stays is not notified, however much goes."""
    document = dataset(amounts.of(QUADS))
    with Engine() as engine:
        engine.load(document, media_type="application/n-triples")
        stays = engine.subscribe(f"{PREFIX}SELECT ?v {{ :s5 :value ?v }}")
        goes = engine.subscribe(f"{PREFIX}SELECT ?v {{ :s6 :value ?v }}")
        commit = engine.update(f"{PREFIX}CLEAR DEFAULT ; INSERT DATA {{ :s5 :value 5 }}")
        assert len(commit.removed) == len(set(document.splitlines())) - 1
        assert Counter(one.spuid for one in commit.notifications) == Counter([goes.spuid])
        assert stays.first.rows == ((f'"5"^^<{XSD}integer>',),)
