"""`lamplighter mapping`: what the MQTT rules make of a message, and what is wrong with them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lamplighter.adapters.mapping import Mapping, PublishRule, StreamRule, checked_mapping
from lamplighter.adapters.mapping.dataset_rules import QUERY, DatasetRules
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.overlaps import loops, overlaps
from lamplighter.engine import Engine
from lamplighter.engine.client import EngineClient
from lamplighter.engine.errors import ConfigurationError, GatewayError, RequestError
from lamplighter.engine.sparql.requests import subscribable
from lamplighter.engine.tables import counted
from lamplighter.engine.terms import Quad, is_iri, is_literal, lexical
from lamplighter.gateway.addresses import local_url
from lamplighter.gateway.cli.commands import add_mode, config_file, printable, settings_and_data
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import near
from lamplighter.ontology.vocabulary import PREFIXES

Adder = Callable[..., argparse.ArgumentParser]
GATEWAY_S = 2.0
"""How long the command waits for the rules of a running gateway."""


def add_mapping_commands(command: Adder) -> None:
    """Declares the commands. command: as in `gateway.__main__`."""
    modes = command("mapping", "test and check the MQTT mapping rules", _check).add_subparsers(
        title="subcommands", required=True, dest="mode"
    )
    test = add_mode(modes, "test", "show the triples that a message makes, and the rules that make them", _test)
    test.add_argument("topic", help="MQTT topic, such as home/kitchen/temperature")
    test.add_argument("payload", help="text, @FILE, or - for standard input")
    test.add_argument("--hex", action="store_true", help="PAYLOAD is in hexadecimal digits")
    test.add_argument("--retained", action="store_true", help="as a message that the broker stored")
    test.add_argument("--broker", default="", metavar="NAME", help="the broker that sends it")
    add_mode(modes, "check", "name the faults, overlaps and unknown units of all rules", _check)


def _test(options: argparse.Namespace) -> int:
    settings, data = settings_and_data(options)
    files, faults = _files(options, settings)
    found, note = asyncio.run(_dataset_rules(settings, data))
    mapping = Mapping([*files.rules, *found.streams()])
    if options.broker:
        mapping = mapping.of_broker(options.broker)
    covering = mapping.covering(options.topic)
    payload = _payload(options)
    good = bool(covering)
    for rule in covering:
        good &= _show(rule, options.topic, payload, retained=options.retained, settings=settings)
    if not covering:
        _say(f"no rule covers the topic {options.topic}")
    for line in [*map(str, faults), *note]:
        _say(f"not tested: {line}")
    return 0 if good else 1


def _say(line: str) -> None:
    """Prints a line. Rules and topics of clients may have control sequences for the terminal."""
    print(printable(line))


def _show(rule: StreamRule, topic: str, payload: bytes, *, retained: bool, settings: Settings) -> bool:
    """Prints what a rule makes of a message; whether it is without a fault."""
    _say(f"{rule.place}  (topic {rule.table.topic})")
    found = Mapping([rule]).readings(topic, payload, retained=retained, received=datetime.now(UTC))
    read = set()
    for one in found:
        if isinstance(one, Reading):
            read.add(one.stream.rule)
            if len(rule.reads) > 1:
                _say(f"  {one.stream.rule.removeprefix(rule.place).strip()}")
            for line in _triples(one, settings):
                _say(f"    {line}")
        else:
            _say(f"  fault: {one}")
    for part in rule.reads:
        if part.optional and part.place not in read:
            _say(f"  not in the message: {part.name or 'the value'} (optional)")
    return all(isinstance(one, Reading) for one in found)


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
    mapping, faults = _files(options, settings)
    found, note = asyncio.run(_dataset_rules(settings, data))
    every = [*mapping.rules, *found.streams()]
    actuating = [*mapping.commands, *found.commands()]
    publishes = [*mapping.publishes, *found.publishes()]
    brokers = settings.mqtt.all_brokers()
    problems = [*map(str, faults), *query_faults(publishes)]
    for fault in problems:
        _say(f"fault: {fault}")
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
    for rule in every:
        for read in rule.reads:
            if read.unit is not None and not is_iri(read.unit):
                _say(f"unknown unit: {read.place}: unit = {lexical(read.unit)!r} is kept as text; write an IRI")
    for line in note:
        _say(f"not checked: {line}")
    commands = counted(len(actuating), "command")
    queries = f", {counted(len(publishes), 'publish rule')}" if publishes else ""
    _say(f"{counted(len(mapping.rules), 'rule')} in files, {len(found.streams())} in the dataset, {commands}{queries}")
    return 1 if problems else 0


def query_faults(rules: Sequence[PublishRule]) -> list[str]:
    """What is wrong with the queries of `[[publish]]` rules, with their places."""
    faults = []
    for rule in rules:
        try:
            columns = subscribable(rule.select).columns
        except RequestError as error:
            faults.append(f"{rule.place}: query: {near(error, rule.select, rule.declarations)}")
            continue
        faults += [
            f"{rule.place}: topic = {rule.table.topic!r}: the query does not select ?{name}"
            for name in sorted(rule.variables - set(columns))
        ]
    return faults


def _files(options: argparse.Namespace, settings: Settings) -> tuple[Mapping, list[ConfigurationError]]:
    config = config_file(options)
    return checked_mapping((config.parent if config else Path()) / "mapping", settings.gateway.base_iri)


async def _dataset_rules(settings: Settings, data: Path) -> tuple[DatasetRules, list[str]]:
    """The rules in the dataset of a running gateway, and why there are none, or what is wrong with some."""
    rules = DatasetRules(settings.gateway.base_iri, settings.mqtt.publish)
    try:
        async with EngineClient(local_url(settings, data), name="mapping") as client:
            async with asyncio.timeout(GATEWAY_S):
                found = await client.query(QUERY)
    except TimeoutError:
        return rules, ["the rules in the dataset; the gateway does not answer"]
    except GatewayError as error:
        return rules, [f"the rules in the dataset; {error}"]
    rules.change([(row["mapping"], row["rule"]) for row in found.bindings()], ())
    return rules, [f"{mapping}: {text}" for mapping, text in rules.problems().items()]


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
