"""The one task that owns engine, change log and timers; everything reaches them through its queue.

::

    gates, timers ─▶ Queue ─▶ TaskExecutor: tasks of a group, in turn ─▶ GroupEnd: one fsync for the group, releases
                                 └─▶ UpdateRequests, Subscribers, Timers, Restore ─▶ Reactions, Ledger

The runner makes the parts and keeps them running: it has groups taken from the queue until it ends. The parts do the
work, each with an interface of its own. Nothing is released, neither answer nor notification, before every record that
it saw is durable (design 4.5). A disk that cannot sync leaves no state to go on from, nor does a record that cannot be
followed (`BrokenEngineError`): then the gateway ends, and recovers from the log at its next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.protocol import Priority, Resume
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import since_1970_us
from lamplighter.gateway.log.maintenance import LogMaintenance
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.clock_commits import ClockCommits
from lamplighter.gateway.loop.dataset import LiveDataset
from lamplighter.gateway.loop.declarations import ApplicationDeclarations
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.delivered import DeliveredSubscriptions, QueuedRenewal
from lamplighter.gateway.loop.derivation_start import InferenceStart, ValidationStart
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.executor import Distribution, GroupEnd, TaskExecutor
from lamplighter.gateway.loop.history_keeper import HistoryKeeper
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.past import Past
from lamplighter.gateway.loop.queries import Queries
from lamplighter.gateway.loop.queue import AccessOf, LiveSettings, OrderedLane, Queue, ReleaseGroup
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.recovery import LogReplay
from lamplighter.gateway.loop.recovery_attempt import RecoveryAttempt
from lamplighter.gateway.loop.removals import Removals
from lamplighter.gateway.loop.requests import kinds
from lamplighter.gateway.loop.restore import Restore
from lamplighter.gateway.loop.resumption import ResumptionService
from lamplighter.gateway.loop.scheduler import Scheduler
from lamplighter.gateway.loop.subscribers import QueuedEnd, Sink, SubscribeCall, Subscribers
from lamplighter.gateway.loop.time_slicer import TimeSlicer
from lamplighter.gateway.loop.timers import Timers
from lamplighter.gateway.loop.updates import UpdateRequests
from lamplighter.gateway.loop.upkeep import PAUSE_S, Upkeep
from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.figures import Counters, Figures, HighWaterMarks, Parts
from lamplighter.gateway.monitoring.health.components import Reports
from lamplighter.gateway.monitoring.health.devices import DeviceComponents
from lamplighter.gateway.monitoring.health.model import HealthModel
from lamplighter.gateway.monitoring.health.others import ApplicationComponents, PeerComponents
from lamplighter.gateway.monitoring.health.own import ENGINE, LOG, OwnComponents
from lamplighter.gateway.monitoring.timings import Timings, count_durations
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.knowledge import Knowledge
from lamplighter.gateway.state.messages import MessageSources
from lamplighter.gateway.state.outcomes import Outcomes
from lamplighter.gateway.state.resumption import ResumableSubscriptions
from lamplighter.gateway.state.stored_applications import StoredApplications
from lamplighter.gateway.workers.ad_hoc import Answer, Reader
from lamplighter.gateway.workers.dry_runs import DryRuns
from lamplighter.gateway.workers.rdf_bodies import RdfBodies
from lamplighter.gateway.workers.recent_changes import QueryWatch

if TYPE_CHECKING:
    from lamplighter.engine.shacl.sources import ShapeSources

logger = EventLogger(__name__)

UPKEEP_AGAIN_S = 600.0
"""Longest time until upkeep that fails each time is tried again."""
_REBUILT = "restart the gateway; the start rebuilds the dataset from the log"
_VERIFY = "run `lamplighter verify`; a restart sets damaged files aside"


class Runner:
    """Owns the parts. Use: `recover`, then `run`. Whoever has a request calls the part that does the work, which puts a
    request into the queue.

    It is one class because it is the interface of the loop to gates and service.
    """

    def __init__(
        self,
        settings: Settings,
        log: LogWriter,
        applications: Sequence[Application] = (),
        access_of: AccessOf = lambda client: FULL,
        attempt: RecoveryAttempt = RecoveryAttempt(),  # noqa: B008 - frozen
        shapes: ShapeSources | None = None,
    ) -> None:
        """log: its clock is that of all parts. access_of: what a client may do now. attempt: what tries of this start
        have taught. shapes: None for none.

        It is one function because it is the list of the parts: each is made once, from those above it.
        """
        self._attempt = attempt
        self.access_of = access_of
        self._clock = clock = log.clock
        self._log = log
        self.current = current = LiveSettings(settings, access_of)
        self.access = current.access
        self.timings, self.counters, self.peaks = Timings(), Counters(), HighWaterMarks()
        reports, outcomes, self._obligations = Reports(), Outcomes(), Obligations()
        self._slicer = slicer = TimeSlicer(self.timings.loop_held)
        log.slices = slicer
        self._dataset = LiveDataset(settings, clock, log, slicer, attempt)
        self._engine = engine = self._dataset.engine
        queried = self.timings.store_query
        self._reader = Reader(
            settings.query, settings.limits, self._dataset.path, lambda seconds: count_durations([(queried, seconds)])
        )
        self._reader.steady = slicer.steady
        self.rdf_bodies = RdfBodies(self._reader)
        self._dry_runs = DryRuns(engine, self._reader, settings.limits)
        self.queue = queue = Queue(current, self.counters, self.peaks)
        resumables: ResumableSubscriptions[Sink] = ResumableSubscriptions(settings.resume, current.quotas)
        self._resumption = ResumptionService(engine, resumables, settings.gateway.durability, clock.boot)
        self._knowledge = Knowledge(clock, self._resumption)
        self._delayed = self._knowledge.delayed
        evaluations = Evaluations(engine, self._reader, self._dry_runs, slicer, current)
        self._ledger = ledger = Ledger(self._dataset, self._knowledge, evaluations, self.timings, self.counters)
        self._scheduler = Scheduler(self._delayed, clock)
        delays = Delays(self._delayed, ledger, self._scheduler, queue, current)
        self._aggregators = Aggregators(engine, current, reports, self._obligations)
        self._reactions = reactions = Reactions(self._obligations, outcomes, ledger, self._aggregators, delays, queue)
        self._knowledge.stored = stored = StoredApplications(log.data, log.disk)
        self.declarations = ApplicationDeclarations(applications, stored, queue, ledger, self._aggregators, reactions)
        self.applications = declared = self.declarations.declared
        outcomes.declare(declared, declared.declared)
        self._subscribers = Subscribers(ledger, reactions, self._resumption, self._dry_runs, queue, current)
        evaluations.again.client_of = self._client_of
        evaluations.again.applications = self._aggregators.queries
        ledger.distribution = self._distribution = Distribution(evaluations, self._aggregators, self._subscribers)
        self.delivered = DeliveredSubscriptions(ledger, self._resumption, reactions, queue)
        self._removals = Removals(ledger, delays, self._obligations)
        self._obligations.starts += (
            InferenceStart(ledger, settings.inference).begin,
            ValidationStart(ledger, shapes).begin,
        )
        self._obligations.recorders = (
            self._subscribers.record_takeovers,
            self._subscribers.record_ends,
            self._removals.record,
        )
        self._timers = Timers(queue, ledger, reactions, delays, self._dry_runs, current)
        self.updates = UpdateRequests(queue, ledger, reactions, delays, self._dry_runs, current)
        self.queries = Queries(self._dataset, self._reader, queue, current, self.timings)
        queue.kinds.update(kinds(self.updates, self.queries, self._subscribers, self._timers, self.delivered))
        self.messages = MessageSources()
        self.past = Past(self._reader, log, clock, current, declared)
        self.backups = Restore(ledger, self._reader, reactions, delays, queue, current)
        self._clock_commits = ClockCommits(ledger, reactions, queue)
        self._upkeep = Upkeep(engine, reports.failing(ENGINE, _REBUILT))
        slicer.between, slicer.ended = self._upkeep.between, self._upkeep.large_work_ended
        self._executor = TaskExecutor(queue, ledger, self._distribution, reactions, self._clock_commits, slicer)
        self._group_end = GroupEnd(queue, ledger, self._executor, self._scheduler, self.timings)
        self._working = False
        self.log_keeper = LogMaintenance(log, self.backups, settings.log, clock, reports.failing(LOG, _VERIFY))
        self.history_keeper = HistoryKeeper(log, self.log_keeper, self._reader)
        brokers = Brokers(lambda: current.settings, engine.store, clock)
        parts = Parts(
            clock,
            log,
            self.log_keeper,
            engine,
            self._delayed,
            self._dry_runs,
            self._upkeep,
            self._subscribers,
            self._aggregators,
            queue,
            brokers,
            outcomes,
        )
        own = OwnComponents(lambda: current.settings, clock, log, reports, clock.boottime_us())
        others = (
            PeerComponents(brokers),
            DeviceComponents(brokers, engine.store, clock),
            ApplicationComponents(outcomes, reports),
            self.declarations,
        )
        health = HealthModel(clock, own, others)
        self.figures = Figures(self.counters, self.peaks, self.timings, health, parts)

    # --- start and end ---

    def recover(self, progress: Callable[[int], None] = lambda records: None) -> Recovery:
        """Takes the newest snapshot, replays the change log behind it, and finds out which reactions it lacks.

        progress: told how many records were taken up so far.
        Raises ChangeLogError when the log cannot be read, or is damaged and the settings do not want to go on;
        ReplayError when a record or a snapshot cannot be applied: another Runner has to be made then, and told of it.
        """
        replay = LogReplay(
            self._dataset, self._resumption, self._aggregators, self._obligations, self._ledger, self._attempt
        )
        strict = self.current.settings.log.recovery == "strict"
        recovery, waiting = replay.run(self.applications.declared, progress, strict=strict)
        if self._dataset.base.head is not None:
            self.log_keeper.snapshot = self._dataset.base.place
        self._aggregators.expect(waiting, self.applications.declared, self._knowledge.register)
        self._removals.reconcile(self.access_of)
        try:
            self._timers.note_now()
            self._log.sync()
        except ChangeLogError as error:
            # It is tried again when the loop runs; whoever asks for an answer gets it.
            logger.error("gateway started, change log not writable", reason=error)
        self.queue.group = ReleaseGroup()  # nobody is connected yet
        self._log.tail.acknowledge((self._log.epoch, self._log.sequence))
        self._group_end.appended = self._log.sequence
        return recovery

    def close(self, *, orderly: bool = False) -> None:
        """Closes log and dataset, and ends the queries that still run. orderly: nothing is under way, and the log may
        say so."""
        self._reader.close()
        self._group_end.disk.shutdown()
        self._slicer.close()
        if orderly:
            self._dataset.finish()
            self._log.finish()
        else:
            self._log.close()
        self._engine.close()

    # --- the loop ---

    async def run(self) -> None:
        """Takes groups of steps until cancelled. Raises ChangeLogError when the disk cannot be trusted any more."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scheduler.run(self._timers, self._clock_commits), name="delayed updates")
            tasks.create_task(self._take_groups(tasks), name="engine")
            tasks.create_task(self._keep_up(), name="upkeep")
            tasks.create_task(self.log_keeper.run(), name="log keeper")
            tasks.create_task(self.history_keeper.keep(), name="history")
            tasks.create_task(self.figures.health.run(), name="health")
            if self.current.settings.gateway.durability == "interval":
                tasks.create_task(self._sync_now_and_then(), name="sync")
            self.probe()  # what could not be written at the start is still pending

    async def _take_groups(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._working = False
            await self.queue.wait_filled()
            self._working = True
            await self._executor.run(tasks, self._group_end.finish)

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.current.settings.log.sync_interval_ms / 1000)
            await self._group_end.sync()

    async def _keep_up(self) -> None:
        """Gives the dataset a little time now and then: beside the queue while it is empty, else in its turn."""
        pause, taken, failures = PAUSE_S, self.queue.taken, 0
        while True:
            await asyncio.sleep(pause)
            try:
                if not self._working and self.queue.empty:
                    pause = self._upkeep.turn(quiet=taken == self.queue.taken)
                else:
                    pause = await self.queue.post(partial(self._upkeep.turn, quiet=False))
                if self._subscribers.expired():
                    await self.queue.post(self._subscribers.expire)
                failures = 0
            except Exception:
                failures += 1
                pause = back_off_s(failures, 2 * PAUSE_S, UPKEEP_AGAIN_S)
                logger.exception("upkeep failed", pause_s=round(pause))
            taken = self.queue.taken

    def _client_of(self, handle: str) -> str:
        """As `re_evaluations.ClientOf`."""
        return self._ledger.evaluations.again.clients.get(handle) or self._subscribers.resumables.client_of(handle)

    def probe(self) -> asyncio.Future[None]:
        """A step that does nothing. Its outcome comes when whatever stood before it in the class of normal requests is
        done, written and released."""
        return self.queue.post(_nothing)

    def apply(self, settings: Settings) -> asyncio.Future[None]:
        """Takes up what of other settings can be taken up between two steps (`gateway.service.reload`)."""

        def apply() -> None:
            self.current.settings = settings
            self._dry_runs.limits = settings.limits
            self._engine.store.term_bytes_max = settings.limits.term_bytes_max
            self._engine.work.allow(settings.limits.evaluation_ms_max)
            self._reader.apply(settings.query, settings.limits)

        return self.queue.post(apply)

    # --- requests: those of `updates`, `queries`, `backups` and `delivered`, and what needs several parts ---

    async def beside(self, work: Callable[[BinaryIO], None], caller: Caller) -> Answer:
        """As `Reader.beside`."""
        return await self._reader.beside(work, caller.client)

    def subscribe(
        self,
        sparql: str,
        sink: Sink,
        default_graphs: tuple[Term, ...] | None,
        named_graphs: tuple[Term, ...] | None,
        lane: OrderedLane | None = None,
        resume: Resume | None = None,
        caller: Caller = ANYBODY,
        priority: Priority = Priority.NORMAL,
        delivery: Receiver | None = None,
    ) -> asyncio.Future[str]:
        """The outcome is the spuid; the sink has the first result by then, or what it missed.

        The other arguments are those of `SubscribeCall`. Raises LimitExceededError, MalformedRequestError.
        """
        self.queries.check_length(sparql)
        call = SubscribeCall(sparql, sink, default_graphs, named_graphs, resume, caller, delivery)
        return self._subscribers.subscribe(call, lane, priority)

    def unsubscribe(
        self, spuid: str, sink: Sink, lane: OrderedLane | None = None, caller: Caller = ANYBODY
    ) -> asyncio.Future[None]:
        """Ends a subscription of this sink, or a resumable one of the same client that no sink is attached to.

        Somebody else's is answered as an unknown one, also when it is on the same connection.
        """
        return self.queue.submit(QueuedEnd(spuid, sink, caller, lane))

    def end_delivery(self, name: str) -> asyncio.Future[None]:
        return self.queue.post(partial(self.delivered.end, name))

    def renew_delivery(self, delivery: Receiver, cause: Cause) -> asyncio.Future[Followed]:
        return self.queue.submit(QueuedRenewal(delivery, cause))

    def disconnect(self, sink: Sink, spuids: Sequence[str]) -> None:
        """Ends what a connection that is gone had, and leaves the resumable ones to themselves."""
        self.queue.post(lambda: self._subscribers.leave(sink, spuids))

    def permissions_changed(self, client: str) -> asyncio.Future[None]:
        """Ends the subscriptions of a client that may see other graphs now than when they began, or none; cancels the
        delayed updates of one that was removed, and forgets its request ids. What it may do is asked now: when the step
        has its turn, another one may have come under that name."""
        access = self.access_of(client)

        def change() -> None:
            self._subscribers.permissions_changed(client, access)
            if access is None:
                self._removals.forget(client)

        return self.queue.post(change)

    # --- state ---

    @property
    def settings(self) -> Settings:
        """The settings that hold now."""
        return self.current.settings

    def outbox_bytes_max(self) -> int:
        """What may wait for one client now, over all of its connections."""
        return min(self.current.quotas().outbox_bytes_max, self.settings.websocket.unsent_bytes_max // 2)

    @property
    def replay_bytes_max(self) -> int:
        """What clients that resume may have waiting for them."""
        return self.current.settings.resume.bytes_max

    @property
    def log(self) -> LogWriter:
        """The log, for those who bring files to where it is."""
        return self._log

    @property
    def quad_count(self) -> int:
        """How many quads the dataset has."""
        return self._engine.quad_count

    @property
    def delayed_count(self) -> int:
        """How many delayed updates are pending."""
        return len(self._delayed)

    def delayed_updates(
        self, caller: Caller = ANYBODY, limit: int | None = None, characters: int | None = None
    ) -> list[dict[str, Any]]:
        """The caller's pending delayed updates that are due next, everybody's if it is an operator. As
        `DelayedUpdates.table`."""
        rows = self._delayed.table(None if caller.operator else caller.name, limit, characters)
        if not caller.sees_sequence:
            for row in rows:
                del row["sequence"]
        return rows

    def watch_queries(self, queries: Sequence[str], valueless: Collection[Term] = ()) -> QueryWatch:
        """Whether a commit may have touched what SELECT queries read, from now on. valueless: as of `QueryWatch`."""
        return self._dry_runs.changes.watch_queries(queries, valueless)

    @property
    def delayed_changes(self) -> tuple[object, ...]:
        """Differs when `delayed_updates` do, but for what follows from the time that goes by."""
        clock = self._clock
        return self._delayed.changes, clock.trusted(), (since_1970_us(clock.wall()) - clock.boottime_us()) // 1_000_000

    def delayed_count_of(self, caller: Caller) -> int:
        """How many of those are pending."""
        return len(self._delayed) if caller.operator else self._delayed.usage.of(caller.name)


def _nothing() -> None:
    """A step that does nothing; what is pending follows it."""
