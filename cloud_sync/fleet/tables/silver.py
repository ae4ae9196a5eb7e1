"""Bronze -> silver: `lamplighter-fleet silver`. Adds new records, and rewrites batches that late records change.

A reading's sensor, property and unit are those of its stream at that record, in the order of (epoch, seq). If a late
segment changes the description of a stream at records that the table already has, their batches are written again. All
other batches stay.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, locks, quads_max
from lamplighter.cloud_sync.fleet.lake.delta_log import SILVER_TABLES, follow_all
from lamplighter.cloud_sync.fleet.lake.tables import AHEAD_MAX, CLOCK_MIN, by_gateway, table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables import readings, streams, terms
from lamplighter.cloud_sync.fleet.tables.facts import add_snapshots, name_of, snapshots_of
from lamplighter.cloud_sync.fleet.tables.segment_rows import quad_count
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[int, int]
_OWN = ("subject", "sensor", "property", "feature", "stream")


def observations(results: DataFrame, versions: DataFrame) -> DataFrame:
    """Rows of `readings.results`, and STREAMS -> OBSERVATIONS."""
    found = results.where(F.col("actuator").isNull()).select(
        "gw", "epoch", "seq", "ts", "trusted", "boot", "boottime_us", "graph", "value", "time",
        *(terms.plain(F.col(name)).alias(f"own_{name}") for name in _OWN),
    )  # fmt: skip
    found = found.withColumn("key", F.coalesce("own_stream", "own_subject")).alias("r")
    said = ("stream", "sensor", "property", "feature", "unit", "epoch", "seq", "until_epoch", "until_seq")
    by_observation = versions.where(F.col("observation").isNotNull()).select(
        "gw", F.col("observation").alias("key"), *said
    )
    known = by_observation.unionByName(versions.select("gw", F.col("stream").alias("key"), *said)).alias("k")
    place = F.struct(F.col("r.epoch"), F.col("r.seq"))
    valid = (
        (F.col("r.gw") == F.col("k.gw"))
        & (F.col("r.key") == F.col("k.key"))
        & (place >= F.struct(F.col("k.epoch"), F.col("k.seq")))
        & (F.col("k.until_epoch").isNull() | (place < F.struct(F.col("k.until_epoch"), F.col("k.until_seq"))))
    )
    value, kind = terms.plain(F.col("r.value")), terms.datatype(F.col("r.value"))
    return found.join(known, valid, "left").select(
        F.col("r.gw").alias("gw"),
        F.col("r.epoch").alias("epoch"),
        F.col("r.seq").alias("seq"),
        F.col("own_subject").alias("observation"),
        terms.plain(F.col("graph")).alias("graph"),
        F.coalesce("k.stream", "own_stream", "own_sensor", "k.sensor", "own_subject").alias("stream"),
        *(F.coalesce(f"own_{name}", f"k.{name}").alias(name) for name in ("sensor", "property", "feature")),
        F.col("k.unit").alias("unit"),
        value.alias("value"),
        kind.alias("datatype"),
        terms.number(value, kind).alias("number"),
        terms.flag(value, kind).alias("flag"),
        terms.moment(F.col("time")).alias("result_time"),
        F.col("ts").alias("arrival"),
        "trusted",
        "boot",
        "boottime_us",
    )


def actuations(results: DataFrame, commands: DataFrame) -> DataFrame:
    """Rows of `readings.results` of actuators, and of `readings.commands` -> ACTUATIONS."""
    acknowledged = results.withColumn("kind", F.lit("acknowledged"))
    commanded = commands.withColumns(
        {"actuator": F.col("subject"), "kind": F.lit("command"), "time": F.lit(None).cast("string")}
    )
    columns = (
        "gw", "epoch", "seq", "actuator", "kind", "value", "changed", "time", "ts", "trusted", "boot", "boottime_us",
        "cause_kind", "cause_id", "cause_seq",
    )  # fmt: skip
    both = acknowledged.select(*columns).unionByName(commanded.select(*columns))
    return both.select(
        "gw",
        "epoch",
        "seq",
        terms.plain(F.col("actuator")).alias("actuator"),
        "kind",
        terms.plain(F.col("value")).alias("value"),
        terms.datatype(F.col("value")).alias("datatype"),
        "changed",
        terms.moment(F.col("time")).alias("result_time"),
        F.col("ts").alias("arrival"),
        "trusted",
        "boot",
        "boottime_us",
        "cause_kind",
        "cause_id",
        "cause_seq",
    )


def judged_clocks(bronze: DataFrame) -> DataFrame:
    """BRONZE -> BRONZE with a column `ahead`: whether the time is later than the landing, if that is known.

    A clock that is ahead, or was never set, is not trusted, whatever the gateway says.
    """
    ahead = F.coalesce(F.col("ts") > F.col("landed") + F.lit(AHEAD_MAX), F.lit(False))
    return bronze.withColumns(
        {"ahead": ahead, "trusted": F.col("trusted") & ~ahead & (F.col("ts") >= F.lit(CLOCK_MIN))}
    )


# Upper bound for the records of one gap record, so that sums do not overflow.
_LOST_MAX = 10**9


def gateway_health(bronze: DataFrame) -> DataFrame:
    """Rows of `judged_clocks` -> GATEWAY_HEALTH."""
    first, last = (F.get_json_object("gap", f"$.{name}").try_cast("bigint") for name in ("first", "last"))
    lost = last - first + 1
    offset = F.unix_micros("ts") - F.col("boottime_us")
    return bronze.groupBy("gw", "epoch", "boot", F.date_trunc("hour", "ts").alias("hour")).agg(
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col("type") == "commit").alias("commits"),
        F.count_if(F.col("type") == "timer").alias("timers"),
        F.count_if(F.col("type") == "gap").alias("gaps"),
        F.sum(quad_count("a")).alias("quads_added"),
        F.sum(quad_count("d")).alias("quads_deleted"),
        F.count_if(~F.col("trusted")).alias("untrusted"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("ts").alias("first_ts"),
        F.max("ts").alias("last_ts"),
        F.coalesce(F.sum(F.when(lost > _LOST_MAX, _LOST_MAX).otherwise(lost)), F.lit(0)).alias("lost"),
        F.min(offset).alias("offset_min_us"),
        F.max(offset).alias("offset_max_us"),
        F.count_if(F.col("ahead")).alias("ahead"),
        F.max("landed").alias("landed"),
    )


def not_in(lake: Lake, name: str) -> list[TableBatch]:
    """Batches of bronze that are not in a table yet."""
    had = {source for batch in table(lake, name).all() for source in batch.sources}
    return [
        one
        for one in table(lake, "bronze").live()
        if one.id not in had and not (one.replaces and had.issuperset(one.replaces))
    ]


class Silver:
    """Brings the tables up to date. say: receives progress lines."""

    def __init__(self, spark: SparkSession, lake: Lake, say: Callable[[str], None] = lambda line: None) -> None:
        self._spark = spark
        self._lake = lake
        self._say = say
        self._bronze = table(lake, "bronze")

    def update(self) -> None:
        """Brings silver up to date with bronze. Only one process may do this at a time."""
        self._add_facts()
        streams_batch, dirty = self._streams()
        versions = self._versions(streams_batch)
        self._rebuild(versions, dirty)
        self._add("observations", lambda bronze, most: observations(readings.results(bronze, quads_max=most), versions))
        self._add(
            "actuations",
            lambda bronze, most: actuations(
                readings.results(bronze, quads_max=most, of_actuators=True), readings.commands(bronze)
            ),
        )
        self._add("gateway_health", lambda bronze, most: gateway_health(bronze))
        if streams_batch is not None:
            # Committed last, so that after a crash the changes are found again.
            table(self._lake, "streams").commit(streams_batch)
        follow_all(self._lake, SILVER_TABLES, self._say)

    def _add(self, name: str, made: Callable[[DataFrame, int | None], DataFrame]) -> None:
        """made: a function of new bronze records and the largest number of quads that one of them asserts."""
        new = not_in(self._lake, name)
        if not new:
            return
        sources = [batch.id for batch in new]
        frame = made(judged_clocks(self._bronze.frame(self._spark, new)), quads_max(new))
        batch = table(self._lake, name).write(frame, TableBatch(id=name_of(sources), files=[], rows=0, sources=sources))
        self._say(f"{name}: {count_text(batch.rows, 'more row', ',')}")

    def _add_facts(self) -> None:
        self._add("facts", lambda bronze, most: streams.facts(bronze))
        facts = table(self._lake, "facts")
        had = {name for batch in facts.all() for name in batch.segments}
        new = [name for name in snapshots_of(self._lake, self._lake.names("snapshots")) if name not in had]
        if new:
            # Snapshots have the descriptions that were lost with missing segments.
            add_snapshots(self._spark, self._lake, new, "snapshots")

    def _streams(self) -> tuple[TableBatch | None, dict[str, Place]]:
        """(a staged batch with all versions of streams, the first changed record of each gateway).

        The batch is None if nothing can have changed.
        """
        facts, target = table(self._lake, "facts"), table(self._lake, "streams")
        before = target.live()
        sources = sorted(batch.id for batch in facts.live())
        name = name_of(sources)
        if any(batch.sources == sources for batch in before):
            return None, {}
        # Small and used several times. Without the cache each use would read and shuffle it again.
        read = by_gateway(facts.frame(self._spark)).persist()
        try:
            staged = target.stage(
                streams.versions(read),
                TableBatch(id=name, files=[], rows=0, sources=sources, replaces=[batch.id for batch in target.all()]),
                files=1,
            )
        finally:
            read.unpersist()
        self._say(f"streams: {count_text(staged.rows, 'version', ',')}")
        if not table(self._lake, "observations").live():
            return staged, {}
        old, new = target.frame(self._spark, before), target.open(self._spark, staged.files)
        return staged, _first_differences(old, new)

    def _versions(self, staged: TableBatch | None) -> DataFrame:
        target = table(self._lake, "streams")
        return target.frame(self._spark) if staged is None else target.open(self._spark, staged.files)

    def _rebuild(self, versions: DataFrame, dirty: dict[str, Place]) -> None:
        """Rewrites the batches of observations that have records after one of the places."""
        if not dirty:
            return
        target = table(self._lake, "observations")
        bronze = {batch.id: batch for batch in self._bronze.all()}
        for batch in target.live():
            sources = [bronze[name] for name in batch.sources]
            if not any(_reaches(one, dirty) for one in sources):
                continue
            records = judged_clocks(self._bronze.frame(self._spark, sources))
            frame = observations(readings.results(records, quads_max=quads_max(sources)), versions)
            number = sum(one.id.startswith(f"{batch.id.partition('.')[0]}.") for one in target.all()) + 1
            target.write(
                frame,
                TableBatch(
                    id=f"{batch.id.partition('.')[0]}.{number}",
                    files=[],
                    rows=0,
                    sources=batch.sources,
                    replaces=[batch.id, *batch.replaces],
                ),
            )
            self._say(f"observations: batch {batch.id} rewritten, because late records describe its streams")


def _reaches(batch: TableBatch, dirty: dict[str, Place]) -> bool:
    for segment in batch.segments:
        gateway, _, text = segment.rpartition("/")
        name = segment_name(text)
        place = dirty.get(gateway)
        if name is not None and name.last is not None and place is not None and (name.epoch, name.last) >= place:
            return True
    return False


def _first_differences(old: DataFrame, new: DataFrame) -> dict[str, Place]:
    """The first record of each gateway at which two tables of streams differ."""
    only = old.exceptAll(new).withColumn("side", F.lit(0)).unionByName(new.exceptAll(old).withColumn("side", F.lit(1)))
    said = [name for name in old.columns if not name.startswith("until")]
    until = F.struct(F.col("until_epoch").alias("epoch"), F.col("until_seq").alias("seq"))
    # Two versions that differ only in their end differ from the earlier end on.
    ends = only.groupBy(*said).agg(
        F.count(F.lit(1)).alias("sides"),
        F.min(F.when(F.col("until_epoch").isNotNull(), until)).alias("end"),
    )  # fmt: skip
    place = F.when(F.col("sides") == 2, F.col("end")).otherwise(F.struct("epoch", "seq"))
    rows = ends.groupBy("gw").agg(F.min(place).alias("place")).collect()
    return {row["gw"]: (row["place"]["epoch"], row["place"]["seq"]) for row in rows}


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `silver`."""
    session.add_arguments(
        add_lake_command(commands, "silver", "update streams, observations, actuations and gateway_health", _run_silver)
    )


def _run_silver(arguments: argparse.Namespace) -> int:
    lake = Lake(arguments.lake)
    if not table(lake, "bronze").live():
        raise ConfigurationError(f"lake {lake.url!r}: bronze is empty; run lamplighter-fleet ingest {lake.url}")
    with locks.writing(lake, "silver", locks.SILVER):
        rows = sum(batch.rows for batch in not_in(lake, "observations"))
        with session.engine_of(arguments, "silver", lake, rows=rows) as engine:
            Silver(engine, lake, lambda line: print(line, file=sys.stderr, flush=True)).update()
    return 0
