"""A gateway in secure mode that several tests share: `running_gateway` in a thread of this process."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect, unix_connect

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, running_gateway

TIMEOUT_S = 120.0  # only a test that hangs waits this long
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class SecureGateway:
    """Used as a context manager. folder: its configuration and, in data/, what it keeps. security: settings that differ
    from the defaults; tables: other tables of settings."""

    def __init__(self, folder: Path, tables: Mapping[str, Mapping[str, object]] | None = None, **security: Any) -> None:
        self.folder = folder
        self.toml = folder / "lamplighter.toml"
        table = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0, **security}
        text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
        self.toml.write_text(f'[gateway]\ndurability = "off"\n[security]\n{text}\n')
        self._tables = {"security": table, **(tables or {})}
        self.data = folder / "data"
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._served = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway")
        self._error: BaseException | None = None
        self.addresses: Addresses

    def __enter__(self) -> SecureGateway:
        self._thread.start()
        if not self._served.wait(TIMEOUT_S) or self._error is not None:
            self._thread.join(TIMEOUT_S)
            raise AssertionError("the gateway did not start") from self._error
        self.port = urlsplit(self.addresses.query).port
        self.socket_port = urlsplit(self.addresses.subscribe).port
        self.authority = self.folder / "ca.pem"
        self.authority.write_bytes(self.local("GET", "/ca.pem").body)
        self.tls = ssl.create_default_context(cafile=self.authority)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)
        if self._error is not None:
            raise AssertionError("the gateway did not end well") from self._error

    def _run(self) -> None:
        async def serve() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            async with running_gateway(self.folder, **self._tables) as self.addresses:
                self._served.set()
                await self._stop.wait()

        try:
            asyncio.run(serve())  # the loop of this thread
        except BaseException as error:
            self._error = error
        finally:
            self._served.set()

    # --- its clients ---

    def https(
        self, method: str, target: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None, **more: str
    ) -> Answer:
        """One request over TLS. more: headers besides, also such that are there already; _ stands for -."""
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=TIMEOUT_S, context=self.tls)
        return _asked(connection, method, target, body, [*(headers or {}).items(), *more.items()])

    def local(self, method: str, target: str, body: bytes | str = b"") -> Answer:
        """One request over the Unix socket."""
        return _asked(_Unix(self.addresses.http_here), method, target, body, [])

    def register(self, name: str, **members: Any) -> Answer:
        body = {"register": {"client_identity": name, "grant_types": ["client_credentials"]}, **members}
        return self.https("POST", "/oauth/register", json.dumps(body), JSON)

    def client(self, name: str, **permissions: Any) -> str:
        """Makes a client, as the operator does: its secret."""
        wanted = {"name": name, "how": "register", "permissions": permissions}
        answer = self.local("POST", "/clients", json.dumps(wanted))
        assert answer.status == 201, answer.body
        return str(answer.json["client_secret"])

    def bearer(self, name: str, secret: str) -> str:
        answer = self.https("POST", "/oauth/token", b"", JSON | basic(name, secret))
        assert answer.status == 201, answer.body
        return f"Bearer {answer.json['access_token']}"

    def websocket(self, path: str = "/secure/subscribe", **headers: str) -> ClientConnection:
        url = f"wss://localhost:{self.socket_port}{path}"
        # This client reads in a thread while it writes in another, for which Python's TLS has no lock before 3.13. A
        # first request is lost, once in a thousand times, when a session ticket comes meanwhile. TLS 1.2 sends none.
        tls = ssl.create_default_context(cafile=self.authority)
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        return connect(url, ssl=tls, additional_headers=headers, open_timeout=TIMEOUT_S, proxy=None)

    def local_websocket(self) -> ClientConnection:
        path = self.addresses.subscribe_here.partition(":")[2]
        return unix_connect(path, "ws://localhost/subscribe", compression=None)


def basic(name: str, secret: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"}


def ask(socket: ClientConnection, message: object) -> dict[str, Any]:
    """Sends a message; the next one that comes."""
    socket.send(json.dumps(message))
    return hear(socket)


def hear(socket: ClientConnection) -> dict[str, Any]:
    return dict(json.loads(socket.recv(TIMEOUT_S)))


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _asked(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | str,
    headers: list[tuple[str, str]],
) -> Answer:
    data = body.encode() if isinstance(body, str) else body
    try:
        connection.putrequest(method, target)
        for name, value in headers:
            connection.putheader(name.replace("_", "-"), value)
        if data or method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data or None)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
