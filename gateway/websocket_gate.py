"""WebSocket gate: SPARQL 1.1 SE protocol, subscriptions (SEPA protocol, section 2), and our updates and queries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from engine.change_log import Cause
from engine.core import Notification, Subscription
from engine.errors import ConfigurationError, GatewayError, LimitExceededError, QueueFullError, UnknownSpuidError
from engine.protocol import (
    QueryRequest,
    Results,
    SubscribeRequest,
    UnsubscribeRequest,
    UpdateRequest,
    WireRequest,
    answer_message,
    dataset,
    error_message,
    first_message,
    requests,
    results_message,
    resumed_message,
    unsubscribed_message,
    updated_message,
)
from engine.sparql import query_outline
from engine.terms import Bag
from gateway.outbox import Numbering, Outbox
from gateway.reader import Answer
from gateway.resumption import Attached
from gateway.runner import Accepted, Batch, Lane, Runner, Sink, UpdateCall
from gateway.settings import WebsocketSettings

logger = logging.getLogger(__name__)

PATH = "/subscribe"
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
QUERIES_PER_CLIENT_MAX = 4


class _Sink:
    """One subscription's way into its connection's outbox; knows the alias for the first message."""

    __slots__ = (
        "_alias",
        "_numbering",
        "_outbox",
        "_tell_class",
        "client",
        "connection",
        "identity",
        "over",
        "since",
    )

    def __init__(self, connection: _Connection, outbox: Outbox, alias: str | None, tell_class: bool = False) -> None:
        self.connection = connection
        self._outbox = outbox
        self._alias = alias
        self._tell_class = tell_class
        self._numbering: Numbering | None = None
        self.client = connection.name
        self.identity: str | None = None
        self.since: datetime | None = None
        self.over = False

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        results = Results(subscription.first, Bag(subscription.first.variables))
        spu_class = subscription.spu_class if self._tell_class else None
        if keep is None:
            self._numbering = Numbering(subscription.spuid)
        self._outbox.put(first_message(subscription.spuid, results, self._alias, spu_class, keep, reset))

    def resumed(self, spuid: str, attached: Attached[Sink]) -> None:
        self._outbox.put(resumed_message(spuid, self._alias, attached.sequence))
        self._outbox.replay(attached.missed, attached.bytes)

    def notify(self, notification: Notification, results: Results) -> None:
        if self._numbering is not None:
            self._outbox.notify(self._numbering, results)
        else:
            self._outbox.put(results_message(notification.spuid, notification.sequence, results))

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.over = True
        self.connection.ended(spuid, self)
        self._outbox.put(error_message(error, self._alias, spuid))

    def taken_over(self, spuid: str, by: Sink) -> None:
        if by.connection is self.connection:
            self.connection.ended(spuid, self)  # the client knows
        else:
            self.ended(spuid, UnknownSpuidError("the subscription was resumed on another connection"))


class _Connection:
    """One client. Requests go to the runner in the order in which they came; everything leaves by the outbox."""

    def __init__(self, socket: ServerConnection, runner: Runner, settings: WebsocketSettings) -> None:
        self._socket = socket
        self._runner = runner
        self._settings = settings
        self._outbox = Outbox(
            settings.outbox_bytes_max, replay_bytes_max=runner.replay_bytes_max, composed=self._composed
        )
        self._sinks: dict[str, _Sink] = {}
        self._closed = False
        self._subscribing = 0
        self._queries: set[asyncio.Task[None]] = set()
        address = socket.remote_address
        self.name = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        self._cause = Cause("ws", self.name)
        self._lane = Lane()

    async def serve(self) -> None:
        sender = asyncio.create_task(self._send())
        watcher = asyncio.create_task(self._disconnect_when_too_slow())
        try:
            async for message in self._socket:
                self._take(message)
        except ConnectionClosed:
            logger.debug("connection closed client=%s", self._cause.id)
        finally:
            self._closed = True
            for task in (sender, watcher, *self._queries):
                task.cancel()
            await asyncio.gather(sender, watcher, *self._queries, return_exceptions=True)
            for spuid, sink in self._sinks.items():
                self._runner.disconnect(sink, [spuid])

    async def _send(self) -> None:
        while True:
            await self._socket.send(await self._outbox.get(), text=True)

    async def _disconnect_when_too_slow(self) -> None:
        await self._outbox.overflowed.wait()
        logger.warning(
            "client disconnected client=%s reason=too slow outbox_bytes_max=%d",
            self._cause.id,
            self._settings.outbox_bytes_max,
        )
        self._socket.transport.abort()

    def _take(self, message: str | bytes) -> None:
        found = requests(message)
        try:
            self._runner.check_room(len(found))
        except QueueFullError as error:
            # All or none of a batch: a later update must not overtake an earlier one that has to be sent again.
            for request in found:
                self._outbox.put(error_message(error, request.alias))
            return
        batch = Batch()
        for request in found:
            if isinstance(request, GatewayError):
                self._outbox.put(error_message(request, request.alias))
                continue
            try:
                self._submit(request, batch)
            except GatewayError as error:
                self._outbox.put(error_message(error, request.alias))

    def _submit(self, request: WireRequest, batch: Batch) -> None:
        match request:
            case QueryRequest():
                self._query(request)
            case SubscribeRequest():
                self._subscribe(request)
            case UnsubscribeRequest():
                sink = self._sinks.get(request.spuid)
                outcome = self._runner.unsubscribe(request.spuid, sink or _Sink(self, self._outbox, None), self._lane)
                outcome.add_done_callback(partial(self._unsubscribed, request))
            case UpdateRequest():
                declared = request.cause
                call = UpdateCall(
                    request.sparql,
                    self._cause if declared is None else Cause(declared.kind, declared.id),
                    request_id=request.request_id,
                    delay=request.delay,
                    at=request.at,
                    missed=request.missed,
                    batch=batch,
                    lane=self._lane,
                )
                self._runner.update(call).add_done_callback(partial(self._updated, request.alias))

    def _updated(self, alias: str | None, outcome: asyncio.Future[Accepted]) -> None:
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._outbox.put(error_message(error, alias))
        else:
            accepted = outcome.result()
            self._outbox.put(updated_message(alias, accepted.sequence, accepted.delayed))

    def _subscribe(self, request: SubscribeRequest) -> None:
        limit = self._settings.subscriptions_per_client_max
        if len(self._sinks) + self._subscribing >= limit:
            raise LimitExceededError(f"websocket.subscriptions_per_client_max = {limit} is reached")
        sink = _Sink(self, self._outbox, request.alias, request.tell_class is True)
        outcome = self._runner.subscribe(
            request.sparql,
            sink,
            *dataset(request.default_graph_uri, request.named_graph_uri),
            self._lane,
            request.resume,
        )
        self._subscribing += 1
        outcome.add_done_callback(partial(self._subscribed, request, sink))

    def _subscribed(self, request: SubscribeRequest, sink: _Sink, outcome: asyncio.Future[str]) -> None:
        self._subscribing -= 1
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._outbox.put(error_message(error, request.alias))
        elif self._closed:
            self._runner.disconnect(sink, [outcome.result()])
        elif not sink.over:
            self._sinks[outcome.result()] = sink

    def ended(self, spuid: str, sink: _Sink) -> None:
        """The gateway has ended a subscription here."""
        if self._sinks.get(spuid) is sink:
            del self._sinks[spuid]

    def _composed(self) -> None:
        self._runner.counters.compositions += 1

    def _unsubscribed(self, request: UnsubscribeRequest, outcome: asyncio.Future[None]) -> None:
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._outbox.put(error_message(error, request.alias))
        else:
            self._sinks.pop(request.spuid, None)
            self._outbox.put(unsubscribed_message(request.spuid))

    def _query(self, request: QueryRequest) -> None:
        if len(self._queries) >= QUERIES_PER_CLIENT_MAX:
            raise QueueFullError(f"{QUERIES_PER_CLIENT_MAX} queries of this connection are running")
        query = query_outline(request.sparql)
        # Here and not in the task, so that it has its turn before what comes after it.
        outcome = self._runner.query(
            query,
            "application/sparql-results+json" if query.form in ("SELECT", "ASK") else "application/ld+json",
            *dataset(request.default_graph_uri, request.named_graph_uri),
            self._lane,
        )
        task = asyncio.create_task(self._answer(request, outcome))
        self._queries.add(task)
        task.add_done_callback(partial(self._query_ended, outcome))

    def _query_ended(self, outcome: asyncio.Future[Answer], task: asyncio.Task[None]) -> None:
        self._queries.discard(task)
        if not outcome.cancel() and not outcome.cancelled() and outcome.exception() is None:
            outcome.result().abandon()  # the client went away before anybody looked at the answer

    async def _answer(self, request: QueryRequest, outcome: asyncio.Future[Answer]) -> None:
        try:
            answer = await outcome
            results = b"".join([chunk async for chunk in answer.chunks()])
            self._outbox.put(answer_message(request.alias, results))
        except GatewayError as error:
            self._outbox.put(error_message(error, request.alias))


@asynccontextmanager
async def websocket_gate(runner: Runner, settings: WebsocketSettings) -> AsyncIterator[int]:
    """Serves until left; gives the port. Raises ConfigurationError when the address cannot be had."""
    connections = 0

    async def handle(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        try:
            await _Connection(socket, runner, settings).serve()
        finally:
            connections -= 1

    def check(socket: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] != PATH:
            return socket.respond(HTTPStatus.NOT_FOUND, f"the path to subscribe at is {PATH}\n")
        if connections >= settings.connections_max:
            return socket.respond(
                HTTPStatus.SERVICE_UNAVAILABLE, f"websocket.connections_max = {settings.connections_max} is reached\n"
            )
        return None

    try:
        server: Server = await serve(
            handle,
            settings.host,
            settings.port,
            process_request=check,
            compression=None,  # it costs more than it saves on a local network, and the same text once per client
            max_size=MESSAGE_BYTES_MAX,
            ping_interval=20,
            ping_timeout=20,
            close_timeout=1,
        )
    except OSError as error:
        raise ConfigurationError(
            f"websocket: cannot listen on {settings.host}:{settings.port}: {error.strerror}; name another port"
        ) from error
    async with server:
        yield next(iter(server.sockets)).getsockname()[1]
