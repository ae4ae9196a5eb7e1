"""SPARQL algebra (SPARQL 1.1 Query, section 18.2) of a request, with its constants lifted out.

A tree represents all texts of one shape: in place of each IRI and literal it has a `Constant` with the number of that
constant in the text. `engine.sparql.grammar` builds trees, and `engine.matching.plan` compiles them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, NamedTuple

from lamplighter.engine.terms import Term


class Variable(NamedTuple):
    """A variable by its name. A blank node of a pattern is a variable whose name begins with ``_:``."""

    name: str


class Constant(NamedTuple):
    """A constant by its number in the request text, from 0."""

    number: int


# A position of a pattern. A `Term` is implied by the grammar, such as rdf:type by ``a``.
Part = Variable | Constant | Term


class Pattern(NamedTuple):
    """A quad pattern: a triple pattern and the graph it is matched in, None for the default graph.

    A pattern of a triple term with variables is a quad pattern with a variable in its place, and two patterns that take
    its values apart (`TRIPLE_TERM`).
    """

    s: Part
    p: Part
    o: Part
    graph: Part | None


# Predicates of the patterns that take a triple term apart; no term of a dataset equals them. A pattern with
# `TRIPLE_TERM` relates a triple term (s) to its subject (o) and rest (graph), one with `TRIPLE_REST` the rest (s) to
# predicate (o) and object (graph). They match no quad: whoever knows one side of them computes the other.
TRIPLE_TERM, TRIPLE_REST = "triple term", "rest of a triple term"


def takes_apart(pattern: Pattern) -> bool:
    """Whether a pattern takes a triple term apart."""
    return pattern.p in (TRIPLE_TERM, TRIPLE_REST)


@dataclass(frozen=True)
class Bgp:
    """The join of quad patterns. Without patterns it has one empty solution."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True)
class Hops:
    """What a path consists of: one hop, or any number of them.

    steps: the ways to make one hop, each a predicate and whether it leads from object to subject. zero_length: whether
    no hop is enough; repeated: whether several hops may follow each other.
    """

    steps: tuple[tuple[Part, bool], ...]
    zero_length: bool
    repeated: bool


@dataclass(frozen=True)
class OpaquePath:
    """A property path of variable length, or a negated one, reduced to the quads that it may follow.

    steps: the predicates that it may follow, None for any; zero_length: whether it also joins a node to itself, which
    another step of the same path does not imply. hops: the whole path, None if it is negated or repeats a sequence.
    """

    s: Part
    steps: tuple[Part | None, ...]
    o: Part
    graph: Part | None
    zero_length: bool
    hops: Hops | None


@dataclass(frozen=True)
class Join:
    left: Node
    right: Node


@dataclass(frozen=True)
class LeftJoin:
    """OPTIONAL. condition: the filters directly in the optional group."""

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
    """FILTER. condition: one conjunct; ``FILTER(a && b)`` becomes two nested filters."""

    node: Node
    condition: Expression


@dataclass(frozen=True)
class Extend:
    """BIND, or an expression of a projection."""

    node: Node
    variable: Variable
    expression: Expression


@dataclass(frozen=True)
class Values:
    """VALUES. None is UNDEF."""

    variables: tuple[Variable, ...]
    rows: tuple[tuple[Part | None, ...], ...]


@dataclass(frozen=True)
class Graph:
    """GRAPH around a node that may have solutions without a quad of the graph. Patterns inside carry the graph."""

    name: Part
    node: Node


@dataclass(frozen=True)
class Group:
    """GROUP BY. keys: its variables; aggregates: (variable for the value, aggregate)."""

    node: Node
    keys: tuple[Variable, ...]
    aggregates: tuple[tuple[Variable, Aggregate], ...]


@dataclass(frozen=True)
class Project:
    """span: the first token of its SELECT, and the one after its last; (0, 0) for one that the text does not have."""

    node: Node
    variables: tuple[Variable, ...]
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class Distinct:
    node: Node


@dataclass(frozen=True)
class OrderKey:
    """One condition of ORDER BY."""

    expression: Expression
    descending: bool


@dataclass(frozen=True)
class Slice:
    """LIMIT, OFFSET or REDUCED: which solutions remain depends on all solutions.

    order: ORDER BY, over the solutions before the projection. limit, offset: integers; None if the text has none.
    """

    node: Node
    order: tuple[OrderKey, ...] = ()
    limit: Part | None = None
    offset: Part | None = None
    reduced: bool = False


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
    """A function called by its IRI, which is the constant of that number."""

    number: int


@dataclass(frozen=True)
class Exists:
    """span: the first token of its group, and the one after it."""

    node: Node
    negated: bool
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class Aggregate:
    """An aggregate. argument: None for ``COUNT(*)``; separator: that of GROUP_CONCAT, None if the text has none."""

    name: str
    distinct: bool
    argument: Expression | None
    separator: Part | None = None


@dataclass(frozen=True)
class Expression:
    """An expression as its tokens, in order. Tokens without a class of their own are SPARQL text."""

    parts: tuple[str | Variable | Constant | Function | Exists, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, without those inside EXISTS."""
        return tuple(dict.fromkeys(part for part in self.parts if isinstance(part, Variable)))

    @property
    def exists(self) -> tuple[Exists, ...]:
        return tuple(part for part in self.parts if isinstance(part, Exists))


@dataclass(frozen=True)
class Select:
    """A SELECT query. node: its tree; default_graphs, named_graphs: the graphs of FROM and FROM NAMED."""

    node: Node
    default_graphs: tuple[Part, ...] = ()
    named_graphs: tuple[Part, ...] = ()


def walk(tree: Any) -> Iterator[Any]:
    """All nodes, patterns and expressions of a tree, outermost first."""
    rest = [tree]
    while rest:
        node = rest.pop()
        yield node
        if isinstance(node, Expression):
            # The other parts of an expression are tokens.
            rest += reversed(node.exists)
        elif isinstance(node, tuple) and not isinstance(node, (Variable, Constant, Pattern, Function)):
            rest += reversed(node)
        elif hasattr(node, "__dataclass_fields__"):
            rest += [getattr(node, member) for member in reversed(node.__dataclass_fields__)]


def rewritten(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with change applied to every variable, constant and function."""
    if isinstance(tree, (Variable, Constant, Function)):
        return change(tree)
    if isinstance(tree, Pattern):
        return Pattern._make(change(part) if isinstance(part, (Variable, Constant)) else part for part in tree)
    if isinstance(tree, tuple):
        return tuple(rewritten(member, change) for member in tree)
    if hasattr(tree, "__dataclass_fields__"):
        return replace(tree, **{its.name: rewritten(getattr(tree, its.name), change) for its in fields(tree)})
    return tree


def _once_a_node(function: Callable[[Node], frozenset[Variable]]) -> Callable[[Node], frozenset[Variable]]:
    """The function, whose value is kept in the node: nodes do not change, and a plan asks for it at each level of each
    of its functions."""
    name = f"_{function.__name__}"

    def value(node: Node) -> frozenset[Variable]:
        kept: frozenset[Variable] | None = node.__dict__.get(name)
        if kept is None:
            # A frozen dataclass refuses to set an attribute, but not a member of its dictionary. Comparing and hashing
            # use its fields only.
            kept = node.__dict__[name] = function(node)
        return kept

    return wraps(function)(value)


@_once_a_node
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
            # A solution comes of one branch.
            return certain(left) & certain(right)
        # An expression of BIND may fail, so its variable is not certain.
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
        case Distinct(inner) | Slice(inner):
            return certain(inner)


@_once_a_node
def visible(node: Node) -> frozenset[Variable]:
    """The variables that may be bound in a solution of the node: those in scope (SPARQL 1.1 Query, 18.2.1)."""
    match node:
        case Bgp() | OpaquePath():
            return certain(node)
        case Join(left, right) | LeftJoin(left, right, _) | Union(left, right):
            return visible(left) | visible(right)
        # What is right of MINUS and inside of EXISTS is not in scope outside.
        case Minus(left, _) | Filter(left, _) | Distinct(left) | Slice(left):
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


def without_brackets(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The tokens of an expression without the brackets around all of it."""
    parts = tuple(parts)
    while len(parts) > 2 and parts[0] == "(" and parts[-1] == ")":
        depth = 0
        for part in parts[:-1]:
            depth += (part == "(") - (part == ")")
            # The first bracket closes before the end: `(a) + (b)` has none around all of it.
            if depth == 0:
                return parts
        parts = parts[1:-1]
    return parts
