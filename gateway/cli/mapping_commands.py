"""`lamplighter mapping`: what the rules make of a message, and what is wrong with them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from lamplighter.adapters.mapping import file_rules
from lamplighter.adapters.mapping.dataset_rules import QUERY
from lamplighter.adapters.mapping.files import FileRules
from lamplighter.adapters.mqtt.overlaps import loops, overlaps
from lamplighter.engine.client import EngineClient
from lamplighter.engine.errors import ConfigurationError, GatewayError, PayloadError
from lamplighter.engine.tables import counted
from lamplighter.engine.terms import Quad, is_iri, is_literal, lexical
from lamplighter.gateway.addresses import local_url
from lamplighter.gateway.cli.commands import Adder, add_mode
from lamplighter.gateway.cli.config_file import config_folder, settings_and_data
from lamplighter.gateway.devices.trial import (
    InDataset,
    MessageTrial,
    RuleTrial,
    TriedMessage,
    content_format,
    joined,
    uncovered,
)
from lamplighter.gateway.history.names import printable
from lamplighter.gateway.service.rule_faults import command_faults, query_faults
from lamplighter.gateway.settings import Settings
from lamplighter.ontology.vocabulary import PREFIXES

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
    message = TriedMessage(
        options.topic,
        _payload(options),
        datetime.now(UTC),
        options.retained,
        options.broker,
        _content_format(options.format),
    )
    try:
        tried = MessageTrial(files, found, event=settings.mqtt.model == "event").of(message)
    except PayloadError as error:
        raise ConfigurationError(str(error)) from error
    for trial in tried:
        _show_trial(trial)
    if not tried:
        _say(uncovered(message))
    for line in [*(str(fault.error) for fault in files.faults), *note]:
        _say(f"not tested: {line}")
    return 0 if tried and all(trial.good for trial in tried) else 1


def _show_trial(trial: RuleTrial) -> None:
    """Prints what a rule makes of a message."""
    _say(f"{trial.rule}  ({trial.about})")
    for one in trial.made:
        if one.fault:
            _say(f"  fault: {one.fault}")
        elif one.missing:
            _say("  not in the body: the state")
        elif one.state is not None:
            _say(f"  reported state: {_term(one.state)}")
        else:
            if trial.parts > 1:
                _say(f"  {one.read}")
            for quad in one.triples:
                _say(f"    {_line(quad)}")
    for name in trial.missing:
        _say(f"  not in the message: {name} (optional)")


def _content_format(text: str | None) -> int | None:
    """Raises ConfigurationError."""
    try:
        return content_format(text)
    except ValueError as error:
        raise ConfigurationError(f"--format: {error}") from error


def _say(line: str) -> None:
    """Prints a line. Rules and topics of clients may have control sequences for the terminal."""
    print(printable(line))


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
    coap = joined(files.coap, found.coap.coap())
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
    return file_rules(config_folder(options) / "mapping", settings.gateway.base_iri)


async def _dataset_rules(settings: Settings, data: Path) -> tuple[InDataset, list[str]]:
    """The rules in the dataset of a running gateway, and why there are none, or what is wrong with some."""
    of_rows = partial(InDataset.of, base_iri=settings.gateway.base_iri, publish=settings.mqtt.publish)
    try:
        async with EngineClient(local_url(settings, data), name="mapping") as client:
            async with asyncio.timeout(GATEWAY_S):
                found = await client.query(QUERY)
    except TimeoutError:
        return of_rows([]), ["the rules in the dataset; the gateway does not answer"]
    except GatewayError as error:
        return of_rows([]), [f"the rules in the dataset; {error}"]
    rules = of_rows([(row["mapping"], row["rule"]) for row in found.bindings()])
    return rules, rules.faults()


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
