"""Delayed updates: due by the clock that nobody steps, never early, never twice, never forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from engine.change_log import Cause, Record, Timer
from engine.errors import (
    ChangeLogError,
    LimitExceededError,
    MalformedRequestError,
    RequestSyntaxError,
    UnknownDelayedError,
)
from gateway import delayed
from gateway.clock import MachineClock, iso
from gateway.delayed import DelayedUpdates, at_moment, delay_us
from gateway.log_writer import LogWriter
from gateway.runner import Runner
from gateway.settings import DelayedSettings, Settings
from tests.gateway_parts import (
    CLIENT,
    START,
    FakeClock,
    due_times,
    dump,
    gateway,
    idle,
    rearm,
    records,
    runner_over,
    running,
    time_passes,
    until,
    update,
)

TWO_WEEKS = timedelta(days=14)
SECOND = timedelta(seconds=1)


def insert(name: object) -> str:
    return f"INSERT DATA {{ <http://e/{name}> <http://e/p> 1 }}"


def there(runner: Runner) -> list[str]:
    """The names that `insert` inserted."""
    return [line.decode().partition(">")[0].rpartition("/")[2] for line in dump(runner)]


# --- what is asked for ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT30S", 30_000_000), ("PT0.5S", 500_000), ("P1DT1H", 90_000_000_000), ("PT0S", 0), ("P2W", 1_209_600_000_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert delay_us(text) == expected


BAD_DURATIONS = ["", "30", "30S", "P", "PT", "P1DT", "PT30", "-PT5S", "P1Y", "P1M", "P11Y", "PT5S ", "P3651D"]
BAD_DURATIONS += ["P999999999999D", f"P{'9' * 400}D", f"PT{'9' * 400}S", "PT1e5S", "PTNaNS"]


@pytest.mark.parametrize("text", BAD_DURATIONS)
def test_a_bad_duration_is_named(text: str) -> None:
    with pytest.raises(MalformedRequestError, match=r"^delay: "):
        delay_us(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-01T08:00:00Z", datetime(2030, 1, 1, 8, tzinfo=UTC)),
        ("2030-01-01T08:00:00+02:00", datetime(2030, 1, 1, 6, tzinfo=UTC)),
        ("2030-01-01T08:00:00.000001Z", datetime(2030, 1, 1, 8, 0, 0, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_moments(text: str, expected: datetime) -> None:
    assert at_moment(text) == expected
    assert at_moment(iso(at_moment(text))) == expected, "as the change log writes it"


BAD_MOMENTS = ["", "T", "2030-01-01", "2030-01-01T08:00:00", "2030-02-30T00:00:00Z", "tomorrow", "2030-01-01T25:00:00Z"]
BAD_MOMENTS += ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2030-01-01T00:00:00+99:00"]


@pytest.mark.parametrize("text", BAD_MOMENTS)
def test_a_bad_moment_is_named(text: str) -> None:
    with pytest.raises(MalformedRequestError, match=r"^at: "):
        at_moment(text)


def test_what_cannot_be_done_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(delayed=DelayedSettings(pending_max=1))
        async with gateway(tmp_path, settings=settings) as runner:
            before = len(records(tmp_path))
            with pytest.raises(MalformedRequestError, match="delay and at"):
                await update(runner, insert(1), delay="PT1S", at="2030-01-01T00:00:00Z")
            with pytest.raises(MalformedRequestError, match=r"^delay: "):
                await update(runner, insert(1), delay="P999999999999D")
            with pytest.raises(MalformedRequestError, match=r"^at: "):
                await update(runner, insert(1), at="9999-12-31T23:59:59-14:00")
            with pytest.raises(RequestSyntaxError):
                await update(runner, "INSERT DATA {", delay="PT1S")
            with pytest.raises(UnknownDelayedError):
                await runner.cancel("nothing", CLIENT)
            assert len(records(tmp_path)) == before
            await update(runner, insert(1), delay="PT1S")
            with pytest.raises(LimitExceededError, match="pending_max"):
                await update(runner, insert(2), delay="PT1S")

    asyncio.run(scenario())


# --- due ---


def test_a_delay_is_over_exactly_by_boot_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("step", [TWO_WEEKS, -TWO_WEEKS])
def test_a_stepped_wall_clock_moves_no_delay(tmp_path: Path, step: timedelta) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
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

    asyncio.run(scenario())


def test_at_follows_the_wall_clock_and_waits_until_it_is_trusted(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock(trusted=False)
        async with gateway(tmp_path, clock) as runner:
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

    asyncio.run(scenario())


def test_a_step_of_the_clock_is_noticed_without_being_told(tmp_path: Path) -> None:
    """The scheduler looks itself, once a second; here nobody re-arms it."""

    async def scenario() -> None:
        clock = FakeClock(trusted=False)
        async with gateway(tmp_path, clock) as runner:
            await update(runner, insert("at"), at=iso(START + 100 * SECOND))
            await idle(runner)
            clock.now += 200 * SECOND
            clock.synchronised = True
            await until(lambda: there(runner) == ["at"])

    asyncio.run(scenario())


def test_time_in_suspension_counts_without_being_told(tmp_path: Path) -> None:
    """A machine that sleeps stops the timers of the loop, but not CLOCK_BOOTTIME; both its clocks go on."""

    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            await update(runner, insert("late"), delay="PT1H")
            await idle(runner)
            clock.advance(3600)
            await until(lambda: there(runner) == ["late"])

    asyncio.run(scenario())


def test_an_earlier_one_is_not_kept_waiting_by_a_later_one(tmp_path: Path) -> None:
    """With the clocks of the machine: the scheduler sleeps for the long one and must wake for the short one."""

    async def scenario() -> None:
        runner = runner_over(tmp_path, MachineClock("always"))
        runner.recover()
        async with running(runner):
            await update(runner, insert("long"), delay="PT1H")
            await idle(runner)
            before = time.clock_gettime(time.CLOCK_BOOTTIME)
            await update(runner, insert("short"), delay="PT0.3S")
            await until(lambda: there(runner) == ["short"])
            assert 0.3 <= time.clock_gettime(time.CLOCK_BOOTTIME) - before < 1.3

    asyncio.run(scenario())


def test_due_ones_happen_in_the_order_in_which_they_fell_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            for name, delay in (("c", "PT3S"), ("a", "PT1S"), ("b", "PT2S")):
                await update(runner, f"DELETE WHERE {{ <http://e/last> ?p ?o }} ; {insert(name)}", delay=delay)
            await time_passes(runner, clock, 60)
            fired = [record.a[0].s for record in records(tmp_path) if record.type == "commit"]
            assert fired == ["<http://e/a>", "<http://e/b>", "<http://e/c>"]

    asyncio.run(scenario())


def test_thousands_may_be_pending_and_due_at_once(tmp_path: Path) -> None:
    count = 3000

    async def scenario() -> None:
        clock = FakeClock()
        settings = msgspec.structs.replace(
            Settings(), gateway=msgspec.structs.replace(Settings().gateway, queue_max=count)
        )
        async with gateway(tmp_path, clock, settings=settings) as runner:
            calls = [asyncio.create_task(update(runner, insert(n), delay=f"PT{1 + n % 7}S")) for n in range(count)]
            await asyncio.gather(*calls)
            assert len(runner.delayed_updates()) == count
            await time_passes(runner, clock, 1)
            assert len(there(runner)) == len(range(0, count, 7))
            await time_passes(runner, clock, 6)
            assert sorted(map(int, there(runner))) == list(range(count))
            fired = [record.cause.id for record in records(tmp_path) if record.cause and record.cause.kind == "timer"]
            assert len(fired) == len(set(fired)) == count

    asyncio.run(scenario())


def test_a_cancelled_one_never_happens(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            first = await update(runner, insert("a"), delay="PT10S")
            await update(runner, insert("b"), delay="PT10S")
            third = await update(runner, insert("c"), at=iso(START + 10 * SECOND))
            assert first.delayed is not None
            assert third.delayed is not None
            await runner.cancel(first.delayed, CLIENT)
            await runner.cancel(third.delayed, CLIENT)
            with pytest.raises(UnknownDelayedError):
                await runner.cancel(first.delayed, CLIENT)
            await time_passes(runner, clock, 60)
            assert there(runner) == ["b"]
        async with gateway(tmp_path, clock) as runner:
            await time_passes(runner, clock, 60)
            assert there(runner) == ["b"]

    asyncio.run(scenario())


def test_one_that_is_cancelled_while_its_turn_comes_does_not_happen(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            accepted = await update(runner, insert("a"), delay="PT10S")
            assert accepted.delayed is not None
            cancelled = runner.cancel(accepted.delayed, CLIENT)
            fired = asyncio.create_task(runner._fire(accepted.delayed))
            await cancelled
            await fired
            assert there(runner) == []
            assert [record.type for record in records(tmp_path)] == ["timer", "cancel"]

    asyncio.run(scenario())


def test_one_whose_effect_fails_is_recorded_as_fired_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            await update(runner, "CREATE GRAPH <http://e/g>")
            await update(runner, "CREATE GRAPH <http://e/g>", delay="PT1S")
            await time_passes(runner, clock, 1)
            assert runner.delayed_updates() == []
            last = records(tmp_path)[-1]
            assert (last.type, last.delta.changes) == ("commit", False)
            assert last.cause is not None
            assert last.cause.kind == "timer"

    asyncio.run(scenario())
    assert "update failed" in caplog.text


@pytest.mark.parametrize("failures", [1, 3])
def test_a_fire_whose_record_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(delayed, "_RETRY_S", 0.01)
    really_append = LogWriter.append
    failed: list[Cause] = []

    def append(log: LogWriter, kind: str, **members: object) -> Record:
        cause = members.get("cause")
        if isinstance(cause, Cause) and cause.kind == "timer" and len(failed) < failures:
            failed.append(cause)
            raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")
        return really_append(log, kind, **members)  # type: ignore[arg-type]

    monkeypatch.setattr(LogWriter, "append", append)

    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            await update(runner, "INSERT { [] <http://e/p> 1 } WHERE {}", delay="PT1S")
            clock.advance(1)
            rearm(runner)
            await until(lambda: runner.delayed_updates() == [])
            await time_passes(runner, clock, 60)
            assert len(dump(runner)) == 1
            assert [record.type for record in records(tmp_path)] == ["timer", "commit"]
        async with gateway(tmp_path, clock) as runner:
            assert len(dump(runner)) == 1

    asyncio.run(scenario())
    assert len(failed) == failures


def test_what_is_due_when_the_gateway_starts_happens_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            await update(runner, insert("a"), delay="PT10S")
            await update(runner, insert("b"), at=iso(START + 10 * SECOND))
        clock.advance(3600)
        async with gateway(tmp_path, clock) as runner:
            await until(lambda: there(runner) == ["a", "b"])

    asyncio.run(scenario())


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
    assert left_s(clock, log) == 0  # missed: due at once


@pytest.mark.parametrize(("then", "now"), [(False, False), (True, False), (False, True)])
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
    assert left_s(clock, log) == 100 - 10 - 25 - 3


def test_a_delay_is_never_longer_than_it_was_nor_negative() -> None:
    clock = FakeClock()
    log = [timer_record(clock, "a", delay_s=100)]
    clock.reboot("boot-2", uptime_s=0)
    clock.step(-TWO_WEEKS)  # trusted, and before the record all the same
    assert left_s(clock, log) == 100


def test_a_rebased_one_fires_once_and_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            await update(runner, insert("a"), delay="PT1H")
            cancelled = await update(runner, insert("b"), delay="PT1H")
            kept = await update(runner, insert("c"), at=iso(START + timedelta(hours=1)))
        clock.reboot("boot-2", off_s=600, uptime_s=10)
        async with gateway(tmp_path, clock) as runner:
            assert cancelled.delayed is not None
            await runner.cancel(cancelled.delayed, CLIENT)
            assert [row["due"] for row in runner.delayed_updates()] == [iso(START + timedelta(hours=1))] * 2
            await time_passes(runner, clock, 3600 - 610 - 1)
            assert there(runner) == []
        clock.reboot("boot-3", uptime_s=0)
        async with gateway(tmp_path, clock) as runner:
            assert [sequence for sequence, _, _ in due_times(runner)] == [1, kept.sequence]
            await time_passes(runner, clock, 1)
            assert there(runner) == ["a", "c"]
        clock.reboot("boot-4")
        async with gateway(tmp_path, clock) as runner:
            await time_passes(runner, clock, 7200)
            assert there(runner) == ["a", "c"]
            assert len(records(tmp_path)) == 6

    asyncio.run(scenario())


def test_the_table_tells_what_is_pending(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with gateway(tmp_path, clock) as runner:
            accepted = await update(runner, insert("a"), delay="PT1H")
            clock.advance(60)
            clock.step(TWO_WEEKS)
            assert runner.delayed_updates() == [
                {
                    "id": accepted.delayed,
                    "state": "pending",
                    "due": iso(START + TWO_WEEKS + timedelta(hours=1)),
                    "set": iso(START),
                    "sequence": 1,
                    "cause": {"kind": "http", "id": "test", "seq": None},
                    "update": insert("a"),
                }
            ]

    asyncio.run(scenario())
