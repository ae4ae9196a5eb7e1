"""Templates and names over HTTP: a form's options, previews, trials, and applications that run at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.devices.directory import NameDirectory
from lamplighter.gateway.settings import GatewaySettings
from lamplighter.gateway.templates.catalogue import TEMPLATES
from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.announcements import zigbee_house
from tests.support.commands import command
from tests.support.running_gateway import Answer, http, rows, running_gateway, update
from tests.whole_gateway.cli.test_devices_commands import settings_of


def root(addresses: Addresses) -> str:
    return addresses.query.removesuffix("/query")


async def post(addresses: Addresses, template: str, **members: Any) -> Answer:
    return await http(f"{root(addresses)}/templates/{template}", "POST", json.dumps(members))


async def adopt_house(addresses: Addresses) -> None:
    registry = Registry(GatewaySettings().base_iri)
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(2))
    for device in found.devices:
        text = registry.announced(None, device, "all") or ""
        assert (await update(addresses, text)).status == 200


async def name(addresses: Addresses, toml: Path, device: str, given: str, room: str) -> None:
    done = await asyncio.to_thread(command, "devices", "rename", device, given, "--room", room, "--config", toml)
    assert done.returncode == 0, done


async def test_the_options_are_those_of_a_form(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        listed = (await http(f"{root(addresses)}/templates")).json["templates"]
        assert [one["name"] for one in listed] == list(TEMPLATES)
        for one in listed:
            assert {option["type"] for option in one["options"]} <= {
                "actuator",
                "sensor",
                "room",
                "duration",
                "number",
                "time",
                "choice",
                "text",
            }
            [required] = [option for option in one["options"] if option["required"]]
            assert required["type"] == "actuator" and required["properties"]
            assert all(option["choices"] for option in one["options"] if option["type"] == "choice")
        unknown = await post(addresses, "motion-ligth")
        assert unknown.status == 404 and 'did you mean "motion-light"?' in unknown.json["error_description"]


async def test_from_names_to_a_light_that_is_switched(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        await adopt_house(addresses)
        await name(addresses, toml, "room1/lamp", "Lampe / Küche", "Küche")
        await name(addresses, toml, "room1/motion", "Melder Küche", "Küche")
        found = (await http(f"{root(addresses)}/names", kind="actuator", room="Küche", property="light")).json
        [lamp] = found["names"]
        assert (found["total"], lamp["room"], lamp["property"]) == (1, "Küche", "light")
        assert lamp["name"].startswith("Lampe / Küche")
        values = {"light": ["Lampe / Küche"], "room": "Küche", "off-after": "2min"}
        shown = await post(addresses, "motion-light", name="küche", values=values)
        assert shown.status == 400 and shown.json["faults"][0]["option"] == "name"
        shown = await post(addresses, "motion-light", name="kitchen", values=values, **{"try": "PT1H"})
        assert shown.status == 200, shown.body
        preview = shown.json
        [resolved] = preview["resolved"]["light"]
        assert (resolved["value"], resolved["iri"]) == ("Lampe / Küche", lamp["iri"])
        assert (preview["put"], preview["tried"]["reactions"]) == (None, 0)
        assert preview["profile"]["updates"]["SWITCH_OFF"]["delay"] == "PT2M"
        assert (await http(f"{root(addresses)}/applications")).json["total"] == 0, "a preview changes nothing"

        done = await post(addresses, "motion-light", name="kitchen", values=values, put=True)
        assert (done.status, done.json["put"]["state"]) == (201, "running"), done.body
        one = (await http(f"{root(addresses)}/applications/kitchen")).json
        assert (one["template"], one["values"]) == ("motion-light", values), "to fill the form again"
        [sensor] = (
            await http(f"{root(addresses)}/names", kind="sensor", room="Küche", property=["motion", "occupancy"])
        ).json["names"]
        reading = (
            "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
            f"INSERT {{ [] sosa:madeBySensor <{sensor['iri']}> ; sosa:observedProperty gateway:{sensor['property']} ; "
            f"sosa:hasFeatureOfInterest ?device ; sosa:hasSimpleResult true }} "
            f"WHERE {{ ?device sosa:hosts <{sensor['iri']}> }}"
        )
        assert (await update(addresses, reading)).status == 200
        desired = f"SELECT ?v {{ <{lamp['iri']}> <http://lamplighter.example/ns/gateway#desiredState> ?v }}"
        assert await rows(addresses, desired) == [{"v": "true"}]

        again = await post(addresses, "motion-light", name="kitchen", values=values, put=True)
        assert (again.status, again.json["error"]) == (409, "conflict")
        again = await post(addresses, "motion-light", name="kitchen", values=values, put=True, replace=True)
        assert (again.status, again.json["put"]["changed"]) == (200, False)


async def test_all_faults_of_values_are_named_with_candidates(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        await adopt_house(addresses)
        await name(addresses, toml, "room1/lamp", "Hall lamp", "Hall")
        values = {"light": "Hal lamp", "room": "Hal", "off-after": "soon", "colour": "red", "unconfirmed": "perhaps"}
        refused = await post(addresses, "motion-light", values=values, put=True)
        assert (refused.status, refused.json["error"]) == (400, "bad_values")
        faults = {one["option"]: one for one in refused.json["faults"]}
        assert set(faults) == {"light", "room", "off-after", "colour", "unconfirmed"}
        assert "Hall lamp" in faults["light"]["problem"]
        assert {one["property"] for one in faults["light"]["candidates"]} == {"light"}
        assert faults["room"]["candidates"][0]["name"] == "Hall"
        assert (await http(f"{root(addresses)}/applications")).json["total"] == 0


async def test_devices_mapped_by_hand_are_rules_in_the_dataset(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        values = {
            "light": "porch",
            "topic": "porch/pir",
            "member": "occupancy",
            "command-topic": "porch/lamp/set",
            "command-value": ["true=ON", "false=OFF"],
        }
        shown = await post(addresses, "motion-light", name="porch", values=values)
        assert shown.json["warnings"] == [], "its devices come with it"
        done = await post(addresses, "motion-light", name="porch", values=values, put=True)
        assert (done.status, done.json["warnings"], done.json["put"]["warnings"]) == (201, [], []), done.body
        assert [list(one) for one in done.json["rules"]] == [["stream"], ["command"]]
        assert "set host of [mqtt]" in done.json["notes"][0]
        found = await rows(addresses, "SELECT ?r { ?m <http://lamplighter.example/ns/gateway#rule> ?r }")
        assert {next(iter(json.loads(one["r"]))) for one in found} == {"stream", "command"}
        named = (await http(f"{root(addresses)}/names", kind="actuator")).json["names"]
        assert [one["id"] for one in named] == ["actuator/porch"], "before it has reported"
        again = await post(addresses, "light-by-time", values={"light": "porch"})
        assert again.status == 200


async def test_what_a_template_wrote_goes_with_its_application(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, place={"time_zone": "Europe/Berlin"}) as addresses:
        mapped = {"topic": "porch/pir", "command-topic": "porch/lamp/set"}
        values = {"light": "porch", "only-from": "20:00", "only-until": "06:00"}
        kept = f"SELECT * {{ ?s ?p ?o FILTER(?p IN (<{GATEWAY}rule>, <{GATEWAY}begins>, <{GATEWAY}ends>)) }}"
        other = (
            "INSERT DATA { <urn:mapping> a g:Mapping ; g:rule '{}' . <urn:night> g:begins '20:00' ; g:ends '06:00' }"
        )
        assert (await update(addresses, f"PREFIX g: <{GATEWAY}> {other}")).status == 200
        assert (await post(addresses, "motion-light", name="porch", values=values | mapped, put=True)).status == 201
        assert len(await rows(addresses, kept)) == 3 + 4
        by_name = {**values, "light": "urn:lamp"}
        for _ in range(2):
            done = await post(addresses, "motion-light", name="porch", values=by_name, put=True, replace=True)
            assert done.status == 200 and len(await rows(addresses, kept)) == 3 + 2, "the rules of before are gone"
            again = {"values": values | mapped, "put": True, "replace": True}
            assert (await post(addresses, "motion-light", name="porch", **again)).status == 200
        removed = await http(f"{root(addresses)}/applications/porch", "DELETE")
        assert removed.status == 200, removed.body
        assert {one["s"] for one in await rows(addresses, kept)} == {"urn:mapping", "urn:night"}
        assert (await http(f"{root(addresses)}/names")).json["names"] == []


async def test_rules_of_an_application_that_is_refused_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "porch.jsap").write_text("{}")
    async with running_gateway(tmp_path) as addresses:
        mapped = {"light": "porch", "topic": "porch/pir", "command-topic": "porch/lamp/set"}
        for values in (mapped, {"light": "porch", "coap": "coap://192.0.2.1/lamp"}):
            refused = await post(addresses, "motion-light", name="porch", values=values, put=True)
            assert (refused.status, refused.json["error"]) == (409, "conflict"), refused.body
        line = ("motion-light", "--name", "porch", "--light", "urn:lamp", "--config", settings_of(tmp_path, addresses))
        for more in ((), ("--force",)):
            told = await asyncio.to_thread(command, "init", *line, "--run", *more)
            assert told.returncode == 4 and "porch is a file, apps/porch.jsap; edit" in told.stderr, told
        assert await rows(addresses, "SELECT * { ?s ?p ?o }") == []


async def test_a_command_that_the_settings_do_not_permit_is_noted(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        for topic, permitted in (("porch/lamp/set", True), ("porch/lamp/go", False)):
            shown = await post(addresses, "light-by-time", values={"light": "porch", "command-topic": topic})
            assert shown.status == 200, shown.body
            note = f"warning: mqtt.commands does not permit the topic {topic}; add it to commands in [mqtt]"
            assert any(one.startswith(note) for one in shown.json["notes"]) != permitted, shown.json["notes"]


async def test_why_its_times_would_not_come_is_noted(tmp_path: Path) -> None:
    values = {"light": "urn:lamp", "only-from": "sunset", "only-until": "06:00"}
    place, untrusted = {"position": "52.52, 13.40"}, {"clock_trusted": "never"}
    for given, gateway, note in (
        ({}, {}, "set time_zone and position of [place] in lamplighter.toml"),
        ({"time_zone": "Europe/Berlin"}, {}, "set position of [place] in lamplighter.toml: it follows the sun"),
        (place, untrusted, "warning: the clock is not synchronised, so its times do not come"),
        (place, {}, ""),
    ):
        async with running_gateway(tmp_path, place=given, gateway=gateway) as addresses:
            notes = (await post(addresses, "motion-light", values=values)).json["notes"]
            assert [one[: len(note)] for one in notes] == ([note] if note else [])
            [fault] = (await post(addresses, "motion-light", values={**values, "only-until": ""})).json["faults"]
            assert (fault["option"], fault["problem"]) == ("only-until", "give both, or none")


async def test_what_is_of_the_brightness_needs_a_dimmer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        values = {"light": "urn:lamp", "level": 90, "weekday": ["Monday"]}
        refused = await post(addresses, "motion-light", values=values)
        assert {one["option"]: one["problem"] for one in refused.json["faults"]} == dict.fromkeys(
            ("level", "weekday"), "it is of the brightness, and needs --dimmer"
        )
        for more in ({"dimmer": ["urn:lamp"]}, {"level": "", "weekday": []}):
            assert (await post(addresses, "motion-light", values=values | more)).status == 200


async def test_a_trial_names_its_member(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        shown = await post(addresses, "motion-light", values={"light": "urn:lamp"}, **{"try": "soon"})
        assert shown.json["tried"]["problem"].startswith("try: 'soon' is not"), shown.body


async def test_a_rule_of_any_depth_does_not_hide_the_names(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        for rule in ("[" * 60_000, '{"a":' * 60_000, '{"command": NaN}', "null"):
            node, text = "http://lamplighter.example/ns/gateway#", rule.replace('"', '\\"')
            insert = f'INSERT DATA {{ <urn:m> a <{node}Mapping> ; <{node}rule> "{text}" }}'
            assert (await update(addresses, insert)).status == 200
        assert (await http(f"{root(addresses)}/names")).json == {"total": 0, "names": []}


async def test_names_are_kept_between_commits_that_do_not_touch_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def counted(*arguments: Any) -> NameDirectory:
        nonlocal made
        made += 1
        return of(*arguments)

    of = NameDirectory.of
    monkeypatch.setattr(NameDirectory, "of", counted)
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        await adopt_house(addresses)

        async def names() -> set[str]:
            return {one["name"] for one in (await http(f"{root(addresses)}/names?limit=1000")).json["names"]}

        assert "room1/lamp" in await names()
        reading = "INSERT DATA { <urn:o> <http://www.w3.org/ns/sosa/hasSimpleResult> 3 }"
        assert (await update(addresses, reading)).status == 200
        assert "room1/lamp" in await names()
        assert made == 1
        # What names something is seen by the next request.
        for given in ("Lampe", "Licht"):
            await name(addresses, toml, "0x00158d0004000001", given, "Kitchen")
            before, found = made, await names()
            assert {given, "Kitchen"} <= found and "room1/lamp" not in found and made == before + 1
        (tmp_path / "mapping").mkdir()
        rule = '[[stream]]\ntopic = "a"\nproperty = "gateway:motion"\npayload = "boolean"\nsensor = "sensor/{}"\n'
        for which in ("attic", "cellar"):
            (tmp_path / "mapping" / "a.toml").write_text(rule.format(which))
            assert f"sensor/{which}" in await names()
        assert "sensor/attic" not in await names()


async def test_init_runs_it_at_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        await adopt_house(addresses)
        await name(addresses, toml, "room1/lamp", "Lampe / Küche", "Küche")

        async def init(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(command, "init", *arguments, "--config", toml)
            assert done.returncode == code, done
            return done.stderr if code else done.stdout

        line = ("motion-light", "--name", "kitchen", "--light", "Lampe / Küche", "--room", "küche")
        told = await init(*line, "--run")
        assert told.startswith("kitchen runs since record "), told
        assert not (tmp_path / "apps").exists()
        assert "--force to replace it" in await init(*line, "--run", code=4)
        assert "unchanged" in await init(*line, "--run", "--force")
        assert "did you mean" in await init("motion-light", "--light", "Lampe Kuche", "--run", code=4)
        # Without --run the same names are resolved, and files written.
        told = await init("motion-light", "--name", "file", "--light", "Lampe / Küche")
        assert (tmp_path / "apps" / "file.jsap").exists(), told
        assert "did you mean" in await init("motion-light", "--name", "x", "--light", "Lampe Kuche", code=2)
