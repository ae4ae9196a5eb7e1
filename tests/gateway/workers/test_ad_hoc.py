"""Ad-hoc queries in worker processes: streams, locks held at a fork, and leftovers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket as sockets
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyoxigraph as ox
import pytest

import lamplighter.gateway.workers.ad_hoc
from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError, QueueFullError, StoreError
from lamplighter.engine.sparql.requests import parse_query
from lamplighter.gateway.settings import LimitSettings, QuerySettings
from lamplighter.gateway.workers.ad_hoc import Reader, StuckError
from tests.support.amounts import Amounts
from tests.support.forks import forks, no_forks, open_files
from tests.support.running_gateway import (
    until,
)

# --- streams ----------------------------------------------------------------------------------------


def reader_of(store: Path | None = None, **limits: int) -> Reader:
    return Reader(QuerySettings(**limits), LimitSettings(), store)


async def streamed(reader: Reader, work: Callable[[BinaryIO], None]) -> bytes:
    return b"".join([chunk async for chunk in reader.stream(work).chunks()])


async def count(reader: Reader, engine: Engine) -> int:
    query = parse_query("SELECT (COUNT(*) AS ?n) { ?s <a:p> ?o }")
    answer = reader.start(engine.store.native, query, "text/csv", None, None)
    return int(b"".join([chunk async for chunk in answer.chunks()]).split()[1])


@pytest.mark.parametrize("call", ["UUID()", "STRUUID()", "RAND()"])
async def test_two_answers_have_not_the_same_random_values(call: str) -> None:
    """A fork has the random numbers of its parent, which has drawn some here."""
    reader, engine = reader_of(), Engine()
    ox.BlankNode()
    query = parse_query(f"SELECT ({call} AS ?v) {{}}")
    answers = [await reader.start(engine.store.native, query, "text/csv", None, None).whole() for _ in range(3)]
    assert len(set(answers)) == 3


async def test_a_stream_has_room_and_time_and_makes_way_for_others() -> None:
    def work(out: BinaryIO) -> None:
        out.write(b"x" * 20_000_000)
        out.write(b"nice %d" % os.nice(0))

    reader = reader_of(concurrent_max=1, memory_bytes_max=10_000_000)
    data = await streamed(reader, work)
    assert data == b"x" * 20_000_000 + b"nice %d" % min(os.nice(0) + 10, 19)


async def test_a_stream_takes_no_querys_place() -> None:
    reader, engine = reader_of(concurrent_max=1), Engine()
    stream = reader.stream(lambda out: signal.pause())
    assert await count(reader, engine) == 0
    query = reader.start(engine.store.native, parse_query("ASK {}"), "text/csv", None, None)
    with pytest.raises(QueueFullError):
        await count(reader, engine)
    query.abandon()
    assert forks(), "the stream still runs"
    stream.abandon()
    await until(no_forks)


async def test_what_is_received_as_a_whole_has_at_most_so_many_bytes() -> None:
    reader = reader_of(concurrent_max=1)

    def work(out: BinaryIO) -> None:
        out.write(b"+" + b"x" * 1_000_000)

    assert len(await (await reader.beside(work)).whole()) == 1_000_000
    with pytest.raises(LimitExceededError, match="more than 999999 bytes"):
        await (await reader.beside(work)).whole(999_999)
    await until(no_forks)


async def test_a_stream_that_fails_is_an_error_and_not_a_part() -> None:
    def work(out: BinaryIO) -> None:
        out.write(b"a part")
        raise StoreError("the disk")

    with pytest.raises(StoreError, match=r"incomplete|failed"):
        await streamed(reader_of(), work)


# --- a thread of the gateway holds a lock while it forks --------------------------------------------


async def test_a_reader_that_waits_for_a_lock_for_ever_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lamplighter.gateway.workers.ad_hoc")
    lock = threading.Lock()
    lock.acquire()
    asyncio.get_running_loop().call_later(0.01, lock.release)  # here; the child's is its own
    await reader_of().trial(lock.acquire)
    assert "restarts=1" in caplog.text
    await until(no_forks)


async def test_a_child_that_was_replaced_keeps_nothing_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take its time to end, and a store on disk cannot be opened again as long as somebody has it."""
    left: list[lamplighter.gateway.workers.ad_hoc._Child] = []
    monkeypatch.setattr(lamplighter.gateway.workers.ad_hoc._Child, "kill", lambda child: left.append(child))
    lock = threading.Lock()

    class Store:
        def read(self) -> None:
            lock.acquire()

    store = Store()
    known = weakref.ref(store)
    lock.acquire()
    asyncio.get_running_loop().call_later(0.01, lock.release)
    await reader_of().trial(store.read)
    del store
    assert known() is None
    [stuck] = [child for child in left if not child.status.done()]
    os.kill(stuck._number, signal.SIGKILL)
    await until(no_forks)


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Readers are checked after 10 ms of silence; what is logged of it."""
    caplog.set_level(logging.DEBUG, "lamplighter.gateway.workers.ad_hoc")
    monkeypatch.setattr(lamplighter.gateway.workers.ad_hoc, "_LOOK_S", 0.01)
    return caplog


async def test_a_reader_that_is_always_stuck_is_given_up(short_looks: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def late(out: BinaryIO) -> None:
        out.write(b"x" * 200_000)
        lock.acquire()

    lock.acquire()
    for work in (reader_of().trial(lock.acquire), streamed(reader_of(), lambda out: [lock.acquire()].clear())):
        with pytest.raises(StuckError, match="the store was busy; try again"):
            await work
    with pytest.raises(StuckError):
        await streamed(reader_of(), late)
    assert len(short_looks.records) == 5, "those of the trial; a stream is of its moment, and not another one's"
    await until(no_forks)


async def test_a_reader_that_works_or_waits_for_something_else_is_not_stuck(
    short_looks: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(LimitExceededError, match="evaluation_ms_max"):
        await Reader(QuerySettings(), LimitSettings(evaluation_ms_max=50)).trial(signal.pause)
    await asyncio.gather(*(reader_of().trial(lambda: sum(range(2 * 10**6))) for _ in range(4)))
    assert not short_looks.records
    await until(no_forks)


# --- a store on disk --------------------------------------------------------------------------------


async def test_queries_and_trials_go_on_beside_the_writing_of_a_store_on_disk(tmp_path: Path, amounts: Amounts) -> None:
    """Each trial changes the dataset in its own memory, which must not reach the files that it shares."""
    engine, reader, rounds = Engine(store_path=tmp_path), reader_of(tmp_path), amounts.of(25)
    ended = threading.Event()

    def persist() -> None:
        while not ended.wait(0.02):
            engine.store.persist_native()

    thread = threading.Thread(target=persist)
    thread.start()
    try:
        for number in range(rounds):
            engine.update(f"INSERT DATA {{ <a:s{number}> <a:p> {number} }}")
            query = asyncio.create_task(count(reader, engine))
            await reader.trial(lambda: rehearsed(engine))
            assert await query == number + 1
    finally:
        ended.set()
        thread.join()
    expected = sorted(engine.dump().splitlines())
    engine.close()
    with Engine(store_path=tmp_path) as again:
        assert sorted(again.dump().splitlines()) == expected
        assert len(expected) == rounds


def rehearsed(engine: Engine) -> None:
    """Raises LimitExceededError, which a trial does not hide, if the delta is not the right one."""
    before = engine.quad_count
    filling = " . ".join(f"<a:x{number}> <a:q> {number}" for number in range(2000))
    delta = engine.prepare(f"INSERT DATA {{ {filling} }} ; DELETE {{ ?s ?p ?o }} WHERE {{ ?s <a:q> ?x ; ?p ?o }}")
    if delta.changes or engine.quad_count != before:
        raise LimitExceededError("it does not see what it has written")
    if len(engine.update("DELETE WHERE { ?s <a:p> ?o }").removed) != before:
        raise LimitExceededError("it does not see what is there")
    engine.store.flush()


async def test_a_reader_of_a_store_on_disk_has_nothing_open_that_it_could_change(tmp_path: Path) -> None:
    def work(out: BinaryIO) -> None:
        try:
            (tmp_path / "new").touch()
        except OSError as error:
            out.write(str(error.strerror).encode())

    def ready_then_waiting(out: BinaryIO) -> None:
        out.write(b"x" * 100_000)
        signal.pause()

    engine = Engine(store_path=tmp_path / "store")
    engine.update("INSERT DATA { <a:s> <a:p> 1 }")
    engine.persist()
    with sockets.socket():
        reader = reader_of(tmp_path / "store")
        assert await streamed(reader, work) == b"Too many open files"
        running = reader.stream(ready_then_waiting)
        chunks = running.chunks()
        await anext(chunks)
        [child] = forks()
        names = open_files(child)
        assert any(name.endswith(".sst") for name in names)
        assert not [name for name in names if name.endswith((".log", "LOCK", "LOG")) or "MANIFEST" in name]
        assert not [name for name in names if name.startswith("socket")]
        running.abandon()
        with pytest.raises(StoreError, match=r"incomplete|failed"):
            while True:
                await anext(chunks)
        await until(no_forks)
    engine.close()


# --- in the middle of a step ------------------------------------------------------------------------


def test_a_work_is_tried_where_it_stands() -> None:
    reader = Reader(QuerySettings(), LimitSettings(evaluation_ms_max=300))
    done: list[int] = []
    reader.try_here(lambda: done.append(1))
    assert not done, "it has no effect here"
    with pytest.raises(LimitExceededError, match="evaluation_ms_max = 300"):
        reader.try_here(lambda: sum(1 for _ in iter(int, 1)))
    with pytest.raises(LimitExceededError, match="memory_bytes_max"):
        reader.try_here(lambda: bytearray(1 << 34))
    reader.try_here(lambda: 1 // 0)  # where it is meant to be done it will be raised again
    assert not forks()


def test_a_work_of_which_there_can_be_no_fork_counts_as_one_that_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    Reader(QuerySettings(), LimitSettings()).try_here(lambda: 1 // 0)
