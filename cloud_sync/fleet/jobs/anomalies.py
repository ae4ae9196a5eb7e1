"""Readings that differ strongly from the fleet's at the same hour of the day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.aggregates import percentile
from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The threshold of the modified z-score in Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
Z_MIN = 3.5

# The least number of readings of a property at an hour of the day for a comparison.
READINGS_MIN = 30

# Factors that turn either deviation into a standard deviation, for a normal distribution.
MAD_SCALE = 1.4826
MEAN_DEVIATION_SCALE = 1.253314

GROUP = ("property", "unit", "hour_of_day")


def usual_values(readings: DataFrame) -> DataFrame:
    """One row per property, unit and hour of the day (UTC): count, median, scale (comparable to a standard deviation).

    scale: 1.4826 times the median absolute deviation. If that is 0, because more than half of the readings are equal:
    1.2533 times the mean absolute deviation. 0 if all readings are equal. Medians are lower medians.
    """
    values = _values(readings)
    medians = values.groupBy(*GROUP).agg(F.count("*").alias("count"), percentile(F.col("number"), 0.5).alias("median"))
    medians = medians.withColumnsRenamed({name: f"_{name}" for name in GROUP})
    deviation = F.abs(F.col("number") - F.col("median"))
    return (
        values.join(F.broadcast(medians), _same_group())
        .groupBy(*GROUP)
        .agg(
            F.first("count").alias("count"),
            F.first("median").alias("median"),
            percentile(deviation, 0.5).alias("_mad"),
            F.avg(deviation).alias("_mean"),
        )
        .withColumn(
            "scale",
            F.when(F.col("_mad") > 0, F.col("_mad") * MAD_SCALE).otherwise(F.col("_mean") * MEAN_DEVIATION_SCALE),
        )
        .drop("_mad", "_mean")
    )


def anomalies(readings: DataFrame, z_min: float = Z_MIN, readings_min: int = READINGS_MIN) -> DataFrame:
    """The readings whose robust z-score is at least z_min in absolute value, one row each.

    Finite numbers with a time are compared over the whole fleet, by property, unit and hour of the day. Comparison with
    other sensors finds a sensor that is always wrong. Returns gw, epoch, seq, stream, sensor, property, feature, unit,
    time, number, median, scale, z (negative: lower than usual).
    """
    usual = usual_values(readings).where((F.col("count") >= readings_min) & (F.col("scale") > 0))
    usual = usual.withColumnsRenamed({name: f"_{name}" for name in GROUP})
    return (
        _values(readings)
        .join(F.broadcast(usual), _same_group())
        .withColumn("z", (F.col("number") - F.col("median")) / F.col("scale"))
        .where(F.abs("z") >= z_min)
        .select(
            *("gw", "epoch", "seq", "stream", "sensor", "property", "feature", "unit"),
            *("time", "number", "median", "scale", "z"),
        )
    )


def anomalous_streams(found: DataFrame) -> DataFrame:
    """The anomalies by stream: gw, stream, sensor, property, feature, unit, anomalies, first, last, worst_z."""
    return found.groupBy("gw", "stream", "sensor", "property", "feature", "unit").agg(
        F.count("*").alias("anomalies"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.max_by("z", F.struct(F.abs("z"), "z")).alias("worst_z"),
    )


def _values(readings: DataFrame) -> DataFrame:
    return readings.where(F.col("number").isNotNull() & F.col("time").isNotNull()).withColumn(
        "hour_of_day", F.hour("time")
    )


def _same_group() -> list[Column]:
    """The condition of a join on GROUP in which a missing unit equals a missing unit."""
    return [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in GROUP]
