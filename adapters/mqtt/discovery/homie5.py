"""Devices of the Homie convention, version 5.

``<domain>/5/<device>/$description`` is one JSON document with all nodes and properties; it is retained. Values are at
``<domain>/5/<device>/<node>/<property>``, commands at ``.../set``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft, plain
from lamplighter.adapters.mqtt.discovery.announced import NOT_ANNOUNCED, Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.homie_properties import OFFLINE, ONLINE, HomieProperty, add_property, is_id

NAME = "homie5"
PROPERTIES_MAX = 200
_TOPIC = re.compile(r"([^/]+)/5/([^/]+)/\$description")
_HARMLESS = frozenset({"homie", "version", "children", "root", "parent", "extensions", "type"})


def covers(topic: str) -> bool:
    return topic.endswith("/$description") and _TOPIC.fullmatch(topic) is not None


def read_description(broker: str, topic: str, payload: bytes) -> Announced:
    """The device of a description. Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    domain, device = match.groups()
    if not payload:
        return Announced()
    if not is_id(device):
        raise ValueError("the device has an identifier that Homie does not permit")
    document = json_object(payload)
    version, nodes = document.get("homie"), document.get("nodes")
    if not isinstance(version, str) or not version.startswith("5."):
        raise ValueError("homie is not a version that begins with 5.")
    if nodes is not None and not isinstance(nodes, Declared):
        raise ValueError("nodes is not an object")
    group = device if domain == "homie" else f"{domain}/{device}"
    about = DeviceTexts(plain(document.get("name")) or device, model="Homie")
    draft = Draft(NAME, group, broker=broker, topic=topic, about=about)
    base = topic.removesuffix("/$description")
    draft.online(f"{base}/$state", ONLINE, OFFLINE)
    draft.mode = "latest"
    count = 0
    for name, node in nodes.read_all() if nodes is not None else ():
        properties = node.get("properties") if isinstance(node, Declared) else None
        if not is_id(name) or not isinstance(properties, Declared):
            draft.leave_out([f"the node {plain(name)}, which has no identifier or no properties"])
            continue
        label = plain(node.get("name"))
        for key, said in properties.read_all():
            count += 1
            if count > PROPERTIES_MAX:
                draft.problem(f"the device has more than {PROPERTIES_MAX} properties")
                break
            if not is_id(key) or not isinstance(said, Declared):
                draft.leave_out([f"the property {plain(key)}, which has no identifier or no description"], name)
                continue
            add_property(draft, base, _property(name, label, key, said))
    draft.leave_out(document.omissions(_HARMLESS))
    return Announced({(draft.id, "description"): Joined.of(draft)}, draft.problems)


def _property(node: str, node_name: str, key: str, said: Declared) -> HomieProperty:
    name = " ".join(text for text in (node_name, plain(said.get("name"))) if text)
    texts = {each: said.get(each) for each in ("datatype", "format", "unit")}
    plain_texts = {each: text if isinstance(text, str) else "" for each, text in texts.items()}
    settable, retained = said.get("settable") is True, said.get("retained") is not False
    return HomieProperty(node, key, name, **plain_texts, settable=settable, retained=retained)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    found: Joined = parts.get("description", NOT_ANNOUNCED)
    return found


FORMAT = Format(NAME, ("+/5/+/$description",), covers=covers, announced=read_description, joined=make_device)
