"""Variables in two places of a tree that SPARQL does not connect, but the store may."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any, NamedTuple

from lamplighter.engine.sparql.algebra import (
    Expression,
    Extend,
    Filter,
    Graph,
    LeftJoin,
    OpaquePath,
    Pattern,
    Values,
    Variable,
    visible,
    walk,
)


class ScopeFault(NamedTuple):
    """reason: what is wrong with the tree; variable: one variable that it is about."""

    reason: str
    variable: Variable


def scope_fault(tree: Any, around: frozenset[Variable] = frozenset()) -> ScopeFault | None:
    """The first variable that is used across scopes, None for a tree without one.

    around: variables that are known everywhere in the tree. EXISTS is not looked into.
    These are an OPTIONAL that is not well-designed (a variable of its right side occurs outside of it, but not in its
    left side) and an expression with a variable of another group. The name of a GRAPH is known inside of it.
    """
    return _fault(tree, occurrences(tree), around)


def _fault(node: Any, everywhere: Counter[Variable], around: frozenset[Variable]) -> ScopeFault | None:
    match node:
        case LeftJoin(left, right, condition):
            inside = occurrences(node)
            apart = set(occurrences(right)) - set(occurrences(left)) - around
            for variable in sorted(apart):
                if everywhere[variable] > inside[variable]:
                    return ScopeFault("an OPTIONAL that is not well-designed", variable)
            for expression in condition:
                fault = _of_expression(expression, visible(left) | visible(right) | around, everywhere)
                if fault is not None:
                    return fault
        case Filter(inner, expression) | Extend(inner, _, expression):
            fault = _of_expression(expression, visible(inner) | around, everywhere)
            if fault is not None:
                return fault
        case Graph(name, _) if isinstance(name, Variable):
            around |= {name}
    if hasattr(node, "__dataclass_fields__") and not isinstance(node, Expression):
        for member in fields(node):
            fault = _fault(getattr(node, member.name), everywhere, around)
            if fault is not None:
                return fault
    return None


def _of_expression(
    expression: Expression, seen: frozenset[Variable], everywhere: Counter[Variable]
) -> ScopeFault | None:
    for variable in expression.variables:
        if variable not in seen and everywhere[variable]:
            return ScopeFault("an expression with a variable of another group", variable)
    return None


def occurrences(tree: Any) -> Counter[Variable]:
    """The number of patterns, paths, VALUES blocks, assignments and GRAPHs in which each variable occurs."""
    found: Counter[Variable] = Counter()
    for node in walk(tree):
        match node:
            case Pattern():
                found.update({part for part in node if isinstance(part, Variable)})
            case OpaquePath(s, _, o, graph):
                found.update({part for part in (s, o, graph) if isinstance(part, Variable)})
            case Values(variables, _):
                found.update(variables)
            case Extend(_, variable, _):
                found[variable] += 1
            case Graph(name, _) if isinstance(name, Variable):
                found[name] += 1
    return found
