"""The inbox, by the cases of the W3C's test suite for receivers (linkedresearch.org/ldn/tests/receiver) and our own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, http, query, rows, running_gateway, update

LDP = "http://www.w3.org/ns/ldp#"
AS = "https://www.w3.org/ns/activitystreams#"
JSON_LD, TURTLE = "application/ld+json", "text/turtle"
ON: dict[str, object] = {"enabled": True, "inbox_max": 3, "notification_bytes_max": 4000}
NOTE = {
    "@context": "https://www.w3.org/ns/activitystreams",
    "id": "",
    "type": "Announce",
    "actor": "http://e/someone",
    "object": {"id": "http://e/article", "name": "Lamps"},
    "published": "2026-11-21T02:00:00Z",
}


@pytest.fixture
async def ldn(tmp_path: Path) -> AsyncIterator[Addresses]:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        yield addresses


def inbox(addresses: Addresses) -> str:
    return f"{addresses.page}inbox/"


async def post(addresses: Addresses, body: Any = NOTE, media_type: str = JSON_LD) -> Answer:
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return await http(inbox(addresses), "POST", data, {"Content-Type": media_type})


async def posted(addresses: Addresses, body: Any = NOTE, media_type: str = JSON_LD) -> str:
    answer = await post(addresses, body, media_type)
    assert answer.status == 201, answer.body
    return answer.headers["location"]


def triples(answer: Answer, base: str) -> set[tuple[str, str, str]]:
    assert answer.status == 200, answer.body
    syntax = ox.RdfFormat.from_media_type(answer.media_type)
    assert syntax is not None
    return {
        (str(quad.subject), quad.predicate.value, str(quad.object))
        for quad in ox.parse(answer.body, format=syntax, base_iri=base)
    }


async def listed(addresses: Addresses, accept: str = JSON_LD) -> list[str]:
    answer = await http(inbox(addresses), headers={"Accept": accept})
    assert answer.media_type == accept
    found = triples(answer, inbox(addresses))
    assert (f"<{inbox(addresses)}>", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", f"<{LDP}Container>") in found
    return sorted(o[1:-1] for s, p, o in found if p == f"{LDP}contains")


async def test_resources_advertise_the_inbox(ldn: Addresses) -> None:
    link = f'</inbox/>; rel="{LDP}inbox"'
    for method, url in (("GET", ldn.page), ("HEAD", ldn.page), ("GET", ldn.query), ("GET", ldn.health)):
        assert link in (await http(url, method)).headers["link"], url
    assert "/inbox/" in (await http(ldn.page, headers={"Accept": "text/plain"})).body.decode()


@pytest.mark.parametrize("media_type", [JSON_LD, f'{JSON_LD}; profile="https://www.w3.org/ns/activitystreams"'])
async def test_post_creates_a_notification_with_a_location(ldn: Addresses, media_type: str) -> None:
    location = await posted(ldn, NOTE, media_type)
    assert location.startswith(inbox(ldn))
    assert await listed(ldn) == [location]
    for headers in ({}, {"Accept": "*/*"}, {"Accept": JSON_LD}, {"Accept": TURTLE}):
        answer = await http(location, headers=headers)
        assert answer.media_type == headers.get("Accept", "*/*").replace("*/*", JSON_LD)
        found = triples(answer, location)
        assert (f"<{location}>", f"{AS}object", "<http://e/article>") in found
        assert ("<http://e/article>", f"{AS}name", '"Lamps"') in found
        date = '"2026-11-21T02:00:00Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>'
        assert (f"<{location}>", f"{AS}published", date) in found
        assert len(found) == 5


async def test_turtle_is_taken_too(ldn: Addresses) -> None:
    location = await posted(ldn, "<> <http://e/p> [ <http://e/q> 'x'@en ] .", TURTLE)
    found = triples(await http(location), location)
    assert {p for _, p, _ in found} == {"http://e/p", "http://e/q"}


@pytest.mark.parametrize("accept", [JSON_LD, TURTLE, "application/n-triples"])
async def test_the_list_has_all_notifications(ldn: Addresses, accept: str) -> None:
    assert await listed(ldn, accept) == []
    locations = [await posted(ldn) for _ in range(2)]
    assert await listed(ldn, accept) == sorted(locations)


async def test_options_and_constraints(ldn: Addresses) -> None:
    answer = await http(inbox(ldn), "OPTIONS")
    assert answer.status in (200, 204)
    assert answer.headers["accept-post"] == f"{JSON_LD}, {TURTLE}"
    assert "POST" in answer.headers["allow"]
    for method in ("GET", "HEAD"):
        links = (await http(inbox(ldn), method)).headers["link"]
        assert f'</ldn/constraints>; rel="{LDP}constrainedBy"' in links
        assert f'<{LDP}Container>; rel="type"' in links
    texts = " ".join(o for _, _, o in triples(await http(f"{ldn.page}ldn/constraints"), ldn.page))
    assert "4000 bytes" in texts


@pytest.mark.parametrize(
    ("body", "media_type", "status", "reason"),
    [
        ("a", "text/plain", 415, "constraint media-type"),
        ("<> <http://e/p> 1 .", "application/n-triples", 415, "constraint media-type"),
        ("{}", "application/json", 415, "constraint media-type"),
        ("# " + "a" * 4000, TURTLE, 422, "constraint size"),
        ("# nothing", TURTLE, 422, "constraint triples"),
        ({}, JSON_LD, 422, "constraint triples"),
        ({"@context": "http://e/context", "@id": "", "a": 1}, JSON_LD, 422, "constraint context: the context"),
        ({"@context": [{"@import": "http://e/c"}], "@id": ""}, JSON_LD, 422, "@import"),
        ({"@context": {"a": {"@id": "http://a", "@context": "http://e/c"}}}, JSON_LD, 422, "@context in a context"),
        ({"@context": ["https://www.w3.org/ns/activitystreams"] * 17}, JSON_LD, 422, "16 contexts"),
        ("<> <http://e/p> <<( <http://a> <http://b> 1 )>> .", TURTLE, 422, "constraint triple-terms"),
        ('{"@id": "", "@graph"', JSON_LD, 400, "not JSON"),
        ("<> <http://e/p> .", TURTLE, 400, "line 1"),
        ("[" * 100, JSON_LD, 400, "not JSON"),
        ("[" * 2000, JSON_LD, 403, "nested"),
        ('{"a":' * 300 + "1" + "}" * 300, JSON_LD, 403, "nested"),
    ],
)
async def test_what_does_not_fulfil_the_constraints_is_refused(
    ldn: Addresses, body: Any, media_type: str, status: int, reason: str
) -> None:
    answer = await post(ldn, body, media_type)
    assert answer.status == status, answer.body
    assert reason in answer.json["error_description"]
    assert "constrainedBy" in answer.headers["link"]
    assert await listed(ldn) == []


async def test_the_oldest_goes_for_a_further_one(ldn: Addresses) -> None:
    locations = [await posted(ldn) for _ in range(5)]
    assert await listed(ldn) == sorted(locations[2:])
    assert [(await http(location)).status for location in locations] == [404, 404, 200, 200, 200]
    counts = await rows(ldn, "SELECT (COUNT(DISTINCT ?g) AS ?n) { GRAPH ?g { ?s ?p ?o } }")
    assert counts == [{"n": "4"}], "the inbox, and three notifications"


async def test_notifications_are_graphs_that_subscriptions_and_queries_see(ldn: Addresses) -> None:
    location = await posted(ldn)
    iri = "http://lamplighter.local/inbox/" + location.removeprefix(inbox(ldn))
    assert await rows(ldn, f"SELECT ?o {{ GRAPH <{iri}> {{ <{iri}> <{AS}object> ?o }} }}") == [
        {"o": "http://e/article"}
    ]
    answer = await query(ldn, f"ASK {{ GRAPH <http://lamplighter.local/inbox/> {{ ?i <{LDP}contains> <{iri}> }} }}")
    assert answer.json["boolean"]


async def test_a_notification_is_deleted(ldn: Addresses) -> None:
    location = await posted(ldn)
    assert (await http(location, "POST", "{}")).status == 405
    assert (await http(location, "DELETE")).status == 204
    assert (await http(location, "DELETE")).status == 404
    assert (await http(location)).status == 404
    assert await listed(ldn) == []
    assert await rows(ldn, "SELECT * { GRAPH ?g { ?s ?p ?o } }") == []
    assert (await http(inbox(ldn), "DELETE")).status == 400


@pytest.mark.parametrize("name", ["x", "../health", "%2e", "A0000000-0000-4000-8000-000000000000", "a/b"])
async def test_other_names_are_no_notifications(ldn: Addresses, name: str) -> None:
    assert (
        await update(ldn, "INSERT DATA { GRAPH <http://lamplighter.local/inbox/x> { <a:a> <a:b> 1 } }")
    ).status == 200
    assert (await http(inbox(ldn) + name)).status == 404


async def test_not_acceptable(ldn: Addresses) -> None:
    location = await posted(ldn)
    for url in (inbox(ldn), location):
        assert (await http(url, headers={"Accept": "image/png"})).status == 406


async def test_the_inbox_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        name = (await posted(addresses)).removeprefix(inbox(addresses))
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        location = inbox(addresses) + name
        assert await listed(addresses) == [location]
        found = triples(await http(location), location)
        assert (f"<{location}>", f"{AS}actor", "<http://e/someone>") in found


async def test_a_door_that_is_off_has_no_inbox(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        assert (await http(inbox(addresses))).status == 404
        assert "link" not in (await http(addresses.page)).headers
