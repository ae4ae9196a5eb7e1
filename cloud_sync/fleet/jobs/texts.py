"""Rows and values as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

_CELL_MAX = 40
_SHARES = ("uptime", "untrusted_share")
_NAMES = ("epoch", "seq", "trigger_seq")
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned columns, each value as `value_text`."""
    cells = [[value_text(name, row[name]) for name in columns] for row in rows]
    numeric = [all(isinstance(row[name], (int, float, type(None))) for row in rows) for name in columns]
    widths = [max([len(name), *(len(line[at]) for line in cells)]) for at, name in enumerate(columns)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(columns), *(line(values) for values in cells)])


def value_text(column: str, value: Any) -> str:
    """A value of a result's column as text: seconds as a duration, a share in percent, others as `cell`."""
    if isinstance(value, (int, float)) and column.endswith("_s"):
        return duration(value)
    if isinstance(value, float) and column in _SHARES:
        return f"{value * 100:.4g} %"
    if column in _NAMES:
        return str(value)
    if isinstance(value, str) and column == "unit":
        return unit_name(value)
    return cell(value)


def duration(seconds: float) -> str:
    """The two largest units: `1 d 16 h`, `5 min`; below a minute `3.25 s`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    size, unit, smaller_size, smaller = next(part for part in _UNITS if seconds >= part[0])
    whole, rest = divmod(round(seconds / smaller_size), size // smaller_size)
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def cell(value: Any) -> str:
    """A value as text: times to the second in UTC, numbers with four digits, the last part of an IRI."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    text = printable(short(value) if isinstance(value, str) else str(value))
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"


def printable(text: str) -> str:
    """The text as one line without control characters."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def unit_name(unit: str) -> str:
    """The name of a unit in its vocabulary, such as DEG_C."""
    return short(unit).rpartition("/")[2]


def short(iri: str) -> str:
    """The short form of an IRI: the part after #, or the last two parts of the path. Other text stays as it is."""
    if "://" not in iri:
        return iri
    before, sign, name = iri.partition("#")
    if sign:
        return name or before
    parts = [part for part in iri.partition("://")[2].split("/")[1:] if part]
    return "/".join(parts[-2:]) or iri
