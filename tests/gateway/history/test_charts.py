"""Charts of the past against an oracle, whatever of the index is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.access import EVERY, Graphs
from lamplighter.engine.change_log import Cause
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import XSD, Quad, Term, literal
from lamplighter.gateway.clock import iso, moment_of_us, since_1970_us
from lamplighter.gateway.history import charts, indexing, series_index
from lamplighter.gateway.history.charts import Chart, ChartRange, chart_of
from lamplighter.gateway.history.indexing import next_step
from lamplighter.gateway.history.series_index import BUCKET_US, FOLDER
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.log.sealing import seal
from lamplighter.ontology import vocabulary as v
from tests.support.amounts import Amounts
from tests.support.gateway_parts import FakeClock, opened_log

RESULT, TIME, NIL = f"<{v.HAS_SIMPLE_RESULT}>", f"<{v.RESULT_TIME}>", f"<{v.NIL_REASON}>"
NUMBER, STATE, BROKER, LAMP = "<urn:number>", "<urn:state>", "<urn:broker>", "<urn:lamp>"
HOUR_US = 3_600_000_000


class Log:
    """A change log that is written by hand. events: each value, with the time of its record."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.clock = FakeClock()
        self.log = opened_log(data, self.clock)
        self.log.replay(lambda record: None)
        self.events: dict[Term, list[tuple[int, Any]]] = {}
        self._values: dict[tuple[Term, Term], Term] = {}

    def put(self, subject: Term, value: Any, property_: Term = RESULT) -> None:
        """None: no value, since it expired."""
        term = literal("expired") if value is None else _term(value)
        predicate = NIL if value is None else property_
        new = Quad(subject, predicate, term, None)
        old = [Quad(subject, p, o, None) for (s, p), o in self._values.items() if s == subject and p in (RESULT, NIL)]
        if property_ not in (RESULT, NIL) and (subject, property_) in self._values:
            old = [Quad(subject, property_, self._values[subject, property_], None)]
        delta = QuadDelta((), (), (new,)) if new in old else QuadDelta(tuple(old), (new,), ())
        for quad in old:
            self._values.pop((quad.s, quad.p), None)
        self._values[subject, predicate] = term
        self.append(delta)
        self.events.setdefault(subject, []).append((self.now_us, value))

    def append(self, delta: QuadDelta) -> None:
        self.log.append(LogEntry("commit", cause=Cause("mqtt", "t"), delta=delta))
        self.log.tail.acknowledge((self.log.epoch, self.log.sequence))

    @property
    def now_us(self) -> int:
        return since_1970_us(self.clock.now)

    def seal(self) -> None:
        """Ends and seals the segment."""
        self.log.end_segment()
        for segment in segments(self.log.path):
            if not segment.is_sealed and segment.name != self.log.current:
                self.log.sync(always=True)
                seal(self.log.disk, self.log.path, segment)

    def chart(self, subject: Term, since_us: int, until_us: int, points: int = 1_500, **more: Any) -> Chart | None:
        place = self.log.epoch, self.log.sequence
        members = {"readable": EVERY, "newest": place, "now_us": self.now_us, **more}
        return chart_of(self.data, ChartRange(subject, since_us, until_us, points, **members))


def _term(value: Any) -> Term:
    if isinstance(value, bool):
        return literal(str(value).lower(), datatype=f"{XSD}boolean")
    return literal(repr(value), datatype=f"{XSD}double") if isinstance(value, float) else literal(str(value))


def index(data: Path, steps: int = 1_000) -> int:
    """Does steps of the upkeep as the keeper does them. Returns how many."""
    for number in range(steps):
        step, content = next_step(data)
        if step.name:
            (data / FOLDER).mkdir(exist_ok=True)
            (data / FOLDER / step.name).write_bytes(content)
        for name in step.obsolete:
            (data / FOLDER / name).unlink()
        if not step.more:
            return number
    return steps


def lately(log: Log, us: int) -> tuple[int, int]:
    return log.now_us - us, log.now_us


# --- against an oracle --------------------------------------------------------------------------------------


def random_log(data: Path, seed: int) -> Log:
    chance = random.Random(seed)
    log = Log(data)
    for _ in range(chance.randint(1, 200)):
        log.clock.advance(chance.choice([0.5, 60, 600, 4_000]) * chance.random())
        if chance.random() < 0.15:
            log.seal()
        elif chance.random() < 0.5:
            log.put(NUMBER, None if chance.random() < 0.1 else round(chance.uniform(-5, 5), 1))
        elif chance.random() < 0.2:
            log.put(STATE, None)
        else:
            log.put(STATE, chance.random() < 0.5)
    return log


def expected_points(log: Log, since_us: int, until_us: int, step_s: int) -> list[tuple[str, float, float, float, int]]:
    values = [(at, value) for at, value in log.events.get(NUMBER, []) if value is not None]
    if not step_s:
        return [(iso(moment_of_us(at)), n, n, n, 1) for at, n in sorted(values) if since_us <= at <= until_us]
    steps: dict[int, list[float]] = {}
    for at, value in values:
        # Means are of whole buckets of ten minutes.
        bucket = at // BUCKET_US * BUCKET_US
        if bucket + BUCKET_US > since_us and bucket <= until_us:
            steps.setdefault(bucket // (step_s * 1_000_000), []).append(value)
    return [
        (iso(moment_of_us(step * step_s * 1_000_000)), sum(some) / len(some), min(some), max(some), len(some))
        for step, some in sorted(steps.items())
    ]


def expected_states(log: Log, since_us: int, until_us: int) -> list[dict[str, str]]:
    events = [*log.events.get(STATE, []), (until_us, None)]
    found: list[list[Any]] = []
    for (at, value), (end, _) in pairwise(events):
        begin, end = max(at, since_us), min(end, until_us)
        if value is None or begin >= end:
            continue
        if found and found[-1][2] == value and found[-1][1] == begin:
            found[-1][1] = end
        else:
            found.append([begin, end, value])
    return [
        {"from": iso(moment_of_us(begin)), "to": iso(moment_of_us(end)), "value": str(value).lower()}
        for begin, end, value in found
    ]


def indexes(log: Log, chance: random.Random) -> Iterator[str]:
    """The index in each state in which a start, a kill or damage may leave it."""
    folder = log.data / FOLDER
    yield "no folder, as of an older version"
    folder.mkdir()
    yield "none"
    index(log.data, 1)
    yield "a part"
    index(log.data)
    yield "complete"
    assert index(log.data) == 0
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 0xFF
        path.write_bytes(content)
    yield "damaged"


def close(found: Any, expected: Any) -> bool:
    return len(found) == len(expected) and all(
        one[0] == other[0] and one[1:] == pytest.approx(other[1:], abs=1e-9)
        for one, other in zip(found, expected, strict=True)
    )


def test_charts_of_random_logs_are_those_of_an_oracle(tmp_path: Path, amounts: Amounts, monkeypatch: Any) -> None:
    monkeypatch.setattr(indexing, "MERGED", 3)
    monkeypatch.setattr(series_index, "_BLOCK_SERIES", 1)
    for seed in range(amounts.of(120)):
        log = random_log(tmp_path / str(seed), seed)
        chance = random.Random(seed)
        spans = [
            (log.now_us - length, log.now_us - chance.randrange(length // 2)) for length in (HOUR_US, 40 * HOUR_US)
        ]
        for state in indexes(log, chance):
            for since_us, until_us in spans:
                for points in (2, 20, 1_500):
                    chart = log.chart(NUMBER, since_us, until_us, points)
                    where = seed, state, since_us, points
                    if chart is not None and chart.kind == "number":
                        assert len(chart.points) <= points, where
                        assert close(chart.points, expected_points(log, since_us, until_us, chart.step_s)), where
                chart = log.chart(STATE, since_us, until_us)
                assert (chart.states if chart else []) == expected_states(log, since_us, until_us), (seed, state)
        log.log.close()


def test_many_changes_become_few_intervals_of_the_whole_time(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for number in range(500):
        log.clock.advance(10)
        log.put(STATE, bool(number % 2))
    since_us, until_us = lately(log, 5_000_000_000)
    chart = log.chart(STATE, since_us, until_us, 20)
    assert chart is not None and 5 <= len(chart.states) <= 20
    assert all(one["to"] == other["from"] for one, other in pairwise(chart.states))
    assert sum(one.get("changes", 1) for one in chart.states) >= 499 - 1
    assert chart.states[-1]["to"] == iso(moment_of_us(until_us))


# --- what is not known --------------------------------------------------------------------------------------


def gaps(chart: Chart | None) -> list[tuple[str, str, str]]:
    assert chart is not None
    return [(one["reason"], one["from"], one["to"]) for one in chart.gaps]


def each_index(log: Log, check: Callable[[], None]) -> None:
    """Checks without an index and with one."""
    check()
    log.seal()
    index(log.data)
    check()


def test_a_value_is_unconfirmed_from_the_return_of_its_source_to_the_next_report(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put(STATE, True)
    log.clock.advance(60)
    returned = iso(log.clock.now)
    term = literal(returned, datatype=f"{XSD}dateTime")
    log.append(QuadDelta((), (Quad(BROKER, f"<{v.SINCE}>", term, None),), ()))
    log.clock.advance(60)
    log.put(STATE, True)
    reported = iso(log.clock.now)
    log.clock.advance(60)

    def check() -> None:
        chart = log.chart(STATE, *lately(log, HOUR_US), sources=(BROKER,))
        assert gaps(chart) == [("unconfirmed", returned, reported)]
        assert chart is not None and [one["value"] for one in chart.states] == ["true"]
        assert gaps(log.chart(STATE, *lately(log, HOUR_US))) == []

    each_index(log, check)


def test_an_expired_value_is_a_gap(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put(NUMBER, 1.5)
    log.clock.advance(60)
    log.put(NUMBER, None)
    ended = iso(log.clock.now)
    log.clock.advance(60)
    log.put(NUMBER, 2.5)
    again = iso(log.clock.now)

    def check() -> None:
        chart = log.chart(NUMBER, *lately(log, HOUR_US))
        assert gaps(chart) == [("no value", ended, again)] and chart is not None
        assert chart.gaps[0]["text"] == "expired" and [point[1] for point in chart.points] == [1.5, 2.5]

    each_index(log, check)


def test_what_retention_removed_is_gone_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MERGED", 4)
    log = Log(tmp_path)
    for number in range(8):
        log.put(NUMBER, float(number))
        log.clock.advance(3_600)
        log.seal()
    index(tmp_path)
    files = {path.name for path in (tmp_path / FOLDER).iterdir()}
    for segment in segments(log.log.path)[:6]:
        segment.path.unlink()
        segment.path.with_name(segment.path.name.replace(".ndjson.zst", ".json")).unlink()
    chart = log.chart(NUMBER, *lately(log, 24 * HOUR_US))
    assert chart is not None and [point[1] for point in chart.points] == [6.0, 7.0]
    assert [one["reason"] for one in chart.gaps] == ["removed"]
    assert chart.complete_since == chart.gaps[0]["to"] == chart.points[0][0]
    index(tmp_path)
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} < files


def test_what_a_killed_upkeep_left_is_removed_and_made_again(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for _ in range(3):
        log.put(NUMBER, 1.0)
        log.seal()
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1-000000000001-000000000001.idx.new").write_bytes(b"half")
    index(tmp_path)
    assert [path.suffix for path in (tmp_path / FOLDER).iterdir()] == [".idx"]


def test_an_index_of_another_segment_is_made_again(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 2)):
        log = Log(tmp_path / name)
        log.put(NUMBER, float(count))
        for _ in range(count * 20):
            log.put(STATE, True)
        log.seal()
        log.log.close()
    [of_b] = segments(tmp_path / "b" / "log")
    index(tmp_path / "b")
    [path] = (tmp_path / "b" / FOLDER).iterdir()
    of_b.path.write_bytes(segments(tmp_path / "a" / "log")[0].path.read_bytes())
    before = path.read_bytes()
    assert index(tmp_path / "b") >= 1 and path.read_bytes() != before


def test_only_what_is_acknowledged_and_readable_is_told(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put(NUMBER, 1.0)
    log.clock.advance(1)
    log.put(NUMBER, 2.0)
    log.append(QuadDelta((), (Quad(NUMBER, RESULT, _term(9.0), "<urn:secret>"),), ()))
    since_us, until_us = lately(log, HOUR_US)

    def values(**more: Any) -> list[float]:
        chart = log.chart(NUMBER, since_us, until_us, **more)
        return [] if chart is None else [point[1] for point in chart.points]

    for _ in range(2):
        assert values() == [1.0, 2.0]
        assert values(readable=Graphs(frozenset({None}))) == [1.0, 2.0]
        assert values(readable=Graphs(frozenset({"<urn:secret>"}))) == [9.0]
        assert values(readable=Graphs(frozenset())) == []
        log.seal()
        index(tmp_path)
    assert values(newest=(1, 0)) == []


def test_segments_without_an_index_beyond_the_bound_are_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)
    for number in range(3):
        log.put(NUMBER, float(number))
        log.clock.advance(60)
        log.seal()
    monkeypatch.setattr(charts, "SCANNED_BYTES_MAX", 1)
    chart = log.chart(NUMBER, *lately(log, HOUR_US))
    assert chart is not None and [one["reason"] for one in chart.gaps] == ["pending"]
    assert [point[1] for point in chart.points] == [2.0]
    index(tmp_path)
    chart = log.chart(NUMBER, *lately(log, HOUR_US))
    assert chart is not None and not chart.gaps and sum(point[4] for point in chart.points) == 3


def test_limits_of_an_index_lead_to_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    for number in range(50):
        log.clock.advance(1)
        log.put(STATE, bool(number % 2))
        log.put(LAMP, f"s{number}", f"<{v.DESIRED_STATE}>")
    whole = log.chart(STATE, *lately(log, HOUR_US))
    lamp = log.chart(LAMP, *lately(log, HOUR_US))
    log.seal()
    monkeypatch.setattr(series_index, "CHANGES_MAX", 10)
    monkeypatch.setattr(series_index, "SERIES_MAX", 1)
    index(tmp_path)
    monkeypatch.undo()
    assert log.chart(STATE, *lately(log, HOUR_US)) == whole
    assert log.chart(LAMP, *lately(log, HOUR_US)) == lamp
    assert lamp is not None and len(lamp.states) == 49 and lamp.reported == []


@pytest.mark.parametrize("ahead_s", [-7_200, 30, 7_200])
def test_a_value_has_its_result_time_unless_that_is_ahead(tmp_path: Path, ahead_s: int) -> None:
    log = Log(tmp_path)
    time = log.clock.now + timedelta(seconds=ahead_s)
    term = literal(iso(time), datatype=f"{XSD}dateTime")
    log.append(QuadDelta((), (Quad(NUMBER, RESULT, _term(1.0), None), Quad(NUMBER, TIME, term, None)), ()))
    used = time if ahead_s < 60 else log.clock.now

    def check() -> None:
        at_us = since_1970_us(used)
        chart = log.chart(NUMBER, at_us - HOUR_US, at_us + HOUR_US)
        assert chart is not None and chart.points[0][0] == iso(used)

    each_index(log, check)


def test_a_chart_has_all_changes_of_a_segment_with_more_than_its_index_takes(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for number in range(series_index.CHANGES_MAX + 500):
        log.clock.advance(1)
        log.put(STATE, f"s{number}")
    log.clock.advance(1)

    def check() -> None:
        chart = log.chart(STATE, *lately(log, HOUR_US), points=charts.POINTS_MAX)
        assert chart is not None and not chart.gaps
        assert [one["value"] for one in chart.states] == [value for _, value in log.events[STATE]]

    each_index(log, check)


def test_changes_that_no_scan_takes_are_told_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_index, "ENTRIES_MAX", 10)
    log = Log(tmp_path)
    for number in range(20):
        log.clock.advance(1)
        log.put(STATE, f"s{number}")
    log.clock.advance(1)
    chart = log.chart(STATE, *lately(log, HOUR_US))
    assert chart is not None and [one["value"] for one in chart.states] == [f"s{number}" for number in range(10)]
    [gap] = chart.gaps
    assert gap["reason"] == "lost" and chart.states[-1]["to"] == gap["from"]


def test_nothing_is_known_of_the_future(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put(LAMP, "ON", f"<{v.DESIRED_STATE}>")
    log.put(STATE, None)
    log.clock.advance(60)

    def check() -> None:
        now = iso(log.clock.now)
        lamp = log.chart(LAMP, log.now_us - HOUR_US, log.now_us + HOUR_US)
        state = log.chart(STATE, log.now_us - HOUR_US, log.now_us + HOUR_US)
        assert lamp is not None and [one["to"] for one in lamp.states] == [now]
        assert state is not None and [one["to"] for one in state.gaps] == [now]

    each_index(log, check)


def test_values_behind_segments_of_a_clock_that_was_wrong_are_found(tmp_path: Path) -> None:
    log = Log(tmp_path)
    begin_us = log.now_us
    log.put(NUMBER, 1.0)
    log.seal()
    log.clock.step(timedelta(days=-300))
    log.put(NUMBER, 2.0)
    log.seal()
    log.clock.step(timedelta(days=300))
    log.clock.advance(60)
    log.put(NUMBER, 3.0)

    def check() -> None:
        chart = log.chart(NUMBER, begin_us - HOUR_US, log.now_us)
        assert chart is not None and [point[1] for point in chart.points] == [1.0, 3.0]

    each_index(log, check)


def test_what_has_a_source_and_no_value_has_no_chart(tmp_path: Path) -> None:
    log = Log(tmp_path)
    term = literal(iso(log.clock.now), datatype=f"{XSD}dateTime")
    log.append(QuadDelta((), (Quad(BROKER, f"<{v.SINCE}>", term, None),), ()))
    assert log.chart(STATE, *lately(log, HOUR_US), sources=(BROKER,)) is None


def test_an_index_that_would_be_too_large_leads_to_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (indexing, series_index):
        monkeypatch.setattr(module, "INDEX_BYTES_MAX", 2_000)
    log = Log(tmp_path)
    chance = random.Random(1)
    for _ in range(200):
        log.clock.advance(1)
        log.put(STATE, chance.randbytes(20).hex())
    whole = log.chart(STATE, *lately(log, HOUR_US))
    log.seal()
    assert index(tmp_path) == 1 and index(tmp_path) == 0  # it is not made again and again
    assert log.chart(STATE, *lately(log, HOUR_US)) == whole is not None
