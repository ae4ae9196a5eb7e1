"""Subscribers: who has subscribed at the gates, from the request until the end.

::

    subscribe ─▶ check ─▶ run ─┬─▶ plain: lives as long as its connection ──────────────────▶ unsubscribed, disconnected
                               └─▶ resumable: its beginning and its end are in the change log ▶ the same, or expired

Its methods are parts of steps: what they have to say is released with the group, and what they record stands behind
whatever is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import thread_time
from typing import Protocol

import msgspec

from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.core import Ended, Engine, Notification, Subscription, Takeover
from lamplighter.engine.errors import (
    AccessDeniedError,
    ChangeLogError,
    GatewayError,
    LimitExceededError,
    StoreError,
    UnknownSpuidError,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Priority, Results, Resume
from lamplighter.engine.sharing import Usage
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.resumption import ResumptionService, subscribe_as_followed
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.state.quotas import check
from lamplighter.gateway.state.resumption import (
    SPUID,
    AttachedSubscription,
    ResumableSubscriptions,
    ResumeFailure,
    digits,
)
from lamplighter.gateway.workers.dry_runs import DryRun, DryRuns, IndexJob

logger = EventLogger(__name__)


class Sink(Protocol):
    """Where the notifications of a subscription go. Called in order, and never before they may leave.

    kind: of the cause in the records of resumable ones; client: who it is, for people; identity: whom resumable
    subscriptions of it belong to; connection: the same object for all sinks of one connection; since: when the
    subscription began or was resumed, set by `Subscribers`, which sets the identity too where clients have names.
    """

    client: str
    identity: str | None
    since: datetime | None

    @property
    def kind(self) -> str: ...

    @property
    def connection(self) -> object: ...

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        """keep: how long it waits when the client goes away, if it is resumable; its notifications are numbered then,
        and must not be composed. reset: why the one that the client wanted to resume could not be."""
        ...

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None: ...

    def taken_over(self, spuid: str, by: Sink) -> None:
        """Another sink has resumed the subscription, or began anew in its place; nothing of it follows here."""
        ...

    def notify(self, notification: Notification, results: Results) -> None:
        """results: those of the notification, shared with others who are told the same."""
        ...

    def ended(self, spuid: str, error: GatewayError) -> None:
        """The gateway has ended the subscription; nothing of it follows."""
        ...

    def name_no_commits(self) -> None:
        """The client may not read every graph any more, so notifications do not name their commits from now on."""
        ...


@dataclass(frozen=True)
class SubscribeCall:
    """A request to subscribe as a gate hands it over.

    default_graphs, named_graphs: the dataset, if the protocol names one; resume: the client wants a resumable one, or
    to resume one; it belongs to the caller, where clients have names. delivery: of a resumable one, the receiver to
    which the gateway delivers it.
    """

    sparql: str
    sink: Sink
    default_graphs: tuple[Term, ...] | None = None
    named_graphs: tuple[Term, ...] | None = None
    resume: Resume | None = None
    caller: Caller = ANYBODY
    delivery: Receiver | None = None


class QueuedSubscription(msgspec.Struct, frozen=True, eq=False):
    """A request to subscribe in the queue. keep: for how long it is kept, as the client is told, None if it is not
    resumable."""

    call: SubscribeCall
    keep_us: int
    keep: str | None
    caller: Caller
    lane: OrderedLane | None
    priority: Priority

    def followed(self, access: Access) -> Followed:
        """What the change log has of it."""
        call, visible = self.call, access.subscribe.names
        return Followed(
            "" if call.resume is None else call.resume.spuid or "",
            call.sparql,
            self.keep_us,
            call.default_graphs,
            call.named_graphs,
            call.sink.identity,
            None if visible is None else tuple(sorted(visible, key=lambda name: name or "")),
            delivery=call.delivery,
        )


class QueuedEnd(msgspec.Struct, frozen=True, eq=False):
    """A subscription of a sink that is to be ended."""

    spuid: str
    sink: Sink
    caller: Caller
    lane: OrderedLane | None
    priority: Priority = Priority.NORMAL


def _trusted_wall(clock: Clock) -> str:
    """The time as in a lease; empty while it is not trusted."""
    return iso(clock.wall()) if clock.trusted() else ""


def _log_takeover(takeover: Takeover, resumable: str | None) -> None:
    spuid = digits(resumable) if resumable else takeover.spuid.removeprefix(SPUID)
    if takeover.reason:
        logger.warning("subscription taken over by the store", spuid=spuid, reason=takeover.reason)
    else:
        logger.info("subscription has a plan again", spuid=spuid, spu_class=takeover.spu_class)


def _delivery_error(error: Exception) -> StoreError:
    return StoreError(f"the subscription was ended, for a result could not be delivered: {error!r}; subscribe again")


@dataclass(eq=False, repr=False)
class Subscribers:
    """Those of one gateway, by spuid. An application's subscriptions are not among them."""

    _ledger: Ledger
    _reactions: Reactions
    _resumption: ResumptionService[Sink]
    _dry_runs: DryRuns
    _queue: Queue
    _current: LiveSettings
    sinks: dict[str, Sink] = field(default_factory=dict, init=False)  # of the plain ones, by spuid
    # Of the same, where clients have names: who owns it and what it sees.
    _owners: dict[str, tuple[str, Graphs]] = field(default_factory=dict, init=False)
    usage: Usage = field(default_factory=Usage, init=False)  # of the same, by client
    resumables: ResumableSubscriptions[Sink] = field(init=False)
    _obligations: Obligations = field(init=False)
    _engine: Engine = field(init=False)
    _clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.resumables, self._obligations = self._resumption.resumables, self._reactions.obligations
        self._engine, self._clock = self._ledger.engine, self._ledger.clock

    def __len__(self) -> int:
        return len(self.sinks) + len(self.resumables)

    # --- subscribing ---

    def subscribe(self, call: SubscribeCall, lane: OrderedLane | None, priority: Priority) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then, or what it missed. Raises
        MalformedRequestError."""
        if call.caller.name:
            call.sink.identity = call.caller.name
        keep_us, keep = (0, None) if call.resume is None else self.resumables.grant(call.resume.keep)
        return self._queue.submit(QueuedSubscription(call, keep_us, keep, call.caller, lane, priority))

    def check_subscription(self, asked: QueuedSubscription) -> DryRun | IndexJob | None:
        """What has to pass before it begins, None where nothing has to. Raises AccessDeniedError."""
        call, sequence = asked.call, None if asked.call.resume is None else asked.call.resume.sequence
        access = self._current.access(call.caller)
        if sequence is not None and not isinstance(
            self.resumables.resumable(asked.followed(access), sequence), ResumeFailure
        ):
            return None
        return self._dry_runs.of_subscription(call.sparql, call.default_graphs, call.named_graphs, access)

    def run_subscription(self, asked: QueuedSubscription) -> str:
        """The spuid; the sink is going to have the first result, or what it missed. Raises GatewayError."""
        if self._clock.trusted():
            self._engine.reach(self._clock.wall())  # the first result is one of now, as far as nothing is due
        call, sink, caller = asked.call, asked.call.sink, asked.call.caller
        access = self._current.access(caller)
        followed, reset = asked.followed(access), None
        if call.resume is not None and call.resume.sequence is not None:
            reset = self._resume(followed, call.resume.sequence, sink)
            if reset is None:
                return followed.spuid
        if call.delivery is None or self.resumables.of_delivery(call.delivery.id) is None:
            self._check_room(caller.name, resumable=asked.keep is not None)  # otherwise it takes the place of that one
        if asked.keep is not None:
            self._reactions.flush_pending()  # it may change the dataset, and is recorded before
        self._obligations.expect_takeovers()  # its first result may hand over another one's plan
        # Not begun again behind a reset, which has changed something.
        again = reset is None
        evaluations = self._ledger.evaluations
        evaluations.expect_first_result(may_wait=again)
        begun = thread_time()
        subscription = subscribe_as_followed(self._engine, followed, access, tried_first=again)
        evaluations.prepared_s = thread_time() - begun
        try:
            self._dry_runs.check_first(subscription.first)
            evaluations.again.check_room(subscription.spuid, caller.client)
            if asked.keep is None:
                self.sinks[subscription.spuid] = sink
                if caller.client:
                    evaluations.again.clients[subscription.spuid] = caller.client
                if caller.name:
                    self._owners[subscription.spuid] = caller.name, access.subscribe
                    self.usage.add(caller.name)
            else:
                handle = subscription.spuid
                subscription = self._begin_resumable(followed, subscription, sink)
                self.resumables.note_client(handle, caller.client)
        except BaseException:
            if subscription.spuid in self.sinks:
                self._drop(subscription.spuid)
            else:
                self._leave(subscription.spuid)
            raise
        self._queue.counters.subscribes += 1
        self._queue.peaks.subscriptions = max(self._queue.peaks.subscriptions, len(self))
        sink.since = self._clock.wall()
        self._tell(sink, subscription.spuid, partial(sink.subscribed, subscription, asked.keep, reset))
        return subscription.spuid

    def _check_room(self, client: str, *, resumable: bool) -> None:
        """Raises LimitExceededError when there are as many subscriptions as there may be, or a client has so many."""
        if client:
            quotas, kept = self._current.quotas(), self.resumables.usage.of(client)
            check(self.usage.of(client) + kept, 1, "subscriptions_max", quotas.subscriptions_max, "the subscriptions")
            if resumable:
                check(kept, 1, "resumable_max", quotas.resumable_max, "the resumable subscriptions")
        if resumable:
            self.resumables.check_room(client)

    def _resume(self, asked: Followed, sequence: int, sink: Sink) -> str | None:
        """Has a client go on with its subscription; why not, if it cannot. Raises ChangeLogError."""
        found = self.resumables.attach(asked, sequence, sink)
        if isinstance(found, ResumeFailure):
            attached = self.resumables.sink(asked.spuid)
            mine = attached is None or attached.connection is sink.connection
            # The record of a delivery that begins anew ends the old one: so it is never without a record.
            if found.outdated and mine and asked.delivery is None:
                self._end_resumable(asked.spuid)
                if attached is not None:
                    self._queue.release(partial(attached.taken_over, asked.spuid, sink))
            self._queue.counters.resets += 1
            logger.info("subscription reset", peer=sink.client, spuid=digits(asked.spuid), reason=found.reason)
            return found.reason
        self._queue.counters.resumed += 1
        sink.since = self._clock.wall()
        if found.displaced is not None:
            self._queue.release(partial(found.displaced.taken_over, asked.spuid, sink))
        self._tell(sink, asked.spuid, partial(sink.resumed, asked.spuid, found))
        return None

    def _begin_resumable(self, asked: Followed, subscription: Subscription, sink: Sink) -> Subscription:
        """Records that a resumable subscription begins; it gets a spuid that nobody can guess and that stays."""
        followed = self._resumption.with_spuid(asked, subscription.spuid)
        entry = entries.subscribe(followed, Cause(sink.kind, sink.client))
        self._ledger.record(entry, (subscription.spuid, sink))
        return subscription._replace(spuid=followed.spuid)

    # --- notifying ---

    def deliver(self, notification: Notification, results: Results) -> None:
        """Sends a notification on its way, if somebody is there to be told; a resumable subscription retains it.

        One that cannot be sent, or is too long, ends its subscription: the commit stands, and others are told of it.
        """
        try:
            if results.is_long:
                self._dry_runs.check_characters("a notification", results.characters(self._ledger.slicer))
            self._deliver(notification, results)
        except LimitExceededError as error:
            self.end_failed([Ended(notification.spuid, error)])
        except Exception as error:
            logger.exception("notification failed", spuid=self._name(notification.spuid))
            spuid = self.resumables.spuid(notification.spuid) or notification.spuid
            self._end_by_gateway(spuid, _delivery_error(error))

    def _deliver(self, notification: Notification, results: Results) -> None:
        sink = self.sinks.get(notification.spuid)
        if sink is None:
            delivered = self.resumables.deliver(notification.spuid, results)
            if delivered is None or delivered.sink is None:
                return
            sink = delivered.sink
            notification = notification._replace(spuid=delivered.spuid, sequence=delivered.sequence)
        self._queue.counters.notifications += 1
        self._tell(sink, notification.spuid, partial(sink.notify, notification, results))

    def _tell(self, sink: Sink, spuid: str, tell: Callable[[], None]) -> None:
        """Tells a sink something with the group. A sink that fails loses its subscription, and no one else anything."""

        def release() -> None:
            try:
                tell()
            except Exception as error:
                logger.exception("client not notified", peer=sink.client, spuid=spuid.removeprefix(SPUID))
                self._queue.post(partial(self._untold, sink, spuid, _delivery_error(error)))

        self._queue.release(release)

    def _untold(self, sink: Sink, spuid: str, error: GatewayError) -> None:
        """Ends a subscription whose sink failed, unless it has ended meanwhile, or another sink has it."""
        if self.sinks.get(spuid) is sink or (spuid in self.resumables and self.resumables.sink(spuid) is sink):
            self._end_by_gateway(spuid, error)

    # --- ending ---

    def run_end(self, asked: QueuedEnd) -> None:
        """Ends a subscription of this sink, or a resumable one of the same client that no sink is attached to. Raises
        UnknownSpuidError for all others, somebody else's on the same connection too, and ChangeLogError."""
        spuid, sink, caller = asked.spuid, asked.sink, asked.caller
        if self.resumables.may_end(spuid, sink, caller.name or sink.identity):
            self._end_resumable(spuid)
        elif self.sinks.get(spuid) is sink and self._owners.get(spuid, ("",))[0] == caller.name:
            self._drop(spuid)
        else:
            raise UnknownSpuidError(f"no subscription on this connection has the spuid {spuid!r}")
        self._queue.counters.unsubscribes += 1

    def leave(self, sink: Sink, spuids: Sequence[str]) -> None:
        """Ends what a connection that is gone had, and leaves the resumable ones to themselves."""
        for spuid in spuids:
            self.resumables.detach(spuid, sink, self._clock.boottime_us())
            if spuid in self.sinks:
                self._drop(spuid)

    def permissions_changed(self, client: str, access: Access | None) -> None:
        """Ends those of a client that may see other graphs now than when they began, or none. The others name no
        commits if it may not read every graph. access: what it may do now, None if it was removed."""
        visible = None if access is None else access.subscribe
        error = AccessDeniedError("what this client may subscribe to has changed; subscribe again")
        plain = [spuid for spuid, (name, graphs) in self._owners.items() if name == client and graphs != visible]
        for spuid in [*plain, *self.resumables.of_client(client, visible)]:
            self._end_by_gateway(spuid, error)
        if access is not None and not access.read.every:
            attached = [sink for _, sink in self.resumables.attachments() if sink is not None]
            for sink in [*(self.sinks[spuid] for spuid in self._owners), *attached]:
                if sink.identity == client:
                    sink.name_no_commits()

    def expire(self) -> None:
        """Ends the resumable ones whose clients stayed away, and the deliveries whose lease has ended."""
        for spuid in self.expired():
            logger.info("subscription expired", spuid=digits(spuid))
            sink = self.resumables.sink(spuid)
            self._give_up(spuid)
            if sink is not None:
                self._queue.release(partial(sink.ended, spuid, UnknownSpuidError("the lease has ended")))

    def expired(self) -> list[str]:
        """Those that `expire` would end."""
        return self.resumables.end_expired(self._clock.boottime_us(), _trusted_wall(self._clock))

    def note_takeovers(self, takeovers: Iterable[Takeover]) -> None:
        """Logs them, those of subscriptions of applications too. For resumable ones they are pending."""
        self._obligations.expect_takeovers()
        for takeover in takeovers:
            _log_takeover(takeover, self.resumables.spuid(takeover.spuid))

    def record_takeovers(self) -> None:
        """Records which resumable ones do not outlive the process any more. If the log does not take that, they end,
        since a start would continue them with other results than their clients have. Raises ChangeLogError."""
        if not self._obligations.takeovers:
            return
        self._obligations.takeovers = False
        failure: ChangeLogError | None = None
        for followed, failure in self._resumption.restate_taken_over(self._ledger.record):
            if failure is not None:
                self._end_by_gateway(followed.spuid, failure)
            self._ledger.slicer.pause()
        if failure is not None:
            raise failure

    def record_ends(self) -> None:
        """Records that the gateway ended resumable ones. Raises ChangeLogError; the rest stays pending."""
        ended = self._obligations.subscriptions
        while ended:
            self._ledger.record(entries.unsubscribe(ended[0]))
            ended.popleft()
            self._ledger.slicer.pause()

    def _end_by_gateway(self, spuid: str, error: GatewayError) -> Sink | None:
        """Ends one and tells its sink why, which is returned if there is one."""
        sink: Sink | None
        if spuid in self.sinks:
            sink = self._drop(spuid)
        else:
            sink = self.resumables.sink(spuid)
            self._give_up(spuid)
        self._queue.counters.ended += 1
        if sink is not None:
            self._queue.release(partial(sink.ended, spuid, error))
        return sink

    def end_failed(self, ended: Iterable[Ended]) -> None:
        """Tells those whose subscriptions the engine has ended, since it could not evaluate them any more."""
        for handle, error in ended:
            name = self._name(handle)
            sink = self._end_by_gateway(self.resumables.spuid(handle) or handle, error)
            peer = "away" if sink is None else sink.client
            log = logger.warning if isinstance(error, LimitExceededError) else logger.error
            log("subscription ended", peer=peer, spuid=name, reason=error)

    def _drop(self, spuid: str) -> Sink:
        """Ends a plain one; whose it was."""
        owner = self._owners.pop(spuid, None)
        if owner is not None:
            self.usage.add(owner[0], -1)
        self._leave(spuid)
        return self.sinks.pop(spuid)

    def _name(self, handle: str) -> str:
        """A subscription in a line of the log: of a resumable one not the whole, which is a secret; of another one no
        less, since those of one engine begin alike."""
        resumable = self.resumables.spuid(handle)
        return digits(resumable) if resumable else handle.removeprefix(SPUID)

    def _leave(self, handle: str) -> None:
        self._ledger.evaluations.again.clients.pop(handle, None)
        with suppress(UnknownSpuidError):  # the engine itself has ended it
            self._engine.unsubscribe(handle)

    def _end_resumable(self, spuid: str) -> None:
        """Records that a resumable one ends. Raises ChangeLogError; then it goes on."""
        self._reactions.flush_pending()
        self._ledger.record(entries.unsubscribe(spuid))

    def _give_up(self, spuid: str) -> None:
        """Ends a resumable one now and records it later: not between a trigger and its reaction."""
        self._resumption.forget(spuid)
        self._obligations.add(self._obligations.subscriptions, [spuid])
