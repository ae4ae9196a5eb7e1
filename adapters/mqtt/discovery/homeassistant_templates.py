"""Templates of Home Assistant's announcements: where a value is in a message, and what a command makes of a state.

Most are paths, such as ``{{ value_json.a['b'][0] }}`` with the filters of `_FILTERS`; they become a JSON path. Other
templates stay as they are, if `adapters.mapping.jinja` understands them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.mapping.jinja import COMMAND_NAMES, command_template, value_template
from lamplighter.engine.errors import PayloadError

_FILTERS = re.compile(
    r"(?:\s*\|\s*(?:(?:float|int|round|default)\s*(?:\(\s*(?:-?[0-9.]+|'[^'{}]*'|\"[^\"{}]*\")?\s*\))?|is_defined|string))*"
)
"""Filters that choose no other value: conversions, defaults for missing members, and rounding, which is not applied."""
_HEAD = re.compile(r"\s*\{\{-?\s*value(_json)?")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[\s*(?:'([^'\\]*)'|\"([^\"\\]*)\"|([0-9]{1,3}))\s*\]")
_TAIL = re.compile(r"\s*-?\}\}\s*")
_VALUE = re.compile(r"\{\{-?\s*value\s*(?:\|\s*string\s*)?-?\}\}")


class ValuePlace(NamedTuple):
    """Where a value is: at a JSON path, empty for the whole payload, or what a template makes."""

    path: tuple[str | int, ...] = ()
    template: str | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """As `Draft.sensor` takes it."""
        if self.template is None:
            return {"member": self.path}
        return {"template": self.template, "optional": True}


def value_place(template: object) -> ValuePlace:
    """Raises ValueError for a template that is not understood, with the reason."""
    if template is None:
        return ValuePlace()
    if not isinstance(template, str):
        raise _not_understood("template", template, "it is not a text")
    path = _path(template)
    if path is not None:
        return ValuePlace(path)
    try:
        value_template(template)
    except ValueError as error:
        raise _not_understood("template", template, str(error)) from error
    return ValuePlace(template=template)


def command_keys(template: object, values: Mapping[str, object] | None) -> dict[str, Any]:
    """The keys of an actuator that say what is sent: the payload, a template, or the values that a template makes of
    these. Raises ValueError for a template that is not understood."""
    simple = _command_payload(template)
    if simple is not None:
        return {"payload": simple, "values": values}
    if not isinstance(template, str):
        raise _not_understood("command template", template, "it is not a text")
    try:
        made = command_template(template)
        if values is None:
            return {"template": template}
        # What stands for a state, such as payload_on, is a text there, also if it reads as a number.
        return {"values": {state: made.text(dict.fromkeys(COMMAND_NAMES, str(one))) for state, one in values.items()}}
    except (ValueError, PayloadError) as error:
        raise _not_understood("command template", template, str(error)) from error


def _path(template: str) -> tuple[str | int, ...] | None:
    """The JSON path that a template is."""
    head = _HEAD.match(template) if len(template) <= 500 else None
    if head is None:
        return None
    path: list[str | int] = []
    position = head.end()
    while head[1] and (step := _STEP.match(template, position)):
        path.append(int(step[4]) if step[4] else step[1] or step[2] or step[3] or "")
        position = step.end()
    filters = _FILTERS.match(template, position)
    position = filters.end() if filters else position
    return tuple(path) if _TAIL.fullmatch(template, position) and bool(path) == bool(head[1]) else None


def _command_payload(template: object) -> str | None:
    """The payload that a command template is in our form, if it has nothing but the value in it."""
    if template is None:
        return "{value}"
    text = _VALUE.sub("\0", template) if isinstance(template, str) and "\0" not in template else "{%"
    if any(sign in text for sign in ("{{", "{%", "{#", "{value}", "{json}")):
        return None
    return text.replace("\0", "{value}")


def _not_understood(what: str, template: object, reason: str) -> ValueError:
    return ValueError(f"the {what} {plain(template, 80)!r} is not understood: {reason}")
