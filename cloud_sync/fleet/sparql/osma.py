"""The plan of a fleet subscription: the whole event in one row, without shuffle and state.

Source: Pellegrino 2013, 4.2, where one peer has all triples of a compound event and matches them in one step.

Queries without OPTIONAL and UNION are evaluated by rows, others by lambdas (`nested`). Each triple pattern explodes the
event's triples and keeps the rows that match. Spark generates one loop in another from that, while it interprets
lambdas, which takes about twenty times as long.

The loops are bounded by an estimate of the rows after a pattern: the number of triples with the predicate of the first
pattern, multiplied for each further pattern by the largest number of triples of the event that share the parts which
are then known. Each of these rows is compared with all triples for the next pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.expression_tree import expression_tree
from lamplighter.cloud_sync.fleet.sparql.expressions import Expressions
from lamplighter.cloud_sync.fleet.sparql.nested import TESTS_MAX, all_of, nested_rows, next_pattern
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Extend,
    Filter,
    Graph,
    Join,
    Node,
    Part,
    Pattern,
    Values,
    Variable,
    certain,
)
from lamplighter.engine.sparql.scopes import occurrences

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery

# Rows of one event between two patterns, by the estimate.
ROWS_MAX = 100_000


def solutions(events: DataFrame, query: FleetQuery) -> DataFrame:
    """The solutions of a query in each event that use a new triple.

    events: a row for each event with at least ``triples ARRAY<STRUCT<s, p, o: STRING, new: BOOLEAN>>``, ``graph
        STRING`` (null for the default graph) and ``constants ARRAY<STRING>``, the terms by number, so that one plan
        serves all queries of a shape.
    Result: the same columns without triples and constants, and ``row ARRAY<STRING>``, one row of the frame for each
    solution: the projected terms, null where unbound; an empty array for an ASK.

    A null row says that the event exceeds a bound of `nested` or of this module; other rows of the event are then
    incomplete.
    """
    parts = conjunction(query.tree)
    return nested_rows(events, query) if parts is None else joined_rows(events, query, parts)


@dataclass
class Conjunction:
    """A tree in parts whose order does not matter, and the filters and assignments after them, in their order."""

    patterns: list[Pattern] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    graphs: list[Part] = field(default_factory=list)
    steps: list[Filter | Extend] = field(default_factory=list)


def conjunction(tree: Node) -> Conjunction | None:
    """The parts of a tree; None for one with OPTIONAL, UNION or UNDEF, or with expressions that depend on the order."""
    found = Conjunction()
    count = occurrences(tree)

    def collect(node: Node) -> bool:
        match node:
            case Bgp(patterns):
                found.patterns += patterns
                return True
            case Join(left, right):
                return collect(left) and collect(right)
            case Values(variables, _):
                found.values.append(node)
                return certain(node) == frozenset(variables)
            case Graph(name, inner):
                found.graphs.append(name)
                return collect(inner)
            case Filter(inner, expression) | Extend(inner, _, expression):
                known = certain(inner)
                if not collect(inner) or any(v not in known and count[v] > 1 for v in expression.variables):
                    return False
                found.steps.append(node)
                return isinstance(node, Filter) or count[node.variable] == 1
        return False

    return found if collect(tree) else None


def joined_rows(events: DataFrame, query: FleetQuery, parts: Conjunction) -> DataFrame:
    """As `osma.solutions`, for a query with these parts. A null row: `ROWS_MAX` or `TESTS_MAX` is exceeded."""
    kept = [column for column in events.columns if column not in ("triples", "constants")]
    rows = _JoinedRows(events, query)
    rows.estimate(parts)
    for name in parts.graphs:
        rows.in_graph(name)
    for pattern in _in_order(parts.patterns):
        rows.match(pattern)
    for values in parts.values:
        rows.join_values(values)
    for step in parts.steps:
        rows.step(step)
    return rows.project(kept)


def _in_order(patterns: Sequence[Pattern]) -> list[Pattern]:
    left, order, known = list(patterns), [], set[Variable]()
    while left:
        order.append(next_pattern(left, frozenset(known)))
        left.remove(order[-1])
        known.update(part for part in order[-1] if isinstance(part, Variable))
    return order


class _JoinedRows:
    """The rows after each part. terms: the columns of the variables."""

    def __init__(self, events: DataFrame, query: FleetQuery) -> None:
        self._frame = events
        self._query = query
        self._terms: dict[Variable, Column] = {}
        self._new: list[Column] = []
        self._number = 0

    def estimate(self, parts: Conjunction) -> None:
        """Adds the column osma_exceeded."""
        size = F.size("triples").cast("double")
        rough: list[Column] = []
        grouped: list[str | None] = []
        known: set[Variable] = set()
        for pattern in _in_order(parts.patterns):
            places = "".join(
                place
                for place, part in zip("spo", pattern[:3], strict=True)
                if not isinstance(part, Variable) or part in known
            )
            known.update(part for part in pattern if isinstance(part, Variable))
            if isinstance(pattern.p, Variable):
                alike = size
            else:
                others = F.array_remove(F.col("triples")["p"], self._constant(pattern.p))
                # A pattern without matches does not make those before it cheaper.
                alike = F.greatest(size - F.size(others).cast("double"), F.lit(1.0))
            rough.append(alike)
            grouped.append(places if places not in ("", "p") else None)
        given = float(reduce(mul, (len(values.rows) for values in parts.values if values.rows), 1))

        def exceeds(matches: Sequence[Column]) -> Column:
            before = _product(matches[:-1]) if len(matches) > 1 else F.lit(1.0)
            return (before * matches[-1] * F.lit(given) > ROWS_MAX) | (before * size > TESTS_MAX)

        # Most events are small. Columns of their own are evaluated once, and only for the few events that need them.
        counts = [F.col("osma_counts")[number] for number in range(len(rough))]
        fine = [
            count if places is None else F.least(count, F.col(f"osma_{places}"))
            for count, places in zip(counts, grouped, strict=True)
        ]
        large = F.col("osma_large")
        groups = sorted({places for places in grouped if places is not None})
        self._frame = (
            self._frame.withColumn("osma_counts", F.when(exceeds([size] * len(rough)), F.array(*rough)))
            .withColumn("osma_large", F.col("osma_counts").isNotNull() & exceeds(counts))
            .withColumns({f"osma_{places}": F.when(large, _largest_group(places)) for places in groups})
            .withColumn("osma_exceeded", large & exceeds(fine))
        )

    def match(self, pattern: Pattern) -> None:
        """The join with a pattern."""
        name = self._name()
        null = "array(cast(null as struct<s: string, p: string, o: string, new: boolean>))"
        triples = F.when(F.col("osma_exceeded"), F.expr(null)).otherwise(F.col("triples"))
        self._frame = self._frame.select("*", F.explode(triples).alias(name))
        triple = F.col(name)
        self._keep([self._matches(part, triple[place]) for place, part in zip("spo", pattern[:3], strict=True)])
        self._new.append(triple["new"])
        if pattern.graph is not None:
            self.in_graph(pattern.graph)

    def in_graph(self, name: Part) -> None:
        """The condition that the event's graph has this name."""
        graph = F.col("graph")
        self._keep([graph.isNotNull(), self._matches(name, graph)])

    def join_values(self, values: Values) -> None:
        """The join with VALUES."""
        name = self._name()
        kind = f"array<struct<{', '.join(f'v{place}: string' for place in range(len(values.variables)))}>>"
        rows = [F.struct(*(self._constant(part) for part in row if part is not None)) for row in values.rows]
        if not values.variables:
            kind, rows = "array<int>", [F.lit(0) for _ in values.rows]
        nothing = F.array(F.lit(None)).cast(kind)
        given = F.when(F.col("osma_exceeded"), nothing).otherwise(F.array(*rows).cast(kind))
        self._frame = self._frame.select("*", F.explode(given).alias(name))
        self._keep([self._matches(v, F.col(name)[f"v{place}"]) for place, v in enumerate(values.variables)])

    def step(self, step: Filter | Extend) -> None:
        """A filter or an assignment."""
        tree = expression_tree(step.expression if isinstance(step, Extend) else step.condition, self._query.constants)
        if isinstance(step, Filter):
            self._keep([self._expressions().condition(tree)])
            return
        name = self._name()
        self._frame = self._frame.withColumn(name, self._expressions().term(tree))
        self._terms[step.variable] = F.col(name)

    def project(self, kept: Sequence[str]) -> DataFrame:
        exceeded = F.col("osma_exceeded")
        null = F.lit(None).cast("string")
        terms = [self._terms.get(Variable(name), null) for name in self._query.variables]
        row = F.when(~exceeded, F.array(*terms).cast("array<string>")).alias("row")
        new = reduce(lambda one, other: one | other, self._new)
        return self._frame.where(exceeded | new).select(*kept, row)

    def _matches(self, part: Part, value: Column) -> Column | None:
        """The condition on a value; None if it binds a variable, which is then known."""
        if not isinstance(part, Variable):
            return value == self._constant(part)
        if part in self._terms:
            return value == self._terms[part]
        self._terms[part] = value
        return None

    def _keep(self, conditions: Sequence[Column | None]) -> None:
        found = [condition for condition in conditions if condition is not None]
        if found:
            self._frame = self._frame.where(F.col("osma_exceeded") | all_of(found))

    def _expressions(self) -> Expressions:
        null = F.lit(None).cast("string")

        def term(part: Variable | Constant) -> Column:
            return self._constant(part) if isinstance(part, Constant) else self._terms.get(part, null)

        return Expressions(term)

    def _constant(self, part: Part) -> Column:
        return F.get(F.col("constants"), F.lit(part.number)) if isinstance(part, Constant) else F.lit(part)

    def _name(self) -> str:
        self._number += 1
        return f"osma_{self._number}"


def _product(factors: Sequence[Column]) -> Column:
    return reduce(mul, factors)


def _largest_group(places: str) -> Column:
    """The largest number of triples of an event that share the parts at these places."""
    keys = F.sort_array(F.transform("triples", lambda triple: F.concat_ws(" ", *(triple[place] for place in places))))
    start = F.struct(F.lit("").alias("key"), F.lit(0).alias("run"), F.lit(0).alias("longest"))

    def count_run(before: Column, key: Column) -> Column:
        run = F.when(before["key"] == key, before["run"] + 1).otherwise(1)
        return F.struct(key.alias("key"), run.alias("run"), F.greatest(before["longest"], run).alias("longest"))

    return F.aggregate(keys, start, count_run)["longest"].cast("double")
