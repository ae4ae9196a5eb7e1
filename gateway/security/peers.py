"""Who is at the other end of a connection: the user of a Unix socket, the network of an address."""

from __future__ import annotations

import math
import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from lamplighter.engine.client.addresses import is_loopback
from lamplighter.engine.errors import ConfigurationError, QueueFullError

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
    """As whom requests without credentials count: the user at a Unix socket, or the address (IPv6: its /64). Empty for
    root, the gateway's own user, and loopback: adapters, commands and the operator connect from there, and programs
    behind loopback cannot be told apart. connected: None if it is closed already."""
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
                f"security.local_users: this machine has no user {name!r}; write a name that `getent passwd` lists"
            ) from error
    return frozenset(users)


def network(address: str) -> str:
    """The part of an address that one machine cannot change at will: all of IPv4, the first half of IPv6."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


def too_many(wait_s: float, reason: str) -> QueueFullError:
    """The error for a caller that has to wait. It says whole seconds, which suffice."""
    whole_s = max(1, math.ceil(wait_s))
    error = QueueFullError(f"{reason}; try again in {whole_s} s")
    error.retry_after_s = whole_s
    return error
