"""Records -> observations and actuations that they assert. Pure functions of DataFrames.

A reading is a `sosa:hasSimpleResult` that a commit added or asserted again, with what the same commit says of the same
subject in the same graph. Commits are small, so this is found within the row, without a join. Large commits (a restored
backup) take a group-by instead.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.ontology import vocabulary as v

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Quads of a commit above which a shuffle is faster than a scan of the commit for each reading.
ROW_QUADS_MAX = 64

# Cause of commits that restore a backup. Their readings are old.
RESTORE = "restore"

_CARRIED = (
    "gw", "epoch", "seq", "ts", "trusted", "boot", "boottime_us", "cause_kind", "cause_id", "cause_seq",
)  # fmt: skip
_ABOUT = {
    "time": v.RESULT_TIME,
    "sensor": v.MADE_BY_SENSOR,
    "property": v.OBSERVED_PROPERTY,
    "feature": v.HAS_FEATURE_OF_INTEREST,
    "actuator": v.MADE_BY_ACTUATOR,
}


def term(address: str) -> str:
    """An IRI as a term."""
    return f"<{address}>"


def results(bronze: DataFrame, *, quads_max: int | None = None, of_actuators: bool = False) -> DataFrame:
    """BRONZE -> one row per result.

    Columns: the record's identity and clocks; as terms: subject, graph, value, the sensor, property, feature, actuator
    and time that the same commit states, and stream, of which it is the live observation; changed: whether the value is
    new. quads_max: asserted by the largest commit, if known. of_actuators: only results with an actuator.
    """
    made = (F.col("type") == "commit") & ~F.col("cause_kind").eqNullSafe(RESTORE)
    commits = bronze.where(made).select(
        *_CARRIED, F.coalesce("a", _none()).alias("a"), F.coalesce("k", _none()).alias("k")
    )
    commits = commits.where(_has("a", v.HAS_SIMPLE_RESULT) | _has("k", v.HAS_SIMPLE_RESULT))
    if of_actuators:
        # Filtered first, because most commits have readings of sensors.
        commits = commits.where(_has("a", v.MADE_BY_ACTUATOR) | _has("k", v.MADE_BY_ACTUATOR))
    if quads_max is not None and quads_max <= ROW_QUADS_MAX:
        found = _in_rows(commits)
    else:
        size = F.size("a") + F.size("k")
        small, big = commits.where(size <= ROW_QUADS_MAX), commits.where(size > ROW_QUADS_MAX)
        found = _in_rows(small).unionByName(_by_groups(big))
    return found.where(F.col("actuator").isNotNull()) if of_actuators else found


def _has(name: str, predicate: str) -> Column:
    """Whether one of the quads has that predicate. Unlike a lambda, this is compiled."""
    return F.array_contains(F.col(f"{name}.p"), term(predicate))


def _in_rows(commits: DataFrame) -> DataFrame:
    found = commits.select(*_CARRIED, "a", F.concat("a", "k").alias("quads"))
    predicates = F.col("quads.p")
    # The common case: a commit with one result, and each predicate once.
    single = F.size(F.array_distinct(predicates)) == F.size(predicates)
    results = F.when(single, F.array(_result_of_single())).otherwise(_results_of_many())
    # A separate projection: expressions inside `inline` are not compiled if the whole stage is too large to compile.
    return found.select(*_CARRIED, results.alias("results")).select(*_CARRIED, F.inline("results"))


def _result_of_single() -> Column:
    """The result of a commit in which each predicate occurs at most once."""

    def place(predicate: str) -> Column:
        return (F.array_position(F.col("quads.p"), term(predicate)) - 1).cast("int")

    def part(name: str, where: Column) -> Column:
        return F.get(F.col(f"quads.{name}"), where)

    here = place(v.HAS_SIMPLE_RESULT)
    subject, graph = part("s", here), part("g", here)

    def object_of(predicate: str) -> Column:
        there = place(predicate)
        return F.when((part("s", there) == subject) & part("g", there).eqNullSafe(graph), part("o", there))

    stream = place(v.LIVE_OBSERVATION)
    return F.struct(
        subject.alias("subject"),
        graph.alias("graph"),
        part("o", here).alias("value"),
        *(object_of(predicate).alias(name) for name, predicate in _ABOUT.items()),
        F.when(part("o", stream) == subject, part("s", stream)).alias("stream"),
        (here < F.size("a")).alias("changed"),
    )


def _results_of_many() -> Column:
    """All results of a commit whose quads may use the same predicates for several subjects."""
    wanted = [term(v.HAS_SIMPLE_RESULT), term(v.LIVE_OBSERVATION), *map(term, _ABOUT.values())]
    quads = F.filter("quads", lambda quad: quad["p"].isin(*wanted))

    def result(quad: Column) -> Column:
        def object_of(predicate: str) -> Column:
            same = F.filter(
                quads, lambda q: (q["p"] == term(predicate)) & (q["s"] == quad["s"]) & q["g"].eqNullSafe(quad["g"])
            )
            return F.get(same, F.lit(0))["o"]

        of = F.filter(quads, lambda q: (q["p"] == term(v.LIVE_OBSERVATION)) & (q["o"] == quad["s"]))
        return F.struct(
            quad["s"].alias("subject"),
            quad["g"].alias("graph"),
            quad["o"].alias("value"),
            *(object_of(predicate).alias(name) for name, predicate in _ABOUT.items()),
            F.get(of, F.lit(0))["s"].alias("stream"),
            F.array_contains("a", quad).alias("changed"),
        )

    return F.transform(F.filter(quads, lambda quad: quad["p"] == term(v.HAS_SIMPLE_RESULT)), result)


def _none() -> Column:
    return F.array().cast("ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>>")


def _by_groups(commits: DataFrame) -> DataFrame:
    """The results of large commits, by a shuffle of their quads by subject and graph."""
    quads = reduce(
        lambda one, other: one.unionByName(other),
        [
            commits.select(*_CARRIED, F.lit(name == "a").alias("new"), F.inline(name))
            .where(F.col("p").isin(term(v.HAS_SIMPLE_RESULT), term(v.LIVE_OBSERVATION), *map(term, _ABOUT.values())))
            for name in ("a", "k")
        ],
    )  # fmt: skip
    key = ("gw", "epoch", "seq")
    grouped = quads.where(F.col("p").isin(*map(term, _ABOUT.values()))).groupBy(
        *key, F.col("s").alias("subject"), F.col("g").alias("graph")
    )
    about = grouped.agg(
        *(F.min(F.when(F.col("p") == term(iri), F.col("o"))).alias(name) for name, iri in _ABOUT.items())
    )
    streams = (
        quads.where(F.col("p") == term(v.LIVE_OBSERVATION))
        .groupBy(*key, F.col("o").alias("subject"))
        .agg(F.min("s").alias("stream"))
    )
    values = quads.where(F.col("p") == term(v.HAS_SIMPLE_RESULT)).select(
        *_CARRIED,
        F.col("s").alias("subject"),
        F.col("g").alias("graph"),
        F.col("o").alias("value"),
        F.col("new").alias("changed"),
    )
    same = [values[name] == about[name] for name in (*key, "subject")]
    joined = values.join(about, [*same, values["graph"].eqNullSafe(about["graph"])], "left").select(
        *(values[name] for name in values.columns), *(about[name] for name in _ABOUT)
    )
    return joined.join(streams, [*key, "subject"], "left").select(
        *_CARRIED, "subject", "graph", "value", *_ABOUT, "stream", "changed"
    )


def commands(bronze: DataFrame) -> DataFrame:
    """BRONZE -> one row per `lighting:hasStatus` that a commit added or asserted again.

    Columns: the record's identity and clocks, subject, value, changed.
    """
    commits = bronze.where((F.col("type") == "commit") & ~F.col("cause_kind").eqNullSafe(RESTORE))
    parts = F.array(*(F.struct(F.lit(name == "a").alias("changed"), F.col(name).alias("quads")) for name in ("a", "k")))
    return (
        commits.where(_has("a", v.HAS_STATUS) | _has("k", v.HAS_STATUS))
        .select(*_CARRIED, F.inline(parts))
        .select(*_CARRIED, "changed", F.inline("quads"))
        .where(F.col("p") == term(v.HAS_STATUS))
        .select(*_CARRIED, F.col("s").alias("subject"), F.col("o").alias("value"), "changed")
    )
