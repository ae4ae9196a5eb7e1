"""`GET /delayed` and `GET /subscriptions`: parts of long lists and texts, and lists that have not changed."""

from __future__ import annotations

from typing import Any

import pytest

from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, http, update

LONG = "INSERT DATA { <http://e/s> <http://e/p> '%s' }" % ("x" * 100)
SHORT = "INSERT DATA { <http://e/s> <http://e/p> 1 }"
SELECT = "SELECT ?s { ?s <http://e/p> 'what a long text this is' }"


async def get(at: Addresses, path: str, known: str = "") -> Answer:
    return await http(at.query.replace("/query", path), headers={"If-None-Match": known} if known else None)


async def delay(at: Addresses, sparql: str, by: str) -> str:
    answer = await update(at, sparql, delay=by)
    assert answer.status == 202, answer.body
    return str(answer.json["delayed"])


async def test_the_next_timers_and_the_beginning_of_their_texts(gateway: Addresses) -> None:
    late, soon = await delay(gateway, LONG, "PT2H"), await delay(gateway, SHORT, "PT1H")
    whole = (await get(gateway, "/delayed")).json
    assert [row["id"] for row in whole["delayed"]] == [soon, late]
    assert whole["delayed"][1]["update"] == LONG
    found = (await get(gateway, "/delayed?limit=1")).json
    assert (found["total"], [row["id"] for row in found["delayed"]]) == (2, [soon])
    first, second = (await get(gateway, f"/delayed?characters={len(SHORT)}")).json["delayed"]
    assert first["update"] == SHORT and "update_characters" not in first
    assert (second["update"], second["update_characters"]) == (LONG[: len(SHORT)], len(LONG))


async def test_timers_are_sent_again_when_one_is_set_or_ends(gateway: Addresses) -> None:
    await delay(gateway, SHORT, "PT1H")
    answer = await get(gateway, "/delayed")
    tag = answer.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await get(gateway, "/delayed", known)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (await get(gateway, "/delayed?limit=1", tag)).status == 200, "another list"
    await update(gateway, SHORT)
    assert (await get(gateway, "/delayed", tag)).status == 304
    name = await delay(gateway, SHORT, "PT1H")
    grown = await get(gateway, "/delayed", tag)
    assert (grown.status, grown.json["total"]) == (200, 2)
    assert (await http(gateway.query.replace("/query", f"/delayed/{name}"), "DELETE")).status == 200
    shrunk = await get(gateway, "/delayed", grown.headers["etag"])
    assert (shrunk.status, shrunk.json["total"]) == (200, 1)


async def test_subscriptions_in_part_and_unchanged(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        subscriptions = [client.subscribe(SELECT) for _ in range(2)]
        for subscription in subscriptions:
            await anext(subscription)
        answer = await get(gateway, "/subscriptions")
        rows: list[dict[str, Any]] = answer.json["subscriptions"]
        assert len(rows) == 2 and "text_characters" not in rows[0]
        found = (await get(gateway, "/subscriptions?limit=1&characters=10")).json
        [row] = found["subscriptions"]
        assert found["total"] == 2
        assert (row["text"], row["text_characters"]) == (rows[0]["text"][:10], len(rows[0]["text"]))
        assert (await get(gateway, "/subscriptions", answer.headers["etag"])).status == 304
        await subscriptions.pop().aclose()
        await client.ask("ASK {}")
        assert (await get(gateway, "/subscriptions", answer.headers["etag"])).status == 200
        await subscriptions.pop().aclose()


@pytest.mark.parametrize("path", ["/delayed", "/subscriptions"])
@pytest.mark.parametrize("asked", ["limit=0", "limit=1001", "limit=x", "characters=0", "last=1", "limit=1&limit=2"])
async def test_wrong_parameters_are_refused(gateway: Addresses, path: str, asked: str) -> None:
    assert (await get(gateway, f"{path}?{asked}")).status == 400
