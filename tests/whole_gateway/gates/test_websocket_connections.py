"""WebSocket connections that are slow, silent, half open, large or unusual (RFC 6455), and their limits."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket as sockets
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.bounded_sockets import MESSAGE_BYTES_MAX
from tests.support.held_disk import HeldDisk
from tests.support.running_gateway import TIMEOUT_S, ask, health, hear, running_gateway, tell, until, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
SUBSCRIBE = {"subscribe": {"sparql": ALL, "alias": "a"}}
TEXT, PING, PONG, FINAL = 0x1, 0x9, 0xA, 0x80


def port_of(at: Addresses) -> int:
    return int(at.subscribe.rpartition(":")[2].partition("/")[0])


def frame(payload: bytes, first_byte: int = FINAL | TEXT) -> bytes:
    """A masked frame, as clients send it (RFC 6455, 5.2)."""
    mask = os.urandom(4)
    size = struct.pack("!BBH", first_byte, 0x80 | 126, len(payload))
    return size + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


@asynccontextmanager
async def raw_connection(
    at: Addresses, *, receive_bytes: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to the gate that has not said anything. receive_bytes: a small receive buffer."""
    raw = sockets.socket()
    if receive_bytes:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive_bytes)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port_of(at)))
    reader, writer = await asyncio.open_connection(sock=raw, limit=2**12)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        b"GET /subscribe HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key.encode()
    )
    assert b"101" in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]


async def ended(reader: asyncio.StreamReader) -> bool:
    """Reads until the other side is gone, by an orderly end or not."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    return True


async def nobody_is_subscribed(at: Addresses) -> bool:
    return bool((await health(at))["subscriptions"] == 0)


# --- frames and messages ----------------------------------------------------------------------------


async def test_a_message_may_come_in_fragments_and_as_a_binary_frame(gateway: Addresses) -> None:
    async with connect(gateway.subscribe) as socket:
        text = json.dumps({"subscribe": {"sparql": ALL + " # ვაიმეე", "alias": "ვ"}}, ensure_ascii=False)
        await socket.send([text[:1], text[1:60], text[60:]])
        assert (await hear(socket))["notification"]["alias"] == "ვ"
        await socket.send(text.encode())
        assert (await hear(socket))["notification"]["sequence"] == 0


async def test_control_frames_between_fragments_are_answered(gateway: Addresses) -> None:
    async with raw_connection(gateway) as (reader, writer):
        await shake_hands(reader, writer)
        text = json.dumps(SUBSCRIBE).encode()
        writer.write(frame(text[:10], TEXT))
        writer.write(bytes([FINAL | PING, 0x80]) + b"mask")  # a ping without content
        writer.write(frame(text[10:], FINAL))
        assert await reader.readexactly(2) == bytes([FINAL | PONG, 0])
        assert (await reader.readexactly(1))[0] == FINAL | TEXT


async def test_a_request_of_16_mib_is_answered_and_a_larger_one_ends_its_connection(tmp_path: Path) -> None:
    text = "INSERT DATA { <http://a> <http://p> 1 } #"
    padding = MESSAGE_BYTES_MAX - len(json.dumps({"update": {"sparql": text}}))
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as other:
        socket = await connect(at.subscribe)  # it is closed by the gateway
        for size in (padding, padding + 1):
            message = {"update": {"sparql": text + "x" * size}}
            assert len(json.dumps(message)) - MESSAGE_BYTES_MAX == size - padding
            await tell(socket, message)
            if size == padding:
                assert (await hear(socket))["updated"]["sequence"] == 1
        with pytest.raises(ConnectionClosed) as caught:
            await hear(socket)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
        assert (await ask(other, SUBSCRIBE))["notification"]["sequence"] == 0


async def test_nothing_more_is_read_from_a_client_that_has_too_much_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.gates.websocket.UNDER_WAY_BYTES_MAX", 1000)
    disk = HeldDisk(monkeypatch)
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at, connect(at.subscribe) as socket:
        disk.hold()
        try:
            texts = [f"INSERT DATA {{ <http://s{n}> <http://p> '{'x' * 600}' }}" for n in range(20)]
            for number, text in enumerate(texts):  # in one go, each with an answer
                await tell(socket, {"update": {"sparql": text, "alias": str(number)}})
            async with connect(at.subscribe) as other:
                for _ in range(3):  # the gate has received what was sent before
                    await (await other.ping())
            assert (await health(at))["queue"] <= 2
        finally:
            disk.release()
        told = [(await hear(socket))["updated"] for _ in texts]
        assert told == [{"alias": str(n), "sequence": n + 1} for n in range(20)]


@pytest.mark.parametrize("compression", [False, True])
async def test_messages_are_compressed_where_the_settings_say_so(tmp_path: Path, compression: bool) -> None:
    tables: dict[str, Any] = {"websocket": {"compression": compression}}
    async with running_gateway(tmp_path, **tables) as at, connect(at.subscribe) as socket:
        assert socket.response is not None
        agreed = socket.response.headers.get("Sec-WebSocket-Extensions", "")
        assert agreed.startswith("permessage-deflate") is compression
        assert (await ask(socket, SUBSCRIBE))["notification"]["sequence"] == 0


async def test_the_path_is_a_setting_and_a_refusal_has_the_three_members(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, websocket={"path": "/sparql"}) as at:
        assert at.subscribe.endswith("/sparql")
        async with connect(at.subscribe) as socket:
            assert (await ask(socket, SUBSCRIBE))["notification"]["sequence"] == 0
        with pytest.raises(InvalidStatus) as caught:
            await connect(at.subscribe.replace("/sparql", "/subscribe"))
        response = caught.value.response
        assert (response.status_code, response.headers["Content-Type"]) == (404, "application/json")
        assert json.loads(response.body or b"") == {
            "error": "wrong_path",
            "status_code": 404,
            "error_description": "there is nothing at this path; subscribe at /sparql",
        }


# --- peers that are not there ------------------------------------------------------------------------


async def test_a_peer_that_answers_no_ping_is_disconnected(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, websocket={"ping_s": 2}) as at, connect(at.subscribe) as lively:
        await ask(lively, SUBSCRIBE)
        async with raw_connection(at) as (reader, writer):
            await shake_hands(reader, writer)
            writer.write(frame(json.dumps(SUBSCRIBE).encode()))
            assert await ended(reader)

            async def one_is_left() -> bool:
                return bool((await health(at))["subscriptions"] == 1)

            await until(one_is_left)
        await update(at, "INSERT DATA { <http://s> <http://p> 1 }")
        assert (await hear(lively))["notification"]["sequence"] == 1


async def test_a_peer_that_takes_nothing_in_is_disconnected_though_no_ping_can_reach_it(tmp_path: Path) -> None:
    """What waits for it is far less than outbox_bytes_max, and more than the buffers of both machines."""
    huge = "x" * 6_000_000
    tables: dict[str, Any] = {"websocket": {"ping_s": 1, "outbox_bytes_max": 64 * 2**20}}
    async with running_gateway(tmp_path, **tables) as at:
        await update(at, f"INSERT DATA {{ <http://s> <http://p> '{huge}' }}")
        async with raw_connection(at, receive_bytes=4096) as (reader, writer):
            await shake_hands(reader, writer)
            writer.write(frame(json.dumps(SUBSCRIBE).encode()))

            async def subscribed() -> bool:
                return not await nobody_is_subscribed(at)

            await until(subscribed)

            async def gone() -> bool:
                return await nobody_is_subscribed(at)

            await until(gone)


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_half_of_a_frame_and_then_nothing_ends_the_connection(gateway: Addresses, orderly: bool) -> None:
    async with raw_connection(gateway) as (reader, writer):
        await shake_hands(reader, writer)
        writer.write(frame(json.dumps(SUBSCRIBE).encode()) + frame(b"{" * 1000)[:500])
        assert (await reader.readexactly(1))[0] == FINAL | TEXT
        if orderly:
            writer.write_eof()
            assert await ended(reader)
        else:
            writer.transport.abort()

        async def gone() -> bool:
            return await nobody_is_subscribed(gateway)

        await until(gone)


async def test_whoever_does_not_finish_the_handshake_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.gates.websocket.HANDSHAKE_S", 0.3)
    async with running_gateway(tmp_path) as at:
        for begun in (b"", b"GET /subscribe HTTP/1.1\r\nHost: localhost"):
            async with raw_connection(at) as (reader, writer):
                writer.write(begun)
                assert await ended(reader)
        async with raw_connection(at) as (reader, writer):
            writer.write(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert await ended(reader)


async def test_connections_that_say_nothing_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.gateway.gates.websocket.HANDSHAKES_MAX", 3)
    async with running_gateway(tmp_path, websocket={"connections_max": 1}) as at, connect(at.subscribe) as socket:
        silent = [raw_connection(at) for _ in range(3)]
        for connection in silent:
            await connection.__aenter__()
        async with raw_connection(at) as (reader, _):
            assert await ended(reader)
        assert (await ask(socket, SUBSCRIBE))["notification"]["sequence"] == 0
        for connection in silent:
            await connection.__aexit__(None, None, None)

        async def room_again() -> bool:
            with suppress(ConnectionError):  # the gate has not yet seen that the others are gone
                async with raw_connection(at) as (reader, writer):
                    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    return b"404" in await reader.read(100)
            return False

        await until(room_again)


async def test_a_client_may_hold_subscriptions_that_share_their_alias(gateway: Addresses) -> None:
    """Nothing forbids it; each has its own spuid, and that is what the client has to tell them by. Notifications have
    the alias too, as Roffia 2018 shows them."""
    async with connect(gateway.subscribe) as socket:
        first = [(await ask(socket, SUBSCRIBE))["notification"] for _ in range(2)]
        assert first[0]["spuid"] != first[1]["spuid"]
        await update(gateway, "INSERT DATA { <http://s> <http://p> 1 }")
        later: list[dict[str, Any]] = [(await hear(socket))["notification"] for _ in range(2)]
        assert {body["spuid"] for body in later} == {body["spuid"] for body in first}
        assert [body["alias"] for body in later] == [body["alias"] for body in first]
