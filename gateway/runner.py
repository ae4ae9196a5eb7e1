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
import contextlib
import logging
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any, BinaryIO, Protocol

import msgspec

from engine.change_log import Cause, Followed, Gap, Missed, Record, Timer
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
from engine.protocol import Results, Resume
from engine.sparql import Query, parse_update
from engine.spu import RE_EVALUATED
from engine.terms import Bag, Term
from engine.update import UsingGraphs
from gateway.apps import KIND as APPLICATION
from gateway.apps import REACTIONS_MAX, Application, Register, Trigger, aggregator_queries, triggers
from gateway.clock import Clock, iso, moment
from gateway.delayed import CLOCK, DelayedUpdates, Scheduler, at_moment, delay_us
from gateway.log_keeper import LogKeeper, Taken
from gateway.log_writer import LogWriter, Recovery
from gateway.persistent_store import PersistentStore
from gateway.reader import Answer, Reader
from gateway.restoring import KIND as RESTORE
from gateway.restoring import Difference, Restored, comparison
from gateway.resumption import (
    SPUID,
    Attached,
    Reset,
    ResumableSubscriptions,
    Retained,
    check_repeatable,
    outlives_process,
    shown,
)
from gateway.settings import Settings
from gateway.snapshots import Known, known, newest, read_snapshot, write
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
    missed: Missed | None = None
    batch: Batch | None = None
    lane: Lane | None = None


class Sink(Protocol):
    """Where the notifications of a subscription go. Called in order, and never before they may leave.

    client: who it is, for people; identity: whom resumable subscriptions of it belong to; connection: the same object
    for all sinks of one connection; since: when the subscription began or was resumed, set by the runner.
    """

    client: str
    identity: str | None
    since: datetime | None

    @property
    def connection(self) -> object: ...

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        """keep: how long it waits when the client goes away, if it is resumable; its notifications are numbered then,
        and must not be composed. reset: why the one that the client wanted to resume could not be."""
        ...

    def resumed(self, spuid: str, attached: Attached[Sink]) -> None: ...

    def taken_over(self, spuid: str, by: Sink) -> None:
        """Another sink has resumed the subscription, or began anew in its place; nothing of it follows here."""
        ...

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
    delayed_skipped: int = 0
    syncs: int = 0
    ended: int = 0
    resumed: int = 0
    resets: int = 0
    compositions: int = 0


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
        self._now: datetime | None = None  # the time of the record that is being followed
        self._base = newest(log.data / "snapshots")
        path = settings.store.path
        self._store = PersistentStore(log.data / path, log, clock.boot) if path else None
        self._way_back = None if self._store is None else self._store.usable(*self._base.place)
        self._engine = self._new_engine()
        self._reader = Reader(settings.query, settings.limits, None if self._store is None else self._store.path)
        self._trials = Trials(self._engine, self._reader, settings.limits)
        self._evaluations: OrderedDict[str, _Evaluation] = OrderedDict()
        self._too_slow: dict[str, None] = {}  # queries whose subscriptions are to be ended
        self._following = False  # whether the engine is matching a commit
        self._prepared_s = 0.0
        self._engine.store.around_select = self._measured
        self._delayed = DelayedUpdates(clock)
        self._scheduler = Scheduler(self._delayed, clock, self._fire, self._note)
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
        self._resumables: ResumableSubscriptions[Sink] = ResumableSubscriptions(settings.resume)
        self._given_up: deque[str] = deque()  # resumable subscriptions whose end is not recorded yet
        self._boot = clock.boot  # that of the record before
        self._request_ids: OrderedDict[str, Accepted] = OrderedDict()
        self._register = Register()
        self._aggregators: dict[str, tuple[Application, str]] = {}  # spuid -> application, aggregator
        self._owed: deque[Trigger] = deque()
        self._reactions_in_a_row: Counter[str] = Counter()  # by application, since the last request
        self._beginning: deque[Application] = deque()  # their beginning is not recorded yet
        self._ending: deque[str] = deque()  # the same of the end of those that are not declared any more
        self._stopped: deque[Application] = deque()  # the same of those that were stopped
        self._reacts_again = False  # another try is under way
        self._since: list[QuadDelta] | None = None  # what was committed since a backup was compared with the dataset
        self.counters = Counters()
        self.health = Health()
        self._upkeep = Upkeep(self._engine, self.health.problems.append)
        self.log_keeper = LogKeeper(log, self, settings.log, clock, self.health.problems.append)

    # --- start ---

    def _new_engine(self) -> Engine:
        """An engine over the store on disk, which is emptied if it is damaged, or over one in memory."""

        def clock() -> datetime:
            return self._now or self._clock.wall()

        if self._store is None:
            return Engine(clock=clock)
        try:
            return Engine(clock=clock, store_path=self._store.path)
        except StoreError as error:
            logger.error("store is damaged reason=%s", error)
            self._store.emptied()
            self._way_back = None
            return Engine(clock=clock, store_path=self._store.path)

    def recover(self) -> Recovery:
        """Takes the newest snapshot, replays the change log behind it, and finds out which reactions it lacks.

        Raises ChangeLogError when the log cannot be read, or is damaged and the settings do not want to go on.
        """
        last: list[Record] = []  # the last record that no application caused, and the reactions behind it

        def take(record: Record) -> None:
            if not (record.cause and record.cause.kind == APPLICATION and record.cause.seq is not None):
                for earlier in last:
                    self._replay(earlier)
                last.clear()
            last.append(record)

        strict = self._settings.log.recovery == "strict"
        recovery = self._log.replay(take, *self._restore_snapshot(), strict=strict)
        if recovery.set_aside:
            self._tell_damage(recovery.set_aside)
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
        self._distrust(self._clock.boot, lost=recovery.set_aside is not None)
        self._resumables.detach_all(self._clock.boottime_us())
        if recovery.cut_bytes:
            logger.warning("torn tail cut off bytes=%d sequence=%d", recovery.cut_bytes, self._log.sequence)
        names = {application.name for application in self._applications}
        self._beginning.extend(waiting)
        self._ending.extend(name for name in self._register.names() if name not in names)
        try:
            self._note_clocks()
            self._log.sync()
        except ChangeLogError as error:
            # It is tried again when the loop runs; whoever asks for an answer gets it.
            logger.error("gateway starts without being able to write reason=%s", error)
        self._releases.clear()  # nobody is connected yet
        return recovery

    def _restore_snapshot(self) -> tuple[int, int]:
        """Starts from the newest snapshot that is whole; the epoch and the sequence where it stands."""
        base = self._base
        for error in base.errors:
            self.health.problems.append(f"snapshot {error}")
            logger.error("snapshot is damaged reason=%s", error)
            with contextlib.suppress(OSError):
                self._log.disk.rename(error.path, self._log.data / "damaged" / f"snapshot-{error.path.name}")
        if self._way_back is not None:
            self._engine.converge(self._way_back, base.place[1])
            self._way_back = None
        elif base.snapshot is not None:
            self._engine.restore(read_snapshot(base.snapshot.path)[1], base.graphs, base.place[1])
        if base.head is not None:
            state = known(base.head)
            self._delayed.restore(state.delayed)
            for request, sequence, delayed in state.requests:
                self._remember(request, Accepted(sequence, delayed))
            self._register.restore(state.applications)
            self._boot = base.head.boot
            for raw in state.resumable:
                retained = msgspec.json.decode(raw, type=Retained)
                self._follow_again(retained.followed, partial(self._resumables.restore, retained))
            self.log_keeper.snapshot = base.place
        return base.place

    def _known(self) -> bytes:
        return msgspec.json.encode(
            Known(
                self._delayed.state(),
                [(request, accepted.sequence, accepted.delayed) for request, accepted in self._request_ids.items()],
                self._register.digests(),
                [msgspec.Raw(msgspec.json.encode(retained)) for retained in self._resumables.state()],
            )
        )

    def _tell_damage(self, folder: Path) -> None:
        self.health.problems.append(f"the change log was damaged; what could not be read is in {folder}")
        logger.error("change log damaged aside=%s epoch=%d", folder, self._log.epoch)

    def _replay(self, record: Record) -> None:
        self._delayed.follow(record)
        self._register.follow(record)
        if record.request is not None:
            self._remember(record.request, Accepted(record.seq, record.timer.id if record.timer else None))
        lost = record.gap is not None and record.gap.last is None
        if lost or record.boot != self._boot:
            self._distrust(record.boot, lost=lost)
        if record.subscribe is not None:
            self._follow_again(record.subscribe, partial(self._resumables.begin, record.subscribe))
        if record.unsubscribe is not None:
            self._forget(record.unsubscribe)
        if record.type == "commit":
            self._now = moment(record.ts)
            self._owe(self._engine.commit(record.delta, record.seq))
            self._now = None

    def _follow_again(self, followed: Followed, begin: Callable[[str], None]) -> None:
        """Subscribes a resumable subscription as it was; begin: is told the engine's spuid."""
        if not outlives_process(followed.sparql):
            return
        try:
            subscription = self._engine.subscribe(
                followed.sparql, default_graphs=followed.default_graphs, named_graphs=followed.named_graphs
            )
        except GatewayError as error:
            logger.error("subscription cannot be resumed spuid=%s reason=%s", shown(followed.spuid), error)
        else:
            begin(subscription.spuid)

    def _distrust(self, boot: str, *, lost: bool) -> None:
        """Ends the resumable subscriptions if their clients may have seen what the log does not have: because it lost
        a part, or because the machine went down while records were not synced before they were told of."""
        if lost or (boot != self._boot and self._settings.gateway.durability != "fsync"):
            for _, handle in self._resumables.end_all():
                self._engine.unsubscribe(handle)
        self._boot = boot

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

    def _begin_and_end(self) -> None:
        """Records that applications ended or began since the last run. Raises ChangeLogError; it is owed still."""
        while self._ending:
            self._commit(QuadDelta(), Cause(APPLICATION, f"{self._ending[0]}@"))
            logger.info("application ended name=%s", self._ending.popleft())
        while self._beginning:
            commit = self._commit(QuadDelta(), self._beginning[0].began)
            application = self._beginning.popleft()
            logger.info("application began name=%s version=%s", application.name, application.digest)
            self._begin(application, commit.sequence)
            self._run_owed()

    def _note_clocks(self) -> None:
        """Tells the log of the clocks, where it has to know of them."""
        self._react()
        reason = self._delayed.news()
        if reason is not None:
            self._commit(QuadDelta(), Cause(CLOCK, reason))

    async def _note(self) -> None:
        await self._enqueue(self._note_clocks)  # on no lane: a trial is no reason to wait

    # --- the loop ---

    async def run(self) -> None:
        """Takes steps until cancelled. Raises ChangeLogError when the disk cannot be trusted any more."""
        async with asyncio.TaskGroup() as group:
            self._tasks = group
            group.create_task(self._scheduler.run(), name="delayed updates")
            group.create_task(self._steps(), name="engine")
            group.create_task(self._keep_up(), name="upkeep")
            group.create_task(self.log_keeper.run(), name="log keeper")
            if self._settings.gateway.durability == "interval":
                group.create_task(self._sync_now_and_then(), name="sync")
            self._enqueue(lambda: None)  # what could not be written at the start is owed still
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
        if self._log.broken is not None:
            raise self._log.broken
        if group.appended:
            self.counters.syncs += 1
            if self._log.waits:
                await asyncio.to_thread(self._log.sync)
        for release in group.releases:
            release()
        if group.rearm:
            self._scheduler.rearm()

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log.sync_interval_ms / 1000)
            await asyncio.to_thread(self._log.sync)

    async def _keep_up(self) -> None:
        """Gives the dataset a little time now and then, when nobody waits."""
        pause, taken = PAUSE_S, self._taken
        while True:
            await asyncio.sleep(pause)
            if not self._working and self._queue.empty() and self._groups.empty():
                pause = self._upkeep.turn(quiet=taken == self._taken)
            if self._resumables.expired(self._clock.boottime_us()):
                await self._enqueue(self._expire)
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
        default_graphs: tuple[Term, ...] | None,
        named_graphs: tuple[Term, ...] | None,
        lane: Lane | None = None,
        resume: Resume | None = None,
    ) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then, or what it missed.

        resume: the client wants a resumable one, or to resume one. Raises MalformedRequestError.
        """
        keep_us, keep = (0, None) if resume is None else self._resumables.granted(resume.keep)
        asked = Followed(
            "" if resume is None else resume.spuid or "", sparql, keep_us, default_graphs, named_graphs, sink.identity
        )

        def start() -> str:
            reset = None
            if resume is not None and resume.sequence is not None:
                reset = self._resume(asked, resume.sequence, sink)
                if reset is None:
                    return asked.spuid
            if keep is not None:
                self._resumables.check_room()
                self._react()  # before the subscription, for it may change the dataset, and before its record
            begun = thread_time()
            subscription = self._engine.subscribe(sparql, default_graphs=default_graphs, named_graphs=named_graphs)
            self._prepared_s = thread_time() - begun
            try:
                self._trials.check_rows(subscription.first)
                if keep is None:
                    self._sinks[subscription.spuid] = sink
                else:
                    subscription = self._begin_resumable(asked, subscription, sink)
            except GatewayError:
                self._engine.unsubscribe(subscription.spuid)
                raise
            self.counters.subscribes += 1
            sink.since = self._clock.wall()
            self._releases.append(lambda: sink.subscribed(subscription, keep, reset))
            return subscription.spuid

        def trial() -> Trial | None:
            sequence = None if resume is None else resume.sequence
            if sequence is not None and not isinstance(self._resumables.resumable(asked, sequence), Reset):
                return None
            return self._trials.of_subscription(sparql, default_graphs, named_graphs)

        return self.submit(start, lane, trial)

    def _resume(self, asked: Followed, sequence: int, sink: Sink) -> str | None:
        """Has a client go on with its subscription; why not, if it cannot. Raises ChangeLogError."""
        found = self._resumables.attach(asked, sequence, sink)
        if isinstance(found, Reset):
            attached = self._resumables.sink(asked.spuid)
            if found.outdated and (attached is None or attached.connection is sink.connection):
                self._end_resumable(asked.spuid)
                if attached is not None:
                    self._releases.append(partial(attached.taken_over, asked.spuid, sink))
            self.counters.resets += 1
            logger.info(
                "subscription reset client=%s spuid=%s reason=%s", sink.client, shown(asked.spuid), found.reason
            )
            return found.reason
        self.counters.resumed += 1
        sink.since = self._clock.wall()
        if found.displaced is not None:
            self._releases.append(partial(found.displaced.taken_over, asked.spuid, sink))
        self._releases.append(partial(sink.resumed, asked.spuid, found))
        return None

    def _begin_resumable(self, asked: Followed, subscription: Subscription, sink: Sink) -> Subscription:
        """Records that a resumable subscription begins; it gets a spuid that nobody can guess and that stays."""
        check_repeatable(asked.sparql)
        followed = msgspec.structs.replace(asked, spuid=f"{SPUID}{uuid.uuid4().hex}")
        self._delayed.follow(self._log.append("subscribe", cause=Cause("ws", sink.client), subscribe=followed))
        self._resumables.begin(followed, subscription.spuid, sink)
        return subscription._replace(spuid=followed.spuid)

    def _end_resumable(self, spuid: str) -> None:
        """Records that a resumable subscription ends. Raises ChangeLogError; then it goes on."""
        self._react()
        self._delayed.follow(self._log.append("unsubscribe", unsubscribe=spuid))
        self._forget(spuid)

    def _forget(self, spuid: str) -> None:
        handle = self._resumables.end(spuid)
        if handle is not None:
            self._engine.unsubscribe(handle)

    def _expire(self) -> None:
        """Ends the resumable subscriptions whose clients stayed away; recorded with what else is owed."""
        for spuid in self._resumables.expired(self._clock.boottime_us()):
            logger.info("subscription expired spuid=%s", shown(spuid))
            self._forget(spuid)
            self._given_up.append(spuid)

    def unsubscribe(self, spuid: str, sink: Sink, lane: Lane | None = None) -> asyncio.Future[None]:
        """Ends a subscription of this sink, or a resumable one of the same client that no sink is attached to."""

        def end() -> None:
            if self._resumables.may_end(spuid, sink, sink.identity):
                self._end_resumable(spuid)
            elif self._sinks.get(spuid) is sink:
                del self._sinks[spuid]
                self._engine.unsubscribe(spuid)
            else:
                raise UnknownSpuidError(f"no subscription on this connection has the spuid {spuid!r}")
            self.counters.unsubscribes += 1

        return self.submit(end, lane)

    def disconnect(self, sink: Sink, spuids: Sequence[str]) -> None:
        """Ends what a connection that is gone had, and leaves the resumable ones to themselves; takes no room in the
        queue, since the gateway itself asks."""

        def end() -> None:
            for spuid in spuids:
                self._resumables.detach(spuid, sink, self._clock.boottime_us())
                if self._sinks.pop(spuid, None) is not None:
                    self._engine.unsubscribe(spuid)

        self._enqueue(end)

    @property
    def replay_bytes_max(self) -> int:
        """What clients that resume may have waiting for them."""
        return self._settings.resume.bytes_max

    def cancel(self, name: str, cause: Cause) -> asyncio.Future[None]:
        """Cancels a delayed update."""

        def cancel() -> None:
            if self._delayed.get(name) is None:
                raise UnknownDelayedError(f"no delayed update {name!r} is pending; GET /delayed lists them")
            self._react()
            self._delayed.follow(self._log.append("cancel", cause=cause, cancel=name))
            self._rearm = True

        return self.submit(cancel)

    def take_snapshot(self) -> asyncio.Future[Taken]:
        """A snapshot of this moment, written by a fork; for the log keeper."""

        def take() -> Taken:
            self._react()  # what is owed is not in a snapshot
            store, names, head = self._engine.store, self._engine.store.graphs(), self._log.head()
            store.flush()

            def written(out: BinaryIO) -> None:
                write(out, head, names, self._known(), self._engine.snapshot())

            return Taken(head, self._reader.stream(written))

        return self._enqueue(take)

    @property
    def log(self) -> LogWriter:
        """The log, for those who bring files to where it is."""
        return self._log

    def begin_restore(self, backup: Path) -> asyncio.Future[Answer]:
        """Has a fork compare the dataset with a backup (`restoring.difference` reads the outcome). Until
        `end_restore`, what is committed is noted. Raises ChangeLogError when it cannot be read; the outcome is a
        QueueFullError while another one is being restored."""

        work = comparison(backup, self._engine)

        def begin() -> Answer:
            if self._since is not None:
                raise QueueFullError("another backup is being restored; try a little later")
            self._engine.store.flush()
            answer = self._reader.stream(work)
            self._since = []
            return answer

        return self._enqueue(begin)

    def restore(self, difference: Difference) -> asyncio.Future[Restored]:
        """Makes dataset and delayed updates those of the backup. The outcome is a ChangeLogError if the log did not
        take all of it; if that was not at the very beginning, the same once more does what is left to be done."""

        def restore() -> Restored:
            assert self._since is not None, "begin_restore comes first"
            pending_max = self._settings.delayed.pending_max
            if len(difference.timers) > pending_max:
                raise LimitExceededError(
                    f"the backup has more than delayed.pending_max = {pending_max} delayed updates"
                )
            self._react()
            self._reactions_in_a_row.clear()
            cause = Cause(RESTORE, difference.place)
            going = [record.timer.id for record, _ in self._delayed.state().pending if record.timer is not None]
            delta = difference.since(self._since)
            commit = self._commit(delta, cause)
            self._react()  # a reaction stands behind its trigger, before anything else
            going = [name for name in going if self._delayed.get(name) is not None]
            for name in going:
                self._delayed.follow(self._log.append("cancel", cause=cause, cancel=name))
            for timer in difference.timers:
                self._delayed.follow(self._log.append("timer", cause=cause, timer=timer))
            self._rearm = True
            self._since.clear()
            logger.info("backup restored place=%s sequence=%d", difference.place, commit.sequence)
            return Restored(
                difference.place,
                commit.sequence,
                len(delta.removed),
                len(delta.added),
                len(going),
                len(difference.timers),
            )

        return self._enqueue(restore)

    def end_restore(self) -> None:
        """Notes nothing any more."""
        self._since = None

    def note_gap(self, gap: Gap) -> asyncio.Future[None]:
        """Records that a part of the history went; for the log keeper."""

        def note() -> None:
            self._react()
            self._log.append("gap", gap=gap)

        return self._enqueue(note)

    @property
    def quad_count(self) -> int:
        """How many quads the dataset has."""
        return self._engine.quad_count

    @property
    def delayed_count(self) -> int:
        """How many delayed updates are pending."""
        return len(self._delayed)

    def delayed_updates(self) -> list[dict[str, Any]]:
        """The pending delayed updates that are due next, for people and programs to look at."""
        return self._delayed.table()

    def status(self) -> dict[str, Any]:
        """What `GET /health` says."""
        refusing = [f"updates are refused: {self._log.refusing}"] if self._log.refusing else []
        return {
            "status": "damaged" if self.health.problems else "refusing" if refusing else "ok",
            "problems": self.health.problems + refusing,
            "gateway": self._log.gateway,
            "epoch": self._log.epoch,
            "sequence": self._log.sequence,
            "clock_trusted": self._clock.trusted(),
            "log": {
                "bytes": self.log_keeper.used,
                "snapshot": self.log_keeper.snapshot[1],
                "sealed": self.log_keeper.sealed,
                "evicted": self.log_keeper.evicted,
            },
            "quads": self._engine.quad_count,
            "subscriptions": len(self._sinks) + len(self._resumables),
            "resumable": self._resumables.totals(),
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
            *(
                (handle, "away" if sink is None else sink.client, None if sink is None else sink.since)
                for handle, sink in self._resumables.attachments()
            ),
        ][:LISTED_MAX]
        found = [(self._engine.describe(spuid), client, since) for spuid, client, since in names]
        secret = {info.spuid: self._resumables.spuid(info.spuid) for info, _, _ in found}
        shared = Counter((info.text, info.spu_class) for info, _, _ in found)
        listed = [
            {
                "spuid": shown(secret[info.spuid] or "") if secret[info.spuid] else info.spuid,
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
        total = len(self._aggregators) + len(self._sinks) + len(self._resumables)
        return {"total": total, "subscriptions": listed}

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
            for spuid in [*self._aggregators, *self._sinks, *(handle for handle, _ in self._resumables.attachments())]:
                if self._engine.describe(spuid).text != text:
                    continue
                if spuid in self._aggregators:
                    name = self._aggregators[spuid][0].name
                    logger.warning("application's subscription is slow name=%s evaluation_ms=%.0f", name, ms)
                    continue
                resumable = self._resumables.spuid(spuid)
                if resumable is None:
                    sink = self._sinks.pop(spuid, None)
                    self._engine.unsubscribe(spuid)
                else:
                    sink = self._resumables.sink(resumable)
                    self._forget(resumable)
                    self._given_up.append(resumable)  # its record must not come between a trigger and its reaction
                self.counters.ended += 1
                client = "away" if sink is None else sink.client
                logger.warning(
                    "subscription ended client=%s spuid=%s evaluation_ms=%.0f",
                    client,
                    shown(resumable) if resumable else spuid,
                    ms,
                )
                if sink is not None:
                    self._releases.append(partial(sink.ended, resumable or spuid, error))
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
        if call.missed is not None and call.delay is None and call.at is None:
            raise MalformedRequestError("missed is for delayed updates; give delay or at too")
        if call.delay is not None or call.at is not None:
            if call.using:
                raise MalformedRequestError("a delayed update names its graphs in its text, by USING or WITH")
            accepted = self._delay(call.sparql, call.delay, call.at, call.missed, call.cause, call.request_id)
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
        now = self._clock.wall()
        record = self._log.append("commit", now=now, cause=cause, request=request_id, delta=delta)
        self._delayed.follow(record)
        self._register.follow(record)
        self._following, self._now = True, now
        try:
            commit = self._engine.commit(delta, record.seq)
        finally:
            self._following, self._now = False, None
        self.counters.commits += 1
        if self._since is not None:
            self._since.append(delta)
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
                continue
            key = (id(notification.added), id(notification.removed))  # the commit keeps them alive
            results = shared.get(key)
            if results is None:
                results = shared[key] = Results(notification.added, notification.removed)
            sink = self._sinks.get(notification.spuid)
            if sink is None:
                delivered = self._resumables.deliver(notification.spuid, results)
                if delivered is None or delivered.sink is None:
                    continue
                sink = delivered.sink
                notification = notification._replace(spuid=delivered.spuid, sequence=delivered.sequence)
            self.counters.notifications += 1
            self._releases.append(partial(sink.notify, notification, results))

    def _delay(
        self,
        sparql: str,
        delay: str | None,
        at: str | None,
        missed: Missed | None,
        cause: Cause,
        request_id: str | None,
    ) -> Accepted:
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
            missed=missed or self._settings.delayed.missed,
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
            if self._skipped(name):
                return
            self._reactions_in_a_row.clear()
            delta = self._effect(pending.timer.update, f"delayed update {name}")
            self._commit(delta, Cause("timer", name, pending.sequence))
            self.counters.delayed_fired += 1

        def trial() -> Trial | None:
            pending = self._delayed.get(name)
            if pending is None or (pending.timer.missed == "skip" and self._delayed.missed(name) is not None):
                return None
            return self._trials.of_update(pending.timer.update, None)

        def refused(error: GatewayError) -> None:
            pending = self._delayed.get(name)
            if pending is None:
                return
            logger.error("update failed id=delayed update %s reason=%s", name, error)
            self._react()
            self._commit(QuadDelta(), Cause("timer", name, pending.sequence))
            self.counters.delayed_fired += 1

        await self._enqueue(fire, self._timers, trial, refused)

    def _skipped(self, name: str) -> bool:
        """Whether a delayed update became due while the gateway was off, and is not wanted then."""
        missed, pending = self._delayed.missed(name), self._delayed.get(name)
        if missed is None or pending is None:
            return False
        policy = pending.timer.missed
        logger.info("delayed update missed id=%s due=%s late_s=%.3f policy=%s", name, missed.due, missed.late_s, policy)
        if policy == "run":
            return False
        self._delayed.follow(self._log.append("cancel", cause=Cause("missed", name), cancel=name))
        self.counters.delayed_skipped += 1
        return True

    def _react(self) -> None:
        """Records what applications have to say, and runs the reactions that are owed, in order.

        Raises ChangeLogError; they are owed still.
        """
        self._run_owed()
        if self._beginning or self._ending:
            self._begin_and_end()
        while self._given_up:
            self._delayed.follow(self._log.append("unsubscribe", unsubscribe=self._given_up[0]))
            self._given_up.popleft()

    def _run_owed(self) -> None:
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
                    self._delay(reaction.sparql, reaction.delay, reaction.at, reaction.missed, trigger.cause, None)
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

    def close(self, *, orderly: bool = False) -> None:
        """Lets go of the log and of the dataset, and ends the queries that still run. orderly: nothing is under way,
        and the log may say so."""
        self._reader.close()
        if orderly:
            self._finish_store()
            self._log.finish()
        else:
            self._log.close()
        self._engine.close()

    def _finish_store(self) -> None:
        """Has the store on disk as durable as the log, so that the next start can use it."""
        if self._store is not None:
            try:
                self._log.sync(always=True)  # the store must not know more
                self._engine.persist()
                self._store.closed()
            except (OSError, GatewayError) as error:
                logger.error("store was not closed properly reason=%s", error)


def _fulfil(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Answer):
        result.abandon()  # whoever asked is gone


def _fail(outcome: asyncio.Future[Any], error: GatewayError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
