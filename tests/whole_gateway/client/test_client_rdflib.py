"""An RDFLib graph that follows a query at a gateway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import rdflib

from lamplighter.engine.client import EngineClient, RefusedError, UpstreamError
from lamplighter.engine.client.rdflib import LiveGraph
from lamplighter.engine.errors import StoreError, UnsupportedRequestError
from lamplighter.engine.rdflib import graph_to_rdflib
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import free_port
from tests.support.running_gateway import TIMEOUT_S, running_gateway

EX = rdflib.Namespace("http://example.org/")
PREFIX = "PREFIX : <http://example.org/> "
QUERY = PREFIX + "CONSTRUCT { ?o a :Value . ?s :now ?o } WHERE { ?s :p|:q ?o FILTER(ISIRI(?o)) }"


async def changed(graph: LiveGraph, client: EngineClient, update: str) -> None:
    """Sends an update that changes the result, and waits until the graph has followed it."""
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as both:
        both.create_task(graph.changed())
        both.create_task(client.update(PREFIX + update))


async def test_the_graph_is_what_the_gateway_constructs_after_each_update(tmp_path: Path) -> None:
    chance = random.Random(1)
    async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
        await client.update(PREFIX + "INSERT DATA { :a :p :x }")
        async with LiveGraph(client, QUERY) as graph:
            assert set(graph) == {(EX.a, EX.now, EX.x), (EX.x, rdflib.RDF.type, EX.Value)}
            for number in range(40):
                some = " . ".join(
                    f":{chance.choice('abc')} :{chance.choice('pq')} :{chance.choice('xyz')}" for _ in "12"
                )
                kind = chance.choice(["INSERT DATA", "INSERT DATA", "DELETE DATA"])
                await changed(graph, client, f"{kind} {{ {some} }} ; INSERT DATA {{ :tick :p :{number} }}")
                assert set(graph) == set(graph_to_rdflib(await client.construct(QUERY))), number


async def test_graphs_of_the_protocol(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        await client.update(PREFIX + "INSERT DATA { :a :p :x GRAPH :g { :b :p :y } }")
        async with LiveGraph(client, "SELECT ?s ?p ?o { ?s ?p ?o }", default_graphs=[str(EX.g)]) as graph:
            assert set(graph) == {(EX.b, EX.p, EX.y)}


async def test_after_a_restart_the_graph_follows_again(tmp_path: Path) -> None:
    ports: dict[str, dict[str, object]] = {name: {"port": free_port()} for name in ("http", "websocket")}
    async with EngineClient(f"ws://127.0.0.1:{ports['websocket']['port']}/subscribe") as client:
        graph = LiveGraph(client, QUERY)
        async with running_gateway(tmp_path, **ports):
            await client.update(PREFIX + "INSERT DATA { :a :p :x }")
            await graph.__aenter__()
            before = set(graph)
        async with running_gateway(tmp_path, **ports):
            async with asyncio.timeout(TIMEOUT_S):
                await graph.changed()
            assert set(graph) == before
            await changed(graph, client, "DELETE DATA { :a :p :x }")
            assert set(graph) == set()
            await graph.__aexit__()


async def test_the_end_of_the_graph_ends_the_subscription(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        async with LiveGraph(client, QUERY) as graph:
            await changed(graph, client, "INSERT DATA { :a :p :x }")
            waiting = asyncio.create_task(graph.changed())
            await asyncio.sleep(0)
        for wait in (waiting, graph.changed()):
            with pytest.raises(UpstreamError, match="the graph was closed"):
                await wait
        await client.update(PREFIX + "CLEAR ALL")
        assert len(graph) == 2
        assert not client._subscriptions


async def test_what_is_refused_is_raised(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, websocket={"subscriptions_per_client_max": 1}) as at,
        EngineClient(at.subscribe) as client,
        LiveGraph(client, QUERY),
    ):
        with pytest.raises(RefusedError, match="limit_exceeded"):
            await LiveGraph(client, "SELECT ?s ?p ?o { ?s ?p ?o }").__aenter__()
        with pytest.raises(UnsupportedRequestError, match="write CONSTRUCT"):
            LiveGraph(client, "ASK {}")


async def test_a_graph_that_cannot_follow_any_more_says_so(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client, LiveGraph(client, "SELECT ?s ?p ?o { ?s ?p ?o }") as graph:
        with pytest.raises(ExceptionGroup) as caught:
            await changed(graph, client, "INSERT DATA { :a :p <<( :a :p :b )>> }")
        assert "RDFLib has no triple terms" in str(caught.value.exceptions)
        with pytest.raises(StoreError, match="no longer follows its query: RDFLib has no triple terms"):
            list(graph)


async def test_two_graphs_of_one_client_are_two_subscriptions(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        queries: Iterable[str] = (QUERY, PREFIX + "CONSTRUCT { [] :of ?s } WHERE { ?s :p ?o }")
        one, two = (LiveGraph(client, query) for query in queries)
        async with one, two:
            waiting = asyncio.create_task(two.changed())
            await changed(one, client, "INSERT DATA { :a :p :x, :y }")
            await waiting
            assert (len(one), len(two)) == (4, 2)
