from __future__ import annotations

import math

import pytest

from lamplighter.gateway.monitoring.timings import BOUNDS_S, Timing


def test_nothing_measured_is_no_number() -> None:
    assert Timing().members() == {"count": 0, "current": None, "min": None, "average": None, "max": None}


def test_least_most_average_and_last_in_milliseconds() -> None:
    timing = Timing()
    for seconds in (0.003, 0.001, 0.002):
        timing.took(seconds)
    assert timing.members() == {"count": 3, "current": 2.0, "min": 1.0, "average": 2.0, "max": 3.0}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, 0.000_01), (0.000_01, 0.000_01), (0.000_011, 0.000_025), (10.0, 10.0), (11, math.inf)]
)
def test_a_bucket_holds_what_is_not_over_its_bound(seconds: float, bound: float) -> None:
    timing = Timing()
    timing.took(seconds)
    assert [bound for bound, count in zip((*BOUNDS_S, math.inf), timing.buckets, strict=True) if count] == [bound]


def test_bounds_rise() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
