"""The clock_index: bounded, shared by units, and in step with the dataset after failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.core import Commit
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching.clock_index import _STALE_MAX, ClockIndex, Condition

START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
PREFIX = (
    "PREFIX : <http://example.org/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
    "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
)
RECENT = "SELECT ?x {{ ?x :at ?t ; :in {} FILTER(g:now() - ?t < '{}'^^xsd:dayTimeDuration) }}"


def time(seconds: float) -> str:
    at = (START + timedelta(seconds=seconds)).replace(tzinfo=None)
    return f"'{at.isoformat()}Z'^^xsd:dateTime"


@pytest.fixture
def engine() -> Engine:
    return Engine(clock=lambda: START)


def clock_index(engine: Engine) -> ClockIndex:
    return engine._subscriptions.clock_index


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def changes(commit: Commit) -> list[tuple[list[str], list[str]]]:
    def names(rows: Any) -> list[str]:
        return sorted(str(row[0]).removeprefix("<http://example.org/").removesuffix(">") for row in rows)

    return [(names(notification.added), names(notification.removed)) for notification in commit.notifications]


def test_boundaries_that_went_take_no_memory(engine: Engine) -> None:
    engine.subscribe(PREFIX + RECENT.format(":room", "PT1H"))
    engine.update(PREFIX + "INSERT DATA { :s :in :room ; :at 0 }")
    for number in range(3000):
        engine.update(
            f"{PREFIX} DELETE {{ :s :at ?o }} INSERT {{ :s :at {time(number / 1000)} }} WHERE {{ :s :at ?o }}"
        )
    table = clock_index(engine)
    assert len(table._at) == 1
    assert len(table._heap) < 1100
    [condition] = table.conditions.values()
    assert len(condition.moments) == 1
    assert len(condition.tables.default.sp) == 1


def test_boundaries_are_passed_in_order_when_those_that_went_were_removed(engine: Engine) -> None:
    """What is left was inserted the latest first."""
    engine.subscribe(PREFIX + RECENT.format(":room", "PT1H"))
    for number in (3, 2, 1):
        engine.update(PREFIX + f"INSERT DATA {{ :s{number} :in :room ; :at {time(number)} }}")
    stale = " . ".join(f":t{number} :in :room ; :at {time(10 + number)}" for number in range(2 * _STALE_MAX))
    engine.update(PREFIX + f"INSERT DATA {{ {stale} }}")
    engine.update(PREFIX + f"DELETE DATA {{ {stale} }}")
    assert len(clock_index(engine)._heap) < 2 * _STALE_MAX
    for number in (1, 2, 3):
        assert engine.due == at(3600 + number)
        assert changes(engine.advance(at(3600 + number))) == [([], [f"s{number}"])]


def test_the_number_of_changes_until_an_instant_is_told_before_it_is_reached(engine: Engine) -> None:
    engine.subscribe(PREFIX + RECENT.format(":room", "PT5S"))
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :room ; :at {time(0)} . :b :in :room ; :at {time(1)} }}")
    assert [engine.changes_until(at(seconds)) for seconds in (4, 5, 6)] == [0, 1, 2]
    engine.advance(at(60))
    assert engine.changes_until(at(61)) == 0
    assert engine.changes_until(at(4)) == 2, "time is set back, and all can change"


def test_an_instant_that_was_stale_is_passed_once(engine: Engine) -> None:
    """It stood in the heap twice, so a row was removed twice: found by the oracle."""
    text = "SELECT (COUNT(?x) AS ?n) { ?x :at ?t FILTER(g:now() >= ?t && g:now() - 'PT2S'^^xsd:dayTimeDuration < ?t) }"
    engine.update(PREFIX + f"INSERT DATA {{ :a :at {time(3)} }}")
    engine.subscribe(PREFIX + text)
    engine.update(PREFIX + f"DELETE DATA {{ :a :at {time(3)} }}")
    engine.update(PREFIX + f"INSERT DATA {{ :a :at {time(2)} . :b :at {time(1)} }}")
    engine.advance(at(1))
    assert engine.advance(at(3)).notifications == ()  # one went, one came
    assert engine.due == at(4)


def test_units_share_the_plan_and_have_their_own_boundaries(engine: Engine) -> None:
    engine.subscribe(PREFIX + RECENT.format(":kitchen", "PT5S"))
    engine.subscribe(PREFIX + RECENT.format(":hall", "PT9S"))
    assert len(clock_index(engine).conditions) == 1
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :kitchen ; :at {time(0)} . :b :in :hall ; :at {time(0)} }}")
    engine.update(PREFIX + f"INSERT DATA {{ :c :in :garden ; :at {time(0)} }}")
    [condition] = clock_index(engine).conditions.values()
    assert len(condition.moments) == 2  # nobody asks for the garden
    assert changes(engine.advance(at(5))) == [([], ["a"])]
    assert changes(engine.advance(at(9))) == [([], ["b"])]


def test_nothing_is_left_of_a_subscription_that_ended(engine: Engine) -> None:
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :kitchen ; :at {time(0)} . :b :in :hall ; :at {time(0)} }}")
    first = engine.subscribe(PREFIX + RECENT.format(":kitchen", "PT5S"))
    second = engine.subscribe(PREFIX + RECENT.format(":hall", "PT9S"))
    engine.unsubscribe(first.spuid)
    [condition] = clock_index(engine).conditions.values()
    assert (len(condition.moments), engine.due) == (1, at(9))
    engine.unsubscribe(second.spuid)
    table = clock_index(engine)
    assert (table.conditions, table._at, engine.due) == ({}, {}, None)
    assert (engine.cts.virtual, engine.cts.tables) == ({}, {})
    assert engine._subscriptions._lutt.filed == 0


def test_time_may_be_set_back(engine: Engine) -> None:
    engine.subscribe(PREFIX + RECENT.format(":room", "PT5S"))
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :room ; :at {time(0)} }}")
    assert changes(engine.advance(at(60))) == [([], ["a"])]
    assert changes(engine.advance(at(1))) == [(["a"], [])]
    assert engine.due == at(5)
    assert changes(engine.advance(at(5))) == [([], ["a"])]


def test_reach_stops_before_what_is_due(engine: Engine) -> None:
    engine.subscribe(PREFIX + RECENT.format(":room", "PT5S"))
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :room ; :at {time(0)} }}")
    engine.reach(at(3))
    assert engine.instant == at(3)
    engine.reach(at(2))
    assert engine.instant == at(3)
    engine.reach(at(8))
    assert engine.instant == at(5) - timedelta(microseconds=1)
    assert engine.due == at(5)


def test_a_first_subscription_is_one_of_the_engines_clock() -> None:
    now = START
    engine = Engine(clock=lambda: now)
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :room ; :at {time(0)} }}")
    text = PREFIX + RECENT.format(":room", "PT5S")
    first = engine.subscribe(text)
    assert len(first.first) == 1
    engine.unsubscribe(first.spuid)
    now = at(60)
    assert len(engine.subscribe(text).first) == 0


def test_values_that_do_not_compare_are_left_to_the_store_and_time_goes_on(engine: Engine) -> None:
    text = "SELECT (MIN(?v) AS ?least) { ?x :at ?t ; :v ?v FILTER(g:now() - ?t < 'PT5S'^^xsd:dayTimeDuration) }"
    subscription = engine.subscribe(PREFIX + text)
    assert subscription.spu_class == "counted"
    for number, value in enumerate(("'text'", 1, 2, 3)):
        engine.update(PREFIX + f"INSERT DATA {{ :x{number} :at {time(number)} ; :v {value} }}")
    assert engine.describe(subscription.spuid).spu_class == "re-evaluated"
    least = []
    while engine.due is not None:
        for notification in engine.advance(engine.due).notifications:
            [(value,)] = notification.added
            least.append(None if value is None else value.split('"')[1])
    assert least[-3:] == ["2", "3", None]


def test_a_commit_that_fails_half_way_is_repeated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.subscribe(PREFIX + RECENT.format(":room", "PT5S"))
    engine.update(PREFIX + f"INSERT DATA {{ :a :in :room ; :at {time(0)} }}")
    for failing in ("add", "take", "quad"):
        with monkeypatch.context() as patch:
            patch.setattr(Condition, failing, _once(getattr(Condition, failing)))
            engine.update(PREFIX + f"INSERT DATA {{ :{failing} :in :room ; :at {time(1)} }}")
            engine.update(PREFIX + f"DELETE WHERE {{ :{failing} ?p ?o }}")
    assert engine.faults
    [condition] = clock_index(engine).conditions.values()
    assert [count for count, _ in condition.moments.values()] == [1]
    assert changes(engine.advance(at(5))) == [([], ["a"])]


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    failed: list[bool] = []

    def fail(*arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("the method failed")
        return method(*arguments)

    return fail


def test_a_subscription_whose_operands_cost_too_much_ends() -> None:
    """The store could not tell when to evaluate it again."""
    engine = Engine(clock=lambda: START, evaluation_ms_max=1)
    text = "SELECT ?x { ?x :at ?t . ?y :at ?u . ?z :at ?w FILTER(?t - g:now() > ?u - ?w) }"
    subscription = engine.subscribe(PREFIX + text)
    quads = " . ".join(f":x{number} :at {time(number)}" for number in range(300))
    commit = engine.update(PREFIX + f"INSERT DATA {{ {quads} }}")
    [ended] = commit.ended
    assert ended.spuid == subscription.spuid
    assert isinstance(ended.error, LimitExceededError)
    assert (clock_index(engine).conditions, engine.due) == ({}, None)
    assert len(engine.update(PREFIX + "INSERT DATA { :a :b :c }").added) == 1
