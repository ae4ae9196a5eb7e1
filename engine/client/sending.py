"""Sends whole text messages over a WebSocket of either side, and receives them at a client's.

`Connection.send` of the library enters a context for each message, for fragments and for connections that close. That
is as much work as all the rest of sending a small message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

AT_ONCE_BYTES_MAX = 16 * 1024
PART_BYTES = 256 * 1024
"""Bytes of a longer message that are sent at a time. Each is copied several times on its way, which takes 0.2 ms."""


class LongMessage:
    """A message that is kept in the parts in which it came, since to copy 100 MB takes 80 ms. Its length is that of all
    of them in bytes."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


def parts_of(message: bytes | LongMessage) -> Iterator[bytes | memoryview]:
    """What is to be sent one after the other, `PART_BYTES` at most each."""
    for part in message.parts if isinstance(message, LongMessage) else (message,):
        if len(part) <= PART_BYTES:
            yield part
        else:
            whole = memoryview(part)
            yield from (whole[start : start + PART_BYTES] for start in range(0, len(part), PART_BYTES))


def sent_at_once(socket: Connection, message: bytes | LongMessage) -> bool:
    """Sends a short message if the connection is open and nothing waits to be written; whether it did.

    message: UTF-8. Only for sockets on which a single task sends long messages, and while that sends none.
    """
    transport = socket.transport
    if (
        len(message) > AT_ONCE_BYTES_MAX
        or not isinstance(message, bytes)
        or socket.protocol.state is not State.OPEN
        or transport.is_closing()
        or transport.get_write_buffer_size()
    ):
        return False
    socket.protocol.send_text(message)
    socket.send_data()
    return True


async def send_text(socket: Connection, message: bytes) -> None:
    """Returns when the transport has taken the message and has room for more. message: UTF-8.

    Several tasks may call it, and be cancelled: a message is sent whole or not at all. Only for sockets on which no
    fragmented message is sent meanwhile. Raises ConnectionClosed, and OSError if the connection breaks meanwhile.
    """
    await _ready(socket)
    socket.protocol.send_text(message)
    socket.send_data()
    if socket.paused:
        await socket.drain()


async def send_fragmented(socket: Connection, message: bytes | LongMessage, sent: Callable[[], None]) -> None:
    """The same of a message that is longer than `PART_BYTES`: in fragments (RFC 6455, 5.4), between which others go on.

    sent: called behind each. Only for sockets on which one task alone sends, which leaves the socket when it is
    cancelled. Raises as `send_text`.
    """
    left = len(message)
    for number, part in enumerate(parts_of(message)):
        await _ready(socket)
        left -= len(part)
        send = socket.protocol.send_continuation if number else socket.protocol.send_text
        send(part, fin=not left)
        socket.send_data()
        await (socket.drain() if socket.paused else asyncio.sleep(0))
        sent()


async def _ready(socket: Connection) -> None:
    """Raises ConnectionClosed when the connection has ended."""
    if socket.protocol.state is not State.OPEN or socket.transport.is_closing():
        await socket.send(b"", text=True)


# --- receiving --------------------------------------------------------------------------------------

# Bytes of the longest message that is accepted. A first result is one message.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Bytes of a message, and of one fragment. The fragments of a longer message are counted by `next_message`.
SIZES = None, MESSAGE_BYTES_MAX
# What a message may have done that ends the connection, of either side: a retry does not mend it. 1011 is also that of
# a peer that does not answer pings.
_CODES_OF_MESSAGES = frozenset(
    {
        CloseCode.PROTOCOL_ERROR,
        CloseCode.UNSUPPORTED_DATA,
        CloseCode.INVALID_DATA,
        CloseCode.MESSAGE_TOO_BIG,
    }
)
# The members that precede the results, as a gateway writes them.
_HEAD = re.compile(rb'\{"(answer|notification)":(\{(?:"(?:spuid|alias|sequence)":(?:"(?:[^"\\]|\\.)*"|[0-9]+),)+)')


class DroppedMessage(NamedTuple):
    """A message that was too long to be kept. kind: "answer" or "notification"; spuid, alias, sequence: of its head.
    The texts are empty where that is not understood."""

    kind: str = ""
    spuid: str = ""
    alias: str = ""
    sequence: int = 0


# Bytes of a long message that are looked at.
_HEAD_BYTES_MAX = 64 * 1024


async def next_message(socket: Connection) -> bytes | DroppedMessage:
    """The next message. Raises ConnectionClosed."""
    kept, size = bytearray(), 0
    async for part in socket.recv_streaming(decode=False):
        size += len(part)
        if size <= MESSAGE_BYTES_MAX:
            kept += part
        else:
            del kept[_HEAD_BYTES_MAX:]
    return bytes(kept) if size <= MESSAGE_BYTES_MAX else _dropped_message(bytes(kept))


def _dropped_message(head: bytes) -> DroppedMessage:
    found = _HEAD.match(head)
    if found is None:
        return DroppedMessage()
    members = msgspec.json.decode(found[2][:-1] + b"}")
    return DroppedMessage(
        found[1].decode(), members.get("spuid", ""), members.get("alias", ""), members.get("sequence", 0)
    )


def fault_of_message(error: Exception) -> bool:
    """Whether a connection has ended because of a message, by its code."""
    if not isinstance(error, ConnectionClosed):
        return False
    return any(close is not None and close.code in _CODES_OF_MESSAGES for close in (error.sent, error.rcvd))
