"""Comparisons with the clock as triple patterns, so that every kind of plan follows them.

::

    ?door :openSince ?t FILTER(gateway:now() - ?t >= ?limit)   ─▶   ?door :openSince ?t . ?t "clock 7" ?limit

The quads of the predicate ``"clock 7"`` are the operands for which the comparison holds at the engine's instant. They
are in tables of their own, beside the CTS's (`Cts.virtual`), where no pattern with a variable predicate sees them.
`engine.matching.clock_index` adds and removes them; a step of the clock is a delta of such quads. A term of a dataset
never equals the predicate, which is neither an IRI nor in N-Triples syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.matching.analysis import EXPRESSION_MAX
from lamplighter.engine.matching.costs import only_known_functions
from lamplighter.engine.matching.expressions import operands
from lamplighter.engine.matching.reachability import PathPredicate
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Distinct,
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
    Pattern,
    Project,
    Select,
    Union,
    Values,
    Variable,
    certain,
    takes_apart,
    walk,
)
from lamplighter.engine.sparql.clock_conditions import (
    ELSEWHERE,
    NOW,
    ClockCondition,
    ClockRefusal,
    NameOf,
    clock_calls,
    conjuncts,
    name_of_part,
    read_condition,
)
from lamplighter.engine.sparql.clock_function import calls
from lamplighter.engine.sparql.cursor import constant_spans
from lamplighter.engine.sparql.lexer import Token, line_and_column
from lamplighter.engine.terms import Term

# Operands of one comparison with the clock: the positions of a quad besides the predicate.
OPERANDS_MAX = 3
# Patterns that the operands of a comparison are looked for with. Fewer patterns find too many, which is right too.
SOURCE_PATTERNS_MAX = 8
_ASSIGNED_MAX = 8
_VARIABLES = ("variable", "blank")
_RENAMED = re.compile(r"\?v([0-9]+)\b")
# The object of a pattern with one operand.
_ALONE = "holds"


@dataclass(frozen=True)
class ClockPattern:
    """A comparison with the clock in a tree. operands: its variables and constants; call: the function's token."""

    predicate: Term
    condition: ClockCondition
    operands: tuple[Any, ...]
    call: Any

    @property
    def pattern(self) -> Pattern:
        subject, object_, graph = clock_quad(self.operands)
        return Pattern(subject, self.predicate, object_, graph)


def clock_quad(operands: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Subject, object and graph of the quad or pattern for some operands."""
    if len(operands) == 1:
        return operands[0], _ALONE, None
    return operands[0], operands[1], operands[2] if len(operands) == 3 else None


def with_clock_patterns(tree: Any, predicates: Iterator[Term]) -> tuple[Any, tuple[ClockPattern, ...]]:
    """The tree with a pattern in place of each comparison with the clock, and these patterns.

    tree: with the names of functions in it; predicates: a new one for each comparison. Raises ClockRefusal.
    """
    rewriting = _Rewriting(name_of_part, predicates)
    found = rewriting.tree(tree)
    return found, tuple(rewriting.found)


class _Rewriting:
    """One pass over a tree. found: the patterns in place of comparisons; fixed: numbers of the constants of comparisons
    with more operands than a quad has room for. They must not be lifted, so that they are no operands.
    """

    def __init__(self, name_of: NameOf, predicates: Iterator[Term]) -> None:
        self._name_of = name_of
        self._predicates = predicates
        self.found: list[ClockPattern] = []
        self.fixed: set[int] = set()

    def tree(self, node: Any) -> Any:
        if isinstance(node, tuple) and not isinstance(node, (Variable, Constant, Pattern, Function)):
            return tuple(self.tree(member) for member in node)
        if not hasattr(node, "__dataclass_fields__"):
            return node
        node = replace(node, **{field.name: self.tree(getattr(node, field.name)) for field in fields(node)})
        match node:
            case Filter(inner, condition) if clock_calls(condition, self._name_of):
                for parts in conjuncts(condition.parts):
                    expression = Expression(parts)
                    if clock_calls(expression, self._name_of):
                        inner = self._place_clock_call(inner, expression)
                    else:
                        inner = Filter(inner, expression)
                return inner
            case LeftJoin(left, right, conditions) if any(clock_calls(it, self._name_of) for it in conditions):
                rest = []
                for parts in (parts for condition in conditions for parts in conjuncts(condition.parts)):
                    expression = Expression(parts)
                    if clock_calls(expression, self._name_of):
                        right = self._place_clock_call(right, expression)
                    else:
                        rest.append(expression)
                return LeftJoin(left, right, tuple(rest))
        return node

    def _place_clock_call(self, node: Node, expression: Expression) -> Node:
        call = clock_calls(expression, self._name_of)[0]
        condition = read_condition(_with_assigned(expression.parts, node), self._name_of)
        found = tuple(part for part in operands(Expression(condition.parts)) if part != NOW)
        for variable in found:
            if isinstance(variable, Variable) and variable not in certain(node):
                raise ClockRefusal(
                    f"?{variable.name} is compared with the clock, but not bound in each row there; write the FILTER "
                    "beside the patterns that bind it, and repeat these in an OPTIONAL or EXISTS",
                    call,
                )
        if len(found) > OPERANDS_MAX:
            self.fixed |= {part.number for part in found if isinstance(part, Constant)}
            found = tuple(part for part in found if isinstance(part, Variable))
        if len(found) > OPERANDS_MAX:
            raise ClockRefusal(
                f"a comparison with the clock has at most {OPERANDS_MAX} variables; let the update write their sum",
                call,
            )
        rest = [part for part in condition.parts if part != NOW]
        if len(condition.parts) > EXPRESSION_MAX or not only_known_functions(rest):
            raise ClockRefusal(
                f"a comparison with the clock has at most {EXPRESSION_MAX} tokens, and SPARQL's own functions only",
                call,
            )
        if not found:
            raise ClockRefusal("the clock is compared with nothing of the dataset; compare it with a variable", call)
        clock_pattern = ClockPattern(next(self._predicates), condition, found, call)
        self.found.append(clock_pattern)
        variables = frozenset(part for part in found if isinstance(part, Variable))
        return _with_pattern(node, clock_pattern.pattern, variables)


def _with_assigned(parts: tuple[Any, ...], node: Node) -> tuple[Any, ...]:
    """The tokens with the expressions of BIND in place of the variables that it assigns."""
    assigned = _assignments(node)
    for _ in range(_ASSIGNED_MAX):
        if not any(part in assigned for part in parts if isinstance(part, Variable)):
            break
        parts = tuple(
            token
            for part in parts
            for token in (("(", *assigned[part], ")") if isinstance(part, Variable) and part in assigned else (part,))
        )
    return parts


def _assignments(node: Node) -> Mapping[Variable, tuple[Any, ...]]:
    match node:
        case Extend(inner, variable, expression) if not expression.exists:
            return {variable: expression.parts, **_assignments(inner)}
        case Extend(inner, _, _) | Filter(inner, _) | LeftJoin(inner, _, _) | Minus(inner, _):
            return _assignments(inner)
        case Join(left, right):
            return {**_assignments(left), **_assignments(right)}
    return {}


def _with_pattern(node: Node, pattern: Pattern, variables: frozenset[Variable]) -> Node:
    """The join of a node with a pattern, whose variables are certain in the node, as deep in it as possible."""

    def inside(inner: Node) -> Node:
        return _with_pattern(inner, pattern, variables)

    match node:
        case Bgp(patterns):
            return Bgp((*patterns, pattern))
        case Join(left, right) if variables <= certain(left):
            return Join(inside(left), right)
        case Join(left, right) if variables <= certain(right):
            return Join(left, inside(right))
        case LeftJoin(left, right, condition) if variables <= certain(left):
            return LeftJoin(inside(left), right, condition)
        case Minus(left, right) if variables <= certain(left):
            return Minus(inside(left), right)
        case Filter(inner, condition):
            return Filter(inside(inner), condition)
        case Extend(inner, variable, expression) if variables <= certain(inner):
            return Extend(inside(inner), variable, expression)
        case Union(left, right):
            return Union(inside(left), inside(right))
        case Group(inner, keys, aggregates) if keys and variables <= certain(inner):
            return Group(inside(inner), keys, aggregates)
        case Project(inner, shown):
            return Project(inside(inner), shown)
        case Distinct(inner):
            return Distinct(inside(inner))
    return Join(node, Bgp((pattern,)))


# --- where the operands come from ---


def sources(tree: Any, clock_pattern: ClockPattern) -> list[Node]:
    """Joins of patterns and VALUES whose solutions have all operands that the pattern is joined with, or more.

    One for each place of the pattern in the tree. Raises ClockRefusal if a place binds the operands in another way.
    """
    wanted = frozenset(part for part in clock_pattern.operands if isinstance(part, Variable))
    found = []
    for parts in _places(tree, clock_pattern.predicate, ()):
        patterns = tuple(dict.fromkeys(part for part in parts if isinstance(part, Pattern)))
        if len(patterns) > SOURCE_PATTERNS_MAX:
            patterns = tuple(pattern for pattern in patterns if wanted & set(pattern) and not takes_apart(pattern))
        source: Node = Bgp(patterns)
        for part in parts:
            if isinstance(part, Values):
                source = Join(source, part)
        missing = wanted - certain(source)
        if missing or len(patterns) > SOURCE_PATTERNS_MAX:
            names = ", ".join(f"?{variable.name}" for variable in sorted(missing or wanted))
            raise ClockRefusal(
                f"{names} is compared with the clock, and not bound by a triple pattern or VALUES of the same group; "
                "write the FILTER beside the pattern that binds it"
            )
        found.append(source)
    return found


def _places(node: Any, predicate: Term, around: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """For each place of a clock pattern, the patterns and VALUES that its solutions are joined with."""

    def has(inner: Any) -> bool:
        return any(isinstance(part, Pattern) and part.p == predicate for part in walk(inner))

    match node:
        case Bgp():
            if has(node):
                yield (*_required_parts(node), *around)
        case Join(left, right):
            if has(left):
                yield from _places(left, predicate, (*_required_parts(right), *around))
            if has(right):
                yield from _places(right, predicate, (*_required_parts(left), *around))
        case LeftJoin(left, right, condition):
            yield from _places(left, predicate, around)
            yield from _places((right, condition), predicate, ())
        case Minus(left, right):
            yield from _places(left, predicate, around)
            yield from _places(right, predicate, ())
        case Filter(inner, expression) | Extend(inner, _, expression):
            yield from _places(inner, predicate, around)
            yield from _places(expression, predicate, ())
        case Union(left, right):
            yield from _places(left, predicate, around)
            yield from _places(right, predicate, around)
        case Expression():
            for exists in node.exists:
                yield from _places(exists.node, predicate, ())
        case Variable() | Constant() | Pattern() | Function():
            return
        case tuple():
            for member in node:
                yield from _places(member, predicate, ())
        case _ if hasattr(node, "__dataclass_fields__"):
            for field in fields(node):
                yield from _places(getattr(node, field.name), predicate, ())


def _required_parts(node: Node) -> tuple[Any, ...]:
    """Patterns and VALUES that each solution of a node has a part in, besides those of the clock and paths."""
    match node:
        case Bgp(patterns):
            return tuple(
                pattern
                for pattern in patterns
                if not is_clock_predicate(pattern.p) and not isinstance(pattern.p, PathPredicate)
            )
        case Values():
            return (node,)
        case Join(left, right):
            return (*_required_parts(left), *_required_parts(right))
        case LeftJoin(left, _, _) | Minus(left, _) | Filter(left, _) | Extend(left, _, _) | Graph(_, left):
            return _required_parts(left)
    return ()


def check_clock_calls(
    text: str, prologue: str, body: Sequence[Token], select: Select | None, terms: Sequence[Term]
) -> set[int] | None:
    """Checks that a subscribed query compares the clock in its FILTERs, and does nothing else with it.

    body: the tokens after the declarations, without clock columns; select: their tree, with variables renamed in the
    order of their first occurrence; terms: their constants. Returns the numbers of the constants that must not be
    lifted, None if the query does not call the clock. Raises UnsupportedRequestError with place, reason and cure.
    """
    found = calls(prologue, body)
    if not found:
        return None
    positions = {number: start for number, (start, _) in enumerate(constant_spans(body)) if start in found}

    def name_of(part: Any) -> Term | None:
        return terms[part.number] if isinstance(part, Function) else None

    names = list(dict.fromkeys(token.text[token.kind == "variable" :] for token in body if token.kind in _VARIABLES))

    def error(reason: str, number: int) -> UnsupportedRequestError:
        line, column = line_and_column(text, body[positions[number]].start)
        reason = _RENAMED.sub(lambda variable: f"?{names[int(variable[1])]}", reason)
        return UnsupportedRequestError(f"line {line}, column {column}: {reason}")

    first = min(positions)
    if select is None:
        raise error("syntax that only the store knows stands beside the clock; leave one of them out", first)
    rewriting = _Rewriting(name_of, (f"clock {number}" for number in positions))
    try:
        tree = rewriting.tree(select.node)
        for clock_pattern in rewriting.found:
            sources(tree, clock_pattern)
    except ClockRefusal as refusal:
        raise error(str(refusal), first if refusal.call is None else refusal.call.number) from refusal
    compared = {clock_pattern.call.number for clock_pattern in rewriting.found}
    for number in positions:
        if number not in compared:
            raise error(ELSEWHERE, number)
    return rewriting.fixed


def is_clock_predicate(part: Any) -> bool:
    """Whether a part of a pattern is the predicate of a clock pattern."""
    return isinstance(part, str) and part.startswith("clock ")
