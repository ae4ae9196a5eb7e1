"""The logbook: what happened, in words, by the links that an explanation has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.devices.desired import BY_HAND_ORIGIN
from lamplighter.engine.change_log import Cause, Gap, Timer
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import XSD, Quad, literal
from lamplighter.gateway.history import logbook
from lamplighter.gateway.history.explanation import desired_states
from lamplighter.gateway.history.logbook import LabelledNames, Logbook, LogbookEntry, LogbookRange, logbook_of
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.ontology import vocabulary as v
from tests.support.gateway_parts import START, FakeClock, opened_log

LAMP, MOTION, ACTUATION = "<urn:lamp>", "<urn:motion>", "<urn:lamp/actuation>"
RESULT, DESIRED = f"<{v.HAS_SIMPLE_RESULT}>", f"<{v.DESIRED_STATE}>"
LABELS = {LAMP: "Hall lamp", MOTION: "Hall motion"}
TRUE, FALSE = (literal(word, datatype=f"{XSD}boolean") for word in ("true", "false"))


def opened(data: Path, clock: FakeClock) -> LogWriter:
    log = opened_log(data, clock)
    log.replay(lambda record: None)
    return log


def change(subject: str, property_: str, before: str | None, after: str) -> QuadDelta:
    removed = () if before is None else (Quad(subject, property_, before, None),)
    return QuadDelta(removed, (Quad(subject, property_, after, None),), ())


def house(data: Path, *, split: bool = False) -> LogWriter:
    """Somebody comes and leaves, and a rule switches the lamp. split: each record in a segment of its own."""
    clock = FakeClock()
    log = opened(data, clock)

    def append(entry: entries.LogEntry) -> int:
        clock.advance(1)
        if split:
            log.end_segment()
        return log.append(entry).seq

    on, off = literal("ON"), literal("OFF")
    append(entries.commit(change(MOTION, RESULT, None, TRUE), Cause("mqtt", "hall/motion")))
    append(entries.commit(change(LAMP, DESIRED, None, on), Cause("application", "motion light/on/switch", 1)))
    outcome = QuadDelta(
        (),
        (
            Quad(ACTUATION, RESULT, on, None),
            Quad(ACTUATION, f"<{v.RESULT_TIME}>", literal("2026-11-21T02:00:02Z", datatype=f"{XSD}dateTime"), None),
        ),
        (),
    )
    append(entries.commit(outcome, Cause("mqtt", "hall/lamp")))
    append(entries.commit(change(MOTION, RESULT, TRUE, FALSE), Cause("mqtt", "hall/motion")))
    timer = Timer("t1", "DELETE WHERE {}", delay_us=120_000_000)
    append(entries.timer(timer, Cause("application", "motion light/off/switch", 4)))
    append(entries.commit(change(LAMP, DESIRED, on, off), Cause("timer", "t1", 5)))
    append(entries.commit(change(LAMP, DESIRED, off, on), Cause("mqtt", f"{BY_HAND_ORIGIN}hall/lamp")))
    append(
        entries.commit(
            change("<urn:number>", RESULT, None, literal("21", datatype=f"{XSD}integer")), Cause("mqtt", "n")
        )
    )
    append(entries.commit(change("<urn:device>", f"<{v.ONLINE}>", TRUE, FALSE), Cause("mqtt", "d")))
    append(entries.gap(Gap(1, 3, "the card\x1b[2J failed")))
    log.sync(always=True)
    return log


def page(data: Path, **members: Any) -> Logbook:
    wanted = {"newest": (1, 10**6), "since": "", "until": "9999", "last": 50, **members}
    return logbook_of(History(data, FakeClock()), LogbookRange(**wanted), LabelledNames("urn:base/", LABELS))


def texts(data: Path, **members: Any) -> list[str]:
    return [entry.text for entry in page(data, **members).entries]


@pytest.mark.parametrize("split", [False, True])
def test_each_thing_that_happened_is_told_with_its_reason(tmp_path: Path, split: bool) -> None:
    came, left = ((START + timedelta(seconds=seconds)).astimezone().strftime("%H:%M:%S") for seconds in (1, 4))
    house(tmp_path, split=split)
    assert texts(tmp_path) == [
        "records of the change log are lost: the card\\u001B[2J failed",
        "<urn:device> is offline",
        "Hall lamp was switched by hand to ON (was OFF)",
        f"Delayed update of motion light switched Hall lamp to OFF (was ON): false of Hall motion at {left}",
        "Application motion light set a delayed update, in 120 s",
        "Hall motion: false (was true)",
        "Hall lamp confirmed ON",
        f"Application motion light switched Hall lamp to ON: true of Hall motion at {came}",
        "Hall motion: true",
    ]


def test_what_two_graphs_say_is_told_once(tmp_path: Path) -> None:
    clock = FakeClock()
    log = opened(tmp_path, clock)
    adopted = literal("adopted")
    quads = [Quad(LAMP, f"<{v.ADOPTION}>", adopted, graph) for graph in (None, "<urn:registry>")]
    log.append(entries.commit(QuadDelta((), tuple(quads), ()), Cause("http", "x")))
    log.sync(always=True)
    assert texts(tmp_path) == ["Hall lamp is adopted"]


def test_an_entry_leads_to_its_explanation(tmp_path: Path) -> None:
    house(tmp_path)
    [entry] = [one for one in page(tmp_path, kinds=frozenset({"switch"})).entries if one.record == "1/6"]
    assert (entry.explain, entry.application, entry.value, entry.before) == ("urn:lamp", "motion light", "OFF", "ON")
    assert entry.by == {"kind": "timer", "id": "t1"} and entry.label == "Hall lamp"


def test_filters_leave_what_is_wanted(tmp_path: Path) -> None:
    house(tmp_path)
    assert len(texts(tmp_path, about=frozenset({LAMP}))) == 4
    assert len(texts(tmp_path, application="motion light")) == 3
    assert texts(tmp_path, client="anna") == []
    assert texts(tmp_path, kinds=frozenset({"device"})) == ["<urn:device> is offline"]
    assert len(texts(tmp_path, since="2026-11-21T02:00:07")) == 3
    assert len(texts(tmp_path, until="2026-11-21T02:00:02")) == 1
    assert texts(tmp_path, newest=(1, 1)) == ["Hall motion: true"]


@pytest.mark.parametrize(("last", "scanned"), [(1, 20_000), (3, 20_000), (50, 2)])
def test_pages_have_all_entries_once(tmp_path: Path, last: int, scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    house(tmp_path)
    whole = page(tmp_path).entries
    monkeypatch.setattr(logbook, "SCANNED_MAX", scanned)
    found: list[LogbookEntry] = []
    before = None
    for _ in range(20):
        part = page(tmp_path, last=last, before=before)
        found += part.entries
        if part.next is None:
            break
        epoch, _, sequence = part.next.partition("/")
        before = int(epoch), int(sequence)
    assert found == whole


def test_reasons_in_many_segments_are_looked_for_in_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house(tmp_path, split=True)
    monkeypatch.setattr(logbook, "LOOKED_UP_MAX", 0)
    found = page(tmp_path, kinds=frozenset({"switch"})).entries
    assert [one.text for one in found][-1] == "Application motion light switched Hall lamp to ON"


def test_a_record_with_many_actuators_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path, FakeClock())
    lamps = [f"<urn:lamp/{number}>" for number in range(10_000)]
    quads = tuple(Quad(lamp, DESIRED, literal("ON"), None) for lamp in lamps)
    log.append(entries.commit(QuadDelta((), quads, ()), Cause("application", "party/on/switch", 1)))
    log.sync(always=True)
    walked: list[int] = []

    def counted(quads: Sequence[Quad]) -> dict[str, str]:
        walked.append(len(quads))
        return desired_states(quads)

    monkeypatch.setattr(logbook, "desired_states", counted)
    found = page(tmp_path)
    assert len(found.entries) == logbook.ENTRIES_MAX and found.next is not None
    [last] = page(tmp_path, about=frozenset({lamps[-1]})).entries
    assert last.subject == "urn:lamp/9999"
    assert sum(walked) == 2 * len(lamps)  # once a page: for each entry, it would take longer than a page may
