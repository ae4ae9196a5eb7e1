"""The tables of the lake: their columns as DDL, and how to read them. docs/fleet-tables.md describes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lake import Batches, Lake
from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A record that is later than its landing by more has a clock that is ahead. The clocks of gateways and of the collector
# differ by seconds.
AHEAD_MAX = timedelta(minutes=5)
# Earlier times are those of clocks that were never set.
CLOCK_MIN = datetime(2020, 1, 1, tzinfo=UTC)
_QUADS = "ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>>"

BRONZE = f"""
    gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, boot STRING, boottime_us BIGINT, type STRING,
    cause_kind STRING, cause_id STRING, cause_seq BIGINT, request STRING, d {_QUADS}, a {_QUADS}, k {_QUADS},
    created ARRAY<STRING>, dropped ARRAY<STRING>,
    timer STRING, cancel STRING, gap STRING, subscribe STRING, unsubscribe STRING, segment STRING, landed TIMESTAMP
"""

STREAMS = """
    gw STRING, stream STRING, sensor STRING, property STRING, feature STRING, platform STRING, unit STRING,
    observation STRING, topic STRING, label STRING, latitude DOUBLE, longitude DOUBLE,
    epoch INT, seq BIGINT, since TIMESTAMP, until_epoch INT, until_seq BIGINT, until TIMESTAMP
"""

OBSERVATIONS = """
    gw STRING, epoch INT, seq BIGINT, observation STRING, graph STRING,
    stream STRING, sensor STRING, property STRING, feature STRING, unit STRING,
    value STRING, datatype STRING, number DOUBLE, flag BOOLEAN,
    result_time TIMESTAMP, arrival TIMESTAMP, trusted BOOLEAN, boot STRING, boottime_us BIGINT
"""

ACTUATIONS = """
    gw STRING, epoch INT, seq BIGINT, actuator STRING, kind STRING, value STRING, datatype STRING, changed BOOLEAN,
    result_time TIMESTAMP, arrival TIMESTAMP, trusted BOOLEAN, boot STRING, boottime_us BIGINT,
    cause_kind STRING, cause_id STRING, cause_seq BIGINT
"""

GATEWAY_HEALTH = """
    gw STRING, epoch INT, boot STRING, hour TIMESTAMP,
    records BIGINT, commits BIGINT, timers BIGINT, gaps BIGINT, quads_added BIGINT, quads_deleted BIGINT,
    untrusted BIGINT, first_seq BIGINT, last_seq BIGINT, first_ts TIMESTAMP, last_ts TIMESTAMP, lost BIGINT,
    offset_min_us BIGINT, offset_max_us BIGINT, ahead BIGINT, landed TIMESTAMP
"""

# Quads that describe streams, as they were added and removed: the source of `streams`.
FACTS = """
    gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, added BOOLEAN, s STRING, p STRING, o STRING, g STRING
"""

# Solutions of fleet subscriptions, one row for each subscription and event. incomplete: the event exceeds a bound of
# matching, so rows may be missing.
MATCHES = """
    subscription STRING, version INT, gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, late BOOLEAN,
    change STRING, graph STRING, form STRING, variables ARRAY<STRING>, rows ARRAY<ARRAY<STRING>>,
    incomplete BOOLEAN, request STRING
"""

SCHEMAS = {
    "bronze": BRONZE,
    "streams": STREAMS,
    "observations": OBSERVATIONS,
    "actuations": ACTUATIONS,
    "gateway_health": GATEWAY_HEALTH,
    "facts": FACTS,
    "matches": MATCHES,
}

# Tables that are not in silver.
_FOLDERS = {"bronze": "bronze", "matches": "subscriptions/matches"}


def table(lake: Lake, name: str) -> Batches:
    """The batches of a table."""
    return Batches(lake, _FOLDERS.get(name, f"silver/{name}"), SCHEMAS[name])


def read(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table as docs/fleet-tables.md describes it; without rows if it has not been made yet."""
    frame = table(lake, name).frame(spark)
    return health_of_parts(frame) if name == "gateway_health" else frame


def by_gateway(frame: DataFrame) -> DataFrame:
    """The same rows, partitioned by gateway. Later groups and joins by gateway and more need no shuffle."""
    # The number of partitions is explicit, because adaptive execution could choose another one for each frame.
    return frame.repartition(int(str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions"))), "gw")


def health_of_parts(parts: DataFrame) -> DataFrame:
    """GATEWAY_HEALTH with several rows for a gateway, epoch, boot and hour -> with one."""
    sums = ("records", "commits", "timers", "gaps", "quads_added", "quads_deleted", "untrusted", "lost", "ahead")
    low, high = ("first_seq", "first_ts", "offset_min_us"), ("last_seq", "last_ts", "offset_max_us", "landed")
    merged = (
        by_gateway(parts)
        .groupBy("gw", "epoch", "boot", "hour")
        .agg(
            *(F.sum(name).alias(name) for name in sums),
            *(F.min(name).alias(name) for name in low),
            *(F.max(name).alias(name) for name in high),
        )
    )
    return merged.select(*parts.columns)
