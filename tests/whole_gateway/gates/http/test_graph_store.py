"""The Graph Store HTTP Protocol as clients see it; the order of events is that of the W3C's listing."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pyoxigraph as ox
from websockets.asyncio.client import connect

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import (
    Answer,
    ask,
    health,
    hear,
    http,
    query,
    rows,
    running_gateway,
    update,
    values,
)

TURTLE = {"Content-Type": "text/turtle"}
PERSON = "<#me> a <http://xmlns.com/foaf/0.1/Person> ; <http://p> [ <http://name> {name!r} ] ."


def store(at: Addresses) -> str:
    return at.query.replace("/query", "/graphs")


async def put(url: str, body: str | bytes, media_type: str = "text/turtle", method: str = "PUT") -> int:
    return (await http(url, method, body, {"Content-Type": media_type})).status


async def get(url: str, accept: str = "text/turtle") -> Answer:
    return await http(url, headers={"Accept": accept})


def graph(answer: Answer) -> ox.Dataset:
    """The triples of an answer, so that two can be compared whatever their blank nodes are called."""
    assert answer.status == 200, answer.body
    found = ox.Dataset(ox.parse(answer.body, ox.RdfFormat.from_media_type(answer.headers["content-type"])))
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return found


def turtle(text: str, base: str) -> ox.Dataset:
    found = ox.Dataset(ox.parse(text, ox.RdfFormat.TURTLE, base_iri=base))
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return found


async def test_graphs_are_put_read_added_to_and_deleted(tmp_path: Path) -> None:
    john, jane = PERSON.format(name="John"), PERSON.format(name="Jane")
    async with running_gateway(tmp_path) as at:
        one, two = f"{store(at)}/person/1", f"{store(at)}/person/2"
        assert await put(one, john) == 201
        assert graph(await get(one)) == turtle(john, one)
        assert await put(one, jane) == 204
        assert graph(await get(one)) == turtle(jane, one)
        assert graph(await get(f"{store(at)}?graph={quote(one)}")) == turtle(jane, one)
        assert [row["n"] for row in await rows(at, f"SELECT ?n {{ GRAPH <{one}> {{ ?s <http://name> ?n }} }}")] == [
            "Jane"
        ]
        assert await put(f"{store(at)}?default", john) == 204
        assert graph(await get(f"{store(at)}?default")) == turtle(john, store(at))
        assert await put(two, "") == 201
        assert len(graph(await get(two))) == 0
        assert (await http(two, "DELETE")).status == 204
        assert (await get(two)).status == (await http(two, "HEAD")).status == 404
        gone = await http(two, "DELETE")
        assert (gone.status, gone.json["error"]) == (404, "graph_not_found")
        assert await put(one, "<#me> <http://q> 1 .", method="POST") == 204
        assert graph(await get(one)) == turtle(f"{jane} <#me> <http://q> 1 .", one)
        assert await put(two, john, method="POST") == 201
        new = await http(store(at), "POST", john, TURTLE)
        location = new.headers["location"]
        assert (new.status, location.startswith(f"{store(at)}/")) == (201, True)
        assert await put(location, "", method="POST") == 204
        assert graph(await get(location)) == turtle(john, location)
        head = await http(one, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert (await http(f"{store(at)}?default", "DELETE")).status == 204
        assert len(graph(await get(f"{store(at)}?default"))) == 0


async def test_all_formats_go_in_and_out_and_what_cannot_is_refused(tmp_path: Path) -> None:
    formats = ["text/turtle", "application/n-triples", "application/rdf+xml", "application/ld+json"]
    data = turtle("<http://s> <http://p> 'ვაიმეე'@ka, 1, <http://o> .", "http://b")
    async with running_gateway(tmp_path) as at:
        for number, media_type in enumerate(formats):
            url = f"{store(at)}?graph=http://g{number}"
            body = ox.serialize(data, format=ox.RdfFormat.from_media_type(media_type))
            assert body is not None
            assert await put(url, body, f"{media_type}; charset=UTF-8") == 201
            for other in formats:
                answer = await get(url, other)
                assert (answer.media_type, graph(answer)) == (other, data)
        url = f"{store(at)}?graph=http://g0"
        assert (await get(url, "text/csv")).status == 406
        assert await put(url, "<http://s> <http://p> 1 .", "text/csv") == 415
        assert await put(url, "<http://s> <http://p> 1 .", "application/rdf+xml") == 400
        assert await put(url, "<http://s> <http://p> .") == 400
        assert (await http(url, "PATCH", "")).status == 405
        for wrong in (
            "",
            "?graph=relative",
            "?graph=",
            "?graph=http://a&graph=http://b",
            "?default&graph=http://a",
        ):
            answer = await get(store(at) + wrong)
            assert (answer.status, answer.json["status_code"]) == (400, 400), wrong
        assert graph(await get(url)) == data


async def test_a_write_is_one_commit_with_the_net_change(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        url = f"{store(at)}?graph=http://g"
        await put(url, "<http://a> <http://p> 1 . <http://b> <http://p> 2 .")
        first = await ask(socket, {"subscribe": {"sparql": "SELECT ?s { GRAPH <http://g> { ?s ?p ?o } }"}})
        assert len(first["notification"]["addedResults"]["results"]["bindings"]) == 2
        await put(url, "<http://b> <http://p> 2 . <http://c> <http://p> 3 .")
        told = (await hear(socket))["notification"]
        assert values(told["addedResults"]) == [{"s": "http://c"}]
        assert values(told["removedResults"]) == [{"s": "http://a"}]
        assert (told["sequence"], (await health(at))["sequence"]) == (1, 2)
        await http(url, "DELETE")
        assert len(values((await hear(socket))["notification"]["removedResults"])) == 2
    async with running_gateway(tmp_path) as at:  # and so it stays after a restart
        assert (await get(f"{store(at)}?graph=http://g")).status == 404


async def test_a_graph_larger_than_a_buffer_is_read_as_it_is(tmp_path: Path) -> None:
    lines = "".join(f'<http://s{number}> <http://p> "{"x" * 100}{number}" .\n' for number in range(5000))
    async with running_gateway(tmp_path, query={"rows_max": 10}) as at:
        url = f"{store(at)}?graph=http://g"
        assert await put(url, lines, "application/n-triples") == 201
        answer = await get(url, "application/n-triples")
        assert sorted(answer.body.decode().splitlines()) == sorted(lines.splitlines())
        assert (await query(at, "SELECT * { GRAPH ?g { ?s ?p ?o } }")).status == 403
        assert (await update(at, "CLEAR ALL")).status == 200
