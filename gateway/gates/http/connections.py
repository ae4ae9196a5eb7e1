"""One HTTP connection: uvicorn's protocol with additional limits."""

from __future__ import annotations

import asyncio
from math import inf

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.listeners import Listener
from lamplighter.gateway.settings import HttpSettings
from lamplighter.gateway.state.quotas import Held

logger = EventLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers, without the packet that ends them."""
PIPELINE_MAX = 16
"""Pipelined requests that may wait."""
DISCARDED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are read after a refusal: a client that still writes would not see the reason."""
RATE_BYTES_S = 1024
"""Lowest rate of a body."""
_JOINED_BYTES_MAX = 64 * 1024
"""A larger part of an answer is not copied behind its head."""
_CONTINUE = b"HTTP/1.1 100 "
"""Begins the interim answer to `Expect: 100-continue`."""


class _Answers:
    """The transport as the answers of a connection use it, one after the other. The head of an answer is sent together
    with the first part of its body, which saves a system call and a packet."""

    __slots__ = ("_head", "_in_body", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._in_body = False

    def write(self, data: bytes) -> None:
        if self._in_body or data.startswith(_CONTINUE):
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._in_body = True
            if len(data) <= _JOINED_BYTES_MAX:
                self._transport.write(self._head + data)
            else:
                self._transport.write(self._head)
                self._transport.write(data)

    def end(self) -> None:
        """The answer is complete; one to HEAD has no body."""
        if self._head and not self._in_body:
            self._transport.write(self._head)
        self._head = b""
        self._in_body = False

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.end()
        self._transport.close()


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed when its client makes no progress.

    A head has to be complete `http.idle_s` after its first byte or after the connection was opened. A body may take as
    long, and a second more for each KiB. A client may also stop reading, or leave the connection idle, for as long.
    """

    def __init__(
        self, config: Config, state: ServerState, settings: HttpSettings, listener: Listener, held: Held
    ) -> None:
        super().__init__(config, state, {})
        self._held = held
        self._settings = settings
        self._listener = listener
        self._reads_by = inf  # loop time by which a head or body has to be complete
        self._takes_by = inf  # loop time by which the send buffer has to have room
        self._next_by = inf  # loop time by which the next request has to begin
        self._in_head = True
        self._messages = 0
        self._refused = False
        self._head = self._body = self._framing = self._discarded = 0  # bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = _Answers(transport)
        # Local processes always get through, however many clients the network has.
        if len(self.connections) > self._settings.connections_max and not self._listener.local:
            self.connections.discard(self)
            logger.warning("connection refused", connections_max=self._settings.connections_max)
            self._refuse(503, "too_many_connections", "too many connections are open; try again later")
            transport.close()
            return
        connected, address = transport.get_extra_info("socket"), transport.get_extra_info("peername")
        try:
            self._held.by_origin(
                connected, address[0] if isinstance(address, tuple) else "", plain=self._listener.tls is None
            )
        except LimitExceededError as error:
            self.connections.discard(self)
            self._refuse(error.status, error.code, str(error))
            transport.close()
            return
        # For handlers that need the peer; uvicorn copies it into each request.
        self.app_state = {"socket": connected, "listener": self._listener, "held": self._held}
        self._reads_by = self.loop.time() + self._settings.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reads_by = self._takes_by = self._next_by = inf
        self._held.end()
        # An unanswered request refers to its connection. Without this, the cycle would keep its body until the next
        # garbage collection, which counts objects and not bytes.
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]  # as before the first one

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discard(len(data))
            return
        self._next_by = inf
        if self._in_head and self._reads_by == inf:
            self._reads_by = self.loop.time() + self._settings.idle_s
        in_body, body, messages = not self._in_head, self._body, self._messages
        super().data_received(data)
        if self._messages != messages:
            return  # the rest of the data is less than a packet
        if self._in_head:
            self._head += len(data)
            if self._head > HEAD_BYTES_MAX:
                self._refuse(431, "headers_too_large", f"the headers have more than {HEAD_BYTES_MAX} bytes")
        elif in_body:
            self._framing += len(data) - (self._body - body)
            if self._framing > HEAD_BYTES_MAX + 16 * self._body:
                self.transport.abort()  # chunks without content, or trailers without end

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # raises where the request line is invalid, and then there is no request
        self.cycle.transport = self._answers  # type: ignore[assignment]  # what it calls of it
        self._in_head = False
        self._head = self._body = self._framing = self._discarded = 0
        self._reads_by = self.loop.time() + self._settings.idle_s
        if len(self.pipeline) > PIPELINE_MAX:
            self.transport.abort()
            raise ValueError("too many requests at once")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are ignored
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        self._reads_by += len(body) / RATE_BYTES_S
        if self.cycle.response_complete:
            self._discard(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._messages += 1
        self._reads_by = inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn does it, but without a timer for each answer: `check` closes idle connections."""
        self._answers.end()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._next_by = self.loop.time() + self._settings.idle_s

    def pause_writing(self) -> None:
        self._takes_by = self.loop.time() + self._settings.idle_s
        super().pause_writing()

    def resume_writing(self) -> None:
        self._takes_by = inf
        super().resume_writing()

    def check(self, now: float) -> None:
        """Closes the connection if its time is up; called about every second."""
        if self.flow.read_paused:
            self._reads_by = max(self._reads_by, now + self._settings.idle_s)  # the gateway has paused reading
        if self.transport.is_closing():
            self._takes_by = min(self._takes_by, now + self._settings.idle_s)  # unsent data may still go out
        if now >= self._next_by:
            self._next_by = inf
            self.transport.close()
        if now < min(self._reads_by, self._takes_by):
            return
        logger.debug("connection closed", peer=self.client, reason="idle" if now >= self._reads_by else "stuck")
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "http", "the request is not valid HTTP")

    def _refuse(self, status: int, code: str, description: str) -> None:
        """Answers an error outside of any request. Further input is not parsed, but is read for a while: a client whose
        data is not read may never see the answer."""
        if self._refused:
            return  # the same data may have two errors
        if self.pipeline and not self._in_head:
            self.transport.abort()  # earlier requests are answered first
            return
        self._refused = True
        self._reads_by = self.loop.time() + self._settings.idle_s
        if self.cycle is not None and not self.cycle.response_complete:
            if self._in_head:
                self.cycle.keep_alive = False  # the invalid data follows a request whose answer is then the last
                return
            self.cycle.disconnected = True  # this is its answer
            self.cycle.message_event.set()
        body = f'{{"error":"{code}","status_code":{status},"error_description":"{description}"}}'
        head = f"HTTP/1.1 {status} \r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write((head + body).encode())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARDED_BYTES_MAX:
            self.transport.abort()
