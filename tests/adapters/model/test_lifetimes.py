"""Values that end without another report, against an engine."""

from __future__ import annotations

import re
from datetime import timedelta

from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.lifetimes import WINDOWS, Lifetimes, ValueEnd
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine import Engine
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, NIL_REASON, RESULT_TIME
from tests.support.mapping_rules import NOON, readings, rules

MOTION = rules('[[stream]]\ntopic = "t"\npayload = "boolean"\nproperty = "ex:p"\noff_delay_s = 40')
POWER = rules(
    '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nexpire_after_s = 200\nresult = "quantity"'
)


def reading(payload: str, at: float = 0, *, retained: bool = False) -> Reading:
    mapping = MOTION if payload in ("on", "off") else POWER
    [found] = readings(mapping, "t", payload, received=NOON + timedelta(seconds=at), retained=retained)
    return found


def ends(found: list[Reading]) -> list[float]:
    """When the values of readings end, in seconds after noon."""
    lifetimes = Lifetimes(10)
    return [
        (one.received - NOON).total_seconds() + float(end.delay[2:-1]) for one in found for end in lifetimes.ends(one)
    ]


def state(engine: Engine) -> dict[str, str]:
    rows = engine.query(f"SELECT ?p ?v {{ ?o ?p ?v FILTER(?p IN (<{HAS_SIMPLE_RESULT}>, <{NIL_REASON}>)) }}")
    return {re.split("[/#]", lexical(row["p"]))[-1]: lexical(row["v"]) for row in rows}


def written(*found: Reading) -> tuple[Engine, list[ValueEnd]]:
    engine, model, lifetimes = Engine(), LatestModel(), Lifetimes(10)
    due: list[ValueEnd] = []
    for one in found:
        for text in model.updates(one):
            engine.update(text)
        due += lifetimes.ends(one)
    return engine, due


def test_single_report_ends_on_time() -> None:
    assert ends([reading("on")]) == [40]
    assert ends([reading("1")]) == [200]
    assert ends([reading("on"), reading("on", 30)]) == [40, 70]


def test_value_false_does_not_end() -> None:
    assert ends([reading("off")]) == []


def test_source_that_reports_often_has_few_ends_and_the_last_report_has_one() -> None:
    found = [reading("1", second) for second in range(1_000)]
    due = ends(found)
    assert len(due) <= 2 * (1_000 / (200 / WINDOWS)) + 2
    assert all(any(200 <= end - second <= 200 * (1 + 1 / WINDOWS) for end in due) for second in range(1_000))


def test_clock_that_is_stepped_back_begins_again() -> None:
    assert ends([reading("1", 1_000), reading("1", 10)]) == [1_200, 210]


def test_off_delay_makes_the_value_false() -> None:
    engine, [end] = written(reading("on"))
    engine.update(end.sparql)
    assert state(engine) == {"hasSimpleResult": "false"}


def test_later_report_keeps_the_value() -> None:
    engine, [first, second] = written(reading("on"), reading("on", 30))
    engine.update(first.sparql)
    assert state(engine) == {"hasSimpleResult": "true"}
    engine.update(second.sparql)
    assert state(engine) == {"hasSimpleResult": "false"}


def test_expired_value_is_none_and_keeps_the_time_of_the_last_report() -> None:
    engine, [end] = written(reading("1", 7))
    engine.update(end.sparql)
    assert state(engine) == {"nilReason": "expired"}
    [row] = engine.query(f"SELECT ?t {{ ?o <{RESULT_TIME}> ?t }}")
    assert "12:00:07" in row["t"]
    for text in LatestModel().updates(reading("2", 300)):
        engine.update(text)
    assert state(engine) == {"hasSimpleResult": "2"}


def test_retained_value_of_unknown_age_ends_as_well() -> None:
    engine, [end] = written(reading("on", retained=True))
    engine.update(end.sparql)
    assert state(engine) == {"hasSimpleResult": "false"}


def test_value_that_goes_off_expires_too_also_after_the_same_time() -> None:
    both = rules(
        '[[stream]]\ntopic = "t"\npayload = "boolean"\nproperty = "ex:p"\noff_delay_s = 40\nexpire_after_s = 40'
    )
    engine, due = written(*readings(both, "t", "on", received=NOON))
    assert [(end.kind, end.delay) for end in due] == [("off", "PT40.000S"), ("expired", "PT40.000S")]
    for end, after in zip(due, ({"hasSimpleResult": "false"}, {"nilReason": "expired"}), strict=True):
        engine.update(end.sparql)
        assert state(engine) == after


def events(engine: Engine) -> list[tuple[str, str]]:
    """Times of the live readings and their values, or why they have none; in order."""
    rows = engine.query(
        f"SELECT ?t ?v {{ GRAPH ?g {{ ?o <{RESULT_TIME}> ?t {{ ?o <{HAS_SIMPLE_RESULT}> ?v }} UNION "
        f"{{ ?o <{NIL_REASON}> ?v }} }} }} ORDER BY ?t"
    )
    return [(lexical(row["t"])[11:19], lexical(row["v"])) for row in rows]


def written_events(*found: Reading, kept: int = 5) -> tuple[Engine, list[ValueEnd]]:
    engine, model, lifetimes = Engine(), EventModel(kept, 10), Lifetimes(10, events=True)
    due: list[ValueEnd] = []
    for one in found:
        for text in model.updates(one):
            engine.update(text)
        due += lifetimes.ends(one)
    return engine, due


def test_event_ends_with_an_event() -> None:
    engine, [due] = written_events(reading("on"))
    engine.update(due.sparql)
    assert events(engine) == [("12:00:00", "true"), ("12:00:40", "false")]
    engine.update(due.sparql)
    assert events(engine) == [("12:00:00", "true"), ("12:00:40", "false")]
    engine, [due] = written_events(reading("7"))
    engine.update(due.sparql)
    assert events(engine) == [("12:00:00", "7"), ("12:03:20", "expired")]


def test_event_does_not_end_after_a_later_one() -> None:
    engine, [first, *_] = written_events(reading("on"), reading("off", 1))
    engine.update(first.sparql)
    assert events(engine) == [("12:00:00", "true"), ("12:00:01", "false")]
    engine, dues = written_events(reading("7"), reading("8", 1))
    engine.update(dues[0].sparql)
    assert events(engine) == [("12:00:00", "7"), ("12:00:01", "8")]


def test_ends_count_among_the_events_that_are_kept() -> None:
    engine, model, lifetimes = Engine(), EventModel(2, 10), Lifetimes(10, events=True)
    for at in (0, 100, 200):
        found = reading("on", at)
        for text in model.updates(found):
            engine.update(text)
        [end] = lifetimes.ends(found)
        engine.update(end.sparql)
        assert len(events(engine)) <= 3, "the two that are kept, and the end of the newest one"
    assert events(engine)[-2:] == [("12:03:20", "true"), ("12:04:00", "false")]
