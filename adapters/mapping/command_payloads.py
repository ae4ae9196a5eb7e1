"""The states of actuators -> payloads, by `[[command]]` rules. Pure."""

from __future__ import annotations

import json
import re

from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mapping.publishes import TERM_CHARS_MAX, encoded, filled, json_value
from lamplighter.adapters.mapping.rules import CommandRule
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import Term, lexical

STATE_CHARS_SAID, VALUES_CHARS_SAID = 50, 500
"""In reasons, which go into the log and the dataset each time."""
_SLOT = re.compile(r"\{(value|json)\}")


def command_payload(rule: CommandRule, state: Term) -> bytes:
    """The message for a state. Raises PayloadError, whose reason is for people."""
    table = rule.table
    too_long = f"the message would have more than {PAYLOAD_BYTES_MAX} bytes"
    if len(state) > TERM_CHARS_MAX:
        raise PayloadError(too_long)
    text, as_json = lexical(state), json_value(state)
    if table.values:
        if text not in table.values:
            said, values = _json_text(text[:STATE_CHARS_SAID]), ", ".join(table.values)[:VALUES_CHARS_SAID]
            raise PayloadError(f"the state {said} is not one of the rule's values: {values}")
        text = table.values[text]
        as_json = _json_text(text)
    if table.minimum is not None or table.maximum is not None:
        _check_bounds(text, table.minimum, table.maximum)
    words = {"json": as_json, "value": text}
    return encoded(filled(_SLOT, table.payload, lambda slot: words[slot[1]], PAYLOAD_BYTES_MAX, too_long))


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
