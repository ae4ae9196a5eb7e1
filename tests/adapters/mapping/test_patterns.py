import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.mapping.expressions import EXPRESSION_TEXT_CHARS_MAX, compile_expression, steps
from lamplighter.adapters.mapping.patterns import TopicIndex, TopicPattern, covers, meet, minimal_filters
from tests.support.amounts import Amounts
from tests.support.tables import each_row


@each_row(
    ("pattern", "topic", "captures"),
    [
        ("a/{x}", "a/1", {"x": "1"}),
        ("a/#", "a", {}),
        ("a/#", "a/b/c", {}),
        ("a/#", "b", None),
        ("#", "a/b", {}),
        ("#", "$SYS/b", None),
        ("$SYS/#", "$SYS/b", {}),
        ("{a}/{rest#}", "x/y/z", {"a": "x", "rest": "y/z"}),
        ("{a}/{rest#}", "x", {"a": "x", "rest": ""}),
        ("{room:[a-z]+}/t", "kitchen/t", {"room": "kitchen"}),
        ("{room:[a-z]+}/t", "Kitchen/t", None),
        ("{d:shelly(?P<model>[a-z0-9]+)-(?P<mac>[0-9a-f]{6})}/s", "shellyplug-a1b2c3/s",
         {"d": "shellyplug-a1b2c3", "model": "plug", "mac": "a1b2c3"}),
        ("{x:.*}/t", "y" * (EXPRESSION_TEXT_CHARS_MAX + 1) + "/t", None),
    ],
)  # fmt: skip
def test_captures_of_a_topic(pattern: str, topic: str, captures: dict[str, str] | None) -> None:
    assert TopicPattern(pattern).captures(topic) == captures


@each_row(
    ("pattern", "filter_"),
    [("a/{x}/+", "a/+/+"), ("a/{x:[0-9]+}", "a/+"), ("a/{x#}", "a/#"), ("#", "#"), ("{x#}", "#"), ("a/b", "a/b")],
)
def test_filter_to_subscribe_to(pattern: str, filter_: str) -> None:
    assert TopicPattern(pattern).filter == filter_


@each_row("pattern", ["", "a/#/b", "a/{x#}/b", "a/b#", "a/{x}y", "{x}/{x}", "{x}/{y:(?P<x>a)}", "a/{x:(}"])
def test_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        TopicPattern(pattern)


@pytest.mark.parametrize("search", [False, True])
def test_a_least_number_alone_leaves_a_repetition_without_a_limit(search: bool) -> None:
    assert steps("a{0,}b{1,}c{0,}", search=search) == steps("a*b+c*", search=search)
    assert steps("a{9}b{9}c{9}", search=search) == steps("abc", search=search)


LEVELS = st.lists(st.sampled_from(["a", "b", "$c", "", "+", "#", "{x}"]), min_size=1, max_size=4)


@given(st.lists(LEVELS.map("/".join), max_size=8), st.lists(st.sampled_from("ab$+#/"), min_size=1, max_size=4))
def test_index_finds_what_each_pattern_matches(texts: list[str], levels: list[str]) -> None:
    patterns = []
    for text in texts:
        try:
            patterns.append(TopicPattern(text))
        except ValueError:
            continue
    topic = "/".join(levels).replace("//", "/")
    expected = [(captures, p.pattern) for p in patterns if (captures := p.captures(topic)) is not None]
    index = TopicIndex((p, p.pattern) for p in patterns)
    assert sorted(index.of(topic), key=repr) == sorted(expected, key=repr)
    for pattern in patterns[::2]:
        index.remove(pattern, pattern.pattern)
    expected = [(captures, p.pattern) for p in patterns[1::2] if (captures := p.captures(topic)) is not None]
    assert sorted(index.of(topic), key=repr) == sorted(expected, key=repr)
    for pattern in patterns[1::2]:
        index.remove(pattern, pattern.pattern)
    assert index._root == {}


@each_row(
    ("wide", "narrow", "expected"),
    [
        ("#", "a/b", True),
        ("#", "a/#", True),
        ("#", "$SYS/a", False),
        ("a/#", "a", True),
        ("a/#", "a/+", True),
        ("a/+", "a/#", False),
        ("+/+", "a/b", True),
        ("+/b", "$a/b", False),
        ("a/b", "a/+", False),
    ],
)
def test_filter_covers_another(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) == expected


def test_one_of_two_equal_filters_stays() -> None:
    assert minimal_filters(["a/+", "a/b", "a/+", "b/#", "b/c/+"]) == ["a/+", "b/#"]


@each_row(
    "text",
    [
        "(a+)+b",
        "(a|a)*b",
        "(a*)*",
        "a*b*c*d*e*f",
        "(?=a)",
        r"(a)\1",
        "(?i)a",
        "a{,9}",
        "[a",
        "a)",
        "(a",
        "*a",
        "",
        "a" * 300,
        "[a--b]",
        "(?:(?:(?:(?:a{0}){99}){99}){99}){99}",
        r"(?:(?:(?:\B){999}){999}){999}",
        r"[ab]*?\w{0,4}[^c]{1,100}(a){200}[^c]\d",
        r"[^c]{0,50}(?:a?a?a?){0,4}x",
    ],
)
def test_expression_that_can_be_slow_or_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        compile_expression(text, search=True)


@each_row("text", [r"[0-9]+(\.[0-9]+)?x", r"a*a*b", r"^\s*(.+)$", r"(?:ab)*c", "(a?){4}b", r"[0-9]+\s*(?:km|m)\b"])
def test_accepted_expression_is_fast_on_any_text(text: str) -> None:
    expression = compile_expression(text, search=True)
    begun = time.thread_time()
    for hostile in ("1" * 256, "a" * 256, "ab" * 128, " " * 256, "1." * 128):
        expression.search(hostile)
    assert time.thread_time() - begun < 2


def test_expression_of_a_level_has_to_reach_its_end_in_every_way() -> None:
    with pytest.raises(ValueError, match="too many steps"):
        compile_expression("[ab]*[ab]*[ab]*[ab]*", search=False)


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "+", "$x", ""]), min_size=1, max_size=4), max_size=7), st.booleans()
)
def test_a_filter_stays_if_no_other_covers_it(levels: list[list[str]], rest: bool) -> None:
    filters = list(dict.fromkeys("/".join([*one, "#"] if rest and "b" in one else one) for one in levels))
    expected = [one for one in filters if not any(covers(other, one) for other in filters if other != one)]
    assert minimal_filters(filters) == expected


def test_ten_thousands_of_filters_with_wildcards_are_compared(amounts: Amounts) -> None:
    """Each with each would take minutes."""
    filters = [f"+/{number}" for number in range(amounts.of(20_000))]
    assert minimal_filters(filters) == filters
    hostile = ["/".join([*levels, f"{number}"]) for number, levels in enumerate(itertools.product("a+", repeat=13))]
    hostile = list(amounts.some(hostile))
    assert minimal_filters(hostile) == hostile


def test_expressions_of_all_levels_are_bounded_together() -> None:
    slow = "a?" * 22 + "b"
    assert TopicPattern(f"{{x:{slow}}}").steps > 0
    with pytest.raises(ValueError, match="too many steps together"):
        TopicPattern(f"{{x:{slow}}}/{{y:{slow}}}")


@each_row(
    ("one", "other", "wanted"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "a", False),
        ("a/+", "+/b", True),
        ("a/+/c", "a/b", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/+", True),
        ("b/#", "a/+", False),
        ("$SYS/a", "+/a", False),
        ("$SYS/a", "#", False),
        ("$SYS/a", "$SYS/+", True),
    ],
)
def test_filters_that_have_a_topic_in_common(one: str, other: str, wanted: bool) -> None:
    assert meet(one, other) is wanted
    assert meet(other, one) is wanted


@each_row("pattern", ["#", "{rest#}", "+/#", "{a}/{b}/{c}"])
def test_topics_of_the_adapter_are_for_rules_that_name_them(pattern: str) -> None:
    """A wildcard that read the states of announced entities would make further entities of them, without an end."""
    assert TopicPattern(pattern).captures("lamplighter/me/state") is None
    assert TopicPattern(pattern).captures("lamplighters/me/state") is not None
    assert TopicPattern("lamplighter/{b}/{c}").captures("lamplighter/me/state") == {"b": "me", "c": "state"}
