"""Listening sockets of a gate: TCP, TCP with TLS, Unix."""

from __future__ import annotations

import errno
import socket
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.addresses import in_url
from lamplighter.gateway.security.peers import network

logger = EventLogger(__name__)

PORT_CURE = "name another port, or stop the program that has it (`ss -lntup` shows it)"
_HOST_CURE = "write an address of this machine"
# Of IPv6 without IPv6, or of another machine: no other port would help.
_HOST_ERRORS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
EVERYWHERE = "::"
BACKLOG = 256  # the listen backlog. asyncio calls listen again on the sockets that it serves, by default with 100.
HANDSHAKES_MAX = 100  # connections beyond those that a gate may have: in their handshake, or about to be refused


@dataclass(eq=False)
class _Accepted:
    """A connection. network: of its client; trusted: it is authenticated; ended: it was closed to make room."""

    socket: socket.socket
    network: str
    trusted: bool = False
    ended: bool = False


class _Bounded(socket.socket):
    """A listening socket that counts its connections and bounds their number.

    A gate sees a connection after its TLS handshake. Without this bound, a client that opens thousands of silent
    connections would use up the open files of the process; then nothing could connect, not even local processes.

    fair: a new connection above `connections_max` closes the oldest untrusted connection of the network that has most
    of them, if its own network has fewer. So many connections without credentials keep no other client out.
    """

    def __init__(self, listening: socket.socket, connections_max: int, *, fair: bool) -> None:
        super().__init__(fileno=listening.detach())
        self._connections_max = connections_max
        self._fair = fair
        self._accepted: dict[int, _Accepted] = {}  # by file descriptor, the oldest first
        self._full = False

    def trust(self, number: int) -> None:
        """Marks a connection as authenticated. number: its file descriptor."""
        if number in self._accepted:
            self._accepted[number].trusted = True

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises ConnectionAbortedError for one too many, which asyncio ignores."""
        connection, address = super().accept()
        one = _Accepted(connection, network(str(address[0])))
        if len(self._accepted) >= self._connections_max:
            self._accepted = {
                number: known for number, known in self._accepted.items() if known.socket.fileno() == number
            }
            if self._fair and sum(not known.ended for known in self._accepted.values()) >= self._connections_max:
                self._make_room(one.network)
            full = len(self._accepted) >= self._connections_max + HANDSHAKES_MAX
            if full and not self._full:
                logger.warning("connections refused", port=self.getsockname()[1], open=len(self._accepted))
            self._full = full
            if full:
                connection.close()
                raise ConnectionAbortedError
        self._accepted.pop(connection.fileno(), None)  # one that was closed
        self._accepted[connection.fileno()] = one
        return connection, address

    def _make_room(self, newcomer: str) -> None:
        unknown = [known for known in self._accepted.values() if not known.trusted and not known.ended]
        counts = Counter(known.network for known in unknown)
        most = max(counts.values(), default=0)
        if most > counts[newcomer]:
            oldest = next(known for known in unknown if counts[known.network] == most)
            oldest.ended = True
            with suppress(OSError):  # it was just closed
                oldest.socket.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Listener:
    """A bound, listening socket and the TLS of its connections. local: a Unix socket, with local peers."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None

    @cached_property
    def local(self) -> bool:
        return self.socket.family == socket.AF_UNIX

    def trust(self, number: int) -> None:
        """Marks a connection as authenticated; it is not closed to make room. number: its file descriptor."""
        if isinstance(self.socket, _Bounded):
            self.socket.trust(number)

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


def tcp_listener(table: str, host: str, port: int, connections_max: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Listens on host and port; 0 takes a free one. "::" is every address of IPv6 and IPv4, as for systemd's sockets.

    table: of the settings, for errors; connections_max: of the gate; `HANDSHAKES_MAX` more are accepted. Raises
    ConfigurationError.
    """
    host = everywhere(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = host == EVERYWHERE
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        # Connections inherit it. asyncio does not set it for them: it looks at `proto`, which is 0 here, and an answer
        # in two parts would wait 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Listener(_Bounded(listener, connections_max, fair=tls is not None), tls)
    except OSError as error:
        raise ConfigurationError(f"{table}: cannot listen on {in_url(host)}:{port}: {listen_problem(error)}") from error


def everywhere(host: str) -> str:
    """The host to listen on: "::" is every address, also on a machine whose kernel has no IPv6 (`ipv6.disable=1`)."""
    return "0.0.0.0" if host == EVERYWHERE and not socket.has_dualstack_ipv6() else host


def listen_problem(error: OSError) -> str:
    """Why a host and port cannot be listened on, and the cure."""
    # `create_server` adds the address once more.
    reason = str(error.strerror or error).partition(" (while ")[0]
    of_host = (error.errno or 0) < 0 or error.errno in _HOST_ERRORS  # the negative ones are of getaddrinfo(3)
    return f"{reason}; {_HOST_CURE if of_host else PORT_CURE}"


def passed_listener(
    listening: socket.socket, connections_max: int, tls: ssl.SSLContext | None = None, mode: int = 0o660
) -> Listener:
    """Serves a socket that systemd opened. It stays open when this process ends, so a restart refuses no connection.
    mode: of a Unix socket. The other arguments are those of `tcp_listener`."""
    if listening.family == socket.AF_UNIX:
        Path(listening.getsockname()).chmod(mode)
        return Listener(listening)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Listener(_Bounded(listening, connections_max, fair=tls is not None), tls)


def unix_listener(path: Path, mode: int = 0o660) -> Listener:
    """Listens on a Unix socket; replaces a left one. mode: which users may connect. Raises ConfigurationError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()  # the data folder is locked, so nobody listens on it
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {path}: {error.strerror or error}; name a shorter or writable folder"
        ) from error
    return Listener(listener)
