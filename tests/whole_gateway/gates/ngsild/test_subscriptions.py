"""Subscriptions and their notifications, with a real receiver, by ETSI GS CIM 009 V1.8.1, 5.8, 6.10 and 6.11."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lamplighter.gateway.addresses import Addresses
from tests.support.receivers import HttpReceiver, Received, Reply
from tests.support.running_gateway import Answer, health, http, running_gateway, until, update
from tests.support.small_house import PREFIXES
from tests.whole_gateway.gates.ngsild.conftest import BUILDING, SUBSCRIBED, WEATHER
from tests.whole_gateway.gates.ngsild.test_entities import LINK, ONE, problem

Ask = Callable[..., Awaitable[Answer]]
STREAM = "http://lamplighter.example/ns/gateway#Stream"
NULL = "urn:ngsi-ld:null"
BAD, REFUSED = "BadRequestData", "OperationNotSupported"


def subscribed(receiver: HttpReceiver, identifier: str = "urn:x:s", **members: Any) -> dict[str, Any]:
    """A subscription to buildings."""
    notification = {"endpoint": {"uri": receiver.url()}} | members.pop("notification", {})
    whole = {"id": identifier, "type": "Subscription", "entities": [{"type": "Building"}]}
    return whole | {"notification": notification} | members


async def arrived(receiver: HttpReceiver, count: int) -> list[Any]:
    """The data of the notifications."""
    return [one.json["data"] for one in await asyncio.to_thread(receiver.wait_posted, count)]


async def state(ask: Ask, identifier: str = "urn:x:s") -> dict[str, Any]:
    answer = await ask("GET", f"/subscriptions/{identifier}")
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def test_notifications_have_whole_entities_and_come_in_order(ask: Ask) -> None:
    with HttpReceiver() as receiver:
        endpoint = {"uri": receiver.url(), "receiverInfo": [{"key": "Authorization", "value": "Bearer secret"}]}
        made = await ask("POST", "/subscriptions", subscribed(receiver, notification={"endpoint": endpoint}))
        assert made.status == 201 and made.headers["location"] == "/ngsi-ld/v1/subscriptions/urn:x:s"
        for number in range(3):
            assert (await ask("PATCH", f"{ONE}/attrs", {"temperature": number})).status == 204
        found = await arrived(receiver, 3)
        assert [one["temperature"]["value"] for [one] in found] == [0, 1, 2]
        assert found[2] == [(await ask("GET", ONE)).json]
        first, second, _ = receiver.posted
        assert first.headers["authorization"] == "Bearer secret"
        assert first.headers["content-type"] == "application/json" and first.headers["link"].endswith(LINK)
        assert first.json["id"] != second.json["id"] and first.json["type"] == "Notification"
        assert first.json["subscriptionId"] == "urn:x:s" and first.json["notifiedAt"].endswith("Z")

        async def noted() -> bool:
            return bool((await state(ask))["notification"].get("timesSent") == 3)

        await until(noted, "the answer to the third")  # which the receiver gives after it has it
        shown = await state(ask)
        assert b"secret" not in json.dumps(shown).encode()
        assert shown["status"] == "active" and shown["notification"]["status"] == "ok"
        assert shown["notification"]["lastSuccess"].endswith("Z")


async def test_what_is_told_of_a_change(ask: Ask) -> None:
    """Attributes that are wanted, formats, deletions, and changes that are not watched or do not match."""
    with HttpReceiver() as receiver:
        wanted = subscribed(
            receiver,
            watchedAttributes=["temperature", "owner"],
            notificationTrigger=["entityUpdated", "entityDeleted"],
            q="temperature>20",
            notification={"attributes": ["temperature", "owner"], "format": "keyValues"},
        )
        assert (await ask("POST", "/subscriptions", wanted)).status == 201
        for members in ({"temperature": 1}, {"name": "x"}, {"temperature": 21}, {"owner": NULL}, {"name": "y"}):
            assert (await ask("PATCH", f"{ONE}/attrs", members)).status == 204
        assert (await ask("DELETE", ONE)).status == 204
        one = {"id": BUILDING["id"], "type": "Building"}
        found = await arrived(receiver, 3)
        assert found[:2] == [
            [one | {"temperature": 21, "owner": "urn:ngsi-ld:Person:1"}],
            [one | {"temperature": 21, "owner": NULL}],
        ]
        assert found[2][0].pop("deletedAt").endswith("Z")
        assert found[2] == [one | {"temperature": NULL}], "it matched before"


async def test_contexts_name_what_is_told(ask: Ask) -> None:
    with HttpReceiver() as receiver:
        body = subscribed(receiver, entities=[{"type": "weather:Station"}], q="rain>1") | {"@context": WEATHER}
        body["notification"] = {"endpoint": {"uri": receiver.url(), "accept": "application/ld+json"}}
        assert (await ask("POST", "/subscriptions", body, "application/ld+json")).status == 201
        station = {"id": "urn:x:1", "type": "weather:Station", "rain": 2, "@context": WEATHER}
        assert (await ask("POST", "/entities", station, "application/ld+json")).status == 201
        await arrived(receiver, 1)
        assert receiver.posted[0].headers["content-type"] == "application/ld+json"
        assert receiver.posted[0].json["@context"][0] == WEATHER
        told = receiver.posted[0].json["data"]
        assert told == [
            {"id": "urn:x:1", "type": "http://weather.example/Station", "rain": {"type": "Property", "value": 2}}
        ]
        assert (await state(ask))["entities"] == [{"type": "http://weather.example/Station"}]
        change = {"notification": {"attributes": ["rain"], "endpoint": {"uri": receiver.url()}}}
        changed = await ask("PATCH", "/subscriptions/urn:x:s", change, Link=f"<{WEATHER}>; {LINK}")
        assert changed.status == 204, changed.body
        assert (await state(ask))["notification"]["attributes"] == ["http://weather.example/r"]
        assert (await ask("PATCH", "/entities/urn:x:1/attrs", {"http://weather.example/r": 3})).status == 204
        [_, [second]] = await arrived(receiver, 2)
        assert second["rain"]["value"] == 3 and WEATHER in receiver.posted[1].headers["link"], "q means what it meant"


async def test_streams_are_told_as_entities(at: Addresses, ask: Ask) -> None:
    with HttpReceiver() as receiver:
        result = "http://www.w3.org/ns/sosa/hasSimpleResult"
        wanted = subscribed(receiver, entities=[{"type": STREAM}], q=f"{result}>30")
        assert (await ask("POST", "/subscriptions", wanted)).status == 201
        for value in (10, 31):
            text = (
                f"{PREFIXES} DELETE {{ ?o sosa:hasSimpleResult ?v }} INSERT {{ ?o sosa:hasSimpleResult {value} }} "
                "WHERE { <stream/1> gateway:liveObservation ?o . ?o sosa:hasSimpleResult ?v }"
            )
            assert (await update(at, text)).status == 200
        stream = (await ask("GET", "/entities/http:%2F%2Flamplighter.local%2Fstream%2F1")).json
        assert await arrived(receiver, 1) == [[stream]] and stream[result]["value"] == 31


async def test_many_entities_of_one_commit_are_told_in_parts(at: Addresses, ask: Ask) -> None:
    with HttpReceiver() as receiver:
        assert (
            await ask("POST", "/subscriptions", subscribed(receiver, notificationTrigger=["entityCreated"]))
        ).status == 201
        text = "PREFIX n: <https://uri.etsi.org/ngsi-ld/> PREFIX d: <https://uri.etsi.org/ngsi-ld/default-context/> "
        triples = " ".join(
            f"<urn:x:{one}> a d:Building ; d:a <urn:n:{one}> . <urn:n:{one}> a n:Property ; n:hasValue {one} ."
            for one in range(1001, 1121)
        )
        text += f"INSERT DATA {{ GRAPH <http://lamplighter.local/ngsi-ld> {{ {triples} }} }}"
        receiver.answer = lambda request: Reply(200 if len(receiver.posted) != 1 else 503)
        assert (await update(at, text)).status == 200
        found = await arrived(receiver, 4)
        assert [len(one) for one in found] == [50, 50, 50, 20], "the second was refused, and is sent again"
        assert found[1] == found[2] and receiver.posted[1].json["id"] == receiver.posted[2].json["id"]
        told = [one["id"] for part in (0, 2, 3) for one in found[part]]
        assert told == [f"urn:x:{one}" for one in range(1001, 1121)]
        assert len({one.json["id"] for one in receiver.posted}) == 3


async def test_subscriptions_are_paused_throttled_changed_and_listed(ask: Ask) -> None:
    with HttpReceiver() as receiver:

        async def put(value: int) -> None:
            assert (await ask("PATCH", f"{ONE}/attrs", {"temperature": value})).status == 204

        async def change(**members: Any) -> None:
            changed = await ask("PATCH", "/subscriptions/urn:x:s", members)
            assert changed.status == 204, changed.body

        assert (
            await ask("POST", "/subscriptions", subscribed(receiver, isActive=False, description="d"))
        ).status == 201
        assert (await state(ask))["status"] == "paused"
        await put(1)
        await change(isActive=True, description=NULL)
        assert "description" not in await state(ask)
        await put(2)
        await arrived(receiver, 1)
        await change(q="temperature>5")
        for value in (3, 6):
            await put(value)
        await arrived(receiver, 2)
        await change(throttling=3600)
        await put(7)
        await change(throttling=NULL, q=NULL)
        await put(8)
        found = await arrived(receiver, 3)
        assert [one["temperature"]["value"] for [one] in found] == [2, 6, 8]
        for number in range(3):
            assert (await ask("POST", "/subscriptions", subscribed(receiver, f"urn:x:t{number}"))).status == 201
        first = await ask("GET", "/subscriptions?limit=3&count=true")
        assert [one["id"] for one in first.json] == ["urn:x:s", "urn:x:t0", "urn:x:t1"]
        assert first.headers["ngsild-results-count"] == "4"
        following = first.headers["link"].partition(">")[0].removeprefix("</ngsi-ld/v1")
        assert [one["id"] for one in (await ask("GET", following)).json] == ["urn:x:t2"]
        assert (await ask("DELETE", "/subscriptions/urn:x:s")).status == 204
        problem(await ask("GET", "/subscriptions/urn:x:s"), 404, "ResourceNotFound")


async def test_wrong_requests_are_refused(ask: Ask) -> None:
    with HttpReceiver() as receiver:
        whole = subscribed(receiver)
        assert (await ask("POST", "/subscriptions", whole)).status == 201
        problem(await ask("POST", "/subscriptions", whole), 409, "AlreadyExists")
        other = whole | {"id": "urn:x:t"}
        wrong: list[tuple[dict[str, Any], int, str, str]] = [
            (other | {"type": "Entity"}, 400, BAD, "Subscription"),
            (other | {"id": "x"}, 400, BAD, "id"),
            (other | {"timeInterval": 5}, 422, REFUSED, "timeInterval"),
            (other | {"expiresAt": "2020-01-01T00:00:00Z"}, 400, BAD, "past"),
            (other | {"jsonldContext": "http://h/c"}, 503, "LdContextNotAvailable", "not known"),
            (other | {"notification": {"endpoint": {"uri": "mqtt://h/"}}}, 400, BAD, "endpoint.uri"),
            (other | {"notification": {"endpoint": {"uri": "http://a:b@h/"}}}, 400, BAD, "user or password"),
            (other | {"q": "|".join(["a>1"] * 12)}, 403, "TooComplexQuery", "patterns"),
        ]
        for body, status, name, told in wrong:
            answer = await ask("POST", "/subscriptions", body)
            assert told in problem(answer, status, name), answer.body
        for change, told in (
            ({"id": "urn:x:t"}, "id"),
            ({"notification": NULL}, "missing"),
            ({"entities": NULL}, "one"),
        ):
            assert told in problem(await ask("PATCH", "/subscriptions/urn:x:s", change), 400, BAD)
        assert (await ask("PUT", "/subscriptions/urn:x:s", {})).status == 405
        problem(await ask("PATCH", "/subscriptions/urn:x:none", {}), 404, "ResourceNotFound")


async def test_a_receiver_that_fails_waits_for_a_change(at: Addresses, ask: Ask) -> None:
    with HttpReceiver() as failing, HttpReceiver() as receiver:
        failing.answer = lambda request: Reply(500)
        assert (await ask("POST", "/subscriptions", subscribed(failing))).status == 201
        for value in (1, 2):
            assert (await ask("PATCH", f"{ONE}/attrs", {"temperature": value})).status == 204
        await arrived(failing, 2)

        async def degraded() -> bool:
            listed = (await health(at))["components"]
            return any(one["name"] == "ngsild.subscriptions" and one["state"] == "degraded" for one in listed)

        await until(degraded)
        told = (await state(ask))["notification"]
        assert told["status"] == "failed" and "500" in told["lastFailureReason"] and told["lastFailure"]
        moved = {"notification": {"endpoint": {"uri": receiver.url()}}}
        assert (await ask("PATCH", "/subscriptions/urn:x:s", moved)).status == 204
        found = await arrived(receiver, 2)
        assert [one["temperature"]["value"] for [one] in found] == [1, 2], "each as its commit left it"


async def test_subscriptions_outlive_the_process(tmp_path: Path) -> None:
    entity = {"id": "urn:x:1", "type": "Building", "a": 0}
    with HttpReceiver() as receiver:
        down = True
        receiver.answer = lambda request: Reply(503 if down else 200)
        for run in range(2):
            ngsild = {"enabled": True, "subscriptions": SUBSCRIBED | {"attempts_max": 1000, "backoff_s_max": 1}}
            async with running_gateway(tmp_path, ngsild=ngsild) as at:
                root = at.query.removesuffix("/query") + "/ngsi-ld/v1"
                sent = {"Content-Type": "application/json"}
                if run == 0:
                    endpoint = {"uri": receiver.url(), "receiverInfo": [{"key": "X-Token", "value": "t"}]}
                    body = json.dumps(subscribed(receiver, notification={"endpoint": endpoint}))
                    assert (await http(f"{root}/subscriptions", "POST", body, sent)).status == 201
                    assert (await http(f"{root}/entities", "POST", json.dumps(entity), sent)).status == 201
                    await asyncio.to_thread(receiver.wait_posted, 1)
                else:
                    down = False
                    await asyncio.to_thread(receiver.wait, lambda: acknowledged(receiver) >= 1)
                    assert (await http(f"{root}/entities/urn:x:1/attrs/a", "PATCH", '{"value": 1}', sent)).status == 204
                    await asyncio.to_thread(receiver.wait, lambda: acknowledged(receiver) >= 2)
        found = [one.json["data"][0]["a"]["value"] for one in receiver.posted]
        assert found == sorted(found) and set(found) == {0, 1}
        assert all(one.headers["x-token"] == "t" for one in receiver.posted)


def acknowledged(receiver: HttpReceiver) -> int:
    """Notifications that were received when the last one was: an id that comes again counts once."""
    return len({one.json["data"][0]["a"]["value"] for one in receiver.posted if one.json["data"]} - {None})


async def test_private_addresses_and_too_many_are_refused(tmp_path: Path) -> None:
    subscriptions = {"enabled": True, "ports": [80], "deliveries_max": 2, "backoff_ms": 10}
    async with running_gateway(tmp_path, ngsild={"enabled": True, "subscriptions": subscriptions}) as at:
        root = at.query.removesuffix("/query") + "/ngsi-ld/v1"

        async def ask(method: str, target: str, body: Any = None) -> Answer:
            content = None if body is None else json.dumps(body)
            return await http(root + target, method, content, {"Content-Type": "application/json"})

        def body(identifier: str, url: str) -> dict[str, Any]:
            whole = {"id": identifier, "type": "Subscription", "watchedAttributes": ["a"]}
            return whole | {"notification": {"endpoint": {"uri": url}}}

        problem(await ask("POST", "/subscriptions", body("urn:x:s", "http://127.0.0.1:81/")), 400, BAD)
        for number, url in enumerate(("http://127.0.0.1/", "http://169.254.169.254/")):
            assert (await ask("POST", "/subscriptions", body(f"urn:x:{number}", url))).status == 201
        problem(await ask("POST", "/subscriptions", body("urn:x:s", "http://127.0.0.1/")), 403, "TooComplexQuery")
        assert (await ask("POST", "/entities", {"id": "urn:x:e", "type": "T", "a": 1})).status == 201

        async def refused() -> bool:
            told = [
                one["notification"].get("lastFailureReason", "") for one in (await ask("GET", "/subscriptions")).json
            ]
            return all("ngsild.subscriptions.networks" in one or "metadata" in one for one in told)

        await until(refused)


async def test_nothing_is_left_out_silently(tmp_path: Path) -> None:
    """More waits than is retained: all that matches is told, with the reason."""
    with HttpReceiver() as receiver:
        down = True
        taken: list[Received] = []

        def answer(request: Received) -> Reply:
            if down:
                return Reply(503)
            taken.append(request)
            return Reply()

        receiver.answer = answer
        subscriptions = SUBSCRIBED | {"attempts_max": 100_000, "backoff_s_max": 1}
        tables: dict[str, Any] = {
            "ngsild": {"enabled": True, "subscriptions": subscriptions},
            "resume": {"outbox_bytes_max": 4_000},
        }
        async with running_gateway(tmp_path, **tables) as at:
            root, sent = at.query.removesuffix("/query") + "/ngsi-ld/v1", {"Content-Type": "application/json"}
            wanted = subscribed(receiver, q="a>5")
            assert (await http(f"{root}/subscriptions", "POST", json.dumps(wanted), sent)).status == 201
            for number in range(3):
                entity = {"id": f"urn:x:{number}", "type": "Building", "a": 5 * number}
                assert (await http(f"{root}/entities", "POST", json.dumps(entity), sent)).status == 201
            for value in range(10, 40):
                url = f"{root}/entities/urn:x:1/attrs/a"
                assert (await http(url, "PATCH", json.dumps({"value": value}), sent)).status == 204
            down = False

            def told(request: Received) -> dict[str, int]:
                return {one["id"]: one["a"]["value"] for one in request.json["data"]}

            await asyncio.to_thread(receiver.wait, lambda: any(told(one).get("urn:x:1") == 39 for one in taken), "39")
            assert told(taken[0]).keys() == {"urn:x:1", "urn:x:2"} and told(taken[0])["urn:x:2"] == 10
            assert "retained" in taken[0].headers["webhook-reset"]
            url = f"{root}/subscriptions/urn:x:s"
            soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
            assert (await http(url, "PATCH", json.dumps({"expiresAt": soon}), sent)).status == 204

            async def gone() -> bool:
                return (await http(url)).status == 404

            await until(gone, "its end")


async def test_they_are_off_by_default(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ngsild={"enabled": True}) as at:
        answer = await http(at.query.removesuffix("/query") + "/ngsi-ld/v1/subscriptions")
        assert "[ngsild.subscriptions]" in problem(answer, 422, REFUSED)
