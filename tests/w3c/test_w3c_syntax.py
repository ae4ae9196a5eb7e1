"""The syntax tests of the W3C suites: the engine accepts what the store accepts, and refuses the rest as bad syntax.

Every accepted SELECT query is also subscribed to, unless it is one that has to be refused.
"""

from __future__ import annotations

import re

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, RequestSyntaxError, UnsupportedRequestError
from tests.support.tables import each_row
from tests.w3c import suite
from tests.w3c.known_failures import KNOWN_FAILURES
from tests.w3c.pair import Pair
from tests.w3c.suite import SyntaxTest

REFUSED = re.compile(r"\b(?:SERVICE|LOAD|(?:NOW|RAND|UUID|STRUUID|BNODE)\s*\()", re.I)
SOME_QUADS = tuple(
    ox.Quad(ox.NamedNode(f"http://example.org/{s}"), ox.NamedNode(f"http://example.org/{p}"), ox.Literal(o), *graph)
    for s, p, o, *graph in (("s", "p", 1), ("a", "b", "x"), ("s", "q", 2.5, ox.NamedNode("http://example.org/g")))
)


def raw_outcome(test: SyntaxTest) -> type[Exception] | None:
    """What the store says to the text; where it would have to fetch something, what the suite wants it to say."""
    if re.search(r"\b(?:LOAD|SERVICE)\b", suite.bare(test.text), re.I):
        return None if test.accepted else SyntaxError
    store = ox.Store()
    try:
        if test.update:
            store.update(test.text)
        else:
            store.query(test.text)
    except (SyntaxError, RuntimeError) as error:
        return type(error)
    return None


@each_row("test", suite.found(suite.syntax_tests), ids=lambda test: test.name)
def test_accepted_language_is_that_of_the_store(test: SyntaxTest) -> None:
    outcome = raw_outcome(test)
    with Engine() as engine:
        send = engine.update if test.update else engine.query
        if outcome is SyntaxError:
            with pytest.raises(RequestSyntaxError):
                send(test.text)
            if not test.update:
                with pytest.raises(RequestSyntaxError):
                    engine.subscribe(test.text)
        elif outcome is not None:  # a function or a graph that is not there
            with pytest.raises(GatewayError) as caught:
                send(test.text)
            assert not isinstance(caught.value, SyntaxError)
        elif re.search(r"\b(?:LOAD|SERVICE)\b", suite.bare(test.text), re.I):
            with pytest.raises(UnsupportedRequestError):
                send(test.text)
        else:
            send(test.text)


@pytest.mark.skipif(suite.CHECKOUT is None, reason="W3C_RDF_TESTS names no checkout of rdf-tests")
def test_store_fails_the_known_tests_of_sparql_12_only() -> None:
    tests = [test for test in suite.syntax_tests() if test.name.startswith("sparql12/")]
    failed = {test.name for test in tests if (raw_outcome(test) is None) != test.accepted}
    assert failed == {name for name, kind in KNOWN_FAILURES if kind == "syntax"}


def subscribable(test: SyntaxTest) -> bool:
    bare = suite.bare(test.text)
    return (
        not test.update
        and re.search(r"\b(?:SELECT|ASK|CONSTRUCT|DESCRIBE)\b", bare, re.I) is not None
        and re.findall(r"\b(?:SELECT|ASK|CONSTRUCT|DESCRIBE)\b", bare, re.I)[0].upper() == "SELECT"
        and not REFUSED.search(bare)
        and raw_outcome(test) is None
    )


@each_row(
    "test",
    [test for test in suite.found(suite.syntax_tests) if subscribable(test)],
    ids=lambda test: test.name,
    is_amount=True,
)
def test_accepted_select_can_be_subscribed_to(test: SyntaxTest) -> None:
    pair = Pair()
    suite.CLASS_COUNTS[pair.subscribe(test.text).spu_class] += 1
    for quad in SOME_QUADS:
        pair.insert([quad], as_document=False)
    pair.update("DROP ALL")
    pair.engine.close()
