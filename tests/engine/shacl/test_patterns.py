"""Regular expressions: those that Python applies take bounded time, and mean what the store's mean."""

from __future__ import annotations

import random
import secrets
from time import perf_counter

import pyoxigraph as ox
import pytest

from lamplighter.engine.shacl.patterns import bounded, is_pattern, matching
from lamplighter.engine.terms import literal
from lamplighter.engine.work import Meter, TooMuchWork, Work

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


@pytest.mark.parametrize("pattern", BOUNDED)
def test_patterns_of_bounded_time_are_recognised(pattern: str) -> None:
    assert bounded(pattern)
    assert is_pattern(pattern, "")


@pytest.mark.parametrize("pattern", UNBOUNDED)
def test_all_others_are_left_to_the_store(pattern: str) -> None:
    assert not bounded(pattern)


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
        if bounded(pattern) and is_pattern(pattern, ""):
            tried += 1
            found = matching(pattern, "", Meter(Work()))(literal(text))
            assert found == by_store(text, pattern), f"{pattern!r} {text!r}, seed {seed}"


def test_the_worst_text_for_a_bounded_pattern_takes_no_time_to_speak_of() -> None:
    """At most 4,000,000 ways; the limit leaves room for a slow machine."""
    for pattern in (*BOUNDED, "a*b", "^a*a*b", "a?a?a?a?a*aaaaab"):
        assert bounded(pattern)
        begun = perf_counter()
        matching(pattern, "", Meter(Work()))(literal("a" * 256))
        assert perf_counter() - begun < 5


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
