"""The wire format of Protocol Buffers: fields of a message. Bounded; unknown fields are the reader's to pass over."""

from __future__ import annotations

from collections.abc import Iterator

from lamplighter.engine.errors import PayloadError

FIELDS_MAX = 65_536
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field: an int for a varint, else its bytes. Raises PayloadError."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > FIELDS_MAX:
            raise PayloadError(f"payload has more than {FIELDS_MAX} protobuf fields")
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = _varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            length, at = _varint(data, at)
        elif wire_type in (FIXED32, FIXED64):
            length = 4 if wire_type == FIXED32 else 8
        else:
            raise PayloadError("payload is not protobuf")
        if at + length > len(data):
            raise PayloadError("payload ends within a protobuf field")
        yield number, wire_type, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise PayloadError("payload is not protobuf")
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value & (2**64 - 1), at
        shift += 7


def varint_field(number: int, value: int) -> bytes:
    """A field with a number that is not negative."""
    return _varint_bytes(number << 3 | VARINT) + _varint_bytes(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have the highest bit."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
