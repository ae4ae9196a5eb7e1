"""Tables as batches of Parquet files. A batch counts when its manifest is there.

The files of a batch are written to a folder of their own. A rename (or a PUT, which is as atomic) then puts the
manifest with their names in place. Readers take file names from the manifests: they never read what a crash left, and
writing a batch again replaces it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake, LockLostError
from lamplighter.cloud_sync.fleet.lazy import F, pa, pc
from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Refused(msgspec.Struct, frozen=True):
    """A segment that was left out of a batch, with the reason."""

    segment: str
    reason: str


class MergedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of `matches` whose rows are in another one now. written: when, in seconds since 1970, if known; ahead:
    whether its rows came ahead of their segments."""

    id: str
    rows: int
    written: float | None = None
    ahead: bool = False


class TableBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest. files: relative to the table's folder; rows: their number.

    replaces: batches whose rows are in this one, and which no longer count. segments: sources of a bronze batch;
    landings: their numbers in the landing log, where they have one; sources: the bronze batches of a silver batch;
    refused: segments that were left out; quads_max: the largest number of quads that a bronze record asserts.
    caught_up: `<id>/<version>` of subscriptions whose matches in the segments before are in a batch of `matches`;
    ahead: for each gateway the last object with matches ahead of its segments that is in `matches`; compared: of such
    matches, the number by outcome of their comparison with Spark; merged: the batches of `matches` that this one was
    made of, in the order of their rows, where those without rows are left out.
    """

    v: int = 1
    id: str
    files: list[str]
    rows: int
    replaces: list[str] = []
    segments: list[str] = []
    landings: dict[str, int] = {}
    sources: list[str] = []
    refused: list[Refused] = []
    quads_max: int | None = None
    caught_up: list[str] = []
    ahead: dict[str, int] = {}
    compared: dict[str, int] = {}
    merged: list[MergedBatch] = []


def live_of(batches: Iterable[TableBatch]) -> list[TableBatch]:
    """Those that no other one replaces."""
    found = list(batches)
    replaced = {name for batch in found for name in batch.replaces}
    return [batch for batch in found if batch.id not in replaced]


def comparison_counts(batches: Iterable[TableBatch]) -> dict[str, int]:
    """Of matches that came ahead of their segments, the number by outcome of their comparison; empty without any."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.compared)
    return {name: found[name] for name in ("equal", "different", "unfound")} if found else {}


def quads_max(batches: Iterable[TableBatch]) -> int | None:
    """The maximum over all batches; None if one of them has no value."""
    found = [batch.quads_max for batch in batches]
    return None if None in found else max((most for most in found if most is not None), default=0)


def no_rows(spark: SparkSession, schema: str) -> DataFrame:
    """An empty frame. schema: as DDL."""
    # `createDataFrame` would start Python on the executors, which may have none.
    return spark.range(0).select(F.from_json(F.lit("{}"), schema).alias("row")).select("row.*")


class Batches:
    """A table of the lake. name: its folder, such as ``silver/streams``; schema: as DDL."""

    def __init__(self, lake: Lake, name: str, schema: str) -> None:
        self.lake = lake
        self.name = name
        self.schema = schema

    def all(self, known: Container[str] = ()) -> list[TableBatch]:
        """Every manifest, including those of replaced batches, sorted by name. known: ids of those to leave out."""
        return [batch for name in self.ids() if name not in known and (batch := self.find(name)) is not None]

    def ids(self) -> list[str]:
        """The ids of all batches, sorted."""
        names = self.lake.names(self.name, "_batches")
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def find(self, id: str) -> TableBatch | None:
        """The manifest of a batch; None if there is none."""
        path = self.lake.path(self.name, "_batches", f"{id}.json")
        try:
            found = msgspec.json.decode(self.lake.fs.cat_file(path), type=TableBatch)
            if found.id != id:
                raise ValueError(f"its id is {found.id[:100]!a}")
            for name in found.files:
                if not name.startswith("batch=") or ".." in name.split("/"):
                    raise ValueError(f"{name[:100]!a} is not a file of this table")
            return found
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:  # those of msgspec too
            raise ConfigurationError(
                f"{path}: not a manifest: {error}; remove it, and write its batch again"
            ) from error

    def live(self) -> list[TableBatch]:
        """The batches that count."""
        return live_of(self.all())

    def write(self, frame: DataFrame, batch: TableBatch, *, files: int | None = None) -> TableBatch:
        """Writes a batch and replaces one of the same name. files: their number; by default one for each partition.

        batch: the manifest without files and rows, which are filled in.
        """
        return self.commit(self.stage(frame, batch, files=files))

    def stage(self, frame: DataFrame, batch: TableBatch, *, files: int | None = None) -> TableBatch:
        """Writes the files of a batch, which does not count yet."""
        folder = f"batch={batch.id}"
        # On object storage, a process that has lost its lock without noticing must not remove files of the next one.
        before = set() if self.lake.local else set(self.lake.names(self.name, folder))
        mode = "overwrite" if self.lake.local else "append"
        # coalesce would also reduce the parallelism of all earlier steps.
        written = frame if files is None else frame.repartition(files)
        writer: Any = written.write.mode(mode)
        count: int | None = writer.parquet(self.lake.spark(self.name, folder))
        new = sorted(set(self.lake.names(self.name, folder)) - before)
        names = [f"{folder}/{name}" for name in new if name.endswith(".parquet")]
        # Spark's writer returns nothing.
        rows = sum(map(self.rows_of, names)) if count is None else count
        return msgspec.structs.replace(batch, files=names if rows else [], rows=rows)

    def stage_rows(self, rows: pa.Table, batch: TableBatch) -> TableBatch:
        """As `stage`, without Spark, whose jobs cost more than writing a few thousand rows."""
        return self.stage_parts([rows], rows.schema, batch)

    def stage_parts(self, parts: Iterable[pa.Table], schema: pa.Schema, batch: TableBatch) -> TableBatch:
        """As `stage_rows`, with a row group for each part."""
        from pyarrow.parquet import ParquetWriter

        folder = f"batch={batch.id}"
        path = self.lake.path(self.name, folder)
        if self.lake.local and self.lake.fs.exists(path):  # what a crash left
            self.lake.fs.rm(path, recursive=True)
        file_name = "rows.parquet" if self.lake.local else f"rows-{secrets.token_hex(8)}.parquet"  # as in `stage`
        name, rows = f"{folder}/{file_name}", 0
        with contextlib.ExitStack() as opened:
            writer: Any = None
            for part in parts:
                if part.num_rows and writer is None:
                    self.lake.fs.makedirs(path, exist_ok=True)
                    file = opened.enter_context(self.lake.fs.open(self.lake.path(self.name, name), "wb"))
                    writer = opened.enter_context(ParquetWriter(file, schema, compression="zstd"))
                if part.num_rows:
                    writer.write_table(part)
                    rows += part.num_rows
        return msgspec.structs.replace(batch, files=[name] if rows else [], rows=rows)

    def commit(self, batch: TableBatch, *, new: bool = False) -> TableBatch:
        """Writes the manifest of a staged batch, which counts from now on.

        new: no other process may have written this batch. Then LockLostError is raised if one has, on object storage.
        """
        place, data = (self.name, "_batches", f"{batch.id}.json"), msgspec.json.encode(batch) + b"\n"
        if not new or self.lake.local:
            self.lake.write(data, *place)
        elif self.lake.write_if(data, None, *place) is None:
            raise LockLostError(f"{self.lake.path(*place)}: another process has written this batch; this one ends")
        return batch

    def rows_of(self, name: str) -> int:
        """The number of rows in a file's footer."""
        # A Spark job for it would cost more than writing most batches.
        from pyarrow.parquet import read_metadata

        with self.lake.fs.open(self.lake.path(self.name, name), "rb") as file:
            return int(read_metadata(file).num_rows)

    def open(self, spark: SparkSession, names: Iterable[str]) -> DataFrame:
        """The rows of some files of this table."""
        paths = [self.lake.spark_input(self.name, name) for name in names]
        return spark.read.schema(self.schema).parquet(*paths) if paths else no_rows(spark, self.schema)

    def frame(self, spark: SparkSession, batches: Iterable[TableBatch] | None = None) -> DataFrame:
        """The rows of these batches; by default of all that count."""
        chosen = self.live() if batches is None else batches
        return self.open(spark, [name for batch in chosen for name in batch.files])

    def few_rows(
        self, batches: Sequence[TableBatch], columns: Sequence[str], *, rows_max: int, members_max: int
    ) -> Iterator[dict[str, Any]] | None:
        """The rows of batches, read without Spark. None if they are more, or their lists have more members in all.

        They are kept as Arrow data, and become objects, which take several times the memory, one thousand at a time.
        """
        from pyarrow.parquet import ParquetFile

        if sum(batch.rows for batch in batches) > rows_max:
            return None
        parts = []
        for name in (name for batch in batches for name in batch.files):
            with self.lake.fs.open(self.lake.path(self.name, name), "rb") as file:
                for part in ParquetFile(file).iter_batches(1000, columns=list(columns)):
                    lists = (column for column in part.columns if hasattr(column, "offsets"))
                    members_max -= sum(pc.sum(pc.list_value_length(column)).as_py() or 0 for column in lists)
                    if members_max < 0:
                        return None
                    parts.append(part)
        return (row for part in parts for row in part.to_pylist())

    def forget(self, batch: TableBatch) -> None:
        """Removes the manifest of a replaced batch without files."""
        self.lake.fs.rm_file(self.lake.path(self.name, "_batches", f"{batch.id}.json"))

    def sweep(self) -> int:
        """Removes folders and manifests that no longer count. Returns the number of manifests.

        No other process may read or write.
        """
        live = self.live()
        keep = {f"batch={batch.id}" for batch in live}
        swept = 0
        for name in self.lake.names(self.name, "_batches"):
            if name.endswith(".json") and f"batch={name.removesuffix('.json')}" not in keep:
                self.lake.fs.rm_file(self.lake.path(self.name, "_batches", name))
                swept += 1
        for name in self.lake.names(self.name):
            if name.startswith("batch=") and name not in keep:
                self.lake.fs.rm(self.lake.path(self.name, name), recursive=True)
        if not self.lake.local:
            self._sweep_beside(live)
        return swept

    def _sweep_beside(self, live: Iterable[TableBatch]) -> None:
        """Removes files that are beside those of a batch because `stage` on object storage removes none."""
        for batch in live:
            folder = f"batch={batch.id}"
            for name in self.lake.names(self.name, folder):
                if f"{folder}/{name}" not in batch.files:
                    self.lake.fs.rm_file(self.lake.path(self.name, folder, name))
