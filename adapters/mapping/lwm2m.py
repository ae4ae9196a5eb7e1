"""Values of LwM2M devices (OMA LwM2M Core 1.0.2, sections 6.4.3 and 6.4.4): TLV and JSON.

TLV does not say the type of a value: it follows from the resource. Types of others than the reusable resources of the
OMA registry and those of the object Device are unknown, and their values are refused. So are opaque values and links to
objects.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from lamplighter.adapters.mapping import senml
from lamplighter.adapters.mapping.floats import FloatLayout, four_bytes, shortest
from lamplighter.adapters.mapping.payloads import Found, Number
from lamplighter.engine.errors import PayloadError

RECORDS_MAX = 1_024
PATH_LEVELS_MAX = 4
ID_MAX = 65_535
Record = tuple[str, str, Found | PayloadError, str | None, datetime | None]
"""Path such as ``3303/0/5700``, its last number, value or why it cannot be read, unit (always None) and time."""
Type = Literal["text", "integer", "number", "boolean"]

_OBJECT_INSTANCE, _RESOURCE_INSTANCE, _MULTIPLE, _RESOURCE = range(4)
_INSIDE = {_OBJECT_INSTANCE: (_MULTIPLE, _RESOURCE), _MULTIPLE: (_RESOURCE_INSTANCE,)}
_DEVICE = "3"
_REUSABLE_MIN = 2_048
"""A resource with such a number has one type in all objects."""

_TYPES: dict[int, Type] = {
    **dict.fromkeys((4001, *range(5514, 5517), 5527, 5701, 5706, 5750, 5751, 5823, 5853, 5912), "text"),
    **dict.fromkeys((5500, 5502, 5532, 5533, 5543, 5550, 5551, 5850, 6046), "boolean"),
    **dict.fromkeys((5501, 5503, 5504, 5506, 5518, 5526, 5528, 5529, 5534, 5541, 5542), "integer"),
    **dict.fromkeys(
        (*range(5545, 5548), *range(5824, 5829), 5851, 5852, 5854, 5903, 5904, 5910, 6042, 6049), "integer"
    ),
    **dict.fromkeys(
        (*range(5507, 5514), *range(5519, 5522), 5524, 5525, 5531, *range(5536, 5539), 5544, 5548), "number"
    ),
    **dict.fromkeys((*range(5600, 5605), 5650, 5700, *range(5702, 5706), *range(5800, 5807)), "number"),
    **dict.fromkeys((*range(5810, 5817), 5820, 5821, 5900, 6044, 6045, 6047, 6048, *range(6050, 6054)), "number"),
}
"""Reusable resources. A time is an integer: seconds since 1970."""
_DEVICE_TYPES: dict[int, Type] = {
    **dict.fromkeys((0, 1, 2, 3, 14, 15, 16, 17, 18, 19), "text"),
    **dict.fromkeys((6, 7, 8, 9, 10, 11, 13, 20, 21), "integer"),
}
_PATH = re.compile(r"[0-9]{1,5}(?:/[0-9]{1,5}){0,3}")
_JSON = msgspec.json.Decoder(float_hook=Number)


def records(data: bytes, form: str, place: str, received: datetime) -> list[Record]:
    """The values of a body.

    form: "lwm2m+tlv" or "lwm2m+json". place: the path that the body belongs to, whose last levels are numbers, such as
    ``192.168.7.20/3303/0``. Raises PayloadError.
    """
    base = _numbers(place)
    if form == "lwm2m+json":
        return _json_records(data, base, received)
    found: list[Record] = []
    for path, value in _tlv_values(data, base):
        if len(found) >= RECORDS_MAX:
            raise PayloadError(f"payload has more than {RECORDS_MAX} values")
        found.append((_path(path), str(path[-1]), value, None, None))
    return found


def encode(form: str, place: str, value: Found) -> bytes:
    """The body that writes one resource. form, place: as in `records`; the last level of the path is the resource.

    Its type is that of the resource, or if that is unknown, that of the value. Raises PayloadError.
    """
    path = _numbers(place)
    if not path:
        raise PayloadError("the path of the resource does not end in the number of an LwM2M resource")
    value = _convert(value, _type(path))
    if form == "lwm2m+tlv":
        return _entry(_RESOURCE, int(path[-1]), _binary(value))
    name, last = "/" + "".join(f"{level}/" for level in path[:-1]), path[-1]
    return json.dumps({"bn": name, "e": [{"n": last, **_json_value(value)}]}, ensure_ascii=False).encode()


def _numbers(place: str) -> list[str]:
    """The levels at the end of a path that are numbers of LwM2M: object, instance, resource, its instance."""
    found: list[str] = []
    levels = place.partition("?")[0].rstrip("/").split("/")
    while levels and len(found) < PATH_LEVELS_MAX and re.fullmatch(r"[0-9]{1,5}", levels[-1]):
        found.insert(0, levels.pop())
    return found


def _type(path: list[str]) -> Type | None:
    """The type of the resource of a path, which may begin at any level."""
    for level in path[2:3] or path[-1:]:
        number = int(level)
        if number >= _REUSABLE_MIN:
            return _TYPES.get(number)
        return _DEVICE_TYPES.get(number) if len(path) > 2 and path[0] == _DEVICE else None
    return None


def _path(levels: list[str]) -> str:
    return "/".join(levels)


# TLV


def _tlv_values(data: bytes, base: list[str]) -> Iterator[tuple[list[str], Found | PayloadError]]:
    """Each value with its path. base: the numbers of the path that the body was read from."""
    for kind, number, content in _entries(data):
        if kind == _OBJECT_INSTANCE:
            yield from _resources(content, [*base[:1], str(number)])
        elif kind == _RESOURCE_INSTANCE:
            yield _value([*base[:3], str(number)], base[:3], content)
        else:
            yield from _resource(kind, number, content, base[:2] if len(base) > 1 else [])


def _resources(data: bytes, instance: list[str]) -> Iterator[tuple[list[str], Found | PayloadError]]:
    for kind, number, content in _entries(data):
        if kind not in _INSIDE[_OBJECT_INSTANCE]:
            raise PayloadError("payload is not LwM2M TLV: an instance of an object has other entries than resources")
        yield from _resource(kind, number, content, instance)


def _resource(
    kind: int, number: int, content: bytes, instance: list[str]
) -> Iterator[tuple[list[str], Found | PayloadError]]:
    path = [*instance, str(number)]
    if kind == _RESOURCE:
        yield _value(path, path, content)
        return
    for inner, instance_number, part in _entries(content):
        if inner not in _INSIDE[_MULTIPLE]:
            raise PayloadError("payload is not LwM2M TLV: a multiple resource has other entries than its instances")
        yield _value([*path, str(instance_number)], path, part)


def _entries(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, number and content of each entry."""
    at = 0
    while at < len(data):
        head = data[at]
        number_bytes, length_bytes = 1 + (head >> 5 & 1), head >> 3 & 3
        begin = at + 1 + number_bytes + length_bytes
        number = int.from_bytes(data[at + 1 : at + 1 + number_bytes])
        length = int.from_bytes(data[at + 1 + number_bytes : begin]) if length_bytes else head & 7
        at = begin + length
        if begin > len(data) or at > len(data):
            raise PayloadError("payload ends within an entry of LwM2M TLV")
        yield head >> 6, number, data[begin:at]


def _value(path: list[str], resource: list[str], content: bytes) -> tuple[list[str], Found | PayloadError]:
    type_ = _type(resource) if resource else None
    if type_ is None:
        return path, PayloadError(f"the type of the LwM2M resource {_path(resource) or 'without a number'} is unknown")
    try:
        return path, _decode(content, type_)
    except (ValueError, struct.error):  # UnicodeDecodeError is a ValueError
        return path, PayloadError(f"the value of the LwM2M resource {_path(path)} is not of type {type_}")


def _decode(content: bytes, type_: Type) -> Found:
    """Raises ValueError and struct.error."""
    if type_ == "text":
        return content.decode()
    if type_ == "boolean":
        return {b"\0": False, b"\1": True}[content] if content in (b"\0", b"\1") else _refuse()
    if type_ == "integer":
        return int.from_bytes(content, signed=True) if len(content) in (1, 2, 4, 8) else _refuse()
    layout: FloatLayout = ">f" if len(content) == 4 else ">d"
    return shortest(struct.unpack(layout, content)[0], layout)


def _refuse() -> Found:
    raise ValueError


def _binary(value: Found) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        for size in (1, 2, 4, 8):
            if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
                return value.to_bytes(size, signed=True)
        raise PayloadError("the state has more than 64 bits")
    if isinstance(value, float):
        # Four bytes only for a number that is the same however a device stores it: it reports the number again.
        short = four_bytes(value)
        if short is not None:
            stored = struct.unpack(">f", short)[0]
            if stored == float(shortest(stored, ">f")) == value:
                return short
        return struct.pack(">d", value)
    return value.encode()


def _entry(kind: int, number: int, content: bytes) -> bytes:
    if number > ID_MAX:
        raise PayloadError(f"the number of an LwM2M resource is at most {ID_MAX}")
    size = len(content)
    length = b"" if size < 8 else size.to_bytes((size.bit_length() + 7) // 8)
    head = kind << 6 | (number > 255) << 5 | len(length) << 3 | (size if size < 8 else 0)
    return bytes([head]) + number.to_bytes(2 if number > 255 else 1) + length + content


def _convert(value: Found, type_: Type | None) -> Found:
    """A state as the type of its resource: a bool, int, float or text. Raises PayloadError."""
    number = None
    if isinstance(value, Number | int | float) and not isinstance(value, bool):
        number = float(value)
        if not math.isfinite(number):
            raise PayloadError("the state is out of range")
    if type_ is None:
        type_ = "boolean" if isinstance(value, bool) else "text"
        if number is not None:
            type_ = "integer" if isinstance(value, int) else "number"
    if type_ == "boolean" and isinstance(value, bool):
        return value
    if type_ == "integer" and isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if type_ == "number" and number is not None:
        return number
    if type_ == "text" and isinstance(value, str):
        return str(value)
    raise PayloadError(f"the state is not of the type of the LwM2M resource, {type_}")


# JSON


def _json_records(data: bytes, base: list[str], received: datetime) -> list[Record]:
    try:
        document = _JSON.decode(data)
    except (ValueError, RecursionError) as error:
        raise PayloadError("payload is not JSON") from error
    entries = document.get("e") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > RECORDS_MAX:
        raise PayloadError(f"payload is not LwM2M JSON of at most {RECORDS_MAX} values")
    name = document.get("bn", "".join(f"{level}/" for level in base))
    times = {"bt": document["bt"]} if "bt" in document else {}
    return [_json_record(entry, name, times, received) for entry in entries]


def _json_record(entry: Any, base: Any, times: dict[str, Any], received: datetime) -> Record:
    if not isinstance(entry, dict):
        raise PayloadError("a value of LwM2M JSON is not an object")
    own = entry.get("n", "")
    path = f"{base}{own}".strip("/") if isinstance(base, str) and isinstance(own, str) else ""
    if not _PATH.fullmatch(path):
        raise PayloadError("a value of LwM2M JSON has no path of numbers")
    present = [key for key in ("v", "sv", "bv", "ov") if key in entry]
    found: Any = entry[present[0]] if len(present) == 1 else None
    good = {
        "v": isinstance(found, int | Number) and not isinstance(found, bool),
        "sv": isinstance(found, str) and not isinstance(found, Number),
        "bv": isinstance(found, bool),
    }
    if len(present) != 1 or not good.get(present[0], False):
        found = PayloadError(f"the value of the LwM2M resource {path} is missing, or is not a number, text or boolean")
    return path, path.rpartition("/")[2], found, None, senml.time_of(times, entry, received)


def _json_value(value: Found) -> dict[str, Found]:
    return {"bv" if isinstance(value, bool) else "sv" if isinstance(value, str) else "v": value}
