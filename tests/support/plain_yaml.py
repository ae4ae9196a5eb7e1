"""Reads the part of YAML 1.2 that our files use: block mappings and lists, plain and double-quoted scalars on one line.

Anything else is an error, so that a file which this reader takes means the same to every YAML reader.
"""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(r"([A-Za-z_][\w-]*):(?: (.*))?")
_INDICATORS = "-?:,[]{}#&*!|>'\"%@`"
"""No plain scalar begins with one of them."""
_NO_TEXT = re.compile(r"[-+.\d_eExXoO:]+|true|false|null|yes|no|on|off|~", re.I)
"""What some readers take for a number, a boolean or nothing."""


def read_yaml(text: str) -> Any:
    """Raises ValueError, which names the line."""
    lines = [
        (number, len(line) - len(line.lstrip(" ")), line.strip(" "))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip(" ") and not line.lstrip(" ").startswith("#")
    ]
    for number, _, line in lines:
        _require("\t" not in line and line.isprintable(), number)
    value, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"line {rest[0][0]}: it belongs to nothing")
    return value


_Lines = list[tuple[int, int, str]]


def _block(lines: _Lines, least: int) -> tuple[Any, _Lines]:
    """The value that begins with the first line. least: of its indentation."""
    _require(bool(lines) and lines[0][1] >= least, lines[0][0] if lines else 0)
    return _list(lines) if lines[0][2].startswith("- ") else _mapping(lines)


def _list(lines: _Lines) -> tuple[list[Any], _Lines]:
    indent, found = lines[0][1], []
    while lines and lines[0][1] == indent and lines[0][2].startswith("- "):
        number, _, line = lines[0]
        if line[2:].startswith("- ") or _KEY.fullmatch(line[2:]):
            item, lines = _block([(number, indent + 2, line[2:]), *lines[1:]], indent + 2)
        else:
            item, lines = _scalar(line[2:], number), lines[1:]
        found.append(item)
    return found, lines


def _mapping(lines: _Lines) -> tuple[dict[str, Any], _Lines]:
    indent, found = lines[0][1], dict[str, Any]()
    while lines and lines[0][1] == indent:
        number, _, line = lines[0]
        match = _KEY.fullmatch(line)
        if match is None or match[1] in found:
            raise ValueError(f"line {number}: no key, or one that is there already: {line}")
        if match[2] is None:
            found[match[1]], lines = _block(lines[1:], indent + 1)
        else:
            found[match[1]], lines = _scalar(match[2], number), lines[1:]
    return found, lines


def _scalar(text: str, number: int) -> str:
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    _require(": " not in text and " #" not in text and not text.endswith((":", " ")), number)
    _require(text[0] not in _INDICATORS and _NO_TEXT.fullmatch(text) is None, number)
    return text


def _require(well: bool, number: int) -> None:
    if not well:
        raise ValueError(f"line {number}: it is not in the part of YAML that is read here")
