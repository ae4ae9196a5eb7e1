"""The next update while the disk syncs, and a disk that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

import msgspec
import pytest

from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
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
