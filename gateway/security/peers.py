"""The process at the other end of a Unix socket (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from lamplighter.engine.client.addresses import is_loopback
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.security.rates import network

_UCRED = struct.Struct("3i")  # pid, uid, gid


class PeerSocket(Protocol):
    """The part of a socket that is used; the socket of a transport has no more."""

    @property
    def family(self) -> int: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Peer:
    """A process, as the kernel knew it when it connected."""

    pid: int
    user: int


def peer(connected: PeerSocket | None) -> Peer | None:
    """None unless it is a Unix socket. A TLS transport that is closed has no socket any more."""
    if connected is None or connected.family != socket.AF_UNIX:
        return None
    pid, user, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, user)


def origin(connected: PeerSocket | None, address: str) -> str:
    """As whom requests without credentials count: the user at a Unix socket, or the address (IPv6: its /64).

    Empty for root, the gateway's own user, and loopback: adapters, commands and the operator connect from there, and
    programs behind loopback cannot be told apart. connected: None if it is closed already.
    """
    process = peer(connected)
    if process is not None:
        return "" if process.user in (0, os.geteuid()) else f"user\0{process.user}"  # no client can register this name
    return _of_address(address)


@lru_cache(maxsize=4096)
def _of_address(address: str) -> str:
    return "" if not address or is_loopback(address.removeprefix("::ffff:")) else network(address)


def trusted_users(names: Sequence[str]) -> frozenset[int]:
    """The ids of root, of this process's user, and of the named users. Raises ConfigurationError."""
    users = {0, os.geteuid()}
    for name in names:
        try:
            users.add(pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ConfigurationError(
                f"security.local_users: this machine has no user {name!r}; name an existing user"
            ) from error
    return frozenset(users)
