"""Subscriptions with triple terms: who shares a plan, what a changed quad costs, and the clock beside them."""

from __future__ import annotations

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching.lutt import ANY, TriplePattern
from lamplighter.engine.sparql.triples import RDF_REIFIES
from tests.engine.matching.test_clock_index import PREFIX as CLOCK
from tests.engine.matching.test_clock_index import START, at, changes, time
from tests.engine.matching.test_shapes import shapes, unit_of, units
from tests.support.signatures import signature
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> "
STATEMENTS = 3_000


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("SELECT ?o { << :a :b ?o ~ ?r >> }", "SELECT ?x { ?y rdf:reifies <<( :a :b ?x )>> }"),
        ("SELECT ?o { :a :b ?o {| :c ?x |} }", "SELECT ?o{:a :b ?o{|:c ?x|}}"),
    ],
)
def test_spellings_of_a_query_have_the_same_result(one: str, same: str) -> None:
    with Engine() as engine:
        subscriptions = [engine.subscribe(PREFIX + text) for text in (one, same)]
        commit = engine.update(PREFIX + "INSERT DATA { :a :b 1 ~ :r {| :c 2 |} }")
        assert {notification.spuid for notification in commit.notifications} == {it.spuid for it in subscriptions}
        assert {str(notification.added.rows) for notification in commit.notifications} == {
            str(commit.notifications[0].added.rows)
        }


def test_queries_that_differ_in_parts_of_a_triple_term_share_a_shape() -> None:
    texts = [f"{PREFIX} SELECT ?who {{ << :lamp{number} :in :room{number} >> :by ?who }}" for number in range(3)]
    assert len(set(units(*texts))) == 3
    engine = Engine()
    found = {engine.describe(engine.subscribe(text).spuid).spu_class for text in texts}
    assert found == {"telescoped"}
    assert len({shape.parsed.text for shape in shapes(*texts)}) == 1


def test_footprint_has_the_quads_and_not_their_parts() -> None:
    found = signature(PREFIX + "SELECT * { :x :p <<( ?s :q ?o )>> . << ?s ?p ?o >> }")
    assert set(found.patterns) == {
        TriplePattern("<urn:x:x>", "<urn:x:p>", ANY, None),
        TriplePattern(ANY, RDF_REIFIES, ANY, None),
    }
    assert not found.graph_names


@each_row(
    "change",
    [
        "INSERT DATA { :s-7 :p :o-7 }",
        "INSERT DATA { :r7 :by :you }",
        "INSERT DATA { :another rdf:reifies <<( :s7 :p :o7 )>> }",
    ],
)
def test_a_changed_quad_costs_no_search_of_all_statements(change: str) -> None:
    """Each pattern is looked up from what the others bind, the triple term too."""
    text = PREFIX + "SELECT ?s ?o ?who { ?s :p ?o . ?r rdf:reifies <<( ?s :p ?o )>> ; :by ?who }"
    data = "".join(f":r{n} rdf:reifies <<( :s{n} :p :o{n} )>> ; :by :me . :s{n} :p :o{n} . " for n in range(STATEMENTS))
    with Engine() as engine:
        engine.update(f"{PREFIX} INSERT DATA {{ {data} }}")
        subscription = engine.subscribe(text)
        assert (subscription.spu_class, len(subscription.first.rows)) == ("telescoped", STATEMENTS)
        engine.update(f"{PREFIX} INSERT DATA {{ :r-7 rdf:reifies <<( :s-7 :p :o-7 )>> ; :by :me . :another :by :me }}")
        plan = unit_of(engine, text).shape.plan
        assert plan is not None
        meter = plan.meter
        meter.left = unlimited = 10**9
        commit = engine.update(PREFIX + change)
        assert {len(notification.added) for notification in commit.notifications} == {1}
        assert unlimited - meter.left < STATEMENTS / 10


def test_the_clock_is_compared_with_a_part_of_a_triple_term() -> None:
    engine = Engine(clock=lambda: START)
    text = f"{CLOCK} SELECT ?s {{ ?r :says <<( ?s :at ?t )>> FILTER(g:now() > ?t) }}"
    subscription = engine.subscribe(text)
    assert (subscription.spu_class, len(subscription.first)) == ("telescoped", 0)
    engine.update(f"{CLOCK} INSERT DATA {{ :r :says <<( :a :at {time(2)} )>> , <<( :b :at {time(9)} )>> , 'nothing' }}")
    assert changes(engine.advance(at(5))) == [(["a"], [])]
    assert changes(engine.update(f"{CLOCK} DELETE DATA {{ :r :says <<( :a :at {time(2)} )>> }}")) == [([], ["a"])]
    assert changes(engine.advance(at(10))) == [(["b"], [])]
