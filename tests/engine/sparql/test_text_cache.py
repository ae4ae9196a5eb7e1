"""What is remembered of a client's texts is bounded in characters, not in texts alone, wherever texts may be long."""

from __future__ import annotations

import inspect

from lamplighter.engine import Engine
from lamplighter.engine.matching.expressions import TERM_MAX as OPERAND_MAX
from lamplighter.engine.matching.expressions import value
from lamplighter.engine.matching.query_texts import TEXT_CHARACTERS_MAX
from lamplighter.engine.sparql.algebra import Expression, Variable
from lamplighter.engine.sparql.requests import canonical
from lamplighter.engine.sparql.skeletons import CANONICAL_MAX, Lifter
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.updating.updates import (
    RECOGNISED_CHARACTERS_MAX,
    SERVED_MIN,
    SHAPES_CHARACTERS_MAX,
    WITHOUT_PLAN,
)
from lamplighter.engine.work import Meter, Work

LONG = 10_000
"""Characters of a text that is remembered still."""


def test_the_last_used_ones_stay_as_far_as_there_is_room() -> None:
    found = LruCache[str, int](3, 10)
    assert [found.put(key, number, 2) for number, key in enumerate("abc")] == [[], [], []]
    assert found.get("a") == 0
    assert found.put("d", 3, 2) == [("b", 1)], "too many"
    assert (list(found), found.characters) == (["c", "a", "d"], 6)
    assert found.put("a", 4, 7) == [("c", 2)], "too long"
    assert (list(found), found.characters) == (["d", "a"], 9)
    assert found.put("e", 5, 11) == [("d", 3), ("a", 4), ("e", 5)], "longer than all may be"
    assert (len(found), found.characters, found.get("e"), found.pop("e")) == (0, 0, None, None)


def test_skeletons_of_queries_are_bounded_in_characters() -> None:
    engine = Engine()
    for number in range(TEXT_CHARACTERS_MAX // LONG):
        name = f"v{number}".ljust(LONG, "x")
        engine.unsubscribe(engine.subscribe(f"SELECT ?{name} {{ ?{name} <a:p> 1 }}").spuid)
    spellings = engine._subscriptions._texts.cache
    assert spellings.characters == sum(map(len, spellings)) <= TEXT_CHARACTERS_MAX
    assert len(spellings) > 5


def test_skeletons_and_plans_of_updates_are_bounded_in_characters_and_let_go_of_the_index() -> None:
    engine = Engine()
    name = "x" * LONG
    for number in range(70):
        for _ in range(2):
            text = f"INSERT {{ <a:s> <p:{number}> ?v{name} }} WHERE {{ ?v{name} <p:{number}> 1 }}"
            engine.update(text.replace("?v", f"?v{number}"))
    shapes = engine._updates.plans._shapes
    assert shapes.characters <= SHAPES_CHARACTERS_MAX
    assert 5 < len(shapes) < 70
    assert len(engine._cts.tables) == sum(len(shape.plans) for shape in shapes.values())


def test_many_plans_of_one_long_skeleton_leave_room_for_it() -> None:
    engine = Engine()
    text = "INSERT {{ <a:s> <p:{0}> ?{1} }} WHERE {{ ?{1} <p:{0}> 1 }}"
    for number in range(40):
        for _ in range(2):
            engine.update(text.format(number, "x" * LONG))
    [shape] = engine._updates.plans._shapes.values()
    assert 0 < len(shape.plans) <= SHAPES_CHARACTERS_MAX // 4 // LONG
    assert len(engine._cts.tables) == len(shape.plans)


def test_long_texts_have_no_expression_of_their_own() -> None:
    engine = Engine()
    for name in ("x", "x" * RECOGNISED_CHARACTERS_MAX):
        for number in range(WITHOUT_PLAN + SERVED_MIN):
            engine.update(f"DELETE {{ <a:s> <a:p> ?{name} }} WHERE {{ <a:{number}> <a:p> ?{name} }}")
    assert len(engine._updates.plans._shapes) == 2
    assert len(engine._updates.plans._recognised) == 1


def test_a_short_name_for_a_long_iri_is_not_remembered() -> None:
    lifter = Lifter(canonical)
    prologue = f"PREFIX : <urn:{'x' * CANONICAL_MAX}> "
    [term] = lifter.lift(f"{prologue}ASK {{ ?s ?p :a }}").terms
    assert term == f"<urn:{'x' * CANONICAL_MAX}a>"
    assert not lifter.known.get(prologue)


def test_long_values_of_expressions_are_not_remembered() -> None:
    parts = ("REPLACE", "(", Variable("a"), ",", '"."', ",", Variable("b"), ")")
    evaluated = value(Expression(parts), Meter(Work()))
    memo = inspect.getclosurevars(evaluated).nonlocals["evaluate"]
    short, long = '"' + "x" * 10 + '"', '"' + "y" * (OPERAND_MAX // 2) + '"'
    for _ in range(2):
        assert evaluated(short, '"z"') == '"zzzzzzzzzz"'
    assert (memo.cache_info().currsize, memo.cache_info().hits) == (1, 1)
    for _ in range(2):
        assert evaluated(short, long) == '"' + long[1:-1] * 10 + '"'
    assert memo.cache_info().currsize == 1
