"""Floating-point numbers of devices -> decimal numbers. Pure."""

from __future__ import annotations

import math
import struct
from typing import Literal

from lamplighter.adapters.mapping.payloads import Number

FloatLayout = Literal[">f", ">d"]
"""Four or eight bytes (IEEE 754), as in Python's module struct."""


def shortest(value: float, layout: FloatLayout) -> Number:
    """The number with the fewest digits that has the same bytes. Raises ValueError if it is infinite or not a number.

    value: as unpacked from the layout.
    """
    if not math.isfinite(value):
        raise ValueError("the number is not finite")
    text = repr(value)
    if layout == ">f":
        wanted = four_bytes(value)
        text = next(one for digits in range(1, 18) if four_bytes(float(one := f"{value:.{digits}g}")) == wanted)
    return Number(text if "." in text or "e" in text else f"{text}.0")


def four_bytes(value: float) -> bytes | None:
    """The four bytes that are nearest to a finite number; None if it is too large for them."""
    try:
        return struct.pack(">f", value)
    except OverflowError:
        return None
