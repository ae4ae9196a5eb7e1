"""The inbox against a real mosquitto: an asynchronous iterator of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest

from lamplighter.adapters.mqtt.connection import BrokerConnection
from lamplighter.adapters.mqtt.inbox import Inbox, InboxCounters
from lamplighter.adapters.mqtt.messages import WAITING_BYTES_MAX, MessageQueue
from lamplighter.adapters.mqtt.settings import BrokerSettings
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.event_loops import beside

TIMEOUT_S = 120.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def opened(
    broker: Mosquitto, *, batch_max: int = 256, queue_max: int = 1024, **changes: object
) -> AsyncIterator[Inbox]:
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker.port} | changes, BrokerSettings)
    queue = MessageQueue(batch_max, queue_max, clock=lambda: NOON)
    inbox = Inbox(settings, ["t/#"], queue, counters=InboxCounters())
    async with beside(inbox.run()):
        async with asyncio.timeout(TIMEOUT_S):
            await inbox.subscribed.wait()
        yield inbox


async def publish(broker: Mosquitto, *payloads: str) -> None:
    await asyncio.to_thread(partial(broker.publish, *[("t/1", payload) for payload in payloads]))


async def received(inbox: Inbox, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while inbox.counters.received < count:
            await asyncio.sleep(0.01)


async def test_messages_come_in_batches_and_in_order() -> None:
    with mosquitto() as broker:
        async with opened(broker, batch_max=4) as inbox:
            await publish(broker, *map(str, range(10)))
            await received(inbox, 10)
            sizes, payloads = [], []
            async for batch in inbox:
                sizes.append(len(batch))
                payloads += [int(message.payload) for message in batch]
                assert {(message.topic, message.retained, message.received) for message in batch} == {
                    ("t/1", False, NOON)
                }
                inbox.acknowledge(batch)
                if len(payloads) == 10:
                    break
            assert (sizes, payloads, len(inbox)) == ([4, 4, 2], list(range(10)), 0)


async def test_what_is_not_acknowledged_comes_to_the_next_inbox() -> None:
    with mosquitto() as broker:
        async with opened(broker, batch_max=2) as inbox:
            await publish(broker, "1", "2", "3", "4")
            await received(inbox, 4)
            inbox.acknowledge(await anext(inbox))
            assert [message.payload for message in await anext(inbox)] == [b"3", b"4"]
        async with opened(broker) as inbox:
            await received(inbox, 2)
            assert [message.payload for message in await anext(inbox)] == [b"3", b"4"]


async def test_waiting_that_is_cancelled_loses_nothing() -> None:
    with mosquitto() as broker:
        async with opened(broker) as inbox:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(inbox)
            waiting = asyncio.ensure_future(anext(inbox))
            await asyncio.sleep(0)
            waiting.cancel()
            await publish(broker, "1")
            await received(inbox, 1)
            assert [message.payload for message in await anext(inbox)] == [b"1"]


async def test_an_inbox_holds_so_many_bytes_and_reads_on_once_half_is_taken() -> None:
    count, size = 600, 60_000
    messages = [("t/1", f"{number:04}".ljust(size)) for number in range(count)]
    unlimited = ("allow_anonymous true", "max_inflight_messages 0", "max_queued_messages 0")
    with mosquitto(settings=unlimited) as broker:
        async with opened(broker) as inbox:
            await asyncio.to_thread(partial(broker.publish, *messages))
            full = WAITING_BYTES_MAX // size + 1
            await received(inbox, full)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(inbox) == full
            numbers: list[int] = []
            async for batch in inbox:
                numbers += [int(message.payload) for message in batch]
                inbox.acknowledge(batch)
                if len(numbers) == count:
                    break
            assert numbers == list(range(count))


async def test_a_full_inbox_reads_on_once_half_is_taken() -> None:
    with mosquitto() as broker:
        async with opened(broker, queue_max=4, batch_max=1) as inbox:
            await publish(broker, *map(str, range(20)))
            await received(inbox, 4)
            for _ in range(20):
                await asyncio.sleep(0)
            assert (len(inbox), inbox.counters.received) == (4, 4)
            inbox.acknowledge(await anext(inbox))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (len(inbox), inbox.counters.received) == (3, 4)
            inbox.acknowledge(await anext(inbox))
            await received(inbox, 6)
            payloads = [int(message.payload) for _ in range(18) for message in await anext(inbox)]
            assert payloads == list(range(2, 20))


async def test_filters_that_change_while_a_connection_is_made_are_subscribed_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mosquitto() as broker:
        settings = BrokerSettings(host="127.0.0.1", port=broker.port)
        inbox = Inbox(settings, ["other"], MessageQueue(clock=lambda: NOON), counters=InboxCounters())
        connect = BrokerConnection.open

        async def open_slowly(connection: BrokerConnection) -> None:
            await connect(connection)
            inbox.change_filters(["t/#"])

        monkeypatch.setattr(BrokerConnection, "open", open_slowly)
        async with beside(inbox.run()):
            async with asyncio.timeout(TIMEOUT_S):
                await inbox.subscribed.wait()
            await publish(broker, "1")
            await received(inbox, 1)
            assert [message.payload for message in await anext(inbox)] == [b"1"]
