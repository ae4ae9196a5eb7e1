"""`lamplighter devices` with a running gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.devices.desired import desired_update, reported_update
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine.terms import literal
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.settings import GatewaySettings
from lamplighter.ontology.vocabulary import XSD
from tests.support.announcements import announcements, zigbee_house
from tests.support.commands import command
from tests.support.running_gateway import http, rows, running_gateway, update


def settings_of(folder: Path, addresses: Addresses) -> Path:
    """Settings by which commands reach a gateway."""
    toml = folder / "lamplighter.toml"
    toml.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")
    return toml


async def announce_house(addresses: Addresses) -> None:
    """Proposes the devices of a house with one room."""
    registry = Registry(GatewaySettings().base_iri)
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(1))
    for device in found.devices:
        answer = await update(addresses, registry.announced(None, device, "ask") or "")
        assert answer.status == 200, answer.body


async def test_devices_are_listed_adopted_renamed_ignored_and_removed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)

        async def devices(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(command, "devices", *arguments, "--config", toml)
            assert done.returncode == code, done
            return done.stderr if code else done.stdout

        assert "no devices" in await devices()
        await announce_house(addresses)
        listed = await devices("list")
        assert listed.count("proposed") == 5, "four devices, and how to adopt them"
        assert "motion" in listed and "VENDOR" not in listed

        assert "adopted zigbee2mqtt/" in await devices("adopt", "room1/motion", "--room", "Kitchen")
        query = (
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
            "PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> SELECT ?sensor { ?room rdfs:label 'Kitchen' . "
            "?device gateway:inArea ?room ; sosa:hosts ?sensor . ?sensor sosa:observes gateway:motion }"
        )
        assert len(await rows(addresses, query)) == 1

        assert "is called Sink light, in Kitchen" in await devices(
            "rename", "room1/lamp", "Sink light", "--room", "Kitchen"
        )
        shown = await devices("show", "sink")
        assert "gateway:light" in shown and "false, true" in shown and "z/room1/lamp/set" in shown
        assert "/sensor/zigbee2mqtt/" in await devices("show", "room1/motion"), "the IRIs of sensors are shown"
        await devices("ignore", "room1/window")
        assert "adopted" in await devices("adopt", "--all")
        states = {
            line["name"]: line["state"] for line in map(json.loads, (await devices("list", "--json")).splitlines())
        }
        assert states == {
            "room1/motion": "adopted",
            "Sink light": "adopted",
            "room1/climate": "adopted",
            "room1/window": "ignored",
        }
        assert "fits 4 devices" in await devices("show", "zigbee", code=2)
        assert "write the device to adopt" in await devices("adopt", code=2)
        assert "removed" in await devices("remove", "sink", "--yes")
        assert "no device is called" in await devices("show", "sink", code=4)
        assert "no problems" in await devices("problems")


async def test_what_was_done_is_one_json_object(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        await announce_house(addresses)

        async def devices(*arguments: str, code: int = 0) -> Any:
            done = await asyncio.to_thread(command, "devices", *arguments, "--config", toml)
            assert done.returncode == code, done
            if code:
                assert done.stdout == "" and done.stderr
                return None
            return json.loads(done.stdout)

        [adopted] = (await devices("adopt", "room1/lamp", "--room", "Hall", "--json"))["adopted"]
        assert adopted["state"] == "adopted" and adopted["area"] == "Hall" and adopted["warnings"] == []
        lamp = adopted["id"]
        assert (await devices("rename", "room1/lamp", "Lamp", "--json"))["renamed"] == [
            {"id": lamp, "name": "Lamp", "area": "Hall", "state": "adopted"}
        ]
        [wanted] = (await devices("set", "Lamp", "on", "--json"))["set"]
        assert (wanted["id"], wanted["desired"]) == (lamp, "true")
        (tmp_path / "mapping").mkdir(exist_ok=True)
        rule = '[[command]]\nactuator = "actuator/kitchen"\ntopic = "kitchen/set"\n'
        (tmp_path / "mapping" / "kitchen.toml").write_text(rule)
        assert (await devices("set", "actuator/kitchen", "on", "--json"))["set"][0]["id"] == "actuator/kitchen"
        done = await asyncio.to_thread(command, "devices", "set", "actuator/kitchn", "on", "--config", toml)
        assert done.returncode == 4 and 'did you mean "actuator/kitchen"?' in done.stderr, done
        shown = await devices("show", "Lamp", "--json")
        assert shown["id"] == lamp and wanted["actuator"] in [one["iri"] for one in shown["actuators"]]
        assert shown == (await http(f"{addresses.query.removesuffix('/query')}/devices/{lamp}")).json
        [ignored] = (await devices("ignore", "room1/window", "--json"))["ignored"]
        assert ignored["state"] == "ignored"
        assert (await devices("remove", "Lamp", "--yes", "--json"))["removed"] == [{"id": lamp, "name": "Lamp"}]
        assert len((await devices("--json", "adopt", "--all"))["adopted"]) == 2
        assert (await devices("adopt", "--all", "--json")) == {"adopted": []}
        for code, *refused in (
            (4, "show", "none"),
            (4, "adopt", "none"),
            (4, "set", "none", "on"),
            (2, "rename", "room1/climate"),
        ):
            await devices(*refused, "--json", code=code)


async def test_records_of_clients_are_not_shown_and_hide_no_others(tmp_path: Path) -> None:
    registry = Registry(GatewaySettings().base_iri)
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(1))
    forged = json.dumps({"id": "\x1b[2J", "source": "\x9b2J", "broker": "default", "name": "a"}).replace("\\", "\\\\")
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        for device in found.devices:
            await update(addresses, registry.announced(None, device, "ask") or "")
        text = (
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
            f"GRAPH {registry.graph} {{ <http://e/x> gateway:adoption 'proposed' ; "
            f"gateway:announcement '{forged}' }} }}"
        )
        assert (await update(addresses, text)).status == 200
        for arguments in (("list",), ("list", "--json")):
            done = await asyncio.to_thread(command, "devices", *arguments, "--config", toml)
            assert done.returncode == 0 and "room1/lamp" in done.stdout
            assert "not shown" in done.stderr
            assert (done.stdout + done.stderr).replace("\n", "").isprintable()


async def test_actuators_that_report_another_state_have_a_column(tmp_path: Path) -> None:
    registry = Registry(GatewaySettings().base_iri)
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(2))
    lamps = [device for device in found.devices if device.name.endswith("lamp")]
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)

        async def listed(*arguments: str) -> str:
            done = await asyncio.to_thread(command, "devices", "list", *arguments, "--config", toml)
            assert done.returncode == 0, done
            return done.stdout

        first, second = (next(one for one in lamp.actuators if one.key == "state") for lamp in lamps)
        for device in found.devices:
            await update(addresses, registry.announced(None, device, "all") or "")
        for actuator, reported in ((first, "1"), (second, "true")):
            node = registry.actuator_iri(actuator)
            await update(addresses, desired_update(node, literal("true", datatype=XSD + "boolean")))
            await update(addresses, reported_update(node, literal(reported, datatype=XSD + "boolean"), None))
        assert "NOT AS DESIRED" not in await listed(), "1 and true are one state"
        await update(
            addresses, reported_update(registry.actuator_iri(second), literal("false", datatype=XSD + "boolean"), None)
        )
        lines = (await listed()).splitlines()
        assert lines[0].endswith("NOT AS DESIRED")
        assert [line for line in lines if line.endswith("light: true, reports false")] == [
            line for line in lines if "room2/lamp" in line
        ]
        records = [json.loads(line) for line in (await listed("--json")).splitlines()]
        differing = {record["name"]: record["not_as_desired"] for record in records if record["not_as_desired"]}
        assert differing == {"room2/lamp": {"state": {"desired": "true", "reported": "false"}}}


async def test_a_coap_device_is_shown_adopted_and_switched(tmp_path: Path) -> None:
    registry = Registry(GatewaySettings().base_iri)
    links = parse_links(b"</3311/0/5850>;obs,</sensors/temp>;rt=temperature-c")
    lamp = propose(links, base="coap://192.0.2.7", place="/.well-known/core", endpoint="hall").device
    assert lamp is not None
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)

        async def devices(*arguments: str) -> str:
            done = await asyncio.to_thread(command, "devices", *arguments, "--config", toml)
            assert done.returncode == 0, done
            assert done.stderr == ""
            return done.stdout

        await update(addresses, registry.announced(None, lamp, "ask") or "")
        assert "coap/hall" in await devices()
        shown = await devices("show", "hall")
        assert "coap, coap://192.0.2.7\n" in shown
        assert "coap://192.0.2.7/3311/0/5850" in shown
        assert "coap://192.0.2.7/sensors/temp" in shown
        assert "adopted coap/hall" in await devices("adopt", "hall")
        assert "online" not in shown
        await update(
            addresses,
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
            f"{registry.device_iri(lamp)} gateway:online false ; gateway:unreachable 'no answer' }}",
        )
        shown = await devices("show", "hall")
        assert "online        false\n" in shown and "unreachable   no answer\n" in shown
        assert "the desired state is true" in await devices("set", "hall", "on")
        query = (
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
            "SELECT ?rule { ?actuator gateway:desiredState true ; gateway:command ?mapping . "
            "?mapping gateway:rule ?rule }"
        )
        assert len(await rows(addresses, query)) == 1


async def test_adoption_permits_the_topics_of_a_device(tmp_path: Path) -> None:
    registry = Registry(GatewaySettings().base_iri)
    announced = Announcements(["shelly"], devices_max=100)
    found = {
        one.identity: one
        for topic, payload in announcements("shelly")
        for one in announced.read("default", topic, payload).devices
    }
    async with running_gateway(tmp_path) as addresses:
        for device in found.values():
            await update(addresses, registry.announced(None, device, "ask") or "")
        rpc = {one.command["topic"] for device in found.values() for one in device.actuators}
        rpc = {topic for topic in rpc if topic.endswith("/rpc")}
        assert rpc

        async def said(commands: str, *arguments: str) -> str:
            toml = tmp_path / "lamplighter.toml"
            port = urlsplit(addresses.query).port
            toml.write_text(f"[http]\nport = {port}\n[mqtt]\nhost = '127.0.0.1'\n{commands}\n")
            done = await asyncio.to_thread(command, "devices", *arguments, "--config", toml)
            assert done.returncode == 0, done
            return done.stderr

        assert await said("commands = []", "adopt", "--all") == ""
        identity = next(one.identity for one in found.values() if any(a.command["topic"] in rpc for a in one.actuators))
        assert await said("commands = []", "show", identity) == ""
        assert await said("commands = []", "set", identity, "on") == ""
