"""Values in the registers and coils of Modbus devices. Pure.

A register has 16 bits (Modbus Application Protocol V1.1b3, 4.3). How larger values lie in several registers is the
choice of each device: the bytes of a register may be swapped, and the least significant register may come first.

A body has two bytes for a register, as in the protocol, and one byte for a coil or a discrete input, 0 or 1.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from lamplighter.adapters.mapping.floats import FloatLayout, shortest
from lamplighter.adapters.mapping.payloads import Found
from lamplighter.engine.errors import PayloadError

Entity = Literal["coil", "discrete_input", "holding_register", "input_register"]
RegisterType = Literal[
    "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "string", "bits"
]  # fmt: skip
Order = Literal["big", "little"]

BIT_ENTITIES: frozenset[Entity] = frozenset(("coil", "discrete_input"))
WRITABLE_ENTITIES: frozenset[Entity] = frozenset(("coil", "holding_register"))
ADDRESS_MAX, UNIT_MAX = 65_535, 255
REGISTERS_READ_MAX, BITS_READ_MAX = 125, 2_000
"""In one request (functions 1 to 4)."""
REGISTERS_WRITTEN_MAX = 123
"""In one request (function 16)."""
REGISTER_BITS = 16
_INTEGERS: dict[str, tuple[str, int]] = {
    "int16": (">h", 1), "uint16": (">H", 1), "int32": (">i", 2), "uint32": (">I", 2), "int64": (">q", 4),
    "uint64": (">Q", 4),
}  # fmt: skip
_FLOATS: dict[str, tuple[FloatLayout, int]] = {"float32": (">f", 2), "float64": (">d", 4)}
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:[eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def read_max(entity: Entity) -> int:
    """Registers or bits that one request reads at most."""
    return BITS_READ_MAX if entity in BIT_ENTITIES else REGISTERS_READ_MAX


class RegisterForm(NamedTuple):
    """How values lie in registers, or in coils.

    type: "bit": each coil or discrete input is a value. byte_order: of the two bytes of a register, "big" in the
    protocol itself. word_order: of the registers of a number, or of the whole text or the whole row of bits: "big" has
    the most significant one first.
    """

    type: RegisterType | Literal["bit"]
    byte_order: Order = "big"
    word_order: Order = "big"

    @property
    def size(self) -> int:
        """Registers or coils of a value; registers of the smallest text, and of the shortest row of bits."""
        return (_INTEGERS.get(self.type) or _FLOATS.get(self.type) or ("", 1))[1]

    @property
    def kind(self) -> Literal["number", "boolean", "text"]:
        """Of its values."""
        return "text" if self.type == "string" else "boolean" if self.type in ("bit", "bits") else "number"

    def count(self, registers: int) -> int:
        """The values in so many registers, which are a multiple of `size`."""
        if self.type == "string":
            return 1
        return registers * REGISTER_BITS if self.type == "bits" else registers // self.size

    def of_body(self, body: bytes) -> list[Found]:
        """The values in a body. Raises PayloadError as `values` does, and if the body has another length."""
        if self.type == "bit":
            return [byte != 0 for byte in body]
        if len(body) % (2 * self.size):
            raise PayloadError(f"the body does not have 2 bytes for each of the registers of {self.type}")
        return self.values(body_registers(body))

    def values(self, registers: Sequence[int]) -> list[Found]:
        """The values in registers; bits begin with the least significant one of the first register. A number that is
        infinite, or none, is a float; all other floating-point numbers have the fewest digits that tell them apart.

        registers: each from 0 to 65535; their number is a multiple of `size`. Raises PayloadError for a text that is
        not UTF-8.
        """
        if self.type in ("string", "bits"):
            ordered = self._reorder(registers)
            if self.type == "bits":
                return [bool(register >> bit & 1) for register in ordered for bit in range(REGISTER_BITS)]
            return [_text(register_bytes(ordered))]
        size = self.size
        parts = [register_bytes(self._reorder(registers[at : at + size])) for at in range(0, len(registers), size)]
        if self.type in _INTEGERS:
            return [struct.unpack(_INTEGERS[self.type][0], part)[0] for part in parts]
        layout = _FLOATS[self.type][0]
        numbers = [struct.unpack(layout, part)[0] for part in parts]
        return [shortest(one, layout) if math.isfinite(one) else one for one in numbers]

    def number_registers(self, number: Fraction) -> list[int]:
        """The registers with a number; the type is one of numbers. A float is the nearest one.

        Raises PayloadError, whose reason has the bounds, if the number is outside, or is no integer and has to be one.
        """
        if self.type in _INTEGERS:
            layout, size = _INTEGERS[self.type]
            signed = layout[1].islower()
            low, high = (-(1 << REGISTER_BITS * size - 1) if signed else 0), (1 << REGISTER_BITS * size - signed) - 1
            if number.denominator != 1:
                raise PayloadError(f"the value for the register would not be an integer; the type is {self.type}")
            if not low <= number <= high:
                raise PayloadError(f"the value for the register would not be between {low} and {high} ({self.type})")
            data = struct.pack(layout, number.numerator)
        else:
            try:
                data = struct.pack(_FLOATS[self.type][0], float(number))
            except OverflowError as error:
                raise PayloadError(f"the value for the register would be too large for {self.type}") from error
        return self._reorder(body_registers(data))

    def text_registers(self, text: str, registers: int) -> list[int]:
        """The registers with a text, filled up with zeros; the type is "string". Raises PayloadError."""
        data = text.encode()
        if "\0" in text or len(data) > 2 * registers:
            raise PayloadError(
                f"the text has a null character, or more than the {2 * registers} bytes of its registers"
            )
        return self._reorder(body_registers(data.ljust(2 * registers, b"\0")))

    def _reorder(self, registers: Sequence[int]) -> list[int]:
        """Between the order of the device and the order of the protocol, in either direction."""
        ordered = list(registers)
        if self.word_order == "little":
            ordered.reverse()
        if self.byte_order == "little":
            ordered = [(one & 0xFF) << 8 | one >> 8 for one in ordered]
        return ordered


class Scaling(NamedTuple):
    """value = number in the register * scale + offset. scale: not 0."""

    scale: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    def raw(self, value: Fraction) -> Fraction:
        """The number in the register for a value, exactly."""
        return (value - self.offset) / self.scale


def number_of(text: str) -> Fraction:
    """The number of a state. "true" is 1, "false" is 0. Raises PayloadError."""
    if text in ("true", "false"):
        return Fraction(text == "true")
    if not _NUMBER.fullmatch(text):
        raise PayloadError("the state is not a number")
    return Fraction(text)


def bit_of(text: str) -> bool:
    """The bit of a state. Raises PayloadError."""
    if text not in _BOOLEANS:
        raise PayloadError("the state is not true, false, 1 or 0")
    return _BOOLEANS[text]


def register_bytes(registers: Sequence[int]) -> bytes:
    """The body with registers."""
    return struct.pack(f">{len(registers)}H", *registers)


def body_registers(data: bytes) -> list[int]:
    """The registers in a body of even length."""
    return list(struct.unpack(f">{len(data) // 2}H", data))


def _text(data: bytes) -> str:
    try:
        return data.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise PayloadError("the text is not UTF-8") from error
