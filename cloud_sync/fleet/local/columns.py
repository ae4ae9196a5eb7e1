"""Columns as SQL: what PySpark's `Column` and `Window` offer, as far as the definitions of the fleet use it.

A column is written when the frame that it belongs to is known. Where DuckDB's rule is another one than Spark's (order
of nulls, comparison of structs), the SQL says Spark's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Protocol, TypeAlias

from lamplighter.cloud_sync.fleet.local.kinds import Kind, ListOf, kind_of, sql_type, text_literal

Renderer: TypeAlias = "Callable[[ColumnScope], Written]"
_variables = count()


@dataclass(frozen=True)
class Written:
    """A column's SQL. parts: of a struct that was put together here, its members."""

    sql: str
    kind: Kind = None
    parts: tuple[str, ...] | None = None


class ColumnScope(Protocol):
    """The frame for which a column is written."""

    def resolve(self, name: str, frame: str | None) -> Written:
        """A column of the frame by its name, which may lead into structs. frame: that it comes from."""

    def compute(self, sql: str) -> str:
        """The name of a value that is computed once for each row."""


class LocalColumn:
    """A column. name: how it is called in a result, unless it is given another name."""

    def __init__(self, render: Renderer, name: str = "") -> None:
        self.render = render
        self.name = name

    def alias(self, name: str) -> LocalColumn:
        return LocalColumn(self.render, name)

    def cast(self, kind: str) -> LocalColumn:
        target = kind_of(kind)
        return self._map(lambda one: Written(f"CAST({one.sql} AS {sql_type(target)})", target))

    def try_cast(self, kind: str) -> LocalColumn:
        """The value in another type; null if it is none. Texts are read as Spark reads them."""
        target = sql_type(kind_of(kind))
        return self._map(lambda one: Written(_TEXT_READERS.get(target, _try_cast)(one.sql, target), target))

    def over(self, window: LocalWindow) -> LocalColumn:
        raise TypeError(f"{self.name or 'this column'} is no function of a window")

    def isNull(self) -> LocalColumn:
        return self._map(lambda one: Written(f"({one.sql} IS NULL)", "BOOLEAN"))

    def isNotNull(self) -> LocalColumn:
        return self._map(lambda one: Written(f"({one.sql} IS NOT NULL)", "BOOLEAN"))

    def isin(self, *values: Any) -> LocalColumn:
        members = values[0] if len(values) == 1 and isinstance(values[0], (list, tuple, set)) else values
        listed = ", ".join(literal(value).sql for value in members)
        return self._map(lambda one: Written(f"({one.sql} IN ({listed}))" if listed else "false", "BOOLEAN"))

    def between(self, low: Any, high: Any) -> LocalColumn:
        return self._compare(">=", low)._infix("AND", self._compare("<=", high))

    def eqNullSafe(self, other: Any) -> LocalColumn:
        return self._with(other, lambda a, b: Written(f"({a.sql} IS NOT DISTINCT FROM {b.sql})", "BOOLEAN"))

    def rlike(self, pattern: str) -> LocalColumn:
        """Whether a pattern, which must be the same in RE2 and in Java, is found in the text."""
        if "$" in pattern:
            raise ValueError(f"rlike({pattern!r}): Java's $ is also before a line break; write \\z")
        return self._map(lambda one: Written(f"regexp_matches({one.sql}, {text_literal(pattern)})", "BOOLEAN"))

    def desc(self) -> LocalColumn:
        # As Spark sorts: nulls are less than all values.
        return self._map(lambda one: Written(f"{one.sql} DESC NULLS LAST"))

    def __getitem__(self, key: str) -> LocalColumn:
        return LocalColumn(lambda scope: member(self.render(scope), [key]), key)

    def __eq__(self, other: object) -> LocalColumn:  # type: ignore[override]
        return self._infix("=", other)

    def __ne__(self, other: object) -> LocalColumn:  # type: ignore[override]
        return self._infix("<>", other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> LocalColumn:
        return self._compare("<", other)

    def __le__(self, other: Any) -> LocalColumn:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> LocalColumn:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> LocalColumn:
        return self._compare(">=", other)

    def __and__(self, other: Any) -> LocalColumn:
        return self._infix("AND", other)

    def __or__(self, other: Any) -> LocalColumn:
        return self._infix("OR", other)

    def __invert__(self) -> LocalColumn:
        return self._map(lambda one: Written(f"(NOT {one.sql})", "BOOLEAN"))

    def __neg__(self) -> LocalColumn:
        return self._map(lambda one: Written(f"(-{one.sql})"))

    def __add__(self, other: Any) -> LocalColumn:
        return self._infix("+", other, None)

    def __sub__(self, other: Any) -> LocalColumn:
        return self._infix("-", other, None)

    def __rsub__(self, other: Any) -> LocalColumn:
        return constant(other) - self

    def __mul__(self, other: Any) -> LocalColumn:
        return self._infix("*", other, None)

    def __truediv__(self, other: Any) -> LocalColumn:
        return self._infix("/", other, "DOUBLE")

    def _infix(self, sign: str, other: Any, kind: Kind = "BOOLEAN") -> LocalColumn:
        return self._with(other, lambda a, b: Written(f"({a.sql} {sign} {b.sql})", kind))

    def _compare(self, sign: str, other: Any) -> LocalColumn:
        return self._with(other, lambda a, b: Written(_order_test(a, sign, b), "BOOLEAN"))

    def _map(self, change: Callable[[Written], Written]) -> LocalColumn:
        return LocalColumn(lambda scope: change(self.render(scope)), self.name)

    def _with(self, other: Any, join: Callable[[Written, Written], Written]) -> LocalColumn:
        there = constant(other)
        return LocalColumn(lambda scope: join(self.render(scope), there.render(scope)), self.name)


class LocalAggregate(LocalColumn):
    """A function of rows, or of a window if `over` gives one. call: scope, and `` OVER ...`` or an empty text."""

    def __init__(self, call: Callable[[ColumnScope, str], Written], name: str = "") -> None:
        super().__init__(lambda scope: call(scope, ""), name)
        self._call = call

    def over(self, window: LocalWindow) -> LocalColumn:
        return LocalColumn(lambda scope: self._call(scope, f" OVER ({window.render(scope)})"), self.name)


class Case(LocalColumn):
    """`when`, more of them, and `otherwise`."""

    def __init__(self, branches: Sequence[tuple[LocalColumn, LocalColumn]], rest: LocalColumn | None = None) -> None:
        super().__init__(self._combine)
        self._branches = branches
        self._rest = rest

    def when(self, condition: LocalColumn, value: Any) -> Case:
        return Case([*self._branches, (condition, constant(value))])

    def otherwise(self, value: Any) -> Case:
        return Case(self._branches, constant(value))

    def _combine(self, scope: ColumnScope) -> Written:
        pairs = [(condition.render(scope).sql, value.render(scope)) for condition, value in self._branches]
        rest = self._rest and self._rest.render(scope)
        values = [value for _, value in pairs] + ([rest] if rest else [])
        kind = next((value.kind for value in values if value.kind is not None), None)
        text = " ".join(f"WHEN {condition} THEN {value.sql}" for condition, value in pairs)
        return Written(f"(CASE {text}{f' ELSE {rest.sql}' if rest else ''} END)", kind)


@dataclass(frozen=True)
class LocalWindow:
    """A window of rows. As PySpark's, it is begun on the class: ``Window.partitionBy("gw").orderBy("seq")``."""

    keys: tuple[LocalColumn, ...] = ()
    order: tuple[LocalColumn, ...] = ()
    rows: tuple[int, int] | None = None

    unboundedPreceding = -(1 << 63)
    currentRow = 0

    @staticmethod
    def partitionBy(*names: str | LocalColumn) -> LocalWindow:
        return LocalWindow(keys=tuple(map(column, names)))

    def orderBy(self, *names: str | LocalColumn) -> LocalWindow:
        return replace(self, order=tuple(map(column, names)))

    def rowsBetween(self, start: int, end: int) -> LocalWindow:
        return replace(self, rows=(start, end))

    def render(self, scope: ColumnScope) -> str:
        """The window in SQL."""
        parts = []
        if self.keys:
            parts.append(f"PARTITION BY {', '.join(key.render(scope).sql for key in self.keys)}")
        if self.order:
            parts.append(f"ORDER BY {', '.join(order_key(key.render(scope).sql) for key in self.order)}")
        if self.rows is not None:
            parts.append("ROWS BETWEEN {} AND {}".format(*map(self._frame_end, self.rows)))
        return " ".join(parts)

    def _frame_end(self, rows: int) -> str:
        if rows == self.unboundedPreceding:
            return "UNBOUNDED PRECEDING"
        return "CURRENT ROW" if rows == 0 else f"{abs(rows)} {'PRECEDING' if rows < 0 else 'FOLLOWING'}"


def order_key(sql: str) -> str:
    """A key of ORDER BY, ascending unless it says otherwise. As Spark sorts: nulls are less than all values."""
    return sql if sql.endswith("DESC NULLS LAST") else f"{sql} NULLS FIRST"


def column(name: str | LocalColumn, frame: str | None = None) -> LocalColumn:
    """A column by its name. frame: that it comes from, if others have one of the same name."""
    if isinstance(name, LocalColumn):
        return name
    return LocalColumn(lambda scope: scope.resolve(name, frame), name.rpartition(".")[2])


def constant(value: Any) -> LocalColumn:
    """A value as a column; a column stays as it is."""
    if isinstance(value, LocalColumn):
        return value
    written = literal(value)
    return LocalColumn(lambda scope: written)


def literal(value: Any) -> Written:
    """A value in SQL. Times have a zone."""
    if value is None:
        return Written("NULL")
    if isinstance(value, bool):
        return Written(str(value).lower(), "BOOLEAN")
    if isinstance(value, str):
        return Written(text_literal(value), "VARCHAR")
    if isinstance(value, datetime):
        return Written(f"TIMESTAMP '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'", "TIMESTAMP")
    if isinstance(value, timedelta):
        return Written(f"to_microseconds({value // timedelta(microseconds=1)})")
    if isinstance(value, float):
        # A number with a point would be a decimal.
        return Written(f"'{value!r}'::DOUBLE" if math.isfinite(value) else f"'{value}'::DOUBLE", "DOUBLE")
    return Written(str(int(value)))


def variable(kind: Kind) -> tuple[str, LocalColumn]:
    """A new parameter of a lambda: its name, and the column for its body."""
    name = f"_v{next(_variables)}"
    return name, LocalColumn(lambda scope: Written(name, kind))


def member(value: Written, path: Iterable[str]) -> Written:
    """What is in a struct at a path of names; of a list of structs, the list of what is in each."""
    for name in path:
        if isinstance(value.kind, ListOf):
            item = f"_v{next(_variables)}"
            inner = member(Written(item, value.kind.member), [name])
            value = Written(f"list_transform({value.sql}, lambda {item}: {inner.sql})", ListOf(inner.kind))
        elif isinstance(value.kind, dict) and name in value.kind:
            value = Written(f"struct_extract({value.sql}, {text_literal(name)})", value.kind[name])
        else:
            raise LookupError(f"{name}: no member of {value.sql}, which is {sql_type(value.kind)}")
    return value


def sort_key(value: Written) -> str:
    """What sorts as the value does in Spark. In a struct, a null is less than all values."""
    if not isinstance(value.kind, dict):
        return value.sql
    parts = value.parts or [f"struct_extract({value.sql}, {text_literal(name)})" for name in value.kind]
    key = f"row({', '.join(f'{part} IS NOT NULL, {part}' for part in parts)})"
    return key if value.parts else f"CASE WHEN {value.sql} IS NOT NULL THEN {key} END"


def _order_test(left: Written, sign: str, right: Written) -> str:
    if not isinstance(left.kind, dict):
        return f"({left.sql} {sign} {right.sql})"
    return f"(({sort_key(left)}) {sign} ({sort_key(right)}))"


def _try_cast(sql: str, target: str) -> str:
    return f"TRY_CAST({sql} AS {target})"


def _as_double(sql: str, target: str) -> str:
    # DuckDB would also read 1_000.
    number = f"regexp_replace(trim({sql}), '(?i)([0-9.])[df]$', '\\1')"
    return f"CASE WHEN regexp_full_match(trim({sql}), '{_DOUBLE}') THEN TRY_CAST({number} AS DOUBLE) END"


def _as_moment(sql: str, target: str) -> str:
    # DuckDB would also read 24:00, and has other forms of zones.
    read = f"make_timestamp(epoch_us(TRY_CAST(trim({sql}) AS TIMESTAMPTZ)))"
    return f"CASE WHEN regexp_full_match(trim({sql}), '{_MOMENT}') THEN {read} END"


# Of the forms that Spark reads, those that XSD has, and some more; not hexadecimal numbers and names of zones.
_DOUBLE = r"(?i)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?|nan|[+-]?inf(inity)?"
_ZONE = r"(Z|[+-](0?\d|1[0-7])(:?[0-5]\d)?|[+-]18(:?00)?)"
_CLOCK = rf"([01]?\d|2[0-3]):[0-5]?\d(:[0-5]?\d(\.\d*)?{_ZONE}?)?"
_MOMENT = rf"\d{{4,6}}-\d{{1,2}}-\d{{1,2}}([T ]{_CLOCK})?"
_TEXT_READERS: dict[str, Callable[[str, str], str]] = {"DOUBLE": _as_double, "TIMESTAMP": _as_moment}
