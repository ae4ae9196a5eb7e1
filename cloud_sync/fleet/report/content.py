"""The rows of the results that the page shows: a limited number of each, the most important first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.jobs.results import RESULTS, Top, rows_of, top_rows
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lazy import F, pc

if TYPE_CHECKING:
    from pyarrow.compute import Expression
    from pyspark.sql import DataFrame

Row = dict[str, Any]

# Rows of a table on the page. The files have all rows.
ROWS_MAX = 20

# Gateways in the grid and on the map.
GATEWAYS_MAX = 1000

# Points in a plot of single readings.
POINTS_MAX = 400

TREND = timedelta(days=14)
TRENDS_MAX = 8
DAYS_MAX = 92


@dataclass(frozen=True, kw_only=True)
class Content:
    """Rows have the columns of their results (docs/fleet-tables.md), except as listed here.

    as_of: the time up to which silence was measured; since, until: the first and last hour with a reading; gateways:
    worst first; by_health, by_quality: numbers of gateways; gap_streams: of uptime, the streams with the longest
    down-time; gaps: their gaps; trends: the last TREND by hour of these properties; properties: property, unit, count,
    measured, mean, min, max over everything; lamp_totals: day, on_h, kwh of all lamps, the last DAYS_MAX days;
    lamps: gw, actuator, on_h, switched_on, unknown, kwh; clocks: gateways whose clock is not good.
    """

    as_of: datetime
    since: datetime | None
    until: datetime | None
    gateways: Top
    by_health: Mapping[str, int]
    gap_streams: Top
    gaps: list[Row]
    dead: Top
    trends: Mapping[tuple[str, str | None], list[Row]]
    properties: Top
    anomalies: Top
    anomalous: Top
    lamp_totals: list[Row]
    lamps: Top
    reactions: Top
    clocks: Top
    by_quality: Mapping[str, int]

    @property
    def readings(self) -> int:
        return sum(row["count"] for row in self.properties.rows)

    @property
    def kwh(self) -> float:
        return float(sum(row["kwh"] for row in self.lamp_totals))


def content(results: Mapping[str, DataFrame], out: Lake, as_of: datetime) -> Content:
    """The content of the page. results: by name, all of `jobs.results.RESULTS`, as written into `out`."""

    def top(name: str, rows: int = ROWS_MAX, where: Expression | None = None) -> Top:
        return top_rows(out, RESULTS[name], rows, where)

    def counts(name: str, column: str) -> dict[str, int]:
        return {row[column]: row["count"] for row in results[name].groupBy(column).count().collect()}

    trends = results["trends"]
    properties = _properties(trends)
    untils = [row["until"] for row in properties.rows]
    shown = [row for row in properties.rows if row["measured"]][:TRENDS_MAX]
    down = _first(
        results["uptime"].where("gaps > 0"), F.desc("down_s"), "gw", "stream", rows=ROWS_MAX
    )  # fmt: skip
    keys = [(row["gw"], row["stream"]) for row in down.rows]
    days = (
        results["lamp_days"]
        .where("day IS NOT NULL")
        .groupBy("day")
        .agg((F.sum("on_s") / 3600).alias("on_h"), F.sum("kwh").alias("kwh"))
    )
    lamps = results["lamp_days"].groupBy("gw", "actuator").agg(
        (F.sum("on_s") / 3600).alias("on_h"),
        F.sum("switched_on").alias("switched_on"),
        F.sum("unknown").alias("unknown"),
        F.sum("kwh").alias("kwh"),
    )  # fmt: skip
    return Content(
        as_of=as_of,
        since=min((row["since"] for row in properties.rows), default=None),
        until=max(untils, default=None),
        gateways=top("fleet_health", GATEWAYS_MAX),
        by_health=counts("fleet_health", "health"),
        gap_streams=down,
        gaps=_gaps_of(results["gaps"], keys),
        dead=top("dead_sensors"),
        trends=_trends(trends, [(row["property"], row["unit"]) for row in shown], max(untils, default=None)),
        properties=properties,
        anomalies=top("anomalies", POINTS_MAX),
        anomalous=top("anomalous_streams"),
        lamp_totals=_first(days, F.desc("day"), rows=DAYS_MAX).rows[::-1],
        lamps=_first(lamps, F.desc("on_h"), "gw", "actuator", rows=ROWS_MAX),
        reactions=top("reaction_times"),
        clocks=top("clock_quality", where=pc.field("quality") != "good"),
        by_quality=counts("clock_quality", "quality"),
    )


def _first(frame: DataFrame, *order: Any, rows: int) -> Top:
    return Top(rows_of(frame.orderBy(*order).limit(rows)), frame.count())


def _gaps_of(gaps: DataFrame, keys: list[tuple[str, str]]) -> list[Row]:
    """The longest gaps of some streams."""
    if not keys:
        return []
    wanted = F.array(*(F.struct(F.lit(gw).alias("gw"), F.lit(stream).alias("stream")) for gw, stream in keys))
    theirs = gaps.where(F.array_contains(wanted, F.struct("gw", "stream")))
    return _first(theirs, F.desc("gap_s"), "gw", "stream", rows=POINTS_MAX).rows


def _properties(trends: DataFrame) -> Top:
    """property, unit, count, measured, mean, min, max, since and until over everything; measured ones first."""
    return _first(
        trends.groupBy("property", "unit").agg(
            F.sum("count").alias("count"),
            F.sum("measured").alias("measured"),
            (F.try_divide(F.sum(F.col("mean") * F.col("measured")), F.sum("measured"))).alias("mean"),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            F.min("hour").alias("since"),
            F.max("hour").alias("until"),
        ),
        (F.col("measured") > 0).desc(),
        F.desc("count"),
        "property",
        "unit",
        rows=GATEWAYS_MAX,
    )


def _trends(
    trends: DataFrame, properties: list[tuple[str, str | None]], until: datetime | None
) -> dict[tuple[str, str | None], list[Row]]:
    found: dict[tuple[str, str | None], list[Row]] = {key: [] for key in properties}
    if until is None:
        return found
    recent = trends.where((F.col("hour") > F.lit(until) - F.lit(TREND)) & (F.col("measured") > 0)).orderBy("hour")
    for row in rows_of(recent.where(F.col("property").isin([key[0] for key in properties]))):
        if (key := (row["property"], row["unit"])) in found:
            found[key].append(row)
    return found
