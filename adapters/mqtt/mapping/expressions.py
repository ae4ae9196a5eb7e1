"""Regular expressions of rules, restricted so that no text makes a match slow.

Topics and payloads are hostile, and rules can come from clients. Python's `re` backtracks, so an expression is accepted
only if a bound of its steps on a text of `EXPRESSION_TEXT_CHARS_MAX` characters is small. The bound multiplies the
choices of all repetitions that can vary; repetitions within repetitions multiply, alternatives add up.
"""

from __future__ import annotations

import re

EXPRESSION_CHARS_MAX = 200
EXPRESSION_TEXT_CHARS_MAX = 256
STEPS_MAX = 64_000_000
"""About a second on a slow processor. `[0-9]+(\\.[0-9]+)?` searched for in a text has half as many."""

_QUANTIFIER = re.compile(r"[*+?]|\{(?P<low>[0-9]{1,3})(?P<comma>,(?P<high>[0-9]{1,3})?)?\}")
_ESCAPE = re.compile(r"\\(?:[dDwWsSbB]|[^A-Za-z0-9])")
_CLASS = re.compile(r"\[\^?\]?(?:\\(?:[dDwWsS]|[^A-Za-z0-9])|[^\]\\\[])*\]")
_SET_OPERATION = re.compile(r"--|&&|~~|\|\|")
"""Python warns of these in a class: they may get another meaning."""
_GROUP = re.compile(r"\((?:\?:|\?P<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>)?")
_DEPTH_MAX = 10


def compiled(text: str, *, search: bool) -> re.Pattern[str]:
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
    return found * (EXPRESSION_TEXT_CHARS_MAX if search else 1)


def _alternatives(text: str, at: int, depth: int) -> tuple[int, int]:
    """Bound of the steps of the alternatives from a place on, and the place behind them."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"its groups are nested deeper than {_DEPTH_MAX}")
    total, steps = 0, 1
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            total, steps, at = total + steps, 1, at + 1
            continue
        own, at = _item(text, at, depth)
        steps *= _repeated(own, found := _QUANTIFIER.match(text, at))
        if found:
            at = found.end()
            if text[at : at + 1] in ("?", "+"):  # lazy and possessive quantifiers take no more steps
                at += 1
        steps = min(steps, STEPS_MAX + 1)
    return total + steps, at


def _item(text: str, at: int, depth: int) -> tuple[int, int]:
    sign = text[at]
    if sign == "(":
        group = _GROUP.match(text, at)
        if group is None or text[group.end() : group.end() + 1] == "?":
            raise ValueError("groups are (...), (?:...) or (?P<name>...)")
        steps, at = _alternatives(text, group.end(), depth + 1)
        if at >= len(text):
            raise ValueError("a '(' has no ')'")
        return steps, at + 1
    pattern = {"[": _CLASS, "\\": _ESCAPE}.get(sign)
    if pattern is None:
        if sign in "*+?{":
            raise ValueError(f"{sign!r} has nothing to repeat; write \\{sign} for the character")
        return 1, at + 1
    found = pattern.match(text, at)
    if found is None or _SET_OPERATION.search(found.group()):
        raise ValueError(f"character {at + 1}: a class or an escape that is not supported")
    return 1, found.end()


def _repeated(own: int, quantifier: re.Match[str] | None) -> int:
    """Bound of an item with its quantifier: the item may end after each repetition, and starts again in each."""
    if quantifier is None:
        return own
    if quantifier["low"] is not None:
        low = int(quantifier["low"])
        high = low if quantifier["comma"] is None else int(quantifier["high"] or EXPRESSION_TEXT_CHARS_MAX)
    else:
        low, high = {"*": (0, EXPRESSION_TEXT_CHARS_MAX), "+": (1, EXPRESSION_TEXT_CHARS_MAX), "?": (0, 1)}[
            quantifier.group()
        ]
    if own == 1:
        return max(1, high - low + 1)
    return (
        min(sum(own**count for count in range(1, min(high, 4) + 1)) + 1, STEPS_MAX + 1) if high <= 4 else STEPS_MAX + 1
    )
