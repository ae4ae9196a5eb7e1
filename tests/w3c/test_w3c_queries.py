"""The query tests of the W3C suites as subscriptions: in whatever order and pieces the data comes and goes.

After each commit the first result and all notifications must be a fresh evaluation by a raw store with the same quads,
and with all data in, the result that the suite expects. What the raw store itself does not answer as expected is found
by running it, left out, listed and counted. The environment variable W3C_SEED repeats the orders of a run.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from random import Random

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from tests.support.components import missing
from tests.support.oracle import REFUSALS
from tests.support.tables import each_row
from tests.w3c import suite
from tests.w3c.courses import follow_through
from tests.w3c.known_failures import KNOWN_FAILURES
from tests.w3c.pair import Follower, answer
from tests.w3c.suite import QueryTest

# Most tests that the raw store may fail, and fewest that have to be followed, by part of the suites. What is left out
# of sparql11: syntax that the recommendation dropped (`:p{2}`), expectations that it revised, and spellings of numbers.
# Of dawg-data-r2, 30 ask for the datatypes that numbers are promoted to; the store has no derived types of integers.
# `entailment` expects what its rules infer; where nothing can be inferred, its tests are tests of plain SPARQL.
LEFT_OUT_MAX = {"sparql11": 16, "dawg-data-r2": 51, "entailment": 38}
FOLLOWED_MIN = {"sparql11": 174, "dawg-data-r2": 196, "entailment": 28}

INCREMENTAL_CLASSES = ("telescoped", "seeded")
"""Values of spu_class that stand for an SPU which does not run its query again."""

INCREMENTAL_SHARE_MIN = 0.6
"""Part of the followed tests whose subscription has to be in one of these classes."""

_REFUSED_FUNCTIONS = re.compile(r"\b(NOW|RAND|UUID|STRUUID|BNODE)\s*\(|\b(SERVICE)\b", re.I)

_BLANK_IN_TEMPLATE = re.compile(r"\bCONSTRUCT\s*(WHERE\s*)?\{[^}]*(_:|\[|<<(?!\()|\{\|)", re.I)
"""A reified triple and an annotation without the name of a reifier make a blank node."""


def part(test: QueryTest) -> str:
    if test.regime:
        return "entailment"
    found = test.name.partition("/")[0]
    return {"r2": "dawg-data-r2", "sparql12": "sparql12"}.get(found, "sparql11")


def reason_to_refuse(test: QueryTest) -> str | None:
    """The word for which a subscription has to be refused, None when it has to be accepted."""
    if test.form == "CONSTRUCT" and _BLANK_IN_TEMPLATE.search(suite.bare(test.text)):
        return "blank"
    found = _REFUSED_FUNCTIONS.search(suite.bare(test.text))
    return None if found is None else str(found[1] or found[2]).upper()


def raw_store(test: QueryTest) -> ox.Store:
    store = ox.Store()
    for name, quads in test.graphs.items():
        store.extend(quads)
        if name is not None:
            store.add_graph(ox.NamedNode(name))
    return store


@cache
def sorted_out() -> tuple[tuple[QueryTest, ...], dict[str, str]]:
    """The tests to follow, and the names of those that the raw store fails, with the reason."""
    followed, failed = [], {}
    for test in suite.found(suite.query_tests):
        if reason_to_refuse(test) is not None:
            continue
        try:
            fresh = answer(raw_store(test), test.text)
        except REFUSALS as error:
            failed[test.name] = str(error)[:60]
            continue
        if suite.as_expected(test, fresh.variables, fresh.rows):
            followed.append(test)
        else:
            failed[test.name] = "another result than expected"
    return tuple(followed), failed


@each_row("test", sorted_out()[0], ids=lambda test: test.name, is_amount=True)
def test_query_holds_as_a_subscription(test: QueryTest) -> None:
    print(f"W3C_SEED={suite.SEED}")

    def check(follower: Follower) -> None:
        assert suite.as_expected(test, follower.variables, follower.rows), (follower.variables, follower.rows)

    quads = [quad for quads in test.graphs.values() for quad in quads]
    empty = [name for name, quads in test.graphs.items() if name and not quads]
    suite.CLASS_COUNTS[follow_through(test.text, quads, empty, check, Random(f"{suite.SEED} {test.name}"))] += 1


@each_row(
    "test",
    [test for test in suite.found(suite.query_tests) if reason_to_refuse(test)],
    ids=lambda test: test.name,
)
def test_what_cannot_be_kept_true_is_refused(test: QueryTest) -> None:
    """Whatever makes blank nodes, asks another endpoint, or differs on each evaluation; nothing of it stays behind."""
    with Engine() as engine:
        with pytest.raises(UnsupportedRequestError, match=rf"\b{reason_to_refuse(test)}\b"):
            engine.subscribe(test.text)
        assert not engine.update("INSERT DATA { <urn:a> <urn:b> <urn:c> }").notifications


def test_few_tests_are_left_out() -> None:
    followed, failed = sorted_out()
    if not followed:
        missing("the suite is not there; tests/fetch-suite.sh fetches it")
    parts = {test.name: part(test) for test in suite.query_tests()}
    print("left out, since the raw store fails them:", *(f"{name}: {why}" for name, why in failed.items()), sep="\n")
    left_out = Counter(parts[name] for name in failed)
    assert all(left_out[name] <= LEFT_OUT_MAX[name] for name in LEFT_OUT_MAX), left_out
    kept = Counter(part(test) for test in followed)
    assert all(kept[name] >= FOLLOWED_MIN[name] for name in FOLLOWED_MIN), kept


@pytest.mark.skipif(suite.CHECKOUT is None, reason="W3C_RDF_TESTS names no checkout of rdf-tests")
def test_store_fails_the_known_tests_of_sparql_12_only() -> None:
    failed = {name for name in sorted_out()[1] if name.startswith("sparql12/")}
    assert failed == {name for name, kind in KNOWN_FAILURES if kind == "query"}


def test_share_of_incremental_subscriptions() -> None:
    followed, _ = sorted_out()
    with Engine() as engine:
        classes = Counter(engine.subscribe(test.text).spu_class for test in followed)
    print(dict(classes))
    incremental = sum(classes[name] for name in INCREMENTAL_CLASSES)
    assert incremental >= INCREMENTAL_SHARE_MIN * len(followed), classes
