"""The tree of a query -> SPARQL text that finds its solutions in each of many events, with all variables of the WHERE.

A solution uses a new triple if it is not among those of the old triples. Comparing solutions takes all variables, also
blank nodes and the steps of paths, which a query has no way to show. In this text they are variables like the others.

Each event is a named graph, ``?e``. The default graph says which graphs are events (`IS_EVENT`), and what the graph of
the gateway is called that the event is of (`IN_GRAPH`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Expression,
    Extend,
    Filter,
    Function,
    Graph,
    Join,
    LeftJoin,
    Node,
    Part,
    Pattern,
    Union,
    Values,
    Variable,
    walk,
)
from lamplighter.engine.sparql.lexer import join_tokens
from lamplighter.engine.sparql.scopes import occurrences
from lamplighter.engine.terms import Term

EVENT = "?e"
# What the default graph says of each event.
IS_EVENT = "<lamplighter:is> <lamplighter:event>"
# The predicate between an event and the name of its graph.
IN_GRAPH = "<lamplighter:graph>"


class SolutionsText(NamedTuple):
    """text: a SELECT of the event and then of all variables of the WHERE; projected: for each variable of the query its
    place among them, None if it has none.

    patterns: the triple patterns; factor: the product of the rows of all VALUES.
    """

    text: str
    projected: tuple[int | None, ...]
    patterns: tuple[Pattern, ...]
    factor: int


def solutions_text(query: FleetQuery) -> SolutionsText:
    """The text for a query."""
    parts = list(walk(query.tree))
    named = [*occurrences(query.tree)]
    for part in parts:  # an expression may name a variable that is never bound
        named += part.variables if isinstance(part, Expression) else ()
    variables = {variable: number for number, variable in enumerate(dict.fromkeys(named))}
    body = _QueryText(variables, query.constants).group(query.tree, of_event=True)
    names = " ".join((EVENT, *(f"?v{number}" for number in variables.values())))
    factor = 1
    for part in parts:
        factor *= max(1, len(part.rows)) if isinstance(part, Values) else 1
    patterns = tuple(part for part in parts if isinstance(part, Pattern))
    return SolutionsText(
        f"SELECT {names} WHERE {body}",
        tuple(variables.get(Variable(name)) for name in query.variables),
        patterns,
        factor,
    )


class _QueryText:
    """variables: their numbers, which are their names in the text."""

    def __init__(self, variables: dict[Variable, int], constants: Sequence[Term]) -> None:
        self._variables = variables
        self._constants = constants

    def group(self, node: Node, *, of_event: bool = False) -> str:
        """A group graph pattern, with its braces. Filters and assignments have the scope that they have in the tree.

        of_event: its solutions have the event, also where no pattern of the tree looks at it.
        """
        event = f" {EVENT} {IS_EVENT} ." if of_event and not _has_event(node) else ""
        return f"{{ {self._inside(node)}{event} }}"

    def _inside(self, node: Node) -> str:
        match node:
            case Bgp(patterns):
                return " ".join(map(self._pattern, patterns))
            case Join(left, right):
                return f"{self.group(left)} {self.group(right)}"
            case LeftJoin(left, right, condition):
                filters = " ".join(f"FILTER({self._expression(one)})" for one in condition)
                return f"{self.group(left, of_event=True)} OPTIONAL {{ {self.group(right)} {filters} }}"
            case Union(left, right):
                return f"{self.group(left, of_event=True)} UNION {self.group(right, of_event=True)}"
            case Filter(inner, condition):
                return f"{self.group(inner)} FILTER({self._expression(condition)})"
            case Extend(inner, variable, expression):
                return f"{self.group(inner)} BIND({self._expression(expression)} AS {self._part(variable)})"
            case Values(variables, rows):
                names = " ".join(map(self._part, variables))
                given = (" ".join("UNDEF" if part is None else self._part(part) for part in row) for row in rows)
                return f"VALUES ({names}) {{ {' '.join(f'({row})' for row in given)} }}"
            case Graph(name, inner):
                return f"{self.group(inner)} {self._in_graph(name)}"
        raise AssertionError(f"a fleet query has no {type(node).__name__}")

    def _pattern(self, pattern: Pattern) -> str:
        triple = f"GRAPH {EVENT} {{ {' '.join(map(self._part, pattern[:3]))} }}"
        return triple if pattern.graph is None else f"{triple} {self._in_graph(pattern.graph)}"

    def _in_graph(self, name: Part) -> str:
        return f"{EVENT} {IN_GRAPH} {self._part(name)} ."

    def _part(self, part: Part) -> str:
        if isinstance(part, Variable):
            return f"?v{self._variables[part]}"
        return self._constants[part.number] if isinstance(part, Constant) else str(part)

    def _expression(self, expression: Expression) -> str:
        return join_tokens(
            self._constants[part.number] if isinstance(part, Function) else self._part(part)  # type: ignore[arg-type]
            for part in expression.parts
        )


def _has_event(node: Node) -> bool:
    """Whether each solution has the event, for a pattern of it looks at the event."""
    match node:
        case Bgp(patterns):
            return bool(patterns)
        case Join(left, right):
            return _has_event(left) or _has_event(right)
        case LeftJoin() | Union() | Graph():
            return True
        case Filter(inner, _) | Extend(inner, _, _):
            return _has_event(inner)
    return False
