"""The one task that owns engine, change log and timers; everything reaches them through its queue.

::

    gates, timers ─▶ queue (URQ and SRQ as one bounded FIFO) ─▶ steps ─▶ one fsync for the group ─▶ release
                                                                 │
                                        update: prepare, append, commit, then the applications' reactions

A request whose evaluation by the store nobody knows the cost of is on trial first (`gateway.workers.trials`), beside
the loop; what follows it on its lane waits behind it, and everybody else goes on.

What waits in the queue when the disk is free is the next group: alone when the gateway is idle, many under
load. Nothing is released, neither answer nor notification, before every record that it saw is durable
(design 4.5). A step that fails, whatever it raises, has changed nothing, and its requester is told. A disk that
cannot sync leaves no state to go on from, nor does a record that cannot be followed (`BrokenEngineError`): then the
gateway ends, and recovers from the log at its next start.

In parallel mode (``engine.parallel``) the steps of the next groups run while the disk works for the one before.
They are released in order all the same, after a sync of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, BinaryIO, TypeVar

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Cause, Gap, Missed, Record, Timer
from lamplighter.engine.core import Commit, Ended, Engine, Subscription
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import (
    AccessDeniedError,
    BrokenEngineError,
    ChangeLogError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
    RequestError,
    StoreError,
    UnknownDelayedError,
    UnknownGraphError,
    UnknownSpuidError,
    bare,
    is_fault,
)
from lamplighter.engine.protocol import Results, Resume, is_long
from lamplighter.engine.slices import LONG
from lamplighter.engine.sparql.clock_function import query_at
from lamplighter.engine.sparql.requests import QueryOutline, query_outline
from lamplighter.engine.store.quad_store import SelectRun
from lamplighter.engine.terms import Bag, Term
from lamplighter.engine.updating.by_store import Resolved, UsingGraphs, check_access, resolved
from lamplighter.engine.updating.graph_store import GraphWrite, graph_write_delta
from lamplighter.gateway.clock import Clock, iso, moment
from lamplighter.gateway.history.restoring import KIND as RESTORE
from lamplighter.gateway.history.restoring import Difference, Restored, comparison
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.keeper import LogKeeper, Taken
from lamplighter.gateway.log.persistent_store import PersistentStore
from lamplighter.gateway.log.snapshots import newest, write
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.loop.journal import Journal, behind_its_log
from lamplighter.gateway.loop.recovery import Doubt, Recovering
from lamplighter.gateway.loop.resuming import Resuming
from lamplighter.gateway.loop.slices import SLICE_S, LongError, Slices
from lamplighter.gateway.loop.subscribers import Sink, SubscribeCall, Subscribers, Surroundings
from lamplighter.gateway.loop.upkeep import PAUSE_S, Upkeep
from lamplighter.gateway.monitoring.figures import Counters, Evaluations, Figures, Health, Parts, Peaks
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import QuotaSettings, Settings
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import (
    REACTIONS_MAX,
    Application,
    Trigger,
    aggregator_queries,
    triggers,
)
from lamplighter.gateway.state.delayed import CLOCK, Scheduler, at_moment, delay_us, text_bytes
from lamplighter.gateway.state.knowledge import Knowledge
from lamplighter.gateway.state.quotas import check
from lamplighter.gateway.state.request_ids import REMOVED, REQUEST_ID_CHARACTERS_MAX, Accepted, RequestKey
from lamplighter.gateway.state.resumption import ResumableSubscriptions
from lamplighter.gateway.workers.ad_hoc import Answer, Reader
from lamplighter.gateway.workers.large_updates import LargeUpdates, Reading, is_large
from lamplighter.gateway.workers.rdf_bodies import RdfBodies
from lamplighter.gateway.workers.trials import Trial, Trials

logger = logging.getLogger(__name__)

_REACT_AGAIN_S = 1.0
_TIMER_FAILED = "delayed update failed id=%s reason=%s"
_REACTION_FAILED = "update failed id=%s reason=%s"
GROUP_MAX = 1000
"""Steps between two syncs at most, so that the first of them does not wait for long."""
OVERRUNS_MAX = 3
"""Evaluations over the limit, one after the other, that end a subscription."""
UPKEEP_AGAIN_S = 600.0
"""Until upkeep that fails each time is tried again, at most."""
MEASURED_MAX = 10_000
"""Evaluated queries whose last time is remembered."""
INTERRUPTIONS_MAX = 3
"""How often an application begins again whose query went over its limit."""
APPENDS_MAX = 500
"""Records that a step may append; beyond, it is a long one."""
EVALUATIONS_MS_MAX = 20
"""Processor time that the store took last for what it evaluates for a commit; beyond, the commit is a long step."""
GROUPS_MAX = 64
"""Groups that may wait for the disk in parallel mode; those that wait are synced together."""


Result = TypeVar("Result")


@dataclass
class Batch:
    """Updates that came in one message, in order. refused: why one of them was refused for the moment.

    Those behind it are refused as well: they will be sent again together, and a later one must not overtake.
    """

    refused: GatewayError | None = None


@dataclass(frozen=True)
class UpdateCall:
    """An update request as a gate hands it over. batch: shared by those that came in one message; caller: whose
    permissions count, and whose its request id is."""

    sparql: str
    cause: Cause
    using: UsingGraphs | None = None
    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None
    batch: Batch | None = None
    lane: Lane | None = None
    caller: Caller = ANYBODY

    @property
    def request_key(self) -> RequestKey | None:
        return None if self.request_id is None else (self.caller.name, self.request_id)


@dataclass
class _Step:
    """One entry of the queue: what to do, and who waits for the outcome.

    lane: whose order it keeps; trial: what has to pass before it is run; refused: what to do instead when that
    fails, nothing but to tell who waits if there is none. begun: when it arrived, if it is to be timed. in_loop: it
    forks, and so is run by the loop, however long it is. more: what is run in its place, a step of several.
    """

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    lane: Lane | None = None
    trial: Callable[[], Trial | Reading | None] | None = None
    refused: Callable[[GatewayError], Any] | None = None
    begun: float | None = None
    in_loop: bool = False
    more: Callable[[], Awaitable[None]] | None = None


class Lane:
    """Requests that keep their order, such as those of one connection. waiting: the first of them is on trial."""

    def __init__(self) -> None:
        self.waiting: deque[_Step] = deque()


@dataclass
class _Group:
    """Steps that were run together. appended: whether they wrote records; begun: when those arrived that are timed."""

    releases: list[Callable[[], None]]
    appended: bool
    rearm: bool
    begun: list[float]

    def follow(self, other: _Group) -> None:
        """Takes in a group that was run after this one."""
        self.releases += other.releases
        self.appended |= other.appended
        self.rearm |= other.rearm
        self.begun += other.begun


class Runner:
    """Owns the engine. `recover` first, then `run`; the request methods put steps into the queue."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        log: LogWriter,
        applications: Sequence[Application] = (),
        access_of: Callable[[str], Access | None] = lambda client: FULL,
        doubt: Doubt = Doubt(),  # noqa: B008 - frozen
    ) -> None:
        """access_of: what a client may do now, None for one that is not registered (any more); doubt: what tries of
        this start have taught."""
        self._doubt = doubt
        self._access_of = access_of
        self._settings = settings
        self._clock = clock
        self._log = log
        self.timings = Timings()
        self._slices = Slices(self.timings.loop_held)
        log.slices = self._slices
        self._held_since = self.timings.loop_held.now()
        self._unwritten: list[Results] = []  # long results whose text is not made yet
        self._applications = applications
        self._now: datetime | None = None  # the time of the record that is being followed
        self._base = newest(log.data / "snapshots", doubt.snapshots)
        path = settings.store.path
        self._store = PersistentStore(log.data / path, log, clock.boot) if path else None
        self._way_back = None if self._store is None else self._store.usable(*self._base.place, anew=doubt.careful)
        self._engine = self._new_engine()
        self._evaluated_s = 0.0
        self._reader = Reader(
            settings.query,
            settings.limits,
            None if self._store is None else self._store.path,
            self.timings.store_query.took,
        )
        self._reader.steady = self._slices.steady
        self.rdf_bodies = RdfBodies(self._reader)
        self._large_updates = LargeUpdates(self._reader, clock.wall)
        self._trials = Trials(self._engine, self._reader, settings.limits)
        self._evaluations = Evaluations(MEASURED_MAX)
        self._too_slow: dict[str, float] = {}  # text -> milliseconds; queries whose subscriptions are to be ended
        self._following = False  # whether the engine is matching a commit
        self._process = os.getpid()
        self._prepared_s = 0.0
        self._engine.store.around_select = self._measured
        resumables: ResumableSubscriptions[Sink] = ResumableSubscriptions(settings.resume, self.quotas)
        self._resuming = Resuming(self._engine, resumables, settings.gateway.durability, clock.boot)
        self._knowledge = Knowledge(clock, self._resuming)
        self._journal = Journal(log, self._knowledge)
        self._delayed = self._knowledge.delayed
        self._scheduler = Scheduler(self._delayed, clock, self._fire, self._note)
        self._rearm = False
        self._queue: asyncio.Queue[_Step] = asyncio.Queue()
        self._releases: list[Callable[[], None]] = []
        self._begun: list[float] = []
        self._waiting = 0  # steps in lanes
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._timers = Lane()
        self._groups: asyncio.Queue[_Group] = asyncio.Queue(GROUPS_MAX)
        self._tasks: asyncio.TaskGroup | None = None
        self._working = False
        self._taken = 0
        self._request_ids = self._knowledge.request_ids
        self._register = self._knowledge.register
        self._aggregators: dict[str, tuple[Application, str]] = {}  # spuid -> application, aggregator
        self._owed: deque[Trigger] = deque()
        self._reactions_in_a_row: Counter[str] = Counter()  # by application, since the last request
        self._interruptions: Counter[str] = Counter()  # by application, since the start
        self._beginning: deque[Application] = deque()  # their beginning is not recorded yet
        self._ending: deque[str] = deque()  # the same of the end of those that are not declared any more
        self._stopped: deque[Application] = deque()  # the same of those that were stopped
        self._removed: deque[str] = deque()  # clients whose end is not recorded yet
        self._reacts_again = False  # another try is under way
        self._since: list[QuadDelta] | None = None  # what was committed since a backup was compared with the dataset
        self.counters = Counters()
        self.peaks = Peaks()
        self.health = Health()
        self._subscribers = Subscribers(
            self._engine,
            self._journal,
            clock,
            self._trials,
            self._resuming,
            self.counters,
            self.peaks,
            Surroundings(
                lambda release: self._releases.append(release),
                self._enqueue,
                self._react,
                self._access_of,
                self.quotas,
            ),
            self._slices,
        )
        self._upkeep = Upkeep(self._engine, self.health.problems.append)
        self.log_keeper = LogKeeper(log, self, settings.log, clock, self.health.problems.append)
        parts = Parts(
            clock,
            log,
            self.log_keeper,
            self._engine,
            self._delayed,
            self._trials,
            self._upkeep,
            self._subscribers.resumables,
            self._subscribers.sinks,
            self._aggregators,
            self._evaluations,
            lambda: self._queue.qsize() + self._waiting,
            lambda: self._settings.gateway.queue_max,
            self._quota_figures,
        )
        self.figures = Figures(self.counters, self.peaks, self.timings, self.health, parts)

    def quotas(self) -> QuotaSettings:
        """What one client may use now."""
        return self._settings.quotas

    def _quota_figures(self) -> dict[str, int]:
        """By the setting: what the client uses that uses most."""
        resumables = self._subscribers.resumables
        return {
            "delayed_max": self._delayed.usage.most(),
            "delayed_bytes_max": self._delayed.usage_bytes.most(),
            "subscriptions_max": self._subscribers.most(),
            "resumable_max": resumables.usage.most(),
            "connections_max": max(self.figures.http_connections.most(), self.figures.websocket_connections.most()),
            "outbox_bytes_max": self.figures.shares.most(),
            "retained_bytes_max": resumables.usage_bytes.most(),
        }

    # --- start ---

    def _new_engine(self) -> Engine:
        """An engine over the store on disk, which is emptied if it is damaged, or over one in memory."""

        def clock() -> datetime:
            return self._now or self._clock.wall()

        limits = self._settings.limits
        new_engine = partial(
            Engine,
            clock=clock,
            delta_quads_max=limits.delta_quads_max,
            term_bytes_max=limits.term_bytes_max,
            evaluation_ms_max=limits.evaluation_ms_max,
            processor_time=thread_time,
            ends_costly=True,
            slices=self._slices,
        )
        if self._store is None:
            return new_engine()
        try:
            return new_engine(store_path=self._store.path)
        except StoreError as error:
            logger.error("store is damaged reason=%s", error)
            self._store.emptied()
            self._way_back = None
            return new_engine(store_path=self._store.path)

    def recover(self, progress: Callable[[int], None] = lambda records: None) -> Recovery:
        """Takes the newest snapshot, replays the change log behind it, and finds out which reactions it lacks.

        progress: told how many records were taken up so far.
        Raises ChangeLogError when the log cannot be read, or is damaged and the settings do not want to go on;
        NotApplied when a record or a snapshot cannot be applied: another Runner has to be made then, and told of it.
        """
        problem = self.health.problems.append
        recovering = Recovering(
            self._log,
            self._base,
            self._engine,
            self._way_back,
            self._knowledge,
            self._resuming,
            self,
            problem,
            self._doubt,
        )
        strict = self._settings.log.recovery == "strict"
        recovery, waiting = recovering.run(self._applications, self._clock, progress, strict=strict)
        self._way_back = None
        if self._base.head is not None:
            self.log_keeper.snapshot = self._base.place
        names = {application.name for application in self._applications}
        self._beginning.extend(waiting)
        self._ending.extend(name for name in self._register.names() if name not in names)
        for client in self._request_ids.clients():
            if client and self._access_of(client) is None:  # it was removed, and the process ended before it said so
                self._forget_client(client)
        try:
            self._note_clocks()
            self._log.sync()
        except ChangeLogError as error:
            # It is tried again when the loop runs; whoever asks for an answer gets it.
            logger.error("gateway starts without being able to write reason=%s", error)
        self._releases.clear()  # nobody is connected yet
        self._unwritten.clear()
        return recovery

    def commit_again(self, record: Record) -> None:
        """Follows a commit's delta at the time of its record; for the recovery, as what follows."""
        self._following, self._now = True, moment(record.ts)
        try:
            commit = self._engine.commit(record.delta, record.seq)
        finally:
            self._following, self._now = False, None
        self._owe(commit)
        if commit.ended:
            self._end_failed(commit.ended)

    def strike_out(self, record: Record) -> None:
        """Strikes out the reaction that a record is. The order in which they are owed may be another one than
        it was: an application that was added later is subscribed in its place since the last start."""
        for place, trigger in enumerate(self._owed):
            if trigger.cause == record.cause:
                del self._owed[place]
                return

    def follow_application(self, application: Application) -> None:
        """Subscribes an application that goes on; one that cannot is stopped, and the others go on."""
        try:
            self._subscribe_application(application)
        except Exception as error:
            self._stop_unable(application, error)

    def begin_application(self, application: Application, sequence: int) -> None:
        """Subscribes an application that begins with the record of that sequence; its first results may be declared
        to count as added by it."""
        for aggregator, subscription in self._subscribe_application(application):
            if application.profile.aggregators[aggregator].first_results:
                first = subscription.first
                self._owed.extend(triggers(application, aggregator, sequence, first, first - first))

    def _subscribe_application(self, application: Application) -> list[tuple[str, Subscription]]:
        found = []
        for aggregator, text in aggregator_queries(application):
            subscription = self._engine.subscribe(text)
            self._aggregators[subscription.spuid] = (application, aggregator)
            found.append((aggregator, subscription))
        return found

    def _begin_and_end(self) -> None:
        """Records that applications ended or began since the last run. Raises ChangeLogError; it is owed still."""
        while self._ending:
            self._commit(QuadDelta(), Cause(APPLICATION, f"{self._ending[0]}@"))
            logger.info("application ended name=%s", self._ending.popleft())
        while self._beginning:
            commit = self._commit(QuadDelta(), self._beginning[0].began)
            application = self._beginning.popleft()
            logger.info("application began name=%s version=%s", application.name, application.digest)
            try:
                self.begin_application(application, commit.sequence)
            except (ChangeLogError, BrokenEngineError):
                raise
            except Exception as error:
                self._stop_unable(application, error)
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
            self._held_since = self.timings.loop_held.now()
            for step in steps:
                await self._take(step)
                if perf_counter() - self._held_since[0] > SLICE_S:
                    await self._breathe(step.run)
            self._held(step.run)
            self._taken += len(steps)
            group = _Group(self._releases, self._log.sequence != before, self._rearm, self._begun)
            self._releases, self._rearm, self._begun = [], False, []
            if self._settings.engine.parallel:
                await self._groups.put(group)
            else:
                await self._finish(group)

    def _held(self, work: Callable[[], object]) -> None:
        """Counts how long the loop was held until now. work: what was done last."""
        self.timings.loop_held.ended(self._held_since, work)

    async def _breathe(self, work: Callable[[], object]) -> None:
        """Lets others go on between two steps of a group. work: that of the step before."""
        self._held(work)
        await asyncio.sleep(0)
        self._held_since = self.timings.loop_held.now()

    async def _in_slices(self, work: Callable[[], Result]) -> Result:
        """Does a work while others go on, but for steps. Raises what it raises."""
        self._held(work)
        try:
            return await self._slices.run(work)
        finally:
            self._upkeep.large_work_ended()
            self._held_since = self.timings.loop_held.now()

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
                begun = perf_counter()
                await self._synced()
                self.timings.sync.took(perf_counter() - begun)
        now = perf_counter()
        for begun in group.begun:
            self.timings.update_processing.took(now - begun)
        held = self.timings.loop_held.now()
        for release in group.releases:
            try:
                release()
            except Exception:  # it is one client's; the others are told
                logger.exception("an outcome could not be told")
            if perf_counter() - held[0] > SLICE_S:
                self.timings.loop_held.ended(held, release)
                await asyncio.sleep(0)
                held = self.timings.loop_held.now()
        if group.rearm:
            self._scheduler.rearm()

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log.sync_interval_ms / 1000)
            await self._synced()

    async def _synced(self) -> None:
        """Syncs the log in a thread that does nothing else, so that no other work keeps it waiting."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._log.sync)

    async def _keep_up(self) -> None:
        """Gives the dataset a little time now and then, when nobody waits."""
        pause, taken = PAUSE_S, self._taken
        while True:
            await asyncio.sleep(pause)
            try:
                if not self._working and self._queue.empty() and self._groups.empty():
                    pause = self._upkeep.turn(quiet=taken == self._taken)
                if self._subscribers.expired():
                    await self._enqueue(self._subscribers.expire)
            except Exception:
                pause = min(2 * max(pause, PAUSE_S), UPKEEP_AGAIN_S)
                logger.exception("upkeep failed pause_s=%.0f", pause)
            taken = self._taken

    def probe(self) -> asyncio.Future[None]:
        """A step that does nothing. Its outcome comes when whatever stood before it is done, written and let out."""
        return self._enqueue(lambda: None)

    def apply(self, settings: Settings) -> asyncio.Future[None]:
        """Takes up what of other settings can be taken up between two steps (`gateway.service.reload`)."""

        def apply() -> None:
            self._settings = settings
            self._trials.limits = settings.limits
            self._engine.store.term_bytes_max = settings.limits.term_bytes_max
            self._engine.work.allow(settings.limits.evaluation_ms_max)
            self._reader.apply(settings.query, settings.limits)

        return self._enqueue(apply)

    async def _take(self, step: _Step) -> None:
        """Runs a step, or puts it on trial before; its outcome goes out with the group."""
        if step.outcome.cancelled():
            return
        if step.lane is not None and step.lane.waiting:
            self._wait(step, step.lane)
            return
        if step.more is not None:
            await step.more()
            self._releases.append(lambda: _fulfil(step.outcome, None))
            return
        try:
            trial = None if step.trial is None else await self._done(step.trial)
            passed = trial is None or trial.passed or self._tasks is None
        except BaseException as error:  # whatever a text does to those who look at it
            await self._refuse(step, _failure(error))
            return
        if passed or trial is None or self._tasks is None:
            await self._run(step, trial)
            return
        lane = step.lane or Lane()
        self._wait(step, lane)
        self._tasks.create_task(self._try(trial, lane), name="trial")

    def _wait(self, step: _Step, lane: Lane) -> None:
        lane.waiting.append(step)
        self._waiting += 1

    async def _try(self, trial: Trial | Reading, lane: Lane) -> None:
        """Has the first step of a lane on trial, and then lets the lane go on."""
        refused: GatewayError | None = None
        try:
            await trial.run()
        except OSError as error:
            refused = StoreError(f"there is no process to try the request in: {error.strerror}")
        except BaseException as error:
            refused = _failure(error)

        async def go_on() -> None:
            steps, lane.waiting = lane.waiting, deque()
            self._waiting -= len(steps)
            first = steps.popleft()
            if refused is None:
                await self._run(first, trial)
            else:
                await self._refuse(first, refused)
            for step in steps:
                if perf_counter() - self._held_since[0] > SLICE_S:
                    await self._breathe(step.run)
                await self._take(step)

        self._queue.put_nowait(_Step(lambda: None, asyncio.get_running_loop().create_future(), more=go_on))

    async def _refuse(self, step: _Step, error: GatewayError) -> None:
        refused = step.refused
        if refused is not None:
            await self._run(_Step(lambda: refused(error), step.outcome), None)
            return
        self.counters.refused += 1
        self._releases.append(lambda: _fail(step.outcome, error))

    async def _done(self, work: Callable[[], Result], *, long: bool = False, in_loop: bool = False) -> Result:
        """Does a work in the loop if it is short, else in slices. Raises what it raises.

        long: it is not expected to be short; in_loop: only what is owed before it can be long.
        """
        while not long:
            try:
                return self._slices.at_once(work)
            except LongError:
                if not in_loop:
                    break
                await self._in_slices(self._react)
        return await self._in_slices(work)

    async def _run(self, step: _Step, trial: Trial | Reading | None) -> None:
        self._prepared_s, before = 0.0, self._log.sequence
        if step.begun is not None:
            self._begun.append(step.begun)
        try:
            result = await self._done(step.run, long=trial is not None, in_loop=step.in_loop)
        except BaseException as error:
            if self._log.sequence != before and isinstance(error, Exception) and not isinstance(error, GatewayError):
                raise behind_its_log(error) from error
            failure = _failure(error)
            self.counters.refused += 1
            self._releases.append(lambda: _fail(step.outcome, failure))
            return
        finally:
            if trial is not None:
                trial.took(self._prepared_s)
        self._releases.append(lambda: _fulfil(step.outcome, result))
        await self._try_to_react()
        while self._unwritten:
            await self._in_slices(self._write_results)

    def _write_results(self) -> None:
        """Makes the text of long results, while others go on."""
        with self._slices.beside():
            self._unwritten.pop().members  # noqa: B018 - it is kept

    async def _try_to_react(self) -> None:
        """Runs the reactions that are owed. When the log cannot take them now they are tried again soon."""
        try:
            await self._done(self._react)
        except BaseException as error:
            failure = _failure(error)  # whose request it was is told what became of that: this is none of its business
            logger.error("reactions wait for another try owed=%d reason=%s", len(self._owed), failure)
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
        trial: Callable[[], Trial | Reading | None] | None = None,
        refused: Callable[[GatewayError], Any] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
    ) -> asyncio.Future[Any]:
        """A step that the gateway itself asks for; it takes no room from the clients."""
        step = _Step(run, asyncio.get_running_loop().create_future(), lane, trial, refused, begun, in_loop)
        self._queue.put_nowait(step)
        return step.outcome

    def submit(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | Reading | None] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
    ) -> asyncio.Future[Any]:
        """Puts a step into the queue. Raises QueueFullError (SEPA protocol 5.1: refused at once, never waiting)."""
        self.check_room(1)
        return self._enqueue(run, lane, trial, begun=begun, in_loop=in_loop)

    def check_room(self, count: int) -> None:
        """Raises QueueFullError unless the queue has room for so many requests."""
        waiting = self._queue.qsize() + self._waiting + count
        if waiting > self._settings.gateway.queue_max:
            self.counters.queue_full += 1
            raise QueueFullError(
                f"gateway.queue_max = {self._settings.gateway.queue_max} requests are waiting; try a little later"
            )
        if waiting > self.peaks.waiting:
            self.peaks.waiting = waiting

    # --- requests ---

    def update(self, call: UpdateCall) -> asyncio.Future[Accepted]:
        """The outcome is Accepted when the update is durable, or a GatewayError when nothing was changed."""

        delayed = call.delay is not None or call.at is not None
        access = call.caller.access
        reading = None
        if is_large(call.sparql):
            reading = Reading(
                self._large_updates,
                call.sparql,
                lambda found: None if delayed else self._trials.of_operations(call.sparql, found, call.using, access),
            )

        def trial() -> Trial | Reading | None:
            if self._request_ids.get(call.request_key):
                return None
            if reading is not None:
                return reading
            return None if delayed else self._trials.of_update(call.sparql, call.using, access)

        outcome = self.submit(lambda: self._update(call, reading), call.lane, trial, perf_counter())
        self.counters.updates += 1
        return outcome

    def outline(self, sparql: str) -> QueryOutline:
        """What the tokens of a client's query tell (`query_outline`), which are read in the loop.

        Raises LimitExceededError, UnsupportedRequestError, RequestSyntaxError.
        """
        begun = self.timings.loop_held.now()
        try:
            self._check_length(sparql)
            return query_outline(sparql)
        finally:
            self.timings.loop_held.ended(begun, self.outline)

    def _check_length(self, sparql: str) -> None:
        """Raises LimitExceededError for a query or subscription that is too long to be looked at."""
        bytes_max = self._settings.limits.query_bytes_max
        if len(sparql) > bytes_max or len(sparql.encode(errors="surrogatepass")) > bytes_max:
            raise LimitExceededError(
                f"the text of a query or subscription is longer than limits.query_bytes_max = {bytes_max} bytes; send "
                "long lists of values with an update, and join with them"
            )

    def query(
        self,
        query: QueryOutline,
        media_type: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        lane: Lane | None = None,
        caller: Caller = ANYBODY,
    ) -> asyncio.Future[Answer]:
        """The outcome is an Answer to iterate over, of what the caller may read of the dataset as it was in the query's
        turn."""

        def start() -> Answer:
            self.counters.queries += 1
            graphs = self._engine.readable(query.text, default_graphs, named_graphs, caller.access)
            store = self._engine.store.native
            asked = replace(query, text=query_at(query.text, self._clock.wall()))
            return self._reader.start(store, asked, media_type, *graphs)

        return self.submit(start, lane, in_loop=True)

    def graph(self, graph: Term | None, media_type: str, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with all triples of a graph, None for the default one, or UnknownGraphError."""

        def start() -> Answer:
            caller.access.read.check([graph], "read")
            if graph is not None and not self._engine.store.has_graph(graph):
                raise UnknownGraphError(f"there is no graph {graph}")
            self.counters.queries += 1
            return self._reader.graph(self._engine.store.native, graph, media_type)

        return self.submit(start, in_loop=True)

    def write_graph(self, write: GraphWrite, cause: Cause, caller: Caller = ANYBODY) -> asyncio.Future[bool]:
        """Has a whole graph replaced, added to or dropped by one commit. The outcome is whether it is a new one, which
        is not told to those who may not read it."""

        def run() -> bool:
            caller.access.write.check([write.graph], "write")
            self._react()
            self._reactions_in_a_row.clear()
            try:
                delta = graph_write_delta(self._engine.store, write, self._slices)
            except UnknownGraphError:
                if write.graph in caller.access.read:
                    raise
                delta = QuadDelta()
            # No number may tell what is in a graph that the client may not read.
            if delta.changes or delta.kept or caller.access.blind:
                self._commit(delta, cause, client=caller.name or None)
            return bool(delta.created) and write.graph in caller.access.read

        outcome = self.submit(run)
        self.counters.updates += 1
        return outcome

    def subscribe(
        self,
        sparql: str,
        sink: Sink,
        default_graphs: tuple[Term, ...] | None,
        named_graphs: tuple[Term, ...] | None,
        lane: Lane | None = None,
        resume: Resume | None = None,
        caller: Caller = ANYBODY,
    ) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then, or what it missed.

        The other arguments are those of `SubscribeCall`. Raises LimitExceededError, MalformedRequestError.
        """
        self._check_length(sparql)
        asked = self._subscribers.asked(SubscribeCall(sparql, sink, default_graphs, named_graphs, resume, caller))

        def start() -> str:
            try:
                return self._subscribers.begin(asked)
            finally:
                self._prepared_s = self._subscribers.evaluated_s

        return self.submit(start, lane, lambda: self._subscribers.trial(asked))

    def unsubscribe(
        self, spuid: str, sink: Sink, lane: Lane | None = None, caller: Caller = ANYBODY
    ) -> asyncio.Future[None]:
        """Ends a subscription of this sink, or a resumable one of the same client that no sink is attached to.

        Somebody else's is answered as an unknown one, also when it is on the same connection.
        """

        return self.submit(lambda: self._subscribers.end(spuid, sink, caller), lane)

    def disconnect(self, sink: Sink, spuids: Sequence[str]) -> None:
        """Ends what a connection that is gone had, and leaves the resumable ones to themselves; takes no room in the
        queue, since the gateway itself asks."""

        self._enqueue(lambda: self._subscribers.leave(sink, spuids))

    def permissions_changed(self, client: str) -> asyncio.Future[None]:
        """Ends the subscriptions of a client that may see other graphs now than when they began, or none; cancels the
        delayed updates of one that was removed, and forgets its request ids. What it may do is asked now: when the step
        has its turn, another one may have come under that name."""
        access = self._access_of(client)

        def change() -> None:
            self._subscribers.permissions_changed(client, access)
            if access is None:
                self._forget_client(client)

        return self._enqueue(change)

    def _forget_client(self, client: str) -> None:
        """Forgets what a client that was removed asked for. The record of it is owed, and goes before all others: what
        another one of that name asks for stands behind it."""
        if self._request_ids.forget(client) or self._delayed.names_of(client):
            self._removed.append(client)

    def _record_removals(self) -> None:
        """Records that clients were removed, and cancels their delayed updates. Raises ChangeLogError; it is owed
        still."""
        while self._removed:
            cause = Cause(REMOVED, self._removed[0])
            names = self._delayed.names_of(cause.id)
            if len(names) > APPENDS_MAX:
                self._slices.begin(len(names))
            for name in names:
                self._journal.append(entries.cancel(name, cause))
                self._slices.pause()
            self._commit(QuadDelta(), cause)
            self._removed.popleft()
            self._rearm = True

    @property
    def replay_bytes_max(self) -> int:
        """What clients that resume may have waiting for them."""
        return self._settings.resume.bytes_max

    def cancel(self, name: str, cause: Cause, caller: Caller = ANYBODY) -> asyncio.Future[None]:
        """Cancels a delayed update of the caller's, of anybody's if it is an operator."""

        def cancel() -> None:
            if (self._delayed.get(name) if caller.operator else self._delayed.of(caller.name, name)) is None:
                raise UnknownDelayedError(f"no delayed update {name!r} is pending; GET /delayed lists them")
            self._react()
            self._journal.append(entries.cancel(name, cause))
            self._rearm = True

        return self.submit(cancel)

    def take_snapshot(self) -> asyncio.Future[Taken]:
        """A snapshot of this moment, written by a fork; for the log keeper."""

        def take() -> Taken:
            self._react()  # what is owed is not in a snapshot
            store, names, head = self._engine.store, self._engine.store.graphs(), self._log.head()
            store.flush()

            def written(out: BinaryIO) -> None:
                write(out, head, names, msgspec.json.encode(self._knowledge.state()), self._engine.snapshot())

            return Taken(head, self._reader.stream(written))

        return self._enqueue(take, in_loop=True)

    @property
    def log(self) -> LogWriter:
        """The log, for those who bring files to where it is."""
        return self._log

    def begin_restore(self, backup: Path) -> asyncio.Future[Answer]:
        """Has a fork compare the dataset with a backup (`restoring.difference` reads the outcome). Until
        `end_restore`, what is committed is noted. Raises ChangeLogError when it cannot be read; the outcome is a
        QueueFullError while another one is being restored."""

        work = comparison(backup, self._engine, self._settings.delayed.pending_max, self._clock.wall())

        def begin() -> Answer:
            if self._since is not None:
                raise QueueFullError("another backup is being restored; try a little later")
            self._engine.store.flush()
            answer = self._reader.stream(work)
            self._since = []
            return answer

        return self._enqueue(begin, in_loop=True)

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
            self._slices.begin(LONG)
            delta = difference.since(self._since, self._slices)
            commit = self._commit(delta, cause)
            self._react()  # a reaction stands behind its trigger, before anything else
            going = [name for name in going if self._delayed.get(name) is not None]
            for name in going:
                self._journal.append(entries.cancel(name, cause))
                self._slices.pause()
            for timer in difference.timers:
                self._journal.append(entries.timer(timer, cause))
                self._slices.pause()
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
            self._journal.append(entries.gap(gap))

        return self._enqueue(note)

    @property
    def quad_count(self) -> int:
        """How many quads the dataset has."""
        return self._engine.quad_count

    @property
    def delayed_count(self) -> int:
        """How many delayed updates are pending."""
        return len(self._delayed)

    def delayed_updates(self, caller: Caller = ANYBODY) -> list[dict[str, Any]]:
        """The caller's pending delayed updates that are due next, everybody's if it is an operator."""
        rows = self._delayed.table(None if caller.operator else caller.name)
        if not caller.numbered:
            for row in rows:
                del row["sequence"]
        return rows

    def delayed_count_of(self, caller: Caller) -> int:
        """How many of those are pending."""
        return len(self._delayed) if caller.operator else self._delayed.usage.of(caller.name)

    # --- what evaluations cost ---

    def _measured(self, text: str, select: SelectRun) -> Bag:
        """Runs a SELECT of the engine's, after it was done in a fork if it is risky; takes the time of those that a
        commit makes necessary. Raises LimitExceededError, and TooMuchWork when a commit is followed."""
        if os.getpid() != self._process:
            return select()  # it is being tried
        if self._trials.risky(text):
            self._try_here(select)
        if not self._following:
            return select()
        begun = thread_time()

        def check() -> None:
            """A result that is longer and longer is not waited for three times."""
            if (thread_time() - begun) * 1000 > OVERRUNS_MAX * self._settings.limits.evaluation_ms_max:
                raise self._engine.work.exceeded()

        result = select(check)
        evaluation = self._evaluations.of(text)
        evaluation.ms = (thread_time() - begun) * 1000
        evaluation.overruns = evaluation.overruns + 1 if evaluation.ms > self._settings.limits.evaluation_ms_max else 0
        if evaluation.overruns >= OVERRUNS_MAX:
            self._too_slow[text] = evaluation.ms
        return result

    def _try_here(self, select: SelectRun) -> None:
        if not self._following and not self._slices.elsewhere:
            self._slices.begin(LONG)  # the loop is not to wait for a fork
        try:
            self._reader.try_here(select)
        except LimitExceededError:
            if self._following:
                raise self._engine.work.exceeded() from None
            raise

    def _end_slow_ones(self) -> None:
        """Ends the subscriptions that slow down everybody. Those of applications are the operator's to look after."""
        for text, ms in self._too_slow.items():
            self._evaluations.forget(text)
            error = LimitExceededError(
                f"the subscription was ended: {OVERRUNS_MAX} evaluations in a row took longer than "
                f"limits.evaluation_ms_max = {self._settings.limits.evaluation_ms_max}; narrow it down"
            )
            for spuid, (application, _) in self._aggregators.items():
                if self._engine.describe(spuid).text == text:
                    name = application.name
                    logger.warning("application's subscription is slow name=%s evaluation_ms=%.0f", name, ms)
                    problem = (
                        f"application {name}: a query takes longer than limits.evaluation_ms_max = "
                        f"{self._settings.limits.evaluation_ms_max} at commit after commit; narrow it down"
                    )
                    if problem not in self.health.problems:
                        self.health.problems.append(problem)
            self._subscribers.end_slow(text, ms, error)
        self._too_slow.clear()

    # --- steps ---

    def _update(self, call: UpdateCall, reading: Reading | None) -> Accepted:
        batch = call.batch or Batch()
        if batch.refused is not None:
            raise batch.refused
        try:
            return self._accepted(call, None if reading is None else reading.operations)
        except GatewayError as error:
            batch.refused = error if error.retriable else None
            raise

    def _accepted(self, call: UpdateCall, operations: Sequence[Resolved] | None) -> Accepted:
        if len(call.request_id or "") > REQUEST_ID_CHARACTERS_MAX:
            raise MalformedRequestError(f"a request id has {REQUEST_ID_CHARACTERS_MAX} characters at most")
        key, client = call.request_key, call.caller.name or None
        if call.caller.registered and self._access_of(call.caller.name) is None:
            raise _not_registered(call.caller.name)
        known = self._request_ids.get(key)
        if known is not None:
            return known
        self._react()  # what could not be written before goes first
        self._reactions_in_a_row.clear()
        if call.missed is not None and call.delay is None and call.at is None:
            raise MalformedRequestError("missed is for delayed updates; give delay or at too")
        if call.delay is not None or call.at is not None:
            if call.using:
                raise MalformedRequestError("a delayed update names its graphs in its text, by USING or WITH")
            access = call.caller.access
            accepted = self._delay(
                call.sparql, call.delay, call.at, call.missed, call.cause, call.request_id, client, access, operations
            )
        else:
            delta = self._prepared(call.sparql, call.using, call.caller.access, operations)
            # The next number tells that there was something to delete: where that is not to be seen each has one.
            if not (delta.changes or delta.kept or call.request_id or call.caller.access.blind):
                self.timings.store_update.took(self._evaluated_s)
                return Accepted(self._log.sequence)  # nothing to tell, not even later
            accepted = Accepted(self._commit(delta, call.cause, call.request_id, client).sequence)
        return accepted

    def _commit(
        self, delta: QuadDelta, cause: Cause, request_id: str | None = None, client: str | None = None
    ) -> Commit:
        """Append, apply, match: in this order, and nothing of it when the append fails. Raises ChangeLogError."""
        if self._is_long(delta):
            self._slices.begin(LONG)
        begun, now = perf_counter(), self._clock.wall()
        record = self._journal.append(entries.commit(delta, cause, request_id, client), now)
        try:
            stored = perf_counter()
            self.timings.store_update.took(self._evaluated_s + stored - begun)
            self._evaluated_s = 0.0
            self._following, self._now = True, now
            commit = self._engine.commit(delta, record.seq)
            self.counters.commits += 1
            if self._since is not None:
                self._since.append(delta)
            self._owe(commit)
            self.timings.spu_manager.took(perf_counter() - stored)
            if commit.ended:
                self._end_failed(commit.ended)
            if self._too_slow:
                self._end_slow_ones()
        except Exception as error:
            raise behind_its_log(error) from error
        finally:
            self._following, self._now = False, None
        while self._engine.faults:
            logger.error("fault was made good sequence=%d %s", commit.sequence, self._engine.faults.popleft())
        return commit

    def _end_failed(self, ended: Sequence[Ended]) -> None:
        """Tells whose subscriptions the engine has ended. An application that lacks one is stopped, or begins
        again if the query was only too costly."""
        self._subscribers.end_failed([one for one in ended if one.spuid not in self._aggregators])
        for spuid, error in ended:
            if spuid in self._aggregators:
                application = self._aggregators[spuid][0]
                if isinstance(error, LimitExceededError):
                    self._interrupt(application, error)
                else:
                    self._stop(application, f"application {application.name} was stopped: {error}")

    def _interrupt(self, application: Application, error: LimitExceededError) -> None:
        """Ends an application one of whose queries went over the limit, and has it begin again.

        What it owes by earlier commits, and by its other queries for this one, is done before. What the query would
        have triggered by this commit is lost, and the log says so: the application ended and began behind it.
        """
        name = application.name
        self._interruptions[name] += 1
        again = self._interruptions[name] <= INTERRUPTIONS_MAX
        self._let_go(application)
        self._stopped.append(application)
        if again:
            self._beginning.append(application)
        self.health.problems.append(
            f"application {name}: a query went over its limit, and what it would have triggered was not done"
            f"{'' if again else '; the application was stopped until the next start'}: {error}"
        )
        logger.error("application's query over the limit name=%s begins_again=%s reason=%s", name, again, error)

    def _let_go(self, application: Application) -> None:
        """Ends the subscriptions of an application."""
        for spuid, (owner, _) in list(self._aggregators.items()):
            if owner == application:
                del self._aggregators[spuid]
                with suppress(UnknownSpuidError):  # the engine itself has ended it
                    self._engine.unsubscribe(spuid)

    def _is_long(self, delta: QuadDelta) -> bool:
        """Whether following a delta may take long: it is large, or the store evaluates what takes time."""
        if len(delta.removed) + len(delta.added) > LONG or self._engine.work.heavy:
            return True
        texts = self._engine.re_evaluated(delta)
        known = [self._evaluations.get(text) for text in texts]
        if None in known or sum(evaluation.ms for evaluation in known if evaluation) > EVALUATIONS_MS_MAX:
            return True
        return any(self._trials.risky(text) for text in texts)

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
                if is_long(notification.added) or is_long(notification.removed):
                    self._unwritten.append(results)
            self._subscribers.deliver(notification, results)

    def _delay(
        self,
        sparql: str,
        delay: str | None,
        at: str | None,
        missed: Missed | None,
        cause: Cause,
        request_id: str | None = None,
        client: str | None = None,
        access: Access = FULL,
        operations: Sequence[Resolved] | None = None,
    ) -> Accepted:
        if delay is not None and at is not None:
            raise MalformedRequestError("delay and at exclude each other")
        if len(self._delayed) >= self._settings.delayed.pending_max:
            raise LimitExceededError(f"delayed.pending_max = {self._settings.delayed.pending_max} updates are pending")
        if operations is None:
            operations = resolved(sparql, now=self._clock.wall())  # its errors belong to whoever asks now
        if not access.full:
            check_access(operations, access)
        timer = Timer(
            id=uuid.uuid4().hex,
            update=sparql,
            delay_us=None if delay is None else delay_us(delay),
            at=None if at is None else iso(at_moment(at)),
            missed=missed or self._settings.delayed.missed,
            client=client,
        )
        if client is not None:
            quotas, delayed = self._settings.quotas, self._delayed
            check(delayed.usage.of(client), 1, "delayed_max", quotas.delayed_max, "the pending delayed updates")
            size = delayed.usage_bytes.of(client), text_bytes(timer)
            what = "the bytes of pending delayed updates"
            check(*size, "delayed_bytes_max", quotas.delayed_bytes_max, what)
        record = self._journal.append(entries.timer(timer, cause, request_id, client))
        self._rearm = True
        return Accepted(record.seq, timer.id)

    async def _fire(self, name: str) -> None:
        """Executes a delayed update that is due: firing and effect are one commit. Called by the scheduler."""

        reading: Reading | None = None

        def fire() -> None:
            pending = self._delayed.get(name)
            if pending is None:
                return  # it was cancelled while it waited for its turn
            self._react()
            if self._skipped(name):
                return
            self._reactions_in_a_row.clear()
            operations = None if reading is None else reading.operations
            delta = self._effect(pending.timer.update, _TIMER_FAILED, name, pending.timer.client, operations)
            cause = Cause("timer", name, pending.sequence)
            try:
                self._commit(delta, cause)
            except LimitExceededError as error:  # its record would be too long
                logger.error(_TIMER_FAILED, name, error)
                self._commit(QuadDelta(), cause)
            self.counters.delayed_fired += 1

        def trial() -> Trial | Reading | None:
            nonlocal reading
            pending = self._delayed.get(name)
            if pending is None or (pending.timer.missed == "skip" and self._delayed.missed(name) is not None):
                return None
            access = self._access(pending.timer.client)
            if access is None:
                return None
            text = pending.timer.update
            if is_large(text):
                tried = partial(self._trials.of_operations, text, using=None, access=access)
                reading = reading or Reading(self._large_updates, text, tried)
                return reading
            return self._trials.of_update(text, None, access)

        def refused(error: GatewayError) -> None:
            pending = self._delayed.get(name)
            if pending is None:
                return
            logger.error(_TIMER_FAILED, name, error)
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
        self._journal.append(entries.cancel(name, Cause("missed", name)))
        self.counters.delayed_skipped += 1
        return True

    def _react(self) -> None:
        """Records what applications have to say, and runs the reactions that are owed, in order.

        Raises ChangeLogError; they are owed still.
        """
        self._run_owed()
        if self._beginning or self._ending:
            self._begin_and_end()
        self._subscribers.record_ends()
        self._record_removals()

    def _run_owed(self) -> None:
        while self._owed or self._stopped:
            if not self._owed:
                # Behind all reactions: recovery looks for missing ones only behind the last record that is none.
                self._commit(QuadDelta(), Cause(APPLICATION, f"{self._stopped[0].name}@"))
                self._stopped.popleft()
                continue
            trigger = self._owed[0]
            if self._reactions_in_a_row[trigger.application.name] >= REACTIONS_MAX:
                name = trigger.application.name
                self._stop(
                    trigger.application,
                    f"application {name} was stopped: one request led to {REACTIONS_MAX} reactions",
                )
                continue
            before = self._log.sequence
            try:
                reaction = trigger.reaction()
                if reaction.delay is None and reaction.at is None:
                    self._commit(self._effect(reaction.sparql, _REACTION_FAILED, trigger.cause.id), trigger.cause)
                else:
                    self._delay(reaction.sparql, reaction.delay, reaction.at, reaction.missed, trigger.cause)
            except (ChangeLogError, BrokenEngineError):
                raise
            except Exception as error:
                if self._log.sequence != before:
                    raise behind_its_log(error) from error
                # It would fail again: recorded as done without effect, and said.
                unexpected = not isinstance(error, GatewayError)
                cause, sequence = trigger.cause, trigger.sequence
                logger.error(
                    "reaction failed id=%s sequence=%s reason=%s", cause.id, sequence, error, exc_info=unexpected
                )
                self._commit(QuadDelta(), cause)
            if self._owed and self._owed[0] is trigger:  # its application may have been stopped
                self._owed.popleft()  # only now: what the log did not take is owed still
            self._reactions_in_a_row[trigger.application.name] += 1
            self.counters.reactions += 1

    def _prepared(
        self,
        sparql: str,
        using: UsingGraphs | None = None,
        access: Access = FULL,
        operations: Sequence[Resolved] | None = None,
    ) -> QuadDelta:
        """The delta of an update. Whatever goes wrong here changed nothing, so it is the request's trouble alone."""
        begun, wall = thread_time(), perf_counter()
        try:
            return self._engine.prepare(sparql, using=using, access=access, operations=operations)
        except GatewayError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            logger.exception("update could not be prepared")
            raise StoreError(f"the update could not be evaluated: {error!r}") from error
        finally:
            self._prepared_s = thread_time() - begun
            self._evaluated_s = perf_counter() - wall

    def _access(self, client: str | None) -> Access | None:
        """What a client may do now, None if it is not registered any more. The gateway itself may do everything."""
        return FULL if client is None else self._access_of(client)

    def _effect(
        self,
        sparql: str,
        failed: str,
        name: str,
        client: str | None = None,
        operations: Sequence[Resolved] | None = None,
    ) -> QuadDelta:
        """The delta of an update that nobody waits for; one that fails has none, and that is said.

        failed: the line that says it; client: who asked for it, with the permissions that it has now.
        """
        try:
            access = self._access(client)
            if access is None:
                raise _not_registered(client or "")
            return self._prepared(sparql, access=access, operations=operations)
        except (RequestError, StoreError) as error:
            logger.error(failed, name, error)
            return QuadDelta()

    def _stop_unable(self, application: Application, error: Exception) -> None:
        """Ends an application whose queries cannot be subscribed to."""
        unexpected = not isinstance(error, GatewayError)
        self._stop(application, f"application {application.name} was stopped: {error}", unexpected)

    def _stop(self, application: Application, problem: str, unexpected: bool = False) -> None:
        """Ends an application that cannot go on, or whose updates trigger it again and again."""
        self.health.problems.append(problem)
        logger.error("application stopped name=%s reason=%s", application.name, problem, exc_info=unexpected)
        self._owed = deque(trigger for trigger in self._owed if trigger.application != application)
        self._let_go(application)
        self._stopped.append(application)

    def close(self, *, orderly: bool = False) -> None:
        """Lets go of the log and of the dataset, and ends the queries that still run. orderly: nothing is under way,
        and the log may say so."""
        self._reader.close()
        self._disk.shutdown()
        self._slices.close()
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


def _not_registered(client: str) -> AccessDeniedError:
    return AccessDeniedError(f"the client {client} is not registered any more")


def _failure(error: BaseException) -> GatewayError:
    """What the requester is told of a step that failed, whatever it raised; what is no GatewayError is logged.

    Raises what must end the gateway, and this is all that does: BrokenEngineError, and what is no fault of the step
    (the end of a task or of the process). Besides, the loop itself ends when the log is broken (`LogWriter.broken`).
    """
    if isinstance(error, BrokenEngineError) or not is_fault(error):
        raise error
    if isinstance(error, GatewayError):
        return bare(error)
    logger.error("request failed", exc_info=error)
    return StoreError(f"the gateway failed at this request: {bare(error)!r}; its log says where")


def _fulfil(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Answer):
        result.abandon()  # whoever asked is gone


def _fail(outcome: asyncio.Future[Any], error: GatewayError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
