"""One HTTP connection on a transport that records: what is written at once, and when an idle connection is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from lamplighter.engine.sharing import Usage
from lamplighter.gateway.gates.http.connections import HttpConnection
from lamplighter.gateway.gates.listeners import Listener
from lamplighter.gateway.settings import HttpSettings, QuotaSettings
from lamplighter.gateway.state.quotas import ConnectionLease
from tests.support.running_gateway import TIMEOUT_S, until

IDLE_S = 20
BODY = b"x" * 1000


class Wire(asyncio.Transport):
    """Records what is written at a time."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__({"socket": connected})
        self.written: list[bytes] = []
        self.closed = self.paused = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def has(self, count: int) -> list[bytes]:
        """What was written, once there are so many writes."""

        async def written() -> bool:
            return len(self.written) >= count

        await until(written)
        return self.written


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers `BODY` after the whole body was received, in as many parts as the path says."""
    while (await receive())["more_body"]:
        pass
    parts = int(scope["path"].removeprefix("/") or 1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-path", scope["path"].encode())]})
    if scope["path"] == "/0":
        raise RuntimeError("nothing to send")
    for part in range(parts):
        await send({"type": "http.response.body", "body": BODY, "more_body": part + 1 < parts})


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[], tuple[HttpConnection, Wire]]]:
    config = uvicorn.Config(application, interface="asgi3", ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:

        def connected() -> tuple[HttpConnection, Wire]:
            held, wire = ConnectionLease(Usage(), QuotaSettings, 100), Wire(ours)
            one = HttpConnection(config, state, HttpSettings(idle_s=IDLE_S), Listener(listening), held)
            one.connection_made(wire)
            return one, wire

        yield connected


def request(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


Connect = Callable[[], tuple[HttpConnection, Wire]]


async def test_an_answer_of_one_part_is_written_at_once(connect: Connect) -> None:
    connection, wire = connect()
    for count in (1, 2):
        connection.data_received(request("GET", "/"))
        answer = (await wire.has(count))[-1]
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert BODY in answer
    assert len(wire.written) == 2


async def test_a_long_answer_has_its_head_with_the_first_part(connect: Connect) -> None:
    connection, wire = connect()
    connection.data_received(request("GET", "/3"))
    written = await wire.has(3)
    assert [part.count(BODY) for part in written] == [1, 1, 1]
    assert [part.startswith(b"HTTP/1.1 200 ") for part in written] == [True, False, False]


async def test_pipelined_requests_are_answered_in_order(connect: Connect) -> None:
    connection, wire = connect()
    connection.data_received(request("HEAD", "/1") + request("GET", "/2") + request("HEAD", "/3"))
    written = await wire.has(4)
    assert [path in part for path, part in zip((b"/1", b"/2", BODY, b"/3"), written, strict=True)] == [True] * 4
    assert [BODY in part for part in written] == [False, True, True, False]


async def test_nothing_is_read_while_a_request_waits_and_few_wait(connect: Connect) -> None:
    connection, wire = connect()
    parts = [number % 3 + 1 for number in range(3000)]
    posts = [request("POST", f"/{count}", "Content-Length: 3") + b"abc" for count in (1, 2, 3)]
    connection.data_received(b"".join(posts[count - 1] for count in parts))
    waiting = 0
    async with asyncio.timeout(TIMEOUT_S):
        while len(wire.written) < sum(parts):
            waiting = max(waiting, len(connection.pipeline))
            assert wire.paused or not connection.pipeline
            await asyncio.sleep(0)
    heads = [answer for answer in wire.written if answer.startswith(b"HTTP/1.1 200 ")]
    assert [f"x-path: /{count}\r".encode() in head for count, head in zip(parts, heads, strict=True)] == [True] * 3000
    assert waiting < 100 and not connection.pipeline and not wire.closed and not wire.paused
    connection.data_received(request("GET", "/"))
    await wire.has(sum(parts) + 1)


async def test_the_interim_answer_is_not_held_back(connect: Connect) -> None:
    connection, wire = connect()
    connection.data_received(request("POST", "/", "Content-Length: 3", "Expect: 100-continue"))
    assert await wire.has(1) == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    connection.data_received(b"abc")
    written = await wire.has(2)
    assert written[1].startswith(b"HTTP/1.1 200 ")
    assert BODY in written[1]


async def test_a_head_without_its_body_is_sent_before_the_connection_is_closed(connect: Connect) -> None:
    connection, wire = connect()
    connection.data_received(request("GET", "/0"))
    [answer] = await wire.has(1)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert wire.closed


async def test_an_idle_connection_is_closed_and_one_with_a_request_is_not(connect: Connect) -> None:
    connection, wire = connect()
    connection.data_received(request("GET", "/"))
    await wire.has(1)
    answered = asyncio.get_running_loop().time()
    connection.check(answered + IDLE_S / 2)
    assert not wire.closed
    connection.data_received(request("GET", "/"))
    connection.check(answered + 2 * IDLE_S)
    assert not wire.closed
    await wire.has(2)
    connection.check(asyncio.get_running_loop().time() + IDLE_S)
    assert wire.closed
