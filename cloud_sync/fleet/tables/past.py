"""The datasets of gateways as of any record: the nearest snapshot of each, and the records after it folded.

Most graphs only grow (readings of model `event` within one range, descriptions). Only quads of graphs with deletions
in the range are folded; all others pass through. Which records the lake has is read from the names of segments, so the
number of Spark jobs does not grow with the number of gateways.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lamplighter.cloud_sync.fleet.lake import Lake, no_rows
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.tables.bronze import read_snapshots
from lamplighter.engine.change_log import SegmentName, segment_name
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Epoch and sequence.
Place = tuple[int, int]

_QUAD = "gw STRING, s STRING, p STRING, o STRING, g STRING"
_STRETCH = "gateway STRING, of_epoch INT, after BIGINT, last BIGINT"


class Interval(NamedTuple):
    """Records of one epoch that lead to a state: after `after`, up to `last`."""

    epoch: int
    after: int
    last: int


@dataclass(frozen=True)
class ReplayMethod:
    """How a state is made. base: the snapshot to start from, None for an empty dataset; stretches: records after it."""

    base: Place | None
    stretches: tuple[Interval, ...]


class FleetPast:
    """The records and snapshots of some gateways in the lake. wanted: whether a gateway is one of them."""

    def __init__(self, spark: SparkSession, lake: Lake, wanted: Callable[[str], bool] = lambda gateway: True) -> None:
        self._spark = spark
        self._lake = lake
        self._segments: dict[str, list[SegmentName]] = defaultdict(list)
        bronze = table(lake, "bronze")
        self.batches = []
        whole = True
        for batch in bronze.live():
            chosen = [text for text in batch.segments if wanted(text.partition("/")[0])]
            whole = whole and len(chosen) == len(batch.segments)
            if chosen:
                self.batches.append(batch)
            for text in chosen:
                gateway, _, file = text.rpartition("/")
                if (name := segment_name(file)) is not None and name.last is not None:
                    self._segments[gateway].append(name)
        for names in self._segments.values():
            names.sort(key=lambda name: (name.epoch, name.first))
        # BRONZE of these gateways.
        self.records = bronze.frame(spark, self.batches)
        if not whole:
            self.records = self.records.where(F.col("gw").isin(self.gateways))

    @property
    def gateways(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._segments)

    def ends(self, at: datetime | None = None) -> dict[str, Place]:
        """The last record of each gateway. at: the last that is not later than this, by the gateway's own clock, which
        may have been wrong; gateways without one are left out."""
        if at is None:
            return {gateway: (names[-1].epoch, _last(names[-1])) for gateway, names in self._segments.items()}
        early = self.records.where(F.col("ts") <= F.lit(at))
        rows = early.groupBy("gw").agg(F.max(F.struct("epoch", "seq")).alias("place")).collect()
        return {row["gw"]: (row["place"]["epoch"], row["place"]["seq"]) for row in rows}

    def last_known_place(self, gateway: str, end: Place) -> Place | None:
        """The last record up to `end` whose state is known: one with all records before it, or after a snapshot."""
        snapshots = (one for one in self._snapshots(gateway) if one <= end)
        places = {*snapshots, *(min(one, end) for one in self._run_ends(gateway, end))}
        return next(
            (one for one in sorted(places, reverse=True) if isinstance(self.way(gateway, one), ReplayMethod)), None
        )

    def _run_ends(self, gateway: str, end: Place) -> Iterator[Place]:
        """The last record of each run of records without a hole that begins before or at `end`."""
        last: Place | None = None
        for name in self._segments[gateway]:
            if last is not None and (name.epoch, name.first) > (last[0], last[1] + 1):
                yield last
                last = None
            if (name.epoch, name.first) > end:
                break
            last = max(last or (0, 0), (name.epoch, _last(name)))
        if last is not None:
            yield last

    def way(self, gateway: str, place: Place) -> ReplayMethod | str:
        """How to make the state after a record; if records are missing, which ones."""
        epochs = self._lineage(gateway, place)
        usable = [one for one in self._snapshots(gateway) if one[0] in epochs and one[1] <= epochs[one[0]]]
        missing = "the first records of its epoch"
        for base in [*sorted(usable, reverse=True), None]:
            if base is None and 1 not in epochs:
                break
            begin = base or (1, 0)
            stretches = tuple(
                Interval(epoch, begin[1] if epoch == begin[0] else 0, last)
                for epoch, last in sorted(epochs.items())
                if epoch >= begin[0]
            )
            lacking = next((found for one in stretches if (found := self._missing(gateway, one)) is not None), None)
            if lacking is None:
                return ReplayMethod(base, stretches)
            missing = lacking
        return missing

    def dataset(self, places: Mapping[str, Place], predicates: Collection[Term] | None = None) -> DataFrame:
        """The quads of these gateways after these records: gw, s, p, o, g, each once. predicates: only those with one
        of them.

        Raises ConfigurationError if records are missing, UpstreamError for a truncated snapshot.
        """
        ways = {}
        for gateway, place in places.items():
            way = self.way(gateway, place)
            if not isinstance(way, ReplayMethod):
                raise ConfigurationError(
                    f"gateway {gateway}: its dataset at {place[0]}/{place[1]} is unknown, because {way} are missing; "
                    "ship and ingest them, or choose a record after a later snapshot"
                )
            ways[gateway] = way
        return _fold(self._base(ways), self._commits(ways), predicates)

    def _snapshots(self, gateway: str) -> Sequence[Place]:
        if gateway not in self._landed_snapshots:
            self._landed_snapshots[gateway] = [
                (name.epoch, name.first)
                for text in self._lake.names("snapshots", gateway)
                if (name := segment_name(text)) is not None and name.last is None
            ]
        return self._landed_snapshots[gateway]

    @cached_property
    def _landed_snapshots(self) -> dict[str, list[Place]]:
        return {}

    @cached_property
    def _continuations(self) -> dict[tuple[str, int], Place]:
        """Gateway and epoch -> the last valid record before that epoch, as its gap record says."""
        gaps = self.records.where(
            (F.col("type") == "gap") & (F.get_json_object("gap", "$.epoch").try_cast("int") < F.col("epoch"))
        )
        rows = gaps.select("gw", "epoch", F.from_json("gap", "epoch INT, first BIGINT").alias("gap")).collect()
        return {(row["gw"], row["epoch"]): (row["gap"]["epoch"], row["gap"]["first"] - 1) for row in rows}

    def _lineage(self, gateway: str, place: Place) -> dict[int, int]:
        """Epoch -> its last valid record."""
        # Records that the gateway lost are not part of its later dataset, even if they were shipped before.
        found = {place[0]: place[1]}
        epoch = place[0]
        while (gateway, epoch) in self._continuations:
            epoch, last = self._continuations[gateway, epoch]
            found[epoch] = last
        return found

    def _missing(self, gateway: str, interval: Interval) -> str | None:
        """The first of these records that bronze does not have."""
        expected = interval.after + 1
        for name in self._segments[gateway]:
            if name.epoch == interval.epoch and name.first <= expected:
                expected = max(expected, _last(name) + 1)
        return f"records from {interval.epoch}/{expected} on" if expected <= interval.last else None

    def _base(self, ways: Mapping[str, ReplayMethod]) -> DataFrame:
        """The quads of the snapshots to start from."""
        bases = {gateway: way.base for gateway, way in ways.items() if way.base is not None}
        if not bases:
            return no_rows(self._spark, _QUAD)
        names = {gateway: f"{gateway}/{base[0]}-{base[1]:012d}.ndjson.zst" for gateway, base in bases.items()}
        lines = read_snapshots(self._spark, self._lake, list(names.values())).withColumn(
            "gw", F.element_at(F.split("_metadata.file_path", "/"), -2)
        )
        at_end = F.get_json_object("snapshot", "$.last") == "true"
        expected = F.max(F.when(at_end, F.get_json_object("snapshot", "$.quads").cast("bigint")))
        sizes = lines.groupBy("gw").agg(F.sum(F.coalesce(F.size("a"), F.lit(0))).alias("had"), expected.alias("named"))
        whole = {row["gw"] for row in sizes.collect() if row["had"] == row["named"]}
        for gateway in sorted(names.keys() - whole):
            raise UpstreamError(f"snapshot {names[gateway]} is truncated; land a good copy of it, or remove it")
        return lines.select("gw", F.explode("a").alias("q")).select(
            "gw", *(F.get("q", F.lit(place)).alias(part) for place, part in enumerate("spog"))
        )

    def _commits(self, ways: Mapping[str, ReplayMethod]) -> DataFrame:
        """The commits of all stretches."""
        import pyarrow

        rows = [(gateway, *one) for gateway, way in ways.items() for one in way.stretches if one.after < one.last]
        if not rows:
            return self.records.where("false")
        schema = pyarrow.schema(
            [("gateway", pyarrow.string()), ("of_epoch", pyarrow.int32())]
            + [(name, pyarrow.int64()) for name in ("after", "last")]
        )
        columns = [
            pyarrow.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
        ]
        stretches = self._spark.createDataFrame(pyarrow.table(columns, schema=schema), _STRETCH)
        within = (
            (F.col("gw") == F.col("gateway"))
            & (F.col("epoch") == F.col("of_epoch"))
            & (F.col("seq") > F.col("after"))
            & (F.col("seq") <= F.col("last"))
        )
        commits = self.records.where(F.col("type") == "commit")
        return commits.join(F.broadcast(stretches), within, "left_semi")


def _last(name: SegmentName) -> int:
    assert name.last is not None
    return name.last


def _fold(base: DataFrame, commits: DataFrame, predicates: Collection[Term] | None) -> DataFrame:
    """The quads of the datasets after these commits."""

    def of(quads: DataFrame) -> DataFrame:
        return quads if predicates is None else quads.where(F.col("p").isin(sorted(predicates)))

    nothing = F.struct(F.lit(0).alias("epoch"), F.lit(0).cast("bigint").alias("seq"))
    place = F.struct("epoch", "seq").alias("place")
    added = of(commits.select("gw", place, F.inline("a"))).unionByName(of(base).select(nothing.alias("place"), "*"))
    deleted = of(commits.select("gw", place, F.inline("d")))
    # The default graph has no name.
    key = F.coalesce("g", F.lit("")).alias("graph")
    touched = deleted.select("gw", key).distinct()
    grown = added.withColumn("graph", key).join(touched, ["gw", "graph"], "left_anti").select("gw", "s", "p", "o", "g")
    changed = (
        added.withColumn("graph", key).join(touched, ["gw", "graph"], "left_semi")
        .select("gw", "s", "p", "o", "g", "place", F.lit(True).alias("there"))
        .unionByName(deleted.select("gw", "s", "p", "o", "g", "place", F.lit(False).alias("there")))
        .groupBy("gw", "s", "p", "o", "g").agg(F.max_by("there", "place").alias("there"))
        .where("there").select("gw", "s", "p", "o", "g")
    )  # fmt: skip
    return grown.unionByName(changed)
