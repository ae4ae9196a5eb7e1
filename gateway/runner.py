"""The one task that owns engine, change log and timers; everything reaches them through its queue.

::

    gates, timers ─▶ queue (URQ and SRQ as one bounded FIFO) ─▶ steps ─▶ one fsync for the group ─▶ release
                                                                 │
                                        update: prepare, append, commit, then the applications' reactions

What waits in the queue when the disk is free is the next group: alone when the gateway is idle, many under
load. Nothing is released, neither answer nor notification, before every record that it saw is durable
(design 4.5). A step that fails has changed nothing, and its requester is told; a disk that cannot sync
leaves no state to go on from, so the gateway ends and recovers from the log at its next start.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.change_log import Cause, Record, Timer
from engine.core import Commit, Engine, Notification, Subscription
from engine.delta import QuadDelta
from engine.errors import (
    ChangeLogError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
    RequestError,
    StoreError,
    UnknownDelayedError,
    UnknownSpuidError,
)
from engine.sparql import Query, parse_update
from engine.terms import Term
from engine.update import UsingGraphs
from gateway.apps import KIND as APPLICATION
from gateway.apps import REACTIONS_MAX, Application, Register, Trigger, aggregator_queries, triggers
from gateway.clock import Clock, iso
from gateway.delayed import DelayedUpdates, Scheduler, at_moment, delay_us
from gateway.log_writer import LogWriter, Recovery
from gateway.reader import Answer, Reader
from gateway.settings import Settings

logger = logging.getLogger(__name__)

REQUEST_IDS_MAX = 50_000
"""Request ids that are remembered: a retry within that many requests has no second effect."""
_REACT_AGAIN_S = 1.0
GROUP_MAX = 1000
"""Steps between two syncs at most, so that the first of them does not wait for long."""


@dataclass(frozen=True)
class Accepted:
    """An update that is durable: its sequence, and its id if it is delayed."""

    sequence: int
    delayed: str | None = None


@dataclass
class Batch:
    """Updates that came in one message, in order. refused: why one of them was refused for the moment.

    Those behind it are refused as well: they will be sent again together, and a later one must not overtake.
    """

    refused: GatewayError | None = None


@dataclass(frozen=True)
class UpdateCall:
    """An update request as a gate hands it over. batch: shared by those that came in one message."""

    sparql: str
    cause: Cause
    using: UsingGraphs | None = None
    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    batch: Batch | None = None


class Sink(Protocol):
    """Where the notifications of a subscription go. Called in order, and never before they may leave."""

    def subscribed(self, subscription: Subscription) -> None: ...

    def notify(self, notification: Notification) -> None: ...


@dataclass
class _Step:
    """One entry of the queue: what to do, and who waits for the outcome."""

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]


@dataclass
class Counters:
    """Figures since the start."""

    updates: int = 0
    queries: int = 0
    subscribes: int = 0
    unsubscribes: int = 0
    refused: int = 0
    queue_full: int = 0
    commits: int = 0
    notifications: int = 0
    reactions: int = 0
    delayed_fired: int = 0
    syncs: int = 0


@dataclass
class Health:
    """Whether all is well, and if not, why. problems stay until the next start."""

    problems: list[str] = field(default_factory=list)


class Runner:
    """Owns the engine. `recover` first, then `run`; the request methods put steps into the queue."""

    def __init__(
        self, settings: Settings, clock: Clock, log: LogWriter, applications: Sequence[Application] = ()
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self._applications = applications
        self._engine = Engine(clock=clock.wall)
        self._reader = Reader(settings.query)
        self._delayed = DelayedUpdates(clock)
        self._scheduler = Scheduler(self._delayed, clock, self._fire)
        self._rearm = False
        self._queue: asyncio.Queue[_Step] = asyncio.Queue()
        self._releases: list[Callable[[], None]] = []
        self._sinks: dict[str, Sink] = {}
        self._request_ids: OrderedDict[str, Accepted] = OrderedDict()
        self._register = Register()
        self._aggregators: dict[str, tuple[Application, str]] = {}  # spuid -> application, aggregator
        self._owed: deque[Trigger] = deque()
        self._reactions_in_a_row: Counter[str] = Counter()  # by application, since the last request
        self._stopped: deque[Application] = deque()  # their end is not recorded yet
        self._reacts_again = False  # another try is under way
        self.counters = Counters()
        self.health = Health()

    # --- start ---

    def recover(self) -> Recovery:
        """Replays the change log, and finds out which reactions it lacks. Raises ChangeLogError."""
        last: list[Record] = []  # the last record that no application caused, and the reactions behind it

        def take(record: Record) -> None:
            if not (record.cause and record.cause.kind == APPLICATION and record.cause.seq is not None):
                for earlier in last:
                    self._replay(earlier)
                last.clear()
            last.append(record)

        recovery = self._log.replay(take)
        waiting = []
        running = [application for application in self._applications if self._register.has(application)]
        if last:
            self._register.follow(last[0])  # it may say that one of them ended, or that another version began
        for application in self._applications:
            if application in running and self._register.has(application):
                self._subscribe_application(application)
            else:
                waiting.append(application)
        for record in last:
            self._settle(record)
            self._replay(record)
            for application in [application for application in waiting if record.cause == application.began]:
                self._begin(application, record.seq)
                waiting.remove(application)
        self._delayed.rebase()
        if recovery.cut_bytes:
            logger.warning("torn tail cut off bytes=%d sequence=%d", recovery.cut_bytes, self._log.sequence)
        if recovery.set_aside:
            problem = f"the change log was damaged; what could not be read is in {recovery.set_aside}"
            self.health.problems.append(problem)
            logger.error("change log damaged aside=%s epoch=%d", recovery.set_aside, self._log.epoch)
        self._react()
        self._begin_and_end(waiting)
        self._log.sync()
        self._releases.clear()  # nobody is connected yet
        return recovery

    def _replay(self, record: Record) -> None:
        self._delayed.follow(record)
        self._register.follow(record)
        if record.request is not None:
            self._remember(record.request, Accepted(record.seq, record.timer.id if record.timer else None))
        if record.type == "commit":
            self._owe(self._engine.commit(record.delta, record.seq))

    def _settle(self, record: Record) -> None:
        """Strikes out the reaction that a record is. The order in which they are owed may be another one than
        it was: an application that was added later is subscribed in its place since the last start."""
        for place, trigger in enumerate(self._owed):
            if trigger.cause == record.cause:
                del self._owed[place]
                return

    def _subscribe_application(self, application: Application) -> list[tuple[str, Subscription]]:
        found = []
        for aggregator, text in aggregator_queries(application):
            subscription = self._engine.subscribe(text)
            self._aggregators[subscription.spuid] = (application, aggregator)
            found.append((aggregator, subscription))
        return found

    def _begin(self, application: Application, sequence: int) -> None:
        """Subscribes an application that begins with the record of that sequence; its first results may be declared
        to count as added by it."""
        for aggregator, subscription in self._subscribe_application(application):
            if application.profile.aggregators[aggregator].first_results:
                first = subscription.first
                self._owed.extend(triggers(application, aggregator, sequence, first, first - first))

    def _begin_and_end(self, waiting: Sequence[Application]) -> None:
        """Records that applications ended or began since the last run."""
        names = {application.name for application in self._applications}
        for name in self._register.names():
            if name not in names:
                self._commit(QuadDelta(), Cause(APPLICATION, f"{name}@"))
                logger.info("application ended name=%s", name)
        for application in waiting:
            commit = self._commit(QuadDelta(), application.began)
            logger.info("application began name=%s version=%s", application.name, application.digest)
            self._begin(application, commit.sequence)
            self._react()

    # --- the loop ---

    async def run(self) -> None:
        """Takes steps until cancelled. Raises ChangeLogError when the disk cannot be trusted any more."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scheduler.run(), name="delayed updates")
            group.create_task(self._steps(), name="engine")

    async def _steps(self) -> None:
        while True:
            steps = [await self._queue.get()]
            while len(steps) < GROUP_MAX and not self._queue.empty():
                steps.append(self._queue.get_nowait())
            before = self._log.sequence
            for step in steps:
                self._take(step)
            if self._log.sequence != before:
                self.counters.syncs += 1
                await asyncio.to_thread(self._log.sync)
            for release in self._releases:
                release()
            self._releases.clear()
            if self._rearm:
                self._rearm = False
                self._scheduler.rearm()

    def _take(self, step: _Step) -> None:
        """Runs a step; its outcome goes out with the group."""
        if step.outcome.cancelled():
            return
        try:
            result = step.run()
        except GatewayError as error:
            self.counters.refused += 1
            failure = error
            self._releases.append(lambda: _fail(step.outcome, failure))
            return
        self._releases.append(lambda: _fulfil(step.outcome, result))
        self._try_to_react()

    def _try_to_react(self) -> None:
        """Runs the reactions that are owed. When the log cannot take them now they are tried again soon."""
        try:
            self._react()
        except ChangeLogError as error:
            logger.error("reactions wait for the change log owed=%d reason=%s", len(self._owed), error)
            if not self._reacts_again:
                self._reacts_again = True
                asyncio.get_running_loop().call_later(_REACT_AGAIN_S, self._enqueue, self._react_again)

    def _react_again(self) -> None:
        """A step that does nothing: reactions that are owed follow each step."""
        self._reacts_again = False

    def _enqueue(self, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """A step that the gateway itself asks for; it takes no room from the clients."""
        step = _Step(run, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(step)
        return step.outcome

    def submit(self, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """Puts a step into the queue. Raises QueueFullError (SEPA protocol 5.1: refused at once, never waiting)."""
        self.check_room(1)
        return self._enqueue(run)

    def check_room(self, count: int) -> None:
        """Raises QueueFullError unless the queue has room for so many requests."""
        if self._queue.qsize() + count > self._settings.gateway.queue_max:
            self.counters.queue_full += 1
            raise QueueFullError(
                f"gateway.queue_max = {self._settings.gateway.queue_max} requests are waiting; try a little later"
            )

    # --- requests ---

    def update(self, call: UpdateCall) -> asyncio.Future[Accepted]:
        """The outcome is Accepted when the update is durable, or a GatewayError when nothing was changed."""
        return self.submit(lambda: self._update(call))

    def query(
        self,
        query: Query,
        media_type: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
    ) -> asyncio.Future[Answer]:
        """The outcome is an Answer to iterate over, of the dataset as it was in the query's turn."""

        def start() -> Answer:
            self.counters.queries += 1
            store = self._engine.store.native
            return self._reader.start(store, query, media_type, default_graphs, named_graphs)

        return self.submit(start)

    def subscribe(
        self,
        sparql: str,
        sink: Sink,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
    ) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then."""

        def start() -> str:
            subscription = self._engine.subscribe(sparql, default_graphs=default_graphs, named_graphs=named_graphs)
            self.counters.subscribes += 1
            self._sinks[subscription.spuid] = sink
            self._releases.append(lambda: sink.subscribed(subscription))
            return subscription.spuid

        return self.submit(start)

    def unsubscribe(self, spuid: str, sink: Sink) -> asyncio.Future[None]:
        """Ends a subscription of this sink."""

        def end() -> None:
            if self._sinks.get(spuid) is not sink:
                raise UnknownSpuidError(f"no subscription on this connection has the spuid {spuid!r}")
            del self._sinks[spuid]
            self._engine.unsubscribe(spuid)
            self.counters.unsubscribes += 1

        return self.submit(end)

    def disconnect(self, sink: Sink, spuids: Sequence[str]) -> None:
        """Ends what a connection that is gone had; takes no room in the queue, since the gateway itself asks."""

        def end() -> None:
            for spuid in spuids:
                if self._sinks.pop(spuid, None) is not None:
                    self._engine.unsubscribe(spuid)

        self._enqueue(end)

    def cancel(self, name: str, cause: Cause) -> asyncio.Future[None]:
        """Cancels a delayed update."""

        def cancel() -> None:
            if self._delayed.get(name) is None:
                raise UnknownDelayedError(f"no delayed update {name!r} is pending; GET /delayed lists them")
            self._react()
            self._delayed.follow(self._log.append("cancel", cause=cause, cancel=name))
            self._rearm = True

        return self.submit(cancel)

    def delayed_updates(self) -> list[dict[str, Any]]:
        """The pending delayed updates, for people and programs to look at."""
        return self._delayed.table()

    def status(self) -> dict[str, Any]:
        """What `GET /health` says."""
        return {
            "status": "damaged" if self.health.problems else "ok",
            "problems": self.health.problems,
            "gateway": self._log.gateway,
            "epoch": self._log.epoch,
            "sequence": self._log.sequence,
            "clock_trusted": self._clock.trusted(),
            "quads": self._engine.quad_count,
            "subscriptions": len(self._sinks),
            "delayed": len(self._delayed),
            "queue": self._queue.qsize(),
            "counters": {name: getattr(self.counters, name) for name in self.counters.__dataclass_fields__},
        }

    # --- steps ---

    def _update(self, call: UpdateCall) -> Accepted:
        batch = call.batch or Batch()
        if batch.refused is not None:
            raise batch.refused
        try:
            return self._accepted(call)
        except GatewayError as error:
            batch.refused = error if error.retriable else None
            raise

    def _accepted(self, call: UpdateCall) -> Accepted:
        self.counters.updates += 1
        if call.request_id is not None and call.request_id in self._request_ids:
            return self._request_ids[call.request_id]
        self._react()  # what could not be written before goes first
        self._reactions_in_a_row.clear()
        if call.delay is not None or call.at is not None:
            if call.using:
                raise MalformedRequestError("a delayed update names its graphs in its text, by USING or WITH")
            accepted = self._delay(call.sparql, call.delay, call.at, call.cause, call.request_id)
        else:
            delta = self._prepared(call.sparql, call.using)
            if not (delta.changes or delta.kept or call.request_id):
                return Accepted(self._log.sequence)  # nothing to tell, not even later
            accepted = Accepted(self._commit(delta, call.cause, call.request_id).sequence)
        if call.request_id is not None:
            self._remember(call.request_id, accepted)
        return accepted

    def _commit(self, delta: QuadDelta, cause: Cause, request_id: str | None = None) -> Commit:
        """Append, apply, match: in this order, and nothing of it when the append fails."""
        record = self._log.append("commit", cause=cause, request=request_id, delta=delta)
        self._delayed.follow(record)
        self._register.follow(record)
        commit = self._engine.commit(delta, record.seq)
        self.counters.commits += 1
        self._owe(commit)
        return commit

    def _owe(self, commit: Commit) -> None:
        """Sorts the notifications of a commit: to the applications' triggers, or to their sinks on release."""
        for notification in commit.notifications:
            aggregator = self._aggregators.get(notification.spuid)
            if aggregator is not None:
                self._owed.extend(triggers(*aggregator, commit.sequence, notification.added, notification.removed))
            elif notification.spuid in self._sinks:
                self.counters.notifications += 1
                sink = self._sinks[notification.spuid]
                self._releases.append(lambda sink=sink, notification=notification: sink.notify(notification))  # type: ignore[misc]

    def _delay(self, sparql: str, delay: str | None, at: str | None, cause: Cause, request_id: str | None) -> Accepted:
        if delay is not None and at is not None:
            raise MalformedRequestError("delay and at exclude each other")
        if len(self._delayed) >= self._settings.delayed.pending_max:
            raise LimitExceededError(f"delayed.pending_max = {self._settings.delayed.pending_max} updates are pending")
        parse_update(sparql, now=iso(self._clock.wall()))  # its errors belong to whoever asks now, not to the timer
        timer = Timer(
            id=uuid.uuid4().hex,
            update=sparql,
            delay_us=None if delay is None else delay_us(delay),
            at=None if at is None else iso(at_moment(at)),
        )
        record = self._log.append("timer", cause=cause, request=request_id, timer=timer)
        self._delayed.follow(record)
        self._rearm = True
        return Accepted(record.seq, timer.id)

    async def _fire(self, name: str) -> None:
        """Executes a delayed update that is due: firing and effect are one commit. Called by the scheduler."""

        def fire() -> None:
            pending = self._delayed.get(name)
            if pending is None:
                return  # it was cancelled while it waited for its turn
            self._react()
            self._reactions_in_a_row.clear()
            delta = self._effect(pending.timer.update, f"delayed update {name}")
            self._commit(delta, Cause("timer", name, pending.sequence))
            self.counters.delayed_fired += 1

        await self._enqueue(fire)

    def _react(self) -> None:
        """Runs the reactions that are owed, in order. Raises ChangeLogError; they are owed still."""
        while self._owed or self._stopped:
            if not self._owed:
                # Behind all reactions: recovery looks for missing ones only behind the last record that is none.
                self._commit(QuadDelta(), Cause(APPLICATION, f"{self._stopped[0].name}@"))
                self._stopped.popleft()
                continue
            trigger = self._owed[0]
            if self._reactions_in_a_row[trigger.application.name] >= REACTIONS_MAX:
                self._stop(trigger.application)
                continue
            try:
                reaction = trigger.reaction()
                if reaction.delay is None and reaction.at is None:
                    self._commit(self._effect(reaction.sparql, trigger.cause.id), trigger.cause)
                else:
                    self._delay(reaction.sparql, reaction.delay, reaction.at, trigger.cause, None)
            except RequestError as error:
                # It would fail again: recorded as done without effect, and said.
                logger.error("reaction failed id=%s sequence=%s reason=%s", trigger.cause.id, trigger.sequence, error)
                self._commit(QuadDelta(), trigger.cause)
            self._owed.popleft()  # only now: what the log did not take is owed still
            self._reactions_in_a_row[trigger.application.name] += 1
            self.counters.reactions += 1

    def _prepared(self, sparql: str, using: UsingGraphs | None = None) -> QuadDelta:
        """The delta of an update. Whatever goes wrong here changed nothing, so it is the request's trouble alone."""
        try:
            return self._engine.prepare(sparql, using=using)
        except GatewayError:
            raise
        except Exception as error:
            logger.exception("update could not be prepared")
            raise StoreError(f"the update could not be evaluated: {error!r}") from error

    def _effect(self, sparql: str, name: str) -> QuadDelta:
        """The delta of an update that nobody waits for; one that fails has none, and that is said."""
        try:
            return self._prepared(sparql)
        except (RequestError, StoreError) as error:
            logger.error("update failed id=%s reason=%s", name, error)
            return QuadDelta()

    def _stop(self, application: Application) -> None:
        """Ends an application whose updates trigger it again and again."""
        problem = f"application {application.name} was stopped: one request led to {REACTIONS_MAX} reactions"
        self.health.problems.append(problem)
        logger.error("application stopped name=%s reactions=%d", application.name, REACTIONS_MAX)
        self._owed = deque(trigger for trigger in self._owed if trigger.application != application)
        for spuid, (owner, _) in list(self._aggregators.items()):
            if owner == application:
                del self._aggregators[spuid]
                self._engine.unsubscribe(spuid)
        self._stopped.append(application)

    def _remember(self, request_id: str, accepted: Accepted) -> None:
        self._request_ids[request_id] = accepted
        if len(self._request_ids) > REQUEST_IDS_MAX:
            self._request_ids.popitem(last=False)

    def close(self) -> None:
        """Lets go of the log and of the dataset, and ends the queries that still run."""
        self._reader.close()
        self._log.close()
        self._engine.close()


def _fulfil(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Answer):
        result.abandon()  # whoever asked is gone


def _fail(outcome: asyncio.Future[Any], error: GatewayError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
