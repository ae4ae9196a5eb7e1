"""A session of the engine in this process: DuckDB behind what PySpark's `SparkSession` offers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import lazy
from lamplighter.cloud_sync.fleet.local.frames import Field, LocalFrame, local_path
from lamplighter.cloud_sync.fleet.local.kinds import TIME, Kind, columns_of, identifier, sql_type, text_literal

if TYPE_CHECKING:
    from pyarrow import Table

_ZONED = "TIMESTAMP WITH TIME ZONE"
# Types of DuckDB that Spark would have another one for.
_STORED = {"HUGEINT": "{}::BIGINT", TIME: "make_timestamptz(epoch_us({}))"}
_names = count()


class LocalSession:
    """Frames over the files of a lake."""

    def __init__(self, connection: Any, error: type[Exception]) -> None:
        """error: what DuckDB raises."""
        self._connection = connection
        self.error = error
        # Asked for by `tables.by_gateway`. There are no partitions.
        self.conf = {"spark.sql.shuffle.partitions": "1"}
        # Spark's is asked for to learn whether its process is alive.
        self.version = "DuckDB"

    def _reader(self) -> _FileReader:
        return _FileReader(self)

    read = property(_reader)  # as PySpark calls it

    def createDataFrame(self, rows: Table, columns: str) -> LocalFrame:
        """rows: of Arrow."""
        name = f"_given{next(_names)}"
        self._connection.register(name, rows)
        fields = [Field(name, identifier(name), kind) for name, kind in columns_of(columns).items()]
        return LocalFrame(self, f"SELECT * FROM {name}", fields)

    def range(self, rows: int) -> LocalFrame:
        return LocalFrame(self, f"SELECT * FROM range({rows}) t(id)", [Field("id", "id", "BIGINT")])

    def types(self, query: str) -> list[tuple[str, str]]:
        """The columns of a query with DuckDB's types."""
        return [(name, kind) for name, kind, *_ in self._connection.execute(f"DESCRIBE {query}").fetchall()]

    def keep(self, query: str) -> str:
        """Runs a query. Returns the name of a table with its rows."""
        name = f"_kept{next(_names)}"
        self._connection.execute(f"CREATE TEMP TABLE {name} AS {query}")
        return name

    def rows(self, query: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The names of a query's columns, and its rows. They are read before the next query runs."""
        found = self._connection.execute(query)
        return [name for name, *_ in found.description], iter(found.fetchone, None)

    def unreadable(self, frame: LocalFrame) -> str | None:
        """Why not all of the rows can be read, in one line; None if they can."""
        try:
            self._connection.execute(f"SELECT max(hash(rows)) FROM {frame.source} rows").fetchall()
        except self.error as error:
            return str(error).partition("\n")[0]
        return None

    def write(self, query: str, path: Path) -> int:
        """Writes a query's rows as a Parquet file. Returns their number."""
        columns = ", ".join(
            f"{_STORED.get(kind, '{}').format(identifier(name))} AS {identifier(name)}"
            for name, kind in self.types(query)
        )
        written = self._connection.execute(
            f"COPY (SELECT {columns} FROM ({query})) TO {text_literal(str(path))} (FORMAT parquet, CODEC zstd)"
        )
        return int(written.fetchone()[0])


@dataclass(frozen=True)
class _FileReader:
    """Reads files. kinds: of the columns that are wanted; None: all that are there."""

    session: LocalSession
    kinds: dict[str, Kind] | None = None

    def schema(self, columns: str | dict[str, Kind]) -> _FileReader:
        known = columns_of(columns) if isinstance(columns, str) else columns
        return replace(self, kinds=known if None not in known.values() else None)

    def options(self, **options: str) -> _FileReader:
        """Itself: a file that cannot be read is an error."""
        return self

    def parquet(self, *paths: str) -> LocalFrame:
        """Columns that a file does not have are null."""
        scan = f"read_parquet({_place_list(map(_input_path, paths))}, union_by_name = true, hive_partitioning = false)"
        there = dict(self.session.types(f"SELECT * FROM {scan}"))
        wanted = self.kinds or {name: TIME if kind == _ZONED else kind for name, kind in there.items()}
        columns = [
            f"{_file_column(name, kind, there.get(name))} AS {identifier(name)}" for name, kind in wanted.items()
        ]
        fields = [Field(name, identifier(name), kind) for name, kind in wanted.items()]
        return LocalFrame(self.session, f"SELECT {', '.join(columns)} FROM {scan}", fields)

    def json(self, paths: str | Sequence[str]) -> LocalFrame:
        """Lines of JSON, and the hidden column ``_metadata`` with the path of their file and its time."""
        assert self.kinds is not None
        places = [*map(_input_path, [paths] if isinstance(paths, str) else paths)]
        types = ", ".join(
            f"{text_literal(name)}: {text_literal(sql_type(kind, time=_ZONED))}" for name, kind in self.kinds.items()
        )
        scan = (
            f"read_json({_place_list(places)}, format = 'newline_delimited', columns = {{{types}}}, "
            f"filename = '_path', maximum_object_size = {LINE_BYTES_MAX})"
        )
        columns = [f"{_file_column(name, kind, _ZONED)} AS {identifier(name)}" for name, kind in self.kinds.items()]
        fields = [Field(name, identifier(name), kind) for name, kind in self.kinds.items()]
        file = Field("_metadata", "_metadata", _METADATA, hidden=True)
        facts = "{'file_path': _path, 'file_modification_time': make_timestamp(_written_us)}"
        times = f"(VALUES {', '.join(map(_file_time, places))}) times(_file, _written_us)"
        query = f"SELECT {', '.join(columns)}, {facts} AS _metadata FROM {scan} LEFT JOIN {times} ON _path = _file"
        return LocalFrame(self.session, query, [*fields, file])


_METADATA: dict[str, Kind] = {"file_path": "VARCHAR", "file_modification_time": TIME}
# The longest line of a segment: a restored backup is one.
LINE_BYTES_MAX = 64 << 20


def _file_column(name: str, kind: Kind, there: str | None) -> str:
    """A column of a file as the frame has it."""
    if there is None:
        return f"NULL::{sql_type(kind)}"
    if kind == TIME and there == _ZONED:
        return f"make_timestamp(epoch_us({identifier(name)}))"
    return identifier(name)


def _input_path(url: str) -> Path:
    """The path of what is read, as `Lake.spark_input` makes it: signs of patterns follow a backslash."""
    return local_path(re.sub(r"\\(.)", r"\1", url))


def _place_list(places: Iterable[Path]) -> str:
    return f"[{', '.join(text_literal(str(place)) for place in places)}]"


def _file_time(place: Path) -> str:
    """A path, and when the file was written, in whole milliseconds as Spark has it."""
    try:
        written_us = str(place.stat().st_mtime_ns // 1_000_000 * 1000)
    except FileNotFoundError:  # told by who reads it
        written_us = "NULL::BIGINT"
    return f"({text_literal(str(place))}, {written_us})"


@contextmanager
def local_session() -> Iterator[LocalSession]:
    """A new session. Within it, `lazy.F` and `lazy.Window` are those of this engine."""
    import duckdb

    with (
        tempfile.TemporaryDirectory(prefix="lamplighter-fleet-") as folder,
        duckdb.connect(config={"temp_directory": folder}) as connection,
        lazy.engine(lazy.LOCAL),
    ):
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        yield LocalSession(connection, duckdb.Error)
