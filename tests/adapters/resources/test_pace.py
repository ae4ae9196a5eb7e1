"""How often something may happen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.resources.pace import RequestPace, RequestPaces


def test_a_burst_and_then_a_rate() -> None:
    pace = RequestPace(4, 3)
    assert [pace.wait_s(100.0) for _ in range(5)] == [0, 0, 0, 0.25, 0.25]
    assert [pace.wait_s(100.25) for _ in range(2)] == [0, 0.25]
    assert [pace.wait_s(1_000.0) for _ in range(4)] == [0, 0, 0, 0.25]


def test_few_are_remembered_as_long_as_they_are_not_idle() -> None:
    paces = RequestPaces(1, 2, 3)
    assert [paces.allows(one, 10.0) for one in "aaabcde"] == [True, True, False, True, True, False, False]
    assert len(paces) == 3
    assert [paces.allows(one, 11.5) for one in "ade"] == [True, True, True]
    assert len(paces) == 3


@given(st.lists(st.floats(0, 2), max_size=300))
def test_no_rate_is_exceeded_and_a_wait_suffices(pauses: list[float]) -> None:
    pace, now, begin = RequestPace(8, 5), 1_000.0, 1_000.0
    for happened, pause in enumerate(pauses, 1):
        now += pause
        wait_s = pace.wait_s(now)
        if wait_s:
            now += wait_s + 1e-6
            assert pace.wait_s(now) == 0
        assert happened <= 5 + (now - begin) * 8 + 1e-3
