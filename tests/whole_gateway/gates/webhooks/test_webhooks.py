"""Webhooks of a running gateway, with a real receiver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.receivers import HttpReceiver, Received, Reply
from tests.support.running_gateway import Answer, health, http, running_gateway, until, update

ON: dict[str, object] = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 10}
QUERY = "SELECT ?v { <http://e/s> <http://e/p> ?v }"


def base(addresses: Addresses) -> str:
    return addresses.page.rstrip("/")


async def register(addresses: Addresses, receiver: HttpReceiver, **members: Any) -> Answer:
    body = {"query": QUERY, "callback": receiver.url(), **members}
    return await http(f"{base(addresses)}/webhooks", "POST", json.dumps(body))


async def registered(addresses: Addresses, receiver: HttpReceiver, **members: Any) -> dict[str, Any]:
    answer = await register(addresses, receiver, **members)
    assert answer.status == 201, answer.body
    return dict(answer.json)


async def webhook(addresses: Addresses, name: str) -> dict[str, Any]:
    answer = await http(f"{base(addresses)}/webhooks/{name}")
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def change(addresses: Addresses, name: str, **members: Any) -> Answer:
    return await http(f"{base(addresses)}/webhooks/{name}", "POST", json.dumps(members))


async def put(addresses: Addresses, value: int) -> None:
    """Replaces the value that the query selects."""
    text = f"DELETE WHERE {{ <http://e/s> <http://e/p> ?v }} ; INSERT DATA {{ <http://e/s> <http://e/p> {value} }}"
    assert (await update(addresses, text)).status == 200


async def arrived(receiver: HttpReceiver, count: int) -> list[Received]:
    return await asyncio.to_thread(receiver.wait_posted, count)


async def holds(condition: Callable[[], bool]) -> None:
    async def look() -> bool:
        return condition()

    await until(look)


def told(request: Received) -> tuple[int, list[str], list[str], str | None]:
    """Sequence, added and removed values, and reset."""
    body = request.json["notification"]
    rows = [
        [row["v"]["value"] for row in body[member]["results"]["bindings"]]
        for member in ("addedResults", "removedResults")
    ]
    return body["sequence"], rows[0], rows[1], body.get("reset")


async def test_registration_is_verified_and_deliveries_are_signed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            await put(addresses, 1)
            answer = await register(addresses, receiver, alias="hall", lease="P1D", callback=receiver.url("/hook?a=1"))
            assert answer.status == 201, answer.body
            one = answer.json
            assert answer.headers["location"] == one["topic"] == f"{base(addresses)}/webhooks/{one['id']}"
            [asked] = receiver.asked
            challenge = asked.parameters.pop("hub.challenge")
            assert len(challenge) >= 32
            assert asked.parameters == {
                "a": "1",
                "hub.mode": "subscribe",
                "hub.topic": one["topic"],
                "hub.lease_seconds": "86400",
            }
            [first] = await arrived(receiver, 1)
            assert told(first) == (0, ["1"], [], None)
            await put(addresses, 2)
            [_, second] = await arrived(receiver, 2)
            assert told(second) == (1, ["2"], ["1"], None)
            assert second.json["notification"]["alias"] == "hall"
            assert second.headers["content-type"] == "application/json"
            assert second.headers["link"] == f'<{one["topic"]}>; rel="self", <{base(addresses)}/webhooks>; rel="hub"'
            spuid = second.json["notification"]["spuid"].removeprefix("sepa://subscription/")
            assert [first.id, second.id] == [f"{spuid}/0", f"{spuid}/1"]
            assert second.headers["idempotency-key"] == second.id
            assert all(request.signed_by(one["secret"]) for request in (first, second))
            assert not second.signed_by("another")


async def test_webhooks_are_listed_renewed_and_deleted(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            one = await registered(addresses, receiver, lease="P1D")
            listed = (await http(f"{base(addresses)}/webhooks")).json
            assert (listed["total"], listed["webhooks"][0]["id"]) == (1, one["id"])
            assert "secret" not in listed["webhooks"][0]
            assert listed["webhooks"][0]["query"] == QUERY
            renewed = await change(addresses, one["id"], lease="P3D")
            assert renewed.status == 200
            assert renewed.json["until"] > one["until"]
            assert (await webhook(addresses, one["id"]))["until"] == renewed.json["until"]
            gone = await http(f"{base(addresses)}/webhooks/{one['id']}", "DELETE")
            assert gone.json == {"id": one["id"], "confirmed": True}
            assert receiver.asked[-1].parameters["hub.mode"] == "unsubscribe"
            assert (await http(f"{base(addresses)}/webhooks/{one['id']}")).status == 404
            assert (await health(addresses))["resumable"]["subscriptions"] == 0


async def test_a_receiver_that_is_gone_does_not_keep_its_webhook(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            one = await registered(addresses, receiver)
            receiver.confirm = lambda request: Reply(404)
            gone = await http(f"{base(addresses)}/webhooks/{one['id']}", "DELETE")
            assert (gone.status, gone.json["confirmed"]) == (200, False)
            assert "404" in gone.json["reason"]
            assert (await http(f"{base(addresses)}/webhooks")).json["total"] == 0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(404), "404"),
        (Reply(200, body=b"yes"), "hub.challenge"),
        (Reply(302, {"Location": "http://127.0.0.1:1/"}), "redirects are not followed"),
        (Reply(None), "cannot be asked"),
    ],
)
async def test_without_confirmation_nothing_is_registered(tmp_path: Path, reply: Reply, reason: str) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            receiver.confirm = lambda request: reply
            answer = await register(addresses, receiver)
            assert (answer.status, answer.json["error"]) == (403, "not_verified")
            assert reason in answer.json["error_description"]
            assert (await http(f"{base(addresses)}/webhooks")).json["total"] == 0
            assert (await health(addresses))["resumable"]["subscriptions"] == 0


async def test_failed_deliveries_are_repeated_in_order_with_the_same_id(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            statuses = iter((500, 503, None, 302, 429))

            def answer(request: Received) -> Reply:
                status = next(statuses, 200) if request.json["notification"]["sequence"] == 1 else 200
                return Reply(status, {"Retry-After": "0"} if status == 503 else {})

            receiver.answer = answer
            await registered(addresses, receiver)
            await put(addresses, 1)
            await put(addresses, 2)
            await arrived(receiver, 8)
            assert [told(request)[0] for request in receiver.posted] == [0, 1, 1, 1, 1, 1, 1, 2]
            assert len({request.id for request in receiver.posted[1:7]}) == 1


async def test_a_decision_needs_a_failure(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            one = await registered(addresses, receiver)
            await arrived(receiver, 1)
            for waiting in ("resend", "drop"):
                answer = await change(addresses, one["id"], waiting=waiting)
                assert (answer.status, answer.json["error"]) == (409, "nothing_failed")
            assert (await change(addresses, one["id"], waiting="later")).status == 400
            assert (await change(addresses, one["id"])).status == 400


async def test_gone_ends_the_subscription(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            receiver.answer = lambda request: Reply(410)
            await registered(addresses, receiver)

            async def over() -> bool:
                return bool((await http(f"{base(addresses)}/webhooks")).json["total"] == 0)

            await until(over, "the end")
            assert (await health(addresses))["resumable"]["subscriptions"] == 0
            assert len(receiver.posted) == 1


async def test_after_too_many_failures_it_waits_for_a_decision(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks={**ON, "attempts_max": 3}) as addresses:
        with HttpReceiver() as receiver:
            one = await registered(addresses, receiver)
            await arrived(receiver, 1)
            receiver.answer = lambda request: Reply(500, body=b"no\r\nroom")
            await put(addresses, 1)

            async def dead() -> bool:
                return bool((await webhook(addresses, one["id"]))["state"] == "dead")

            await until(dead, "the dead letter")
            found = await webhook(addresses, one["id"])
            assert found["dead_letter"] == receiver.posted[-1].id
            assert (found["waiting"], found["error"]) == (1, "the receiver answered 500: no room")
            assert len(receiver.posted) == 4
            status = await health(addresses)
            [component] = [part for part in status["components"] if part["name"] == "webhooks"]
            assert component["state"] == status["status"] == "degraded"
            assert one["id"] in component["reason"] and "docs/webhooks-ldn.md" in component["cure"]
            await put(addresses, 2)
            receiver.answer = lambda request: Reply()
            assert (await change(addresses, one["id"], waiting="resend")).status == 200
            await arrived(receiver, 6)
            assert [told(request)[:3] for request in receiver.posted[4:]] == [(1, ["1"], []), (2, ["2"], ["1"])]

            async def well() -> bool:
                return bool((await health(addresses))["status"] == "ok")

            await until(well, "health")


async def test_what_is_dropped_is_replaced_by_a_fresh_result(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks={**ON, "attempts_max": 2}) as addresses:
        with HttpReceiver() as receiver:
            one = await registered(addresses, receiver)
            await arrived(receiver, 1)
            receiver.answer = lambda request: Reply(400)
            await put(addresses, 1)

            async def dead() -> bool:
                return bool((await webhook(addresses, one["id"]))["state"] == "dead")

            await until(dead, "the dead letter")
            await put(addresses, 2)
            receiver.answer = lambda request: Reply()
            assert (await change(addresses, one["id"], waiting="drop")).status == 200
            await arrived(receiver, 4)
            sequence, added, removed, reset = told(receiver.posted[3])
            assert (sequence, added, removed) == (0, ["2"], [])
            assert reset is not None and "dropped" in reset
            assert receiver.posted[3].id not in {request.id for request in receiver.posted[:3]}
            await put(addresses, 3)
            await arrived(receiver, 5)
            assert told(receiver.posted[4]) == (1, ["3"], ["2"], None)


async def test_more_than_is_retained_becomes_a_fresh_result(tmp_path: Path) -> None:
    tables: dict[str, dict[str, object]] = {"webhooks": ON, "resume": {"outbox_bytes_max": 2000}}
    async with running_gateway(tmp_path, **tables) as addresses:
        with HttpReceiver() as receiver:
            await registered(addresses, receiver)
            await arrived(receiver, 1)
            receiver.answer = lambda request: Reply(500)
            for value in range(1, 41):
                await put(addresses, value)
            refused = len(receiver.posted)
            receiver.answer = lambda request: Reply()
            await holds(lambda: any(told(request)[3] for request in receiver.posted[refused:]))
            await put(addresses, 41)
            await holds(lambda: "41" in told(receiver.posted[-1])[1])
            state: list[str] = []
            last = -1
            for request in receiver.posted[refused:]:
                sequence, added, removed, reset = told(request)
                if reset is None and sequence <= last:
                    continue  # repeated
                if reset is not None:
                    assert "more notifications waited" in reset or "no longer retained" in reset
                    state = []
                elif sequence != last + 1:
                    continue  # before the first that was accepted
                last = sequence
                for value_text in removed:
                    if value_text in state:
                        state.remove(value_text)
                state += added
            assert state == ["41"]


async def test_a_slow_receiver_keeps_no_other_waiting(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks={**ON, "concurrent_max": 2, "timeout_s": 1}) as addresses:
        with HttpReceiver() as slow, HttpReceiver() as prompt:
            for _ in range(3):
                await registered(addresses, slow)
            await registered(addresses, prompt)
            await arrived(slow, 3)
            release = asyncio.Event()
            loop = asyncio.get_running_loop()

            def stuck(request: Received) -> Reply:
                asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
                return Reply(500)

            slow.answer = stuck
            await put(addresses, 0)
            for value in range(1, 30):
                await put(addresses, value)
            await asyncio.to_thread(prompt.wait, lambda: len({request.id for request in prompt.posted}) == 31, "all 31")
            sequences = [told(request)[0] for request in prompt.posted]
            # On a busy machine an answer may come too late, so that its notification comes again.
            assert sequences == sorted(sequences) and set(sequences) == set(range(31))
            release.set()


async def test_receivers_that_hang_when_they_are_asked_keep_no_delivery_waiting(tmp_path: Path) -> None:
    release = Event()

    def stuck(request: Received) -> Reply:
        release.wait()
        return Reply(404)

    async with running_gateway(tmp_path, webhooks={**ON, "concurrent_max": 2, "timeout_s": 100}) as addresses:
        with HttpReceiver() as hanging, HttpReceiver() as prompt:
            await registered(addresses, prompt)
            ended = [(await registered(addresses, hanging))["topic"] for _ in range(4)]
            await arrived(hanging, 4)
            await arrived(prompt, 1)
            hanging.confirm = stuck
            asked = [asyncio.create_task(http(topic, "DELETE")) for topic in ended]
            asked.append(asyncio.create_task(register(addresses, hanging)))
            try:
                await until(lambda: total_is(addresses, 1))
                await put(addresses, 1)
                async with asyncio.timeout(60):  # less than the hanging ones have
                    await arrived(prompt, 2)
            finally:
                release.set()
                await asyncio.gather(*asked)


async def total_is(addresses: Addresses, total: int) -> bool:
    return bool((await http(f"{base(addresses)}/webhooks")).json["total"] == total)


async def test_webhooks_go_on_after_a_restart(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        async with running_gateway(tmp_path, webhooks=ON) as addresses:
            one = await registered(addresses, receiver)
            await put(addresses, 1)
            await arrived(receiver, 2)
            receiver.answer = lambda request: Reply(500)
            await put(addresses, 2)
            await arrived(receiver, 3)
        refused = receiver.posted[-1]
        receiver.answer = lambda request: Reply()
        seen = len(receiver.posted)
        async with running_gateway(tmp_path, webhooks=ON) as addresses:
            await put(addresses, 3)
            await holds(lambda: told(receiver.posted[-1])[0] == 3)
            assert [told(request) for request in receiver.posted[seen:]] == [
                (2, ["2"], ["1"], None),
                (3, ["3"], ["2"], None),
            ]
            assert receiver.posted[seen].id == refused.id
            assert receiver.posted[seen].signed_by(one["secret"])
            listed = (await http(f"{base(addresses)}/webhooks")).json["webhooks"]
            assert [found["id"] for found in listed] == [one["id"]]
    key = tmp_path / "data" / "deliveries" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    log = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file() and path != key)
    assert one["secret"].encode() not in log


@pytest.mark.parametrize(
    ("members", "status", "reason"),
    [
        ({"callback": "ftp://127.0.0.1/"}, 400, "https"),
        ({"callback": "http://user:secret@127.0.0.1/"}, 400, "no user"),
        ({"callback": "http://127.0.0.1/#a"}, 400, "fragment"),
        ({"callback": "http://127.0.0.1:99999/"}, 400, "Port out of range"),
        ({"callback": "http://127.0.0.1/ a"}, 400, "ASCII"),
        ({"callback": "http://" + "a" * 3000}, 400, "2000"),
        ({"callback": "http:///x"}, 400, "https://example.org"),
        ({"callback": "http://[::1/"}, 400, "not a URL"),
        ({"callback": "http://169.254.169.254/latest"}, 403, "metadata"),
        ({"callback": "http://[::ffff:10.0.0.1]/"}, 403, "not a public address"),
        ({"callback": "http://0x0a000001/"}, 403, "10.0.0.1"),
        ({"callback": "http://[fe80::1]/"}, 403, "not a public address"),
        ({"callback": "http://224.0.0.1/"}, 403, "several machines"),
        ({"callback": "http://0.0.0.0/"}, 403, "no machine"),
        ({"query": "SELECT"}, 400, ""),
        ({"query": "SELECT ?x { SERVICE <http://a> { ?x ?y ?z } }"}, 400, "SERVICE"),
        ({"query": QUERY, "application": "a"}, 400, "not both"),
        ({"query": None}, 400, "application and name"),
        ({"query": None, "application": "none", "name": "Q"}, 404, "no application"),
        ({"lease": "a day"}, 400, "lease"),
        ({"alias": "a" * 300}, 400, "256"),
        ({"unknown": 1}, 400, "unknown"),
        ({"headers": {"Host": "a"}}, 400, "headers"),
    ],
)
async def test_bad_registrations_are_refused(tmp_path: Path, members: dict[str, Any], status: int, reason: str) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            answer = await register(addresses, receiver, **members)
            assert answer.status == status, answer.body
            assert reason in answer.json["error_description"]
            assert (await http(f"{base(addresses)}/webhooks")).json["total"] == 0


async def test_addresses_and_ports_are_those_of_the_settings(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks={"enabled": True, "ports": []}) as addresses:
        with HttpReceiver() as receiver:
            for url in (receiver.url(), receiver.url().replace("127.0.0.1", "localhost")):
                answer = await register(addresses, receiver, callback=url)
                assert answer.status == 403
                assert "webhooks.networks" in answer.json["error_description"]
            assert receiver.asked == []
    async with running_gateway(tmp_path, webhooks={**ON, "ports": [443]}) as addresses:
        with HttpReceiver() as receiver:
            answer = await register(addresses, receiver)
            assert answer.status == 400
            assert "webhooks.ports" in answer.json["error_description"]


async def test_a_door_that_is_off_has_no_path(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        assert (await http(f"{base(addresses)}/webhooks")).status == 404


async def test_lease_ends(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks=ON) as addresses:
        with HttpReceiver() as receiver:
            await registered(addresses, receiver, lease="PT1S")
            await asyncio.to_thread(receiver.wait, lambda: len(receiver.asked) == 2)
            assert receiver.asked[1].parameters["hub.mode"] == "denied"
            assert receiver.asked[1].parameters["hub.reason"] == "the lease has ended"
            await until(lambda: total_is(addresses, 0), "the end of the webhook")


async def test_limit_of_webhooks(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, webhooks={**ON, "deliveries_max": 1}) as addresses:
        with HttpReceiver() as receiver:
            await registered(addresses, receiver)
            answer = await register(addresses, receiver)
            assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
