"""Sums, averages and extremes of floats: exact, whatever comes and goes, and near the store's."""

from __future__ import annotations

import os
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from math import inf, isnan, nan
from random import Random
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching.aggregates import Accumulator
from lamplighter.engine.matching.sums import ExactSum
from lamplighter.engine.matching.values import real, real_term, single
from lamplighter.engine.sparql.algebra import Aggregate, Expression, Variable
from lamplighter.engine.terms import XSD
from lamplighter.engine.work import Meter, Work
from tests.support.oracle import Oracle
from tests.support.tables import each_row

ROUNDS = int(os.environ.get("LAMPLIGHTER_SUM_ROUNDS", "60"))
PREFIX = "PREFIX : <x:> "
UNIT = {"float": Fraction(1, 2**24), "double": Fraction(1, 2**53)}


def number(random: Random, kinds: str = "idfD") -> tuple[str, str]:
    """A number as written in SPARQL, and its type."""
    match random.choice(kinds):
        case "i":
            return str(random.randrange(-1000, 1000)), "integer"
        case "d":
            return f"{random.randrange(-10_000, 10_000) / 7:.4f}", "decimal"
        case kind:
            value = random.choice((1, 1e-3, 1e12, 1e17, 1e-17)) * random.uniform(-1, 1)
            name = "float" if kind == "f" else "double"
            return f'"{single(value) if name == "float" else value!r}"^^<{XSD}{name}>', name


def values(terms: list[str]) -> list[Fraction]:
    found = []
    for term in terms:
        inexact = real(term)
        found.append(Fraction(Decimal(term.split('"')[1])) if inexact is None else Fraction(inexact[1]))
    return found


def near(found: str | None, expected: str | None, terms: list[str], share: int) -> bool:
    """Whether two results are equal, or as near as docs/internals/engine.md says that they are."""
    if found == expected or found is None or expected is None:
        return found == expected
    kind, one = real(found) or ("", 0.0)
    other_kind, other = real(expected) or ("", 0.0)
    if kind != other_kind or not kind:
        return False
    size = sum(map(abs, values(terms)), Fraction(0)) / share
    unit = UNIT["float" if any(term.endswith("#float>") for term in terms) else "double"]
    return abs(Fraction(one) - Fraction(other)) <= (len(terms) + 2) * unit * size


@each_row("seed", range(3), is_amount=True)
def test_results_are_near_those_of_the_store_and_follow_each_other(seed: int) -> None:
    """Counted and seeded, SUM and AVG, with and without DISTINCT."""
    random, oracle = Random(seed), Oracle()
    names = ("SUM(?v)", "AVG(?v)", "SUM(DISTINCT ?v)", "AVG(DISTINCT ?v)")
    columns = " ".join(f"({name} AS ?r{place})" for place, name in enumerate(names))
    total = f"SELECT {columns} {{ ?s <x:v> ?v }}"
    grouped = f"SELECT ?g {columns} {{ ?s <x:v> ?v ; <x:g> ?g }} GROUP BY ?g"
    with Engine() as engine:
        followers = [(text, engine.subscribe(text)) for text in (total, grouped)]
        assert [one.spu_class for _, one in followers] == ["counted", "seeded"]
        shown = {one.spuid: Counter(one.first) for _, one in followers}
        there: list[tuple[str, str]] = []
        for step in range(ROUNDS):
            kinds = ("D", "f", "idfD", "dD", "if")[step * 5 // ROUNDS]
            added = [(f"<x:s{step}-{place}>", number(random, kinds)[0]) for place in range(random.choice((1, 2, 5)))]
            removed = random.sample(there, min(len(there), random.choice((0, 1, 6))))
            there = [one for one in there if one not in removed] + added
            data = [" ".join(f"{s} <x:v> {v} ; <x:g> <x:g{s[-2]}> ." for s, v in some) for some in (removed, added)]
            text = f"DELETE DATA {{ {data[0]} }} ; INSERT DATA {{ {data[1]} }}"
            oracle.update(text)
            for change in engine.update(text).notifications:
                assert Counter(change.removed) <= shown[change.spuid]
                shown[change.spuid] = shown[change.spuid] - Counter(change.removed) + Counter(change.added)
            for asked, one in followers:
                expected = oracle.query(asked).ordered
                found = shown[one.spuid]
                assert found.total() == len(expected)
                key = 1 if asked == grouped else 0
                for row in expected:
                    [mine] = [other for other in found if other[:key] == row[:key]]
                    terms = [v for (v,) in oracle.query(members(row[:key])).ordered if v is not None]
                    for place in range(4):
                        of = list(dict.fromkeys(terms)) if place > 1 else terms
                        share = len(of) if place % 2 else 1
                        assert near(mine[key + place], row[key + place], of, share), (names[place], mine, row)
        assert engine.subscription_classes == {"counted": 1, "seeded": 1}


def members(group: tuple[Any, ...]) -> str:
    return f"SELECT ?v {{ ?s <x:v> ?v {f'; <x:g> {group[0]}' if group else ''} }}"


def test_a_sum_is_the_nearest_double_to_the_exact_one_and_forgets_what_was_removed() -> None:
    random, total = Random(5), ExactSum()
    there: list[float] = []
    for _ in range(300):
        value = random.uniform(-1, 1) * 10.0 ** random.randrange(-300, 300)
        there.append(value)
        total.add_real("double", value, 1)
        if random.random() < 0.4:
            total.add_real("double", there.pop(random.randrange(len(there))), -1)
        exact = sum(map(Fraction, there), Fraction(0))
        assert total.real() == real_term("double", exact.numerator / exact.denominator)
    for value in there[1:]:
        total.add_real("double", value, -1)
    assert total.real() == real_term("double", there[0])


@each_row(
    ("numbers", "expected"),
    [
        ((inf, 1.0), inf),
        ((-inf, 1.0), -inf),
        ((inf, -inf), nan),
        ((nan, inf), nan),
        ((1e308, 1e308), inf),
        ((-1e308, -1e308), -inf),
        ((1e308, 1e308, -1e308), 1e308),
        ((1e16, 1.0, -1e16), 1.0),
        ((0.1,) * 10, 1.0),
        ((-0.0, -0.0), 0.0),
        ((5e-324, -5e-324, 5e-324), 5e-324),
    ],
)
def test_sums_at_the_edges(numbers: tuple[float, ...], expected: float) -> None:
    total = ExactSum()
    for value in (*numbers, nan, inf, -inf):
        total.add_real("double", value, 1)
    for value in (nan, inf, -inf):
        total.add_real("double", value, -1)
    assert total.real() == real_term("double", expected)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_numbers_are_spelled_as_the_store_spells_them(kind: str) -> None:
    random, store = Random(9), ox.Store()
    numbers = [random.uniform(-1, 1) * 10.0 ** random.randrange(-45, 38) for _ in range(100)]
    for value in (*numbers, 0.0, -0.0, 1.0, 1e16, 1e22, 16777216.0, 0.1, 3.4028234663852886e38, inf, -inf, nan):
        value = single(value) if kind == "float" else value
        written = real_term(kind, value)  # type: ignore[arg-type]
        rows = list(store.query(f"SELECT (<{XSD}{kind}>({written}) + <{XSD}{kind}>(0) AS ?r) {{}}"))
        assert str(rows[0]["r"]) == written.replace('"-0"', '"0"')
        found = real(written)
        assert found is not None
        assert found[1] == value or isnan(value)


def accumulated(name: str, *terms: str | None) -> str | None:
    accumulator = Accumulator(Aggregate(name, False, Expression((Variable("v"),))), Meter(Work()))
    for term in terms:
        accumulator.add(term, 1)
    return accumulator.result(len(terms))


@each_row("name", ["SUM", "AVG", "MIN", "MAX"])
@each_row(
    "values",
    [
        (),
        ("1", None),
        ("1.5", '"2.5"^^xsd:double'),
        ('"2.5"^^xsd:float', '"0.5"^^xsd:double', "3"),
        ("<x:a>", '"0.5"^^xsd:double'),
        ('"a"', '"b"', '"b"@en'),
        ("true", "false"),
        ('"NaN"^^xsd:double', '"INF"^^xsd:double', '"1"^^xsd:double'),
        ('"2026-01-01T00:00:00Z"^^xsd:dateTime', '"2026-01-01T01:30:00+02:00"^^xsd:dateTime'),
        ("123456789012345678901.123456789012345678", "-12345678901234567890.5", "2.0"),
        ("99999999999999999999", "99999999999999999998"),
        ('"infinity"^^xsd:double',),
    ],
)
def test_aggregates_of_few_values_are_those_of_the_store(name: str, values: tuple[str | None, ...]) -> None:
    prefix = f"PREFIX xsd: <{XSD}> SELECT "
    rows = " ".join(value or "UNDEF" for value in values)
    with Engine() as engine:
        terms = [row.get("v") for row in engine.query(f"{prefix} ?v {{ VALUES ?v {{ {rows} }} }}")]
        [row] = engine.query(f"{prefix} ({name}(?v) AS ?r) {{ VALUES ?v {{ {rows} }} }}")
    assert accumulated(name, *terms) == row.get("r")


def test_equal_numbers_of_different_types_have_a_fixed_least_and_greatest() -> None:
    terms = [f'"1"^^<{XSD}{kind}>' for kind in ("integer", "double", "decimal")]
    for order in (terms, terms[::-1]):
        assert accumulated("MIN", *order) == terms[2]
        assert accumulated("MAX", *order) == terms[0]


def test_extremes_follow_what_is_removed() -> None:
    random = Random(3)
    with Engine() as engine:
        one = engine.subscribe("SELECT (MIN(?v) AS ?a) (MAX(?v) AS ?b) { ?s <x:v> ?v }")
        shown = Counter(one.first)
        there: set[tuple[int, int]] = set()
        for _ in range(120):
            pair = (random.randrange(6), random.randrange(30))
            form = "DELETE" if pair in there else "INSERT"
            there ^= {pair}
            for change in engine.update(f"{form} DATA {{ <x:{pair[0]}> <x:v> {pair[1]}.5e0 }}").notifications:
                shown = shown - Counter(change.removed) + Counter(change.added)
            ends = [f'"{end(there, key=lambda it: it[1])[1]}.5"^^<{XSD}double>' for end in (min, max)] if there else ()
            assert shown == Counter([tuple(ends) or (None, None)])
        assert engine.subscription_classes == {"counted": 1}


@pytest.mark.parametrize("group", ["", "?g"])
def test_a_plan_that_gives_up_hands_over_what_subscribers_have(group: str) -> None:
    """The store adds 1e16, 1 and -1e16 in its own order, so its sum before the commit may differ from the plan's."""
    query = f"SELECT {group} (SUM(?v) AS ?t) {{ ?s <x:v> ?v ; <x:g> ?g }}" + (" GROUP BY ?g" if group else "")
    with Engine() as engine:
        engine.update("INSERT DATA { <x:a> <x:v> 1e16 , 1e0 , -1e16 ; <x:g> 1 }")
        one = engine.subscribe(query)
        shown = Counter(one.first)
        for data in ("<x:b> <x:v> 9223372036854775806 ; <x:g> 1", "<x:c> <x:v> 1 ; <x:g> 2"):
            for change in engine.update(f"INSERT DATA {{ {data} }}").notifications:
                if change.spuid == one.spuid:
                    assert Counter(change.removed) <= shown
                    shown = shown - Counter(change.removed) + Counter(change.added)
            assert engine.describe(one.spuid).spu_class == "re-evaluated"
            assert shown == Counter(engine.subscribe(query).first)


@pytest.mark.parametrize("numbers", [(2**62, 2**62 + 1), (2**62, 2**62 + 1, 2**62 + 2)])
def test_a_first_sum_that_overflows_has_no_value(numbers: tuple[int, ...]) -> None:
    engine = Engine()
    engine.update(f"{PREFIX}INSERT DATA {{ :a :p {' , '.join(map(str, numbers))} }}")
    [row] = engine.subscribe(f"{PREFIX}SELECT (SUM(?n) AS ?sum) {{ :a :p ?n }}").first
    assert tuple(row) == (None,)
