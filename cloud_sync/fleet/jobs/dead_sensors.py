"""Sensors of which nothing is heard any more, and what that makes of each gateway."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lamplighter.cloud_sync.fleet.jobs.clocks import seconds
from lamplighter.cloud_sync.fleet.jobs.gaps import STREAM_KEYS

FACTOR = 10.0
SILENT_MIN_S = 3600.0
"""Dead is a stream that was silent for FACTOR times the interval that nine in ten of its own do not exceed, and
this."""

GATEWAY_SILENT_MIN_S = 86_400.0
"""A gateway of which nothing was heard for this long is silent itself; of its sensors nobody can say more."""


def last_heard(health: DataFrame, usual: DataFrame) -> DataFrame:
    """gw, heard: time of the last record of each gateway, by hours of a synchronised clock and by its readings.

    health: gateway_health; usual: of `gaps.usual_intervals`. Null for a gateway whose clock never was synchronised.
    """
    records = health.groupBy("gw").agg(F.max(F.when(F.col("untrusted") == 0, F.col("last_ts"))).alias("heard"))
    readings = usual.groupBy("gw").agg(F.max("last").alias("heard"))
    return records.unionByName(readings).groupBy("gw").agg(F.max("heard").alias("heard"))


def dead_sensors(
    streams: DataFrame,
    usual: DataFrame,
    up: DataFrame,
    heard: DataFrame,
    as_of: datetime,
    factor: float = FACTOR,
    silent_min_s: float = SILENT_MIN_S,
    gateway_silent_min_s: float = GATEWAY_SILENT_MIN_S,
) -> DataFrame:
    """One row for each stream that is described and silent.

    streams: the table, of which current versions count: what was taken out of service is not dead. usual: of
    `gaps.usual_intervals`; up: of `gaps.uptime`; heard: of `last_heard`; as_of: with a time zone, against which
    gateways are judged. Returns gw, stream, sensor, property, feature, label, last (its last reading with a time),
    silent_s (until its gateway's last record, so that a gateway whose log has not arrived yet has no dead sensors),
    expected_s (its median interval), state: ``dead``; ``never``: no reading at all; ``gateway silent``: nothing comes
    from the whole gateway. Of streams none of whose readings has a time nothing is said: `clock_quality` tells.
    """
    silent_s = seconds(F.coalesce("heard", "gateway_last"), F.col("last"))
    gateway_silent = seconds(F.lit(as_of), F.col("heard")) > gateway_silent_min_s
    limit = F.greatest(F.coalesce(F.col("p90_s") * factor, F.lit(0.0)), F.lit(silent_min_s))
    state = (
        F.when(gateway_silent, "gateway silent")
        .when(F.col("readings").isNull(), "never")
        .when(F.col("silent_s") > limit, "dead")
    )
    return (
        streams.where(F.col("until_epoch").isNull())
        .select(*STREAM_KEYS, "sensor", "property", "feature", "label")
        .join(usual.drop("sensor", "property", "feature"), [*STREAM_KEYS], "left")
        .join(up.select(*STREAM_KEYS, "readings"), [*STREAM_KEYS], "left")
        .join(F.broadcast(heard), "gw", "left")
        .withColumn("silent_s", silent_s)
        .withColumn("state", state)
        .where(F.col("state").isNotNull())
        .withColumnRenamed("median_s", "expected_s")
        .select(*STREAM_KEYS, "sensor", "property", "feature", "label", "last", "silent_s", "expected_s", "state")
    )
