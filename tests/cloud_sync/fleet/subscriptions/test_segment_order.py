"""The order in which segments are matched, against every order of arrival."""

import itertools
import random

import pytest

from lamplighter.cloud_sync.fleet.subscriptions.segment_order import ChosenSegment, SegmentOrder, landed_between

ALL = 1000


def _segment(gateway: str, epoch: int, first: int, last: int) -> str:
    return f"{gateway}/{epoch}-{first:012d}-{last:012d}.ndjson.zst"


def _never(segment: str) -> float:
    return 0.0


FIRST, SECOND, THIRD = (_segment("gw-1", 1, first, first + 9) for first in (1, 11, 21))
NEXT_EPOCH = _segment("gw-1", 2, 1, 5)


def _drained(order: SegmentOrder, limit: int = ALL) -> list[ChosenSegment]:
    found: list[ChosenSegment] = []
    while chosen := order.following(_never, 60, limit):
        found += chosen
        order.note_matched(one.segment for one in chosen)
    return found


@pytest.mark.parametrize("arrival", list(itertools.permutations([FIRST, SECOND, THIRD, NEXT_EPOCH])))
def test_each_order_of_arrival_is_matched_in_the_order_of_the_log(arrival: tuple[str, ...]) -> None:
    order, found = SegmentOrder(), []
    for segment in arrival:
        order.note_ingested([segment], {})
        found += _drained(order)
    # The epoch that follows at once does not wait for more of the one before, whose end nobody knows.
    if arrival.index(NEXT_EPOCH) > max(map(arrival.index, (FIRST, SECOND, THIRD))):
        assert found == [ChosenSegment(one, False) for one in (FIRST, SECOND, THIRD, NEXT_EPOCH)]
    assert sorted(one.segment for one in found) == sorted(arrival)
    kept = [one.segment for one in found if not one.late]
    assert kept == sorted(kept)


def test_a_segment_waits_for_the_ones_before_it_until_it_is_old_enough() -> None:
    order = SegmentOrder()
    order.note_ingested([FIRST, THIRD], {})
    assert order.following(lambda segment: 59.9, 60, ALL) == [ChosenSegment(FIRST, False)]
    order.note_matched([FIRST])
    assert order.following(lambda segment: 59.9, 60, ALL) == []
    assert order.following(lambda segment: 60.0, 60, ALL) == [ChosenSegment(THIRD, False)]
    order.note_matched([THIRD])
    order.note_ingested([SECOND], {})
    assert order.following(_never, 60, ALL) == [ChosenSegment(SECOND, True)]


def test_segments_behind_an_old_one_are_not_held_by_the_hole_before_it() -> None:
    order = SegmentOrder()
    fourth = _segment("gw-1", 1, 31, 40)
    order.note_ingested([THIRD, fourth], {})
    asked: list[str] = []

    def age(segment: str) -> float:
        asked.append(segment)
        return 61.0

    assert [one.segment for one in order.following(age, 60, ALL)] == [THIRD, fourth]
    assert asked == [THIRD], "only a segment behind a hole is asked for its age"


def test_after_a_restart_the_manifests_tell_what_was_matched() -> None:
    order = SegmentOrder()
    order.note_ingested([FIRST, SECOND, THIRD], {})
    order.note_matched([FIRST, SECOND])
    order.note_ingested([FIRST, SECOND, THIRD], {})
    assert len(order) == 1
    assert order.following(_never, 60, ALL) == [ChosenSegment(THIRD, False)]


def test_a_gateway_with_a_hole_does_not_hold_others() -> None:
    order = SegmentOrder()
    other = _segment("gw-2", 1, 1, 3)
    order.note_ingested([SECOND, other], {})
    assert order.following(_never, 60, ALL) == [ChosenSegment(other, False)]


def test_the_limit_is_shared_by_the_gateways_and_keeps_their_order() -> None:
    draw = random.Random(5)
    segments = [_segment(f"gw-{gateway}", 1, first, first + 9) for gateway in range(7) for first in range(1, 200, 10)]
    order = SegmentOrder()
    draw.shuffle(segments)
    order.note_ingested(segments, {})
    once = order.following(_never, 60, 14)
    assert len(once) == 14 and len({one.segment.partition("/")[0] for one in once}) == 7
    found = [one.segment for one in _drained(order, limit=5)]
    assert sorted(found) == sorted(segments)
    for gateway in range(7):
        own = [one for one in found if one.startswith(f"gw-{gateway}/")]
        assert own == sorted(own)


def test_other_files_are_left_alone() -> None:
    order = SegmentOrder()
    order.note_ingested(["gw-1/notes.txt"], {})
    order.note_matched(["gw-1/notes.txt"])
    assert len(order) == 0 and order.following(_never, 60, ALL) == []


def test_segments_that_the_same_subscriptions_see_are_matched_together_in_order() -> None:
    """Subscriptions begin behind the numbers 5 and 9."""

    def chosen(*numbers: tuple[str, int]) -> list[ChosenSegment]:
        return [ChosenSegment(f"{gateway}/1-{place:012d}-{place:012d}.ndjson.zst", False, number)
                for place, (gateway, number) in enumerate(numbers, 1)]  # fmt: skip

    def numbers(some: list[ChosenSegment]) -> list[int]:
        return [one.number for one in landed_between(some, (5, 9, 5))]

    assert numbers(chosen(("a", 3), ("a", 5), ("a", 6), ("b", 4), ("b", 10))) == [3, 5, 4]
    assert numbers(chosen(("a", 6), ("b", 4), ("a", 9))) == [6, 9]
    # What comes late for a hole lands behind what waits for it.
    assert numbers(chosen(("a", 12), ("a", 3), ("b", 11), ("c", 3), ("c", 11))) == [12, 11]
    assert numbers([]) == []
    assert landed_between(some := chosen(("a", 0), ("b", 7)), ()) == some
