"""Quotas: what one client may use of what all share, so that its excess is its own trouble and nobody else's.

A client is a registered one, whatever it is connected by. Connections are also counted for the other users of the
machine, by user, and in plain mode, where clients have no names, by address. The gateway's own user and root are not
counted, nor is loopback in plain mode: adapters, commands and the operator come from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from socket import AF_UNIX

from lamplighter.engine.client.addresses import is_loopback
from lamplighter.engine.errors import LimitExceededError
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.peers import Socket, peer
from lamplighter.gateway.security.rates import network
from lamplighter.gateway.settings import QuotaSettings

Quotas = Callable[[], QuotaSettings]
"""Those that hold now."""


class Usage:
    """How much each client uses of one thing. Clients that use nothing take no room."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}

    def add(self, client: Hashable, amount: int = 1) -> None:
        """amount: below zero for what is given back."""
        now = self._of.get(client, 0) + amount
        if now:
            self._of[client] = now
        else:
            self._of.pop(client, None)

    def of(self, client: Hashable) -> int:
        return self._of.get(client, 0)

    def most(self) -> int:
        """What the client uses that uses most."""
        return max(self._of.values(), default=0)

    def __len__(self) -> int:
        """How many clients use something."""
        return len(self._of)


def check(used: int, more: int, quota: str, most: int, what: str) -> None:
    """Raises LimitExceededError when a client would use more than its quota. quota: the setting; what: of what."""
    if used + more > most:
        raise LimitExceededError(
            f"{what} of this client would be more than quotas.{quota} = {most}; end some, or have the operator raise it"
        )


class Held:
    """What one connection counts for, until it ends: at once for where it comes from, and later for who uses it."""

    def __init__(self, usage: Usage, quotas: Quotas) -> None:
        self._usage = usage
        self._quotas = quotas
        self._keys: set[Hashable] = set()
        self._ended = False

    def by(self, key: Hashable) -> None:
        """It is that one's too. Raises LimitExceededError when that one has enough; then it is not."""
        if key in self._keys or self._ended:  # its last request may have its turn later
            return
        check(self._usage.of(key), 1, "connections_max", self._quotas().connections_max, "the connections")
        self._keys.add(key)
        self._usage.add(key)

    def by_caller(self, caller: Caller) -> None:
        """It is a registered client's too. Raises LimitExceededError."""
        if caller.registered:
            self.by(("client", caller.name))

    def by_origin(self, connected: Socket, address: str, *, plain: bool) -> None:
        """It comes from there. plain: without TLS, so that nobody will say who he is. Raises LimitExceededError."""
        if connected.family == AF_UNIX:
            process = peer(connected)
            if process is not None and process.user not in (0, os.geteuid()):
                self.by(("user", process.user))
        elif plain and not is_loopback(address.removeprefix("::ffff:")):
            self.by(("address", network(address)))

    def end(self) -> None:
        """The connection has ended."""
        self._ended = True
        for key in self._keys:
            self._usage.add(key, -1)
        self._keys.clear()
