"""`lamplighter.toml` of the firmware partition, merged over the appliance's own settings."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from .machine import Machine, first_line
from .mistakes import Mistake, document, line_of

_HEAD = "# Generated from appliance.toml beside this file and lamplighter.toml on the firmware partition.\n"
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLACED = re.compile(r"\S*lamplighter\.trial\.toml(?: line \d+)?: (?=(?:unknown key )?(?P<key>\w+(?:\.\w+)*))")


def take_settings(machine: Machine, text: str) -> str:
    """Checks and applies them; returns what was done. Raises Mistake."""
    given = document(text)
    own = tomllib.loads(machine.path("/etc/lamplighter/appliance.toml").read_text())
    settings = machine.path("/etc/lamplighter/lamplighter.toml")
    trial = settings.with_name("lamplighter.trial.toml")
    machine.write(trial, _HEAD + merged(own, given))
    try:
        checked = machine.run("lamplighter", "check", "--config", str(trial))
    except OSError as error:
        raise Mistake(f"cannot be checked: {error}") from None
    if checked.returncode:
        trial.unlink()
        said = [line for line in checked.stderr.splitlines() if line.strip()]
        raise Mistake("\n".join(_in_their_file(line, text) for line in said) or "the gateway refuses it")
    trial.replace(settings)
    return f"applied, {_count(given)} settings"


def _in_their_file(line: str, text: str) -> str:
    """A message of the gateway with the line in the user's file, not in the one that was merged."""
    line = first_line(line).removeprefix("lamplighter: ")

    def place(found: re.Match[str]) -> str:
        number = line_of(text, found["key"].split("."))
        return f"line {number}: " if number else ""

    return _PLACED.sub(place, line).replace("lamplighter.trial.toml", "lamplighter.toml")


def _count(table: dict[str, Any]) -> int:
    return sum(_count(value) if isinstance(value, dict) else 1 for value in table.values())


def merged(*documents: dict[str, Any]) -> str:
    """Settings as TOML: what a later document says goes before what an earlier one said. Raises Mistake."""
    tables: dict[str, Any] = {}
    for one in documents:
        for table, members in one.items():
            if not isinstance(members, dict):
                raise Mistake(f"{table} is outside of a table; put it below a line such as [gateway]")
        tables = _over(tables, one)
    return "".join(text for table, members in tables.items() for text in _lines(members, (table,)))


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One table over another; tables in them are merged likewise."""
    both = dict(below)
    for name, value in above.items():
        old = below.get(name)
        both[name] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _lines(table: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """A table, and after its keys the tables in it."""
    yield f"\n[{'.'.join(map(_key, names))}]\n"
    for name, value in table.items():
        if not isinstance(value, dict):
            yield f"{_key(name)} = {_value(value, '.'.join((*names, name)))}\n"
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _lines(value, (*names, name))


def _key(name: str) -> str:
    return name if _KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: object, name: str) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)  # the same in TOML as in JSON, for these
    if isinstance(value, list):
        return f"[{', '.join(_value(one, name) for one in value)}]"
    raise Mistake(f"{name} is neither text, number, true, false nor a list of them")
