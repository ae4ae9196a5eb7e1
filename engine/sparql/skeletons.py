"""Request text -> its constants and what is left, the skeleton, in a few microseconds.

Texts that differ only in their constants have one skeleton, and what was learned from the first of them
(`engine.matching.shapes`, `engine.updating.by_plan`) serves the others. One expression finds the constants. It may be
mistaken about them, in odd spellings; whoever compiles a skeleton compares them with the tokens and takes
the text as a whole if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import XSD, Term

CONSTANTS_MAX = 96
"""A text with more constants (bulk data, a long VALUES) has no skeleton of its own."""
TEXT_MAX = 32_768
"""Characters of the longest text with a skeleton: what is remembered shall not be long."""
TERM_MAX = 256
"""Characters of the longest constant that is remembered."""
CANONICAL_MAX = 1024
"""Characters of the longest term that is remembered for one: a short name may stand for a long IRI."""
PROLOGUES_MAX = 64
"""Prologues whose constants are remembered."""
TERMS_MAX = 20_000
"""Constants remembered, under all prologues together."""

_IRI = r'<[^<>"{}|^`\\\s]*+>'
_PROLOGUE = re.compile(rf"\s*+(?:(?:PREFIX\s++[^\s:<>]*+:\s*+{_IRI}|BASE\s*+{_IRI})\s*+)*", re.I)
# Where a constant cannot begin, behind what may belong to one, none is looked for: so a text of `a-a-a` or `\"\"\"` is
# read once, and not from each of its places to its end.
_CONSTANT = re.compile(
    rf"""( {_IRI}
         | (?:"(?<!\\")(?!"")[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"|'(?<!\\')(?!'')[^'\\\n\r]*+(?:\\.[^'\\\n\r]*+)*+')
           (?:@[A-Za-z][\w-]*|\^\^(?:{_IRI}|[A-Za-z][\w-]*:[A-Za-z][\w-]*))?
         | (?<![\w?$.-])(?:[A-Za-z][\w-]*+)?:(?:\w(?:[\w-]*\w)?)?
         | (?<![\w?$:.+%\\-])[0-9]++(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?
         )""",
    re.X,
)
# Absolute IRIs that no resolution changes, and literals that are canonical as they stand.
_PLAIN_IRI = re.compile(
    r"<(?:https?://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?(?:/[A-Za-z0-9_~@:-][A-Za-z0-9_~@:.-]*|/)*"
    r"|urn:[a-z0-9]+:[A-Za-z0-9_:-]+)(?:\#[A-Za-z0-9_.-]*)?>"
)
_PLAIN_STRING = re.compile(r'"[ !#-\[\]-~]*"')
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,11})\.[0-9]{0,5}[1-9]")
_INSTANT = re.compile(
    r'"[12][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{0,8}[1-9])?Z"'
    rf"\^\^<{re.escape(XSD)}dateTime>"
)


class Lifted(NamedTuple):
    """skeleton: the text between the constants and what kind each of them is; terms: the constants, canonical."""

    prologue: str
    skeleton: str
    terms: list[Term]


Known = dict[str, tuple[str, Term]]
"""Constant as written -> what stands for it in a skeleton, and its canonical term."""


class Lifter:
    """Lifts constants out of texts. canonical: the term of a constant as written under a prologue; may raise."""

    def __init__(self, canonical: Callable[[str, str], Term]) -> None:
        self._canonical = canonical
        self._known: dict[str, Known] = {}
        self._size = 0

    def lift(self, text: str) -> Lifted:
        """Raises ValueError for a text that has no skeleton, and what `canonical` raises."""
        if len(text) > TEXT_MAX or "\x01" in text:
            raise ValueError("a text that is taken as a whole")
        found = _PROLOGUE.match(text)
        assert found is not None
        prologue = found.group()
        pieces = _CONSTANT.split(text[found.end() :])
        count = len(pieces) // 2
        if count > CONSTANTS_MAX:
            raise ValueError(f"more than {CONSTANTS_MAX} constants")
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

    def term(self, prologue: str, raw: str) -> Term:
        """The canonical term of one constant."""
        known = self.known(prologue)
        return (known.get(raw) or self._entry(prologue, raw, known))[1]

    def known(self, prologue: str) -> Known:
        """What is remembered of the constants under a prologue that has been seen."""
        return self._known.setdefault(prologue, {})

    def _entry(self, prologue: str, raw: str, known: Known) -> tuple[str, Term]:
        kind = kind_of(raw)
        term = _plain(raw) or self._canonical(prologue, raw)
        if len(raw) > TERM_MAX or len(term) > CANONICAL_MAX:
            return kind, term
        self._size += 1
        if self._size > TERMS_MAX:
            for entries in self._known.values():  # in place, since recognisers look in them too
                entries.clear()
            self._size = 1
        entry = known[raw] = (kind, term)
        return entry


IRI, STRING, TYPED, INTEGER, NUMBER = "\x01i\x01", "\x01s\x01", "\x01t\x01", "\x01n\x01", "\x01d\x01"
"""What stands in a skeleton for a constant; the grammar takes all constants of a kind in the same places."""


def kind_of(raw: str) -> str:
    """What stands in a skeleton for a constant as it is written."""
    if raw[0] in "\"'":
        return STRING if raw[-1] == raw[0] else TYPED
    if raw[0] in _DIGITS:
        return INTEGER if raw.isdigit() else NUMBER
    return IRI


_DIGITS = frozenset("0123456789")


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


_GROUPS = {IRI: rf"({_IRI})", STRING: r'("[^"\\\n\r]*")', TYPED: rf'("[^"\\\n\r]*"\^\^{_IRI})', INTEGER: r"([0-9]+)"}
_NAME = r"([A-Za-z][\w-]*:\w+)"
_DECIMAL_GROUP = r"([0-9]+\.[0-9]+)"
_AFTER = frozenset(" \t\r\n;,)}")


class Recogniser:
    """One expression for the texts of a skeleton that agree in some constants, and have the same ones equal.

    Cheaper than `Lifter.lift`, which does not know what is to come.
    """

    def __init__(self, pattern: re.Pattern[str], term: Callable[[str], Term], known: Known, sources: list[Any]) -> None:
        self._match = pattern.fullmatch
        self._term = term
        self._known = known
        self._sources = sources

    def terms(self, text: str) -> list[Term] | None:
        """The constants of a text, None for a text that is no such one. May raise as `Lifter.lift`."""
        found = self._match(text)
        if found is None:
            return None
        known = self._known
        try:
            values = [known[raw][1] for raw in found.groups()]
        except KeyError:
            values = [self._term(raw) for raw in found.groups()]
        return [values[source] if type(source) is int else source for source in self._sources]


def recogniser(
    text: str, lifted: Lifted, lifter: Lifter, spans: Sequence[tuple[int, int]], fixed: set[int]
) -> Recogniser | None:
    """A recogniser made after a text. spans: the places of its constants; fixed: numbers of those that stay the same.

    None for texts with constants that are delimited by nothing but their own characters.
    """
    parts: list[str] = []
    sources: list[Any] = []
    groups: dict[str, int] = {}
    position = 0
    for number, (start, end) in enumerate(spans):
        raw = text[start:end]
        parts.append(re.escape(text[position:start]))
        position = end
        if number in fixed:
            parts.append(re.escape(raw))
            sources.append(lifted.terms[number])
        elif raw in groups:
            parts.append(rf"(?:\{groups[raw] + 1})")
            sources.append(groups[raw])
        else:
            group = _NAME if kind_of(raw) == IRI and raw[0] != "<" else _GROUPS.get(kind_of(raw), _DECIMAL_GROUP)
            if text[end : end + 1] not in _AFTER or re.fullmatch(group, raw) is None:
                return None
            groups[raw] = len(groups)
            parts.append(group)
            sources.append(groups[raw])
    parts.append(re.escape(text[position:]))
    prologue = lifted.prologue
    known = lifter.known(prologue)
    return Recogniser(re.compile("".join(parts)), lambda raw: lifter.term(prologue, raw), known, sources)
