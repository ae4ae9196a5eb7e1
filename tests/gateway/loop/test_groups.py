"""Groups: nothing is released before its records are durable, and everything in order."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.change_log import decode
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import FakeClock, running, segments
from tests.support.gateway_parts import update as commit
from tests.support.running_gateway import TIMEOUT_S, ask, health, hear, running_gateway, tell, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"


def insert(number: int) -> str:
    return f"INSERT DATA {{ <http://s{number}> <http://p> {number} }}"


class Disk:
    """A disk whose syncs wait until they are let go, one by one."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.durable = 0
        """Bytes of the segment that the last sync covered, as it began."""

    def sync(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self.asked.release()
        if not self._go_on.acquire(timeout=TIMEOUT_S):
            raise AssertionError("nobody let the disk go on")
        self.durable = size

    async def begun(self) -> None:
        """Waits until a sync has begun."""
        assert await asyncio.to_thread(self.asked.acquire, timeout=TIMEOUT_S)

    def go_on(self, times: int = 1) -> None:
        self._go_on.release(times)


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr("lamplighter.gateway.disk.os.fdatasync", disk.sync)
    try:
        yield disk
    finally:
        disk.go_on(1000)


async def test_nothing_leaves_before_its_record_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_gateway(tmp_path, gateway={"durability": "fsync"}) as at,
        connect(at.subscribe) as socket,
    ):
        await ask(socket, {"subscribe": {"sparql": ALL}})
        with held(monkeypatch) as disk:
            hearing = asyncio.create_task(hear(socket))
            answers = [asyncio.create_task(update(at, insert(1)))]
            await disk.begun()
            answers.append(asyncio.create_task(update(at, insert(2))))
            for number in (1, 2):
                await health(at)  # a round trip, in which something could leave too early
                assert not hearing.done()
                assert not any(answer.done() for answer in answers[number - 1 :])
                disk.go_on()
                message = await hearing
                assert message["notification"]["sequence"] == number
                assert (await answers[number - 1]).json["sequence"] == number
                [path] = segments(tmp_path / "data")
                whole = list(FrameReader(path.read_bytes()[: disk.durable]))
                assert decode(whole[-1]).seq >= number, "what was told is on the disk"
                if number == 1:
                    hearing = asyncio.create_task(hear(socket))
                    await disk.begun()


async def test_the_next_update_is_executed_when_the_disk_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), FakeClock(), log)
    runner.recover()
    async with running(runner):
        with held(monkeypatch) as disk:
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


async def test_many_clients_are_told_in_order_without_gaps(tmp_path: Path) -> None:
    clients, updates = 4, 30
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at:

        async def client(number: int) -> None:
            async with connect(at.subscribe) as socket:
                await ask(socket, {"subscribe": {"sparql": ALL}})
                for one in range(updates):
                    text = insert(number * updates + one)
                    await tell(socket, {"update": {"sparql": text, "alias": str(one)}})
                told, answered = [], []
                while len(answered) < updates or (told and told[-1] < updates):
                    message = await hear(socket)
                    if "notification" in message:
                        told.append(message["notification"]["sequence"])
                    else:
                        answered.append(message["updated"]["alias"])
                assert told == list(range(1, len(told) + 1))
                assert answered == [str(one) for one in range(updates)]

        await asyncio.gather(*(client(number) for number in range(clients)))


async def test_a_disk_that_fails_ends_the_gateway_and_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), FakeClock(), log)
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
