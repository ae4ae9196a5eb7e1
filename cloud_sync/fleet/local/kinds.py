"""Types of columns: parsed from DDL as Spark reads it, and written as DuckDB's.

A kind is the name of a scalar type of DuckDB, a `ListOf` of another kind, or a dict of kinds for a struct. None: a
scalar whose type only DuckDB knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

Kind: TypeAlias = "str | ListOf | dict[str, Kind] | None"


class ListOf(NamedTuple):
    """The kind of a list by that of its members."""

    member: Kind


# Times are kept without a zone, in UTC: DuckDB calculates with them without the library for zones.
TIME = "TIMESTAMP"

_SCALARS = {
    "STRING": "VARCHAR",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": TIME,
}


def columns_of(ddl: str) -> dict[str, Kind]:
    """The columns of a table by its DDL, ``name TYPE, ...``."""
    parts = (part.strip().partition(" ") for part in _members(ddl))
    return {name: kind_of(kind) for name, _, kind in parts}


def kind_of(text: str) -> Kind:
    """A type such as ``BIGINT`` or ``ARRAY<STRUCT<s: STRING>>``."""
    name, sign, inner = text.strip().partition("<")
    if not sign:
        return _SCALARS[name.upper()]
    inner = inner[: inner.rindex(">")]
    if name.upper() == "ARRAY":
        return ListOf(kind_of(inner))
    parts = (part.partition(":") for part in _members(inner))
    return {member.strip(): kind_of(kind) for member, _, kind in parts}


def _members(text: str) -> Iterator[str]:
    """The parts between the commas that are in no bracket."""
    depth = begin = 0
    for place, sign in enumerate(text):
        depth += (sign == "<") - (sign == ">")
        if sign == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def sql_type(kind: Kind, *, time: str = TIME) -> str:
    """The type in DuckDB's SQL. time: that of moments, in a source that has another one."""
    if isinstance(kind, ListOf):
        return f"{sql_type(kind.member, time=time)}[]"
    if isinstance(kind, dict):
        members = (f"{identifier(name)} {sql_type(member, time=time)}" for name, member in kind.items())
        return f"STRUCT({', '.join(members)})"
    return time if kind == TIME else kind or "VARCHAR"


def json_structure(kind: Kind) -> str:
    """The type as DuckDB's `from_json` reads it."""

    def structure(kind: Kind) -> Any:
        if isinstance(kind, ListOf):
            return [structure(kind.member)]
        if isinstance(kind, dict):
            return {name: structure(member) for name, member in kind.items()}
        return kind

    return json.dumps(structure(kind))


def identifier(name: str) -> str:
    """A quoted name."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A quoted text."""
    return "'" + text.replace("'", "''") + "'"
