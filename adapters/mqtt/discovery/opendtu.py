"""Topics of OpenDTU -> solar inverters.

``solar/<serial>/...`` has the values of an inverter: channel 0 is its output, the others are its panels. The base topic
is the default one. The power limit that a restart forgets can be set, and the inverter switched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined
from lamplighter.adapters.mqtt.discovery.measured import Meaning
from lamplighter.adapters.mqtt.discovery.topic_trees import BITS, Leaves, TopicTree

NAME = "opendtu"
BASE = "solar"
_TOPIC = re.compile(rf"{BASE}/([0-9]{{12}})/(.+)")
_LEAVES: Leaves = (
    ("[0-6]/power", Meaning("gateway:power", "number", "W")),
    ("0/powerdc", Meaning("gateway:power", "number", "W")),
    ("[0-6]/voltage", Meaning("gateway:voltage", "number", "V")),
    ("[0-6]/current", Meaning("gateway:current", "number", "A")),
    ("[0-6]/yieldday", Meaning("gateway:energyProduced", "number", "Wh")),
    ("[0-6]/yieldtotal", Meaning("gateway:energyProduced", "number", "kWh")),
    ("0/frequency", Meaning("gateway:frequency", "number", "Hz")),
    ("0/temperature", Meaning("gateway:deviceTemperature", "number", "°C")),
    ("0/reactivepower", Meaning("gateway:reactivePower", "number", "var")),
    ("0/powerfactor", Meaning("gateway:powerFactor", "number")),
    ("0/efficiency", Meaning("property/efficiency", "number", "%")),
    ("[1-6]/irradiation", Meaning("property/irradiation", "number", "%")),
    ("status/producing", Meaning("gateway:running", "boolean", None, BITS)),
    ("status/limit_relative", Meaning("property/limit_relative", "number", "%")),
    ("status/limit_absolute", Meaning("property/limit_absolute", "number", "W")),
)
_HARMLESS = r"device/.*|radio/.*|status/(?:reachable|last_update)|[0-6]/name|cmd/.*|events/.*"
_TREE = TopicTree(_LEAVES, texts={"name": "name"}, harmless=_HARMLESS)


def covers(topic: str) -> bool:
    return topic.startswith(f"{BASE}/") and _TOPIC.fullmatch(topic) is not None


def read_topic(broker: str, topic: str, payload: bytes) -> Announced:
    """Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    return _TREE.parts(match[1], match[2], payload)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    base = f"{BASE}/{group}"

    def complete(draft: Draft, sensors: Mapping[str, Table]) -> None:
        draft.online(f"{BASE}/dtu/status", ["online"], ["offline"])
        draft.online(f"{base}/status/reachable", ["1"], ["0"])
        limit = f"{base}/cmd/limit_nonpersistent_relative"
        state = sensors.get("status/limit_relative")
        draft.actuator("limit", "property/limit_relative", limit, state=state, minimum=0, maximum=100)
        draft.actuator("power", "gateway:switch", f"{base}/cmd/power", values={"true": "1", "false": "0"})

    about = DeviceTexts(f"inverter {group}", "Hoymiles", "OpenDTU")
    return _TREE.device(NAME, broker, group, parts, base, about, complete)


FORMAT = Format(
    NAME,
    (f"{BASE}/+/name", f"{BASE}/+/status/+", f"{BASE}/+/+/+"),
    covers=covers,
    announced=read_topic,
    joined=make_device,
)
