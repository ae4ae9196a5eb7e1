"""The other jobs' results in one row per gateway, as an overview for operators."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.aggregates import percentile
from lamplighter.cloud_sync.fleet.jobs.dead_sensors import GATEWAY_SILENT_MIN_S, is_silent
from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A gateway with a lower mean uptime of its sensors has the health ``watch``.
UPTIME_MIN = 0.95

# So has a gateway with a larger share of anomalies. Every fleet has a few.
ODD_SHARE_MAX = 0.001


def fleet_health(
    clocks: DataFrame,
    up: DataFrame,
    dead: DataFrame,
    streams_with_anomalies: DataFrame,
    heard: DataFrame,
    described: DataFrame,
    as_of: datetime,
    gateway_silent_min_s: float = GATEWAY_SILENT_MIN_S,
) -> DataFrame:
    """One row per gateway.

    The first five: of `clock_quality`, `uptime`, `dead_sensors`, `anomalous_streams`, `last_heard`; described: streams.
    Returns gw, heard, records, lost, streams (with readings), readings, uptime (mean of its streams), gaps, dead,
    anomalies, anomalous (streams with at least one), clock (its quality), latitude, longitude (medians of its streams),
    health and why. health is the worst of: ``silent`` (`is_silent`), ``bad`` (dead
    sensors or lost records), ``watch`` (uptime below UPTIME_MIN, more anomalies than ODD_SHARE_MAX of the readings, or
    a clock that is not good, which includes an unknown time), ``good``. why: the reason in a few words.
    """
    sensors = up.groupBy("gw").agg(
        F.count("*").alias("streams"), F.avg("uptime").alias("uptime"), F.sum("gaps").alias("gaps")
    )
    silent = dead.groupBy("gw").agg(F.count_if(F.col("state") != "gateway silent").alias("dead"))
    strange = streams_with_anomalies.groupBy("gw").agg(
        F.sum("anomalies").alias("anomalies"), F.count("*").alias("anomalous")
    )
    places = (
        described.where(F.col("until_epoch").isNull())
        .groupBy("gw")
        .agg(*(percentile(F.col(name), 0.5).alias(name) for name in ("latitude", "longitude")))
    )
    reasons = _reasons(as_of, gateway_silent_min_s)
    health = F.lit("good")
    for level, holds, _ in reversed(reasons):
        health = F.when(holds, level).otherwise(health)
    return (
        clocks.join(sensors, "gw", "left")
        .join(silent, "gw", "left")
        .join(strange, "gw", "left")
        .join(heard, "gw", "left")
        .join(places, "gw", "left")
        .na.fill(0, ["streams", "gaps", "dead", "anomalies", "anomalous"])
        .withColumn("health", health)
        .withColumn("why", F.concat_ws(", ", *(F.when(holds, words) for _, holds, words in reasons)))
        .withColumnRenamed("quality", "clock")
        .select(
            *("gw", "heard", "records", "lost", "streams", "readings", "uptime", "gaps", "dead", "anomalies"),
            *("anomalous", "clock", "latitude", "longitude", "health", "why"),
        )
    )


def _reasons(as_of: datetime, gateway_silent_min_s: float) -> list[tuple[str, Column, Column]]:
    """(health, whether it holds, why), the worst first."""
    return [
        ("silent", is_silent(as_of, gateway_silent_min_s), F.lit("nothing heard")),
        ("bad", F.col("dead") > 0, _count_text("dead", "sensor", "silent")),
        ("bad", F.col("lost") > 0, _count_text("lost", "record", "lost")),
        (
            "watch",
            F.col("uptime") < UPTIME_MIN,
            F.concat(F.lit("uptime "), F.format_string("%.0f %%", F.col("uptime") * 100)),
        ),
        ("watch", F.col("anomalies") > F.col("readings") * ODD_SHARE_MAX, _count_text("anomalies", "odd reading")),
        ("watch", F.col("quality") != "good", F.concat(F.lit("clock "), F.col("quality"))),
    ]


def _count_text(column: str, one: str, what: str = "") -> Column:
    """`1 sensor silent`, `2 sensors silent`."""
    name = F.when(F.col(column) == 1, one).otherwise(f"{one}s")
    return F.concat_ws(" ", F.col(column), name, *([F.lit(what)] if what else []))
