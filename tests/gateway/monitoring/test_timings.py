from __future__ import annotations

import logging
import math
from functools import partial

import pytest

from lamplighter.gateway.monitoring import timings
from lamplighter.gateway.monitoring.timings import BOUNDS_S, LoopHoldTimer, Timing, count_durations
from tests.support.tables import each_row


def test_nothing_measured_is_no_number() -> None:
    assert Timing().members() == {"count": 0, "current": None, "min": None, "average": None, "max": None}


def test_least_most_average_and_last_in_milliseconds() -> None:
    timing = Timing()
    count_durations((timing, seconds) for seconds in (0.003, 0.001, 0.002))
    assert timing.members() == {"count": 3, "current": 2.0, "min": 1.0, "average": 2.0, "max": 3.0}


@each_row(
    ("seconds", "bound"), [(0.0, 0.000_01), (0.000_01, 0.000_01), (0.000_011, 0.000_025), (10.0, 10.0), (11, math.inf)]
)
def test_a_bucket_holds_what_is_not_over_its_bound(seconds: float, bound: float) -> None:
    timing = Timing()
    count_durations([(timing, seconds)])
    assert [bound for bound, count in zip((*BOUNDS_S, math.inf), timing.buckets, strict=True) if count] == [bound]


def test_bounds_rise() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))


def test_the_work_that_held_the_loop_longest_is_named_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = LoopHoldTimer()
    assert held.members()["processor_max_work"] is None
    now = 0.0
    monkeypatch.setattr(timings, "thread_time", lambda: now)
    with caplog.at_level(logging.WARNING, timings.__name__):
        begun = 0.0, now
        now += 0.1
        held.count_work(begun, partial(partial(math.isqrt), 4))
        assert (held.members()["processor_max"], held.members()["processor_max_work"]) == (100.0, "isqrt")
        assert caplog.messages == []
        held.note_busiest(0.3, "a slice")
        begun = 0.0, now
        now += 0.26
        held.count_work(begun, "not the longest")
    assert (held.members()["processor_max"], held.members()["processor_max_work"]) == (300.0, "a slice")
    [message] = caplog.messages
    assert message.startswith("loop held") and "a slice" in message
