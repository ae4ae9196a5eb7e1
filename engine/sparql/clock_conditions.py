"""Comparisons with the clock in the FILTER of a subscription: which are accepted, and why others are refused.

A comparison is accepted if its truth changes once as time goes by: the clock occurs once, it is only added to and
subtracted from, and the operator is ``<``, ``<=``, ``>`` or ``>=``. For given operands it then holds from one instant
on, or up to one instant. This is the rule of Materialize's temporal filters; each row has an interval, and nothing is
evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamplighter.engine.sparql.algebra import Exists, Expression, Variable, without_brackets
from lamplighter.engine.sparql.clock_function import CLOCKS
from lamplighter.engine.terms import Term

# Stands for the call in the tokens of a condition. No variable of a query has a name with spaces.
NOW = Variable("the clock")

ELSEWHERE = (
    "in a subscription, gateway:clock() and gateway:now() are compared by <, <=, > or >= in a FILTER, or "
    "gateway:clock() stands alone in the projection, as in SELECT ?x (gateway:clock() AS ?since); elsewhere let the "
    "update write the time and select that"
)
_ORDER = ("<", "<=", ">", ">=")
_EQUALITY = ("=", "!=")

# The IRI of a function among the tokens of an expression, None for another token.
NameOf = Callable[[Any], "Term | None"]


class ClockRefusal(Exception):
    """A use of the clock that cannot be followed. The message has the reason and the cure.

    call: the token of the function, if known.
    """

    def __init__(self, reason: str, call: Any = None) -> None:
        super().__init__(reason)
        self.call = call


@dataclass(frozen=True)
class ClockCondition:
    """A comparison with the clock.

    parts: its tokens, with `NOW` for the call; function: which clock function it calls; opens: whether it begins to
    hold as time goes by. Otherwise it ceases to.
    """

    parts: tuple[Any, ...]
    function: Term
    opens: bool


def name_of_part(part: Any) -> Term | None:
    """The `NameOf` of a tree whose functions are IRIs."""
    return part if isinstance(part, str) and part[:1] == "<" and len(part) > 2 else None


def clock_calls(expression: Expression, name_of: NameOf) -> list[Any]:
    """The clock functions that an expression calls, without those inside EXISTS."""
    return [part for part in expression.parts if name_of(part) in CLOCKS]


def conjuncts(parts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The conditions that an expression is the conjunction of."""
    inner = without_brackets(parts)
    cuts = [position for position in outside(inner) if inner[position] == "&&"]
    if not cuts or any(inner[position] == "||" for position in outside(inner)):
        yield tuple(parts)
        return
    for first, last in zip([-1, *cuts], [*cuts, len(inner)], strict=True):
        yield from conjuncts(inner[first + 1 : last])


def read_condition(parts: Sequence[Any], name_of: NameOf) -> ClockCondition:
    """The condition of a conjunct that calls a clock function. Raises ClockRefusal."""
    inner = without_brackets(parts)
    [call, *others] = [position for position, part in enumerate(inner) if name_of(part) in CLOCKS]
    token = inner[call]

    def refusal(reason: str) -> ClockRefusal:
        return ClockRefusal(reason, token)

    if others:
        raise refusal("a comparison names the clock once; bring it to one side, or write two comparisons with &&")
    signs = [inner[position] for position in outside(inner)]
    if any(isinstance(part, Exists) for part in inner):
        raise refusal("EXISTS stands in a comparison with the clock; write the two as separate FILTERs")
    if "||" in signs:
        raise refusal("the clock stands in a disjunction; write a UNION with a branch for each alternative")
    if signs[:1] == ["!"]:
        raise refusal("a comparison with the clock is negated; turn its operator round")
    found = [position for position in outside(inner) if inner[position] in (*_ORDER, *_EQUALITY)]
    if len(found) != 1 or inner[found[0]] in _EQUALITY:
        raise refusal(
            "the clock is not compared by <, <=, > or >=; an equality would hold for a microsecond, so compare with "
            "the two ends of an interval"
        )
    [sign] = found
    left, operator = call < sign, inner[sign]
    rising = _rises(inner[:sign] if left else inner[sign + 1 :], name_of, refusal)
    return ClockCondition(
        (*inner[:call], NOW, *inner[call + 3 :]),
        name_of(token) or "",
        (rising == left) == (operator in (">", ">=")),
    )


def _rises(side: Sequence[Any], name_of: NameOf, refusal: Callable[[str], ClockRefusal]) -> bool:
    """Whether an expression that the clock is a summand of grows with it. Raises ClockRefusal."""
    inner = without_brackets(side)
    if len(inner) == 3 and name_of(inner[0]) in CLOCKS:
        return True
    signs = binary_signs(inner)
    for first, last in zip([-1, *signs], [*signs, len(inner)], strict=True):
        summand = inner[first + 1 : last]
        if any(name_of(part) in CLOCKS for part in summand):
            if not signs:
                break
            return _rises(summand, name_of, refusal) == (first < 0 or inner[first] == "+")
    raise refusal(
        "the clock is only added to or subtracted from in a comparison; bring everything else to the other side, as in "
        "gateway:clock() < 1000000 * ?seconds"
    )


def binary_signs(parts: Sequence[Any]) -> list[int]:
    """The positions of the signs between summands."""
    return [
        position
        for position in outside(parts)
        if position and parts[position] in ("+", "-") and parts[position - 1] not in ("+", "-", "*", "/")
    ]


def outside(parts: Sequence[Any]) -> Iterator[int]:
    """The positions of the tokens outside of brackets."""
    depth = 0
    for position, part in enumerate(parts):
        depth += (part == "(") - (part == ")")
        if depth == 0:
            yield position
