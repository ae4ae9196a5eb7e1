"""EngineClient: the public protocol from the other side; producer, consumer and aggregator (Roffia 2016, II.B).

One WebSocket carries everything. The connection is looked after here: it is made again with back-off,
updates that were not answered are sent again under the same request id (the gateway gives each one
effect), and subscriptions are renewed, or resumed if they asked to be kept. The only module of `engine` that does
I/O; it loads no store.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidURI, WebSocketException
from websockets.uri import parse_uri

from engine.change_log import Missed
from engine.errors import ConfigurationError, GatewayError, RefusedError, UpstreamError
from engine.protocol import DeclaredCause, UpdateRequest
from engine.terms import Bag

__all__ = [
    "DeclaredCause",
    "EngineClient",
    "GatewayError",
    "Notification",
    "RefusedError",
    "UpdateAnswer",
    "UpdateRequest",
]

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Longest message taken from the gateway: a first result comes as one."""
NOTIFICATIONS_MAX = 10_000
"""Notifications waiting for their consumer; beyond it the connection is made anew with a fresh first result."""
PENDING_MAX = 1_000
"""Requests under way; more wait."""
_BACK_OFF_S = (0.1, 5.0)
_ASK_AGAIN_S = 1.0
"""Before a subscription that was refused for the moment is asked for again."""


@dataclass(frozen=True)
class UpdateAnswer:
    """sequence: of the commit, or of the record that a delayed update was kept in; delayed: the latter's id."""

    sequence: int
    delayed: str | None = None


@dataclass(frozen=True)
class Notification:
    """Sequence 0 holds the whole result in ``added`` and replaces what was known before; it comes first
    and again after each interruption that could not be bridged. Later ones hold the change since the one before.

    spu_class: how the gateway keeps the subscription true, with sequence 0, if the gateway tells.
    """

    spuid: str
    sequence: int
    added: Bag
    removed: Bag
    spu_class: str | None = None


@dataclass
class _Pending:
    """A message that waits for its answers, one for each alias."""

    message: bytes
    answers: dict[str, asyncio.Future[Any]]


@dataclass
class _Subscription:
    """resumable: the gateway keeps it. sequence: of the last notification that was put into the queue. behind: the
    queue was full, so what comes is left until the consumer has made room and the gateway was asked for it again."""

    alias: str
    sparql: str
    keep: str | None = None
    queue: asyncio.Queue[Notification | GatewayError] = field(default_factory=lambda: asyncio.Queue(NOTIFICATIONS_MAX))
    spuid: str | None = None
    resumable: bool = False
    sequence: int = 0
    behind: bool = False

    @property
    def message(self) -> bytes:
        """What begins it, or goes on with it."""
        body: dict[str, Any] = {"sparql": self.sparql, "alias": self.alias, "class": True}
        if self.keep is not None:
            body["resume"] = {"keep": self.keep}
            if self.resumable:
                body["resume"] |= {"spuid": self.spuid, "sequence": self.sequence}
        return msgspec.json.encode({"subscribe": body})

    @property
    def ready(self) -> bool:
        """Whether there is room for what the gateway will send."""
        return not self.behind or self.queue.empty()


class EngineClient:
    """A connection to a gateway, used as ``async with EngineClient(url) as client``.

    url: the gateway's subscribe address, ``ws://127.0.0.1:9000/subscribe``. name: for the log. Entering
    does not wait for the gateway: requests do, for as long as it is away. Raises ConfigurationError for a
    malformed url.
    """

    def __init__(self, url: str, *, name: str = "client") -> None:
        try:
            parse_uri(url)
        except InvalidURI as error:
            raise ConfigurationError(
                f"not a WebSocket address: {url!r}; it looks like ws://host:9000/subscribe"
            ) from error
        self._url = url
        self._name = name
        self._aliases = (f"{name}-{number}" for number in itertools.count())
        self._pending: dict[int, _Pending] = {}
        self._by_alias: dict[str, int] = {}
        self._numbers = itertools.count()
        self._room = asyncio.Semaphore(PENDING_MAX)
        self._subscriptions: dict[str, _Subscription] = {}
        self._by_spuid: dict[str, _Subscription] = {}
        self._given_up: list[str] = []  # resumable ones that were ended while the gateway was away
        self._asking_again: set[asyncio.Task[None]] = set()
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
        closed = UpstreamError("the client was closed")
        for pending in self._pending.values():
            for answer in pending.answers.values():
                if not answer.done():
                    answer.set_exception(closed)
        for subscription in self._subscriptions.values():
            if not _put(subscription, closed):
                _put(subscription, closed)  # the first one made room

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
    ) -> UpdateAnswer:
        """Sends an update and waits until it is durable.

        delay: ISO 8601 duration, at: xsd:dateTime; then the answer means that the delayed update is kept.
        missed: what is to become of it if it is due while the gateway is off; None: as the gateway's settings say.
        cause: what the change log is to say it came from.
        Raises RefusedError as the gateway answered, UpstreamError when the client is closed meanwhile.
        """
        request = UpdateRequest(sparql, request_id=request_id, delay=delay, at=at, missed=missed, cause=cause)
        [answer] = await self.updates([request])
        if isinstance(answer, GatewayError):
            raise answer
        return answer

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        """Sends several updates in one message, each a commit of its own, in order.

        Returns an answer for each, or the error in its place. What a gateway refuses for the moment (queue or
        disk full) is sent again; nothing else is.
        """
        kept = [
            msgspec.structs.replace(
                request, alias=next(self._aliases), request_id=request.request_id or uuid.uuid4().hex
            )
            for request in requests
        ]
        results: dict[str, UpdateAnswer | GatewayError] = {}
        waiting, pause = kept, _BACK_OFF_S[0]
        while waiting:
            again = []
            answers = await self._ask("updates", waiting)
            for request, answer in zip(waiting, answers, strict=True):
                assert request.alias is not None
                if isinstance(answer, RefusedError) and answer.retriable:
                    again.append(request)
                elif isinstance(answer, GatewayError):
                    results[request.alias] = answer
                else:
                    results[request.alias] = UpdateAnswer(answer["sequence"], answer.get("delayed"))
            waiting = again
            if waiting:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _BACK_OFF_S[1])
        return [results[request.alias or ""] for request in kept]

    async def query(self, sparql: str) -> Bag:
        """The result of a SELECT query. Raises RefusedError, UpstreamError."""
        [answer] = await self._ask("query", [UpdateRequest(sparql, alias=next(self._aliases))])
        if isinstance(answer, GatewayError):
            raise answer
        return Bag.from_json(answer["results"])

    async def subscribe(self, sparql: str, *, keep: str | None = None) -> AsyncGenerator[Notification, None]:
        """Notifications of a query, the first result first; ends only by `aclose` or an error.

        keep: ISO 8601 duration for which the gateway is to retain what a broken connection cannot deliver. Then each
        notification comes once, across interruptions, and sequence 0 again only if one was too long or there was too
        much to retain. Raises RefusedError when the gateway refuses the query, ends it for its cost or cannot keep
        it, UpstreamError when the client is closed. What it refuses for the moment is asked for again.
        """
        if self._closed:
            raise UpstreamError("the client was closed")
        subscription = _Subscription(next(self._aliases), sparql, keep)
        self._subscriptions[subscription.alias] = subscription
        try:
            await self._send(subscription.message)
            while True:
                notification = await subscription.queue.get()
                if isinstance(notification, GatewayError):
                    raise notification
                if subscription.behind and subscription.queue.empty():
                    await self._send(subscription.message)
                yield notification
        finally:
            del self._subscriptions[subscription.alias]
            if subscription.spuid is not None:
                self._by_spuid.pop(subscription.spuid, None)
                if self._socket is None and subscription.resumable:
                    self._given_up.append(subscription.spuid)
                await self._send(msgspec.json.encode({"unsubscribe": {"spuid": subscription.spuid}}))

    async def _ask(self, kind: str, requests: Sequence[UpdateRequest]) -> list[Any]:
        """Sends one message and waits for the answer to each request in it: its members, or an error."""
        members = [
            {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}
            for request in requests
        ]
        message = msgspec.json.encode({kind: members if kind == "updates" else members[0]})
        loop = asyncio.get_running_loop()
        async with self._room:
            if self._closed:
                raise UpstreamError("the client was closed")
            number = next(self._numbers)
            pending = _Pending(message, {request.alias or "": loop.create_future() for request in requests})
            self._pending[number] = pending
            for alias in pending.answers:
                self._by_alias[alias] = number
            try:
                await self._send(message)
                await asyncio.wait(pending.answers.values())
            finally:
                del self._pending[number]
                for alias in pending.answers:
                    del self._by_alias[alias]
        errors_and_answers = [answer.exception() or answer.result() for answer in pending.answers.values()]
        for answer in errors_and_answers:
            if isinstance(answer, UpstreamError):
                raise answer
        return errors_and_answers

    async def _send(self, message: bytes) -> None:
        """Sends if there is a connection; if not, or if it breaks, `_stay_connected` sends what is kept."""
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(WebSocketException, OSError):
                await socket.send(message, text=True)

    # --- connection ---

    async def _stay_connected(self) -> None:
        pause, away = _BACK_OFF_S[0], False
        while True:
            try:
                async with connect(
                    self._url, compression=None, max_size=MESSAGE_BYTES_MAX, open_timeout=10, proxy=None
                ) as socket:
                    if away:
                        logger.info("gateway is back name=%s url=%s", self._name, self._url)
                    pause, away = _BACK_OFF_S[0], False
                    await self._converse(socket)
            except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
                if not away:
                    logger.warning("gateway is away name=%s url=%s reason=%s", self._name, self._url, error)
                away = True
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _BACK_OFF_S[1])

    async def _converse(self, socket: ClientConnection) -> None:
        self._by_spuid.clear()
        # What is kept goes first, so that order is kept, and what comes while that is being sent goes with it.
        sent: set[int | str] = set()
        while True:
            kept: dict[int | str, bytes] = {
                **{spuid: msgspec.json.encode({"unsubscribe": {"spuid": spuid}}) for spuid in self._given_up},
                **{alias: known.message for alias, known in self._subscriptions.items() if known.ready},
                **{number: pending.message for number, pending in self._pending.items()},
            }
            unsent = [key for key in kept if key not in sent]
            if not unsent:
                break
            for key in unsent:
                await socket.send(kept[key], text=True)
                sent.add(key)
        self._socket = socket
        self._given_up.clear()
        try:
            async for text in socket:
                message = msgspec.json.decode(text)
                first = message.get("notification", {})
                if first.get("sequence") == 0 and first.get("alias") not in self._subscriptions:
                    # It was given up before its spuid was known.
                    await socket.send(msgspec.json.encode({"unsubscribe": {"spuid": first["spuid"]}}), text=True)
                elif not self._take(message):
                    logger.warning("consumer is too slow, starting again name=%s", self._name)
                    return
        finally:
            self._socket = None

    def _take(self, message: dict[str, Any]) -> bool:
        """Hands a message to whom it belongs; False when a consumer's queue is full."""
        if "notification" in message:
            return self._notified(message["notification"])
        if "resumed" in message:
            going_on = self._subscriptions.get(message["resumed"].get("alias"))
            if going_on is not None:
                going_on.behind = False
                self._by_spuid[message["resumed"]["spuid"]] = going_on
            return True
        if "status_code" in message:
            error = RefusedError(message["error"], message["status_code"], message["error_description"])
            alias = message.get("alias", "")
            if alias in self._subscriptions:
                ended = self._subscriptions[alias]
                if "spuid" in message:  # it was under way
                    self._by_spuid.pop(message["spuid"], None)
                    ended.spuid = None
                elif error.retriable:
                    task = asyncio.create_task(self._subscribe_again(ended, self._socket))
                    self._asking_again.add(task)
                    task.add_done_callback(self._asking_again.discard)
                    return True
                return _put(ended, error)
            self._answer(alias, error)
        for kind in ("updated", "answer"):
            if kind in message:
                self._answer(message[kind].get("alias", ""), message[kind])
        return True

    def _notified(self, body: dict[str, Any]) -> bool:
        """Hands on a notification; False when its consumer's queue is full, or one before it is missing."""
        sequence = body["sequence"]
        if sequence == 0 and body.get("alias") in self._subscriptions:
            begun = self._subscriptions[body["alias"]]
            if begun.keep is not None:
                while not begun.queue.empty():  # it replaces them
                    begun.queue.get_nowait()
                begun.resumable, begun.behind = "resume" in body, False
                if begun.spuid is not None:
                    self._by_spuid.pop(begun.spuid, None)
            begun.spuid = body["spuid"]
            self._by_spuid[body["spuid"]] = begun
        target = self._by_spuid.get(body["spuid"])
        if target is None:
            return True  # it was ended meanwhile
        if target.resumable and sequence:
            if target.behind or sequence <= target.sequence:
                return True
            if sequence > target.sequence + 1:
                return False
        added, removed = Bag.from_json(body["addedResults"]), Bag.from_json(body["removedResults"])
        if _put(target, Notification(body["spuid"], sequence, added, removed, body.get("class"))):
            target.sequence = sequence
            return True
        target.behind = target.resumable
        return target.resumable

    async def _subscribe_again(self, subscription: _Subscription, socket: ClientConnection | None) -> None:
        await asyncio.sleep(_ASK_AGAIN_S * random.uniform(0.5, 1))
        if self._socket is socket and subscription.alias in self._subscriptions:
            await self._send(subscription.message)

    def _answer(self, alias: str, answer: Any) -> None:
        number = self._by_alias.get(alias)
        if number is None:
            return  # answered before, on an earlier connection
        future = self._pending[number].answers[alias]
        if not future.done():
            future.set_result(answer)


def _put(subscription: _Subscription, notification: Notification | GatewayError) -> bool:
    """False when the queue is full. Then it is emptied, unless the gateway can tell the rest later."""
    try:
        subscription.queue.put_nowait(notification)
    except asyncio.QueueFull:
        if not subscription.resumable or isinstance(notification, GatewayError):
            while not subscription.queue.empty():
                subscription.queue.get_nowait()
        return False
    return True
