"""The client against a real gateway that comes and goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

import engine.client
from engine.client import EngineClient, Notification, UpdateAnswer, UpdateRequest
from engine.errors import ConfigurationError, RefusedError, UpstreamError
from gateway.service import Addresses
from tests.brokers import free_port
from tests.running_gateway import TIMEOUT_S, go, health, http, rows, running_gateway, until

ROOT = Path(__file__).resolve().parents[2]
ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
FRESH = "INSERT { ?new <http://p> 1 } WHERE { BIND(UUID() AS ?new) }"


def insert(subject: str) -> str:
    return f"INSERT DATA {{ <http://{subject}> <http://p> 1 }}"


def ports(at: Addresses) -> dict[str, dict[str, int]]:
    """Settings for a gateway in the place of this one."""
    found = {"http": at.query, "websocket": at.subscribe}
    return {name: {"port": int(url.rpartition(":")[2].partition("/")[0])} for name, url in found.items()}


async def following(notifications: AsyncIterator[Notification]) -> Notification:
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(notifications)


def subjects(notification: Notification) -> list[str]:
    return sorted(row[0] or "" for row in notification.added)


# --- requests ---------------------------------------------------------------------------------------


def test_updates_are_answered_with_their_sequence_and_queries_with_a_bag(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            assert await client.update(insert("a")) == UpdateAnswer(1, None)
            assert await client.update(insert("ვაიმეე")) == UpdateAnswer(2, None)
            bag = await client.query(ALL + " ORDER BY ?s")
            assert bag.variables == ("s", "o")
            one = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'
            assert bag.rows == (("<http://a>", one), ("<http://ვაიმეე>", one))
            delayed = await client.update(insert("later"), delay="PT1H")
            assert delayed.sequence == 3
            assert [row["id"] for row in (await http(at.delayed)).json["delayed"]] == [delayed.delayed]

    go(test)


def test_what_the_gateway_refuses_is_raised_with_its_code(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            for request in (client.update("oops"), client.query("oops"), anext(client.subscribe("oops"))):
                with pytest.raises(RefusedError) as caught:
                    await request
                assert (caught.value.code, caught.value.status) == ("SPARQL11ProtocolException", 400)
                assert not caught.value.retriable
            assert await client.update(insert("a")) == UpdateAnswer(1, None)

    go(test)


def test_in_a_batch_an_error_stands_in_the_place_of_its_update(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            texts = [insert("a"), "oops", insert("c")]
            answers = await client.updates([UpdateRequest(text) for text in texts])
            assert (answers[0], answers[2]) == (UpdateAnswer(1, None), UpdateAnswer(2, None))
            assert isinstance(answers[1], RefusedError)
            assert await client.updates([]) == []

    go(test)


def test_many_requests_at_once_are_all_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path, gateway={"queue_max": 50}) as at, EngineClient(at.subscribe) as client:
            # More than the queue holds: what is refused for the moment is sent again.
            answers = await asyncio.gather(*(client.update(insert(str(number))) for number in range(200)))
            assert sorted(answer.sequence for answer in answers) == list(range(1, 201))
            assert (await health(at))["counters"]["queue_full"] > 0

    go(test)


def test_a_malformed_address_is_a_configuration_error() -> None:
    for url in ("http://127.0.0.1:9000/subscribe", "127.0.0.1:9000", "", "ws://"):
        with pytest.raises(ConfigurationError, match="ws://host:9000/subscribe"):
            EngineClient(url)


# --- subscriptions ----------------------------------------------------------------------------------


def test_a_subscription_yields_the_result_and_then_its_changes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            await client.update(insert("a"))
            async with aclosing(client.subscribe(ALL)) as notifications:
                first = await following(notifications)
                assert (first.sequence, subjects(first), len(first.removed)) == (0, ["<http://a>"], 0)
                await client.update("DELETE WHERE { <http://a> ?p ?o } ; " + insert("b"))
                second = await following(notifications)
                assert (second.spuid, second.sequence) == (first.spuid, 1)
                assert (subjects(second), [row[0] for row in second.removed]) == (["<http://b>"], ["<http://a>"])

    go(test)


def test_closing_a_subscription_ends_it_at_the_gateway(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            one, two = client.subscribe(ALL), client.subscribe(ALL)
            await following(one)
            await following(two)
            assert (await health(at))["subscriptions"] == 2
            await one.aclose()

            async def one_left() -> bool:
                return bool((await health(at))["subscriptions"] == 1)

            await until(one_left)
            await client.update(insert("a"))
            assert (await following(two)).sequence == 1
            await two.aclose()

    go(test)


def test_a_subscription_given_up_before_its_first_result_ends_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
            await client.update(insert("a"))  # it is connected
            waiting = asyncio.create_task(anext(client.subscribe(ALL)))
            await asyncio.sleep(0)  # it has been sent, and cannot be answered yet
            waiting.cancel()
            await asyncio.wait([waiting])
            await client.update(insert("b"))

            async def subscribed_and_ended() -> bool:
                state = await health(at)
                return (state["counters"]["subscribes"], state["subscriptions"]) == (1, 0)

            await until(subscribed_and_ended)

    go(test)


def test_a_consumer_that_is_too_slow_starts_again_from_a_whole_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.client, "NOTIFICATIONS_MAX", 5)

    async def test() -> None:
        async with (
            running_gateway(tmp_path) as at,
            EngineClient(at.subscribe) as client,
            aclosing(client.subscribe(ALL)) as notifications,
        ):
            known, last, restarts = 0, 0, 0
            assert (await following(notifications)).sequence == 0
            for number in range(20):
                await client.update(insert(str(number)))
            while known < 20:
                notification = await following(notifications)
                if notification.sequence == 0:
                    known, restarts = 0, restarts + 1
                else:
                    assert notification.sequence == last + 1
                known, last = known + len(notification.added), notification.sequence
            assert known == 20
            assert restarts >= 1

    go(test)


# --- a gateway that comes and goes ------------------------------------------------------------------


def test_requests_wait_for_a_gateway_that_is_not_there_yet(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
            update = asyncio.create_task(client.update(insert("a")))
            query = asyncio.create_task(client.query("SELECT * {}"))
            first: Any = asyncio.create_task(anext(client.subscribe("SELECT (1 AS ?one) {}")))
            done, _ = await asyncio.wait([update, query, first], timeout=0.3)
            assert not done
            async with running_gateway(tmp_path, websocket={"port": port}):
                assert await update == UpdateAnswer(1, None)
                assert len(await query) == 1
                assert (await first).sequence == 0

    go(test)


def test_after_a_restart_subscriptions_begin_anew_and_requests_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(tmp_path) as at:
            client = EngineClient(at.subscribe)
            await client.__aenter__()
            notifications = client.subscribe(ALL)
            assert (await following(notifications)).sequence == 0
            await client.update(insert("a"))
            assert (await following(notifications)).sequence == 1
        async with running_gateway(tmp_path, **ports(at)) as again:
            fresh = await following(notifications)
            assert (fresh.sequence, subjects(fresh), len(fresh.removed)) == (0, ["<http://a>"], 0)
            await client.update(insert("b"))
            following_one = await following(notifications)
            assert (following_one.spuid, following_one.sequence) == (fresh.spuid, 1)
            assert (await health(again))["subscriptions"] == 1
            await notifications.aclose()
            await client.__aexit__()

    go(test)


def test_an_update_whose_answer_was_lost_with_the_gateway_has_one_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, asked = threading.Event(), threading.Event()

    def slow_sync(descriptor: int) -> None:
        asked.set()
        assert disk.wait(20)

    async def test() -> None:
        async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at:
            client = EngineClient(at.subscribe)
            await client.__aenter__()
            assert await client.update(insert("a")) == UpdateAnswer(1, None)
            monkeypatch.setattr("gateway.log_writer.os.fdatasync", slow_sync)
            pending = asyncio.create_task(client.update(FRESH))
            assert await asyncio.to_thread(asked.wait, 20)  # it is in the log, and will not be answered
        disk.set()
        async with running_gateway(tmp_path, **ports(at)) as again:
            assert await pending == UpdateAnswer(2, None)
            assert len(await rows(again, ALL)) == 2
            assert (await health(again))["sequence"] == 2
            await client.__aexit__()

    go(test)


def test_closing_the_client_ends_what_waits_and_what_comes_after(tmp_path: Path) -> None:
    async def test() -> None:
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
                async with asyncio.timeout(5):
                    await request

    go(test)


def test_only_what_was_not_answered_is_sent_again_and_under_the_same_id() -> None:
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

    async def test() -> None:
        async with serve(flaky, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
                answers = await client.updates([UpdateRequest("A"), UpdateRequest("B", request_id="mine")])
                # What was answered before stays answered so.
                assert answers == [UpdateAnswer(1, None), UpdateAnswer(2, None)]
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0][1] == ("B", "mine")

    go(test)


# --- what it loads ----------------------------------------------------------------------------------


def test_client_and_adapters_load_no_store() -> None:
    program = (
        "import sys, engine.client, adapters.mqtt.adapter, adapters.mqtt.mapping, adapters.coap.adapter\n"
        "print([name for name in ('pyoxigraph', 'rdflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
