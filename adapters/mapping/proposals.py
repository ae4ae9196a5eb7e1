"""A rule for a topic that no rule reads, as far as its last message tells how. Pure.

It is a proposal for people: the property is guessed from the name of the value, and units are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lamplighter.adapters.mapping.patterns import is_reserved
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX

# Values of a JSON object, and how deep they are.
VALUES_MAX, DEPTH_MAX = 16, 3
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\s*")
_WORDS = {word.casefold() for word in ("on", "off", "true", "false")}
_PLAIN = re.compile(r"[\w.\- /%:()]{1,200}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class ProposedRule(NamedTuple):
    """kind: in a word, of the message; toml: the rule for a file of mapping/."""

    kind: str
    toml: str


class _Value(NamedTuple):
    member: str
    payload: str


class _PropertyNames(NamedTuple):
    base_iri: str
    known: dict[str, str]

    def of(self, path: str) -> str:
        """A property of the gateway's namespace with the name of a value, else one of its own."""
        name = re.split(r"[./]", path)[-1]
        kind = self.known.get(name.casefold().replace("_", ""))
        own = f"{self.base_iri}property/{_NOT_IN_A_NAME.sub('-', name).strip('-') or 'value'}"
        return f"gateway:{kind}" if kind else own


def proposed_rule(topic: str, payload: bytes, base_iri: str, kinds: Sequence[str]) -> ProposedRule | None:
    """None if the message is neither a number, a boolean nor a JSON object with some. kinds: names of properties in the
    gateway's namespace, for values of such a name; others get a property below base_iri."""
    if is_reserved(topic) or not _PLAIN.fullmatch(topic) or len(payload) > PAYLOAD_BYTES_MAX:
        return None
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    names = _PropertyNames(base_iri, {kind.casefold(): kind for kind in kinds})
    head = f"[[stream]]\ntopic = {json.dumps(topic, ensure_ascii=False)}\n"
    kind = "number" if _NUMBER.fullmatch(text) else "boolean" if text.strip().casefold() in _WORDS else ""
    if kind:
        return ProposedRule(kind, f'{head}payload = "{kind}"\nproperty = "{names.of(topic)}"\n')
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    values = list(_values(document)) if isinstance(document, dict) else []
    if not values:
        return None
    parts = [
        f'[[stream.read]]\nmember = "{one.member}"\npayload = "{one.payload}"\nproperty = "{names.of(one.member)}"\n'
        for one in values[:VALUES_MAX]
    ]
    members = ", ".join(one.member for one in values[:VALUES_MAX])
    return ProposedRule(f"JSON: {members}", head + 'payload = "number"\n' + "".join(parts))


def _values(document: dict[str, Any], above: str = "", depth: int = 1) -> Iterator[_Value]:
    """The numbers and booleans of an object, also inside of others."""
    for name, value in document.items():
        if not _NAME.fullmatch(name):
            continue
        if isinstance(value, bool):
            yield _Value(above + name, "boolean")
        elif isinstance(value, int | float):
            yield _Value(above + name, "number")
        elif isinstance(value, dict) and depth < DEPTH_MAX:
            yield from _values(value, f"{above}{name}.", depth + 1)
