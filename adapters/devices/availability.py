"""Whether adopted devices are online, by the topics that their announcements name. Pure.

A topic that has not sent anything yet does not count: Zigbee2MQTT announces topics that its settings may leave silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from lamplighter.adapters.devices.device import Availability, Device, Table
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import LAST_SEEN, ONLINE, PLATFORM, RDF_TYPE

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

    def heard(self, identity: str) -> bool:
        """Whether a topic of a device has said whether it is online."""
        return identity in self._known and self._known[identity].online is not None

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


def online_update(device: Term, online: bool | None, last_seen: datetime | None = None) -> str:
    """Says in the default graph whether a platform is online; None: that it is not known. last_seen: of one that is
    offline, an aware datetime."""
    said = "" if online is None else f"{device} <{ONLINE}> {_TRUE if online else _FALSE} . "
    if last_seen is not None:
        time = last_seen.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
        said += f"{device} <{LAST_SEEN}> {literal(time, datatype=XSD + 'dateTime')} "
    return (
        f"DELETE {{ {device} <{ONLINE}> ?before ; <{LAST_SEEN}> ?seen }} INSERT {{ {said}}} "
        f"WHERE {{ {device} <{RDF_TYPE}> <{PLATFORM}> OPTIONAL {{ {device} <{ONLINE}> ?before }} "
        f"OPTIONAL {{ {device} <{LAST_SEEN}> ?seen }} }}"
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
