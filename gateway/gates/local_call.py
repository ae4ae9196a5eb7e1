"""Calls of commands to the gateway with the same configuration: by its Unix socket in secure mode, else over TCP.

A socket that takes a connection may be systemd's, with no gateway behind it. So a call that waits looks whether there
is one, and if not, says what systemd knows of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import select
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lamplighter.engine.errors import RefusedError, UpstreamError
from lamplighter.gateway.addresses import ports_here, socket_paths
from lamplighter.gateway.systemd import UnitState, unit_state

if TYPE_CHECKING:
    from lamplighter.gateway.settings import Settings

ANSWER_S = 600  # longest wait for the next bytes; comparing a large backup takes minutes
_CHECK_S = 20
# Wait for a gateway that is not there, and for the beginning of an answer before the next look for it. A change waits
# for one that restarts.
READ_S, CHANGE_S = 3.0, 30.0
_LOOK_S = 1.0
# The data folder of the service.
INSTALLED = Path("/var/lib/lamplighter")
_UNIT = "lamplighter-gateway.service"


class Readable(Protocol):
    """A file with the content of a request."""

    def read(self, size: int = -1, /) -> bytes: ...


def call(
    settings: Settings,
    data: Path,
    method: str,
    path: str,
    content: Readable | bytes | None = None,
    headers: dict[str, str] | None = None,
    patience_s: float | None = None,
) -> http.client.HTTPResponse:
    """The answer of the running gateway, to be read and closed. path: ``/backup``. patience_s: as of `Absence`; None:
    as the method asks for. Raises UpstreamError when no gateway answers, RefusedError."""
    # In plain mode the port may be that of a gateway with another data folder.
    absence = None
    if settings.security.enabled or data.resolve() == INSTALLED:
        absence = Absence(data, patience_s or (READ_S if method == "GET" else CHANGE_S))
    connection: http.client.HTTPConnection
    if settings.security.enabled:
        there = socket_paths(settings, data)[0]
        connection, place = _UnixConnection(there), str(there)
    else:
        port = ports_here(settings, data).http
        connection = http.client.HTTPConnection(settings.http.host, port, timeout=ANSWER_S)
        place = f"http://{settings.http.host}:{port}"
    return exchange(connection, place, method, path, content, headers, absence)


def require_gateway(settings: Settings, data: Path) -> None:
    """Raises UpstreamError when no gateway answers; for commands that ask by other ways."""
    with contextlib.suppress(RefusedError), call(settings, data, "GET", "/ready"):
        pass


class Absence:
    """Whether there is no gateway behind an address of this machine. patience_s: before the first look."""

    def __init__(self, data: Path, patience_s: float) -> None:
        self._data = data
        self.patience_s = patience_s

    def reason(self) -> str:
        """Empty while a gateway has the data folder, or if that cannot be seen."""
        try:
            file = os.open(self._data / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another user's, or of no gateway yet
            unit = self._unit()
            if unit is None or unit.running:
                return ""
        else:
            try:
                # Shared, and given back at once: a gateway that starts at this moment tries for some seconds.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return ""
            finally:
                os.close(file)
            unit = self._unit()
        return f"the socket takes connections, but no gateway runs{f'; {unit.text()}' if unit else ''}"

    def service_state(self) -> str:
        """What systemd says of the service if it does not run, and so does not listen; else empty."""
        unit = self._unit()
        return "" if unit is None or unit.running else unit.text()

    def _unit(self) -> UnitState | None:
        """The service, if this is its data folder."""
        return unit_state(_UNIT) if self._data.resolve() == INSTALLED else None


def exchange(
    connection: http.client.HTTPConnection,
    place: str,
    method: str,
    path: str,
    content: Readable | bytes | None = None,
    headers: dict[str, str] | None = None,
    absence: Absence | None = None,
) -> http.client.HTTPResponse:
    """The answer to one request. place: of the gateway, for errors. absence: None where it cannot be told."""
    try:
        connection.connect()
        if absence is not None:
            _await_gateway(absence, place, path)
        connection.request(method, path, content, {"Connection": "close", **(headers or {})})
        if absence is not None:
            _await_head(connection.sock, absence, place, path)
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        with answer:
            body = answer.read()
    except UpstreamError:
        connection.close()
        raise
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        cure = (absence and absence.service_state()) or "is it running, and with this configuration?"
        raise UpstreamError(f"no gateway answers at {place}{path}: {reason}; {cure}") from error
    raise _refusal(answer, body)


def _await_gateway(absence: Absence, place: str, path: str) -> None:
    """Waits for a gateway that restarts. Raises UpstreamError; then nothing was sent that a later one would do."""
    end = time.monotonic() + absence.patience_s
    while reason := absence.reason():
        if time.monotonic() > end:
            raise UpstreamError(f"no gateway answers at {place}{path}: {reason}")
        time.sleep(_LOOK_S / 4)  # a lock has nothing to wait for


def _await_head(answering: socket.socket, absence: Absence, place: str, path: str) -> None:
    """Waits for the first bytes of an answer. Raises UpstreamError if there is nobody who could send them."""
    end = time.monotonic() + ANSWER_S
    wait_s = absence.patience_s
    while time.monotonic() < end and not select.select([answering], [], [], wait_s)[0]:
        if reason := absence.reason():
            raise UpstreamError(f"no gateway answers at {place}{path}: {reason}")
        wait_s = _LOOK_S


def check_answer(place: str, path: str) -> None:
    """Asks for a path over HTTP. place: a Unix socket, or host and port. Raises UpstreamError, RefusedError."""
    connection: http.client.HTTPConnection
    if place.startswith("/"):
        connection = _UnixConnection(Path(place), _CHECK_S)
    else:
        connection = http.client.HTTPConnection(place, timeout=_CHECK_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise UpstreamError(f"no answer from {place}: {error}") from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise _refusal(answer, body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float = ANSWER_S) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _refusal(answer: http.client.HTTPResponse, body: bytes) -> RefusedError:
    members = _members(body)
    return RefusedError(members.get("error", "http"), answer.status, members.get("error_description", answer.reason))


def _members(body: bytes) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
