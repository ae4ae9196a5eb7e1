"""Values of a template's options, from the command line or a form, as a choice and its mapping rules. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from lamplighter.adapters.devices.draft import segment
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.files import text_rules
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, PayloadError
from lamplighter.engine.terms import iri, literal
from lamplighter.gateway.devices.directory import Kind, NameDirectory, NamedThing, UnknownNameError
from lamplighter.gateway.devices.ruled import names_of_tables
from lamplighter.gateway.local_time.times import TimeOfDay
from lamplighter.gateway.state.delayed import delay_us
from lamplighter.gateway.state.stored_applications import check_name
from lamplighter.gateway.templates.catalogue import (
    TEMPLATES,
    Choice,
    DailySpan,
    Dimming,
    Document,
    Template,
    mapping_text,
    rules_node,
    rules_removal,
)
from lamplighter.gateway.templates.options import Option, options_of
from lamplighter.ontology.vocabulary import COAP_RESOURCE, MAPPING, RULE

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_SPAN = re.compile(r"(\d+)\s*(s|m|min|h)")
_DIGITS_MAX = 15  # of a temperature, before and behind the point
_UNITS = {"s": "S", "m": "M", "min": "M", "h": "H"}
_FOLDERS: Mapping[str, str] = {"actuator": "actuator", "sensor": "sensor", "room": "area"}

Values = Mapping[str, Any]
"""By option: a text or a number, or a list of them. What is left out, or None, has its default."""


@dataclass(frozen=True)
class ValueFault:
    """option: its name; value: as it was given. candidates: what a name may mean."""

    option: str
    value: str
    problem: str
    candidates: Sequence[NamedThing] = ()

    def __str__(self) -> str:
        """For the command line."""
        return f"--{self.option}{self.value and f' {self.value}'}: {self.problem}"


class ValueFaultsError(ConfigurationError):
    """Values with which no application can be made."""

    def __init__(self, faults: Sequence[ValueFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


@dataclass(frozen=True)
class MadeApplication:
    """resolved: by option, what its names mean. tables: of the mapping rules that come with it, by their kind. coap:
    the resource of its actuator, where it is given."""

    template: Template
    choice: Choice
    resolved: Mapping[str, Sequence[tuple[str, NamedThing]]]
    tables: Mapping[str, Mapping[str, object]]
    coap: str = ""

    @property
    def document(self) -> Document:
        return self.template.profile(self.choice, self.template.properties)

    @property
    def follows(self) -> str:
        """Which sensors count, for people; empty for a template that follows the time."""
        if not self.template.properties:
            return ""
        choice = self.choice
        which = f"in {choice.room}" if choice.room else ", ".join(choice.sensors) or "all of the gateway"
        return f"sensors of {' and '.join(self.template.properties)}: {which}"

    @property
    def new(self) -> Collection[str]:
        """The IRIs of what its rules and its resource name."""
        ruled = {address for _, address in names_of_tables(self.tables, self.choice.base_iri)}
        return ruled | set(self.choice.actuators[:1]) if self.coap else ruled

    @property
    def coap_update(self) -> str:
        """The update that gives the actuator its CoAP resource; empty if it has none of its own."""
        if not self.coap:
            return ""
        return f"INSERT DATA {{ <{self.choice.actuators[0]}> <{COAP_RESOURCE}> <{self.coap}> }}"

    @property
    def rules_update(self) -> str:
        """The update that makes its mapping rules those of the dataset, or removes those of an earlier version."""
        if not self.tables:
            return rules_removal(self.choice.name, self.choice.base_iri)
        node = rules_node(self.choice.name, self.choice.base_iri)
        rules = " , ".join(
            literal(json.dumps({kind: table}, ensure_ascii=False)) for kind, table in self.tables.items()
        )
        return (
            f"DELETE {{ {node} <{RULE}> ?before }} INSERT {{ {node} a <{MAPPING}> ; <{RULE}> {rules} }} "
            f"WHERE {{ OPTIONAL {{ {node} <{RULE}> ?before }} }}"
        )

    @property
    def rules_text(self) -> str:
        """As a mapping file."""
        return mapping_text(self.tables, f"Devices of apps/{self.choice.name}.jsap. Keys: docs/mapping.md.")


def make(
    template_name: str, name: str, values: Values, base_iri: str, directory: NameDirectory | None
) -> MadeApplication:
    """The application of these values. directory: what names mean; None: there is no gateway that knows, so a name is a
    path. Raises ValueFaultsError, which names all faults."""
    template = TEMPLATES[template_name]
    maker = _Maker({one.name: one for one in options_of(template)}, values, base_iri, directory)
    choice, tables = maker.choice(template, name)
    if not maker.faults and tables:
        maker.check_rules(choice.name, tables)
    if maker.faults:
        raise ValueFaultsError(maker.faults)
    return MadeApplication(template, choice, maker.resolved, tables, maker.text("coap") or "")


@dataclass
class _Maker:
    """Reads the values, and collects what is wrong with them."""

    _options: Mapping[str, Option]
    _values: Values
    _base: str
    _directory: NameDirectory | None
    faults: list[ValueFault] = field(default_factory=list)
    resolved: dict[str, list[tuple[str, NamedThing]]] = field(default_factory=dict)

    def choice(self, template: Template, name: str) -> tuple[Choice, dict[str, dict[str, object]]]:
        self._check_options(name)
        actuator = template.actuator
        topic, coap, command = self.text("topic"), self.text("coap"), self.text("command-topic")
        actuators = self._names(actuator, new=bool(coap or command))
        if not self._texts(actuator):
            self._fault(actuator, "", f"name the {actuator} to switch, such as kitchen")
        if (coap or command) and len(actuators) > 1:
            option = "coap" if coap else "command-topic"
            self._fault(option, "", f"--coap and --command-topic are of one {actuator}; name one")
        rooms, sensors = self._names("room", new=bool(topic)), self._names("sensor", new=bool(topic))
        room = rooms[0] if rooms else None
        named = bool(sensors)
        tables: dict[str, dict[str, object]] = {}
        if topic is not None:
            if len(sensors) > 1:
                self._fault("topic", "", "it is of one sensor; name one with --sensor, and map the others later")
            mapped = sensors[0] if sensors else f"{self._base}sensor/{name}"
            if room is None and not sensors:
                sensors = [mapped]
            tables["stream"] = self._stream(template, topic, mapped, room)
        elif any(self._texts(one) for one in ("member", *template.words) if one in self._options):
            self._fault("topic", "", "--member and the words of a sensor need --topic")
        if command is not None and actuators:
            tables["command"] = self._command(command, actuators[0])
        elif command is None and (self.text("command-payload") or self._texts("command-value")):
            self._fault("command-topic", "", "--command-payload and --command-value need --command-topic")
        if coap is not None:
            try:
                uris.coap(coap)
            except PayloadError as error:
                self._fault("coap", "", str(error))
        states = [self._number(state) for state in template.states]
        choice = Choice(
            name=name,
            base_iri=self._base,
            actuator=actuator,
            actuators=actuators,
            delay=self._duration(template.delay[0]) if template.delay else "",
            states=(states[0], states[1]) if states else ("true", "false"),
            room=None if named else room,
            sensors=sensors,
            confirmed=self.text("unconfirmed") == "ignore",
            span=self._span("from", "until", self._texts("weekday")) if template.span else self._limit(),
            dimming=self._dimming() if template.lights else None,
        )
        return choice, tables

    def check_rules(self, name: str, tables: Mapping[str, Mapping[str, object]]) -> None:
        found = text_rules(mapping_text(tables, ""), f"mapping/{name}.toml", self._base)
        for fault in found.faults:
            self._fault("topic" if "stream" in tables else "command-topic", "", str(fault.error))

    def _check_options(self, name: str) -> None:
        try:
            check_name(name)
        except ConfigurationError:
            self._fault("name", name, "use letters, digits, - and _, at most 100 characters")
        for option in self._values:
            if option not in self._options:
                self._fault(str(option), "", f"there is no such option; use {', '.join(self._options)}")
        for option, wanted in self._options.items():
            for text in self._texts(option):
                try:
                    text.encode()
                except UnicodeEncodeError:  # other bytes of a command line are halves of pairs (PEP 383)
                    self._fault(option, "", "write UTF-8")
                if wanted.choices and text not in wanted.choices:
                    self._fault(option, text, f"use one of {', '.join(wanted.choices)}")
            if len(self._texts(option)) > 1 and not wanted.repeatable:
                self._fault(option, "", "it has one value")

    def _fault(self, option: str, value: str, problem: str, candidates: Sequence[NamedThing] = ()) -> None:
        self.faults.append(ValueFault(option, value, problem, candidates))

    # --- values ---

    def _texts(self, option: str) -> list[str]:
        if option not in self._options:
            return []
        if not self._is_given(option):
            default = self._options[option].default
            return [] if default is None else [default]
        given = self._values[option]
        return [str(one) for one in (given if isinstance(given, list) else [given])]

    def _is_given(self, option: str) -> bool:
        given = self._values.get(option)
        return not (given is None or given == "" or given == [])

    def text(self, option: str) -> str | None:
        return next(iter(self._texts(option)), None)

    def _names(self, option: str, *, new: bool) -> list[str]:
        """The IRIs of the names of an option. new: whether it may be one that is mapped here, and not known yet."""
        found = []
        for text in self._texts(option):
            kind = cast(Kind, self._options[option].type)
            thing = self._thing(option, kind, text, new=new)
            if thing is not None:
                found.append(thing.iri)
                self.resolved.setdefault(option, []).append((text, thing))
        return found

    def _thing(self, option: str, kind: Kind, text: str, *, new: bool) -> NamedThing | None:
        wanted = self._options[option]
        if self._directory is not None:
            try:
                return self._directory.resolve(text, kind, wanted.properties)
            except UnknownNameError as error:
                if not new or error.ambiguous:
                    self._fault(option, text, str(error), error.candidates)
                    return None
        address = self._path_iri(option, kind, text)
        return None if address is None else NamedThing(kind, text, address.removeprefix(self._base), address)

    def _path_iri(self, option: str, kind: Kind, text: str) -> str | None:
        """The IRI of a name: below the base IRI, in a folder unless it has one."""
        if kind == "room" and text.strip() and not _SCHEME.match(text) and "/" not in text:
            return f"{self._base}area/{segment(text)}"  # the area that devices of that name have
        if not _SCHEME.match(text):
            if not _PATH.fullmatch(text):
                self._fault(
                    option, text, "use letters, digits, - and _, or give an IRI; other names need a running gateway"
                )
                return None
            return f"{self._base}{text}" if "/" in text else f"{self._base}{_FOLDERS[kind]}/{text}"
        try:
            return iri(text)[1:-1]
        except ValueError as error:
            self._fault(option, text, str(error))
            return None

    def _number(self, option: str) -> str:
        text = self.text(option) or ""
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite() or abs(number.adjusted()) > _DIGITS_MAX or len(text) > 2 * _DIGITS_MAX:
            self._fault(option, text, "write a number such as 21 or 20.5")
            return "0"
        return f"{number:f}"

    def _duration(self, option: str) -> str:
        """ISO 8601 for 30s, 5min or 1h, or for what is ISO 8601 already."""
        text = self.text(option) or ""
        span = _SPAN.fullmatch(text.strip().lower())
        duration = f"PT{span[1]}{_UNITS[span[2]]}" if span else text
        try:
            delay_us(duration)
        except MalformedRequestError:
            self._fault(option, text, "write a time such as 30s, 5min, 1h or PT30S")
        return duration

    def _limit(self) -> DailySpan | None:
        """When sensors count; None: always."""
        given = [self.text(option) is not None for option in ("only-from", "only-until")]
        if any(given) and not all(given):
            self._fault("only-until" if given[0] else "only-from", "", "give both, or none")
        return self._span("only-from", "only-until", ()) if all(given) else None

    def _span(self, begin: str, end: str, weekdays: Sequence[str]) -> DailySpan:
        texts = []
        for option in (begin, end):
            text = self.text(option) or ""
            try:
                TimeOfDay.parse(text)
            except ValueError as error:
                self._fault(option, "", str(error))
            texts.append(text)
        return DailySpan(texts[0], texts[1], weekdays)

    def _dimming(self) -> Dimming | None:
        dimmers = self._names("dimmer", new=False)
        levels = self._number("dim-level"), self._number("level")
        span = self._span("dim-from", "dim-until", self._texts("weekday"))
        if not self._is_given("dimmer"):
            for option in self._options.values():
                if option.group == "brightness" and self._is_given(option.name):
                    self._fault(option.name, "", "it is of the brightness, and needs --dimmer")
        return Dimming(dimmers, levels, span) if dimmers else None

    # --- mapping rules ---

    def _stream(self, template: Template, topic: str, sensor: str, room: str | None) -> dict[str, object]:
        table: dict[str, object] = {"topic": topic}
        if (member := self.text("member")) is not None:
            table["member"] = member
        table |= {"property": template.properties[0], "payload": "boolean", "sensor": self._short(sensor)}
        for key, word in zip(("on", "off"), template.words, strict=True):
            if texts := self._texts(word):
                table[key] = texts
        if room is not None:
            table["feature"] = self._short(room)
        return table

    def _command(self, topic: str, actuator: str) -> dict[str, object]:
        table: dict[str, object] = {"actuator": self._short(actuator), "topic": topic}
        if (payload := self.text("command-payload")) is not None:
            table["payload"] = payload
        values = dict(pair.partition("=")[::2] for pair in self._texts("command-value"))
        if values:
            table["values"] = values
        return table

    def _short(self, address: str) -> str:
        """A path below the base IRI where the address is one, as mapping files have it."""
        path = address.removeprefix(self._base)
        return path if _PATH.fullmatch(path) else address
