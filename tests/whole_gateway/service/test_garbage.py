"""A closed connection leaves no objects behind."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.garbage import uncollected
from tests.support.hostile import TEXT, RawSocket, frame

CONNECTIONS = 5
BODY_BYTES = 60_000


def held_bytes(garbage: list[object]) -> int:
    """Of texts and buffers that it refers to."""
    return sum(len(part) for one in garbage for part in gc.get_referents(one) if type(part) in (str, bytes, bytearray))


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
    gateway: Addresses, connection: Callable[[int], None]
) -> None:
    port = urlsplit(gateway.update if connection is _http else gateway.subscribe).port
    assert port
    await asyncio.to_thread(connection, port)
    with uncollected() as found:
        for _ in range(CONNECTIONS):
            await asyncio.to_thread(connection, port)
    assert held_bytes(found) < BODY_BYTES
