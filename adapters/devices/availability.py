"""Whether adopted devices are online, by the topics that their announcements name. Pure.

A topic that has not sent anything yet does not count: Zigbee2MQTT announces topics that its settings may leave silent.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from lamplighter.adapters.devices.device import Availability, Device, Table
from lamplighter.adapters.literals import FALSE, TRUE, datetime_term
from lamplighter.adapters.mapping.jinja import payload_text, value_template
from lamplighter.adapters.mapping.payloads import Payload
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import Term
from lamplighter.ontology.vocabulary import LAST_SEEN, ONLINE, PLATFORM, RDF_TYPE

# Of a message that is kept for devices that are adopted later.
LAST_BYTES_MAX = 1_024


@dataclass(slots=True)
class _Watched:
    """heard: what each topic said last, the newest at the end; online: None: unknown."""

    availability: Availability
    heard: dict[str, bool] = field(default_factory=dict)
    online: bool | None = None


class Availabilities:
    """The adopted devices. topics: by the names of brokers and the topics, what is to be read."""

    def __init__(self) -> None:
        self._known: dict[str, _Watched] = {}
        self.topics: dict[tuple[str, str], list[tuple[str, Table]]] = {}
        self._last: dict[tuple[str, str], bytes] = {}
        """The newest message of each topic. Devices share topics, such as that of a bridge, and the broker sends a
        retained message once."""

    def replace(self, devices: Iterable[Device]) -> dict[str, bool]:
        """Takes all adopted devices. What is known of those that stay is kept.

        Returns what earlier messages say of the others, by identity: as `read` does.
        """
        before, self._known, self.topics = self._known, {}, {}
        new: set[str] = set()
        for device in devices:
            availability = device.availability
            if availability is None:
                continue
            known = before.get(device.identity)
            same = known is not None and known.availability == availability
            self._known[device.identity] = known if known is not None and same else _Watched(availability)
            if not same:
                new.add(device.identity)
            for table in availability.topics:
                self.topics.setdefault((device.broker, table["topic"]), []).append((device.identity, table))
        self._last = {place: payload for place, payload in self._last.items() if place in self.topics}
        said: dict[str, bool] = {}
        for place, payload in self._last.items():
            said |= self._read(place, payload, new)
        return said

    def filters(self, broker: str) -> list[str]:
        """What to subscribe to at a broker."""
        return [topic for name, topic in self.topics if name == broker]

    def online_at(self, broker: str, topic: str) -> list[str]:
        """The devices that are online, and say so at a topic."""
        return [identity for identity, _ in self.topics.get((broker, topic), ()) if self._known[identity].online]

    def heard(self, identity: str) -> bool:
        """Whether a topic of a device has said whether it is online."""
        return identity in self._known and self._known[identity].online is not None

    def read(self, broker: str, topic: str, payload: bytes) -> dict[str, bool]:
        """The devices that a message of one of the topics makes online or offline, by identity."""
        place = broker, topic
        self._last.pop(place, None)
        if len(payload) <= LAST_BYTES_MAX:
            self._last[place] = payload
        return self._read(place, payload, self._known)

    def _read(self, place: tuple[str, str], payload: bytes, devices: Container[str]) -> dict[str, bool]:
        """As `read`, for some of the devices."""
        changed: dict[str, bool] = {}
        for identity, table in self.topics[place]:
            said = _said(table, payload) if identity in devices else None
            if said is None:
                continue
            known = self._known[identity]
            known.heard.pop(place[1], None)
            known.heard[place[1]] = said
            online = _online(known)
            if online != known.online:
                known.online = changed[identity] = online
        return changed


def online_update(device: Term, online: bool | None, last_seen: datetime | None = None) -> str:
    """Says in the default graph whether a platform is online; None: that it is not known. last_seen: of one that is
    offline, an aware datetime."""
    said = "" if online is None else f"{device} <{ONLINE}> {TRUE if online else FALSE} . "
    if last_seen is not None:
        said += f"{device} <{LAST_SEEN}> {datetime_term(last_seen, 'milliseconds')} "
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
        if "template" in table:
            text = payload_text(value_template(table["template"]), Payload(payload))
        else:
            text = payload.decode()
        if "member" in table and not (table.get("bare") and text in (*table["on"], *table["off"])):
            found = msgspec.json.decode(payload)
            for name in table["member"]:
                found = found.get(name) if isinstance(found, dict) else None
            text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, PayloadError):
        return None
    if text in table["on"]:
        return True
    return False if text in table["off"] else None
