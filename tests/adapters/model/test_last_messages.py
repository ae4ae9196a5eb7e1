"""The last messages of devices: bounded in number, in bytes, and in each answer."""

from datetime import UTC, datetime

import msgspec

from lamplighter.adapters.model import last_messages
from lamplighter.adapters.model.last_messages import ANSWER_BYTES_MAX, BYTES_MAX, PLACES_MAX, LastMessages
from lamplighter.engine.client import KeptMessage, MessagePlace

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def places(*names: str, broker: str = "") -> list[MessagePlace]:
    return [MessagePlace(name, broker) for name in names]


def test_the_last_message_of_each_place_and_broker_is_kept() -> None:
    last = LastMessages()
    last.keep("a", b"1", NOW, broker="home")
    last.keep("a", b"2", NOW, broker="home", retained=True)
    last.keep("a", b"3", NOW, broker="cellar")
    last.keep("coap://lamp/on", b"\xff", NOW, content_format=60)
    assert last.find(places("a", "b", broker="home")) == [KeptMessage("a", b"2", NOW, "home", retained=True)]
    assert last.find(places("a")) == []
    assert last.find(places("coap://lamp/on")) == [KeptMessage("coap://lamp/on", b"\xff", NOW, content_format=60)]


def test_the_beginning_of_a_long_payload_is_kept() -> None:
    last = LastMessages()
    last.keep("a", b"x" * (last_messages.PAYLOAD_BYTES_MAX + 1), NOW)
    [found] = last.find(places("a"))
    assert (len(found.payload), found.cut) == (last_messages.PAYLOAD_BYTES_MAX, True)
    last.keep("a", b"x" * last_messages.PAYLOAD_BYTES_MAX, NOW)
    assert not last.find(places("a"))[0].cut


def test_messages_of_long_topics_are_not_kept() -> None:
    last = LastMessages()
    last.keep("a" * 1_001, b"1", NOW)
    assert last.find(places("a" * 1_001)) == []


def test_the_oldest_messages_are_forgotten() -> None:
    last = LastMessages()
    names = [f"topic/{number}" for number in range(PLACES_MAX + 1)]
    for name in names:
        last.keep(name, b"1", NOW)
    last.keep(names[1], b"2", NOW)
    last.keep("new", b"3", NOW)
    assert [last.find(places(name)) == [] for name in (*names[:4], "new")] == [True, False, True, False, False]


def test_all_payloads_together_are_bounded() -> None:
    last = LastMessages()
    names = [f"topic/{number}" for number in range(BYTES_MAX // 8_000 + 100)]
    for _ in range(2):
        for name in names:
            last.keep(name, b"x" * 8_000, NOW)
    kept = [name for name in names if last.find(places(name))]
    assert kept == names[-(BYTES_MAX // 8_000) :]


def test_an_answer_is_bounded() -> None:
    last = LastMessages()
    names = [f"topic/{number}" for number in range(100)]
    for name in names:
        last.keep(name, b"x" * 8_000, NOW)
    found = last.find(places(*names))
    assert 5 < len(found) < 100
    assert len(msgspec.json.encode(found)) <= ANSWER_BYTES_MAX + 2
