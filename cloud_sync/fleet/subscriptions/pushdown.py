"""Fleet queries that a gateway's engine can answer: which they are, and the query that is sent.

A fleet subscription matches single events, an engine's subscription the whole dataset of its gateway. Both agree if
each solution uses exactly one triple: it is new in the result of the engine if and only if that triple was added, and
the added triples are the new triples of the record's events. With two patterns, a triple of an earlier record could
match one of them, so these queries stay on Spark.

The query that is sent has all variables and the graph of the triple in its projection. So the solutions of two triples
are never equal, and one that goes does not cancel one that comes in the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, required_patterns
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Exists,
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
    visible,
    walk,
)
from lamplighter.engine.terms import Term

# Variable of the graph of a solution's triple, unbound for the default graph.
GRAPH = "event_graph"
_BLANK = "event_node"
_BRANCH = "event_branch"
_RESERVED = "event_"


@dataclass(frozen=True)
class GatewayQuery:
    """What a gateway evaluates for a fleet query. text: a SELECT; projected: the variables of its results; graph: that
    for the graph of the event."""

    query: FleetQuery
    text: str
    projected: frozenset[str]
    graph: str = GRAPH

    def rows(self, bindings: Sequence[Mapping[str, Term]]) -> dict[Term | None, list[list[Term | None]]]:
        """Solutions of the gateway's query -> the rows of each event, by its graph; None for the default graph.

        bindings: the added, or the removed, rows of one commit. The rows are sorted, unbound first.
        """
        found: dict[Term | None, list[list[Term | None]]] = {}
        for one in bindings:
            found.setdefault(one.get(self.graph), []).append([one.get(name) for name in self.query.variables])
        for rows in found.values():
            rows.sort(key=lambda row: [(term is not None, term or "") for term in row])
        return {graph: rows if self.query.form == "SELECT" else [] for graph, rows in found.items()}


def obstacles(query: FleetQuery) -> list[str]:
    """Why the engine of a gateway would not have the matches of the query; empty if it has exactly these."""
    found = []
    if any(isinstance(part, LeftJoin) for part in walk(query.tree)):
        found.append("OPTIONAL: on a gateway, its patterns would also match triples of earlier records")
    most = max(map(len, required_patterns(query)))
    if most > 1:
        found.append(f"{most} triple patterns: on a gateway, triples of different records would match together")
    if most == 0 or any(not patterns for patterns in required_patterns(query)):
        found.append("an alternative without a triple pattern: it matches no event, and on a gateway always")
    if any(pattern.p in _variables(pattern) for pattern in walk(query.tree) if isinstance(pattern, Pattern)):
        found.append("a pattern without a predicate: a gateway would send all that it writes once more")
    if any(isinstance(part, Graph) for part in walk(query.tree)):
        found.append("GRAPH around a group without a triple pattern of its own")
    if any(name.name.startswith(_RESERVED) for name in visible(query.tree)):
        found.append(f"variables that begin with {_RESERVED}: the query for gateways has its own ones")
    return found


def gateway_query(query: FleetQuery) -> GatewayQuery:
    """The query that gateways evaluate. It must have no `obstacles`."""
    writer = _QueryWriter(query.constants)
    where = writer.group(query.tree)
    names = sorted({writer.variable(one) for one in visible(query.tree)})
    extra = [f"?{GRAPH}", *(f"?{_BRANCH}{number}" for number in range(1, writer.unions + 1))]
    projected = [*names, *extra]
    return GatewayQuery(query, f"SELECT {' '.join(projected)} WHERE {where}", frozenset(one[1:] for one in projected))


def _variables(pattern: Pattern) -> set[Part | None]:
    return {part for part in pattern if isinstance(part, Variable)}


class _QueryWriter:
    """Writes a tree as SPARQL text with full IRIs. unions: their number so far."""

    def __init__(self, constants: Sequence[Term]) -> None:
        self._constants = constants
        self._blank: dict[Variable, str] = {}
        self.unions = 0

    def variable(self, variable: Variable) -> str:
        if not variable.name.startswith("_:"):
            return f"?{variable.name}"
        return self._blank.setdefault(variable, f"?{_BLANK}{len(self._blank) + 1}")

    def term(self, part: Part) -> str:
        if isinstance(part, Variable):
            return self.variable(part)
        return self._constants[part.number] if isinstance(part, Constant) else part

    def group(self, node: Node) -> str:
        """The node as a group, with its braces."""
        match node:
            case Bgp(()):
                return "{}"
            case Bgp(patterns):
                return " ".join(map(self._pattern, patterns))
            case Join(left, right):
                return f"{{ {self.group(left)} {self.group(right)} }}"
            case Union(left, right):
                self.unions += 1
                name = f"?{_BRANCH}{self.unions}"
                one, other = self.group(left), self.group(right)
                return f"{{ {{ {one} BIND(1 AS {name}) }} UNION {{ {other} BIND(2 AS {name}) }} }}"
            case Filter(inner, condition):
                return f"{{ {self.group(inner)} FILTER({self._expression(condition)}) }}"
            case Extend(inner, variable, expression):
                assigned = f"BIND({self._expression(expression)} AS {self.variable(variable)})"
                return f"{{ {self.group(inner)} {assigned} }}"
            case Values(variables, rows):
                names = " ".join(map(self.variable, variables))
                return f"{{ VALUES ({names}) {{ {' '.join(map(self._row, rows))} }} }}"
        raise AssertionError(node)

    def _pattern(self, pattern: Pattern) -> str:
        triple = f"{{ {' '.join(self.term(part) for part in pattern[:3])} }}"
        if pattern.graph is None:
            return f"{{ {triple} UNION {{ GRAPH ?{GRAPH} {triple} }} }}"
        graph = self.term(pattern.graph)
        return f"{{ GRAPH {graph} {triple} BIND({graph} AS ?{GRAPH}) }}"

    def _row(self, row: Sequence[Part | None]) -> str:
        return f"({' '.join('UNDEF' if part is None else self.term(part) for part in row)})"

    def _expression(self, expression: Expression) -> str:
        # Oxigraph does not read `COALESCE (`.
        return "".join(part if part == "(" else f" {part}" for part in map(self._token, expression.parts))

    def _token(self, part: str | Variable | Constant | Function | Exists) -> str:
        if isinstance(part, Constant | Function):
            return self._constants[part.number]
        return self.variable(part) if isinstance(part, Variable) else str(part)
