"""The next update while the disk syncs, and a disk that fails."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from pathlib import Path
from time import perf_counter

import msgspec
import pytest

from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop import executor
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.request_ids import Accepted
from tests.support.event_loops import until
from tests.support.gateway_parts import FakeClock, idle, running
from tests.support.gateway_parts import update as commit
from tests.support.held_disk import stepped_disk


def insert(number: int) -> str:
    return f"INSERT DATA {{ <http://s{number}> <http://p> {number} }}"


async def test_the_next_update_is_executed_when_the_disk_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    async with running(runner):
        with stepped_disk(monkeypatch) as disk:
            first = asyncio.create_task(commit(runner, insert(1)))
            await disk.begun()
            second = asyncio.create_task(commit(runner, insert(2)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert runner._engine.quad_count == 1
            assert not first.done()
            assert not second.done()
            disk.go_on()
            await first
            await disk.begun()
            assert not second.done(), "the first sync began before its record was written"
            disk.go_on()
            assert (await second).sequence == 2


async def test_the_figures_have_the_syncs_and_the_time_of_what_was_done(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    begun = perf_counter()
    async with running(runner):
        for number in range(2):
            await commit(runner, insert(number))
            await idle(runner)
        elapsed_s = perf_counter() - begun
        assert runner.counters.syncs == 2, "a step that writes nothing needs none"
        timings = runner.timings
        for timing in (timings.store_update, timings.spu_manager, timings.sync, timings.update_processing):
            assert timing.count == 2
            assert 0 <= timing.least <= timing.most <= elapsed_s


class NotedThreads(Disk):
    """A disk that notes which threads sync."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def sync(self, file: int) -> None:
        super().sync(file)
        self.threads.append(threading.get_ident())

    def take(self) -> list[bool]:
        """Whether each sync since the last call was in this thread."""
        taken, self.threads = self.threads, []
        return [one == threading.get_ident() for one in taken]


async def test_the_loop_syncs_for_few_requests_while_the_disk_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "QUICK_S", math.inf)
    disk = NotedThreads()
    log = LogWriter(tmp_path, FakeClock(), "fsync", disk)
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    numbers = itertools.count()

    async def commits(count: int, together: int = 1) -> list[bool]:
        for _ in range(count):
            await asyncio.gather(*(commit(runner, insert(next(numbers))) for _ in range(together)))
        return disk.take()

    async with running(runner):
        await idle(runner)
        disk.take()
        assert await commits(executor.QUICK_MIN) == [False] * executor.QUICK_MIN
        assert await commits(3) == [True] * 3
        assert await commits(1, executor.QUICK_REQUESTS_MAX + 1) == [False], "others would wait"
        assert await commits(1, executor.QUICK_REQUESTS_MAX) == [True]
        monkeypatch.setattr(executor, "QUICK_S", 0.0)
        assert await commits(3) == [True, False, False], "the disk has stalled"
        monkeypatch.setattr(executor, "QUICK_S", math.inf)
        assert await commits(2 * executor.QUICK_MIN) == [False] * 2 * executor.QUICK_MIN
        assert await commits(2 * executor.QUICK_MIN) == [True] * 2 * executor.QUICK_MIN
        monkeypatch.setattr(executor, "QUICK_S", 0.0)
        assert await commits(2) == [True, False]
        monkeypatch.setattr(executor, "QUICK_S", math.inf)
        assert await commits(executor.QUICK_MIN + 1) == [False] * executor.QUICK_MIN + [True], "it was quick for long"
        assert runner.timings.sync.count == runner.counters.syncs


async def test_behind_a_disk_that_stalled_for_long_the_loop_does_not_sync_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "QUICK_S", math.inf)
    monkeypatch.setattr(executor, "STALL_TIMES", math.inf)
    disk = NotedThreads()
    log = LogWriter(tmp_path, FakeClock(), "fsync", disk)
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    numbers = itertools.count()

    async def commits(count: int) -> list[bool]:
        for _ in range(count):
            await commit(runner, insert(next(numbers)))
        return disk.take()

    async with running(runner):
        await idle(runner)
        await commits(executor.QUICK_MIN)
        assert await commits(1) == [True]
        for name in ("QUICK_S", "SLICE_S"):
            monkeypatch.setattr(executor, name, 0.0)
        assert await commits(1) == [True], "nobody knows before that it stalls"
        monkeypatch.setattr(executor, "QUICK_S", math.inf)
        count = 3 * executor.QUICK_MIN
        assert await commits(count) == [False] * count, "it may stall every minute"
        assert runner.counters.syncs == runner.timings.sync.count


async def test_nothing_is_told_before_a_sync_by_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "QUICK_S", math.inf)
    told: list[bool] = []
    answer: asyncio.Task[Accepted] | None = None

    class Watching(NotedThreads):
        def sync(self, file: int) -> None:
            told.append(answer is not None and answer.done())
            super().sync(file)

    disk = Watching()
    log = LogWriter(tmp_path, FakeClock(), "fsync", disk)
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    async with running(runner):
        for number in range(executor.QUICK_MIN + 3):
            answer = asyncio.create_task(commit(runner, insert(number)))
            await answer
    assert disk.take()[-1]
    assert not any(told)


async def test_by_interval_the_log_is_synced_though_nobody_waits(tmp_path: Path) -> None:
    class Noted(Disk):
        synced = 0

        def sync(self, file: int) -> None:
            super().sync(file)
            self.synced += 1

    disk = Noted()
    log = LogWriter(tmp_path, FakeClock(), "interval", disk)
    log.open()
    settings = msgspec.convert(
        {"gateway": {"durability": "interval"}, "log": {"sync_interval_ms": 1}}, Settings, strict=True
    )
    runner = Runner(settings, log)
    runner.recover()
    async with running(runner):
        for number in range(2):
            before = disk.synced
            await commit(runner, insert(number))
            await until(lambda: disk.synced > before)  # noqa: B023 - it is called at once


async def test_a_disk_that_fails_ends_the_gateway_and_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    monkeypatch.setattr("lamplighter.gateway.disk.os.fdatasync", broken)
    task = asyncio.create_task(runner.run())
    answer = asyncio.create_task(commit(runner, insert(1)))
    with pytest.raises(BaseExceptionGroup) as caught:
        await task
    assert caught.value.subgroup(ChangeLogError)
    assert not answer.done()
    answer.cancel()
    runner.close()
