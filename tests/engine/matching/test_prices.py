"""Prices of subscriptions, with a clock that each reading moves on."""

from __future__ import annotations

from itertools import count

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching.prices import EVERY, FIRST, Price, Prices
from tests.support.tables import each_row

PREFIX = "PREFIX : <http://e/> PREFIX g: <http://lamplighter.example/ns/gateway#> "


class Ticks:
    """Processor time: a second for each reading, and what is added."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def engine(ticks: Ticks | None = None) -> Engine:
    return Engine(processor_time=ticks or Ticks(), evaluation_ms_max=10**9)


def price(engine: Engine, spuid: str) -> Price:
    return engine.describe(spuid).price


def add(engine: Engine, number: int, predicate: str = ":p") -> None:
    engine.update(f"{PREFIX} INSERT DATA {{ :s{number} {predicate} {number} }}")


def test_the_first_commits_are_measured_and_then_some() -> None:
    with engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT * { ?s :p ?o }").spuid
        assert price(one, spuid) == Price(None, 0, 1, 0)
        measured = []
        for number in range(FIRST + 2 * EVERY):
            add(one, number)
            measured.append(price(one, spuid).commits)
        assert measured[:FIRST] == list(range(1, FIRST + 1))
        assert measured[-1] == FIRST + 2
        other = one.subscribe(PREFIX + "SELECT * { ?s :q ?o ; :p ?v }").spuid
        add(one, 9_999)
        assert (price(one, spuid).commits, price(one, other).commits) == (FIRST + 3, 1), (
            "a new plan is measured at once"
        )


def test_a_commit_counts_for_those_that_it_is_matched_with() -> None:
    with engine() as one:
        by_p = one.subscribe(PREFIX + "SELECT * { ?s :p ?o }").spuid
        by_q = one.subscribe(PREFIX + "SELECT * { ?s :q ?o }").spuid
        wild = one.subscribe(PREFIX + "SELECT * { :s1 ?p ?o }").spuid
        add(one, 1, ":p")
        add(one, 2, ":p")
        add(one, 3, ":q")
        add(one, 4, ":other")
        assert [price(one, spuid).commits for spuid in (by_p, by_q, wild)] == [2, 1, 4]


@pytest.mark.parametrize("predicate", [":p", "?p"])
def test_the_time_of_the_matcher_is_the_price(predicate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, took = Ticks(), iter((3.0, 5.0, 1.0))

    with engine(ticks) as one:
        spuid = one.subscribe(f"{PREFIX} SELECT * {{ ?s {predicate} :o }}").spuid
        shapes = one._subscriptions._shapes
        [(filed_under, matcher)] = next(iter(shapes.filed.values()))

        def slow(*arguments: object) -> None:
            ticks.now += next(took)
            matcher(*arguments)  # type: ignore[arg-type]

        shape = shapes.shapes.pop(matcher)
        one._subscriptions._lutt.remove_matcher(filed_under, matcher)
        one._subscriptions._lutt.add_matcher(filed_under, slow)
        shapes.shapes[slow] = shape
        one.update(PREFIX + "INSERT DATA { :a :p :o . :b :p :o }")
        one.update(PREFIX + "DELETE DATA { :a :p :o }")
        assert price(one, spuid) == Price(1e6 * (3 + 5 + 1) / 2, 2, 1, 0)


@each_row(
    ("query", "spu_class", "kept"),
    [
        ("SELECT * { ?s :p ?o }", "telescoped", 0),
        ("SELECT * { ?s :p ?o OPTIONAL { ?s :q ?v } }", "seeded", 0),
        ("SELECT ?o (SUM(?n) AS ?sum) { ?s :p ?o ; :n ?n } GROUP BY ?o", "seeded", 0),
        ("SELECT (COUNT(*) AS ?n) { ?s :p ?o }", "counted", 1),
        ("SELECT * { ?s :p ?o } ORDER BY ?o LIMIT 2", "ordered", 3),
        ("SELECT * { ?s :p ?o } LIMIT 2", "re-evaluated", 2),
        ("SELECT (g:clock() AS ?since) ?s { ?s :p ?o }", "telescoped", 3),
        ("CONSTRUCT { ?s :is :there } { ?s :p ?o }", "telescoped", 3),
        ("SELECT * { ?s :p ?o FILTER(g:clock() > ?o) }", "telescoped", 3),
    ],
)
def test_each_class_has_a_price_and_keeps_what_it_keeps(query: str, spu_class: str, kept: int) -> None:
    with engine() as one:
        subscription = one.subscribe(PREFIX + query)
        assert subscription.spu_class == spu_class
        for number in range(3):
            add(one, number)
        found = price(one, subscription.spuid)
        assert (found.commits, found.kept) == (3, kept)
        assert found.us is not None


def test_evaluations_by_the_store_are_all_measured() -> None:
    with engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT * { ?s :p ?o } LIMIT 2").spuid
        for number in range(FIRST + EVERY):
            add(one, number)
        assert price(one, spuid).commits == FIRST + EVERY


def test_queries_that_are_matched_together_share_a_price() -> None:
    with engine() as one:
        spuids = [one.subscribe(f"{PREFIX} SELECT * {{ ?s :p {number} }}").spuid for number in range(3)]
        add(one, 1)
        assert {price(one, spuid) for spuid in spuids} == {Price(price(one, spuids[0]).us, 1, 3, 0)}


def test_what_a_comparison_with_the_clock_costs_when_time_goes_by_counts() -> None:
    with engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT * { ?s :due ?n FILTER(g:clock() >= ?n) }").spuid
        later = one.instant.timestamp() + 3600
        one.update(f"{PREFIX} INSERT DATA {{ :s :due {int(later * 1e6)} }}")
        assert price(one, spuid).commits == 1
        assert one.due is not None
        assert one.advance(one.due).notifications
        assert price(one, spuid).commits == 2


def test_a_commit_that_is_matched_again_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT * { ?s :p ?o }").spuid
        [(predicate, matcher)] = next(iter(one._subscriptions._shapes.filed.values()))
        calls = count()

        def failing(*arguments: object) -> None:
            if next(calls) == 0:
                raise RuntimeError("the first time")
            matcher(*arguments)  # type: ignore[arg-type]

        shapes = one._subscriptions._shapes
        one._subscriptions._lutt.remove_matcher(predicate, matcher)
        one._subscriptions._lutt.add_matcher(predicate, failing)
        shapes.shapes[failing] = shapes.shapes[matcher]
        add(one, 1)
        assert price(one, spuid).commits == 0
        add(one, 2)
        assert price(one, spuid).commits == 1


@pytest.mark.parametrize("error", [KeyError, ValueError])
def test_a_failing_measurement_loses_no_row(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table is asked for matchers, a KeyError could be taken for a predicate that nobody asks for."""

    def failing(self: Prices, priced: object, matcher: object) -> None:
        raise error("injected")

    with engine() as one:
        one.subscribe(PREFIX + "SELECT * { ?s :p ?o }")
        monkeypatch.setattr(Prices, "wrap", failing)
        assert len(one.update(PREFIX + "INSERT DATA { :s :p 1 }").notifications) == 1
        assert len(one.faults) == 1


def test_without_a_clock_there_are_no_times_and_nothing_grows() -> None:
    with Engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT * { ?s :p ?o }").spuid
        for number in range(3):
            add(one, number)
        assert price(one, spuid) == Price(None, 0, 1, 0)
    with engine() as one:
        for number in range(3):
            spuid = one.subscribe(f"{PREFIX} SELECT * {{ ?s :p{number} ?o }}").spuid
            one.unsubscribe(spuid)
        assert not one._subscriptions._shapes.shapes


def test_a_large_commit_is_measured_too() -> None:
    with engine() as one:
        spuid = one.subscribe(PREFIX + "SELECT (COUNT(*) AS ?n) { ?s :p ?o }").spuid
        one.update(PREFIX + "INSERT DATA { " + " ".join(f":s{number} :p {number} ." for number in range(5_000)) + " }")
        assert price(one, spuid).commits == 1
