"""That the W3C suites are there and are read as a whole."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.components import missing
from tests.support.oracle import Row
from tests.w3c import suite


def test_suite_is_there() -> None:
    """Where it is missing, all other tests of this folder have nothing to test."""
    try:
        suite.files()
    except suite.SuiteMissingError as error:
        missing(str(error))
    assert len(suite.update_tests()) == 94
    assert Counter(test.form for test in suite.query_tests()) == {"SELECT": 459, "ASK": 48, "CONSTRUCT": 11}
    assert len(suite.syntax_tests()) == 361


@pytest.mark.parametrize(
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
