"""The query tests of the W3C suites: small queries answer what the store answers, in its order where one is fixed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyoxigraph as ox

from lamplighter.engine import Engine
from lamplighter.engine.querying.small_queries import SmallQueries
from tests.support.components import missing
from tests.w3c import suite
from tests.w3c.suite import QueryTest
from tests.w3c.test_w3c_queries import raw_store

ANSWERED_MIN = 300
_NUMBER = re.compile(r'"(\d+)(?:\.0)?"\^\^<[^>]*#(?:integer|decimal|double|float)>')


def test_answers_are_those_of_the_store() -> None:
    tests = suite.query_tests()
    if not tests:
        missing("the suite is not there; tests/fetch-suite.sh fetches it")
    tally = Counter(_compared(test) for test in tests)
    print(dict(tally))
    assert tally["answered"] >= ANSWERED_MIN, tally


def _compared(test: QueryTest) -> str:
    raw = raw_store(test)
    with Engine() as engine:
        engine.store.native.extend(raw)
        for name in raw.named_graphs():
            engine.store.native.add_graph(name)
        found = SmallQueries(engine.store).answer(test.text, None, None, 10_000)
    if found is None:
        return "left"
    expected = raw.query(test.text)
    if isinstance(found, ox.QueryBoolean):
        assert isinstance(expected, ox.QueryBoolean)
        assert bool(found) == bool(expected), test.name
    elif isinstance(found, ox.QueryTriples):
        assert isinstance(expected, ox.QueryTriples)
        assert _isomorphic(found) == _isomorphic(expected), test.name
    else:
        assert isinstance(found, ox.QuerySolutions)
        assert isinstance(expected, ox.QuerySolutions)
        columns = [variable.value for variable in expected.variables]  # the store sorts those of `SELECT *`
        assert sorted(variable.value for variable in found.variables) == sorted(columns), test.name
        mine, its = ([tuple(str(row[name]) for name in columns) for row in answer] for answer in (found, expected))
        assert Counter(mine) == Counter(its), test.name
        if re.search(r"\bORDER\s+BY\b", suite.bare(test.text), re.I):
            assert _keys(mine) == _keys(its), test.name
    return "answered"


def _keys(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows as they are ordered: numbers that are equal are in no order, whatever their types."""
    return [[_NUMBER.sub(r"\1", term) for term in row] for row in rows]


def _isomorphic(triples: ox.QueryTriples) -> ox.Dataset:
    found = ox.Dataset(ox.Quad(one.subject, one.predicate, one.object) for one in triples)
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return found
