"""Topics of AhoyDTU -> solar inverters.

``inverter/<name>/ch0/...`` has the values of an inverter, ``ch1`` and so on those of its panels. The base topic is the
default one. Commands need a number that no topic tells, so inverters are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined
from lamplighter.adapters.mqtt.discovery.measured import Meaning
from lamplighter.adapters.mqtt.discovery.topic_trees import Leaves, TopicTree

NAME = "ahoydtu"
BASE = "inverter"
_TOPIC = re.compile(rf"{BASE}/(?!(?:ctrl|total|setup)/)([^/]+)/(.+)")
_LEAVES: Leaves = (
    ("ch0/P_AC", Meaning("gateway:power", "number", "W")),
    ("ch[0-6]/P_DC", Meaning("gateway:power", "number", "W")),
    ("ch[0-6]/U_(?:AC|DC)", Meaning("gateway:voltage", "number", "V")),
    ("ch[0-6]/I_(?:AC|DC)", Meaning("gateway:current", "number", "A")),
    ("ch[0-6]/YieldDay", Meaning("gateway:energyProduced", "number", "Wh")),
    ("ch[0-6]/YieldTotal", Meaning("gateway:energyProduced", "number", "kWh")),
    ("ch0/F_AC", Meaning("gateway:frequency", "number", "Hz")),
    ("ch0/Temp", Meaning("gateway:deviceTemperature", "number", "°C")),
    ("ch0/Q_AC", Meaning("gateway:reactivePower", "number", "var")),
    ("ch0/PF_AC", Meaning("gateway:powerFactor", "number")),
    ("ch0/Efficiency", Meaning("property/efficiency", "number", "%")),
    ("ch[1-6]/Irradiation", Meaning("property/irradiation", "number", "%")),
    ("ch0/active_PowerLimit", Meaning("property/limit_relative", "number", "%")),
)
_HARMLESS = (
    r"available|last_success|ack_pwr_limit|alarm/.*|hw|firmware|serial|"
    r"ch[0-6]/(?:ALARM_MES_ID|MaxPower|LastAlarmCode|.*Name)"
)
_TREE = TopicTree(_LEAVES, texts={}, harmless=_HARMLESS)


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
        draft.online(f"{BASE}/mqtt", ["connected"], ["not connected", "not_connected"])
        draft.online(f"{base}/available", ["1", "2"], ["0"])

    about = DeviceTexts(group, "Hoymiles", "AhoyDTU")
    return _TREE.device(NAME, broker, group, parts, base, about, complete)


FORMAT = Format(NAME, (f"{BASE}/+/available", f"{BASE}/+/+/+"), covers=covers, announced=read_topic, joined=make_device)
