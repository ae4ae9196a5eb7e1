"""The client against peers that answer as the tests say."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve, unix_serve

from lamplighter.engine.client import (
    EngineClient,
    UpdateAnswer,
    UpdateRequest,
    connection,
    sending,
)
from lamplighter.engine.errors import (
    ConfigurationError,
    LimitExceededError,
    RefusedError,
    UpstreamError,
)
from tests.support.brokers import free_port
from tests.support.client_notifications import cut, following, subjects
from tests.support.places import ROOT
from tests.support.running_gateway import TIMEOUT_S, until

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"


def insert(subject: str) -> str:
    return f"INSERT DATA {{ <http://{subject}> <http://p> 1 }}"


def test_a_malformed_address_is_a_configuration_error() -> None:
    for url in ("http://127.0.0.1:9000/subscribe", "127.0.0.1:9000", "", "ws://"):
        with pytest.raises(ConfigurationError, match="ws://host:9000/subscribe"):
            EngineClient(url)


async def test_closing_the_client_ends_what_waits_and_what_comes_after(tmp_path: Path) -> None:
    async with EngineClient(f"ws://127.0.0.1:{free_port()}/subscribe") as client:
        waiting: list[Any] = [
            asyncio.create_task(client.update(insert("a"))),
            asyncio.create_task(client.query(ALL)),
            asyncio.create_task(anext(client.subscribe(ALL))),
        ]
        await asyncio.sleep(0)
    for task in waiting:
        with pytest.raises(UpstreamError):
            await task
    for request in (client.update(insert("a")), client.query(ALL), anext(client.subscribe(ALL))):
        with pytest.raises(UpstreamError):
            async with asyncio.timeout(TIMEOUT_S):
                await request


async def test_only_what_was_not_answered_is_sent_again_and_under_the_same_id() -> None:
    seen: list[list[tuple[str, str]]] = []

    async def flaky(socket: ServerConnection) -> None:
        """Answers the first of two updates and then breaks off; later answers all."""
        async for text in socket:
            members = json.loads(text)["updates"]
            seen.append([(member["sparql"], member["request_id"]) for member in members])
            answered = members if len(seen) > 1 else members[:1]
            for member in answered:
                await socket.send(json.dumps({"updated": {"alias": member["alias"], "sequence": len(seen)}}))
            if len(seen) == 1:
                await socket.close()

    async with serve(flaky, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            answers = await client.updates([UpdateRequest("A"), UpdateRequest("B", request_id="mine")])
            # What was answered before stays answered so.
            assert answers == [UpdateAnswer(1, None), UpdateAnswer(2, None)]
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1] == ("B", "mine")


async def test_a_long_message_keeps_no_other_from_being_sent() -> None:
    """Nor does one whose sender gives up."""
    seen: list[str] = []
    reads = asyncio.Event()

    async def slow(socket: ServerConnection) -> None:
        await reads.wait()
        async for text in socket:
            [member] = json.loads(text)["updates"]
            seen.append(member["sparql"][:5])
            await socket.send(json.dumps({"updated": {"alias": member["alias"], "sequence": 1}}))

    async with serve(slow, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            while client._socket is None:
                await asyncio.sleep(0.01)
            given_up = asyncio.create_task(client.update("given" + "up" * 4_000_000))
            long = asyncio.create_task(client.update("long " + "x" * 8_000_000))
            while not client._socket.transport.get_write_buffer_size():
                await asyncio.sleep(0)
            given_up.cancel()
            short = asyncio.create_task(client.update("short"))
            await asyncio.sleep(0.1)
            reads.set()
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(long, short)
    assert sorted(seen) == ["given", "long ", "short"]


async def test_a_delta_that_cannot_be_read_is_an_error_of_the_gateway() -> None:
    async def confused(socket: ServerConnection) -> None:
        async for text in socket:
            [member] = json.loads(text)["updates"]
            assert member["delta"] is True
            answer = {"alias": member["alias"], "sequence": 1, "delta": {"addedResults": {}}}
            await socket.send(json.dumps({"updated": answer}))

    async with serve(confused, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            with pytest.raises(UpstreamError, match="answer to an update"):
                await client.update("A", delta=True)


async def test_a_subscription_that_is_refused_for_the_moment_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_ASK_AGAIN_S", 0.01)
    asked: list[dict[str, Any]] = []
    empty = {"head": {"vars": ["s"]}, "results": {"bindings": []}}
    results = {"addedResults": empty, "removedResults": empty}

    async def busy(socket: ServerConnection) -> None:
        """Has no room at first."""
        async for text in socket:
            asked.append(json.loads(text)["subscribe"])
            alias = asked[-1]["alias"]
            if len(asked) < 3:
                error = {"error": "too_many_requests", "status_code": 429, "error_description": "later"}
                await socket.send(json.dumps({**error, "alias": alias}))
            else:
                body = {"spuid": "s", "alias": alias, "sequence": 0, **results}
                await socket.send(json.dumps({"notification": body}))

    async with serve(busy, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            notification = await following(client.subscribe(ALL))
            assert (notification.spuid, notification.sequence) == ("s", 0)
    assert asked[:3] == [asked[0]] * 3


async def test_what_a_gateway_sends_twice_or_leaves_out_or_has_ended_does_not_reach_the_consumer() -> None:
    asked: list[dict[str, Any]] = []
    empty = {"head": {"vars": ["s"]}, "results": {"bindings": []}}

    async def confused(socket: ServerConnection) -> None:
        """Sends a notification twice and leaves one out; asked to go on it begins anew, and tells of the old."""

        async def send(spuid: str, sequence: int, **members: object) -> None:
            results = {"addedResults": empty, "removedResults": empty}
            body = {"spuid": spuid, "sequence": sequence, **results, **members}
            await socket.send(json.dumps({"notification": body}))

        async for text in socket:
            asked.append(json.loads(text)["subscribe"])
            first = {"alias": asked[-1]["alias"], "resume": {"keep": "PT1M"}}
            if len(asked) == 1:
                await send("old", 0, **first)
                for sequence in (1, 1, 3):
                    await send("old", sequence)
            else:
                resumed = {"spuid": "old", "alias": first["alias"], "sequence": 1}
                await socket.send(json.dumps({"resumed": resumed}))
                await send("new", 0, **first, reset="it was lost")
                await send("old", 1)
                await send("new", 1)

    async with serve(confused, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            notifications = client.subscribe(ALL, keep="PT1M")
            told = [await following(notifications) for _ in range(4)]
    seen = [(notification.spuid, notification.sequence) for notification in told]
    assert seen == [("old", 0), ("old", 1), ("new", 0), ("new", 1)]
    assert [message["resume"] for message in asked[:2]] == [
        {"keep": "PT1M"},
        {"keep": "PT1M", "spuid": "old", "sequence": 1},
    ]


@asynccontextmanager
async def broker(*messages: str) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Stands in for another broker: answers each message that comes with the next of these, ALIAS replaced by what
    the client said. Gives its address, and what was said."""
    said: list[dict[str, Any]] = []
    answers = iter(messages)

    async def answer(socket: ServerConnection) -> None:
        async for text in socket:
            said.append(json.loads(text))
            [body] = said[-1].values()
            told = next(answers, None)
            if told is not None:
                await socket.send(told.replace("ALIAS", body.get("alias", "")))

    async with serve(answer, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/subscribe", said


RESULT = '{"head":{"vars":["s"]},"results":{"bindings":[{"s":{"type":"uri","value":"http://a"}}]}}'


def told(removed: str = "{}", added: str = RESULT, alias: str = '"alias":"ALIAS",') -> str:
    results = f'"addedResults":{added},"removedResults":{removed}'
    return f'{{"notification":{{"spuid":"sepa://1",{alias}"sequence":0,{results}}}}}'


async def test_the_drafts_empty_objects_are_results_without_rows() -> None:
    async with broker(told(), told("{}", "{}"), told(RESULT, "{}")) as (url, _), EngineClient(url) as client:
        for added, removed in ((1, 0), (0, 0), (0, 1)):
            async with aclosing(client.subscribe(ALL)) as notifications:
                notification = await following(notifications)
                assert (len(notification.added), len(notification.removed)) == (added, removed)
                assert notification.removed.variables == notification.added.variables
                await cut_and_connected(client)  # so that no unsubscribe takes an answer


async def cut_and_connected(client: EngineClient) -> None:
    cut(client)

    async def away() -> bool:
        return client._socket is None

    await until(away)


async def test_at_a_broker_that_cannot_resume_a_subscription_begins_anew() -> None:
    async with broker(told(), told().replace("sepa://1", "sepa://2")) as (url, said), EngineClient(url) as client:
        notifications = client.subscribe(ALL, keep="PT10M")
        for spuid in ("sepa://1", "sepa://2"):
            notification = await following(notifications)
            assert (notification.spuid, notification.sequence) == (spuid, 0)
            await cut_and_connected(client)
        assert [message["subscribe"]["resume"] for message in said[:2]] == [{"keep": "PT10M"}] * 2


async def test_an_error_without_an_alias_is_for_the_subscription_that_waits() -> None:
    error = '{"error":"parsing failed","status_code":400,"error_description":"no"}'
    async with broker(error) as (url, _), EngineClient(url) as client:
        with pytest.raises(RefusedError, match="parsing failed"):
            await following(client.subscribe("oops"))


@pytest.mark.parametrize("nonsense", ["}", "[]", "1", '{"notification":1}', '{"notification":{"sequence":0}}', "null"])
async def test_a_peer_that_talks_nonsense_is_left_and_tried_again(nonsense: str) -> None:
    async with broker(nonsense, told()) as (url, said), EngineClient(url) as client:
        assert subjects(await following(client.subscribe(ALL))) == ["<http://a>"]
        assert len(said) == 2


class Numbered:
    """Tokens 1, 2, 3, ...: another one after each that has expired."""

    def __init__(self) -> None:
        self.number = 1

    async def token(self) -> str:
        return str(self.number)

    def expired(self, token: str) -> None:
        assert token == str(self.number)
        self.number += 1


EXPIRED = '{"error":"invalid_grant","status_code":401,"error_description":"it has expired","alias":"ALIAS"}'


async def test_an_expired_token_is_renewed_once_for_a_subscription_and_for_a_request() -> None:
    answer = f'{{"answer":{{"alias":"ALIAS","results":{RESULT}}}}}'
    async with (
        broker(EXPIRED, told(), EXPIRED, answer, EXPIRED, EXPIRED) as (url, said),
        EngineClient(url, tokens=Numbered()) as client,
    ):
        notifications = client.subscribe(ALL)
        assert (await following(notifications)).sequence == 0
        assert len(await client.query(ALL)) == 1
        with pytest.raises(RefusedError, match="invalid_grant"):
            await client.query(ALL)
        bodies = [next(iter(message.values())) for message in said[:6]]
        assert [body["authorization"].split()[1] for body in bodies] == ["1", "2", "2", "3", "3", "4"]
        await notifications.aclose()


async def test_a_subscription_that_no_token_helps_is_refused() -> None:
    async with broker(EXPIRED, EXPIRED) as (url, _), EngineClient(url, tokens=Numbered()) as client:
        with pytest.raises(RefusedError, match="invalid_grant"):
            await following(client.subscribe(ALL))


async def test_who_gets_no_token_is_told_and_not_left_waiting() -> None:
    class Refusing(Numbered):
        async def token(self) -> str:
            raise RefusedError("unauthorized_client", 400, "wrong secret")

    async with broker() as (url, said), EngineClient(url, tokens=Refusing()) as client:
        for request in (client.query(ALL), anext(client.subscribe(ALL)), client.update(ALL)):
            with pytest.raises(RefusedError, match="wrong secret"):
                async with asyncio.timeout(TIMEOUT_S):
                    await request
        assert not said


async def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    async def answer(socket: ServerConnection) -> None:
        assert socket.request is not None and socket.request.path == "/subscribe"
        async for text in socket:
            await socket.send(told().replace("ALIAS", json.loads(text)["subscribe"]["alias"]))

    async with unix_serve(answer, str(tmp_path / "ws.sock")), EngineClient(f"ws+unix:{tmp_path}/ws.sock") as client:
        notifications = client.subscribe(ALL)
        assert (await following(notifications)).sequence == 0
        await notifications.aclose()
    with pytest.raises(ConfigurationError, match=r"ws\+unix:/absolute/path"):
        EngineClient("ws+unix:ws.sock")


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(ConfigurationError, match=name):
            EngineClient("wss://127.0.0.1/subscribe", ca=tmp_path / name)


def test_client_and_adapters_load_no_store() -> None:
    program = (
        "import sys, lamplighter.engine.client, lamplighter.adapters.mqtt.adapter, lamplighter.adapters.mapping\n"
        "import lamplighter.adapters.coap.adapter\n"
        "print([name for name in ('pyoxigraph', 'rdflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- messages that are too long, or not understood -------------------------------------------------


@asynccontextmanager
async def peer(
    answer: Callable[[ServerConnection, str, dict[str, Any]], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[str, list[list[str]]]]:
    """Stands in for a broker. answer: called with kind and body of each message. Gives its address, and the texts that
    were sent on each connection."""
    seen: list[list[str]] = []

    async def serve_one(socket: ServerConnection) -> None:
        seen.append([])
        async for text in socket:
            [(kind, body)] = json.loads(text).items()
            body = body[0] if kind == "updates" else body
            seen[-1].append(body.get("sparql", kind))
            await answer(socket, kind, body)

    async with serve(serve_one, "127.0.0.1", 0, **options) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/subscribe", seen


def answer_of(body: dict[str, Any], value: str = "http://a") -> str:
    results = {"head": {"vars": ["s"]}, "results": {"bindings": [{"s": {"type": "uri", "value": value}}]}}
    return json.dumps({"answer": {"alias": body["alias"], "results": results}}, separators=(",", ":"))


@pytest.fixture
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a kilobyte is too long for the client."""
    monkeypatch.setattr(sending, "MESSAGE_BYTES_MAX", 1000)
    monkeypatch.setattr(connection, "SIZES", (None, 1000))


def parts(text: str) -> list[str]:
    return [text[start : start + 600] for start in range(0, len(text), 600)]


@pytest.mark.usefixtures("short_messages")
async def test_an_answer_in_parts_that_is_too_long_is_an_error_and_the_connection_goes_on() -> None:
    async def answer(socket: ServerConnection, kind: str, body: dict[str, Any]) -> None:
        await socket.send(parts(answer_of(body, "http://" + "x" * 5000 if body["sparql"] == "long" else "http://a")))

    async with peer(answer) as (url, seen), EngineClient(url) as client, asyncio.timeout(TIMEOUT_S):
        for _ in range(3):
            with pytest.raises(LimitExceededError, match="LIMIT and OFFSET, or over HTTP"):
                await client.query("long")
            assert len(await client.query("short")) == 1
    assert seen == [["long", "short"] * 3]


@pytest.mark.usefixtures("short_messages")
async def test_results_of_a_subscription_that_are_too_long_end_it_with_an_error() -> None:
    async def answer(socket: ServerConnection, kind: str, body: dict[str, Any]) -> None:
        if kind == "subscribe":
            first = told(added=RESULT.replace("http://a", "http://" + "x" * at))
            await socket.send(parts(first.replace("ALIAS", body["alias"])))
            change = told(added=RESULT.replace("http://a", "http://" + "x" * 2000), alias="")
            await socket.send(parts(change.replace('"sequence":0', '"sequence":1')))

    for at in (2000, 10):
        async with peer(answer) as (url, seen), EngineClient(url) as client, asyncio.timeout(TIMEOUT_S):
            notifications = client.subscribe(ALL)
            if at == 10:
                assert len((await anext(notifications)).added) == 1
            with pytest.raises(LimitExceededError, match="narrow the query down"):
                await anext(notifications)
            while len(seen[0]) < 2:
                await asyncio.sleep(0.01)
        assert seen == [[ALL, "unsubscribe"]]


@pytest.mark.usefixtures("short_messages")
@pytest.mark.parametrize("whole", [True, False])
async def test_a_request_behind_which_the_connection_always_ends_fails_and_the_others_are_answered(whole: bool) -> None:
    """Its answer is one frame that is too long, or the broker itself ends the connection."""

    async def answer(socket: ServerConnection, kind: str, body: dict[str, Any]) -> None:
        if "bad" not in body["sparql"]:
            if body["sparql"] != "slow":
                await socket.send(answer_of(body))
        elif whole:
            await socket.send(answer_of(body, "http://" + "x" * 5000))
        else:
            await socket.close(1009, "too big")

    async with peer(answer) as (url, seen), EngineClient(url) as client, asyncio.timeout(TIMEOUT_S):
        asked = ["bad", "1", "2", "bad too", "3"]
        answers = await asyncio.gather(*map(client.query, asked), return_exceptions=True)
        for text, found in zip(asked, answers, strict=True):
            if "bad" in text:
                assert isinstance(found, RefusedError) and "1009" in str(found) and not found.retriable
            else:
                assert not isinstance(found, BaseException), found
        assert len(await client.query("later")) == 1
    sent = [text for texts in seen for text in texts]
    assert all(sent.count(text) <= 3 for text in sent), seen
    assert len(seen) <= 4


async def test_a_broker_whose_answer_is_never_understood_is_not_asked_for_ever() -> None:
    async def answer(socket: ServerConnection, kind: str, body: dict[str, Any]) -> None:
        await socket.send("}" if body["sparql"] == "bad" else answer_of(body))

    async with peer(answer) as (url, seen), EngineClient(url) as client, asyncio.timeout(TIMEOUT_S):
        with pytest.raises(RefusedError, match="sent alone"):
            await client.query("bad")
        with pytest.raises(RefusedError, match="whether it took effect is not known"):
            await client.update("bad")
        with pytest.raises(RefusedError, match="sent alone"):
            await anext(client.subscribe("bad"))
        assert len(await client.query("good")) == 1
    assert sum(text == "bad" for texts in seen for text in texts) <= 8


async def test_a_request_that_is_longer_than_the_broker_takes_fails() -> None:
    async def answer(socket: ServerConnection, kind: str, body: dict[str, Any]) -> None:
        await socket.send(answer_of(body))

    async with peer(answer, max_size=1000) as (url, seen), EngineClient(url) as client, asyncio.timeout(TIMEOUT_S):
        with pytest.raises(RefusedError, match="in parts"):
            await client.query("x" * 2000)
        assert len(await client.query("short")) == 1
    assert len(seen) == 3
