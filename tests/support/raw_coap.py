"""Peers that are a plain socket: datagrams as bytes, without a CoAP library in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.event_loops import TIMEOUT_S

CON, NON, ACK, RST = range(4)
GET, POST, PUT = 1, 2, 3
CREATED, CHANGED, CONTENT, CONTINUE = 0x41, 0x44, 0x45, 0x5F
OBSERVE, URI_PATH, CONTENT_FORMAT, MAX_AGE, BLOCK2, ECHO = 6, 11, 12, 14, 23, 252


class Datagram(NamedTuple):
    """A CoAP message. options: (number, value) in order."""

    kind: int
    code: int
    mid: int
    token: bytes = b""
    options: tuple[tuple[int, bytes], ...] = ()
    payload: bytes = b""

    def encoded(self) -> bytes:
        data = bytes([0x40 | self.kind << 4 | len(self.token), self.code]) + self.mid.to_bytes(2, "big") + self.token
        number = 0
        for option, value in self.options:
            (delta, more_delta), (length, more_length) = _nibble(option - number), _nibble(len(value))
            data += bytes([delta << 4 | length]) + more_delta + more_length + value
            number = option
        return data + (b"\xff" + self.payload if self.payload else b"")

    def option(self, number: int) -> bytes | None:
        return next((value for option, value in self.options if option == number), None)

    @property
    def path(self) -> str:
        return "/".join(value.decode() for option, value in self.options if option == URI_PATH)


def _nibble(value: int) -> tuple[int, bytes]:
    if value < 13:
        return value, b""
    return (13, bytes([value - 13])) if value < 269 else (14, (value - 269).to_bytes(2, "big"))


def parsed(data: bytes) -> Datagram:
    at, number, options = 4 + (data[0] & 15), 0, []
    while at < len(data) and data[at] != 0xFF:
        fields = [data[at] >> 4, data[at] & 15]
        at += 1
        for n, field in enumerate(fields):
            if field >= 13:
                size = field - 12
                fields[n] = int.from_bytes(data[at : at + size], "big") + (13 if size == 1 else 269)
                at += size
        number += fields[0]
        options.append((number, data[at : at + fields[1]]))
        at += fields[1]
    return Datagram(
        data[0] >> 4 & 3,
        data[1],
        int.from_bytes(data[2:4], "big"),
        data[4 : 4 + (data[0] & 15)],
        tuple(options),
        data[at + 1 :],
    )


class RawPeer:
    """A socket on 127.0.0.1. to: the port that `send` sends to; else that of the last datagram."""

    def __init__(self, to: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self._to = ("127.0.0.1", to)
        self._mid = 0

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def receive(self) -> Datagram:
        async with asyncio.timeout(TIMEOUT_S):
            data, self._to = await asyncio.get_running_loop().sock_recvfrom(self._socket, 4096)
        return parsed(data)

    def waiting(self) -> list[Datagram]:
        """What has arrived."""
        found = []
        while True:
            try:
                data, self._to = self._socket.recvfrom(4096)
                found.append(parsed(data))
            except BlockingIOError:
                return found

    def send(self, datagram: Datagram | bytes) -> None:
        data = datagram if isinstance(datagram, bytes) else datagram.encoded()
        self._socket.sendto(data, self._to)

    def answer(
        self, request: Datagram, code: int, payload: bytes = b"", options: Iterable[tuple[int, bytes]] = ()
    ) -> None:
        """A piggybacked answer."""
        self.send(Datagram(ACK, code, request.mid, request.token, tuple(options), payload))

    def notify(
        self, token: bytes, payload: bytes, number: int, *, kind: int = CON, options: Iterable[tuple[int, bytes]] = ()
    ) -> int:
        """A notification; its message id."""
        self._mid += 1
        observe = (OBSERVE, number.to_bytes(3, "big").lstrip(b"\0"))
        self.send(Datagram(kind, CONTENT, self._mid, token, (observe, *options), payload))
        return self._mid

    def close(self) -> None:
        self._socket.close()


@contextmanager
def raw_peer(to: int | None = None) -> Iterator[RawPeer]:
    peer = RawPeer(to)
    try:
        yield peer
    finally:
        peer.close()
