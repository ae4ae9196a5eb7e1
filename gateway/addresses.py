"""The addresses of a running gateway: URLs, and the Unix sockets of secure mode.

A gateway whose settings have the port 0 writes the ports that the system chose to ``<data>/ports``, for commands and
adapters of this machine. One that was started with ``--set`` writes those settings to ``<data>/assigned.json``, for
commands.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lamplighter.engine.client.addresses import UNIX
from lamplighter.engine.client.files import read_file, read_text
from lamplighter.engine.errors import UpstreamError

if TYPE_CHECKING:
    from lamplighter.gateway.settings import Settings

_PORTS = "ports"
_ASSIGNED = "assigned.json"


@dataclass(frozen=True)
class Addresses:
    """The addresses of a running gateway. Members with a default exist in secure mode only. fingerprint: of the
    authority's certificate; http_here, subscribe_here: the Unix sockets for local processes."""

    page: str
    query: str
    update: str
    subscribe: str
    delayed: str
    health: str
    register: str = ""
    token: str = ""
    authority: str = ""
    fingerprint: str = ""
    http_here: str = ""
    subscribe_here: str = ""

    @property
    def here(self) -> str:
        """The address where local processes subscribe."""
        return self.subscribe_here or self.subscribe

    def table(self) -> str:
        """One address a line, to copy from."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        width = max(10, *(len(name) for name, value in shown.items() if value))
        return "".join(f"  {name.replace('_', ' '):<{width}} {value}\n" for name, value in shown.items() if value)


def plain_addresses(settings: Settings, http_port: int, websocket_port: int) -> Addresses:
    http = f"http://{in_url(settings.http.host)}:{http_port}"
    return Addresses(
        page=f"{http}/",
        query=f"{http}{settings.http.query_path}",
        update=f"{http}{settings.http.update_path}",
        subscribe=f"ws://{in_url(settings.websocket.host)}:{websocket_port}{settings.websocket.path}",
        delayed=f"{http}/delayed",
        health=f"{http}/health",
    )


class Ports(NamedTuple):
    """Of plain HTTP and WebSocket."""

    http: int
    websocket: int


def write_ports(settings: Settings, data: Path, ports: Ports) -> None:
    """Writes the ports of the running gateway, if the settings do not tell them. Raises OSError."""
    if 0 not in (settings.http.port, settings.websocket.port):
        return
    new = data / f"{_PORTS}.new"
    new.write_text("".join(f"{name} {port}\n" for name, port in ports._asdict().items()))
    new.replace(data / _PORTS)


def ports_here(settings: Settings, data: Path) -> Ports:
    """The ports of the gateway with this configuration. Raises UpstreamError if it has to run for that, and did not."""
    ports = Ports(settings.http.port, settings.websocket.port)
    if 0 not in ports:
        return ports
    path = data / _PORTS
    try:
        chosen = {
            name: int(port) for name, port in (line.split() for line in read_text(path, follow=False).splitlines())
        }
        return Ports(ports.http or chosen["http"], ports.websocket or chosen["websocket"])
    except (OSError, ValueError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UpstreamError(
            f"{path}: {reason}; a gateway whose port is 0 writes it there; is it running, with this configuration?"
        ) from error


def write_assigned(data: Path, assigned: Sequence[str]) -> None:
    """Writes the settings that the running gateway has from ``--set``, or removes those of an earlier one. Raises
    OSError."""
    if not assigned:
        (data / _ASSIGNED).unlink(missing_ok=True)
        return
    new = data / f"{_ASSIGNED}.new"
    new.write_bytes(msgspec.json.encode(assigned))
    new.replace(data / _ASSIGNED)


def assigned_here(data: Path) -> list[str]:
    """The ``--set`` settings of the gateway that runs with a data folder; of a user who cannot know whether one runs,
    those of the last one."""
    try:
        found = msgspec.json.decode(read_file(data / _ASSIGNED, follow=False), type=list[str])
    except (OSError, msgspec.DecodeError):  # its temporary file is renamed, so a damaged one is not of the running one
        return []
    return [] if in_use(data) is False else found


def in_use(data: Path) -> bool | None:
    """Whether a gateway uses the data folder; None if this user cannot know."""
    try:
        lock = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        # Shared, and given back at once: a gateway that starts at this moment tries for some seconds.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def in_url(host: str) -> str:
    """A host for a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def local_url(settings: Settings, data: Path) -> str:
    """The URL where local processes subscribe. Raises UpstreamError as `ports_here` does."""
    if settings.security.enabled:
        return f"{UNIX}{socket_paths(settings, data)[1]}"
    return plain_addresses(settings, *ports_here(settings, data)).subscribe


def socket_paths(settings: Settings, data: Path) -> tuple[Path, Path]:
    """The Unix sockets of secure mode, for HTTP and for WebSocket."""
    folder = (data / settings.security.socket_folder).resolve()
    return folder / "http.sock", folder / "ws.sock"
