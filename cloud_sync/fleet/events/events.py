"""BRONZE -> EVENT: what one commit asserts, or deletes, in one graph. Pure functions of DataFrames, without a shuffle.

A compound event is a list of quads that a source gives at the same time in one graph (Pellegrino 2013, 3.1).
A subscription matches it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TRIPLES = "ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, new: BOOLEAN>>"
# A frame that is not stored. change: `added` or `deleted`; graph: null for the default graph; triples: new if the
# record changed it, not new if it was there before.
EVENT = f"""
    gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, change STRING, graph STRING, triples {TRIPLES},
    cause_kind STRING, cause_id STRING, cause_seq BIGINT, request STRING
"""

COLUMNS = (
    "gw", "epoch", "seq", "ts", "trusted", "change", "graph", "triples", "cause_kind", "cause_id", "cause_seq",
    "request",
)  # fmt: skip
ADDED, DELETED = "added", "deleted"

_RECORD = ("gw", "epoch", "seq", "ts", "trusted", "cause_kind", "cause_id", "cause_seq", "request")


def events(records: DataFrame, *, deleted: bool) -> DataFrame:
    """BRONZE -> EVENT, one row for each graph in which a commit added a quad: with those it added and asserted there.

    deleted: also one row for each graph in which it deleted a quad, with the deleted quads. Quads of a dropped graph
    are deleted quads. A commit that only asserts what was there, and records of other types, give no event.
    """
    commits = records.where(F.col("type") == "commit")
    if deleted:
        none = F.array().cast(commits.schema["k"].dataType)
        members = ((DELETED, F.col("d"), none), (ADDED, F.col("a"), F.col("k")))
        both = [F.struct(F.lit(name).alias("change"), new.alias("new"), old.alias("old")) for name, new, old in members]
        changes = commits.select(*_RECORD, F.inline(F.array(*both)))
    else:
        changes = commits.select(
            *_RECORD, F.lit(ADDED).alias("change"), F.col("a").alias("new"), F.col("k").alias("old")
        )
    return _by_graph(changes.where(F.size("new") > 0)).select(*COLUMNS)


def _by_graph(changes: DataFrame) -> DataFrame:
    """Quads that are `new`, and `old`, by their graph: `graph` and `triples`, for each graph with a new one."""
    # Most records have quads of one graph, and take a short way. Its code has to stay below the size up to which
    # HotSpot compiles a method: behind it, Spark evaluates a plan operator by operator and copies each row several
    # times.
    graphs = F.concat(_parts("new", "g"), _parts("old", "g"))
    triples = F.concat(_triples("new", True), _triples("old", False))
    whole = changes.withColumns({"graphs": graphs, "triples": triples})
    several = F.size(F.array_distinct("graphs")) > 1
    parted = F.when(several, _groups(F.col("graphs"), F.col("triples"))).alias("parts")
    rows = whole.select("*", several.alias("several"), F.get("graphs", F.lit(0)).alias("graph"), parted)
    kept = (*_RECORD, "change", "several", "graph", "triples")
    # A row for each part; a row of nulls without parts.
    each = rows.select(*kept, F.inline_outer("parts").alias("part_graph", "part"))

    def of_part(part: str, whole: str) -> Column:
        return F.when(F.col("several"), F.col(part)).otherwise(F.col(whole)).alias(whole)

    return each.select(*_RECORD, "change", of_part("part_graph", "graph"), of_part("part", "triples"))


def _parts(name: str, part: str) -> Column:
    """One member of each quad; none without quads."""
    return F.coalesce(F.col(f"{name}.{part}"), F.array().cast("ARRAY<STRING>"))


def _triples(name: str, new: bool) -> Column:
    """Quads -> TRIPLES."""
    parts = [_parts(name, part) for part in "spo"]
    flags = F.array_repeat(F.lit(new), F.size(parts[0]))
    return F.arrays_zip(*(column.alias(part) for part, column in zip("spo", parts, strict=True)), flags.alias("new"))


def _groups(graphs: Column, triples: Column) -> Column:
    """The parts of a record with several graphs."""
    # One sort, so that a commit with thousands of graphs, such as a restored backup, takes no time by the square of
    # them.

    def begins(ordered: Column) -> Column:
        """The place of the first quad of each graph."""

        def first(place: Column) -> Column:
            before = F.get(ordered, place - 1)["g"]
            return (place == 0) | ~F.get(ordered, place)["g"].eqNullSafe(before)

        return F.filter(F.sequence(F.lit(0), F.size(ordered) - 1), first)

    def cut_groups(ordered: Column, starts: Column) -> Column:
        def group(start: Column, number: Column) -> Column:
            end = F.coalesce(F.get(starts, number + 1), F.size(ordered))
            return F.struct(
                F.get(ordered, start)["g"].alias("graph"),
                F.slice(ordered, start + 1, end - start)["triple"].alias("triples"),
            )

        return F.transform(starts, group)

    zipped = F.arrays_zip(graphs.alias("g"), triples.alias("triple"))
    groups = _with(
        F.sort_array(zipped), lambda ordered: _with(begins(ordered), lambda starts: cut_groups(ordered, starts))
    )
    return F.filter(groups, lambda one: F.array_contains(one["triples"]["new"], True))


def _with(value: Column, found: Callable[[Column], Column]) -> Column:
    """An array that is made from a value. As the variable of a lambda, the value is computed once."""
    return F.flatten(F.transform(F.array(value), found))
