"""Quotas: limits of one client on shared resources, so that its excess affects no other client.

A client is a registered one, on any connection. Connections are also counted for the other users of the machine, by
user, and in plain mode, where clients have no names, by address. The gateway's own user and root are not counted, nor
is loopback in plain mode: adapters, commands and the operator connect from there. A quota is never more than the share
that each client has of what all use (`gateway.sharing`), however it is set.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import AF_UNIX

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sharing import Usage, refusal
from lamplighter.gateway.security.peers import PeerSocket, origin
from lamplighter.gateway.settings import QuotaSettings

Quotas = Callable[[], QuotaSettings]  # the current quotas


def check(used: int, more: int, quota: str, most: int, what: str) -> None:
    """Raises LimitExceededError when a client would exceed its quota. quota: the setting; what: the resource."""
    if used + more > most:
        raise LimitExceededError(
            f"{what} of this client would be more than quotas.{quota} = {most}; end some, or have the operator raise it"
        )


class ConnectionLease:
    """The counts of one connection until it ends: at once for its origin, later for its client. trusted: whether the
    listener was told that the connection is authenticated."""

    def __init__(self, usage: Usage, quotas: Quotas, connections_max: int) -> None:
        """connections_max: of all clients of its server, but of local processes."""
        self._usage = usage
        self._quotas = quotas
        self._connections_max = connections_max
        self._clients: set[str] = set()
        self._ended = False
        self.trusted = False

    def by(self, client: str, *, local: bool = False) -> None:
        """Counts it for a registered client, or another name. local: it takes no room from the network's clients, nor
        they from it. Raises LimitExceededError at its quota or share; then it is not counted."""
        if client in self._clients or self._ended:  # its last request may run later
            return
        used = self._usage.of(client)
        check(used, 1, "connections_max", self._quotas().connections_max, "the connections")
        free = self._connections_max - self._usage.total
        # Connections without a name make way for this one, so they do not count.
        if not local and (why := refusal(client, used, 1, free, f"connections_max = {self._connections_max}")):
            raise LimitExceededError(f"{why}; close some connections")
        self._clients.add(client)
        self._usage.add(client)

    def by_origin(self, connected: PeerSocket | None, address: str, *, plain: bool) -> None:
        """Counts it for its origin. connected: None if closed; plain: without TLS. Raises LimitExceededError."""
        local = connected is not None and connected.family == AF_UNIX
        if (local or plain) and (client := origin(connected, address)):
            self.by(client, local=local)

    def end(self) -> None:
        self._ended = True
        for client in self._clients:
            self._usage.add(client, -1)
        self._clients.clear()
