"""What WebSocket clients have sent and nobody has looked at yet: bounded for each connection, and for all together.

The library holds a message until it is whole, some behind it, and a packet. That is 16 MiB and more for each
connection, which whoever has no token could make it hold, on any number of connections.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from http import HTTPStatus
from socket import AF_UNIX

from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.http11 import Request, Response

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
HEAD_BYTES_MAX = 16 * 1024
"""Of a handshake. A token has 1 KiB at most; the library would take 1 MiB, and keep it."""
QUEUED_BYTES_MAX = 1024 * 1024
"""Whole messages that wait; nothing more is read from a connection above that."""
FRAME_BYTES = 256
"""What a frame takes beside its content."""
PACKET_BYTES_MAX = 256 * 1024
"""What comes at once (asyncio)."""
INFLATED_BYTES_MAX = 1024 * 1024
"""What a compressed message without a good token may be inflated to."""
COMPRESSED_BYTES = 4096
"""What is inflated before it is counted."""
PONGS_BYTES_MAX = 64 * 1024
"""Answers to the pings of a client that reads nothing."""
LINGER_S = 1.0
"""How long a client that was refused may take to read why."""


class Unread:
    """The sum over all connections of a gate. bytes_max: above it the one with the most is closed, of those without a
    good token if there are any."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[BoundedSocket, int] = {}

    def changed(self, connection: BoundedSocket, size: int) -> None:
        self._bytes += size - self._sizes.pop(connection, 0)
        if size:
            self._sizes[connection] = size
        while self._bytes > self._bytes_max:
            largest = max(self._sizes, key=lambda one: (not one.trusted, self._sizes[one]))
            largest.refuse(
                CloseCode.TRY_AGAIN_LATER, f"websocket.unread_bytes_max = {self._bytes_max} is reached; try later"
            )


class BoundedSocket(ServerConnection):
    """A connection that holds little until it is trusted, and after that no more than a message and what waits.

    unread: the sum that it is part of, unless it is of a process of this machine; first_bytes_max: of what is unread
    until it is trusted; compression: whether messages may be compressed.
    """

    unread: Unread
    first_bytes_max: int
    compression: bool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.local:
            self.unread = Unread(sys.maxsize)
        self.trusted = False
        self.protocol.max_message_size = INFLATED_BYTES_MAX if self.compression else MESSAGE_BYTES_MAX
        self._head = 0
        self._pongs = 0  # bytes since the peer took anything
        self._part = 0  # bytes of the message that is coming, in whole frames
        self._whole = 0  # bytes of messages that wait
        self._messages: deque[int] = deque()  # the bytes of each
        self._last: Frame | None = None
        self._refused = False

    @property
    def refused(self) -> bool:
        """Whether it is being closed, and what was received is not to be looked at."""
        return self._refused

    @property
    def local(self) -> bool:
        """Whether it came by a Unix socket: however many there are on the network, this machine's own get through."""
        return bool(self.transport.get_extra_info("socket").family == AF_UNIX)

    def trust(self) -> None:
        """It has shown a good token, or need not."""
        self.trusted = True
        self.protocol.max_message_size = MESSAGE_BYTES_MAX

    def taken(self) -> None:
        """The oldest message has been looked at."""
        if self._messages:
            self._whole -= self._messages.popleft()
        if self._last is not None and not self._messages and not self._part:
            self._last.data = b""  # the parser keeps it until the next one comes
            self._last = None
        self._look()

    def refusal(self, status: HTTPStatus, code: str, reason: str) -> Response:
        """The answer to a handshake that is not accepted, in the form of every error (protocol 1.4)."""
        body = {"error": code, "status_code": int(status), "error_description": reason}
        response = self.respond(status, json.dumps(body))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    def refuse(self, code: CloseCode, reason: str) -> None:
        """Closes with a code, and drops what was received."""
        if self._refused:
            return
        self._refused = True
        self._part = self._whole = 0
        self._messages.clear()
        for frame in self.recv_messages.frames.queue:  # somebody may wait for the first of them
            frame.data = b""
        self.protocol.fail(code, reason)
        self.send_data()
        self.transport.resume_reading()  # what comes is dropped: a client that still writes would not see why
        self.loop.call_later(LINGER_S, self.transport.abort)
        self.unread.changed(self, 0)

    def data_received(self, data: bytes) -> None:
        if self._refused:  # or lost: TLS may hand over something after its end
            return
        if self.request is None:
            self._head += len(data)
            if self._head > HEAD_BYTES_MAX:
                self._refused = True
                reason = f"the head of a handshake has {HEAD_BYTES_MAX} bytes at most"
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.protocol.send_response(self.refusal(status, "headers_too_large", reason))
                self.send_data()
                self.loop.call_later(LINGER_S, self.transport.abort)
                return
        # Compressed data becomes a thousand times as much at most, and is looked at before that is too much for one.
        at_once = COMPRESSED_BYTES if self.compression else len(data)
        for start in range(0, len(data), at_once):
            super().data_received(data[start : start + at_once])
            self._look()
            if self._refused:
                return

    def process_event(self, event: Frame | Request | Response) -> None:
        if isinstance(event, Frame):
            if event.opcode in DATA_OPCODES:
                self._last = event
                self._part += len(event.data) + FRAME_BYTES
                if event.fin:
                    self._messages.append(self._part)
                    self._whole += self._part
                    self._part = 0
            elif event.opcode is Opcode.PING and self.paused:
                # The library answers at once, whether or not the peer takes the answers.
                self._pongs += len(event.data)
                if self._pongs > PONGS_BYTES_MAX:
                    self.transport.abort()
        super().process_event(event)

    def resume_writing(self) -> None:
        self._pongs = 0
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._refused = True
        self.unread.changed(self, 0)

    def _look(self) -> None:
        """Counts what is unread; stops reading, or closes, when that is too much."""
        if self._refused:
            return
        size = self._part + self._whole + len(self.protocol.reader.buffer)
        self.unread.changed(self, size)
        if self._refused:  # as the one with the most
            return
        if self.trusted:
            stop = self._whole > QUEUED_BYTES_MAX
        else:
            stop = size > self.first_bytes_max
            # A message that waits may have a token, and what came with it is welcome then.
            next_one = self._messages[0] if self._messages else size
            ahead = PACKET_BYTES_MAX + (INFLATED_BYTES_MAX if self.compression else 0)
            if max(next_one, size - ahead) > self.first_bytes_max:
                self.refuse(
                    CloseCode.MESSAGE_TOO_BIG,
                    f"without a good token security.first_message_bytes_max = {self.first_bytes_max} holds",
                )
                return
        if stop:
            self.transport.pause_reading()
        elif not self.recv_messages.paused:
            self.transport.resume_reading()
