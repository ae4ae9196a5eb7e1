"""Aggregates of the values in one group, as the store computes them (SPARQL 1.1 Query, section 18.5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyoxigraph as ox

from engine.algebra import Aggregate
from engine.expressions import number, term_text
from engine.terms import XSD, Term, is_blank

_EMPTY = ox.Store()
_INEXACT = (f"^^<{XSD}double>", f"^^<{XSD}float>")

_COMPARABLE = ('"', f'Z"^^<{XSD}dateTime>')

Values = Sequence[Term | None]


class UnsupportedAggregateError(Exception):
    """An aggregate whose value depends on the order in which the store comes across the solutions."""


class OrderMattersError(Exception):
    """Values came up whose aggregate depends on their order: sums of xsd:double, equal numbers of two types."""


def compiled(aggregate: Aggregate) -> Callable[[Values], Term | None]:
    """A function of a group's values (None for an error) to the aggregate's term, None for an error.

    Raises UnsupportedAggregateError. The function raises OrderMattersError.
    """
    name, distinct = aggregate.name, aggregate.distinct
    if name not in ("COUNT", "SUM", "AVG", "MIN", "MAX"):
        raise UnsupportedAggregateError(f"{name}, whose value depends on the order of the solutions")
    if aggregate.argument is None:
        if distinct:
            raise UnsupportedAggregateError("COUNT(DISTINCT *)")
        return lambda values: _integer(len(values))

    def compute(values: Values) -> Term | None:
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


def _integer(value: int) -> Term:
    return f'"{value}"^^<{XSD}integer>'


def _sum_of_integers(values: Values) -> int | None:
    """The sum where nothing can go wrong on the way, whatever the order."""
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
            # Equal numbers of two types, and terms that are only compared by convention.
            if all(value.endswith(_COMPARABLE) for value in different) or all(value[0] == "<" for value in different):
                return
            raise OrderMattersError
