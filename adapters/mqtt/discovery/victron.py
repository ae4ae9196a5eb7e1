"""Topics of a Victron GX device -> the devices that are connected to it.

``N/<portal>/<service>/<instance>/<path>`` has a value as ``{"value": 12.3}``, ``W/...`` sets one. The GX device sends
nothing but its serial number unless it is asked by ``R/<portal>/keepalive``, at least once a minute: the adapter asks
when a device is adopted, and every 30 s from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.measured import Meaning
from lamplighter.adapters.mqtt.discovery.topic_trees import BITS, TopicTree

NAME = "victron"
_TOPIC = re.compile(r"N/([0-9A-Za-z]{6,32}/[a-z][a-z0-9]{0,31}/[0-9]{1,6})/(.+)")
_NO_DEVICES = ("settings", "platform", "modbusclient", "logger", "adc", "fronius", "hub4", "vrmlogger")
"""Services of the GX device itself."""
_MEMBER: tuple[tuple[str, Any], ...] = (("member", ("value",)),)
_QUANTITIES: tuple[tuple[str, str, str | None], ...] = (
    ("Dc/[0-9]/Voltage|Dc/Battery/Voltage|Pv/V|Pv/[0-3]/V", "gateway:voltage", "V"),
    ("Dc/[0-9]/Current|Dc/Battery/Current|Pv/I", "gateway:current", "A"),
    ("Dc/[0-9]/Power|Dc/(?:Battery|Pv|System|Vebus)/Power|Pv/[0-3]/P|Yield/Power", "gateway:power", "W"),
    ("Dc/[0-9]/Temperature|Dc/Battery/Temperature|Temperature", "gateway:temperature", "°C"),
    ("Ac/(?:[A-Za-z]+/)?(?:L[123]/)?(?:Power|P)", "gateway:power", "W"),
    ("Ac/(?:[A-Za-z]+/)?(?:L[123]/)?(?:Voltage|V)", "gateway:voltage", "V"),
    ("Ac/(?:[A-Za-z]+/)?(?:L[123]/)?(?:Current|I)", "gateway:current", "A"),
    ("Ac/(?:[A-Za-z]+/)?(?:L[123]/)?(?:Frequency|F)", "gateway:frequency", "Hz"),
    ("Ac/(?:L[123]/)?Energy/Forward", "gateway:energy", "kWh"),
    ("Ac/(?:L[123]/)?Energy/Reverse|Yield/(?:System|User)|History/Daily/0/Yield", "gateway:energyProduced", "kWh"),
    ("Soc|Dc/Battery/Soc", "gateway:battery", "%"),
    ("TimeToGo", "gateway:duration", "s"),
    ("Humidity", "gateway:humidity", "%"),
    ("Pressure", "gateway:pressure", "hPa"),
    ("Level", "property/level", "%"),
    ("Remaining", "property/remaining", "m³"),
    ("State", "property/state", None),
    ("Mode", "property/mode", None),
)
_LEAVES = (
    *((pattern, Meaning(kind, "number", unit, _MEMBER)) for pattern, kind, unit in _QUANTITIES),
    ("Relay/[01]/State", Meaning("gateway:switch", "boolean", None, (*_MEMBER, *BITS))),
    ("Serial", Meaning("property/serial", "text", None, _MEMBER)),
)
_HARMLESS = (
    r"DeviceInstance|DeviceType|ProductId|FirmwareVersion|HardwareVersion|Connected|Mgmt/.*|Devices/.*|Settings/.*|"
    r"Relay/[01]/(?:Function|Name)|AvailableDcLoads.*|ServiceMapping/.*|NrOf.*"
)
_TREE = TopicTree(_LEAVES, texts={"CustomName": "name", "ProductName": "model"}, harmless=_HARMLESS)


def covers(topic: str) -> bool:
    return topic.startswith("N/") and _TOPIC.fullmatch(topic) is not None


def read_value(broker: str, topic: str, payload: bytes) -> Announced:
    """Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    if not payload or match[1].split("/")[1] in _NO_DEVICES:
        return Announced(adds=True)
    value = json_object(payload).get("value")
    if value is None or isinstance(value, list | dict):
        return Announced(adds=True)  # the device does not have the value
    return _TREE.parts(match[1], match[2], str(value).encode("utf-8", "replace"))


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    portal = group.partition("/")[0]

    def complete(draft: Draft, sensors: Mapping[str, Table]) -> None:
        draft.ask(f"R/{portal}/keepalive", "")
        draft.online(f"N/{group}/Connected", ["1"], ["0"], ["value"])
        for below in sorted(name for name in sensors if name.startswith("Relay/")):
            values = {"true": json.dumps({"value": 1}), "false": json.dumps({"value": 0})}
            state = sensors[below]
            draft.actuator(below.replace("/", "."), "gateway:switch", f"W/{group}/{below}", values=values, state=state)

    about = DeviceTexts(group.partition("/")[2].replace("/", " "), "Victron Energy", "")
    return _TREE.device(NAME, broker, group, parts, f"N/{group}", about, complete)


FORMAT = Format(NAME, ("N/+/+/+/#",), covers=covers, announced=read_value, joined=make_device)
