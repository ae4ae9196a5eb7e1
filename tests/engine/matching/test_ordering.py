"""Windows of ORDER BY with LIMIT: kept against a sorted list, the order of terms against the store's."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching import ordering
from lamplighter.engine.matching.ordering import OrderedRows, Window
from lamplighter.engine.matching.values import order_key
from lamplighter.engine.terms import XSD, Binding
from lamplighter.engine.work import Meter, Work
from tests.support.tables import each_row

PREFIX = "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "


@pytest.mark.parametrize(("start", "size"), [(0, 3), (2, 3), (0, 0), (5, 1)])
@pytest.mark.parametrize("spare", [0, 3, 100])
def test_the_window_is_that_of_the_sorted_bag(
    start: int, size: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "SPARE", spare)
    random = Random(start * 100 + size + spare)
    bag: list[Binding] = []
    filled = 0

    def evaluated() -> list[Binding]:
        nonlocal filled
        filled += 1
        return random.sample(bag, len(bag))

    window = Window(((1, True), (0, False)), 2, start, start + size)
    rows = OrderedRows(window, evaluated, Meter(Work()))
    shown = Counter(rows.rows())
    for _ in range(400):
        removed = random.sample(bag, min(len(bag), random.choice((0, 1, 9))))
        added = [(f"<x:{random.choice('abc')}>", f'"{random.randrange(6)}"') for _ in range(random.choice((0, 1, 7)))]
        for row in removed:
            bag.remove(row)
        bag += added
        gone, come = rows.change(removed, added)
        assert Counter(rows.window_rows) == shown, "the change is not settled"
        rows.settle()
        assert Counter(gone) <= shown
        assert not Counter(gone) & Counter(come)
        shown = shown - Counter(gone) + Counter(come)
        bag.sort(key=lambda row: (-ord(str(row[1])[1]), row[0]))
        assert rows.rows() == bag[start : start + size]
        assert shown == Counter(bag[start : start + size])
    assert (filled > 1) == (spare < 100 and size > 0)


def test_a_forgotten_change_has_no_effect() -> None:
    rows = OrderedRows(Window(((0, False),), 1, 0, 2), lambda: [("<x:b>",), ("<x:c>",)], Meter(Work()))
    assert rows.rows() == [("<x:b>",), ("<x:c>",)]
    assert rows.change([], [("<x:a>",)]) == ([("<x:c>",)], [("<x:a>",)])
    rows.forget()
    rows.settle()
    assert rows.rows() == [("<x:b>",), ("<x:c>",)]


def test_rows_that_tie_are_ordered_by_their_terms() -> None:
    with Engine() as engine:
        engine.update("INSERT DATA { <x:d> <x:v> 1 . <x:b> <x:v> 1.0 . <x:c> <x:v> 1e0 . <x:a> <x:v> 2 }")
        subscription = engine.subscribe("SELECT ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 2")
        assert list(subscription.first) == [("<x:b>",), ("<x:c>",)]
        [change] = engine.update("DELETE DATA { <x:c> <x:v> 1e0 }").notifications
        assert list(change.removed) == [("<x:c>",)]
        assert list(change.added) == [("<x:d>",)]
        assert not engine.update("INSERT DATA { <x:e> <x:v> 1 }").notifications


NUMBERS = ("-INF", "-1.5e3", "-2", "-0.5", "0.0", "0.1", "1", "1.5", "2e0", "10", "9007199254740993", "1e300", "INF")
IN_ORDER = {
    "string": ("", " ", "A", "B", "a", "a\\n", "a!", "ab", "\u00e9", "\U0001f4a1"),
    "boolean": ("false", "true"),
    "dateTime": (
        "2026-11-21T23:30:00-05:00",
        "2026-11-22T05:00:00Z",
        "2026-11-22T05:00:00.5Z",
        "2026-11-22T06:01:00+01:00",
    ),
    "dateTime ": ("-0005-01-01T00:00:00", "1999-12-31T23:59:59", "2000-02-29T00:00:00", "2000-03-01T00:00:00"),
    "date": ("2025-12-31", "2026-01-01", "2026-02-28", "2026-03-01"),
    "time": ("00:00:00", "09:59:59.9", "10:00:00"),
    "dayTimeDuration": ("-P2D", "PT0S", "PT30M", "PT1H", "P1D", "P1DT1S", "P2D"),
    "yearMonthDuration": ("-P1Y", "P0M", "P1M", "P11M", "P1Y", "P1Y1M"),
}


def _typed(number: str) -> str:
    return f'"{number}"^^xsd:double' if "INF" in number or "e" in number else number


@each_row(
    "literals",
    [
        [_typed(number) for number in NUMBERS],
        *([f'"{value}"^^xsd:{name.strip()}' for value in values] for name, values in IN_ORDER.items()),
    ],
)
def test_values_of_one_kind_have_the_order_of_the_store(literals: list[str]) -> None:
    with Engine() as engine:
        for written in (literals, literals[::-1]):
            found = engine.query(f"{PREFIX} SELECT ?v {{ VALUES ?v {{ {' '.join(written)} }} }} ORDER BY ?v")
            keys = [order_key(row["v"]) for row in found]
            assert len(keys) == len(literals)
            assert all(one < other for one, other in pairwise(keys)), list(found)


def test_kinds_of_terms_follow_each_other_as_sparql_says() -> None:
    text = f'"2026-01-01T00:00:00Z"^^<{XSD}dateTime>'
    terms = [None, "_:b", "<x:a>", f'"5"^^<{XSD}integer>', f'"NaN"^^<{XSD}double>', text, '"a"@fr', '"a"', '"b"']
    keys = [order_key(term) for term in terms]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@each_row(
    ("query", "reason"),
    [
        ("SELECT ?s { ?s <x:v> ?n } LIMIT 2", "LIMIT or OFFSET without ORDER BY"),
        ("SELECT ?s { ?s <x:v> ?n } ORDER BY ?n OFFSET 2", "OFFSET without LIMIT"),
        ("SELECT ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 10001", "LIMIT and OFFSET beyond row 10000"),
        ("SELECT REDUCED ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 1", "REDUCED"),
        ("SELECT DISTINCT ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 1", "DISTINCT, ordered by more than the columns"),
        ("SELECT ?s { { SELECT ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 1 } }", "LIMIT, OFFSET or REDUCED in a sub-select"),
        ("SELECT ?s { ?s <x:v> ?n } ORDER BY ?n LIMIT 1", ""),
        ("SELECT DISTINCT ?s { ?s <x:v> ?n } ORDER BY DESC(STR(?s)) LIMIT 1", ""),
        ("SELECT ?s { ?s <x:v> ?n } ORDER BY <http://www.w3.org/2001/XMLSchema#integer>(?n) LIMIT 1 OFFSET 1", ""),
        ("SELECT ?s (COUNT(*) AS ?c) { ?s <x:v> ?n } GROUP BY ?s ORDER BY DESC(?c) SUM(?n) LIMIT 1", ""),
        ("SELECT ?s { ?s <x:v> ?n } ORDER BY NOT EXISTS { ?s <x:w> ?w } ?s LIMIT 1", ""),
    ],
)
def test_the_class_of_a_window(query: str, reason: str) -> None:
    with Engine() as engine:
        found = engine.describe(engine.subscribe(query).spuid)
        assert found.spu_class == ("re-evaluated" if reason else "ordered")
        assert found.reason.startswith(reason)
        assert bool(reason) == bool(found.reason)


def test_the_store_evaluates_an_ordered_result_of_too_many_rows() -> None:
    """Only that one: a query of the same shape with fewer rows keeps its plan."""
    rows = " . ".join(f"<x:s{number}> <x:many> {number}" for number in range(1500))
    query = "SELECT ?s ?n { ?s <x:many> ?n ; <x:in> <x:%s> } ORDER BY DESC(?n) LIMIT 2"
    with Engine(evaluation_ms_max=1, ends_costly=True) as engine:
        engine.update(f"INSERT DATA {{ {rows} . <x:s7> <x:in> <x:one> }}")
        engine.update("INSERT { ?s <x:in> <x:all> } WHERE { ?s <x:many> ?n }")
        few = engine.subscribe(query % "one")
        many = engine.subscribe(query % "all")
        same = engine.subscribe(query % "all")
        assert (few.spu_class, many.spu_class, same.spu_class) == ("ordered", "re-evaluated", "re-evaluated")
        assert engine.unit_count == 2
        assert engine.describe(many.spuid).reason.startswith("the first result needs more work than")
        assert [row[0] for row in many.first] == ["<x:s1499>", "<x:s1498>"]
        [*told] = engine.update("INSERT DATA { <x:s7> <x:many> 9000 }").notifications
        assert {change.spuid for change in told} == {few.spuid, many.spuid, same.spuid}
        assert all(row[0] == "<x:s7>" for change in told for row in change.added)
        for one in (many, same):
            engine.unsubscribe(one.spuid)
        assert engine.unit_count == 1


def test_an_ordered_result_that_a_commit_makes_too_costly_goes_on_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "SPARE", 0)
    with Engine(evaluation_ms_max=1, ends_costly=True) as engine:
        engine.update("INSERT DATA { <x:a> <x:v> 0 }")
        one = engine.subscribe("SELECT ?s ?n { ?s <x:v> ?n } ORDER BY ?n LIMIT 1")
        rows = " . ".join(f"<x:s{number}> <x:v> {number}" for number in range(1, 3000))
        engine.update(f"INSERT DATA {{ {rows} }}")
        assert engine.describe(one.spuid).spu_class == "ordered"
        for subject in ("x:a", "x:s1", "x:s2"):
            commit = engine.update(f"DELETE WHERE {{ <{subject}> <x:v> ?n }}")
            assert not commit.ended
            [change] = commit.notifications
            assert [row[0] for row in change.removed] == [f"<{subject}>"]
        assert [row[0] for row in change.added] == ["<x:s3>"]
        assert engine.describe(one.spuid).spu_class == "re-evaluated"


def test_a_window_whose_plan_gives_up_goes_on_from_the_rows_that_were_shown() -> None:
    """All rows tie, and the store may choose others than the plan."""
    query = "SELECT ?s ?t { ?s <x:v> ?n . ?t <x:v> ?n . ?u <x:v> ?n } ORDER BY ?n LIMIT 3"
    with Engine(evaluation_ms_max=1) as engine:
        engine.update("INSERT DATA { " + " ".join(f"<x:s{n}> <x:v> 1 ." for n in range(5)) + " }")
        one = engine.subscribe(query)
        shown = Counter(one.first)
        for number in range(40):
            before = engine.describe(one.spuid).spu_class
            commit = engine.update(f"INSERT DATA {{ <x:a{number}> <x:v> 1 }}")
            for change in commit.notifications:
                if change.spuid == one.spuid:
                    assert Counter(change.removed) <= shown
                    shown = shown - Counter(change.removed) + Counter(change.added)
            assert shown == Counter(engine.subscribe(query).first)
            if before == "re-evaluated":
                return
    raise AssertionError("the plan never gave up")


def test_what_is_unbound_in_a_row_of_a_window_is_none() -> None:
    engine = Engine()
    window = engine.subscribe("SELECT ?s ?x { ?s <x:p> ?o OPTIONAL { ?s <x:q> ?x } } ORDER BY ?s LIMIT 2")
    rows = []
    for data in ("<x:b> <x:p> 1", "<x:a> <x:p> 1 ; <x:q> <x:c>"):
        [notification] = engine.update(f"INSERT DATA {{ {data} }}").notifications
        assert notification.spuid == window.spuid
        rows += list(notification.added)
    assert rows == [("<x:b>", None), ("<x:a>", "<x:c>")]
