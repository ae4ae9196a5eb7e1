"""Solutions -> the answer of a `BatchQuery`: aggregates, DISTINCT, ORDER BY, OFFSET and LIMIT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql import moments, numbers
from lamplighter.cloud_sync.fleet.sparql.modifiers import AggregateColumn, BatchQuery
from lamplighter.cloud_sync.fleet.sparql.values import NUMBER, TypedColumn, let, suffix, typed_literal
from lamplighter.cloud_sync.fleet.tables.terms import plain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_INTEGER_MAX = f"{2**63 - 1}{'0' * 18}"


def answer(solutions: DataFrame, asked: BatchQuery, key: Sequence[str] = ()) -> DataFrame:
    """The rows of an answer, in its order.

    solutions: columns of key, and ``row``, the terms of the variables of `asked.query`. Result: the same columns, with
    the terms of `asked.variables`. key: aggregates are those of each key; rows with different keys are different, and
    without ORDER BY in their order. For an ASK, the solutions as they are.
    """
    modifiers, found = asked.modifiers, solutions.select(*key, "row")
    if asked.form == "ASK":
        return found
    if modifiers.groups is not None:
        found = _group(found, asked, key)
    if modifiers.distinct:
        found = found.distinct()
    if modifiers.order:
        columns = []
        for name, descending in modifiers.order:
            place = sort_key(F.get("row", F.lit(asked.variables.index(name))))
            columns.append(place.desc() if descending else place.asc())
        found = found.orderBy(*columns, *key)
    elif key:
        found = found.orderBy(*key)
    if modifiers.offset:
        found = found.offset(modifiers.offset)
    return found if modifiers.limit is None else found.limit(modifiers.limit)


def sort_key(term: Column) -> Column:
    """A column that sorts as ORDER BY does: unbound, blank nodes, IRIs, literals (SPARQL 1.1 Query, section 15.1).

    Numbers are in the order of the nearest doubles, times in that of their values. SPARQL leaves the order of other
    literals open: numbers, times, and the rest by its text.
    """
    number, time = numbers.number(term), moments.moment(term)
    is_number, is_time = numbers.is_number(number), F.endswith(suffix(term), F.lit("#dateTime>"))
    kind = (
        F.when(term.isNull(), 0)
        .when(term.startswith("_:"), 1)
        .when(term.startswith("<<"), 6)
        .when(term.startswith("<"), 2)
        .when(is_number, 3)
        .when(is_time, 4)
        .otherwise(5)
    )
    return F.struct(
        kind.alias("kind"),
        F.when(is_number, numbers.as_double(number)).alias("double"),
        F.when(is_time, time["seconds"]).alias("seconds"),
        F.when(kind == 5, plain(term)).when(~is_number & ~is_time, term).alias("text"),
    )


def _group(found: DataFrame, asked: BatchQuery, key: Sequence[str]) -> DataFrame:
    groups = asked.modifiers.groups or ()
    names = {name: f"v{place}" for place, name in enumerate(asked.query.variables)}
    terms = found.select(*key, *(F.get("row", F.lit(place)).alias(f"v{place}") for place in range(len(names))))
    sums = [
        column for place, one in enumerate(asked.modifiers.aggregates) for column in _partial(one, place, names)
    ] or [F.count(F.lit(1)).alias("n")]
    grouped = terms.groupBy(*key, *dict.fromkeys(names[name] for name in groups)).agg(*sums)
    columns = {name: F.col(names[name]) for name in groups}
    columns |= {one.name: _whole(one, place) for place, one in enumerate(asked.modifiers.aggregates)}
    row = F.array(*(columns[name] for name in asked.variables)).cast("array<string>")
    return grouped.select(*key, row.alias("row"))


def _partial(one: AggregateColumn, place: int, names: Mapping[str, str]) -> list[Column]:
    """The columns of Spark's aggregation that an aggregate is made of."""
    term = F.lit(1) if one.argument is None else F.col(names[one.argument])
    if one.function == "COUNT":
        return [(F.count_distinct(term) if one.distinct else F.count(term)).alias(f"count{place}")]
    unbound = F.bool_or(term.isNull()).alias(f"wrong{place}")
    if one.function in ("MIN", "MAX"):
        chosen = F.min if one.function == "MIN" else F.max
        return [chosen(F.struct(sort_key(term), term.alias("term"))).alias(f"best{place}"), unbound]
    number = numbers.number(term)
    return [
        F.count(F.lit(1)).alias(f"count{place}"),
        F.max(number["rank"]).alias(f"rank{place}"),
        F.try_sum(number["scaled"]).alias(f"scaled{place}"),
        F.sum(numbers.as_double(number)).alias(f"double{place}"),
        F.bool_or(~numbers.is_number(number)).alias(f"wrong{place}"),
    ]


def _whole(one: AggregateColumn, place: int) -> Column:
    """The term of an aggregate, null for an error."""
    if one.function == "COUNT":
        return typed_literal(F.col(f"count{place}").cast("string"), "integer")
    right = ~F.coalesce(f"wrong{place}", F.lit(False))
    if one.function in ("MIN", "MAX"):
        return F.when(right, F.col(f"best{place}")["term"])
    rank = F.coalesce(f"rank{place}", F.lit(numbers.INTEGER_RANK))
    exact = F.coalesce(f"scaled{place}", F.when(F.col(f"count{place}") == 0, F.lit(0))).cast("decimal(38,0)")
    exact = F.when((rank > numbers.INTEGER_RANK) | (F.abs(exact) <= F.lit(_INTEGER_MAX).cast("decimal(38,0)")), exact)
    double = F.col(f"double{place}")
    double = F.when(rank == numbers.FLOAT_RANK, double.cast("float").cast("double")).otherwise(double)
    inexact = rank >= numbers.FLOAT_RANK
    total = numbers.struct(rank, F.when(~inexact, exact), F.when(inexact, double))
    if one.function == "AVG":
        count = F.greatest(F.col(f"count{place}"), F.lit(1))
        total = numbers.arithmetic("/", TypedColumn(NUMBER, total), TypedColumn(NUMBER, numbers.of_integer(count)))
        empty = typed_literal(F.lit("0"), "integer")
        return F.when(F.col(f"count{place}") == 0, empty).when(right, _term(total))
    return F.when(right, _term(total))


def _term(number: Column) -> Column:
    return let((TypedColumn(NUMBER, number),), numbers.number_term)
