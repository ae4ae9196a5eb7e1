"""SPARQL algebra (SPARQL 1.1 Query, section 18.2) of a request, with its constants lifted out.

A tree stands for all texts of one shape: where a text has an IRI or a literal, the tree has a `Constant`
that says which one of the text's constants it is. `engine.sparql.grammar` builds trees, and
`engine.matching.plan` compiles them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from lamplighter.engine.terms import Term


class Variable(NamedTuple):
    """A variable by its name. Blank nodes of patterns are variables too, with names that begin with ``_:``."""

    name: str


class Constant(NamedTuple):
    """The number-th constant of a request text, from 0."""

    number: int


Part = Variable | Constant | Term
"""What stands in a position of a pattern; a `Term` is one that the grammar itself implies, as ``a`` does."""


class Pattern(NamedTuple):
    """A quad pattern: a triple pattern and the graph it is matched in, None for the default graph."""

    s: Part
    p: Part
    o: Part
    graph: Part | None


@dataclass(frozen=True)
class Bgp:
    """Quad patterns that are joined; none of them is the group that has one empty solution."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True)
class OpaquePath:
    """A property path without fixed length, or a negated one: known only by what it may follow.

    steps: the predicates that it follows, None where it may follow any; zero_length: whether it also
    joins a node to itself.
    """

    s: Part
    steps: tuple[Part | None, ...]
    o: Part
    graph: Part | None
    zero_length: bool


@dataclass(frozen=True)
class Join:
    left: Node
    right: Node


@dataclass(frozen=True)
class LeftJoin:
    """OPTIONAL; condition: the filters that stand directly in the optional group."""

    left: Node
    right: Node
    condition: tuple[Expression, ...]


@dataclass(frozen=True)
class Union:
    left: Node
    right: Node


@dataclass(frozen=True)
class Minus:
    left: Node
    right: Node


@dataclass(frozen=True)
class Filter:
    """condition: one conjunct; ``FILTER(a && b)`` is a filter in a filter."""

    node: Node
    condition: Expression


@dataclass(frozen=True)
class Extend:
    """BIND, and the expressions of a projection."""

    node: Node
    variable: Variable
    expression: Expression


@dataclass(frozen=True)
class Values:
    """An inline table; None is UNDEF."""

    variables: tuple[Variable, ...]
    rows: tuple[tuple[Part | None, ...], ...]


@dataclass(frozen=True)
class Graph:
    """GRAPH around something that need not match a quad of the graph; patterns inside carry the graph already."""

    name: Part
    node: Node


@dataclass(frozen=True)
class Group:
    """keys: the variables grouped by; aggregates: the variable that each one's value gets."""

    node: Node
    keys: tuple[Variable, ...]
    aggregates: tuple[tuple[Variable, Aggregate], ...]


@dataclass(frozen=True)
class Project:
    node: Node
    variables: tuple[Variable, ...]


@dataclass(frozen=True)
class Distinct:
    node: Node


@dataclass(frozen=True)
class Slice:
    """LIMIT, OFFSET or REDUCED: which solutions come out depends on all of them together.

    order: what ORDER BY looks at with EXISTS.
    """

    node: Node
    order: tuple[Exists, ...] = ()


Node = (
    Bgp
    | OpaquePath
    | Join
    | LeftJoin
    | Union
    | Minus
    | Filter
    | Extend
    | Values
    | Graph
    | Group
    | Project
    | Distinct
    | Slice
)


class Function(NamedTuple):
    """A function called by its IRI, the number-th constant."""

    number: int


@dataclass(frozen=True)
class Exists:
    node: Node
    negated: bool


@dataclass(frozen=True)
class Aggregate:
    """argument: None for ``COUNT(*)``."""

    name: str
    distinct: bool
    argument: Expression | None


@dataclass(frozen=True)
class Expression:
    """An expression as its tokens, in order: what is not named otherwise is SPARQL text."""

    parts: tuple[str | Variable | Constant | Function | Exists, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its own variables, without those inside EXISTS."""
        return tuple(dict.fromkeys(part for part in self.parts if isinstance(part, Variable)))

    @property
    def exists(self) -> tuple[Exists, ...]:
        return tuple(part for part in self.parts if isinstance(part, Exists))


@dataclass(frozen=True)
class Select:
    """A SELECT query: the tree below the projection is everything; dataset: the graphs of FROM and FROM NAMED."""

    node: Node
    default_graphs: tuple[Part, ...] = ()
    named_graphs: tuple[Part, ...] = ()


def walk(tree: Any) -> Iterator[Any]:
    """Every node, pattern and expression in a tree, outermost first."""
    yield tree
    if isinstance(tree, Expression):
        for exists in tree.exists:
            yield exists
            yield from walk(exists.node)
    elif isinstance(tree, tuple) and not isinstance(tree, (Variable, Constant, Pattern, Function)):
        for member in tree:
            yield from walk(member)
    elif hasattr(tree, "__dataclass_fields__"):
        for member in fields(tree):
            yield from walk(getattr(tree, member.name))


def certain(node: Node) -> frozenset[Variable]:
    """The variables that are bound in every solution of the node."""
    match node:
        case Bgp(patterns):
            return frozenset(part for pattern in patterns for part in pattern if isinstance(part, Variable))
        case OpaquePath(s, _, o, graph):
            return frozenset(part for part in (s, o, graph) if isinstance(part, Variable))
        case Join(left, right):
            return certain(left) | certain(right)
        case Union(left, right):
            return certain(left) & certain(right)
        case LeftJoin(left, _, _) | Minus(left, _) | Filter(left, _) | Extend(left, _, _):
            return certain(left)
        case Values(variables, rows):
            return frozenset(
                variable for column, variable in enumerate(variables) if all(row[column] is not None for row in rows)
            )
        case Graph(name, inner):
            return certain(inner) | ({name} if isinstance(name, Variable) else frozenset())
        case Group(inner, keys, _):
            return certain(inner) & frozenset(keys)
        case Project(inner, variables):
            return certain(inner) & frozenset(variables)
        case Distinct(inner) | Slice(inner, _):
            return certain(inner)


def visible(node: Node) -> frozenset[Variable]:
    """The variables that may be bound in a solution of the node: those in scope (SPARQL 1.1 Query, 18.2.1)."""
    match node:
        case Bgp() | OpaquePath():
            return certain(node)
        case Join(left, right) | LeftJoin(left, right, _) | Union(left, right):
            return visible(left) | visible(right)
        case Minus(left, _) | Filter(left, _) | Distinct(left) | Slice(left, _):
            return visible(left)
        case Extend(left, variable, _):
            return visible(left) | {variable}
        case Values(variables, _):
            return frozenset(variables)
        case Graph(name, inner):
            return visible(inner) | ({name} if isinstance(name, Variable) else frozenset())
        case Group(_, keys, aggregates):
            return frozenset(keys) | {variable for variable, _ in aggregates}
        case Project(inner, variables):
            return visible(inner) & frozenset(variables)
