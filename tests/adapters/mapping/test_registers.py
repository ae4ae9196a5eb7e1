"""Values in registers, against the converters of pymodbus."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymodbus.client.mixin import ModbusClientMixin

from lamplighter.adapters.mapping.registers import RegisterForm, Scaling, bit_of, number_of
from lamplighter.engine.errors import PayloadError
from tests.support.amounts import AMOUNTS
from tests.support.tables import each_row

NUMBERS = ("int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
INTEGERS = NUMBERS[:6]
ORDERS = tuple(product(("big", "little"), repeat=2))
SIZES = {"16": 1, "32": 2, "64": 4}
convert = ModbusClientMixin.convert_to_registers
convert_back = ModbusClientMixin.convert_from_registers


def kind(type_: str) -> ModbusClientMixin.DATATYPE:
    return ModbusClientMixin.DATATYPE[type_.upper()]


def swapped(registers: list[int]) -> list[int]:
    """Each register with its bytes exchanged, by another way than the code."""
    data = struct.pack(f"<{len(registers)}H", *registers)
    return list(struct.unpack(f">{len(registers)}H", data))


def bounds(type_: str) -> tuple[int, int]:
    bits = int(type_.lstrip("uint"))
    return (0, 2**bits - 1) if type_.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, int | float]:
    type_ = draw(st.sampled_from(NUMBERS))
    if type_ in INTEGERS:
        low, high = bounds(type_)
        return type_, draw(st.integers(low, high) | st.sampled_from((low, high)))
    return type_, draw(st.floats(width=int(type_[-2:]), allow_nan=False, allow_infinity=False))


@settings(max_examples=AMOUNTS.of(400))
@given(numbers(), st.sampled_from(ORDERS))
def test_a_number_and_its_registers(of_type: tuple[str, int | float], order: tuple[str, str]) -> None:
    (type_, value), (byte_order, word_order) = of_type, order
    form = RegisterForm(type_, byte_order, word_order)
    expected = convert(value, kind(type_), word_order=word_order)
    if byte_order == "little":
        expected = swapped(expected)
    [found] = form.values(expected)
    assert form.number_registers(Fraction(value)) == (expected if value else [0] * form.size)  # -0.0 is 0
    if type_ in INTEGERS:
        assert found == value and isinstance(found, int)
    else:
        layout = ">f" if type_ == "float32" else ">d"
        assert struct.pack(layout, float(found)) == struct.pack(layout, value)
        assert len(str(found)) <= len(repr(float(value))) + 2


@settings(max_examples=AMOUNTS.of(200))
@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20),
    st.integers(0, 3),
    st.sampled_from(ORDERS),
)
def test_a_text_and_its_registers(text: str, spare: int, order: tuple[str, str]) -> None:
    byte_order, word_order = order
    form = RegisterForm("string", byte_order, word_order)
    size = (len(text.encode()) + 1) // 2 + spare
    padded = text + "\0" * (2 * size - len(text.encode()))
    expected = convert(padded, kind("string"), word_order=word_order)
    if byte_order == "little":
        expected = swapped(expected)
    assert form.text_registers(text, size) == expected
    assert form.values(expected) == [convert_back(convert(padded, kind("string")), kind("string"))] == [text]


@settings(max_examples=AMOUNTS.of(100))
@given(st.lists(st.integers(0, 65_535), min_size=1, max_size=8), st.sampled_from(("big", "little")))
def test_bits_of_registers(registers: list[int], word_order: str) -> None:
    # pymodbus counts the bits of each byte from its least significant one, and has the upper byte first.
    expected = convert_back(swapped(registers), kind("bits"), word_order=word_order)
    assert RegisterForm("bits", "big", word_order).values(registers) == expected
    one = RegisterForm("bits").values([0b1000_0000_0000_0101])
    assert [at for at, bit in enumerate(one) if bit] == [0, 2, 15]


def test_the_four_orders_of_a_number() -> None:
    found = {order: RegisterForm("uint32", *order).number_registers(Fraction(0x0A0B0C0D)) for order in ORDERS}
    assert found == {
        ("big", "big"): [0x0A0B, 0x0C0D],
        ("big", "little"): [0x0C0D, 0x0A0B],
        ("little", "big"): [0x0B0A, 0x0D0C],
        ("little", "little"): [0x0D0C, 0x0B0A],
    }


def test_several_values() -> None:
    assert RegisterForm("int32", "big", "little").values([1, 0, 0xFFFF, 0xFFFF]) == [1, -1]
    assert RegisterForm("float32").values([*convert(0.1, kind("float32")), *convert(21.3, kind("float32"))]) == [
        "0.1",
        "21.3",
    ]
    assert [RegisterForm(type_).count(8) for type_ in ("int16", "uint32", "float64", "string", "bits")] == [
        8, 4, 2, 1, 128,
    ]  # fmt: skip


def test_bodies() -> None:
    assert RegisterForm("bit").of_body(b"\1\0\1") == [True, False, True]
    assert RegisterForm("float32").of_body(bytes.fromhex("41aa6666")) == ["21.3"]
    with pytest.raises(PayloadError, match="2 bytes for each"):
        RegisterForm("float32").of_body(b"\0\0\0\0\0\0")


@each_row("type_", INTEGERS)
def test_integers_have_exact_bounds(type_: str) -> None:
    form, (low, high) = RegisterForm(type_), bounds(type_)
    for value in (low, high):
        assert form.values(form.number_registers(Fraction(value))) == [value]
    for value in (low - 1, high + 1):
        with pytest.raises(PayloadError, match=f"between {low} and {high} \\({type_}\\)"):
            form.number_registers(Fraction(value))
    with pytest.raises(PayloadError, match="not be an integer"):
        form.number_registers(Fraction("1.5"))


def test_numbers_that_floats_do_not_have() -> None:
    largest = 3.4028234663852886e38
    assert RegisterForm("float32").values(RegisterForm("float32").number_registers(Fraction(largest))) == [
        "3.4028235e+38"
    ]
    with pytest.raises(PayloadError, match="too large for float32"):
        RegisterForm("float32").number_registers(Fraction("3.5e38"))
    with pytest.raises(PayloadError, match="too large for float64"):
        RegisterForm("float64").number_registers(Fraction("1e309"))
    for value in (math.inf, -math.inf, math.nan):
        [found, other] = RegisterForm("float32").values([*convert(value, kind("float32")), 0, 0])
        assert repr(found) == repr(value) and other == "0.0"


def test_texts_that_do_not_fit() -> None:
    for text in ("abcde", "a\0b", "ééé"):
        with pytest.raises(PayloadError, match="4 bytes"):
            RegisterForm("string").text_registers(text, 2)
    with pytest.raises(PayloadError, match="not UTF-8"):
        RegisterForm("string").values([0xFFFE])


@settings(max_examples=AMOUNTS.of(200))
@given(
    st.integers(-32_768, 32_767),
    st.decimals(min_value="0.0001", max_value="1000", places=4),
    st.decimals(min_value=-1000, max_value=1000, places=3),
)
def test_scale_and_offset_are_exact(raw: int, scale: object, offset: object) -> None:
    scaling = Scaling(Fraction(str(scale)), Fraction(str(offset)))
    value = raw * scaling.scale + scaling.offset
    assert RegisterForm("int16").number_registers(scaling.raw(value)) == [raw & 0xFFFF]


def test_states_as_numbers_and_bits() -> None:
    assert [number_of(text) for text in ("true", "false", "+7", "-1.50", "1e3", ".5")] == [
        1, 0, 7, Fraction("-1.5"), 1_000, Fraction("0.5"),
    ]  # fmt: skip
    assert [bit_of(text) for text in ("true", "1", "false", "0")] == [True, True, False, False]
    for text in ("", "ON", "INF", "1e9999", "9" * 65, "1_0", "1/2", "٣"):
        with pytest.raises(PayloadError):
            number_of(text)
    with pytest.raises(PayloadError):
        bit_of("ON")
