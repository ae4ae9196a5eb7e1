"""That the W3C suites are there and are read as a whole."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.components import missing
from tests.support.oracle import Row
from tests.support.suites import SuiteMissingError
from tests.support.tables import each_row
from tests.w3c import suite


def test_suite_is_there() -> None:
    """Where it is missing, all other tests of this folder have nothing to test."""
    try:
        suite.files()
    except SuiteMissingError as error:
        missing(str(error))
    packaged = [test for test in suite.query_tests() if not test.name.startswith("sparql12/")]
    assert sum(not test.name.startswith("sparql12/") for test in suite.update_tests()) == 94
    assert Counter(test.form for test in packaged) == {"SELECT": 459, "ASK": 48, "CONSTRUCT": 11}
    assert sum(not test.name.startswith("sparql12/") for test in suite.syntax_tests()) == 361


@pytest.mark.skipif(suite.CHECKOUT is None, reason="W3C_RDF_TESTS names no checkout of rdf-tests")
def test_suites_of_sparql_12_and_rdf_12_are_read_as_a_whole() -> None:
    names = [test.name for test in (*suite.query_tests(), *suite.syntax_tests(), *suite.update_tests())]
    assert sum(name.startswith("sparql12/") for name in names) >= 269
    assert len(suite.document_tests()) >= 332


@each_row(
    ("one", "other", "same"),
    [
        ([("_:a", "_:b"), ("_:b", None)], [("_:x", None), ("_:y", "_:x")], True),
        ([("_:a", "_:b"), ("_:b", None)], [("_:x", "_:x"), ("_:x", None)], False),
        ([("_:a", '"1"'), ("_:a", '"1"')], [("_:b", '"1"')], False),
        ([("_:a", None), ("_:a", None)], [("_:b", None), ("_:c", None)], False),
        ([("<urn:a>", None)], [(None, "<urn:a>")], False),
    ],
)
def test_rows_are_compared_up_to_blank_node_labels(one: list[Row], other: list[Row], same: bool) -> None:
    assert suite.same_rows(Counter(one), Counter(other)) is same
