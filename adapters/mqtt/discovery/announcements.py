"""All announcements of all brokers -> devices; each part, identity and topic has one owner.

The first to announce something owns it until it is withdrawn. A second one is refused, and a problem says who owns it.
So a device cannot take over another's identity, or be switched by another's announcement. State is bounded by
`devices_max` and the bounds of the formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from lamplighter.adapters.devices.device import Actuator, Device, Problem, Sensor, Table
from lamplighter.adapters.devices.draft import ACTUATORS_MAX, SENSORS_MAX
from lamplighter.adapters.devices.problems import left_out_problems
from lamplighter.adapters.mqtt.discovery import (
    ahoydtu,
    chirpstack,
    evcc,
    homeassistant,
    homie4,
    homie5,
    opendtu,
    rtl433,
    shelly,
    sparkplug,
    tasmota,
    theengs,
    thethings,
    victron,
    wled,
    zigbee2mqtt,
)
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined

SomePart = TypeVar("SomePart", Sensor, Actuator)

FORMATS: dict[str, Format] = {
    one.FORMAT.name: one.FORMAT
    for one in (
        *(zigbee2mqtt, tasmota, shelly, sparkplug),
        *(homie4, homie5, wled, opendtu, ahoydtu, evcc, victron),
        *(chirpstack, rtl433, theengs, thethings),
        homeassistant,
    )
}
"""By name. The native formats come first, since Home Assistant's announces the same devices again."""

PARTS_MAX = 400
"""Of one device."""
PARTS_PER_DEVICE_MEAN = 40
"""Parts of all devices are bounded by `devices_max` times this."""

DEVICE_CHARS_MAX = 120_000
CHARS_MAX = 3_000_000
"""Of the records of one device, and of all, as JSON: the registry sends all of them in one message."""
PARTS_CHARS_MAX = 2 * DEVICE_CHARS_MAX
PARTS_CHARS_ALL_MAX = 2 * CHARS_MAX
"""Of what the announcements of one device say, and of all. A part that no device is made of yet counts too."""
COVERED_MAX, COVERED_CHARS_MAX = 10_000, 200
"""Topics of which it is remembered whether they announce devices, and characters of one."""
_NOT_OF_DEVICES = re.compile(
    r"/bridge/(?:devices|request|response|info|state)(?:/|$)|^tasmota/discovery/"
    r"|(?:^|/)announce$|^shellies/command$|/events/rpc$"
)
"""Topics of announcements, and those that configure a bridge; no announcement may have a command there."""

_Key = tuple[str, str, Group]
"""Format, broker, group."""
_Origin = tuple[str, str]
"""Broker and topic of an announcement."""


def formats_of(names: Iterable[str], prefixes: Sequence[str]) -> list[Format]:
    """The formats named. prefixes: of the topics of Home Assistant's."""
    return [homeassistant.format_of(prefixes) if name == homeassistant.NAME else FORMATS[name] for name in names]


@dataclass(frozen=True, slots=True)
class Changes:
    """What one message changes. devices: new or changed; gone: identities that are not announced any more; left_out:
    problems that say what is not used of the announcements of a device, instead of those before."""

    devices: Sequence[Device] = ()
    gone: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    left_out: Sequence[Problem] = ()


class _Part(NamedTuple):
    """topic: of its announcement; chars: of its content as JSON."""

    topic: str
    content: Any
    chars: int


@dataclass(slots=True)
class _AnnouncedGroup:
    """A group.

    parts: by name. refused_at: the number of releases at which something of the
    device was refused, None if nothing was; after a further release it may own more. left_out: the problems that were
    told of it. former: what it was in an earlier run, while its parts are not known to be all.
    """

    parts: dict[str, _Part] = field(default_factory=dict)
    device: Device | None = None
    refused_at: int | None = None
    left_out: Sequence[Problem] = ()
    former: Device | None = None


class Announcements:
    """The announcements of the formats named, in their precedence."""

    def __init__(self, formats: Iterable[str | Format], *, devices_max: int) -> None:
        chosen = {one.name: one for one in (FORMATS[one] if isinstance(one, str) else one for one in formats)}
        self._formats = [chosen[name] for name in FORMATS if name in chosen]
        self._entities = chosen.get(homeassistant.NAME, homeassistant.FORMAT)
        self._covered = lru_cache(COVERED_MAX)(self._covers)
        self._devices_max = devices_max
        self._groups: dict[_Key, _AnnouncedGroup] = {}
        self._announced: dict[_Origin, set[tuple[_Key, str]]] = {}
        self._parts = self._parts_chars = 0
        self._owners: dict[str, _Key | None] = {}
        """Identity -> group; None: known from an earlier run, and not announced yet."""
        self._claims: dict[_Claim, str] = {}
        """Topics and values that are read, and topics of commands -> identity."""
        self._restored: dict[str, Device] = {}
        self._releases = 0
        self._chars: dict[str, int] = {}
        """Characters of each device that is owned."""
        self._chars_all = 0

    @property
    def filters(self) -> list[str]:
        """What to subscribe to at each broker."""
        return [one for format_ in self._formats for one in format_.filters]

    def state_asks(self, name: str | None = None) -> list[tuple[str, str]]:
        """Messages, topic and payload, that make all devices of a format send their states; None: of all formats."""
        return [one for format_ in self._formats if name in (None, format_.name) for one in format_.state_asks]

    @property
    def asks(self) -> list[tuple[str, str]]:
        """Messages, topic and payload, that make devices announce themselves."""
        return [one for format_ in self._formats for one in format_.asks]

    def covers(self, topic: str) -> bool:
        """Whether `read` takes messages of the topic."""
        return self._covered(topic) if len(topic) <= COVERED_CHARS_MAX else self._covers(topic)

    def _covers(self, topic: str) -> bool:
        return any(format_.covers(topic) for format_ in self._formats)

    def restore(self, devices: Iterable[Device]) -> None:
        """Devices of an earlier run keep what they own."""
        for device in devices:
            if device.identity not in self._owners:
                self._owners[device.identity] = None
                self._restored[device.identity] = device
                self._claim(device)
                self._count(device, len(device.to_json()))

    def read(self, broker: str, topic: str, payload: bytes) -> Changes:
        """What a message changes. Nothing is raised for any topic or payload."""
        found = next((one for one in self._formats if one.covers(topic)), None)
        if found is None:
            return Changes()
        try:
            said = found.announced(broker, topic, payload)
        except ValueError as error:
            return Changes(problems=[Problem(found.name, broker, topic, str(error))])
        return self._changes(found, broker, topic, said)

    def _changes(self, format_: Format, broker: str, topic: str, said: Announced) -> Changes:
        problems = list(said.problems)
        origin = broker, topic
        before = self._announced.get(origin, set())
        parts = {((format_.name, broker, group), part): content for (group, part), content in said.parts.items()}
        changed: dict[_Key, None] = {}
        now = set(before) if said.adds else set()
        for key, part in sorted(before - parts.keys() - now):
            self._parts_chars -= self._groups[key].parts.pop(part).chars
            self._parts -= 1
            changed[key] = None
        full = False
        for (key, part), content in parts.items():
            known = self._groups.get(key)
            held = known.parts.get(part) if known else None
            if held is not None and held.topic != topic:
                if held.content != content:
                    reason = f"{part}: the topic {held.topic} already announced it"
                    problems.append(Problem(format_.name, broker, topic, reason, f"{format_.name}/{key[2]}"))
                continue
            same = held is not None and held.content == content
            chars = held.chars if held is not None and same else _chars(content)
            if not same and not self._has_room(key, held, chars):
                full = True
                if held is not None:
                    now.add((key, part))  # what was announced before is kept
                continue
            now.add((key, part))
            refused_at = known.refused_at if known else None
            if not same or (refused_at is not None and refused_at < self._releases):
                self._parts += held is None
                self._parts_chars += chars - (held.chars if held is not None else 0)
                self._groups.setdefault(key, _AnnouncedGroup()).parts[part] = _Part(topic, content, chars)
                changed[key] = None
        if full:
            reason = f"there are more than {self._devices_max} devices (mqtt.devices_max), or too many parts"
            problems.append(Problem(format_.name, broker, topic, reason))
        if now:
            self._announced[origin] = now
        else:
            self._announced.pop(origin, None)
        withdrawn = self._withdrawn(format_, broker, said)
        if not changed:
            return Changes((), withdrawn, problems)
        devices, gone, further, left_out = self._joined(format_, list(changed))
        return Changes(devices, [*withdrawn, *gone], problems + further, left_out)

    def _has_room(self, key: _Key, held: _Part | None, chars: int) -> bool:
        """Whether a group may have a part of so many characters, instead of the held one. A device of an earlier run
        has its place, however many others are announced before it."""
        group = self._groups.get(key)
        is_new = group is None and f"{key[0]}/{key[2]}" not in self._restored
        if held is None and (
            (is_new and len(self._groups) >= self._devices_max)
            or self._parts >= self._devices_max * PARTS_PER_DEVICE_MEAN
            or (group is not None and len(group.parts) >= PARTS_MAX)
        ):
            return False
        more = chars - (0 if held is None else held.chars)
        own = 0 if group is None else sum(part.chars for part in group.parts.values())
        return own + more <= PARTS_CHARS_MAX and self._parts_chars + more <= PARTS_CHARS_ALL_MAX

    def _withdrawn(self, format_: Format, broker: str, said: Announced) -> list[str]:
        """Devices of an earlier run that a complete list does not have any more."""
        if not said.below or not self._restored:
            return []
        listed = {f"{format_.name}/{group}" for group, _ in said.parts}
        gone = [
            device
            for identity, device in self._restored.items()
            if device.source == format_.name
            and device.broker == broker
            and identity not in listed
            and any(table["topic"].startswith(said.below) for table in _tables(device))
        ]
        for device in gone:
            self._release(device)
            del self._restored[device.identity]
        return sorted(device.identity for device in gone)

    def _joined(
        self, format_: Format, changed: Sequence[_Key]
    ) -> tuple[list[Device], list[str], list[Problem], list[Problem]]:
        """The changed groups as devices. What they owned is free before it is given out again: names may be swapped."""
        devices: list[Device] = []
        problems: list[Problem] = []
        left_out: list[Problem] = []
        before = {key: self._groups[key].device for key in changed}
        for device in before.values():
            if device:
                self._release(device)
        for key in changed:
            known = self._groups[key]
            joined = format_.joined(key[1], key[2], {name: part.content for name, part in known.parts.items()})
            device, was = joined.device if known.parts else None, before[key]
            problems += joined.problems
            if device is not None:
                known.former = None if joined.whole else known.former or self._restored.get(device.identity)
                if known.former is not None and known.former.broker == device.broker:
                    device = _with_former(device, known.former)
            if device is not None and was is not None and device.identity != was.identity:
                topic = next(iter(known.parts.values())).topic
                reason = f"it announces itself as another device than before; {was.identity} is kept"
                problems.append(Problem(device.source, device.broker, topic, reason, device.identity))
                device = was
            refused: list[Problem] = []
            if device is not None:
                device, refused = self._owned(key, device)
                problems += refused
            if known.parts:
                topic = next(iter(known.parts.values())).topic
                current = _omission_problems(key, topic, joined, owned=device is not None)
            else:
                current = []
            if current != known.left_out:
                ended = (one for one in known.left_out if all(_lasts_as(one) != _lasts_as(new) for new in current))
                left_out += [*(msgspec.structs.replace(one, reason="") for one in ended), *current]
                known.left_out = current
            known.device = device
            known.refused_at = self._releases if refused else None
            if not known.parts:
                del self._groups[key]
            if device is not None and device != was:
                devices.append(device)
        held = {device.identity for known in self._groups.values() if (device := known.device)}
        gone = sorted({device.identity for device in before.values() if device and device.identity not in held})
        return devices, gone, problems, left_out

    def _owned(self, key: _Key, device: Device) -> tuple[Device | None, list[Problem]]:
        """The device with what it may own. None if its identity is another's, or if it has nothing."""
        identity = device.identity
        topic = next(iter(self._groups[key].parts.values())).topic
        owner, restored = self._owners.get(identity), self._restored.get(identity)
        if (owner is not None and owner != key) or (restored is not None and restored.broker != device.broker):
            reason = "another announcement is already of this device, and is kept"
            return None, [Problem(device.source, device.broker, topic, reason, identity)]
        if restored is not None:
            self._release(restored)
            del self._restored[identity]
        self._owners[identity] = key
        problems: list[Problem] = []
        others: set[str] = set()

        def refused(part: str, part_topic: str, other: str) -> None:
            if other.partition("/")[0] != device.source:
                others.add(other)  # the same device in another format, as a rule
            else:
                reason = f"{part}: the topic {part_topic} belongs to {other}, which announced it first"
                problems.append(Problem(device.source, device.broker, topic, reason, identity))

        sensors: list[Sensor] = []
        for sensor in device.sensors:
            claims = _reads(device, sensor)
            other = self._claims.setdefault(claims[0], identity)
            if other != identity:
                refused(sensor.key, sensor.table["topic"], other)
                continue
            self._claims.setdefault(claims[1], identity)
            sensors.append(sensor)
        actuators: list[Actuator] = []
        for actuator in device.actuators:
            to = actuator.command["topic"]
            if _NOT_OF_DEVICES.search(to) or self._entities.covers(to):
                reason = f"{actuator.key}: the topic {to} is not one of a device"
                problems.append(Problem(device.source, device.broker, topic, reason, identity))
                continue
            read = self._claims.get(("topic", device.broker, to), identity)
            other = read if read != identity else self._claims.setdefault(_writes(device, actuator), identity)
            if other != identity:
                refused(actuator.key, to, other)
                continue
            actuators.append(actuator)
        for other in sorted(others):
            reason = f"some of its topics belong to {other}, which announced them first; they are used there"
            problems.append(Problem(device.source, device.broker, topic, reason, identity))
        if not sensors and not actuators:
            return None, problems
        owned = msgspec.structs.replace(device, sensors=tuple(sensors), actuators=tuple(actuators))
        owned = owned.with_asks(one for one in device.asks if self._may_ask(device, one.topic))
        chars = len(owned.to_json())
        if chars > DEVICE_CHARS_MAX or self._chars_all + chars > CHARS_MAX:
            reason = (
                "the record of the device is too long" if chars > DEVICE_CHARS_MAX else "there are too many devices"
            )
            self._release(owned)
            return None, [*problems, Problem(device.source, device.broker, topic, reason, identity)]
        self._count(owned, chars)
        return owned, problems

    def _may_ask(self, device: Device, topic: str) -> bool:
        """Whether a topic is none of a bridge, and no other device's."""
        claims = ("topic", device.broker, topic), ("command", device.broker, topic)
        owners = {self._claims.get(claim, device.identity) for claim in claims}
        return owners == {device.identity} and not _NOT_OF_DEVICES.search(topic)

    def _claim(self, device: Device) -> None:
        for claim in _claims(device):
            self._claims.setdefault(claim, device.identity)

    def _release(self, device: Device) -> None:
        self._releases += 1
        for claim in _claims(device):
            if self._claims.get(claim) == device.identity:
                del self._claims[claim]
        self._owners.pop(device.identity, None)
        self._chars_all -= self._chars.pop(device.identity, 0)

    def _count(self, device: Device, chars: int) -> None:
        self._chars_all += chars - self._chars.get(device.identity, 0)
        self._chars[device.identity] = chars


def _with_former(device: Device, former: Device) -> Device:
    """A device with the values that it had before, too, as many of them as a record has room for."""
    return msgspec.structs.replace(
        device,
        sensors=_with_room(former.sensors, device.sensors, SENSORS_MAX),
        actuators=_with_room(former.actuators, device.actuators, ACTUATORS_MAX),
    )


def _with_room(former: Sequence[SomePart], parts: Sequence[SomePart], most: int) -> tuple[SomePart, ...]:
    own = {one.key: one for one in parts}
    room = most - len(own)
    gone = {one.key for one in [one for one in former if one.key not in own][room:]}
    return tuple(({one.key: one for one in former if one.key not in gone} | own).values())


def _omission_problems(key: _Key, topic: str, joined: Joined, *, owned: bool) -> list[Problem]:
    """The problems that say what is not used of a group, as few as their length permits. owned: whether it is a
    device; one that is refused has other problems."""
    device, lines = joined.device, list(joined.left_out)
    if device is not None and not device.sensors and not device.actuators:
        lines.append("it has no value that can be read and no state that can be set")
    elif device is not None and not owned:
        lines = []
    format_name, broker, group = key
    # A group is a part of an identity as a rule; that of a Shelly is the prefix of its topics.
    identity = device.identity if device is not None else "" if "/" in group else f"{format_name}/{group}"
    return left_out_problems(format_name, broker, topic, identity, lines)


def _lasts_as(problem: Problem) -> tuple[str, str, str]:
    return problem.device, "" if problem.device else problem.topic, problem.about


def _chars(content: object) -> int:
    return len(content) if isinstance(content, bytes) else len(msgspec.json.encode(content))


_Claim = tuple[str, ...]


def _reads(device: Device, sensor: Sensor) -> tuple[_Claim, _Claim]:
    """The value, which only one device may have, and its topic, to which no other device may write."""
    topic = sensor.table["topic"]
    place = sensor.table.get("member") or sensor.table.get("template", "")
    chosen = sorted(map(str, sensor.table.get("where", {}).items()))
    return ("value", device.broker, topic, place, *chosen), ("topic", device.broker, topic)


def _writes(device: Device, actuator: Actuator) -> _Claim:
    return "command", device.broker, actuator.command["topic"]


def _claims(device: Device) -> list[_Claim]:
    claims: list[_Claim] = [claim for sensor in device.sensors for claim in _reads(device, sensor)]
    return claims + [_writes(device, actuator) for actuator in device.actuators]


def _tables(device: Device) -> list[Table]:
    return [sensor.table for sensor in device.sensors] + [actuator.command for actuator in device.actuators]
