"""Readings that are far from what the fleet measures at that hour of the day."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lamplighter.cloud_sync.fleet.jobs.aggregates import percentile

Z_MIN = 3.5
"""Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993: what they suggest for the modified z-score."""

READINGS_MIN = 30
"""With fewer readings of a property at an hour of the day nothing is said."""

MAD_SCALE = 1.4826
MEAN_DEVIATION_SCALE = 1.253314
"""What makes either a standard deviation, if the values are normally distributed."""

GROUP = ("property", "unit", "hour_of_day")


def usual_values(readings: DataFrame) -> DataFrame:
    """One row per property, unit and hour of the day (UTC): count, median, scale (comparable to a standard deviation).

    scale: 1.4826 times the median absolute deviation; where more than half of the readings are equal, so that this is
    0, 1.2533 times the mean absolute deviation. 0 if all are equal. Medians are lower medians.
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
    """The readings whose robust z-score is z_min or more on either side, one row each.

    Compared are finite numbers with a time, over the whole fleet, by property, unit and hour of the day: a sensor that
    is always wrong is found because the others are not. Returns gw, epoch, seq, stream, sensor, property, feature,
    unit, time, number, median, scale, z (negative: lower than usual).
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
    """The condition of a join on GROUP in which a property without a unit is one, too."""
    return [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in GROUP]
