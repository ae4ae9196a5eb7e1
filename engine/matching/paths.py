"""Paths of variable length in an algebra tree: which of them a plan can follow.

A path without a hop joins each node of the graph to itself (SPARQL 1.1 Query, 18.2.2.4; the store takes no other terms
for nodes). Whether a term is a node depends on every quad of the graph. Most paths are *anchored*: another pattern of
the same graph finds one of the ends, which is a node then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from lamplighter.engine.matching.reachability import PathPredicate
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Distinct,
    Exists,
    Expression,
    Extend,
    Filter,
    Function,
    Graph,
    Group,
    Hops,
    Join,
    LeftJoin,
    Minus,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Project,
    Slice,
    Union,
    Values,
    Variable,
    takes_apart,
    walk,
)

# Subjects and objects that are nodes of a graph in every solution, each with the graph.
Ends = frozenset[tuple[Part, Part | None]]


def with_paths(tree: Node) -> Node:
    """The tree with each path that a plan can follow as a pattern, whose predicate is a `PathPredicate`.

    The constants in the paths of the tree are terms. The other paths stay (`why_opaque`).
    """
    free = not_anchored(tree)
    inside = tree
    while isinstance(inside, (Project, Distinct, Slice)):
        inside = inside.node

    def pattern(path: OpaquePath) -> Node:
        if path.hops is None or _store_counts_ways(path, path.hops, inside):
            return path
        predicate = PathPredicate(path.hops, nodes=path.hops.zero_length and path in free)
        return Bgp((Pattern(path.s, predicate, path.o, path.graph),))

    return _replace_paths(tree, pattern)  # type: ignore[no-any-return]


def why_opaque(path: OpaquePath) -> str:
    """The reason why `with_paths` leaves a path."""
    if path.hops is None:
        return "a path that repeats a sequence, or that is negated"
    return "a repeated path in a graph that is a variable, between ends that may be known before the graph"


def _store_counts_ways(path: OpaquePath, hops: Hops, tree: Node) -> bool:
    """Whether the store may return a pair several times, if several ways join it.

    SPARQL has each pair once. The store (Oxigraph 0.5) differs for a path with ``+``, as in ``(:p*|:q)+``, if it knows
    both ends, but not the graph, when it evaluates the path.
    """
    if not isinstance(path.graph, Variable) or not hops.repeated:
        return False
    return all(_known_without_graph(end, path.graph, tree) for end in (path.s, path.o))


def _known_without_graph(end: Part, graph: Variable, tree: Node) -> bool:
    if not isinstance(end, Variable):
        return True
    for node in walk(tree):
        match node:
            case Pattern() if takes_apart(node):
                if end in node:
                    return True
            case Pattern(s, p, o, place) if end in (s, p, o) and place != graph:
                return True
            case OpaquePath(s, _, o, place) if end in (s, o) and place != graph:
                return True
            case Values(variables, _) if end in variables:
                return True
            case Extend(_, variable, _) if end == variable:
                return True
            case Project(_, variables) if end in variables and graph not in variables:
                return True
    return False


def not_anchored(tree: Node) -> frozenset[OpaquePath]:
    """The paths of a tree that are not anchored."""
    return frozenset(_not_anchored(tree, frozenset()))


def _replace_paths(tree: Any, pattern: Callable[[OpaquePath], Node]) -> Any:
    if isinstance(tree, OpaquePath):
        return pattern(tree)
    if isinstance(tree, tuple) and not isinstance(tree, (Variable, Constant, Pattern, Function)):
        return tuple(_replace_paths(member, pattern) for member in tree)
    if not hasattr(tree, "__dataclass_fields__"):
        return tree
    node = replace(tree, **{field.name: _replace_paths(getattr(tree, field.name), pattern) for field in fields(tree)})
    return _join(list(_members(node))) if isinstance(node, Join) else node


def _members(node: Node) -> Iterator[Node]:
    if isinstance(node, Join):
        yield from _members(node.left)
        yield from _members(node.right)
    else:
        yield node


def _join(members: Sequence[Node]) -> Node:
    """The join of all members. All patterns come first, as one group, since they find the ends of the paths in it."""
    patterns = [pattern for node in members if isinstance(node, Bgp) for pattern in node.patterns]
    rest = [node for node in members if not isinstance(node, Bgp)]
    return _chain([Bgp(tuple(patterns)), *rest] if patterns else rest)


def _chain(members: Sequence[Node]) -> Node:
    node, *rest = members
    for other in rest:
        node = Join(node, other)
    return node


def _nodes(tree: Node, around: Ends) -> Ends:
    """The nodes that are known in every solution: those around, and the ends that patterns find."""
    match tree:
        case Bgp(patterns):
            found = [pattern for pattern in patterns if not takes_apart(pattern)]
            return around | {(part, pattern.graph) for pattern in found for part in (pattern.s, pattern.o)}
        case OpaquePath(s, _, o, graph):
            ends = frozenset(((s, graph), (o, graph)))
            return around | ends if around & ends or not _may_be_empty(tree) else around
        case Join():
            members = list(_members(tree))  # at once: repeated at each join of a chain, it takes cubic time
            while True:
                known = around
                for member in members:
                    known = _nodes(member, known)
                if known == around:
                    return known
                around = known
        case Union(left, right):
            return _nodes(left, around) & _nodes(right, around)
        case LeftJoin(inner, _, _) | Minus(inner, _) | Filter(inner, _) | Extend(inner, _, _):
            return _nodes(inner, around)
        case Distinct(inner) | Slice(inner, _) | Graph(_, inner):
            return _nodes(inner, around)
        case Project(inner, variables):
            return around | _visible_ends(_nodes(inner, _visible_ends(around, variables)), variables)
        case Group(inner, keys, _):
            return around | _visible_ends(_nodes(inner, _visible_ends(around, keys)), keys)
    return around


def _may_be_empty(path: OpaquePath) -> bool:
    return path.zero_length if path.hops is None else path.hops.zero_length


def _visible_ends(ends: Ends, variables: tuple[Variable, ...]) -> Ends:
    """The ends outside of a scope that only these variables leave or enter."""

    def is_visible(part: Part | None) -> bool:
        return not isinstance(part, Variable) or part in variables

    return frozenset((part, graph) for part, graph in ends if is_visible(part) and is_visible(graph))


def _not_anchored(tree: Any, around: Ends) -> Iterator[OpaquePath]:
    """The paths none of whose ends is known as a node. around: the nodes that are known outside of the tree."""
    match tree:
        case OpaquePath(s, _, o, graph):
            if _may_be_empty(tree) and not around & {(s, graph), (o, graph)}:
                yield tree
        case Join():
            members = list(_members(tree))
            beside = [node for node in members if isinstance(node, (Bgp, OpaquePath))]  # these are joined first
            known = _nodes(_chain(beside), around) if beside else around
            yield from _not_anchored(tuple(members), known)
        case LeftJoin(left, right, condition):
            yield from _not_anchored(left, around)
            yield from _not_anchored((right, condition), _nodes(left, around))
        case Minus(left, right):
            yield from _not_anchored(left, around)
            yield from _not_anchored(right, _nodes(left, around))
        case Filter(inner, expression) | Extend(inner, _, expression):
            yield from _not_anchored(inner, around)
            yield from _not_anchored(expression, _nodes(inner, around))
        case Project(inner, variables):
            yield from _not_anchored(inner, _visible_ends(around, variables))
        case Group(inner, keys, aggregates):
            yield from _not_anchored(inner, _visible_ends(around, keys))
            for _, aggregate in aggregates:
                if aggregate.argument is not None:
                    yield from _not_anchored(aggregate.argument, _nodes(inner, frozenset()))
        case Expression():
            for exists in tree.exists:
                yield from _not_anchored(exists, around)
        case Exists(inner, _):
            yield from _not_anchored(inner, around)
        case tuple() if not isinstance(tree, (Variable, Constant, Pattern, Function)):
            for member in tree:
                yield from _not_anchored(member, around)
        case Union() | Distinct() | Slice() | Graph():
            for field in fields(tree):
                yield from _not_anchored(getattr(tree, field.name), around)
