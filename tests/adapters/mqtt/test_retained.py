"""What a broker retains arrives whole, and overwrites nothing newer: a real mosquitto with its default limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mqtt import retained
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.inbox import Inbox, InboxCounters
from lamplighter.adapters.mqtt.link import Publish
from lamplighter.adapters.mqtt.messages import MessageQueue
from lamplighter.adapters.mqtt.retained import RetainedStates
from lamplighter.adapters.mqtt.settings import BrokerSettings
from tests.support.brokers import Mosquitto, mosquitto, subscribed
from tests.support.event_loops import beside

TIMEOUT_S = 120.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FLOOD = 5_000
"""Retained messages; the broker keeps 1,020 of a session at QoS 1."""
BOTH = pytest.mark.parametrize("protocol", ["3.1.1", "5"])


class Reader:
    """Reads and acknowledges. values: the last payload of each topic; every: all of them, in order."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.values: dict[str, str] = {}
        self.every: list[tuple[str, str]] = []

    async def run(self) -> None:
        async for batch in self.inbox:
            for message in batch:
                self.values[message.topic] = message.payload.decode()
                self.every.append((message.topic, message.payload.decode()))
            self.inbox.acknowledge(batch)

    async def until(self, values: dict[str, str]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.values != values:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(
    broker: Mosquitto, protocol: str, *, on_state: Callable[[bool, str], None] = lambda connected, reason: None
) -> AsyncIterator[Reader]:
    settings = msgspec.convert(
        {"host": "127.0.0.1", "port": broker.port, "protocol": protocol, "client_id": "inbox"}, BrokerSettings
    )
    inbox = Inbox(settings, ["t/#"], MessageQueue(clock=lambda: NOON), counters=InboxCounters(), on_state=on_state)
    reader = Reader(inbox)
    async with beside(inbox.run()), beside(reader.run()):
        yield reader


async def publish(broker: Mosquitto, *messages: tuple[str, str], retain: bool = True) -> None:
    await asyncio.to_thread(broker.publish, *messages, retain=retain)


async def settled(reader: Reader, broker: Mosquitto, count: int) -> None:
    """Returns when so many readings of retained messages are over."""
    async with asyncio.timeout(TIMEOUT_S):
        while sum("inbox-retained" in line and "disconnected" in line for line in broker.log) < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)


@BOTH
async def test_a_flood_of_retained_messages_arrives_whole(protocol: str) -> None:
    values = {f"t/{number}": f"{number:0600}" for number in range(FLOOD)}
    with mosquitto() as broker:
        await publish(broker, *values.items())
        async with reading(broker, protocol) as reader:
            await reader.until(values)


@BOTH
async def test_what_was_sent_while_the_adapter_was_away_ends_at_its_last_value(protocol: str) -> None:
    """The broker keeps the first thousand messages of a session and drops the rest."""
    with mosquitto() as broker:
        async with reading(broker, protocol) as reader:
            await publish(broker, ("t/1", "first"))
            await reader.until({"t/1": "first"})
        await publish(broker, *[("t/1", str(number)) for number in range(1_500)])
        async with reading(broker, protocol) as reader:
            await reader.until({"t/1": "1499"})


@BOTH
async def test_a_burst_ends_at_its_last_value(protocol: str) -> None:
    with mosquitto() as broker:
        async with reading(broker, protocol) as reader:
            await publish(broker, ("t/1", "first"))
            await reader.until({"t/1": "first"})
            await publish(broker, *[("t/1", str(number)) for number in range(5_000)])
            await reader.until({"t/1": "4999"})


@BOTH
async def test_a_value_that_is_not_retained_is_not_overwritten_by_a_retained_one(protocol: str) -> None:
    """Some devices retain their first message only."""
    with mosquitto() as broker:
        await publish(broker, ("t/1", "old"), ("t/2", "old"))
        async with reading(broker, protocol) as reader:
            await reader.until({"t/1": "old", "t/2": "old"})
            await settled(reader, broker, 1)
            await publish(broker, ("t/1", "new"), retain=False)
            await reader.until({"t/1": "new", "t/2": "old"})
            reader.inbox.change_filters(["t/#"], new_readers=["t/1", "t/2"])
            await settled(reader, broker, 2)
            await publish(broker, ("t/3", "end"), retain=False)
            await reader.until({"t/1": "new", "t/2": "old", "t/3": "end"})
            assert reader.every.count(("t/2", "old")) > 1 and reader.every.index(("t/1", "new")) > max(
                place for place, message in enumerate(reader.every) if message == ("t/1", "old")
            )


@BOTH
async def test_flood_gives_no_old_retained_value_back(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with a steady flood is read again and again."""
    monkeypatch.setattr(retained, "PASSED_EVERY_S", 0.1)
    with mosquitto() as broker:
        await publish(broker, ("t/birth", "old"), ("t/all", "old"))
        async with reading(broker, protocol) as reader:
            await reader.until({"t/birth": "old", "t/all": "old"})
            await settled(reader, broker, 1)
            await publish(broker, ("t/birth", "new"), retain=False)
            for number in range(2):
                await publish(broker, ("t/all", f"new {number}"))
                await publish(broker, *[("t/flood", f"{number}.{count}") for count in range(5_000)])
                await reader.until({"t/birth": "new", "t/all": f"new {number}", "t/flood": f"{number}.4999"})
                async with asyncio.timeout(TIMEOUT_S):
                    while reader.every.count(("t/all", f"new {number}")) < 2:  # its retained message was read
                        await asyncio.sleep(0.01)
            assert ("t/birth", "old") not in reader.every[reader.every.index(("t/birth", "new")) :]


class Broker:
    """The retained messages of a fake broker, read by `RetainedStates`."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        self.retained: dict[str, str] = {}
        self.states = RetainedStates(
            BrokerSettings(host="nowhere"),
            credentials=BrokerCredentials,
            filters=lambda: ["t/#"],
            room=self._room,
            enqueue=lambda message: self.taken.append((message.topic, message.payload.decode())),
            on_problem=lambda: None,
        )

    async def _room(self) -> None:
        """There always is."""

    def hear(self, topic: str, payload: str, *, retain: bool = False) -> None:
        if retain:
            self.retained[topic] = payload
        self.states.hear(topic, self._message(topic, payload))

    def _message(self, topic: str, payload: str) -> Publish:
        return Publish(topic, payload.encode())

    async def read(self, monkeypatch: pytest.MonkeyPatch, *, lossy: bool) -> list[tuple[str, str]]:
        async def found(*_arguments: object) -> AsyncGenerator[Publish]:
            for topic, payload in self.retained.items():
                yield self._message(topic, payload)

        monkeypatch.setattr(retained, "retained_messages", found)
        self.taken.clear()
        await self.states._take_all(["t/#"], lossy)
        return list(self.taken)


async def test_retained_message_counts_after_a_burst_if_it_is_another_one_than_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.retained = {"t/1": "on"}
    assert await broker.read(monkeypatch, lossy=False) == [("t/1", "on")]
    broker.hear("t/1", "off")
    assert await broker.read(monkeypatch, lossy=True) == []
    broker.retained["t/1"] = "dimmed"  # the session has not heard it
    assert await broker.read(monkeypatch, lossy=False) == []
    broker.retained["t/1"] = "on"
    assert await broker.read(monkeypatch, lossy=True) == [("t/1", "on")]


async def test_device_that_retains_all_gets_its_retained_message_after_each_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    for payload in ("on", "off", "on"):
        broker.hear("t/1", payload, retain=True)
        assert await broker.read(monkeypatch, lossy=True) == [("t/1", payload)]
    broker.hear("t/1", "off", retain=True)  # the next one, on, is lost
    broker.retained["t/1"] = "on"
    assert await broker.read(monkeypatch, lossy=False) == []
    assert await broker.read(monkeypatch, lossy=True) == [("t/1", "on")]


async def test_a_second_connection_that_the_broker_refuses_is_told_of_until_it_is_accepted() -> None:
    states: list[tuple[bool, str]] = []

    async def until(reason: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not states or not states[-1][0] or not states[-1][1].startswith(reason):
                await asyncio.sleep(0.01)

    # The broker takes one more than it is told.
    with mosquitto(settings=("allow_anonymous true", "max_connections 1")) as broker:
        other = mqtt.Client(CallbackAPIVersion.VERSION2)
        with subscribed(other, broker, "nothing"):
            async with reading(broker, "3.1.1", on_state=lambda connected, reason: states.append((connected, reason))):
                await until("retained messages not read: ")
                other.disconnect()
                async with asyncio.timeout(TIMEOUT_S):
                    while states[-1] != (True, ""):
                        await asyncio.sleep(0.01)


async def test_what_is_due_does_not_grow_while_it_cannot_be_read() -> None:
    states = RetainedStates(
        BrokerSettings(host="nowhere"),
        credentials=BrokerCredentials,
        filters=lambda: ["t/#", "u"],
        room=asyncio.Event().wait,
        enqueue=lambda message: None,
        on_problem=lambda: None,
    )
    for _ in range(100):
        states.connect()
        states.subscribe(["t/#", "u"])
        states.drain()
    assert list(states._due) == ["t/#", "u"] and not states._unread
