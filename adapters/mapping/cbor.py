"""CBOR (RFC 8949) as far as readings and states need it: numbers, texts, arrays, maps, decimal fractions.

cbor2 decodes. What it makes of tags is left out: a tag of a hostile payload would compile a regular expression, parse a
mail or build a cyclic list. Depth and number of items are bounded. Numbers that are not whole are returned as `Number`,
spelled exactly. Its encoder is not used: it writes floats in 8 bytes, or sorts maps, and integers of any size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any

from lamplighter.adapters.mapping.payloads import Number
from lamplighter.engine.errors import PayloadError

DEPTH_MAX = 8
ITEMS_MAX = 16_384
_EXPONENT_MAX = 64
_DECIMAL_FRACTION = 4


def decode(data: bytes) -> Any:
    """The only data item of a payload. Byte strings are refused. Raises PayloadError."""
    import cbor2  # with the first payload: most gateways have none

    source = BytesIO(data)
    try:
        item = cbor2.CBORDecoder(source, semantic_decoders=_Tags(), max_depth=DEPTH_MAX).decode()
    except cbor2.CBORDecodeEOF as error:
        raise PayloadError("payload ends within a CBOR item") from error
    except cbor2.CBORDecodeError as error:
        if isinstance(error.__cause__, PayloadError):
            raise error.__cause__ from None
        raise PayloadError(f"payload is not CBOR: {error}") from error
    if source.tell() != len(data):
        raise PayloadError("payload is not CBOR")
    return _DecodedItems(cbor2.undefined).item(item)


class _Tags(dict[int, Callable[[Any, bool], Any]]):
    """All tags: their items are taken as they are, but decimal fractions."""

    def __missing__(self, tag: int) -> Callable[[Any, bool], Any]:
        return _decimal_fraction if tag == _DECIMAL_FRACTION else _content_of_tag


def _content_of_tag(item: Any, immutable: bool) -> Any:
    return item


def _decimal_fraction(item: Any, immutable: bool) -> Number:
    match item:
        case [int(exponent), int(mantissa)] if abs(exponent) <= _EXPONENT_MAX and abs(mantissa) < 10**_EXPONENT_MAX:
            return Number(format(Decimal(mantissa).scaleb(exponent), "f"))
    raise PayloadError("payload has a CBOR decimal fraction that is out of range")


class _DecodedItems:
    """Checks what was decoded. undefined: stands for a value that is not there."""

    def __init__(self, undefined: object) -> None:
        self._undefined, self._items = undefined, 0

    def item(self, item: Any) -> Any:
        self._items += 1
        if self._items > ITEMS_MAX:
            raise PayloadError(f"payload has more than {ITEMS_MAX} items")
        if item is None or item is self._undefined:
            return None
        if isinstance(item, bool | int | str):
            return item
        if isinstance(item, float):
            if not math.isfinite(item):
                raise PayloadError("payload has a number that is not finite")
            return Number(repr(item)) if item % 1 or abs(item) > 2**53 else int(item)
        if isinstance(item, list):
            return [self.item(one) for one in item]
        if isinstance(item, dict):
            found = {self.item(key): self.item(value) for key, value in item.items()}
            if not all(type(key) in (int, str) for key in found):
                raise PayloadError("payload has a CBOR map with other keys than numbers and texts")
            return found
        if isinstance(item, bytes):
            raise PayloadError("payload has a CBOR byte string")
        raise PayloadError("payload has a CBOR simple value")


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
