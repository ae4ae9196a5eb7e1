"""sh:pattern: regular expressions whose time is bounded.

The store's expressions take linear time, but a call takes 140 us. Python's take 1 us, and without limit if many ways
lead through a text. So an expression runs in Python only if its form bounds the number of ways, and the text is short.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import pyoxigraph as ox

from lamplighter.engine.terms import Term, is_blank, lexical, literal
from lamplighter.engine.work import CHARACTERS_PER_UNIT, EVALUATION, Meter

_EMPTY = ox.Store()
# Characters of the longest text that Python's expressions are applied to.
_SHORT = 256
# Ways through a text of that length.
_WAYS_MAX = 4_000_000
# Ways that Python tries in a unit of work; 0.03 us for each unit were measured, on the worst texts.
_WAYS_PER_UNIT = 32
_EVALUATION = 3 * EVALUATION
_MEMO = 4096

# A part of the expressions that mean the same in both. A caret is allowed at the beginning only.
_TOKEN = re.compile(
    r"""(?P<class>\[\^?(?:[A-Za-z0-9 _:/.,;=@\#%+*?(){}|$<>!-]|\\[\\.^$|?*+(){}\[\]/-])+\])
      | (?P<open>\((?:\?:)?)
      | (?P<close>\))
      | (?P<or>\|)
      | (?P<many>[*+]|\{\d+,\})
      | (?P<optional>\?|\{(?P<least>\d{1,2})(?:,(?P<most>\d{1,2}))?\})
      | (?P<one>[\w :/,;=@\#%&<>!~"'.-]|\\[\\.^$|?*+(){}\[\]/-])
      | (?P<end>\$)""",
    re.X | re.ASCII,
)


class Ways(NamedTuple):
    """How many ways lead through a text: choices times its length to the power of repeats."""

    choices: int
    repeats: int

    def through(self, characters: int) -> int:
        return self.choices * int(characters**self.repeats)


def ways(pattern: str) -> Ways | None:
    """A bound on the ways that Python tries; None where it may take long, or find another result than the store."""
    anchored = pattern.startswith("^")
    place, choices, repeats, before = int(anchored), 1, int(not anchored), "or"
    while place < len(pattern):
        found = _TOKEN.match(pattern, place)
        if found is None:
            return None
        kind, place = str(found.lastgroup), found.end()
        kind = "optional" if kind in ("least", "most") else kind
        if kind == "class" and ("--" in found[0] or "&&" in found[0] or "~~" in found[0]):
            return None
        if kind == "many":
            if before not in ("one", "class"):
                return None
            repeats += 1
        elif kind == "optional":
            if before not in ("one", "class", "close") or (before == "close" and found[0] != "?"):
                return None
            least, most = (0, 1) if found[0] == "?" else (int(found["least"]), int(found["most"] or found["least"]))
            choices *= max(1, most - least + 1)
        elif kind == "or":
            choices *= 2
            if anchored and _at_top(pattern[: found.start()]):
                repeats += 1  # the caret belongs to the first branch
                anchored = False
        if Ways(choices, repeats).through(_SHORT) > _WAYS_MAX:
            return None
        before = kind
    return Ways(choices, repeats)


def _at_top(text: str) -> bool:
    bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "", text)
    return bare.count("(") == bare.count(")")


def is_pattern(pattern: str, flags: str) -> bool:
    """Whether the store accepts an expression."""
    return _by_store("", pattern, flags) is not None


def matching(pattern: str, flags: str, meter: Meter) -> Callable[[Term], bool]:
    """A function that tells whether a term's text matches, as REGEX does. It raises TooMuchWork."""
    search, units = None, []
    tried = None if flags else ways(pattern)
    if tried is not None:
        with suppress(re.error):
            search = re.compile(pattern, re.ASCII).search
        units = [tried.through(length + 1) // _WAYS_PER_UNIT for length in range(_SHORT + 1)]

    def matches(term: Term) -> bool:
        if is_blank(term):
            return False
        text = term[1:-1] if term[-1] == '"' and "\\" not in term else lexical(term)
        if search is not None and len(text) <= _SHORT and not text.endswith("\n"):
            meter.take(units[len(text)])
            return search(text) is not None
        meter.take(_EVALUATION + len(text) // CHARACTERS_PER_UNIT)
        return bool((_remembered if len(text) <= _SHORT else _by_store)(text, pattern, flags))

    return matches


def _by_store(text: str, pattern: str, flags: str) -> bool | None:
    """Whether a text matches, None for an expression that is none."""
    solutions = _EMPTY.query(f"SELECT (REGEX({literal(text)}, {literal(pattern)}, {literal(flags)}) AS ?value) {{}}")
    assert isinstance(solutions, ox.QuerySolutions)
    value = next(iter(solutions))["value"]
    return None if value is None else getattr(value, "value", "") == "true"


_remembered = lru_cache(maxsize=_MEMO)(_by_store)
