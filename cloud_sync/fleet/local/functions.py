"""Functions of columns as SQL: what PySpark's `functions` offer, as far as the definitions of the fleet use them.

Names, arguments and results are Spark's: a text is the name of a column, except where Spark takes a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lamplighter.cloud_sync.fleet.local.aggregates import (
    avg as avg,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    bool_or as bool_or,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    collect_list as collect_list,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    collect_set as collect_set,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    count as count,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    count_if as count_if,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    first as first,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    lag as lag,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    last as last,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    lead as lead,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    max as max,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    max_by as max_by,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    min as min,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    min_by as min_by,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    percentile_approx as percentile_approx,
)
from lamplighter.cloud_sync.fleet.local.aggregates import (
    sum as sum,
)
from lamplighter.cloud_sync.fleet.local.columns import (
    Case,
    ColumnScope,
    LocalColumn,
    LocalWindow,
    Written,
    column,
    constant,
    sort_key,
    variable,
)
from lamplighter.cloud_sync.fleet.local.kinds import TIME, Kind, ListOf, columns_of, json_structure, text_literal

Name = str | LocalColumn

Window = LocalWindow
col = column
lit = constant


def expr(text: str) -> LocalColumn:
    """SQL that is the same in Spark and in DuckDB, such as ``INTERVAL 1 DAY``."""
    return LocalColumn(lambda scope: Written(text))


def broadcast(frame: Any) -> Any:
    return frame


def when(condition: LocalColumn, value: Any) -> Case:
    return Case([(condition, constant(value))])


def _call(text: str, kind: Kind = None) -> Callable[..., LocalColumn]:
    """A function of columns by its SQL, in which {0} is the first one."""

    def call(*columns: Name) -> LocalColumn:
        found = [*map(column, columns)]
        return LocalColumn(lambda scope: Written(text.format(*(one.render(scope).sql for one in found)), kind))

    return call


def _text(text: str) -> str:
    """A text in the SQL of `_call`."""
    return text_literal(text).replace("{", "{{").replace("}", "}}")


def _combine(columns: tuple[Name, ...], join: Callable[[list[Written]], Written]) -> LocalColumn:
    found = [*map(column, columns)]
    return LocalColumn(lambda scope: join([one.render(scope) for one in found]))


# --- of values ----------------------------------------------------------------------------------------------

abs = _call("abs({0})")
length = _call("length({0})")
upper = _call("upper({0})")
hour = _call("hour({0})")
unix_micros = _call("epoch_us({0})", "BIGINT")
timestamp_micros = _call("make_timestamp({0})", TIME)


def coalesce(*columns: Name) -> LocalColumn:
    return _combine(columns, lambda values: Written(f"coalesce({_list(values)})", _kind(values)))


def greatest(*columns: Name) -> LocalColumn:
    return _combine(columns, lambda values: Written(f"greatest({_list(values)})", _kind(values)))


def least(*columns: Name) -> LocalColumn:
    return _combine(columns, lambda values: Written(f"least({_list(values)})", _kind(values)))


def try_divide(value: Name, by: Name) -> LocalColumn:
    """The quotient; null for a division by zero."""
    return _call("({0} / nullif({1}, 0))", "DOUBLE")(value, by)


def desc(name: Name) -> LocalColumn:
    return column(name).desc()


def date_trunc(period: str, time: Name) -> LocalColumn:
    return _call(f"date_trunc('{period}', {{0}})", TIME)(time)


def sequence(first: Name, last: Name, step: LocalColumn) -> LocalColumn:
    return _call("generate_series({0}, {1}, {2})", ListOf(TIME))(first, last, step)


# --- of texts -----------------------------------------------------------------------------------------------

startswith = _call("starts_with({0}, {1})", "BOOLEAN")
contains = _call("contains({0}, {1})", "BOOLEAN")
replace = _call("replace({0}, {1}, {2})", "VARCHAR")
btrim = _call("trim({0}, {1})", "VARCHAR")


def substring(text: Name, place: Any, length: Any) -> LocalColumn:
    # DuckDB would read backwards for a negative length.
    return _call("substring({0}, {1}, CASE WHEN {2} < 0 THEN 0 ELSE {2} END)", "VARCHAR")(
        text, constant(place), constant(length)
    )


def substring_index(text: Name, sign: str, count: int) -> LocalColumn:
    """What follows the last so many signs, from the right."""
    if count >= 0:
        raise ValueError(f"substring_index({count}): only from the right")
    split = f"string_split({{0}}, {_text(sign)})"
    if count == -1:
        return _call(f"{split}[-1]", "VARCHAR")(text)
    return _call(f"array_to_string({split}[{count}:], {_text(sign)})", "VARCHAR")(text)


def parts_between(text: Name, sign: str) -> LocalColumn:
    """The parts between signs. Spark would take it as a regular expression."""
    if re.escape(sign) != sign:
        raise ValueError(f"split({sign!r}): only at a sign that is none of regular expressions")
    return _call(f"string_split({{0}}, {_text(sign)})", ListOf("VARCHAR"))(text)


split = parts_between  # as PySpark calls it


def instr(text: Name, part: str) -> LocalColumn:
    return _call(f"instr({{0}}, {_text(part)})")(text)


def concat_ws(sign: str, *columns: Name) -> LocalColumn:
    return _combine(columns, lambda values: Written(f"concat_ws({text_literal(sign)}, {_list(values)})", "VARCHAR"))


def format_string(form: str, value: Name) -> LocalColumn:
    """One number in a text, without an exponent. Halves are rounded up, as Java does."""
    place = re.search(r"%\.(\d)f", form)
    if place is None:
        raise ValueError(f"format_string({form!r}): only with %.0f and the like")
    digits = int(place[1])
    missing = form.replace(place[0], "null"[:digits]).replace("%%", "%")
    printed = f"printf({_text(form)}, round({{0}}, {digits}))"
    return _call(f"coalesce({printed}, {_text(missing)})", "VARCHAR")(value)


def get_json_object(text: Name, path: str) -> LocalColumn:
    """What is at a path; null if the text is no JSON."""
    found = f"json_extract_string({{0}}, {_text(path)})"
    return _call(f"(CASE WHEN json_valid({{0}}) THEN {found} END)", "VARCHAR")(text)


def from_json(text: Name, ddl: str) -> LocalColumn:
    kind: Kind = columns_of(ddl)
    return _call(f"from_json({{0}}, {_text(json_structure(kind))})", kind)(text)


# --- of lists, structs and maps -----------------------------------------------------------------------------


def struct(*columns: Name) -> LocalColumn:
    found = [*map(column, columns)]

    def render(scope: ColumnScope) -> Written:
        values = {one.name or f"col{place}": one.render(scope) for place, one in enumerate(found, 1)}
        members = ", ".join(f"{text_literal(name)}: {value.sql}" for name, value in values.items())
        kinds: Kind = {name: value.kind for name, value in values.items()}
        return Written(f"{{{members}}}", kinds, tuple(value.sql for value in values.values()))

    return LocalColumn(render)


def array(*columns: Name) -> LocalColumn:
    return _combine(columns, lambda values: Written(f"[{_list(values)}]", ListOf(_kind(values))))


def create_map(*columns: Name) -> LocalColumn:
    def pairs(values: list[Written]) -> Written:
        entries = zip(values[::2], values[1::2], strict=True)
        return Written(f"MAP {{{', '.join(f'{key.sql}: {value.sql}' for key, value in entries)}}}", "MAP")

    return _combine(columns, pairs)


def try_element_at(many: Name, key: LocalColumn) -> LocalColumn:
    """A member of a list, from 1 on or from -1 back, or a value of a map; null if there is none."""
    return _combine((many, key), lambda values: Written(f"{values[0].sql}[{values[1].sql}]", _member(values[0])))


def element_at(many: Name, place: Any) -> LocalColumn:
    """As `try_element_at`; Spark would refuse a place that is not there."""
    return try_element_at(many, constant(place))


def get(many: Name, place: Any) -> LocalColumn:
    """A member of a list, from 0 on; null if there is none."""

    def member(values: list[Written]) -> Written:
        many, place = values
        if place.sql.isdecimal():
            return Written(f"{many.sql}[{int(place.sql) + 1}]", _member(many))
        return Written(f"(CASE WHEN {place.sql} >= 0 THEN {many.sql}[{place.sql} + 1] END)", _member(many))

    return _combine((column(many), constant(place)), member)


def concat(*columns: Name) -> LocalColumn:
    """Texts or lists; null if one of them is."""
    return _combine(columns, lambda values: Written(f"({' || '.join(one.sql for one in values)})", _kind(values)))


size = _call("len({0})")
array_distinct = _call("list_distinct({0})")
arrays_overlap = _call(
    # Without a common member, it is unknown whether one is hidden behind a null.
    "(CASE WHEN list_has_any({0}, {1}) THEN true WHEN len({0}) > 0 AND len({1}) > 0 "
    "AND (len({0}) > list_count({0}) OR len({1}) > list_count({1})) THEN NULL ELSE list_has_any({0}, {1}) END)",
    "BOOLEAN",
)


def flatten(many: Name) -> LocalColumn:
    return _combine((many,), lambda values: Written(f"flatten({values[0].sql})", _member(values[0])))


def sort_array(many: Name) -> LocalColumn:
    """In ascending order."""

    def order(values: list[Written]) -> Written:
        name, _ = variable(None)
        key = sort_key(Written(name, _member(values[0])))
        keyed = f"list_transform({values[0].sql}, lambda {name}: {{'key': {key}, 'value': {name}}})"
        text = f"list_transform(list_sort({keyed}, 'ASC', 'NULLS FIRST'), lambda {name}: {name}.value)"
        return Written(text, values[0].kind)

    return _combine((many,), order)


def array_except(many: Name, others: Name) -> LocalColumn:
    """The different members that the other list does not have; null is a member like others."""
    name, _ = variable(None)
    kept = f"list_filter({{0}}, lambda {name}: CASE WHEN {name} IS NULL THEN len({{1}}) = list_count({{1}}) ELSE "
    kept += f"NOT list_contains({{1}}, {name}) END)"
    # `list_distinct` would leave out null.
    return _call(f"(list_distinct({kept}) || list_filter({kept}, lambda {name}: {name} IS NULL)[:1])")(many, others)


def array_contains(many: Name, value: Any) -> LocalColumn:
    return _call("list_contains({0}, {1})", "BOOLEAN")(many, constant(value))


def array_position(many: Name, value: Any) -> LocalColumn:
    """From 1 on; 0 if it is not there."""
    return _call("(CASE WHEN {0} IS NOT NULL THEN coalesce(list_position({0}, {1}), 0) END)")(many, constant(value))


def transform(many: Name, change: Callable[[LocalColumn], LocalColumn]) -> LocalColumn:
    return _lambda("list_transform", many, change, lambda body, many: ListOf(body.kind))


def filter(many: Name, holds: Callable[[LocalColumn], LocalColumn]) -> LocalColumn:
    return _lambda("list_filter", many, holds, lambda body, many: many.kind)


def explode(many: Name) -> LocalColumn:
    """A row for each member."""
    return _combine((many,), lambda values: Written(f"unnest({values[0].sql})", _member(values[0])))


class Inline(LocalColumn):
    """`inline`: a row for each struct of a list, with its members as columns."""


def inline(many: Name) -> LocalColumn:
    return Inline(explode(many).render)


# --- of these functions -------------------------------------------------------------------------------------


def _list(values: list[Written]) -> str:
    return ", ".join(value.sql for value in values)


def _kind(values: list[Written]) -> Kind:
    """The kind of values that have the same one."""
    return next((value.kind for value in values if value.kind is not None), None)


def _member(many: Written) -> Kind:
    return many.kind.member if isinstance(many.kind, ListOf) else None


def _lambda(
    function: str,
    many: Name,
    body: Callable[[LocalColumn], LocalColumn],
    kind: Callable[[Written, Written], Kind],
) -> LocalColumn:
    source = column(many)

    def render(scope: ColumnScope) -> Written:
        values = source.render(scope)
        name, item = variable(_member(values))
        written = body(item).render(scope)
        return Written(f"{function}({values.sql}, lambda {name}: {written.sql})", kind(written, values))

    return LocalColumn(render, source.name)
