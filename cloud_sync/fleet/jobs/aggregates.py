"""What was measured: count, mean, extremes and percentiles by hour and by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

PERCENTILE_ACCURACY = 10_000
"""Percentiles are off by at most this fraction of the number of readings; of fewer than this many they are exact."""

FEATURE_KEYS = ("gw", "property", "feature", "unit")
PROPERTY_KEYS = ("property", "unit")


def measure() -> Column:
    """What is averaged of a reading: its number; of a boolean 1 or 0, so that the mean is the share of ``true``."""
    return F.coalesce(F.col("number"), F.col("flag").cast("double"))


def percentile(value: Column, share: float) -> Column:
    """The smallest value that at least this share of the values do not exceed; values that are null do not count."""
    return F.percentile_approx(value, share, PERCENTILE_ACCURACY)


def aggregates(readings: DataFrame, period: Literal["hour", "day"], keys: Sequence[str] = FEATURE_KEYS) -> DataFrame:
    """One row for each of keys and period (of UTC) that has a reading.

    Returns keys, ``hour`` or ``day`` (timestamp of its beginning), count (all readings), measured (those with a number
    or a boolean), mean, min, max, p05, p50, p95 (null if nothing was measured), repaired (those whose time was).
    Readings without a time are left out: `clock_quality` counts them. Late readings count where they belong.
    Numbers of different units are never mixed.
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
