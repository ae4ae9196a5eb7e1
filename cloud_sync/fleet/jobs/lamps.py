"""On-times of lamps, and an estimate of their energy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.clocks import seconds
from lamplighter.cloud_sync.fleet.lazy import F, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Values of an actuation, in capitals, that mean ON.
ON = ("ON", "TRUE", "1")

# The power of a small LED street lamp.
WATTS = 40.0

_MOMENT = ("epoch", "seq", "boot", "boottime_us", "time")


def last_moments(*tables: DataFrame) -> DataFrame:
    """gw, epoch, seq, boot, boottime_us, time of the last row of each gateway in timed tables."""
    moments = [table.select("gw", F.struct(*_MOMENT).alias("moment")) for table in tables]
    rows = moments[0]
    for other in moments[1:]:
        rows = rows.unionByName(other)
    return rows.groupBy("gw").agg(F.max("moment").alias("moment")).select("gw", "moment.*")


# A longer state comes from a wrong clock. The limit bounds the rows, one for each day of a state.
STATE_MAX_US = 400 * 86_400 * 1_000_000


def lamp_states(actuations: DataFrame, last: DataFrame) -> DataFrame:
    """One row for each state of a lamp, from its command or acknowledgement until the next state.

    actuations: timed. Acknowledgements count; commands count only for lamps that never acknowledged one. last: of
    `last_moments`, where the last state ends. Returns gw, actuator, epoch, seq, on, switched (the state before was
    another one, or unknown), start (timestamp, null if unknown), state_us (microseconds by the boot clock within one
    boot, otherwise by the times; null if both are unknown, or above `STATE_MAX_US`), history_lost (the state continued
    into another epoch, with unknown events in between).
    """
    own = Window.partitionBy("gw", "actuator")
    order = own.orderBy("epoch", "seq")
    acknowledged = F.col("kind") == "acknowledged"
    on = F.coalesce(F.upper("value").isin(*ON), F.lit(False))
    next_ = F.coalesce(F.lead("_moment").over(order), F.col("_last"))
    same_boot = F.col("boot") == F.col("_next.boot")
    by_boot = F.col("_next.boottime_us") - F.col("boottime_us")
    by_time = F.unix_micros("_next.time") - F.unix_micros("time")
    told = F.when(same_boot, by_boot).when(by_time < 0, F.lit(0)).otherwise(by_time)
    length = F.when(told.between(0, STATE_MAX_US), told)
    start = F.coalesce(F.col("time"), F.timestamp_micros(F.unix_micros("_next.time") - F.col("state_us")))
    return (
        actuations.withColumn("_any", F.max(acknowledged.cast("int")).over(own))
        .where(acknowledged | (F.col("_any") == 0))
        .join(F.broadcast(last.select("gw", F.struct(*_MOMENT).alias("_last"))), "gw", "left")
        .withColumn("_moment", F.struct(*_MOMENT))
        .withColumns({"on": on, "_next": next_})
        .withColumns({"switched": ~F.col("on").eqNullSafe(F.lag("on").over(order)), "state_us": length})
        .select(
            *("gw", "actuator", "epoch", "seq", "on", "switched", start.alias("start"), "state_us"),
            (F.col("_next.epoch") != F.col("epoch")).alias("history_lost"),
        )
    )


def lamp_days(states: DataFrame, watts: float = WATTS, watts_of: Mapping[str, float] | None = None) -> DataFrame:
    """One row for each lamp and day (UTC) on which it was on.

    states: of `lamp_states`; watts: the power of a lamp; watts_of: the power of single lamps, by IRI. Returns gw,
    actuator, day (timestamp; null for states of known length at an unknown time), on_s, switched_on, unknown (number
    of ON states of unknown length, on the day on which they began; not in on_s), watts, kwh.
    """
    known = F.col("state_us").isNotNull() & ~F.col("history_lost")
    end = F.timestamp_micros(F.unix_micros("start") + F.col("state_us"))
    first, last = F.date_trunc("day", "start"), F.date_trunc("day", "end")
    days = F.when(
        F.col("start").isNotNull() & F.col("end").isNotNull(), F.sequence(first, last, F.expr("INTERVAL 1 DAY"))
    ).otherwise(F.array(first))
    next_day = F.col("day") + F.expr("INTERVAL 1 DAY")
    within = seconds(F.least("end", next_day), F.greatest("start", "day"))
    begins = F.col("day").eqNullSafe(F.date_trunc("day", "start"))
    power = F.lit(float(watts))
    if watts_of:
        table = F.create_map(*(F.lit(value) for value in chain.from_iterable(watts_of.items())))
        power = F.coalesce(F.try_element_at(table, F.col("actuator")), power)
    return (
        states.where("on")
        .withColumn("end", F.when(known, end))
        .withColumn("day", F.explode(days))
        .withColumn(
            "on_s", F.when(~known, 0.0).when(F.col("start").isNull(), F.col("state_us") / 1e6).otherwise(within)
        )
        .groupBy("gw", "actuator", "day")
        .agg(
            F.sum("on_s").alias("on_s"),
            F.count_if(F.col("switched") & begins).alias("switched_on"),
            F.count_if(~known).alias("unknown"),
        )
        .where("on_s > 0 OR switched_on > 0 OR unknown > 0")
        .withColumn("watts", power)
        .withColumn("kwh", F.col("on_s") * F.col("watts") / F.lit(3.6e6))
    )
