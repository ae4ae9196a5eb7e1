"""Devices as JSON: the list, and one with its announcement, rules and triples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lamplighter.adapters.devices.desired import desired_pattern
from lamplighter.adapters.devices.device import Actuator, Device, Sensor, place
from lamplighter.adapters.devices.draft import segment
from lamplighter.adapters.devices.registry import Entry
from lamplighter.engine.errors import UnknownResourceError
from lamplighter.engine.protocol import MessagePlace
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.devices.decisions import DeviceDataset, Devices
from lamplighter.gateway.texts import did_you_mean, folded, nearest, printable
from lamplighter.ontology.vocabulary import (
    HAS_SIMPLE_RESULT,
    HOSTS,
    LIVE_OBSERVATION,
    MADE_BY_SENSOR,
    NIL_REASON,
    RECEIVED_FROM,
    REPORTED_STATE,
    REPORTED_TIME,
    RESULT_TIME,
    SINCE,
)

LISTED_MAX = 1_000  # devices in a list
PLACES_MAX = 32  # topics and resources of a device whose messages are shown


def in_room(entries: Sequence[Entry], room: str) -> list[Entry]:
    """The devices in a room. room: its name, or the path or IRI of its area. Raises UnknownResourceError."""
    wanted = folded(room)
    found = [
        entry
        for entry in entries
        if entry.area and (folded(entry.area) == wanted or room.endswith(f"area/{segment(entry.area)}"))
    ]
    if not found:
        hint = did_you_mean(nearest(room, (entry.area for entry in entries if entry.area)))
        raise UnknownResourceError(f"no device is in a room {printable(room)!r}{hint}")
    return found


def decision_json(entry: Entry) -> dict[str, Any]:
    return {"id": entry.identity, "name": entry.name, "area": entry.area, "state": entry.adoption}


class DeviceList:
    """What programs are told of devices. Raises as `Devices`."""

    def __init__(self, devices: Devices, dataset: DeviceDataset) -> None:
        self._devices = devices
        self._registry = devices.registry
        self._dataset = dataset

    async def all(self, room: str | None = None) -> dict[str, Any]:
        """The first devices, by state and name; how many there are; what is wrong with those that cannot be read. room:
        only those in it. Raises UnknownResourceError for one without devices."""
        entries, faults = await self._devices.entries()
        if room is not None:
            entries = in_room(entries, room)
        contacts = await self._devices.contacts()
        shown = await asyncio.to_thread(self._members, entries[:LISTED_MAX], contacts)
        return {"total": len(entries), "devices": shown, "unreadable": faults[:LISTED_MAX]}

    def _members(self, entries: Iterable[Entry], contacts: Mapping[Term, Mapping[str, str]]) -> list[dict[str, Any]]:
        return [self._facts(entry, contacts) for entry in entries]

    async def one(self, entry: Entry) -> dict[str, Any]:
        """A device with its newest values and states; `triples` and `rules`: its own, or those of an adoption."""
        device = entry.device
        contacts = await self._devices.contacts(entry)
        node = self._registry.device_iri(device)
        values, states = await self._values(node), await self._states(node)
        adopted = entry if entry.adoption in ("adopted", "retired") else replace(entry, adoption="adopted")
        return {
            **self._facts(entry, contacts),
            "sensors": [self._sensor(one) | values.get(self._registry.sensor_iri(one), {}) for one in device.sensors],
            "actuators": [
                self._actuator(one) | states.get(self._registry.actuator_iri(one), {}) for one in device.actuators
            ],
            "warnings": self._devices.refused_topics(device),
            "announcement": msgspec.to_builtins(device),
            "rules": self._registry.rules(device),
            "triples": [f"{s} <{p}> {o} ." for s, p, o in sorted(self._registry.description(adopted))],
        }

    def _facts(self, entry: Entry, contacts: Mapping[Term, Mapping[str, str]]) -> dict[str, Any]:
        device, node = entry.device, self._registry.device_iri(entry.device)
        return {
            "id": entry.identity,
            "iri": lexical(node),
            "name": entry.name,
            "area": entry.area,
            "state": entry.adoption,
            "source": device.source,
            "broker": device.broker,
            "manufacturer": device.manufacturer,
            "model": device.model,
            **_contact(contacts.get(node, {})),
            "sensors": [self._part(one, self._registry.sensor_iri(one)) for one in device.sensors],
            "actuators": [self._part(one, self._registry.actuator_iri(one)) for one in device.actuators],
        }

    @staticmethod
    def _part(one: Sensor | Actuator, node: Term) -> dict[str, Any]:
        return {"key": one.key, "iri": lexical(node), "kind": one.kind, "label": one.label}

    def _sensor(self, one: Sensor) -> dict[str, Any]:
        more: dict[str, Any] = {name: one.table[name] for name in ("unit", "member") if name in one.table}
        return {**self._part(one, self._registry.sensor_iri(one)), "place": place(one.table), **more}

    def _actuator(self, one: Actuator) -> dict[str, Any]:
        told = {**self._part(one, self._registry.actuator_iri(one)), "place": place(one.command)}
        if "values" in one.command:
            told["states"] = list(one.command["values"])
        bounds = (("minimum", one.minimum), ("maximum", one.maximum))
        return told | {name: bound for name, bound in bounds if bound is not None}

    # --- the dataset ---

    async def _values(self, device: Term) -> dict[Term, dict[str, Any]]:
        """The newest result of each sensor of a device, with its time; or why it has none. confirmed: whether something
        was heard of it since its broker, device and adapter came back."""
        query = (
            f"SELECT ?sensor ?value ?time ?nil ?since WHERE {{ {device} <{HOSTS}> ?sensor . "
            f"?reading <{MADE_BY_SENSOR}> ?sensor "
            f"{{ ?reading <{HAS_SIMPLE_RESULT}> ?value }} UNION {{ ?reading <{NIL_REASON}> ?nil }} "
            f"OPTIONAL {{ ?reading <{RESULT_TIME}> ?time }} "
            f"OPTIONAL {{ ?stream <{LIVE_OBSERVATION}> ?reading ; <{RECEIVED_FROM}> ?source . "
            f"?source <{SINCE}> ?since }} }}"
        )
        rows = await self._dataset.rows(query)
        rows.sort(key=lambda row: row[2] or "")
        found: dict[Term, dict[str, Any]] = {}
        for sensor, value, time, nil, since in rows:
            if sensor is not None:
                pairs = (("value", value), ("nil_reason", nil), ("time", time))
                about: dict[str, Any] = {name: lexical(term) for name, term in pairs if term is not None}
                if since is not None:  # a reading has a row for each of its sources
                    confirmed = is_confirmed(about.get("time", ""), lexical(since))
                    before = found.get(sensor, {})
                    same = before.get("time") == about.get("time")
                    about["confirmed"] = confirmed and not (same and before.get("confirmed") is False)
                found[sensor] = about
        return found

    async def _states(self, device: Term) -> dict[Term, dict[str, Any]]:
        """The desired and the reported state of each actuator of a device, and when it was reported. confirmed: as for
        `_values`."""
        query = (
            f"SELECT ?actuator ?desired ?reported ?time ?since WHERE {{ {device} <{HOSTS}> ?actuator "
            f"OPTIONAL {{ {desired_pattern('desired')} }} OPTIONAL {{ ?actuator <{REPORTED_STATE}> ?reported "
            f"OPTIONAL {{ ?actuator <{REPORTED_TIME}> ?time }} "
            f"OPTIONAL {{ ?actuator <{RECEIVED_FROM}> ?source . ?source <{SINCE}> ?since }} }} }}"
        )
        found: dict[Term, dict[str, Any]] = {}
        for actuator, desired, reported, time, since in await self._dataset.rows(query):
            if actuator is not None:
                pairs = (("desired", desired), ("reported", reported), ("reported_time", time))
                about: dict[str, Any] = {name: lexical(value) for name, value in pairs if value is not None}
                if since is not None:  # a state has a row for each of its sources
                    earlier = found.get(actuator, {}).get("confirmed", True)
                    about["confirmed"] = earlier and is_confirmed(about.get("reported_time", ""), lexical(since))
                found[actuator] = about
        return found


def is_confirmed(time: str, since: str) -> bool:
    """Whether a report is not older than its source's return. Both in UTC, as the adapters write them; time: empty: it
    is unknown."""
    return time.rstrip("Z") >= since.rstrip("Z")


def message_places(device: Device) -> list[MessagePlace]:
    """Where a device sends its values and the states of its actuators, `PLACES_MAX` at most."""
    tables = [
        *(one.table for one in device.sensors),
        *(one.state for one in device.actuators if one.state is not None),
        *(one.command for one in device.actuators if "resource" in one.command),
    ]
    found = (MessagePlace(place(one), "" if "resource" in one else device.broker) for one in tables)
    return list(dict.fromkeys(found))[:PLACES_MAX]


def _contact(found: Mapping[str, str]) -> dict[str, Any]:
    return {name: text == "true" if name == "online" else text for name, text in found.items()}
