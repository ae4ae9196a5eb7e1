"""Births of Sparkplug B -> devices.

``spBv1.0/<group>/NBIRTH/<node>`` and ``.../DBIRTH/<node>/<device>`` name the metrics of a node or of a device at it.
Births are not retained: a device is known once it is born while the adapter listens. Metrics are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, own_kind, plain
from lamplighter.adapters.mapping.sparkplug import NAMESPACE, Births
from lamplighter.adapters.mqtt.discovery.announced import NOT_ANNOUNCED, Announced, Format, Group, Joined
from lamplighter.engine.errors import PayloadError

NAME = "sparkplug"
PAYLOAD_BYTES_MAX = 262_144

_KINDS = {
    "battery": "battery",
    "co2": "carbonDioxide",
    "current": "current",
    "energy": "energy",
    "flow": "volumeFlow",
    "frequency": "frequency",
    "humidity": "humidity",
    "illuminance": "illuminance",
    "level": "distance",
    "power": "power",
    "pressure": "pressure",
    "temperature": "temperature",
    "vibration": "vibration",
    "voltage": "voltage",
}
"""By the last part of a metric's name, in small letters."""
_BIRTH = re.compile(rf"{NAMESPACE}/([^/]+)/(?:NBIRTH/([^/]+)|DBIRTH/([^/]+)/([^/]+))")


def covers(topic: str) -> bool:
    return topic.startswith(f"{NAMESPACE}/") and "BIRTH/" in topic


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    """The metrics of a birth. Raises ValueError."""
    found = _BIRTH.fullmatch(topic)
    if found is None:
        raise ValueError("the topic is not one of a birth")
    if not payload:
        return Announced()
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"the payload has more than {PAYLOAD_BYTES_MAX} bytes")
    group, edge = found[1], [one for one in found.groups()[1:] if one is not None]
    births = Births()
    try:
        records = births.records(topic, payload)
    except PayloadError as error:
        raise ValueError(str(error)) from error
    draft = Draft(
        NAME, "/".join((group, *edge)), broker=broker, topic=topic, about=DeviceTexts(edge[-1], model="Sparkplug B")
    )
    for name, what in births.left_out.items():
        draft.leave_out([what], name)
    if not records and not draft.left_out:
        return Announced()  # a node that has devices only
    # Births, data and deaths are one stream; the mapping has to see the births for the names behind aliases.
    read = "/".join((NAMESPACE, group, "+", *edge))
    for record in records:
        name, kind = record.name, _KINDS.get(record.name.rpartition("/")[2].casefold())
        try:
            if plain(name) != name:
                raise ValueError("the name of the metric is too long, or has control characters")
            known = f"gateway:{kind}" if kind and not isinstance(record.found, bool) else own_kind(name)
        except ValueError as error:
            draft.problem(f"{plain(name)}: {error}")
            continue
        # The literal topic is checked; the rule has the wildcard.
        instead = {"member": name, "optional": True, "topic": read}
        draft.sensor(name, known, topic, "sparkplug", label=name, instead=instead)
    return Announced({(draft.id, "birth"): Joined.of(draft)}, draft.problems)


def node_of(device: Device) -> tuple[str, str] | None:
    """Group and node of a device; None if it is none of Sparkplug."""
    topics = (str(sensor.table.get("topic")).split("/") for sensor in device.sensors if device.source == NAME)
    return next(((levels[1], levels[3]) for levels in topics if len(levels) > 3), None)


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    found: Joined = parts.get("birth", NOT_ANNOUNCED)
    return found


FORMAT = Format(
    NAME,
    # The death of a node is that of its devices, whose rules do not read it.
    (f"{NAMESPACE}/+/NBIRTH/+", f"{NAMESPACE}/+/DBIRTH/+/+", f"{NAMESPACE}/+/NDEATH/+"),
    covers=covers,
    announced=announced,
    joined=joined,
)
