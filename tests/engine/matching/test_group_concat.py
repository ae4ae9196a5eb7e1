"""GROUP_CONCAT: its members in order, as the store joins them otherwise."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching import aggregates
from lamplighter.engine.matching.aggregates import Accumulator
from lamplighter.engine.sparql.algebra import Aggregate, Expression, Variable
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.work import Meter, Work

VALUES = ('"a"', '"b"', '"a b"', '""', '"a"@en', '"b"@en', '"a"@fr', '"a"@en--ltr', '"b"@en--ltr', "<x:a>", None)
NO_TEXT = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'


def of_the_store(values: tuple[str | None, ...], distinct: bool) -> set[str | None]:
    """The store's results for the values in every order."""
    found: set[str | None] = set()
    for some in permutations(values):
        terms = " ".join(value or "UNDEF" for value in some)
        text = f"SELECT (GROUP_CONCAT({'DISTINCT' * distinct} ?v; SEPARATOR='|') AS ?r) {{ VALUES ?v {{ {terms} }} }}"
        solutions = ox.Store().query(text)
        assert isinstance(solutions, ox.QuerySolutions)
        [row] = solutions
        found.add(None if row[0] is None else term_text(row[0]))
    return found


@pytest.mark.parametrize("distinct", [False, True])
def test_the_value_is_one_of_the_store_and_follows_what_comes_and_goes(distinct: bool) -> None:
    random = Random(21)
    aggregate = Aggregate("GROUP_CONCAT", distinct, Expression((Variable("v"),)), '"|"')
    for _ in range(60):
        values = tuple(random.choice((*VALUES, NO_TEXT)) for _ in range(random.randrange(5)))
        passing = tuple(random.choice((*VALUES, NO_TEXT)) for _ in range(3))
        accumulator = Accumulator(aggregate, Meter(Work()))
        for value in (*passing, *values):
            accumulator.add(value, 1)
            accumulator.result(1)
        for value in passing:
            accumulator.add(value, -1)
        assert accumulator.result(len(values)) in of_the_store(values, distinct), values


def test_members_stand_in_the_order_of_their_texts_whatever_the_order_in_which_they_came() -> None:
    query = "SELECT (GROUP_CONCAT(?o; SEPARATOR=', ') AS ?all) { ?s <x:p> ?o }"
    with Engine() as engine:
        engine.update("INSERT DATA { <x:a> <x:p> 'b' , 'c' . <x:b> <x:p> 'b' , 'a' }")
        one = engine.subscribe(query)
        assert list(one.first) == [('"a, b, b, c"',)]
        assert not engine.update("DELETE DATA { <x:a> <x:p> 'b' } ; INSERT DATA { <x:c> <x:p> 'b' }").notifications
        [change] = engine.update("DELETE DATA { <x:b> <x:p> 'a' }").notifications
        assert (list(change.removed), list(change.added)) == ([('"a, b, b, c"',)], [('"b, b, c"',)])
        [change] = engine.update("INSERT DATA { <x:b> <x:p> 1 }").notifications
        assert list(change.added) == [(None,)]  # a number is no text


def test_a_separator_belongs_to_the_shape() -> None:
    with Engine() as engine:
        engine.update('INSERT DATA { <x:a> <x:p> "1" , "2" }')
        query = "SELECT (GROUP_CONCAT(?o; SEPARATOR={}) AS ?all) {{ <x:a> <x:p> ?o }}"
        found = [list(engine.subscribe(query.format(text)).first) for text in ('"-"', "''", r"'''\n'''", "','")]
        assert found == [[('"1-2"',)], [('"12"',)], [(r'"1\n2"',)], [('"1,2"',)]]
        [change] = engine.subscribe("SELECT (GROUP_CONCAT(DISTINCT ?o) AS ?a) { <x:a> <x:p> ?o }").first
        assert change == ('"1 2"',)


def test_a_long_value_is_left_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "CHARACTERS_MAX", 30)
    query = "SELECT (GROUP_CONCAT(?o) AS ?all) { ?s <x:p> ?o }"
    with Engine() as engine:
        one = engine.subscribe(query)
        assert one.spu_class == "counted"
        engine.update("INSERT DATA { <x:a> <x:p> '0123456789' }")
        [change] = engine.update("INSERT DATA { <x:a> <x:p> '0123456789' , '1123456789' , '2123456789' }").notifications
        assert len(str(next(iter(change.added))[0])) == 34
        assert engine.describe(one.spuid).reason.startswith("a GROUP_CONCAT of more than 30 characters")


def test_the_store_evaluates_a_first_result_that_is_too_much_for_the_plan() -> None:
    values = ", ".join(f'"{number:04}"' for number in range(4000))
    query = "SELECT ?s (GROUP_CONCAT(?o) AS ?all) { ?s <x:p> ?o } GROUP BY ?s"
    with Engine(evaluation_ms_max=1) as engine:
        engine.update(f"INSERT DATA {{ <x:a> <x:p> {values} }}")
        one = engine.subscribe(query)
        assert engine.describe(one.spuid).reason.startswith("the first result needs more work than")
        [(subject, joined)] = one.first
        assert (subject, len(str(joined))) == ("<x:a>", 4000 * 5 + 1)
        with pytest.raises(LimitExceededError, match="the first result of the subscription needs more work"):
            engine.subscribe("SELECT ?s (COUNT(?o) AS ?n) (SUM(?o) AS ?sum) { ?s <x:p> ?o } GROUP BY ?s")
