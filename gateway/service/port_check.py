"""Ports that a start opens: free, its own already, or of another program. They are open for a moment only."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.addresses import in_url
from lamplighter.gateway.gates.listeners import EVERYWHERE, everywhere, listen_problem, tcp_listener
from lamplighter.gateway.service.unit_view import Show
from lamplighter.gateway.settings import Settings

SOCKETS = ("lamplighter-http.socket", "lamplighter-ws.socket")
_LISTEN = re.compile(r"Listen=\[?(?P<host>[^\]]*)\]?:(?P<port>[0-9]+) \(Stream\)")
_PROC = Path("/proc")


class SystemdSocket(NamedTuple):
    """A TCP socket that systemd opens for the gateway. active: it is open."""

    unit: str
    host: str
    port: int
    active: bool


class PortFault(NamedTuple):
    """names: table and key of the port in the settings, () for one of systemd; fatal: the gateway does not start
    without it; an adapter tries again."""

    names: tuple[str, ...]
    what: str
    fatal: bool = True


class _WantedPort(NamedTuple):
    names: tuple[str, ...]
    host: str
    port: int
    datagrams: bool = False


def systemd_sockets(show: Show) -> list[SystemdSocket]:
    text = show(["show", "--property=ActiveState,UnitFileState,Listen", *SOCKETS])
    found = []
    for unit, name in zip(text.split("\n\n"), SOCKETS, strict=False):
        lines = unit.splitlines()
        active = "ActiveState=active" in lines
        if active or "UnitFileState=enabled" in lines:
            listening = (_LISTEN.fullmatch(line) for line in lines)
            found += [
                SystemdSocket(name, one["host"] or EVERYWHERE, int(one["port"]), active) for one in listening if one
            ]
    return found


def port_faults(
    settings: Settings, passed: Sequence[SystemdSocket], holder: int | None, user: int | None = None
) -> Iterator[PortFault]:
    """Tries each port. holder: the process id of the running gateway, whose ports are its own; user: the id of the
    services' user, whose adapters run without a gateway too."""
    opened_by_systemd = {one.port for one in passed}
    # All are open until the last one is: two of them may be the same.
    with contextlib.ExitStack() as trials:
        for one in passed:
            wanted = _WantedPort((), one.host, one.port)
            # systemd opens it for all addresses, of which another program may have some.
            problem = "" if one.active else _problem(wanted, trials)
            # It may open any port: systemd is root.
            if problem and not problem.startswith(os.strerror(errno.EACCES)) and not _is_own(wanted, holder, all):
                yield PortFault((), f"{one.unit} cannot listen on port {one.port}: {problem}")
        for wanted in _ports(settings):
            if wanted.port == 0 or (not wanted.datagrams and wanted.port in opened_by_systemd):
                continue
            problem = _problem(wanted, trials)
            if problem and not _is_own(wanted, holder) and not _is_of(wanted, user):
                what = f"cannot listen on {in_url(wanted.host)}:{wanted.port}: {problem}"
                yield PortFault(wanted.names, what, fatal=not wanted.datagrams)


def lock_holder(lock: Path) -> int | None:
    """The process that holds a lock file (flock); None if that cannot be known."""
    try:
        inode = lock.stat().st_ino
        for line in (_PROC / "locks").read_text().splitlines():
            kind, _, _, process, place = line.split()[1:6]
            if kind == "FLOCK" and place.endswith(f":{inode}"):  # one that waits begins with ->
                return int(process) or None  # 0: of another namespace
    except OSError:
        pass
    return None


def _ports(settings: Settings) -> Iterator[_WantedPort]:
    security, server = settings.security, settings.coap.server
    if security.enabled:
        yield _WantedPort(("security", "https_port"), security.host, security.https_port)
        yield _WantedPort(("security", "wss_port"), security.host, security.wss_port)
    else:
        yield _WantedPort(("http", "port"), settings.http.host, settings.http.port)
        yield _WantedPort(("websocket", "port"), settings.websocket.host, settings.websocket.port)
    if settings.coap.enabled and server.enabled:
        host = server.host or (EVERYWHERE if security.enabled else "127.0.0.1")
        yield _WantedPort(("coap", "server", "port"), host, server.port, datagrams=True)


def _problem(wanted: _WantedPort, trials: contextlib.ExitStack) -> str:
    """Why a port cannot be opened; empty if it can, and is open until the trials end."""
    try:
        if wanted.datagrams:
            host = everywhere(wanted.host)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            trials.enter_context(socket.socket(family, socket.SOCK_DGRAM)).bind((host, wanted.port))
        else:
            trials.enter_context(tcp_listener("", wanted.host, wanted.port, 1).socket)
    except OSError as error:
        return listen_problem(error)
    except ConfigurationError as error:
        assert isinstance(error.__cause__, OSError)
        return listen_problem(error.__cause__)
    return ""


def _is_own(wanted: _WantedPort, holder: int | None, these: Callable[[Iterable[bool]], bool] = any) -> bool:
    """Whether the running gateway has the port, or one of its services, which have its user. these: any or all of the
    sockets on it."""
    if holder is None:
        return False
    own = set()
    try:
        user = (_PROC / str(holder)).stat().st_uid
        for one in (_PROC / str(holder) / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was just closed
                own.add(str(one.readlink()).removeprefix("socket:[").removesuffix("]"))
    except OSError:  # another user's process cannot be looked at
        return True
    return these(
        inode in own or (wanted.datagrams and of == user) for of, inode in _listening(wanted.port, wanted.datagrams)
    )


def _is_of(wanted: _WantedPort, user: int | None) -> bool:
    """Whether one of the user's adapters has the port."""
    return wanted.datagrams and any(of == user for of, _ in _listening(wanted.port, datagrams=True))


def _listening(port: int, datagrams: bool) -> Iterator[tuple[int, str]]:
    """User and inode of each socket on a port: /proc/net/tcp and the like."""
    for name in ("udp", "udp6") if datagrams else ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:  # a machine without IPv6
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and (datagrams or fields[3] == "0A"):
                yield int(fields[7]), fields[9]
