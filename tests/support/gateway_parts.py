"""A gateway without its gates: a clock that is set by hand, and a Runner over a data folder."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import zstandard

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Cause, Record, SegmentName, decode
from lamplighter.engine.change_log.frames import FrameReader, FrameWriter
from lamplighter.engine.protocol.jsap import parse
from lamplighter.engine.terms import Quad
from lamplighter.gateway.clock import Clock, RecordClocks
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log import reader as log_reader
from lamplighter.gateway.log import snapshots as log_snapshots
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.recovery_attempt import RecoveryAttempt, recover_with_retries
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings import Durability, Settings
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.request_ids import Accepted
from tests.support.event_loops import until
from tests.support.forks import forks, forks_gone

TIMEOUT_S = 120.0  # only a test that hangs waits this long
_PAUSES = ("log.maintenance.PAUSE_S", "loop.history_keeper.PAUSE_S", "loop.history_keeper.NEXT_S")
START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
CLIENT = Cause("http", "test")


class FakeClock:
    """The clocks of a machine that runs since a minute, both standing still."""

    def __init__(self, *, boot: str = "boot-1", trusted: bool = True) -> None:
        self.boot = boot
        self.now = START
        self.uptime = timedelta(minutes=1)
        self.synchronised = trusted

    def wall(self) -> datetime:
        return self.now

    def boottime_us(self) -> int:
        return self.uptime // timedelta(microseconds=1)

    def trusted(self) -> bool:
        return self.synchronised

    def sample(self) -> RecordClocks:
        return RecordClocks(self.wall(), self.trusted(), self.boottime_us())

    def advance(self, seconds: float) -> None:
        """Time goes by."""
        self.now += timedelta(seconds=seconds)
        self.uptime += timedelta(seconds=seconds)

    def step(self, by: timedelta) -> None:
        """Somebody sets the wall clock; no time goes by."""
        self.now += by

    def reboot(self, boot: str, *, off_s: float = 0, uptime_s: float = 5) -> None:
        """The machine was off for a time, and is up again."""
        self.now += timedelta(seconds=off_s + uptime_s)
        self.uptime = timedelta(seconds=uptime_s)
        self.boot = boot


class FullDisk(Disk):
    """Takes so many more writes when told."""

    left: int | None = None

    def write(self, file: int, data: bytes) -> int:
        if self.left is not None:
            if self.left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= 1
        return super().write(file, data)


def opened_log(
    data: Path, clock: Clock | None = None, *, durability: Durability = "off", disk: Disk | None = None
) -> LogWriter:
    """The change log of a data folder, taken and not yet replayed."""
    log = LogWriter(data, clock or FakeClock(), durability, disk)
    log.open()
    return log


def runner_over(
    data: Path,
    clock: Clock | None = None,
    applications: Sequence[Application] = (),
    settings: Settings | None = None,
    access_of: Callable[[str], Access | None] = lambda client: FULL,
    attempt: RecoveryAttempt = RecoveryAttempt(),  # noqa: B008 - frozen
) -> Runner:
    """A Runner that is not recovered yet. Files with shapes are in the data folder."""
    clock, settings = clock or FakeClock(), settings or Settings()
    shapes = shape_sources(settings.shacl, data)
    return Runner(settings, opened_log(data, clock), applications, access_of, attempt, shapes)


def recovered(
    data: Path,
    clock: Clock | None = None,
    applications: Sequence[Application] = (),
    settings: Settings | None = None,
) -> Runner:
    """A Runner that has recovered from the data folder, as a start of the service does it."""

    def start(attempt: RecoveryAttempt) -> Runner:
        runner = runner_over(data, clock, applications, settings, attempt=attempt)
        try:
            runner.recover()
        except BaseException:
            with suppress(Exception):
                runner.close()
            raise
        return runner

    return recover_with_retries(start, data / "log")


@asynccontextmanager
async def running(runner: Runner, *, orderly: bool = False) -> AsyncIterator[Runner]:
    """A recovered Runner at work; ends as a killed process does, with nothing written, or orderly. Its log is closed
    then. The keepers of log and history take their turns when the test says so: one that came by itself after a second
    would find a test on a slow machine in the middle of what it does to the files."""
    before = forks()
    task = asyncio.create_task(runner.run())
    try:
        with ExitStack() as pauses:
            for name in _PAUSES:
                pauses.enter_context(mock.patch(f"lamplighter.gateway.{name}", 24 * 3600.0))
            async with asyncio.timeout(TIMEOUT_S):
                await idle(runner)
                yield runner
    finally:
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        runner.close(orderly=orderly)
        await asyncio.wait_for(forks_gone(before), TIMEOUT_S)
    if not isinstance(results[0], asyncio.CancelledError):
        raise AssertionError("the runner ended by itself") from results[0]


@asynccontextmanager
async def recovered_runner(
    data: Path,
    clock: Clock | None = None,
    applications: Sequence[Application] = (),
    settings: Settings | None = None,
) -> AsyncIterator[Runner]:
    """A Runner that has recovered from the data folder and is at work."""
    async with running(recovered(data, clock, applications, settings)) as runner:
        yield runner


async def update(runner: Runner, sparql: str, **members: Any) -> Accepted:
    """Asks for an update, as a gate does. members: those of UpdateCall."""
    return await runner.updates.update(UpdateCall(sparql, **{"cause": CLIENT, **members}))


async def idle(runner: Runner) -> None:
    """Waits until everything that was in the queue is done, with its reactions."""
    await runner.probe()


def rearm(runner: Runner) -> None:
    """Has the scheduler look at the clock again: what a real timer would do, at once."""
    runner._scheduler.rearm()
    runner._scheduler.rearm_boundary()


async def time_passes(runner: Runner, clock: FakeClock, seconds: float = 0.0) -> None:
    """Lets time go by and waits until all that is due by then has happened."""
    clock.advance(seconds)
    rearm(runner)
    await until(lambda: not runner._delayed.due_updates(set(), 1) and not runner._clock_commits.due)
    await idle(runner)


def dump(runner: Runner) -> list[bytes]:
    """The dataset in an order of its own."""
    return sorted(runner._engine.dump().splitlines())


def due_times(runner: Runner) -> list[tuple[int, int | None, datetime | None]]:
    """(sequence, due by boot time, due by wall clock) of what is pending, sorted."""
    return sorted((p.sequence, p.due_us, p.at) for p in runner._delayed.pending.values())


def segments(data: Path) -> list[Path]:
    """The files of the log that have records, in order."""
    return [segment.path for segment in log_reader.segments(data / "log") if lines(segment.path)]


def lines(path: Path) -> list[bytes]:
    """The lines of a segment, without newlines."""
    return list(FrameReader(path.read_bytes()))


def snapshot_lines(path: Path) -> list[bytes]:
    """The lines of a snapshot or backup, without newlines."""
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read().split(b"\n")[:-1]


def rewritten(path: Path, quads: list[Quad], **members: Any) -> None:
    """Makes a backup another one that is as whole. members: of the records."""
    head = decode(snapshot_lines(path)[0])
    assert head.snapshot is not None
    bare = msgspec.structs.replace(head, snapshot=None, graphs=None, **members)
    with path.open("wb") as out:
        log_snapshots.write(out, bare, (), bytes(head.snapshot.state), [quads])


def records(data: Path) -> list[Record]:
    """What stands in the change log, up to what cannot be read."""
    return list(log_reader.LogReader(data / "log"))


def put_lines(data: Path, content: Sequence[bytes]) -> None:
    """Makes these lines, without newlines, the whole log, which has records up to there in epoch 1."""
    (data / "log").mkdir(parents=True, exist_ok=True)
    for path in (data / "log").iterdir():
        path.unlink()
    frames = FrameWriter()
    written = b"".join(frames.add(line + b"\n") for line in content)
    (data / "log" / str(SegmentName(1, 1))).write_bytes(written)


def reactions(data: Path) -> list[tuple[str, int]]:
    """(cause's id, cause's sequence) of each record that is an application's reaction, sorted."""
    causes = [record.cause for record in records(data) if record.cause is not None]
    return sorted((cause.id, cause.seq) for cause in causes if cause.kind == "application" and cause.seq is not None)


def application(name: str, document: dict[str, Any]) -> Application:
    """An application as if it had been read from a file."""
    data = json.dumps(document).encode()
    return Application(name, hashlib.sha256(data).hexdigest()[:12], parse(data))
