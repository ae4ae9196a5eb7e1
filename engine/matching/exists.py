"""EXISTS: where joining with its pattern gives what substitution gives.

SPARQL 1.1 Query, 18.6, substitutes the values of the solution around EXISTS into its pattern. A plan joins with the
pattern instead. The two differ where a value changes what a part of the pattern does, and not only which of its
solutions agree: the right side of an OPTIONAL may find nothing with this value, and something with another one.
"""

from __future__ import annotations

from typing import Any

from lamplighter.engine.sparql.algebra import (
    Exists,
    Expression,
    Extend,
    Filter,
    Group,
    LeftJoin,
    Minus,
    Node,
    Project,
    Variable,
    certain,
    visible,
    walk,
)
from lamplighter.engine.sparql.scopes import occurrences, scope_fault


def why_not_joined(pattern: Node, tree: Node) -> str | None:
    """Why a plan cannot join with the pattern of an EXISTS in a tree; None if it can."""
    outside = frozenset(occurrences(tree) - occurrences(pattern))
    fault = scope_fault(pattern, outside)
    if fault is not None:
        return f"EXISTS with {fault.reason} in it"
    reasons = (_reason(part, outside) for part in walk(pattern))
    return next((reason for reason in reasons if reason is not None), None)


def _reason(part: Any, outside: frozenset[Variable]) -> str | None:
    if isinstance(part, (Filter, Extend, LeftJoin)) and _open(part) & outside:
        return "EXISTS with an expression of a variable that it may leave unbound, and that is known around it"
    match part:
        case LeftJoin(left, right, _):
            if not _shared_variables(right, outside) <= certain(left):
                return "EXISTS with an OPTIONAL that has a variable in common with what is around the EXISTS"
        case Minus(left, right):
            both = certain(left) & certain(right)
            if not both or not (_shared_variables(right, outside) | (_used_variables(right) & outside)) <= both:
                return "EXISTS with a MINUS that has a variable in common with what is around the EXISTS"
        case Extend(_, variable, _):
            if variable in outside:
                return "EXISTS that assigns a variable of what is around it"
        case Project(inner, variables):
            if not set(variables) <= visible(inner) or any(isinstance(node, Exists) for node in walk(inner)):
                return "EXISTS with a sub-select that has an EXISTS, or an unbound column"
        case Group():
            return "EXISTS with a grouping in it"
    return None


def _open(node: Filter | Extend | LeftJoin) -> frozenset[Variable]:
    """The variables of a node's expressions that are bound in some, but not all of the solutions that these see."""
    match node:
        case LeftJoin(left, right, expressions):
            parts: tuple[Node, ...] = (left, right)
        case Filter(inner, expression) | Extend(inner, _, expression):
            parts, expressions = (inner,), (expression,)
    sure = frozenset[Variable]().union(*map(certain, parts))
    seen = frozenset[Variable]().union(*map(visible, parts))
    used = {
        variable for expression in expressions for variable in (*occurrences(expression), *_used_variables(expression))
    }
    return (seen - sure) & used


def _used_variables(node: Any) -> frozenset[Variable]:
    """The variables of expressions in it, those within EXISTS of these too."""
    return frozenset(variable for part in walk(node) if isinstance(part, Expression) for variable in part.variables)


def _shared_variables(node: Node, outside: frozenset[Variable]) -> frozenset[Variable]:
    return outside & frozenset(occurrences(node))
