from __future__ import annotations

import json
from typing import Any

import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine.terms import literal
from tests.support.announcements import FOLDER, announced_devices, announcements
from tests.support.tables import each_row

FORMATS = sorted(path.stem for path in FOLDER.glob("*.json"))
REGISTRY = Registry("http://lamplighter.local/")


@each_row("name", FORMATS)
def test_what_discovery_announces_is_read_back(name: str) -> None:
    known = Announcements([name], devices_max=100)
    devices = [one for message in announcements(name) for one in known.read("default", *message).devices]
    assert devices
    for device in devices:
        row = [literal(device.to_json()), literal("proposed"), None, None]
        assert REGISTRY.entry(row).device == device


def lamp() -> dict[str, Any]:
    device = next(one for one in announced_devices("zigbee2mqtt") if one.actuators and one.sensors)
    found: dict[str, Any] = json.loads(device.to_json())
    check_record(Device.from_json(json.dumps(found)))
    return found


@each_row(
    ("place", "value"),
    [
        (["id"], "a/b"),
        (["id"], "\x1b[2J"),
        (["id"], "> <http://evil> <"),
        (["source"], "a/b"),
        (["source"], "\x1b]0;title\x07"),
        (["name"], "\x9b2J"),
        (["broker"], "another"),
        (["sensors", 0, "key"], "a b"),
        (["sensors", 0, "kind"], "gateway:a> . <http://evil"),
        (["sensors", 0, "kind"], "property/../x"),
        (["sensors", 0, "table", "sensor"], "sensor/zigbee2mqtt/other/state"),
        (["sensors", 0, "table", "topic"], "#"),
        (["sensors", 0, "table", "topic"], "$SYS/broker/uptime"),
        (["sensors", 0, "table", "property"], 7),
        (["sensors", 0, "table", "unit"], ["x"]),
        (["actuators", 0, "command", "topic"], "+/set"),
        (["actuators", 0, "command", "actuator"], "actuator/zigbee2mqtt/other/state"),
        (["actuators", 0, "command", "values"], 7),
        (["actuators", 0, "state", "topic"], None),
        (["availability", "topics", 0, "topic"], "#"),
        (["availability", "topics", 0, "on"], 7),
        (["availability", "topics", 0, "member"], [7, {}]),
    ],
)
def test_a_record_that_discovery_cannot_have_made_is_refused(place: list[str | int], value: object) -> None:
    record = lamp()
    part: Any = record
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(ValueError):
        REGISTRY.entry([literal(json.dumps(record)), literal("adopted"), None, None])


def test_given_names_of_any_length_and_characters_are_those_of_people() -> None:
    record = literal(json.dumps(lamp()))
    entry = REGISTRY.entry([record, literal("adopted"), literal("\x1b[2J" * 100), literal("x" * 1_000)])
    assert entry.name.isprintable() and len(entry.name) <= 120
    assert len(entry.area) == 120
    assert REGISTRY.adoption(entry)
