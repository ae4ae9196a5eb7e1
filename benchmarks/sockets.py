"""Many WebSocket clients in one thread, at so little cost that the gateway is what is measured.

Each is a plain non-blocking socket. The kernel says when bytes arrived (SO_TIMESTAMPNS); over loopback that is when
the gateway handed them over, however busy this process was then.
"""

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_CONTINUED, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA
_LAST = 0x80
_READ = 256 * 1024


def frame(kind: int, payload: bytes, mask: bytes) -> bytes:
    """A WebSocket frame as a client sends it (RFC 6455, 5.2). mask: four bytes."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


class Socket:
    """One WebSocket connection, after its handshake."""

    __slots__ = ("_buffer", "_fragments", "_socket")

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(
            b"GET /subscribe HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            part = self._socket.recv(1)
            if not part:
                raise ConnectionError("the gateway closed the connection")
            head += part
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(head.decode(errors="replace"))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._buffer = bytearray()
        self._fragments: list[bytes] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send_frame(self, made: bytes) -> None:
        """Sends what `frame` has made."""
        self._socket.sendall(made)

    def tell(self, message: object) -> None:
        self._frame(_TEXT, json.dumps(message).encode())

    def _frame(self, kind: int, payload: bytes) -> None:
        self._socket.sendall(frame(kind, payload, os.urandom(4)))

    def hear(self) -> tuple[list[bytes], int]:
        """The messages that are there now, waiting for some bytes at least; when the last bytes arrived, in
        nanoseconds of the wall clock."""
        part, ancillary, _, _ = self._socket.recvmsg(_READ, 64)
        arrived = time.time_ns()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                arrived = seconds * 1_000_000_000 + nanoseconds
        if not part:
            raise ConnectionError("the gateway closed the connection")
        self._buffer += part
        return list(self._messages()), arrived

    def _messages(self) -> Iterator[bytes]:
        while True:
            buffer = self._buffer
            if len(buffer) < 2:
                return
            kind, last, size, start = buffer[0] & 0xF, buffer[0] & _LAST, buffer[1] & 0x7F, 2
            if size == 126:
                start, size = 4, int.from_bytes(buffer[2:4], "big")
            elif size == 127:
                start, size = 10, int.from_bytes(buffer[2:10], "big")
            if len(buffer) < start + size:
                return
            payload = bytes(buffer[start : start + size])
            del buffer[: start + size]
            if kind == _PING:
                self._frame(_PONG, payload)
            elif kind == _CLOSE:
                raise ConnectionError("the gateway closed the WebSocket")
            elif kind in (_TEXT, _CONTINUED):
                self._fragments.append(payload)
                if last:
                    whole, self._fragments = self._fragments, []
                    yield b"".join(whole)

    def ask(self, message: object) -> dict[str, Any]:
        """The next message after this one was told."""
        self.tell(message)
        messages: list[bytes] = []
        while not messages:
            messages, _ = self.hear()
        [answer] = messages
        return dict(json.loads(answer))


class Sockets:
    """Connections that are listened to together."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.all = [Socket(address) for _ in range(count)]
        self._poll = select.epoll()
        self._by_number = {one.fileno(): one for one in self.all}
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for one in self.all:
            one.close()

    def hear(self, count: int, heard: Callable[[Socket, bytes, int], None], limit_s: float = 60.0) -> None:
        """Calls `heard` with socket, message and time of arrival, until so many messages have come.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + limit_s
        while count > 0:
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{count} messages are missing after {limit_s} s")
            for number, _ in ready:
                one = self._by_number[number]
                messages, arrived = one.hear()
                for message in messages:
                    heard(one, message, arrived)
                count -= len(messages)
