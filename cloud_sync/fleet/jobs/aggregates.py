"""Count, mean, extremes and percentiles of readings by hour and by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Spark's accuracy for percentiles: the rank error is at most the number of readings divided by this. Smaller groups are
# exact.
PERCENTILE_ACCURACY = 10_000

FEATURE_KEYS = ("gw", "property", "feature", "unit")
PROPERTY_KEYS = ("property", "unit")


def measure() -> Column:
    """The value of a reading for averages: its number, or 1 or 0 for a boolean: the mean is the share of ``true``."""
    return F.coalesce(F.col("number"), F.col("flag").cast("double"))


def percentile(value: Column, share: float) -> Column:
    """The smallest value that at least this share of the values does not exceed. Nulls do not count."""
    return F.percentile_approx(value, share, PERCENTILE_ACCURACY)


def aggregates(readings: DataFrame, period: Literal["hour", "day"], keys: Sequence[str] = FEATURE_KEYS) -> DataFrame:
    """One row for each combination of keys and period (UTC) that has a reading.

    Returns keys, ``hour`` or ``day`` (timestamp of its start), count (all readings), measured (those with a number or a
    boolean), mean, min, max, p05, p50, p95 (null if nothing was measured), repaired (readings with a repaired time).
    Readings without a time are left out: `clock_quality` counts them. Late readings count in their own period. Numbers
    with different units are never mixed.
    """
    value = measure()
    return (
        readings.where(F.col("time").isNotNull())
        .groupBy(*keys, F.date_trunc(period, "time").alias(period))
        .agg(
            F.count("*").alias("count"),
            F.count(value).alias("measured"),
            F.avg(value).alias("mean"),
            F.min(value).alias("min"),
            F.max(value).alias("max"),
            percentile(value, 0.05).alias("p05"),
            percentile(value, 0.5).alias("p50"),
            percentile(value, 0.95).alias("p95"),
            F.count_if(F.col("clock") == "repaired").alias("repaired"),
        )
    )
