"""Sensors and actuators that mapping rules name: they exist before they have reported for the first time."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.engine.client.files import read_text
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.devices.directory import Kind

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def names_of_files(folder: Path, base: str) -> Iterator[tuple[Kind, str]]:
    """Kind and IRI of what the rules of a folder name, with captures such as ``{room}``. What cannot be read names
    nothing; others report it."""
    for path in sorted(folder.glob("*.toml")):
        try:
            document = tomllib.loads(read_text(path))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        for kind, tables in document.items():
            for table in tables if isinstance(tables, list) else ():
                yield from _names(kind, table, base)


def names_of_rows(rows: Iterable[Sequence[Term | None]], base: str) -> Iterator[tuple[Kind, str]]:
    """The same of rules in the dataset. rows: of `adapters.mapping.dataset_rules.QUERY`."""
    for _, rule in rows:
        try:
            document = msgspec.json.decode("" if rule is None else lexical(rule))
        except (msgspec.DecodeError, RecursionError):  # whoever may write to the dataset may write anything
            continue
        if isinstance(document, dict):
            yield from names_of_tables(document, base)


def names_of_tables(tables: Mapping[str, Any], base: str) -> Iterator[tuple[Kind, str]]:
    """The same of rules by their kind."""
    for kind, table in tables.items():
        yield from _names(kind, table, base)


def _names(kind: str, table: Any, base: str) -> Iterator[tuple[Kind, str]]:
    if not isinstance(table, Mapping):
        return
    key: Kind = "actuator" if kind == "command" else "sensor"
    reads = table.get("read", ()) if kind == "stream" else ()
    for one in (table, *(read for read in reads if isinstance(read, Mapping))):
        name, feature = one.get(key), one.get("feature")
        if isinstance(name, str) and name:
            yield key, name if _ABSOLUTE.match(name) else base + name
        if isinstance(feature, str) and feature.startswith("area/"):
            yield "room", base + feature
