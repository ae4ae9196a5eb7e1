"""Aggregates over the values of a group (SPARQL 1.1 Query, section 18.5.1).

They are those of the store, but for three that depend on the order of its quads. A sum with floats or doubles is exact
(`engine.matching.sums`). Of equal numbers of different types, MIN is the first and MAX the last as N-Triples text.
GROUP_CONCAT joins the texts in their order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.matching.costs import CHARACTERS_MAX
from lamplighter.engine.matching.expressions import number
from lamplighter.engine.matching.expressions import value as evaluated
from lamplighter.engine.matching.sums import EXACT_MAX, ExactSum
from lamplighter.engine.matching.values import FIRST_LITERAL, comparable, exact, order_key, real
from lamplighter.engine.sparql.algebra import Aggregate, Expression, Variable
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import XSD, Term
from lamplighter.engine.work import CHARACTERS_PER_UNIT, VALUE, Meter, TooMuchWork, Work

_EMPTY = ox.Store()

# Supported aggregates whose values are no longer than the longest value of the group.
AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX")
CONCATENATION = "GROUP_CONCAT"

Values = Sequence[Term | None]


class UnsupportedAggregateError(Exception):
    """The aggregate's value depends on the order in which the store finds the solutions."""


class OrderMattersError(Exception):
    """The store's aggregate of these values depends on their order: overflowing sums, terms that do not compare."""

    def __init__(self) -> None:
        super().__init__("an aggregate of values whose order matters")


def compile_aggregate(aggregate: Aggregate, meter: Meter) -> Callable[[Values], Term | None]:
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
        accumulator = Accumulator(aggregate, meter)
        for value in values:
            accumulator.add(value, 1)
        return accumulator.result(len(values))

    return compute


def check(aggregate: Aggregate) -> None:
    """Raises UnsupportedAggregateError for an aggregate whose value does not follow from the solutions alone."""
    if aggregate.name not in (*AGGREGATES, CONCATENATION):
        raise UnsupportedAggregateError(f"{aggregate.name}, whose value depends on the order of the solutions")
    # It counts different solutions, with variables that the projection hides.
    if aggregate.argument is None and aggregate.distinct:
        raise UnsupportedAggregateError("COUNT(DISTINCT *)")


def differs(aggregate: Aggregate) -> bool:
    """Whether the store may give another value that is as right."""
    return aggregate.name != "COUNT"


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
        # The sum of magnitudes bounds each partial sum, whatever the order.
        size += abs(found)
    return total if size < 2**63 else None


def _ask(name: str, values: Sequence[Term]) -> Term | None:
    """The store's sum or average of integers and decimals."""
    solutions = _EMPTY.query(f"SELECT ({name}(?value) AS ?result) {{ VALUES ?value {{ {' '.join(values)} }} }}")
    assert isinstance(solutions, ox.QuerySolutions)
    result = next(iter(solutions))["result"]
    return None if result is None else term_text(result)


# AVG of the store rounds as its division does, so its own operator is asked.
_quotient = evaluated(Expression((Variable("sum"), "/", Variable("count"))), Meter(Work(maxsize)))


class Accumulator:
    """One aggregate of one group, kept up to date while values are added and removed.

    Counts, sums and averages are updated in constant time, MIN and MAX by a search in the ordered values. Sums of very
    large integers and decimals are computed again from all values, which are kept with their multiplicity. The texts of
    GROUP_CONCAT are kept in order, and joined for each result.
    """

    __slots__ = ("_aggregate", "_meter", "_ordered", "_present", "_strange", "_sum", "_values")

    def __init__(self, aggregate: Aggregate, meter: Meter) -> None:
        self._aggregate = aggregate
        self._meter = meter
        self._values: Counter[Term | None] = Counter()
        self._present = 0  # values without the errors
        self._strange = 0  # errors, and values that are no numbers for sums or no texts for GROUP_CONCAT
        self._sum = ExactSum() if aggregate.name in ("SUM", "AVG") else None
        self._ordered = OrderedValues(self._values, meter) if aggregate.name in ("MIN", "MAX", CONCATENATION) else None

    def add(self, value: Term | None, times: int) -> None:
        """Adds a value (times 1) or removes it (times -1)."""
        known = self._values[value] + times
        if known:
            self._values[value] = known
        else:
            del self._values[value]
        once = known == (times > 0)  # its first or last occurrence
        # Another copy of a value, or one of several that goes: DISTINCT does not see it.
        if self._aggregate.distinct and not once:
            return
        self._present += times * (value is not None)
        if value is None:
            self._strange += times
        elif self._sum is not None:
            self._add_number(self._sum, value, times)
        elif self._aggregate.name == CONCATENATION and not _is_text(value):
            self._strange += times
        elif self._ordered is not None and once:
            self._ordered.change(value, times > 0)

    def _add_number(self, total: ExactSum, value: Term, times: int) -> None:
        precise = exact(value)
        if precise is not None:
            total.add(precise, times)
            return
        inexact = real(value)
        if inexact is None:
            self._strange += times
        else:
            total.add_real(*inexact, times)

    def result(self, rows: int) -> Term | None:
        """The aggregate's value. rows: the number of solutions in the group. Raises OrderMattersError, TooMuchWork."""
        aggregate = self._aggregate
        if aggregate.argument is None:
            return _integer(rows)
        if aggregate.name == "COUNT":
            return _integer(self._present)
        # An error among the values makes the aggregate an error (SPARQL 1.1 Query, 18.5.1), so it is unbound.
        if self._strange:
            return None
        if self._ordered is not None:
            if aggregate.name == CONCATENATION:
                return self._ordered.group_concat(_separator(aggregate), aggregate.distinct)
            return self._ordered.least() if aggregate.name == "MIN" else self._ordered.greatest()
        assert self._sum is not None
        return self._total(self._sum)

    def _total(self, total: ExactSum) -> Term | None:
        average = self._aggregate.name == "AVG"
        # Below the bound no order of additions overflows, so the exact sum is the one of the store.
        if total.size < EXACT_MAX:
            if total.kind is not None:
                return total.real(self._present if average else 1)
            found = _precise(total)
            return _quotient(found, _integer(self._present)) if average and self._present else found
        if total.kind is not None:
            raise OrderMattersError
        values = [value for value in self._values.elements() if value is not None]
        if self._aggregate.distinct:
            values = list(dict.fromkeys(values))
        self._meter.take(VALUE * len(values))
        return _ask(self._aggregate.name, sorted(values))  # whether it overflows may depend on the order


def _precise(total: ExactSum) -> Term:
    """The sum of integers and decimals."""
    if not total.decimals:
        return _integer(int(total.precise))
    text = f"{total.precise:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f'"{text or "0"}"^^<{XSD}decimal>'


def _is_text(value: Term) -> bool:
    """Whether a term is a plain string, or one with a language tag."""
    return value[0] == '"' and not value.endswith(">")


def _separator(aggregate: Aggregate) -> str:
    """The separator of a GROUP_CONCAT, as it is written within a term."""
    if aggregate.separator is None:
        return " "
    assert isinstance(aggregate.separator, str), "a separator is the shape's own"
    return aggregate.separator[1:-1]


class OrderedValues:
    """The different values of a group in order, sorted when they are first needed and kept in order from then on.

    values: their multiplicities, which the owner changes before each call of `change`.
    """

    __slots__ = ("_meter", "_ordered", "_values")

    def __init__(self, values: Counter[Term | None], meter: Meter) -> None:
        self._values = values
        self._meter = meter
        self._ordered: list[tuple[tuple[Any, ...], Term]] | None = None

    def change(self, value: Term, added: bool) -> None:
        """Follows a value whose first occurrence was added, or whose last one was removed."""
        ordered = self._ordered
        # Nobody has asked for the order yet; the first question sorts all.
        if ordered is None:
            return
        entry = (order_key(value), value)
        place = bisect_left(ordered, entry)
        if added:
            ordered.insert(place, entry)
        else:
            assert ordered[place] == entry
            del ordered[place]

    def least(self) -> Term | None:
        """The value of MIN. Raises OrderMattersError if the literals do not all compare."""
        ordered = self._sorted_values()
        # IRIs and blank nodes come before literals and always compare.
        if ordered and ordered[0][0] > FIRST_LITERAL:
            self._check(0)
        return ordered[0][1] if ordered else None

    def greatest(self) -> Term | None:
        """The value of MAX. Raises OrderMattersError if the literals do not all compare."""
        ordered = self._sorted_values()
        self._check(bisect_left(ordered, (FIRST_LITERAL,)))
        return ordered[-1][1] if ordered else None

    def group_concat(self, separator: str, distinct: bool) -> Term:
        """The value of GROUP_CONCAT; all values must be texts. Equal terms stand once if distinct.

        Its language is that of all texts, if they have the same one. Raises TooMuchWork.
        """
        texts: list[str] = []
        tags = set()
        size = 0
        for _, value in self._sorted_values():
            times = 1 if distinct else self._values[value]
            size += times * (len(value) + len(separator))
            if size > CHARACTERS_MAX:
                raise TooMuchWork(f"a GROUP_CONCAT of more than {CHARACTERS_MAX} characters; group by more variables")
            end = value.rindex('"')
            # The escapes stay: the result is a term of N-Triples syntax too.
            texts += [value[1:end]] * times
            tags.add(value[end + 1 :])
        self._meter.take(VALUE * len(texts) + size // CHARACTERS_PER_UNIT)
        return f'"{separator.join(texts)}"{tags.pop() if len(tags) == 1 else ""}'

    def _check(self, first: int) -> None:
        """Checks the values from the first literal on."""
        ordered = self._sorted_values()
        # Sorted by kind first: if the first and the last literal compare, all between them do.
        if first < len(ordered) and not comparable(ordered[first][0], ordered[-1][0]):
            raise OrderMattersError

    def _sorted_values(self) -> list[tuple[tuple[Any, ...], Term]]:
        if self._ordered is None:
            self._meter.take(VALUE * len(self._values))
            self._ordered = sorted([(order_key(value), value) for value in self._values if value is not None])
        return self._ordered
