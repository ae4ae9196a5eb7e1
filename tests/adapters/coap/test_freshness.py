"""The order of notifications, and how long a state is fresh."""

from __future__ import annotations

from random import Random

from lamplighter.adapters.coap.freshness import MAX_AGE_S, RENEWAL_S_MAX, NotificationOrder, fresh
from tests.support.tables import each_row

LIMIT = 1 << 24


@each_row(
    ("before", "number", "seconds", "newer"),
    [
        (5, 6, 1, True),
        (5, 5, 1, False),
        (6, 5, 1, False),
        (LIMIT - 1, 0, 1, True),  # the counter has 24 bits
        (0, LIMIT - 1, 1, False),
        (0, LIMIT // 2 - 1, 1, True),
        (0, LIMIT // 2 + 1, 1, False),
        (100, 2, 128, False),
        (100, 2, 128.1, True),  # an observation that is silent for so long may have begun again
    ],
)
def test_a_notification_is_newer_by_number_and_time(before: int, number: int, seconds: float, newer: bool) -> None:
    order = NotificationOrder()
    assert order.takes(before, 1000.0)
    assert order.takes(number, 1000.0 + seconds) is newer


def test_an_answer_to_a_registration_is_always_the_newest() -> None:
    order = NotificationOrder()
    order.restart(9000, 0.0)
    order.restart(2, 1.0)
    assert order.takes(3, 2.0)
    assert not order.takes(9000 + LIMIT // 2, 3.0)


def test_of_protected_notifications_each_number_is_taken_once() -> None:
    order = NotificationOrder(protected=True)
    order.restart(-1, 0.0)  # an answer without a partial IV
    assert order.takes(7, 1.0)
    assert not order.takes(7, 1000.0)
    assert not order.takes(6, 1000.0)
    assert order.takes(1 << 30, 1001.0)


@each_row("seed", range(5))
def test_the_last_of_reordered_notifications_is_the_newest(seed: int) -> None:
    random = Random(seed)
    start = random.randrange(LIMIT)
    sent = [(start + n, float(n)) for n in range(200)]
    received = sorted(sent, key=lambda one: one[1] + random.uniform(0, 20))
    order, newest = NotificationOrder(), -1
    for number, at in received:
        if order.takes(number % LIMIT, at):
            assert number > newest
            newest = number
    assert newest == start + 199


def test_a_state_is_fresh_for_its_max_age() -> None:
    assert fresh(100.0, None, 5.0) == (100.0 + MAX_AGE_S, 100.0 + MAX_AGE_S + 5.0)
    assert fresh(100.0, 1, 15.0) == (101.0, 116.0)
    assert fresh(100.0, 2.0**32 - 1, 15.0).renewal == 100.0 + RENEWAL_S_MAX
