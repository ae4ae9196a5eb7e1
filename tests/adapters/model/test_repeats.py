"""Repeated values, dead band and throttle."""

from datetime import timedelta
from typing import Any

from lamplighter.adapters.model.repeats import Repeats
from lamplighter.engine.terms import lexical
from tests.support.mapping_rules import NOON, readings, rules

MESSAGES = list[tuple[float, str]]


def kept(keys: str, messages: MESSAGES, *, due: tuple[float, ...] = (), streams_max: int = 10) -> list[Any]:
    """(second, value, again) of what is written; messages: second and payload; due: seconds at which held ones are
    asked for."""
    mapping = rules(f'[[stream]]\ntopic = "t/{{x}}"\npayload = "number"\nproperty = "ex:p"\n{keys}')
    repeats = Repeats(streams_max)
    found: list[Any] = []
    steps: list[tuple[float, str | None]] = [*messages, *((at, None) for at in due)]
    for at, payload in sorted(steps, key=lambda step: step[0]):
        now = NOON + timedelta(seconds=at)
        if payload is None:
            written = repeats.due(now)
        else:
            topic, _, text = payload.rpartition(" ")
            [reading] = readings(mapping, topic or "t/1", text, received=now)
            written = [one] if (one := repeats.written(reading)) else []
        found += [(at, lexical(one.value), one.again) for one in written]
    return found


def test_refresh_writes_every_reading() -> None:
    assert kept("", [(0, "1"), (1, "1")]) == [(0, "1", False), (1, "1", False)]


def test_ignore_drops_equal_numbers_however_they_are_spelled() -> None:
    assert kept('on_repeat = "ignore"', [(0, "1"), (1, "1.0"), (2, "1e0"), (3, "2"), (4, "1")]) == [
        (0, "1", False),
        (3, "2", False),
        (4, "1", False),
    ]


def test_event_makes_room_for_an_equal_value_and_for_the_first_one_of_a_process() -> None:
    assert kept('on_repeat = "event"', [(0, "1"), (1, "1"), (2, "2")]) == [
        (0, "1", True),
        (1, "1", True),
        (2, "2", False),
    ]


def test_dead_band_compares_with_the_last_written_value() -> None:
    messages: MESSAGES = [(0, "20"), (1, "20.3"), (2, "20.4"), (3, "20.5"), (4, "20.1"), (5, "20")]
    assert [value for _, value, _ in kept("dead_band = 0.5", messages)] == ["20", "20.5", "20"]


def test_throttle_writes_the_newest_held_reading_afterwards() -> None:
    messages: MESSAGES = [(0, "1"), (3, "2"), (5, "3"), (20, "4"), (21, "4")]
    assert kept("throttle_s = 10", messages, due=(9, 10, 11, 40)) == [
        (0, "1", False),
        (10, "3", False),
        (20, "4", False),
        (40, "4", False),
    ]


def test_held_reading_is_dropped_when_the_value_returns() -> None:
    messages: MESSAGES = [(0, "1"), (3, "2"), (5, "1")]
    assert kept('throttle_s = 10\non_repeat = "ignore"', messages, due=(30,)) == [(0, "1", False)]


def test_clock_that_goes_back_ends_a_throttle() -> None:
    mapping = rules('[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nthrottle_s = 10')
    repeats = Repeats(1)
    [first], [second] = (readings(mapping, "t", "1", received=NOON - timedelta(days=days)) for days in (0, 1))
    assert repeats.written(first) and repeats.written(second)
    [held] = readings(mapping, "t", "2", received=NOON - timedelta(days=1))
    assert repeats.written(held) is None
    assert [lexical(one.value) for one in repeats.due(NOON - timedelta(days=2))] == ["2"]


def test_streams_are_bounded() -> None:
    messages: MESSAGES = [(0, "t/1 1"), (1, "t/2 1"), (2, "t/3 1"), (3, "t/1 1")]
    assert len(kept('on_repeat = "ignore"', messages, streams_max=2)) == 4


def test_retained_value_is_neither_held_nor_an_event() -> None:
    mapping = rules(
        '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\non_repeat = "event"\nthrottle_s = 10'
    )
    repeats = Repeats(1)
    [retained] = readings(mapping, "t", "1", retained=True)
    assert repeats.written(retained) == retained
    assert repeats.written(retained) == retained and not repeats.held


def test_first_report_after_an_interruption_is_written_and_confirms_the_value() -> None:
    mapping = rules(
        '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\non_repeat = "ignore"\ndead_band = 1'
    )
    repeats = Repeats(10)

    def written(text: str) -> bool:
        [reading] = readings(mapping, "t", text)
        return repeats.written(reading) is not None

    [before] = readings(mapping, "t", "1")
    assert [written("1"), written("1")] == [True, False]
    repeats.interrupt(before.received)
    assert [written("1"), written("1")] == [True, False]
    repeats.interrupt(before.received + timedelta(seconds=1))
    assert written("1") and written("1"), "they were received before it"
    repeats.interrupt(before.received, {before.stream.sensor})
    assert [written("1.5"), written("1.6")] == [True, False]


def test_value_that_ends_is_written_with_each_report() -> None:
    for keys in ('on_repeat = "ignore"', "dead_band = 5"):
        assert kept(f"{keys}\nexpire_after_s = 60", [(0, "1"), (30, "1")]) == [(0, "1", False), (30, "1", False)]
