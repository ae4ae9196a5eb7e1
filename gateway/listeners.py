"""Sockets that a gate can be reached by: TCP, TCP with TLS, a Unix socket."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigurationError

BACKLOG = 256


@dataclass(frozen=True)
class Listener:
    """A bound socket that listens, and what its connections are wrapped in. local: whether it is a Unix socket, whose
    peers are processes of this machine."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        return self.socket.family == socket.AF_UNIX

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.socket.getsockname()[1])


def tcp_listener(table: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Listens on host and port; 0 takes a free one. table: where the settings have them. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio does not set it for them: it looks at `proto`, which is 0 here, and an answer
        # in two parts would wait 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Listener(listener, tls)
    except OSError as error:
        raise ConfigurationError(
            f"{table}: cannot listen on {host}:{port}: {error.strerror}; name another port"
        ) from error


def unix_listener(path: Path, mode: int = 0o660) -> Listener:
    """Listens on a Unix socket, in the place of one that a process left behind which is gone. mode: who of the machine
    may connect. Raises ConfigurationError."""
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
