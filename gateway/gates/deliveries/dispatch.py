"""One delivery: the notifications of one subscription to one receiver, in order, one request at a time.

::

    attach ─▶ first result or what was missed ─▶ waiting ─▶ attempt ─┬─▶ 2xx: the next one
      ▲                                              ▲               ├─▶ 410: the subscription ends
      │                                              └── pause ◀─────┼─▶ other answers, no answer
      └── too much waits, or the owner drops it ◀── dead ◀───────────┘   so many in a row

What waits is what the subscription retains, so it takes no further memory, and has the same bound. Where more waits,
all of it is dropped, and the subscription begins anew before the next attempt: the receiver has a fresh first result,
marked with ``reset``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Followed, Receiver
from lamplighter.engine.client.outward import OutwardAnswer, retry_after_s
from lamplighter.engine.errors import AccessDeniedError, GatewayError, RequestError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.protocol import Resume
from lamplighter.gateway.gates.deliveries.attempts import SLOW_S
from lamplighter.gateway.gates.deliveries.sink import DispatchSink
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.state.resumption import SPUID

if TYPE_CHECKING:
    from lamplighter.gateway.gates.deliveries.deliveries import Deliveries

logger = EventLogger(__name__)

_ENTRY_BYTES = 64
"""Bytes of a message besides its results, as `state.resumption` counts them."""
_GONE = 410
_NEVER_GONE = Resume("PT0S")
"""The gateway itself is the client, and it does not go away."""
UNSEEN = "the gateway was restarted before the first result was acknowledged"
TOO_MUCH = "more notifications waited for the receiver than are retained"
ENDED = "the gateway has ended the subscription; register it again"
DROPPED = "what waited for the receiver was dropped on request"

Decision = Literal["resend", "drop"]


class NothingFailedError(RequestError):
    """A delivery whose last attempt did not fail needs no decision."""

    code = "nothing_failed"
    status = 409


class DeliveryRequest(NamedTuple):
    """A request to a receiver. following: the next part of the notification that is to be sent, None behind the
    last."""

    headers: Mapping[str, str]
    body: bytes
    following: int | None = None


class WaitingNotification(NamedTuple):
    """A notification that waits. members: the text of its results, shared with what the subscription retains. reset: of
    a first result, why the subscription began anew."""

    spuid: str
    sequence: int
    members: bytes
    reset: str | None = None

    @property
    def name(self) -> str:
        """The same for each attempt, and for no other notification."""
        return f"{self.spuid.removeprefix(SPUID)}/{self.sequence}"

    @property
    def size(self) -> int:
        return len(self.members) + _ENTRY_BYTES


class Dispatch:
    """The delivery, its state, and the task that sends. followed: what the log has of its subscription."""

    def __init__(self, owner: Deliveries, followed: Followed, position: int, reason: str | None) -> None:
        """position: the last sequence that the receiver has; reason: why the subscription begins anew, None if it does
        not, or for a new one."""
        assert followed.delivery is not None
        self._owner = owner
        self.followed = followed
        self.client = followed.identity or ""
        self.receiver: Receiver = followed.delivery
        self.position = position
        self._reason = reason
        self.sink: DispatchSink | None = None
        self.attaching = asyncio.Lock()
        """Held while it is about to begin or to go on. It ends after that, or it would begin behind its end."""
        self.waiting: deque[WaitingNotification] = deque()
        self.bytes = 0
        self.failures = 0
        self.error = ""
        self.next_s: float | None = None
        """When it is tried again, by the monotonic clock."""
        self.sent = 0
        """Requests since the start."""
        self.succeeded_s: float | None = None
        self.failed_s: float | None = None
        """When the last request succeeded and failed, in seconds since 1970."""
        self.dead = False
        self.ended = ""
        """Why it has ended; empty while it goes on."""
        self._stale = True  # it has to attach before the next attempt
        self._slow = True  # until it has answered promptly
        self._part = 0  # of the first notification that waits: the one that is sent next
        self._retry_s = 0.0  # what the last answer asked for
        self._changed = asyncio.Event()
        self._decision: Decision | None = None

    @property
    def id(self) -> str:
        return self.receiver.id

    # --- told by the sink ---

    def began(self, spuid: str, members: bytes, reset: str | None) -> None:
        self._clear()
        if self.followed.spuid and self.followed.spuid != spuid:
            self._owner.positions.forget(self.followed.spuid)
        self.followed = msgspec.structs.replace(self.followed, spuid=spuid)
        self.position = -1
        self._add(WaitingNotification(spuid, 0, members, reset or self._reason))
        self._reason = None

    def put(self, spuid: str, sequence: int, members: bytes) -> None:
        if not self._stale:
            self._add(WaitingNotification(spuid, sequence, members))
            # The first of them is being sent. It does not count: a first result may be larger.
            if self.waiting and self.bytes - self.waiting[0].size > self._owner.outbox_bytes_max:
                self.drop()

    def end(self, reason: str) -> None:
        """Nothing follows. The subscription has ended already, or is about to."""
        self.ended = self.ended or reason
        self._clear()
        self._changed.set()
        self._owner.over(self)

    # --- told by its owner ---

    def attached(self) -> DispatchSink:
        """A new sink, before it is handed to the loop."""
        self._clear()
        self._stale = False
        self.sink = DispatchSink(self, f"{self.receiver.kind} {self.id[:8]}")
        return self.sink

    def renewed(self, followed: Followed) -> None:
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
        """Drops what waits, since it is too much: before the next attempt, the subscription goes on where the receiver
        is, or begins anew."""
        if self.position < 0 and self._reason is None:
            self._reason = TOO_MUCH
        self._clear()
        self._stale = True
        self._changed.set()

    def _add(self, message: WaitingNotification) -> None:
        self.waiting.append(message)
        self.bytes += message.size
        self._changed.set()
        self._owner.grown(self.client, message.size)

    def _clear(self) -> None:
        self._part = 0
        self.waiting.clear()
        self._owner.grown(self.client, -self.bytes)
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
        """Has the subscription go on behind the last acknowledged notification, or begin anew. Why it could not.

        One that the log does not have any more has ended, although no sink was told: its client was removed, or the
        last attempt to attach failed. It must not begin anew for another client of that name.
        """
        if not self._owner.runner.delivered.has(self.id):
            self.end(ENDED)
            return ""
        followed = self.followed
        resume = _NEVER_GONE
        if self.position >= 0 and self._reason is None:
            resume = Resume(_NEVER_GONE.keep, followed.spuid, self.position)
        elif self._reason is None:
            self._reason = UNSEEN
        try:
            async with self.attaching:
                if self.ended:
                    return ""
                await self._subscribe(resume)
        except GatewayError as error:
            self._stale = True
            if not isinstance(error, AccessDeniedError):
                return f"the subscription could not go on: {error}"
            await self._owner.end(self, str(error))
        if self.ended:  # meanwhile, by the gateway; what has begun anew must not outlive it
            await self._owner.end(self, self.ended)
        return ""

    async def _subscribe(self, resume: Resume) -> None:
        """Raises GatewayError."""
        followed = self.followed
        caller = ANYBODY
        if followed.identity is not None:  # the access of a registered one is asked when its turn comes
            caller = Caller(followed.identity, FULL, operator=False, registered=True)
        await self._owner.runner.subscribe(
            followed.sparql,
            self.attached(),
            followed.default_graphs,
            followed.named_graphs,
            resume=resume,
            caller=caller,
            delivery=self.receiver,
        )

    async def follow(self, sparql: str, receiver: Receiver) -> None:
        """Begins anew with another query, when its record is durable; what waits is dropped. Raises GatewayError; then
        it goes on as before."""
        before = self.followed, self.receiver
        self.receiver = receiver
        self.followed = msgspec.structs.replace(self.followed, sparql=sparql, delivery=receiver)
        try:
            async with self.attaching:
                if not self.ended:
                    await self._subscribe(_NEVER_GONE)
        except BaseException:
            self.followed, self.receiver = before
            self._stale = True
            self._changed.set()
            raise
        if self.ended:  # meanwhile, and what has begun has not
            await self._owner.end(self, self.ended)

    async def _attempt(self, message: WaitingNotification) -> str:
        """Sends a notification, or a part of it. Why the receiver has it not; empty if it has."""
        begun = monotonic()
        retry_s = 0.0
        following: int | None = None
        try:
            async with self._owner.slots.of(self.client, slow=self._slow or self.failures > 0):
                if self.ended or self._stale:
                    return ""
                try:
                    request = await self._owner.kind.request(self, message, self._part)
                except GatewayError as error:
                    return f"the notification cannot be made: {error}"
                if self.ended or self._stale:  # while it was made: perhaps its client may not have it any more
                    return ""
                if request is None:
                    self._acknowledged(message)
                    return ""
                following = request.following
                begun = monotonic()
                answer = await self._owner.http.send("POST", self.receiver.url, request.headers, request.body)
        except UpstreamError as error:
            reason = str(error)
        else:
            reason = refused(answer)
            retry_s = retry_after_s(answer.headers.get("retry-after", ""), self._owner.wall())
            if answer.status == _GONE:
                await self._owner.end(self, "the receiver answered 410 Gone")
                return ""
        self._slow = monotonic() - begun > SLOW_S
        self.sent += 1
        if reason:
            self._owner.counters.failed += 1
            self.failed_s = self._owner.wall()
            self._retry_s = retry_s
            if message.size > self._owner.outbox_bytes_max and not self._stale:  # of a first result
                self._reason = message.reset
                self.drop()
            return reason
        self._owner.counters.delivered += 1
        self.succeeded_s = self._owner.wall()
        if following is None:
            self._acknowledged(message)
        else:
            self.failures, self.error, self._decision = 0, "", None
            if self.waiting and self.waiting[0] is message:
                self._part = following
        return ""

    def _acknowledged(self, message: WaitingNotification) -> None:
        """The receiver has all of a notification that is to be sent."""
        self.failures, self.error, self._decision = 0, "", None
        if self.followed.spuid == message.spuid:  # it may follow another query meanwhile
            self.position = message.sequence
            self._owner.positions.acknowledge(message.spuid, message.sequence)
        if self.waiting and self.waiting[0] is message:
            self.waiting.popleft()
            self._part = 0
            self.bytes -= message.size
            self._owner.grown(self.client, -message.size)

    async def _pause(self, reason: str) -> None:
        """Waits until the next attempt, or, after too many, for a decision of the owner."""
        owner = self._owner
        self.failures += 1
        self.error = reason
        settings = owner.settings
        first_s = settings.backoff_ms / 1000
        pause = max(self._retry_s, back_off_s(self.failures, first_s, settings.backoff_s_max, owner.random.uniform))
        self._retry_s = 0.0
        logger.debug("delivery failed", delivery=self.id, failures=self.failures, reason=reason)
        self.dead = self.failures >= settings.attempts_max
        if self.dead:
            logger.warning("delivery waits for a decision", delivery=self.id, failures=self.failures, reason=reason)
        end_s = None if self.dead else monotonic() + pause
        self.next_s = end_s
        while not self.ended and self._decision is None:
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
        """The state, for its owner."""
        state = "dead" if self.dead else "failing" if self.failures else "ok"
        found: dict[str, object] = {
            "state": state,
            "acknowledged": None if self.position < 0 else f"{self.followed.spuid.removeprefix(SPUID)}/{self.position}",
            "waiting": len(self.waiting),
            "waiting_bytes": self.bytes,
        }
        if self.failures:
            found |= {"failures": self.failures, "error": self.error}
        if self.next_s is not None:
            found["next_attempt_s"] = round(max(0.0, self.next_s - monotonic()), 1)
        if self.dead:
            found["dead_letter"] = self.waiting[0].name if self.waiting else None
        return found


def refused(answer: OutwardAnswer) -> str:
    """Why an answer is no acknowledgement; empty for 2xx."""
    if 200 <= answer.status < 300:
        return ""
    if 300 <= answer.status < 400:
        return f"the receiver answered {answer.status}; redirects are not followed, register the new URL"
    said = " ".join(answer.body[:200].decode(errors="replace").split())
    return f"the receiver answered {answer.status}{said and ': '}{said}"
