"""Regular expressions of rules, restricted so that no text makes a match slow.

Topics and payloads are hostile, and rules can come from clients. Python's `re` backtracks, so an expression is accepted
only if a bound of its steps on a text of `EXPRESSION_TEXT_CHARS_MAX` characters is small. The bound multiplies the
choices of all repetitions that can vary with the work of what follows them; alternatives add up. Repetitions without a
limit share the text: k of them have n**k/k! ways to divide n characters.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

EXPRESSION_CHARS_MAX = 200
EXPRESSION_TEXT_CHARS_MAX = 256
STEPS_MAX = 16_000_000
"""0.2 s, as the slowest expressions that a search at random finds; usual ones take 1 ms and less."""
_ENDLESS = 1_000 * STEPS_MAX
_VARYING_MAX = 4
"""Repetitions of what can match in several ways."""
_PLAIN_AT_ONCE = 16
"""Characters that `re` compares with a class in about the time of a step."""

_QUANTIFIER = re.compile(r"[*+?]|\{(?P<low>[0-9]{1,3})(?P<comma>,(?P<high>[0-9]{1,3})?)?\}")
_ESCAPE = re.compile(r"\\(?:[dDwWsSbB]|[^A-Za-z0-9])")
_CLASS = re.compile(r"\[\^?\]?(?:\\(?:[dDwWsS]|[^A-Za-z0-9])|[^\]\\\[])*\]")
_SET_OPERATION = re.compile(r"--|&&|~~|\|\|")
"""Python warns of these in a class: they may get another meaning."""
_GROUP = re.compile(r"\((?:\?:|\?P<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>)?")
_DEPTH_MAX = 10


def compile_expression(text: str, *, search: bool) -> re.Pattern[str]:
    """The expression, for texts of at most `EXPRESSION_TEXT_CHARS_MAX` characters.

    It may have characters, classes, groups, alternatives and quantifiers, but no look-around, back-reference or flag.
    search: it is searched for in a text, which repeats the match at each place. Raises ValueError.
    """
    if not 0 < len(text) <= EXPRESSION_CHARS_MAX:
        raise ValueError(f"write a regular expression of 1 to {EXPRESSION_CHARS_MAX} characters")
    if steps(text, search=search) > STEPS_MAX:
        raise ValueError(
            "it can take too many steps on some texts; use fewer repetitions (* + ? {m,n}), and none nested"
        )
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error.msg}") from error


def steps(text: str, *, search: bool) -> int:
    """Bound of the steps of an expression on a text. Raises ValueError."""
    found, end = _alternatives(text, 0, 0)
    if end < len(text):
        raise ValueError("a ')' has no '('")
    if search:
        return found.work * EXPRESSION_TEXT_CHARS_MAX // math.factorial(found.free + 1)
    return (found.work + found.choices) // math.factorial(found.free)  # each way has to reach the end of the text


class _Bound(NamedTuple):
    """choices: ways to match; work: steps to try all; free: repetitions without a limit in each of the ways; plain: one
    character or class, which `re` repeats fast."""

    choices: int
    work: int
    free: int = 0
    plain: bool = False


_ONE = _Bound(1, 1, plain=True)


def _alternatives(text: str, at: int, depth: int) -> tuple[_Bound, int]:
    """Bound of the alternatives from a place on, and the place behind them."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"its groups are nested deeper than {_DEPTH_MAX}")
    found: list[_Bound] = []
    choices, work, free = 1, 0, 0
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            found.append(_Bound(choices, work, free))
            choices, work, free, at = 1, 0, 0, at + 1
            continue
        own, at = _item(text, at, depth)
        quantifier = _QUANTIFIER.match(text, at)
        if quantifier:
            own = _quantified_bound(own, quantifier)
            at = quantifier.end()
            if text[at : at + 1] in ("?", "+"):  # lazy and possessive quantifiers take no more steps
                at += 1
        work = min(work + choices * own.work, _ENDLESS)
        choices = min(choices * own.choices, _ENDLESS)
        free += own.free
    found.append(_Bound(choices, work, free))
    ways, effort = sum(one.choices for one in found), sum(one.work for one in found)
    return _Bound(min(ways, _ENDLESS), max(1, min(effort, _ENDLESS)), min(one.free for one in found)), at


def _item(text: str, at: int, depth: int) -> tuple[_Bound, int]:
    sign = text[at]
    if sign == "(":
        group = _GROUP.match(text, at)
        if group is None or text[group.end() : group.end() + 1] == "?":
            raise ValueError("groups are (...), (?:...) or (?P<name>...)")
        own, at = _alternatives(text, group.end(), depth + 1)
        if at >= len(text):
            raise ValueError("a '(' has no ')'")
        return own, at + 1
    pattern = {"[": _CLASS, "\\": _ESCAPE}.get(sign)
    if pattern is None:
        if sign in "*+?{":
            raise ValueError(f"{sign!r} has nothing to repeat; write \\{sign} for the character")
        return _ONE, at + 1
    found = pattern.match(text, at)
    if found is None or _SET_OPERATION.search(found.group()):
        raise ValueError(f"character {at + 1}: a class or an escape that is not supported")
    return _ONE, found.end()


def _quantified_bound(own: _Bound, quantifier: re.Match[str]) -> _Bound:
    """Bound of an item with its quantifier: the item may end after each repetition, and starts again in each."""
    endless = False
    if quantifier["low"] is not None:
        low = int(quantifier["low"])
        endless = quantifier["comma"] is not None and not quantifier["high"]
        high = low if quantifier["comma"] is None else int(quantifier["high"] or max(low, EXPRESSION_TEXT_CHARS_MAX))
    else:
        endless = quantifier.group() != "?"
        low, high = {"*": (0, EXPRESSION_TEXT_CHARS_MAX), "+": (1, EXPRESSION_TEXT_CHARS_MAX), "?": (0, 1)}[
            quantifier.group()
        ]
    if own.choices == 1:
        # An item may match nothing, so the text does not limit how often a group is repeated.
        work = 1 + high // _PLAIN_AT_ONCE if own.plain else 1 + high * own.work
        return _Bound(max(1, high - low + 1), min(work, _ENDLESS), int(endless))
    if high > _VARYING_MAX:
        return _Bound(_ENDLESS, _ENDLESS)
    choices = sum(own.choices**count for count in range(high + 1))
    work = sum(own.choices**count for count in range(high)) * own.work + 1
    return _Bound(min(choices, _ENDLESS), min(work, _ENDLESS), own.free if high == 1 else 0)
