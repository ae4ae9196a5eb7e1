"""`lamplighter mapping`: what the rules make of a message, and what is wrong with them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from lamplighter.adapters.coap.formats import read_body
from lamplighter.adapters.mapping import (
    CoapRules,
    Mapping,
    PathRule,
    ReadingRules,
    ResourceCommandRule,
    ResourceRule,
    StreamRule,
    file_rules,
    uris,
)
from lamplighter.adapters.mapping.dataset_rules import QUERY, DatasetRules
from lamplighter.adapters.mapping.files import FileRules
from lamplighter.adapters.mapping.payloads import Payload
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS, BodyFormats, shown_format
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.overlaps import loops, overlaps
from lamplighter.engine import Engine
from lamplighter.engine.client import EngineClient
from lamplighter.engine.errors import ConfigurationError, GatewayError, PayloadError
from lamplighter.engine.tables import counted
from lamplighter.engine.terms import Quad, is_iri, is_literal, lexical
from lamplighter.gateway.addresses import local_url
from lamplighter.gateway.cli.commands import add_mode, config_file, printable, settings_and_data
from lamplighter.gateway.service.rule_faults import command_faults, query_faults
from lamplighter.gateway.settings import Settings
from lamplighter.ontology.vocabulary import PREFIXES

Adder = Callable[..., argparse.ArgumentParser]
GATEWAY_S = 2.0
"""How long the command waits for the rules of a running gateway."""


def add_mapping_commands(command: Adder) -> None:
    """Declares the commands. command: as in `gateway.__main__`."""
    modes = command("mapping", "test and check the mapping rules", _check).add_subparsers(
        title="subcommands", required=True, dest="mode"
    )
    test = add_mode(modes, "test", "show the triples that a message makes, and the rules that make them", _test)
    test.add_argument(
        "topic",
        metavar="WHERE",
        help="MQTT topic or path of the CoAP server, such as home/kitchen/temperature, or coap:// URI of a resource",
    )
    test.add_argument("payload", help="text, @FILE, or - for standard input")
    test.add_argument("--hex", action="store_true", help="PAYLOAD is in hexadecimal digits")
    test.add_argument("--retained", action="store_true", help="as a message that the broker stored")
    test.add_argument(
        "--format",
        metavar="NAME",
        help="CoAP content format: text, json, ... or a number (default: what the rule reads)",
    )
    test.add_argument("--broker", default="", metavar="NAME", help="the broker that sends it")
    add_mode(modes, "check", "name the faults, overlaps and unknown units of all rules", _check)


def _test(options: argparse.Namespace) -> int:
    settings, data = settings_and_data(options)
    files = _files(options, settings)
    found, note = asyncio.run(_dataset_rules(settings, data))
    mapping = Mapping([*files.mqtt.rules, *found.mqtt.streams()])
    if options.broker:
        mapping = mapping.of_broker(options.broker)
    payload = _payload(options)
    shown = _Shown(payload, _content_format(options.format), settings)
    coap = _joined(files.coap, found.coap.coap())
    if options.topic.startswith("coap:"):
        covered = _test_resource(options.topic, coap, shown)
    else:
        covered = _test_topic(options, mapping, coap.paths, shown)
    if not covered:
        what = "resource" if options.topic.startswith("coap:") else "topic"
        _say(f"no rule covers the {what} {options.topic}")
    for line in [*(str(fault.error) for fault in files.faults), *note]:
        _say(f"not tested: {line}")
    return 0 if covered and shown.good else 1


def _test_topic(options: argparse.Namespace, mapping: Mapping, paths: Sequence[PathRule], shown: _Shown) -> bool:
    """Whether a rule covers a topic, or a path of the CoAP server."""
    topic: str = options.topic
    covering = mapping.covering(topic)
    for rule in covering:
        found = Mapping([rule]).readings(topic, shown.payload, retained=options.retained, received=shown.received)
        shown.readings(rule, f"topic {rule.table.topic}", found)
    path = topic.removeprefix("/")
    of_path = ReadingRules(paths).covering(path)
    for one in of_path:
        shown.body(one, f"path {one.table.path}", path, one.accepted)
    return bool(covering or of_path)


def _test_resource(uri: str, rules: CoapRules, shown: _Shown) -> bool:
    """Whether a rule reads the resource. Raises ConfigurationError."""
    try:
        resource = uris.normal(uri)
    except PayloadError as error:
        raise ConfigurationError(str(error)) from error
    covering = [rule for rule in rules.resources if rule.resource == resource]
    for rule in covering:
        shown.body(rule, f"resource {rule.resource}", rule.name, rule.accepted)
    states = [rule for rule in rules.commands if not rule.names and rule.state_uri({}) == resource]
    for command in states:
        shown.state(command, resource)
    return bool(covering or states)


class _Shown:
    """Prints what rules make of a message. good: whether all of it is without a fault."""

    def __init__(self, payload: bytes, content_format: int | None, settings: Settings) -> None:
        self.payload, self.good = payload, True
        self.received = datetime.now(UTC)
        self._content_format, self._settings = content_format, settings

    def body(self, rule: ResourceRule | PathRule, about: str, place: str, accepted: BodyFormats) -> None:
        """place: what the rule finds its readings by."""

        def read(body: Payload) -> list[Reading | PayloadError]:
            return ReadingRules([rule]).readings(place, body, retained=False, received=self.received)

        found = self._read(accepted, read)
        self.readings(rule, f"{about}, {found[0]}", found[1])

    def state(self, rule: ResourceCommandRule, resource: str) -> None:
        """Prints the state that a device reports by a body."""
        state = rule.state
        assert state is not None

        def read(body: Payload) -> list[str | PayloadError]:
            try:
                found = state.value(body, resource, self.received)
            except PayloadError as error:
                return [error]
            return ["not in the body: the state" if found is None else f"reported state: {_term(found)}"]

        form, found = self._read(state.accepted, read)
        _say(f"{rule.place}  (resource {resource}, {form})")
        for one in found:
            self.good &= isinstance(one, str)
            _say(f"  {one}" if isinstance(one, str) else f"  fault: {one}")

    def _read(self, accepted: BodyFormats, read: Callable[[Payload], Any]) -> tuple[str, Any]:
        """The content format, and what was read: the given one, or the first that the rule reads without a fault."""
        numbers: list[int | None] = [self._content_format]
        if self._content_format is None:
            numbers = (
                [accepted.number] if accepted.number is not None else list(map(FORMAT_NUMBERS.get, accepted.sorted()))
            )
        tried: list[tuple[str, Any]] = []
        for number in numbers:
            try:
                found = read(read_body(self.payload, number, accepted))
            except PayloadError as error:
                found = [error]
            tried.append((f"content format {shown_format(number or 0)}", found))
            if found and not any(isinstance(one, PayloadError) for one in found):
                return tried[-1]
        return tried[0]

    def readings(
        self, rule: StreamRule | ResourceRule | PathRule, about: str, found: Iterable[Reading | PayloadError]
    ) -> None:
        _say(f"{rule.place}  ({about})")
        read = set()
        for one in found:
            if isinstance(one, Reading):
                read.add(one.stream.rule)
                if len(rule.reads) > 1:
                    _say(f"  {one.stream.rule.removeprefix(rule.place).strip()}")
                for line in _triples(one, self._settings):
                    _say(f"    {line}")
            else:
                self.good = False
                _say(f"  fault: {one}")
        for part in rule.reads:
            if part.optional and part.place not in read:
                _say(f"  not in the message: {part.name or 'the value'} (optional)")


def _content_format(text: str | None) -> int | None:
    """Raises ConfigurationError."""
    if text is None or text in FORMAT_NUMBERS:
        return None if text is None else FORMAT_NUMBERS[text]
    if text.isdecimal() and int(text) <= 65_535:
        return int(text)
    raise ConfigurationError(f"--format: write {', '.join(FORMAT_NUMBERS)} or a number")


def _say(line: str) -> None:
    """Prints a line. Rules and topics of clients may have control sequences for the terminal."""
    print(printable(line))


def _triples(reading: Reading, settings: Settings) -> Iterator[str]:
    """The triples of a stream and its reading, as the adapter writes them into an empty dataset."""
    model = EventModel(1, 1) if settings.mqtt.model == "event" else LatestModel()
    engine = Engine()
    texts = [model.description(reading.stream), *model.updates(reading)]
    added = [quad for text in texts for quad in engine.update(text).delta.added]
    for quad in sorted(added, key=lambda quad: (quad.g or "", quad.s, quad.p, quad.o)):
        yield _line(quad)


def _line(quad: Quad) -> str:
    graph = "" if quad.g is None else f"  in {_term(quad.g)}"
    return f"{_term(quad.s)} {_term(quad.p)} {_term(quad.o)}{graph}"


def _term(term: str) -> str:
    """A term, with a prefix where it has one; control characters are escaped already, or are no part of an IRI."""
    address = lexical(term) if is_iri(term) else term.rpartition("^^<")[2][:-1] if is_literal(term) else ""
    for prefix, namespace in PREFIXES.items():
        local = address.removeprefix(namespace)
        if address != local and local.replace("-", "").replace("_", "").isalnum():
            return f"{prefix}:{local}" if is_iri(term) else f"{term.rpartition('^^<')[0]}^^{prefix}:{local}"
    return printable(term)


def _check(options: argparse.Namespace) -> int:
    settings, data = settings_and_data(options)
    files = _files(options, settings)
    found, note = asyncio.run(_dataset_rules(settings, data))
    every = [*files.mqtt.rules, *found.mqtt.streams()]
    actuating = [*files.mqtt.commands, *found.mqtt.commands()]
    publishes = [*files.mqtt.publishes, *found.mqtt.publishes()]
    coap = _joined(files.coap, found.coap.coap())
    problems = [*(str(fault.error) for fault in files.faults), *query_faults(publishes), *command_faults(coap.commands)]
    for fault in problems:
        _say(f"fault: {fault}")
    brokers = settings.mqtt.all_brokers()
    named = [(rule.place, rule.broker) for rule in every]
    named += [(rule.place, rule.table.broker) for rule in actuating]
    named += [(rule.place, rule.table.broker) for rule in publishes]
    for place, broker in named:
        if broker is not None and broker not in brokers:
            known = ", ".join(brokers) or "none"
            _say(f"unknown broker: {place}: broker = {broker!r}; the brokers are: {known}")
    for line in overlaps(every):
        _say(f"overlap: {line}")
    for line in loops(publishes, every, actuating):
        _say(f"loop: {line}")
    for read in (read for rule in (*every, *coap.resources, *coap.paths) for read in rule.reads):
        if read.unit is not None and not is_iri(read.unit):
            _say(f"unknown unit: {read.place}: unit = {lexical(read.unit)!r} is kept as text; write an IRI")
    for line in note:
        _say(f"not checked: {line}")
    commands = counted(len(actuating) + len(coap.commands), "command")
    queries = f", {counted(len(publishes), 'publish rule')}" if publishes else ""
    in_files = len(files.mqtt.rules) + len(files.coap.resources) + len(files.coap.paths)
    in_dataset = len(every) + len(coap.resources) + len(coap.paths) - in_files
    _say(f"{counted(in_files, 'rule')} in files, {in_dataset} in the dataset, {commands}{queries}")
    return 1 if problems else 0


def _files(options: argparse.Namespace, settings: Settings) -> FileRules:
    config = config_file(options)
    return file_rules((config.parent if config else Path()) / "mapping", settings.gateway.base_iri)


def _joined(files: CoapRules, dataset: CoapRules) -> CoapRules:
    return CoapRules.of(rule for rules in (*files, *dataset) for rule in rules)


class _InDataset(NamedTuple):
    mqtt: DatasetRules
    coap: DatasetRules


async def _dataset_rules(settings: Settings, data: Path) -> tuple[_InDataset, list[str]]:
    """The rules in the dataset of a running gateway, and why there are none, or what is wrong with some."""
    base_iri = settings.gateway.base_iri
    rules = _InDataset(DatasetRules(base_iri, settings.mqtt.publish), DatasetRules(base_iri, kind="coap"))
    try:
        async with EngineClient(local_url(settings, data), name="mapping") as client:
            async with asyncio.timeout(GATEWAY_S):
                found = await client.query(QUERY)
    except TimeoutError:
        return rules, ["the rules in the dataset; the gateway does not answer"]
    except GatewayError as error:
        return rules, [f"the rules in the dataset; {error}"]
    for of_kind in rules:
        of_kind.change([(row["mapping"], row["rule"]) for row in found.bindings()], ())
    return rules, [f"{mapping}: {text}" for of_kind in rules for mapping, text in of_kind.problems().items()]


def _payload(options: argparse.Namespace) -> bytes:
    """Raises ConfigurationError."""
    text: str = options.payload
    try:
        if text == "-":
            data = sys.stdin.buffer.read()
        else:
            data = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode("utf-8", "surrogateescape")
        return bytes.fromhex(data.decode("ascii")) if options.hex else data
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the payload cannot be read: {error}") from error
