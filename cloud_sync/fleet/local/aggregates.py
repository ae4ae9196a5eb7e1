"""Functions of rows and of windows, which `functions` offers too."""

from __future__ import annotations

from collections.abc import Callable

from lamplighter.cloud_sync.fleet.local.columns import (
    ColumnScope,
    LocalAggregate,
    LocalColumn,
    Written,
    column,
    literal,
    sort_key,
)
from lamplighter.cloud_sync.fleet.local.kinds import Kind, ListOf

Name = str | LocalColumn


def _aggregate(text: str, kind: Kind = None) -> Callable[[Name], LocalAggregate]:
    def aggregate(name: Name) -> LocalAggregate:
        value = column(name)
        return LocalAggregate(lambda scope, over: Written(text.format(value.render(scope).sql) + over, kind))

    return aggregate


sum = _aggregate("sum({0})")
avg = _aggregate("avg({0})", "DOUBLE")
bool_or = _aggregate("bool_or({0})", "BOOLEAN")
count_if = _aggregate("count(*) FILTER (WHERE {0})", "BIGINT")


def count(name: Name) -> LocalAggregate:
    if isinstance(name, str) and name == "*":
        return LocalAggregate(lambda scope, over: Written(f"count(*){over}", "BIGINT"))
    return _aggregate("count({0})", "BIGINT")(name)


def percentile_approx(value: LocalColumn, share: float, accuracy: int) -> LocalAggregate:
    """The exact percentile: Spark's is one too for as few values as its accuracy."""
    return LocalAggregate(
        lambda scope, over: Written(f"quantile_disc({value.render(scope).sql}, {literal(share).sql}){over}")
    )


def collect_list(name: Name) -> LocalColumn:
    value = column(name)

    def render(scope: ColumnScope) -> Written:
        one = value.render(scope)
        return Written(f"coalesce(list({one.sql}) FILTER ({one.sql} IS NOT NULL), [])", ListOf(one.kind))

    return LocalColumn(render)


def collect_set(name: Name) -> LocalColumn:
    values = collect_list(name)

    def render(scope: ColumnScope) -> Written:
        listed = values.render(scope)
        return Written(f"list_distinct({listed.sql})", listed.kind)

    return LocalColumn(render)


def max(name: Name) -> LocalAggregate:
    return _extreme("max", column(name))


def min(name: Name) -> LocalAggregate:
    return _extreme("min", column(name))


def max_by(name: Name, order: Name) -> LocalAggregate:
    return _by("arg_max_null", column(name), column(order))


def min_by(name: Name, order: Name) -> LocalAggregate:
    return _by("arg_min_null", column(name), column(order))


def first(name: Name) -> LocalAggregate:
    return _of_rows("first({0})", name)


def last(name: Name, ignorenulls: bool = False) -> LocalAggregate:
    return _of_rows("last_value({0} IGNORE NULLS)" if ignorenulls else "last_value({0})", name)


def lag(name: Name) -> LocalAggregate:
    return _of_rows("lag({0})", name)


def lead(name: Name) -> LocalAggregate:
    return _of_rows("lead({0})", name)


def _of_rows(text: str, name: Name) -> LocalAggregate:
    value = column(name)

    def call(scope: ColumnScope, over: str) -> Written:
        one = value.render(scope)
        return Written(text.format(one.sql) + over, one.kind)

    return LocalAggregate(call)


def _extreme(name: str, value: LocalColumn) -> LocalAggregate:
    def call(scope: ColumnScope, over: str) -> Written:
        one = value.render(scope)
        if isinstance(one.kind, dict):
            return Written(f"arg_{name}_null({one.sql}, {sort_key(one)}){over}", one.kind)
        return Written(f"{name}({one.sql}){over}", one.kind)

    return LocalAggregate(call)


def _by(function: str, value: LocalColumn, order: LocalColumn) -> LocalAggregate:
    def call(scope: ColumnScope, over: str) -> Written:
        one = value.render(scope)
        return Written(f"{function}({one.sql}, {sort_key(order.render(scope))}){over}", one.kind)

    return LocalAggregate(call)
