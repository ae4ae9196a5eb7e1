"""Costly updates and subscriptions at a gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.client import EngineClient, RefusedError
from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import ask, health, hear, rows, running_gateway, tell, updates_during
from tests.support.running_gateway import update as post

# A path without end keeps the store's own evaluation; two patterns that share nothing make a product.
CHAIN = "INSERT { ?s <http://q> 1 } WHERE { ?s <http://p> ?o . ?o <http://none>+ ?x }"
PRODUCT = (
    "INSERT { ?s <http://q> ?o } WHERE { ?s <http://p> ?a . ?b <http://p> ?o . ?c <http://p> ?d . ?c <http://n>* ?e }"
)
SLOW = "SELECT (COUNT(*) AS ?n) { ?a <http://p> ?b . ?c <http://p> ?d . ?e <http://p> ?f . ?e !<http://n> ?g }"
PATHS = "SELECT ?a ?b { ?a (<http://next>/<http://next>?)+ ?b }"


def triples(count: int) -> str:
    return "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(count)) + "}"


async def test_a_costly_update_is_refused_with_the_limit_and_others_go_on_meanwhile(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 300}) as at:
        await post(at, triples(1000))
        costly = asyncio.create_task(post(at, PRODUCT))
        done = await updates_during(at, costly)
        answer = await costly
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert "limits.evaluation_ms_max = 300" in answer.json["error_description"]
        assert done >= 3, "updates hardly went on beside the trial"
        assert await rows(at, "SELECT ?s { ?s <http://q> ?o }") == []
        assert (await health(at))["trials"] == 1


async def test_an_update_that_passes_has_its_effect(gateway: Addresses) -> None:
    await post(gateway, "INSERT DATA { <http://a> <http://p> <http://b> . <http://b> <http://none> <http://c> }")
    for _ in range(3):
        assert (await post(gateway, CHAIN)).status == 200
    assert [row["s"] for row in await rows(gateway, "SELECT ?s { ?s <http://q> 1 }")] == ["http://a"]
    assert (await health(gateway))["trials"] == 1


async def test_requests_of_a_connection_keep_their_order_behind_a_trial(gateway: Addresses) -> None:
    """The second would not find anything to delete if it went first."""
    async with connect(gateway.subscribe) as socket:
        await post(gateway, "INSERT DATA { <http://a> <http://p> <http://b> . <http://b> <http://none> <http://c> }")
        for alias, text in (("1", CHAIN), ("2", "DELETE WHERE { ?s <http://q> ?o }"), ("3", CHAIN)):
            await tell(socket, {"update": {"sparql": text, "alias": alias}})
        await tell(socket, {"subscribe": {"sparql": "SELECT ?s { ?s <http://q> ?o }", "alias": "4"}})
        answers = [await hear(socket) for _ in range(4)]
        updated = [answer["updated"] for answer in answers if "updated" in answer]
        assert [(answer["alias"], answer["sequence"]) for answer in updated] == [("1", 2), ("2", 3), ("3", 4)]
        [first] = [answer["notification"] for answer in answers if "notification" in answer]
        assert len(first["addedResults"]["results"]["bindings"]) == 1


async def test_a_refused_one_does_not_stop_those_behind_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 100}) as at, connect(at.subscribe) as socket:
        await post(at, triples(1000))
        for alias, text in (("1", PRODUCT), ("2", "INSERT DATA { <http://x> <http://y> 1 }")):
            await tell(socket, {"update": {"sparql": text, "alias": alias}})
        one, two = await hear(socket), await hear(socket)
        assert (one["alias"], one["error"]) == ("1", "limit_exceeded")
        assert two["updated"]["alias"] == "2"


async def test_a_costly_subscription_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 100}) as at, connect(at.subscribe) as socket:
        await post(at, triples(1000))
        answer = await ask(socket, {"subscribe": {"sparql": SLOW, "alias": "a"}})
        assert (answer["error"], answer["status_code"], answer["alias"]) == ("limit_exceeded", 403, "a")
        assert "limits.evaluation_ms_max = 100" in answer["error_description"]
        assert (await health(at))["subscriptions"] == 0


@pytest.mark.parametrize(
    "text", ["SELECT ?s { ?s <http://p> ?o }", "SELECT ?s { ?s (<http://p>/<http://p>?)* ?o . ?s <http://p> ?x }"]
)
async def test_a_first_result_may_have_as_many_rows_as_the_limit_and_no_more(tmp_path: Path, text: str) -> None:
    async with (
        running_gateway(tmp_path, limits={"first_result_rows_max": 10}) as at,
        connect(at.subscribe) as socket,
    ):
        count = 5 if "*" in text else 10  # each subject with itself and with its object
        await post(at, triples(count))
        first = await ask(socket, {"subscribe": {"sparql": text, "alias": "a"}})
        assert len(first["notification"]["addedResults"]["results"]["bindings"]) == 10
        await tell(socket, {"unsubscribe": {"spuid": first["notification"]["spuid"]}})
        assert "unsubscribed" in await hear(socket)
        await post(at, "INSERT DATA { <http://one-more> <http://p> 1 }")
        answer = await ask(socket, {"subscribe": {"sparql": text, "alias": "b"}})
        assert (answer["error"], answer["alias"]) == ("limit_exceeded", "b")
        assert "limits.first_result_rows_max = 10" in answer["error_description"]
        state = await health(at)
        assert state["subscriptions"] == sum(state["subscription_classes"].values()) == 0


async def test_a_client_is_told_that_its_subscription_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    async with (
        running_gateway(tmp_path) as at,
        connect(at.subscribe) as socket,
        EngineClient(at.subscribe) as client,
    ):
        first = (await ask(socket, {"subscribe": {"sparql": PATHS, "alias": "a"}}))["notification"]
        changes = client.subscribe(PATHS)
        await anext(changes)
        monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", lambda: float(next(seconds)))
        await post(at, "INSERT DATA { <http://1> <http://next> <http://x> }")
        told = await hear(socket)
        assert (told["error"], told["alias"], told["spuid"]) == ("limit_exceeded", "a", first["spuid"])
        with pytest.raises(RefusedError, match=r"limits\.evaluation_ms_max"):
            async for _ in changes:
                pass
        gone = await ask(socket, {"unsubscribe": {"spuid": first["spuid"], "alias": "b"}})
        assert gone["error"] == "sid_not_found"
        assert json.dumps((await health(at))["subscriptions"]) == "0"


STARS = " ".join(f"<urn:a{number}> <urn:p> <urn:h1> . <urn:h2> <urn:p> <urn:b{number}> ." for number in range(400))
MET = "?a <urn:p>+ ?b . ?a <urn:p>+ ?c"
"""160,000 solutions in two stars, and 64 million when one quad has joined them."""


@pytest.mark.faults  # it takes long
async def test_one_quad_that_makes_an_evaluation_too_costly_ends_the_subscription_and_stands(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 1000}) as gateway:
        assert await post(gateway, f"INSERT DATA {{ {STARS} }}")
        async with connect(gateway.subscribe) as socket:
            await tell(socket, {"subscribe": {"sparql": f"SELECT (COUNT(*) AS ?n) {{ {MET} }}", "alias": "met"}})
            first = (await hear(socket))["notification"]
            assert first["addedResults"]["results"]["bindings"][0]["n"]["value"] == "160400"
            await post(gateway, "INSERT DATA { <urn:h1> <urn:p> <urn:h2> }")
            ended = await hear(socket)
            assert ended["error"] == "limit_exceeded"
            assert ended["spuid"] == first["spuid"]
            assert "evaluation_ms_max" in ended["error_description"]
        # The same query, and an update whose WHERE it is, are refused now, and others go on.
        async with connect(gateway.subscribe) as socket:
            await tell(socket, {"subscribe": {"sparql": f"SELECT (COUNT(*) AS ?n) {{ {MET} }}", "alias": "met"}})
            assert (await hear(socket))["error"] == "limit_exceeded"
            await tell(socket, {"update": {"sparql": f"INSERT {{ ?a <urn:q> 1 }} WHERE {{ {MET} }}"}})
            assert (await hear(socket))["error"] == "limit_exceeded"
        assert len(await rows(gateway, "SELECT ?o { <urn:h1> <urn:p> ?o }")) == 1
