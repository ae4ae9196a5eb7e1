"""Rules of mapping files: `*.toml` with the tables [prefixes], [[stream]], [[command]] and [[publish]]."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lamplighter.adapters.mapping import rules
from lamplighter.adapters.mapping.publishes import PublishRule, publish_rule
from lamplighter.adapters.mapping.rules import CommandRule, StreamRule, command_rule
from lamplighter.adapters.mapping.tables import CommandTable, PublishTable, StreamTable
from lamplighter.adapters.mapping.templates import ABSOLUTE
from lamplighter.engine.errors import ConfigurationError
from lamplighter.ontology.vocabulary import PREFIXES

_HEADER = r"\s*\[\[\s*([\"']?){kind}\1\s*\]\]"

Table = TypeVar("Table", StreamTable, CommandTable, PublishTable)


class _FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prefixes: dict[str, str] = {}
    stream: list[dict[str, Any]] = []
    command: list[dict[str, Any]] = []
    publish: list[dict[str, Any]] = []


def load_mapping(folder: Path, base_iri: str) -> rules.Mapping:
    """The rules of all `*.toml` files of a folder, in the order of their names; none if the folder does not exist.

    base_iri: of the gateway, such as `http://gateway.example/`; relative templates continue it.
    Raises ConfigurationError, which names file, line, rule, key and cure.
    """
    mapping, faults = checked_mapping(folder, base_iri)
    if faults:
        raise faults[0]
    return mapping


def checked_mapping(folder: Path, base_iri: str) -> tuple[rules.Mapping, list[ConfigurationError]]:
    """The good rules of a folder, and the faults of the others. Raises ConfigurationError for a bad base IRI."""
    check_base_iri(base_iri)
    streams: list[StreamRule] = []
    commands: list[CommandRule] = []
    publishes: list[PublishRule] = []
    faults: list[ConfigurationError] = []
    for path in sorted(folder.glob("*.toml")):
        for found in _file_rules(path, base_iri):
            if isinstance(found, ConfigurationError):
                faults.append(found)
            elif isinstance(found, StreamRule):
                streams.append(found)
            elif isinstance(found, CommandRule):
                commands.append(found)
            else:
                publishes.append(found)
    return rules.Mapping(streams, commands, publishes), faults


def check_base_iri(base_iri: str) -> None:
    """Raises ConfigurationError."""
    if not ABSOLUTE.fullmatch(base_iri) or not base_iri.endswith(("/", ":", "#")):
        raise ConfigurationError(f"base IRI {base_iri!r}: write an http(s) or urn IRI that ends in '/', ':' or '#'")


def _file_rules(path: Path, base_iri: str) -> Iterator[StreamRule | CommandRule | PublishRule | ConfigurationError]:
    """The rules of a file, and errors in the places of faulty ones."""
    try:
        text = path.read_text(encoding="utf-8")
        table = msgspec.convert(tomllib.loads(text, parse_float=Decimal), _FileTable)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        yield ConfigurationError(f"{path}: cannot be read: {error}; correct the file, or remove it")
        return
    except msgspec.ValidationError as error:
        yield ConfigurationError(
            f"{path}: {error}; a file has [prefixes], [[stream]], [[command]] and [[publish]] tables"
        )
        return
    for prefix, address in table.prefixes.items():
        if not ABSOLUTE.fullmatch(address):
            yield ConfigurationError(f"{path}: prefixes: {prefix} = {address!r}: write a full http(s) or urn IRI")
            return
        if PREFIXES.get(prefix, address) != address:
            yield ConfigurationError(f"{path}: prefixes: {prefix} already is {PREFIXES[prefix]}; choose another name")
            return
    prefixes = PREFIXES | table.prefixes

    def read(entries: list[dict[str, Any]], kind: str, type_: type[Table], make: Callable[..., Any]) -> Iterator[Any]:
        header = re.compile(_HEADER.format(kind=kind))
        lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
        for number, entry in enumerate(entries, 1):
            # A text of several lines may contain what looks like a header. Then no line is named.
            line = f" line {lines[number - 1]}" if len(lines) == len(entries) else ""
            place = f"{path}{line}: {kind} {number}"
            try:
                yield make(_table(entry, type_, place), prefixes=prefixes, base_iri=base_iri, place=place)
            except ConfigurationError as error:
                yield error

    yield from read(table.stream, "stream", StreamTable, StreamRule)
    yield from read(table.command, "command", CommandTable, _with_actuator)
    yield from read(table.publish, "publish", PublishTable, publish_rule)


def _with_actuator(table: CommandTable, *, place: str, **context: Any) -> CommandRule:
    if table.actuator is None:
        raise ConfigurationError(f"{place}: actuator is missing; write its IRI, or a path under the base IRI")
    return command_rule(table, place=place, **context)


def _table(entry: Mapping[str, Any], type_: type[Table], place: str) -> Table:
    try:
        return msgspec.convert(entry, type_)
    except msgspec.ValidationError as error:
        known = ", ".join(type_.__struct_fields__)
        raise ConfigurationError(f"{place}: {error}; the keys of a rule are {known}") from error
