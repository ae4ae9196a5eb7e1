"""Properties of an algebra tree that decide how it is compiled: its branches, its class, and its leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import product
from typing import Any

from lamplighter.engine.matching import aggregates
from lamplighter.engine.matching.costs import only_known_functions
from lamplighter.engine.matching.exists import why_not_joined
from lamplighter.engine.matching.paths import why_opaque
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
    certain,
    rewritten,
    visible,
    walk,
    without_brackets,
)
from lamplighter.engine.sparql.scopes import occurrences, scope_fault
from lamplighter.engine.terms import Term

# Branches up to which a tree's unions are expanded. A tree with more is evaluated as a whole.
BRANCHES_MAX = 16
# Triple patterns in one tree. Time and memory of its functions grow with the square of their number and more: with 32
# patterns 0.1 s and 1 MB, or 0.3 s and 3 MB if most of them are in OPTIONALs.
PATTERNS_MAX = 32
# Blocks of VALUES in one tree. Each is written within the one before, by recursion.
VALUES_MAX = 48
# Triple patterns above which a tree is compiled in slices, and how many such plans there are at a time. The store
# evaluates further ones, so that plans cannot fill the memory. A tree with fewer patterns and many expressions is
# compiled in slices, too.
WIDE, WIDE_PLANS_MAX = 16, 100
# Tokens of one expression. The store evaluates it for each new tuple of operands.
EXPRESSION_MAX = 200


class Unsupported(Exception):
    """There is no plan for a tree, and the store evaluates it. The message is the reason."""


def in_graphs(tree: Any, graphs: Sequence[Term | None]) -> Any:
    """The tree with the patterns of the default graph matched in several graphs instead; None is the default graph.

    The store does not merge the graphs: a triple that is in two of them has two solutions. So has this tree.
    """
    if len(graphs) == 1:
        return in_graph(tree, graphs[0])
    if isinstance(tree, Bgp):
        if not tree.patterns:
            return tree
        # Pattern by pattern: the triples of one solution may come from different graphs.
        places = [[in_graph(Bgp((pattern,)), graph) for graph in graphs] for pattern in tree.patterns]
        return reduce(Join, [reduce(Union, nodes) for nodes in places])
    if isinstance(tree, tuple) and not isinstance(tree, (Variable, Constant, Function)):
        return tuple(in_graphs(member, graphs) for member in tree)
    if hasattr(tree, "__dataclass_fields__"):
        return replace(tree, **{field.name: in_graphs(getattr(tree, field.name), graphs) for field in fields(tree)})
    return tree


def in_graph(tree: Any, graph: Term | None) -> Any:
    """The tree with the patterns of the default graph matched in a named one."""
    if isinstance(tree, Pattern):
        return tree if tree.graph is not None else tree._replace(graph=graph)
    if isinstance(tree, tuple) and not isinstance(tree, (Variable, Constant, Function)):
        return tuple(in_graph(member, graph) for member in tree)
    if hasattr(tree, "__dataclass_fields__"):
        return replace(tree, **{field.name: in_graph(getattr(tree, field.name), graph) for field in fields(tree)})
    return tree


def with_equalities(node: Any, is_iri: Callable[[Part], bool]) -> Any:
    """The tree with ``FILTER(?x = <iri>)`` replaced by the IRI in the patterns that bind ?x.

    It makes the filter a lookup; the store itself would try every solution.
    """
    if isinstance(node, tuple) and not isinstance(node, (Variable, Constant, Pattern, Function)):
        return tuple(with_equalities(member, is_iri) for member in node)
    if not hasattr(node, "__dataclass_fields__"):
        return node
    node = replace(node, **{field.name: with_equalities(getattr(node, field.name), is_iri) for field in fields(node)})
    if not isinstance(node, Filter):
        return node
    found = _equality(node.condition, is_iri)
    # For IRIs only, since literals are compared by value, and only if ?x is certain, since the filter fails for an
    # unbound variable.
    if found is None or found[0] not in certain(node.node) or not _substitutable(node.node, found[0]):
        return node
    variable, part = found
    inner = rewritten(node.node, lambda other: part if other == variable else other)
    # The variable is still part of the solution.
    return Extend(inner, variable, Expression((part,)))


def _equality(condition: Expression, is_iri: Callable[[Part], bool]) -> tuple[Variable, Part] | None:
    parts = without_brackets(condition.parts)
    if len(parts) == 3 and parts[1] == "=":
        for variable, part in ((parts[0], parts[2]), (parts[2], parts[0])):
            if isinstance(variable, Variable) and isinstance(part, (Constant, str)) and is_iri(part):
                return variable, part
    return None


def _substitutable(node: Node, variable: Variable) -> bool:
    """Whether a constant may replace the variable everywhere in a node.

    It may not in the right side of an OPTIONAL whose left side lacks the variable: that side must be evaluated with any
    value first.
    """
    for part in walk(node):
        match part:
            case LeftJoin(left, right) if variable in occurrences(right) and variable not in occurrences(left):
                return False
            case Bgp() | Filter() | Join() | LeftJoin() | Expression() | Exists():
                pass
            case _ if hasattr(part, "__dataclass_fields__"):
                return False
    return True


def branches(node: Node) -> list[Node]:
    """Trees whose bags of solutions add up to those of the node, with the outer UNIONs expanded."""
    # Counted before they are made: a text of a few lines can have millions.
    return [node] if _branch_count(node) > BRANCHES_MAX else _branches(node)


def _branch_count(node: Node) -> int:
    """The number of trees that `_branches` would return. Each joined union doubles it."""
    match node:
        case Union(left, right):
            return _branch_count(left) + _branch_count(right)
        case Join(left, right):
            return _branch_count(left) * _branch_count(right)
        case LeftJoin(inner, _, _) | Minus(inner, _) | Filter(inner, _) | Extend(inner, _, _):
            return _branch_count(inner)
    return 1


def _branches(node: Node) -> list[Node]:
    match node:
        case Union(left, right):
            return _branches(left) + _branches(right)
        case Join(left, right):
            return [_join(one, other) for one, other in product(_branches(left), _branches(right))]
        case LeftJoin(left, right, condition):
            return [LeftJoin(one, right, condition) for one in _branches(left)]
        case Minus(left, right):
            # The right side removes, so it cannot be distributed: each branch needs all of it.
            return [Minus(one, right) for one in _branches(left)]
        case Filter(inner, condition):
            return [Filter(one, condition) for one in _branches(inner)]
        case Extend(inner, variable, expression):
            return [Extend(one, variable, expression) for one in _branches(inner)]
    return [node]


def _join(left: Node, right: Node) -> Node:
    if isinstance(left, Bgp) and isinstance(right, Bgp):
        return Bgp(left.patterns + right.patterns)
    return Join(left, right)


def check(node: Node) -> None:
    """Raises Unsupported, with the reason, for a tree that cannot be compiled."""
    patterns = blocks = 0
    fault = scope_fault(node)
    if fault is not None:
        raise Unsupported(fault.reason)
    for part in walk(node):
        match part:
            case OpaquePath():
                raise Unsupported(why_opaque(part))
            case Slice():
                raise Unsupported("LIMIT, OFFSET or REDUCED in a sub-select")
            case Graph():
                raise Unsupported("GRAPH around more than triple patterns")
            case Exists(inner, _):
                reason = why_not_joined(inner, node)
                if reason is not None:
                    raise Unsupported(reason)
            case Extend(inner, variable, _):
                # SPARQL forbids it (SPARQL 1.1 Query, 18.2.1), so what it means is left to the store.
                if variable in visible(inner):
                    raise Unsupported("a variable that is assigned twice")
            case Join(left, right):
                # An expression may fail and leave its variable unbound, and then the join would compare nothing.
                assigned = {node.variable for node in walk((left, right)) if isinstance(node, Extend)}
                if assigned & visible(left) & visible(right):
                    raise Unsupported("an assigned variable that is joined on")
            case Group(_, _, found):
                for _, aggregate in found:
                    try:
                        aggregates.check(aggregate)
                    except aggregates.UnsupportedAggregateError as error:
                        raise Unsupported(str(error)) from error
            case Expression(parts) if len(parts) > EXPRESSION_MAX:
                raise Unsupported(f"an expression of more than {EXPRESSION_MAX} tokens")
            case Expression(parts) if not only_known_functions(parts):
                raise Unsupported("a function that is not SPARQL's own")
            case Pattern():
                patterns += 1
            case Values():
                blocks += 1
    if blocks > VALUES_MAX:
        raise Unsupported(f"more than {VALUES_MAX} blocks of VALUES")
    if patterns > PATTERNS_MAX:
        raise Unsupported(f"more than {PATTERNS_MAX} triple patterns")


def monotone(node: Node) -> bool:
    """Whether the telescoping rule holds: more quads give more solutions, and each solution has one derivation."""
    match node:
        case Bgp() | Values():
            return True
        case Join(left, right):
            return monotone(left) and monotone(right)
        case Filter(inner, condition):
            return not condition.exists and monotone(inner)
        case Extend(inner, _, expression):
            return not expression.exists and monotone(inner)
    return False


@dataclass(frozen=True)
class Leaf:
    """A group of patterns in a tree.

    seeds: the variables whose values in a solution of the patterns select the tree's solutions that it can change.
    around: patterns that match in each solution that it can change; joined: whether the seeds need them, because the
    patterns alone bind no variable of the tree. shown: the variables of all these patterns that are the same outside;
    the others may have their names in common with variables there.
    """

    patterns: tuple[Pattern, ...]
    seeds: tuple[Variable, ...]
    shown: frozenset[Variable]
    around: tuple[Pattern, ...] = ()
    joined: bool = False

    @property
    def context(self) -> tuple[Pattern, ...]:
        """The patterns that a changed quad is joined with to find seeds, besides those of the leaf."""
        return self.around if self.joined else ()


def leaves(node: Node) -> Iterator[Leaf]:
    """The groups of patterns of a tree, each with the variables that it shares with the tree's solutions.

    Below the right side of OPTIONAL and MINUS, EXISTS, a projection or a grouping, only variables that are certain on
    both sides are seeds. A group that has none there, such as an OPTIONAL within an OPTIONAL, takes those of the
    patterns around it: a changed quad of it matters only where these match, and where they change, they are leaves too.
    """
    match node:
        case Bgp(patterns):
            yield Leaf(patterns, tuple(sorted(certain(node))), certain(node))
        case Join(left, right):
            yield from leaves(left)
            yield from leaves(right)
        case Union(left, right):
            yield from _restrict(leaves(left), certain(node))
            yield from _restrict(leaves(right), certain(node))
        case LeftJoin(left, right, condition):
            yield from leaves(left)
            yield from _restrict(leaves(right), certain(left), left)
            for expression in condition:
                yield from _exists_leaves(expression, certain(left), left)
        case Minus(left, right):
            yield from leaves(left)
            yield from _restrict(leaves(right), certain(left), left, hides=True)
        case Filter(inner, expression) | Extend(inner, _, expression):
            yield from leaves(inner)
            yield from _exists_leaves(expression, certain(inner), inner)
        case Group(inner, _, found):
            yield from _restrict(leaves(inner), certain(node), hides=True)
            for _, aggregate in found:
                if aggregate.argument is not None:
                    found_there = _exists_leaves(aggregate.argument, certain(inner), inner)
                    yield from _restrict(found_there, certain(node), hides=True)
        case Project(inner, _) | Distinct(inner):
            yield from _restrict(leaves(inner), certain(node), hides=True)


def _restrict(
    found: Iterable[Leaf], variables: frozenset[Variable], beside: Node | None = None, *, hides: bool = False
) -> Iterator[Leaf]:
    """The leaves with only these variables as seeds.

    beside: what has a solution wherever a leaf matters; hides: whether the other variables of a leaf are not seen here.
    """
    spine = () if beside is None else _spine(beside)
    for leaf in found:
        around, shown = leaf.around, leaf.shown & variables if hides else leaf.shown
        hidden = certain(Bgp((*leaf.patterns, *around))) - shown
        # A variable of the same name that is another one outside must not be joined.
        if not hidden & certain(Bgp(spine)):
            around, shown = (*around, *spine), shown | certain(Bgp(spine))
        seeds = tuple(seed for seed in leaf.seeds if seed in variables)
        joined = leaf.joined
        # An OPTIONAL within an OPTIONAL: the patterns around lead to variables of the result.
        if not seeds and around:
            joined, seeds = True, tuple(sorted(shown & variables))
        yield Leaf(leaf.patterns, seeds, shown, around, joined)


def _spine(node: Node) -> tuple[Pattern, ...]:
    """Patterns that match in each solution of a node, and whose variables it shows."""
    match node:
        case Bgp(patterns):
            return patterns
        case Join(left, right):
            return (*_spine(left), *_spine(right))
        case LeftJoin(inner) | Minus(inner) | Filter(inner) | Extend(inner):
            return _spine(inner)
    return ()


def _exists_leaves(expression: Expression, variables: frozenset[Variable], beside: Node) -> Iterator[Leaf]:
    for exists in expression.exists:
        yield from _restrict(leaves(exists.node), variables, beside, hides=True)
