"""The times of readings, given that some clocks are wrong, and the quality of each gateway's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Columns that `clock_offsets` needs of observations, actuations or the union of both.
CLOCK_COLUMNS = ("gw", "epoch", "seq", "boot", "boottime_us", "arrival", "trusted")

# A device's time that differs more from its arrival comes from a wrong clock.
LATE_MAX = "INTERVAL 31 DAYS"
AHEAD_MAX = "INTERVAL 5 MINUTES"

# While the clock is synchronised, wall clock minus boot clock moves by less than this, unless the clock is stepped.
SPREAD_MAX_US = 2_000_000

# Gateways with a larger share of records without a synchronised clock have the quality ``untrusted``.
UNTRUSTED_SHARE_MAX = 0.01


def clock_offsets(rows: DataFrame) -> DataFrame:
    """Wall clock minus boot clock for each boot that has records without a synchronised clock.

    rows: with CLOCK_COLUMNS. Returns gw, boot, offset_us (at the first record of that boot with a synchronised clock;
    null without one). Boots that need no repair are left out, so the result is small.
    """
    offset = F.unix_micros("arrival") - F.col("boottime_us")
    good = F.col("trusted") & F.col("arrival").isNotNull() & F.col("boottime_us").isNotNull()
    order = F.struct("boottime_us", "epoch", "seq")
    return (
        rows.where(F.col("boot").isNotNull())
        .groupBy("gw", "boot")
        .agg(
            F.min_by(F.when(good, offset), F.when(good, order)).alias("offset_us"),
            F.bool_or(~F.coalesce("trusted", F.lit(False))).alias("repair"),
        )
        .where("repair")
        .select("gw", "boot", "offset_us")
    )


def with_times(rows: DataFrame, offsets: DataFrame) -> DataFrame:
    """The rows with ``time`` (timestamp) and ``clock`` (string), both null if the time is unknown.

    rows: observations or actuations; offsets: of `clock_offsets`. The time of a row is

    - ``result``: its ``result_time``, if the gateway's clock was synchronised and the two agree within limits; -
    ``arrival``: the time of the commit, if the gateway's clock was synchronised but the two do not agree; -
    ``repaired``: without a synchronised clock, the time of the boot clock plus the offset that the same boot had when
    it was synchronised.
    """
    # The ``result_time`` is not used, because it may come from the same wrong clock.
    trusted = F.coalesce("trusted", F.lit(False)) & F.col("arrival").isNotNull()
    plausible = F.col("result_time").between(F.col("arrival") - F.expr(LATE_MAX), F.col("arrival") + F.expr(AHEAD_MAX))
    repaired = F.timestamp_micros(F.col("boottime_us") + F.col("offset_us"))
    return (
        rows.join(F.broadcast(offsets), ["gw", "boot"], "left")
        .withColumn(
            "time",
            F.when(trusted & plausible, F.col("result_time")).when(trusted, F.col("arrival")).otherwise(repaired),
        )
        .withColumn(
            "clock",
            F.when(trusted & plausible, "result").when(trusted, "arrival").when(F.col("time").isNotNull(), "repaired"),
        )
        .drop("offset_us")
        .select(*rows.columns, "time", "clock")
    )


def seconds(later: Column, earlier: Column) -> Column:
    """Seconds between two timestamps, as a double."""
    return (F.unix_micros(later) - F.unix_micros(earlier)) / F.lit(1e6)


def clock_quality(health: DataFrame, readings: DataFrame) -> DataFrame:
    """One row per gateway: the quality of its clock and of its devices' clocks.

    health: gateway_health. Returns gw, records, untrusted, untrusted_share, boots, epochs, lost, spread_ms (largest
    movement of wall clock against boot clock within one boot, over hours that were synchronised throughout; null
    without any), step_ms (the same over all hours), readings, repaired, untimed, result_wrong (readings whose device
    time was rejected although the gateway's clock was good), ahead (records that are later than their landing),
    quality: ``good``, ``stepped``, ``untrusted`` (too large a share, but times could be repaired), ``unknown``
    (readings without a time), ``ahead``.
    """
    synchronised = F.col("untrusted") == 0
    boots = health.groupBy("gw", "boot").agg(
        F.sum("records").alias("records"),
        F.sum("untrusted").alias("untrusted"),
        F.sum("lost").alias("lost"),
        F.sum("ahead").alias("ahead"),
        F.collect_set("epoch").alias("epochs"),
        (
            F.max(F.when(synchronised, F.col("offset_max_us"))) - F.min(F.when(synchronised, F.col("offset_min_us")))
        ).alias("spread_us"),
        (F.max("offset_max_us") - F.min("offset_min_us")).alias("step_us"),
    )
    gateways = boots.groupBy("gw").agg(
        F.sum("records").alias("records"),
        F.sum("untrusted").alias("untrusted"),
        (F.sum("untrusted") / F.sum("records")).alias("untrusted_share"),
        F.count("boot").alias("boots"),
        F.size(F.array_distinct(F.flatten(F.collect_list("epochs")))).cast("bigint").alias("epochs"),
        F.sum("lost").alias("lost"),
        (F.max("spread_us") / 1000).alias("spread_ms"),
        (F.max("step_us") / 1000).alias("step_ms"),
        F.sum("ahead").alias("ahead"),
    )
    clocks = readings.groupBy("gw").agg(
        F.count("*").alias("readings"),
        F.count_if(F.col("clock") == "repaired").alias("repaired"),
        F.count_if(F.col("time").isNull()).alias("untimed"),
        F.count_if((F.col("clock") == "arrival") & F.col("result_time").isNotNull()).alias("result_wrong"),
    )
    quality = (
        F.when(F.col("ahead") > 0, "ahead")
        .when(F.col("untimed") > 0, "unknown")
        .when(F.col("untrusted_share") > UNTRUSTED_SHARE_MAX, "untrusted")
        .when(F.col("spread_ms") * 1000 > SPREAD_MAX_US, "stepped")
        .otherwise("good")
    )
    return (
        gateways.join(clocks, "gw", "full")
        .na.fill(0, ["records", "untrusted", "boots", "epochs", "lost", "ahead"])
        .na.fill(0, ["readings", "repaired", "untimed", "result_wrong"])
        .withColumn("quality", quality)
    )
