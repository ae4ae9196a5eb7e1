"""`[[command]]` rules for resources of devices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from lamplighter.adapters.literals import FALSE, NIL, TRUE
from lamplighter.adapters.mapping import sparkplug, uris
from lamplighter.adapters.mapping.modbus_places import place_of
from lamplighter.adapters.mapping.modbus_rules import (
    RegisterWriting,
    check_other_keys,
    check_register_reads,
    register_form,
    register_writing,
    states_of_registers,
)
from lamplighter.adapters.mapping.patterns import NAME, TopicPattern
from lamplighter.adapters.mapping.payloads import AbsentError, Payload
from lamplighter.adapters.mapping.publishes import QUERY_CHARS_MAX
from lamplighter.adapters.mapping.reads import Read, ReadContext, ReadOrigin, usual_payload
from lamplighter.adapters.mapping.resources import (
    BodyFormats,
    accepted_formats,
    check_reading,
    forms,
    of_registers,
    resource_uri,
)
from lamplighter.adapters.mapping.rules import actuator_iri
from lamplighter.adapters.mapping.tables import (
    CONTENT_FORMATS,
    ResourceCommandTable,
    ResourceStateTable,
)
from lamplighter.adapters.mapping.templates import CAPTURE, segment
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, is_iri, is_literal, lexical, literal
from lamplighter.ontology.vocabulary import REPORTED_STATE

CAPTURE_CHARS_MAX = 1_024
"""Of a value in a URI."""
PAYLOAD_SLOT = re.compile(rf"\{{(?:json:({NAME})|({NAME}))\}}")
STATE_SLOTS = frozenset(("value", "json"))
TEMPLATE_FORMATS = ("text", "json", "cbor")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_FORM_NAMES = {number: name for name, number in CONTENT_FORMATS.items()}


class UriTemplate:
    """A URI with values of variables: ``coap://{host}/lamp/{n}``, or ``{name}``, a whole URI of CoAP. names: of the
    variables; kind: of the adapter that it is for; example: a URI in normal form that it may become."""

    def __init__(self, text: str, key: str, place: str) -> None:
        """Raises ConfigurationError."""
        self.names = frozenset(CAPTURE.findall(text))
        self._whole = CAPTURE.fullmatch(text) is not None
        self._fixed = self.example = "" if self.names else resource_uri(text, key, place)
        self.kind = uris.kind_of_uri(text)
        scheme, separator, rest = text.partition("://")
        self._begin = scheme + separator
        self._head, _, self._rest = rest.partition("/")
        if self._fixed or self._whole:
            return
        if scheme not in uris.SCHEMES or not separator or "?" in self._head:
            raise ConfigurationError(
                f"{place}: {key} = {text!r}: write coap://{{host}}/lamp/{{n}}, or one {{name}} for the whole URI"
            )
        self.example = resource_uri(self._fill(dict.fromkeys(self.names, "1")), key, place)

    def uri(self, captures: Mapping[str, str]) -> str:
        """The URI in normal form. captures: the value of each variable. Raises PayloadError."""
        if self._fixed:
            return self._fixed
        for name in self.names:
            if not 0 < len(captures[name]) <= CAPTURE_CHARS_MAX:
                raise PayloadError(f"?{name} of the resource does not have 1 to {CAPTURE_CHARS_MAX} characters")
        found = uris.normal(captures[next(iter(self.names))] if self._whole else self._fill(captures))
        if uris.kind_of_uri(found) != self.kind:
            raise PayloadError(f"only coap:// URIs are whole values of a variable: {found}")
        return found

    def _fill(self, captures: Mapping[str, str]) -> str:
        def host(found: re.Match[str]) -> str:
            if not _AUTHORITY.fullmatch(captures[found[1]]):
                raise PayloadError(f"?{found[1]} of the resource is no host")
            return captures[found[1]]

        def part(found: re.Match[str]) -> str:
            if captures[found[1]] in (".", ".."):
                raise PayloadError(f"?{found[1]} of the resource is '.' or '..'")
            return segment(captures[found[1]])

        return f"{self._begin}{CAPTURE.sub(host, self._head)}/{CAPTURE.sub(part, self._rest)}"


@dataclass(frozen=True)
class StateRule:
    """How the state that a device reports is read.

    resource: None: that of the command; table: what it was made of; accepted: the content formats that it reads;
    observe: whether it is observed; states: text of a device -> state, where it is not the same.
    """

    table: ResourceStateTable
    resource: UriTemplate | None
    observe: str
    accepted: BodyFormats
    read: Read
    states: Mapping[str, Term]

    def value(self, body: Payload, resource: str, received: datetime) -> Term | None:
        """The state in a body; None if the body has none, and may do so. resource: its URI. Raises PayloadError."""
        try:
            found = self._read_state(body, resource, received)
        except AbsentError:
            if self.read.optional:
                return None
            raise
        if found.endswith(NIL):
            return None
        return self.states.get(lexical(found), found) if is_literal(found) else found

    def _read_state(self, body: Payload, resource: str, received: datetime) -> Term:
        if not self.read.many:
            return self.read.term(body)
        context = ReadContext(uris.name(resource), {}, received, True, sparkplug.Births())
        terms = [term for _, term in self.read.terms(body, context)]
        if not terms:
            raise AbsentError("the payload has no such record")
        if len(terms) > 1:
            raise PayloadError(f"the payload has {len(terms)} values; choose one by member in state")
        if isinstance(terms[0], PayloadError):
            raise terms[0]
        return terms[0]


@dataclass(frozen=True)
class ResourceCommandRule:
    """A checked `[[command]]` table with `resource`.

    actuator: full IRI; None: the rows of the query have it, or the actuator points to the rule. prefixes: of its file.
    select: the query with declarations of the prefixes. state_variable: of the query. content_format: number, or None
    for a request without one; form: its name, "text" if it has none. payload: template. names: variables of the
    templates. state: None: it is never read. registers: how a state is written to a Modbus device. condition: as for
    `CommandRule`.
    """

    table: ResourceCommandTable
    place: str
    actuator: str | None
    prefixes: Mapping[str, str]
    base_iri: str
    resource: UriTemplate = field(compare=False)  # as `state`, it is made of the table
    select: str | None
    state_variable: str
    content_format: int | None
    form: str
    idempotent: bool
    payload: str
    names: frozenset[str]
    state: StateRule | None = field(compare=False)
    registers: RegisterWriting | None = field(default=None, compare=False)
    condition: str = ""

    @property
    def kind(self) -> Kind:
        """Of the adapter that it is for."""
        return self.resource.kind

    @property
    def variables(self) -> frozenset[str]:
        """Those that the query has to select."""
        return frozenset() if self.select is None else self.names | {"actuator", self.state_variable}

    def captures(self, row: Mapping[str, Term]) -> dict[str, str]:
        """The values of the variables of the templates in a row of the query. Raises PayloadError."""
        found = {}
        for name in sorted(self.names):
            term = row.get(name)
            if term is None:
                raise PayloadError(f"?{name} is unbound")
            if not is_iri(term) and not is_literal(term):
                raise PayloadError(f"?{name} is neither an IRI nor a literal")
            found[name] = lexical(term).removeprefix(self.base_iri) if is_iri(term) else lexical(term)
        return found

    def uri(self, captures: Mapping[str, str]) -> str:
        """What the state is sent to. Raises PayloadError."""
        return self.resource.uri(captures)

    def state_uri(self, captures: Mapping[str, str]) -> str | None:
        """Where the state is read; None: nowhere. Raises PayloadError."""
        if self.state is None:
            return None
        return (self.state.resource or self.resource).uri(captures)

    def epoch_uri(self, captures: Mapping[str, str]) -> str | None:
        """The resource whose value changes at each boot. Raises PayloadError."""
        if self.table.epoch is None:
            return None
        return uris.beside(self.uri(captures), self.table.epoch)


def resource_command(
    table: ResourceCommandTable,
    *,
    prefixes: Mapping[str, str],
    base_iri: str,
    place: str,
    condition: str = "",
    state_variable: str = "state",
) -> ResourceCommandRule:
    """state_variable: of the query. Raises ConfigurationError, which names rule, key and cure."""

    def configuration_error(key: str, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{place}: {key}: {reason}")

    actuator = actuator_iri(table, prefixes, base_iri, place)
    select = None if table.query is None else _select(table.query, actuator, prefixes, configuration_error)
    if select is not None and table.by_hand == "follow":
        raise configuration_error("by_hand", "the query says what is desired; write hold, or actuator instead of query")
    resource = UriTemplate(table.resource, "resource", place)
    number = (
        CONTENT_FORMATS.get(table.content_format) if isinstance(table.content_format, str) else table.content_format
    )
    form = "text" if number is None else _FORM_NAMES.get(number, "text")
    if form.startswith("lwm2m") and resource.kind != "coap":
        raise configuration_error("content_format", f"{form} is for coap:// resources; write json, or another one")
    if table.device is not None and resource.kind != "coap":
        raise configuration_error("device", "is for coap:// resources; leave it out, the address says which it is")
    registers = None
    if resource.kind == "modbus":
        registers = register_writing(table, place_of(resource.example), place)
    else:
        check_other_keys(table, place)
    state = _state_rule(table, form, resource, registers, prefixes=prefixes, base_iri=base_iri, place=place)
    in_uris = resource.names | (state.resource.names if state is not None and state.resource is not None else set())
    if in_uris and select is None:
        raise configuration_error("resource", f"{{{min(in_uris)}}} is a variable; write query, or the URI without it")
    payload = _payload(table, form, configuration_error)
    names = in_uris
    if select is not None and form in TEMPLATE_FORMATS:
        names |= {one or other for one, other in PAYLOAD_SLOT.findall(payload)} - STATE_SLOTS
    if table.epoch is not None:
        resource_uri(f"coap://host/{table.epoch.removeprefix('/')}", "epoch", place)
    return ResourceCommandRule(
        table,
        place,
        actuator,
        prefixes,
        base_iri,
        resource,
        select,
        state_variable,
        number,
        form,
        table.method == "PUT" if table.idempotent is None else table.idempotent,
        payload,
        frozenset(names),
        state,
        registers,
        condition,
    )


def _select(query: str, actuator: str | None, prefixes: Mapping[str, str], refused: Any) -> str:
    """The query of a rule with declarations of the prefixes. Raises ConfigurationError."""
    if actuator is not None:
        raise refused("query", "its rows have the actuators; leave out actuator or query")
    if len(query) > QUERY_CHARS_MAX:
        raise refused("query", f"write at most {QUERY_CHARS_MAX} characters")
    return "".join(f"PREFIX {name}: <{iri}> " for name, iri in prefixes.items()) + query


def _number(accept: str | int) -> int:
    return CONTENT_FORMATS[accept] if isinstance(accept, str) else accept


def _payload(table: ResourceCommandTable, form: str, refused: Any) -> str:
    """The template of the payload. Raises ConfigurationError."""
    if table.name and not form.startswith("senml"):
        raise refused("name", "is for the content formats senml+json and senml+cbor")
    if form not in TEMPLATE_FORMATS:
        if table.payload is not None:
            raise refused("payload", f"{form} has no template; leave it out")
        if form.startswith("lwm2m"):
            last = table.resource.partition("?")[0].rstrip("/").rpartition("/")[2]
            if not CAPTURE.fullmatch(last) and not re.fullmatch(r"[0-9]{1,5}", last):
                raise refused("resource", f"the path of {form} ends in the number of a resource, such as 3311/0/5850")
        return ""
    payload = table.payload if table.payload is not None else "{value}" if form == "text" else "{json}"
    if form != "text":
        try:
            json.loads(PAYLOAD_SLOT.sub("1", payload))
        except (ValueError, RecursionError):
            raise refused("payload", "the template is not JSON when its parts are filled with 1") from None
    return payload


def _state_rule(
    table: ResourceCommandTable,
    form: str,
    written: UriTemplate,
    writing: RegisterWriting | None,
    *,
    prefixes: Any,
    base_iri: str,
    place: str,
) -> StateRule | None:
    """How the state is read, with what the command says already. Raises ConfigurationError."""
    if table.state is False:
        return None
    if table.state is True:
        raise ConfigurationError(f"{place}: state: write a table, or false")
    state, here = table.state or ResourceStateTable(), f"{place} state"
    resource = None if state.resource is None else UriTemplate(state.resource, "state resource", place)
    if resource is not None and resource.kind != written.kind:
        raise ConfigurationError(f"{here}: resource: {state.resource!r} is of another protocol than the command")
    untyped = state.payload is None and usual_payload(state) is None
    keys: dict[str, Any] = {"property": state.property or REPORTED_STATE, "optional": state.optional is not False}

    def read_of(state: ResourceStateTable) -> Read:
        check_reading(state, written.kind, here)
        origin = ReadOrigin(written.kind, untyped=untyped)
        pattern = TopicPattern("state")
        read = Read(state, pattern, prefixes=prefixes, base_iri=base_iri, place=here, item=False, origin=origin)
        if read.many and not read.records:
            raise ConfigurationError(f"{here}: member: a state is one value; write a path without captures")
        return read

    if writing is not None:
        return _register_state(
            table, msgspec.structs.replace(state, **keys), resource or written, writing, read_of, here
        )
    if untyped:
        asked = form if state.accept is None else _FORM_NAMES.get(_number(state.accept), "")
        keys["payload"] = "text" if asked in ("", *TEMPLATE_FORMATS) else asked.partition("+")[0]
    state = msgspec.structs.replace(state, **keys)
    read = read_of(state)
    accept: str | int | None = state.accept
    if accept is None and form != "text" and form in forms(read):
        accept = form
    back = {text: {"true": TRUE, "false": FALSE}.get(name) or literal(name) for name, text in table.values.items()}
    return StateRule(
        state,
        resource,
        "never" if table.observe == "never" else state.observe,
        accepted_formats((read,), accept, here),
        read,
        back if untyped else {},
    )


def _register_state(
    table: ResourceCommandTable,
    state: ResourceStateTable,
    resource: UriTemplate,
    writing: RegisterWriting,
    read_of: Callable[[ResourceStateTable], Read],
    place: str,
) -> StateRule:
    """How the state is read from registers: if the table of the state names none, those that the command writes."""
    modbus, elsewhere = place_of(resource.example), state.resource is not None
    registers = register_form(state, modbus, place, None if elsewhere else writing.form)
    untyped = state.payload is None and usual_payload(state) is None
    keys: dict[str, Any] = {"payload": registers.kind} if untyped else {}
    if not elsewhere:
        keys |= {key: getattr(table, key) for key in ("scale", "offset") if getattr(state, key) is None}
    state = msgspec.structs.replace(state, **keys)
    read = read_of(state)
    check_register_reads((read,), registers, modbus.quantity)
    back: Mapping[str, Term] = {}
    if untyped and not elsewhere and registers == writing.form:
        back = states_of_registers(table.values, writing, modbus, read, place)
    elif untyped:
        back = {text: {"true": TRUE, "false": FALSE}.get(name) or literal(name) for name, text in table.values.items()}
    return StateRule(state, resource if elsewhere else None, "never", of_registers(registers), read, back)
