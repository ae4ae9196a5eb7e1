"""The CTS against a plain set of quads, through any order of holding, releasing and changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.quad_tables import TUPLE_MAX
from lamplighter.engine.terms import Quad, Term
from tests.support.amounts import AMOUNTS
from tests.support.tables import each_row

PREDICATES = ("<p:1>", "<p:2>", "<p:3>")
quads = st.builds(
    Quad,
    st.sampled_from([f"<s:{number}>" for number in range(4)]),
    st.sampled_from(PREDICATES),
    st.sampled_from([f"<o:{number}>" for number in range(TUPLE_MAX + 6)]),
    st.sampled_from([None, None, "<g:1>", "<g:2>"]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(quads, min_size=1, max_size=12)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 10_000), min_size=1, max_size=12)),
        st.tuples(st.just("hold"), st.tuples(st.sampled_from([*PREDICATES, None]), st.booleans())),
        st.tuples(st.just("release"), st.integers(0, 10_000)),
    ),
    min_size=5,
    max_size=40,
)


class World:
    """A CTS and the set of quads that it indexes a part of."""

    def __init__(self) -> None:
        self.dataset: set[Quad] = set()
        self.cts = Cts(self._quads_of)
        self.held: list[tuple[Term | None, bool]] = []

    def _quads_of(self, predicate: Term | None) -> Iterator[Quad]:
        return iter([quad for quad in self.dataset if predicate in (None, quad.p)])

    def change(self, removed: list[Quad], added: list[Quad]) -> None:
        gone = tuple(quad for quad in dict.fromkeys(removed) if quad in self.dataset)
        come = tuple(quad for quad in dict.fromkeys(added) if quad not in self.dataset)
        self.cts.apply(QuadDelta(removed=gone, added=come))
        self.dataset.difference_update(gone)
        self.dataset.update(come)

    def hold(self, predicate: Term | None, by_object: bool = False) -> None:
        self.cts.hold(predicate, by_object=by_object)
        self.held.append((predicate, by_object))

    def release(self, number: int) -> None:
        predicate, _ = self.held.pop(number % len(self.held))
        self.cts.release(predicate)

    def check(self) -> None:
        everything = any(predicate is None for predicate, _ in self.held)
        named = {predicate for predicate, _ in self.held}
        expected = {quad for quad in self.dataset if everything or quad.p in named}
        found = list(self.cts.quads())
        assert len(found) == len(set(found)) == len(self.cts)
        assert set(found) == expected
        for predicate in PREDICATES:
            assert self.cts.holds(predicate) == (everything or predicate in named)
        for predicate, indexed in self.held:
            for name in PREDICATES if predicate is None else (predicate,):
                if indexed:
                    assert by_object(self.cts, name) == {quad for quad in expected if quad.p == name}


def by_object(cts: Cts, predicate: Term) -> set[Quad]:
    """The quads that the second half of the tables gives."""
    tables = cts.tables.get(predicate)
    if tables is None:
        return set()
    found = set()
    for graph, table in [(None, tables.default), *tables.named.items()]:
        assert table.po is not None
        for o, subjects in table.po.items():
            assert subjects, "no empty places are kept"
            found |= {Quad(s, predicate, o, graph) for s in subjects}
    return found


@settings(max_examples=AMOUNTS.of(150))
@given(steps)
def test_index_is_what_is_held_of_the_dataset(script: list[tuple[str, Any]]) -> None:
    world = World()
    for kind, argument in script:
        if kind == "add":
            world.change([], argument)
        elif kind == "remove":
            known = sorted(world.dataset, key=str)
            world.change([known[number % len(known)] for number in argument] if known else [], [])
        elif kind == "hold":
            world.hold(*argument)
        elif world.held:
            world.release(argument)
        world.check()
    while world.held:
        world.release(0)
    assert world.cts.tables == {}


@pytest.mark.parametrize("predicate", ["<p:1>", None])
def test_object_index_is_made_when_it_is_asked_for(predicate: Term | None) -> None:
    world = World()
    world.change([], [Quad("<s:1>", "<p:1>", f"<o:{n}>", g) for n in range(3) for g in (None, "<g:1>")])
    world.hold(predicate)
    world.hold(predicate, by_object=True)
    world.change([Quad("<s:1>", "<p:1>", "<o:0>")], [Quad("<s:2>", "<p:1>", "<o:1>"), Quad("<s:2>", "<p:1>", "<o:9>")])
    assert by_object(world.cts, "<p:1>") == world.dataset


@each_row("count", [1, TUPLE_MAX - 1, TUPLE_MAX, TUPLE_MAX + 1, 3 * TUPLE_MAX])
def test_place_with_few_and_many_members(count: int) -> None:
    """Over the border between tuple and dict, up and down again."""
    world = World()
    world.hold("<p:1>", by_object=True)
    many = [Quad("<s:1>", "<p:1>", f"<o:{number}>") for number in range(count)]
    world.change([], many)
    assert all(world.cts.contains(quad) for quad in many)
    for quad in many:
        world.change([quad], [])
        assert set(world.cts.quads()) == by_object(world.cts, "<p:1>") == world.dataset
    assert world.cts.tables["<p:1>"].default.sp == {}
    assert world.cts.tables["<p:1>"].default.po == {}


def test_named_graphs_are_apart_and_go_when_they_are_empty() -> None:
    world = World()
    world.hold("<p:1>")
    one, two, three = (Quad("<s:1>", "<p:1>", "<o:1>", graph) for graph in (None, "<g:1>", "<g:2>"))
    world.change([], [one, two])
    assert [world.cts.contains(quad) for quad in (one, two, three)] == [True, True, False]
    world.change([two], [])
    assert world.cts.contains(one)
    assert world.cts.tables["<p:1>"].named == {}


def test_predicate_is_held_until_the_last_user_lets_go() -> None:
    world = World()
    world.change([], [Quad("<s:1>", "<p:1>", "<o:1>"), Quad("<s:1>", "<p:2>", "<o:1>")])
    world.hold("<p:1>")
    world.hold("<p:1>")
    world.hold(None)
    assert len(world.cts) == 2
    world.release(2)
    assert set(world.cts.tables) == {"<p:1>"}
    world.release(0)
    assert world.cts.holds("<p:1>")
    world.release(0)
    assert not world.cts.holds("<p:1>")
    assert world.cts.tables == {}


def test_tables_stay_the_same_objects_while_they_are_held() -> None:
    """Compiled plans keep them."""
    world = World()
    world.hold("<p:1>", by_object=True)
    tables = world.cts.tables["<p:1>"]
    halves = tables.default.sp, tables.default.po
    world.hold(None)
    world.change([], [Quad("<s:1>", "<p:1>", "<o:1>")])
    world.change([Quad("<s:1>", "<p:1>", "<o:1>")], [])
    world.release(1)
    assert world.cts.tables["<p:1>"] is tables
    assert halves[0] is tables.default.sp
    assert halves[1] is tables.default.po
