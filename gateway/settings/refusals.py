"""Errors of a settings file: what is wrong, on which line, and what to write instead."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

_PLACE = re.compile(r"(?P<what>.*) - at `\$\.(?P<table>\w+)(?:\.(?P<key>\w+))?[^`]*`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")


def refusal(path: Path, text: str, error: msgspec.ValidationError, tables: Mapping[str, Sequence[str]]) -> str:
    """The message for an error of `msgspec.convert`. text: of the file; tables: the keys of each table."""
    place = _PLACE.fullmatch(str(error))
    what, table, key = (str(error), None, None) if place is None else place.group("what", "table", "key")
    unknown = _UNKNOWN.fullmatch(what)
    if unknown is None:
        named = ".".join(name for name in (table, key) if name)
        return f"{located(path, text, table, key)}: {named}: {what}"
    name = unknown["name"]
    if table is None:
        return f"{located(path, text, name)}: {_unknown_table(name, tables)}"
    return f"{located(path, text, table, name)}: unknown key {table}.{name}; {_nearest(name, tables.get(table, ()))}"


def located(path: Path, text: str, table: str | None, key: str | None = None) -> str:
    """The file, with the line on which the table or its key begins, if there is one: `lamplighter.toml line 7`."""
    line = None if table is None else _line(text, table, key) or _line(text, table, None)
    return f"{path}" if line is None else f"{path} line {line}"


def _line(text: str, table: str, key: str | None) -> int | None:
    """The line after the longest beginning of the text that is TOML and does not have the key."""
    lines = text.splitlines()
    without = 0
    for count in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:  # ends within a value
            continue
        found = document.get(table)
        if table in document and (key is None or (isinstance(found, dict) and key in found)):
            return without + 1
        without = count
    return None


def _unknown_table(name: str, tables: Mapping[str, Sequence[str]]) -> str:
    homes = [f"[{table}]" for table, keys in tables.items() if name in keys]
    if homes:
        return f"key {name} is outside of a table; write it below {' or '.join(homes)}"
    return f"unknown table [{name}]; {_nearest(name, tuple(tables))}"


def _nearest(name: str, known: Sequence[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(known)}"
