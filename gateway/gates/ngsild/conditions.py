"""The query language of ``q`` (4.9): text -> syntax tree -> SPARQL.

``;`` is *and* and binds closer than ``|``, which is *or*. A term is true of an entity that has the attribute with a
value for which it holds: so ``a!=1`` needs an ``a``. Values of different kinds are unequal and have no order. Objects,
arrays and geometries can be asked for by existence, and are unequal to all values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.gateway.gates.ngsild.contexts import ContextNames, is_absolute
from lamplighter.gateway.gates.ngsild.graphs import RESULT, EntityGraphs, Member
from lamplighter.gateway.gates.ngsild.information import is_temporal
from lamplighter.gateway.gates.ngsild.problems import OperationNotSupportedError

TEXT_CHARS_MAX: Final = 4_000
TERMS_MAX: Final = 20
VALUES_MAX: Final = 50  # of one list
DEPTH_MAX: Final = 10
ValueKind = Literal["number", "string", "boolean", "dateTime", "date", "time", "uri"]
Operator = Literal["", "==", "!=", "<", "<=", ">", ">=", "~=", "!~="]
_OPERATOR = re.compile(r"==|!=|<=|>=|!~=|~=|<|>")
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9+-]*://[^=<>!~;|()\[\],\"\s]+|[^\W\d][\w-]*(?::[\w:-]+)?(?:\.[\w.-]+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_BARE = re.compile(r"(?:(?!\.\.)[^;|(),\"\s])+")
_NUMBER = re.compile(r"[+-]?(?:\d{1,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", re.A)
PATTERN_CHARS_MAX: Final = 200
REPETITION_MAX: Final = 50
_PIECE = re.compile(
    r"""\\[dwsDWS\\.^$|?*+()\[\]{}/-]
      | \[\^?\]?(?:\\[dws\\\]\[^-]|[^\\\[\]&~|\n-]|\|(?!\|)|-(?!-))*\]
      | \((?!\?) | \(\?: | [)|^$.]
      | (?P<repeat>\{(?P<least>\d{1,3})(?:,(?P<most>\d{0,3}))?\})
      | (?P<operator>[*+?])
      | [^\\\[\](){}*+?|^$.]
    """,
    re.X | re.A,
)


@dataclass(frozen=True)
class QueryValue:
    """text: without quotes."""

    kind: ValueKind
    text: str


@dataclass(frozen=True)
class QueryTerm:
    """attribute: its IRI; choices: single values, or ranges as pairs; pattern: of ``~=``."""

    attribute: str
    member: Member
    operator: Operator
    choices: tuple[QueryValue | tuple[QueryValue, QueryValue], ...] = ()
    pattern: str = ""


@dataclass(frozen=True)
class QueryGroup:
    """All of the parts, or any of them."""

    all: bool
    parts: tuple[Condition, ...]


Condition = QueryTerm | QueryGroup


def condition(text: str, names: ContextNames) -> Condition:
    """The syntax tree of a text. Raises MalformedRequestError, OperationNotSupportedError, LimitExceededError."""
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceededError(f"q: it is longer than {TEXT_CHARS_MAX} characters; ask for less")
    return _Parsing(text, names).whole()


class _Parsing:
    def __init__(self, text: str, names: ContextNames) -> None:
        self._text = text
        self._names = names
        self._at = 0
        self._terms = 0

    def whole(self) -> Condition:
        found = self._any(0)
        if self._at < len(self._text):
            raise self._error("write ; for and, | for or, or an operator")
        return found

    def _error(self, cure: str) -> MalformedRequestError:
        rest = self._text[self._at : self._at + 20]
        return MalformedRequestError(f"q, character {self._at + 1}: unexpected {rest!r}; {cure}")

    def _takes(self, sign: str) -> bool:
        if self._text.startswith(sign, self._at):
            self._at += len(sign)
            return True
        return False

    def _any(self, depth: int) -> Condition:
        parts = [self._all(depth)]
        while self._takes("|"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else QueryGroup(False, tuple(parts))

    def _all(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._takes(";"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else QueryGroup(True, tuple(parts))

    def _one(self, depth: int) -> Condition:
        if not self._takes("("):
            return self._term()
        if depth >= DEPTH_MAX:
            raise LimitExceededError(f"q: parentheses may be {DEPTH_MAX} deep")
        found = self._any(depth + 1)
        if not self._takes(")"):
            raise self._error("close the parenthesis with )")
        return found

    def _term(self) -> QueryTerm:
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise LimitExceededError(f"q: it may have {TERMS_MAX} terms")
        named = _ATTRIBUTE.match(self._text, self._at)
        if named is None:
            raise self._error("write the name of an attribute")
        attribute, member = self._attribute(named[0])
        self._at = named.end()
        if self._text.startswith("[", self._at):
            raise OperationNotSupportedError("q: members of values, in [ ], are not compared here; leave them out")
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            return QueryTerm(attribute, member, "")
        self._at = operator.end()
        sign: Operator = operator[0]  # type: ignore[assignment]  # one of the expression's
        if sign in ("~=", "!~="):
            return QueryTerm(attribute, member, sign, pattern=self._pattern())
        choices = [self._choice(sign)]
        while sign in ("==", "!=") and self._takes(","):
            choices.append(self._choice(sign))
            if len(choices) > VALUES_MAX:
                raise LimitExceededError(f"q: a list may have {VALUES_MAX} values")
        return QueryTerm(attribute, member, sign, tuple(choices))

    def _attribute(self, text: str) -> tuple[str, Member]:
        name, member = text, "value"
        if "://" not in text:
            name, _, member = text.partition(".")
        expanded = self._names.expand(name, "q")
        match member or "value":
            case "value":
                return expanded, "value"
            case "observedAt":
                return expanded, "observedAt"
            case "unitCode" if iri(expanded) != RESULT:
                return expanded, "unitCode"
        raise OperationNotSupportedError(
            f"q: {text[:100]!r}: of an attribute there are observedAt, and unitCode if it is kept"
        )

    def _pattern(self) -> str:
        start = self._at
        if self._text.startswith('"', start):
            text = self._string()
        else:
            found = _BARE.match(self._text, start)
            if found is None:
                raise self._error('write a pattern, in "" if it has ; | ( ) or ,')
            text, self._at = found[0], found.end()
        return checked_pattern(text, f"q, character {start + 1}")

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._error('a string ends with "; a " in it is written \\"')
        self._at = found.end()
        return re.sub(r"\\([\"\\])", r"\1", found[0][1:-1])

    def _choice(self, sign: str) -> QueryValue | tuple[QueryValue, QueryValue]:
        first = self._value()
        if sign in ("==", "!=") and self._takes(".."):
            last = self._value()
            if first.kind != last.kind:
                raise self._error("both ends of a range are of one kind")
            self._check_order(first)
            return first, last
        if sign not in ("==", "!="):
            self._check_order(first)
        return first

    def _check_order(self, value: QueryValue) -> None:
        if value.kind in ("boolean", "uri"):
            raise MalformedRequestError(f"q: {value.text[:100]!r} has no order; compare it with == or !=")

    def _value(self) -> QueryValue:
        if self._text.startswith('"', self._at):
            return QueryValue("string", self._string())
        found = _BARE.match(self._text, self._at)
        kind = None if found is None else _kind(found[0])
        if found is None or kind is None:
            raise self._error('write a number, true, false, a time with a zone, a URI, or a string in ""')
        self._at = found.end()
        return QueryValue(kind, found[0])


def _kind(text: str) -> ValueKind | None:
    if text in ("true", "false"):
        return "boolean"
    if _NUMBER.fullmatch(text):
        return "number"
    temporal: tuple[ValueKind, ...] = ("dateTime", "date", "time")
    for kind in temporal:
        if is_temporal(kind, text):
            return kind
    return "uri" if is_absolute(text) else None


# --- SPARQL ---


def expression(found: Condition, graphs: EntityGraphs, *, followed: bool = False) -> str:
    """A SPARQL expression about ``?e``. followed: as `EntityGraphs.values`."""
    if isinstance(found, QueryGroup):
        parts = (expression(one, graphs, followed=followed) for one in found.parts)
        return f"({(' && ' if found.all else ' || ').join(parts)})"
    test = _test(found)
    return f"({' || '.join(_exists(graphs.values(iri(found.attribute), found.member, followed=followed), test))})"


def terms(found: Condition) -> Iterator[QueryTerm]:
    if isinstance(found, QueryTerm):
        yield found
    else:
        for one in found.parts:
            yield from terms(one)


def _exists(patterns: list[str], test: str) -> Iterator[str]:
    for one in patterns:
        yield f"EXISTS {{ {one} {test and f'FILTER({test})'} }}"


def _test(found: QueryTerm) -> str:
    """The condition on ``?v``; "" where existence is enough."""
    if not found.operator:
        return ""
    if found.operator in ("~=", "!~="):
        test = f"COALESCE({_is_text()} && REGEX(STR(?v), {literal(found.pattern)}), false)"
        return test if found.operator == "~=" else f"!{test}"
    if found.operator not in ("==", "!="):
        [value] = found.choices
        assert isinstance(value, QueryValue)
        # A value of another type is no error here: the term is not fulfilled.
        return f"COALESCE({_comparison(value, found.operator)}, false)"
    tests = []
    for choice in found.choices:
        if isinstance(choice, tuple):
            tests.append(f"COALESCE({_comparison(choice[0], '>=')} && {_comparison(choice[1], '<=')}, false)")
        else:
            tests.append(f"COALESCE({_comparison(choice, '=')}, false)")
    joined = f"({' || '.join(tests)})"
    # An entity that has a value which differs fulfils !=; one without the attribute does not.
    return joined if found.operator == "==" else f"!{joined}"


def _is_text() -> str:
    return f"IF(ISIRI(?v), true, DATATYPE(?v) = {iri(XSD + 'string')})"


def _comparison(value: QueryValue, sign: str) -> str:
    match value.kind:
        case "number":
            return f"(ISNUMERIC(?v) && ?v {sign} {_number(value.text)})"
        case "string" if sign == "=":
            return f"({_is_text()} && STR(?v) = {literal(value.text)})"
        case "string":
            return f"(DATATYPE(?v) = {iri(XSD + 'string')} && STR(?v) {sign} {literal(value.text)})"
        case "uri":
            return f"({_is_text()} && STR(?v) = {literal(value.text)})"
        case kind:
            datatype = XSD + kind
            return f"(DATATYPE(?v) = {iri(datatype)} && ?v {sign} {literal(value.text, datatype=datatype)})"


def _number(text: str) -> Term:
    digits = sum(map(str.isdigit, text))
    # More digits than a decimal of the store has.
    if "e" in text.lower() or digits > 18:
        return literal(text, datatype=XSD + "double")
    return literal(text, datatype=XSD + ("decimal" if "." in text else "integer"))


def checked_pattern(text: str, place: str) -> str:
    """A regular expression (``~=``, ``idPattern``) of bounded cost that the store and POSIX both have. place: in the
    request, for the error. Raises MalformedRequestError."""
    if len(text) > PATTERN_CHARS_MAX:
        raise MalformedRequestError(f"{place}: a pattern may have {PATTERN_CHARS_MAX} characters")
    at, repeats = 0, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise MalformedRequestError(
                f"{place}: {text[at : at + 20]!r} at character {at + 1} is not supported in a pattern; write literals, "
                ". [] () | ^ $ * + ? {n,m} and \\d \\w \\s, and \\ before other signs"
            )
        if piece["repeat"]:
            repeats += 1
            if max(int(piece["least"]), int(piece["most"] or 0)) > REPETITION_MAX or repeats > 2:
                raise MalformedRequestError(f"{place}: a pattern may have two {{n,m}}, with at most {REPETITION_MAX}")
        at = piece.end()
    try:
        re.compile(text, re.A)
    except (re.error, RecursionError, OverflowError) as error:
        raise MalformedRequestError(f"{place}: no regular expression: {error}") from error
    return text
