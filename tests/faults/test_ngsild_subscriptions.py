"""Random operations on entities, through the NGSI-LD door and by SPARQL: each subscription is notified of what it asks
for, no more and no less, and each entity of a notification is what GET says.

The expected notifications follow from GET alone: the entities before and after an operation, and those that match
``q``. 80 operations; `NGSILD_OPERATIONS=2000` in the environment makes more.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.receivers import HttpReceiver
from tests.support.running_gateway import Answer, http, running_gateway, update
from tests.support.small_house import PREFIXES, SMALL_HOUSE

pytestmark = pytest.mark.faults

OPERATIONS = int(os.environ.get("NGSILD_OPERATIONS", "80"))
STREAM = "http://lamplighter.example/ns/gateway#Stream"
RESULT = "http://www.w3.org/ns/sosa/hasSimpleResult"
NULL = "urn:ngsi-ld:null"
UPDATED = {"attributeCreated", "attributeUpdated", "attributeDeleted"}
ENTITIES, TYPES, NAMES = [f"urn:x:{one}" for one in range(4)], ("T", "U"), ("a", "b", "c")
N, D = "https://uri.etsi.org/ngsi-ld/", "https://uri.etsi.org/ngsi-ld/default-context/"
SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"entities": [{"type": "T"}]},
    "all": {"entities": [{"type": "*"}], "notificationTrigger": ["entityCreated", "entityUpdated", "entityDeleted"]},
    "watched": {"watchedAttributes": ["a"], "entities": [{"type": "T"}, {"type": "U"}], "q": "a>4|b"},
    "other": {"watchedAttributes": ["b", "c"], "entities": [{"type": "T"}], "q": "a>4"},
    "deleted": {
        "entities": [{"type": "U"}],
        "notificationTrigger": ["attributeDeleted", "entityDeleted"],
        "q": "a|c<7",
    },
    "created": {"entities": [{"type": "T", "idPattern": "[12]$"}], "notificationTrigger": ["entityCreated"]},
    "one": {"entities": [{"type": "*", "id": "urn:x:1"}], "watchedAttributes": ["a", "b", "c", "d"], "q": "b!=2"},
    "streams": {"entities": [{"type": STREAM}], "watchedAttributes": [RESULT], "q": f"{RESULT}>2"},
}
States = dict[str, dict[str, Any]]


class Api:
    """The entities, by GET."""

    def __init__(self, query: str) -> None:
        self._root = query.removesuffix("/query") + "/ngsi-ld/v1"

    async def send(self, method: str, target: str, body: Any = None) -> Answer:
        content = None if body is None else json.dumps(body)
        return await http(self._root + target, method, content, {"Content-Type": "application/json"})

    async def selected(self, wanted: dict[str, Any], q: str = "") -> States:
        """The entities of a subscription, those that fulfil q. Of streams that are events, none is followed."""
        found: States = {}
        for one in wanted["entities"]:
            asked = {"local": "true", "limit": "100", "type": one["type"].removesuffix("*"), "q": q}
            asked |= {"id": one.get("id", ""), "idPattern": one.get("idPattern", "")}
            target = "&".join(f"{name}={quote(value)}" for name, value in asked.items() if value)
            answer = await self.send("GET", f"/entities?{target}")
            assert answer.status == 200, answer.body
            found |= {entity["id"]: entity for entity in answer.json if not entity["id"].endswith("stream/2")}
        return found


def attributes(entity: dict[str, Any] | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """Those that are watched."""
    members = {} if entity is None else {name: one for name, one in entity.items() if name not in ("id", "type")}
    if entity is not None and entity["type"] == STREAM:
        members = {name: one for name, one in members.items() if name == RESULT}
    watched = wanted.get("watchedAttributes", ())
    return {name: one for name, one in members.items() if not watched or name in watched}


def expected(wanted: dict[str, Any], before: States, after: States, matched: set[str], matches: set[str]) -> list[Any]:
    """The data of the notification of an operation; empty if there is none."""
    triggers = set(wanted.get("notificationTrigger", ("attributeCreated", "attributeUpdated")))
    triggers |= UPDATED if "entityUpdated" in triggers else set()
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = attributes(before.get(name), wanted), attributes(after.get(name), wanted)
        fired = {"entityCreated"} if name not in before else {"entityDeleted"} if name not in after else set()
        fired |= {"attributeCreated" for one in new.keys() - old.keys()}
        fired |= {"attributeDeleted" for one in old.keys() - new.keys()}
        fired |= {"attributeUpdated" for one in new.keys() & old.keys() if new[one] != old[one]}
        gone = {one: old[one] for one in old.keys() - new.keys()} if "attributeDeleted" in triggers else {}
        # Of an attribute that was deleted, and of an entity, it counts whether the entity matched before, if nothing
        # that is watched is left of it.
        seen = name in (matches if new or (name in after and "notificationTrigger" in wanted) else matched)
        if fired.isdisjoint(triggers) or not seen:
            continue
        data = dict(after.get(name, {"id": name, "type": before.get(name, {}).get("type")}))
        for one, value in gone.items():
            data[one] = {"type": value["type"], ("object" if value["type"] == "Relationship" else "value"): NULL}
        if name not in after:
            data["deletedAt"] = "now"
        found.append(data)
    return found


def value(random: Random) -> Any:
    number = random.randrange(9)
    return random.choice(
        (
            number,
            {"type": "Property", "value": number, "unitCode": random.choice(("CEL", "KEL"))},
            {"type": "Property", "value": number, "observedAt": "2026-11-26T10:00:00Z"},
            {"type": "Relationship", "object": f"urn:x:{number}"},
            "text",
        )
    )


async def operate(random: Random, door: Api, query: str) -> str:
    """One operation, which may be refused."""
    entity, name = random.choice(ENTITIES), random.choice(NAMES)
    kinds = {"create": 3, "put": 4, "patch": 2, "remove": 1, "delete": 1, "sparql": 2, "read": 2}
    [kind] = random.choices(list(kinds), list(kinds.values()))
    members = {one: value(random) for one in random.sample(NAMES, random.randrange(1, 3))}
    match kind:
        case "create":
            await door.send("POST", "/entities", {"id": entity, "type": random.choice(TYPES)} | members)
        case "put":
            more = {"type": random.choice(TYPES)} if random.random() < 0.2 else {}
            await door.send("POST", f"/entities/{entity}/attrs", members | more)
        case "patch":
            await door.send("PATCH", f"/entities/{entity}/attrs", members | {name: NULL})
        case "remove":
            await door.send("DELETE", f"/entities/{entity}/attrs/{name}")
        case "delete":
            await door.send("DELETE", f"/entities/{entity}")
        case "sparql":  # several entities in one commit
            number = random.randrange(9)
            where = f"?n <{N}hasValue> ?v . ?e <{D}{name}> ?n FILTER(ISNUMERIC(?v))"
            text = (
                f"WITH <http://lamplighter.local/ngsi-ld> DELETE {{ ?n <{N}hasValue> ?v }} "
                f"INSERT {{ ?n <{N}hasValue> {number} }} WHERE {{ {where} }}"
            )
            assert (await http(query.replace("/query", "/update"), "POST", text, SPARQL)).status == 200
        case "read":
            text = (
                f"{PREFIXES} DELETE {{ ?o sosa:hasSimpleResult ?v }} "
                f"INSERT {{ ?o sosa:hasSimpleResult {random.randrange(9)} }} "
                "WHERE { <stream/1> gateway:liveObservation ?o . ?o sosa:hasSimpleResult ?v }"
            )
            assert (await http(query.replace("/query", "/update"), "POST", text, SPARQL)).status == 200
    return f"{kind} {entity} {name} {members}"


SPARQL = {"Content-Type": "application/sparql-update"}


async def test_each_notification_is_what_get_says(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    ons = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []}
    counts: dict[str, int] = dict.fromkeys(SUBSCRIPTIONS, 0)
    with HttpReceiver() as receiver:
        async with running_gateway(tmp_path, ngsild={"enabled": True, "subscriptions": ons}) as at:
            assert (await update(at, SMALL_HOUSE)).status == 200
            door = Api(at.query)
            for name, wanted in SUBSCRIPTIONS.items():
                endpoint = {"uri": receiver.url(f"/{name}")}
                body = {"id": f"urn:s:{name}", "type": "Subscription", "notification": {"endpoint": endpoint}} | wanted
                assert (await door.send("POST", "/subscriptions", body)).status == 201

            async def states() -> dict[str, tuple[States, set[str]]]:
                return {
                    name: (await door.selected(wanted), set(await door.selected(wanted, wanted.get("q", ""))))
                    for name, wanted in SUBSCRIPTIONS.items()
                }

            before = await states()
            for number in range(OPERATIONS):
                done = await operate(random, door, at.query)
                after = await states()
                due = {}
                for name, wanted in SUBSCRIPTIONS.items():
                    told = expected(wanted, before[name][0], after[name][0], before[name][1], after[name][1])
                    if told:
                        due[name] = told
                        counts[name] += 1
                place = f"seed {seed}, operation {number}: {done}"
                await asyncio.to_thread(receiver.wait, lambda: len(receiver.posted) >= sum(counts.values()), place)
                new = receiver.posted[sum(counts.values()) - len(due) :]
                found = {one.path[1:]: one.json["data"] for one in new}
                for data in found.values():
                    for entity in data:
                        if "deletedAt" in entity:
                            entity["deletedAt"] = "now"
                assert found == due, place
                assert len(new) == len(due), place
                before = after
    ids = [one.json["id"] for one in receiver.posted]
    assert len(ids) == len(set(ids))
    print(counts)
    assert all(counts.values()) or OPERATIONS < 200, counts
