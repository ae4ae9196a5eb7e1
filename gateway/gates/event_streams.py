"""Subscriptions as streams of Server-Sent Events (HTML Living Standard, section 9.2), for all doors that have them.

A notification of a resumable subscription has an id, which its client sends back as ``Last-Event-ID`` to go on behind
it. What the data of an event is, is the sink's matter.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lamplighter.engine.client.sending import PART_BYTES, LongMessage, parts_of
from lamplighter.engine.errors import MalformedRequestError, QueueFullError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Priority, Resume
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.http.answers import wait_for_disconnect
from lamplighter.gateway.gates.http.routes import WAITED
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.outbox import Message, Outbox, SendBudget
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.sharing import TotalBudget
from lamplighter.gateway.state.resumption import SPUID

logger = EventLogger(__name__)

MEDIA_TYPE: Final = "text/event-stream"
# How long a subscription is kept for a client that is away, if it does not say. Browsers come back after seconds.
KEEP_DEFAULT = "PT5M"
_NOT_KEPT = "PT0S"
_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{1,15})")
_HEARTBEAT = b":\n\n"
_DATA = b"data: %b\n\n"


class StreamEvent(bytes):
    """An event with all of its fields. Other messages of an outbox are the data of one."""

    __slots__ = ()


class LongEvent(LongMessage):
    """The same in parts."""

    __slots__ = ()


def event_id(spuid: str, sequence: int) -> bytes:
    return b"%b/%d" % (spuid.removeprefix(SPUID).encode(), sequence)


def place_of(event_id: str) -> tuple[str, int]:
    """Spuid and sequence that the id of an event names. Raises MalformedRequestError."""
    found = _ID.fullmatch(event_id)
    if found is None:
        raise MalformedRequestError(
            f"Last-Event-ID: {event_id[:100]!r} is no id of an event of this gateway; leave it out to subscribe anew"
        )
    return SPUID + found[1], int(found[2])


def asked_resume(request: Request, keep: str | None, event_id: str | None) -> Resume | None:
    """What the client wants kept or resumed. keep, event_id: of its URL. Raises MalformedRequestError."""
    # The header counts more than the parameter, which stays in the URL that a browser opens again.
    keep = keep or KEEP_DEFAULT
    event_id = request.headers.get("last-event-id") or event_id
    if event_id:
        return Resume(keep, *place_of(event_id))
    return None if keep == _NOT_KEPT else Resume(keep)


class EventStream(Response):
    """The answer that is a stream, and the connection of its sink. name: the client, for people."""

    def __init__(
        self, name: str, outbox: Outbox, heartbeat_s: float, gone: asyncio.Future[None], left: Callable[[], None]
    ) -> None:
        """heartbeat_s: after so long without an event, a comment is sent, which keeps proxies from closing the
        connection; gone: done when the client has disconnected; left: called at the end, whoever caused it."""
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, MEDIA_TYPE)
        del self.headers["content-length"]
        self.name = name
        self.outbox = outbox
        self._heartbeat_s = heartbeat_s
        self.gone = gone
        self._on_leave = left
        self._over = False

    def forget(self, spuid: str, sink: Sink) -> None:
        """Nothing follows but the reason, which the sink sends."""
        self._over = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        overflowed = asyncio.ensure_future(self.outbox.overflowed.wait())
        event: asyncio.Future[Message] | None = None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # The reason of the end is sent before the stream is over.
            while not (self._over and not len(self.outbox)):
                # Kept across heartbeats: a cancelled `get` could lose the message that it had taken.
                event = event or asyncio.ensure_future(self.outbox.get())
                waited: set[asyncio.Future[Any]] = {event, overflowed, self.gone}
                await asyncio.wait(waited, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if self.gone.done():
                    break
                if overflowed.done():
                    reason = self.outbox.exceeded
                    logger.warning("client disconnected", peer=self.name, reason="too slow", exceeded=reason)
                    body = b": %b is reached: read faster, or subscribe to less\n\n" % reason.encode()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    break
                body = _HEARTBEAT
                if event.done():
                    message, event = event.result(), None
                    if len(message) > PART_BYTES or isinstance(message, LongMessage):
                        await self._send_long(message, send)
                        continue
                    body = message if isinstance(message, StreamEvent) else _DATA % message
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            # A stream is no slow request: its time does not count as handling.
            scope[WAITED] = perf_counter() - begun
            for future in (overflowed, self.gone, event):
                if future is not None:
                    future.cancel()
            self._on_leave()

    @staticmethod
    async def _send_long(message: Message, send: Send) -> None:
        """Sends an event in parts, between which others go on."""
        ends = (b"", b"") if isinstance(message, (StreamEvent, LongEvent)) else (b"data: ", b"\n\n")
        for part in (ends[0], *parts_of(message), ends[1]):
            await send({"type": "http.response.body", "body": bytes(part), "more_body": True})
            await asyncio.sleep(0)


class StreamSink(Sink, Protocol):
    """The sink of a stream. over: whether the gateway has ended its subscription."""

    over: bool


class EventStreams:
    """The streams of a door. send_budget: what waits for all network clients."""

    def __init__(self, runner: Runner, settings: Settings, send_budget: SendBudget) -> None:
        self._runner = runner
        self._settings = settings
        self._send_budget = send_budget
        self._streams: dict[EventStream, Callable[[], None]] = {}  # each with what gives its place back
        most = max(1, settings.http.connections_max // 2)
        self._room = TotalBudget(lambda: most, "the number of open streams, half of http.connections_max,")

    async def subscribe(
        self,
        request: Request,
        caller: Caller,
        sparql: str,
        sink_of: Callable[[EventStream], StreamSink],
        dataset: tuple[tuple[Term, ...] | None, tuple[Term, ...] | None] = (None, None),
        resume: Resume | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> EventStream:
        """The answer to a request that subscribes, when the sink has the first result. dataset: default and named
        graphs; priority: the class of the request. Raises the errors of `Runner.subscribe`, and ClientDisconnect."""
        if why := self._room.refusal(caller.client):
            raise QueueFullError(f"{why}; subscribe over WebSocket, or to fewer queries at a time")
        outbox = Outbox(
            self._settings.websocket.outbox_bytes_max,
            replay_bytes_max=self._runner.replay_bytes_max,
            composed=self._count_composition,
            # Local processes always get through.
            send_budget=None if request.scope["state"]["listener"].local else self._send_budget,
        )
        left = asyncio.ensure_future(wait_for_disconnect(request.receive))
        stream = EventStream(
            cause(request, caller).id,
            outbox,
            self._settings.websocket.ping_s,
            left,
            lambda: self._leave(stream, sink, spuid),
        )
        sink = sink_of(stream)
        spuid: str | None = None
        with ExitStack() as place:
            # Given back by `_leave`, when the stream ends, not when this function does.
            place.enter_context(self._room.hold(caller.client))
            self._streams[stream] = place.pop_all().close
        if caller.client:
            self._runner.figures.shares.join(caller.client, outbox, self._runner.outbox_bytes_max)
        try:
            outcome = self._runner.subscribe(sparql, sink, *dataset, resume=resume, caller=caller, priority=priority)
            waited: set[asyncio.Future[Any]] = {outcome, left}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not outcome.done():
                # The loop may still subscribe it: it is then ended at once.
                outcome.add_done_callback(partial(self._too_late, sink))
                raise ClientDisconnect
            spuid = outcome.result()
        except BaseException:
            left.cancel()
            self._leave(stream, sink, None)
            raise
        return stream

    def close(self) -> None:
        """Ends all streams: the gateway stops."""
        for stream in self._streams:
            stream.gone.cancel()

    def _leave(self, stream: EventStream, sink: StreamSink, spuid: str | None) -> None:
        """The stream is over; its subscription ends, or waits for the client to come back."""
        self._streams.pop(stream)()
        self._runner.figures.shares.leave(stream.outbox)
        stream.outbox.close()
        if spuid is not None and not sink.over:
            self._runner.disconnect(sink, [spuid])

    def _too_late(self, sink: Sink, outcome: asyncio.Future[str]) -> None:
        """The client has disconnected before its subscription began."""
        if not outcome.cancelled() and outcome.exception() is None:
            self._runner.disconnect(sink, [outcome.result()])

    def _count_composition(self) -> None:
        self._runner.counters.compositions += 1
