"""Request text -> its constants and its skeleton, the text without them, in a few microseconds.

Texts that differ only in their constants have the same skeleton, so what is compiled for the first of them serves the
others (`matching.query_texts`, `updating.by_plan`). One regular expression finds the constants. In unusual
spellings it may be wrong. Code that compiles a skeleton therefore compares it with the tokens (`skeleton_of`), and
takes the text as a whole if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import XSD, Term

# A text with more constants, such as bulk data, has no skeleton.
CONSTANTS_MAX = 96
# Signs `<`: a text with more of them is not searched for its constants.
IRIS_MAX = 2 * CONSTANTS_MAX
# Characters of the longest text with a skeleton; skeletons are cached.
TEXT_MAX = 32_768
# Characters of the longest cached constant.
TERM_MAX = 256
# Characters of the longest cached term: a short name may stand for a long IRI.
CANONICAL_MAX = 1024
# Prologues whose constants are cached.
PROLOGUES_MAX = 64
# Cached constants of all prologues together.
TERMS_MAX = 20_000

_IRI = r'<[^<>"{}|^`\\\s]*+>'
_PROLOGUE = re.compile(rf"\s*+(?:(?:PREFIX\s++[^\s:<>]*+:\s*+{_IRI}|BASE\s*+{_IRI})\s*+)*", re.I)
# The first sign is a set, which `re` searches for fast; what it is decides on the rest.
# The lookbehinds keep the scan linear: no constant begins behind a character that may belong to one, so a text of
# `a-a-a` or `\"\"\"` is read once, and not from each position to its end.
_LOCAL = r"(?:\w(?:[\w-]*\w)?)?"
_CONSTANT = re.compile(
    rf"""([<"':A-Za-z0-9](?<![\w?$.-][A-Za-z:])
         (?: (?<=[A-Za-z])[\w-]*+:{_LOCAL} | (?<=:){_LOCAL}
           | (?<=<)[^<>"{{}}|^`\\\s]*+>
           | (?:(?<=")(?<!\\")(?!"")[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"
              |(?<=')(?<!\\')(?!'')[^'\\\n\r]*+(?:\\.[^'\\\n\r]*+)*+')
             (?:@[A-Za-z][\w-]*|\^\^(?:{_IRI}|[A-Za-z][\w-]*:[A-Za-z][\w-]*))?
           | (?<=[0-9])(?<![\w?$:.+%\\-][0-9])[0-9]*+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?
         ))""",
    re.X,
)
# Absolute IRIs that resolution leaves unchanged, and literals whose canonical form is known.
_PLAIN_IRI = re.compile(
    r"<(?:https?://[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++|(?!))*+(?::[0-9]{1,5}+)?"
    r"|(?!http)[a-z][a-z0-9+-]*+:[A-Za-z0-9_~@:-][A-Za-z0-9_~@:.-]*+)"
    r"(?:/(?!\.)[A-Za-z0-9_~@:.-]*+|(?!))*+(?:\#[A-Za-z0-9_.-]*+)?>"
)
# Whether it is an absolute IRI as the store has it, and can be nothing else.
usual_iri = _PLAIN_IRI.fullmatch
# Declarations of prefixes of which the store accepts each; a prologue of nothing else.
SPACE = r"[\x20\t\r\n]"
_PREFIX = rf"PREFIX{SPACE}++((?:[A-Za-z][A-Za-z0-9_-]*+)?):{SPACE}*+<([^<>\"{{}}|^`\\\s]*+)>{SPACE}*+"
PREFIXES = rf"{SPACE}*+(?:{_PREFIX})*"
_PREFIXES = re.compile(PREFIXES, re.I | re.A)
_EACH_PREFIX = re.compile(_PREFIX, re.I | re.A)
_PLAIN_STRING = re.compile(r'"[ !#-\[\]-~]*"')
_PLAIN_TAGGED = re.compile(r'"[ !#-\[\]-~]*"@[a-z]{2,3}(?:-[a-z]{2})?')
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,11})\.[0-9]{0,5}[1-9]")
_PLAIN_NUMBER = re.compile(
    r'"(?:'
    rf'(?:0|-?[1-9][0-9]{{0,17}})"\^\^<{re.escape(XSD)}integer'
    rf'|(?:0|-?[1-9][0-9]{{0,8}}|-?(?:0|[1-9][0-9]{{0,8}})\.[0-9]{{0,5}}[1-9])"\^\^<{re.escape(XSD)}(?:decimal|double)'
    r")>"
)  # a double of 15 digits is spelled as the shortest text that means it
_INSTANT_END = f'Z"^^<{XSD}dateTime>'
_INSTANT = re.compile(
    r'("[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)'
    rf"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.([0-9]{{1,9}}))?{re.escape(_INSTANT_END)}"
)


class Lifted(NamedTuple):
    """skeleton: the text, with a mark for the kind of each constant; raws: the constants as written; terms: the same,
    canonical; none if the skeleton was not wanted."""

    prologue: str
    skeleton: str
    terms: list[Term]
    raws: Sequence[str]


# Constant as written -> its mark in the skeleton, and its canonical term.
Known = dict[str, tuple[str, Term]]


class Lifter:
    """Lifts constants out of texts, and caches them: by prologue in `known`. canonical: (prologue, constant as written)
    -> term; may raise."""

    def __init__(self, canonical: Callable[[str, str], Term]) -> None:
        self._canonical = canonical
        self.known: dict[str, Known] = {}
        self._size = 0

    def lift(self, text: str, wanted: Container[str] | None = None) -> Lifted:
        """The skeleton and the constants of a text. wanted: the skeletons whose constants are asked for, None for all.

        Raises ValueError if it has none, and the errors of canonical.
        """
        if len(text) > TEXT_MAX or "\x01" in text or text.count("<") > IRIS_MAX:
            raise ValueError("a text that is taken as a whole")
        found = _PROLOGUE.match(text)
        assert found is not None
        prologue = found.group()
        pieces = _CONSTANT.split(text[found.end() :])
        count = len(pieces) // 2
        if count > CONSTANTS_MAX:
            raise ValueError(f"more than {CONSTANTS_MAX} constants")
        known = self.known.get(prologue)
        if known is None:
            if len(self.known) >= PROLOGUES_MAX:
                self.known.clear()
            known = self.known[prologue] = {}
        raws = pieces[1::2]
        pieces[1::2] = [IRI if raw[0] == "<" else known[raw][0] if raw in known else kind_of(raw) for raw in raws]
        skeleton = "".join(pieces)
        if wanted is not None and skeleton not in wanted:
            return Lifted(prologue, skeleton, [], raws)
        entry = self.entry
        return Lifted(prologue, skeleton, [(known.get(raw) or entry(prologue, raw, known))[1] for raw in raws], raws)

    def entry(self, prologue: str, raw: str, known: Known) -> tuple[str, Term]:
        """The kind and the canonical term of a constant that is not in `known`, which gets it."""
        if usual_iri(raw):  # as most constants
            kind, term = IRI, raw
        else:
            kind, term = kind_of(raw), usual_term(prologue, raw) or self._canonical(prologue, raw)
        if len(raw) > TERM_MAX or len(term) > CANONICAL_MAX:
            return kind, term
        self._size += 1
        if self._size > TERMS_MAX:
            for entries in self.known.values():  # in place, since recognisers refer to them
                entries.clear()
            self._size = 1
        entry = known[raw] = (kind, term)
        return entry


def outline(text: str) -> tuple[str, Sequence[str]]:
    """(skeleton, constants as written) of a text of any length."""
    found = _PROLOGUE.match(text)
    assert found is not None
    pieces = _CONSTANT.split(text[found.end() :])
    raws = pieces[1::2]
    pieces[1::2] = map(kind_of, raws)
    return "".join(pieces), raws


# The marks of constants in a skeleton, by kind. The grammar allows all constants of a kind in the same places.
IRI, STRING, TYPED, INTEGER, NUMBER = "\x01i\x01", "\x01s\x01", "\x01t\x01", "\x01n\x01", "\x01d\x01"


def kind_of(raw: str) -> str:
    """The mark of a constant as written."""
    if raw[0] in "\"'":
        return STRING if raw[-1] == raw[0] else TYPED
    if raw[0] in _DIGITS:
        return INTEGER if raw.isdigit() else NUMBER
    return IRI


_DIGITS = frozenset("0123456789")


def usual_term(prologue: str, raw: str) -> Term | None:
    """The canonical term of a constant whose form and prologue are usual, else None; the store knows all forms."""
    term = _plain(raw)
    if term is not None or raw[0] == "<" or raw[-1] in "\"'>":
        return term
    literal, mark, name = raw.rpartition("^^")
    full = _full_name(prologue, name)
    return full if not mark or full is None else _plain(f"{literal}^^{full}")


def _plain(raw: str) -> Term | None:
    if raw[0] == "<":
        return raw if _PLAIN_IRI.fullmatch(raw) else None
    if raw[0] == '"':
        if raw[-1] == '"':
            return raw if _PLAIN_STRING.fullmatch(raw) else None
        return raw if _PLAIN_NUMBER.fullmatch(raw) or _PLAIN_TAGGED.fullmatch(raw) else _instant(raw)
    if _INTEGER.fullmatch(raw):
        return f'"{raw}"^^<{XSD}integer>'
    if _DECIMAL.fullmatch(raw):
        return f'"{raw}"^^<{XSD}decimal>'
    return None


def _full_name(prologue: str, raw: str) -> Term | None:
    """The IRI of a prefixed name, if both are usual; the store knows all."""
    prefix, colon, local = raw.partition(":")
    if not colon or (namespace := _namespaces(prologue).get(prefix)) is None:
        return None
    return _plain(f"<{namespace}{local}>")


@lru_cache(PROLOGUES_MAX)
def _namespaces(prologue: str) -> dict[str, str]:
    """The namespaces by their prefixes; empty if not each declaration is known to be valid."""
    if not _PREFIXES.fullmatch(prologue):
        return {}
    found = _EACH_PREFIX.findall(prologue)
    return dict(found) if all(_plain(f"<{namespace}x>") for _, namespace in found) else {}


def usual_prologue(prologue: str) -> bool:
    """Whether the store accepts each declaration, and there are no others than prefixes."""
    return not prologue.strip() or bool(_namespaces(prologue))


def is_canonical(literal: Term) -> bool:
    """Whether a literal with a datatype is known to be in canonical form; others may be."""
    return literal[0] == '"' and (_PLAIN_NUMBER.fullmatch(literal) is not None or _instant(literal) == literal)


def _instant(raw: str) -> Term | None:
    """The canonical term of a usual xsd:dateTime in UTC: its fraction does not end in 0."""
    found = _INSTANT.fullmatch(raw)
    if found is None:
        return None
    fraction = found[2]
    if fraction is None or fraction[-1] != "0":
        return raw
    digits = fraction.rstrip("0")
    return f"{found[1]}.{digits}{_INSTANT_END}" if digits else f"{found[1]}{_INSTANT_END}"


def skeleton_of(text: str, start: int, found: Sequence[Token], spans: Sequence[tuple[int, int]]) -> str:
    """The skeleton of the text after start by its tokens; `Lifter.lift` should give the same."""
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
    """A regular expression for the texts of one skeleton that have the same fixed constants and the same ones equal.

    It is faster than `Lifter.lift`, which works for any text.
    """

    def __init__(self, pattern: re.Pattern[str], lifter: Lifter, prologue: str, sources: list[Any]) -> None:
        self._match = pattern.fullmatch
        self._lifter = lifter
        self._prologue = prologue
        self._sources = sources

    def terms(self, text: str) -> list[Term] | None:
        """The constants of a text, None if it does not match. May raise as `Lifter.lift`."""
        found = self._match(text)
        if found is None:
            return None
        # Looked up for each text: what a lifter has forgotten it does not bound either.
        known = self._lifter.known.setdefault(self._prologue, {})
        entry = self._lifter.entry
        values = [(known.get(raw) or entry(self._prologue, raw, known))[1] for raw in found.groups()]
        return [values[source] if type(source) is int else source for source in self._sources]


def recogniser(
    text: str, lifted: Lifted, lifter: Lifter, spans: Sequence[tuple[int, int]], fixed: set[int]
) -> Recogniser | None:
    """A recogniser for texts like this one. spans: the positions of its constants; fixed: numbers of the fixed ones.

    None if a constant of the text is not followed by a delimiter.
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
    return Recogniser(re.compile("".join(parts)), lifter, lifted.prologue, sources)
