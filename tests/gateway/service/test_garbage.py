"""What is over leaves next to nothing for the garbage collector, who counts objects and not bytes: the hundred that he
does not care for may hold a hundred requests."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, StoreError, bare
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from tests.support.gateway_parts import CLIENT, gateway
from tests.support.hostile import TEXT, RawSocket, frame
from tests.support.running_gateway import running_gateway

REQUESTS = 100
CONNECTIONS = 5
WRONG = "SELECT * { ?s ?p " + " ".join(str(number) for number in range(200))
BODY_BYTES = 60_000


class Nobody:
    """Whose subscriptions are refused."""

    client = "test"
    identity = None
    since = None
    connection = None


@contextmanager
def uncollected() -> Iterator[list[object]]:
    """Has the list, when left, what only the collector could free."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def held_bytes(garbage: list[object]) -> int:
    """Of texts and buffers that it refers to."""
    return sum(len(part) for one in garbage for part in gc.get_referents(one) if type(part) in (str, bytes, bytearray))


def refused_update(runner: Runner) -> Awaitable[object]:
    return runner.update(UpdateCall(WRONG, CLIENT))


def refused_subscription(runner: Runner) -> Awaitable[object]:
    return runner.subscribe(WRONG, Nobody(), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("request_of", [refused_update, refused_subscription])
async def test_a_refused_request_leaves_no_cycle(
    tmp_path: Path, request_of: Callable[[Runner], Awaitable[object]]
) -> None:
    async with gateway(tmp_path) as runner:
        with uncollected() as found:
            for _ in range(REQUESTS):
                with suppress(GatewayError):
                    await request_of(runner)
                    raise AssertionError("it was not refused")
        assert len(found) < REQUESTS


def test_an_error_that_is_kept_holds_no_frames() -> None:
    def raised() -> StoreError:
        try:
            try:
                raise ValueError("at first")
            except ValueError as error:
                raise StoreError("then") from error
        except StoreError as error:
            return bare(error)

    error = raised()
    assert (error.__traceback__, error.__cause__, error.__context__, str(error)) == (None, None, None, "then")


def test_an_ended_subscription_and_a_forgotten_plan_leave_no_cycle() -> None:
    engine = Engine()
    with uncollected() as found:
        for number in range(20):
            text = f"SELECT * {{ ?a <urn:p> ?v{number} OPTIONAL {{ ?a <urn:q> ?c }} FILTER(STRLEN(STR(?a)) > 3) }}"
            engine.unsubscribe(engine.subscribe(text).spuid)
    assert not found


def _http(port: int) -> None:
    """Ends while a request waits behind another one."""
    data = b""
    for body in (b"CLEAR ALL", b"x" * BODY_BYTES):
        data += b"POST /update HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sparql-update\r\n"
        data += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        while one.recv(1 << 16):
            pass


def _websocket(port: int) -> None:
    """Ends after a message."""
    with RawSocket(port, websocket="/subscribe") as one:
        one.send(frame(TEXT, b'{"unsubscribe":{"spuid":"' + b"x" * BODY_BYTES + b'"}}'))
        assert b"error" in next(one.messages())
        one.shut()
        one.drained()


@pytest.mark.parametrize("connection", [_http, _websocket])
async def test_a_connection_that_is_over_keeps_nothing_of_what_it_received(
    tmp_path: Path, connection: Callable[[int], None]
) -> None:
    async with running_gateway(tmp_path) as at:
        port = urlsplit(at.update if connection is _http else at.subscribe).port
        assert port
        await asyncio.to_thread(connection, port)
        with uncollected() as found:
            for _ in range(CONNECTIONS):
                await asyncio.to_thread(connection, port)
        assert held_bytes(found) < BODY_BYTES
