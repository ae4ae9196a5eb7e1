"""Star patterns: triple patterns with one subject, answered by one grouping of the quads by subject instead of joins.

The grouping is a property table that is made for the query: a row for each subject, and for each pattern a column with
the objects of its matches. A subject without a match of one of the patterns has no row. The rows are unnested again, so
the solutions are those of the joins, however many values a predicate has. Source: PRoST (EDBT 2018), whose property
tables are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.nested import all_of
from lamplighter.engine.sparql.algebra import Bgp, Constant, Part, Pattern, Variable, walk
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery

# Values of a predicate that a subject may have in one graph. A row of the property table has them in one array.
VALUES_MAX = 100_000
_BUCKETS = 65_536

# Patterns of one BGP. More than one: a star; otherwise a pattern that is joined.
PatternGroup = tuple[Pattern, ...]


def pattern_groups(
    patterns: Sequence[Pattern], constants: Sequence[Term], narrow: Collection[Term]
) -> list[PatternGroup]:
    """The patterns of a BGP, those of each star together. narrow: predicates that stars may have."""
    stars: dict[tuple[Part, Part | None], list[Pattern]] = {}
    lone: list[PatternGroup] = []
    for pattern in patterns:
        if isinstance(pattern.p, Variable) or term_of(pattern.p, constants) not in narrow:
            lone.append((pattern,))
        else:
            stars.setdefault((pattern.s, pattern.graph), []).append(pattern)
    return [*map(tuple, stars.values()), *lone]


def star_predicates(query: FleetQuery) -> frozenset[Term]:
    """The predicates of the patterns that share a subject with another one."""
    found: set[Term] = set()
    for node in walk(query.tree):
        if isinstance(node, Bgp):
            every = {term_of(one.p, query.constants) for one in node.patterns if not isinstance(one.p, Variable)}
            for group in pattern_groups(node.patterns, query.constants, every):
                if len(group) > 1:
                    found.update(term_of(one.p, query.constants) for one in group)
    return frozenset(found)


def may_be_wide(quads: DataFrame, key: Sequence[str], predicates: Collection[Term]) -> bool:
    """Whether a subject may have more than `VALUES_MAX` values for one of these predicates, in one graph.

    quads, key: as of `csma.solutions`. Quads are counted by a hash, which takes a tenth of the time of `values_most`.
    """
    # A count is at least that of each subject, so only that of `values_most` proves that there are too many.
    bucket = F.pmod(F.xxhash64(*dict.fromkeys((*key, "s", "graph", "p"))), F.lit(_BUCKETS))
    counted = quads.where(F.col("p").isin(sorted(predicates))).groupBy(bucket.alias("bucket")).count()
    row = counted.agg(F.max("count").alias("most")).first()
    return row is not None and (row["most"] or 0) > VALUES_MAX


def values_most(quads: DataFrame, key: Sequence[str], predicates: Collection[Term]) -> dict[Term, int]:
    """The largest number of values that a subject has for each of these predicates, in one graph.

    quads, key: as of `csma.solutions`. One Spark job; no shuffle if the quads are partitioned by subject.
    """
    places = tuple(dict.fromkeys((*key, "s", "graph", "p")))
    counted = quads.where(F.col("p").isin(sorted(predicates))).groupBy(*places).count()
    rows = counted.groupBy("p").agg(F.max("count").alias("most")).collect()
    return {row["p"]: row["most"] for row in rows}


def narrow_predicates(query: FleetQuery, most: Mapping[Term, int]) -> frozenset[Term]:
    """The predicates that stars of a query may have. most: of `values_most`; predicates that are not in it may."""
    return frozenset(one for one in star_predicates(query) if most.get(one, 0) <= VALUES_MAX)


def term_of(part: Part, constants: Sequence[Term]) -> Term:
    """The term of a part that is not a variable."""
    assert not isinstance(part, Variable)
    return constants[part.number] if isinstance(part, Constant) else part


@dataclass(frozen=True)
class StarRows:
    """The solutions of a star, one in each row. terms, new: columns of the frame."""

    frame: DataFrame
    terms: Mapping[Variable, Column]
    new: Column


def star_rows(quads: DataFrame, star: Sequence[Pattern], key: Sequence[str], constants: Sequence[Term]) -> StarRows:
    """The solutions of the patterns of a star: the columns of the key, and the terms.

    quads, key: as of `csma.solutions`.
    """
    subject, graph = star[0].s, star[0].graph
    frame = quads
    if graph is None and "graph" not in key:
        frame = frame.where("graph IS NULL")
    for name, part in (("s", subject), ("graph", graph)):
        if isinstance(part, Variable):
            frame = frame.where(F.col(name).isNotNull())
        elif part is not None:
            frame = frame.where(F.col(name) == term_of(part, constants))
    matches = [all_of(list(_tests(pattern, constants))) for pattern in star]
    marked = "new" in quads.columns
    value = F.struct("o", "new") if marked else F.struct("o")
    columns = [f"star_{number}" for number in range(len(star))]
    table = (
        frame.where(reduce(or_, matches))
        .groupBy(*dict.fromkeys((*key, "s", "graph")))
        .agg(*(F.collect_list(F.when(one, value)).alias(name) for one, name in zip(matches, columns, strict=True)))
        .where(all_of([F.size(name) > 0 for name in columns]))
    )
    terms: dict[Variable, Column] = {}
    if isinstance(subject, Variable):
        terms[subject] = F.col("s")
    if isinstance(graph, Variable):
        if graph in terms:
            table = table.where(F.col("graph") == terms[graph])
        terms[graph] = F.col("graph")
    for pattern, name in zip(star, columns, strict=True):
        table = table.withColumn(name, F.explode(name))
        if isinstance(pattern.o, Variable):
            found = F.col(name)["o"]
            if pattern.o in terms:
                table = table.where(found == terms[pattern.o])
            terms.setdefault(pattern.o, found)
    new = reduce(or_, (F.col(name)["new"] for name in columns)) if marked else F.lit(True)
    return StarRows(table, terms, new)


def _tests(pattern: Pattern, constants: Sequence[Term]) -> Iterator[Column]:
    """The conditions under which a quad with the star's subject and graph matches a pattern of it."""
    yield F.col("p") == term_of(pattern.p, constants)
    if not isinstance(pattern.o, Variable):
        yield F.col("o") == term_of(pattern.o, constants)
    elif pattern.o == pattern.s:
        yield F.col("o") == F.col("s")
