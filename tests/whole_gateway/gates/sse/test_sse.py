"""Subscriptions by Server-Sent Events, as their clients see them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.event_streams import EventStreams
from lamplighter.gateway.security import peers
from lamplighter.gateway.workers.dry_runs import DryRuns
from tests.support.event_stream import EventStream, event_stream
from tests.support.held_dry_run import HeldDryRun
from tests.support.running_gateway import TIMEOUT_S, ask, health, hear, http, running_gateway, until, update, values

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
ID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}/"


def insert(subject: str, value: object = 1) -> str:
    return f"INSERT DATA {{ <http://{subject}> <http://p> {json.dumps(value)} }}"


def subscribe_url(at: Addresses, below: str = "") -> str:
    return at.query.removesuffix("/query") + "/subscribe" + below


def change(notification: dict[str, Any]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    return values(notification["addedResults"]), values(notification["removedResults"])


async def subscriptions(at: Addresses) -> int:
    return int((await health(at))["subscriptions"])


async def test_a_stream_has_the_messages_of_a_websocket(gateway: Addresses) -> None:
    await update(gateway, insert("a"))
    parameters = {"query": ALL, "alias": "one", "keep": "PT0S"}
    async with connect(gateway.subscribe) as socket, event_stream(subscribe_url(gateway), parameters) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stream.headers["cache-control"] == "no-store"
        over_socket = [await ask(socket, {"subscribe": {"sparql": ALL, "alias": "one"}})]
        for text in (insert("b"), f"DELETE WHERE {{ <http://a> ?p ?o }}; {insert('c')}", insert("b"), insert("d")):
            await update(gateway, text)
        over_socket += [await hear(socket) for _ in range(3)]
        over_stream = [(await stream.event()).json for _ in range(4)]
    for message in over_socket + over_stream:
        assert message["notification"].pop("spuid")
    assert over_stream == over_socket
    assert change(over_stream[2]["notification"]) == ([{"s": "http://c", "o": "1"}], [{"s": "http://a", "o": "1"}])


@pytest.mark.parametrize("keep", ["PT0S", "PT1M"])
async def test_a_long_event_is_sent_in_parts(gateway: Addresses, keep: str) -> None:
    await update(gateway, " ; ".join(insert(f"s{number}", "x" * 1000) for number in range(600)))
    async with event_stream(subscribe_url(gateway), {"query": ALL, "keep": keep}) as stream:
        first = (await stream.event()).json["notification"]
        assert len(values(first["addedResults"])) == 600
        await update(gateway, insert("a"))
        assert change((await stream.event()).json["notification"]) == ([{"s": "http://a", "o": "1"}], [])


async def test_a_client_that_comes_back_goes_on_behind_its_last_event(gateway: Addresses) -> None:
    async with event_stream(subscribe_url(gateway), {"query": ALL}) as stream:
        first = await stream.event()
        assert re.fullmatch(ID + "0", first.id)
        await update(gateway, insert("a"))
        assert (await stream.event()).id == first.id[:-1] + "1"
        await update(gateway, insert("b"))
        await stream.event()
    await update(gateway, insert("c"))
    await update(gateway, insert("d"))
    for last, missed in (("1", "bcd"), ("3", "d"), ("4", "")):
        headers = {"Last-Event-ID": first.id[:-1] + last}
        async with event_stream(subscribe_url(gateway), {"query": ALL}, headers) as stream:
            assert (await stream.event()).json["resumed"]["sequence"] == 4
            for number, name in enumerate(missed, 5 - len(missed)):
                event = await stream.event()
                assert event.id == f"{first.id[:-1]}{number}"
                assert event.notification["sequence"] == number
                assert change(event.notification) == ([{"s": f"http://{name}", "o": "1"}], [])
    assert await subscriptions(gateway) == 1


async def test_the_last_event_may_be_a_parameter_and_the_header_counts_more(gateway: Addresses) -> None:
    url = subscribe_url(gateway)
    async with event_stream(url, {"query": ALL}) as stream:
        first = await stream.event()
    await update(gateway, insert("a"))
    place = {"query": ALL, "last-event-id": first.id}
    async with event_stream(url, place) as stream:
        assert "resumed" in (await stream.event()).json
        assert (await stream.event()).notification["sequence"] == 1
    async with event_stream(url, place, {"Last-Event-ID": first.id[:-1] + "1"}) as stream:
        assert (await stream.event()).json["resumed"]["sequence"] == 1
        await update(gateway, insert("b"))
        assert (await stream.event()).notification["sequence"] == 2


async def test_a_restart_is_not_noticed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, event_stream(subscribe_url(at), {"query": ALL}) as stream:
        first = await stream.event()
        await update(at, insert("a"))
        await stream.event()
        await update(at, insert("b"))
        await stream.event()
    async with (
        running_gateway(tmp_path) as at,
        event_stream(subscribe_url(at), {"query": ALL}, {"Last-Event-ID": first.id[:-1] + "1"}) as stream,
    ):
        assert "resumed" in (await stream.event()).json
        assert change((await stream.event()).notification) == ([{"s": "http://b", "o": "1"}], [])


async def test_an_event_of_an_unknown_subscription_begins_anew_and_says_so(gateway: Addresses) -> None:
    headers = {"Last-Event-ID": "01234567-89ab-4def-8123-456789abcdef/7"}
    async with event_stream(subscribe_url(gateway), {"query": ALL}, headers) as stream:
        first = await stream.event()
        assert first.notification["reset"]
        assert re.fullmatch(ID + "0", first.id)
        assert not first.id.startswith("01234567")


async def test_one_that_is_not_kept_has_no_ids_and_ends_with_its_connection(gateway: Addresses) -> None:
    async with event_stream(subscribe_url(gateway), {"query": ALL, "keep": "PT0S"}) as stream:
        assert (await stream.event()).id == ""
        assert await subscriptions(gateway) == 1

    async def ended() -> bool:
        return await subscriptions(gateway) == 0

    await until(ended)


async def test_two_streams_of_one_subscription_are_one(gateway: Addresses) -> None:
    """The newer takes it over, since the older may be a connection that is dead without anybody knowing it."""
    url = subscribe_url(gateway)
    async with event_stream(url, {"query": ALL, "alias": "x"}) as older:
        first = await older.event()
        async with event_stream(url, {"query": ALL}, {"Last-Event-ID": first.id}) as newer:
            assert "resumed" in (await newer.event()).json
            told = (await older.event()).json
            assert "another connection" in told["error_description"]
            assert told["alias"] == "x"
            assert await older.next() is None
            await update(gateway, insert("a"))
            assert (await newer.event()).notification["sequence"] == 1


async def test_class_and_commit_are_told_on_request(gateway: Addresses) -> None:
    parameters = {"query": ALL, "class": "true", "commit": "true"}
    async with event_stream(subscribe_url(gateway), parameters) as stream:
        assert (await stream.event()).notification["class"] == "telescoped"
        sequence = (await update(gateway, insert("a"))).json["sequence"]
        assert (await stream.event()).notification["commit"] == {"epoch": 1, "seq": sequence}


async def test_the_dataset_is_that_of_the_parameters(gateway: Addresses) -> None:
    await update(
        gateway,
        "INSERT DATA { GRAPH <http://g> { <http://a> <http://p> 1 } GRAPH <http://h> { <http://b> <http://p> 2 } }",
    )
    async with event_stream(subscribe_url(gateway), {"query": ALL, "default-graph-uri": "http://g"}) as stream:
        assert change((await stream.event()).notification)[0] == [{"s": "http://a", "o": "1"}]


async def test_a_heartbeat_keeps_a_quiet_stream_open(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, websocket={"port": 0, "ping_s": 1}) as at,
        event_stream(subscribe_url(at), {"query": ALL}) as stream,
    ):
        await stream.event()
        task = asyncio.create_task(stream.event())

        async def beaten() -> bool:
            return stream.comments >= 2

        await until(beaten)
        await update(at, insert("a"))
        assert (await task).notification["sequence"] == 1


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "there must be a parameter query"),
        ({"query": ALL, "qury": "x"}, "unknown parameter 'qury'; use query,"),
        ({"query": ALL, "$x": "1"}, r"unknown parameter '\$x'"),
        ({"query": "SELEC"}, "line 1, column 6"),
        ({"query": "SELECT (NOW() AS ?n) {}"}, r"NOW\(\) differs on each evaluation"),
        ({"query": ALL, "keep": "5 minutes"}, "resume.keep: "),
        ({"query": ALL, "class": "yes"}, "class: write true or false"),
        ({"query": ALL, "priority": "high"}, "priority: unknown class 'high'"),
        ({"query": ALL, "last-event-id": "7"}, "Last-Event-ID: '7' is no id of an event"),
        ({"query": ALL, "default-graph-uri": "no iri"}, "no iri"),
    ],
)
async def test_a_bad_request_is_refused_with_its_cure(
    gateway: Addresses, parameters: dict[str, str], reason: str
) -> None:
    answer = await http(subscribe_url(gateway), headers={"Connection": "close"}, **parameters)
    assert 400 <= answer.status < 500
    assert re.search(reason, answer.json["error_description"]), answer.body
    assert await subscriptions(gateway) == 0


async def test_a_parameter_occurs_once(gateway: Addresses) -> None:
    answer = await http(subscribe_url(gateway), query=[ALL, ALL])
    assert (answer.status, answer.json["error_description"]) == (
        400,
        "the parameter query occurs 2 times; it may occur once",
    )


async def test_streams_leave_half_of_the_connections_and_half_of_the_streams_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_of_address", lambda address: address)  # loopback has no share
    async with running_gateway(tmp_path, http={"port": 0, "connections_max": 8}) as at:
        url = subscribe_url(at)
        for _ in range(5):  # one that is refused gives its place back
            assert (await http(url, headers={"Connection": "close"}, query="SELEC")).status == 400
        for _ in range(2):
            async with event_stream(url, {"query": ALL}) as one, event_stream(url, {"query": ALL}) as two:
                await one.event()
                await two.event()
                answer = await http(url, query=ALL)
                assert answer.status == 429
                assert "half of http.connections_max, = 4" in answer.json["error_description"]
                assert answer.headers["retry-after"]

            async def free() -> bool:
                return (await health(at))["resumable"]["away"] == (await health(at))["resumable"]["subscriptions"]

            await until(free)


def noted(event: asyncio.Event, method: Any) -> Any:
    """The method; each call sets the event."""

    def call(*arguments: Any) -> Any:
        event.set()
        return method(*arguments)

    return call


async def test_a_client_that_leaves_before_its_subscription_begins_leaves_none(
    gateway: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, left = HeldDryRun(), asyncio.Event()
    monkeypatch.setattr(EventStreams, "_leave", noted(left, EventStreams._leave))
    monkeypatch.setattr(DryRuns, "of_subscription", lambda *_: held)
    url = subscribe_url(gateway)
    port = int(url.split(":")[2].split("/")[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /subscribe?query={quote(ALL)}&keep=PT0S HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT_S):
        await held.begun.wait()
        writer.transport.abort()
        await left.wait()
        held.go_on.set()
        await held.over.wait()

    async def ended() -> bool:
        return await subscriptions(gateway) == 0

    await update(gateway, insert("a"))  # it has begun by then
    await until(ended)


async def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    """And its subscription waits for it; what it did not take is retained."""
    long = "x" * 50_000
    patient = {"port": 0, "idle_s": 600}  # otherwise the connection is aborted where the updates take long
    async with (
        running_gateway(tmp_path, websocket={"port": 0, "outbox_bytes_max": 200_000}, http=patient) as at,
        event_stream(subscribe_url(at), {"query": ALL}, slow=True) as stream,
    ):
        first = await stream.event()
        for number in range(60):  # more than the buffers of the kernel take
            await update(at, insert(f"a{number}", long))
        taken = 0
        while await stream.next() is not None:
            taken += 1
        assert taken < 60
        async with event_stream(subscribe_url(at), {"query": "ASK {}"}, {"Last-Event-ID": first.id}) as other:
            assert (await other.event()).notification["reset"]


async def test_the_end_of_the_gateway_ends_streams_at_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        stream = event_stream(subscribe_url(at), {"query": ALL})
        opened: EventStream = await stream.__aenter__()
        await opened.event()
    assert await opened.next() is None
    await stream.__aexit__(None, None, None)


# --- queries of applications ------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path: Path) -> None:
    folder = tmp_path / "apps"
    folder.mkdir()
    document = {
        "namespaces": {"x": "http://"},
        "graphs": {"default-graph-uri": "http://g"},
        "queries": {
            "OF": {
                "sparql": "SELECT ?o { ?s x:p ?o }",
                "forcedBindings": {"s": {"type": "uri", "value": ""}},
            },
            "LIKE": {
                "sparql": "SELECT ?s { ?s x:p ?o }",
                "forcedBindings": {"o": {"type": "literal", "datatype": "xsd:string", "value": "one"}},
            },
        },
    }
    (folder / "house.jsap").write_text(json.dumps(document))


async def test_a_query_of_an_application_has_its_name(tmp_path: Path, profile: None) -> None:
    async with running_gateway(tmp_path) as at:
        await update(
            at, "INSERT DATA { GRAPH <http://g> { <http://a> <http://p> 'one' . <http://b> <http://p> 'two' } }"
        )
        for below, parameters, found in (
            ("/house/OF", {"$s": "http://b"}, [{"o": "two"}]),
            ("/house/LIKE", {}, [{"s": "http://a"}]),
            ("/house/LIKE", {"$o": "two"}, [{"s": "http://b"}]),
            ("/house/LIKE", {"$o": "two' } #"}, []),
        ):
            async with event_stream(subscribe_url(at, below), parameters) as stream:
                first = await stream.event()
                assert change(first.notification)[0] == found
            async with event_stream(subscribe_url(at, below), parameters, {"Last-Event-ID": first.id}) as stream:
                assert "resumed" in (await stream.event()).json
        for below, query, status, reason in (
            ("/house/OF", "", 400, r"OF needs a value for \?s"),
            ("/house/OF", "$s=no+iri", 400, "no iri"),
            ("/house/OF", "$t=1", 400, "no forced binding 't'"),
            ("/house/OF", "query=ASK{}", 400, "unknown parameter 'query'"),
            ("/house/NONE", "", 404, "no application has the query 'house/NONE'"),
            ("/other/OF", "", 404, "no application has the query 'other/OF'"),
            ("/house", "", 404, "no application has the query"),
        ):
            answer = await http(f"{subscribe_url(at, below)}?{query}")
            assert answer.status == status, answer.body
            assert re.search(reason, answer.json["error_description"]), answer.body
