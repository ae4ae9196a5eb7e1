"""Sensors that have stopped sending, and silent gateways."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.clocks import seconds
from lamplighter.cloud_sync.fleet.jobs.gaps import STREAM_KEYS
from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A stream is dead after a silence of FACTOR times the 90th percentile of its intervals, and of at least this.
FACTOR = 10.0
SILENT_MIN_S = 3600.0

# A gateway with a longer silence is silent itself. The state of its sensors is unknown then.
GATEWAY_SILENT_MIN_S = 86_400.0


def last_heard(health: DataFrame, usual: DataFrame) -> DataFrame:
    """gw, heard: time of the last record of each gateway, from hours with a synchronised clock and from its readings;
    landed: when its last segment has landed, by the collector's clock.

    health: gateway_health; usual: of `gaps.usual_intervals`. heard is null for a gateway whose clock was never
    synchronised, landed for one whose segments have no landing number.
    """
    records = health.groupBy("gw").agg(
        F.max(F.when(F.col("untrusted") == 0, F.col("last_ts"))).alias("heard"), F.max("landed").alias("landed")
    )
    readings = usual.groupBy("gw").agg(F.max("last").alias("heard"), F.lit(None).cast("timestamp").alias("landed"))
    both = records.unionByName(readings).groupBy("gw")
    return both.agg(*(F.max(name).alias(name) for name in ("heard", "landed")))


def is_silent(as_of: datetime, silent_min_s: float) -> Column:
    """Whether a row of `last_heard` is of a gateway that was silent for longer before a time.

    A landing is a sign of a gateway too, whatever its clock says, but not one behind that time.
    """
    seen = F.greatest("heard", F.when(F.col("landed") <= F.lit(as_of), F.col("landed")))
    return seconds(F.lit(as_of), seen) > silent_min_s


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

    streams: the table. Only current versions count: a stream taken out of service is not dead. usual: of
    `gaps.usual_intervals`; up: of `gaps.uptime`; heard: of `last_heard`; as_of: the time, with a zone, up to which a
    gateway's silence is measured. Returns gw, stream, sensor, property, feature, label, last (its last reading with a
    time), silent_s (until its gateway's last record, so a gateway whose log is late has no dead sensors), expected_s
    (its median interval), state: ``dead``; ``never``: no reading at all; ``gateway silent``: the whole gateway is
    silent. Streams without any timed reading are left out: `clock_quality` counts them.
    """
    silent_s = seconds(F.coalesce("heard", "gateway_last"), F.col("last"))
    gateway_silent = is_silent(as_of, gateway_silent_min_s)
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
