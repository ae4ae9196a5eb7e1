"""WebSocket gate: the SPARQL 1.1 SE protocol (SEPA protocol, section 2), and updates and queries as an extension."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from time import perf_counter, thread_time
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from lamplighter.adapters.specs import KINDS
from lamplighter.engine.change_log import Cause
from lamplighter.engine.client.sending import (
    AT_ONCE_BYTES_MAX,
    PART_BYTES,
    LongMessage,
    send_fragmented,
    send_text,
    sent_at_once,
)
from lamplighter.engine.errors import (
    AccessDeniedError,
    ForeignRequestError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
    bare,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import (
    DeclaredCause,
    MessagePlace,
    MessagesRequest,
    QueryRequest,
    SubscribeRequest,
    UnsubscribeRequest,
    UpdateRequest,
    WireRequest,
    answer_message,
    answers_message,
    asked_message,
    dataset,
    refusal_message,
    requests,
    unsubscribed_message,
    updated_message,
)
from lamplighter.gateway.gates.bounded_sockets import (
    MESSAGE_BYTES_MAX,
    SLOW_LINGER_S,
    BoundedSocket,
    ReceiveBudget,
)
from lamplighter.gateway.gates.listeners import BACKLOG, HANDSHAKES_MAX, Listener
from lamplighter.gateway.gates.outbox import Outbox, SendBudget
from lamplighter.gateway.gates.sinks import ClientSink
from lamplighter.gateway.loop.failures import failure
from lamplighter.gateway.loop.queue import OrderedLane
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import Batch, UpdateCall
from lamplighter.gateway.security.browsers import NOSNIFF, Browsers
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import Gatekeeper, raw_headers, socket_address
from lamplighter.gateway.security.peers import origin
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.messages import MessagesAnswer, MessageSource
from lamplighter.gateway.state.quotas import ConnectionLease
from lamplighter.gateway.state.request_ids import Accepted
from lamplighter.gateway.workers.ad_hoc import Answer, ReadyAnswer

logger = EventLogger(__name__)

QUEUED_MESSAGES_MAX = 4  # received messages of one client that wait to be read
# Characters of one client's requests that wait to be answered. Above it, its connection is not read.
UNDER_WAY_BYTES_MAX = 16 * 1024 * 1024
QUERIES_PER_CLIENT_MAX = 4
SHORT_CHARACTERS = 2048  # of a message whose reading cannot hold up the loop
_OPERATIONS: dict[type, str] = {
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
    UpdateRequest: "update",
    QueryRequest: "query",
    MessagesRequest: "offer messages",
}
HANDSHAKE_S = 10
UNKNOWN_REFUSED_MAX = 100  # requests without a valid token, after which the connection is closed
# Causes that only the gateway's own adapters may declare. They connect by the Unix sockets, or on loopback in plain
# mode. The records of a registered client must not look like a device's.
ADAPTER_KINDS = frozenset(KINDS)
_ADAPTER_AGENTS = {f"lamplighter-{kind}": kind for kind in ADAPTER_KINDS}  # their kinds by their User-Agent


class _Connection:
    """One client. Its requests go to the runner in their order; all messages leave through the outbox. It is one class
    because reading, answering and sending share the counts that decide when the client is refused."""

    def __init__(self, socket: _CountedSocket, gate: _Gate, trust: Callable[[], None]) -> None:
        """trust: called at the first message with a valid token."""
        self._socket = socket
        self._gate = gate
        self._trust_peer = trust
        self._refused = 0  # requests without a valid token, until there is one
        self._runner = runner = gate.runner
        self._counters = runner.figures.websocket
        self._outbox = Outbox(
            gate.settings.outbox_bytes_max if socket.trusted else gate.security.first_message_bytes_max,
            replay_bytes_max=runner.replay_bytes_max,
            composed=self._count_composition,
            send_budget=None if socket.local else gate.send_budget,
            at_once=partial(sent_at_once, socket),
        )
        self._sinks: dict[str, ClientSink] = {}
        self._sent = 0
        self._under_way_bytes = 0
        self._under_way = 0
        self._answered = asyncio.Event()
        self._closed = False
        self._subscribing = 0
        self._queries: set[asyncio.Task[None]] = set()
        self._messages: MessageSource | None = None
        self._together: list[bytes] = []  # answers that go out in one message, when all that are due now are known
        address = socket.remote_address
        self.name = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        self._origin = origin(socket.transport.get_extra_info("socket"), socket_address(socket))
        self._cause = Cause("ws", self.name)
        self._lane = OrderedLane()
        socket.when_lost = self._answered.set

    async def serve(self) -> None:
        sender = asyncio.create_task(self._send())
        watchers = [
            asyncio.create_task(watch) for watch in (self._disconnect_when_too_slow(), self._disconnect_when_dead())
        ]
        waiting = asyncio.get_running_loop().call_later(self._gate.security.token_wait_s, self._disconnect_when_unknown)
        try:
            async for message in self._socket:
                if self._socket.refused:
                    continue
                self._take(message)
                # Behind `_take`: until then the message counts as unread.
                self._socket.mark_read()
                del message  # the next one may take long
                # Once the connection is gone nobody waits for answers, and after a failure of the disk none comes.
                while self._has_its_share and not self._socket.refused:
                    self._answered.clear()
                    await self._answered.wait()
        except ConnectionClosed:
            logger.debug("connection closed", peer=self._cause.id)
        finally:
            waiting.cancel()
            tasks = [sender, *watchers, *self._queries]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runner.figures.shares.leave(self._outbox)
            self._outbox.close()
            self._end_subscriptions()
            if self._messages is not None:
                self._runner.messages.leave(self._messages)

    def _end_subscriptions(self) -> None:
        """They end, or wait for the client if they can be resumed."""
        self._closed = True
        for spuid, sink in self._sinks.items():
            self._runner.disconnect(sink, [spuid])
        self._sinks.clear()

    async def _send(self) -> None:
        while True:
            message = await self._outbox.get()
            if isinstance(message, bytes) and len(message) <= PART_BYTES:
                await send_text(self._socket, message)
                self._note_sent()
            else:
                await send_fragmented(self._socket, message, self._note_sent)

    def _note_sent(self) -> None:
        self._sent += 1

    async def _disconnect_when_too_slow(self) -> None:
        await self._outbox.overflowed.wait()
        self._counters.disconnected += 1
        logger.warning(
            "client disconnected",
            peer=self._cause.id,
            reason="too slow",
            exceeded=self._outbox.exceeded,
            outbox_bytes_max=self._gate.settings.outbox_bytes_max,
        )
        # Behind what it has not read yet, which is little. Nothing else follows.
        reason = f"{self._outbox.exceeded} is reached: read faster, or subscribe to less"
        self._socket.refuse(CloseCode.TRY_AGAIN_LATER, reason, SLOW_LINGER_S)
        self._end_subscriptions()

    async def _disconnect_when_dead(self) -> None:
        """Disconnects a peer that does not read. Pings detect dead peers, but none can be sent behind unread data."""
        before = None
        while True:
            await asyncio.sleep(self._gate.settings.ping_s)
            unsent = self._socket.transport.get_write_buffer_size()
            # Neither a message or a part of one was taken nor a byte sent in a whole interval.
            if unsent and before == (self._sent, unsent):
                break
            before = (self._sent, unsent)
        self._counters.disconnected += 1
        logger.warning("client disconnected", peer=self._cause.id, reason="stalled", ping_s=self._gate.settings.ping_s)
        self._socket.transport.abort()

    def _disconnect_when_unknown(self) -> None:
        if not self._socket.trusted:
            self._socket.refuse(
                CloseCode.POLICY_VIOLATION,
                f"no valid token within security.token_wait_s = {self._gate.security.token_wait_s}",
            )

    def _trust(self) -> None:
        self._socket.trust()
        self._outbox.allow(self._gate.settings.outbox_bytes_max)
        self._trust_peer()

    def _take(self, message: str | bytes) -> None:
        self._counters.messages += 1
        if len(message) <= SHORT_CHARACTERS:  # in less time than it takes to ask for the processor's time
            found = requests(message)
        else:
            begun = perf_counter(), thread_time()
            found = requests(message)
            self._runner.timings.loop_held.count_work(begun, "reading a WebSocket message")
        full: QueueFullError | None = None
        room = False
        batch = Batch()
        answered: asyncio.Future[Any] | None = None
        caller: Caller | None = None
        authorization: object = None
        for request in found:
            # Authentication comes before errors of the request and before limits.
            try:
                if full is not None:
                    raise full
                # Members of a batch have one token as a rule; without registered clients it is checked once.
                if caller is None or caller.registered or request.authorization != authorization:
                    caller, authorization = None, request.authorization
                    caller = self._gate.gatekeeper.socket_caller(authorization, self._socket, self._origin)
                    if caller.registered:  # each of its requests counts
                        self._socket.held.by(caller.name)
                    self._socket.client = caller.client
                    if caller.client:
                        self._runner.figures.shares.join(caller.client, self._outbox, self._runner.outbox_bytes_max)
                    if not self._socket.trusted:
                        self._trust()
                # All requests of a message or none, so that a batch is not cut in the middle.
                if not room and len(found) > 1:  # a single one is checked when it is queued
                    self._check_room(found, caller)
                    room = True
            except GatewayError as error:
                if isinstance(error, QueueFullError):
                    # The rest of a batch as well: it must not overtake what has to be sent again.
                    full = error
                # Answers come in the order of the members.
                self._refuse(bare(error), request, after=answered)
                if not self._socket.trusted:
                    self._refused += 1
                    if self._refused > UNKNOWN_REFUSED_MAX:
                        reason = f"{self._refused} requests without a valid token"
                        self._socket.refuse(CloseCode.POLICY_VIOLATION, reason)
                        return
                continue
            if isinstance(request, GatewayError):
                self._refuse(request, request, after=answered)
                continue
            # An equal part each: together they are the bytes of the message, which stay until the last one is answered.
            size = len(message) // len(found)
            try:
                answered = self._submit(request, caller, batch, size)
            except GatewayError as error:
                if isinstance(error, QueueFullError):
                    full = error
                self._refuse(bare(error), request, caller, answered)
                continue
            except Exception as error:  # whatever a text does to those who look at it, in answer to this request
                self._refuse(failure(error), request, caller, answered)
                continue
            self._under_way_bytes += size
            self._under_way += 1
            if not isinstance(request, UpdateRequest):  # whose answer does it: each call of the loop takes as long
                answered.add_done_callback(partial(self._free, size))

    def _check_room(self, found: Sequence[WireRequest | GatewayError], caller: Caller) -> None:
        """Raises QueueFullError unless the queue has room for all requests of a message."""
        counts = Counter(getattr(request, "priority", None) for request in found)
        for asked, count in counts.items():
            with suppress(MalformedRequestError, AccessDeniedError):  # its own answer says so
                self._runner.queue.check_room(
                    count, caller.usual if asked is None else caller.priority(asked), self._lane, caller.client
                )

    def _free(self, size: int, answered: asyncio.Future[Any]) -> None:
        self._under_way_bytes -= size
        self._under_way -= 1
        self._answered.set()

    @property
    def _has_its_share(self) -> bool:
        """Whether nothing more is read before one of its requests is answered."""
        # No connection holds more requests than half of what the queue has room for: one alone fills a third of it, and
        # a client that fills its share by a connection has some left for the next one.
        if self._under_way_bytes > UNDER_WAY_BYTES_MAX:
            return True
        return 2 * self._under_way > max(1, self._runner.queue.free(self._lane.priority))

    def _refuse(
        self,
        error: GatewayError,
        request: WireRequest | GatewayError,
        caller: Caller | None = None,
        after: asyncio.Future[Any] | None = None,
    ) -> None:
        """after: the previous member of the message, which is answered first."""
        if after is not None:
            after.add_done_callback(lambda _: self._refuse(error, request, caller))
            return
        self._counters.errors[error.code] += 1
        if caller is not None and isinstance(error, AccessDeniedError):
            self._gate.gatekeeper.audit_denial(caller, _OPERATIONS.get(type(request), "request"), error)
        self._reply(refusal_message(error, request), request)

    def _submit(self, request: WireRequest, caller: Caller, batch: Batch, size: int) -> asyncio.Future[Any]:
        """Passes a request to the runner; returns when it is answered. size: what an update frees then. Raises
        GatewayError."""
        match request:
            case QueryRequest():
                return self._query(request, caller)
            case SubscribeRequest():
                return self._subscribe(request, caller)
            case UnsubscribeRequest():
                sink = self._sinks.get(request.spuid)
                outcome = self._runner.unsubscribe(
                    request.spuid, sink or ClientSink(self, self._outbox, None), self._lane, caller
                )
                outcome.add_done_callback(partial(self._on_unsubscribed, request, caller))
                return outcome
            case UpdateRequest():
                declared = request.cause
                call = UpdateCall(
                    request.sparql,
                    self._cause_of(caller) if declared is None else _declared_cause(declared, caller),
                    request_id=request.request_id,
                    delay=request.delay,
                    at=request.at,
                    missed=request.missed,
                    batch=batch,
                    lane=self._lane,
                    caller=caller,
                    tells_delta=request.delta is True,
                    priority=caller.usual if request.priority is None else caller.priority(request.priority),
                )
                updated = self._runner.updates.update(call)
                updated.add_done_callback(partial(self._on_updated, request, caller, size))
                return updated
            case MessagesRequest():
                self._take_messages(request, caller)
                done = asyncio.get_running_loop().create_future()
                done.set_result(None)
                return done

    def _take_messages(self, request: MessagesRequest, caller: Caller) -> None:
        """Takes an offer of messages, or the answer to a question. Raises AccessDeniedError, LimitExceededError."""
        caller.require_operator("offer messages of devices")
        if request.number is not None:
            if self._messages is not None:
                self._messages.answer(request.number, MessagesAnswer(request.found, request.more))
        elif self._messages is None:

            def ask(number: int, places: Sequence[MessagePlace], unread: bool) -> None:
                self._outbox.put(asked_message(request.alias, number, places, unread=unread))

            source = MessageSource(ask)
            self._runner.messages.join(source, caller.client)
            self._messages = source

    def _cause_of(self, caller: Caller) -> Cause:
        return Cause("ws", f"{caller.name}@{self.name}") if caller.name else self._cause

    def _on_updated(self, request: UpdateRequest, caller: Caller, size: int, outcome: asyncio.Future[Accepted]) -> None:
        self._free(size, outcome)
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._refuse(error, request, caller)
        else:
            accepted = outcome.result()
            sequence = accepted.sequence if caller.sees_sequence else None
            answer = updated_message(
                request.alias, sequence, accepted.delayed, accepted.delta, tells_delta=request.delta is True
            )
            self._reply(answer, request)

    def _reply(self, answer: bytes, request: WireRequest | GatewayError) -> None:
        """Sends an answer, or has it sent with the others that are due now."""
        if not isinstance(request, UpdateRequest) or request.together is not True:
            self._outbox.put(answer)
            return
        # A group of updates is answered in one turn of the loop, so `call_soon` comes behind all of them.
        if not self._together:
            asyncio.get_running_loop().call_soon(self._reply_together)
        self._together.append(answer)

    def _reply_together(self) -> None:
        answers, self._together = self._together, []
        self._outbox.put(answers[0] if len(answers) == 1 else answers_message(answers))

    def _subscribe(self, request: SubscribeRequest, caller: Caller) -> asyncio.Future[str]:
        limit = self._gate.settings.subscriptions_per_client_max
        if len(self._sinks) + self._subscribing >= limit:
            raise LimitExceededError(f"websocket.subscriptions_per_client_max = {limit} is reached")
        # The sequence of a commit counts those of all clients.
        names_commits = request.tell_commit is True and caller.sees_sequence
        sink = ClientSink(self, self._outbox, request.alias, request.tell_class is True, names_commits)
        outcome = self._runner.subscribe(
            request.sparql,
            sink,
            *dataset(request.default_graph_uri, request.named_graph_uri),
            self._lane,
            request.resume,
            caller,
            caller.usual if request.priority is None else caller.priority(request.priority),
        )
        self._subscribing += 1
        outcome.add_done_callback(partial(self._on_subscribed, request, caller, sink))
        return outcome

    def _on_subscribed(
        self, request: SubscribeRequest, caller: Caller, sink: ClientSink, outcome: asyncio.Future[str]
    ) -> None:
        self._subscribing -= 1
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._refuse(error, request, caller)
        elif self._closed:
            self._runner.disconnect(sink, [outcome.result()])
        else:
            self._counters.subscribed += 1
            # It may have ended between its record and this call.
            if not sink.over:
                self._sinks[outcome.result()] = sink

    def forget(self, spuid: str, sink: ClientSink) -> None:
        """Removes a subscription that the gateway ended."""
        if self._sinks.get(spuid) is sink:
            del self._sinks[spuid]

    def _count_composition(self) -> None:
        self._runner.counters.compositions += 1

    def _on_unsubscribed(self, request: UnsubscribeRequest, caller: Caller, outcome: asyncio.Future[None]) -> None:
        error = outcome.exception()
        if isinstance(error, GatewayError):
            self._refuse(error, request, caller)
        else:
            self._sinks.pop(request.spuid, None)
            self._counters.unsubscribed += 1
            self._outbox.put(unsubscribed_message(request.spuid))

    def _query(self, request: QueryRequest, caller: Caller) -> asyncio.Future[None]:
        if len(self._queries) >= QUERIES_PER_CLIENT_MAX:
            raise QueueFullError(f"{QUERIES_PER_CLIENT_MAX} queries of this connection are running")
        query = self._runner.queries.outline(request.sparql)
        # Here and not in the task, so that it is queued before the requests that follow.
        outcome = self._runner.queries.query(
            query,
            "application/sparql-results+json" if query.form in ("SELECT", "ASK") else "application/ld+json",
            *dataset(request.default_graph_uri, request.named_graph_uri),
            self._lane,
            caller,
            caller.usual if request.priority is None else caller.priority(request.priority),
        )
        task = asyncio.create_task(self._answer(request, caller, outcome))
        self._queries.add(task)
        task.add_done_callback(partial(self._query_ended, outcome))
        return task

    def _query_ended(self, outcome: asyncio.Future[Answer | ReadyAnswer], task: asyncio.Task[None]) -> None:
        self._queries.discard(task)
        # A query that waits is taken out of the queue; one that runs is killed.
        if not outcome.cancel() and not outcome.cancelled() and outcome.exception() is None:
            outcome.result().abandon()  # the client disconnected before the answer was read

    async def _chunks(self, answer: Answer | ReadyAnswer) -> list[bytes]:
        """All parts of an answer, which wait here until it is known that it is whole. Raises LimitExceededError, and
        QueueFullError where those of all clients are too much memory."""
        gate, size, found = self._gate, 0, []
        bytes_max = gate.settings.unsent_bytes_max
        gate.answers += 1
        try:
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    gate.answers_bytes += len(chunk)
                    if size > bytes_max:
                        raise LimitExceededError(
                            f"the answer has more than websocket.unsent_bytes_max = {bytes_max} bytes; ask for fewer "
                            "rows by LIMIT and OFFSET, or over HTTP, which has no limit for bytes"
                        )
                    # A short one is not refused for what others ask.
                    if gate.answers_bytes > bytes_max and size * gate.answers >= gate.answers_bytes:
                        raise QueueFullError(
                            f"the answers of all clients have more than websocket.unsent_bytes_max = {bytes_max} "
                            "bytes; try again later, or ask over HTTP"
                        )
                    found.append(chunk)
        finally:
            gate.answers -= 1
            gate.answers_bytes -= size
        return found

    async def _answer(
        self, request: QueryRequest, caller: Caller, outcome: asyncio.Future[Answer | ReadyAnswer]
    ) -> None:
        try:
            if outcome.done():
                await asyncio.sleep(0)  # the answers that were released before have callbacks that did not run yet
            answer = await outcome
            message = LongMessage(answer_message(request.alias, await self._chunks(answer)))
            self._outbox.put(b"".join(message.parts) if len(message) <= AT_ONCE_BYTES_MAX else message)
        except GatewayError as error:
            self._refuse(bare(error), request, caller)


def _declared_cause(cause: DeclaredCause, caller: Caller) -> Cause:
    """The declared cause of an update. Raises AccessDeniedError for causes of the gateway's own adapters."""
    if caller.registered and cause.kind in ADAPTER_KINDS:
        raise AccessDeniedError(
            f"cause.kind {cause.kind!r} is reserved for the gateway's adapters; use another word, such as "
            f"{cause.kind}-bridge"
        )
    return Cause(cause.kind, cause.id)


class _Gate:
    """What all connections of one gate share. sockets: from the first byte on; connections: after the handshake;
    answers, answers_bytes: answers to queries that are not whole yet."""

    def __init__(
        self,
        runner: Runner,
        settings: Settings,
        gatekeeper: Gatekeeper,
        browsers: Browsers,
        send_budget: SendBudget,
        prefix: str,
    ) -> None:
        self.runner = runner
        self.settings = settings.websocket
        self.security = settings.security
        self.unread = ReceiveBudget(self.settings.unread_bytes_max)
        self.send_budget = send_budget
        self.sockets = self.answers = self.answers_bytes = 0
        self._connections = 0
        self.gatekeeper = gatekeeper
        self._browsers = browsers
        self._paths = {self.settings.path, prefix + self.settings.path}

    async def handle(self, listener: Listener, socket: ServerConnection) -> None:
        assert isinstance(socket, _CountedSocket)
        connected = socket.transport.get_extra_info("socket")
        if connected is None:
            return  # a TLS connection that has ended behind its handshake
        trust = partial(listener.trust, connected.fileno())
        if socket.trusted:
            trust()
        runner = self.runner
        self._connections += 1
        runner.figures.sockets(self._connections)
        adapter = self._adapter(socket)
        runner.figures.adapters[adapter] += 1
        try:
            await _Connection(socket, self, trust).serve()
        finally:
            self._connections -= 1
            runner.figures.sockets(self._connections)
            runner.figures.adapters[adapter] -= 1

    def _adapter(self, socket: BoundedSocket) -> str:
        """The kind of the own adapter at the other end, "" for other clients. In secure mode: by the Unix socket."""
        if socket.request is None or (self.security.enabled and not socket.local):
            return ""
        return _ADAPTER_AGENTS.get(socket.request.headers.get("User-Agent", ""), "")

    def check(self, socket: ServerConnection, request: Request) -> Response | None:
        """The refusal of a handshake, None if the connection is taken."""
        assert isinstance(socket, _CountedSocket)
        settings, errors = self.settings, self.runner.figures.websocket.errors
        if not socket.local:
            try:
                self._browsers.origin(raw_headers(request), "1.1", link=False)
            except ForeignRequestError as error:
                errors[error.code] += 1
                return socket.refusal(HTTPStatus(error.status), error.code, str(error))
        path, _, parameters = request.path.partition("?")
        if path not in self._paths:
            return socket.refusal(
                HTTPStatus.NOT_FOUND, "wrong_path", f"there is nothing at this path; subscribe at {settings.path}"
            )
        if parameters:  # their values may be secret
            name = parameters.partition("&")[0].partition("=")[0][:100]
            return socket.refusal(
                HTTPStatus.BAD_REQUEST,
                MalformedRequestError.code,
                f"unknown parameter {name}: the address of a WebSocket takes none; write it into the message, as a "
                "member of subscribe",
            )
        if self._connections >= settings.connections_max and not socket.local:
            reason = f"websocket.connections_max = {settings.connections_max} is reached"
            return socket.refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_requests", reason)
        try:
            plain = socket.transport.get_extra_info("sslcontext") is None
            socket.held.by_origin(socket.transport.get_extra_info("socket"), socket_address(socket), plain=plain)
        except LimitExceededError as error:
            errors[error.code] += 1
            return socket.refusal(HTTPStatus(error.status), error.code, str(error))
        if self.gatekeeper.trusts(socket):
            socket.trust()
        return None


def _mark(socket: ServerConnection, request: Request, response: Response) -> None:
    response.headers[NOSNIFF[0]] = NOSNIFF[1]


class _CountedSocket(BoundedSocket):
    """Counted by its gate, which a subclass names. when_lost: called when the connection is gone."""

    gate: _Gate
    when_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        gate = self.gate
        gate.sockets += 1
        self.unread = gate.unread
        self.first_bytes_max = gate.security.first_message_bytes_max
        self.compression = gate.settings.compression
        self.loop_held = gate.runner.timings.loop_held
        self.held = ConnectionLease(
            gate.runner.figures.websocket_connections, gate.runner.current.quotas, gate.settings.connections_max
        )
        super().connection_made(transport)
        # Some more than connections, so that each gets a proper refusal as long as there are not too many.
        if gate.sockets > gate.settings.connections_max + HANDSHAKES_MAX and not self.local:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.sockets -= 1
        self.held.end()
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()
            self.when_lost = None  # a cycle, see below
        # The last message, of up to 16 MiB, is still in a variable of the parser, and the connection is part of a
        # cycle. A hundred of them would wait for the garbage collector, which counts objects and not bytes.
        self.protocol.parser.close()
        if self.protocol.parser_exc is not None:
            bare(self.protocol.parser_exc)


@asynccontextmanager
async def websocket_gate(
    runner: Runner,
    settings: Settings,
    listeners: Sequence[Listener],
    gatekeeper: Gatekeeper,
    browsers: Browsers,
    send_budget: SendBudget,
    prefix: str = "",
) -> AsyncIterator[None]:
    """Serves until left, on all listeners at once. gatekeeper: authentication; browsers: which pages may connect;
    send_budget: what waits for all network clients; prefix: optional before the path."""
    shared = _Gate(runner, settings, gatekeeper, browsers, send_budget, prefix)

    class Counted(_CountedSocket):
        gate = shared

    async with AsyncExitStack() as stack:
        for listener in listeners:
            server = serve(
                partial(shared.handle, listener),
                sock=listener.socket,
                backlog=BACKLOG,
                ssl=listener.tls,
                ssl_handshake_timeout=None if listener.tls is None else HANDSHAKE_S,
                process_request=shared.check,
                process_response=_mark,
                create_connection=Counted,
                compression="deflate" if settings.websocket.compression else None,
                max_size=MESSAGE_BYTES_MAX,
                max_queue=QUEUED_MESSAGES_MAX,
                open_timeout=HANDSHAKE_S,
                ping_interval=settings.websocket.ping_s,
                ping_timeout=settings.websocket.ping_s,
                close_timeout=1,
            )
            await stack.enter_async_context(server)
        yield
