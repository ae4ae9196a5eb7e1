"""Frames as SQL of DuckDB: what PySpark's `DataFrame` offers, as far as the definitions of the fleet use it.

A frame is the text of a query and knows its columns. Nothing runs until it is written, collected or kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from lamplighter.cloud_sync.fleet.local.columns import LocalColumn, Written, column, constant, member, order_key
from lamplighter.cloud_sync.fleet.local.functions import Inline, coalesce
from lamplighter.cloud_sync.fleet.local.functions import count as rows_counted
from lamplighter.cloud_sync.fleet.local.kinds import Kind, ListOf, identifier

_numbers = count()


class QuerySession(Protocol):
    """Runs the queries of frames, as `LocalSession` does."""

    def types(self, query: str) -> list[tuple[str, str]]: ...

    def keep(self, query: str) -> str: ...

    def rows(self, query: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]: ...

    def write(self, query: str, path: Path) -> int: ...


@dataclass(frozen=True)
class Field:
    """A column of a frame. name: as its users call it; sql: in the frame's query.

    frames: aliases and numbers of the frames that it comes from, by which equal names are told apart; hidden: whether
    it is in ``*``.
    """

    name: str
    sql: str
    kind: Kind = None
    frames: frozenset[str] = frozenset()
    hidden: bool = False


@dataclass
class _Fields:
    """The scope of columns over some fields. computed: their values by name, in the order of their use."""

    fields: Sequence[Field]
    computed: dict[str, str] | None = field(default_factory=dict)

    def resolve(self, name: str, frame: str | None) -> Written:
        first, *path = name.split(".")
        candidates = [one for one in self.fields if one.name == first and (frame is None or frame in one.frames)]
        if not candidates and path:
            frame, first, *path = first, *path
            candidates = [one for one in self.fields if one.name == first and frame in one.frames]
        if len(candidates) != 1:
            known = ", ".join(one.name for one in self.fields)
            raise LookupError(f"{name}: {'more than one column' if candidates else 'no column'} of {known}")
        written = Written(candidates[0].sql, candidates[0].kind)
        if not path:
            return written
        found = member(written, path)
        # DuckDB would go through a list again wherever the same members are asked for.
        return Written(self.compute(found.sql), found.kind) if isinstance(found.kind, ListOf) else found

    def compute(self, sql: str) -> str:
        if self.computed is None:
            return sql
        return next((name for name, known in self.computed.items() if known == sql), None) or self._add_value(sql)

    def _add_value(self, sql: str) -> str:
        assert self.computed is not None
        name = f"_c{next(_numbers)}"
        self.computed[name] = sql
        return name

    def source(self, frame: LocalFrame) -> str:
        """The FROM of a query over the frame, with what is computed for it."""
        if not self.computed:
            return frame.source
        return f"(SELECT *, {', '.join(f'{sql} AS {name}' for name, sql in self.computed.items())} FROM {frame.source})"


class LocalFrame:
    """Rows of DuckDB. query: its SQL, or a function that runs at first use and returns it."""

    def __init__(self, session: QuerySession, query: str | Callable[[], str], fields: Iterable[Field]) -> None:
        self.sparkSession = session
        self._query = query
        self._id = f"#{next(_numbers)}"
        self.fields = tuple(_from(one, self._id) for one in fields)

    @cached_property
    def query(self) -> str:
        return self._query if isinstance(self._query, str) else self._query()

    @property
    def output(self) -> str:
        """The query with the columns that its users see."""
        if all(one.sql == identifier(one.name) and not one.hidden for one in self.fields):
            return self.query
        shown = (f"{one.sql} AS {identifier(one.name)}" for one in self.fields if not one.hidden)
        return f"SELECT {', '.join(shown)} FROM {self.source}"

    @property
    def source(self) -> str:
        """The frame in a FROM."""
        return f"({self.query})"

    @property
    def columns(self) -> list[str]:
        return [one.name for one in self.fields if not one.hidden]

    @property
    def schema(self) -> dict[str, Kind]:
        return {one.name: one.kind for one in self.fields if not one.hidden}

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return [(name, kind.lower()) for name, kind in self.sparkSession.types(self.output)]

    def __getitem__(self, name: str) -> LocalColumn:
        return column(name, self._id)

    # --- of each row

    def select(self, *items: str | LocalColumn | Sequence[str | LocalColumn]) -> LocalFrame:
        scope = _Fields(self.fields)
        chosen: list[tuple[str, Written]] = []
        structs: Written | None = None
        for item in _flat(items):
            if isinstance(item, Inline):
                structs = item.render(scope)
                chosen.append(("_structs", structs))
            elif isinstance(item, LocalColumn):
                chosen.append((item.name, item.render(scope)))
            elif item == "*":
                chosen += [(one.name, Written(one.sql, one.kind)) for one in self.fields if not one.hidden]
            elif item.endswith(".*"):
                struct = scope.resolve(item.removesuffix(".*"), None)
                assert isinstance(struct.kind, dict), item
                chosen += [(name, member(struct, [name])) for name in struct.kind]
            else:
                chosen.append((item.rpartition(".")[2], scope.resolve(item, None)))
        frame = self._projection(scope, chosen)
        if structs is None:
            return frame
        assert isinstance(structs.kind, dict), "inline"
        return frame.select(*(name for name in frame.columns if name != "_structs"), "_structs.*")

    def withColumn(self, name: str, value: LocalColumn) -> LocalFrame:
        return self.withColumns({name: value})

    def withColumns(self, values: Mapping[str, LocalColumn]) -> LocalFrame:
        kept = [values[name].alias(name) if name in values else self[name] for name in self.columns]
        return self.select(*kept, *(value.alias(name) for name, value in values.items() if name not in self.columns))

    def _rename(self, names: Mapping[str, str]) -> LocalFrame:
        return self.select(*(self[name].alias(names.get(name, name)) for name in self.columns))

    def _rename_one(self, old: str, new: str) -> LocalFrame:
        return self._rename({old: new})

    # As PySpark calls them.
    withColumnRenamed, withColumnsRenamed = _rename_one, _rename

    def drop(self, *names: str) -> LocalFrame:
        return self.select(*(self[name] for name in self.columns if name not in names))

    def where(self, condition: str | LocalColumn) -> LocalFrame:
        """condition: a text is the name of a column, or SQL that is the same in Spark and in DuckDB."""
        scope = _Fields(self.fields)
        if isinstance(condition, str) and condition.replace(".", "").isidentifier() and condition != "false":
            condition = column(condition)
        text = condition if isinstance(condition, str) else condition.render(scope).sql
        names = ", ".join(one.sql for one in self.fields)
        return self._frame(f"SELECT {names} FROM {scope.source(self)} WHERE {text}", self.fields)

    def _projection(self, scope: _Fields, chosen: Sequence[tuple[str, Written]], tail: str = "") -> LocalFrame:
        text = ", ".join(f"{value.sql} AS {identifier(name)}" for name, value in chosen)
        fields = [Field(name, identifier(name), value.kind) for name, value in chosen]
        return self._frame(f"SELECT {text} FROM {scope.source(self)}{tail}", fields)

    def _frame(self, query: str | Callable[[], str], fields: Iterable[Field]) -> LocalFrame:
        return LocalFrame(self.sparkSession, query, fields)

    # --- of several rows

    def groupBy(self, *keys: str | LocalColumn) -> _Groups:
        return _Groups(self, [*map(column, keys)])

    def agg(self, *values: LocalColumn) -> LocalFrame:
        return self.groupBy().agg(*values)

    def distinct(self) -> LocalFrame:
        return self._frame(f"SELECT DISTINCT * FROM {self.source}", self.fields)

    def unionByName(self, other: LocalFrame) -> LocalFrame:
        theirs = other.select(*(other[name] for name in self.columns))
        kinds = zip(self.fields, theirs.fields, strict=True)
        fields = [Field(one.name, one.sql, one.kind if one.kind is not None else same.kind) for one, same in kinds]
        return self._frame(f"{self.query} UNION ALL {theirs.query}", fields)

    def exceptAll(self, other: LocalFrame) -> LocalFrame:
        return self._frame(f"({self.query}) EXCEPT ALL ({other.query})", self.fields)

    def join(self, other: LocalFrame, on: str | LocalColumn | Sequence[Any], how: str = "inner") -> LocalFrame:
        """The joined rows. on: names that both have, which are there once then, or conditions."""
        conditions = [on] if isinstance(on, (str, LocalColumn)) else [*on]
        names = [one for one in conditions if isinstance(one, str)]
        left = [Field(one.name, f"l.{one.sql}", one.kind, one.frames) for one in self.fields]
        right = [Field(one.name, f"r.{one.sql}", one.kind, one.frames) for one in other.fields]
        scope = _Fields([*left, *right], None)
        same = {name: (_Fields(left).resolve(name, None).sql, _Fields(right).resolve(name, None).sql) for name in names}
        tests = [f"{one} = {another}" for one, another in same.values()]
        tests += [one.render(scope).sql for one in conditions if isinstance(one, LocalColumn)]
        if how in ("left_semi", "left_anti"):
            kind = how.removeprefix("left_").upper()
            query = f"SELECT l.* FROM {self.source} l {kind} JOIN {other.source} r ON {' AND '.join(tests)}"
            return self._frame(query, self.fields)._with_first(names)
        kept = [*left, *(one for one in right if one.name not in names)]
        keys = {one: f"coalesce({one}, {another})" for one, another in same.values() if how == "full"}
        # Both frames may have a column of the same name.
        theirs = {one.sql: f"_j{next(_numbers)}" for one in right}
        fields = [replace(one, sql=theirs.get(one.sql, one.sql.removeprefix("l."))) for one in kept]
        pairs = zip(kept, fields, strict=True)
        text = ", ".join(f"{keys.get(one.sql, one.sql)} AS {field.sql}" for one, field in pairs)
        query = f"SELECT {text} FROM {self.source} l {how.upper()} JOIN {other.source} r ON {' AND '.join(tests)}"
        return self._frame(query, fields)._with_first(names)

    def _with_first(self, names: Sequence[str]) -> LocalFrame:
        """The same frame, with some columns before the others."""
        fields = sorted(self.fields, key=lambda one: names.index(one.name) if one.name in names else len(names))
        return self._frame(f"SELECT {', '.join(one.sql for one in fields)} FROM {self.source}", fields)

    @property
    def na(self) -> _Nulls:
        return _Nulls(self)

    def alias(self, name: str) -> LocalFrame:
        return self._frame(self._query, [_from(one, name) for one in self.fields])

    def orderBy(self, *keys: str | LocalColumn) -> LocalFrame:
        scope = _Fields(self.fields)
        order = ", ".join(order_key(column(key).render(scope).sql) for key in keys)
        names = ", ".join(one.sql for one in self.fields)
        return self._frame(f"SELECT {names} FROM {scope.source(self)} ORDER BY {order}", self.fields)

    def sortWithinPartitions(self, *keys: str | LocalColumn) -> LocalFrame:
        return self.orderBy(*keys)

    def limit(self, rows: int) -> LocalFrame:
        return self._frame(f"SELECT * FROM {self.source} LIMIT {rows}", self.fields)

    def repartition(self, *keys: Any) -> LocalFrame:
        """Itself: there are no partitions."""
        return self

    def repartitionByRange(self, *keys: Any) -> LocalFrame:
        """Itself, as `repartition`."""
        return self

    # --- kept and read

    def localCheckpoint(self, eager: bool = False) -> LocalFrame:
        """The same rows, computed once, when they are first used."""
        return self._frame(lambda: f"SELECT * FROM {self.sparkSession.keep(self.query)}", self.fields)

    def persist(self) -> LocalFrame:
        return self.localCheckpoint()

    def unpersist(self) -> LocalFrame:
        """Itself: what was kept is freed with the session."""
        return self

    def collect(self) -> list[LocalRow]:
        return [*self.toLocalIterator()]

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[LocalRow]:
        names, rows = self.sparkSession.rows(self.output)
        return (LocalRow(names, row) for row in rows)

    def first(self) -> LocalRow | None:
        return next(iter(self.collect()), None)

    def count(self) -> int:
        ((number,),) = self.sparkSession.rows(f"SELECT count(*) FROM {self.source}")[1]
        return int(number)

    @property
    def write(self) -> _FrameWriter:
        return _FrameWriter(self)


class LocalRow(tuple[Any, ...]):
    """A row, by the names or the places of its columns."""

    _names: Sequence[str]

    def __new__(cls, names: Sequence[str], values: Iterable[Any]) -> LocalRow:
        row = super().__new__(cls, values)
        row._names = names
        return row

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._names.index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def asDict(self) -> dict[str, Any]:
        return dict(zip(self._names, self, strict=True))


@dataclass(frozen=True)
class _Groups:
    frame: LocalFrame
    keys: Sequence[LocalColumn]

    def agg(self, *values: LocalColumn) -> LocalFrame:
        scope = _Fields(self.frame.fields)
        chosen = [(one.name, one.render(scope)) for one in (*self.keys, *values)]
        places = ", ".join(str(place) for place in range(1, len(self.keys) + 1))
        return self.frame._projection(scope, chosen, f" GROUP BY {places}" if places else "")

    def count(self) -> LocalFrame:
        return self.agg(rows_counted("*").alias("count"))


@dataclass(frozen=True)
class _Nulls:
    frame: LocalFrame

    def fill(self, value: Any, names: Iterable[str]) -> LocalFrame:
        filled = {name: coalesce(self.frame[name], constant(value)) for name in names if name in self.frame.columns}
        return self.frame.withColumns(filled)


@dataclass(frozen=True)
class _FrameWriter:
    frame: LocalFrame

    def mode(self, mode: str) -> _FrameWriter:
        return self

    def parquet(self, url: str) -> int:
        """Writes the rows into one file of a folder, and removes what was in it. Returns their number."""
        folder = local_path(url)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return self.frame.sparkSession.write(self.frame.output, folder / f"part-{uuid4().hex}.parquet")


def local_path(url: str) -> Path:
    """The path of a URL of a file, as `Lake.spark` makes it, or of a path."""
    return Path(url.removeprefix("file://"))


def _from(one: Field, frame: str) -> Field:
    # `replace` takes several times as long, and plans make thousands of fields.
    return Field(one.name, one.sql, one.kind, one.frames | {frame}, one.hidden)


def _flat(items: Iterable[Any]) -> Iterable[str | LocalColumn]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from item
        else:
            yield item
