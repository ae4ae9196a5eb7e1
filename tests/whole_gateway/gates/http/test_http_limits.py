"""Limits of the HTTP gate: stalled connections, and requests and answers that are too large."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote, urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.forks import forks
from tests.support.running_gateway import TIMEOUT_S, http, query, rows, running_gateway, until, update

INSERT = "INSERT DATA { <http://x> <http://p> 1 }"
MANY = " ".join(f"<http://s{number}> <http://p> {number} ." for number in range(400))
FORKED = "ASK { FILTER REGEX('a', 'a') }"
"""A query that is not answered in the loop."""
PRODUCT = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i FILTER(?c + ?f = ?i + 0.5) }"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(at: Addresses, limit: int = 65_536) -> AsyncIterator[Streams]:
    place = urlsplit(at.query)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trickle: bytes = b"") -> bool:
    """Whether the gateway ends a connection, though some bytes go on coming."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                async with asyncio.timeout(0.2):
                    if await reader.read(65_536) == b"":
                        return True
            except TimeoutError:
                writer.write(trickle)
            except ConnectionError:
                return True


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


STUCK = [
    (b"", b""),
    (b"", b"\r\n"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"z"),
    (head("POST", "/update", "Content-Type: application/sparql-update", "Content-Length: 100000"), b""),
    (head("POST", "/update", "Content-Type: application/sparql-update", "Content-Length: 100000"), b" "),
    (head("POST", "/update", "Content-Type: application/sparql-update", "Transfer-Encoding: chunked"), b"1\r\n \r\n"),
    (head("POST", "/nowhere", "Content-Length: 100000"), b" "),
    (head("GET", "/health"), b""),
    (head("GET", "/health") + b"GET /he", b"z"),
    (head("GET", "/health"), b"\r\n"),
]
"""What is sent at once, and then every fifth of a second."""


async def test_a_client_that_does_not_get_on_is_disconnected_and_others_are_not(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http={"port": 0, "idle_s": 1}) as at:

        async def stuck(begin: bytes, trickle: bytes) -> float:
            async with connected(at) as (reader, writer):
                begun = time.monotonic()
                writer.write(begin)
                assert await ended(reader, writer, trickle)
                return time.monotonic() - begun

        async def steady() -> None:
            """As slow as they are, but alive: a body at 5 KiB a second for three times as long. It begins again if the
            machine itself has paused it for most of the time that the gateway waits."""
            text = INSERT.ljust(15 * 1024).encode()
            lines = ("Content-Type: application/sparql-update", f"Content-Length: {len(text)}")
            answer, paused_s = b"", 1.0
            while b" 200 " not in answer:
                assert paused_s > 0.7, f"{answer!r} after pauses of {paused_s:.1f} s at most"
                paused_s = 0.0
                async with connected(at) as (reader, writer):
                    writer.write(head("POST", "/update", *lines))
                    for place in range(0, len(text), 1024):
                        begun = time.monotonic()
                        writer.write(text[place : place + 1024])
                        await asyncio.sleep(0.2)  # its pace
                        paused_s = max(paused_s, time.monotonic() - begun)
                    with contextlib.suppress(ConnectionError):
                        answer = await reader.readline()

        took = await asyncio.gather(*(stuck(begin, trickle) for begin, trickle in STUCK), steady())
        assert max(seconds for seconds in took if seconds is not None) < TIMEOUT_S / 2
        assert len(await rows(at, "SELECT * { ?s ?p ?o }")) == 1


async def test_there_are_so_many_connections_and_not_more(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http={"port": 0, "connections_max": 2}) as at:
        async with connected(at) as (first, write), connected(at) as (second, write_too):
            for reader, writer in ((first, write), (second, write_too)):
                writer.write(head("GET", "/ready"))
                assert b" 200 " in await reader.readline()
            refused = await http(at.health)
            assert (refused.status, refused.json["error"]) == (503, "too_many_connections")

        async def served() -> bool:
            return (await http(at.health)).status == 200

        await until(served)


WRONG = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"POST /update HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    (b"POST /update HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000, 431),
    (b"GET /" + b"x" * 400_000, 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60_000, 431),
]


async def test_what_is_no_request_or_has_no_end_is_refused(tmp_path: Path) -> None:
    endless = head("POST", "/echo", "Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n"
    async with running_gateway(tmp_path) as at:
        for data, status in WRONG:
            async with connected(at) as (reader, writer):
                writer.write(data)
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 %d " % status), (data[:50], answer)
                assert b'"status_code":%d' % status in answer
        for begin, more in (
            (endless, b"X-Trailer: y\r\n" * 1000),
            (head("POST", "/echo", "Transfer-Encoding: chunked") + b"1;", b"x" * 60_000),
        ):
            async with connected(at) as (reader, writer):
                writer.write(begin)
                sent = 0
                with pytest.raises(ConnectionError):
                    while sent < 100_000_000:
                        writer.write(more)
                        sent += len(more)
                        await writer.drain()
        assert (await http(at.health)).status == 200


async def test_what_is_no_request_behind_a_request_leaves_its_answer_alone(gateway: Addresses) -> None:
    request = head("POST", "/update", "Content-Type: application/sparql-update", f"Content-Length: {len(INSERT)}")
    for garbage in (b"garbage\r\n\r\n", head("GET", "/" + "x" * 70_000), b"\0" * 70_000):
        async with connected(gateway) as (reader, writer):
            writer.write(request + INSERT.encode() + garbage)
            answers = await reader.read(-1)
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert answers.count(b"HTTP/1.1") == 1, answers


async def test_a_body_that_cannot_be_read_is_answered_once(gateway: Addresses) -> None:
    request = head("POST", "/update", "Content-Type: application/sparql-update", "Transfer-Encoding: chunked")
    async with connected(gateway) as (reader, writer):
        writer.write(request)
        await asyncio.wait_for(writer.drain(), TIMEOUT_S)
        writer.write(b"5\r\nCLEAR\r\nno size\r\n" + b"x" * 70_000)
        answers = await reader.read(-1)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1") == 1, answers


async def test_large_bodies_follow_each_other_on_one_connection(gateway: Addresses) -> None:
    async with connected(gateway) as (reader, writer):
        for number in range(3):
            text = f"INSERT DATA {{ <http://x> <http://p> {number} }}".ljust(3_000_000).encode()
            lines = ("Content-Type: application/sparql-update", f"Content-Length: {len(text)}")
            writer.write(head("POST", "/update", *lines) + text)
            await writer.drain()
            assert b" 200 " in await reader.readline()
            await reader.readuntil(f'"sequence":{number + 1}}}'.encode())


async def test_bodies_are_bounded_one_by_one_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.gateway.gates.http.calls.UNCOUNTED_BYTES", 0)
    monkeypatch.setattr("lamplighter.gateway.gates.http.calls.REQUEST_BYTES_MAX", 1000)
    monkeypatch.setattr("lamplighter.gateway.gates.http.calls.BODIES_BYTES_MAX", 1500)
    async with running_gateway(tmp_path) as at:
        assert (await update(at, INSERT.ljust(1000))).status == 200
        answer = await update(at, INSERT.ljust(1001))
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        async with connected(at) as (reader, writer):
            lines = ("Content-Type: application/sparql-update", "Content-Length: 1000", "Expect: 100-continue")
            writer.write(head("POST", "/update", *lines))
            assert b" 100 " in await reader.readline()
            writer.write(INSERT.ljust(999).encode())

            async def full() -> bool:
                refused = await update(at, INSERT.ljust(600))
                return (refused.status, refused.headers.get("retry-after")) == (429, "1")

            await until(full)
            assert (await update(at, INSERT)).status == 200
            writer.write(b" ")
            await reader.readline()
            assert b" 200 " in await reader.readline()
        assert (await update(at, INSERT.ljust(600))).status == 200


async def test_a_product_of_three_is_killed_at_its_limit_while_updates_go_on(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": 1500}) as at:
        assert (await update(at, f"INSERT DATA {{ {MANY} }}")).status == 200
        begun = time.monotonic()
        product = asyncio.create_task(query(at, PRODUCT))
        beside: list[float] = []
        while not product.done():
            beside.append(await _timed(at, len(beside)))
        took = time.monotonic() - begun
        answer = await product
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert 1.4 < took < TIMEOUT_S / 2
        # They are sent one after the other. An update that waited for the product would be the first and the last one.
        assert len(beside) >= 3
        assert median(beside) < took / 2


async def _timed(at: Addresses, number: int) -> float:
    begun = time.monotonic()
    assert (await update(at, f"INSERT DATA {{ <http://t{number}> <http://q> {begun} }}")).status == 200
    return time.monotonic() - begun


async def test_a_client_that_does_not_read_costs_no_memory_and_is_dropped(tmp_path: Path) -> None:
    product = "SELECT ?a ?b ?c ?d { ?a ?x ?b . ?c ?y ?d }"  # 160,000 rows, 40 MB
    async with running_gateway(tmp_path, http={"port": 0, "idle_s": 1}, query={"time_ms_max": 60_000}) as at:
        await update(at, f"INSERT DATA {{ {MANY} }}")
        await query(at, "ASK {}")
        before = resident_bytes()
        async with connected(at, limit=1000) as (reader, writer):
            writer.write(head("GET", f"/query?query={quote(product)}"))
            assert b" 200 " in await reader.readline()
            most = 0

            async def gone() -> bool:
                nonlocal most
                most = max(most, resident_bytes() - before)
                return not forks()

            await until(gone, "the end of the reader")
            assert most < 8_000_000
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(40_000_000)
        answer = await query(at, product)
        assert len(answer.json["results"]["bindings"]) == 160_000


async def test_a_client_that_sends_requests_without_end_and_reads_nothing_is_dropped(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http={"port": 0, "idle_s": 1}) as at:
        await update(at, f"INSERT DATA {{ {MANY} }}")
        many = head("GET", f"/query?query={quote('SELECT * { ?s ?p ?o }')}") * 1000  # 40 kB each answer
        await query(at, "ASK {}")
        before, most = resident_bytes(), 0

        async def flood() -> None:
            nonlocal most
            async with connected(at, limit=1000) as (_, writer):
                while True:
                    writer.write(many)
                    await writer.drain()
                    most = max(most, resident_bytes() - before)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(flood(), TIMEOUT_S)
        assert most < 8_000_000
        assert (await http(at.health)).status == 200


PIPELINED = [16, 17, 18, 100, 1000]
"""Requests at once."""


def pipelined_updates(count: int) -> bytes:
    texts = [f"INSERT DATA {{ <http://x> <http://p> {number} }}".encode() for number in range(count)]
    lines = ("Content-Type: application/sparql-update", "Content-Length: ")
    return b"".join(head("POST", "/update", lines[0], lines[1] + str(len(text))) + text for text in texts)


def pipelined_queries(count: int) -> bytes:
    return b"".join(head("GET", f"/query?query={quote(f'SELECT ({number} AS ?n) {{}}')}") for number in range(count))


async def answers_to(at: Addresses, requests: bytes, *, whole: bool, ending: bool, count: int) -> list[bytes]:
    """The bodies of the answers to pipelined requests. whole: sent at once; ending: the client ends its side behind
    them."""
    async with connected(at) as (reader, writer), asyncio.timeout(TIMEOUT_S):
        if not whole:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def send() -> None:
            for piece in [requests] if whole else [requests[place : place + 1] for place in range(len(requests))]:
                writer.write(piece)
                await writer.drain()
                if not whole:
                    await asyncio.sleep(0)
            if ending:
                writer.write_eof()

        async def received() -> list[bytes]:
            bodies = []
            for _ in range(count):
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                assert lines[0].startswith("http/1.1 200"), lines
                length = next((line for line in lines if line.startswith("content-length: ")), None)
                if length is not None:
                    bodies.append(await reader.readexactly(int(length.split(" ")[1])))
                else:
                    bodies.append(b"")
                    while size := int(await reader.readline(), 16):
                        bodies[-1] += await reader.readexactly(size)
                        await reader.readline()
                    await reader.readline()
            if ending:
                assert await reader.read() == b""
            return bodies

        _, bodies = await asyncio.gather(send(), received())
        return bodies


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("count", PIPELINED)
async def test_each_pipelined_request_is_answered_in_order(gateway: Addresses, count: int, ending: bool) -> None:
    for whole in (True, False) if count <= 100 else (True,):
        sequence = (await update(gateway, "INSERT DATA {}")).json["sequence"]
        answers = await answers_to(gateway, pipelined_updates(count), whole=whole, ending=ending, count=count)
        sequences = [json.loads(answer)["sequence"] for answer in answers]
        assert sequences == sorted(sequences) and sequences[-1] - sequence <= count
        numbers = {
            int(row["o"]["value"])
            for row in (await query(gateway, "SELECT ?o { <http://x> <http://p> ?o }")).json["results"]["bindings"]
        }
        assert numbers == set(range(count)), "each update has run"
        await update(gateway, "CLEAR ALL")
        answers = await answers_to(gateway, pipelined_queries(count), whole=whole, ending=ending, count=count)
        values = [int(json.loads(answer)["results"]["bindings"][0]["n"]["value"]) for answer in answers]
        assert values == list(range(count))


async def test_requests_behind_the_last_one_cost_no_answer(gateway: Addresses) -> None:
    """Behind one that closes the connection, and behind a body that is invalid."""
    closing = head("GET", "/ready", "Connection: close")
    unreadable = head("POST", "/update", "Content-Type: application/sparql-update", "Transfer-Encoding: chunked")
    for end, last in ((closing, b" 200 "), (unreadable + b"no size\r\n", b" 400 ")):
        async with connected(gateway) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(head("GET", "/ready") * 30 + end + head("GET", "/ready") * 20_000)
            answers = await reader.read(-1)
        assert answers.count(b"HTTP/1.1 ") == 31
        assert answers.split(b"HTTP/1.1")[-1].startswith(last)


async def test_a_request_to_change_the_protocol_costs_no_answer(gateway: Addresses) -> None:
    """As curl sends it for HTTP/2 without TLS. With a body, the request is refused."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    types = ("Content-Type: application/sparql-update", f"Content-Length: {len(INSERT)}")
    update = head("POST", "/update", *types, *upgrade) + INSERT.encode()
    for first, answers in ((head("GET", "/ready", *upgrade), [b"200"] * 5), (update, [b"501"])):
        async with connected(gateway) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(first + head("GET", "/ready") * 3 + head("GET", "/ready", "Connection: close"))
            assert re.findall(rb"HTTP/1.1 ([0-9]+)", await reader.read(-1)) == answers


async def test_queries_that_wait_for_their_turn_end_when_their_client_goes_away(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"concurrent_max": 1}) as at:
        await update(at, f"INSERT DATA {{ {MANY} }}")
        async with connected(at) as (_, writer):
            writer.write(head("GET", f"/query?query={quote(PRODUCT)}") * 1000)

            async def full() -> bool:
                return (await query(at, FORKED)).status == 429

            await until(full)

        async def free() -> bool:
            return (await query(at, FORKED)).status == 200

        await until(free)


async def test_a_query_ends_when_its_client_goes_away(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"concurrent_max": 1}) as at:
        await update(at, f"INSERT DATA {{ {MANY} }}")
        async with connected(at) as (_, writer):
            writer.write(head("GET", f"/query?query={quote(PRODUCT)}"))

            async def full() -> bool:
                return (await query(at, FORKED)).status == 429

            await until(full)

        async def free() -> bool:
            return (await query(at, FORKED)).status == 200

        await until(free)
