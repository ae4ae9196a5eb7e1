"""Desired and reported states: comparison, back-off and records."""

from __future__ import annotations

import pyoxigraph

from lamplighter.adapters.devices.desired import reported_update, same_state
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import REPORTED_STATE
from tests.support.tables import each_row

LAMP = iri("http://e/lamp")


def typed(text: str, name: str) -> Term:
    return literal(text, datatype=XSD + name)


@each_row(
    ("one", "other", "same"),
    [
        (typed("true", "boolean"), typed("1", "boolean"), True),
        (typed("true", "boolean"), typed("false", "boolean"), False),
        (typed("yes", "boolean"), typed("no", "boolean"), False),
        (typed("21", "integer"), typed("21.0", "decimal"), True),
        (typed("21", "integer"), typed("2.1e1", "double"), True),
        (typed("21", "integer"), typed("22", "integer"), False),
        (literal("ON"), literal("ON", language="en"), True),
        (literal("ON"), literal("on"), False),
        (literal("NaN"), typed("NaN", "double"), True),
        (literal("ON"), typed("1", "integer"), False),
    ],
)
def test_equal_states_may_be_spelled_in_several_ways(one: Term, other: Term, same: bool) -> None:
    assert same_state(one, other) is same
    assert same_state(other, one) is same


def test_an_actuator_has_one_reported_state() -> None:
    store = pyoxigraph.Store()
    for state in (typed("true", "boolean"), typed("false", "boolean")):
        store.update(reported_update(LAMP, state))
    [quad] = store
    assert (str(quad.subject), quad.predicate.value, str(quad.object)) == (LAMP, REPORTED_STATE, state)
