"""`lamplighter mapping`: what the rules make of a message, and what is wrong with them."""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.adapters.mapping import file_rules, uris
from lamplighter.adapters.mapping.dataset_rules import QUERY
from lamplighter.adapters.mapping.files import FileRules, text_rules
from lamplighter.adapters.mqtt.overlaps import loops, overlaps
from lamplighter.engine.client.files import read_file, read_text
from lamplighter.engine.errors import ConfigurationError, PayloadError, RefusedError, UpstreamError
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Quad, Term, is_iri, is_literal, lexical
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import print_json
from lamplighter.gateway.cli.endpoint import RunningDataset, add_reach_options, call_gateway, url_option
from lamplighter.gateway.cli.options import add_json, add_mode, config_folder, settings_and_data
from lamplighter.gateway.devices.trial import (
    MessageTrial,
    RuleTrial,
    StoredRules,
    TrialResult,
    TriedMessage,
    all_rules_of,
    content_format,
    uncovered_text,
)
from lamplighter.gateway.service.rule_faults import command_faults, query_faults
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.texts import printable
from lamplighter.ontology.vocabulary import PREFIXES


def add_mapping_commands(command: Adder) -> None:
    modes = command("mapping", _check).add_subparsers(
        title="subcommands", metavar="SUBCOMMAND", required=True, dest="mode"
    )
    test = add_mode(
        modes,
        "test",
        "show the triples that a message makes, and the rules that make them. The rules are those in the files here "
        "and in the dataset of this machine's gateway; with --url those of the gateway there",
        _test,
    )
    test.add_argument(
        "topic",
        metavar="WHERE",
        help="MQTT topic or path of the CoAP server, such as home/kitchen/temperature, or URI of a resource, such as "
        "coap://192.168.7.20/t",
    )
    test.add_argument("payload", metavar="PAYLOAD", help="text, @FILE, or - for standard input")
    test.add_argument("--hex", action="store_true", help="PAYLOAD is in hexadecimal digits")
    test.add_argument("--retained", action="store_true", help="as a message that the broker stored")
    test.add_argument(
        "--format",
        metavar="NAME",
        help="content format of a resource: text, json, ... or a number (default: what the rule reads)",
    )
    test.add_argument("--broker", default="", metavar="NAME", help="the broker that sends it")
    test.add_argument("--rules", type=Path, metavar="FILE", help="try only the rules in this file")
    check = add_mode(
        modes,
        "check",
        "report faults, overlaps and unknown units of the rules in the files here and in the gateway's dataset",
        _check,
    )
    for parser, what in ((test, "the result, as POST /mapping/try,"), (check, "what was found")):
        add_json(parser, what)
        add_reach_options(parser)


def _test(options: argparse.Namespace) -> int:
    message = TriedMessage(
        options.topic,
        _payload(options),
        datetime.now(UTC),
        options.retained,
        options.broker,
        _content_format(options.format),
    )
    try:
        result = _tried_here(options, message) if url_option(options) is None else _tried_there(options, message)
    except PayloadError as error:
        raise ConfigurationError(str(error)) from error
    if options.json:
        print_json(msgspec.to_builtins(result))
    else:
        _show(result)
    return 0 if result.good else 1


def _tried_here(options: argparse.Namespace, message: TriedMessage) -> TrialResult:
    """Raises PayloadError for a resource that is no URI of a resource, ConfigurationError."""
    settings, _ = settings_and_data(options)
    if options.rules is None:
        files = _files(options, settings)
        found, faults = _dataset_rules(options, settings)
    else:
        files = text_rules(_rules_text(options.rules), str(options.rules), settings.gateway.base_iri)
        found, faults = _of_rows([], settings), []
    tried = MessageTrial(files, found, event=settings.mqtt.model == "event").of(message)
    untested = [*(str(fault.error) for fault in files.faults), *faults]
    return TrialResult(tried, untested, "" if tried else uncovered_text(message))


def _tried_there(options: argparse.Namespace, message: TriedMessage) -> TrialResult:
    """As `_tried_here`, by the gateway of --url. Raises UpstreamError and RefusedError, too."""
    if message.of_resource:
        uris.normal(message.where)
    asked: dict[str, Any] = {
        "topic": message.where,
        "payload_base64": b64encode(message.payload).decode(),
        "broker": message.broker,
        "retained": message.retained,
        "content_format": message.content_format,
    }
    if options.rules is not None:
        asked["rule"] = _rules_text(options.rules)
    headers = {"Content-Type": "application/json"}
    with call_gateway(options, "POST", "/mapping/try", json.dumps(asked).encode(), headers) as answer:
        text = answer.read()
    try:
        return msgspec.json.decode(text, type=TrialResult)
    except msgspec.DecodeError as error:
        raise UpstreamError(f"the gateway's answer is not the result of a trial: {error}") from error


def _rules_text(file: Path) -> str:
    """Raises ConfigurationError."""
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--rules: {file}: {error}") from error


def _show(result: TrialResult) -> None:
    for trial in result.rules:
        _show_trial(trial)
    if result.problem:
        _say(result.problem)
    for fault in result.not_tested:
        _say(f"not tested: {fault}")


def _show_trial(trial: RuleTrial) -> None:
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
    if trial.more:
        _say(f"  and {count_text(trial.more, 'further value')}")


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
    settings, _ = settings_and_data(options)
    found = _findings(_files(options, settings), settings, *_dataset_rules(options, settings))
    if options.json:
        print_json(msgspec.to_builtins(found))
    else:
        for line in found.lines():
            _say(line)
    return 1 if found.faults else 0


class RuleFindings(msgspec.Struct, frozen=True):
    """What `mapping check` finds. The members after not_checked are numbers of rules."""

    faults: list[str]
    unknown_brokers: list[str]
    overlaps: list[str]
    loops: list[str]
    unknown_units: list[str]
    not_checked: list[str]
    in_files: int
    in_dataset: int
    commands: int
    publish_rules: int

    def lines(self) -> Iterator[str]:
        for title, found in (
            ("fault", self.faults),
            ("unknown broker", self.unknown_brokers),
            ("overlap", self.overlaps),
            ("loop", self.loops),
            ("unknown unit", self.unknown_units),
            ("not checked", self.not_checked),
        ):
            yield from (f"{title}: {one}" for one in found)
        queries = f", {count_text(self.publish_rules, 'publish rule')}" if self.publish_rules else ""
        yield (
            f"{count_text(self.in_files, 'rule')} in files, {self.in_dataset} in the dataset, "
            f"{count_text(self.commands, 'command')}{queries}"
        )


def _findings(files: FileRules, settings: Settings, dataset: StoredRules, not_checked: list[str]) -> RuleFindings:
    every = [*files.mqtt.rules, *dataset.mqtt.streams()]
    actuating = [*files.mqtt.commands, *dataset.mqtt.commands()]
    publishes = [*files.mqtt.publishes, *dataset.mqtt.publishes()]
    resources = all_rules_of(files.resources, dataset.resources())
    brokers = settings.mqtt.all_brokers()
    named = [(rule.place, rule.broker) for rule in every]
    named += [(rule.place, rule.table.broker) for rule in actuating]
    named += [(rule.place, rule.table.broker) for rule in publishes]
    known = ", ".join(brokers) or "none"
    reads = (read for rule in (*every, *resources.resources, *resources.paths) for read in rule.reads)
    in_files = len(files.mqtt.rules) + len(files.resources.resources) + len(files.resources.paths)
    return RuleFindings(
        faults=[
            *(str(fault.error) for fault in files.faults),
            *query_faults(publishes),
            *command_faults(resources.commands),
        ],
        unknown_brokers=[
            f"{place}: broker = {broker!r}; the brokers are: {known}"
            for place, broker in named
            if broker is not None and broker not in brokers
        ],
        overlaps=list(overlaps(every)),
        loops=list(loops(publishes, every, actuating)),
        unknown_units=[
            f"{read.place}: unit = {lexical(read.unit)!r} is kept as text; write an IRI"
            for read in reads
            if read.unit is not None and not is_iri(read.unit)
        ],
        not_checked=not_checked,
        in_files=in_files,
        in_dataset=len(every) + len(resources.resources) + len(resources.paths) - in_files,
        commands=len(actuating) + len(resources.commands),
        publish_rules=len(publishes),
    )


def _files(options: argparse.Namespace, settings: Settings) -> FileRules:
    return file_rules(config_folder(options) / "mapping", settings.gateway.base_iri)


def _of_rows(rows: Sequence[tuple[Term, Term]], settings: Settings) -> StoredRules:
    return StoredRules.of(rows, base_iri=settings.gateway.base_iri, publish=settings.mqtt.publish)


def _dataset_rules(options: argparse.Namespace, settings: Settings) -> tuple[StoredRules, list[str]]:
    """The rules in the dataset of a gateway, and what is wrong with some. If this machine's gateway does not run, the
    texts say so. Raises UpstreamError and RefusedError for the gateway of --url."""
    try:
        there = RunningDataset(options).rows(QUERY)
    except (RefusedError, UpstreamError) as error:
        if url_option(options) is not None:
            raise
        return _of_rows([], settings), [f"the rules in the dataset; {error}"]
    rules = _of_rows([(mapping, rule) for mapping, rule in there if mapping and rule], settings)
    return rules, rules.faults()


def _payload(options: argparse.Namespace) -> bytes:
    """Raises ConfigurationError."""
    text: str = options.payload
    try:
        if text == "-":
            data = sys.stdin.buffer.read()
        else:
            data = read_file(text[1:]) if text.startswith("@") else text.encode("utf-8", "surrogateescape")
        return bytes.fromhex(data.decode("ascii")) if options.hex else data
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the payload cannot be read: {error}") from error
