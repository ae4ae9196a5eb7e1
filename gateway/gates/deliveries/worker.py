"""One delivery: the notifications of one subscription to one receiver, in order, one request at a time.

::

    attach ─▶ first result or what was missed ─▶ waiting ─▶ send ─┬─▶ Ack: the next one
      ▲                                              ▲            ├─▶ Gone: the subscription ends
      │                                              └── pause ◀──┼─▶ Retry
      └── too much waits, or the owner drops it ◀── dead ◀────────┘   so many in a row

What waits is what the subscription retains, so it takes no further memory, and has the same bound. Where more waits,
all of it is dropped, and the subscription begins anew before the next attempt: the receiver has a fresh first result,
marked with ``reset``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from random import SystemRandom
from time import monotonic
from typing import Literal, NamedTuple, Protocol

import msgspec

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.client.outward import OutwardAnswer, OutwardHttp, retry_after_s
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import AccessDeniedError, GatewayError, RequestError, UnknownSpuidError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.protocol import Results, Resume
from lamplighter.engine.sharing import Usage
from lamplighter.engine.terms import Bag
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.gates.deliveries.files import Positions
from lamplighter.gateway.gates.outbox import write
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings.deliveries import DeliverySettings
from lamplighter.gateway.sharing import ClientTurns
from lamplighter.gateway.state.resumption import SPUID, AttachedSubscription

logger = EventLogger(__name__)

SLOW_S = 1.0  # a receiver that took longer for its last answer counts as slow
_ENTRY_BYTES = 64  # bytes of a message besides its results, as `state.resumption` counts them
_GONE = 410
_NEVER_GONE = Resume("PT0S")  # the gateway itself is the client, and it does not go away
UNSEEN = "the gateway was restarted before the first result was acknowledged"
TOO_MUCH = "more notifications waited for the receiver than are retained"
ENDED = "the gateway has ended the subscription; register it again"
DROPPED = "what waited for the receiver was dropped on request"

Decision = Literal["resend", "drop"]


class UnknownDeliveryError(RequestError):
    """There is no such delivery, or it is another client's."""

    code = "not_found"
    status = 404


class NothingFailedError(RequestError):
    """A delivery whose last attempt did not fail needs no decision."""

    code = "nothing_failed"
    status = 409


class DeliveryRequest(NamedTuple):
    """A request to a receiver. following: the next part of the notification, None behind the last."""

    headers: Mapping[str, str]
    body: bytes
    following: int | None = None


class WaitingNotification(NamedTuple):
    """A notification that waits. reset: why the subscription began anew."""

    spuid: str
    sequence: int
    results: Results
    reset: str | None = None

    @property
    def members(self) -> bytes:
        """The text of its results."""
        return self.results.members

    @property
    def name(self) -> str:
        """The same for each attempt, and for no other notification."""
        return f"{self.spuid.removeprefix(SPUID)}/{self.sequence}"

    @property
    def size(self) -> int:
        return self.results.size + _ENTRY_BYTES


class Ack:
    """The receiver has what was sent to it."""


class Retry(NamedTuple):
    """The receiver has it not. pause_s: for how long it asked to be left alone."""

    reason: str
    pause_s: float = 0.0


class Gone(NamedTuple):
    reason: str


class DeliveryKind(Protocol):
    """What differs between the APIs. name: of table and component; kind: in the log; manual: for people."""

    name: str
    kind: str

    @property
    def manual(self) -> str: ...

    async def request(self, worker: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest | None:
        """The request for a part of a notification, from 0; None if nothing is to be sent. Raises GatewayError."""
        ...

    async def tell_end(self, worker: DeliveryWorker) -> None:
        """Tells the receiver that nothing follows, if it can be told. `DeliveryWorker.ended` has the reason."""
        ...


class ConcurrencyLimit:
    # Those that fail, are slow, or have not answered yet have places of their own, so that they do not take those of
    # the others.

    def __init__(self, concurrent_max: int) -> None:
        slow = concurrent_max // 2
        self._prompt, self._slow = ClientTurns(concurrent_max - slow), ClientTurns(slow)

    def of(self, client: str, *, slow: bool) -> AbstractAsyncContextManager[None]:
        """A place for a client, whose requests have their turns with those of the others."""
        return (self._slow if slow else self._prompt).of(client)


@dataclass
class DeliveryCounters:
    """Figures since the start."""

    delivered: int = 0
    failed: int = 0


class DeliveryContext:
    """What the deliveries of one kind share. on_end: called with each one that has ended."""

    def __init__(
        self,
        runner: Runner,
        settings: DeliverySettings,
        kind: DeliveryKind,
        http: OutwardHttp,
        positions: Positions,
        on_end: Callable[[DeliveryWorker], None],
    ) -> None:
        self.runner = runner
        self.settings = settings
        self.kind = kind
        self.positions = positions
        self.on_end = on_end
        self.workers: dict[str, DeliveryWorker] = {}
        self.concurrency = ConcurrencyLimit(settings.concurrent_max)
        self.counters = DeliveryCounters()
        self.outbox_bytes_max = runner.settings.resume.outbox_bytes_max
        self.clock = MachineClock(runner.settings.gateway.clock_trusted)
        self.random = SystemRandom()
        self._http = http
        self._waiting_bytes = Usage()

    @property
    def waiting_bytes(self) -> int:
        """Of all deliveries."""
        return self._waiting_bytes.total

    def wall(self) -> float:
        """Seconds since 1970."""
        return self.clock.wall().timestamp()

    async def send(self, url: str, request: DeliveryRequest) -> Ack | Retry | Gone:
        try:
            answer = await self._http.send("POST", url, request.headers, request.body)
        except UpstreamError as error:
            return Retry(str(error))
        # WebSub, section 7: 410 says that the receiver wants nothing any more.
        if answer.status == _GONE:
            return Gone("the receiver answered 410 Gone")
        reason = failure(answer)
        return Retry(reason, retry_after_s(answer.headers.get("retry-after", ""), self.wall())) if reason else Ack()

    def count_bytes(self, client: str, size: int) -> None:
        """What waits for a client has changed."""
        # Where all have too much, the client with most loses what waits for the one of its deliveries with most.
        self._waiting_bytes.add(client, size)
        while size > 0 and self._waiting_bytes.total > self.runner.settings.resume.bytes_max:
            # One notification that waits stays in any case, or nothing would ever be delivered.
            several = (worker for worker in self.workers.values() if len(worker.waiting) > 1)
            largest = max(several, key=lambda one: (self._waiting_bytes.of(one.client), one.bytes), default=None)
            if largest is None:
                return  # one of each, such as first results
            largest.drop()


class WorkerSink:
    """The sink in the loop."""

    # Hands on to its worker, as long as it is its newest sink: a subscription that begins anew has another one.

    __slots__ = ("client", "connection", "identity", "since")
    kind = "http"

    def __init__(self, worker: DeliveryWorker, client: str) -> None:
        self.connection = worker
        self.client = client
        self.identity: str | None = None
        self.since: datetime | None = None

    @property
    def _is_current(self) -> bool:
        return self.connection.sink is self

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        if self._is_current:
            results = Results(subscription.first, Bag(subscription.first.variables))
            self.connection.begin(subscription.spuid, results, reset)

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        if self._is_current:
            for missed in attached.missed:
                self.connection.enqueue(spuid, missed.sequence, missed.results)

    def notify(self, notification: Notification, results: Results) -> None:
        if self._is_current:
            self.connection.enqueue(notification.spuid, notification.sequence, results)

    def ended(self, spuid: str, error: GatewayError) -> None:
        if self._is_current:
            self.connection.end(str(error))

    def taken_over(self, spuid: str, by: Sink) -> None:
        """By a newer sink of the same worker."""

    def name_no_commits(self) -> None:
        """No delivery names its commit."""


class DeliveryWorker:
    """The delivery, its state, and the task that sends. followed: what the log has of its subscription. It is one class
    because what waits, what failed and what was decided are changed by loop, requests and task alike."""

    def __init__(self, context: DeliveryContext, followed: Followed, position: int) -> None:
        """position: the last sequence that the receiver has."""
        assert followed.delivery is not None
        self._context = context
        self.followed = followed
        self.client = followed.identity or ""
        self.receiver: Receiver = followed.delivery
        self.position = position
        self._reason: str | None = None  # why the subscription begins anew
        self.sink: WorkerSink | None = None
        # Held while it is about to begin or to go on. It ends after that, or it would begin behind its end.
        self.attaching = asyncio.Lock()
        self.waiting: deque[WaitingNotification] = deque()
        self.bytes = 0
        self.failures = 0
        self.error = ""
        self.next_s: float | None = None  # when it is tried again, by the monotonic clock
        self.sent = 0  # requests since the start
        self.succeeded_s: float | None = None
        self.failed_s: float | None = None  # when the last request succeeded and failed, in seconds since 1970
        self.dead = False
        self.ended = ""  # why it has ended; empty while it goes on
        self._stale = True  # it has to attach before the next attempt
        self._slow = True  # until it has answered promptly
        self._part = 0  # of the first notification that waits: the one that is sent next
        self._retry_s = 0.0  # what the last answer asked for
        self._changed = asyncio.Event()
        self._decision: Decision | None = None

    @property
    def id(self) -> str:
        return self.receiver.id

    # --- called by the sink ---

    def begin(self, spuid: str, results: Results, reset: str | None) -> None:
        self._clear()
        # The file would keep the place of each subscription that ever was.
        if self.followed.spuid and self.followed.spuid != spuid:
            self._context.positions.forget(self.followed.spuid)
        self.followed = msgspec.structs.replace(self.followed, spuid=spuid)
        self.position = -1
        self._add(WaitingNotification(spuid, 0, results, reset or self._reason))
        self._reason = None

    def enqueue(self, spuid: str, sequence: int, results: Results) -> None:
        # Stale: it attaches behind the acknowledged place, and receives this one again.
        if not self._stale:
            self._add(WaitingNotification(spuid, sequence, results))
            # The first of them is being sent. It does not count: a first result may be larger.
            if self.waiting and self.bytes - self.waiting[0].size > self._context.outbox_bytes_max:
                self.drop()

    def end(self, reason: str) -> None:
        """Nothing follows. The subscription has ended already, or is about to."""
        self.ended = self.ended or reason
        self._clear()
        self._changed.set()
        self._context.on_end(self)

    # --- called by requests ---

    async def start(self, caller: Caller) -> None:
        """Begins a new one; returns when its record is durable. Raises GatewayError."""
        async with self.attaching:
            await self._subscribe(_NEVER_GONE, caller)

    async def stop(self, reason: str) -> None:
        async with self.attaching:
            # The record first: a crash behind it ends the delivery at the next start as well.
            with suppress(UnknownSpuidError):  # the gateway has ended it meanwhile
                await self._context.runner.end_delivery(self.id)
            self.end(reason)

    async def renew(self, receiver: Receiver, cause: Cause) -> None:
        """Replaces what the log has of the receiver. Raises UnknownDeliveryError, ChangeLogError."""
        try:
            followed = await self._context.runner.renew_delivery(receiver, cause)
        except UnknownSpuidError as error:
            raise UnknownDeliveryError(str(error)) from error
        assert followed.delivery is not None
        self.receiver = followed.delivery
        self.followed = msgspec.structs.replace(self.followed, delivery=followed.delivery)

    def decide(self, decision: Decision) -> None:
        """Raises NothingFailedError."""
        if not self.failures:
            raise NothingFailedError("nothing waits for a decision: the last attempt did not fail")
        self._decision = decision
        self._changed.set()

    def drop(self) -> None:
        """Drops what waits: it is too much. The next attempt goes on where the receiver is, or begins anew."""
        # Nothing was acknowledged, so there is no place to go on from.
        if self.position < 0 and self._reason is None:
            self._reason = TOO_MUCH
        self._clear()
        self._stale = True
        self._changed.set()

    def _add(self, message: WaitingNotification) -> None:
        self.waiting.append(message)
        self.bytes += message.size
        self._changed.set()
        self._context.count_bytes(self.client, message.size)

    def _clear(self) -> None:
        self._part = 0
        self.waiting.clear()
        self._context.count_bytes(self.client, -self.bytes)
        self.bytes = 0

    # --- the task ---

    async def run(self) -> None:
        while not self.ended:
            self._changed.clear()
            failed = ""
            try:
                if self._stale:
                    failed = await self._attach()
                elif self.waiting:
                    failed = await self._attempt(self.waiting[0])
                else:
                    await self._changed.wait()
            except Exception as error:  # the others go on
                logger.exception("delivery failed", delivery=self.id)
                failed = repr(error)
            if failed and not self.ended:
                await self._pause(failed)

    async def _attach(self) -> str:
        """Has the subscription go on behind the last acknowledged notification, or begin anew. Why it could not."""
        # One that the log does not have any more has ended, although no sink was told: its client was removed, or the
        # last attempt to attach failed. It must not begin anew for another client of that name.
        if not self._context.runner.delivered.has(self.id):
            self.end(ENDED)
            return ""
        followed = self.followed
        # A subscription of the log outlives each connection: this client is never gone.
        resume = _NEVER_GONE
        if self.position >= 0 and self._reason is None:
            resume = Resume(_NEVER_GONE.keep, followed.spuid, self.position)
        elif self._reason is None:
            self._reason = UNSEEN
        try:
            async with self.attaching:
                if self.ended:
                    return ""
                # Its permissions are asked again with each attach: they may have been taken away.
                await self._subscribe(resume, self._caller())
        except GatewayError as error:
            self._stale = True
            # All others may pass: a full queue, a full disk.
            if not isinstance(error, AccessDeniedError):
                return f"the subscription could not go on: {error}"
            await self.stop(str(error))
        if self.ended:  # meanwhile, by the gateway; what has begun anew must not outlive it
            await self.stop(self.ended)
        return ""

    def _caller(self) -> Caller:
        if self.followed.identity is None:
            return ANYBODY
        # The access of a registered one is asked when its turn comes.
        return Caller(self.followed.identity, FULL, operator=False, registered=True)

    async def _subscribe(self, resume: Resume, caller: Caller) -> None:
        """Hands a new sink to the loop. Raises GatewayError."""
        followed = self.followed
        self._clear()
        self._stale = False
        # A new sink: what the one before still receives is not of this subscription.
        self.sink = WorkerSink(self, f"{self.receiver.kind} {self.id[:8]}")
        await self._context.runner.subscribe(
            followed.sparql,
            self.sink,
            followed.default_graphs,
            followed.named_graphs,
            resume=resume,
            caller=caller,
            delivery=self.receiver,
        )

    async def follow(self, sparql: str, receiver: Receiver) -> None:
        """Follows another query, when its record is durable. Raises GatewayError; then it goes on as before."""
        # Set before the loop subscribes, since the sink may be called within.
        before = self.followed, self.receiver
        self.receiver = receiver
        self.followed = msgspec.structs.replace(self.followed, sparql=sparql, delivery=receiver)
        try:
            async with self.attaching:
                if not self.ended:
                    await self._subscribe(_NEVER_GONE, self._caller())
        except BaseException:
            self.followed, self.receiver = before
            self._stale = True
            self._changed.set()
            raise
        if self.ended:  # meanwhile, and what has begun has not
            await self.stop(self.ended)

    async def _attempt(self, message: WaitingNotification) -> str:
        """Sends a notification, or a part of it. Why the receiver has it not; empty if it has."""
        context = self._context
        async with context.concurrency.of(self.client, slow=self._slow or self.failures > 0):
            if self.ended or self._stale:
                return ""
            try:
                # Made when its turn has come: a long text does not wait in memory for a slow receiver.
                await write(message.results)
                request = await context.kind.request(self, message, self._part)
            except GatewayError as error:
                return f"the notification cannot be made: {error}"
            if self.ended or self._stale:  # while it was made: perhaps its client may not have it any more
                return ""
            if request is None:
                self._acknowledge(message)
                return ""
            begin_s = monotonic()
            outcome = await context.send(self.receiver.url, request)
        if isinstance(outcome, Gone):
            await self.stop(outcome.reason)
            return ""
        # By the last answer alone, so that a receiver that recovers has a prompt place at once.
        self._slow = monotonic() - begin_s > SLOW_S
        self.sent += 1
        if isinstance(outcome, Retry):
            context.counters.failed += 1
            self.failed_s = context.wall()
            self._retry_s = outcome.pause_s
            # A large first result is not kept for a receiver that does not take it: it is made again.
            if message.size > context.outbox_bytes_max and not self._stale:  # of a first result
                self._reason = message.reset
                self.drop()
            return outcome.reason
        context.counters.delivered += 1
        self.succeeded_s = context.wall()
        if request.following is None:
            self._acknowledge(message)
        else:
            self.failures, self.error, self._decision = 0, "", None
            if self.waiting and self.waiting[0] is message:
                # The queue may have been dropped meanwhile.
                self._part = request.following
        return ""

    def _acknowledge(self, message: WaitingNotification) -> None:
        """The receiver has all of a notification that is to be sent."""
        self.failures, self.error, self._decision = 0, "", None
        if self.followed.spuid == message.spuid:  # it may follow another query meanwhile
            self.position = message.sequence
            self._context.positions.acknowledge(message.spuid, message.sequence)
        if self.waiting and self.waiting[0] is message:
            self.waiting.popleft()
            self._part = 0
            self.bytes -= message.size
            self._context.count_bytes(self.client, -message.size)

    async def _pause(self, reason: str) -> None:
        """Waits until the next attempt, or, after too many, for a decision of the owner."""
        context = self._context
        self.failures += 1
        self.error = reason
        settings = context.settings
        first_s = settings.backoff_ms / 1000
        # Retry-After (RFC 9110, 10.2.3) may lengthen the pause, never shorten it.
        pause = max(self._retry_s, back_off_s(self.failures, first_s, settings.backoff_s_max, context.random.uniform))
        self._retry_s = 0.0
        logger.debug("delivery failed", delivery=self.id, failures=self.failures, reason=reason)
        self.dead = self.failures >= settings.attempts_max
        if self.dead:
            logger.warning("delivery waits for a decision", delivery=self.id, failures=self.failures, reason=reason)
        end_s = None if self.dead else monotonic() + pause
        self.next_s = end_s
        while not self.ended and self._decision is None:
            # Notifications that arrive wake it too; the pause goes on.
            left = None if end_s is None else end_s - monotonic()
            if left is not None and left <= 0:
                break
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                break
        self.next_s = None
        decision, self._decision = self._decision, None
        if decision is not None:
            self.failures, self.dead = 0, False
        if decision == "drop":
            self._reason = DROPPED
            self.drop()

    def members(self) -> Mapping[str, object]:
        state = "dead" if self.dead else "failing" if self.failures else "ok"
        members: dict[str, object] = {
            "state": state,
            "acknowledged": None if self.position < 0 else f"{self.followed.spuid.removeprefix(SPUID)}/{self.position}",
            "waiting": len(self.waiting),
            "waiting_bytes": self.bytes,
        }
        if self.failures:
            members |= {"failures": self.failures, "error": self.error}
        if self.next_s is not None:
            members["next_attempt_s"] = round(max(0.0, self.next_s - monotonic()), 1)
        if self.dead:
            members["dead_letter"] = self.waiting[0].name if self.waiting else None
        return members


def failure(answer: OutwardAnswer) -> str:
    """Why an answer is no acknowledgement; empty for 2xx."""
    if 200 <= answer.status < 300:
        return ""
    if 300 <= answer.status < 400:
        return f"the receiver answered {answer.status}; redirects are not followed, register the new URL"
    text = " ".join(answer.body[:200].decode(errors="replace").split())
    return f"the receiver answered {answer.status}{text and ': '}{text}"
