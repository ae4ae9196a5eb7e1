"""The tree of a query -> SPARQL text whose solutions have all variables of the WHERE.

A solution uses a new triple if it is not among those of the old triples. Comparing solutions takes all variables, also
blank nodes and the steps of paths, which a query has no way to show. In this text they are variables like the others.
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
from lamplighter.engine.sparql.lexer import joined
from lamplighter.engine.sparql.scopes import occurrences
from lamplighter.engine.terms import Term


class SolutionsText(NamedTuple):
    """text: a SELECT of all variables; projected: for each variable of the query its column, None if it has none.

    patterns: the triple patterns; factor: the product of the rows of all VALUES; graphs: whether there is a GRAPH.
    """

    text: str
    projected: tuple[int | None, ...]
    patterns: tuple[Pattern, ...]
    factor: int
    graphs: bool


def solutions_text(query: FleetQuery) -> SolutionsText:
    """The text for a query."""
    parts = list(walk(query.tree))
    named = [*occurrences(query.tree)]
    for part in parts:  # an expression may name a variable that is never bound
        named += part.variables if isinstance(part, Expression) else ()
    variables = {variable: number for number, variable in enumerate(dict.fromkeys(named))}
    body = _QueryText(variables, query.constants).group(query.tree)
    names = " ".join(f"?v{number}" for number in variables.values()) or "*"
    factor = 1
    for part in parts:
        factor *= max(1, len(part.rows)) if isinstance(part, Values) else 1
    patterns = tuple(part for part in parts if isinstance(part, Pattern))
    return SolutionsText(
        f"SELECT {names} WHERE {body}",
        tuple(variables.get(Variable(name)) for name in query.variables),
        patterns,
        factor,
        any(isinstance(part, Graph) for part in parts) or any(one.graph is not None for one in patterns),
    )


class _QueryText:
    """variables: their numbers, which are their names in the text."""

    def __init__(self, variables: dict[Variable, int], constants: Sequence[Term]) -> None:
        self._variables = variables
        self._constants = constants

    def group(self, node: Node) -> str:
        """A group graph pattern, with its braces. Filters and assignments have the scope that they have in the tree."""
        return f"{{ {self._inside(node)} }}"

    def _inside(self, node: Node) -> str:
        match node:
            case Bgp(patterns):
                return " ".join(map(self._pattern, patterns))
            case Join(left, right):
                return f"{self.group(left)} {self.group(right)}"
            case LeftJoin(left, right, condition):
                filters = " ".join(f"FILTER({self._expression(one)})" for one in condition)
                return f"{self.group(left)} OPTIONAL {{ {self.group(right)} {filters} }}"
            case Union(left, right):
                return f"{self.group(left)} UNION {self.group(right)}"
            case Filter(inner, condition):
                return f"{self.group(inner)} FILTER({self._expression(condition)})"
            case Extend(inner, variable, expression):
                return f"{self.group(inner)} BIND({self._expression(expression)} AS {self._part(variable)})"
            case Values(variables, rows):
                names = " ".join(map(self._part, variables))
                given = (" ".join("UNDEF" if part is None else self._part(part) for part in row) for row in rows)
                return f"VALUES ({names}) {{ {' '.join(f'({row})' for row in given)} }}"
            case Graph(name, inner):
                return f"GRAPH {self._part(name)} {self.group(inner)}"
        raise AssertionError(f"a fleet query has no {type(node).__name__}")

    def _pattern(self, pattern: Pattern) -> str:
        triple = " ".join(map(self._part, pattern[:3]))
        return f"{triple} ." if pattern.graph is None else f"GRAPH {self._part(pattern.graph)} {{ {triple} }}"

    def _part(self, part: Part) -> str:
        if isinstance(part, Variable):
            return f"?v{self._variables[part]}"
        return self._constants[part.number] if isinstance(part, Constant) else str(part)

    def _expression(self, expression: Expression) -> str:
        return joined(
            self._constants[part.number] if isinstance(part, Function) else self._part(part)  # type: ignore[arg-type]
            for part in expression.parts
        )
