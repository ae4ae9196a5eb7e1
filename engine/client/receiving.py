"""Receives whole text messages over a WebSocket, and tells of the longer ones whose they are.

A gateway sends a long message in fragments, so what is too long to be kept is dropped while the connection goes on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

# Bytes of the longest message that is accepted. A first result is one message.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Bytes of a message, and of one fragment. The fragments of a longer message are counted by `received`.
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


async def received(socket: ClientConnection) -> bytes | DroppedMessage:
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
