"""JSON values of terms, desired states of JSON values, and the newest of several values."""

from __future__ import annotations

import pytest

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.gateway.gates.wot.things import in_order
from lamplighter.gateway.gates.wot.values import json_value, state_term
from tests.support.tables import each_row


def time(text: str) -> Term:
    return literal(text, datatype=f"{XSD}dateTime")


@each_row(
    ("term", "value"),
    [
        (literal("5", datatype=f"{XSD}unsignedLong"), 5),
        (literal("-5", datatype=f"{XSD}negativeInteger"), -5),
        (literal("2.5", datatype=f"{XSD}decimal"), 2.5),
        (literal("INF", datatype=f"{XSD}double"), None),
        (literal("NaN", datatype=f"{XSD}float"), None),
        (literal("x", datatype=f"{XSD}integer"), None),
        (literal("0", datatype=f"{XSD}boolean"), False),
        (literal("5"), "5"),
        ("<urn:on>", "urn:on"),
    ],
)
def test_terms_as_json(term: Term, value: object) -> None:
    found = json_value(term)
    assert (found, type(found)) == (value, type(value))


@each_row("value", [10**15, -(10**15), 10**400, -(10**400), 1e300, 1e15], ids=lambda value: f"{value!r:.9}")
def test_a_number_without_a_short_text_is_no_state(value: float) -> None:
    with pytest.raises(MalformedRequestError, match="at most 15 digits"):
        state_term(value, {})


def test_the_bounds_of_a_schema_are_allowed() -> None:
    schema = {"type": "number", "minimum": 0, "maximum": 254}
    for value in (0, 254):
        assert state_term(value, schema) == literal(str(value), datatype=f"{XSD}decimal")
    for value in (-0.5, 254.5):
        with pytest.raises(MalformedRequestError, match="from 0 to 254"):
            state_term(value, schema)
    assert state_term(-0.0, schema) == literal("0", datatype=f"{XSD}decimal")


@each_row(
    ("older", "newer"),
    [
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00.5Z"),
        ("2026-01-01T10:00:00.522458Z", "2026-01-01T10:00:00.53Z"),
        ("2026-01-01T10:00:00+02:00", "2026-01-01T09:00:00Z"),
        ("2026-01-01T10:00:00", "2026-01-01T10:00:00.1"),
    ],
)
def test_the_newest_value_is_the_last(older: str, newer: str) -> None:
    rows = [('"new"', time(newer)), ('"old"', time(older)), ('"untimed"', None)]
    assert in_order(rows) == ['"untimed"', '"old"', '"new"']
