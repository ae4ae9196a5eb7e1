"""An update's plan, used from the second time on, does what the general way and the raw store do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.slices import LONG
from lamplighter.engine.sparql.skeletons import recogniser
from lamplighter.engine.updating import updates
from lamplighter.engine.updating.by_plan import UpdatePlan
from lamplighter.engine.updating.updates import (
    DATA_WITHOUT_PLAN,
    PLANS_MAX,
    RECOGNISED_MAX,
    SERVED_MIN,
    SHAPES_MAX,
)
from tests.support.oracle import canonical
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> "
START = (
    "INSERT DATA { :a :p :b , 1 , 'x' . :b :p :c . :c :q :a . :d :q :d GRAPH :g { :a :p :d . :d :q :a . :g :p :h } "
    "GRAPH :h { :a :p :b } }"
)
BACK_AND_FORTH = ("DELETE DATA { :a :p :b , 1 GRAPH :g { :d :q :a } }", START, "INSERT DATA { :e :p :a ; :q 2 }")

PLANNED = [
    "INSERT DATA { :a :p 1 }",
    "INSERT DATA { :n :p 01 , 1.50 , 'V'@EN , -1 , +2 , true , 'x'^^<urn:dt> GRAPH :new { :a :p 1 } }",
    "INSERT DATA { :a :p 'a' ; :q 'b' , 'c'@en ; a :T . }",
    "INSERT DATA { :a :p 1 GRAPH :a { :b :q 2 } GRAPH :a { :b :q 2 } }",
    "INSERT DATA { _:n :p 1 ; :q _:n , [ :p _:m ] . :a :q _:m , ( 1 _:n ) GRAPH :g { _:n :p 1 } }",
    "DELETE DATA { :a :p :b , :missing GRAPH :g { :a :p :d } GRAPH :none { :a :p :d } }",
    "DELETE DATA { :a :p :b } ; INSERT DATA { :a :p :b }",
    "INSERT DATA { :a :p :b , :k } ; DELETE DATA { :a :p :b , :k }",
    "DELETE WHERE { :a :p ?o }",
    "DELETE WHERE { ?s :p ?o . ?o :p ?x }",
    "DELETE WHERE { GRAPH ?g { ?s :p ?o } }",
    "DELETE WHERE { ?s :p ?o GRAPH :g { ?s ?k ?v } }",
    "DELETE WHERE { ?s ?p ?o }",
    "DELETE { ?x :p ?y } INSERT { ?y :p ?x } WHERE { ?x :p ?y }",
    "DELETE { ?x :p ?y } INSERT { ?x :p ?y . ?x :again ?y } WHERE { ?x :p ?y }",
    "DELETE { :a :p ?y } INSERT { :a :p 7 } WHERE { :a :p ?y }",
    "INSERT { ?x :r ?y } WHERE { ?x :p ?y FILTER ( ?y = :b ) }",
    "INSERT { ?x :r ?y } WHERE { ?x :p ?y FILTER ( ?y = 1.0 ) }",
    "INSERT { ?x :r ?k } WHERE { ?x ?k ?y FILTER ( ?k = :p ) }",
    "INSERT { ?x :r ?y } WHERE { ?x :p ?y FILTER ( BOUND( ?y ) && ?y = :b ) }",
    "INSERT { ?x :r ?y } WHERE { { ?x :p ?y } UNION { ?x :q ?y } }",
    "INSERT { ?x :r ?y } WHERE { ?x :p ?y MINUS { ?y :p ?z } }",
    "INSERT { ?x :r ?y } WHERE { ?x :p ?y FILTER NOT EXISTS { ?y :p ?z FILTER ( ?z != :k ) } }",
    "INSERT { ?x :r ?v . ?v :r ?x } WHERE { ?x :p ?y BIND ( STR( ?y ) AS ?v ) }",
    "INSERT { ?v :r ?x } WHERE { ?x :p ?y VALUES ?v { :v1 :v2 'l' } }",
    # misplaced and unbound terms: the quad is left out, the others stay
    "INSERT { ?y :r ?x . ?x :s ?y } WHERE { ?x :p ?y }",
    "INSERT { ?x ?y :r . ?x :s ?y } WHERE { ?x :p ?y }",
    "INSERT { GRAPH ?y { ?y :r ?x } ?x :s ?y } WHERE { ?x :p ?y }",
    "INSERT { ?y :r ?nowhere . ?y :s ?x } WHERE { ?x :p ?y OPTIONAL { ?x :none ?nowhere } }",
    "INSERT { ?z :r ?x . ?x :s ?z } WHERE { ?x :p ?y OPTIONAL { ?y :p ?z } }",
    "DELETE { ?x :p ?y . ?y :p ?x . ?y ?x ?x } WHERE { ?x :p ?y }",
    # blank nodes in templates: new ones for each solution
    "INSERT { ?x :r _:m . _:m :v ?y } WHERE { ?x :p ?y }",
    "INSERT { _:a :r 1 . _:a :s [ :t _:b ] } WHERE { ?x :p ?y }",
    "INSERT { ?x :r ( 1 ?y [ :k ?x ] ) } WHERE { ?x :p ?y }",
    "INSERT { GRAPH ?x { _:m :v ?y } } WHERE { ?x :p ?y } ; DELETE { ?s :v ?o } WHERE { GRAPH :a { ?s :v ?o } }",
    # WITH
    "WITH :g DELETE { ?x :p ?y } INSERT { ?y :p ?x GRAPH :h { ?x :p ?y } } WHERE { ?x :p ?y }",
    "WITH :g DELETE { GRAPH ?k { ?x :p ?y } } WHERE { GRAPH ?k { ?x :p ?y } }",
    "WITH :g INSERT { ?x :r ?y } WHERE { ?x :p ?y FILTER NOT EXISTS { ?y :q ?x } }",
    "WITH :g INSERT { ?x :r ?e } WHERE { ?x :p ?y BIND ( EXISTS { ?y :q ?x } AS ?e ) }",
    "WITH :g INSERT { ?x :r ?e } WHERE { SELECT ?x ( EXISTS { ?y :q ?x } AS ?e ) ?y { ?x :p ?y } }",
    "WITH :none INSERT { :a :p 1 } WHERE { }",
    # several operations, each seeing what those before have done
    "INSERT DATA { :new :p 1 } ; DELETE { ?x :p 1 } INSERT { ?x :p 2 } WHERE { ?x :p 1 } ; DELETE WHERE { :new ?p ?o }",
    "INSERT { GRAPH :made { ?x :p ?y } } WHERE { ?x :p ?y } ; DELETE WHERE { GRAPH :made { ?x :p ?y } }",
]  # fmt: skip
UNPLANNED = [
    """INSERT DATA { :a :p '''long''' , 'x'^^:dt }""",
    "DELETE WHERE { ?x :p :b } ; INSERT { :count :is ?n } WHERE { SELECT ( COUNT( * ) AS ?n ) { ?x :p ?y } } ;",
    "INSERT { ?x :r ?s } WHERE { SELECT ?x ( MAX( STR( ?y ) ) AS ?s ) { ?x :p ?y } GROUP BY ?x }",
    "INSERT { ?x :r ?n } WHERE { SELECT ?x ( COUNT( * ) AS ?n ) { ?x :p ?y } GROUP BY ?x }",
    "INSERT DATA { GRAPH :empty { } }",
    "INSERT DATA { :a :p 1 GRAPH :empty { } } ; DROP SILENT GRAPH :empty",
    "CLEAR GRAPH :g",
    "DROP SILENT GRAPH :none ; INSERT DATA { :a :p 1 }",
    "COPY :g TO :h",
    "MOVE :h TO :k ; MOVE :k TO :h",
    "ADD DEFAULT TO :h",
    "INSERT { ?x :p ?y } USING :g WHERE { ?x :p ?y }",
    "DELETE { ?x :p ?y } USING NAMED :g WHERE { GRAPH ?g { ?x :p ?y } }",
    "DELETE { ?x :p ?y } WHERE { ?x :p+ ?y }",
    "INSERT { ?x :r ?s } WHERE { SELECT ?x ( ?y AS ?s ) { ?x :p ?y } ORDER BY STR( ?y ) LIMIT 2 }",
    "INSERT { :a :r ?g } WHERE { GRAPH ?g { } }",
    "INSERT { ?x :r <<( ?x :p ?y )>> } WHERE { ?x :p ?y }",
    "INSERT { ?x :r ?t } WHERE { ?x :p ?y BIND ( <<( ?x :p ?y )>> AS ?t ) }",
    "INSERT { << :a :p ?y >> :r 1 } WHERE { :a :p ?y }",
    "INSERT DATA { :a :p :b {| :c 1 |} }",
    "INSERT { ?x :r ?i } WHERE { ?x :p ?y BIND ( IRI( STR( ?y ) ) AS ?i ) }",
    "INSERT { ?x :r ?s } WHERE { SELECT ?x ( SUM( ?y ) AS ?s ) { ?x :p ?y } GROUP BY ?x }",
    "INSERT { ?x :r ?s } WHERE { SELECT ?x ( MAX( ?y ) AS ?s ) { ?x :p ?y } GROUP BY ?x }",
    "INSERT { ?nowhere :r 1 . :a :r 2 } WHERE { ?x :p ?y }",
    "INSERT { :a ?nowhere 1 GRAPH ?no { :a :b 1 } } WHERE { ?x :p ?y }",
]
"""What has no plan, or has one that leaves some requests to the store."""


@pytest.fixture(autouse=True)
def early_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data gets its plan as early as other updates."""
    monkeypatch.setattr(updates, "DATA_WITHOUT_PLAN", 1)


class Both:
    """An engine and a raw store that are given the same requests."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.store = ox.Store()

    def update(self, text: str) -> QuadDelta | None:
        """The engine's delta, None if both refuse."""
        refused = False
        try:
            self.store.update(PREFIX + text)
        except RuntimeError:
            refused = True
        before = Counter(self._dataset())
        try:
            delta = self.engine.update(PREFIX + text).delta
        except GatewayError:
            assert refused, text
            return None
        assert not refused, text
        after = Counter(self._dataset())
        assert Counter(quad.to_nquads() for quad in delta.added) == after - before
        assert Counter(quad.to_nquads() for quad in delta.removed) == before - after
        dumped = ox.parse(self.engine.dump(), ox.RdfFormat.N_QUADS)
        assert canonical(dumped) == canonical(self.store), text
        assert set(self.engine.store.graphs()) == {str(name) for name in self.store.named_graphs()}, text
        return delta

    def _dataset(self) -> list[str]:
        return [line.strip() for line in self.engine.dump().decode().splitlines()]

    def has_plan(self, text: str) -> bool:
        plans = self.engine._updates.plans
        shape = plans._shapes.get(plans._lifter.lift(PREFIX + text).skeleton)
        return shape is not None and any(shape.plans.values())


@each_row("text", [*PLANNED, *UNPLANNED], is_amount=True)
def test_repeated_update_does_what_the_raw_store_does(text: str) -> None:
    both = Both()
    both.update(START)
    both.update(text)
    for other in ("", *BACK_AND_FORTH, "DROP SILENT GRAPH :new", "DROP SILENT GRAPH :empty", "CLEAR DEFAULT", START):
        if other:
            both.update(other)
        both.update(text)
    if text in PLANNED:
        assert both.has_plan(text)


def varied(text: str) -> Iterable[str]:
    """The text with other constants in it."""
    for old, new in ((":a ", ":b "), (":b", ":a"), ("1", "2"), (":g", ":h"), ("'x'", "'y'"), (":p ", ":q ")):
        if old in text:
            yield text.replace(old, new)


@each_row("text", PLANNED)
def test_plan_serves_other_constants(text: str) -> None:
    both = Both()
    both.update(START)
    for one in (text, text, *varied(text), text, *varied(text)):
        both.update(one)
    assert both.has_plan(text)


def _prepared(engine: Engine, text: str) -> tuple[Any, ...]:
    """The delta with new blank nodes by number, in an order of its own."""
    delta = engine.prepare(PREFIX + text)
    return tuple(sorted(map(str, part)) for part in delta)


@each_row("text", [text for text in PLANNED if "_:" not in text and "[" not in text and "( 1" not in text])
def test_plan_gives_the_delta_of_the_general_way(text: str) -> None:
    """To the last member: kept quads and created graphs too."""
    used, fresh = Engine(), Engine()
    for engine in (used, fresh):
        engine.update(PREFIX + START)
    used.prepare(PREFIX + text)
    assert _prepared(used, text) == _prepared(used, text) == _prepared(fresh, text)
    dumps = [sorted(engine.dump().splitlines()) for engine in (used, fresh)]
    assert dumps[0] == dumps[1], "asking changes nothing"


def test_kept_quads_and_created_graphs() -> None:
    engine = Engine()
    text = "INSERT DATA {{ :a :p {0} GRAPH :{1} {{ :a :p {0} }} }}"
    for values in ((1, "g"), (2, "g"), (2, "g"), (2, "h")):
        delta = engine.update(PREFIX + text.format(*values)).delta
    assert [quad.g for quad in delta.kept] == [None]
    assert [quad.g for quad in delta.added] == ["<urn:x:h>"] == list(delta.created)


def test_failed_request_leaves_nothing_behind_in_the_index() -> None:
    """The first operation of a plan is taken back when a later one cannot be done by it."""
    both = Both()
    text = (
        "DELETE { :s :sum ?old } WHERE { :s :sum ?old } ; INSERT DATA { :x :v 2.5e0 } ; "
        "INSERT { :s :sum ?t } WHERE { SELECT ( SUM( ?v ) AS ?t ) { ?s :v ?v } }"
    )
    for data in (":a :v 1", ":b :v 2", ":c :v 1e0", ":d :v 4e0"):
        both.update(f"INSERT DATA {{ {data} }}")
        both.update(text)
        both.update(text)
    indexed = {quad.to_nquads() for quad in both.engine._cts.quads()}
    assert indexed <= {line.strip() for line in both.engine.dump().decode().splitlines()}


def test_an_operation_that_makes_many_quads_makes_each_blank_node_once() -> None:
    """The plan begins without slices, and again in slices when there are many quads."""
    with Engine() as engine:
        rows = LONG + 1
        engine.update(PREFIX + f"INSERT DATA {{ {' . '.join(f':s :p {number}' for number in range(rows))} }}")
        for _ in range(3):
            commit = engine.update(PREFIX + "INSERT { [] :q ?o } WHERE { :s :p ?o }")
            assert len(commit.added) == rows


def test_data_of_any_length_makes_no_shape_for_each_length() -> None:
    engine = Engine()
    for length in range(1, 200):
        rows = " . ".join(f":s{number} :p {number}" for number in range(length))
        engine.update(f"{PREFIX}INSERT DATA {{ {rows} }}")
    assert len(engine._updates.plans._shapes) < 100
    assert engine.quad_count == 199


def test_shapes_and_plans_are_bounded_and_let_go_of_the_index() -> None:
    engine = Engine()
    for number in range(SHAPES_MAX + 40):
        for _ in range(2):
            engine.update(f"INSERT {{ <a:s> <p:{number}> ?v{number} }} WHERE {{ ?v{number} <p:{number}> 1 }}")
    assert len(engine._updates.plans._shapes) <= SHAPES_MAX
    assert len(engine._cts.tables) <= SHAPES_MAX
    for number in range(3 * PLANS_MAX):
        for _ in range(2):
            engine.update(f"DELETE WHERE {{ <a:s> <q:{number}> ?o }}")
    plans = [plan for shape in engine._updates.plans._shapes.values() for plan in shape.plans.values()]
    assert len(plans) <= SHAPES_MAX + PLANS_MAX
    assert len([name for name in engine._cts.tables if name.startswith("<q:")]) <= PLANS_MAX


def test_dates_and_chance_are_not_planned_away() -> None:
    engine = Engine()
    for call in ("NOW()", "RAND()", "STRUUID()", "UUID()"):
        values = set()
        for _ in range(4):
            commit = engine.update(f"DELETE WHERE {{ <a:s> <a:p> ?o }} ; INSERT {{ <a:s> <a:p> ?v }} "
                                   f"WHERE {{ BIND ( {call} AS ?v ) }}")  # fmt: skip
            values.add(commit.added[0].o)
        assert len(values) == 4, call


def test_a_request_without_an_operation_does_nothing_however_often_it_comes() -> None:
    engine = Engine()
    for text in ("", " # nothing", "PREFIX a: <b:>"):
        for _ in range(3):
            assert not engine.update(text).delta.changes


def test_a_plan_is_made_for_what_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the first text with other predicates, nor for data that has come a few times."""
    monkeypatch.undo()
    made: list[int] = []
    monkeypatch.setattr(updates, "UpdatePlan", lambda *given: made.append(1) or UpdatePlan(*given))
    with Engine() as engine:
        text = "DELETE {{ <a:s> <p:{0}> ?o }} INSERT {{ <a:s> <p:{0}> {1} }} WHERE {{ <a:s> <p:{0}> ?o }}"
        for number in (0, 0, *range(50)):
            engine.update(text.format(number, number))
        assert len(made) == 1
        engine.update(text.format(49, 0))
        assert len(made) == 2
        for number in range(DATA_WITHOUT_PLAN):
            engine.update(f"INSERT DATA {{ <a:s> <a:p> {number} }}")
        assert len(made) == 2
        engine.update("INSERT DATA { <a:s> <a:p> 1 }")
        assert len(made) == 3


def test_a_recogniser_is_made_once_for_each_of_many_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(updates, "recogniser", lambda *given: made.append(1) or recogniser(*given))
    with Engine() as engine:
        for number in range(3 * SERVED_MIN):
            for name in "abcdefghijkl"[: RECOGNISED_MAX + 4]:
                engine.update(f"INSERT {{ <a:s> <a:{name}> {number} }} WHERE {{ ?{name} <a:p> ?o }}")
    assert len(made) == RECOGNISED_MAX + 4
