"""Which devices report regularly, and which of them are silent for too long."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from lamplighter.adapters.devices.intervals import (
    INTERVAL_MAX_S,
    REPORTS_MIN,
    STEADY_S,
    Intervals,
    Learned,
    ReportingChannel,
    interval_update,
)
from lamplighter.engine.core import Engine
from lamplighter.engine.terms import Term, iri, literal
from tests.support.tables import each_row

DEVICE, STREAM = iri("http://x/device"), iri("http://x/stream")
CHANNEL = ReportingChannel("home", "a/t", DEVICE)
EVENTS = ReportingChannel("home", "a/button", DEVICE)
ON, OFF = literal("true"), literal("false")


def intervals(factor: float = 3.0, channels_max: int = 100) -> Intervals:
    return Intervals(factor, channels_max)


def heard(
    found: Intervals, times: Iterable[float], channel: ReportingChannel = CHANNEL, states: Iterable[Term] = ()
) -> float:
    """Reports at these times; the last one."""
    last = 0.0
    said = tuple(states)
    for last in times:
        found.heard(channel, STREAM, last, said)
    return last


def regular(every: float, start: float = 0.0, reports: int = REPORTS_MIN + 1) -> list[float]:
    return [start + every * number for number in range(reports)]


def overdue(found: Intervals, now: float) -> list[Term]:
    return found.overdue(now, lambda source: True)


def drained(found: Intervals) -> tuple[dict[Term, bool | None], dict[Term, float | None]]:
    """What was to be stored since the last call."""
    changes = dict(found.online), dict(found.intervals)
    found.online.clear()
    found.intervals.clear()
    return changes


def test_an_interval_is_learned_from_equal_distances_and_not_earlier() -> None:
    found = intervals()
    last = heard(found, regular(60, reports=REPORTS_MIN))
    assert drained(found) == ({}, {}) and overdue(found, last + 10_000) == []
    last = heard(found, [last + 60])
    assert drained(found) == ({DEVICE: True}, {STREAM: pytest.approx(60)})
    assert overdue(found, last + 179) == []
    assert overdue(found, last + 180) == [DEVICE]


@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_the_setting_says_how_many_intervals_may_pass(factor: float) -> None:
    found = intervals(factor)
    last = heard(found, regular(100))
    assert overdue(found, last + factor * 100 - 1) == []
    assert overdue(found, last + factor * 100) == [DEVICE]


def test_jitter_is_regular() -> None:
    found, chance, now = intervals(), random.Random(1), 0.0
    for _ in range(REPORTS_MIN + 1):
        found.heard(CHANNEL, STREAM, now)
        now += chance.uniform(54, 66)
    assert drained(found)[0] == {DEVICE: True}


@each_row("seed", range(20))
def test_events_at_random_times_are_never_overdue(seed: int) -> None:
    found, chance, now = intervals(), random.Random(seed), 0.0
    for _ in range(2_000):
        found.heard(CHANNEL, STREAM, now)
        now += chance.expovariate(1 / 60)
        assert overdue(found, now) == []
    assert drained(found) == ({}, {})


def test_a_motion_sensor_that_repeats_itself_while_somebody_is_there_has_no_interval() -> None:
    found, now = intervals(), 0.0
    for _ in range(10):
        last = heard(found, regular(60, now, 50), states=[ON])
        last = heard(found, [last + 60], states=[OFF])
        now = last + 5_000
        assert overdue(found, now) == []
    assert drained(found) == ({}, {})


def test_a_switch_that_reports_both_states_regularly_has_an_interval() -> None:
    found = intervals()
    last = heard(found, regular(60, 0, 8), states=[OFF])
    last = heard(found, regular(60, last + 60, 8), states=[ON])
    assert overdue(found, last + 180) == [DEVICE]


def test_a_state_that_is_repeated_for_hours_has_an_interval() -> None:
    found = intervals()
    reports = round(STEADY_S / 600) + 2
    last = heard(found, regular(600, reports=reports - 3), states=[OFF])
    assert drained(found) == ({}, {})
    last = heard(found, regular(600, last + 600, 3), states=[OFF])
    assert overdue(found, last + 1_800) == [DEVICE]


def test_reports_of_one_moment_are_one() -> None:
    found = intervals()
    for time in regular(60):
        for part in (0.0, 0.2, 0.4):
            last = heard(found, [time + part])
    assert drained(found)[1] == {STREAM: pytest.approx(60)}
    fast = intervals()
    last = heard(fast, [number * 0.1 for number in range(300)])
    assert overdue(fast, last + 9) == [] and overdue(fast, last + 11) == [DEVICE], "10 s at least"


def test_rare_reports_are_not_learned() -> None:
    found = intervals()
    last = heard(found, regular(INTERVAL_MAX_S + 1, reports=50))
    assert drained(found) == ({}, {}) and overdue(found, last * 2) == []


def test_a_lost_report_is_no_silence_and_makes_the_limit_longer() -> None:
    found = intervals()
    last = heard(found, regular(60))
    last = heard(found, [last + 170])  # two were lost
    assert overdue(found, last + 339) == []
    assert overdue(found, last + 340) == [DEVICE]
    last = heard(found, regular(60, last + 60, 300))
    assert overdue(found, last + 181) == [DEVICE], "it is forgotten in time"


def test_a_device_that_becomes_irregular_is_not_watched_any_more() -> None:
    found, chance = intervals(), random.Random(1)
    last = heard(found, regular(60))
    drained(found)
    for _ in range(30):
        last = heard(found, [last + chance.choice((5, 20, 110, 150))])
    assert drained(found) == ({DEVICE: None}, {STREAM: None})
    assert overdue(found, last + 100_000) == []


def test_another_interval_is_learned() -> None:
    found = intervals()
    last = heard(found, regular(60))
    last = heard(found, regular(10, last + 10, 3 * REPORTS_MIN))
    assert drained(found) == ({DEVICE: True}, {STREAM: pytest.approx(10)})
    assert overdue(found, last + 31) == [DEVICE]


def test_a_silent_device_is_marked_once_and_is_online_with_its_next_report() -> None:
    found = intervals()
    last = heard(found, regular(60))
    drained(found)
    assert overdue(found, last + 500) == [DEVICE]
    assert found.mark(DEVICE) == last
    assert overdue(found, last + 501) == [] and drained(found) == ({}, {})
    heard(found, [last + 10_000])
    assert drained(found) == ({DEVICE: True}, {})
    assert overdue(found, last + 10_179) == []
    assert overdue(found, last + 10_180) == [DEVICE]


def test_a_device_that_is_silent_again_and_again_needs_more_reports() -> None:
    found = intervals()
    last = heard(found, regular(10))
    for silence in (2_000, 3_000):
        assert overdue(found, last + silence) == [DEVICE]
        found.mark(DEVICE)
        last = heard(found, [last + silence])
    assert drained(found) == ({DEVICE: None}, {STREAM: None}), "what looked regular was a series of events"
    last = heard(found, regular(10, last + 10, 2 * REPORTS_MIN - 1))
    assert overdue(found, last + 100_000) == []
    last = heard(found, regular(10, last + 10, 2))
    assert overdue(found, last + 31) == [DEVICE]


def test_a_device_is_heard_on_all_its_channels() -> None:
    found = intervals()
    last = heard(found, regular(60))
    heard(found, [last + 100, last + 170], EVENTS)
    assert overdue(found, last + 180) == [DEVICE], "the regular one is silent"
    last = heard(found, regular(600, last), EVENTS)
    assert overdue(found, last + 1_700) == [] and overdue(found, last + 1_800) == [DEVICE], "both are regular"


def test_an_event_makes_a_silent_device_online() -> None:
    found = intervals()
    last = heard(found, regular(60))
    heard(found, [last], EVENTS)
    found.mark(DEVICE)
    drained(found)
    heard(found, [last + 1_000], EVENTS)
    assert drained(found) == ({DEVICE: True}, {})
    assert overdue(found, last + 1_100) == []
    other = ReportingChannel("home", "a/other", DEVICE)
    assert overdue(found, last + 1_180) == [DEVICE]
    found.mark(DEVICE)
    heard(found, [last + 2_000], other)
    assert drained(found) == ({DEVICE: None}, {STREAM: None}), "the regular channel did not come back"


def test_silence_does_not_count_while_the_source_is_away() -> None:
    found = intervals()
    last = heard(found, regular(60))
    assert found.overdue(last + 500, lambda source: source != "home") == []
    found.interrupted("other", last + 600)
    assert overdue(found, last + 600) == [DEVICE]
    found.interrupted("home", last + 600, 60)
    assert overdue(found, last + 839) == [] and overdue(found, last + 840) == [DEVICE]
    last = heard(found, [last + 620])  # within the grace
    assert overdue(found, last + 179) == [] and overdue(found, last + 180) == [DEVICE]
    found.interrupted(None, last + 200)
    assert overdue(found, last + 379) == []
    assert drained(found)[1] == {STREAM: pytest.approx(60)}


def test_what_an_earlier_run_learned_is_used() -> None:
    found = intervals()
    found.restore(Learned(CHANNEL, STREAM, 60.0, True), 1_000)
    assert drained(found) == ({}, {})
    assert overdue(found, 1_179) == [] and overdue(found, 1_180) == [DEVICE]
    assert found.mark(DEVICE) is None, "it was not heard in this run"
    again = intervals()
    again.restore(Learned(CHANNEL, STREAM, 60.0, False), 1_000)
    assert overdue(again, 99_999) == [], "it is offline already"
    heard(again, [100_000])
    assert drained(again) == ({DEVICE: True}, {})


def test_a_report_before_the_earlier_state_is_known_makes_the_device_online() -> None:
    found = intervals()
    heard(found, [999])
    found.restore(Learned(CHANNEL, STREAM, 60.0, False), 1_000)
    assert drained(found) == ({DEVICE: True}, {})


def test_channels_that_are_not_kept_are_forgotten() -> None:
    found = intervals()
    last = heard(found, regular(60))
    heard(found, [last], EVENTS)
    drained(found)
    found.keep(lambda channel, stream: channel != CHANNEL)
    assert drained(found) == ({DEVICE: None}, {STREAM: None})
    assert len(found) == 1 and overdue(found, last + 10_000) == []
    found.keep(lambda channel, stream: False)
    assert len(found) == 0 and drained(found) == ({}, {})


def test_the_number_of_channels_is_bounded() -> None:
    found = intervals(channels_max=2)
    for number in range(10):
        heard(found, regular(60), ReportingChannel("home", f"a/{number}", iri(f"http://x/{number}")))
    found.restore(Learned(ReportingChannel("home", "b", DEVICE), STREAM, 60.0, False), 0)
    assert len(found) == 2


def test_the_interval_is_stored_while_the_stream_exists() -> None:
    engine = Engine()
    try:
        engine.update(interval_update(STREAM, 60.0))
        assert engine.quad_count == 0
        engine.update(f"INSERT DATA {{ {STREAM} a <http://lamplighter.example/ns/gateway#Stream> }}")
        for interval_s, count in ((60.0, 2), (10.0041, 2), (None, 1)):
            engine.update(interval_update(STREAM, interval_s))
            assert engine.quad_count == count
            assert (b"10.004" in engine.dump("application/n-quads")) == (interval_s == 10.0041)
    finally:
        engine.close()


def test_a_dropped_interval_leaves_what_other_channels_know_of_the_device() -> None:
    found = intervals()
    found.drop(STREAM, DEVICE)
    assert drained(found) == ({DEVICE: None}, {STREAM: None})
    found.restore(Learned(CHANNEL, STREAM, 60.0, True), 0)
    found.drop("<x:other>", DEVICE)
    assert drained(found) == ({}, {"<x:other>": None})
