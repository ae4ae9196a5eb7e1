"""Announcements of devices: the files beside the tests of discovery, and a Zigbee house of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "adapters" / "mqtt" / "discovery" / "announcements"


def announcements(name: str) -> Iterator[tuple[str, bytes]]:
    """Topics and payloads of one format, in the order of the file. A text is a payload as it is."""
    for topic, payload in json.loads((FOLDER / f"{name}.json").read_text()).items():
        yield topic, payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()


def announced_devices(name: str) -> Iterator[Device]:
    """The devices of one format, each as often as it changes. None of their announcements is a problem."""
    known = Announcements([name], devices_max=10)
    for topic, payload in announcements(name):
        changes = known.read("", topic, payload)
        assert not changes.problems
        yield from changes.devices


def zigbee_house(rooms: int) -> bytes:
    """The list of Zigbee2MQTT with four devices in each room: motion, window contact, climate sensor and lamp."""
    contents = [
        ("motion", 1, [_binary("occupancy", True, False), _number("illuminance", "lx"), _number("battery", "%")]),
        ("window", 2, [_binary("contact", False, True), _number("battery", "%")]),
        ("climate", 3, [_number("temperature", "°C"), _number("humidity", "%"), _number("pressure", "hPa")]),
        (
            "lamp",
            4,
            [{"type": "light", "features": [_binary("state", "ON", "OFF", 7), _number("brightness", None, 7)]}],
        ),
    ]
    return json.dumps(
        [
            {
                "ieee_address": f"0x00158d00{number:02x}{room:06x}",
                "type": "Router" if name == "lamp" else "EndDevice",
                "friendly_name": f"room{room}/{name}",
                "supported": True,
                "disabled": False,
                "interview_completed": True,
                "definition": {"model": name.upper(), "vendor": "Vendor", "description": name, "exposes": exposes},
            }
            for room in range(1, rooms + 1)
            for name, number, exposes in contents
        ]
    ).encode()


def _binary(name: str, on: object, off: object, access: int = 1) -> dict[str, object]:
    return {"type": "binary", "name": name, "property": name, "value_on": on, "value_off": off, "access": access}


def _number(name: str, unit: str | None, access: int = 1) -> dict[str, object]:
    known = {} if unit is None else {"unit": unit}
    return {"type": "numeric", "name": name, "property": name, "access": access} | known
