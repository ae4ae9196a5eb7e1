"""Messages of topics that no rule reads: what is kept, and how little."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from lamplighter.adapters.model import unread
from lamplighter.adapters.model.unread import (
    ANSWER_BYTES_MAX,
    FORGOTTEN_AFTER,
    OF_BEGINNING_MAX,
    OTHERS_MAX,
    PAYLOAD_BYTES_MAX,
    PLACES_MAX,
    ROOM_EACH,
    UnreadMessages,
)
from lamplighter.engine.client import KeptMessage

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def listed(one: UnreadMessages) -> dict[str, int]:
    """Place -> count."""
    return {message.place: message.count for message in one.find()[0]}


def test_the_last_message_of_a_place_is_kept_with_its_count_and_the_most_frequent_comes_first() -> None:
    one = UnreadMessages()
    one.note("attic/co2", b"400", NOON, broker="default")
    for number in range(3):
        one.note("cellar", b"%d" % number, NOON + timedelta(seconds=number), broker="default", retained=number == 2)
    first, second = one.find()[0]
    assert first == KeptMessage("cellar", b"2", NOON + timedelta(seconds=2), "default", retained=True, count=3)
    assert (second.place, second.count) == ("attic/co2", 1)
    assert one.asked.is_set()
    one.forget("default", "cellar")
    assert listed(one) == {"attic/co2": 1}
    assert one.noted == 2


def test_a_long_payload_is_cut() -> None:
    one = UnreadMessages()
    one.note("image", b"x" * (PAYLOAD_BYTES_MAX + 1), NOON)
    [message] = one.find()[0]
    assert (len(message.payload), message.cut) == (PAYLOAD_BYTES_MAX, True)


def test_one_beginning_has_a_part_of_the_places_only() -> None:
    one = UnreadMessages()
    for number in range(OF_BEGINNING_MAX + 50):
        one.note(f"flood/{number}", b"1", NOON)
    one.note("attic", b"1", NOON)
    found, more = one.find()
    assert len(one) == OF_BEGINNING_MAX + 1
    assert "attic" in {message.place for message in found}
    assert more + len(found) == OF_BEGINNING_MAX + 51, "what is not listed is counted"


def test_a_flood_of_new_topics_displaces_none_that_comes_again() -> None:
    one = UnreadMessages()
    for _ in range(2):
        one.note("attic", b"1", NOON)
    for number in range(5 * PLACES_MAX):
        one.note(f"{number}/flood", b"1", NOON + number * ROOM_EACH / 100)
    assert listed(one)["attic"] == 2
    one.note("cellar", b"1", NOON + 10 * PLACES_MAX * ROOM_EACH)
    assert "cellar" in listed(one), "a new one gets room after a minute"


def test_a_place_without_a_message_is_forgotten() -> None:
    one = UnreadMessages()
    one.note("attic", b"1", NOON)
    one.note("cellar", b"1", NOON + FORGOTTEN_AFTER)
    assert listed(one) == {"cellar": 1}


def test_an_answer_has_a_bound() -> None:
    one = UnreadMessages()
    for number in range(500):
        one.note(f"{number}", b"x" * PAYLOAD_BYTES_MAX, NOON)
    found, more = one.find()
    assert len(found) + more == 500
    assert sum(len(message.payload) for message in found) < ANSWER_BYTES_MAX


@pytest.mark.parametrize("beginnings", [1, 10, 10**6])
def test_what_a_hostile_broker_sends_takes_bounded_memory(beginnings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "ROOM_EACH", timedelta(0))
    one = UnreadMessages()
    tracemalloc.start()
    try:
        for number in range(20_000):
            one.note(f"{number % beginnings}/{number}".ljust(250 if number % 9 == 0 else 190, "x"), b"y" * 2_000, NOON)
        assert tracemalloc.get_traced_memory()[0] < 4_000_000
    finally:
        tracemalloc.stop()
    assert len(one) <= PLACES_MAX
    assert one.find()[1] <= PLACES_MAX + OTHERS_MAX
