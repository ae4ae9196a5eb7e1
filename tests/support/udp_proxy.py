"""A lossy link for real sockets: a UDP proxy that drops, duplicates, delays and so reorders datagrams, with a seed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from tests.support.coap_wire import Faults


class UdpProxy:
    """Passes datagrams from its port on 127.0.0.1 to another one, and answers back. carried, dropped: datagrams."""

    def __init__(self, target: int, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.carried = self.dropped = 0
        self._target = ("127.0.0.1", target)
        self._random = Random(seed)
        self._links: dict[Any, socket.socket] = {}  # client's address -> the socket for its datagrams to the target
        self._front = self._bound(self._from_client)
        self.port: int = self._front.getsockname()[1]

    def close(self) -> None:
        for one in (self._front, *self._links.values()):
            asyncio.get_running_loop().remove_reader(one)
            one.close()

    def _bound(self, received: Callable[[bytes, Any], None]) -> socket.socket:
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        link.setblocking(False)
        link.bind(("127.0.0.1", 0))

        def read() -> None:
            with suppress(OSError):  # the target's port is closed
                received(*link.recvfrom(4096))

        asyncio.get_running_loop().add_reader(link, read)
        return link

    def _from_client(self, data: bytes, client: Any) -> None:
        if client not in self._links:
            self._links[client] = self._bound(lambda answer, _: self._pass(self._front, answer, client))
        self._pass(self._links[client], data, self._target)

    def _pass(self, link: socket.socket, data: bytes, to: Any) -> None:
        delays = self.faults.delays(self._random)
        self.carried += bool(delays)
        self.dropped += not delays
        for delay in delays:
            asyncio.get_running_loop().call_later(delay, self._send, link, data, to)

    def _send(self, link: socket.socket, data: bytes, to: Any) -> None:
        with suppress(OSError):  # the proxy or the target's port is closed
            link.sendto(data, to)


@asynccontextmanager
async def udp_proxy(target: int, faults: Faults, seed: int) -> AsyncIterator[UdpProxy]:
    """A running proxy for a port of 127.0.0.1."""
    proxy = UdpProxy(target, faults, seed)
    try:
        yield proxy
    finally:
        proxy.close()
