"""EngineClient: updates, queries and subscriptions over one WebSocket.

The client reconnects with back-off. It sends unanswered updates again with the same request id, so that each has one
effect, and renews its subscriptions, or resumes those with `keep`. Where a message was the reason for the end of a
connection, requests are sent one by one on the next one: the request behind which it ends again has failed.
Subscriptions work with any SEPA broker; updates, queries and resuming over the socket are extensions of Lamplighter.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any
from urllib.parse import quote

import msgspec
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosedOK, InvalidHandshake, WebSocketException

from lamplighter.engine.change_log import Missed
from lamplighter.engine.client import results
from lamplighter.engine.client.addresses import check_private, trusting, unix_path
from lamplighter.engine.client.messages import (
    ClientSubscription,
    Notification,
    PendingMessage,
    Tokens,
    UpdateAnswer,
    UpdateDelta,
    check_trust,
    graph_members,
)
from lamplighter.engine.client.sending import (
    MESSAGE_BYTES_MAX,
    SIZES,
    DroppedMessage,
    fault_of_message,
    next_message,
    send_text,
)
from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    RefusedError,
    UpstreamError,
    check_function,
    check_list,
    check_type,
    check_types,
    wrong_type,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.protocol import DeclaredCause, KeptMessage, MessagePlace, PriorityName, UpdateRequest
from lamplighter.engine.terms import Bag

logger = EventLogger(__name__)

# Concurrent requests; further ones wait.
PENDING_MAX = 1_000
_BACK_OFF_S = (0.1, 5.0)
# Seconds before a subscription is requested again that was refused with a retriable error.
_ASK_AGAIN_S = 1.0
# Members of an update that are sent if they are given, and their types.
_OPTIONAL = {
    **dict.fromkeys(("authorization", "priority", "delay", "at", "missed"), str),
    "cause": DeclaredCause,
    "delta": bool,
}
# Key of an offer among what is sent on each connection.
_OFFER = "messages"
_EXPIRED = (401, "invalid_grant")  # SEPA protocol 3.5
_TOO_LONG = f"has more than {MESSAGE_BYTES_MAX} bytes, which is what this client takes in one message"


class EngineClient:
    """A connection to a gateway, used as ``async with EngineClient(url) as client``.

    url: the gateway's subscribe address, ``ws://127.0.0.1:9000/subscribe``, ``wss://gateway.local:9443/subscribe``, or
    ``ws+unix:/run/lamplighter/ws.sock``. name: for the log, and in the User-Agent ``lamplighter-NAME``.
    tokens: the source of bearer tokens in secure mode. ca: file with the certificates to trust instead of the
    machine's. Entering the context does not wait for the gateway; requests wait until it is reachable. Raises
    ConfigurationError for a malformed url, an unreadable file, and tokens that would be sent unencrypted.

    It is one class because requests, subscriptions and reconnects share the socket and the tables of pending messages.
    """

    def __init__(
        self, url: str, *, name: str = "client", tokens: Tokens | None = None, ca: Path | str | None = None
    ) -> None:
        check_types(str, url=url, name=name)
        check_trust(tokens, ca)
        self._url = url
        self._path = unix_path(url)
        if tokens is not None:
            check_private(url)
        secure = url.lower().startswith("wss:")
        self._ssl = trusting(ca) if secure else None
        self._name = name
        self._tokens = tokens
        self._aliases = (f"{name}-{number}" for number in itertools.count())
        # Request ids of one client: a repeated update has the id that it had, so it is done once.
        self._id = uuid.uuid4().hex
        self._updates = itertools.count()
        self._pending: dict[int, PendingMessage] = {}
        self._by_alias: dict[str, PendingMessage] = {}
        self._numbers = itertools.count()
        self._room = asyncio.Semaphore(PENDING_MAX)
        self._subscriptions: dict[str, ClientSubscription] = {}
        self._by_spuid: dict[str, ClientSubscription] = {}
        self._given_up: list[str] = []  # resumable subscriptions that were ended without a connection
        self._asking_again: set[asyncio.Task[None]] = set()
        self._messages: Callable[[Sequence[MessagePlace]], Sequence[KeptMessage]] | None = None
        self._unread_messages: Callable[[], tuple[Sequence[KeptMessage], int]] = lambda: ((), 0)
        self._together = asyncio.Event()  # whether requests do not wait for the answers to those before them
        self._together.set()
        self._asked: int | str | None = None  # the request that was sent last, if they are sent one by one
        self._connections = 0  # how many there were
        self._socket: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> EngineClient:
        self._task = asyncio.create_task(self._stay_connected(), name=f"{self._name} connection")
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task
        for task in [self._task, *self._asking_again]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._closed = True
        self._fail(UpstreamError("the client was closed"))

    @property
    def connected(self) -> bool:
        """Whether there is a connection. Requests wait for one."""
        return self._socket is not None

    def _fail(self, error: GatewayError) -> None:
        """Fails all requests and subscriptions."""
        for pending in self._pending.values():
            for alias in pending.aliases:
                self._answer(alias, error)
        for subscription in self._subscriptions.values():
            subscription.end(error)

    # --- requests ---

    async def update(
        self,
        sparql: str,
        *,
        request_id: str | None = None,
        delay: str | None = None,
        at: str | None = None,
        missed: Missed | None = None,
        cause: DeclaredCause | None = None,
        delta: bool = False,
        priority: PriorityName | None = None,
    ) -> UpdateAnswer:
        """Sends an update and waits until it is durable.

        delay: ISO 8601 duration; at: xsd:dateTime. With one of them, the answer means that the delayed update is
        durable. missed: what happens if it becomes due while the gateway is off; None: as the gateway's settings say.
        cause: its origin in the change log. delta: whether the answer is to tell what the update changed. priority: its
        class. Requests of one connection keep their order, so an alarm waits for the updates that were sent before it;
        give alarms a client of their own. Raises RefusedError with the gateway's answer, UpstreamError if the client is
        closed meanwhile.
        """
        check_type("delta", delta, bool)
        request = UpdateRequest(
            sparql,
            priority=priority,
            request_id=request_id,
            delay=delay,
            at=at,
            missed=missed,
            cause=cause,
            delta=delta or None,
        )
        [answer] = await self.updates([request])
        if isinstance(answer, GatewayError):
            raise answer
        return answer

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        """Sends several updates in one message, each a commit of its own, in order.

        Returns an answer for each, or the error in its place. What a gateway refuses for the moment (queue or
        disk full) is sent again; nothing else is.
        """
        check_list("requests", requests, UpdateRequest)
        more = {"together": True} if len(requests) > 1 else {}
        kept = [self._members(request) | more for request in requests]
        answered: dict[str, UpdateAnswer | GatewayError] = {}
        waiting, refusals = kept, 0
        while waiting:
            again = []
            # Only the refused ones are sent again, in their order.
            answers = await self._ask("updates", waiting)
            for members, answer in zip(waiting, answers, strict=True):
                if isinstance(answer, RefusedError) and answer.retriable:
                    again.append(members)
                elif isinstance(answer, GatewayError):
                    answered[members["alias"]] = answer
                else:
                    answered[members["alias"]] = _update_answer(answer)
            waiting = again
            if waiting:
                refusals += 1
                await asyncio.sleep(back_off_s(refusals, *_BACK_OFF_S))
        return [answered[members["alias"]] for members in kept]

    def _members(self, request: UpdateRequest) -> dict[str, Any]:
        """The members of an update, with an alias and a request id of its own."""
        # Each update comes here: what is as it should be needs no further call.
        if not isinstance(request.sparql, str):
            raise wrong_type("sparql", request.sparql, str)
        if request.request_id is not None and not isinstance(request.request_id, str):
            raise wrong_type("request_id", request.request_id, str, NoneType)
        number = next(self._updates)
        found: dict[str, Any] = {
            "sparql": request.sparql,
            "alias": f"{self._name}-update-{number}",
            "request_id": request.request_id or f"{self._id}-{number}",
        }
        for name, kind in _OPTIONAL.items():
            value = getattr(request, name)
            if value is not None:
                if not isinstance(value, kind):
                    raise wrong_type(name, value, kind, NoneType)
                found[name] = value
        return found

    async def query(self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()) -> Bag:
        """The result of a SELECT query. default_graphs, named_graphs: IRIs of its dataset, if not the whole dataset.

        Raises RefusedError, UpstreamError, MalformedRequestError for another form of query.
        """
        return results.bag(await self._results(sparql, default_graphs, named_graphs))

    async def ask(self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()) -> bool:
        """The result of an ASK query. Raises as `query`."""
        return results.boolean(await self._results(sparql, default_graphs, named_graphs))

    async def construct(
        self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()
    ) -> list[results.Triple]:
        """The triples of a CONSTRUCT or DESCRIBE query. Raises as `query`."""
        answer = await self._results(sparql, default_graphs, named_graphs)
        media_type = "application/ld+json" if isinstance(answer, list) else "application/sparql-results+json"
        return results.triples(msgspec.json.encode(answer), media_type)

    async def _results(self, sparql: str, default_graphs: Sequence[str], named_graphs: Sequence[str]) -> Any:
        check_type("sparql", sparql, str)
        body = {"sparql": sparql, "alias": next(self._aliases), **graph_members(default_graphs, named_graphs)}
        [answer] = await self._ask("query", [body])
        if isinstance(answer, GatewayError):
            raise answer
        return answer["results"]

    async def subscribe(
        self,
        sparql: str,
        *,
        keep: str | None = None,
        resume: tuple[str, int] | None = None,
        leave: bool = False,
        tell_commit: bool = False,
        default_graphs: Sequence[str] = (),
        named_graphs: Sequence[str] = (),
    ) -> AsyncGenerator[Notification, None]:
        """The notifications of a query, beginning with the first result. Ends only by `aclose` or an error.

        tell_commit: whether notifications are to name their commits, see `Notification.commit`.
        keep: ISO 8601 duration for which the gateway retains notifications while the connection is broken. Each
        notification is then delivered once, across interruptions; sequence 0 is repeated only after an interruption
        that was too long, or with too many notifications. Without keep it is repeated after each interruption.
        resume: spuid and sequence of the last notification that an earlier client took of the same subscription, which
        had left it; with keep. leave: `aclose` does not end the subscription; with keep. Raises
        RefusedError if the gateway refuses or ends the subscription, UpstreamError if the client is closed. A
        subscription that is refused with a retriable error is requested again.
        """
        check_type("sparql", sparql, str)
        check_type("keep", keep, str, NoneType)
        check_types(bool, leave=leave, tell_commit=tell_commit)
        if resume is not None:
            check_type("resume", resume, tuple)
            spuid, sequence, *_ = (*resume, None, None)
            check_type("resume[0]", spuid, str)
            check_type("resume[1]", sequence, int)
        if self._closed:
            raise UpstreamError("the client was closed")
        graphs = graph_members(default_graphs, named_graphs)
        subscription = ClientSubscription(
            next(self._aliases), sparql, keep, graphs, tell_commit=tell_commit, left=leave
        )
        if resume is not None:
            subscription.spuid, subscription.sequence = resume
            subscription.resumable = True
        self._subscriptions[subscription.alias] = subscription
        try:
            await self._send("subscribe", subscription.body)
            while True:
                notification = await subscription.queue.get()
                if isinstance(notification, GatewayError):
                    raise notification
                # Notifications were dropped while the consumer was slow; now it gets the others, or begins anew.
                if subscription.behind and subscription.queue.empty():
                    await self._send("subscribe", subscription.body)
                yield notification
        finally:
            del self._subscriptions[subscription.alias]
            if subscription.spuid is not None:
                self._by_spuid.pop(subscription.spuid, None)
            if subscription.spuid is not None and not (subscription.left and subscription.resumable):
                # The gateway would keep it until its time is over.
                if self._socket is None and subscription.resumable:
                    self._given_up.append(subscription.spuid)
                with contextlib.suppress(GatewayError):  # without a token it ends with the connection
                    await self._send("unsubscribe", {"spuid": subscription.spuid})

    def offer_messages(
        self,
        find: Callable[[Sequence[MessagePlace]], Sequence[KeptMessage]],
        find_unread: Callable[[], tuple[Sequence[KeptMessage], int]] = lambda: ((), 0),
    ) -> None:
        """Answers the gateway when an operator looks at messages of devices. find: returns those of the places that it
        has; find_unread: those of places that no rule reads, and how many others there are. To be called before the
        client connects; it needs the permission to operate."""
        check_function("find", find)
        check_function("find_unread", find_unread)
        self._messages, self._unread_messages = find, find_unread

    async def _ask(self, kind: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        """Sends all bodies in one message, and returns the answer to each: its members, or an error.

        Requests whose token has expired are repeated once with a new token.
        """
        answers = await self._request(kind, bodies)
        if self._tokens is None:
            return answers
        expired = [index for index, answer in enumerate(answers) if _is_expired(answer)]
        if expired:
            await self._renew()
            again = await self._request(kind, [bodies[index] for index in expired])
            for index, answer in zip(expired, again, strict=True):
                answers[index] = answer
        return answers

    async def _request(self, kind: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        async with self._room:
            if self._closed:
                raise UpstreamError("the client was closed")
            number = next(self._numbers)
            body = list(bodies) if kind == "updates" else bodies[0]
            aliases = [body["alias"] for body in bodies]
            pending = PendingMessage(kind, body, aliases, asyncio.get_running_loop().create_future())
            self._pending[number] = pending
            for alias in aliases:
                self._by_alias[alias] = pending
            try:
                await self._send(kind, body)
                await pending.answered
            finally:
                del self._pending[number]
                for alias in aliases:
                    del self._by_alias[alias]
        answers = [pending.answers[alias] for alias in aliases]
        for answer in answers:
            if isinstance(answer, UpstreamError):
                raise answer
        return answers

    async def _send(self, kind: str, body: Any) -> None:
        """Sends a message if there is a connection. Otherwise `_converse` sends it after the reconnect."""
        if self._socket is not None:
            message = await self._message(kind, body)
            if self._socket is not None:
                with contextlib.suppress(WebSocketException, OSError):
                    await send_text(self._socket, message)

    async def _message(self, kind: str, body: Any) -> bytes:
        """One message, with a token in each member in secure mode. Raises RefusedError, UpstreamError."""
        if self._tokens is not None:
            authorization = {"authorization": f"Bearer {await self._tokens.token()}"}
            body = [member | authorization for member in body] if isinstance(body, list) else body | authorization
        return msgspec.json.encode({kind: body})

    async def _renew(self) -> None:
        assert self._tokens is not None
        self._tokens.expired(await self._tokens.token())

    # --- connection ---

    async def _stay_connected(self) -> None:
        failures, away = 0, False
        while True:
            try:
                async with self._connect() as socket:
                    if away:
                        logger.info("gateway reachable again", name=self._name, url=self._url)
                    failures, away = 0, False
                    await self._converse(socket)
            except RefusedError as error:  # the server refuses a token, so a retry would fail, too
                self._fail(error)
            except (OSError, TimeoutError, InvalidHandshake, WebSocketException, UpstreamError, ValueError) as error:
                if isinstance(error, ValueError) or fault_of_message(error):
                    self._blame(error)
                if not away:
                    logger.warning("gateway unreachable", name=self._name, url=self._url, reason=error)
                away = True
            failures += 1
            await asyncio.sleep(back_off_s(failures, *_BACK_OFF_S))

    def _connect(self) -> connect:
        # The gateway counts its own adapters by it.
        agent = f"lamplighter-{quote(self._name, safe='')}"
        if self._path is not None:
            return unix_connect(
                self._path,
                "ws://localhost/subscribe",
                compression=None,
                max_size=SIZES,
                open_timeout=10,
                user_agent_header=agent,
            )
        return connect(
            self._url,
            compression=None,
            max_size=SIZES,
            open_timeout=10,
            proxy=None,
            ssl=self._ssl,
            user_agent_header=agent,
        )

    async def _converse(self, socket: ClientConnection) -> None:
        """Sends what is pending, then reads until the connection ends. Raises ValueError for a malformed message."""
        # The gateway gives new ones, but to those that resume.
        self._by_spuid.clear()
        self._connections += 1
        self._asked = None
        sent: set[int | str] = set()
        await self._send_kept(socket, sent)
        try:
            while True:
                try:
                    text = await next_message(socket)
                except ConnectionClosedOK:
                    return
                message = self._take_dropped(text) if isinstance(text, DroppedMessage) else msgspec.json.decode(text)
                first = message.get("notification", {})
                if first.get("sequence") == 0 and "alias" in first and first["alias"] not in self._subscriptions:
                    # The subscription was ended before its spuid was known.
                    await send_text(socket, await self._message("unsubscribe", {"spuid": first["spuid"]}))
                elif not self._take(message):
                    logger.warning("slow consumer resubscribes", name=self._name)
                    return
                if not self._together.is_set() and self._is_answer(message):
                    await self._send_kept(socket, sent)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a message that cannot be understood: {error!r}") from error
        finally:
            self._socket = None

    async def _send_kept(self, socket: ClientConnection, sent: set[int | str]) -> None:
        """Sends what is pending, or the next request of it. sent: what was, on this connection."""
        # Pending messages are sent first, to preserve the order, along with those that are added meanwhile.
        while True:
            kept: dict[int | str, tuple[str, Any]] = {
                **{spuid: ("unsubscribe", {"spuid": spuid}) for spuid in self._given_up},
                **{alias: ("subscribe", known.body) for alias, known in self._subscriptions.items() if known.ready},
                **{number: (pending.kind, pending.body) for number, pending in self._pending.items()},
            }
            if self._messages is not None:
                kept[_OFFER] = (_OFFER, {"alias": self._name})
            unsent = [key for key in kept if key not in sent]
            # Nothing was added while the last were being sent, so the order is kept from here on.
            if not unsent:
                break
            for key in unsent:
                sent.add(key)
                kind, body = kept[key]
                if not self._together.is_set() and kind not in ("unsubscribe", _OFFER):
                    self._asked = key
                await send_text(socket, await self._message(kind, body))
                if self._asked is not None:
                    return
        self._together.set()
        self._socket = socket
        self._given_up.clear()

    def _is_answer(self, message: dict[str, Any]) -> bool:
        """Whether the request that was sent last, and alone, has its answer."""
        asked, self._asked = self._asked, None
        if isinstance(asked, int):
            pending = self._pending.get(asked)
            if pending is None or pending.answered.done():
                return True
        elif asked not in self._subscriptions:
            return True
        else:
            aliases = [body.get("alias") for body in message.values() if isinstance(body, dict)]
            if asked in (*aliases, message.get("alias", asked if "status_code" in message else None)):
                return True
        self._asked = asked
        return False

    def _blame(self, reason: Exception) -> None:
        """A message was the reason for the end of the connection: that of the request that was sent alone, or of one
        that is to be found."""
        asked, self._asked = self._asked, None
        self._together.clear()
        known = self._pending.get(asked) if isinstance(asked, int) else None
        update = known is not None and known.kind == "updates"
        error = RefusedError(
            *("message_refused", 400),
            f"the connection ended when this request was sent alone, as before among others: {reason}; "
            f"{'whether it took effect is not known; ' if update else ''}send it in parts, or ask for less",
        )
        if known is not None:
            for alias in known.aliases:
                self._answer(alias, error)
        elif isinstance(asked, str) and asked in self._subscriptions:
            self._subscriptions[asked].end(error)

    def _take_dropped(self, dropped: DroppedMessage) -> dict[str, Any]:
        """Tells whom a message was for that it is too long, and returns what is left of it. Raises ValueError where
        that is not known."""
        if dropped.kind == "answer":
            cure = "ask for fewer rows by LIMIT and OFFSET, or over HTTP"
            self._answer(dropped.alias, LimitExceededError(f"the answer {_TOO_LONG}; {cure}"))
            return {"answer": {"alias": dropped.alias}}
        if not dropped.kind:
            raise ValueError(f"a message {_TOO_LONG}")
        ended = self._by_spuid.pop(dropped.spuid, None) or self._subscriptions.get(dropped.alias)
        if ended is None:
            head = {"spuid": dropped.spuid, "alias": dropped.alias, "sequence": dropped.sequence}
            return {"notification": head}  # nobody waits for it
        ended.spuid = dropped.spuid
        ended.end(LimitExceededError(f"a result of the subscription {_TOO_LONG}; narrow the query down"))
        return {"": {"alias": ended.alias}}

    def _take(self, message: dict[str, Any]) -> bool:
        """Dispatches a message. Returns False if the consumer's queue is full."""
        if "notification" in message:
            return self._dispatch_notification(message["notification"])
        if "resumed" in message:
            going_on = self._subscriptions.get(message["resumed"].get("alias"))
            if going_on is not None:
                going_on.behind = False
                self._by_spuid[message["resumed"]["spuid"]] = going_on
            return True
        if "status_code" in message:
            return self._dispatch_error(message)
        if "answers" in message:
            for one in message["answers"]:
                self._take(one)  # answers to updates, which no consumer has to take
            return True
        if "asked" in message and self._messages is not None:
            asked = message["asked"]
            if asked.get("unread") is True:
                found, more = self._unread_messages()
            else:
                found, more = self._messages(msgspec.convert(asked["places"], list[MessagePlace])), 0
            self._begin(self._tell({"alias": self._name, "number": asked["number"], "found": found, "more": more}))
            return True
        for kind in ("updated", "answer"):
            if kind in message:
                self._answer(message[kind].get("alias", ""), message[kind])
        return True

    def _dispatch_error(self, message: dict[str, Any]) -> bool:
        """Retries after an error, or dispatches it. Returns False if the consumer's queue is full."""
        error = RefusedError(message["error"], message["status_code"], message.get("error_description", ""))
        alias = message.get("alias") or self._only_waiting()
        ended = self._subscriptions.get(alias)
        if ended is None:
            self._answer(alias, error)
            return True
        if "spuid" in message:  # an established subscription
            self._by_spuid.pop(message["spuid"], None)
            ended.spuid = None
        elif _is_expired(error) and self._tokens is not None and not ended.renewed:
            ended.renewed = True
            self._begin(self._subscribe_again(ended, 0.0, renew=True))
            return True
        elif error.retriable:
            self._begin(self._subscribe_again(ended, _ASK_AGAIN_S * random.uniform(0.5, 1)))
            return True
        return ended.enqueue(error)

    def _only_waiting(self) -> str:
        """The alias of the only waiting subscription, else empty: some errors have no alias (SEPA protocol 2.6)."""
        waiting = [alias for alias, known in self._subscriptions.items() if known.spuid is None]
        return waiting[0] if len(waiting) == 1 and not self._pending else ""

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._asking_again.add(task)
        task.add_done_callback(self._asking_again.discard)

    def _dispatch_notification(self, body: dict[str, Any]) -> bool:
        """Dispatches a notification. Returns False if the consumer's queue is full, or an earlier one is missing."""
        sequence = body["sequence"]
        if sequence == 0 and body.get("alias") in self._subscriptions:
            begun = self._subscriptions[body["alias"]]
            if begun.keep is not None:
                while not begun.queue.empty():  # a first result replaces them
                    begun.queue.get_nowait()
                begun.resumable, begun.behind = "resume" in body, False
                if begun.spuid is not None:
                    self._by_spuid.pop(begun.spuid, None)
            begun.spuid, begun.renewed = body["spuid"], False
            self._by_spuid[body["spuid"]] = begun
        target = self._by_spuid.get(body["spuid"])
        if target is None:
            return True  # the subscription has ended
        if target.resumable and sequence:
            if target.behind or sequence <= target.sequence:
                return True
            if sequence > target.sequence + 1:
                return False
        if target.enqueue(Notification.of(body)):
            target.sequence = sequence
            return True
        target.behind = target.resumable
        return target.resumable

    async def _subscribe_again(self, subscription: ClientSubscription, pause_s: float, *, renew: bool = False) -> None:
        connection = self._connections
        try:
            if renew:
                await self._renew()
            await asyncio.sleep(pause_s)
            await self._together.wait()
            if self._connections == connection and subscription.alias in self._subscriptions:
                await self._send("subscribe", subscription.body)
        except GatewayError as error:
            subscription.enqueue(error)

    async def _tell(self, answer: dict[str, Any]) -> None:
        """Answers a question of the gateway, which waits for it only briefly."""
        with contextlib.suppress(GatewayError):
            await self._send(_OFFER, answer)

    def _answer(self, alias: str, answer: Any) -> None:
        pending = self._by_alias.get(alias)
        if pending is not None:  # else answered on an earlier connection
            pending.answers.setdefault(alias, answer)
            if len(pending.answers) == len(pending.aliases) and not pending.answered.done():
                pending.answered.set_result(None)


def _update_answer(answer: dict[str, Any]) -> UpdateAnswer:
    """The answer of a message. Raises UpstreamError for a delta that cannot be read."""
    delta = answer.get("delta")
    try:
        changed = None if delta is None else UpdateDelta.of(delta)
        return UpdateAnswer(answer.get("sequence"), answer.get("delayed"), changed)
    except ValueError as error:
        raise UpstreamError(f"the gateway's answer to an update cannot be read: {error}") from error


def _is_expired(answer: object) -> bool:
    return isinstance(answer, RefusedError) and (answer.status, answer.code) == _EXPIRED
