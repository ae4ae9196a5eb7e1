"""Reaction times: from a reading to the command that it caused, and to the device's acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.aggregates import percentile
from lamplighter.cloud_sync.fleet.lazy import F, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECORD = ("gw", "epoch", "seq")


def reactions(observations: DataFrame, actuations: DataFrame) -> DataFrame:
    """One row for each command to an actuator whose record names a record with a reading as its cause.

    Returns gw, epoch, seq (of the command), actuator, value, changed, cause_kind, cause_id, trigger_seq, property,
    feature, reading (the value), reaction_ms (from the reading's record to the command's), acknowledged_ms (from the
    reading's record to that of the device's acknowledgement; null if none came before the next change of the command,
    and for commands that changed nothing, because the device does nothing then). Both are null if the machine was
    restarted in between. Commands of timers are left out: the record that set the timer has no reading, and the delay
    is not a reaction time.
    """
    # Only the boot clock is used, so the times are exact even if the wall clock was wrong.
    answered = _answers(actuations).where((F.col("kind") == "command") & F.col("cause_seq").isNotNull())
    readings = observations.select(
        "gw",
        "epoch",
        F.col("seq").alias("trigger_seq"),
        F.struct("observation", "property", "feature", "value", "boot", "boottime_us").alias("trigger"),
    )
    own = F.col("boot") == F.col("trigger.boot")
    reaction = (F.col("boottime_us") - F.col("trigger.boottime_us")) / F.lit(1000)
    acknowledged = (F.col("answer.boottime_us") - F.col("trigger.boottime_us")) / F.lit(1000)
    return (
        answered.withColumnRenamed("cause_seq", "trigger_seq")
        .join(readings, ["gw", "epoch", "trigger_seq"])
        # A record with several readings is one trigger.
        .groupBy(
            *_RECORD, "actuator", "value", "changed", "cause_kind", "cause_id", "trigger_seq", "boot", "boottime_us"
        )
        .agg(F.min("trigger").alias("trigger"), F.first("answer").alias("answer"))
        .select(
            *(*_RECORD, "actuator", "value", "changed", "cause_kind", "cause_id", "trigger_seq"),
            *("trigger.property", "trigger.feature", F.col("trigger.value").alias("reading")),
            F.when(own, reaction).alias("reaction_ms"),
            F.when(own & (F.col("answer.boot") == F.col("trigger.boot")), acknowledged).alias("acknowledged_ms"),
        )
    )


def reaction_times(found: DataFrame) -> DataFrame:
    """The reactions by property, cause and value: property, cause_kind, cause_id, value, reactions, changes (those that
    changed the value), acknowledged (of these), and p50, p95, p99 and max of both times in milliseconds."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return found.groupBy("property", "cause_kind", "cause_id", "value").agg(
        F.count("*").alias("reactions"),
        F.count_if("changed").alias("changes"),
        F.count("acknowledged_ms").alias("acknowledged"),
        *(percentile(F.col("reaction_ms"), share).alias(f"reaction_{name}_ms") for name, share in shares.items()),
        F.max("reaction_ms").alias("reaction_max_ms"),
        *(
            percentile(F.col("acknowledged_ms"), share).alias(f"acknowledged_{name}_ms")
            for name, share in shares.items()
        ),
        F.max("acknowledged_ms").alias("acknowledged_max_ms"),
    )


def _answers(actuations: DataFrame) -> DataFrame:
    """Actuations with ``answer``: boot and boottime_us of the device's acknowledgement of a command that changed a
    value.

    This is the first later acknowledgement with the same value, unless another change was commanded before it.
    """
    # In descending order, so that later rows come first: frames of following rows take quadratic time.
    later = (
        Window.partitionBy("gw", "actuator")
        .orderBy(F.col("epoch").desc(), F.col("seq").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    acknowledgement = F.when(F.col("kind") == "acknowledged", F.struct("epoch", "seq", "value", "boot", "boottime_us"))
    change = F.when((F.col("kind") == "command") & F.col("changed"), F.struct("epoch", "seq"))
    next_change = F.col("_change")
    first = F.struct("_answer.epoch", "_answer.seq")
    counts = (
        F.col("changed")
        & (F.col("_answer.value") == F.col("value"))
        & (F.col("_answer.epoch") == F.col("epoch"))
        & (next_change.isNull() | (first < next_change))
    )
    return (
        actuations.withColumn("_answer", F.last(acknowledgement, ignorenulls=True).over(later))
        .withColumn("_change", F.last(change, ignorenulls=True).over(later))
        .withColumn("answer", F.when(counts, F.struct("_answer.boot", "_answer.boottime_us")))
        .drop("_answer", "_change")
    )
