"""BRONZE -> EVENT: what one commit asserts, or deletes, in one graph. Pure functions of DataFrames, without a shuffle.

A compound event is a list of quads that a source gives at the same time in one graph (Pellegrino 2013, 3.1).
A subscription matches it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TRIPLES = "ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, new: BOOLEAN>>"
EVENT = f"""
    gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, change STRING, graph STRING, triples {TRIPLES},
    cause_kind STRING, cause_id STRING, cause_seq BIGINT, request STRING
"""
"""A frame that is not stored. change: `added` or `deleted`; graph: null for the default graph; triples: new if the
record changed it, not new if it was there before."""

COLUMNS = (
    "gw", "epoch", "seq", "ts", "trusted", "change", "graph", "triples", "cause_kind", "cause_id", "cause_seq",
    "request",
)  # fmt: skip
ADDED, DELETED = "added", "deleted"

_RECORD = ("gw", "epoch", "seq", "ts", "trusted", "cause_kind", "cause_id", "cause_seq", "request")
_GROUPS = f"ARRAY<STRUCT<change: STRING, graph: STRING, triples: {TRIPLES}>>"


def events(records: DataFrame, *, deleted: bool) -> DataFrame:
    """BRONZE -> EVENT, one row for each graph in which a commit added a quad: with those it added and asserted there.

    deleted: also one row for each graph in which it deleted a quad, with the deleted quads. Quads of a dropped graph
    are deleted quads. A commit that only asserts what was there, and records of other types, give no event.
    """
    from pyspark.sql import functions as F

    groups = _groups(("a", "k"), ADDED)
    if deleted:
        groups = F.concat(_groups(("d",), DELETED), groups)
    some = F.size(F.col("a.p")) > 0
    if deleted:
        some |= F.size(F.col("d.p")) > 0
    commits = records.where((F.col("type") == "commit") & some)
    grouped = commits.select(*_RECORD, groups.alias("groups"))
    # Spark would add a filter to `inline`, and compute the groups twice.
    return grouped.select(*_RECORD, F.inline_outer("groups")).where(F.col("change").isNotNull()).select(*COLUMNS)


def _groups(names: tuple[str, ...], change: str) -> Column:
    """The quads of some members by graph. The first member has the new ones; graphs without a new one are left out."""
    from pyspark.sql import functions as F

    graphs = F.concat(*(_parts(name, "g") for name in names))
    one_graph = F.size(F.array_distinct(graphs)) == 1
    triples = F.concat(*(_triples(name, name == names[0]) for name in names))
    one = F.array(F.struct(F.lit(change), F.get(graphs, F.lit(0)), triples)).cast(_GROUPS)
    return (
        F.when(F.size(_parts(names[0], "g")) == 0, F.array().cast(_GROUPS))
        .when(one_graph, one)
        .otherwise(_by_graph(graphs, triples, change).cast(_GROUPS))
    )


def _parts(name: str, part: str) -> Column:
    """One member of each quad; none without quads."""
    from pyspark.sql import functions as F

    return F.coalesce(F.col(f"{name}.{part}"), F.array().cast("ARRAY<STRING>"))


def _triples(name: str, new: bool) -> Column:
    """Quads -> TRIPLES. Unlike a lambda, `arrays_zip` is compiled."""
    from pyspark.sql import functions as F

    parts = [_parts(name, part) for part in "spo"]
    return F.arrays_zip(*parts, F.array_repeat(F.lit(new), F.size(parts[0]))).cast(TRIPLES)


def _by_graph(graphs: Column, triples: Column, change: str) -> Column:
    """The groups of a record with several graphs. It sorts once, so that a commit with thousands of graphs, such as a
    restored backup, takes no time by the square of them."""
    from pyspark.sql import functions as F

    def begins(ordered: Column) -> Column:
        """The place of the first quad of each graph."""

        def first(place: Column) -> Column:
            before = F.get(ordered, place - 1)["g"]
            return (place == 0) | ~F.get(ordered, place)["g"].eqNullSafe(before)

        return F.filter(F.sequence(F.lit(0), F.size(ordered) - 1), first)

    def cut(ordered: Column, starts: Column) -> Column:
        def group(start: Column, number: Column) -> Column:
            end = F.coalesce(F.get(starts, number + 1), F.size(ordered))
            return F.struct(
                F.lit(change).alias("change"),
                F.get(ordered, start)["g"].alias("graph"),
                F.slice(ordered, start + 1, end - start)["triple"].alias("triples"),
            )

        return F.transform(starts, group)

    zipped = F.arrays_zip(graphs.alias("g"), triples.alias("triple"))
    groups = _with(F.sort_array(zipped), lambda ordered: _with(begins(ordered), lambda starts: cut(ordered, starts)))
    return F.filter(groups, lambda one: F.array_contains(one["triples"]["new"], True))


def _with(value: Column, found: Callable[[Column], Column]) -> Column:
    """An array that is made from a value. As the variable of a lambda, the value is computed once."""
    from pyspark.sql import functions as F

    return F.flatten(F.transform(F.array(value), found))
