"""docs/time.md says what is so: its queries run on an engine with a simulated clock, its applications in a gateway that
is killed anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.gateway.clock import iso
from tests.support.amounts import Amounts
from tests.support.gateway_parts import START, application, records
from tests.support.places import ROOT
from tests.support.plays import Step, killed_anywhere
from tests.support.tables import each_row

DOCUMENT = (ROOT / "docs" / "time.md").read_text()
PREFIX = (
    "PREFIX ex: <http://example.org/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
    "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
)
DOOR, PRESENCE, FREEZER = (
    application(name, json.loads((ROOT / "docs" / "examples" / "time" / f"{name}.jsap").read_text()))
    for name in ("door", "presence", "freezer")
)


def blocks(heading: str) -> list[str]:
    """The SPARQL blocks under a heading."""
    [section] = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ )", DOCUMENT, re.S | re.M)
    return re.findall(r"```sparql\n(.*?)```", section, re.S)


class Watched:
    """An engine whose clock is set by hand, and the result of one subscription."""

    def __init__(self, query: str) -> None:
        self.now = START
        self.engine = Engine(clock=lambda: self.now)
        self.subscription = self.engine.subscribe(query)
        self.rows: list[tuple[str, ...]] = []

    def at(self, minutes: float, update: str | None = None) -> list[tuple[str, ...]]:
        """The rows after so many minutes, and after an update then; every instant until then has its commit."""
        self.now = START + timedelta(minutes=minutes)
        while self.engine.due is not None and self.engine.due <= self.now:
            self._follow(self.engine.advance(self.engine.due))
        self._follow(self.engine.advance())
        if update is not None:
            self._follow(self.engine.update(PREFIX + update))
        return sorted(self.rows)

    def _follow(self, commit: Any) -> None:
        for notification in commit.notifications:
            for row in notification.removed:
                self.rows.remove(tuple(map(_short, row)))
            self.rows += [tuple(map(_short, row)) for row in notification.added]


def _short(term: str | None) -> str:
    return re.sub(r'^<http://example.org/(.*)>$|^"([^"]*)".*$', r"\1\2", term or "")


def time(minutes: float) -> str:
    return f"'{iso(START + timedelta(minutes=minutes))}'^^xsd:dateTime"


def shown(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def reading(number: int, value: float, minutes: float) -> str:
    return (
        f"INSERT DATA {{ GRAPH ex:event{number} {{ ex:stream gateway:liveObservation ex:r{number} . "
        f"ex:r{number} sosa:hasSimpleResult {value} ; sosa:resultTime {time(minutes)} }} }}"
    )


def replaced(subject: str, name: str, value: object) -> str:
    """An update that gives a subject another value."""
    old = f"ex:{subject} ex:{name} ?old"
    return (
        f"DELETE {{ {old} }} INSERT {{ ex:{subject} ex:{name} ?new }} "
        f"WHERE {{ OPTIONAL {{ {old} }} BIND({value} AS ?new) }}"
    )


def test_every_query_is_subscribed_to_and_none_is_re_evaluated() -> None:
    found = re.findall(r"```sparql\n(.*?)```", DOCUMENT, re.S)
    classes = {}
    for text in found:
        engine = Engine(clock=lambda: START)
        if "SELECT" in text:
            classes[text] = engine.subscribe(text).spu_class
        else:
            engine.update(text)
    assert len(classes) == 12
    assert "re-evaluated" not in classes.values()
    assert len(found) == 16


def test_a_door_that_has_been_open_for_five_minutes() -> None:
    [query] = blocks("Compare with the clock")
    watched = Watched(query)
    assert watched.at(0, f"INSERT DATA {{ ex:door ex:openSince {time(0)} }}") == []
    assert watched.at(4.99) == []
    assert watched.at(5) == [("door", shown(0))]
    assert watched.at(6, "DELETE WHERE { ex:door ex:openSince ?t }") == []


REFUSED = re.findall(r"^\| `([^|]*(?:\\\|[^|]*)*)` \|", DOCUMENT.split("| refused |")[1].split("\n\n")[0], re.M)


def refused() -> Iterator[str]:
    patterns = "?x ex:t ?t ; ex:n ?n ; ex:urgent ?urgent"
    for text in (part for cell in REFUSED for part in cell.replace("\\|", "|").split("`, `")):
        if text.startswith("ORDER"):
            yield f"SELECT * {{ {patterns} }} ORDER BY (gateway:now())"
        elif text.startswith("HAVING"):
            yield f"SELECT ?x {{ {patterns} }} GROUP BY ?x {text}"
        elif text.startswith("OPTIONAL"):
            yield f"SELECT * {{ ?x ex:n ?n {text} }}"
        elif text.startswith("BIND"):
            yield f"SELECT * {{ {patterns} {text} }}"
        else:
            yield f"SELECT * {{ {patterns} FILTER({text}) }}"


@each_row("query", list(refused()))
def test_what_is_said_to_be_refused_is(query: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"^line 1, column"):
        Engine().subscribe(PREFIX + query)


def test_the_table_of_refusals_was_read() -> None:
    assert len(list(refused())) == 8


def test_true_for_a_time() -> None:
    watched = Watched(blocks("True for a time")[0])
    data = f"ex:r sosa:hasFeatureOfInterest ex:door ; sosa:hasSimpleResult true ; sosa:resultTime {time(1)}"
    assert watched.at(1, f"INSERT DATA {{ {data} }}") == []
    assert watched.at(5.9) == []
    assert watched.at(6) == [("door",)]


def test_true_until_and_true_later() -> None:
    until, later = map(Watched, blocks("True until and true later"))
    data = f"ex:door ex:openSince {time(0)} ; ex:checkedFrom {time(1)} ; ex:checkedUntil {time(3)}"
    assert until.at(2, f"INSERT DATA {{ {data} }}") == []
    assert until.at(3) == [("door", shown(3))]
    assert later.at(1, f"INSERT DATA {{ ex:door ex:state 'open' ; ex:lockedFrom {time(4)} }}") == []
    assert later.at(4) == [("door",)]
    assert later.at(5, "DELETE DATA { ex:door ex:state 'open' }") == []


def test_a_condition_that_was_interrupted_was_not_true_until() -> None:
    until = Watched(blocks("True until and true later")[0])
    data = f"ex:door ex:openSince {time(2)} ; ex:checkedFrom {time(1)} ; ex:checkedUntil {time(3)}"
    assert until.at(2, f"INSERT DATA {{ {data} }}") == []
    assert until.at(9) == []


def test_later_unless() -> None:
    watched = Watched(blocks("Later unless")[0])
    assert watched.at(0, f"INSERT DATA {{ ex:a ex:askedAt {time(0)} . ex:b ex:askedAt {time(0)} }}") == []
    assert watched.at(5, "INSERT DATA { ex:answer ex:answers ex:a }") == []
    assert watched.at(10) == [("b",)]
    assert watched.at(11, "INSERT DATA { ex:answer ex:answers ex:b }") == []


def test_previous_values() -> None:
    [update] = blocks("Previous values")
    engine = Engine()
    for value in ("20", "21.5", "21.5", "19"):
        engine.update(update.replace("21.5", value))
    [row] = engine.query(PREFIX + "SELECT ?value ?before { ?device ex:value ?value ; ex:before ?before }")
    assert [_short(row["value"]), _short(row["before"])] == ["19", "21.5"]


def test_last_seen() -> None:
    home, silent = map(Watched, blocks("Last seen"))
    assert home.at(0, "INSERT DATA { ex:ann ex:device ex:phone, ex:watch }") == []
    assert home.at(0, replaced("phone", "seen", time(0))) == [("ann",)]
    assert home.at(8, replaced("watch", "seen", time(8))) == [("ann",)]
    assert home.at(17.9) == [("ann",)]
    assert home.at(18) == []
    assert home.at(19, replaced("phone", "seen", time(19))) == [("ann",)]

    assert silent.at(0, "INSERT DATA { ex:s a sosa:Sensor }") == [("s",)]
    assert silent.at(1, f"INSERT DATA {{ ex:r sosa:madeBySensor ex:s ; sosa:resultTime {time(1)} }}") == []
    assert silent.at(61) == [("s",)]


def test_duration_in_a_state() -> None:
    now = START
    engine = Engine(clock=lambda: now)
    engine.update(PREFIX + f"INSERT DATA {{ ex:door ex:openSince {time(0)} }}")
    now += timedelta(minutes=7)
    [quad] = engine.update(blocks("Duration in a state")[0]).added
    assert _short(quad.o) == "PT7M"


def test_a_sliding_window_is_counted() -> None:
    watched = Watched(blocks("Sliding window")[0])
    assert watched.subscription.spu_class == "counted"
    assert watched.at(0, reading(1, 10, 0)) == [("stream", "10", "10", "1")]
    assert watched.at(4, reading(2, 20, 4)) == [("stream", "15", "20", "2")]
    assert watched.at(9, reading(3, 0, 9)) == [("stream", "10", "20", "3")]
    assert watched.at(10) == [("stream", "10", "20", "2")]
    assert watched.at(14) == [("stream", "0", "0", "1")]
    assert watched.at(19) == []


def test_a_tumbling_window_has_one_row_when_it_is_complete() -> None:
    watched = Watched(blocks("Tumbling and hopping windows")[0])
    assert watched.at(3, reading(1, 10, 3)) == []
    assert watched.at(9, reading(2, 20, 9)) == []
    assert watched.at(10, reading(3, 7, 10)) == [("stream", shown(0), "15", "2")]
    assert watched.at(20) == [("stream", shown(0), "15", "2"), ("stream", shown(10), "7", "1")]


def test_a_hopping_window_has_each_reading_twice() -> None:
    watched = Watched(blocks("Tumbling and hopping windows")[1])
    assert watched.at(3, reading(1, 10, 3)) == []
    assert watched.at(10) == [("stream", shown(-10), "10")]
    assert watched.at(14, reading(2, 20, 14)) == [("stream", shown(-10), "10")]
    assert watched.at(20) == [("stream", shown(-10), "10"), ("stream", shown(0), "30")]
    assert watched.at(30)[2:] == [("stream", shown(10), "20")]


def test_the_last_n() -> None:
    watched = Watched(blocks("Last N")[0])
    assert watched.at(0, reading(1, 10, 0)) == [("stream", "10")]
    assert watched.at(1, reading(2, 20, 1)) == [("stream", "15")]
    assert watched.at(2, "DROP GRAPH ex:event1") == [("stream", "20")]


def test_hysteresis_switches_off() -> None:
    engine = Engine()
    engine.update(PREFIX + "INSERT DATA { ex:room ex:heating 'on' }")
    assert [_short(quad.o) for quad in engine.update(blocks("Hysteresis")[0]).added] == ["off"]


def test_throttle() -> None:
    watched = Watched(blocks("Throttle")[0])
    sent = f"INSERT DATA {{ ex:topic ex:sentAt {time(0)} }}"
    assert watched.at(0, "INSERT DATA { ex:topic ex:pending 'a' }") == [("topic",)]
    assert watched.at(0, f"DELETE WHERE {{ ?t ex:pending ?m }} ; {sent}") == []
    assert watched.at(0.5, "INSERT DATA { ex:topic ex:pending 'b', 'c' }") == []
    assert watched.at(1) == [("topic",), ("topic",)]


# --- applications ---


def said(minutes: float, sparql: str = "") -> Step:
    return Step(60 * minutes, PREFIX + sparql if sparql else None)


DOORS = [
    said(1, replaced("front", "state", "'open'")),
    said(2, replaced("back", "state", "'open'")),
    said(3, replaced("back", "state", "'closed'")),
    said(4, replaced("back", "state", "'open'")),
    said(5.9),
    said(6),  # the front door
    said(7, replaced("front", "state", "'closed'")),
    said(9),  # the back door, since it was opened again
    said(12),
]
PHONES = [
    said(0, "INSERT DATA { ex:ann ex:phone ex:a, ex:b . ex:bob ex:phone ex:c }"),
    said(1, replaced("a", "seen", "gateway:now()")),
    said(5, replaced("b", "seen", "gateway:now()")),
    said(9, replaced("a", "seen", "gateway:now()")),
    said(10, replaced("c", "seen", "gateway:now()")),
    said(15),  # what b said is too long ago, what a said is not
    said(19),  # Ann has gone
    said(20),  # and Bob
    said(21, replaced("b", "seen", "gateway:now()")),
]
FRIDGE = [
    said(0, replaced("f", "temperature", -18)),
    said(1, replaced("f", "temperature", -14)),
    said(5, replaced("f", "temperature", -12)),
    said(10, replaced("f", "temperature", -16)),  # a minute too early
    said(11, replaced("f", "temperature", -10)),
    said(16, replaced("f", "temperature", -9)),
    said(20.9),
    said(21),  # now it is too long
    said(22, replaced("f", "temperature", -17.5)),
]


@pytest.mark.parametrize(
    ("found", "steps", "total", "alarms"),
    [
        (DOOR, DOORS, 8, [(6.0, "front", True), (7.0, "front", False), (9.0, "back", True)]),
        (
            PRESENCE,
            PHONES,
            5,
            [(1.0, "ann", True), (10.0, "bob", True), (19.0, "ann", False), (20.0, "bob", False), (21.0, "ann", True)],
        ),
        (FREEZER, FRIDGE, 6, [(21.0, "f", True), (22.0, "f", False)]),
    ],
    ids=["door", "presence", "freezer"],
)
async def test_an_application_killed_anywhere(
    tmp_path: Path,
    found: Any,
    steps: list[Step],
    total: int,
    alarms: list[tuple[float, str, bool]],
    amounts: Amounts,
) -> None:
    log = await killed_anywhere(tmp_path, [found], steps, total, amounts, "clock")
    told = []
    for record in log:
        minutes = (datetime.fromisoformat(record.ts).astimezone(UTC) - START).total_seconds() / 60
        for quads, added in ((record.d, False), (record.a, True)):
            for quad in quads:
                if quad.p.endswith("alarm>"):
                    told.append((minutes, _short(quad.s), added))
                elif quad.p.endswith("is>") and added:
                    told.append((minutes, _short(quad.s), quad.o.endswith("home>")))
    assert told == alarms
    assert records(tmp_path / "whole") == log
