"""Producer, consumer, aggregator and a client with several subscriptions (SEPA protocol, 6.3), by our library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from lamplighter.engine.client import Aggregator, Consumer, GenericClient, Jsap, Notification, Producer
from lamplighter.engine.protocol.jsap import parse
from tests.sepa.fixture import (
    ALL_ROWS,
    RANDOM,
    RANDOM1,
    RANDOM1_ROWS,
    RANDOM_ROWS,
    VAIMEE,
    VAIMEE_ROWS,
    Broker,
)


def profile(broker: Broker) -> Jsap:
    texts = {"ALL": ALL_ROWS, "RANDOM": RANDOM_ROWS, "RANDOM1": RANDOM1_ROWS, "VAIMEE": VAIMEE_ROWS}
    updates = {"RANDOM": RANDOM, "RANDOM1": RANDOM1, "VAIMEE": VAIMEE}
    document = broker.configuration() | {
        "updates": {name: {"sparql": text} for name, text in updates.items()},
        "queries": {name: {"sparql": text} for name, text in texts.items()},
    }
    return parse(json.dumps(document).encode())


async def test_produce(broker: Broker) -> None:
    async with Producer(profile(broker), "RANDOM") as producer:
        answer = await producer.update()
        assert answer is not None
    assert len(await broker.rows(RANDOM_ROWS)) == 1


async def test_subscribe_and_results(broker: Broker) -> None:
    await broker.updates(VAIMEE)
    before = await broker.subscriptions()
    async with Consumer(profile(broker), "ALL") as consumer:
        first = await anext(aiter(consumer))
        assert (first.sequence, len(first.added)) == (0, 1)
        assert await broker.subscriptions() == before + 1
    assert await broker.subscriptions() == before  # the unsubscribe was confirmed


async def test_notification(broker: Broker) -> None:
    used = profile(broker)
    async with Consumer(used, "ALL") as consumer, Producer(used, "RANDOM") as producer:
        events = aiter(consumer)
        await anext(events)
        await producer.update()
        assert (await anext(events)).sequence == 1


async def test_aggregation(broker: Broker) -> None:
    used, before = profile(broker), await broker.subscriptions()
    async with (
        Producer(used, "RANDOM") as producer,
        Aggregator(used, "RANDOM", "RANDOM1") as aggregator,
        Consumer(used, "RANDOM1") as consumer,
    ):

        async def aggregate(notification: Notification) -> None:
            if notification.sequence:
                await aggregator.update()

        events = aiter(consumer)
        assert len((await anext(events)).added) == 0
        async with asyncio.TaskGroup() as group:
            aggregating = group.create_task(aggregator.run(aggregate))
            while await broker.subscriptions() < before + 2:
                await asyncio.sleep(0)
            for number in range(1, 4):
                await producer.update()
                event = await anext(events)
                assert (event.sequence, len(event.added), len(event.removed)) == (number, 1, 0)
            aggregating.cancel()


async def test_generic_client_single_subscribe(broker: Broker) -> None:
    async with GenericClient(profile(broker)) as client:
        events = await opened(client, "VAIMEE")
        await client.update("VAIMEE")
        assert (await anext(events)).sequence == 1
        await events.aclose()


async def test_generic_client_double_subscribe(broker: Broker) -> None:
    before = await broker.subscriptions()
    async with GenericClient(profile(broker)) as client:
        names = ("VAIMEE", "RANDOM")
        both = [await opened(client, name) for name in names]
        for name in names:
            await client.update(name)
        seen = [await anext(events) for events in both]
        assert [event.sequence for event in seen] == [1, 1]
        assert seen[0].spuid != seen[1].spuid
        for left, events in zip((1, 0), both, strict=True):  # each ends by itself
            await events.aclose()
            assert await broker.subscriptions() == before + left


async def opened(client: GenericClient, name: str) -> AsyncGenerator[Notification, None]:
    """A subscription that has had its first result."""
    events = client.subscribe(name)
    assert (await anext(events)).sequence == 0
    return events
