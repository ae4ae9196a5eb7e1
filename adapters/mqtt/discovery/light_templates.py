"""The command templates of Home Assistant's lights of the schema "template" -> pieces of a message.

They are Jinja. Understood are texts, ``{{ brightness }}`` with filters that choose no other value, and
``{% if brightness is defined %} ... {% endif %}``, not nested. A value without a condition is empty where the command
has none, as with the filter ``default('')``.
"""

from __future__ import annotations

import re

from lamplighter.adapters.devices.draft import plain

TEMPLATE_CHARS_MAX, PIECES_MAX = 2_000, 64
NAMES = frozenset({"brightness", "color_temp", "effect", "transition", "red", "green", "blue"})
"""The values that a command may have."""
_COLOR = frozenset({"red", "green", "blue"})
_TOKEN = re.compile(
    r"(?P<strip>\s*)\{(?P<kind>[{%])(?P<left>-?)\s*(?P<inside>[^{}%]*?)\s*(?P<right>-?)(?:\}\}|%\})(?P<after>\s*)"
)
_VALUE = re.compile(
    r"([a-z_]+)(?:\s*\|\s*(?:d|default|int|float|round|string)\s*(?:\(\s*(?:-?[0-9.]+|'[^']*'|\"[^\"]*\")?\s*\))?)*"
)
_IF = re.compile(r"if\s+([a-z_]+)\s+is\s+defined")


def command_pieces(template: object) -> list[tuple[str, str]]:
    """As `LampPart.on` has them. Raises ValueError for other templates."""
    if not isinstance(template, str) or len(template) > TEMPLATE_CHARS_MAX:
        raise ValueError("a light of the schema 'template' needs command_on_template and command_off_template")
    pieces: list[tuple[str, str]] = []
    condition, at = "", 0
    for token in _TOKEN.finditer(template):
        pieces.append((condition, template[at : token.start()] + ("" if token["left"] else token["strip"])))
        if token["kind"] == "{":
            found = _VALUE.fullmatch(token["inside"])
            if found is None or found[1] not in NAMES:
                raise _not_understood(template)
            pieces.append((condition or _part(found[1]), f"{{{found[1]}}}"))
        elif found := _IF.fullmatch(token["inside"]):
            if condition or found[1] not in NAMES:
                raise _not_understood(template)
            condition = _part(found[1])
        elif token["inside"] == "endif" and condition:
            condition = ""
        else:
            raise _not_understood(template)
        pieces.append((condition, "" if token["right"] else token["after"]))
        at = token.end()
    pieces.append((condition, template[at:]))
    texts = [(name, text) for name, text in pieces if text]
    if condition or len(texts) > PIECES_MAX or any(sign in text for sign in ("{{", "{%", "{#") for _, text in texts):
        raise _not_understood(template)
    return texts


def _part(name: str) -> str:
    return "rgb" if name in _COLOR else name


def _not_understood(template: str) -> ValueError:
    return ValueError(f"the command template {plain(template, 80)!r} is not understood")
