"""Patterns that pass are ones that the store reads; the others are refused with the place."""

from __future__ import annotations

from random import Random

import pyoxigraph as ox
import pytest

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import literal
from lamplighter.gateway.gates.ngsild.conditions import checked_pattern
from tests.support.tables import each_row

PIECES = (*"ab.^$|()*+?-[]{}&~,\\", "[a-c]", "[^a]", "{2}", "{1,3}", "(?:", "\\d", "\\.", "[]a]", "[a|b]", "ä")


def test_what_passes_is_read_by_the_store() -> None:
    random, store, passed = Random(3), ox.Store(), 0
    for _ in range(4_000):
        text = "".join(random.choices(PIECES, k=random.randrange(1, 7)))
        try:
            checked_pattern(text, "q")
        except MalformedRequestError:
            continue
        passed += 1
        [[found]] = list(store.query(f'SELECT (BOUND(?r) AS ?b) {{ BIND(REGEX("", {literal(text)}) AS ?r) }}'))
        assert found.value == "true", text
    assert passed > 500


@each_row(
    ("text", "told"),
    [
        ("a" * 201, "200 characters"),
        ("(?=a)", "character 1"),
        ("a\\1", "character 2"),
        ("[[a]]", "character 1"),
        ("(a", "no regular expression"),
        ("a{51}", "at most 50"),
        ("(a{9}{9}){9}", "two {n,m}"),
    ],
)
def test_others_are_refused(text: str, told: str) -> None:
    with pytest.raises(MalformedRequestError) as error:
        checked_pattern(text, "q")
    assert told in str(error.value)
