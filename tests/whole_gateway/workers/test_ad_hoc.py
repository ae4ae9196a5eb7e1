"""Ad-hoc queries to a gateway: limits, isolation, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import socket as sockets
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lamplighter.gateway.addresses import Addresses
from tests.support.forks import forks, no_forks, open_files
from tests.support.gateway_process import GatewayProcess
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
    updates_during,
)

ALL = "SELECT ?s ?p ?o { ?s ?p ?o }"
CROSS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i }"  # 2000 cubed rows: hours
PAIRS = "SELECT ?a ?d { ?a ?b ?c . ?d ?e ?f }"  # 4 million rows, some 100 bytes each


def triples(count: int) -> str:
    return "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(count)) + "}"


def state(process: int) -> str:
    """Letter of proc(5), X for one that is not there."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


async def test_a_runaway_query_is_killed_at_its_time_limit_while_updates_go_on(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": 1000}) as at:
        await update(at, triples(2000))
        runaway = asyncio.create_task(query(at, CROSS))
        done = await updates_during(at, runaway)
        answer = await runaway
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert "query.time_ms_max = 1000" in answer.json["error_description"]
        assert done >= 5, "updates hardly went on beside the query"
        await until(no_forks, "the end of the forks")  # the answer comes before


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
        await until(no_forks, "the end of the forks")  # the answer comes before


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


async def test_an_error_of_the_evaluation_is_told_as_it_is(gateway: Addresses) -> None:
    answer = await query(gateway, "SELECT * { ?s ?p ?o }", default_graph_uri="http://[broken")
    assert (answer.status, answer.json["status_code"]) == (500, 500)
    assert not answer.json["error_description"].startswith("sparql11endpoint")


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

            async def only_the_reader() -> bool:
                return len(forks()) == 1

            await until(only_the_reader, "the end of the fork that tried the update")
            writer.transport.abort()
            await until(no_forks, "the end of the reader")

            async def free() -> bool:
                return (await query(at, "ASK {}")).status == 200

            await until(free, "room for another query")
            await until(no_forks, "the end of the fork that answered")


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
        await until(no_forks, "the end of the readers")
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
        await until(no_forks, "the end of the reader")
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
    with GatewayProcess(tmp_path, gateway={"durability": "off"}, query={"time_ms_max": 60_000}) as gateway:
        text = {"Content-Type": "application/sparql-update"}
        await http(f"{gateway.http_url}/update", "POST", triples(2000), text)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.http_port)
        head = f"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(CROSS)}\r\n"
        writer.write(f"{head}Content-Type: application/sparql-query\r\n\r\n{CROSS}".encode())

        readers: list[int] = []  # one that read the update may be about to end

        async def only_its_pipe() -> bool:
            readers[:] = forks(gateway.pid)
            return [[name.partition(":")[0] for name in open_files(one)] for one in readers] == [["pipe"]]

        await until(only_its_pipe, "a reader with nothing but its pipe")
        [child] = readers
        gateway.end(signal.SIGKILL)

        async def ended() -> bool:
            return state(child) in "XZ"

        await until(ended, "the end of the reader")
        writer.transport.abort()
        gateway.start()
        answer = await http(f"{gateway.http_url}/query", query="SELECT (COUNT(*) AS ?n) { ?s ?p ?o }")
        assert json.loads(answer.body)["results"]["bindings"][0]["n"]["value"] == "2000"
        assert gateway.end(signal.SIGTERM) == 0
