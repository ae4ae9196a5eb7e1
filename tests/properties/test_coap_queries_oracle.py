"""Queries of random profiles over CoAP: each has the rows that plain SPARQL finds in its graphs, as at the other doors,
and only for a device that may read it now.

A case takes 20 ms.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pyoxigraph as ox
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.queries import QueryResources
from lamplighter.engine.client import EngineClient
from lamplighter.engine.protocol import jsap
from tests.support.amounts import Amounts
from tests.support.coap_site import Asker, coap_site
from tests.support.event_loops import beside
from tests.support.raw_coap import GET
from tests.support.running_gateway import running_gateway, update

CASES = 12
GRAPHS = [f"http://e/g{number}" for number in range(3)]
PATTERNS = ("?s ?p ?o", "GRAPH ?g { ?s ?p ?o }", "?s ?p ?x GRAPH ?g { ?s ?p ?o }")


def graphs(random: Random) -> dict[str, list[str]]:
    return {name: random.sample(GRAPHS, random.choice((0, 0, 1, 2))) for name in ("default", "named")}


def clauses(of: dict[str, list[str]]) -> str:
    return " ".join([*(f"FROM <{name}>" for name in of["default"]), *(f"FROM NAMED <{name}>" for name in of["named"])])


def written(of: dict[str, list[str]]) -> dict[str, list[str]]:
    """As in a profile, where an empty list and none are the same."""
    return {f"{name}-graph-uri": names for name, names in of.items() if names}


def profile(random: Random, cases: int) -> tuple[bytes, list[str]]:
    """A profile, and the texts with which plain SPARQL answers its queries."""
    everywhere, queries, texts = graphs(random), {}, []
    for number in range(cases):
        own, said = graphs(random), graphs(random) if random.random() < 0.5 else {"default": [], "named": []}
        pattern = random.choice(PATTERNS)
        text = f"SELECT ?g ?s ?o {clauses(said)} WHERE {{ {pattern} }}"
        queries[f"Q{number}"] = {"sparql": text, "graphs": written(own)}
        meant = said if clauses(said) else {name: own[name] or everywhere[name] for name in own}
        texts.append(f"SELECT ?g ?s ?o {clauses(meant)} WHERE {{ {pattern} }}")
    return json.dumps({"host": "localhost", "graphs": written(everywhere), "queries": queries}).encode(), texts


def counted(results: dict[str, Any]) -> Counter[str]:
    return Counter(
        json.dumps({name: term["value"] for name, term in row.items()}, sort_keys=True)
        for row in results["results"]["bindings"]
    )


def streamed(url: str, name: str) -> Counter[str]:
    """The first result of a query of the profile by Server-Sent Events."""
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)) as connection:
        connection.request("GET", f"/subscribe/some/{name}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while not (line := answer.readline()).startswith(b"data: "):
            assert line
        return counted(json.loads(line.removeprefix(b"data: "))["notification"]["addedResults"])


async def test_queries_over_coap_have_their_graphs_and_permissions(tmp_path: Path, amounts: Amounts) -> None:
    cases = amounts.of(CASES, least=CASES)
    seed = secrets.randbelow(10**9)
    print(f"seed {seed}")
    random = Random(seed)
    document, texts = profile(random, cases)
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "some.jsap").write_bytes(document)
    triples = " ".join(
        f"GRAPH <{name}> {{ <http://e/{number % 3}> <http://e/p> {number} }}"
        for number, name in enumerate(random.choices(GRAPHS, k=9))
    )
    text = f"INSERT DATA {{ <http://e/0> <http://e/p> 0 . <http://e/1> <http://e/p> 10 . {triples} }}"
    store = ox.Store()
    store.update(text)
    allowed: set[str] = set()
    clock = count(0.0, 0.1)  # seconds; the rate of requests is not what is tested
    async with (
        running_gateway(tmp_path) as addresses,
        EngineClient(addresses.subscribe) as client,
        beside((queries := QueryResources(client, lambda caller: frozenset(allowed))).run()),
        coap_site(queries, monotonic=clock.__next__) as (_, peer),
    ):
        assert (await update(addresses, text)).status == 200
        queries.change_profiles({"some": jsap.parse(document)})
        asker, tally = Asker(peer), Counter[str]()
        for number, meant in enumerate(texts):
            name = f"Q{number}"
            allowed.clear()
            allowed.update(f"Q{other}" for other in range(cases) if other != number or number % 3)
            links = await asker.whole(".well-known/core")
            assert (f"</queries/{name}>".encode() in links) == (name in allowed)
            if name not in allowed:
                assert (await asker.ask(GET, f"queries/{name}")).code == Code.FORBIDDEN
                tally["forbidden"] += 1
                continue
            solutions = store.query(meant)
            assert isinstance(solutions, ox.QuerySolutions)
            serialized = solutions.serialize(format=ox.QueryResultsFormat.JSON)
            assert serialized is not None
            wanted = counted(json.loads(serialized))
            assert counted(json.loads(await asker.whole(f"queries/{name}"))) == wanted, meant
            assert await asyncio.to_thread(streamed, addresses.query, name) == wanted, meant
            tally["rows"] += wanted.total()
        print(dict(tally))
        assert tally["rows"]
