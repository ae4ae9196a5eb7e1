"""Bounds on the cost of an expression, computed before the store evaluates it, because that cannot be interrupted.

The bound counts characters: those of the operands, and those of the results of all calls within the expression. It
follows from the lengths of the operands and from how much each function can lengthen them, so nested REPLACE calls
multiply. An expression with a large bound is evaluated call by call (`Costs.pieces`); each call's bound then follows
from its actual operands, and is close to the real cost.

Matching a regular expression takes time linear in the text, times the states of the pattern: counted repetitions are
expanded into states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamplighter.engine.sparql.algebra import Constant, Exists, Variable
from lamplighter.engine.terms import XSD, Term, is_literal, lexical

# The largest bound for which an expression is evaluated as a whole.
PIECES_CHARACTERS_MIN = 64 * 1024
# The largest bound of a call that the store evaluates.
CHARACTERS_MAX = 16 * 1024 * 1024

# Characters of the longest result of operators and other functions: numbers, dates, digests.
_MADE_MAX = 512
_PATTERNED = frozenset(("REGEX", "REPLACE"))
_GROWING = frozenset(
    ("CONCAT", "ENCODE_FOR_URI", "LCASE", "REPLACE", "STRDT", "STRLANG", "STRLANGDIR", "TRIPLE", "UCASE")
)
# Functions whose result consists of their operands and a few more characters.
_KEEPING = frozenset(
    ("COALESCE", "CONCAT", "ENCODE_FOR_URI", "IF", "LCASE", "STR", "STRAFTER", "STRBEFORE", "SUBSTR", "UCASE")
)
# Factor by which a result may be longer than the operand: case folding; %XX for each of four UTF-8 bytes.
_TIMES = {"UCASE": 3, "LCASE": 3, "ENCODE_FOR_URI": 12}

# Operand -> term, None if unbound.
Operands = Mapping[Any, Term | None]


@dataclass(frozen=True)
class Bound:
    """characters: of the result; total: of all intermediate results and the result; units: of further work."""

    characters: int
    total: int
    units: int = 0


@dataclass
class _Call:
    """A function call, or a bracket without a name. start, end: its tokens; arguments: the members of each argument."""

    name: str
    start: int
    end: int = 0
    arguments: list[list[Any]] = field(default_factory=lambda: [[]])


@dataclass(frozen=True)
class Piece:
    """A call, or the rest of an expression. parts: its tokens, where operands stand for the inner pieces."""

    parts: tuple[Any, ...]
    inner: tuple[tuple[Variable, Piece], ...]


class Costs:
    """The bounds of one expression, given as its tokens.

    growing: whether the result may be longer than the operands together, or the work more than their length.
    computed_pattern: whether a regular expression is computed, so that no bound is known before its value is.
    calls: the number of calls and brackets.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = tuple(parts)
        self._root = _read_calls(self._parts)
        calls = list(_calls(self._root))
        self.growing = any(call.name in _GROWING or call.name in _PATTERNED for call in calls)
        self.computed_pattern = any(
            call.name in _PATTERNED and len(call.arguments) > 1 and not _leaf(call.arguments[1]) for call in calls
        )
        self.calls = len(calls)

    def upper_bound(self, operands: Operands) -> Bound:
        """An upper bound on the cost of evaluating the expression with these operands."""
        return _sequence(self._root, operands)

    def pieces(self) -> Piece:
        """The expression, cut at the calls that may have long results or that match regular expressions."""
        return _piece(self._parts, self._root, 0, len(self._parts))


def only_known_functions(parts: Sequence[Any]) -> bool:
    """Whether an expression calls only functions and casts of SPARQL. The store's own have no known bound."""
    following = (*parts[1:], "")
    return not any(
        after == "(" and isinstance(part, str) and part[0] == "<" and len(part) > 1 and not part.startswith(f"<{XSD}")
        for part, after in zip(parts, following, strict=True)
        if part not in ("<", "<=")
    )


def _read_calls(parts: Sequence[Any]) -> list[Any]:
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
    """The term or the token of a leaf, empty if unbound."""
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
            characters = _replace_size(found[0].characters, found[2].characters, put)
    return Bound(characters, total + characters, units)


def _replace_size(subject: int, put: int, text: Term | None) -> int:
    """An upper bound on the characters of REPLACE's result. text: the replacement, None if it is computed."""
    groups = put if text is None else text.count("$")
    return (subject + 1) * (put + 1) + subject * groups


# --- patterns ---------------------------------------------------------------------------------------

_ATOM = re.compile(
    r"(?P<repeat>\{[0-9]+(?:,[0-9]*)?\})|(?P<open>\()|(?P<close>\))|(?P<large>\\[wWpP])|(?P<small>\\[dDsSbB])"
    r"|(?P<set>\[(?:[^\]\\]|\\.)*\]?)|(?P<dot>\.)|(?P<other>\\?.)",
    re.S,
)
# Measured units of compiling one atom, by kind. A set that contains a large class counts as one.
_COMPILED = {"large": 1200, "small": 150, "set": 80, "dot": 80, "other": 25}
# Units of the largest pattern that the store compiles: it refuses compiled patterns of more than 10 MB.
_COMPILED_MAX = 300_000
# Pattern states that advance by one character in one unit, in the worst case.
_STATES_PER_UNIT = 10


def pattern_units(pattern: Term, subject: int) -> int:
    """Units of compiling a pattern and of matching it against a text of subject characters."""
    text = lexical(pattern) if is_literal(pattern) else ""
    stack = [[0, 0]]  # units and states of each open bracket
    last = [0, 0]  # of the last atom, which a repetition repeats
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
    """The outermost calls in a sequence that become pieces."""
    for member in sequence:
        if isinstance(member, _Call):
            if member.name in _GROWING or member.name in _PATTERNED:
                yield member
            else:
                for argument in member.arguments:
                    yield from _cuts(argument)
