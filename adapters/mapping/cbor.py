"""CBOR (RFC 8949) as far as SenML needs it: numbers, texts, arrays, maps, decimal fractions.

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


def decoded(data: bytes) -> Any:
    """The only data item of a payload. Byte strings are refused. Raises PayloadError."""
    reader = _CborReader(data)
    item = reader.item(0)
    if item is _BREAK or reader.at != len(data):
        raise PayloadError("payload is not CBOR")
    return item


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
            return self._tagged(length, depth)
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

    def _tagged(self, tag: int | None, depth: int) -> Any:
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
