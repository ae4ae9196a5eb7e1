"""A query's tree -> one expression over the triples of an event: an array with the rows of its solutions.

Each triple pattern is a `filter` of the event's triples and a `transform` of what it found, in which the next pattern
is nested: no join, no shuffle, no state. The right side of an OPTIONAL and the branches of a UNION are arrays of
structs, whose solutions the rest of the query takes one by one.

The work on one event is bounded. Along each path of the nested loops the numbers of matches are multiplied. All paths
together have at most as many ends as the largest of these products, so a path with a larger product than
`SOLUTIONS_MAX` ends in a row that is null, and nothing needs to be counted across paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.expression_tree import expression_tree
from lamplighter.cloud_sync.fleet.sparql.expressions import Expressions
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
    visible,
    walk,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery

# Product of the numbers of matches along one path of the loops: bounds the solutions of a query in one event.
SOLUTIONS_MAX = 10_000
# Triples that one pattern is compared with in one event.
TESTS_MAX = 20_000_000

_ROWS = "array<array<string>>"


@dataclass(frozen=True)
class EventScope:
    """What is known at one place of the loops.

    terms: columns of the variables, null where unbound; certain: the variables that are bound for sure; new: whether a
    new triple is used; paths: product of the numbers of matches so far; graphs: the variables of the GRAPHs around;
    waiting: filters that can be evaluated as soon as their variables are certain; none, exceeded: the empty result, and
    the result of a path that exceeds a bound.
    """

    terms: Mapping[Variable, Column]
    certain: frozenset[Variable]
    new: Column
    paths: Column
    graphs: frozenset[Variable]
    waiting: tuple[Expression, ...]
    none: Column
    exceeded: Column

    def with_terms(
        self, terms: Mapping[Variable, Column], sure: Iterable[Variable], new: Column | None = None
    ) -> EventScope:
        """The scope with more terms. sure: those that are bound for sure; new: whether a new triple is used there."""
        return replace(
            self,
            terms={**self.terms, **terms},
            certain=self.certain | frozenset(sure),
            new=self.new if new is None else self.new | new,
        )


# The rest of the query: scope -> array of its results.
Then = Callable[[EventScope], "Column"]


def nested_rows(events: DataFrame, query: FleetQuery) -> DataFrame:
    """As `osma.solutions`, for any query. A null row: the event exceeds a bound."""
    kept = [column for column in events.columns if column not in ("triples", "constants")]
    found = _rows(query, F.col("triples"), F.col("graph"), F.col("constants"))
    return events.select(*kept, F.explode(found).alias("row"))


def _rows(query: FleetQuery, triples: Column, graph: Column, constants: Column) -> Column:
    """The rows of the solutions that use a new triple: ARRAY<ARRAY<STRING>>, a row for each solution."""
    none = F.array().cast(_ROWS)
    scope = EventScope(
        terms={},
        certain=frozenset(),
        new=F.lit(False),
        paths=F.lit(1).cast("bigint"),
        graphs=frozenset(),
        waiting=(),
        none=none,
        exceeded=F.array(F.lit(None).cast("array<string>")),
    )
    null = F.lit(None).cast("string")

    def row(found: EventScope) -> Column:
        terms = [found.terms.get(Variable(name), null) for name in query.variables]
        return F.when(found.new, F.array(F.array(*terms).cast("array<string>"))).otherwise(none)

    return Nested(query, triples, graph, constants).compile(scope, row)


class Nested:
    """Compiles one tree. A method takes a node, its scope and the rest of the query, and returns an array."""

    def __init__(self, query: FleetQuery, triples: Column, graph: Column, constants: Column) -> None:
        self._query = query
        self._triples = triples
        self._graph = graph
        self._constants = constants
        self._candidates: dict[tuple[Part | None, ...], Column] = {}

    def compile(self, scope: EventScope, then: Then) -> Column:
        """The tree of the query."""
        patterns = [part for part in walk(self._query.tree) if isinstance(part, Pattern)]
        return self._select(list(dict.fromkeys(map(constant_parts, patterns))), scope, then)

    def _select(self, wanted: Sequence[tuple[Part | None, ...]], scope: EventScope, then: Then) -> Column:
        """Selects the triples with the constants of each pattern once for the event."""
        if not wanted:
            return self._node(self._query.tree, scope, then)
        first, *others = wanted
        tests = [(place, self.constant(part)) for place, part in zip("spo", first, strict=True) if part is not None]

        def inner(candidates: Column) -> Column:
            self._candidates[first] = candidates
            return self._select(others, scope, then)

        if not tests:
            return inner(self._triples)
        return let(
            F.filter(self._triples, lambda triple: all_of([triple[name] == term for name, term in tests])), inner
        )

    def constant(self, part: Part) -> Column:
        """The column of a constant."""
        return F.get(self._constants, F.lit(part.number)) if isinstance(part, Constant) else F.lit(part)

    def expressions(self, scope: EventScope) -> Expressions:
        null = F.lit(None).cast("string")

        def term(part: Variable | Constant) -> Column:
            return self.constant(part) if isinstance(part, Constant) else scope.terms.get(part, null)

        return Expressions(term)

    def condition(self, expression: Expression, scope: EventScope) -> Column:
        return self.expressions(scope).condition(expression_tree(expression, self._query.constants))

    # --- nodes ---

    def _node(self, node: Node, scope: EventScope, then: Then) -> Column:
        match node:
            case Bgp(patterns):
                return self._patterns(patterns, scope, then)
            case Join(left, right):
                return self._node(left, scope, lambda found: self._join(right, found, then))
            case LeftJoin(left, right, conditions):
                return self._node(left, scope, lambda found: self._optional(right, conditions, found, then))
            case Union(left, right):
                return self._union(left, right, scope, then)
            case Filter(inner, expression):
                return self._filter(inner, expression, scope, then)
            case Extend(inner, variable, expression):
                return self._node(inner, scope, lambda found: self._assign(variable, expression, found, then))
            case Values():
                return self._values(node, scope, then)
            case Graph(name, inner):
                return self._graph_named(name, inner, scope, then)
        raise AssertionError(node)

    def _patterns(self, patterns: Sequence[Pattern], scope: EventScope, then: Then) -> Column:
        for expression in scope.waiting:
            if scope.certain.issuperset(expression.variables):
                rest = replace(scope, waiting=_without(scope.waiting, expression))
                return self._filter_scope(expression, rest, lambda found: self._patterns(patterns, found, then))
        if not patterns:
            return then(scope)
        following = next_pattern(patterns, scope.certain)
        others = [pattern for pattern in patterns if pattern is not following]
        return self._pattern(following, scope, lambda found: self._patterns(others, found, then))

    def _filter_scope(self, expression: Expression, scope: EventScope, then: Then) -> Column:
        return F.when(self.condition(expression, scope), then(scope)).otherwise(scope.none)

    def _pattern(self, pattern: Pattern, scope: EventScope, then: Then) -> Column:
        """A loop over the triples that match a pattern."""
        candidates = self._candidates[constant_parts(pattern)]
        in_graph = self._in_graph(pattern.graph, scope)
        if isinstance(pattern.graph, Variable):
            scope = scope.with_terms({pattern.graph: self._graph}, [pattern.graph])
        repeated = _repeated_places(pattern)
        known = [(place, part) for place, part in _variables(pattern) if part in scope.terms]

        def matches(triple: Column) -> Column:
            same = [triple[one] == triple[other] for one, other in repeated]
            return all_of([*same, *(self._agrees(part, triple[place], scope) for place, part in known)])

        def loop(found: Column) -> Column:
            count = scope.paths * F.size(found)

            def body(triple: Column) -> Column:
                terms = {part: triple[place] for place, part in _variables(pattern)}
                return then(replace(scope.with_terms(terms, terms, triple["new"]), paths=count))

            return F.when(count > SOLUTIONS_MAX, scope.exceeded).otherwise(F.flatten(F.transform(found, body)))

        if not (repeated or known):
            looped = loop(candidates)
        else:
            looped = F.when(scope.paths * F.size(candidates) > TESTS_MAX, scope.exceeded).otherwise(
                let(F.filter(candidates, matches), loop)
            )
        return looped if in_graph is None else F.when(in_graph, looped).otherwise(scope.none)

    def _agrees(self, variable: Variable, term: Column, scope: EventScope) -> Column:
        """Whether a term is compatible with a variable of the scope."""
        known = scope.terms[variable]
        return term == known if variable in scope.certain else known.isNull() | (term == known)

    def _in_graph(self, name: Part | None, scope: EventScope) -> Column | None:
        """Whether the event's graph is the one of a pattern; None if the pattern matches in any graph."""
        if name is None:
            return None
        if not isinstance(name, Variable):
            return self._graph == self.constant(name)
        named = self._graph.isNotNull()
        return named & self._agrees(name, self._graph, scope) if name in scope.terms else named

    def _join(self, node: Node, scope: EventScope, then: Then) -> Column:
        """The join of the scope with a node."""
        if pushable(node, frozenset(scope.terms) - scope.graphs):
            return self._node(node, scope, then)
        graphs = {name: scope.terms[name] for name in scope.graphs}
        alone = replace(scope, terms=graphs, certain=scope.graphs)
        names = _ordered_variables(node)
        return self._each(self._solutions(node, names, alone), names, certain(node), scope, then)

    def _solutions(
        self, node: Node, names: Sequence[Variable], scope: EventScope, conditions: Sequence[Expression] = ()
    ) -> Column:
        """The join of the scope with a node as an array of structs: the variables of these names, new, exceeded.

        conditions: further conditions on a solution.
        """
        null = F.lit(None).cast("string")

        def last(found: EventScope) -> Column:
            return self._all_kept(
                conditions, found, lambda one: _solution([one.terms.get(n, null) for n in names], one.new)
            )

        inner = replace(
            scope,
            waiting=(),
            none=F.array().cast(f"array<{_struct(len(names))}>"),
            exceeded=_solution([null] * len(names), F.lit(False), exceeded=True),
        )
        return self._join(node, inner, last)

    def _all_kept(self, expressions: Sequence[Expression], scope: EventScope, then: Then) -> Column:
        if not expressions:
            return then(scope)
        return self._filter_scope(expressions[0], scope, lambda found: self._all_kept(expressions[1:], found, then))

    def _each(
        self, solutions: Column, names: Sequence[Variable], sure: Iterable[Variable], scope: EventScope, then: Then
    ) -> Column:
        """The rest of the query for each solution that is compatible with the scope. sure: variables that all bind."""
        shared = [name for name in names if name in scope.terms]

        def loop(found: Column) -> Column:
            count = scope.paths * F.size(found)

            def body(one: Column) -> Column:
                terms = {name: one[f"v{number}"] for number, name in enumerate(names)}
                both = {name: F.coalesce(scope.terms[name], terms[name]) for name in shared}
                rest = then(replace(scope.with_terms({**terms, **both}, sure, one["new"]), paths=count))
                if shared:
                    agree = all_of([compatible(terms[name], scope.terms[name]) for name in shared])
                    rest = F.when(agree, rest).otherwise(scope.none)
                return F.when(one["exceeded"], scope.exceeded).otherwise(rest)

            return F.when(count > SOLUTIONS_MAX, scope.exceeded).otherwise(F.flatten(F.transform(found, body)))

        return let(solutions, loop)

    def _union(self, left: Node, right: Node, scope: EventScope, then: Then) -> Column:
        """One array of the solutions of both sides."""
        # One array, so that the rest of the query occurs once.
        both = Union(left, right)
        names = _ordered_variables(both)
        found = F.concat(self._solutions(left, names, scope), self._solutions(right, names, scope))
        return self._each(found, names, certain(both), scope, then)

    def _optional(self, node: Node, conditions: Sequence[Expression], scope: EventScope, then: Then) -> Column:
        names = _ordered_variables(node)
        null = F.lit(None).cast("string")
        none = _solution([null] * len(names), F.lit(False))
        solutions = self._solutions(node, names, scope, conditions)
        if certain(node) <= scope.terms.keys():
            solutions = let(solutions, lambda found: _less_repeated(found, names, scope))
        found = let(solutions, lambda some: F.when(F.size(some) == 0, none).otherwise(some))
        return self._each(found, names, (), scope, then)

    def _filter(self, node: Node, expression: Expression, scope: EventScope, then: Then) -> Column:
        early = certain(node).issuperset(expression.variables)
        inner = replace(scope, waiting=(*scope.waiting, expression)) if early else scope

        def last(found: EventScope) -> Column:
            waiting = _without(found.waiting, expression)
            if early and len(waiting) == len(found.waiting):
                return then(found)  # evaluated already
            return self._filter_scope(expression, replace(found, waiting=waiting), then)

        return self._node(node, inner, last)

    def _assign(self, variable: Variable, expression: Expression, scope: EventScope, then: Then) -> Column:
        def assign_term(term: Column) -> Column:
            if variable not in scope.terms:
                return then(scope.with_terms({variable: term}, ()))
            old = scope.terms[variable]
            rest = then(scope.with_terms({variable: F.coalesce(old, term)}, ()))
            return F.when(compatible(old, term), rest).otherwise(scope.none)

        return let(self.expressions(scope).term(expression_tree(expression, self._query.constants)), assign_term)

    def _values(self, node: Values, scope: EventScope, then: Then) -> Column:
        null = F.lit(None).cast("string")
        found = [
            _solution([null if part is None else self.constant(part) for part in row], F.lit(False))
            for row in node.rows
        ]
        none = F.array().cast(f"array<{_struct(len(node.variables))}>")
        return self._each(F.concat(none, *found), node.variables, certain(node), scope, then)

    def _graph_named(self, name: Part, node: Node, scope: EventScope, then: Then) -> Column:
        inner = scope
        if isinstance(name, Variable):
            inner = replace(scope.with_terms({name: self._graph}, [name]), graphs=scope.graphs | {name})
        found = self._node(node, inner, lambda one: then(replace(one, graphs=scope.graphs)))
        return F.when(self._in_graph(name, scope), found).otherwise(scope.none)


def _less_repeated(solutions: Column, names: Sequence[Variable], scope: EventScope) -> Column:
    """The solutions of an OPTIONAL, of which the first that binds nothing more than the scope is not new.

    With the old triples alone, which have no solution, the scope stays as it is: the same solution.
    """

    def repeats(one: Column) -> Column:
        """Whether each of its terms is that of the scope, or null."""
        terms = [(scope.terms.get(name), one[f"v{number}"]) for number, name in enumerate(names)]
        none_more = [term.isNull() if known is None else known.isNotNull() | term.isNull() for known, term in terms]
        return all_of([F.lit(True), *none_more])

    old = F.exists(solutions, lambda one: ~one["new"])
    first = F.when(old, 0).otherwise(F.array_position(F.transform(solutions, repeats), True))
    return let(
        first,
        lambda place: F.transform(
            solutions, lambda one, number: one.withField("new", one["new"] & (number + 1 != place))
        ),
    )


def _without(expressions: Sequence[Expression], gone: Expression) -> tuple[Expression, ...]:
    return tuple(one for one in expressions if one is not gone)


def _ordered_variables(node: Node) -> list[Variable]:
    return sorted(visible(node))


def _struct(count: int) -> str:
    return f"struct<{''.join(f'v{number}: string, ' for number in range(count))}new: boolean, exceeded: boolean>"


def _solution(terms: Sequence[Column], new: Column, *, exceeded: bool = False) -> Column:
    """An array of one solution."""
    return F.array(F.struct(*terms, new, F.lit(exceeded)).cast(_struct(len(terms))))


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """The body with the value, which is evaluated once, however often the body uses it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def all_of(conditions: Sequence[Column]) -> Column:
    """The conjunction of one or more conditions."""
    return reduce(and_, conditions)


def compatible(one: Column, other: Column) -> Column:
    """Whether two terms are equal, or one of them is unbound."""
    return one.isNull() | other.isNull() | (one == other)


def constant_parts(pattern: Pattern) -> tuple[Part | None, Part | None, Part | None]:
    """The constants of a triple pattern; None for a variable."""
    s, p, o = (None if isinstance(part, Variable) else part for part in pattern[:3])
    return s, p, o


def _variables(pattern: Pattern) -> list[tuple[str, Variable]]:
    """(place, variable) of the first occurrence of each variable in a triple pattern."""
    found: dict[Variable, str] = {}
    for place, part in zip("spo", pattern[:3], strict=True):
        if isinstance(part, Variable):
            found.setdefault(part, place)
    return [(place, part) for part, place in found.items()]


def _repeated_places(pattern: Pattern) -> list[tuple[str, str]]:
    """Places of a triple pattern that have the same variable, each with the place of its first occurrence."""
    first = {part: place for place, part in _variables(pattern)}
    return [
        (first[part], place)
        for place, part in zip("spo", pattern[:3], strict=True)
        if isinstance(part, Variable) and first[part] != place
    ]


def next_pattern(patterns: Sequence[Pattern], known: frozenset[Variable]) -> Pattern:
    """The pattern with the fewest matches to expect: known subjects and objects select more than predicates."""

    def selects(pattern: Pattern) -> int:
        s, p, o = (not isinstance(part, Variable) or part in known for part in pattern[:3])
        return 4 * s + p + 3 * o

    return max(patterns, key=selects)


def pushable(node: Node, bound: frozenset[Variable]) -> bool:
    """Whether a node may be evaluated for each solution of what it is joined with.

    bound: the variables that those solutions may bind. Otherwise the node is evaluated alone and then joined, as SPARQL
    defines it: an expression, or the right side of an OPTIONAL, must not see a variable that its own group leaves
    unbound.
    """
    match node:
        case Bgp() | Values():
            return True
        case Join(left, right) | Union(left, right):
            return pushable(left, bound) and pushable(right, bound)
        case Filter(inner, expression) | Extend(inner, _, expression):
            return pushable(inner, bound) and bound.intersection(expression.variables) <= certain(inner)
        case LeftJoin(left, right, conditions):
            read = visible(right).union(*(expression.variables for expression in conditions))
            return pushable(left, bound) and pushable(right, bound) and bound & read <= certain(left)
        case Graph(name, inner):
            return pushable(inner, bound - {name} if isinstance(name, Variable) else bound)
    raise AssertionError(node)
