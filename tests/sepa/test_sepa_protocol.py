"""SPARQL 1.1 SE protocol and its WebSocket side, as SEPA's own tests hold a broker to them (protocol, 6.1 and 6.2)."""

from __future__ import annotations

import asyncio
import json

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK

from tests.sepa.fixture import (
    ALL_ROWS,
    COUNT,
    DELETE_ALL,
    VAIMEE,
    VAIMEE_ROWS,
    WRONG,
    Broker,
    events_in_all,
    subscribers,
)


async def test_delete_all_with_check(broker: Broker) -> None:
    await broker.updates(VAIMEE, DELETE_ALL)
    assert await broker.rows(COUNT) == [{"n": "0"}]


async def test_update(broker: Broker) -> None:
    assert (await broker.update(VAIMEE)).status == 200


async def test_malformed_update(broker: Broker) -> None:
    answer = await broker.update(WRONG)
    assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException")


async def test_query(broker: Broker) -> None:
    assert await broker.rows(ALL_ROWS) == []


async def test_malformed_query(broker: Broker) -> None:
    answer = await broker.query(WRONG)
    assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException")


async def test_update_and_query(broker: Broker) -> None:
    await broker.updates(VAIMEE, VAIMEE)
    assert len(await broker.rows(VAIMEE_ROWS)) == 1


async def test_subscribe(broker: Broker) -> None:
    async with subscribers(broker, VAIMEE_ROWS) as [one]:
        assert (await events_in_all([one]), one.confirmations) == (1, 1)


async def test_notify(broker: Broker) -> None:
    async with subscribers(broker, VAIMEE_ROWS) as [one]:
        await broker.updates(VAIMEE)
        assert (await events_in_all([one]), one.confirmations) == (2, 1)
        assert len(one.events[1]["addedResults"]["results"]["bindings"]) == 1


# --- WebSocket ----------------------------------------------------------------------------------------


async def test_connect_and_close(broker: Broker) -> None:
    for _ in range(3):
        async with connect(broker.socket) as socket:
            pass
        assert socket.close_code == 1000


async def test_subscribe_and_results(broker: Broker) -> None:
    await broker.updates(VAIMEE)
    async with subscribers(broker, ALL_ROWS) as [one]:
        assert one.spuid.startswith("sepa://subscription/")
        assert len(one.events[0]["addedResults"]["results"]["bindings"]) == 1


async def test_subscribe_and_unsubscribe(broker: Broker) -> None:
    async with subscribers(broker, ALL_ROWS) as [one]:
        await one.unsubscribe()
        await broker.updates(VAIMEE)
        await one.socket.send(json.dumps({"unsubscribe": {"spuid": one.spuid}}))
        assert (await one.hear())["error"] == "sid_not_found"  # and no notification before it


async def test_wrong_subscribe(broker: Broker) -> None:
    async with connect(broker.socket) as socket:
        await socket.send(json.dumps({"subscribe": {"sparql": WRONG, "alias": "wrong"}}))
        error = json.loads(await socket.recv())
        assert (error["alias"], error["status_code"]) == ("wrong", 400)


async def test_a_normal_close_is_answered_by_one(broker: Broker) -> None:
    async with subscribers(broker, ALL_ROWS) as [one]:
        closing = asyncio.create_task(one.socket.close())
        try:
            await one.socket.recv()
        except ConnectionClosedOK as closed:
            assert closed.rcvd is not None
            assert closed.rcvd.code == 1000
        await closing
