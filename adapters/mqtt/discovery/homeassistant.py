"""Home Assistant's MQTT discovery -> devices.

``<prefix>/<component>/[<node>/]<object>/config`` announces one entity, ``<prefix>/device/<object>/config`` a device
with its entities in ``components``. Keys may be abbreviated, and ``~`` stands for a base topic. An empty payload
withdraws what the topic announced. The entities with the same first identifier are one device.

Templates are Jinja there; `homeassistant_templates` has those that are understood. An entity with another one is a
problem and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft, json_text, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object, merged
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.homeassistant_components import read_entity
from lamplighter.adapters.mqtt.discovery.homeassistant_keys import DEVICE_KEYS, HARMLESS, KEYS

NAME = "homeassistant"
PREFIX = "homeassistant"
"""Of the topics; the setting `discovery_prefix` may name others."""
COMPONENTS_MAX = 200
"""Entities of one announcement."""

_SHARED_STARTS = ("availability", "payload_")
_SHARED = frozenset({"~", "state_topic", "command_topic", "qos"})
"""Keys of a device-based announcement that its entities share."""

_ZIGBEE2MQTT = re.compile(r"zigbee2mqtt_0x[0-9a-fA-F]+")


def format_of(prefixes: Sequence[str]) -> Format:
    """The format with these prefixes of its topics."""

    def below(topic: str) -> str:
        return next((topic[len(prefix) + 1 :] for prefix in prefixes if topic.startswith(f"{prefix}/")), "")

    def covers(topic: str) -> bool:
        rest = below(topic)
        return rest.endswith("/config") and rest.count("/") in (2, 3)

    return Format(
        NAME,
        tuple(f"{prefix}/{levels}/config" for prefix in prefixes for levels in ("+/+", "+/+/+")),
        covers=covers,
        announced=lambda broker, topic, payload: announced(broker, topic, below(topic), payload),
        joined=joined,
        # The birth message of Home Assistant: devices that retain nothing announce themselves and send their states.
        state_asks=tuple((f"{prefix}/status", "online") for prefix in prefixes),
    )


def filters_of_topic(topic: str) -> list[str]:
    """What another prefix subscribes to for a topic of announcements; nothing for other topics."""
    levels = topic.split("/")
    varying = [count for count in (2, 3) if levels[-1] == "config" and len(levels) > count + 1]
    return ["/".join([*levels[: -count - 1], *["+"] * count, "config"]) for count in varying]


def announced(broker: str, topic: str, below: str, payload: bytes) -> Announced:
    """The entities of an announcement, each a part of its device. below: its topic behind the prefix. Raises
    ValueError."""
    levels = below.split("/")
    component, name = levels[0], "/".join(levels[1:-1])
    if not payload:
        return Announced()
    config = json_object(payload)
    config.rename(KEYS)
    device = _device_texts(config)
    if any(_ZIGBEE2MQTT.fullmatch(one) for one in device["identifiers"]):
        return Announced()  # its own list tells more, and announces removals
    shared: frozenset[str] = frozenset()
    if component != "device":
        config["platform"] = component
        entities = {name.replace("/", "_"): config}
    else:
        shared = frozenset(key for key in config if key.startswith(_SHARED_STARTS) or key in _SHARED)
        entities = _components(config, shared)
    own = device["identifiers"]
    identifier = own[0] if own else plain(json_text(config.get("unique_id"))) or name.replace("/", "_")
    draft = Draft(
        NAME,
        identifier,
        broker=broker,
        topic=topic,
        about=DeviceTexts(
            name=device["name"] or plain(config.get("name")),
            manufacturer=device["manufacturer"],
            model=device["model"],
            area=device["area"],
        ),
    )
    for key, entity in entities.items():
        understood = read_entity(draft, key, entity)
        if entity is not config:
            config.mark(shared & entity.read_names)
            entity.mark(shared)
            if understood:
                draft.leave_out(entity.omissions(HARMLESS), plain(json_text(entity.get("unique_id"))) or key)
            entity.settle()
    label = plain(json_text(config.get("unique_id"))) or name if component != "device" else ""
    if component == "device" or understood:
        draft.leave_out(config.omissions(HARMLESS), label)
    return Announced({(draft.id, topic): Joined.of(draft)}, draft.problems)


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return merged(parts[topic] for topic in sorted(parts))


FORMAT = format_of((PREFIX,))


def _device_texts(config: Declared) -> dict[str, Any]:
    found = config.get("device")
    device = found if isinstance(found, Declared) else Declared({})
    device.rename(DEVICE_KEYS)
    identifiers = device.get("identifiers", [])
    identifiers = identifiers if isinstance(identifiers, list) else [identifiers]
    connections = device.get("connections", [])
    pairs = connections if isinstance(connections, list) else []
    addresses = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    return {
        "identifiers": [text for one in (*identifiers, *addresses) if (text := json_text(one))][:10],
        "name": device.get("name", ""),
        "manufacturer": device.get("manufacturer", ""),
        "model": device.get("model", ""),
        "area": device.get("suggested_area", ""),
    }


def _components(config: Declared, shared: Container[str]) -> dict[str, Declared]:
    """The entities of a device-based announcement, each with the keys that it shares."""
    components = config.get("components")
    if not isinstance(components, Declared) or not components:
        raise ValueError("an announcement of a device has its entities in the object 'components'")
    if len(components) > COMPONENTS_MAX:
        raise ValueError(f"'components' has more than {COMPONENTS_MAX} entities")
    common = {key: value for key, value in config.items() if key in shared}
    found = {}
    for key in [key for key, entity in components.items() if isinstance(entity, dict)]:
        entity = components[key]
        entity.rename(KEYS)
        # An entity with nothing but its platform is withdrawn.
        if set(entity) - {"platform"}:
            for name, value in common.items():
                entity.setdefault(name, value)
            found[str(key)] = entity
    return found
