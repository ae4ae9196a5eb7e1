"""States of actuators -> the messages of one MQTT command. Pure.

A lamp takes several states at once: as one JSON object, as one text with all its parts, or as messages to several
topics in the order that it needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from lamplighter.adapters.mapping.command_payloads import command_payload, device_texts, state_texts
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mapping.publishes import encode_text, fill_template
from lamplighter.adapters.mapping.rules import CommandRule
from lamplighter.adapters.mapping.tables import CommandTable
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import Term, lexical

DEPTH_MAX = 8
_SLOT = re.compile(r"\{([a-z_]+)\}")
_HEXADECIMAL = re.compile(r"#([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})")
_DECIMAL = re.compile(r"([0-9]{1,3}),([0-9]{1,3}),([0-9]{1,3})")
_TOO_LONG = f"the message would have more than {PAYLOAD_BYTES_MAX} bytes"
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CommandMessage(NamedTuple):
    """table: of the rule, for QoS and retain."""

    topic: str
    payload: bytes
    table: CommandTable


def command_messages(together: Sequence[tuple[CommandRule, Term]]) -> list[CommandMessage]:
    """The messages of a command. together: rules and states, in the order of the device; several are of one lamp.

    Raises PayloadError, whose reason is for people.
    """
    if len(together) == 1 and not _pieces(together):
        [(rule, state)] = together
        return [CommandMessage(rule.table.topic, _payload(rule, state), rule.table)]
    pieces = _pieces(together)
    off = [(rule, state) for rule, state in together if _turns_off(rule, state)]
    if pieces and off:  # the parts have no messages of their own
        [(rule, state)] = off
        return [CommandMessage(rule.table.topic, command_payload(rule, state), rule.table)]
    if pieces:
        table = next(rule.table for rule, _ in together if rule.table.lamp is not None and rule.table.lamp.on)
        return [CommandMessage(table.topic, _compose(pieces, together), table)]
    names = {rule.table.lamp.name for rule, _ in together if rule.table.lamp is not None}
    messages: list[CommandMessage] = []
    for rule, state in together:
        table, lamp = rule.table, rule.table.lamp
        if lamp is not None and lamp.unless and lamp.unless in names and not _turns_off(rule, state):
            continue
        payload = _payload(rule, state)
        same = next((place for place, one in enumerate(messages) if one.topic == table.topic), None)
        merged = None if same is None else merged_objects(messages[same].payload, payload)
        if same is None or merged is None:
            messages.append(CommandMessage(table.topic, payload, table))
        else:
            messages[same] = messages[same]._replace(payload=merged)
    if any(len(one.payload) > PAYLOAD_BYTES_MAX for one in messages):
        raise PayloadError(_TOO_LONG)
    return messages


def merged_objects(one: bytes, other: bytes, depth: int = DEPTH_MAX) -> bytes | None:
    """A JSON object with the members of both; those of the other one win. None if one of them is no object. depth: of
    inner objects that are merged, too."""
    try:
        members, more = _MEMBERS.decode(one), _MEMBERS.decode(other)
    except (msgspec.DecodeError, RecursionError):
        return None
    texts = {name: bytes(raw) for name, raw in members.items()}
    for name, raw in more.items():
        both = merged_objects(texts[name], bytes(raw), depth - 1) if name in texts and depth else None
        texts[name] = bytes(raw) if both is None else both
    inner = b", ".join(json.dumps(name, ensure_ascii=False).encode() + b": " + text for name, text in texts.items())
    return b"{" + inner + b"}"


def _payload(rule: CommandRule, state: Term) -> bytes:
    """As `command_payload`; a colour may be written by its components."""
    table = rule.table
    if table.lamp is None or table.lamp.name != "rgb" or "{red}" not in table.payload:
        return command_payload(rule, state)
    return encode_text(_fill(table.payload, _named_texts("rgb", state_texts(table, state)[0])))


def _fill(template: str, texts: Mapping[str, str]) -> str:
    return fill_template(_SLOT, template, lambda slot: texts.get(slot[1], ""), PAYLOAD_BYTES_MAX, _TOO_LONG)


def _pieces(together: Sequence[tuple[CommandRule, Term]]) -> tuple[tuple[str, str], ...]:
    found = (rule.table.lamp.on for rule, _ in together if rule.table.lamp is not None)
    return next((on for on in found if on), ())


def _turns_off(rule: CommandRule, state: Term) -> bool:
    lamp = rule.table.lamp
    return lamp is not None and lamp.role == "switch" and lexical(state) in ("false", "0")


def _compose(pieces: Sequence[tuple[str, str]], together: Sequence[tuple[CommandRule, Term]]) -> bytes:
    """The text of a lamp that is on."""
    texts: dict[str, str] = {}
    for rule, state in together:
        lamp = rule.table.lamp
        if lamp is not None and lamp.role != "switch":
            texts |= _named_texts(lamp.name, device_texts(rule.table, state)[0])
    template = "".join(text for name, text in pieces if not name or name in texts)
    return encode_text(_fill(template, texts))


def _named_texts(name: str, text: str) -> dict[str, str]:
    """The values of a part by name: of a colour, its components."""
    if name != "rgb":
        return {name: text}
    if found := _HEXADECIMAL.fullmatch(text):
        red, green, blue = (str(int(component, 16)) for component in found.groups())
    elif (found := _DECIMAL.fullmatch(text)) and max(map(int, found.groups())) <= 255:
        red, green, blue = found.groups()
    else:
        raise PayloadError("the state is not a colour such as #ff8800 or 255,136,0")
    return {"rgb": text, "red": red, "green": green, "blue": blue}
