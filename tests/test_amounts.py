"""Amounts: a part of them here, all in the fault tier, and nothing that both leave out."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.amounts import AMOUNTS, Amounts
from tests.support.tables import each_row

SIXTH = Amounts(Fraction(1, 6))
ALL = Amounts(Fraction(1))


@each_row(
    ("share", "full", "least", "expected"),
    [(SIXTH, 600, 1, 100), (SIXTH, 5, 1, 1), (SIXTH, 60, 20, 20), (ALL, 5, 1, 5), (Amounts(Fraction(100)), 5, 1, 500)],
)
def test_a_number_has_its_share(share: Amounts, full: int, least: int, expected: int) -> None:
    assert share.of(full, least) == expected


@each_row("count", [0, 1, 5, 6, 7, 100])
def test_some_are_evenly_spread_and_each_comes_sometimes(count: int) -> None:
    seen: set[int] = set()
    for _ in range(1000):
        some = SIXTH.some(range(count))
        assert len(some) in (count // 6, count // 6 + 1) or count < 6
        assert bool(some) == bool(count)
        assert all(after - before == 6 for before, after in pairwise(some))
        seen.update(some)
    assert seen == set(range(count))
    assert list(ALL.some(range(count))) == list(Amounts(Fraction(100)).some(range(count))) == list(range(count))


def test_a_test_with_amounts_has_the_marker(request: pytest.FixtureRequest, amounts: Amounts) -> None:
    assert amounts is AMOUNTS
    assert request.node.get_closest_marker("amounts")


def test_a_test_without_amounts_has_none(request: pytest.FixtureRequest) -> None:
    assert not request.node.get_closest_marker("amounts")


@each_row("number", [1], is_amount=True)
def test_a_table_that_is_an_amount_has_the_marker(request: pytest.FixtureRequest, number: int) -> None:
    assert request.node.get_closest_marker("amounts")


@given(st.none())
def test_a_test_of_hypothesis_has_the_marker(request: pytest.FixtureRequest, nothing: None) -> None:
    assert request.node.get_closest_marker("amounts")
