"""Boundaries: the instant at which a comparison with the clock begins or ceases to hold for given operands.

Sums of instants and durations, or of integers and decimals, are solved for the clock here; summands without the clock
are evaluated once. For other values the store decides: the comparison changes once, so the instant is found by
bisection over the years 1 to 9999. The store's evaluation defines the result in any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any

from lamplighter.engine.matching import expressions
from lamplighter.engine.sparql.algebra import Constant, Expression, Variable, without_brackets
from lamplighter.engine.sparql.clock_conditions import NOW, ClockCondition, binary_signs, outside
from lamplighter.engine.sparql.clock_function import CLOCK, EPOCH, date_time, microseconds
from lamplighter.engine.terms import XSD, Term
from lamplighter.engine.work import Meter

FIRST = microseconds(datetime(1, 1, 1, tzinfo=UTC))
LAST = microseconds(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
# The boundaries before and behind all instants.
BEFORE, AFTER = FIRST - 1, LAST + 1

_MICROSECOND = timedelta(microseconds=1)
_DATE_TIME = re.compile(rf'"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:]{{8}}(?:\.[0-9]{{1,6}})?Z)"\^\^<{XSD}dateTime>')
_DURATION = re.compile(
    r'"P(?:([0-9]{1,6})D)?(?:T(?:([0-9]{1,8})H)?(?:([0-9]{1,8})M)?(?:([0-9]{1,9})(?:\.([0-9]{1,6}))?S)?)?"'
    rf"\^\^<{XSD}(?:dayTimeD|d)uration>"
)
_ORDER = ("<", "<=", ">", ">=")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT = Context(prec=60)
# Sizes up to which sums are solved here: the store's integers and decimals hold them, in any order.
_SIZE_MAX = 10**16

# (terms of the operands) -> microseconds since 1970, from `BEFORE` to `AFTER`.
Boundary = Callable[..., int]


def boundary(condition: ClockCondition, operands: Sequence[Variable | Constant | Term], meter: Meter) -> Boundary:
    """The function from the operands' terms to the first instant at which an opening condition holds, or at which a
    closing one does not hold any more.

    operands: as the condition names them. meter: counts what the store evaluates; the function raises TooMuchWork.
    """
    searched = _searched_boundary(condition, operands, meter)
    solved = _solved_boundary(condition, operands, meter)
    if solved is None:
        return searched

    def first_instant(*terms: Term) -> int:
        instant = solved(*terms)
        if instant is None:
            return searched(*terms)
        return BEFORE if instant <= FIRST else min(instant, AFTER)

    return first_instant


def instant_term(function: Term, instant: int) -> Term:
    """The value of a clock function. instant: microseconds since 1970."""
    if function == CLOCK:
        return f'"{instant}"^^<{XSD}integer>'
    return date_time(EPOCH + timedelta(microseconds=instant))


def _searched_boundary(condition: ClockCondition, operands: Sequence[Any], meter: Meter) -> Boundary:
    expression = Expression(_subtracting(condition.parts))
    order = expressions.operands(expression)
    holds = expressions.condition(expression, meter)
    places = [None if operand == NOW else operands.index(operand) for operand in order]

    def search(*terms: Term) -> int:
        def has_changed(instant: int) -> bool:
            now = instant_term(condition.function, instant)
            given = [now if place is None else terms[place] for place in places]
            return holds(*given) == condition.opens

        if not has_changed(LAST):
            return AFTER
        low, high = BEFORE, LAST  # changed at high, not at low
        while high - low > 1:
            middle = (low + high) // 2
            if has_changed(middle):
                high = middle
            else:
                low = middle
        return BEFORE if high == FIRST else high

    return search


def _subtracting(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The tokens with ``- (- y)`` for ``+ y``: the store sorts summands, and cannot add a dateTime to a duration."""
    found: list[Any] = []
    for place, part in enumerate(parts):
        if place and parts[place - 1] == "+" and place > 1 and isinstance(part, (Variable, Constant)):
            found[-1:] = ["-", "(", "-", part, ")"]
        else:
            found.append(part)
    return tuple(found)


# --- sums, solved for the clock ---

_Value = tuple[str, int, Any]
"""What an expression is at every instant: its kind, how often the clock is in it, and the rest.

Kinds: instant and duration in microseconds, number as int or Decimal.
"""


# The sign of a summand, and its place among the operands or its value by their terms; neither for the clock.
_Summand = tuple[int, int | None, Callable[..., Term | None] | None]


def _solved_boundary(
    condition: ClockCondition, operands: Sequence[Any], meter: Meter
) -> Callable[..., int | None] | None:
    """The boundary as a function that returns None for terms of other types; None for other expressions."""
    parts = condition.parts
    sign = next(place for place in outside(parts) if parts[place] in _ORDER)
    left, right = (_sum(side, operands, meter) for side in (parts[:sign], parts[sign + 1 :]))
    if left is None or right is None:
        return None
    now: _Value = ("number", 1, 0) if condition.function == CLOCK else ("instant", 1, 0)
    rising = parts[sign]

    def value(summands: Sequence[_Summand], terms: Sequence[Term]) -> _Value | None:
        total: _Value | None = None
        for times, place, compute in summands:
            if place is not None:
                one = _value(terms[place])
            elif compute is None:
                one = now
            else:
                term = compute(*terms)
                one = None if term is None else _value(term)
            if one is None:
                return None
            total = one if total is None else _add(total, one, times)
            if total is None:
                return None
        return total

    def solve(*terms: Term) -> int | None:
        one, other = value(left, terms), value(right, terms)
        if one is None or other is None or one[0] != other[0]:
            return None
        # (slope of one) * clock + one  <operator>  (slope of the other) * clock + other
        if one[1] - other[1] == 1:
            edge, operator = other[2] - one[2], rising
        elif one[1] - other[1] == -1:
            edge, operator = one[2] - other[2], _TURNED[rising]
        else:
            return None
        if operator in (">=", "<"):
            return edge if isinstance(edge, int) else int(edge.to_integral_value(ROUND_CEILING))
        return (edge if isinstance(edge, int) else int(edge.to_integral_value(ROUND_FLOOR))) + 1

    return solve


def _sum(parts: Sequence[Any], operands: Sequence[Any], meter: Meter) -> list[_Summand] | None:
    """The summands of an expression; None if the clock is within brackets, beside other summands."""
    inner = without_brackets(parts)
    signs = binary_signs(inner)
    summands: list[_Summand] = []
    for first, last in zip([-1, *signs], [*signs, len(inner)], strict=True):
        summand = without_brackets(inner[first + 1 : last])
        times = -1 if first >= 0 and inner[first] == "-" else 1
        if summand == (NOW,):
            summands.append((times, None, None))
        elif NOW in summand:
            return None
        elif len(summand) == 1 and isinstance(summand[0], (Variable, Constant)):
            summands.append((times, operands.index(summand[0]), None))
        else:
            summands.append((times, None, _summand(summand, operands, meter)))
    return summands


def _summand(parts: tuple[Any, ...], operands: Sequence[Any], meter: Meter) -> Callable[..., Term | None]:
    """The value of a summand without the clock."""
    [part] = parts if len(parts) == 1 else (None,)
    if isinstance(part, str) and part[:1] == '"':
        return lambda *terms: part
    expression = Expression(_subtracting(parts))
    places = [operands.index(operand) for operand in expressions.operands(expression)]
    evaluated = expressions.value(expression, meter)
    return lambda *terms: evaluated(*[terms[place] for place in places])


def _add(one: _Value, other: _Value, times: int) -> _Value | None:
    """The sum or difference, None where the store decides."""
    kind, slope, rest = one
    kinds = kind, other[0]
    if kinds == ("instant", "instant"):
        if times == 1:
            return None
        kind = "duration"
    elif kinds not in (("instant", "duration"), ("duration", "duration"), ("number", "number")):
        return None
    if kind == "number" and not (isinstance(rest, int) and isinstance(other[2], int)):
        return kind, slope + times * other[1], _EXACT.add(Decimal(rest), times * Decimal(other[2]))
    if kind == "duration" and kinds[0] == "duration" and times == -1:
        return None  # a negative duration, whose arithmetic the store may refuse
    return kind, slope + times * other[1], rest + times * other[2]


@lru_cache(maxsize=8192)
def _value(term: Term) -> _Value | None:
    """The value of an instant, a duration or a number that is solved here; None for another term."""
    if term.endswith("dateTime>"):
        found = _DATE_TIME.fullmatch(term)
        if found is None:
            return None
        try:
            return "instant", 0, (datetime.fromisoformat(found[1]) - EPOCH) // _MICROSECOND
        except ValueError:
            return None
    if term.endswith("uration>"):
        found = _DURATION.fullmatch(term)
        if found is None:
            return None
        days, hours, minutes, seconds = (int(found[group] or 0) for group in (1, 2, 3, 4))
        fraction = int((found[5] or "").ljust(6, "0"))
        return "duration", 0, (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction
    number = expressions.number(term)
    return None if number is None or not -_SIZE_MAX < number < _SIZE_MAX else ("number", 0, number)
