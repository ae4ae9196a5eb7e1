"""Desired and reported states: comparison, back-off and records."""

from __future__ import annotations

import pyoxigraph

from lamplighter.adapters.devices.desired import reported_update, same_state
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import REPORTED_STATE
from tests.support.desired_states import NOON
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
        store.update(reported_update(LAMP, state, None))
    [quad] = store
    assert (str(quad.subject), quad.predicate.value, str(quad.object)) == (LAMP, REPORTED_STATE, state)


SOURCES = (iri("http://e/broker/default"), iri("http://e/adapter/mqtt"))


def reported(store: pyoxigraph.Store) -> dict[str, set[str]]:
    """Local name of the property -> values."""
    found: dict[str, set[str]] = {}
    for quad in store:
        assert isinstance(quad.object, pyoxigraph.Literal | pyoxigraph.NamedNode)
        found.setdefault(quad.predicate.value.rpartition("#")[2], set()).add(quad.object.value)
    return found


def test_a_report_has_its_time_and_what_it_came_through_unless_the_broker_had_stored_it() -> None:
    store, on, off = pyoxigraph.Store(), typed("true", "boolean"), typed("false", "boolean")
    through = {lexical(one) for one in SOURCES}
    store.update(reported_update(LAMP, on, NOON, SOURCES))
    live = {"reportedState": {"true"}, "reportedTime": {"2026-11-21T12:00:00Z"}, "receivedFrom": through}
    assert reported(store) == live
    store.update(reported_update(LAMP, on, None, SOURCES))
    assert reported(store) == live, "an equal state of unknown time says nothing of the last report"
    store.update(reported_update(LAMP, off, None, SOURCES))
    assert reported(store) == {"reportedState": {"false"}, "receivedFrom": through}
    store.update(reported_update(LAMP, off, NOON, SOURCES[:1]))
    assert reported(store)["receivedFrom"] == {lexical(SOURCES[0])}
    store.update(reported_update(LAMP, None, NOON, SOURCES))
    assert reported(store) == {}


def test_a_state_of_a_former_version_gets_what_it_comes_through_with_the_first_stored_report() -> None:
    store, on = pyoxigraph.Store(), typed("true", "boolean")
    store.update(f"INSERT DATA {{ {LAMP} <{REPORTED_STATE}> {on} }}")
    store.update(reported_update(LAMP, on, None, SOURCES))
    assert set(reported(store)) == {"reportedState", "receivedFrom"}
