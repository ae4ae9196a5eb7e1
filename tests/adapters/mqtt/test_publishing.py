"""Rows of queries -> messages, with a client that gives notifications and a broker that only notes messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from lamplighter.adapters.mapping import PublishRule, PublishTable, publish_rule
from lamplighter.adapters.mqtt import publishing
from lamplighter.adapters.mqtt.publishing import RowPublisher
from lamplighter.engine.client import Notification
from lamplighter.engine.errors import GatewayError, RefusedError
from lamplighter.engine.terms import Bag, iri, literal
from tests.support.event_loops import beside, settled, until
from tests.support.noted_messages import NotingBroker

ROOMS = "SELECT ?room ?value { ?room ?p ?value }"
GRAPH = "CONSTRUCT { ?room <x:p> ?value } WHERE { ?room ?p ?value }"


def rule(query: str = ROOMS, topic: str = "rooms/{room}", place: str = "rule", **keys: object) -> PublishRule:
    table = msgspec.convert({"query": query, "topic": topic, "payload": "{value}"} | keys, PublishTable)
    return publish_rule(table, prefixes={}, base_iri="http://g/", place=place)


def graph_rule() -> PublishRule:
    return rule(GRAPH, "graph", payload="{triples}", removed="-{triples}")


def bag(*rows: tuple[str, str]) -> Bag:
    return Bag(("room", "value"), [(iri(f"x:{room}"), literal(value)) for room, value in rows])


class Client:
    """Gives what is put into the queue to the newest subscription."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Notification | GatewayError] = asyncio.Queue()
        self.queries: list[str] = []
        self.sequence = 0

    def change(self, *added: tuple[str, str], removed: tuple[tuple[str, str], ...] = ()) -> None:
        self.queue.put_nowait(Notification("spu", self.sequence, bag(*added), bag(*removed)))
        self.sequence += 1

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        self.queries.append(sparql)
        while True:
            found = await self.queue.get()
            if isinstance(found, GatewayError):
                raise found
            yield found


class Running:
    def __init__(self) -> None:
        self.client, self.broker = Client(), NotingBroker()
        self.noted: list[tuple[str, str]] = []
        self.readers: dict[tuple[str, str], str] = {}
        self.publisher = RowPublisher(
            self.client,
            {"default": self.broker},
            lambda *one: self.noted.append(one),
            lambda *topic: self.readers.get(topic),
        )


@asynccontextmanager
async def running(*rules: PublishRule) -> AsyncIterator[Running]:
    one = Running()
    one.publisher.change_rules(rules)
    async with beside(one.publisher.run()) as task:
        await settled()
        yield one
    assert task.cancelled()


async def test_a_row_is_published_when_it_enters_and_not_at_the_start() -> None:
    async with running(rule(qos=2)) as one:
        one.client.change(("hall", "old"))
        await settled()
        assert one.broker.messages == []
        one.client.change(("attic", "new"))
        await settled()
        assert one.broker.messages == [("rooms/x:attic", "new", 1, False)]
        assert one.publisher.status() == "1 message of query results published"


async def test_a_retained_message_is_brought_up_to_date_at_the_start() -> None:
    async with running(rule(retain=True, qos=0)) as one:
        one.client.change(("hall", "old"))
        await settled()
        assert one.broker.messages == [("rooms/x:hall", "old", 0, True)]


async def test_the_newest_row_of_a_topic_wins_while_the_broker_is_away() -> None:
    async with running(rule()) as one:
        one.client.change()
        one.broker.subscribed.clear()
        for value in ("1", "2", "3"):
            one.client.change(("hall", value))
            await settled()
        assert one.broker.messages == []
        assert one.publisher.status() == "0 messages of query results published, 1 topic waiting"
        one.broker.subscribed.set()
        await settled()
        assert one.broker.payloads() == ["3"]
        assert one.publisher.counters.replaced == 2


async def test_no_triple_is_missed_while_the_broker_is_away() -> None:
    async with running(graph_rule()) as one:
        one.client.change(("old", "0"))
        one.broker.subscribed.clear()
        one.client.change(("hall", "1"), removed=(("old", "0"),))
        one.client.change(("hall", "2"), removed=(("hall", "1"),))
        await settled()
        one.broker.subscribed.set()
        await settled()
        assert one.broker.payloads() == ['-<x:old> <x:p> "0" .\n', '<x:hall> <x:p> "2" .\n']


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_failed_message_is_repeated_joined_with_what_came_later(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(publishing, "RETRY_MIN_S", 0.001)
    async with running(graph_rule()) as one:
        one.client.change(("old", "0"))
        await settled()
        one.broker.failures = failures
        one.broker.acknowledging.clear()
        one.client.change(("hall", "1"), removed=(("old", "0"),))
        await settled()
        one.client.change(("attic", "2"))
        await settled()
        one.broker.acknowledging.set()
        await until(lambda: one.publisher.counters.published == 2)
        gone, new = '-<x:old> <x:p> "0" .\n', '<x:attic> <x:p> "2" .\n<x:hall> <x:p> "1" .\n'
        assert one.broker.payloads() == [gone] * failures + [gone, new]
        assert one.publisher.counters.failed == failures


async def test_topics_that_wait_for_the_broker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "TOPICS_MAX", 2)
    async with running(rule()) as one:
        one.client.change()
        await settled()
        one.broker.subscribed.clear()
        one.client.change(("attic", "1"), ("hall", "1"), ("kitchen", "1"))
        await settled()
        assert one.publisher.counters.refused == 1
        assert one.publisher.status().endswith("2 topics waiting")


async def test_each_outage_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(publishing, "RETRY_MIN_S", 0.001)
    async with running(rule()) as one:
        one.client.change()
        await settled()
        for outage in (1, 2):
            one.broker.failures = 3
            one.client.change((f"room{outage}", "1"))
            await until(lambda wanted=outage: one.publisher.counters.published == wanted)  # type: ignore[misc]
            assert caplog.text.count("mqtt rows not published") == outage


async def test_rules_that_change_are_followed_anew_and_others_stay() -> None:
    async with running(rule()) as one:
        one.client.change()
        await settled()
        one.publisher.change_rules([rule()])
        await settled()
        assert len(one.client.queries) == 1
        one.broker.subscribed.clear()
        one.client.change(("hall", "1"))
        await settled()
        one.publisher.change_rules([])
        one.broker.subscribed.set()
        await settled()
        assert one.broker.messages == []
        assert one.publisher.status() == ""
        one.publisher.change_rules([rule(topic="other")])
        await settled()
        assert len(one.client.queries) == 2


async def test_what_is_not_published_is_noted_with_the_place_of_its_rule() -> None:
    async with running(rule(), rule(place="second", broker="attic", topic="t")) as one:
        one.publisher.change_rules([rule()])
        one.client.change()
        one.client.queue.put_nowait(Notification("spu", 1, Bag(("room", "value"), [(None, literal("x"))]), bag()))
        await settled()
        assert one.noted == [("rooms/{room}", "rule: ?room of the topic is not bound")]
        one.client.queue.put_nowait(RefusedError("forbidden", 403, "too expensive"))
        await settled()
        [(topic, reason)] = one.noted[1:]
        assert topic == "rooms/{room}"
        assert reason.startswith("rule: the gateway does not follow the query: ")
        one.publisher.change_rules([rule(place="second", broker="attic", topic="t")])
        await settled()
        one.client.sequence = 0
        one.client.change()
        one.client.change(("hall", "1"))
        await settled()
        assert one.noted[2:] == [("t", "second: [mqtt.brokers] has no broker 'attic'")]


async def test_rule_that_another_one_reads_sends_few_messages_and_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "LOOP_PAUSE_S", 3_600.0)
    async with running(rule()) as one:
        one.readers["default", "rooms/x:hall"] = "mapping/rooms.toml line 3: stream 1"
        one.client.change()
        for number in range(publishing.LOOP_AT_ONCE + 30):
            one.client.change(("hall", f"{number}"), ("attic", f"{number}"))
            await settled()
        assert sum(topic == "rooms/x:hall" for topic, *_ in one.broker.messages) == publishing.LOOP_AT_ONCE
        assert sum(topic == "rooms/x:attic" for topic, *_ in one.broker.messages) == publishing.LOOP_AT_ONCE + 30
        [(topic, reason)] = one.noted
        assert topic == "rooms/x:hall"
        assert reason.startswith("rule publishes to it, and mapping/rooms.toml line 3: stream 1 reads it")
