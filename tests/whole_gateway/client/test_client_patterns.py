"""Producer, consumer, aggregator and generic client, and endpoints of others (SEPA protocol 6.3, 6.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamplighter.engine.client import (
    Aggregator,
    Consumer,
    GenericClient,
    Jsap,
    Notification,
    Producer,
    RefusedError,
    SparqlEndpoint,
    UpstreamError,
)
from lamplighter.engine.errors import (
    ForcedBindingError,
    JsapError,
)
from lamplighter.engine.protocol.jsap import profile
from lamplighter.engine.protocol.jsap_tree import normal, overridden
from lamplighter.engine.terms import lexical
from lamplighter.gateway.addresses import Addresses
from tests.support.profiles import DOCUMENT, settings
from tests.support.running_gateway import TIMEOUT_S, health, running_gateway, update


def application(at: Addresses, *more: str, **members: Any) -> Jsap:
    return profile(normal(overridden({**DOCUMENT, **members}, [*settings(at), *more])))


async def following(notifications: AsyncIterator[Notification]) -> Notification:
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(notifications)


def rows(bag: Any) -> list[list[str]]:
    return sorted([lexical(term) for term in row] for row in bag)


async def test_a_client_of_a_profile_is_told_what_its_updates_changed_if_it_wants_to_know(gateway: Addresses) -> None:
    async with Producer(application(gateway), "SET", delta=True) as producer:
        answer = await producer.update(thing="ex:a", value=7)
    assert answer is not None and answer.delta is not None
    assert [lexical(quad.o) for quad in answer.delta.added] == ["7"]
    assert not answer.delta.removed


async def test_the_patterns_work_together_on_one_profile(gateway: Addresses) -> None:
    found = application(gateway)
    async with (
        Producer(found, "SET") as producer,
        Aggregator(found, "VALUES", "COPY") as aggregator,
        Consumer(found, "COPIES") as consumer,
        GenericClient(found) as client,
    ):
        changes = aiter(aggregator)
        copies = aiter(consumer)
        assert (await following(changes)).sequence == 0
        assert (await following(copies)).sequence == 0
        answer = await producer.update(thing="ex:a", value=7)
        assert answer is not None and answer.sequence == 1
        change = await following(changes)
        for row in change.added.bindings():
            await aggregator.update(row)
        assert rows((await following(copies)).added) == [["http://example.org/a", "7"]]
        assert answer.delta is None
        await producer.update(thing="ex:b")
        assert rows(await client.query("VALUES")) == [
            ["http://example.org/a", "7"],
            ["http://example.org/b", "0"],
        ]
        assert rows(await client.query("VALUES", thing=["ex:b", "ex:c"])) == [["http://example.org/b", "0"]]
        assert await client.ask("ANY", thing="ex:a")
        assert not await client.ask("ANY", thing="ex:z")
        assert ("<http://example.org/a>", "<http://example.org/q>") in [
            triple[:2] for triple in await client.construct("GRAPH")
        ]
        later = await client.update("LATER")
        assert later is not None and later.delayed is not None
    assert (await health(gateway))["subscriptions"] == 0


async def test_one_client_has_several_subscriptions_and_ends_each_by_itself(gateway: Addresses) -> None:
    async with GenericClient(application(gateway), keep="PT1M") as client:
        first, second = client.subscribe("VALUES", thing="ex:a"), client.subscribe("VALUES", thing="ex:b")
        assert [(await following(one)).sequence for one in (first, second)] == [0, 0]
        for thing in ("ex:a", "ex:b"):
            await client.update("SET", thing=thing)
        told = [await following(one) for one in (first, second)]
        assert [one.sequence for one in told] == [1, 1]
        assert len({one.spuid for one in told}) == 2
        assert (await health(gateway))["resumable"]["subscriptions"] == 2
        await first.aclose()
        await client.update("SET", thing="ex:b", value=2)
        assert (await following(second)).sequence == 2
        await second.aclose()


async def test_a_handler_is_called_with_each_notification(gateway: Addresses) -> None:
    found = application(gateway)
    async with Consumer(found, "VALUES") as plain, Consumer(found, "VALUES") as waiting:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def handler(notification: Notification) -> None:
            await seen.put(notification.sequence)

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(waiting.run(handler)),
                group.create_task(plain.run(lambda notification: seen.put_nowait(notification.sequence))),
            ]
            assert [await seen.get(), await seen.get()] == [0, 0]
            await update(gateway, "INSERT DATA { <a:a> <http://example.org/p> 1 }")
            assert [await seen.get(), await seen.get()] == [1, 1]
            for task in tasks:
                task.cancel()


async def test_mistakes_are_said_before_anything_is_sent(gateway: Addresses) -> None:
    async with GenericClient(application(gateway)) as client:
        for request, error, message in (
            (client.update("NONE"), JsapError, "updates has no 'NONE'; it has COPY, LATER"),
            (client.query("NONE"), JsapError, "queries has no 'NONE'"),
            (client.update("SET"), ForcedBindingError, r"SET needs a value for \?thing"),
            (client.update("SET", thing="ex:a", value="x } ; CLEAR ALL"), ForcedBindingError, "xsd:integer"),
            (client.update("SET", thing="ex:a", thign=1), ForcedBindingError, "no forced binding 'thign'"),
            (anext(client.subscribe("ANY")), ForcedBindingError, r"ANY needs a value for \?thing"),
        ):
            with pytest.raises(error, match=message):
                await request
        assert (await health(gateway))["counters"]["updates"] == 0
        for refused in (client.update("WRONG"), client.query("WRONG"), anext(client.subscribe("WRONG"))):
            with pytest.raises(RefusedError) as caught:
                await refused
            assert caught.value.status == 400
        with pytest.raises(JsapError, match="NONE"):
            Producer(application(gateway), "NONE")
        with pytest.raises(ForcedBindingError, match="ANY needs a value"):
            Consumer(application(gateway), "ANY")
        with pytest.raises(JsapError, match="NONE"):
            Aggregator(application(gateway), "VALUES", "NONE")


@pytest.mark.parametrize("method", ["POST", "URL_ENCODED_POST", "GET"])
async def test_graphs_of_the_profile_are_applied_by_each_method(tmp_path: Path, method: str) -> None:
    members = {
        "graphs": {"default-graph-uri": "http://g/1", "using-graph-uri": ["http://g/1"]},
        "updates": {
            "PUT": {"sparql": "INSERT { <a:a> ex:p ?v } WHERE { ?s ex:in ?v }"},
            "OWN": {"sparql": "WITH <http://g/2> INSERT { <a:b> ex:p ?v } WHERE { ?s ex:in ?v }"},
        },
        "queries": {
            "IN": {"sparql": "SELECT ?v { ?s ex:in ?v }"},
            "OTHER": {"sparql": "SELECT ?v { ?s ex:in ?v }", "graphs": {"default_graph_uri": ["http://g/2"]}},
        },
    }
    data = "PREFIX ex: <http://example.org/> INSERT DATA { GRAPH <http://g/1> { <a:x> ex:in 1 } "
    async with running_gateway(tmp_path) as at:
        await update(at, data + "GRAPH <http://g/2> { <a:x> ex:in 2 } }")
        update_method = "POST" if method == "GET" else method
        methods = [f"sparql11protocol.query.method={method}", f"sparql11protocol.update.method={update_method}"]
        async with GenericClient(application(at, *methods, **members)) as client:
            assert rows(await client.query("IN")) == [["1"]]
            assert rows(await client.query("OTHER")) == [["2"]]
            async with aclosing(client.subscribe("OTHER")) as notifications:
                assert rows((await following(notifications)).added) == [["2"]]
            await client.update("PUT")
            await client.update("OWN")
        async with SparqlEndpoint(at.query.removesuffix("/query")) as one:
            assert rows(await one.query("SELECT ?s ?v { ?s <http://example.org/p> ?v }")) == [["a:a", "1"]]
            second = await one.query("SELECT ?s ?v { ?s <http://example.org/p> ?v }", default_graphs=["http://g/2"])
            assert rows(second) == [["a:b", "2"]]


async def test_an_aggregator_subscribes_here_and_updates_another_broker(tmp_path: Path) -> None:
    async with running_gateway(tmp_path / "here") as here, running_gateway(tmp_path / "there") as there:
        members = json.loads(json.dumps(DOCUMENT))
        members["updates"]["COPY"]["sparql11protocol"] = {"port": urlsplit(there.query).port}
        async with Aggregator(application(here, **members), "VALUES", "COPY") as aggregator:
            changes = aiter(aggregator)
            await following(changes)
            await update(here, "INSERT DATA { <a:a> <http://example.org/p> 'x' }")
            for row in (await following(changes)).added.bindings():
                await aggregator.update(row)
        for at, predicate in ((here, "p"), (there, "copied")):
            async with SparqlEndpoint(query_url=at.query) as one:
                found = await one.query("SELECT ?s ?p ?o { ?s ?p ?o }")
                assert rows(found) == [["a:a", f"http://example.org/{predicate}", "x"]]


async def test_where_reconnecting_is_forbidden_an_interruption_is_an_error(gateway: Addresses) -> None:
    client = GenericClient(application(gateway, "sparql11seprotocol.reconnect=false"))
    notifications = client.subscribe("VALUES")
    assert (await following(notifications)).sequence == 0
    [connection] = client._connections.values()
    assert connection._socket is not None
    connection._socket.transport.abort()
    with pytest.raises(UpstreamError, match="the profile says not to come again"):
        await following(notifications)
    await client.__aexit__()
