"""Regular expressions: those that Python applies take bounded time, and mean what the store's mean."""

from __future__ import annotations

import random
import secrets

import pyoxigraph as ox
import pytest

from lamplighter.engine.shacl.patterns import is_pattern, matching, ways
from lamplighter.engine.terms import literal
from lamplighter.engine.work import Meter, TooMuchWork, Work
from tests.support.tables import each_row

BOUNDED = [
    "(Z|[+-][0-9]{2}:[0-9]{2})$",
    "^(coap://[^#]+|[^+#]+)$",
    "^[0-9]+/[0-9]+$",
    "^[0-9a-f]{16}$",
    "^[{]",
    r"^a\.b?c{2,3}$",
    "x",
    "",
]
UNBOUNDED = [
    *("(a+)+", "(a*)*", "a*a*a*", "(a|a)*", "(a?){30}", "a?" * 30),
    *(r"(a)\1", "(?=a)", "a|^b", r"\d+", "a+?", "ä", "[a&&b]"),
]


@each_row("pattern", BOUNDED)
def test_patterns_of_bounded_time_are_recognised(pattern: str) -> None:
    assert ways(pattern) is not None
    assert is_pattern(pattern, "")


@each_row("pattern", UNBOUNDED)
def test_all_others_are_left_to_the_store(pattern: str) -> None:
    assert ways(pattern) is None


def by_store(text: str, pattern: str) -> bool | None:
    query = f"SELECT (REGEX({literal(text)}, {literal(pattern)}) AS ?v) {{}}"
    solutions = ox.Store().query(query)
    assert isinstance(solutions, ox.QuerySolutions)
    value = next(iter(solutions))["v"]
    return None if value is None else str(value.value) == "true"


def test_a_bounded_pattern_matches_as_the_store_matches() -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    parts = [*"ab|^$.", "[ab]", "[^a]", "(a|b)", "(ab|c)", "a{2}", "b{1,2}", "a*", "b+", "c?", r"\."]
    tried = 0
    while tried < 200:
        pattern = "".join(chance.choices(parts, k=chance.randint(1, 5)))
        text = "".join(chance.choices("abc.\nä", k=chance.randint(0, 6)))
        if ways(pattern) is not None and is_pattern(pattern, ""):
            tried += 1
            found = matching(pattern, "", Meter(Work()))(literal(text))
            assert found == by_store(text, pattern), f"{pattern!r} {text!r}, seed {seed}"


def units(pattern: str, text: str) -> int:
    """The work that a match counts."""
    meter = Meter(Work())
    meter.left = before = 10**9
    matching(pattern, "", meter)(literal(text))
    return before - meter.left


def test_a_match_counts_the_ways_through_the_text_as_work() -> None:
    assert units("^[0-9]+/[0-9]+$", "12/100") <= 2
    assert units("a*b", "a" * 16) * 200 < units("a*b", "a" * 256) < units("^a*a*a?b", "a" * 256)
    assert units("a?a?a?a?a*aaaaab", "a" * 256) > 30_000, "more ways, up to 4,000,000"
    assert units("^a|b", "a" * 256) == units("a|b", "a" * 256), "the caret belongs to the first branch"
    work = Work(1)
    with pytest.raises(TooMuchWork):
        for _ in range(3):
            matching("a?a?a?a?a*aaaaab", "", Meter(work))(literal("a" * 256))


def test_the_store_counts_as_work() -> None:
    matches = matching("(a+)+$", "", Meter(Work(1)))
    assert matches(literal("aaa"))
    assert not matches(literal("a" * 10_000 + "b"))
    with pytest.raises(TooMuchWork):
        for number in range(100_000):
            matches(literal(f"b{number}"))


def test_flags_and_other_terms() -> None:
    assert matching("A", "i", Meter(Work()))(literal("a"))
    assert matching("^http", "", Meter(Work()))("<http://e/>")
    assert not matching("", "", Meter(Work()))("_:b")
