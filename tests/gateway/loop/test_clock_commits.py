"""Comparisons with the clock in a gateway: a commit at each instant, in the log, in order with the updates, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import ChangeLogError, GatewayError
from lamplighter.engine.protocol import Results
from lamplighter.gateway.clock import iso
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop import reactions as reactions_of_loop
from lamplighter.gateway.loop import scheduler as scheduling
from lamplighter.gateway.loop.runner import Runner
from tests.support.event_loops import until
from tests.support.gateway_parts import (
    START,
    FakeClock,
    application,
    idle,
    reactions,
    records,
    recovered_runner,
    time_passes,
    update,
)

PREFIX = (
    "PREFIX : <http://example.org/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
    "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
)
OPEN = PREFIX + "SELECT ?door { ?door :openSince ?t FILTER(gateway:now() - ?t >= 'PT5M'^^xsd:dayTimeDuration) }"
MINUTE = timedelta(minutes=1)


def opened(door: str, at: datetime = START) -> str:
    return f"{PREFIX} INSERT DATA {{ :{door} :openSince '{iso(at)}'^^xsd:dateTime }}"


def closed(door: str) -> str:
    return f"{PREFIX} DELETE WHERE {{ :{door} :openSince ?t }}"


class Ear:
    """A subscriber: rows added and removed, by notification."""

    client, identity, since = "test", None, None

    def __init__(self) -> None:
        self.connection = self
        self.first: list[str] = []
        self.told: list[tuple[int, list[str], list[str]]] = []

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self.first = _names(subscription.first)

    def notify(self, notification: Notification, results: Results) -> None:
        self.told.append((notification.sequence, _names(notification.added), _names(notification.removed)))

    def ended(self, spuid: str, error: GatewayError) -> None:
        raise AssertionError(error)


def _names(bag: Any) -> list[str]:
    return sorted(row[0].removeprefix("<http://example.org/").removesuffix(">") for row in bag)


async def listening(runner: Runner, text: str = OPEN) -> Ear:
    ear = Ear()
    await runner.subscribe(text, ear, None, None)  # type: ignore[arg-type]
    return ear


def clock_commits(log: Sequence[Record]) -> list[tuple[int, str]]:
    """(sequence, instant) of each commit of the clock."""
    return [
        (record.seq, record.cause.id)
        for record in log
        if record.cause is not None and record.cause.kind == "clock" and record.cause.id[0].isdigit()
    ]


async def test_a_row_appears_by_a_commit_of_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a"))
        await time_passes(runner, clock, 299.999)
        assert ear.told == []
        await time_passes(runner, clock, 0.001)
        assert ear.told == [(1, ["a"], [])]
        await update(runner, closed("a"))
        assert ear.told[1:] == [(2, [], ["a"])]
    log = records(tmp_path)
    assert clock_commits(log) == [(2, iso(START + 5 * MINUTE))]
    assert [(record.seq, record.type, bool(record.a or record.d)) for record in log] == [
        (1, "commit", True),
        (2, "commit", False),
        (3, "commit", True),
    ]


async def test_a_commit_has_the_instant_that_it_was_followed_with_where_that_is_not_its_time(tmp_path: Path) -> None:
    clock = FakeClock(trusted=False)
    async with recovered_runner(tmp_path, clock) as runner:
        await listening(runner)
        clock.advance(1)
        await update(runner, opened("a"))
        clock.synchronised = True
        await update(runner, opened("b"))
    assert [record.instant for record in records(tmp_path) if record.a] == [iso(START), ""]


async def test_one_job_wakes_the_gateway_at_the_next_instant(tmp_path: Path) -> None:
    """Nobody asks for anything, and nothing looks: only the job of APScheduler runs."""
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a", START - 5 * MINUTE + timedelta(milliseconds=20)))
        assert ear.told == []
        clock.advance(0.02)
        await until(lambda: bool(ear.told))
    assert len(clock_commits(records(tmp_path))) == 1


async def test_rows_of_one_instant_have_one_commit_and_those_of_two_have_two(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        for door, s in (("a", 0), ("b", 0), ("c", 1)):
            await update(runner, opened(door, START + timedelta(seconds=s)))
        await time_passes(runner, clock, 301)
        assert ear.told == [(1, ["a", "b"], []), (2, ["c"], [])]


async def test_what_is_due_comes_before_the_update_that_comes_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a"))
        clock.advance(301)  # and no timer has run yet
        await update(runner, closed("a"))
        assert ear.told == [(1, ["a"], []), (2, [], ["a"])]


async def test_the_first_result_is_one_of_now(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, opened("a"))
        clock.advance(600)
        ear = await listening(runner)
        assert (ear.first, ear.told) == (["a"], [])


async def test_an_untrusted_clock_waits(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a"))
        clock.synchronised = False
        await time_passes(runner, clock, 3600)
        await runner._clock_commits.fire()
        await update(runner, opened("b"))
        assert ear.told == []
        clock.synchronised = True
        await time_passes(runner, clock)
        assert ear.told == [(1, ["a", "b"], [])]


async def test_many_instants_that_are_due_keep_a_request_waiting_for_some_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.loop.clock_commits.AT_ONCE_MAX", 2)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        for number in range(5):
            await update(runner, opened(f"d{number}", START + timedelta(milliseconds=10 * number)))
        clock.advance(300.5)
        await update(runner, opened("late", START + timedelta(hours=1)))
        assert [added for _, added, _ in ear.told] == [["d0"], ["d1"]]
        await time_passes(runner, clock)
        assert [added for _, added, _ in ear.told] == [[f"d{number}"] for number in range(5)]


@pytest.mark.parametrize("by", [timedelta(days=14), timedelta(minutes=10)])
async def test_a_step_forth_and_back_is_followed(
    tmp_path: Path, by: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_LOOK_S", 0.02)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a"))
        clock.step(by)
        await until(lambda: len(ear.told) == 1)
        clock.step(-by)
        await until(lambda: len(ear.told) == 2)
        await time_passes(runner, clock, 300)
        assert ear.told == [(1, ["a"], []), (2, [], ["a"]), (3, ["a"], [])]
    assert [instant for _, instant in clock_commits(records(tmp_path))] == [
        iso(START + by),
        iso(START),
        iso(START + 5 * MINUTE),
    ]


async def test_what_the_log_does_not_take_is_due_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        ear = await listening(runner)
        await update(runner, opened("a"))
        append = LogWriter.append
        with monkeypatch.context() as full:

            def refuse(log: LogWriter, *arguments: Any) -> Record:
                raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")

            full.setattr(LogWriter, "append", refuse)
            clock.advance(300)
            with pytest.raises(ChangeLogError):
                await update(runner, opened("b"))
        assert LogWriter.append is append
        assert ear.told == []
        await time_passes(runner, clock)
        assert ear.told == [(1, ["a"], [])]


ALARM = {
    "namespaces": {
        "": "http://example.org/",
        "gateway": "http://lamplighter.example/ns/gateway#",
        "xsd": "http://www.w3.org/2001/XMLSchema#",
    },
    "queries": {"OPEN": {"sparql": OPEN.removeprefix(PREFIX)}},
    "updates": {
        "ON": {"sparql": "INSERT { [] :alarm ?door } WHERE {}", "forcedBindings": {"door": {"type": "uri"}}},
        "OFF": {"sparql": "INSERT { [] :calm ?door } WHERE {}", "forcedBindings": {"door": {"type": "uri"}}},
    },
    "extended": {"lamplighter": {"aggregators": {"a": {"query": "OPEN", "added": "ON", "removed": "OFF"}}}},
}


async def test_reactions_to_the_clock_are_not_those_to_the_request_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactions_of_loop, "REACTIONS_MAX", 2)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [application("alarm", ALARM)]) as runner:
        for number in range(5):
            await update(runner, opened(f"d{number}", START + timedelta(seconds=number)))
        await time_passes(runner, clock, 301)
        for _ in range(3):
            await time_passes(runner, clock, 1)
    assert [name for name, _ in reactions(tmp_path)] == ["alarm/a/added"] * 5


@pytest.mark.parametrize("snapshot", [False, True])
async def test_an_application_reacts_once_to_what_became_due_while_the_gateway_was_off(
    tmp_path: Path, snapshot: bool
) -> None:
    clock, applications = FakeClock(), [application("alarm", ALARM)]
    async with recovered_runner(tmp_path, clock, applications) as runner:
        await update(runner, opened("a"))
        await update(runner, PREFIX + "INSERT DATA { :some :other :thing }")  # the last record is held back
        if snapshot:
            await runner.log_keeper.take_snapshot()
    for _ in range(2):
        clock.advance(3600)
        async with recovered_runner(tmp_path, clock, applications) as runner:
            await until(lambda: not runner._clock_commits.due)
            await idle(runner)
    [(sequence, instant)] = clock_commits(records(tmp_path))
    assert instant == iso(START + timedelta(hours=1))  # one commit for all that is late
    assert reactions(tmp_path) == [("alarm/a/added", sequence)]


async def test_reaction_that_the_log_refused_comes_before_the_next_update(tmp_path: Path) -> None:
    """Its trigger was appended by a clock that was set back."""
    clock, refusals = FakeClock(), 1
    async with recovered_runner(tmp_path, clock, [application("alarm", ALARM)]) as runner:
        await update(runner, opened("a"))
        await time_passes(runner, clock, 301)
        append = runner._log.append

        def appended(entry: LogEntry, *more: Any) -> Record:
            nonlocal refusals
            if entry.cause is not None and entry.cause.kind == "application" and refusals:
                refusals -= 1
                raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")
            return append(entry, *more)

        runner._log.append = appended  # type: ignore[method-assign]
        clock.step(-timedelta(seconds=120))
        with suppress(ChangeLogError):
            await runner._clock_commits.fire()
        assert not refusals
        await update(runner, PREFIX + " INSERT DATA { :x :unrelated 1 }")
    kinds = [record.cause.kind for record in records(tmp_path) if record.cause is not None]
    assert kinds[-3:] == ["clock", "application", "http"]
