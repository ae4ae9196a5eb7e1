"""What an expression may cost, known before the store evaluates it, which nothing can stop then.

The bound is on characters: of the operands, and of the results of all calls within the expression. It is taken from the
lengths of the operands and from what each function can make of them, so a REPLACE in a REPLACE has one that grows with
each. An expression with a large bound is evaluated piece by piece, a call at a time (`pieces`), and each piece has a
bound that is taken from what its operands have become: that one is near the truth.

A regular expression is linear in the text, but not for nothing: its counted repetitions are written out, and a text is
looked at by as many states at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamplighter.engine.sparql.algebra import Constant, Exists, Variable
from lamplighter.engine.terms import XSD, Term, is_literal, lexical

PIECES_CHARACTERS_MIN = 64 * 1024
"""A bound up to which an expression is evaluated as a whole."""
CHARACTERS_MAX = 16 * 1024 * 1024
"""The largest bound of a call that the store is given."""

_MADE_MAX = 512
"""Characters of what operators and other functions make, whatever they are given: numbers, moments, digests."""
_PATTERNED = frozenset(("REGEX", "REPLACE"))
_GROWING = frozenset(
    ("CONCAT", "ENCODE_FOR_URI", "LCASE", "REPLACE", "STRDT", "STRLANG", "STRLANGDIR", "TRIPLE", "UCASE")
)
_KEEPING = frozenset(
    ("COALESCE", "CONCAT", "ENCODE_FOR_URI", "IF", "LCASE", "STR", "STRAFTER", "STRBEFORE", "SUBSTR", "UCASE")
)
"""Functions that make nothing but what they are given, and a few signs."""
_TIMES = {"UCASE": 3, "LCASE": 3, "ENCODE_FOR_URI": 12}
"""How many times as long a result may be: case folding, and three signs for each of four bytes."""

Operands = Mapping[Any, Term | None]
"""The terms of the operands, None where unbound."""


@dataclass(frozen=True)
class Bound:
    """characters: of the result at most; total: of all results on the way to it, with it; units: of work, beside."""

    characters: int
    total: int
    units: int = 0


@dataclass
class _Call:
    """A function's call, or a bracket without a name. start, end: its tokens; arguments: what stands in it."""

    name: str
    start: int
    end: int = 0
    arguments: list[list[Any]] = field(default_factory=lambda: [[]])


@dataclass(frozen=True)
class Piece:
    """A call, or the rest of an expression. parts: its tokens, with the operands that stand for inner pieces."""

    parts: tuple[Any, ...]
    inner: tuple[tuple[Variable, Piece], ...]


class Costs:
    """The bounds of one expression, given as its tokens."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = tuple(parts)
        self._root = _read(self._parts)
        calls = list(_calls(self._root))
        self.growing = any(call.name in _GROWING or call.name in _PATTERNED for call in calls)
        """Whether the result may be longer than the operands together, or the work more than their length."""
        self.computed_pattern = any(
            call.name in _PATTERNED and len(call.arguments) > 1 and not _leaf(call.arguments[1]) for call in calls
        )
        """Whether no bound is known before a pattern is."""
        self.calls = len(calls)

    def bound(self, operands: Operands) -> Bound:
        """An upper bound of what the evaluation with these operands makes."""
        return _sequence(self._root, operands)

    def pieces(self) -> Piece:
        """The expression taken apart at the calls whose results may be long, or whose patterns are to be known."""
        return _piece(self._parts, self._root, 0, len(self._parts))


def only_known_functions(parts: Sequence[Any]) -> bool:
    """Whether an expression calls SPARQL's functions and casts alone; the store has others, whose cost is not known."""
    following = (*parts[1:], "")
    return not any(
        after == "(" and isinstance(part, str) and part[0] == "<" and len(part) > 1 and not part.startswith(f"<{XSD}")
        for part, after in zip(parts, following, strict=True)
        if part not in ("<", "<=")
    )


def _read(parts: Sequence[Any]) -> list[Any]:
    stack = [_Call("", 0)]
    for position, part in enumerate(parts):
        call = stack[-1]
        if part == "(":
            before = parts[position - 1] if position else ""
            named = isinstance(before, str) and (before.isidentifier() or (before[0:1] == "<" and len(before) > 2))
            inner = _Call(before.upper() if named else "", position - named)
            if named:
                call.arguments[-1].pop()
            call.arguments[-1].append(inner)
            stack.append(inner)
        elif part == ")" and len(stack) > 1:
            stack.pop().end = position + 1
        elif part == ",":
            call.arguments.append([])
        else:
            call.arguments[-1].append(part)
    return [member for argument in stack[0].arguments for member in argument]


def _calls(sequence: Sequence[Any]) -> Iterator[_Call]:
    for member in sequence:
        if isinstance(member, _Call):
            yield member
            for argument in member.arguments:
                yield from _calls(argument)


def _leaf(sequence: Sequence[Any]) -> bool:
    return len(sequence) == 1 and not isinstance(sequence[0], _Call)


def _text(member: Any, operands: Operands) -> Term:
    """The term or the token that a leaf stands for, empty where it is unbound."""
    if isinstance(member, (Variable, Constant, Exists)):
        return operands.get(member) or ""
    return str(member)


def _sequence(sequence: Sequence[Any], operands: Operands) -> Bound:
    if len(sequence) == 1:
        return _member(sequence[0], operands)
    found = [_member(member, operands) for member in sequence]
    return Bound(_MADE_MAX, _MADE_MAX + sum(one.total for one in found), sum(one.units for one in found))


def _member(member: Any, operands: Operands) -> Bound:
    if not isinstance(member, _Call):
        length = len(_text(member, operands))
        return Bound(length, length)
    found = [_sequence(argument, operands) for argument in member.arguments]
    total, units = sum(one.total for one in found), sum(one.units for one in found)
    if not member.name:
        return Bound(found[0].characters if len(found) == 1 else _MADE_MAX, total, units)
    characters = _TIMES.get(member.name, 1) * sum(one.characters for one in found)
    characters += 8 if member.name in _KEEPING else _MADE_MAX
    if member.name in _PATTERNED and len(found) > 1:
        pattern = _text(member.arguments[1][0], operands) if _leaf(member.arguments[1]) else ""
        units += pattern_units(pattern, found[0].characters)
        if member.name == "REGEX":
            characters = _MADE_MAX
        elif len(found) > 2:
            put = _text(member.arguments[2][0], operands) if _leaf(member.arguments[2]) else None
            characters = _replaced(found[0].characters, found[2].characters, put)
    return Bound(characters, total + characters, units)


def _replaced(subject: int, put: int, text: Term | None) -> int:
    """Characters that REPLACE makes at most; text: what is put in for each match, where it is known."""
    groups = put if text is None else text.count("$")
    return (subject + 1) * (put + 1) + subject * groups


# --- patterns ---------------------------------------------------------------------------------------

_ATOM = re.compile(
    r"(?P<repeat>\{[0-9]+(?:,[0-9]*)?\})|(?P<open>\()|(?P<close>\))|(?P<large>\\[wWpP])|(?P<small>\\[dDsSbB])"
    r"|(?P<set>\[(?:[^\]\\]|\\.)*\]?)|(?P<dot>\.)|(?P<other>\\?.)",
    re.S,
)
_COMPILED = {"large": 1200, "small": 150, "set": 80, "dot": 80, "other": 25}
"""Units that it takes to compile one of these, as measured; a set with a large class in it counts as that."""
_COMPILED_MAX = 300_000
"""Beyond, the store gives up: what it compiles must not take 10 MB."""
_STATES_PER_UNIT = 10
"""States of a pattern that look at a character in one unit of time, at worst."""


def pattern_units(pattern: Term, subject: int) -> int:
    """The work of compiling a pattern, and of looking for it in a text of so many characters."""
    text = lexical(pattern) if is_literal(pattern) else ""
    stack = [[0, 0]]  # for each open bracket: units and states
    last = [0, 0]  # of what a repetition repeats
    for found in _ATOM.finditer(text):
        kind = found.lastgroup
        if kind == "open":
            stack.append([0, 0])
            last = [25, 1]
        elif kind == "repeat":
            times = (
                max(int(number or 0) for number in found.group()[1:-1].split(",")) if len(found.group()) < 9 else 10**6
            )
            more = max(0, times - 1)
            last = [last[0] * more, last[1] * more]
        elif kind == "close" and len(stack) > 1:
            last = stack.pop()
        else:
            assert kind is not None
            one = _COMPILED.get(kind, 25)
            if kind == "set" and re.search(r"\\[wWpP]|\[:", found.group()):
                one = _COMPILED["large"]
            last = [one + len(found.group()), 1]
        stack[-1][0] = min(stack[-1][0] + last[0], _COMPILED_MAX)
        stack[-1][1] = min(stack[-1][1] + last[1], 10**6)
    units = sum(one for one, _ in stack)
    states = sum(its for _, its in stack)
    return min(units, _COMPILED_MAX) + 25 * len(text) + states * subject // _STATES_PER_UNIT


# --- pieces -----------------------------------------------------------------------------------------


def _piece(parts: Sequence[Any], sequence: Sequence[Any], start: int, end: int) -> Piece:
    cuts = list(_cuts(sequence))
    found: list[Any] = []
    inner = []
    position = start
    for call in cuts:
        name = Variable(f"piece {call.start}")
        members = [member for argument in call.arguments for member in argument]
        inner.append((name, _piece(parts, members, call.start, call.end)))
        found += [*parts[position : call.start], name]
        position = call.end
    return Piece((*found, *parts[position:end]), tuple(inner))


def _cuts(sequence: Sequence[Any]) -> Iterator[_Call]:
    """The outermost calls in a sequence that are pieces of their own."""
    for member in sequence:
        if isinstance(member, _Call):
            if member.name in _GROWING or member.name in _PATTERNED:
                yield member
            else:
                for argument in member.arguments:
                    yield from _cuts(argument)
