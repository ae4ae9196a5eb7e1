"""Bounds on the unread input of WebSocket clients, for each connection and for all together.

The library buffers a message until it is complete, some messages behind it, and a packet. That is 16 MiB and more for
each connection. Without a bound, clients without a token could make it buffer that on any number of connections.

It also parses a packet to its end. A packet may have 40,000 frames without content, or expand a thousand times, and
would block the event loop for seconds. So a packet is parsed in parts, with other tasks between them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, deque
from http import HTTPStatus
from socket import AF_UNIX
from time import perf_counter, thread_time

from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.http11 import Request, Response

from lamplighter.gateway.monitoring.timings import LoopHoldTimer

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
HEAD_BYTES_MAX = 16 * 1024  # of a handshake. A token has at most 1 KiB; the library would accept 1 MiB, and keep it.
QUEUED_BYTES_MAX = 1024 * 1024  # complete messages that wait. Above it, the connection is not read.
FRAME_BYTES = 256  # bytes of a frame besides its content
PACKET_BYTES_MAX = 256 * 1024  # bytes that arrive at once (asyncio)
INFLATED_BYTES_MAX = 1024 * 1024  # the inflated size of a compressed message without a valid token
# Bytes that are parsed before they are counted: plain ones, and those of a gate that inflates.
PART_BYTES, COMPRESSED_BYTES = 8192, 4096
PARSED_S = 0.01  # how long the parts of one packet are parsed before other tasks run
PONGS_BYTES_MAX = 64 * 1024  # unread answers to the pings of a client, with `FRAME_BYTES` for each
LINGER_S = 1.0  # how long a refused client may take to read the reason
SLOW_LINGER_S = 10.0  # how long one may that did not read what was sent before it
_NOTHING = memoryview(b"")


class ReceiveBudget:
    """The sum over all connections of a gate. bytes_max: above it a connection is closed: of those without a valid
    token, else of the client that has the most over all of its connections, the one with the most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[BoundedSocket, int] = {}

    def count(self, connection: BoundedSocket, size: int) -> None:
        self._bytes += size - self._sizes.pop(connection, 0)
        if size:
            self._sizes[connection] = size
        while self._bytes > self._bytes_max:
            of_client = Counter[str]()
            for one, waiting in self._sizes.items():
                of_client[one.client] += waiting
            largest = max(self._sizes, key=lambda one: (not one.trusted, of_client[one.client], self._sizes[one]))
            largest.refuse(
                CloseCode.TRY_AGAIN_LATER, f"websocket.unread_bytes_max = {self._bytes_max} is reached; try later"
            )


class BoundedSocket(ServerConnection):
    """A connection that buffers little until it is trusted, and then at most a message and those that wait. unread: the
    sum that it counts in, None for local processes; first_bytes_max: unread bytes until it is trusted; compression:
    whether messages may be compressed; loop_held: is told how long parsing blocked the loop."""

    unread: ReceiveBudget
    first_bytes_max: int
    compression: bool
    loop_held: LoopHoldTimer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # The library would read on as soon as a message is taken, whatever else waits.
        self.recv_messages.resume = self._look
        if self.local:
            self.unread = ReceiveBudget(sys.maxsize)
        self.trusted = False
        self.client = ""  # as whom it counts: nobody until a message has told
        self.protocol.max_message_size = INFLATED_BYTES_MAX if self.compression else MESSAGE_BYTES_MAX
        self._head = 0
        self._pongs = 0  # bytes since the peer last read
        self._part = 0  # bytes of the incomplete message, in whole frames
        self._whole = 0  # bytes of messages that wait
        self._messages: deque[int] = deque()  # the bytes of each
        self._last: Frame | None = None
        self.refused = False
        self._unparsed = _NOTHING  # the rest of a packet
        # Compressed data grows at most a thousand times, so it is counted in smaller parts.
        self._at_once = COMPRESSED_BYTES if self.compression else PART_BYTES

    @property
    def local(self) -> bool:
        """Whether it is on a Unix socket. Local processes always get through, however many clients the network has."""
        connected = self.transport.get_extra_info("socket")  # a TLS transport that is closed has none
        return connected is not None and connected.family == AF_UNIX

    def trust(self) -> None:
        """Marks it as authenticated, or as in no need of it."""
        self.trusted = True
        self.protocol.max_message_size = MESSAGE_BYTES_MAX

    def mark_read(self) -> None:
        """Marks the oldest message as read."""
        if self._messages:
            self._whole -= self._messages.popleft()
        if self._last is not None and not self._messages and not self._part:
            self._last.data = b""  # the parser keeps it until the next one arrives
            self._last = None
        self._look()

    def refusal(self, status: HTTPStatus, code: str, reason: str) -> Response:
        """The answer to a refused handshake, in the form of every error (protocol 1.4)."""
        body = {"error": code, "status_code": int(status), "error_description": reason}
        response = self.respond(status, json.dumps(body))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    def refuse(self, code: CloseCode, reason: str, linger_s: float = LINGER_S) -> None:
        """Closes with a code, and drops what was received. linger_s: how long the client may take to read it."""
        if self.refused:
            return
        self.refused = True
        self._part = self._whole = 0
        self._unparsed = _NOTHING
        self._messages.clear()
        for frame in self.recv_messages.frames.queue:  # a task may wait for the first of them
            frame.data = b""
        self.protocol.fail(code, reason)
        self.send_data()
        self.transport.resume_reading()  # input is dropped: a client that still writes would not see the reason
        self.loop.call_later(linger_s, self.transport.abort)
        self.unread.count(self, 0)

    def data_received(self, data: bytes) -> None:
        if self.refused:  # or lost: TLS may deliver data after its end
            return
        if self.request is None:
            self._head += len(data)
            if self._head > HEAD_BYTES_MAX:
                self.refused = True
                reason = f"the head of a handshake may have at most {HEAD_BYTES_MAX} bytes"
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.protocol.send_response(self.refusal(status, "headers_too_large", reason))
                self.send_data()
                self.loop.call_later(LINGER_S, self.transport.abort)
                return
        # The usual packet takes the short way: no copy, and no clock.
        if len(data) <= self._at_once and not self._unparsed:
            super().data_received(data)
            self._look()
        elif self._unparsed:
            self._unparsed = memoryview(bytes(self._unparsed) + data)  # TLS delivers a packet after the pause
        else:
            self._unparsed = memoryview(data)
            self._parse()

    def _parse(self) -> None:
        """Parses what was received, for a while."""
        begun = perf_counter(), thread_time()
        while self._unparsed:
            part, self._unparsed = bytes(self._unparsed[: self._at_once]), self._unparsed[self._at_once :]
            super().data_received(part)
            self._look()
            # A client could hold the loop with many small frames in one packet.
            if self._unparsed and perf_counter() - begun[0] > PARSED_S:
                self.transport.pause_reading()
                self.loop.call_soon(self._parse)
                break
        self.loop_held.count_work(begun, "reading WebSocket frames")

    def eof_received(self) -> None:
        self._unparsed = _NOTHING  # TLS may end in the middle of a pause; a client that closes in order waits
        super().eof_received()

    def process_event(self, event: Frame | Request | Response) -> None:
        if isinstance(event, Frame):
            if event.opcode in DATA_OPCODES:
                self._last = event
                self._part += len(event.data) + FRAME_BYTES
                if event.fin:
                    self._messages.append(self._part)
                    self._whole += self._part
                    self._part = 0
            # Only while the send buffer is full: a peer that reads its pongs may send as many pings as it likes.
            elif event.opcode is Opcode.PING and self.paused:
                # The library answers at once, even if the peer does not read the answers.
                self._pongs += len(event.data) + FRAME_BYTES
                if self._pongs > PONGS_BYTES_MAX:
                    self.transport.abort()
        super().process_event(event)

    def resume_writing(self) -> None:
        self._pongs = 0
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.refused = True
        self._unparsed = _NOTHING
        self.unread.count(self, 0)

    def _look(self) -> None:
        """Counts the unread bytes; pauses reading, or closes, when there are too many."""
        if self.refused:
            return
        # Whole messages, the frames of the next one, and the bytes of a frame that is not whole.
        parsed = self._part + self._whole + len(self.protocol.reader.buffer)
        size = parsed + len(self._unparsed)
        self.unread.count(self, size)
        if self.refused:  # as the connection with the most
            return
        if self.trusted:
            stop = self._whole > QUEUED_BYTES_MAX
        else:
            stop = size > self.first_bytes_max
            # A message that waits may have a token, and then the bytes that came with it are allowed.
            next_one = self._messages[0] if self._messages else parsed
            ahead = PACKET_BYTES_MAX + (INFLATED_BYTES_MAX if self.compression else 0)
            if max(next_one, size - ahead) > self.first_bytes_max:
                self.refuse(
                    CloseCode.MESSAGE_TOO_BIG,
                    f"without a valid token, the limit is security.first_message_bytes_max = {self.first_bytes_max}",
                )
                return
        if stop:
            self.transport.pause_reading()
        elif not (self._unparsed or self.recv_messages.paused):
            self.transport.resume_reading()
