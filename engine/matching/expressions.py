"""Expressions of FILTER, BIND and projections -> functions of terms.

The store defines what an expression means, down to the comparison of a language-tagged string with a number. So the
store evaluates it, over an empty dataset and with the operands substituted, and the values are cached. Only comparisons
of IRIs, plain strings, integers and decimals, which are unambiguous, are done here.

An evaluation by the store cannot be interrupted, so its cost is bounded and counted before (`engine.matching.costs`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.matching.costs import CHARACTERS_MAX, PIECES_CHARACTERS_MIN, Costs, Piece
from lamplighter.engine.sparql.algebra import Constant, Exists, Expression, Function, Variable, without_brackets
from lamplighter.engine.sparql.lexer import join_tokens
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import XSD, Term
from lamplighter.engine.work import CALL, CHARACTERS_PER_UNIT, EVALUATION, Meter, TooMuchWork

# Operand tuples in the cache of one expression.
MEMO = 1024

# Characters of the longest operand and the longest value that are cached.
TERM_MAX = 256

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
_INTEGER, _DECIMAL = f'"^^<{XSD}integer>', f'"^^<{XSD}decimal>'
_EMPTY = ox.Store()
_NativeTerm = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple


def _native(term: Term) -> _NativeTerm:
    quad: ox.Quad = next(iter(ox.parse(f"<urn:s> <urn:p> {term} .", format=ox.RdfFormat.N_TRIPLES)))
    return quad.object


def operands(expression: Expression) -> tuple[Operand, ...]:
    """The operands with which the functions below are called, in order."""
    found = (part for part in expression.parts if isinstance(part, (Variable, Constant, Exists)))
    return tuple(dict.fromkeys(found))


def value(expression: Expression, meter: Meter) -> Callable[..., Term | None]:
    """A function from the operands' terms (None if unbound) to the expression's term, None for an error.

    meter: counts the work. The function raises TooMuchWork.
    """
    return _evaluator(expression, "({})", meter)


def condition(expression: Expression, meter: Meter) -> Callable[..., bool]:
    """A function from the operands' terms to whether the effective boolean value is true; false for an error.

    meter: counts the work. The function raises TooMuchWork.
    """
    parts = without_brackets(expression.parts)
    evaluated = _evaluator(expression, "IF(({}), true, false)", meter)

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
        return _comparison(str(parts[1]), ask, meter)
    return ask


def _comparison(sign: str, ask: Callable[..., bool], meter: Meter) -> Callable[[Term | None, Term | None], bool]:
    compare = _COMPARISONS[sign]
    equality = sign in ("=", "!=")

    def compare_terms(left: Term | None, right: Term | None) -> bool:
        if left is None or right is None:
            return False
        # A short comparison costs a call; long texts cost their characters.
        meter.left -= CALL + (len(left) >> 12)
        if meter.left < 0:
            meter.more()
        # IRIs and blank nodes are equal if they are the same term. Literals are compared by value, and only some kinds
        # here.
        if equality and (left[0] in "<_" and right[0] in "<_" and not left.startswith("<<")):
            return compare(left, right) if not right.startswith("<<") else ask(left, right)
        # Plain strings: no language, no datatype.
        if equality and left[-1] == '"' and right[-1] == '"':
            return compare(left, right)
        left_number = number(left)
        if left_number is not None:
            right_number = number(right)
            if right_number is not None:
                return compare(left_number, right_number)
        return ask(left, right)

    return compare_terms


def number(term: Term) -> int | Decimal | None:
    """The value of an xsd:integer or xsd:decimal within the store's exact range; None for any other term."""
    return _number(term) if len(term) < 100 else None


@lru_cache(maxsize=8192)
def _number(term: Term) -> int | Decimal | None:
    try:
        if term.endswith(_INTEGER):
            # 64 bits, as the store computes; larger ones are left to it.
            integer = int(term[1 : -len(_INTEGER)])
            return integer if -(2**63) <= integer < 2**63 else None
        if term.endswith(_DECIMAL):
            text = term[1 : -len(_DECIMAL)]
            return Decimal(text) if len(text) <= 30 and text.strip("-0123456789.") == "" else None
    except (ValueError, ArithmeticError):
        return None
    return None


def _evaluator(expression: Expression, frame: str, meter: Meter) -> Callable[..., Term | None]:
    found = operands(expression)
    costs = Costs(expression.parts)
    whole = _store_evaluator(expression.parts, found, frame)
    taken_apart: list[_Pieces] = []

    @lru_cache(maxsize=MEMO)
    def evaluate(*terms: Term | None) -> Term | None:
        if not costs.growing:
            characters = sum([len(term) for term in terms if term is not None])
            meter.take(EVALUATION + (1 + costs.calls) * characters // CHARACTERS_PER_UNIT)
            term = whole(*terms)
        else:
            values = dict(zip(found, terms, strict=True))
            bound = costs.upper_bound(values)
            if costs.computed_pattern or bound.total > PIECES_CHARACTERS_MIN:
                if not taken_apart:
                    taken_apart.append(_Pieces(costs.pieces(), frame, meter))
                term = taken_apart[0].value(values)
            else:
                meter.take(EVALUATION + bound.units + bound.total // CHARACTERS_PER_UNIT)
                term = whole(*terms)
        if term is not None and len(term) > TERM_MAX:
            raise _LongValueError(term)  # the cache keeps no call that raises
        return term

    def evaluate_cached(*terms: Term | None) -> Term | None:
        meter.left -= CALL
        if meter.left < 0:
            meter.more()
        try:
            # Long terms would fill the memory of the cache.
            if any(term is not None and len(term) > TERM_MAX for term in terms):
                return evaluate.__wrapped__(*terms)
            return evaluate(*terms)
        except _LongValueError as long:
            return long.term

    return evaluate_cached


def _store_evaluator(parts: Sequence[Any], found: Sequence[Operand], frame: str) -> Callable[..., Term | None]:
    """A function from terms to the value of an expression, evaluated by the store. found: the operands, in order."""
    variables = [ox.Variable(f"v{index}") for index in range(len(found))]
    names = {operand: f"?v{index}" for index, operand in enumerate(found)}
    words = []
    for part in parts:
        assert not isinstance(part, Function), "functions are named by now"
        words.append(part if isinstance(part, str) else names[part])
    projection = " ".join(f"?v{index}" for index in range(len(variables)))
    # The store's optimizer treats a variable that no pattern binds as unbound, even if a term is substituted for it.
    # The patterns have no other effect, since the dataset is empty.
    patterns = " . ".join(f"<urn:s> <urn:p> ?v{index}" for index in range(len(variables)))
    text = f"SELECT {projection} ({frame.format(join_tokens(words))} AS ?value) {{ OPTIONAL {{ {patterns} }} }}"

    def ask_store(*terms: Term | None) -> Term | None:
        bound = {variable: _native(term) for variable, term in zip(variables, terms, strict=True) if term is not None}
        solutions = _EMPTY.query(text, substitutions=bound)
        assert isinstance(solutions, ox.QuerySolutions)
        value = next(iter(solutions))["value"]
        return None if value is None else term_text(value)

    return ask_store


class _Pieces:
    """An expression that is evaluated call by call, so that each call's bound follows from its actual operands."""

    def __init__(self, piece: Piece, frame: str, meter: Meter) -> None:
        self._found = operands(Expression(piece.parts))
        self._asked = _store_evaluator(piece.parts, self._found, frame)
        self._costs = Costs(piece.parts)
        self._inner = [(name, _Pieces(inner, "({})", meter)) for name, inner in piece.inner]
        self._meter = meter

    def value(self, values: dict[Operand, Term | None]) -> Term | None:
        """The value of the expression. Raises TooMuchWork.

        values: the terms of its operands; the values of the pieces are added to it.
        """
        for name, inner in self._inner:
            values[name] = inner.value(values)
        bound = self._costs.upper_bound(values)
        if bound.total > CHARACTERS_MAX:
            raise TooMuchWork(
                f"an expression whose texts may have more than {CHARACTERS_MAX} characters; use shorter texts"
            )
        self._meter.take(EVALUATION + bound.units + bound.total // CHARACTERS_PER_UNIT)
        return self._asked(*[values[operand] for operand in self._found])


class _LongValueError(Exception):
    """Carries a value past the cache, because it is too long: REPLACE makes a long text of short ones."""

    def __init__(self, term: Term) -> None:
        self.term = term
