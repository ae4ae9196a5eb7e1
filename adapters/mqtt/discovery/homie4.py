"""Devices of the Homie convention, versions 3 and 4.

Each attribute has a retained topic: ``homie/<device>/$nodes``, ``.../<node>/$properties``, ``.../<node>/<property>/
$datatype`` and so on. Values are at ``homie/<device>/<node>/<property>``, commands at ``.../set``. A property is known
once its type is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined
from lamplighter.adapters.mqtt.discovery.homie_properties import OFFLINE, ONLINE, HomieProperty, add_property, is_id

NAME = "homie"
BASE = "homie"
ATTRIBUTE_CHARS_MAX = 1_000
_TOPIC = re.compile(rf"{BASE}/(?!5/)([^/$]+)/((?:[^/$]+/){{0,2}}\$[a-z]+)")
_OF_DEVICE = ("$homie", "$name", "$nodes")
_OF_NODE = ("$name", "$properties")
_OF_PROPERTY = ("$datatype", "$format", "$name", "$retained", "$settable", "$unit")
_HARMLESS = frozenset(
    {"$state", "$implementation", "$extensions", "$localip", "$mac", "$fw", "$stats", "$type", "$array"}
)


def covers(topic: str) -> bool:
    return topic.startswith(f"{BASE}/") and _TOPIC.fullmatch(topic) is not None


def read_attribute(broker: str, topic: str, payload: bytes) -> Announced:
    """One attribute. Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    device, name = match.groups()
    *place, attribute = name.split("/")
    if attribute in _HARMLESS or not payload:
        return Announced()
    if not all(map(is_id, (device, *place))):
        raise ValueError("the topic has an identifier that Homie does not permit")
    if len(payload) > ATTRIBUTE_CHARS_MAX:
        raise ValueError(f"the attribute has more than {ATTRIBUTE_CHARS_MAX} bytes")
    return Announced({(device, name): payload.decode(errors="replace")})


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    if "$homie" not in parts or "$nodes" not in parts:
        return Joined(None, ["its attributes, until $homie and $nodes are announced"])
    base = f"{BASE}/{group}"
    about = DeviceTexts(plain(parts.get("$name")) or group, model="Homie")
    draft = Draft(NAME, group, broker=broker, topic=f"{base}/$homie", about=about)
    draft.online(f"{base}/$state", ONLINE, OFFLINE)
    used = set(_OF_DEVICE)
    for node in _names(parts["$nodes"]):
        used |= {f"{node}/{attribute}" for attribute in _OF_NODE}
        node_name = plain(parts.get(f"{node}/$name"))
        for name in _names(parts.get(f"{node}/$properties", "")):
            own = {attribute: parts.get(f"{node}/{name}/{attribute}", "") for attribute in _OF_PROPERTY}
            used |= {f"{node}/{name}/{attribute}" for attribute in _OF_PROPERTY}
            if not own["$datatype"]:
                draft.leave_out([f"{node}/{name}, until its $datatype is announced"])
                continue
            label = " ".join(text for text in (node_name, plain(own["$name"])) if text)
            settable, retained = own["$settable"] == "true", own["$retained"] != "false"
            texts = own["$datatype"], own["$format"], own["$unit"]
            add_property(draft, base, HomieProperty(node, name, label, *texts, settable=settable, retained=retained))
    draft.leave_out(set(parts) - used)
    return Joined.of(draft, draft.problems)


def _names(text: str) -> list[str]:
    """Identifiers of a list such as ``a,b[],c``; arrays are left out by their brackets."""
    return [name for name in text.split(",") if is_id(name)]


FORMAT = Format(
    NAME,
    (
        f"{BASE}/+/+",
        *(f"{BASE}/+/+/{attribute}" for attribute in _OF_NODE),
        *(f"{BASE}/+/+/+/{attribute}" for attribute in _OF_PROPERTY),
    ),
    covers=covers,
    announced=read_attribute,
    joined=make_device,
)
