"""What a format of announcements is to the rest: its topics, its reader, and how its parts become a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lamplighter.adapters.devices.device import Actuator, Availability, Device, Problem, Sensor, Table
from lamplighter.adapters.devices.draft import ACTUATORS_MAX, SENSORS_MAX, Draft
from lamplighter.adapters.mqtt.discovery.declared import Declared, declare_items

ANNOUNCEMENT_BYTES_MAX = 4 * 1024 * 1024
"""Of one message: the list of a Zigbee network with 500 devices."""
SMALL_BYTES_MAX = 65_536
"""Of a message about one device."""
DECODED_BYTES_MAX = 32 * 1024 * 1024
"""Memory that the values of a message may take. The list of 500 devices takes 20 MB."""

Group = str
"""Names what belongs to one device in a format, before its identifier is known."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What one message says. parts: by group and name; joined, the parts of a group are a device.

    adds: the parts add to what the topic announced before; otherwise they replace all of it. below: the message lists
    all devices whose topics start with this; those of an earlier run that are not in it are gone.
    """

    parts: Mapping[tuple[Group, str], Any] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    adds: bool = False
    below: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """The device of a group, None if it is not known enough yet. left_out: lines of what its announcements say and the
    format does not use; they replace those of before. whole: False: the device may have more than it has said since the
    start, and keeps what it had in an earlier run."""

    device: Device | None
    left_out: Sequence[str]
    problems: Sequence[Problem] = ()
    whole: bool = True

    @classmethod
    def of(cls, draft: Draft, problems: Sequence[Problem] = (), *, whole: bool = True) -> Joined:
        return cls(draft.device(), draft.left_out, problems, whole)


NOT_ANNOUNCED = Joined(None, ())
"""What a group without parts is."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of announcements.

    filters: topic filters of the announcements. covers: whether a topic is one of an announcement. announced: broker,
    topic, payload -> parts; raises ValueError with the reason if the message cannot be read. joined: broker, group,
    parts by name -> device. asks: messages (topic, payload) that make devices announce themselves; state_asks: that
    make all of them send their states.
    """

    name: str
    filters: tuple[str, ...]
    covers: Callable[[str], bool]
    announced: Callable[[str, str, bytes], Announced]
    joined: Callable[[str, Group, Mapping[str, Any]], Joined]
    asks: tuple[tuple[str, str], ...] = ()
    state_asks: tuple[tuple[str, str], ...] = ()


def json_document(payload: bytes, bytes_max: int = SMALL_BYTES_MAX) -> Any:
    """The JSON value of a payload; its objects are `Declared`. Raises ValueError with a reason that does not quote the
    payload."""
    if len(payload) > bytes_max:
        raise ValueError(f"the payload has more than {bytes_max} bytes")
    # Empty lists and objects take 30 times the memory of their text.
    values = payload.count(b",") + payload.count(b":")
    if 240 * payload.count(b"{") + 80 * payload.count(b"[") + 60 * values > DECODED_BYTES_MAX:
        raise ValueError("the payload has too many values")
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("the payload is not JSON") from error
    if isinstance(document, list):
        declare_items(document)
    return Declared(document) if isinstance(document, dict) else document


def json_object(payload: bytes, bytes_max: int = SMALL_BYTES_MAX) -> Declared:
    """The JSON object of a payload. Raises ValueError."""
    document = json_document(payload, bytes_max)
    if not isinstance(document, Declared):
        raise ValueError("the payload is not a JSON object")
    return document


def merged(announcements: Iterable[Joined]) -> Joined:
    """One device from partial ones, in their order: the first text, sensor or actuator of a name is kept.

    Topics of availability that not every record with availability has are about parts, and are left out.
    """
    parts = list(announcements)
    left_out = tuple(dict.fromkeys(line for part in parts for line in part.left_out))
    records = [part.device for part in parts if part.device is not None]
    if not records:
        return Joined(None, left_out)
    first = records[0]
    problems: list[Problem] = []
    sensors: dict[str, Sensor] = {}
    actuators: dict[str, Actuator] = {}
    for record in records:
        for sensor in record.sensors:
            if sensors.setdefault(sensor.key, sensor) is not sensor:
                problems.append(_twice(first, sensor.key, sensor.table["topic"]))
        for actuator in record.actuators:
            if actuators.setdefault(actuator.key, actuator) is not actuator:
                problems.append(_twice(first, actuator.key, actuator.command["topic"]))
    named = {
        text: next((getattr(record, text) for record in records if getattr(record, text)), "")
        for text in ("manufacturer", "model", "area")
    }
    more = [
        f"{len(found) - most} of {len(found)} {what}, since a device has at most {most}"
        for found, most, what in ((sensors, SENSORS_MAX, "sensors"), (actuators, ACTUATORS_MAX, "actuators"))
        if len(found) > most
    ]
    name = next((record.name for record in records if record.name != record.id), first.name)
    device = Device(
        id=first.id,
        source=first.source,
        broker=first.broker,
        name=name,
        manufacturer=named["manufacturer"],
        model=named["model"],
        area=named["area"],
        sensors=tuple(sensors[key] for key in sorted([*sensors][:SENSORS_MAX])),
        actuators=tuple(actuators[key] for key in sorted([*actuators][:ACTUATORS_MAX])),
        availability=_common([record.availability for record in records if record.availability]),
    )
    return Joined(device, (*left_out, *more), problems)


def _twice(device: Device, key: str, topic: str) -> Problem:
    return Problem(
        device.source, device.broker, topic, f"{key}: the device already has one of this name", device.identity
    )


def _common(found: Sequence[Availability]) -> Availability | None:
    if not found:
        return None
    topics: tuple[Table, ...] = tuple(
        table for table in found[0].topics if all(table in other.topics for other in found[1:])
    )
    return Availability(topics, found[0].mode) if topics else None
