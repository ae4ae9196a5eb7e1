"""A Thing Description that a client submits -> the record of a device, with its rules (`adapters.devices.draft`).

The document is hostile input, and plain JSON: no context is loaded or processed. Each affordance is read by the first
of its forms that an adapter speaks: MQTT, CoAP, HTTP or Modbus. An affordance without such a form is left out, with
the reason; a description without any that can be used is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from lamplighter.adapters.devices.device import Device, Table
from lamplighter.adapters.devices.draft import Payload, ThingDraft, number, own_kind, plain
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.specs import KINDS as ADAPTER_KINDS
from lamplighter.engine.terms import iri, literal
from lamplighter.gateway.gates.wot.description import CONTEXT
from lamplighter.gateway.gates.wot.forms import (
    DescribedThing,
    FormPlace,
    FormReader,
    UnusableError,
    broker_of,
    coap_place,
    http_place,
    mqtt_place,
)
from lamplighter.gateway.gates.wot.forms_modbus import MODBUS_SCHEME, modbus_place
from lamplighter.gateway.gates.wot.problems import Fault, InvalidDescriptionError
from lamplighter.gateway.settings import Settings
from lamplighter.ontology.vocabulary import UNIT

BYTES_MAX = 128 * 1024  # of a Thing Description
DEPTH_MAX = 32
FAULTS_MAX = 20
FORMS_MAX = 20  # of one affordance; further ones are not read
AFFORDANCES_MAX = 100
ID_CHARS_MAX = 300
_CONTEXTS = (CONTEXT, "https://www.w3.org/2019/wot/td/v1", "http://www.w3.org/ns/td")
_ID = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`\x00-\x20\x7f-\x9f]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_QUDT = re.compile(re.escape(UNIT) + r"([A-Za-z0-9_-]{1,28})")
_KINDS: Mapping[str, Payload] = {"number": "number", "integer": "number", "boolean": "boolean", "string": "text"}
# The forms of resources by their scheme.
_READERS: Mapping[str, FormReader] = {
    "coap": coap_place,
    "http": http_place,
    "https": http_place,
    MODBUS_SCHEME: modbus_place,
}
_JSON_TEXT = '^"(.*)"$'  # a JSON string that needs no escapes: its text


class Submitted(NamedTuple):
    """A description that can be used. id: "" for an anonymous one. document: as it was sent."""

    id: str
    document: dict[str, Any]


@dataclass(frozen=True)
class Adopted:
    """The device of a description; what of it is not used."""

    device: Device
    warnings: tuple[str, ...]


def parse_description(body: bytes) -> Submitted:
    """Checks the structure (TD 1.1, section 5.3). Raises InvalidDescriptionError."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidDescriptionError([Fault("(root)", f"not JSON: {error}")]) from error
    if not isinstance(document, dict):
        raise InvalidDescriptionError([Fault("(root)", "send a JSON object, the Thing Description")])
    if _depth_over(document, DEPTH_MAX):
        raise InvalidDescriptionError([Fault("(root)", f"nested deeper than {DEPTH_MAX} levels; make it flatter")])
    # The generator stops at the most: a hostile description could have millions.
    faults = [fault for fault, _ in zip(_structure(document), range(FAULTS_MAX), strict=False)]
    if faults:
        raise InvalidDescriptionError(faults)
    return Submitted(document.get("id", ""), document)


def _depth_over(value: object, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    members = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_depth_over(one, left - 1) for one in members)


def _structure(document: dict[str, Any]) -> Iterator[Fault]:
    context = document.get("@context")
    named = context if isinstance(context, list) else [context]
    if not any(one in _CONTEXTS for one in named[:2] if isinstance(one, str)):
        yield Fault("@context", f"write {CONTEXT!r}, alone or first in a list")
    identifier = document.get("id")
    if identifier is not None and not (
        isinstance(identifier, str) and len(identifier) <= ID_CHARS_MAX and _ID.fullmatch(identifier)
    ):
        yield Fault("id", f"write an absolute IRI of at most {ID_CHARS_MAX} characters, or leave it out")
    if not isinstance(document.get("title"), str) or not plain(document["title"]):
        yield Fault("title", "write a text, the name of the thing")
    base = document.get("base", "")
    if not isinstance(base, str):
        yield Fault("base", "write a URI, or leave it out")
    definitions = document.get("securityDefinitions")
    if not isinstance(definitions, dict) or not definitions:
        yield Fault("securityDefinitions", 'write an object, such as {"nosec_sc": {"scheme": "nosec"}}')
        definitions = {}
    for name, one in definitions.items():
        if not isinstance(one, dict) or not isinstance(one.get("scheme"), str):
            yield Fault(f"securityDefinitions.{_plain_name(name)}", 'write an object with a scheme, such as "nosec"')
    yield from _security(document.get("security"), definitions, "security")
    for part in ("properties", "actions", "events"):
        found = document.get(part, {})
        if not isinstance(found, dict):
            yield Fault(part, "write an object with a member for each affordance")
        elif len(found) > AFFORDANCES_MAX:
            yield Fault(part, f"has more than {AFFORDANCES_MAX} affordances; divide the thing")
        else:
            for name, one in found.items():
                yield from _affordance(one, definitions, f"{part}.{_plain_name(name)}")


def _security(value: object, definitions: Mapping[str, Any], field: str) -> Iterator[Fault]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in definitions for name in names):
        yield Fault(field, "write the name of one of the securityDefinitions, or a list of such names")


def _affordance(one: object, definitions: Mapping[str, Any], field: str) -> Iterator[Fault]:
    if not isinstance(one, dict):
        yield Fault(field, "write an object")
        return
    forms = one.get("forms")
    if not isinstance(forms, list) or not forms:
        yield Fault(f"{field}.forms", "write a list of forms, at least one")
        return
    for number_, form in enumerate(forms[:FORMS_MAX]):
        if not isinstance(form, dict):
            yield Fault(f"{field}.forms.{number_}", "write an object with href")
        elif not isinstance(form.get("href"), str) or not form["href"]:
            yield Fault(f"{field}.forms.{number_}.href", "write a URI")
        elif "security" in form:
            yield from _security(form["security"], definitions, f"{field}.forms.{number_}.security")


def _plain_name(name: str) -> str:
    return plain(name, 60) or "?"


def device_of(found: Submitted, identifier: str, settings: Settings, registry: Registry) -> Adopted:
    """The device that a description is of. identifier: the id that it has or was given; settings, registry: of the
    gateway. Raises InvalidDescriptionError if no affordance can be used, or if an adapter would not take the rules."""
    adopted = _Reading(DescribedThing(found.document, settings), identifier).device()
    rules = registry.rules(adopted.device)
    rows = [(iri(registry.base_iri + path), literal(json.dumps(rule))) for path, rule in rules.items()]
    for kind in ADAPTER_KINDS:
        of_kind = DatasetRules(registry.base_iri, kind=kind)
        of_kind.change(rows, ())
        # The adapters check the rules as they would those of the dataset, so a description cannot bring in others.
        problems = of_kind.problems()
        if problems:
            raise InvalidDescriptionError([Fault("(root)", plain(text, 400)) for text in problems.values()])
    return adopted


_UNDERSTOOD = frozenset((
    "@type", "enum", "forms", "input", "maximum", "minimum", "properties", "readOnly", "title", "type", "unit",
    "writeOnly",
))  # fmt: skip
_HARMLESS = frozenset(
    ("comment", "description", "descriptions", "idempotent", "observable", "required", "safe", "synchronous", "titles")
)
"""Keys of affordances and data schemas that say nothing of values, states and commands."""


class _Reading:
    def __init__(self, thing: DescribedThing, identifier: str) -> None:
        self._thing = thing
        self._document = thing.document
        self._broker = self._used_broker()
        self._draft = ThingDraft(identifier, broker=self._broker, name=thing.document["title"])
        self._faults: list[Fault] = []

    def device(self) -> Adopted:
        actions = self._document.get("actions", {})
        for name, one in self._document.get("properties", {}).items():
            field = f"properties.{_plain_name(name)}"
            try:
                self._property(name, one, field)
                self._add_omissions(one, field)
            except ValueError as error:
                self._add_fault(field, error)
        for name, one in actions.items():
            field = f"actions.{_plain_name(name)}"
            try:
                self._action(name, one, field)
                self._add_omissions(one, field)
            except ValueError as error:
                self._add_fault(field, error)
        for name in self._document.get("events", {}):
            self._faults.append(Fault(f"events.{_plain_name(name)}", "events are not read; describe a property"))
        device = self._draft.device()
        self._faults += [Fault("(root)", one.reason) for one in self._draft.problems]
        if not device.sensors and not device.actuators:
            nothing = Fault("(root)", "there is no property or action that the gateway can use")
            raise InvalidDescriptionError((self._faults or [nothing])[:FAULTS_MAX])
        warnings = tuple(f"{one.field}: {one.description}" for one in self._faults[:FAULTS_MAX])
        return Adopted(device, warnings)

    def _add_fault(self, field: str, error: ValueError) -> None:
        self._faults.append(Fault(error.field if isinstance(error, UnusableError) else field, plain(str(error), 400)))

    def _add_omissions(self, one: Table, field: str) -> None:
        """Notes the keys of an affordance that are not used, and of the data schemas in it."""
        names = sorted(map(_plain_name, one.keys() - _UNDERSTOOD - _HARMLESS))
        if names:
            self._faults.append(Fault(field, f"not used: {plain(', '.join(names), 300)}"))
        members = one.get("properties")
        schemas = {f"{field}.input": one.get("input")}
        if isinstance(members, dict):
            schemas |= {f"{field}.properties.{_plain_name(name)}": schema for name, schema in members.items()}
        for at, schema in list(schemas.items())[:AFFORDANCES_MAX]:
            if isinstance(schema, dict):
                self._add_omissions(schema, at)

    # --- affordances ---

    def _property(self, name: str, one: Table, field: str) -> None:
        readable = one.get("writeOnly") is not True
        read = self._form(one, one, field, ("observeproperty", "readproperty")) if readable else None
        write = None
        if one.get("readOnly") is not True:
            write = self._form(one, one, field, ("writeproperty",))
        if read is None and write is None:
            raise UnusableError(f"{field}.forms", "no form reads or writes a value; see op")
        # An object as a state would have to be written as a whole; its members are read one by one.
        if write is not None and one.get("type") != "object":
            self._actuator(name, one, one, write, read, field)
        elif read is not None:
            self._sensors(name, one, read, field)

    def _action(self, name: str, one: Table, field: str) -> None:
        schema = one.get("input")
        if not isinstance(schema, dict):
            raise UnusableError(f"{field}.input", "an action without input has no state to keep; write its data schema")
        place = self._form(one, schema, field, ("invokeaction",))
        if place is None:
            raise UnusableError(f"{field}.forms", "no form invokes the action; see op")
        # What an action has written to registers is read again there.
        self._actuator(name, one, schema, place, place if place.kind == "modbus" else None, field)

    def _sensors(self, name: str, one: Table, place: FormPlace, field: str) -> None:
        leaves = list(_leaves(one, (), field))
        if not leaves:
            raise UnusableError(f"{field}.type", "write number, integer, boolean or string, or an object of such")
        for path, schema, at in leaves:
            payload = _payload(schema, at)
            key = ".".join((name, *path))
            more = dict(place.reading)
            if place.kind == "mqtt" and payload == "text" and place.media == "json" and not path:
                more["pattern"] = _JSON_TEXT
            if place.media == "text" and path:
                raise UnusableError(f"{at}.type", "text/plain has no members; write contentType application/json")
            unit = schema.get("unit")
            known = _QUDT.fullmatch(unit) if isinstance(unit, str) else None
            self._draft.sensor(
                key,
                _kind(path[-1] if path else name, schema, payload),
                place.text,
                payload,
                label=schema.get("title") or key,
                member=path,
                on=more.pop("on", ("true",)),
                off=more.pop("off", ("false",)),
                unit=None if known is not None else unit,
                instead={} if known is None else {"unit": f"unit:{known[1]}"},
                **more,
            )

    def _actuator(
        self, name: str, one: Table, schema: Table, place: FormPlace, read: FormPlace | None, field: str
    ) -> None:
        payload = _payload(schema, field)
        values = None
        if payload == "boolean":
            values = {"true": "true", "false": "false"}
        elif payload == "text" and isinstance(schema.get("enum"), list):
            values = {word: word for word in schema["enum"] if isinstance(word, str)}
        template = "{json}" if payload == "text" and place.media != "text" else "{value}"
        kind = _kind(name, one, payload)
        message: Table = ({} if place.kind == "modbus" else {"payload": template}) | place.message
        state = None
        if read is not None and read.kind == place.kind != "coap":
            state = self._draft.state_table(name, kind, read.text, payload, on=["true"], off=["false"]) | read.reading
            if place.kind == "mqtt" and payload == "text" and read.media == "json":
                state = state | {"pattern": _JSON_TEXT}
        elif place.kind not in ("mqtt", "coap"):  # CoAP's reads the resource of the command
            message["state"] = False
        self._draft.thing_actuator(
            name,
            kind,
            place.text,
            message,
            label=one.get("title") or name,
            values=values,
            state=state,
            minimum=number(schema.get("minimum")),
            maximum=number(schema.get("maximum")),
        )

    # --- forms ---

    def _form(self, one: Table, schema: Table, field: str, ops: Sequence[str]) -> FormPlace | None:
        """The first form for one of the operations that can be used; None if no form has such an operation. schema: of
        the value. Raises UnusableError with the reason of the first one that cannot."""
        reason: UnusableError | None = None
        for number_, form in enumerate(one["forms"][:FORMS_MAX]):
            at = f"{field}.forms.{number_}"
            if not _operations(form, field) & set(ops):
                continue
            try:
                return self._place(form, schema, at, ops)
            except UnusableError as error:
                reason = reason or error
        if reason is not None:
            raise reason
        return None

    def _place(self, form: Table, schema: Table, at: str, ops: Sequence[str]) -> FormPlace:
        href = self._absolute(form["href"])
        scheme = href.partition(":")[0].lower()
        if scheme in ("mqtt", "mqtts"):
            return mqtt_place(self._thing, form, href, at, ops, used=self._broker)
        reader = _READERS.get(scheme)
        if reader is None:
            known = ", ".join(f"{one}://" for one in ("mqtt", *_READERS))
            raise UnusableError(f"{at}.href", f"the scheme {plain(scheme, 20)} is unknown; write one of {known}")
        return reader(self._thing, form, schema, href, at, ops)

    def _absolute(self, href: str) -> str:
        base = self._document.get("base", "")
        if _SCHEME.match(href) or not base:
            return href
        scheme, _, rest = base.partition("://")
        authority, _, path = rest.partition("/")
        if href.startswith("/"):
            return f"{scheme}://{authority}{href}"
        folder = path.rpartition("/")[0]
        return f"{scheme}://{authority}/{folder + '/' if folder else ''}{href}"

    def _used_broker(self) -> str:
        """The broker of the first form that names one of ours; "" if none does."""
        brokers = self._thing.settings.mqtt.all_brokers()
        for part in ("properties", "actions"):
            for one in self._document.get(part, {}).values():
                for form in one["forms"][:FORMS_MAX]:
                    name = broker_of(self._absolute(form["href"]), brokers)
                    if name is not None:
                        return name
        return ""


def _operations(form: Mapping[str, Any], field: str) -> set[str]:
    """Of a form; without op, those that TD 1.1 gives it (section 5.4)."""
    op = form.get("op")
    if op is None:
        return {"readproperty", "writeproperty"} if field.startswith("properties") else {"invokeaction"}
    return {op} if isinstance(op, str) else set(_texts(op))


def _texts(value: object) -> list[str]:
    return [one for one in value[:20] if isinstance(one, str)] if isinstance(value, list) else []


def _payload(schema: Mapping[str, Any], field: str) -> Payload:
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnusableError(f"{field}.type", "write number, integer, boolean or string")
    return _KINDS[kind]


def _leaves(
    schema: Mapping[str, Any], path: tuple[str, ...], field: str
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], str]]:
    """The single values of a data schema, with their JSON paths."""
    if schema.get("type") != "object":
        yield path, schema, field
        return
    members = schema.get("properties")
    if isinstance(members, dict):
        for name, one in list(members.items())[:AFFORDANCES_MAX]:
            if isinstance(one, dict):
                yield from _leaves(one, (*path, name), f"{field}.properties.{_plain_name(name)}")


def _kind(name: str, schema: Mapping[str, Any], payload: Payload) -> str:
    """The property that the description or the name of the affordance means, or a new one. Raises ValueError."""
    types = schema.get("@type")
    named = [types] if isinstance(types, str) else _texts(types)
    for one in [*(one.removeprefix("gateway:") for one in named if one.startswith("gateway:")), name]:
        known = KINDS.get(one)
        if known is not None and known.value in (payload, "any"):
            return known.iri
    return own_kind(name)
