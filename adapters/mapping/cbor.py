"""CBOR (RFC 8949) as far as readings and states need it: numbers, texts, arrays, maps, decimal fractions.

Depth and number of items are bounded. Numbers that are not whole are returned as `Number`, spelled exactly.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

from lamplighter.adapters.mapping.payloads import Number
from lamplighter.engine.errors import PayloadError

DEPTH_MAX = 8
ITEMS_MAX = 16_384
_EXPONENT_MAX = 64

_BREAK = object()
_DECIMAL_FRACTION = 4


def decode(data: bytes) -> Any:
    """The only data item of a payload. Byte strings are refused. Raises PayloadError."""
    reader = _CborReader(data)
    item = reader.item(0)
    if item is _BREAK or reader.at != len(data):
        raise PayloadError("payload is not CBOR")
    return item


def encode(document: Any) -> bytes:
    """A document of `None`, booleans, integers, floats, `Number`, texts, lists and maps, in the shortest form (RFC 8949
    section 4.1). Raises PayloadError."""
    parts: list[bytes] = []
    _write(document, parts, 0)
    return b"".join(parts)


def _write(item: Any, parts: list[bytes], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise PayloadError(f"the document has more than {DEPTH_MAX} levels")
    if item is None or isinstance(item, bool):
        parts.append({False: b"\xf4", True: b"\xf5", None: b"\xf6"}[item])
    elif isinstance(item, int):
        parts.append(_head(1, -1 - item) if item < 0 else _head(0, item))
    elif isinstance(item, float | Number):
        parts.append(_float(float(item)))
    elif isinstance(item, str):
        text = item.encode()
        parts += _head(3, len(text)), text
    elif isinstance(item, list):
        parts.append(_head(4, len(item)))
        for one in item:
            _write(one, parts, depth + 1)
    else:
        parts.append(_head(5, len(item)))
        for key, value in item.items():
            _write(key, parts, depth + 1)
            _write(value, parts, depth + 1)


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for short, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * size:
            return bytes([major << 5 | short]) + argument.to_bytes(size)
    raise PayloadError("the document has an integer of more than 64 bits")


def _float(value: float) -> bytes:
    if not math.isfinite(value):
        raise PayloadError("the document has a number that is out of range")
    for head, layout in ((0xF9, ">e"), (0xFA, ">f")):
        try:
            short = struct.pack(layout, value)
        except OverflowError:
            continue
        if struct.unpack(layout, short)[0] == value:
            return bytes([head]) + short
    return b"\xfb" + struct.pack(">d", value)


class _CborReader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._items = 0

    def item(self, depth: int) -> Any:
        self._items += 1
        if depth > DEPTH_MAX or self._items > ITEMS_MAX:
            raise PayloadError(f"payload has more than {DEPTH_MAX} levels or {ITEMS_MAX} items")
        first = self._take(1)[0]
        major, short = first >> 5, first & 31
        if major == 7:
            return self._simple(short)
        length = self._length(major, short)
        if major == 0:
            return length
        if major == 1:
            assert length is not None
            return -1 - length
        if major == 3:
            return self._text(length, depth)
        if major == 4:
            return list(self._sequence(length, depth))
        if major == 5:
            return self._map(length, depth)
        if major == 6:
            return self._apply_tag(length, depth)
        raise PayloadError("payload has a CBOR byte string")

    def _take(self, count: int) -> bytes:
        taken = self._data[self.at : self.at + count]
        if len(taken) < count:
            raise PayloadError("payload ends within a CBOR item")
        self.at += count
        return taken

    def _length(self, major: int, short: int) -> int | None:
        """The argument of a head; None for an indefinite length."""
        if short < 24:
            return short
        if short < 28:
            return int.from_bytes(self._take(1 << (short - 24)))
        if short == 31 and major in (3, 4, 5):
            return None
        raise PayloadError("payload is not CBOR")

    def _text(self, length: int | None, depth: int) -> str:
        if length is None:
            parts = list(self._sequence(None, depth))
            if not all(isinstance(part, str) and not isinstance(part, Number) for part in parts):
                raise PayloadError("payload is not CBOR")
            return "".join(parts)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise PayloadError("payload is not UTF-8") from error

    def _sequence(self, length: int | None, depth: int) -> list[Any]:
        found: list[Any] = []
        while length is None or len(found) < length:
            item = self.item(depth + 1)
            if item is _BREAK:
                if length is None:
                    return found
                raise PayloadError("payload is not CBOR")
            found.append(item)
        return found

    def _map(self, length: int | None, depth: int) -> dict[Any, Any]:
        items = self._sequence(None if length is None else 2 * length, depth)
        if len(items) % 2 or not all(type(key) in (int, str) for key in items[::2]):
            raise PayloadError("payload has a CBOR map with other keys than numbers and texts")
        return dict(zip(items[::2], items[1::2], strict=True))

    def _apply_tag(self, tag: int | None, depth: int) -> Any:
        item = self.item(depth + 1)
        if item is _BREAK:
            raise PayloadError("payload is not CBOR")
        if tag != _DECIMAL_FRACTION:
            return item
        match item:
            case [int(exponent), int(mantissa)] if abs(exponent) <= _EXPONENT_MAX and abs(mantissa) < 10**_EXPONENT_MAX:
                return Number(format(Decimal(mantissa).scaleb(exponent), "f"))
        raise PayloadError("payload has a CBOR decimal fraction that is out of range")

    def _simple(self, short: int) -> Any:
        if short in (20, 21):
            return short == 21
        if short in (22, 23):
            return None
        if short == 31:
            return _BREAK
        layout = {25: ">e", 26: ">f", 27: ">d"}.get(short)
        if layout is None:
            raise PayloadError("payload has a CBOR simple value")
        value = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        if not math.isfinite(value):
            raise PayloadError("payload has a number that is not finite")
        return Number(repr(float(value))) if value % 1 or abs(value) > 2**53 else int(value)
