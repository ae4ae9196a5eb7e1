"""Rules of mapping files: `*.toml` with the tables [prefixes], [[stream]], [[command]] and [[publish]]."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lamplighter.adapters.mapping import rules
from lamplighter.adapters.mapping.kinds import AnyRule, ResourceRules, kind_of, rule_type
from lamplighter.adapters.mapping.publishes import PublishRule
from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule
from lamplighter.adapters.mapping.rules import CommandRule, StreamRule
from lamplighter.adapters.mapping.templates import ABSOLUTE
from lamplighter.adapters.specs import Kind
from lamplighter.engine.client.files import read_text, reading_problem, toml_document
from lamplighter.engine.errors import ConfigurationError
from lamplighter.ontology.vocabulary import PREFIXES

_UNKNOWN = re.compile("unknown field `([^`]*)`")
_HEADER = r"\s*\[\[\s*([\"']?){kind}\1\s*\]\]"


class _FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prefixes: dict[str, str] = {}
    stream: list[dict[str, Any]] = []
    command: list[dict[str, Any]] = []
    publish: list[dict[str, Any]] = []


class FileFault(NamedTuple):
    """kind: of the adapter that a fault stops; None: all."""

    kind: Kind | None
    error: ConfigurationError


class FileRules(NamedTuple):
    """The rules of the files of a folder, in their order. mqtt: for MQTT; resources: for the other adapters; faults: of
    the other rules, and of files that cannot be read."""

    mqtt: rules.Mapping
    resources: ResourceRules
    faults: tuple[FileFault, ...]

    def check(self, kind: Kind | None = None) -> None:
        """Raises the first fault that stops an adapter; kind: None: any adapter."""
        for fault in self.faults:
            if kind is None or fault.kind in (None, kind):
                raise fault.error


def load_mapping(folder: Path, base_iri: str) -> rules.Mapping:
    """The rules for MQTT of all `*.toml` files of a folder, in the order of their names; none if the folder does not
    exist. Faults of rules for other adapters do not matter.

    base_iri: of the gateway, such as `http://gateway.example/`; relative templates continue it.
    Raises ConfigurationError, which names file, line, rule, key and cure.
    """
    found = file_rules(folder, base_iri)
    found.check("mqtt")
    return found.mqtt


def load_resource_rules(folder: Path, base_iri: str, kind: Kind = "coap") -> ResourceRules:
    """The rules for another adapter, as `load_mapping` returns those for MQTT."""
    found = file_rules(folder, base_iri)
    found.check(kind)
    return ResourceRules.of((one for rules_ in found.resources for one in rules_), kind)


def file_rules(folder: Path, base_iri: str) -> FileRules:
    """All rules of a folder, and the faults of the others. Raises ConfigurationError for a bad base IRI."""
    check_base_iri(base_iri)
    return _group_by_kind(found for path in sorted(folder.glob("*.toml")) for found in _file_rules(path, base_iri))


def text_rules(text: str, name: str, base_iri: str) -> FileRules:
    """The rules of a text that could be a file, and the faults of the others. name: begins their places."""
    check_base_iri(base_iri)
    return _group_by_kind(_text_rules(text, name, base_iri))


def _group_by_kind(found: Iterable[AnyRule | FileFault]) -> FileRules:
    good: list[AnyRule] = []
    faults: list[FileFault] = []
    for one in found:
        if isinstance(one, FileFault):
            faults.append(one)
        else:
            good.append(one)
    mqtt = rules.Mapping(
        [one for one in good if isinstance(one, StreamRule)],
        [one for one in good if isinstance(one, CommandRule)],
        [one for one in good if isinstance(one, PublishRule)],
    )
    return FileRules(mqtt, ResourceRules.of(good), tuple(faults))


def check_base_iri(base_iri: str) -> None:
    """Raises ConfigurationError."""
    if not ABSOLUTE.fullmatch(base_iri) or not base_iri.endswith(("/", ":", "#")):
        raise ConfigurationError(f"base IRI {base_iri!r}: write an http(s) or urn IRI that ends in '/', ':' or '#'")


def _file_rules(path: Path, base_iri: str) -> Iterator[AnyRule | FileFault]:
    """The rules of a file, and faults in the places of faulty ones."""
    try:
        text = read_text(path)
    except OSError as error:
        problem = reading_problem(error, path, "correct the file, or remove it")
        yield FileFault(None, ConfigurationError(f"{path}: {problem}"))
        return
    except UnicodeDecodeError as error:
        yield FileFault(None, ConfigurationError(f"{path}: cannot be read: {error}; correct the file, or remove it"))
        return
    yield from _text_rules(text, str(path), base_iri)


def _text_rules(text: str, path: str, base_iri: str) -> Iterator[AnyRule | FileFault]:
    """path: begins the places of rules."""
    try:
        table = msgspec.convert(toml_document(text, parse_float=Decimal), _FileTable)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        yield FileFault(None, ConfigurationError(f"{path}: cannot be read: {error}; correct the file, or remove it"))
        return
    except msgspec.ValidationError as error:
        cure = "a file has [prefixes], [[stream]], [[command]] and [[publish]] tables"
        yield FileFault(None, ConfigurationError(f"{path}: {error}; {cure}"))
        return
    try:
        prefixes = _prefixes(table)
    except ValueError as error:
        yield FileFault(None, ConfigurationError(f"{path}: prefixes: {error}"))
        return
    for name, entries in (("stream", table.stream), ("command", table.command), ("publish", table.publish)):
        header = re.compile(_HEADER.format(kind=name))
        lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
        for number, entry in enumerate(entries, 1):
            # A text of several lines may contain what looks like a header. Then no line is named.
            line = f" line {lines[number - 1]}" if len(lines) == len(entries) else ""
            place = f"{path}{line}: {name} {number}"
            try:
                yield _rule(name, entry, prefixes=prefixes, base_iri=base_iri, place=place)
            except ConfigurationError as error:
                yield FileFault(kind_of(name, entry), error)


def _prefixes(table: _FileTable) -> dict[str, str]:
    """Raises ValueError."""
    for prefix, address in table.prefixes.items():
        if not ABSOLUTE.fullmatch(address):
            raise ValueError(f"{prefix} = {address!r}: write a full http(s) or urn IRI")
        if PREFIXES.get(prefix, address) != address:
            raise ValueError(f"{prefix} already is {PREFIXES[prefix]}; choose another name")
    return PREFIXES | table.prefixes


def _rule(name: str, entry: dict[str, Any], *, place: str, **context: Any) -> AnyRule:
    """Raises ConfigurationError."""
    type_, make = rule_type(name, entry, place)
    try:
        table = msgspec.convert(entry, type_)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.search(str(error))
        near = get_close_matches(unknown[1], type_.__struct_fields__, 1) if unknown else []
        meant = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(type_.__struct_fields__)
        raise ConfigurationError(f"{place}: {error}{meant}; the keys of a rule are {known}") from error
    rule = make(table, place=place, **context)
    if isinstance(rule, CommandRule) and rule.actuator is None:
        raise ConfigurationError(f"{place}: actuator is missing; write its IRI, or a path under the base IRI")
    if isinstance(rule, ResourceCommandRule) and rule.actuator is None and rule.select is None:
        raise ConfigurationError(f"{place}: actuator is missing; write its IRI, a path under the base IRI, or query")
    return rule
