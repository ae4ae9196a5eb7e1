"""Ad-hoc queries in processes of their own: limits, isolation, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket as sockets
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from websockets.asyncio.client import connect

import lamplighter.gateway.workers.ad_hoc
from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError, QueueFullError, StoreError
from lamplighter.engine.sparql.requests import parse_query
from lamplighter.gateway.settings import LimitSettings, QuerySettings
from lamplighter.gateway.workers.ad_hoc import Reader, StuckError
from tests.support.forks import forks
from tests.support.places import ROOT
from tests.support.running_gateway import (
    Answer,
    health,
    hear,
    http,
    query,
    rows,
    running_gateway,
    tell,
    until,
    update,
)

ALL = "SELECT ?s ?p ?o { ?s ?p ?o }"
CROSS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i }"  # 2000 cubed rows: hours
PAIRS = "SELECT ?a ?d { ?a ?b ?c . ?d ?e ?f }"  # 4 million rows, some 100 bytes each


def triples(count: int) -> str:
    return "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(count)) + "}"


async def no_child() -> bool:
    return not forks()


def open_files(process: int) -> list[str]:
    """What a process has open besides the standard streams."""
    links = Path(f"/proc/{process}/fd").iterdir()
    return [str(link.readlink()) for link in links if int(link.name) > 2]


def state(process: int) -> str:
    """Letter of proc(5), X for one that is not there."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


# --- limits -----------------------------------------------------------------------------------------


async def test_a_runaway_query_is_killed_at_its_time_limit_while_updates_go_on(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": 1000}) as at:
        await update(at, triples(2000))
        runaway = asyncio.create_task(query(at, CROSS))
        done = 0
        while not runaway.done():
            assert (await update(at, f"INSERT DATA {{ <http://during> <http://p> {done} }}")).status == 200
            done += not runaway.done()
        answer = await runaway
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert "query.time_ms_max = 1000" in answer.json["error_description"]
        assert done >= 5, "updates hardly went on beside the query"
        assert await no_child()


async def test_an_answer_may_have_as_many_rows_as_the_limit_and_no_more(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"rows_max": 10}) as at:
        await update(at, triples(10))
        assert len(await rows(at, ALL)) == 10
        await update(at, "INSERT DATA { <http://one-more> <http://p> 1 }")
        for text in (ALL, "CONSTRUCT WHERE { ?s ?p ?o }"):
            answer = await query(at, text)
            assert (answer.status, answer.media_type) == (403, "application/json")
            assert (answer.json["error"], answer.json["status_code"]) == ("limit_exceeded", 403)
            assert "query.rows_max = 10" in answer.json["error_description"]
        assert len(await rows(at, ALL + " LIMIT 10")) == 10


@pytest.mark.parametrize(
    "text",
    [
        PAIRS + " ORDER BY ?f ?c",
        "SELECT (GROUP_CONCAT(CONCAT(STR(?a), STR(?d))) AS ?all) { ?a ?b ?c . ?d ?e ?f }",
        "SELECT DISTINCT ?a ?d { ?a ?b ?c . ?d ?e ?f }",
    ],
)
async def test_a_query_that_hoards_memory_is_ended_and_the_gateway_is_not(tmp_path: Path, text: str) -> None:
    limits = {"memory_bytes_max": 30_000_000, "rows_max": 10**9, "time_ms_max": 110_000}
    async with running_gateway(tmp_path, query=limits) as at:
        await update(at, triples(2000))
        answer = await query(at, text)
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert "query.memory_bytes_max = 30000000" in answer.json["error_description"]
        assert len(await rows(at, ALL)) == 2000
        assert await no_child()


async def test_too_many_queries_at_once_are_429_and_room_comes_back(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": 1500, "concurrent_max": 2}) as at:
        await update(at, triples(2000))
        running = [asyncio.create_task(query(at, CROSS)) for _ in range(2)]

        async def both_run() -> bool:
            return len(forks()) == 2

        await until(both_run)
        refused = await query(at, ALL)
        assert (refused.status, refused.json["error"]) == (429, "too_many_requests")
        assert [answer.status for answer in await asyncio.gather(*running)] == [403, 403]
        for _ in range(3):
            assert (await query(at, ALL)).status == 200


async def test_an_error_of_the_evaluation_is_told_as_it_is(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        answer = await query(at, "SELECT * { ?s ?p ?o }", default_graph_uri="http://[broken")
        assert (answer.status, answer.json["status_code"]) == (500, 500)
        assert not answer.json["error_description"].startswith("sparql11endpoint")


# --- isolation --------------------------------------------------------------------------------------


async def test_a_query_sees_the_dataset_of_its_turn_whatever_happens_while_it_runs(tmp_path: Path) -> None:
    slow = "SELECT (COUNT(*) AS ?n) (COUNT(DISTINCT ?a) AS ?m) { ?a <http://p> ?c . ?d <http://p> ?f }"
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        await update(at, triples(1000))
        await tell(socket, {"query": {"sparql": slow, "alias": "q"}})
        await tell(socket, {"update": {"sparql": "CLEAR ALL", "alias": "u"}})
        assert (await hear(socket))["updated"]["alias"] == "u", "the query was no slower than the update"
        [row] = (await hear(socket))["answer"]["results"]["results"]["bindings"]
        assert (row["n"]["value"], row["m"]["value"]) == ("1000000", "1000")
        assert await rows(at, ALL) == []


# --- nothing is left behind -------------------------------------------------------------------------


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"concurrent_max": 1, "rows_max": 10**9}) as at:
        await update(at, triples(700))
        port = int(at.query.rpartition(":")[2].partition("/")[0])
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            body = PAIRS.encode()
            head = f"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/sparql-query\r\n\r\n" + body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert len(forks()) == 1
            writer.transport.abort()
            await until(no_child, "the end of the reader")

            async def free() -> bool:
                return (await query(at, "ASK {}")).status == 200

            await until(free, "room for another query")


async def test_a_socket_that_closes_takes_its_queries_with_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"concurrent_max": 4}) as at:
        await update(at, triples(2000))
        async with connect(at.subscribe) as socket:
            for _ in range(4):
                await tell(socket, {"query": {"sparql": CROSS}})

            async def all_run() -> bool:
                return len(forks()) == 4

            await until(all_run)
            await tell(socket, {"query": {"sparql": "ASK {}", "alias": "fifth"}})
            assert (await hear(socket))["status_code"] == 429
        await until(no_child, "the end of the readers")
        for _ in range(5):
            assert (await query(at, "ASK {}")).status == 200


async def test_a_client_that_reads_too_slowly_does_not_keep_a_process(tmp_path: Path) -> None:
    limits = {"time_ms_max": 3000, "rows_max": 10**9}  # most of it is for a busy machine's first row
    async with running_gateway(tmp_path, query=limits) as at:
        await update(at, triples(400))
        raw = sockets.socket()
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.setblocking(False)
        port = int(at.query.rpartition(":")[2].partition("/")[0])
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
        body = b"SELECT * { ?a ?b ?c . ?d ?e ?f }"
        head = f"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/sparql-query\r\n\r\n" + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await until(no_child, "the end of the reader")
        assert (await query(at, "ASK {}")).status == 200
        writer.transport.abort()


async def test_fifty_queries_leave_no_process_no_descriptor_and_no_zombie(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with running_gateway(tmp_path, query={"rows_max": 100}) as at:
        await update(at, triples(100))

        async def some(count: int) -> list[Answer]:
            texts = [ALL, "ASK {}", "SELECT oops", PAIRS, "CONSTRUCT WHERE { ?s ?p ?o }"]
            return [await query(at, texts[number % 5]) for number in range(count)]

        await some(5)  # what is made once is there
        before = descriptors()
        answers = await some(50)
        assert [answer.status for answer in answers] == [200, 200, 400, 403, 200] * 10

        async def as_before() -> bool:
            return descriptors() <= before and not forks()

        await until(as_before, f"{before} descriptors and no child")
        assert (await health(at))["counters"]["queries"] == 55


async def test_a_reader_has_neither_lock_nor_ports_and_dies_with_a_killed_gateway(tmp_path: Path) -> None:
    (tmp_path / "lamplighter.toml").write_text(
        '[gateway]\ndurability = "off"\n[http]\nport = 0\n[websocket]\nport = 0\n[query]\ntime_ms_max = 60000\n'
    )
    command = [sys.executable, "-m", "lamplighter.gateway", "run", "--config", str(tmp_path / "lamplighter.toml")]

    def started() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout
        line = ""
        while not line.startswith("  query"):
            line = process.stdout.readline()
            assert line or process.poll() is None, "the gateway did not start"
        return process, line.split()[1]

    gateway, url = started()
    try:
        text = {"Content-Type": "application/sparql-update"}
        await http(url.replace("/query", "/update"), "POST", triples(2000), text)
        port = int(url.rpartition(":")[2].partition("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(CROSS)}\r\n"
        writer.write(f"{head}Content-Type: application/sparql-query\r\n\r\n{CROSS}".encode())

        async def runs() -> bool:
            return len(forks(gateway.pid)) == 1

        await until(runs)
        [child] = forks(gateway.pid)

        async def only_its_pipe() -> bool:
            return [name.partition(":")[0] for name in open_files(child)] == ["pipe"]

        await until(only_its_pipe, "a reader with nothing but its pipe")
        gateway.send_signal(signal.SIGKILL)
        gateway.wait(60)

        async def ended() -> bool:
            return state(child) in "XZ"

        await until(ended, "the end of the reader")
        writer.transport.abort()
    finally:
        gateway.kill()
        gateway.wait(60)
        assert gateway.stdout
        gateway.stdout.close()
    again, url = started()
    try:
        answer = await http(url, query="SELECT (COUNT(*) AS ?n) { ?s ?p ?o }")
        assert json.loads(answer.body)["results"]["bindings"][0]["n"]["value"] == "2000"
    finally:
        again.terminate()
        assert again.wait(60) == 0
        assert again.stdout
        again.stdout.close()


# --- streams ----------------------------------------------------------------------------------------


def reader_of(store: Path | None = None, **limits: int) -> Reader:
    return Reader(QuerySettings(**limits), LimitSettings(), store)


async def streamed(reader: Reader, work: Callable[[BinaryIO], None]) -> bytes:
    return b"".join([chunk async for chunk in reader.stream(work).chunks()])


async def count(reader: Reader, engine: Engine) -> int:
    query = parse_query("SELECT (COUNT(*) AS ?n) { ?s <a:p> ?o }")
    answer = reader.start(engine.store.native, query, "text/csv", None, None)
    return int(b"".join([chunk async for chunk in answer.chunks()]).split()[1])


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
    await until(no_child)


async def test_a_stream_that_fails_is_an_error_and_not_a_part() -> None:
    def work(out: BinaryIO) -> None:
        out.write(b"a part")
        raise StoreError("the disk")

    with pytest.raises(StoreError, match="broke off"):
        await streamed(reader_of(), work)


# --- a thread of the gateway holds a lock while it forks --------------------------------------------


async def test_a_reader_that_waits_for_a_lock_for_ever_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lamplighter.gateway.workers.ad_hoc")
    lock = threading.Lock()
    lock.acquire()
    asyncio.get_running_loop().call_later(0.01, lock.release)  # here; the child's is its own
    await reader_of().trial(lock.acquire)
    assert "restarts=1" in caplog.text
    await until(no_child)


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
    await until(no_child)


async def test_a_reader_that_is_always_stuck_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lamplighter.gateway.workers.ad_hoc")
    monkeypatch.setattr(lamplighter.gateway.workers.ad_hoc, "_LOOK_S", 0.01)
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
    assert len(caplog.records) == 5, "those of the trial; a stream is of its moment, and not another one's"
    await until(no_child)


async def test_a_reader_that_works_or_waits_for_something_else_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lamplighter.gateway.workers.ad_hoc")
    monkeypatch.setattr(lamplighter.gateway.workers.ad_hoc, "_LOOK_S", 0.01)
    with pytest.raises(LimitExceededError, match="evaluation_ms_max"):
        await Reader(QuerySettings(), LimitSettings(evaluation_ms_max=50)).trial(signal.pause)
    await asyncio.gather(*(reader_of().trial(lambda: sum(range(2 * 10**6))) for _ in range(4)))
    assert not caplog.records
    await until(no_child)


# --- a store on disk --------------------------------------------------------------------------------


async def test_queries_and_trials_go_on_beside_the_writing_of_a_store_on_disk(tmp_path: Path) -> None:
    """Each trial changes the dataset in its own memory, which must not reach the files that it shares."""
    engine, reader = Engine(store_path=tmp_path), reader_of(tmp_path)
    ended = threading.Event()

    def persist() -> None:
        while not ended.wait(0.02):
            engine.persist_native()

    thread = threading.Thread(target=persist)
    thread.start()
    try:
        for number in range(25):
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
        assert len(expected) == 25


def rehearsed(engine: Engine) -> None:
    """Raises LimitExceededError, which a trial does not hide, if the delta is not the right one."""
    before = engine.quad_count
    filling = " . ".join(f"<a:x{number}> <a:q> {number}" for number in range(2000))
    delta = engine.prepare(f"INSERT DATA {{ {filling} }} ; DELETE {{ ?s ?p ?o }} WHERE {{ ?s <a:q> ?x ; ?p ?o }}")
    if delta.changes or engine.quad_count != before:
        raise LimitExceededError("it does not see what it has written")
    if len(engine.update("DELETE WHERE { ?s <a:p> ?o }").removed) != before:
        raise LimitExceededError("it does not see what is there")
    engine.flush()


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
        with pytest.raises(StoreError, match="broke off"):
            while True:
                await anext(chunks)
        await until(no_child)
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
