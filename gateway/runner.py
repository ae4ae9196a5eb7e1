"""The one task that owns engine, change log and timers; everything reaches them through its queue.

::

    gates, timers ─▶ queue (URQ and SRQ as one bounded FIFO) ─▶ steps ─▶ one fsync for the group ─▶ release
                                                                 │
                                        update: prepare, append, commit, then the applications' reactions

A request whose evaluation by the store nobody knows the cost of is on trial first (`gateway.trials`), beside the
loop; what follows it on its lane waits behind it, and everybody else goes on.

What waits in the queue when the disk is free is the next group: alone when the gateway is idle, many under
load. Nothing is released, neither answer nor notification, before every record that it saw is durable
(design 4.5). A step that fails has changed nothing, and its requester is told; a disk that cannot sync
leaves no state to go on from, so the gateway ends and recovers from the log at its next start.

In parallel mode (``engine.parallel``) the steps of the next groups run while the disk works for the one before.
They are released in order all the same, after a sync of their own.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from time import thread_time
from typing import Any, Protocol

from engine.change_log import Cause, Record, Timer
from engine.clock_function import query_at
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
from engine.protocol import Results
from engine.sparql import Query, parse_update
from engine.spu import RE_EVALUATED
from engine.terms import Bag, Term
from engine.update import UsingGraphs
from gateway.apps import KIND as APPLICATION
from gateway.apps import REACTIONS_MAX, Application, Register, Trigger, aggregator_queries, triggers
from gateway.clock import Clock, iso
from gateway.delayed import DelayedUpdates, Scheduler, at_moment, delay_us
from gateway.log_writer import LogWriter, Recovery
from gateway.reader import Answer, Reader
from gateway.settings import Settings
from gateway.trials import Trial, Trials
from gateway.upkeep import PAUSE_S, Upkeep

logger = logging.getLogger(__name__)

REQUEST_IDS_MAX = 50_000
"""Request ids that are remembered: a retry within that many requests has no second effect."""
_REACT_AGAIN_S = 1.0
GROUP_MAX = 1000
"""Steps between two syncs at most, so that the first of them does not wait for long."""
OVERRUNS_MAX = 3
"""Evaluations over the limit, one after the other, that end a subscription."""
MEASURED_MAX = 10_000
"""Evaluated queries whose last time is remembered."""
LISTED_MAX = 1000
"""Subscriptions that are listed at once, in a few milliseconds."""
GROUPS_MAX = 64
"""Groups that may wait for the disk in parallel mode; those that wait are synced together."""


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
    lane: Lane | None = None


class Sink(Protocol):
    """Where the notifications of a subscription go. Called in order, and never before they may leave.

    client: who it is, for people; since: when the subscription began, set by the runner.
    """

    client: str
    since: datetime | None

    def subscribed(self, subscription: Subscription) -> None: ...

    def notify(self, notification: Notification, results: Results) -> None:
        """results: those of the notification, shared with others who are told the same."""
        ...

    def ended(self, spuid: str, error: GatewayError) -> None:
        """The gateway has ended the subscription; nothing of it follows."""
        ...


@dataclass
class _Step:
    """One entry of the queue: what to do, and who waits for the outcome.

    lane: whose order it keeps; trial: what has to pass before it is run; refused: what to do instead when that
    fails, nothing but to tell who waits if there is none.
    """

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    lane: Lane | None = None
    trial: Callable[[], Trial | None] | None = None
    refused: Callable[[GatewayError], Any] | None = None


class Lane:
    """Requests that keep their order, such as those of one connection. waiting: the first of them is on trial."""

    def __init__(self) -> None:
        self.waiting: deque[_Step] = deque()


@dataclass
class _Group:
    """Steps that were run together. appended: whether they wrote records."""

    releases: list[Callable[[], None]]
    appended: bool
    rearm: bool

    def follow(self, other: _Group) -> None:
        """Takes in a group that was run after this one."""
        self.releases += other.releases
        self.appended |= other.appended
        self.rearm |= other.rearm


@dataclass
class _Evaluation:
    """A query that is evaluated again and again. ms: processor time of the last one; overruns: how many in a row."""

    ms: float = 0.0
    overruns: int = 0


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
    ended: int = 0


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
        self._reader = Reader(settings.query, settings.limits)
        self._trials = Trials(self._engine, self._reader, settings.limits)
        self._evaluations: OrderedDict[str, _Evaluation] = OrderedDict()
        self._too_slow: dict[str, None] = {}  # queries whose subscriptions are to be ended
        self._following = False  # whether the engine is matching a commit
        self._prepared_s = 0.0
        self._engine.store.around_select = self._measured
        self._delayed = DelayedUpdates(clock)
        self._scheduler = Scheduler(self._delayed, clock, self._fire)
        self._rearm = False
        self._queue: asyncio.Queue[_Step] = asyncio.Queue()
        self._releases: list[Callable[[], None]] = []
        self._waiting = 0  # steps in lanes
        self._timers = Lane()
        self._groups: asyncio.Queue[_Group] = asyncio.Queue(GROUPS_MAX)
        self._tasks: asyncio.TaskGroup | None = None
        self._working = False
        self._taken = 0
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
        self._upkeep = Upkeep(self._engine, self.health.problems.append)

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
            self._tasks = group
            group.create_task(self._scheduler.run(), name="delayed updates")
            group.create_task(self._steps(), name="engine")
            group.create_task(self._keep_up(), name="upkeep")
            if self._settings.engine.parallel:
                group.create_task(self._finish_groups(), name="releases")

    async def _steps(self) -> None:
        while True:
            self._working = False
            steps = [await self._queue.get()]
            self._working = True
            while len(steps) < GROUP_MAX and not self._queue.empty():
                steps.append(self._queue.get_nowait())
            before = self._log.sequence
            for step in steps:
                self._take(step)
            self._taken += len(steps)
            group = _Group(self._releases, self._log.sequence != before, self._rearm)
            self._releases, self._rearm = [], False
            if self._settings.engine.parallel:
                await self._groups.put(group)
            else:
                await self._finish(group)

    async def _finish_groups(self) -> None:
        while True:
            group = await self._groups.get()
            while not self._groups.empty():  # one sync for all that were run meanwhile
                group.follow(self._groups.get_nowait())
            await self._finish(group)

    async def _finish(self, group: _Group) -> None:
        """Syncs what a group wrote, and lets out what came of it."""
        if group.appended:
            self.counters.syncs += 1
            if self._log.waits:
                await asyncio.to_thread(self._log.sync)
            else:
                self._log.sync()
        for release in group.releases:
            release()
        if group.rearm:
            self._scheduler.rearm()

    async def _keep_up(self) -> None:
        """Gives the dataset a little time now and then, when nobody waits."""
        pause, taken = PAUSE_S, self._taken
        while True:
            await asyncio.sleep(pause)
            if not self._working and self._queue.empty() and self._groups.empty():
                pause = self._upkeep.turn(quiet=taken == self._taken)
            taken = self._taken

    def _take(self, step: _Step) -> None:
        """Runs a step, or puts it on trial before; its outcome goes out with the group."""
        if step.outcome.cancelled():
            return
        if step.lane is not None and step.lane.waiting:
            self._wait(step, step.lane)
            return
        trial = None if step.trial is None else step.trial()
        if trial is None or trial.passed or self._tasks is None:
            self._run(step, trial)
            return
        lane = step.lane or Lane()
        self._wait(step, lane)
        self._tasks.create_task(self._try(trial, lane), name="trial")

    def _wait(self, step: _Step, lane: Lane) -> None:
        lane.waiting.append(step)
        self._waiting += 1

    async def _try(self, trial: Trial, lane: Lane) -> None:
        """Has the first step of a lane on trial, and then lets the lane go on."""
        refused: GatewayError | None = None
        try:
            await trial.run()
        except GatewayError as error:
            refused = error
        except OSError as error:
            refused = StoreError(f"there is no process to try the evaluation in: {error.strerror}")

        def go_on() -> None:
            steps, lane.waiting = lane.waiting, deque()
            self._waiting -= len(steps)
            first = steps.popleft()
            if refused is None:
                self._run(first, trial)
            else:
                self._refuse(first, refused)
            for step in steps:
                self._take(step)

        self._enqueue(go_on)

    def _refuse(self, step: _Step, error: GatewayError) -> None:
        refused = step.refused
        if refused is not None:
            self._run(_Step(lambda: refused(error), step.outcome), None)
            return
        self.counters.refused += 1
        self._releases.append(lambda: _fail(step.outcome, error))

    def _run(self, step: _Step, trial: Trial | None) -> None:
        self._prepared_s = 0.0
        try:
            result = step.run()
        except GatewayError as error:
            self.counters.refused += 1
            failure = error
            self._releases.append(lambda: _fail(step.outcome, failure))
            return
        finally:
            if trial is not None:
                trial.took(self._prepared_s)
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

    def _enqueue(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | None] | None = None,
        refused: Callable[[GatewayError], Any] | None = None,
    ) -> asyncio.Future[Any]:
        """A step that the gateway itself asks for; it takes no room from the clients."""
        step = _Step(run, asyncio.get_running_loop().create_future(), lane, trial, refused)
        self._queue.put_nowait(step)
        return step.outcome

    def submit(
        self, run: Callable[[], Any], lane: Lane | None = None, trial: Callable[[], Trial | None] | None = None
    ) -> asyncio.Future[Any]:
        """Puts a step into the queue. Raises QueueFullError (SEPA protocol 5.1: refused at once, never waiting)."""
        self.check_room(1)
        return self._enqueue(run, lane, trial)

    def check_room(self, count: int) -> None:
        """Raises QueueFullError unless the queue has room for so many requests."""
        if self._queue.qsize() + self._waiting + count > self._settings.gateway.queue_max:
            self.counters.queue_full += 1
            raise QueueFullError(
                f"gateway.queue_max = {self._settings.gateway.queue_max} requests are waiting; try a little later"
            )

    # --- requests ---

    def update(self, call: UpdateCall) -> asyncio.Future[Accepted]:
        """The outcome is Accepted when the update is durable, or a GatewayError when nothing was changed."""

        def trial() -> Trial | None:
            if call.delay is not None or call.at is not None or call.request_id in self._request_ids:
                return None
            return self._trials.of_update(call.sparql, call.using)

        return self.submit(lambda: self._update(call), call.lane, trial)

    def query(
        self,
        query: Query,
        media_type: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        lane: Lane | None = None,
    ) -> asyncio.Future[Answer]:
        """The outcome is an Answer to iterate over, of the dataset as it was in the query's turn."""

        def start() -> Answer:
            self.counters.queries += 1
            store = self._engine.store.native
            asked = replace(query, text=query_at(query.text, self._clock.wall()))
            return self._reader.start(store, asked, media_type, default_graphs, named_graphs)

        return self.submit(start, lane)

    def subscribe(
        self,
        sparql: str,
        sink: Sink,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        lane: Lane | None = None,
    ) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then."""

        def start() -> str:
            begun = thread_time()
            subscription = self._engine.subscribe(sparql, default_graphs=default_graphs, named_graphs=named_graphs)
            self._prepared_s = thread_time() - begun
            try:
                self._trials.check_rows(subscription.first)
            except LimitExceededError:
                self._engine.unsubscribe(subscription.spuid)
                raise
            self.counters.subscribes += 1
            sink.since = self._clock.wall()
            self._sinks[subscription.spuid] = sink
            self._releases.append(lambda: sink.subscribed(subscription))
            return subscription.spuid

        return self.submit(start, lane, lambda: self._trials.of_subscription(sparql, default_graphs, named_graphs))

    def unsubscribe(self, spuid: str, sink: Sink, lane: Lane | None = None) -> asyncio.Future[None]:
        """Ends a subscription of this sink."""

        def end() -> None:
            if self._sinks.get(spuid) is not sink:
                raise UnknownSpuidError(f"no subscription on this connection has the spuid {spuid!r}")
            del self._sinks[spuid]
            self._engine.unsubscribe(spuid)
            self.counters.unsubscribes += 1

        return self.submit(end, lane)

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
            "subscription_classes": self._engine.subscription_classes,
            "delayed": len(self._delayed),
            "queue": self._queue.qsize() + self._waiting,
            "trials": self._trials.runs,
            "renewals": self._engine.store.renewals,
            "audit_rounds": self._upkeep.rounds,
            "counters": {name: getattr(self.counters, name) for name in self.counters.__dataclass_fields__},
        }

    def subscriptions(self) -> dict[str, Any]:
        """The oldest subscriptions, those of the applications too, for people and programs to look at; total: how
        many there are.

        subscribers: how many of those that are listed share the query. evaluation_ms: processor time that the
        store took for it last, None for those that it does not evaluate.
        """
        names = [
            *(
                (spuid, f"application {application.name}", None)
                for spuid, (application, _) in self._aggregators.items()
            ),
            *((spuid, sink.client, sink.since) for spuid, sink in self._sinks.items()),
        ][:LISTED_MAX]
        found = [(self._engine.describe(spuid), client, since) for spuid, client, since in names]
        shared = Counter((info.text, info.spu_class) for info, _, _ in found)
        listed = [
            {
                "spuid": info.spuid,
                "class": info.spu_class,
                "reason": info.reason,
                "subscribers": shared[info.text, info.spu_class],
                "client": client,
                "since": None if since is None else iso(since),
                "evaluation_ms": self._evaluation_ms(info.text) if info.spu_class == RE_EVALUATED else None,
                "text": info.text,
            }
            for info, client, since in found
        ]
        return {"total": len(self._aggregators) + len(self._sinks), "subscriptions": listed}

    def _evaluation_ms(self, text: str) -> float | None:
        evaluation = self._evaluations.get(text)
        return None if evaluation is None else round(evaluation.ms, 3)

    # --- what evaluations cost ---

    def _measured(self, text: str, select: Callable[[], Bag]) -> Bag:
        """Runs a SELECT of the engine's; takes the time of those that a commit makes necessary."""
        if not self._following:
            return select()
        begun = thread_time()
        result = select()
        evaluation = self._evaluations.setdefault(text, _Evaluation())
        evaluation.ms = (thread_time() - begun) * 1000
        evaluation.overruns = evaluation.overruns + 1 if evaluation.ms > self._settings.limits.evaluation_ms_max else 0
        if evaluation.overruns >= OVERRUNS_MAX:
            self._too_slow[text] = None
        if len(self._evaluations) > MEASURED_MAX:
            self._evaluations.popitem(last=False)
        return result

    def _end_slow_ones(self) -> None:
        """Ends the subscriptions that slow down everybody. Those of applications are the operator's to look after."""
        for text in self._too_slow:
            ms = self._evaluations.pop(text).ms
            error = LimitExceededError(
                f"the subscription was ended: {OVERRUNS_MAX} evaluations in a row took longer than "
                f"limits.evaluation_ms_max = {self._settings.limits.evaluation_ms_max}; narrow it down"
            )
            for spuid in [*self._aggregators, *self._sinks]:
                if self._engine.describe(spuid).text != text:
                    continue
                if spuid in self._aggregators:
                    name = self._aggregators[spuid][0].name
                    logger.warning("application's subscription is slow name=%s evaluation_ms=%.0f", name, ms)
                    continue
                sink = self._sinks.pop(spuid)
                self._engine.unsubscribe(spuid)
                self.counters.ended += 1
                logger.warning("subscription ended client=%s spuid=%s evaluation_ms=%.0f", sink.client, spuid, ms)
                self._releases.append(partial(sink.ended, spuid, error))
        self._too_slow.clear()

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
        self._following = True
        try:
            commit = self._engine.commit(delta, record.seq)
        finally:
            self._following = False
        self.counters.commits += 1
        self._owe(commit)
        if self._too_slow:
            self._end_slow_ones()
        return commit

    def _owe(self, commit: Commit) -> None:
        """Sorts the notifications of a commit: to the applications' triggers, or to their sinks on release."""
        shared: dict[tuple[int, int], Results] = {}
        for notification in commit.notifications:
            aggregator = self._aggregators.get(notification.spuid)
            if aggregator is not None:
                self._owed.extend(triggers(*aggregator, commit.sequence, notification.added, notification.removed))
            elif notification.spuid in self._sinks:
                self.counters.notifications += 1
                key = (id(notification.added), id(notification.removed))  # the commit keeps them alive
                results = shared.get(key)
                if results is None:
                    results = shared[key] = Results(notification.added, notification.removed)
                self._releases.append(partial(self._sinks[notification.spuid].notify, notification, results))

    def _delay(self, sparql: str, delay: str | None, at: str | None, cause: Cause, request_id: str | None) -> Accepted:
        if delay is not None and at is not None:
            raise MalformedRequestError("delay and at exclude each other")
        if len(self._delayed) >= self._settings.delayed.pending_max:
            raise LimitExceededError(f"delayed.pending_max = {self._settings.delayed.pending_max} updates are pending")
        parse_update(sparql, now=self._clock.wall())  # its errors belong to whoever asks now, not to the timer
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

        def trial() -> Trial | None:
            pending = self._delayed.get(name)
            return None if pending is None else self._trials.of_update(pending.timer.update, None)

        def refused(error: GatewayError) -> None:
            pending = self._delayed.get(name)
            if pending is None:
                return
            logger.error("update failed id=delayed update %s reason=%s", name, error)
            self._react()
            self._commit(QuadDelta(), Cause("timer", name, pending.sequence))
            self.counters.delayed_fired += 1

        await self._enqueue(fire, self._timers, trial, refused)

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
        begun = thread_time()
        try:
            return self._engine.prepare(sparql, using=using)
        except GatewayError:
            raise
        except Exception as error:
            logger.exception("update could not be prepared")
            raise StoreError(f"the update could not be evaluated: {error!r}") from error
        finally:
            self._prepared_s = thread_time() - begun

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
