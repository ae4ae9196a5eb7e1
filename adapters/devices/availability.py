"""Whether adopted devices are online, by the topics that their announcements name. Pure.

A topic that has not sent anything yet does not count: Zigbee2MQTT announces topics that its settings may leave silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from lamplighter.adapters.devices.device import Availability, Device, Table
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import DEVICE, ONLINE, RDF_TYPE

_TRUE, _FALSE = literal("true", datatype=XSD + "boolean"), literal("false", datatype=XSD + "boolean")


@dataclass(slots=True)
class _Watched:
    """heard: what each topic said last, the newest at the end; online: None: unknown."""

    availability: Availability
    heard: dict[str, bool] = field(default_factory=dict)
    online: bool | None = None


class Availabilities:
    """The adopted devices with their topics."""

    def __init__(self) -> None:
        self._known: dict[str, _Watched] = {}
        self._topics: dict[tuple[str, str], list[tuple[str, Table]]] = {}

    def replace(self, devices: Iterable[Device]) -> None:
        """Takes all adopted devices. What is known of those that stay is kept."""
        before, self._known, self._topics = self._known, {}, {}
        for device in devices:
            availability = device.availability
            if availability is None:
                continue
            known = before.get(device.identity)
            same = known is not None and known.availability == availability
            self._known[device.identity] = known if known is not None and same else _Watched(availability)
            for table in availability.topics:
                self._topics.setdefault((device.broker, table["topic"]), []).append((device.identity, table))

    def filters(self, broker: str) -> list[str]:
        """What to subscribe to at a broker."""
        return [topic for name, topic in self._topics if name == broker]

    def covers(self, broker: str, topic: str) -> bool:
        return (broker, topic) in self._topics

    def read(self, broker: str, topic: str, payload: bytes) -> dict[str, bool]:
        """The devices that a message makes online or offline, by identity."""
        changed: dict[str, bool] = {}
        for identity, table in self._topics.get((broker, topic), ()):
            said = _said(table, payload)
            known = self._known[identity]
            if said is None:
                continue
            known.heard.pop(topic, None)
            known.heard[topic] = said
            online = _online(known)
            if online != known.online:
                known.online = changed[identity] = online
        return changed


def online_update(device: Term, online: bool) -> str:
    """Says in the default graph whether an adopted device is online."""
    return (
        f"DELETE {{ {device} <{ONLINE}> ?before }} INSERT {{ {device} <{ONLINE}> {_TRUE if online else _FALSE} }} "
        f"WHERE {{ {device} <{RDF_TYPE}> <{DEVICE}> OPTIONAL {{ {device} <{ONLINE}> ?before }} }}"
    )


def _online(known: _Watched) -> bool:
    if known.availability.mode == "latest":
        return list(known.heard.values())[-1]
    return (any if known.availability.mode == "any" else all)(known.heard.values())


def _said(table: Table, payload: bytes) -> bool | None:
    """What a payload says; None if it has none of the words."""
    try:
        text = payload.decode()
        if "member" in table:
            found = msgspec.json.decode(payload)
            for name in table["member"]:
                found = found.get(name) if isinstance(found, dict) else None
            text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    if text in table["on"]:
        return True
    return False if text in table["off"] else None
