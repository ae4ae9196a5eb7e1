"""Quotas: limits of one client on shared resources, so that its excess affects no other client.

A client is a registered one, on any connection. Connections are also counted for the other users of the machine, by
user, and in plain mode, where clients have no names, by address. The gateway's own user and root are not counted, nor
is loopback in plain mode: adapters, commands and the operator connect from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from socket import AF_UNIX

from lamplighter.engine.client.addresses import is_loopback
from lamplighter.engine.errors import LimitExceededError
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.peers import PeerSocket, peer
from lamplighter.gateway.security.rates import network
from lamplighter.gateway.settings import QuotaSettings

Quotas = Callable[[], QuotaSettings]
"""The current quotas."""


class Usage:
    """The use of one resource by each client. Clients that use nothing take no memory."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}

    def add(self, client: Hashable, amount: int = 1) -> None:
        """amount: negative to release."""
        now = self._of.get(client, 0) + amount
        if now:
            self._of[client] = now
        else:
            self._of.pop(client, None)

    def of(self, client: Hashable) -> int:
        return self._of.get(client, 0)

    def most(self) -> int:
        """The largest use of one client."""
        return max(self._of.values(), default=0)

    def __len__(self) -> int:
        """The number of clients that use it."""
        return len(self._of)


class SharedRoom:
    """Room that all clients share. A client may hold as much as it leaves free: one alone gets half, the next one half
    of the rest. So none can take all of it from the others."""

    def __init__(self, size: int) -> None:
        self._usage = Usage()
        self._free = size

    def has(self, client: Hashable) -> bool:
        """Whether a client may hold more."""
        return self._usage.of(client) < self._free

    @contextmanager
    def held(self, client: Hashable, amount: int = 1) -> Iterator[None]:
        """The client holds so much. `has` is not asked."""
        self._usage.add(client, amount)
        self._free -= amount
        try:
            yield
        finally:
            self._usage.add(client, -amount)
            self._free += amount


def check(used: int, more: int, quota: str, most: int, what: str) -> None:
    """Raises LimitExceededError when a client would exceed its quota. quota: the setting; what: the resource."""
    if used + more > most:
        raise LimitExceededError(
            f"{what} of this client would be more than quotas.{quota} = {most}; end some, or have the operator raise it"
        )


class Held:
    """The counts of one connection until it ends: at once for its origin, later for its client.

    trusted: whether the listener was told that the connection is authenticated.
    """

    def __init__(self, usage: Usage, quotas: Quotas) -> None:
        self._usage = usage
        self._quotas = quotas
        self._keys: set[Hashable] = set()
        self._ended = False
        self.trusted = False

    def by(self, key: Hashable) -> None:
        """Counts it for another name. Raises LimitExceededError at its quota; then it is not counted."""
        if key in self._keys or self._ended:  # its last request may run later
            return
        check(self._usage.of(key), 1, "connections_max", self._quotas().connections_max, "the connections")
        self._keys.add(key)
        self._usage.add(key)

    def by_caller(self, caller: Caller) -> None:
        """Counts it for a registered client. Raises LimitExceededError."""
        if caller.registered:
            self.by(("client", caller.name))

    def by_origin(self, connected: PeerSocket | None, address: str, *, plain: bool) -> None:
        """Counts it for its origin. connected: None if it is closed already; plain: without TLS, and so without
        authentication. Raises LimitExceededError."""
        if connected is not None and connected.family == AF_UNIX:
            process = peer(connected)
            if process is not None and process.user not in (0, os.geteuid()):
                self.by(("user", process.user))
        elif plain and not is_loopback(address.removeprefix("::ffff:")):
            self.by(("address", network(address)))

    def end(self) -> None:
        """Releases all counts of the connection."""
        self._ended = True
        for key in self._keys:
            self._usage.add(key, -1)
        self._keys.clear()
