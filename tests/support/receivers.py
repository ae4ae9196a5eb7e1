"""A real HTTP server that receives what the gateway delivers, in a thread."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

PATIENCE_S = 120.0  # only a test that hangs waits this long


@dataclass(frozen=True)
class Received:
    """A request. headers: names in lower case; parameters: of the URL."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    parameters: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def signed_by(self, secret: str) -> bool:
        digest = hmac.new(secret.encode(), self.body, hashlib.sha256).hexdigest()
        return self.headers["x-hub-signature"] == f"sha256={digest}"


@dataclass
class Reply:
    """status None: the connection is closed without an answer."""

    status: int | None = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpReceiver:
    """Used as a context manager. Confirms each intent and acknowledges each POST, unless told otherwise.

    answer: what a POST is answered; it may be replaced at any time. confirm: the same for the verification of intent.
    asked, posted: the requests so far; failed: what an answer raised first, which the end raises.
    """

    def __init__(self, port: int = 0) -> None:
        self.asked: list[Received] = []
        self.posted: list[Received] = []
        self.answer: Callable[[Received], Reply] = lambda request: Reply()
        self.confirm: Callable[[Received], Reply] = lambda request: Reply(
            body=request.parameters.get("hub.challenge", "").encode()
        )
        self.changed = threading.Condition()
        self.failed: BaseException | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._take(receiver.asked, lambda request: receiver.confirm(request))

            def do_POST(self) -> None:
                self._take(receiver.posted, lambda request: receiver.answer(request))

            def _take(self, those: list[Received], answer: Callable[[Received], Reply]) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:  # the gateway was killed
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Received(self.command, parts.path, headers, body, dict(parse_qsl(parts.query)))
                try:
                    reply = answer(request)
                except BaseException as error:
                    receiver.failed = receiver.failed or error
                    reply = Reply(410)
                with receiver.changed:
                    those.append(request)
                    receiver.changed.notify_all()
                if reply.status is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A gateway that is killed closes its connections."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def port(self) -> int:
        return self._server.server_port

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self.failed is not None:
            raise self.failed

    def wait(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        """Returns once the condition holds; it is looked at after each request."""
        end = time.monotonic() + PATIENCE_S
        with self.changed:
            while not condition():
                assert self.changed.wait(max(0.0, end - time.monotonic())) or condition(), (
                    f"{what} did not come true: {self.posted}"
                )
                assert self.failed is None, self.failed
                assert time.monotonic() < end, f"{what} did not come true: {self.posted}"

    def wait_posted(self, count: int) -> list[Received]:
        self.wait(lambda: len(self.posted) >= count, f"{count} deliveries")
        return self.posted
