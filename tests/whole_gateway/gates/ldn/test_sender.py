"""Subscriptions that are delivered to inboxes, by the cases of the W3C's test suite for senders, and with our own
inbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.receivers import HttpReceiver, Received, Reply
from tests.support.running_gateway import Answer, http, rows, running_gateway, until, update

LDP = "http://www.w3.org/ns/ldp#"
GATEWAY = "http://lamplighter.example/ns/gateway#"
RS = "http://www.w3.org/2001/sw/DataAccess/tests/result-set#"
ON: dict[str, object] = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 10}
QUERY = "SELECT ?v { <http://e/s> <http://e/p> ?v }"


async def register(addresses: Addresses, **members: Any) -> Answer:
    return await http(f"{addresses.page}ldn", "POST", json.dumps({"query": QUERY, **members}))


async def put(addresses: Addresses, value: str) -> None:
    text = f"DELETE WHERE {{ <http://e/s> <http://e/p> ?v }} ; INSERT DATA {{ <http://e/s> <http://e/p> {value} }}"
    assert (await update(addresses, text)).status == 200


async def test_changes_are_posted_as_activities(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        with HttpReceiver() as receiver:
            receiver.answer = lambda request: Reply(201, {"Location": "/inbox/1"})
            answer = await register(addresses, inbox=receiver.url("/inbox/"), alias="hall")
            assert answer.status == 201, answer.body
            one = answer.json
            assert "secret" not in one
            for value in ("1", '"a"@en', "<http://e/o>", "[]", "1.5"):
                await put(addresses, value)
            posted = await asyncio.to_thread(receiver.wait_posted, 6)
            assert receiver.asked == []
            assert {request.headers["content-type"] for request in posted} == {"application/ld+json"}
            assert [request.json["type"] for request in posted] == ["Announce", *["Update"] * 5]
            for sequence, request in enumerate(posted):
                body = request.json
                name = request.headers["idempotency-key"]
                assert body["id"] == f"{addresses.page}ldn/{one['id']}#{name}"
                assert (body["sequence"], body["object"], body["name"]) == (sequence, one["topic"], "hall")
                assert name.endswith(f"/{sequence}")
            values = [row["value"] for body in posted for row in solutions(body, "added")]
            integer, decimal = (f"http://www.w3.org/2001/XMLSchema#{name}" for name in ("integer", "decimal"))
            assert values[:3] == [
                {"@value": "1", "@type": integer},
                {"@value": "a", "@language": "en"},
                {"id": "http://e/o"},
            ]
            assert values[3]["id"].startswith("_:")
            assert values[4] == {"@value": "1.5", "@type": decimal}
            assert [row["value"] for row in solutions(posted[2], "removed")] == [values[0]]


def solutions(request: Received, member: str) -> list[Any]:
    return [binding for row in request.json[member]["solution"] for binding in row["binding"]]


async def test_our_own_inbox_takes_them_and_they_are_rdf(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        assert (await register(addresses, target=addresses.page)).status == 201
        await put(addresses, "7")
        text = (
            f"SELECT ?n ?v {{ GRAPH ?g {{ ?a <{GATEWAY}sequence> ?n . "
            f"?a <{GATEWAY}added>/<{RS}solution>/<{RS}binding> ?b . "
            f'?b <{RS}variable> "v" ; <{RS}value> ?v }} }}'
        )

        async def there() -> bool:
            return await rows(addresses, text) == [{"n": "1", "v": "7"}]

        await until(there, "the notification in the inbox")


BODIES = {
    "compact": ("application/ld+json", {"@context": "http://www.w3.org/ns/ldp", "@id": "", "inbox": "/in"}),
    "expanded": ("application/ld+json", [{"@id": "", f"{LDP}inbox": [{"@id": "/in"}]}]),
    "turtle": ("text/turtle; charset=utf-8", f"<> <{LDP}inbox> </in> ."),
    "of another subject": ("text/turtle", f"<#me> <{LDP}inbox> </in> ."),
}


@pytest.mark.parametrize("how", ["header", "several headers", *BODIES])
async def test_the_inbox_of_a_target_is_discovered(tmp_path: Path, how: str) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        with HttpReceiver() as receiver:
            if how in BODIES:
                media_type, body = BODIES[how]
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                receiver.confirm = lambda request: Reply(200, {"Content-Type": media_type}, data)
            elif how == "header":
                receiver.confirm = lambda request: Reply(200, {"Link": f'<in>; rel="{LDP}inbox"'})
            else:
                link = f'<http://e/a>; rel="type"; title="a, <b>", <../in>;rel="next {LDP}inbox"'
                receiver.confirm = lambda request: Reply(404, {"Link": link})
            answer = await register(addresses, target=receiver.url("/target"))
            assert answer.status == 201, answer.body
            assert answer.json["receiver"] == receiver.url("/in")
            [asked] = receiver.asked
            assert asked.path == "/target" and "application/ld+json" in asked.headers["accept"]
            [first] = await asyncio.to_thread(receiver.wait_posted, 1)
            assert first.path == "/in"


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (Reply(200, {"Link": '<in>; rel="inbox"'}), 422, "advertises no inbox"),
        (Reply(404), 422, "404"),
        (Reply(302, {"Location": "/"}), 422, "redirects"),
        (Reply(None), 422, "target"),
        (Reply(200, {"Content-Type": "text/turtle"}, b"<> <"), 422, "cannot be read"),
        (Reply(200, {"Content-Type": "application/ld+json"}, b'{"@context":"http://e/c"}'), 422, "not fetched"),
        (Reply(200, {"Content-Type": "application/ld+json"}, b"[" * 5000), 422, "cannot be read"),
        (Reply(200, {"Content-Type": "application/rdf+xml"}, b"<!DOCTYPE a><a/>"), 422, "DOCTYPE"),
        (Reply(200, {"Link": f'<http://169.254.169.254:81/>; rel="{LDP}inbox"'}), 400, "ldn.ports"),
        (Reply(200, {"Link": f'<file:///etc/passwd>; rel="{LDP}inbox"'}), 400, "the inbox"),
    ],
)
async def test_a_target_without_a_usable_inbox_is_refused(
    tmp_path: Path, reply: Reply, status: int, reason: str
) -> None:
    with HttpReceiver() as receiver:
        async with running_gateway(tmp_path, ldn={**ON, "ports": [80, receiver.port]}) as addresses:
            receiver.confirm = lambda request: reply
            answer = await register(addresses, target=receiver.url())
            assert answer.status == status, answer.body
            assert reason in answer.json["error_description"]


async def test_an_inbox_on_another_network_is_not_called(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn={"enabled": True, "ports": [], "backoff_ms": 10}) as addresses:
        with HttpReceiver() as receiver:
            refused = await register(addresses, target=receiver.url())
            assert refused.status == 422 and "ldn.networks" in refused.json["error_description"]
            one = (await register(addresses, inbox=receiver.url())).json

            async def failing() -> bool:
                found = (await http(f"{addresses.page}ldn/{one['id']}")).json
                return found["state"] != "ok" and "ldn.networks" in found["error"]

            await until(failing, "the refusal")
            assert receiver.posted == receiver.asked == []


@pytest.mark.parametrize("members", [{}, {"inbox": "http://e/", "target": "http://e/"}, {"callback": "http://e/"}])
async def test_bad_registrations_are_refused(tmp_path: Path, members: dict[str, str]) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        assert (await register(addresses, **members)).status == 400


async def test_it_goes_on_after_a_restart_beside_webhooks(tmp_path: Path) -> None:
    tables = {"ldn": ON, "webhooks": ON}
    with HttpReceiver() as receiver:
        async with running_gateway(tmp_path, **tables) as addresses:
            assert (await register(addresses, inbox=receiver.url("/in"))).status == 201
            body = json.dumps({"query": QUERY, "callback": receiver.url("/hook")})
            assert (await http(f"{addresses.page}webhooks", "POST", body)).status == 201
            await asyncio.to_thread(receiver.wait_posted, 2)

            async def acknowledged() -> bool:
                doors = [(await http(addresses.page + name)).json[name] for name in ("ldn", "webhooks")]
                return all(one["acknowledged"] for [one] in doors)

            await until(acknowledged, "the first results")
        async with running_gateway(tmp_path, **tables) as addresses:
            await put(addresses, "1")
            await asyncio.to_thread(receiver.wait_posted, 4)
            assert sorted(request.path for request in receiver.posted[2:]) == ["/hook", "/in"]
            assert (await http(f"{addresses.page}ldn")).json["total"] == 1


def test_the_activity_is_json_ld_without_the_network() -> None:
    from lamplighter.engine.client.contexts import with_contexts
    from lamplighter.engine.protocol import Results
    from lamplighter.gateway.gates.deliveries.worker import WaitingNotification
    from lamplighter.gateway.gates.ldn.activities import activity

    triple = (
        b'{"type":"triple","value":{"subject":{"type":"uri","value":"http://a"},'
        b'"predicate":{"type":"uri","value":"http://b"},"object":{"type":"literal","value":"c"}}}'
    )
    members = (
        b'"addedResults":{"head":{"vars":["x"]},"results":{"bindings":[{"x":%b},{}]}},'
        b'"removedResults":{"head":{"vars":["x"]},"results":{"bindings":[]}}' % triple
    )
    message = WaitingNotification("sepa://subscription/s", 0, Results.of_members(members), "why")
    body = with_contexts(json.loads(activity(message, "http://g/ldn/1", "http://g/", None)))
    quads = list(ox.parse(json.dumps(body).encode(), format=ox.RdfFormat.JSON_LD))
    found = {(str(quad.subject), quad.predicate.value): str(quad.object) for quad in quads}
    assert found["<http://g/ldn/1#s/0>", f"{GATEWAY}reset"] == '"why"'
    assert any(value.endswith("#JSON>") and "triple" not in key for key, value in found.items())
    assert sum(quad.predicate.value == f"{RS}solution" for quad in quads) == 2
