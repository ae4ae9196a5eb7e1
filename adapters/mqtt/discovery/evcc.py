"""Topics of evcc -> the site and its charge points.

``evcc/site/...`` has the powers of the house, ``evcc/loadpoints/<n>/...`` a charge point. What has a topic ``.../set``
by evcc's documentation can be set. The base topic is the default one.
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

NAME = "evcc"
BASE = "evcc"
_TOPIC = re.compile(rf"{BASE}/(site|loadpoints/[0-9]{{1,2}})/(.+)")
_POWER, _PERCENT = Meaning("gateway:power", "number", "W"), Meaning("gateway:battery", "number", "%")
_CURRENT = Meaning("gateway:current", "number", "A")
_SITE: Leaves = (
    ("(?:pv|grid|home|battery|aux)Power", _POWER),
    ("(?:pv|battery|aux)/[0-9]{1,2}/power|grid/power", _POWER),
    ("(?:grid|pv)/currents/[1-3]|gridCurrents/[1-3]", _CURRENT),
    ("batterySoc|battery/[0-9]{1,2}/soc", _PERCENT),
    ("gridEnergy|(?:pv|battery)/[0-9]{1,2}/energy|grid/energy|pvEnergy", Meaning("gateway:energy", "number", "kWh")),
    ("batteryCapacity|battery/[0-9]{1,2}/capacity", Meaning("property/capacity", "number", "kWh")),
    ("batteryMode", Meaning("property/battery_mode", "text")),
    ("prioritySoc|bufferSoc|bufferStartSoc", Meaning("property/soc_limit", "number", "%")),
    ("residualPower", Meaning("property/residual_power", "number", "W")),
    ("greenShare(?:Home|Loadpoints)", Meaning("property/green_share", "number")),
    ("tariff(?:Grid|FeedIn|Co2|Solar)", Meaning("property/tariff", "number")),
)
_LOADPOINT: Leaves = (
    ("chargePower|offeredPower", _POWER),
    ("chargedEnergy|sessionEnergy|chargeRemainingEnergy", Meaning("gateway:energy", "number", "Wh")),
    ("chargeTotalImport", Meaning("gateway:energy", "number", "kWh")),
    ("charging|enabled", Meaning("gateway:running", "boolean", None, BITS)),
    ("connected", Meaning("gateway:plugged", "boolean", None, BITS)),
    ("mode", Meaning("property/charge_mode", "text")),
    ("(?:charge|offered)Current|chargeCurrents/[1-3]", _CURRENT),
    ("(?:min|max|effectiveMin|effectiveMax)Current", Meaning("property/current_limit", "number", "A")),
    ("chargeVoltages/[1-3]", Meaning("gateway:voltage", "number", "V")),
    ("(?:limit|effectiveLimit)Soc", Meaning("property/limit_soc", "number", "%")),
    ("limitEnergy", Meaning("property/limit_energy", "number", "kWh")),
    ("vehicleSoc", _PERCENT),
    ("vehicleRange", Meaning("gateway:distance", "number", "km")),
    ("vehicleOdometer", Meaning("property/odometer", "number", "km")),
    ("vehicle(?:Title|Name)", Meaning("property/vehicle", "text")),
    ("phases(?:Active|Configured|Enabled)", Meaning("property/phases", "number")),
    ("chargeDuration|chargeRemainingDuration|connectedDuration", Meaning("gateway:duration", "number", "s")),
)
_HARMLESS = (
    r"(?:.*/)?set|title|version|interval|siteTitle|currency|.*(?:Configured|Feature.*)|"
    r"(?:pv|battery|aux|grid)(?:/[0-9]{1,2})?/(?:title|icon|name)"
)
_SITE_TREE = TopicTree(_SITE, texts={"siteTitle": "name"}, harmless=_HARMLESS)
_LOADPOINT_TREE = TopicTree(_LOADPOINT, texts={"title": "name"}, harmless=_HARMLESS)
_SETTABLE: dict[str, dict[str, Any]] = {
    "mode": {"values": {word: word for word in ("off", "pv", "minpv", "now")}},
    "limitSoc": {"minimum": 0, "maximum": 100},
    "limitEnergy": {"minimum": 0},
    "minCurrent": {"minimum": 0, "maximum": 64},
    "maxCurrent": {"minimum": 0, "maximum": 64},
    "prioritySoc": {"minimum": 0, "maximum": 100},
    "bufferSoc": {"minimum": 0, "maximum": 100},
    "residualPower": {},
}
"""Topics with a topic `set`, and the bounds of what is set."""


def covers(topic: str) -> bool:
    return topic.startswith(f"{BASE}/") and _TOPIC.fullmatch(topic) is not None


def read_topic(broker: str, topic: str, payload: bytes) -> Announced:
    """Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    return _tree(match[1]).parts(match[1], match[2], payload)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    base = f"{BASE}/{group}"

    def complete(draft: Draft, sensors: Mapping[str, Table]) -> None:
        draft.online(f"{BASE}/status", ["online"], ["offline"])
        for below in sorted(sensors.keys() & _SETTABLE.keys()):
            table = sensors[below]
            draft.actuator(below, table["property"], f"{base}/{below}/set", state=table, **_SETTABLE[below])

    about = DeviceTexts(group.replace("loadpoints/", "charge point "), "evcc", "")
    return _tree(group).device(NAME, broker, group, parts, base, about, complete)


def _tree(group: Group) -> TopicTree:
    return _SITE_TREE if group == "site" else _LOADPOINT_TREE


FORMAT = Format(
    NAME, (f"{BASE}/site/#", f"{BASE}/loadpoints/#"), covers=covers, announced=read_topic, joined=make_device
)
