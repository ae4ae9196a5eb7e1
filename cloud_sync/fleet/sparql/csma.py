"""The plan with one join for each triple pattern, or for each star of them, over quads in rows of their own.

It serves to compare with `osma`, and for queries over the history and the state of a fleet, where the triples of a
solution may come from different commits and gateways. Source: Pellegrino 2013, 4.1, where a subscription is matched in
as many steps as it has patterns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.expression_tree import Tree, expression_tree
from lamplighter.cloud_sync.fleet.sparql.expressions import Expressions
from lamplighter.cloud_sync.fleet.sparql.nested import all_of, compatible, next_pattern
from lamplighter.cloud_sync.fleet.sparql.stars import pattern_groups, star_rows
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Expression,
    Extend,
    Filter,
    Graph,
    Join,
    LeftJoin,
    Node,
    Part,
    Pattern,
    Union,
    Values,
    Variable,
    certain,
    walk,
)
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery

# The columns that all triples of an event share.
EVENT_KEY = ("gw", "epoch", "seq", "graph", "change")


def solutions(
    quads: DataFrame, query: FleetQuery, key: Sequence[str] = EVENT_KEY, narrow: Collection[Term] = ()
) -> DataFrame:
    """The solutions of a query.

    quads: a row for each triple, with the columns of key, ``graph`` (null for the default graph), ``s``, ``p`` and
        ``o``. With a column ``new``, only the solutions that use a new triple.
    key: columns that are equal in all triples of a solution; an empty key joins on terms only. With ``graph``, each key
        is an event, one graph that patterns match with and without GRAPH. Without it, each key is an RDF dataset:
        patterns outside of GRAPH match the default graph (SPARQL 1.1 Query, section 13). Each quad occurs once in it.
    narrow: predicates with few values for each subject. Patterns with them that share a subject take one grouping
        instead of joins.
    Result: the columns of key, and ``row ARRAY<STRING>`` as of `osma.solutions`, without its bounds.
    Raises UnsupportedRequestError for a GRAPH inside of a GRAPH if the key has no graph; with a column ``new``, for an
    OPTIONAL whose solutions may bind nothing more, for they may repeat a solution of the old triples.
    """
    found = _Joins(quads, query, key, frozenset(narrow)).relation(query.tree, frozenset())
    null = F.lit(None).cast("string")
    terms = [found.terms.get(Variable(name), null) for name in query.variables]
    row = F.array(*terms).cast("array<string>").alias("row")
    keys = [column.alias(name) for name, column in found.keys.items()]
    frame = found.frame.where(found.new) if "new" in quads.columns else found.frame
    return frame.select(*keys, row)


@dataclass(frozen=True)
class Relation:
    """The solutions of a node. keys, terms, new: columns of the frame; certain: variables that are always bound."""

    frame: DataFrame
    keys: Mapping[str, Column]
    terms: Mapping[Variable, Column]
    certain: frozenset[Variable]
    new: Column


class _Joins:
    """Compiles a tree from its leaves up, as SPARQL defines its meaning."""

    def __init__(
        self,
        quads: DataFrame,
        query: FleetQuery,
        key: Sequence[str],
        narrow: frozenset[Term],
        numbers: Iterator[int] | None = None,
    ) -> None:
        """numbers: for names of columns."""
        self._quads = quads
        self._query = query
        self._key = tuple(key)
        self._narrow = narrow
        self._numbers = count() if numbers is None else numbers

    def relation(self, node: Node, graphs: frozenset[Variable]) -> Relation:
        """graphs: the variables of the GRAPHs around."""
        match node:
            case Bgp(patterns):
                return self._patterns(patterns)
            case Join(left, right):
                return self._join(self.relation(left, graphs), self.relation(right, graphs))
            case LeftJoin(left, right, conditions):
                return self._join(self.relation(left, graphs), self.relation(right, graphs), conditions, graphs)
            case Union(left, right):
                return self._union(self.relation(left, graphs), self.relation(right, graphs))
            case Filter(inner, expression):
                found = self.relation(inner, graphs)
                return replace(
                    found, frame=found.frame.where(self._expressions(found, graphs).condition(self._tree(expression)))
                )
            case Extend(inner, variable, expression):
                found = self.relation(inner, graphs)
                value = self._expressions(found, graphs).term(self._tree(expression))
                return self._with_own_names(replace(found, terms={**found.terms, variable: value}))
            case Values():
                return self._values(node)
            case Graph(name, inner):
                return self._in_graph(name, inner, graphs)
        raise AssertionError(node)

    def _tree(self, expression: Expression) -> Tree:
        return expression_tree(expression, self._query.constants)

    def _constant(self, part: Part) -> Column:
        return F.lit(self._query.constants[part.number] if isinstance(part, Constant) else part)

    def _expressions(self, found: Relation, graphs: frozenset[Variable]) -> Expressions:
        null = F.lit(None).cast("string")

        def term(part: Variable | Constant) -> Column:
            if isinstance(part, Constant):
                return self._constant(part)
            if part in graphs and part not in found.terms:
                return found.keys["graph"]
            return found.terms.get(part, null)

        return Expressions(term)

    def _with_own_names(self, found: Relation) -> Relation:
        """The relation with column names that no other one has."""
        number = next(self._numbers)
        keys = {name: f"k{number}_{name}" for name in found.keys}
        terms = {variable: f"v{number}_{place}" for place, variable in enumerate(found.terms)}
        frame = found.frame.select(
            *(found.keys[name].alias(column) for name, column in keys.items()),
            *(found.terms[variable].alias(column) for variable, column in terms.items()),
            found.new.alias(f"new{number}"),
        )
        return Relation(
            frame,
            {name: F.col(column) for name, column in keys.items()},
            {variable: F.col(column) for variable, column in terms.items()},
            found.certain,
            F.col(f"new{number}"),
        )

    def _events(self) -> Relation:
        """The empty solution of each event."""
        frame = self._quads.select(*self._key).distinct() if self._key else self._quads.sparkSession.range(1)
        keys = {name: F.col(name) for name in self._key}
        return self._with_own_names(Relation(frame, keys, {}, frozenset(), F.lit(False)))

    def _patterns(self, patterns: Sequence[Pattern]) -> Relation:
        if not patterns:
            return self._events()
        groups, found = pattern_groups(patterns, self._query.constants, self._narrow), None
        while groups:
            left = [pattern for group in groups for pattern in group]
            following = next_pattern(left, found.certain if found is not None else frozenset())
            group = next(group for group in groups if following in group)
            groups.remove(group)
            one = self._star(group) if len(group) > 1 else self._pattern(following)
            found = one if found is None else self._join(found, one)
        assert found is not None
        return found

    def _star(self, patterns: Sequence[Pattern]) -> Relation:
        rows = star_rows(self._quads, patterns, self._key, self._query.constants)
        keys = {name: F.col(name) for name in self._key}
        return self._with_own_names(Relation(rows.frame, keys, rows.terms, frozenset(rows.terms), rows.new))

    def _pattern(self, pattern: Pattern) -> Relation:
        frame = self._quads
        terms: dict[Variable, Column] = {}
        for name, part in zip(("s", "p", "o", "graph"), pattern, strict=True):
            column = F.col(name)
            if part is None:
                if "graph" not in self._key:
                    frame = frame.where(column.isNull())
            elif not isinstance(part, Variable):
                frame = frame.where(column == self._constant(part))
            elif part in terms:
                frame = frame.where(column == terms[part])
            else:
                terms[part] = column
                frame = frame.where(column.isNotNull())
        new = F.col("new") if "new" in self._quads.columns else F.lit(True)
        keys = {name: F.col(name) for name in self._key}
        return self._with_own_names(Relation(frame, keys, terms, frozenset(terms), new))

    def _join(
        self,
        left: Relation,
        right: Relation,
        conditions: Sequence[Expression] | None = None,
        graphs: frozenset[Variable] = frozenset(),
    ) -> Relation:
        """The join, or with conditions the left join."""
        shared = [name for name in right.terms if name in left.terms]
        tests = [left.keys[name].eqNullSafe(right.keys[name]) for name in self._key]
        for name in shared:
            sure = name in left.certain and name in right.certain
            one, other = left.terms[name], right.terms[name]
            tests.append(one == other if sure else compatible(one, other))
        terms = {**left.terms, **right.terms}
        terms |= {
            name: left.terms[name] if name in left.certain else F.coalesce(left.terms[name], right.terms[name])
            for name in shared
        }
        both = Relation(left.frame, left.keys, terms, left.certain | right.certain, left.new | right.new)
        if conditions is None:
            frame = left.frame.join(right.frame, all_of(tests)) if tests else left.frame.crossJoin(right.frame)
            return self._with_own_names(replace(both, frame=frame))
        expressions = self._expressions(both, graphs)
        tests += [F.coalesce(expressions.condition(self._tree(one)), F.lit(False)) for one in conditions]
        if "new" in self._quads.columns and right.certain <= left.terms.keys() | graphs:
            raise UnsupportedRequestError(
                "an OPTIONAL whose solutions may bind nothing more is not available in this plan for events"
            )
        frame = left.frame.join(right.frame, all_of(tests or [F.lit(True)]), "left")
        new = left.new | F.coalesce(right.new, F.lit(False))
        return self._with_own_names(replace(both, frame=frame, certain=left.certain, new=new))

    def _union(self, left: Relation, right: Relation) -> Relation:
        null = F.lit(None).cast("string")
        variables = list(dict.fromkeys((*left.terms, *right.terms)))
        frames = [
            one.frame.select(
                *(one.keys[name].alias(name) for name in self._key),
                *(one.terms.get(variable, null).alias(f"v{place}") for place, variable in enumerate(variables)),
                one.new.alias("new"),
            )
            for one in (left, right)
        ]
        keys = {name: F.col(name) for name in self._key}
        terms = {variable: F.col(f"v{place}") for place, variable in enumerate(variables)}
        sure = left.certain & right.certain
        return self._with_own_names(Relation(frames[0].unionAll(frames[1]), keys, terms, sure, F.col("new")))

    def _values(self, node: Values) -> Relation:
        null = F.lit(None).cast("string")
        events = self._events()
        kind = f"array<struct<{', '.join(f'v{place}: string' for place in range(len(node.variables)))}>>"
        rows = [F.struct(*(null if part is None else self._constant(part) for part in row)) for row in node.rows]
        if not node.variables:
            kind, rows = "array<string>", [null] * len(node.rows)
        frame = events.frame.select("*", F.explode(F.array(*rows).cast(kind)).alias("given"))
        terms = {variable: F.col("given")[f"v{place}"] for place, variable in enumerate(node.variables)}
        return self._with_own_names(replace(events, frame=frame, terms=terms, certain=certain(node)))

    def _in_graph(self, name: Part, node: Node, graphs: frozenset[Variable]) -> Relation:
        if "graph" not in self._key:
            return self._in_each_graph(name, node)
        if not isinstance(name, Variable):
            found = self.relation(node, graphs)
            return replace(found, frame=found.frame.where(found.keys["graph"] == self._constant(name)))
        found = self.relation(node, graphs | {name})
        graph = found.keys["graph"]
        frame = found.frame.where(graph.isNotNull())
        if name in found.terms:
            frame = frame.where(compatible(found.terms[name], graph))
        return self._with_own_names(
            replace(found, frame=frame, terms={**found.terms, name: graph}, certain=found.certain | {name})
        )

    def _in_each_graph(self, name: Part, node: Node) -> Relation:
        """A GRAPH over a dataset: as if each of its named graphs were an event."""
        others = [
            one for one in walk(node) if isinstance(one, Graph) or (isinstance(one, Pattern) and one.graph != name)
        ]
        if others:
            raise UnsupportedRequestError(
                "a GRAPH inside of a GRAPH is not available; write it outside of the other one"
            )
        named = self._quads.where("graph IS NOT NULL")
        found = _Joins(named, self._query, (*self._key, "graph"), self._narrow, self._numbers)._in_graph(
            name, node, frozenset()
        )
        return self._with_own_names(replace(found, keys={key: found.keys[key] for key in self._key}))
