"""One HTTP connection: uvicorn's protocol with additional limits."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from math import inf

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.listeners import Listener
from lamplighter.gateway.security.browsers import NOSNIFF
from lamplighter.gateway.security.peers import origin
from lamplighter.gateway.settings import HttpSettings
from lamplighter.gateway.state.quotas import ConnectionLease

logger = EventLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024  # request line and headers, without the packet that ends them
# Bytes that are parsed at once. Once a request waits for its turn, no further piece is parsed and nothing is read.
_PIECE_BYTES = 4096
# Bytes that are read after a refusal: a client that still writes would not see the reason.
DISCARDED_BYTES_MAX = 16 * 1024 * 1024
RATE_BYTES_S = 1024  # lowest rate of a body
# A client that has ended its side gets the answers that come within this time of each other. It may have gone away, and
# then a longer query works for no one.
AFTER_END_S = 2.0
_JOINED_BYTES_MAX = 64 * 1024  # a larger part of an answer is not copied behind its head
_AUTHORITY_END = re.compile(rb"[/?#]")
_DIGITS_MAX = 16
_INVALID = (400, "http", "the request is not valid HTTP")
_CODING = (501, "transfer_encoding", "the Transfer-Encoding is not supported; use chunked, or none")
_UPGRADE = (501, "upgrade", "the protocol cannot be changed, and a body is only read without that; leave Upgrade out")
_CONTINUE = b"HTTP/1.1 100 "  # begins the interim answer to `Expect: 100-continue`


class _Answers:
    """The transport as the answers of a connection use it, one after the other."""

    # The head of an answer is sent together with the first part of its body, which saves a system call and a packet.

    __slots__ = ("_close", "_head", "_in_body", "_transport", "writes")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._head = b""
        self._in_body = False
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
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
        self._close()


class _Flow(FlowControl):
    """Reading stays paused while it is held, though a request that reads its body resumes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.held = False

    def hold(self) -> None:
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        self.held = False
        super().resume_reading()

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed when its client makes no progress. A head has to be complete `http.idle_s` after its
    first byte or after the connection was opened. A body may take as long, and a second more for each KiB. A client may
    also stop reading, or leave the connection idle, for as long. Pipelined requests are answered in order."""

    # While one waits for its turn, nothing is read; what was received behind it is parsed when its turn has come. So
    # their number has no limit, and a connection holds few of them.

    def __init__(
        self, config: Config, state: ServerState, settings: HttpSettings, listener: Listener, held: ConnectionLease
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
        self._fault = _INVALID  # of a head that is not parsed further
        self._refusal: bytes | None = None  # the answer to the last request in the pipeline
        self._answered: RequestResponseCycle | None = None  # the request that is being answered, or was last
        self._unparsed = b""  # received behind a request that waits
        self._closed = False  # the last answer is sent
        self._half_closed = False  # the client has ended its side, which the transport does not read again
        self._progress = (0, 0.0)  # writes that `check` has seen, and the loop time of that
        self._length = 0  # of the body, as its head says
        self._head = self._body = self._framing = self._discarded = 0  # bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._answers = _Answers(transport, self._close)
        # Local processes always get through, however many clients the network has.
        if len(self.connections) > self._settings.connections_max and not self._listener.local:
            self.connections.discard(self)
            logger.warning("connection refused", connections_max=self._settings.connections_max)
            self._refuse(503, "too_many_connections", "too many connections are open; try again later")
            transport.close()
            return
        connected, peername = transport.get_extra_info("socket"), transport.get_extra_info("peername")
        address = peername[0] if isinstance(peername, tuple) else ""
        try:
            self._held.by_origin(connected, address, plain=self._listener.tls is None)
        except LimitExceededError as error:
            self.connections.discard(self)
            self._refuse(error.status, error.code, str(error))
            transport.close()
            return
        # For handlers that need the peer; uvicorn copies it into each request.
        self.app_state = {
            "socket": connected,
            "origin": origin(connected, address),
            "listener": self._listener,
            "held": self._held,
        }
        self._reads_by = self.loop.time() + self._settings.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None:  # uvicorn tells it to the request that was parsed last
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)
        self._reads_by = self._takes_by = self._next_by = inf
        self._held.end()
        # An unanswered request refers to its connection. Without this, the cycle would keep its body until the next
        # garbage collection, which counts objects and not bytes.
        self.pipeline.clear()
        self._unparsed = b""
        self._answered = None
        self.cycle = None  # type: ignore[assignment]  # as before the first one

    def data_received(self, data: bytes) -> None:
        """Parses in pieces, up to one with a request that waits."""
        data = self._unparsed + data if self._unparsed else data
        self._unparsed = b""
        begin = 0
        while begin < len(data) and not self.transport.is_closing():
            if self.pipeline and not self._refused:
                self._unparsed = data[begin:]
                break
            of_body = 0 if self._in_head else self._length - self._body  # they hold no further request
            end = begin + max(_PIECE_BYTES, of_body)
            self._parse(data if begin == 0 and end >= len(data) else data[begin:end])
            begin = end
        if self.pipeline and not self._refused:
            self.flow.hold()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has ended its side. Its requests are still answered; with TLS, asyncio closes the connection."""
        if self._listener.tls is not None or self._closed or self.cycle is None or self.cycle.response_complete:
            return False
        self._half_closed = True
        return True

    def _parse(self, data: bytes) -> None:
        if self._refused:
            self._discard(len(data))
            return
        self._next_by = inf
        if self._in_head and self._reads_by == inf:
            self._reads_by = self.loop.time() + self._settings.idle_s
        in_body, body, messages = not self._in_head, self._body, self._messages
        unparsed = data
        while unparsed:
            try:
                self.parser.feed_data(unparsed)
                break
            except HttpParserUpgrade as upgrade:
                # What follows a request to change the protocol is not lost. The request is ignored (RFC 9110, 7.8).
                unparsed = unparsed[upgrade.args[0] :]
            except HttpParserError:
                self.send_400_response("")
                break
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
        has_body = self._read_framing()
        if self._fault is _INVALID and has_body and self.parser.should_upgrade():
            self._fault = _UPGRADE  # the parser would take the body for another protocol
        if self._fault is not _INVALID:
            raise ValueError(self._fault)
        if not self.url.startswith(b"/"):
            self._take_authority()
        super().on_headers_complete()  # raises where the request line is invalid, and then there is no request
        self.headers = []  # those of the request are complete: trailers go nowhere
        self.cycle.transport = self._answers  # type: ignore[assignment]  # what it calls of it
        if not self.pipeline:
            self._answered = self.cycle
        self._in_head = False
        self._head = self._body = self._framing = self._discarded = 0
        self._reads_by = self.loop.time() + self._settings.idle_s

    def _read_framing(self) -> bool:
        """Sets the length of the body, and the fault of the head; whether there is a body."""
        has_body = False
        for name, value in self.headers or ():
            if name == b"content-length" and len(value) < _DIGITS_MAX and value.isdigit():
                self._length = int(value)
                has_body = self._length > 0
            elif name == b"transfer-encoding":
                has_body = True
                if value.strip().lower() != b"chunked":
                    self._fault = _CODING
        return has_body

    def _take_authority(self) -> None:
        """The authority of an absolute request target takes precedence over Host (RFC 9112, 3.2.2)."""
        scheme, separator, rest = self.url.partition(b"://")
        if separator and scheme.lower() in (b"http", b"https"):
            authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
            self.headers[:] = [header for header in self.headers if header[0] != b"host"] + [(b"host", authority)]

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        self._reads_by += len(body) / RATE_BYTES_S
        if self.cycle.response_complete:
            self._discard(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._messages += 1
        self._length = 0
        self._reads_by = inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn does it, but without a timer for each answer: `check` closes idle connections."""
        self._answers.end()
        if self.transport.is_closing() or self._closed:
            return
        if self.pipeline:
            if self._refusal is not None and len(self.pipeline) == 1:
                self._end(self._refusal)
                return
            self._answered, app = self.pipeline.pop()
            self._start_asgi_task(self._answered, app)
        if self._unparsed and not self.pipeline:
            self.data_received(b"")
        if self.pipeline:
            return
        if self.flow.read_paused:
            self.flow.release()
        if self.cycle.response_complete:
            if self._half_closed:
                self.transport.close()
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
        if now < min(self._reads_by, self._takes_by) and not self._is_abandoned(now):
            return
        logger.debug("connection closed", peer=self.client, reason="idle" if now >= self._reads_by else "stuck")
        self.transport.abort()

    def _is_abandoned(self, now: float) -> bool:
        """Whether the client has ended its side and gets no answer for long."""
        if self._answered is None or self._answered.response_complete or self._answers.writes != self._progress[0]:
            self._progress = (self._answers.writes, now)
            return False
        if now - self._progress[1] < AFTER_END_S:
            return False
        return self._half_closed or (self.flow.held and _has_ended(self.transport.get_extra_info("socket").fileno()))

    def send_400_response(self, msg: str) -> None:
        if self._in_head and self._fault is _INVALID:  # the head may have another fault than that which ended it
            self._read_framing()
        self._refuse(*self._fault)

    def _refuse(self, status: int, code: str, description: str) -> None:
        """Answers an error outside of any request, after the requests before it."""
        if self._refused:
            return  # the same data may have two errors
        self._refused = True
        self._unparsed = b""
        body = f'{{"error":"{code}","status_code":{status},"error_description":"{description}"}}'
        headers = [("Content-Type", JSON), ("Content-Length", len(body)), ("Connection", "close"), NOSNIFF]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        refusal = f"HTTP/1.1 {status} \r\n{head}\r\n{body}".encode()
        if self.cycle is None or self.cycle.response_complete:
            self._end(refusal)
        elif self._in_head:
            self.cycle.keep_alive = False  # the invalid data follows a request whose answer is then the last
        elif self.pipeline:
            self._refusal = refusal
        else:
            self.cycle.disconnected = True  # this is its answer
            self.cycle.message_event.set()
            self._end(refusal)
        self.flow.release()

    def _close(self) -> None:
        """Closes the connection behind its last answer. Unread input would make the kernel reset it instead."""
        if self.flow.held or self._refused:
            self._end(b"")
        else:
            self.transport.close()

    def _end(self, answer: bytes) -> None:
        """Sends the last answer."""
        # Further input is not parsed, but is read for a while: a client whose data is not read may never see the
        # answer.
        self._refused = self._closed = True
        self._reads_by = self.loop.time() + self._settings.idle_s
        self._unparsed = b""
        self.pipeline.clear()
        self.transport.write(answer)
        if self.transport.can_write_eof() and not self._half_closed:
            self.transport.write_eof()
        else:
            self.transport.close()
        self.flow.release()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARDED_BYTES_MAX:
            self.transport.abort()


def _has_ended(descriptor: int) -> bool:
    """Whether the peer of a socket has ended its side, though not everything that it sent before was read. descriptor:
    -1 for a socket that is closed already."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
