"""Gaps in the readings of sensors, and their uptime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.aggregates import percentile
from lamplighter.cloud_sync.fleet.jobs.clocks import seconds
from lamplighter.cloud_sync.fleet.lazy import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A gap is longer than FACTOR times the 90th percentile of the stream's intervals, and than this.
FACTOR = 3.0
GAP_MIN_S = 60.0

STREAM_KEYS = ("gw", "stream")
DESCRIPTION = ("sensor", "property", "feature")


def intervals(readings: DataFrame) -> DataFrame:
    """One row for each reading with a time, with the interval since the stream's previous reading.

    Returns gw, stream, sensor, property, feature, epoch, boot, time, previous (timestamp, null for the stream's first
    reading), interval_s, silence_s (since any reading of the gateway), restarted, history_lost (whether the machine
    was restarted, or the gateway's epoch ended, in between). Readings are ordered by time, so a late delivery of a
    device fills its gap.
    """
    order = ("time", "epoch", "seq", "stream")
    whole = Window.partitionBy("gw").orderBy(*order)
    own = Window.partitionBy(*STREAM_KEYS).orderBy(*order)
    return (
        readings.where(F.col("time").isNotNull())
        .select(*STREAM_KEYS, *DESCRIPTION, "epoch", "seq", "boot", "time")
        .withColumn("silence_s", seconds(F.col("time"), F.lag("time").over(whole)))
        .withColumn("previous", F.lag("time").over(own))
        .withColumn("interval_s", seconds(F.col("time"), F.col("previous")))
        .withColumn("restarted", ~F.col("boot").eqNullSafe(F.lag("boot").over(own)))
        .withColumn("history_lost", F.col("epoch") != F.lag("epoch").over(own))
        .drop("seq")
    )


def usual_intervals(every: DataFrame) -> DataFrame:
    """One row per stream of `intervals`: gw, stream, its description as of the last reading, timed (readings), first,
    last, median_s, p90_s (of its intervals, null if it has none), gateway_last (last reading of the gateway)."""
    latest = F.struct("time", "epoch")
    return (
        every.groupBy(*STREAM_KEYS)
        .agg(
            *(F.max_by(name, latest).alias(name) for name in DESCRIPTION),
            F.count("*").alias("timed"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
            percentile(F.col("interval_s"), 0.5).alias("median_s"),
            percentile(F.col("interval_s"), 0.9).alias("p90_s"),
        )
        .withColumn("gateway_last", F.max("last").over(Window.partitionBy("gw")))
    )


def limit_s(factor: float, gap_min_s: float) -> Column:
    """The longest silence of a stream of `usual_intervals` that is no gap; null without an interval."""
    usual = F.col("p90_s") * factor
    return F.when(usual.isNotNull(), F.greatest(usual, F.lit(gap_min_s)))


def gaps(every: DataFrame, usual: DataFrame, factor: float = FACTOR, gap_min_s: float = GAP_MIN_S) -> DataFrame:
    """One row for each gap of a stream.

    every: of `intervals`; usual: `usual_intervals` of it. Returns gw, stream, sensor, property, feature, start, end
    (null: silent until the last reading of its gateway), gap_s, expected_s (its median interval), gateway_s (the
    longest time within the gap without a reading of any sensor of the gateway), reason (``gateway`` if that is more
    than half of the gap, else ``sensor``), restarted, history_lost. The time after the gateway's last reading is not a
    gap.
    """
    limits = usual.select(*STREAM_KEYS, "median_s", limit_s(factor, gap_min_s).alias("_limit_s"))
    told = (*STREAM_KEYS, *DESCRIPTION, "start", "end", "gap_s", "expected_s", "restarted", "history_lost")
    columns = (*told, "gateway_s")
    found = (
        every.where(F.col("interval_s") > gap_min_s)
        .join(limits, [*STREAM_KEYS])
        .where(F.col("interval_s") > F.col("_limit_s"))
        .withColumnsRenamed({"previous": "start", "time": "end", "interval_s": "gap_s", "median_s": "expected_s"})
    )
    # Shorter silences cannot be half of a gap.
    silences = every.where(F.col("silence_s") * 2 > gap_min_s).select(
        F.col("gw").alias("_gw"), F.col("time").alias("_until"), F.col("silence_s").alias("_silence_s")
    )
    within = (F.col("gw") == F.col("_gw")) & (F.col("_until") > F.col("start")) & (F.col("_until") <= F.col("end"))
    closed = (
        found.join(silences, within, "left")
        .groupBy(*told)
        .agg(F.coalesce(F.max("_silence_s"), F.lit(0.0)).alias("gateway_s"))
        .select(*columns)
    )
    open_ = (
        usual.withColumn("gap_s", seconds(F.col("gateway_last"), F.col("last")))
        .where(F.col("gap_s") > limit_s(factor, gap_min_s))
        .withColumnsRenamed({"last": "start", "median_s": "expected_s"})
        .withColumns(
            {
                "end": F.lit(None).cast("timestamp"),
                "gateway_s": F.lit(0.0),
                "restarted": F.lit(False),
                "history_lost": F.lit(False),
            }
        )
        .select(*columns)
    )
    reason = F.when(F.col("gateway_s") * 2 > F.col("gap_s"), "gateway").otherwise("sensor")
    return closed.unionByName(open_).withColumn("reason", reason)


def uptime(readings: DataFrame, usual: DataFrame, found: DataFrame) -> DataFrame:
    """One row per stream that has a reading.

    usual: of `usual_intervals`; found: of `gaps`. Returns gw, stream, sensor, property, feature, readings, untimed
    (without a time; no other column counts them), first, last, expected_s, gaps, down_s (in gaps, beyond the expected
    interval), gateway_down_s (the part caused by the gateway's silence), longest_s, uptime: the share of the time from
    the stream's first reading to its gateway's last one that is not down_s; null with fewer than two readings.
    """
    counts = readings.groupBy(*STREAM_KEYS).agg(
        F.count("*").alias("readings"), F.count_if(F.col("time").isNull()).alias("untimed")
    )
    untold = (
        readings.where(F.col("time").isNull())
        .groupBy(*STREAM_KEYS)
        .agg(*(F.max_by(name, F.struct("epoch", "seq")).alias(f"_{name}") for name in DESCRIPTION))
    )
    down = found.groupBy(*STREAM_KEYS).agg(
        F.count("*").alias("gaps"),
        F.sum(F.col("gap_s") - F.col("expected_s")).alias("down_s"),
        F.sum(F.least(F.col("gateway_s"), F.col("gap_s") - F.col("expected_s"))).alias("gateway_down_s"),
        F.max("gap_s").alias("longest_s"),
    )
    span = seconds(F.col("gateway_last"), F.col("first"))
    return (
        counts.join(usual, [*STREAM_KEYS], "left")
        .join(untold, [*STREAM_KEYS], "left")
        .join(down, [*STREAM_KEYS], "left")
        .na.fill(0, ["gaps", "down_s", "gateway_down_s"])
        .withColumns({name: F.coalesce(name, f"_{name}") for name in DESCRIPTION})
        .withColumn("uptime", F.when((F.col("timed") > 1) & (span > 0), 1.0 - F.col("down_s") / span))
        .withColumnRenamed("median_s", "expected_s")
        .select(
            *(*STREAM_KEYS, *DESCRIPTION, "readings", "untimed", "first", "last", "expected_s"),
            *("gaps", "down_s", "gateway_down_s", "longest_s", "uptime"),
        )
    )
