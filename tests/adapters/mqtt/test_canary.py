"""What the adapter does about silence."""

from __future__ import annotations

from lamplighter.adapters.mqtt.connection import ANSWER_S, SHORT_MAX, SHORT_S, Canary, Verdict


def listening(interval_s: float = 30) -> Canary:
    canary = Canary(interval_s)
    canary.subscribed(0)
    return canary


def test_the_first_canary_follows_the_subscription_and_the_next_one_a_silence() -> None:
    canary = listening()
    assert [canary.verdict(0), canary.verdict(1)] == ["send", "wait"]
    canary.returned(2)
    assert [canary.verdict(31.9), canary.verdict(32), canary.verdict(33)] == ["wait", "send", "wait"]


def test_every_message_is_as_good_as_the_canary() -> None:
    canary = listening()
    assert canary.verdict(0) == "send"
    canary.heard(ANSWER_S - 1)
    assert [canary.verdict(ANSWER_S), canary.verdict(ANSWER_S + 28), canary.verdict(ANSWER_S + 29)] == [
        "wait",
        "wait",
        "send",
    ]


def test_a_lost_canary_has_the_adapter_subscribe_again_and_the_next_one_ends_the_connection() -> None:
    canary = listening()
    canary.returned(0)
    assert [canary.verdict(30), canary.verdict(30 + ANSWER_S), canary.verdict(99)] == ["send", "subscribe", "wait"]
    canary.subscribed(100)
    assert [canary.verdict(100), canary.verdict(100 + ANSWER_S)] == ["send", "deaf"]


def test_a_message_after_the_second_subscription_is_enough() -> None:
    canary = listening()
    assert [canary.verdict(0), canary.verdict(ANSWER_S)] == ["send", "subscribe"]
    canary.subscribed(100)
    assert canary.verdict(100) == "send"
    canary.returned(101)
    assert [canary.verdict(131), canary.verdict(131 + ANSWER_S)] == ["send", "subscribe"]


def test_nothing_is_sent_before_the_subscriptions_stand_nor_without_an_interval() -> None:
    canary = Canary(30)
    assert canary.verdict(1000) == "wait"
    off = listening(0)
    assert off.verdict(1000) == "wait"


def test_a_pause_begins_a_new_wait() -> None:
    canary = listening()
    assert canary.verdict(0) == "send"
    canary.pause()
    assert [canary.verdict(ANSWER_S), canary.verdict(2 * ANSWER_S - 1)] == ["send", "wait"]


def asked_twice(canary: Canary, now: float) -> Verdict:
    """What is done about a canary that comes back neither before nor after a second subscription."""
    canary.connected(now)
    canary.subscribed(now)
    assert [canary.verdict(now), canary.verdict(now + ANSWER_S)] == ["send", "subscribe"]
    canary.subscribed(now + ANSWER_S)
    assert canary.verdict(now + ANSWER_S) == "send"
    return canary.verdict(now + 2 * ANSWER_S)


def test_a_broker_that_never_returns_one_gets_no_more_of_them_and_keeps_its_connection() -> None:
    canary = Canary(30)
    assert asked_twice(canary, 0) == "given up"
    assert canary.given_up and not canary.used
    canary.connected(900)
    canary.subscribed(1000)
    assert canary.verdict(2000) == "wait"


def test_a_broker_that_returned_one_is_never_given_up() -> None:
    canary = Canary(30)
    canary.connected(0)
    canary.subscribed(0)
    assert canary.verdict(0) == "send"
    canary.returned(1)
    for attempt in range(1, 5):
        assert asked_twice(canary, attempt * 100) == "deaf"
        canary.end(attempt * 100 + 21)
    assert not canary.given_up


def test_a_broker_that_ends_connections_at_once_gets_no_more_of_them() -> None:
    canary = Canary(30)
    for attempt in range(SHORT_MAX):
        assert not canary.given_up
        canary.connected(attempt * 10)
        canary.end(attempt * 10 + 1)
    assert canary.given_up


def test_long_connections_and_attempts_without_one_are_no_reason() -> None:
    canary = Canary(30)
    for attempt in range(2 * SHORT_MAX):
        canary.connected(attempt * 100)
        canary.end(attempt * 100 + (SHORT_S if attempt % 2 else 1))
        canary.end(attempt * 100 + 50)
    assert not canary.given_up
