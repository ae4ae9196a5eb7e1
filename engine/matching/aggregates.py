"""Aggregates over the values of a group, as the store computes them (SPARQL 1.1 Query, section 18.5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from sys import maxsize

import pyoxigraph as ox

from lamplighter.engine.matching.expressions import number
from lamplighter.engine.matching.expressions import value as evaluated
from lamplighter.engine.sparql.algebra import Aggregate, Expression, Variable
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import XSD, Term, is_blank
from lamplighter.engine.work import CHARACTERS_PER_UNIT, VALUE, Meter, Work

_EMPTY = ox.Store()
_INEXACT = (f"^^<{XSD}double>", f"^^<{XSD}float>")

_COMPARABLE = ('"', f'Z"^^<{XSD}dateTime>')

AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX")
"""Supported aggregates. Their values are no longer than the longest value of the group."""

Values = Sequence[Term | None]


class UnsupportedAggregateError(Exception):
    """The aggregate's value depends on the order in which the store finds the solutions."""


class OrderMattersError(Exception):
    """The aggregate of these values depends on their order: sums of xsd:double, equal numbers of two types."""

    def __init__(self) -> None:
        super().__init__("an aggregate of values whose order matters")


def compiled(aggregate: Aggregate, meter: Meter) -> Callable[[Values], Term | None]:
    """A function from a group's values (None for an error) to the aggregate's term, None for an error.

    meter: counts the work. Raises UnsupportedAggregateError. The function raises OrderMattersError and TooMuchWork.
    """
    check(aggregate)
    name, distinct = aggregate.name, aggregate.distinct
    if aggregate.argument is None:
        return lambda values: _integer(len(values))

    def compute(values: Values) -> Term | None:
        characters = sum([len(value) for value in values if value is not None])
        meter.take(VALUE * len(values) + characters // CHARACTERS_PER_UNIT)
        if distinct:
            values = list(dict.fromkeys(values))
        if name == "COUNT":
            return _integer(sum(value is not None for value in values))
        if name == "SUM":
            total = _sum_of_integers(values)
            if total is not None:
                return _integer(total)
        return _ask(name, values)

    return compute


def check(aggregate: Aggregate) -> None:
    """Raises UnsupportedAggregateError for an aggregate whose value does not follow from the solutions alone."""
    if aggregate.name not in AGGREGATES:
        raise UnsupportedAggregateError(f"{aggregate.name}, whose value depends on the order of the solutions")
    if aggregate.argument is None and aggregate.distinct:
        raise UnsupportedAggregateError("COUNT(DISTINCT *)")


def _integer(value: int) -> Term:
    return f'"{value}"^^<{XSD}integer>'


def _sum_of_integers(values: Values) -> int | None:
    """The sum of integers that cannot overflow in any order; None for other values."""
    total = size = 0
    for value in values:
        found = None if value is None else number(value)
        if not isinstance(found, int):
            return None
        total += found
        size += abs(found)
    return total if size < 2**63 else None


def _ask(name: str, values: Values) -> Term | None:
    _check_order(name, values)
    rows = " ".join("UNDEF" if value is None else value for value in values)
    solutions = _EMPTY.query(f"SELECT ({name}(?value) AS ?result) {{ VALUES ?value {{ {rows} }} }}")
    assert isinstance(solutions, ox.QuerySolutions)
    result = next(iter(solutions))["result"]
    return None if result is None else term_text(result)


def _check_order(name: str, values: Values) -> None:
    if any(value is not None and (is_blank(value) or value.startswith("<<")) for value in values):
        raise OrderMattersError
    if name in ("SUM", "AVG"):
        if len(values) > 2 and any(value is not None and value.endswith(_INEXACT) for value in values):
            raise OrderMattersError
        return
    different = {value for value in values if value is not None}
    if len(different) > 1:
        numbers = {number(value) for value in different}
        if None in numbers or len(numbers) < len(different):
            # Equal numbers of two types, or terms without an order defined by SPARQL.
            if all(value.endswith(_COMPARABLE) for value in different) or all(value[0] == "<" for value in different):
                return
            raise OrderMattersError


_EXACT = Context(prec=100)
_SIZE_MAX = 10**15
"""Sum of absolute values up to which sums are computed here: none overflows, in any order."""
_quotient = evaluated(Expression((Variable("sum"), "/", Variable("count"))), Meter(Work(maxsize)))


class Accumulator:
    """One aggregate of one group, kept up to date while values are added and removed.

    Counts, and sums and averages of integers and decimals, are updated in constant time. Other aggregates are computed
    again from all values, which are kept with their multiplicity.
    """

    __slots__ = ("_aggregate", "_compute", "_counts", "_decimals", "_size", "_strange", "_total", "_values")

    def __init__(self, aggregate: Aggregate, meter: Meter) -> None:
        self._aggregate = aggregate
        self._compute = compiled(aggregate, meter)
        self._values: Counter[Term | None] = Counter()
        self._counts = 0  # values without the errors
        self._total = Decimal(0)
        self._size = Decimal(0)  # sum of the absolute values
        self._decimals = 0
        self._strange = 0  # values that are neither integer nor decimal

    def add(self, value: Term | None, times: int) -> None:
        """Adds a value (times 1) or removes it (times -1)."""
        known = self._values[value] + times
        if known:
            self._values[value] = known
        else:
            del self._values[value]
        if self._aggregate.distinct and known != (times > 0):  # not its first or last occurrence
            return
        self._counts += times * (value is not None)
        found = None if value is None else number(value)
        if found is None:
            self._strange += times
            return
        self._total = _EXACT.add(self._total, times * Decimal(found))
        self._size = _EXACT.add(self._size, times * abs(Decimal(found)))
        self._decimals += times * isinstance(found, Decimal)

    def result(self, rows: int) -> Term | None:
        """The aggregate's value. rows: the number of solutions in the group. Raises OrderMattersError, TooMuchWork."""
        aggregate = self._aggregate
        if aggregate.argument is None:
            return _integer(rows)
        if aggregate.name == "COUNT":
            return _integer(self._counts)
        if aggregate.name in ("SUM", "AVG") and not self._strange and self._size < _SIZE_MAX:
            total = self._sum()
            if aggregate.name == "SUM" or not self._counts:
                return total
            return _quotient(total, _integer(self._counts))
        return self._compute(list(self._values) if aggregate.distinct else list(self._values.elements()))

    def _sum(self) -> Term:
        if not self._decimals:
            return _integer(int(self._total))
        text = f"{self._total:f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return f'"{text or "0"}"^^<{XSD}decimal>'
