"""Delayed updates follow the monotonic clock. Each runs exactly once and never early."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.change_log import Cause, Missed, Record, Timer
from lamplighter.engine.errors import (
    ChangeLogError,
    LimitExceededError,
    MalformedRequestError,
    RequestSyntaxError,
    UnknownDelayedError,
)
from lamplighter.engine.protocol import GATEWAY_KINDS, requests
from lamplighter.gateway.clock import MachineClock, iso
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop import scheduler as scheduling
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.scheduler import Scheduler
from lamplighter.gateway.settings import DelayedSettings, Settings
from lamplighter.gateway.state.delayed import (
    CLOCK,
    LISTED_MAX,
    DelayedState,
    DelayedUpdates,
    Pending,
    at_moment,
    delay_us,
    missed_policy,
)
from lamplighter.gateway.systemd import fields
from tests.support.amounts import Amounts
from tests.support.event_loops import until
from tests.support.fault_rig import SimulatedLoop
from tests.support.gateway_parts import (
    CLIENT,
    START,
    FakeClock,
    due_times,
    dump,
    idle,
    rearm,
    records,
    recovered_runner,
    runner_over,
    running,
    time_passes,
    update,
)
from tests.support.places import ROOT
from tests.support.tables import each_row

TWO_WEEKS = timedelta(days=14)
SECOND = timedelta(seconds=1)


def insert(name: object) -> str:
    return f"INSERT DATA {{ <http://e/{name}> <http://e/p> 1 }}"


def there(runner: Runner) -> list[str]:
    """The names that `insert` inserted."""
    return [line.decode().partition(">")[0].rpartition("/")[2] for line in dump(runner)]


# --- what is asked for ---


@each_row(
    ("text", "expected"),
    [
        ("PT30S", 30_000_000),
        ("PT0.5S", 500_000),
        ("PT0.000001S", 1),
        ("PT36H", 129_600_000_000),
        ("P1DT1H", 90_000_000_000),
        ("P1DT1H2M3S", 90_123_000_000),
        ("PT0S", 0),
        ("P2W", 1_209_600_000_000),
        ("P3650D", 315_360_000_000_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert delay_us(text) == expected


BAD_DURATIONS = ["", "30", "30S", "P", "PT", "P1DT", "PT30", "-PT5S", "P1Y", "P1M", "P11Y", "PT5S ", "P3651D"]
BAD_DURATIONS += ["P999999999999D", f"P{'9' * 60}D", f"P{'9' * 9999}D", f"PT{'9' * 400}S", "PT1e5S", "PTNaNS"]
BAD_DURATIONS += ["pt30s", "PT0.5H", "P1.5D", "PT1,5S", "P1W2D", "P1WT1S", "PT30S\n", "+PT5S", "PT٣S", "PT.5S", "PT5.S"]
BAD_DURATIONS += ["P0001-01-01T00:00:00", "PT1S1M", "P1DT", "P1D1H", "-P1D", "P1Y2D", "P1M2D", "P1H"]


@each_row("text", BAD_DURATIONS)
def test_a_bad_duration_is_named(text: str) -> None:
    with pytest.raises(MalformedRequestError, match=r"^delay: "):
        delay_us(text)


@each_row(
    ("text", "expected"),
    [
        ("2030-01-01T08:00:00Z", datetime(2030, 1, 1, 8, tzinfo=UTC)),
        ("2030-01-01T08:00:00+02:00", datetime(2030, 1, 1, 6, tzinfo=UTC)),
        ("2030-01-01T08:00:00.000001Z", datetime(2030, 1, 1, 8, 0, 0, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        ("2030-01-01T08:00:00.1234567Z", datetime(2030, 1, 1, 8, 0, 0, 123456, tzinfo=UTC)),
        ("2030-12-31T24:00:00Z", datetime(2031, 1, 1, tzinfo=UTC)),
        ("2030-01-01T08:00:00-14:00", datetime(2030, 1, 1, 22, tzinfo=UTC)),
    ],
)
def test_moments(text: str, expected: datetime) -> None:
    assert at_moment(text) == expected
    assert at_moment(iso(at_moment(text))) == expected, "as the change log writes it"


BAD_MOMENTS = ["", "T", "2030-01-01", "2030-01-01T08:00:00", "2030-02-30T00:00:00Z", "tomorrow", "2030-01-01T25:00:00Z"]
BAD_MOMENTS += ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2030-01-01T00:00:00+99:00"]
BAD_MOMENTS += ["2030-W01-1T08:00:00Z", "2030-001T08:00:00Z", "20300101T080000Z", "2030-01-01T08:00Z", "2030-01-01T08Z"]
BAD_MOMENTS += ["2030-01-01T08:00:00,5Z", "2030-01-01T08:00:00.Z", "2030-01-01T08:00:60Z", "2030-01-01T24:00:01Z"]
BAD_MOMENTS += ["2030-01-01T08:00:00+02", "2030-01-01T08:00:00+0200", "2030-01-01T08:00:00+14:01", "2030-1-1T08:00:00Z"]
BAD_MOMENTS += ["2030-01-01 08:00:00Z", "2030-01-01t08:00:00z", "2030-01-01T08:00:00Z\n", "-2030-01-01T08:00:00Z"]
BAD_MOMENTS += ["12030-01-01T08:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T24:00:00Z", "2030-01-01T08:00:00 02:00"]
BAD_MOMENTS += [f"2030-01-01T08:00:00.{'0' * 9999}Z", "٢٠٣٠-01-01T08:00:00Z"]


@each_row("text", BAD_MOMENTS)
def test_a_bad_moment_is_named(text: str) -> None:
    with pytest.raises(MalformedRequestError, match=r"^at: "):
        at_moment(text)


@each_row(
    ("text", "said"),
    [
        ("P1Y", "years or months"),
        ("-PT5S", "not between 0 and 3650 days"),
        (f"P{'9' * 60}D", "not between 0 and 3650 days"),
        ("30S", "not an ISO 8601 duration"),
    ],
)
def test_what_is_wrong_with_a_duration_is_said(text: str, said: str) -> None:
    with pytest.raises(MalformedRequestError, match=said):
        delay_us(text)


@each_row(
    ("text", "said"),
    [
        ("2030-01-01T08:00:00", "names no time zone"),
        ("2030-01-01T08:00:00 02:00", "%2B"),
        ("2030-02-30T00:00:00Z", "no day"),
        ("12030-01-01T08:00:00Z", "no day of the years 1 to 9999"),
        ("2030-W01-1T08:00:00Z", "not an xsd:dateTime"),
    ],
)
def test_what_is_wrong_with_a_moment_is_said(text: str, said: str) -> None:
    with pytest.raises(MalformedRequestError, match=said):
        at_moment(text)


def test_the_policy_for_missed_ones_is_one_of_two() -> None:
    assert [missed_policy(text) for text in (None, "run", "skip")] == [None, "run", "skip"]
    for text in ("", "Run", "runskip", "later"):
        with pytest.raises(MalformedRequestError, match="neither run nor skip"):
            missed_policy(text)


async def test_what_cannot_be_done_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    settings = Settings(delayed=DelayedSettings(pending_max=1))
    async with recovered_runner(tmp_path, settings=settings) as runner:
        before = len(records(tmp_path))
        with pytest.raises(MalformedRequestError, match="delay or at"):
            await update(runner, insert(1), delay="PT1S", at="2030-01-01T00:00:00Z")
        with pytest.raises(MalformedRequestError, match=r"^delay: "):
            await update(runner, insert(1), delay="P999999999999D")
        with pytest.raises(MalformedRequestError, match=r"^at: "):
            await update(runner, insert(1), at="9999-12-31T23:59:59-14:00")
        with pytest.raises(RequestSyntaxError):
            await update(runner, "INSERT DATA {", delay="PT1S")
        with pytest.raises(MalformedRequestError, match="missed applies to delayed updates"):
            await update(runner, insert(1), missed="skip")
        with pytest.raises(UnknownDelayedError):
            await runner.updates.cancel("nothing", CLIENT)
        assert len(records(tmp_path)) == before
        await update(runner, insert(1), delay="PT1S")
        with pytest.raises(LimitExceededError, match="pending_max"):
            await update(runner, insert(2), delay="PT1S")


# --- due ---


async def test_a_delay_is_over_exactly_by_boot_time(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        accepted = await update(runner, insert("late"), delay="PT30S")
        assert accepted.delayed is not None
        await time_passes(runner, clock, 29.999999)
        assert there(runner) == []
        await time_passes(runner, clock, 0.000001)
        assert there(runner) == ["late"]
        assert runner.delayed_updates() == []
        fired = records(tmp_path)[-1]
        assert fired.cause == Cause("timer", accepted.delayed, accepted.sequence)
        await time_passes(runner, clock, 3600)
        assert records(tmp_path)[-1] == fired


@pytest.mark.parametrize("step", [TWO_WEEKS, -TWO_WEEKS])
async def test_a_stepped_wall_clock_moves_no_delay(tmp_path: Path, step: timedelta) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("b"), delay="PT30S")
        clock.step(step)
        await time_passes(runner, clock, 10)
        await update(runner, insert("a"), delay="PT10S")  # others wake the scheduler in between
        clock.step(step)
        await time_passes(runner, clock, 9.999999)
        assert there(runner) == []
        await time_passes(runner, clock, 0.000001)
        assert there(runner) == ["a"]
        clock.step(-step)
        await time_passes(runner, clock, 9.999999)
        assert there(runner) == ["a"]
        await time_passes(runner, clock, 0.000001)
        assert there(runner) == ["a", "b"]


async def test_at_follows_the_wall_clock_and_waits_until_it_is_trusted(tmp_path: Path) -> None:
    clock = FakeClock(trusted=False)
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("at"), at=iso(START + 100 * SECOND))
        clock.step(TWO_WEEKS)
        await time_passes(runner, clock, 1)
        assert there(runner) == []
        assert [row["state"] for row in runner.delayed_updates()] == ["waiting for a trusted clock"]
        clock.step(-TWO_WEEKS)
        clock.synchronised = True
        await time_passes(runner, clock, 98.999999)
        assert there(runner) == []
        assert [row["state"] for row in runner.delayed_updates()] == ["pending"]
        await time_passes(runner, clock, 0.000001)
        assert there(runner) == ["at"]


async def test_a_step_of_the_clock_is_noticed_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler looks itself, once a second; here nobody re-arms it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(scheduling, "_LOOK_S", 0.02)
    clock = FakeClock(trusted=False)
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("at"), at=iso(START + 100 * SECOND))
        await idle(runner)
        clock.now += 200 * SECOND
        clock.synchronised = True
        await until(lambda: there(runner) == ["at"])
        [change] = [fields(line) for line in caplog.records if "clock changed" in line.getMessage()]
        assert (change["STEPPED_S"], change["TRUSTED"]) == ("200.0", "True")


async def test_time_in_suspension_counts_without_being_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that sleeps stops the timers of the loop, but not CLOCK_BOOTTIME; both its clocks go on."""
    monkeypatch.setattr(scheduling, "_LOOK_S", 0.02)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("late"), delay="PT1H")
        await idle(runner)
        clock.advance(3600)
        await until(lambda: there(runner) == ["late"])


async def test_an_earlier_one_is_not_kept_waiting_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the clocks of the machine: the scheduler sleeps for the long one and must wake for the short one."""
    monkeypatch.setattr(scheduling, "_LOOK_S", 3600.0)  # it does not find the short one by itself
    runner = runner_over(tmp_path, MachineClock("always"))
    runner.recover()
    async with running(runner):
        await update(runner, insert("long"), delay="PT1H")
        await idle(runner)
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        await update(runner, insert("short"), delay="PT0.3S")
        await until(lambda: there(runner) == ["short"])
        assert time.clock_gettime(time.CLOCK_BOOTTIME) - before >= 0.3


async def test_due_ones_happen_in_the_order_in_which_they_fell_due(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for name, delay in (("c", "PT3S"), ("a", "PT1S"), ("b", "PT2S")):
            await update(runner, f"DELETE WHERE {{ <http://e/last> ?p ?o }} ; {insert(name)}", delay=delay)
        await time_passes(runner, clock, 60)
        fired = [record.a[0].s for record in records(tmp_path) if record.type == "commit"]
        assert fired == ["<http://e/a>", "<http://e/b>", "<http://e/c>"]


async def test_thousands_may_be_pending_and_due_at_once(tmp_path: Path, amounts: Amounts) -> None:
    count = amounts.of(3000, least=LISTED_MAX + 1)
    clock = FakeClock()
    settings = msgspec.structs.replace(Settings(), gateway=msgspec.structs.replace(Settings().gateway, queue_max=count))
    async with recovered_runner(tmp_path, clock, settings=settings) as runner:
        calls = [asyncio.create_task(update(runner, insert(n), delay=f"PT{1 + n % 7}S")) for n in range(count)]
        await asyncio.gather(*calls)
        assert runner.delayed_count == count
        assert len(runner.delayed_updates()) == LISTED_MAX
        await time_passes(runner, clock, 1)
        assert len(there(runner)) == len(range(0, count, 7))
        await time_passes(runner, clock, 6)
        assert sorted(map(int, there(runner))) == list(range(count))
        fired = [record.cause.id for record in records(tmp_path) if record.cause and record.cause.kind == "timer"]
        assert len(fired) == len(set(fired)) == count


async def test_a_cancelled_one_never_happens(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        first = await update(runner, insert("a"), delay="PT10S")
        await update(runner, insert("b"), delay="PT10S")
        third = await update(runner, insert("c"), at=iso(START + 10 * SECOND))
        assert first.delayed is not None
        assert third.delayed is not None
        await runner.updates.cancel(first.delayed, CLIENT)
        await runner.updates.cancel(third.delayed, CLIENT)
        with pytest.raises(UnknownDelayedError):
            await runner.updates.cancel(first.delayed, CLIENT)
        await time_passes(runner, clock, 60)
        assert there(runner) == ["b"]
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock, 60)
        assert there(runner) == ["b"]


async def test_one_that_is_cancelled_while_its_turn_comes_does_not_happen(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        accepted = await update(runner, insert("a"), delay="PT10S")
        assert accepted.delayed is not None
        cancelled = runner.updates.cancel(accepted.delayed, CLIENT)
        fired = asyncio.create_task(runner._timers.fire(accepted.delayed))
        await cancelled
        await fired
        assert there(runner) == []
        assert [record.type for record in records(tmp_path)] == ["timer", "cancel"]


async def test_one_whose_effect_fails_is_recorded_as_fired_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, "CREATE GRAPH <http://e/g>")
        await update(runner, "CREATE GRAPH <http://e/g>", delay="PT1S")
        await time_passes(runner, clock, 1)
        assert runner.delayed_updates() == []
        last = records(tmp_path)[-1]
        assert (last.type, last.delta.changes) == ("commit", False)
        assert last.cause is not None
        assert last.cause.kind == "timer"
        [failed] = [record for record in caplog.records if "update failed" in record.getMessage()]
        assert fields(failed)["TIMER_ID"] == last.cause.id


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_fire_whose_record_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(scheduling, "_RETRY_S", 0.01)
    really_append = LogWriter.append
    failed: list[Cause] = []

    def append(log: LogWriter, entry: LogEntry, *clocks: Any) -> Record:
        cause = entry.cause
        if cause is not None and cause.kind == "timer" and len(failed) < failures:
            failed.append(cause)
            raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")
        return really_append(log, entry, *clocks)

    monkeypatch.setattr(LogWriter, "append", append)

    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, "INSERT { [] <http://e/p> 1 } WHERE {}", delay="PT1S")
        clock.advance(1)
        rearm(runner)
        await until(lambda: runner.delayed_updates() == [])
        await time_passes(runner, clock, 60)
        assert len(dump(runner)) == 1
        assert [record.type for record in records(tmp_path)] == ["timer", "commit"]
    async with recovered_runner(tmp_path, clock) as runner:
        assert len(dump(runner)) == 1
    assert len(failed) == failures


async def test_what_is_due_when_the_gateway_starts_happens_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("a"), delay="PT10S")
        await update(runner, insert("b"), at=iso(START + 10 * SECOND))
    clock.advance(3600)
    async with recovered_runner(tmp_path, clock) as runner:
        await until(lambda: there(runner) == ["a", "b"])


# --- across restarts of the machine ---


def timer_record(clock: FakeClock, name: str, *, delay_s: int) -> Record:
    return Record(
        v=1,
        type="timer",
        gw="gw-1",
        epoch=1,
        seq=1,
        ts=iso(clock.wall()),
        trusted=clock.trusted(),
        boot=clock.boot,
        boottime_us=clock.boottime_us(),
        timer=Timer(name, insert(name), delay_us=delay_s * 1_000_000),
    )


def other_record(clock: FakeClock) -> Record:
    return msgspec.structs.replace(timer_record(clock, "x", delay_s=0), type="commit", timer=None)


def left_s(clock: FakeClock, log: Sequence[Record]) -> float:
    """Seconds until the only pending one is due, after a restart with that log."""
    updates = DelayedUpdates(clock)
    for record in log:
        updates.follow(record)
    updates.rebase()
    wait = updates.next_in(set())
    assert wait is not None
    return wait.total_seconds()


def test_within_a_boot_the_restart_of_the_gateway_changes_nothing() -> None:
    clock = FakeClock(trusted=False)
    log = [timer_record(clock, "a", delay_s=100)]
    clock.advance(40)
    clock.step(TWO_WEEKS)
    assert left_s(clock, log) == 60


def test_with_trusted_clocks_the_time_off_counts() -> None:
    clock = FakeClock()
    log = [timer_record(clock, "a", delay_s=100)]
    clock.advance(10)
    clock.reboot("boot-2", off_s=40, uptime_s=5)
    assert left_s(clock, log) == 45
    clock.advance(100)
    assert left_s(clock, log) == -55  # due at once


@each_row(("then", "now"), [(False, False), (True, False), (False, True)])
def test_without_a_trusted_clock_only_proven_time_counts(then: bool, now: bool) -> None:
    clock = FakeClock(trusted=then)
    log = [timer_record(clock, "a", delay_s=100)]
    clock.advance(10)
    log.append(other_record(clock))
    clock.advance(7)  # nothing was written any more, so nobody knows
    clock.reboot("boot-2", off_s=40, uptime_s=5)
    clock.step(-TWO_WEEKS if now else TWO_WEEKS)
    clock.synchronised = now
    assert left_s(clock, log) == 100 - 10 - 5
    log.append(other_record(clock))
    clock.advance(20)
    assert left_s(clock, log) == 100 - 10 - 25, "a restart of the gateway alone gives no time back"
    log.append(other_record(clock))
    clock.reboot("boot-3", off_s=40, uptime_s=3)
    assert left_s(clock, log) == 100 - 10 - 25 - 3 - (40 if now else 0), "since boot-2 the clock can be trusted"


def test_a_snapshot_proves_the_time_until_it_was_taken() -> None:
    clock = FakeClock(trusted=False)
    updates = DelayedUpdates(clock)
    updates.follow(timer_record(clock, "a", delay_s=100))
    clock.advance(40)
    state = updates.state()
    clock.reboot("boot-2", off_s=40, uptime_s=5)
    restored = DelayedUpdates(clock)
    restored.restore(state)
    restored.follow(other_record(clock))
    restored.rebase()
    assert restored.next_in(set()) == timedelta(seconds=100 - 40 - 5)


def test_a_snapshot_before_anything_is_recorded_in_a_boot_has_the_time_of_the_one_before() -> None:
    clock = FakeClock(trusted=False)
    updates = DelayedUpdates(clock)
    updates.follow(timer_record(clock, "a", delay_s=100))
    clock.reboot("boot-2", uptime_s=1000)
    state = updates.state()
    assert state.boot is not None
    assert (state.boot.boot, state.boot.uptime_us) == ("boot-1", 60_000_000)


def test_a_record_of_the_clocks_tells_of_a_step_however_soon_it_comes() -> None:
    """Of the others, one a second does."""
    clock = FakeClock()
    updates = DelayedUpdates(clock)
    updates.follow(timer_record(clock, "a", delay_s=100))
    clock.advance(0.5)
    clock.step(TWO_WEEKS)
    for cause, steady_since_us in ((Cause("http", "x"), 0), (Cause(CLOCK, "stepped"), clock.boottime_us())):
        updates.follow(msgspec.structs.replace(other_record(clock), cause=cause))
        boot = updates.state().boot
        assert boot is not None
        assert boot.steady_since_us == steady_since_us


def test_a_delay_is_never_longer_than_it_was_nor_negative() -> None:
    clock = FakeClock()
    log = [timer_record(clock, "a", delay_s=100)]
    clock.reboot("boot-2", uptime_s=0)
    clock.step(-TWO_WEEKS)  # trusted, and before the record all the same
    assert left_s(clock, log) == 100


async def test_a_rebased_one_fires_once_and_can_be_cancelled(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("a"), delay="PT1H")
        cancelled = await update(runner, insert("b"), delay="PT1H")
        kept = await update(runner, insert("c"), at=iso(START + timedelta(hours=1)))
    clock.reboot("boot-2", off_s=600, uptime_s=10)
    async with recovered_runner(tmp_path, clock) as runner:
        assert cancelled.delayed is not None
        await runner.updates.cancel(cancelled.delayed, CLIENT)
        assert [row["due"] for row in runner.delayed_updates()] == [iso(START + timedelta(hours=1))] * 2
        await time_passes(runner, clock, 3600 - 610 - 1)
        assert there(runner) == []
    clock.reboot("boot-3", uptime_s=0)
    async with recovered_runner(tmp_path, clock) as runner:
        assert [sequence for sequence, _, _ in due_times(runner)] == [1, kept.sequence]
        await time_passes(runner, clock, 1)
        assert there(runner) == ["a", "c"]
    clock.reboot("boot-4")
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock, 7200)
        assert there(runner) == ["a", "c"]
        assert [record.type for record in records(tmp_path) if not (record.cause and record.cause.kind == CLOCK)] == [
            *["timer"] * 3,
            "cancel",
            *["commit"] * 2,
        ]


async def test_the_table_tells_what_is_pending(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        accepted = await update(runner, insert("a"), delay="PT1H")
        clock.advance(60)
        clock.step(TWO_WEEKS)
        assert runner.delayed_updates() == [
            {
                "id": accepted.delayed,
                "state": "pending",
                "due": iso(START + TWO_WEEKS + timedelta(hours=1)),
                "in_s": 3540.0,
                "set": iso(START),
                "sequence": 1,
                "cause": {"kind": "http", "id": "test", "seq": None},
                "client": None,
                "missed": "run",
                "update": insert("a"),
            }
        ]
        clock.advance(3540)
        assert [(row["state"], row["in_s"]) for row in runner.delayed_updates()] == [("late", 0.0)]


def test_the_table_has_as_many_rows_as_are_asked_for() -> None:
    clock = FakeClock(trusted=False)
    updates = DelayedUpdates(clock)
    updates.rebase()
    updates.follow(timer_record(clock, "a", delay_s=100))
    for name in "bcd":
        record = timer_record(clock, name, delay_s=0)
        assert record.timer is not None
        timer = msgspec.structs.replace(record.timer, delay_us=None, at=iso(START))
        updates.follow(msgspec.structs.replace(record, timer=timer))
    for limit in range(1, 6):
        assert [row["id"] for row in updates.table(limit=limit)] == list("abcd")[:limit]


# --- missed while the gateway was off ---


def outcomes(data: Path) -> list[tuple[str, str]]:
    """(type, kind of cause) of what became of the delayed updates."""
    ends = [record for record in records(data) if record.cause and record.cause.kind in ("timer", "missed")]
    return [(record.type, record.cause.kind) for record in ends if record.cause]


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize("member", [{"delay": "PT10S"}, {"at": iso(START + 10 * SECOND)}], ids=["delay", "at"])
@pytest.mark.parametrize(("policy", "happens"), [(None, True), ("run", True), ("skip", False)])
async def test_one_that_was_missed_is_run_or_skipped_and_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    policy: Missed | None,
    happens: bool,
    member: dict[str, str],
    boot: str,
) -> None:
    caplog.set_level("INFO")
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        missed = await update(runner, insert("missed"), missed=policy, **member)
        await update(runner, insert("later"), delay="PT1H", missed="skip")
        assert [row["missed"] for row in runner.delayed_updates()] == [policy or "run", "skip"]
    if boot == clock.boot:
        clock.advance(30)
    else:
        clock.reboot(boot, off_s=25, uptime_s=5)
    for _ in range(2):  # and it stays so
        async with recovered_runner(tmp_path, clock) as runner:
            await time_passes(runner, clock)
            assert there(runner) == (["missed"] if happens else [])
            assert outcomes(tmp_path) == [("commit", "timer") if happens else ("cancel", "missed")]
            assert runner.delayed_count == 1
    said = f"delayed update missed id={missed.delayed} due={iso(START + 10 * SECOND)} late_s=20.000"
    assert f"{said} policy={policy or 'run'}" in caplog.text
    assert caplog.text.count("delayed update missed") == 1
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock, 3600 - 30)
        assert there(runner) == (["later", "missed"] if happens else ["later"]), "it was not missed"


async def test_the_policy_is_the_settings_where_an_update_has_none(tmp_path: Path) -> None:
    settings = Settings(delayed=DelayedSettings(missed="skip"))
    async with recovered_runner(tmp_path, settings=settings) as runner:
        await update(runner, insert("a"), delay="PT1S")
        await update(runner, insert("b"), delay="PT2S", missed="run")
        assert [row["missed"] for row in runner.delayed_updates()] == ["skip", "run"]


async def test_one_that_is_due_while_the_gateway_runs_is_not_missed(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("a"), delay="PT10S", missed="skip")
    clock.advance(9.999999)
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("past"), at=iso(START - SECOND), missed="skip")
        await update(runner, insert("now"), delay="PT0S", missed="skip")
        await time_passes(runner, clock, 60)
        assert there(runner) == ["a", "now", "past"]


@pytest.mark.parametrize("step", [timedelta(0), TWO_WEEKS, -TWO_WEEKS])
async def test_whether_an_at_was_missed_is_told_by_the_first_trusted_clock(tmp_path: Path, step: timedelta) -> None:
    """The gateway starts 30 s after START, with a wrong clock, is told the time 20 s later, and then stepped."""
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for second in (29, 31, 49, 51):
            await update(runner, insert(f"at-{second}"), at=iso(START + second * SECOND), missed="skip")
    clock.reboot("boot-2", off_s=25, uptime_s=5)
    clock.synchronised = False
    clock.step(-TWO_WEEKS)
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock, 20)
        clock.step(TWO_WEEKS)
        clock.synchronised = True
        assert runner._delayed.next_in(set()) == -21 * SECOND, "as the scheduler asks each second"
        clock.step(step)
        await time_passes(runner, clock, 5)
        clock.step(-step)
        await time_passes(runner, clock)
        assert there(runner) == ["at-31", "at-49", "at-51"]
        assert outcomes(tmp_path).count(("cancel", "missed")) == 1


async def test_a_missed_one_whose_record_cannot_be_written_is_skipped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_RETRY_S", 0.01)
    really_append = LogWriter.append
    failed: list[str] = []

    def append(log: LogWriter, entry: LogEntry, *clocks: Any) -> Record:
        if entry.type == "cancel" and len(failed) < 3:
            failed.append(entry.type)
            raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")
        return really_append(log, entry, *clocks)

    monkeypatch.setattr(LogWriter, "append", append)

    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("a"), delay="PT1S", missed="skip")
    clock.advance(2)
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock)
        assert there(runner) == []
        assert [record.type for record in records(tmp_path)] == ["timer", "cancel"]
    assert len(failed) == 3


# --- what the log is told of the clocks ---


def clock_records(data: Path) -> list[str]:
    return [record.cause.id for record in records(data) if record.cause and record.cause.kind == CLOCK]


async def test_the_log_is_told_of_the_clocks_while_a_delay_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler looks itself, once a second."""
    monkeypatch.setattr(scheduling, "_LOOK_S", 0.02)
    clock = FakeClock(trusted=False)
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("at"), at=iso(START + timedelta(days=99)))
        clock.step(TWO_WEEKS)
        assert runner._delayed.news() is None, "an `at` does not need it"
        await update(runner, insert("delay"), delay="P1D")
        clock.synchronised = True
        await until(lambda: clock_records(tmp_path) == ["trusted"])
        clock.step(TWO_WEEKS)
        await until(lambda: clock_records(tmp_path) == ["trusted", "stepped"])
        clock.advance(900)
        await until(lambda: clock_records(tmp_path) == ["trusted", "stepped", "running"])
        clock.advance(899)
        clock.step(timedelta(seconds=1.5))
        assert runner._delayed.news() is None
    clock.reboot("boot-2")
    async with recovered_runner(tmp_path, clock) as runner:
        assert clock_records(tmp_path)[3:] == ["boot"]
        await time_passes(runner, clock, 86_400)
        clock.step(TWO_WEEKS)
        assert runner._delayed.news() is None, "nothing is pending"


def written_kinds() -> set[str]:
    """Kinds of causes in the gateway's own source: the first argument of each `Cause`, a text or a constant's name."""
    found: set[str] = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(f"lamplighter.{name}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Cause":
                kind = node.args[0]
                if isinstance(kind, ast.Constant):
                    found.add(kind.value)
                elif isinstance(kind, ast.Name):
                    found.add(getattr(module, kind.id))
    return found


def test_a_client_cannot_write_the_gateway_s_own_causes() -> None:
    assert written_kinds() == set(GATEWAY_KINDS)
    for kind in GATEWAY_KINDS:
        for spelt in (kind, f"{kind}\n", f" {kind}", kind.upper(), f"{kind}\u0000"):
            [error] = requests(json.dumps({"update": {"sparql": "CLEAR ALL", "cause": {"kind": spelt, "id": "x"}}}))
            assert isinstance(error, MalformedRequestError), spelt
    for kind in ("mqtt\n", "", "x" * 33, "Mqtt", "m\u0131ne"):
        [error] = requests(json.dumps({"update": {"sparql": "CLEAR ALL", "cause": {"kind": kind, "id": "x"}}}))
        assert isinstance(error, MalformedRequestError), kind


# --- the order, and what it costs ---


def test_what_is_due_at_the_same_moment_happens_as_it_was_asked_for() -> None:
    clock = FakeClock()
    updates = DelayedUpdates(clock)
    updates.rebase()
    for name in "zyxabc":
        record = timer_record(clock, name, delay_s=10)
        assert record.timer is not None
        if name in "ya":
            record = msgspec.structs.replace(record, timer=Timer(name, "CLEAR ALL", at=iso(START + 10 * SECOND)))
        updates.follow(record)
    clock.advance(10)
    assert [pending.timer.id for pending in updates.due_updates(set(), 10)] == list("zyxabc")
    assert [pending.timer.id for pending in updates.due_updates({"z", "x"}, 2)] == ["y", "a"]
    assert [row["id"] for row in updates.table()] == list("zyxabc")


def test_a_snapshot_has_the_pending_ones_in_order() -> None:
    clock = FakeClock()
    updates = DelayedUpdates(clock)
    for name, delay_s in (("c", 30), ("a", 10), ("b", 10)):
        updates.follow(timer_record(clock, name, delay_s=delay_s))
    updates.follow(msgspec.structs.replace(timer_record(clock, "x", delay_s=0), timer=None, cancel="c"))
    clock.reboot("boot-2")
    updates.rebase()
    encoded = msgspec.json.encode(updates.state())
    restored = DelayedUpdates(clock)
    restored.restore(msgspec.json.decode(encoded, type=DelayedState))
    restored.follow(timer_record(clock, "d", delay_s=1))
    restored.rebase()
    updates.follow(timer_record(clock, "d", delay_s=1))
    assert restored.table() == updates.table()
    assert [pending.timer.id for pending in restored.pending.values()] == ["a", "b", "d"]
    assert msgspec.json.encode(restored.state()) == msgspec.json.encode(updates.state())


class Counting(list[tuple[int, int, str]]):
    """A list that counts how many of its entries are looked at one after the other."""

    seen = 0

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        for entry in super().__iter__():
            self.seen += 1
            yield entry


async def test_thousands_pending_cost_other_updates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_LOOK_S", 3600)  # it looks at the first one now and then
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        updates = runner._delayed
        for number in range(20_000):
            updates.follow(timer_record(clock, f"t{number}", delay_s=3600 + number))
        updates._by_boottime = entries = Counting(updates._by_boottime)
        asked: list[object] = []
        next_in = DelayedUpdates.next_in
        monkeypatch.setattr(DelayedUpdates, "next_in", lambda one, claimed: asked.append(one) or next_in(one, claimed))
        for number in range(20):
            await update(runner, insert(number))
        await idle(runner)
        assert (len(asked), entries.seen) == (0, 0), "nobody looks at them"
        accepted = await update(runner, insert("soon"), delay="PT1S")
        assert accepted.delayed is not None
        await idle(runner)
        assert len(asked) == 1
        await runner.updates.cancel("t10000", CLIENT)
        await time_passes(runner, clock, 1)
        assert entries.seen < 50, "only the first ones are looked at"
        assert "soon" in there(runner)
        assert len(updates) == 20_000 - 1


async def test_no_more_than_a_thousand_or_two_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_LOOK_S", 3600)  # nothing but what is done makes room for more
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for number in range(5000):
            runner._delayed.follow(timer_record(clock, f"t{number}", delay_s=1))
        most = 0
        really_due = runner._delayed.due_updates

        def due(claimed: set[str], limit: int) -> list[Pending]:
            nonlocal most
            found = really_due(claimed, limit)
            if claimed is runner._scheduler._claimed:
                most = max(most, len(claimed) + len(found))
            return found

        monkeypatch.setattr(runner._delayed, "due_updates", due)
        await time_passes(runner, clock, 1)
        assert 1000 <= most <= 1500
        assert runner.delayed_count == 0
        assert runner.counters.delayed_fired == 5000


@contextmanager
def slow_machine() -> Iterator[None]:
    """Takes some microseconds for each call of a function."""

    def burn(*_: object) -> None:
        end = time.perf_counter_ns() + 5_000
        while time.perf_counter_ns() < end:
            pass

    sys.setprofile(burn)
    try:
        yield
    finally:
        sys.setprofile(None)


class Impatient(FakeClock):
    """A clock that is not read over and over again while its time stands still."""

    reads = 0

    def boottime_us(self) -> int:
        self.reads += 1
        assert self.reads < 1000, "the scheduler spins"
        return super().boottime_us()


@each_row("delay_us", [1, 3, 999, 1000, 1001, 1_000_003, 20_000_001])
def test_timers_run_on_the_clock_that_is_passed_in(delay_us: int) -> None:
    """Simulated time passes only while the loop waits. The time that the machine itself takes does not count."""
    clock = Impatient()
    updates = DelayedUpdates(clock)
    updates.rebase()

    async def scenario() -> None:
        happened = asyncio.Event()

        class Executor:
            async def fire(self, name: str) -> None:
                updates.follow(msgspec.structs.replace(other_record(clock), cause=Cause("timer", name)))
                happened.set()

            async def note(self) -> None:
                raise AssertionError("the log knows the clocks")

        scheduler = Scheduler(updates, clock)
        running = asyncio.create_task(scheduler.run(Executor()))
        await asyncio.sleep(0)
        record, begun_us = timer_record(clock, "a", delay_s=0), clock.boottime_us()
        updates.follow(msgspec.structs.replace(record, timer=Timer("a", "CLEAR ALL", delay_us=delay_us)))
        scheduler.rearm()
        await happened.wait()
        assert delay_us <= clock.boottime_us() - begun_us <= delay_us + 10_000
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(clock)) as loop, slow_machine():
        loop.run(scenario())


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_the_ends_of_time_stop_nothing(tmp_path: Path, moment: str) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert("end"), at=moment)
        assert runner._delayed.next_in(set()) is not None
        await time_passes(runner, clock)
        assert there(runner) == (["end"] if moment < "1000" else [])
        runner.delayed_updates()
