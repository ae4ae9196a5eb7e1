"""The links of a device (RFC 6690) -> the device that is proposed, with its rule tables. Pure.

Links come from `/.well-known/core` or from a registration. They are hostile input: only resources of the device itself
are used, and `adapters.devices.draft` checks and bounds each part. What a link means follows, in this order, from the
numbers of its path (OMA LwM2M, IPSO), from its resource types (rt) and interfaces (if). How its value is written
follows from its content formats (ct).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.links import LINK_FORMAT, Link
from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.draft import (
    SEGMENT_CHARS_MAX,
    DeviceTexts,
    Payload,
    ResourceDraft,
    checked_base,
    own_kind,
    plain,
    segment,
)
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.problems import left_out_problems
from lamplighter.adapters.devices.registry import Entry
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.tables import CONTENT_FORMATS
from lamplighter.adapters.mapping.uris import COAP_PORT

SOURCE = "coap"
# A resource that says that it is larger is no single value.
VALUE_BYTES_MAX = 65_536

# Devices with several addresses that are remembered.
REMEMBERED_MAX = 10_000
# Attributes of links whose values are names of the device: of its endpoint, and of its hardware.
_NAMES = "ep", "uid"

# Payloads whose values have types of their own.
_RECORDS: dict[str, Payload] = {
    "senml+json": "senml",
    "senml+cbor": "senml",
    "lwm2m+tlv": "lwm2m",
    "lwm2m+json": "lwm2m",
}
_ON, _OFF = ("true", "1", "on"), ("false", "0", "off")

_ROOT_TYPE = "oma.lwm2m"
_SENSOR, _ACTUATOR = "core.s", "core.a"
# Interfaces of resources that list or join other ones, which have links themselves.
_SEVERAL = frozenset({"core.b", "core.ll"})
_PARTS_OF_DIRECTORIES = "core.rd"

_PATH = re.compile(r"/([0-9]{1,5})(?:/([0-9]{1,5})(?:/([0-9]{1,5}))?)?")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SEPARATORS = re.compile(r"[-_.]")


class Proposal(NamedTuple):
    """A device as its links describe it, None if they have nothing that can be used. unique: equal only for the
    addresses of one device, "" if its links do not tell. left_out: lasting problems that say what of its links is not
    used."""

    device: Device | None
    problems: Sequence[Problem]
    unique: str = ""
    left_out: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a link stands for. kind: of `KINDS`, None if none fits. values: of an actuator: state -> text."""

    kind: str | None
    value: Payload
    acts: bool = False
    unit: str | None = None
    values: dict[str, str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    # The path of the value in LwM2M, such as ``3303/0/5700``.
    oma: str | None = None


_FIRST_SENSOR_OBJECT = 3200
"""Objects below it manage a device: security, access, firmware, connectivity."""
_READ_ATTRIBUTES = frozenset(("rt", "if", "ct", "sz", "title", "rel", "anchor", *_NAMES))
_HARMLESS_ATTRIBUTES = frozenset(
    ("obs", "title*", "hreflang", "media", "type", "rev", "pmin", "pmax", "gt", "lt", "st", "ver", "dim", "lb", "osc")
)
"""Names, languages, and settings of notifications and of security."""
_SENSOR_VALUE, _DIGITAL_INPUT, _ACTIVE_POWER, _SWITCH, _DIMMER = 5700, 5500, 5800, 5850, 5851

# IPSO objects (OMA LwM2M registry): the kind of their mandatory value, and its resource. Where the object does not fix
# the unit, a reading has none: the device names it in another resource (5701).
_OBJECTS: dict[int, tuple[str | None, int]] = {
    3300: (None, _SENSOR_VALUE),
    3301: ("illuminance", _SENSOR_VALUE),
    3302: ("occupancy", _DIGITAL_INPUT),
    3303: ("temperature", _SENSOR_VALUE),
    3304: ("humidity", _SENSOR_VALUE),
    3305: ("power", _ACTIVE_POWER),
    3306: ("switch", _SWITCH),
    3311: ("light", _SWITCH),
    3312: ("switch", _SWITCH),
    3315: ("pressure", _SENSOR_VALUE),
    3316: ("voltage", _SENSOR_VALUE),
    3317: ("current", _SENSOR_VALUE),
    3318: ("frequency", _SENSOR_VALUE),
    3320: (None, _SENSOR_VALUE),
    3323: (None, _SENSOR_VALUE),
    3324: ("soundPressure", _SENSOR_VALUE),
    3325: (None, _SENSOR_VALUE),
    3326: ("acidity", _SENSOR_VALUE),
    3327: ("conductivity", _SENSOR_VALUE),
    3328: ("power", _SENSOR_VALUE),
    3329: ("powerFactor", _SENSOR_VALUE),
    3330: ("distance", _SENSOR_VALUE),
    3331: ("energy", _SENSOR_VALUE),
    3338: ("siren", _SWITCH),
    3342: ("input", _DIGITAL_INPUT),
    3346: (None, _SENSOR_VALUE),
    3347: ("input", _DIGITAL_INPUT),
}

# Reusable resources of the registry. A boolean as text is 0 or 1 (OMA LwM2M Core, appendix C).
_RESOURCES = {
    _DIGITAL_INPUT: _Meaning("input", "boolean"),
    5501: _Meaning("counter", "number"),
    _SENSOR_VALUE: _Meaning(None, "number"),
    _ACTIVE_POWER: _Meaning("power", "number", unit="W"),
    _SWITCH: _Meaning("switch", "boolean", acts=True, values={"true": "1", "false": "0"}),
    _DIMMER: _Meaning("brightness", "number", acts=True, unit="%", minimum=0, maximum=100),
}

# Resource types with a unit, or with another name than the kind.
_UNITS = {
    "temperaturec": ("temperature", "Cel"),
    "temperaturef": ("temperature", "[degF]"),
    "temperaturek": ("temperature", "K"),
    "lightlux": ("illuminance", "lx"),
    "humidityp": ("humidity", "%"),
    "temp": ("temperature", None),
    "lux": ("illuminance", "lx"),
    "co2": ("carbonDioxide", None),
}
_KINDS = {name.casefold(): name for name in KINDS}


def propose(
    found: Sequence[Link], *, base: str, place: str, endpoint: str = "", sector: str = "", known_id: str = ""
) -> Proposal:
    """The device with these links.

    base: its URI in normal form, such as ``coap://192.168.7.20``. place: where the links come from, for problems.
    endpoint, sector: of its registration, which are its identity; without them, host and port are. known_id: the
    identifier that it has instead. Raises nothing.
    """
    try:
        host = urlsplit(checked_base(base)).hostname or ""
        identifier = registered_id(endpoint, sector) if endpoint else address_id(uris.authority(base))
        draft = ResourceDraft(
            SOURCE, known_id or identifier, broker=base, topic=place, about=DeviceTexts(endpoint or host)
        )
    except ValueError as error:
        return Proposal(None, [Problem(SOURCE, plain(base), plain(place), plain(str(error), 400))])
    root = next((link.target.rstrip("/") for link in found if _ROOT_TYPE in link.words("rt")), None)
    seen: set[str] = set()
    # An instance of an object stands for its value, unless that has a link of its own.
    for link in sorted(found, key=lambda one: _is_instance(one, root)):
        try:
            _add(draft, base, link, root, seen)
        except ValueError as error:
            draft.problem(f"{plain(link.target)}: {error}")
    device = draft.device()
    if known_id and endpoint:
        device = msgspec.structs.replace(device, endpoint=segment(identifier))
    left_out = tuple(left_out_problems(SOURCE, base, plain(place), device.identity, draft.left_out))
    used = device.sensors or device.actuators
    return Proposal(device if used else None, draft.problems, _unique(found), left_out)


def device_to_propose(device: Device, entries: Mapping[str, Entry]) -> Device | str:
    """A device that was found by its address, as it is to be proposed; or why it is not, for people.

    entries: those of the registry, by identity.
    """
    others = (one for one in entries.values() if one.device.broker == device.broker and one.device.source == SOURCE)
    entry = entries.get(device.identity)
    if entry is None:
        other = next(others, None)
        return device if other is None else f"is known as {other.identity}, {other.name}: {other.adoption}"
    if not entry.device.endpoint:
        return device
    if entry.device.broker != device.broker:
        return f"is where {entry.identity}, {entry.name}, was first; it is at {entry.device.broker} now"
    return msgspec.structs.replace(device, endpoint=entry.device.endpoint, name=entry.device.name)


def distinct(found: Iterable[Proposal], entries: Container[str], remembered: dict[str, str]) -> Iterator[Proposal]:
    """The proposals of a search, those of one device once: the address that is known, else IPv4, else the first one.

    entries: identities of the registry. remembered: the identity of each unique device; it is updated.
    """

    def order(one: Proposal) -> tuple[bool, bool]:
        device = one.device
        return device is None or device.identity not in entries, device is None or "[" in device.broker

    found = sorted(found, key=order)
    searched = {one.device.identity for one in found if one.device is not None}
    for one in found:
        if one.device is not None and one.unique:
            identity = remembered.get(one.unique)
            if identity is None or not (identity in entries or identity in searched):
                if len(remembered) >= REMEMBERED_MAX:
                    remembered.clear()
                remembered[one.unique] = one.device.identity
            elif identity != one.device.identity:
                continue
        yield one


def _unique(found: Sequence[Link]) -> str:
    """What only one device can have: all its links, if one of them names the device (`_NAMES`)."""
    if not any(link.first(name) for link in found for name in _NAMES):
        return ""
    return hashlib.sha256("\n".join(sorted(links.links_text([link]) for link in found)).encode()).hexdigest()


def _add(draft: ResourceDraft, base: str, link: Link, root: str | None, seen: set[str]) -> None:
    """Adds what a link stands for. Raises ValueError with the reason why it cannot be used."""
    if not _is_hosted(link, base):
        return
    draft.leave_out({name for name, _ in link.attributes} - _READ_ATTRIBUTES - _HARMLESS_ATTRIBUTES, link.target)
    resource = _resource(link.target, base)
    path, _, query = resource.removeprefix(base).partition("?")
    if _is_listing(link, path):
        return
    formats = [int(word) for word in link.words("ct") if word.isascii() and word.isdigit() and len(word) < 6]
    numbers = None if query else _PATH.fullmatch(path.removeprefix(root or ""))
    oma = numbers and (root is not None or int(numbers[1]) in _OBJECTS)
    if numbers and oma:
        meaning = _of_object(*numbers.groups())
        if meaning is None:  # management of the device, or an object as a whole
            if numbers[2] is not None and int(numbers[1]) >= _FIRST_SENSOR_OBJECT:
                draft.leave_out(["an object without a known value"], link.target)
            return
        if numbers[3] is None:
            resource = f"{resource}/{(meaning.oma or '').rpartition('/')[2]}"
        formats = formats or [0]  # without it, the format of objects would be chosen
    else:
        meaning = _of_types(link)
    if resource in seen:
        return
    seen.add(resource)
    size = link.first("sz") or ""
    if size.isascii() and size.isdigit() and (len(size) > 9 or int(size) > VALUE_BYTES_MAX):
        raise ValueError(f"it is larger than {VALUE_BYTES_MAX} bytes")
    path = resource.removeprefix(base)
    _add_part(draft, meaning, resource, _key(path), link.first("title") or unquote(path), _format(formats, meaning))


def _add_part(draft: ResourceDraft, meaning: _Meaning, resource: str, key: str, label: str, form: str | None) -> None:
    """Adds a sensor or an actuator. form: the content format, None if the link names none."""
    kind = f"gateway:{meaning.kind}" if meaning.kind else own_kind(key)
    if meaning.acts:
        values = meaning.values if form in (None, "text") else None
        if meaning.values and form is not None and form.startswith("lwm2m"):
            values = {state: state for state in meaning.values}
        draft.resource_actuator(
            key,
            kind,
            resource,
            content_format=form or "text",
            label=label,
            values=values,
            minimum=meaning.minimum,
            maximum=meaning.maximum,
        )
        return
    records = _RECORDS.get(form or "")
    boolean = meaning.value == "boolean" and records is None
    accept = {} if form is None else {"accept": form}
    member = {"member": meaning.oma} if records == "lwm2m" else {}
    draft.sensor(
        key,
        kind,
        resource,
        records or meaning.value,
        label=label,
        unit=meaning.unit,
        on=_ON if boolean else (),
        off=_OFF if boolean else (),
        instead=accept | member,
    )


def address_id(authority: str) -> str:
    """The identifier of a device that has no other name than its address. Raises nothing."""
    name = uris.address_name(authority)
    return segment(name) if len(name) <= SEGMENT_CHARS_MAX else f"{_readable(name)}~{_digest(name)}"


def registered_id(endpoint: str, sector: str) -> str:
    """The identifier of a registered device. It differs from those of hosts, which have a tilde and a port."""
    if not sector and "~" not in endpoint:
        return endpoint
    return f"{_readable(endpoint)}~{_digest(endpoint + chr(0) + sector)}"


def _is_instance(link: Link, root: str | None) -> bool:
    numbers = _PATH.fullmatch(link.target.removeprefix(root or ""))
    return numbers is not None and numbers[3] is None


def _is_hosted(link: Link, base: str) -> bool:
    """Whether the link says that the device has a resource, and not how two resources belong together."""
    relations, anchor = link.words("rel"), link.first("anchor")
    if relations and "hosts" not in relations:
        return False
    return anchor is None or links.resolve(anchor, base).rstrip("/") == base


def _is_listing(link: Link, path: str) -> bool:
    """Whether a resource has links or other resources instead of a value, or is one of a directory."""
    return (
        path in ("", "/")
        or path.startswith("/.well-known/")
        or link.words("ct") == (str(LINK_FORMAT),)
        or any(word == _ROOT_TYPE or word.startswith(_PARTS_OF_DIRECTORIES) for word in link.words("rt"))
    )


def _resource(target: str, base: str) -> str:
    """The URI of a target in one spelling: all but unreserved characters are percent-encoded. Raises ValueError."""
    uri = links.resolve(target, base)
    parts = urlsplit(uri)
    if links.is_absolute(target):
        port = "" if parts.port in (None, COAP_PORT) else f":{parts.port}"
        host = parts.hostname or ""
        origin = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
        if origin != base:
            raise ValueError("it is a resource of another host; the device itself proposes it, if it wants to")
    if parts.fragment or _ESCAPE.search(target):
        raise ValueError("the target has a fragment, or '%' without two hexadecimal digits")
    query = f"?{'&'.join(_spellings(parts.query.split('&'), safe='='))}" if parts.query else ""
    return base + "/".join(_spellings(parts.path.split("/"))) + query


def _spellings(texts: Sequence[str], safe: str = "") -> Iterator[str]:
    for text in texts:
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError as error:
            raise ValueError("percent-encoded characters of the target are not UTF-8") from error
        if _CONTROL.search(decoded):
            raise ValueError("the target has a control character")
        yield quote(decoded, safe=safe)


def _of_object(object_: str, instance: str | None, resource: str | None) -> _Meaning | None:
    """What the numbers of a path mean; None if they are not those of one value that is known by its object."""
    kind, usual = _OBJECTS.get(int(object_), (None, None))
    if instance is None or (resource is None and usual is None):
        return None
    number = usual if resource is None else int(resource)
    assert number is not None
    known = _RESOURCES.get(number, _Meaning(None, "text"))
    if number == usual and kind is not None:
        known = replace(known, kind=kind)
    return replace(known, oma=f"{int(object_)}/{int(instance)}/{number}")


def _of_types(link: Link) -> _Meaning:
    """What the resource types and interfaces of a link mean. Raises ValueError for lists of other resources."""
    words = link.words("rt") + link.words("if")
    if _SEVERAL & set(words):
        raise ValueError("it joins several resources, which are used by their own links")
    acts = _ACTUATOR in words
    for word in words:
        short = _SEPARATORS.sub("", word.casefold())
        name, unit = _UNITS.get(short, (_KINDS.get(short), None))
        if name is None or (KINDS[name].acts and not acts):
            continue  # what sensors say of lights and switches differs too much
        if acts and not KINDS[name].acts:
            continue
        value = KINDS[name].value
        return _Meaning(name, "text" if value == "any" else value, acts, unit)
    return _Meaning(None, "text", acts)


def _format(offered: Sequence[int], meaning: _Meaning) -> str | None:
    """The content format to ask for, None if the link names none. Raises ValueError if none of them can be read."""
    if not offered:
        return None
    for name, number in CONTENT_FORMATS.items():  # the preferred one first
        if number in offered and (meaning.oma or not name.startswith("lwm2m")):
            return name
    raise ValueError(f"its content formats are not read: {', '.join(map(str, offered[:5]))}")


def _key(path: str) -> str:
    """A short name of a resource in its device; different for different resources."""
    levels = path[1:].split("/")
    if all(map(_PLAIN.fullmatch, levels)):
        return segment(".".join(levels))
    return f"{_readable(unquote(path))}~{_digest(path)}"


def _readable(text: str) -> str:
    return _NOT_PLAIN.sub("_", text).strip("_")[:40] or "id"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
