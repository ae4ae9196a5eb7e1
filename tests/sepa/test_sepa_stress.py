"""SEPA's stress tests with their exact counts (SEPA protocol, 6.5). An event is a notification, the first included.

The largest run with the faults, so that `make test` takes less than ten minutes.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.sepa.fixture import (
    ALL_ROWS,
    COUNT,
    HUGE,
    HUGE_ROWS,
    RANDOM,
    RANDOM1,
    RANDOM1_ROWS,
    RANDOM_ROWS,
    VAIMEE,
    WRONG,
    Broker,
    Subscriber,
    events_in_all,
    select,
    subscribers,
    update_text,
)


async def publish(broker: Broker, publishers: int, times: int, *texts: str) -> None:
    """So many publishers at once, each sending its updates one after the other."""
    await asyncio.gather(*[broker.updates(*(texts * times)) for _ in range(publishers)])


async def test_subscribe_3xn(broker: Broker) -> None:
    async with subscribers(broker, *[ALL_ROWS, RANDOM_ROWS, RANDOM1_ROWS] * 10) as found:
        assert await events_in_all(found) == sum(one.confirmations for one in found) == 30


async def test_notify_nxn(broker: Broker) -> None:
    async with subscribers(broker, *[RANDOM_ROWS] * 10) as found:
        await publish(broker, 10, 10, RANDOM)
        assert await events_in_all(found) == 1010


async def test_notify_nx2n_with_malformed_updates(broker: Broker) -> None:
    async def mislead() -> None:
        for _ in range(4):
            assert (await broker.update(WRONG)).status == 400

    async with subscribers(broker, *[RANDOM_ROWS] * 4) as found:
        await asyncio.gather(publish(broker, 4, 4, RANDOM), *[mislead() for _ in range(4)])
        assert await events_in_all(found) == 68


@pytest.mark.faults
async def test_notify_3nx2n(broker: Broker) -> None:
    async with subscribers(broker, *[ALL_ROWS, RANDOM_ROWS, RANDOM1_ROWS] * 10) as found:
        await asyncio.gather(publish(broker, 10, 10, RANDOM), publish(broker, 10, 10, RANDOM1))
        assert await events_in_all(found) == 4030


@pytest.mark.faults
async def test_update_heavy_load(broker: Broker) -> None:
    await publish(broker, 30, 10, RANDOM, RANDOM1, VAIMEE)
    assert len(await broker.rows(RANDOM1_ROWS)) == 300
    assert len(await broker.rows(RANDOM_ROWS)) == 1


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.faults)])
async def test_aggregation(broker: Broker, rounds: int) -> None:
    async def aggregate(trigger: Subscriber) -> None:
        for _ in range(rounds):
            assert "notification" in await trigger.hear()
            await broker.updates(RANDOM1)

    before = await broker.subscriptions()
    async with subscribers(broker, RANDOM1_ROWS, RANDOM_ROWS) as (consumer, aggregator):
        assert await broker.subscriptions() - before == 2
        aggregating = asyncio.create_task(aggregate(aggregator))
        for number in range(1, rounds + 1):
            await broker.updates(RANDOM)
            while len(consumer.events) <= number:
                await consumer.hear()
        await aggregating
        assert await events_in_all([consumer, aggregator]) - 2 == 2 * rounds
        assert await broker.subscriptions() == before


async def test_huge_x100(broker: Broker) -> None:
    await publish(broker, 10, 10, HUGE)
    async with subscribers(broker, HUGE_ROWS) as [one]:
        rows = one.events[0]["addedResults"]["results"]["bindings"]
        assert sum(len(row["text"]["value"].encode()) for row in rows) == 600_000


@pytest.mark.faults
async def test_subscribe_and_update_race_detection(broker: Broker) -> None:
    async def come_and_go() -> None:
        for _ in range(100):
            async with subscribers(broker, RANDOM_ROWS) as [one]:
                await one.unsubscribe()
                assert one.confirmations == 1

    await asyncio.gather(broker.updates(*[RANDOM] * 500), come_and_go(), come_and_go())
    assert len(await broker.rows(RANDOM_ROWS)) == 1


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.faults)])
async def test_produce(broker: Broker, times: int) -> None:
    await broker.updates(*[RANDOM] * times)


EVENT = update_text("INSERT { GRAPH <http://sepatest> { ?event sepa:has [] } } WHERE { BIND(UUID() AS ?event) }")
EVENTS = select("?event ?what", "?event sepa:has ?what")


async def events(broker: Broker) -> list[str]:
    """The names of a hundred new ones."""
    await publish(broker, 10, 10, EVENT)
    found = [row["event"] for row in await broker.rows(EVENTS)]
    assert len(set(found)) == 100
    return found


async def test_delete_events_with_values(broker: Broker) -> None:
    names = " ".join(f"<{event}>" for event in await events(broker))
    await broker.updates(
        update_text(
            "DELETE { GRAPH <http://sepatest> { ?event sepa:has ?what } }"
            f" WHERE {{ GRAPH <http://sepatest> {{ ?event sepa:has ?what }} VALUES ?event {{ {names} }} }}"
        )
    )
    assert await broker.rows(COUNT) == [{"n": "0"}]


async def test_delete_all_events(broker: Broker) -> None:
    patterns = " ".join(f"<{event}> sepa:has ?what{number} ." for number, event in enumerate(await events(broker)))
    await broker.updates(update_text(f"DELETE WHERE {{ GRAPH <http://sepatest> {{ {patterns} }} }}"))
    assert await broker.rows(COUNT) == [{"n": "0"}]
