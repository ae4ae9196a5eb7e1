"""Calls of commands to the gateway with the same configuration: by its Unix socket in secure mode, else over TCP."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lamplighter.engine.errors import RefusedError, UpstreamError
from lamplighter.gateway.addresses import ports_here, socket_paths

if TYPE_CHECKING:
    from lamplighter.gateway.settings import Settings

ANSWER_S = 600  # longest wait for the next bytes; comparing a large backup takes minutes
_CHECK_S = 20


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
) -> http.client.HTTPResponse:
    """The answer of the running gateway, to be read and closed. Raises UpstreamError, RefusedError."""
    connection: http.client.HTTPConnection
    if settings.security.enabled:
        there = socket_paths(settings, data)[0]
        connection, place = _UnixConnection(there), str(there)
    else:
        port = ports_here(settings, data).http
        connection = http.client.HTTPConnection(settings.http.host, port, timeout=ANSWER_S)
        place = f"http://{settings.http.host}:{port}"
    return exchange(connection, place, method, path, content, headers)


def exchange(
    connection: http.client.HTTPConnection,
    place: str,
    method: str,
    path: str,
    content: Readable | bytes | None = None,
    headers: dict[str, str] | None = None,
) -> http.client.HTTPResponse:
    """The answer to one request. place: of the gateway, for errors. As `call`."""
    try:
        connection.request(method, path, content, {"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        with answer:
            body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UpstreamError(
            f"no gateway answers at {place}{path}: {reason}; is it running, and with this configuration?"
        ) from error
    raise _refusal(answer, body)


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
