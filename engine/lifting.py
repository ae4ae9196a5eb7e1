"""Request text -> its constants and what is left, the skeleton, in a few microseconds.

Texts that differ only in their constants have one skeleton, and what was learned from the first of them
(`engine.shapes`, `engine.update_plan`) serves the others. One expression finds the constants. It may be
mistaken about them, in odd spellings; whoever compiles a skeleton compares them with the tokens and takes
the text as a whole if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import LimitExceededError
from engine.lexer import Token
from engine.terms import XSD, Term

CONSTANTS_MAX = 96
"""A text with more constants (bulk data, a long VALUES) has no skeleton of its own."""
PROLOGUES_MAX = 64
"""Prologues whose constants are remembered."""
TERMS_MAX = 20_000
"""Constants remembered for one prologue."""

_IRI = r'<[^<>"{}|^`\\\s]*>'
_PROLOGUE = re.compile(rf"\s*(?:(?:PREFIX\s+[^\s:<>]*:\s*{_IRI}|BASE\s*{_IRI})\s*)*", re.I)
_CONSTANT = re.compile(
    rf"""( {_IRI}
         | (?:"(?!"")(?:[^"\\\n\r]|\\.)*"|'(?!'')(?:[^'\\\n\r]|\\.)*')
           (?:@[A-Za-z][\w-]*|\^\^(?:{_IRI}|[A-Za-z][\w-]*:[A-Za-z][\w-]*))?
         | (?<![\w?$.])(?:[A-Za-z][\w-]*)?:(?:\w(?:[\w-]*\w)?)?
         | (?<![\w?$:.+%\\-])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?
         )""",
    re.X,
)
# Absolute IRIs that no resolution changes, and literals that are canonical as they stand.
_PLAIN_IRI = re.compile(
    r"<(?:https?://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,5})?(?:/[A-Za-z0-9_~@:-][A-Za-z0-9_~@:.-]*|/)*"
    r"|urn:[a-z0-9]+:[A-Za-z0-9_:-]+)(?:\#[A-Za-z0-9_.-]*)?>"
)
_PLAIN_STRING = re.compile(r'"[ !#-\[\]-~]*"')
_INTEGER = re.compile(r"0|[1-9]\d{0,17}")
_DECIMAL = re.compile(r"(?:0|[1-9]\d{0,11})\.\d{0,5}[1-9]")
_INSTANT = re.compile(
    r'"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,8}[1-9])?Z"'
    rf"\^\^<{re.escape(XSD)}dateTime>"
)


class Lifted(NamedTuple):
    """skeleton: the text between the constants and what kind each of them is; terms: the constants, canonical."""

    prologue: str
    skeleton: str
    terms: list[Term]


class Lifter:
    """Lifts constants out of texts. canonical: the term of a constant as written under a prologue; may raise."""

    def __init__(self, canonical: Callable[[str, str], Term]) -> None:
        self._canonical = canonical
        self._known: dict[str, dict[str, tuple[str, Term]]] = {}

    def lift(self, text: str) -> Lifted:
        """Raises LimitExceededError for a text with too many constants, and what `canonical` raises."""
        found = _PROLOGUE.match(text)
        assert found is not None
        prologue = found.group()
        pieces = _CONSTANT.split(text[found.end() :])
        count = len(pieces) // 2
        if count > CONSTANTS_MAX:
            raise LimitExceededError(f"more than {CONSTANTS_MAX} constants")
        known = self._known.get(prologue)
        if known is None:
            if len(self._known) >= PROLOGUES_MAX:
                self._known.clear()
            known = self._known[prologue] = {}
        terms = []
        for index in range(1, len(pieces), 2):
            raw = pieces[index]
            entry = known.get(raw)
            if entry is None:
                entry = self._entry(prologue, raw, known)
            pieces[index], term = entry
            terms.append(term)
        return Lifted(prologue, "".join(pieces), terms)

    def _entry(self, prologue: str, raw: str, known: dict[str, tuple[str, Term]]) -> tuple[str, Term]:
        if len(known) >= TERMS_MAX:
            known.clear()
        kind = kind_of(raw)
        entry = known[raw] = (kind, _plain(raw) or self._canonical(prologue, raw))
        return entry


IRI, STRING, TYPED, INTEGER, NUMBER = "\x01i\x01", "\x01s\x01", "\x01t\x01", "\x01n\x01", "\x01d\x01"
"""What stands in a skeleton for a constant; the grammar takes all constants of a kind in the same places."""


def kind_of(raw: str) -> str:
    """What stands in a skeleton for a constant as it is written."""
    if raw[0] in "\"'":
        return STRING if raw[-1] == raw[0] else TYPED
    if raw[0].isdigit():
        return INTEGER if raw.isdigit() else NUMBER
    return IRI


def _plain(raw: str) -> Term | None:
    """The canonical term, for those constants where it is seen at once."""
    if raw[0] == "<":
        return raw if _PLAIN_IRI.fullmatch(raw) else None
    if raw[0] == '"':
        return raw if _PLAIN_STRING.fullmatch(raw) or _INSTANT.fullmatch(raw) else None
    if _INTEGER.fullmatch(raw):
        return f'"{raw}"^^<{XSD}integer>'
    if _DECIMAL.fullmatch(raw):
        return f'"{raw}"^^<{XSD}decimal>'
    return None


def skeleton_of(text: str, start: int, found: Sequence[Token], spans: Sequence[tuple[int, int]]) -> str:
    """What `Lifter.lift` should have made of the text after start, going by its tokens."""
    parts = []
    for first, end in spans:
        parts.append(text[start : found[first].start])
        parts.append(kind_of(text[found[first].start : found[end - 1].end]))
        start = found[end - 1].end
    return "".join([*parts, text[start:]])
