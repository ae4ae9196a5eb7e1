"""Tables as batches of Parquet files. A batch counts when its manifest is there.

The files of a batch are written to a folder of their own. A rename (or a PUT, which is as atomic) then puts the
manifest with their names in place. Readers take file names from the manifests: they never read what a crash left, and
writing a batch again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake
from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Refused(msgspec.Struct, frozen=True):
    """A segment that was left out of a batch, and why."""

    segment: str
    reason: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest. files: relative to the table's folder; rows: how many they hold.

    replaces: batches that do not count any more since their rows are in this one. segments: what a batch of bronze was
    made of; sources: the batches of bronze that one of silver was made of; refused: segments that were left out;
    quads_max: the most quads that a record of bronze asserts.
    """

    v: int = 1
    id: str
    files: list[str]
    rows: int
    replaces: list[str] = []
    segments: list[str] = []
    sources: list[str] = []
    refused: list[Refused] = []
    quads_max: int | None = None


def quads_max(batches: Iterable[Batch]) -> int | None:
    """Over all of them; None if one does not say."""
    found = [batch.quads_max for batch in batches]
    return None if None in found else max((most for most in found if most is not None), default=0)


class Batches:
    """A table of the lake. name: its folder, such as ``silver/streams``; schema: as DDL."""

    def __init__(self, lake: Lake, name: str, schema: str) -> None:
        self.lake = lake
        self.name = name
        self.schema = schema

    def all(self) -> list[Batch]:
        """Every manifest, also of batches that were replaced, in the order of their names."""
        found = []
        for name in self.lake.names(self.name, "_batches"):
            if not name.endswith(".json") or name.startswith("."):
                continue
            path = self.lake.path(self.name, "_batches", name)
            try:
                found.append(msgspec.json.decode(self.lake.fs.cat_file(path), type=Batch))
            except msgspec.MsgspecError as error:
                raise ConfigurationError(
                    f"{path}: not a manifest: {error}; remove it and make its batch again"
                ) from error
        return found

    def live(self) -> list[Batch]:
        """The batches that count."""
        found = self.all()
        replaced = {name for batch in found for name in batch.replaces}
        return [batch for batch in found if batch.id not in replaced]

    def write(self, frame: DataFrame, batch: Batch, *, files: int | None = None) -> Batch:
        """Writes a batch; one of the same name is replaced. files: into so many, else as the frame is partitioned.

        batch: id, and what else its manifest is to say; its files and rows are found here.
        """
        return self.commit(self.stage(frame, batch, files=files))

    def stage(self, frame: DataFrame, batch: Batch, *, files: int | None = None) -> Batch:
        """Writes the files of a batch, which does not count yet."""
        folder = f"batch={batch.id}"
        # Not coalesce, for which all that comes before would be done by so few, too.
        written = frame if files is None else frame.repartition(files)
        written.write.mode("overwrite").parquet(self.lake.spark(self.name, folder))
        names = [f"{folder}/{name}" for name in self.lake.names(self.name, folder) if name.endswith(".parquet")]
        rows = sum(map(self._rows, names))
        return msgspec.structs.replace(batch, files=names if rows else [], rows=rows)

    def commit(self, batch: Batch) -> Batch:
        """From here on a staged batch counts."""
        self.lake.write(msgspec.json.encode(batch) + b"\n", self.name, "_batches", f"{batch.id}.json")
        return batch

    def _rows(self, name: str) -> int:
        """As the footer of the file says; a job of Spark for that would cost more than writing many a batch."""
        from pyarrow.parquet import read_metadata

        with self.lake.fs.open(self.lake.path(self.name, name), "rb") as file:
            return int(read_metadata(file).num_rows)

    def open(self, spark: SparkSession, names: Iterable[str]) -> DataFrame:
        """The rows of some files of this table."""
        paths = [self.lake.spark(self.name, name) for name in names]
        return spark.read.schema(self.schema).parquet(*paths) if paths else spark.createDataFrame([], self.schema)

    def read(self, spark: SparkSession, batches: Iterable[Batch] | None = None) -> DataFrame:
        """The rows of some batches, of all that count if none are named."""
        chosen = self.live() if batches is None else batches
        return self.open(spark, [name for batch in chosen for name in batch.files])

    def sweep(self) -> int:
        """Removes folders and manifests that do not count any more; how many. Nobody may be reading or writing."""
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
        return swept
