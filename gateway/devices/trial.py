"""What mapping rules make of a message: the one implementation behind ``lamplighter mapping test`` and
``POST /mapping/try``. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from lamplighter.adapters.mapping import (
    Mapping,
    PathRule,
    ReadingRules,
    ResourceCommandRule,
    ResourceRule,
    ResourceRules,
    StreamRule,
    uris,
)
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.files import FileRules
from lamplighter.adapters.mapping.payloads import Payload
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS, BodyFormats, shown_format
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.specs import RESOURCE_KINDS
from lamplighter.engine import Engine
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import Quad, Term


class TriedMessage(msgspec.Struct, frozen=True):
    """A message on trial. where: an MQTT topic, a path of the CoAP server, or the URI of a resource; broker: the one
    that sends it, "" for any; content_format: of a resource, None for what the rule reads."""

    where: str
    payload: bytes
    received: datetime
    retained: bool = False
    broker: str = ""
    content_format: int | None = None

    @property
    def of_resource(self) -> bool:
        return self.where.partition(":")[0].lower() in uris.SCHEMES


class TrialReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one value became: a reading, a reported state, or a fault. read: the part of the rule, empty for the whole;
    updates: the SPARQL texts of the adapter; triples: what they add to an empty dataset; missing: whether the body has
    no state."""

    read: str = ""
    updates: Sequence[str] = ()
    triples: Sequence[Quad] = ()
    state: Term | None = None
    missing: bool = False
    fault: str = ""


class RuleTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule that covers the message makes of it. about: what it reads, such as ``topic home/{room}``; missing:
    optional values that the message lacks; parts: how many values the rule reads; more: how many values of the message
    are not shown."""

    rule: str
    about: str
    made: Sequence[TrialReading]
    missing: Sequence[str] = ()
    parts: int = 1
    more: int = 0

    @property
    def good(self) -> bool:
        return not any(one.fault for one in self.made)


class TrialResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """As ``POST /mapping/try`` answers. not_tested: the faults of rules; problem: why no rule applies."""

    rules: Sequence[RuleTrial]
    not_tested: Sequence[str]
    problem: str = ""

    @property
    def good(self) -> bool:
        return bool(self.rules) and all(rule.good for rule in self.rules)


def content_format(text: str | None) -> int | None:
    """The number of a content format: its name, or the number itself. Raises ValueError, which says what to write."""
    if text is None or text in FORMAT_NUMBERS:
        return None if text is None else FORMAT_NUMBERS[text]
    if text.isdecimal() and int(text) <= 65_535:
        return int(text)
    raise ValueError(f"write {', '.join(FORMAT_NUMBERS)} or a number")


def uncovered_text(message: TriedMessage) -> str:
    return f"no rule covers the {'resource' if message.of_resource else 'topic'} {message.where}"


class StoredRules(NamedTuple):
    mqtt: DatasetRules
    others: tuple[DatasetRules, ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[Term, Term]], base_iri: str, publish: Sequence[str]) -> StoredRules:
        """rows: of `dataset_rules.QUERY`; publish: the setting `mqtt.publish`."""
        others = tuple(DatasetRules(base_iri, kind=kind) for kind in RESOURCE_KINDS)
        found = cls(DatasetRules(base_iri, publish), others)
        for of_kind in found.every():
            of_kind.change(rows, ())
        return found

    def every(self) -> list[DatasetRules]:
        return [self.mqtt, *self.others]

    def resources(self) -> ResourceRules:
        """The rules for resources and paths, of all adapters."""
        return all_rules_of(*(of_kind.resources() for of_kind in self.others))

    def faults(self) -> list[str]:
        return [f"{mapping}: {text}" for of_kind in self.every() for mapping, text in of_kind.problems().items()]


def all_rules_of(*all_rules: ResourceRules) -> ResourceRules:
    return ResourceRules.of(rule for of_one in all_rules for rules in of_one for rule in rules)


class MessageTrial:
    """Tries rules. event: whether the model of readings is "event"; made_max: values that one rule is shown with."""

    def __init__(self, files: FileRules, dataset: StoredRules, *, event: bool, made_max: int | None = None) -> None:
        self._mapping = Mapping([*files.mqtt.rules, *dataset.mqtt.streams()])
        self._resources = all_rules_of(files.resources, dataset.resources())
        self._event = event
        self._made_max = made_max

    def of(self, message: TriedMessage) -> list[RuleTrial]:
        """What each rule that covers a message makes of it. Raises PayloadError for a place that is no resource."""
        return list(self._resource(message) if message.of_resource else self._topic(message))

    def _topic(self, message: TriedMessage) -> Iterator[RuleTrial]:
        mapping = self._mapping.of_broker(message.broker) if message.broker else self._mapping
        for rule in mapping.covering(message.where):
            found = Mapping([rule]).readings(
                message.where, message.payload, retained=message.retained, received=message.received
            )
            yield self._readings(rule, f"topic {rule.table.topic}", found)
        path = message.where.removeprefix("/")
        for one in ReadingRules(self._resources.paths).covering(path):
            yield self._body(message, one, f"path {one.table.path}", path)

    def _resource(self, message: TriedMessage) -> Iterator[RuleTrial]:
        resource = uris.normal(message.where)
        for rule in self._resources.resources:
            if rule.resource == resource:
                yield self._body(message, rule, f"resource {rule.resource}", rule.name)
        for command in self._resources.commands:
            if not command.names and command.state_uri({}) == resource:
                yield self._state(message, command, resource)

    def _body(self, message: TriedMessage, rule: ResourceRule | PathRule, about: str, place: str) -> RuleTrial:
        """place: what the rule finds its readings by."""

        def read(body: Payload) -> list[Reading | PayloadError]:
            return ReadingRules([rule]).readings(place, body, retained=False, received=message.received)

        form, found = _payload(message, rule.accepted, read)
        return self._readings(rule, f"{about}, {form}", found)

    def _state(self, message: TriedMessage, rule: ResourceCommandRule, resource: str) -> RuleTrial:
        """The state that a device reports by a body."""
        state = rule.state
        assert state is not None

        def read(body: Payload) -> list[TrialReading | PayloadError]:
            try:
                found = state.value(body, resource, message.received)
            except PayloadError as error:
                return [error]
            return [TrialReading(missing=True) if found is None else TrialReading(state=found)]

        form, found = _payload(message, state.accepted, read)
        made = [one if isinstance(one, TrialReading) else TrialReading(fault=str(one)) for one in found]
        return RuleTrial(rule.place, f"resource {resource}, {form}", made)

    def _readings(
        self, rule: StreamRule | ResourceRule | PathRule, about: str, found: Iterable[Reading | PayloadError]
    ) -> RuleTrial:
        made: list[TrialReading] = []
        read, more = set(), 0
        for one in found:
            if len(made) == self._made_max:
                more += 1
            elif isinstance(one, Reading):
                read.add(one.stream.rule)
                made.append(self._triples_of(one, one.stream.rule.removeprefix(rule.place).strip()))
            else:
                made.append(TrialReading(fault=str(one)))
        missing = [part.name or "the value" for part in rule.reads if part.optional and part.place not in read]
        missing = missing if not more else []
        return RuleTrial(rule.place, about, made, missing, len(rule.reads), more)

    def _triples_of(self, reading: Reading, part: str) -> TrialReading:
        """The triples of a stream and its reading, as the adapter writes them into a dataset with only the rule."""
        engine = Engine()
        added = [quad for text in self._texts(_unconditional(reading)) for quad in engine.update(text).delta.added]
        added.sort(key=lambda quad: (quad.g or "", quad.s, quad.p, quad.o))
        return TrialReading(part, self._texts(reading), added)

    def _texts(self, reading: Reading) -> list[str]:
        """The updates for the first reading of a stream."""
        model = EventModel(1, 1) if self._event else LatestModel()
        return [model.description(reading.stream), *model.updates(reading)]


def _unconditional(reading: Reading) -> Reading:
    """The reading of a rule that is there."""
    return reading._replace(stream=replace(reading.stream, condition=""))


def _payload(message: TriedMessage, accepted: BodyFormats, read: Callable[[Payload], Any]) -> tuple[str, Any]:
    """The content format, and what was read: the given one, or the first that the rule reads without a fault."""
    numbers: list[int | None] = [message.content_format]
    if message.content_format is None:
        numbers = (
            [accepted.number] if accepted.number is not None else list(map(FORMAT_NUMBERS.get, accepted.sorted_names()))
        )
    tried: list[tuple[str, Any]] = []
    for number in numbers:
        try:
            found = read(read_body(message.payload, number, accepted))
        except PayloadError as error:
            found = [error]
        tried.append((f"content format {shown_format(number or 0)}", found))
        if found and not any(isinstance(one, PayloadError) for one in found):
            return tried[-1]
    return tried[0]
