"""Expressions of FILTER, BIND and projections -> functions of terms.

What an expression means is the store's business, down to the comparison of a language-tagged string with a
number. So an expression is evaluated by the store, over an empty dataset with the operands put in, and its
values are remembered. Only comparisons of IRIs, plain strings, integers and decimals, where nothing can be
read in two ways, are done here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyoxigraph as ox

from engine.algebra import Constant, Exists, Expression, Function, Variable
from engine.lexer import joined
from engine.store import term_text
from engine.terms import Term

MEMO = 1024
"""Operand tuples whose value is remembered, for each expression."""

TERM_MAX = 256
"""Characters of the longest operand and the longest value for which that is done."""

Operand = Variable | Constant | Exists
TRUE, FALSE = (f'"{value}"^^<http://www.w3.org/2001/XMLSchema#boolean>' for value in ("true", "false"))

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EMPTY = ox.Store()
_NativeTerm = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple


def _native(term: Term) -> _NativeTerm:
    quad: ox.Quad = next(iter(ox.parse(f"<urn:s> <urn:p> {term} .", format=ox.RdfFormat.N_TRIPLES)))
    return quad.object


def operands(expression: Expression) -> tuple[Operand, ...]:
    """What the functions below are to be called with, in this order."""
    found = (part for part in expression.parts if isinstance(part, (Variable, Constant, Exists)))
    return tuple(dict.fromkeys(found))


def value(expression: Expression) -> Callable[..., Term | None]:
    """A function of the operands' terms (None where unbound) to the expression's term, None for an error."""
    return _evaluated(expression, "({})")


def condition(expression: Expression) -> Callable[..., bool]:
    """A function of the operands' terms to whether the effective boolean value is true; an error is not."""
    parts = without_brackets(expression.parts)
    evaluated = _evaluated(expression, "IF(({}), true, false)")

    def ask(*terms: Term | None) -> bool:
        return evaluated(*terms) == TRUE

    if len(parts) == 1 and isinstance(parts[0], Exists):
        return lambda term: term == TRUE
    if len(parts) == 4 and isinstance(parts[0], str) and parts[0].upper() == "BOUND":
        return lambda term: term is not None
    if (
        len(parts) == 3
        and isinstance(parts[0], (Variable, Constant))
        and isinstance(parts[2], (Variable, Constant))
        and parts[0] != parts[2]
        and parts[1] in _COMPARISONS
    ):
        return _comparison(str(parts[1]), ask)
    return ask


def without_brackets(parts: Sequence[object]) -> tuple[object, ...]:
    parts = tuple(parts)
    while len(parts) > 2 and parts[0] == "(" and parts[-1] == ")":
        depth = 0
        for part in parts[:-1]:
            depth += (part == "(") - (part == ")")
            if depth == 0:
                return parts
        parts = parts[1:-1]
    return parts


def _comparison(sign: str, ask: Callable[..., bool]) -> Callable[[Term | None, Term | None], bool]:
    compare = _COMPARISONS[sign]
    equality = sign in ("=", "!=")

    def compared(left: Term | None, right: Term | None) -> bool:
        if left is None or right is None:
            return False
        if equality and (left[0] in "<_" and right[0] in "<_" and not left.startswith("<<")):
            return compare(left, right) if not right.startswith("<<") else ask(left, right)
        if equality and left[-1] == '"' and right[-1] == '"':
            return compare(left, right)
        left_number = number(left)
        if left_number is not None:
            right_number = number(right)
            if right_number is not None:
                return compare(left_number, right_number)
        return ask(left, right)

    return compared


def number(term: Term) -> int | Decimal | None:
    """The value of an xsd:integer or xsd:decimal that the store computes with exactly; None for anything else."""
    return _number(term) if len(term) < 100 else None


@lru_cache(maxsize=8192)
def _number(term: Term) -> int | Decimal | None:
    try:
        if term.endswith("#integer>") and term.endswith('"^^<http://www.w3.org/2001/XMLSchema#integer>'):
            integer = int(term[1:-44])
            return integer if -(2**63) <= integer < 2**63 else None
        if term.endswith("#decimal>") and term.endswith('"^^<http://www.w3.org/2001/XMLSchema#decimal>'):
            text = term[1:-44]
            return Decimal(text) if len(text) <= 30 and text.strip("-0123456789.") == "" else None
    except (ValueError, ArithmeticError):
        return None
    return None


def _evaluated(expression: Expression, frame: str) -> Callable[..., Term | None]:
    variables = [ox.Variable(f"v{index}") for index in range(len(operands(expression)))]
    names = {operand: f"?v{index}" for index, operand in enumerate(operands(expression))}
    parts = []
    for part in expression.parts:
        assert not isinstance(part, Function), "functions are named by now"
        parts.append(part if isinstance(part, str) else names[part])
    projection = " ".join(f"?v{index}" for index in range(len(variables)))
    # To the store's optimizer, a variable that no pattern binds is unbound, whatever is put in for it; the dataset
    # is empty, so the patterns do nothing else.
    patterns = " . ".join(f"<urn:s> <urn:p> ?v{index}" for index in range(len(variables)))
    text = f"SELECT {projection} ({frame.format(joined(parts))} AS ?value) {{ OPTIONAL {{ {patterns} }} }}"

    @lru_cache(maxsize=MEMO)
    def evaluated(*terms: Term | None) -> Term | None:
        bound = {variable: _native(term) for variable, term in zip(variables, terms, strict=True) if term is not None}
        solutions = _EMPTY.query(text, substitutions=bound)
        assert isinstance(solutions, ox.QuerySolutions)
        found = next(iter(solutions))["value"]
        term = None if found is None else term_text(found)
        if term is not None and len(term) > TERM_MAX:
            raise _LongValueError(term)  # what raises is not remembered
        return term

    def remembered(*terms: Term | None) -> Term | None:
        try:
            if any(term is not None and len(term) > TERM_MAX for term in terms):
                return evaluated.__wrapped__(*terms)
            return evaluated(*terms)
        except _LongValueError as long:
            return long.term

    return remembered


class _LongValueError(Exception):
    """A value that is not to be remembered: REPLACE makes a long text of short ones."""

    def __init__(self, term: Term) -> None:
        self.term = term
