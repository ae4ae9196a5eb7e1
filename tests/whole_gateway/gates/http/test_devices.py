"""Devices over HTTP, and that the command takes the same way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamplighter.adapters.devices.desired import reported_update
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.literals import datetime_term
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine.terms import XSD, iri, literal
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.devices.decisions import Row
from lamplighter.gateway.gates.http import devices as handlers
from lamplighter.gateway.settings import GatewaySettings
from lamplighter.gateway.sharing import TotalBudget
from lamplighter.ontology.vocabulary import ONLINE, SINCE, broker_iri
from tests.support.announcements import announcements, zigbee_house
from tests.support.commands import command
from tests.support.running_gateway import Answer, http, query, rows, update

REGISTRY = Registry(GatewaySettings().base_iri)
FOUND = {
    one.name: one
    for one in Announcements(["zigbee2mqtt"], devices_max=100)
    .read("default", "z/bridge/devices", zigbee_house(1))
    .devices
}
LAMP, MOTION = FOUND["room1/lamp"], FOUND["room1/motion"]
PREFIXES = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "


@pytest.fixture
async def house(gateway: Addresses) -> AsyncIterator[Addresses]:
    """A gateway with proposed devices."""
    for device in FOUND.values():
        assert (await update(gateway, REGISTRY.announced(None, device, "ask") or "")).status == 200
    yield gateway


async def get(at: Addresses, name: str = "") -> dict[str, Any]:
    answer = await http(at.query.replace("/query", f"/devices{'/' if name else ''}{name}"))
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def post(at: Addresses, name: str, /, **members: object) -> Answer:
    return await http(at.query.replace("/query", f"/devices/{name}"), "POST", json.dumps(members))


async def done(at: Addresses, name: str, /, **members: object) -> dict[str, Any]:
    answer = await post(at, name, **members)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def test_several_devices_are_adopted_together(house: Addresses) -> None:
    url = house.query.replace("/query", "/devices")
    ids = [LAMP.identity, "zigbee2mqtt/none", MOTION.identity, LAMP.identity]
    answer = await http(url, "POST", json.dumps({"action": "adopt", "devices": ids, "area": "Hall"}))
    assert answer.status == 200, answer.body
    assert {(one["id"], one["area"], one["state"]) for one in answer.json["adopted"]} == {
        (LAMP.identity, "Hall", "adopted"),
        (MOTION.identity, "Hall", "adopted"),
    }
    assert answer.json["refused"] == [{"id": "zigbee2mqtt/none", "reason": "no device has this identity"}]
    states = [one["state"] for one in (await get(house))["devices"]]
    assert sorted(states) == ["adopted", "adopted", "proposed", "proposed"]
    for body in ({"action": "remove", "devices": ids}, {"action": "adopt"}, {"action": "adopt", "devices": "all"}):
        assert (await http(url, "POST", json.dumps(body))).status == 400
    answer = await http(f"{url}?room=Hall", "POST", json.dumps({"action": "adopt", "devices": ids}))
    assert answer.status == 400 and "unknown parameter 'room'" in answer.body.decode()


async def test_devices_are_listed_with_their_parts(house: Addresses) -> None:
    found = await get(house)
    assert (found["total"], found["unreadable"]) == (4, [])
    assert {one["state"] for one in found["devices"]} == {"proposed"}
    [lamp] = [one for one in found["devices"] if one["id"] == LAMP.identity]
    assert (lamp["name"], lamp["source"], lamp["broker"]) == ("room1/lamp", "zigbee2mqtt", "default")
    assert "online" not in lamp
    actuators = {one["key"]: one for one in lamp["actuators"]}
    assert actuators["state"]["kind"] == "gateway:light"
    assert actuators["state"]["iri"].startswith("http://lamplighter.local/actuator/zigbee2mqtt/")


async def test_a_device_is_adopted_and_has_what_was_shown_before(house: Addresses) -> None:
    shown = await get(house, MOTION.identity)
    assert shown["announcement"]["id"] == MOTION.id
    adopted = await done(house, MOTION.identity, action="adopt", area="Kitchen")
    assert (adopted["state"], adopted["area"], adopted["warnings"]) == ("adopted", "Kitchen", [])
    after = await get(house, MOTION.identity)
    assert (after["state"], after["area"]) == ("adopted", "Kitchen")
    triples = set(after["triples"])
    assert set(shown["triples"]) < triples, "the area is new"
    graph = await query(house, "CONSTRUCT WHERE { ?s ?p ?o }", "application/n-triples")
    assert triples <= set(graph.body.decode().splitlines())
    assert after["rules"] == shown["rules"] and after["rules"]


async def test_the_page_of_a_device_has_its_newest_values_and_states(house: Addresses) -> None:
    await done(house, LAMP.identity, action="adopt")
    node, light = REGISTRY.device_iri(LAMP), next(one for one in LAMP.actuators if one.key == "state")
    set_ = await done(house, LAMP.identity, action="set", state=True)
    assert set_ == {"id": LAMP.identity, "actuator": REGISTRY.actuator_iri(light)[1:-1], "desired": "true"}
    await done(house, LAMP.identity, action="set", actuator="brightness", state=100)
    broker, off = iri(broker_iri("http://e/", "default")), literal("false", datatype=XSD + "boolean")
    at = datetime(2026, 11, 21, 10, tzinfo=UTC)
    await update(house, reported_update(REGISTRY.actuator_iri(light), off, at, [broker]))
    await update(house, f"INSERT DATA {{ {node} {iri(ONLINE)} false }}")
    found = await get(house, LAMP.identity)
    assert found["online"] is False
    [state] = [one for one in found["actuators"] if one["key"] == "state"]
    assert (state["desired"], state["reported"], state["states"]) == ("true", "false", ["false", "true"])
    assert state["place"] == "z/room1/lamp/set"
    assert (state["reported_time"], "confirmed" in state) == ("2026-11-21T10:00:00Z", False)
    for hour, confirmed in ((10, True), (11, False)):
        since = f"{broker} <{SINCE}>"
        back = datetime_term(at.replace(hour=hour))
        await update(house, f"DELETE WHERE {{ {since} ?t }} ; INSERT DATA {{ {since} {back} }}")
        [state] = [one for one in (await get(house, LAMP.identity))["actuators"] if one["key"] == "state"]
        assert state["confirmed"] is confirmed
    [brightness] = [one for one in found["actuators"] if one["key"] == "brightness"]
    assert brightness["desired"] == "100"
    await done(house, MOTION.identity, action="adopt")
    sensor = REGISTRY.sensor_iri(MOTION.sensors[0])
    time = f"'2026-11-21T10:00:00Z'^^<{XSD}dateTime>"
    reading = f"<http://e/r> sosa:madeBySensor {sensor} ; sosa:hasSimpleResult 7 ; sosa:resultTime {time}"
    await update(house, f"{PREFIXES} INSERT DATA {{ {reading} }}")
    [first] = [one for one in (await get(house, MOTION.identity))["sensors"] if one["iri"] == sensor[1:-1]]
    assert (first["value"], first["time"]) == ("7", "2026-11-21T10:00:00Z")


async def test_a_device_is_renamed_ignored_and_removed(house: Addresses) -> None:
    renamed = await done(house, LAMP.identity, action="rename", name="Sink light", area="Kitchen")
    assert (renamed["name"], renamed["area"], renamed["state"]) == ("Sink light", "Kitchen", "proposed")
    assert (await done(house, LAMP.identity, action="ignore"))["state"] == "ignored"
    assert (await done(house, LAMP.identity, action="remove")) == {"id": LAMP.identity, "removed": True}
    assert (await post(house, LAMP.identity, action="adopt")).status == 404
    assert (await get(house))["total"] == 3


async def test_the_actuator_of_a_rule_is_set_by_its_name_and_what_does_not_exist_is_refused(
    house: Addresses, tmp_path: Path
) -> None:
    (tmp_path / "mapping").mkdir(exist_ok=True)
    named = ("actuator/hall", "lamp/porch", "http://other.example/fan", "actuator/room/{room}")
    rules = (f'[[command]]\nactuator = "{name}"\ntopic = "a/set"\n' for name in named)
    (tmp_path / "mapping" / "house.toml").write_text("".join(rules))
    for name, path in (("actuator/hall", "actuator/hall"), ("hall", "actuator/hall"), ("lamp/porch", "lamp/porch")):
        node = f"http://lamplighter.local/{path}"
        assert await done(house, name, action="set", state="on") == {"id": path, "actuator": node, "desired": "true"}
    await done(house, "http%3A//other.example/fan", action="set", state="on")
    await done(house, "actuator/room/attic", action="set", state="on")
    kept = f"{PREFIXES} SELECT ?a {{ ?a gateway:desiredState ?s }}"
    assert len(await rows(house, kept)) == 4
    for wrong, text in (
        ("actuator/hal", 'did you mean "actuator/hall"'),
        ("http%3A//lamplighter.local/actuator/hal", 'did you mean "actuator/hall"'),
        ("http%3A//other.example/fun", "no actuator has this name"),
    ):
        answer = await post(house, wrong, action="set", state="on")
        assert answer.status == 404 and text in answer.json["error_description"], answer.body
    answer = await post(house, "actuator/hall", action="set", state="on", actuator="brightness")
    assert answer.status == 404 and len(await rows(house, kept)) == 4


async def test_an_actuator_of_a_device_takes_its_states_only_by_its_own_name_too(house: Addresses) -> None:
    await done(house, LAMP.identity, action="adopt")
    light = next(one for one in LAMP.actuators if one.key == "state")
    path = REGISTRY.actuator_iri(light)[1:-1].removeprefix("http://lamplighter.local/")
    assert (await done(house, path, action="set", state="on"))["desired"] == "true"
    assert (await post(house, path, action="set", state="purple")).status == 400


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, "missing required field"),
        ({"action": "eat"}, "use adopt, ignore, rename, remove, set"),
        ({"action": "adopt", "name": "a"}, "name does not belong to the action adopt"),
        ({"action": "adopt", "room": "a"}, "unknown field"),
        ({"action": "rename"}, "write the new name"),
        ({"action": "set"}, "state is missing"),
        ({"action": "set", "state": "on"}, "adopt it with"),
        ({"action": "set", "state": {"a": 1}}, "Expected"),
    ],
)
async def test_wrong_actions_are_refused_with_the_reason(
    house: Addresses, members: dict[str, object], text: str
) -> None:
    answer = await post(house, LAMP.identity, **members)
    assert answer.status == 400, answer.body
    assert text in answer.json["error_description"]


async def test_states_that_a_device_does_not_take_are_refused(house: Addresses) -> None:
    await done(house, LAMP.identity, action="adopt")
    for members, text in (
        ({"state": "purple"}, "purple"),
        ({"state": 7, "actuator": "colour"}, "write one of brightness, light"),
    ):
        answer = await post(house, LAMP.identity, action="set", **members)
        assert (answer.status, text in answer.json["error_description"]) == (400, True), answer.body


async def test_only_whole_identities_are_taken(house: Addresses) -> None:
    for name in ("room1/lamp", "zigbee2mqtt", "x" * 5000):
        assert (await http(house.query.replace("/query", f"/devices/{name}"))).status == 404
        assert (await post(house, name, action="remove")).status == 404
    assert (await get(house))["total"] == 4


async def test_a_device_that_changed_meanwhile_is_a_conflict(house: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = handlers.OwnDataset.update

    async def changed_first(self: handlers.OwnDataset, text: str) -> None:
        monkeypatch.setattr(handlers.OwnDataset, "update", whole)
        await whole(self, "CLEAR ALL")
        await whole(self, text)

    monkeypatch.setattr(handlers.OwnDataset, "update", changed_first)
    answer = await post(house, LAMP.identity, action="adopt")
    assert (answer.status, answer.json["error"]) == (409, "conflict")
    assert "is not there any more: it changed meanwhile; try again" in answer.json["error_description"]


async def test_pages_of_other_sites_cannot_decide(house: Addresses) -> None:
    url = house.query.replace("/query", f"/devices/{LAMP.identity}")
    body = json.dumps({"action": "adopt"})
    for headers in ({"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await http(url, "POST", body, headers)).status == 403
    assert (await get(house, LAMP.identity))["state"] == "proposed"
    assert (await http(url, "DELETE")).status == 405


async def test_only_so_many_requests_are_answered_at_once(house: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TotalBudget, "refusal", lambda room, client: "there is no room")
    answer = await http(house.query.replace("/query", "/devices"))
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")


async def test_a_record_names_who_decided(house: Addresses) -> None:
    await done(house, LAMP.identity, action="adopt")
    [record] = (await http(house.query.replace("/query", "/log"), last="1")).json["records"]
    assert record["cause"]["kind"] == "http"
    assert record["counts"]["a"] > 10


async def test_the_topics_of_an_adopted_device_are_permitted(gateway: Addresses) -> None:
    announced = Announcements(["shelly"], devices_max=100)
    found = [
        one for topic, payload in announcements("shelly") for one in announced.read("default", topic, payload).devices
    ]
    device = next(one for one in found if any(a.command["topic"].endswith("/rpc") for a in one.actuators))
    assert (await update(gateway, REGISTRY.announced(None, device, "ask") or "")).status == 200
    adopted = await done(gateway, device.identity, action="adopt")
    assert adopted["warnings"] == (await get(gateway, device.identity))["warnings"] == []
    answer = await post(gateway, device.identity, action="set", state="on")
    assert answer.status == 200
    assert (await done(gateway, device.identity, action="by_hand", state="hold"))["by_hand"] == "hold"
    assert (await post(gateway, device.identity, action="by_hand", state="fight")).status == 400
    assert (await post(gateway, device.identity, action="by_hand")).status == 400


async def test_the_command_and_the_gate_make_the_same_of_a_device(house: Addresses, tmp_path: Path) -> None:
    toml = tmp_path / "lamplighter.toml"
    toml.write_text(f"[http]\nport = {urlsplit(house.query).port}\n")

    async def everything() -> set[bytes]:
        shown = await query(
            house, "CONSTRUCT { ?s ?p ?o } { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }", "text/plain"
        )
        return set(shown.body.splitlines())

    await done(house, LAMP.identity, action="adopt", area="Hall")
    by_gate = await everything()
    await done(house, LAMP.identity, action="remove")
    assert (await update(house, REGISTRY.announced(None, LAMP, "ask") or "")).status == 200
    found = await asyncio.to_thread(command, "devices", "adopt", LAMP.identity, "--room", "Hall", "--config", toml)
    assert found.returncode == 0, found.stderr
    assert await everything() == by_gate


async def test_a_decision_about_one_device_reads_no_other(house: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands."""
    read: list[int] = []
    rows_of = handlers.OwnDataset.rows

    async def noted(self: handlers.OwnDataset, query: str) -> list[Row]:
        found = await rows_of(self, query)
        read.append(len(found))
        return found

    monkeypatch.setattr(handlers.OwnDataset, "rows", noted)
    await get(house, LAMP.identity)
    for action in ({"action": "adopt"}, {"action": "rename", "name": "x"}, {"action": "ignore"}, {"action": "remove"}):
        await done(house, LAMP.identity, **action)
    assert max(read) == 1 < len(FOUND), read


@pytest.mark.parametrize("name", ["x%3E%20%3Fp%20%3Fo%20%7D%7D%23", "%22", "%5C", "%7B%7D", "x" * 10_000])
async def test_texts_that_are_no_identity_are_not_found(house: Addresses, name: str) -> None:
    assert (await post(house, name, action="remove")).status == 404
    assert (await get(house))["total"] == len(FOUND)
