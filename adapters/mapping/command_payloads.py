"""The states of actuators -> payloads, by `[[command]]` rules. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor
from types import MappingProxyType

import msgspec

from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.mapping import cbor, jinja, lwm2m, senml, uris
from lamplighter.adapters.mapping.modbus_places import place_of
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX, Found, Number
from lamplighter.adapters.mapping.publishes import TERM_CHARS_MAX, encode_text, fill_template, json_value
from lamplighter.adapters.mapping.resource_commands import (
    PAYLOAD_SLOT,
    STATE_SLOTS,
    TEMPLATE_FORMATS,
    ResourceCommandRule,
)
from lamplighter.adapters.mapping.rules import CommandRule
from lamplighter.adapters.mapping.tables import CommandBase, CommandTable
from lamplighter.adapters.mapping.values import NUMBER_CHARS_MAX
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, lexical

STATE_CHARS_SAID, VALUES_CHARS_SAID = 50, 500
"""In reasons, which go into the log and the dataset each time."""
NO_CAPTURES: Mapping[str, str] = MappingProxyType({})
_BOOLEAN = f"^^<{XSD}boolean>"
_SLOT = re.compile(r"\{(value|json)\}")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,63})(?:\.[0-9]{1,64})?(?:[eE][+-]?[0-9]{1,3})?")
_HEXADECIMAL = re.compile(r"#([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})")
_TOO_LONG = f"the message would have more than {PAYLOAD_BYTES_MAX} bytes"
_JSON = msgspec.json.Decoder(float_hook=Number)


def command_payload(rule: CommandRule, state: Term) -> bytes:
    """The message for a state. Raises PayloadError, whose reason is for people."""
    text, as_json = device_texts(rule.table, state)
    if rule.table.template is not None:
        return encode_text(command_text(rule.table.template, text))
    words = {"json": as_json, "value": text}
    template = rule.table.payload
    return encode_text(fill_template(_SLOT, template, lambda slot: words[slot[1]], PAYLOAD_BYTES_MAX, _TOO_LONG))


def device_texts(table: CommandTable, state: Term) -> tuple[str, str]:
    """A state as the device counts it, as text and as JSON. Raises PayloadError."""
    text, as_json = state_texts(table, state)
    if table.scale is not None or table.offset is not None:
        text = as_json = _device_number(text, table)
    return text, as_json


def command_text(template: str, text: str) -> str:
    """What a command template makes of a state. Raises PayloadError."""
    found = _parse_scalar(text)
    value = float(found) if isinstance(found, Number) else found
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    names = dict.fromkeys(jinja.COMMAND_NAMES, value)
    if color := _HEXADECIMAL.fullmatch(text):
        names |= zip(jinja.COLORS, (int(component, 16) for component in color.groups()), strict=True)
    return jinja.command_template(template).text(names)


def is_same_command(table: CommandBase, said: Callable[[Term], object], one: Term, other: Term) -> bool:
    """Whether a rule says the same of two states, because the device counts in coarser steps. said: gives what of a
    message depends on the state; the rest of it, such as TOGGLE alone, tells no states apart."""
    computed = any(getattr(table, key, None) is not None for key in ("scale", "offset", "template"))
    if not computed and not table.values:
        return False
    try:
        return said(one) == said(other)
    except PayloadError:
        return False


def request_payload(
    rule: ResourceCommandRule, state: Term, resource: str, captures: Mapping[str, str] = NO_CAPTURES
) -> bytes:
    """The body of the request for a state. resource: its URI; captures: see `ResourceCommandRule`. Raises
    PayloadError, whose reason is for people."""
    text, as_json = state_texts(rule.table, state)
    if rule.registers is not None:
        return rule.registers.body(text, place_of(resource))
    if rule.form not in TEMPLATE_FORMATS:
        boolean = state.endswith(_BOOLEAN) and not rule.table.values
        value = (
            text in ("true", "1")
            if boolean
            else _parse_scalar(text)
            if rule.table.values or state.endswith(NUMBERS)
            else text
        )
        if rule.form.startswith("senml"):
            return _short(senml.encode(rule.table.name, value, rule.form))
        return _short(lwm2m.encode(rule.form, uris.name(resource), value))

    def part(slot: re.Match[str]) -> str:
        in_json, name = slot[1], slot[2]
        if name in STATE_SLOTS:
            return text if name == "value" else as_json
        found = captures.get(in_json or name)
        return slot[0] if found is None else found if in_json is None else _json_text(found)

    body = encode_text(fill_template(PAYLOAD_SLOT, rule.payload, part, PAYLOAD_BYTES_MAX, _TOO_LONG))
    if rule.form == "text":
        return body
    try:
        document = _JSON.decode(body)
    except (ValueError, RecursionError) as error:
        raise PayloadError("the payload would not be JSON; write {json} or {json:name} for texts") from error
    return body if rule.form == "json" else _short(cbor.encode(document))


def _short(body: bytes) -> bytes:
    if len(body) > PAYLOAD_BYTES_MAX:
        raise PayloadError(_TOO_LONG)
    return body


def state_texts(table: CommandBase, state: Term) -> tuple[str, str]:
    """A state that the rule takes, as text and as JSON. Raises PayloadError."""
    if len(state) > TERM_CHARS_MAX:
        raise PayloadError(_TOO_LONG)
    text, as_json = lexical(state), json_value(state)
    if table.values:
        if text not in table.values:
            said, values = _json_text(text[:STATE_CHARS_SAID]), ", ".join(table.values)[:VALUES_CHARS_SAID]
            raise PayloadError(f"the state {said} is not one of the rule's values: {values}")
        text = table.values[text]
        as_json = _json_text(text)
    if table.minimum is not None or table.maximum is not None:
        _check_bounds(text, table.minimum, table.maximum)
    return text, as_json


def _device_number(text: str, table: CommandTable) -> str:
    """The whole number that the device makes the state of. Raises PayloadError."""
    if len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
        raise PayloadError("the state is not a number, and the rule has a scale or an offset")
    # Exact: a float may be on the other side of a half.
    number = (Fraction(text) - Fraction(table.offset or 0)) / Fraction(1 if table.scale is None else table.scale)
    return str(floor(number + Fraction(1, 2)))


def _parse_scalar(text: str) -> Found:
    """A text as the boolean or number that it reads as."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return Number(text) if _NUMBER.fullmatch(text) else text


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check_bounds(text: str, minimum: float | None, maximum: float | None) -> None:
    try:
        number = float(text)
    except ValueError:
        raise PayloadError("the state is not a number, and the rule has bounds") from None
    low, high = float("-inf") if minimum is None else minimum, float("inf") if maximum is None else maximum
    if not low <= number <= high:
        raise PayloadError(f"the state is not between {low:g} and {high:g}")
