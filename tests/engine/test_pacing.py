"""Rate limits and back-off."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.pacing import TokenBucket, TokenBuckets, back_off_s


def test_a_burst_and_then_a_rate() -> None:
    bucket = TokenBucket(4, 3)
    assert [bucket.take(100.0) for _ in range(5)] == [0, 0, 0, 0.25, 0.25]
    assert [bucket.take(100.25) for _ in range(2)] == [0, 0.25]
    assert bucket.free_at() == pytest.approx(100.5)
    assert [bucket.take(1_000.0) for _ in range(4)] == [0, 0, 0, 0.25]


def test_one_may_count_as_several_and_may_be_given_back() -> None:
    bucket = TokenBucket(50, 100)
    assert [bucket.take(0.0, 30) for _ in range(4)] == [0, 0, 0, pytest.approx(0.4)]
    assert sum(not bucket.take(0.0) for _ in range(1_000)) == 10
    bucket.give_back()
    assert sum(not bucket.take(0.0) for _ in range(1_000)) == 1
    assert TokenBucket(50, 100).take(0.0, 101) > 0, "more than a burst never happens"


@given(st.lists(st.floats(0, 2), max_size=300))
def test_no_rate_is_exceeded_and_a_wait_suffices(pauses: list[float]) -> None:
    bucket, now, begin = TokenBucket(8, 5), 1_000.0, 1_000.0
    for happened, pause in enumerate(pauses, 1):
        now += pause
        wait_s = bucket.take(now)
        if wait_s:
            now += wait_s + 1e-6
            assert bucket.take(now) == 0
        assert happened <= 5 + (now - begin) * 8 + 1e-3


def test_the_key_unused_for_longest_is_forgotten() -> None:
    buckets = TokenBuckets(0.1, 1, 3)
    assert buckets.take("attacker", 0.0) == 0
    for number in range(100):
        assert buckets.take("attacker", 0.0) > 0
        assert buckets.take(number, 0.0) == 0
    assert len(buckets) == 3
    assert buckets.take(0, 0.0) == 0, "forgotten"
    buckets.give_back("attacker")
    assert buckets.take("attacker", 0.0) == 0
    assert buckets.take("attacker", 10.0) == 0


def test_a_new_key_waits_for_room_where_none_is_forgotten() -> None:
    buckets = TokenBuckets(1, 2, 3, forgets=False)
    assert [buckets.take(key, 10.0) for key in "aaabcde"] == [0, 0, 1, 0, 0, inf, inf]
    assert len(buckets) == 3
    assert [buckets.take(key, 11.5) for key in "ade"] == [0, 0, 0]
    assert len(buckets) == 3


def test_no_limit_remembers_nobody() -> None:
    buckets = TokenBuckets(0, 0)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert len(buckets) == 0


def test_pauses_double_up_to_the_longest_less_up_to_half_at_random() -> None:
    for failures, whole in ((1, 0.2), (2, 0.4), (3, 0.8), (9, 30), (10_000, 30)):
        pauses = {back_off_s(failures, 0.2, 30.0, Random(1).uniform) for _ in range(2)}
        assert len(pauses) == 1, "the jitter's numbers"
        pauses = {back_off_s(failures, 0.2, 30.0) for _ in range(100)}
        assert whole / 2 <= min(pauses) < max(pauses) <= whole
