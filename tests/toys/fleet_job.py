"""How many readings each gateway has."""

from __future__ import annotations

from pyspark.sql import DataFrame


def toys(readings: DataFrame) -> DataFrame:
    """Returns gw, count."""
    return readings.groupBy("gw").count()
