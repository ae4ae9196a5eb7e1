"""A gateway's dataset as of any record: the nearest snapshot, and the records after it folded.

Most graphs only grow (readings of model `event` within one range, descriptions). Only quads of graphs with deletions
in the range are folded; all others pass through.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake, no_rows
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.bronze import read_snapshots
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.tables import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[int, int]
"""Epoch and sequence."""

_PLACE = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")
_QUAD = "STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>"


@dataclass(frozen=True)
class Stretch:
    """Records of one epoch that lead to a state: after `after`, up to `last`."""

    epoch: int
    after: int
    last: int


class GatewayPast:
    """The records and snapshots of one gateway in the lake. Raises ConfigurationError if there are none."""

    def __init__(self, spark: SparkSession, lake: Lake, gateway: str) -> None:
        self._spark = spark
        self._lake = lake
        self.gateway = gateway
        bronze = table(lake, "bronze")
        batches = [one for one in bronze.live() if any(name.startswith(f"{gateway}/") for name in one.segments)]
        if not batches:
            raise ConfigurationError(f"gateway {gateway!r}: bronze has no records; run ingest, or correct the name")
        self.records = bronze.read(spark, batches).where(f"gw = '{_checked(gateway)}'")

    def place(self, text: str) -> Place:
        """The place that a text names. Raises ConfigurationError.

        ``17``: in the newest epoch that has it; ``1/17``; or a time: the last record that is not later by the gateway's
        clock, which may have been wrong.
        """
        from pyspark.sql import functions as F

        named = _PLACE.fullmatch(text)
        if named is None:
            condition = F.col("ts") <= F.lit(_moment(text))
        elif named[1] is None:
            condition = F.col("seq") == int(named[2])
        else:
            condition = (F.col("epoch") == int(named[1])) & (F.col("seq") == int(named[2]))
        found = self.records.where(condition).agg(F.max(F.struct("epoch", "seq")).alias("place")).first()
        if found is None or found["place"] is None:
            raise ConfigurationError(f"gateway {self.gateway}: bronze has no record {text}; choose another one")
        return found["place"]["epoch"], found["place"]["seq"]

    def dataset(self, place: Place) -> DataFrame:
        """The quads after a record: s, p, o, g, each once. Raises ConfigurationError if records are missing."""
        base, stretches = self._way(place)
        return _fold(self._snapshot(base), self._commits(stretches))

    def _way(self, place: Place) -> tuple[Place | None, list[Stretch]]:
        """(the snapshot to start from, or None for an empty dataset, the records from there)."""
        epochs = self._lineage(place)
        snapshots = [
            (name.epoch, name.first)
            for text in self._lake.names("snapshots", self.gateway)
            if (name := segment_name(text)) is not None and name.last is None
        ]
        usable = [one for one in snapshots if one[0] in epochs and one[1] <= epochs[one[0]]]
        missing = "the first records of its epoch"
        for base in [*sorted(usable, reverse=True), None]:
            if base is None and 1 not in epochs:
                break
            begin = base or (1, 0)
            stretches = [
                Stretch(epoch, begin[1] if epoch == begin[0] else 0, last)
                for epoch, last in sorted(epochs.items())
                if epoch >= begin[0]
            ]
            lacking = self._missing(stretches)
            if lacking is None:
                return base, stretches
            missing = lacking
            if base is None or not any(one < base for one in usable):
                continue
        raise ConfigurationError(
            f"gateway {self.gateway}: its dataset at {place[0]}/{place[1]} is unknown, because {missing} are missing; "
            "ship and ingest them, or choose a record after a later snapshot"
        )

    def _lineage(self, place: Place) -> dict[int, int]:
        """Epoch -> its last valid record. A later epoch's gap record says where that epoch continues from.

        Records that the gateway lost are not part of its later dataset, even if they were shipped before.
        """
        from pyspark.sql import functions as F

        gaps = self.records.where(
            (F.col("type") == "gap") & (F.get_json_object("gap", "$.epoch").try_cast("int") < F.col("epoch"))
        )
        rows = gaps.select("epoch", F.from_json("gap", "epoch INT, first BIGINT").alias("gap")).collect()
        before = {row["epoch"]: (row["gap"]["epoch"], row["gap"]["first"] - 1) for row in rows}
        found = {place[0]: place[1]}
        epoch = place[0]
        while epoch in before:
            epoch, last = before[epoch]
            found[epoch] = last
        return found

    def _missing(self, stretches: Iterable[Stretch]) -> str | None:
        """The first of these records that bronze does not have."""
        from pyspark.sql import functions as F

        for one in stretches:
            if one.last <= one.after:
                continue
            within = self.records.where(
                (F.col("epoch") == one.epoch) & (F.col("seq") > one.after) & (F.col("seq") <= one.last)
            )
            if within.count() == one.last - one.after:
                continue
            names = sorted(
                (name.first, name.last)
                for segment in self._segments()
                if (name := segment_name(segment)) is not None and name.last is not None and name.epoch == one.epoch
            )
            expected = one.after + 1
            for first, last in names:
                if first > expected:
                    break
                expected = max(expected, last + 1)
            return f"records from {one.epoch}/{expected} on"
        return None

    def _segments(self) -> list[str]:
        return [
            name.rpartition("/")[2]
            for batch in table(self._lake, "bronze").live()
            for name in batch.segments
            if name.startswith(f"{self.gateway}/")
        ]

    def _snapshot(self, base: Place | None) -> DataFrame:
        from pyspark.sql import functions as F

        if base is None:
            return no_rows(self._spark, "s STRING, p STRING, o STRING, g STRING")
        name = f"{self.gateway}/{base[0]}-{base[1]:012d}.ndjson.zst"
        lines = read_snapshots(self._spark, self._lake, [name])
        end = (
            lines.where(F.get_json_object("snapshot", "$.last") == "true")
            .select(F.get_json_object("snapshot", "$.quads"))
            .first()
        )
        quads = lines.select(F.explode("a").alias("q")).select(
            *(F.get("q", F.lit(place)).alias(part) for place, part in enumerate("spog"))
        )
        if end is None or int(end[0]) != quads.count():
            raise UpstreamError(f"snapshot {name} is truncated; land a good copy of it, or remove it")
        return quads

    def _commits(self, stretches: Iterable[Stretch]) -> DataFrame:
        from pyspark.sql import functions as F

        condition = F.lit(False)
        for one in stretches:
            condition |= (F.col("epoch") == one.epoch) & (F.col("seq") > one.after) & (F.col("seq") <= one.last)
        return self.records.where((F.col("type") == "commit") & condition)


def _fold(base: DataFrame, commits: DataFrame) -> DataFrame:
    """The quads of a dataset after these commits."""
    from pyspark.sql import functions as F

    nothing = F.struct(F.lit(0).alias("epoch"), F.lit(0).cast("bigint").alias("seq"))
    place = F.struct("epoch", "seq").alias("place")
    added = commits.select(place, F.inline("a")).unionByName(base.select(nothing.alias("place"), "*"))
    deleted = commits.select(place, F.inline("d"))
    # The default graph has no name.
    key = F.coalesce("g", F.lit("")).alias("graph")
    touched = deleted.select(key).distinct()
    grown = added.withColumn("graph", key).join(touched, "graph", "left_anti").select("s", "p", "o", "g")
    changed = (
        added.withColumn("graph", key).join(touched, "graph", "left_semi")
        .select("s", "p", "o", "g", "place", F.lit(True).alias("there"))
        .unionByName(deleted.select("s", "p", "o", "g", "place", F.lit(False).alias("there")))
        .groupBy("s", "p", "o", "g").agg(F.max_by("there", "place").alias("there"))
        .where("there").select("s", "p", "o", "g")
    )  # fmt: skip
    return grown.unionByName(changed)


def nquads(quads: DataFrame) -> DataFrame:
    """s, p, o, g -> the statement in N-Quads, `line`."""
    from pyspark.sql import functions as F

    return quads.select(F.concat_ws(" ", "s", "p", "o", "g", F.lit(".")).alias("line"))


def write_lines(lines: DataFrame, target: Path, end: str = "\n") -> int:
    """Writes a column of text to a file atomically. Returns the number of rows."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for row in lines.toLocalIterator(prefetchPartitions=True):
                file.write(row[0] + end)
                count += 1
        temporary.replace(target)
    except OSError as error:
        raise ConfigurationError(f"{target}: {error.strerror}; set --output to another file") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _checked(gateway: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", gateway):
        raise ConfigurationError(f"{gateway!r} is not a gateway's name; use one such as gw-7f3a0c11")
    return gateway


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--at {text}: write a sequence, epoch/sequence, or a time such as 2026-11-21T10:00:00Z"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `state`."""
    parser = add_lake_command(commands, "state", "write the dataset of a gateway as of a record or a time", _run)
    parser.add_argument("gateway", metavar="GW", help="the gateway, such as gw-7f3a0c11")
    parser.add_argument(
        "--at", required=True, help="a sequence, epoch/sequence, or a time such as 2026-11-21T10:00:00Z"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="an N-Quads file")
    session.add_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    spark = session.of_arguments(arguments, "state")
    past = GatewayPast(spark, Lake(arguments.lake), arguments.gateway)
    place = past.place(arguments.at)
    count = write_lines(nquads(past.dataset(place)).orderBy("line"), arguments.output)
    print(f"wrote {counted(count, 'quad')} as of record {place[0]}/{place[1]} to {arguments.output}")
    return 0
