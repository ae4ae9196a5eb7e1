"""Queries of many triple patterns: Python nests few loops, so their functions are written in pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching import source_text, subscriptions
from lamplighter.engine.matching.analysis import PATTERNS_MAX, WIDE
from lamplighter.engine.matching.registry import UNPLANNED_CHARACTERS_MAX
from lamplighter.engine.matching.source_text import LOOPS_MAX, Source
from lamplighter.engine.slices import Slices
from lamplighter.engine.work import Meter, PlanExceededError, Work
from tests.support.tables import each_row


def star(count: int) -> str:
    return " ".join(f"?s <x:p{number}> ?o{number} ." for number in range(count))


def chain(count: int) -> str:
    return " ".join(f"?o{number} <x:p{number}> ?o{number + 1} ." for number in range(count))


@each_row("pattern", [star, chain], ids=["star", "chain"])
@each_row("form", ["{}", "GRAPH ?g {{ {} }}", "?s <x:q> ?o FILTER EXISTS {{ {} }}"])
def test_as_many_patterns_as_a_plan_may_have_are_followed(pattern: Callable[[int], str], form: str) -> None:
    count = PATTERNS_MAX - ("EXISTS" in form)
    query = f"SELECT (COUNT(*) AS ?n) {{ {form.format(pattern(count))} }}"
    with Engine() as engine:
        one = engine.subscribe(query.replace("(COUNT(*) AS ?n)", "*"))
        assert one.spu_class in ("telescoped", "seeded")
        quads = "<x:a> <x:q> 1 . " + " ".join(f"<x:a> <x:p{number}> <x:a> ." for number in range(count))
        place = f"GRAPH <x:g> {{ {quads} }}" if "GRAPH" in form else quads
        [change] = engine.update(f"INSERT DATA {{ {place} }}").notifications
        assert len(change.added) == 1
        last = f"<x:a> <x:p{count - 1}> <x:a>"
        where = f"GRAPH <x:g> {{ {last} }}" if "GRAPH" in form else last
        [change] = engine.update(f"DELETE DATA {{ {where} }}").notifications
        assert len(change.removed) == 1


def test_more_patterns_are_left_to_the_store() -> None:
    with Engine() as engine:
        one = engine.subscribe(f"SELECT * {{ {star(PATTERNS_MAX + 1)} }}")
        found = engine.describe(one.spuid)
        assert (found.spu_class, found.reason) == ("re-evaluated", f"more than {PATTERNS_MAX} triple patterns")


def test_further_plans_of_many_patterns_are_left_to_the_store_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "WIDE_PLANS_MAX", 2)
    with Engine() as engine:

        def wide(number: int) -> str:
            text = f"SELECT * {{ {star(WIDE + 1)} ?s <x:a{number}> ?x }}"
            one = engine.subscribe(text)
            assert engine.subscribe(text).spu_class == one.spu_class
            return one.spuid

        spuids = [wide(number) for number in range(4)]
        found = [engine.describe(spuid) for spuid in spuids]
        assert [one.spu_class for one in found] == ["telescoped"] * 2 + ["re-evaluated"] * 2
        assert found[2].reason == f"2 other shapes have plans of more than {WIDE} triple patterns"
        assert engine.subscribe(f"SELECT * {{ {star(WIDE)} }}").spu_class == "telescoped"
        quads = " ".join(f"<x:a> <x:p{number}> 1 ." for number in range(WIDE + 1))
        more = " ".join(f"<x:a> <x:a{number}> {number} ." for number in range(4))
        told = engine.update(f"INSERT DATA {{ {quads} {more} }}").notifications
        assert {one.spuid for one in told} >= set(spuids)
    with Engine() as engine:
        for number in range(4):  # one after the other
            one = engine.subscribe(f"SELECT * {{ {star(WIDE + 1)} ?s <x:a{number}> ?x }}")
            assert one.spu_class == "telescoped"
            engine.unsubscribe(one.spuid)


class Announced(Slices):
    def __init__(self) -> None:
        self.begun = self.paused = 0

    def begin(self, size: int) -> None:
        self.begun += 1

    def pause(self) -> None:
        self.paused += 1


def test_compiling_many_patterns_is_a_long_step_with_pauses() -> None:
    slices = Announced()
    with Engine(slices=slices) as engine:
        engine.subscribe(f"SELECT * {{ {star(WIDE)} }}")
        assert not slices.begun
        engine.subscribe(f"SELECT * {{ {star(WIDE + 1)} }}")
        assert slices.begun == 1
        assert slices.paused > WIDE
        engine.subscribe(f"SELECT * {{ {star(WIDE + 1)} }}")
        assert slices.begun == 1, "the shape is known"
        made = " ".join(f"BIND(?o0 + {number} AS ?b{number})" for number in range(WIDE))
        engine.subscribe(f"SELECT * {{ ?s <x:p> ?o0 {made} }}")
        assert slices.begun == 1
        engine.subscribe(f"SELECT * {{ {star(WIDE)} {made} }}")
        assert slices.begun == 2, "each function of a pattern has all assignments"


def test_deep_text_is_a_function_that_sees_the_names_around_it() -> None:
    source = Source(Meter(Work()), ("counted",))
    depth = 5 * LOOPS_MAX

    def nested(level: int) -> None:
        if level == depth:
            source.emit("counted += 1")
            source.emit(f"found.append(({''.join(f'v{number}, ' for number in range(depth))}))")
            return
        with source.loop(f"v{level}", f"[{level}]"), source.block(f"if v{level} == {level}:"):
            nested(level + 1)

    def body() -> None:
        nested(0)
        source.emit("return counted")

    function = source.compile("example", "found, counted", body)
    found: list[tuple[int, ...]] = []
    assert function(found, 2) == 3
    assert found == [tuple(range(depth))]


def test_the_store_evaluates_many_patterns_whose_first_result_is_too_much_for_the_plan() -> None:
    with Engine(evaluation_ms_max=1) as engine:
        quads = " ".join(f"<x:s{number}> <x:p{pattern}> 1 ." for number in range(50) for pattern in range(WIDE + 1))
        many = " ".join(f"<x:s{number}> <x:p{pattern}> 2, 3, 4 ." for number in range(50) for pattern in range(3))
        engine.update(f"INSERT DATA {{ {quads} {many} }}")
        one = engine.subscribe(f"SELECT * {{ {star(WIDE + 1)} }}")
        assert engine.describe(one.spuid).reason.startswith("the first result needs more work than")
        assert len(one.first) == 50 * 4**3
        [change] = engine.update("DELETE DATA { <x:s7> <x:p3> 1 }").notifications
        assert len(change.removed) == 4**3


def test_a_caller_may_have_what_the_plan_cannot_do_tried_first() -> None:
    """The store evaluates that query then, and no other one of its shape."""
    text = f"SELECT * {{ {' '.join(f'?s <urn:p{number % 4}> ?o{number} .' for number in range(17))} }}"
    with Engine(evaluation_ms_max=5) as engine:
        engine.update("INSERT DATA { <urn:s> <urn:p0> 1, 2, 3, 4, 5 ; <urn:p1> 1 ; <urn:p2> 1 ; <urn:p3> 1 }")
        assert engine.evaluation_of_subscription(text) is None
        with pytest.raises(PlanExceededError, match="the first result needs more work"):
            engine.subscribe(text, tried_first=True)
        assert engine.subscription_count == 0
        assert engine.evaluation_of_subscription(text) is not None
        one = engine.subscribe(text, tried_first=True)
        assert (one.spu_class, len(one.first)) == ("re-evaluated", 5**5)
        other = text.replace("urn:p0", "urn:q")
        assert engine.subscribe(other, tried_first=True).spu_class != "re-evaluated"


def test_groups_whose_state_alone_is_too_much_for_a_plan_are_left_to_the_store() -> None:
    """A plan of groups reads all solutions, also where the store evaluates the first result."""
    text = "SELECT (COUNT(*) AS ?n) (MIN(?f) AS ?least) { ?s <urn:p> ?o BIND(REPLACE(STR(?o), 'x', 'y') AS ?f) }"
    with Engine(evaluation_ms_max=20) as engine:
        engine.update("INSERT DATA {" + " ".join(f"<urn:s> <urn:p> 'x{number}' ." for number in range(400)) + "}")
        for _ in range(2):
            with pytest.raises(PlanExceededError, match="the first result needs more work"):
                engine.subscribe(text, tried_first=True)
            assert engine.evaluation_of_subscription(text) is not None
        one = engine.subscribe(text, tried_first=True)
        assert (one.spu_class, len(one.first)) == ("re-evaluated", 1)
        [change] = engine.update("DELETE DATA { <urn:s> <urn:p> 'x7' }").notifications
        assert (len(change.removed), len(change.added)) == (1, 1)


def test_long_text_that_the_plan_cannot_do_is_remembered() -> None:
    text = f"SELECT * {{ {' '.join(f'?s <urn:p{number % 4}> ?o{number} .' for number in range(17))} }}"
    text += " " * UNPLANNED_CHARACTERS_MAX
    with Engine(evaluation_ms_max=5) as engine:
        engine.update("INSERT DATA { <urn:s> <urn:p0> 1, 2, 3, 4, 5 ; <urn:p1> 1 ; <urn:p2> 1 ; <urn:p3> 1 }")
        with pytest.raises(PlanExceededError):
            engine.subscribe(text, tried_first=True)
        assert engine.subscribe(text, tried_first=True).spu_class == "re-evaluated"


def test_the_time_to_compile_a_plan_is_part_of_what_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are then left to the store, behind a trial, and the plan follows from there."""
    now = 0.0
    really = source_text._code

    def slowly(source: str, title: str) -> CodeType:
        nonlocal now
        now += 0.15
        return really(source, title)

    monkeypatch.setattr(source_text, "_code", slowly)
    text = "SELECT ?x ?y { ?x <urn:p> ?a . ?y <urn:p> ?b }"
    with Engine(processor_time=lambda: now, evaluation_ms_max=500) as engine:
        engine.update("INSERT DATA {" + " . ".join(f"<urn:{number}> <urn:p> 1" for number in range(120)) + "}")
        with pytest.raises(PlanExceededError):
            engine.subscribe(text, tried_first=True)
        one = engine.subscribe(text, tried_first=True)
        assert len(one.first) == 120 * 120
        assert one.spu_class == "telescoped"
        [told] = engine.update("INSERT DATA { <urn:more> <urn:p> 1 }").notifications
        assert len(told.added) == 2 * 120 + 1
