"""Errors of a settings file: all that is wrong, on which line, and what to write instead."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from lamplighter.engine.client.places import value_problems

_PLACE = re.compile(r"(?P<what>.*) - at `\$(?P<names>(?:\.\w+)*)[^`]*`", re.DOTALL)
_KEY = re.compile(r"\w+(\.\w+)+(?=[: ])")


class _Fault(NamedTuple):
    """names: the table, the tables in it, and the key; () for a key outside of a table. hides: the checks of the whole
    table cannot be made."""

    names: tuple[str, ...]
    what: str
    hides: bool = True


def refusals(place: Callable[..., str], document: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """The messages for all faults of a document that `msgspec.convert` refuses. place: where a table or its key is, by
    their names."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    faults: list[_Fault] = []
    for name, value in document.items():
        if name in fields:
            faults += _faults(value, fields[name], (name,))
        else:
            faults.append(_Fault((name,), _unknown_table(name, {table: _names(fields[table]) for table in fields})))
    return [f"{place(*fault.names)}: {fault.what}" for fault in faults]


def place_text(path: Path, text: str, *names: str) -> str:
    """The file, with the line on which the table or its key begins, if there is one: `lamplighter.toml line 7`."""
    line = next(filter(None, (_line(text, names[:count]) for count in range(len(names), 0, -1))), None)
    return f"{path}" if line is None else f"{path} line {line}"


def with_places(path: Path, text: str, message: str) -> str:
    """A message with file and line before each of its lines that begins with a key of the file."""

    def with_place(line: str) -> str:
        key = _KEY.match(line)
        found = key and _line(text, key[0].split("."))
        return f"{path} line {found}: {line}" if found else line

    return "\n".join(map(with_place, message.splitlines()))


def _faults(value: Any, kind: Any, names: tuple[str, ...]) -> Iterator[_Fault]:
    """The faults of a table, of a table of tables, or of the value of a key."""
    found: list[_Fault] = []
    if isinstance(value, dict) and _is_table(kind):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        for name, member in value.items():
            if name in fields:
                found += _faults(member, fields[name], (*names, name))
            else:
                what = f"unknown key {'.'.join((*names, name))}; {_nearest(name, tuple(fields))}"
                found.append(_Fault((*names, name), what))
    elif isinstance(value, dict) and get_origin(kind) is dict and _is_table(get_args(kind)[1]):
        for name, member in value.items():
            found += _faults(member, get_args(kind)[1], (*names, name))
    yield from found
    if any(fault.hides for fault in found):  # the checks of the whole table need its values
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.fullmatch(str(error))
        what = str(error) if place is None else place["what"]
        inner = () if place is None else tuple(filter(None, place["names"].split(".")))
        for line in what.splitlines():
            yield _Fault((*names, *inner), f"{'.'.join((*names, *inner))}: {line}{_cure(value, kind)}")
        return
    for problem in value_problems(value, kind):
        yield _Fault(names, f"{'.'.join(names)}: {problem}", hides=False)


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


def _cure(value: Any, kind: Any) -> str:
    """What to write instead of a value, if there are few possible ones."""
    allowed = _values(kind)
    if kind is bool:
        return "; write true or false"
    if not allowed:
        return ""
    wrong = [one for one in (value if isinstance(value, list) else [value]) if one not in allowed]
    near = get_close_matches(str(wrong[0]).lower(), allowed, 1) if wrong else []
    return f"{f'; did you mean {_list_text(near)}?' if near else ''}; allowed: {_list_text(allowed)}"


def _values(kind: Any) -> list[str]:
    """The values of an enumeration, or those that the items of a list may have."""
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    if get_origin(kind) is Annotated:
        return _values(get_args(kind)[0])
    parts = [one for one in get_args(kind) if one not in (NoneType, ...)]
    return _values(parts[0]) if len(parts) == 1 else []


def _list_text(values: Sequence[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


def _line(text: str, names: Sequence[str]) -> int | None:
    """The line after the longest beginning of the text that is TOML and does not have the key."""
    lines = text.splitlines()
    without = 0
    for count in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:  # ends within a value
            continue
        for name in names:
            if not isinstance(found, dict) or name not in found:
                break
            found = found[name]
        else:
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
