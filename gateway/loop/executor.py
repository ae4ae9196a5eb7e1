"""Runs the tasks of a group, one at a time, and ends the group: one sync, then its releases.

A short task runs in the loop, a long one in slices (`gateway.loop.time_slicer`), one that is refused not at all. What
is pending after a task is recorded right behind it. A task that fails, whatever it raises, has changed nothing, and
only its requester is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import TypeVar

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Commit
from lamplighter.engine.errors import GatewayError, bare
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Priority, Results
from lamplighter.engine.work import PlanExceededError
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.clock_commits import ClockCommits
from lamplighter.gateway.loop.evaluations import Evaluations, TouchedError
from lamplighter.gateway.loop.failures import behind_its_log, failure
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import Queue, ReleaseGroup, Task, fulfil
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.scheduler import Scheduler
from lamplighter.gateway.loop.subscribers import Subscribers
from lamplighter.gateway.loop.time_slicer import SLICE_S, LongError, TimeSlicer
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.workers.dry_runs import ATTEMPTS_MAX, Breath

logger = EventLogger(__name__)

GROUP_S = (0.1, 0.1, 0.1, 0.01)
"""How long tasks are run before their group ends, by the class (`Priority`) of the last one: what they leave to be
released takes memory, and clients wait. An alarm waits for the releases of the group that it comes into."""
HELD_S = (SLICE_S, SLICE_S, SLICE_S, 0.002)
"""How long tasks hold the loop at a time, by the class of the last one: no alarm arrives meanwhile."""
_NORMAL = Priority.NORMAL
EXCEEDED_MAX = 32
"""Plans of a request that were not enough, one after the other; an update may have many operations."""
BREATH_S = 0.05
"""How long a look at a request takes behind which others have their turn, before the request itself."""
QUICK_S, QUICK_REQUESTS_MAX = 0.001, 8
"""How long a sync may hold the loop, and how many requests a group may have then: more come meanwhile where there are
more."""
QUICK_MIN, QUICK_MIN_MAX = 100, 10_000
"""Quick syncs in a row that show that the disk is quick; twice as many each time that it was not for as long again."""
STALL_TIMES = 1000
"""A sync that held the loop longer than a slice is the last one there for so many times as long: a card may pause for
seconds every minute."""
TURNS = 4
"""Iterations of the loop between two tasks: a message passes its socket, its task and its parser in three."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False, repr=False)
class Distribution:
    """Distributes what comes of a commit: to the triggers of applications, and to the sinks of clients on release."""

    _evaluations: Evaluations
    _aggregators: Aggregators
    _subscribers: Subscribers

    def distribute(self, commit: Commit, record: Record) -> None:
        """Sends what came of a commit on its way."""
        if commit.notifications or commit.ended:
            self.deliver(commit, record)
        if commit.takeovers:
            self._subscribers.note_takeovers(commit.takeovers)
        if self._evaluations.too_slow:
            for text, ms in self._evaluations.take_slow():
                self._aggregators.slow(text, ms)

    def deliver(self, commit: Commit, record: Record) -> None:
        """Sorts the notifications, and ends what the engine has ended."""
        shared: dict[tuple[int, int], Results] = {}
        place = record.epoch, record.seq
        for notification in commit.notifications:
            if self._aggregators.enqueue(notification, commit.sequence):
                continue
            key = (id(notification.added), id(notification.removed))  # the commit keeps them alive
            results = shared.get(key)
            if results is None:
                results = shared[key] = Results(notification.added, notification.removed, place)
            self._subscribers.deliver(notification, results)
        if commit.ended:
            self._subscribers.end_failed(
                [one for one in commit.ended if one.spuid not in self._aggregators.subscriptions]
            )
            for spuid, error in commit.ended:
                self._aggregators.end_lost(spuid, error)


class TaskExecutor:
    """Runs tasks in turn. held_since: the time of the loop's two clocks when a piece of work ended last, or others had
    their turn. work: what was done since, which the end of the group counts; None for nothing."""

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        distribution: Distribution,
        reactions: Reactions,
        clock_commits: ClockCommits,
        slicer: TimeSlicer,
    ) -> None:
        self._queue = queue
        self._distribution = distribution
        self._ledger = ledger
        self._reactions = reactions
        self._clock_commits = clock_commits
        self._slicer = slicer
        self.held_since = perf_counter(), thread_time()
        self.work: Callable[[], object] | None = None

    async def run(self, tasks: asyncio.TaskGroup, finish: Callable[[], Awaitable[None]]) -> None:
        """Runs the tasks whose turn it is. tasks: where dry runs run; finish: ends a group, and is awaited whenever one
        has taken `GROUP_S`, behind the last alarm or control request that waits, and at the end.

        Raises BrokenEngineError, and what `finish` raises, but nothing else that a task may raise.
        """
        self.held_since = perf_counter(), thread_time()
        begun = self.held_since[0]
        task: Task | None = None
        for task in self._queue.in_turn():
            await self._take(task, tasks)
            priority = task.priority
            if perf_counter() - begun > GROUP_S[priority] or (priority < _NORMAL and not self._queue.has(priority)):
                self.work = task.run
                await finish()
                self.held_since = perf_counter(), thread_time()
                begun = perf_counter()
            if perf_counter() - self.held_since[0] > HELD_S[priority]:
                self._count_hold(task.run)
                for _ in range(TURNS):
                    await asyncio.sleep(0)  # others go on between two tasks
                self.held_since = perf_counter(), thread_time()
        if task is not None:
            self.work = task.run
        await finish()

    def _count_hold(self, work: Callable[[], object]) -> None:
        """Counts how long the loop was held until now. work: what was done last."""
        self.held_since = self._slicer.held.count_work(self.held_since, work)

    async def _take(self, task: Task, tasks: asyncio.TaskGroup) -> None:
        """Runs a task, begins its dry run, or refuses it. Its outcome goes out with the group."""
        kind, ledger = task.kind, self._ledger
        if task.dry_run is not None and task.dry_run.again:
            task.dry_run = None
        if task.error is None and task.dry_run is None and kind.check is not None:
            try:
                begun = perf_counter()  # the processor's time takes a system call, and each update comes here
                task.dry_run = await self._do(partial(kind.check, task.request))
                if task.dry_run is None and perf_counter() - begun > BREATH_S:
                    self._queue.hold(task, Breath(), tasks)
                    return
                passed = task.dry_run is None or task.dry_run.has_passed
            except BaseException as error:  # whatever a text does to those who look at it
                task.error = failure(error)
            else:
                if not passed and task.dry_run is not None:
                    self._queue.hold(task, task.dry_run, tasks)
                    return
        if task.error is not None:
            if kind.refused is None:
                self._queue.refuse(task, task.error)
                return
            task.run, task.dry_run = partial(kind.refused, task.request, task.error), None
        if ledger.engine.timetable.conditions and self._clock_commits.due:
            await self._follow_up(self._clock_commits.catch_up)
        dry_run, before = task.dry_run, ledger.log.sequence
        ledger.evaluations.begin(dry_run, may_wait=kind.check is not None and task.attempts < ATTEMPTS_MAX)
        arrived = task.begun if task.error is None else 0.0
        if arrived:
            self._queue.group.begun.append((task.priority, arrived))
            task.begun = 0.0
        try:
            result = await self._do(task.run, long=dry_run is not None, in_loop=kind.in_loop)
        except (PlanExceededError, TouchedError) as error:
            if arrived:  # it is not answered in this group
                self._queue.group.begun.pop()
                task.begun = arrived
            await self._put_off(task, bare(error), tasks)
            return
        except BaseException as error:
            if ledger.log.sequence != before and isinstance(error, Exception) and not isinstance(error, GatewayError):
                raise behind_its_log(error) from error
            self._queue.refuse(task, failure(error))
            return
        finally:
            if dry_run is not None or ledger.evaluations.asking:
                ledger.evaluations.end()
            if dry_run is not None:
                dry_run.took(ledger.evaluations.prepared_s)
        self._queue.group.releases.append(partial(fulfil, task.outcome, result))
        if self._reactions.obligations.pending:
            await self._follow_up(self._reactions.flush_pending)

    async def _put_off(self, task: Task, error: PlanExceededError | TouchedError, tasks: asyncio.TaskGroup) -> None:
        """The store evaluates it now, so it has to pass a dry run. Others go first, for this one had its time. error:
        without its frames, which would keep what the dry run found until the garbage collector comes."""
        if isinstance(error, TouchedError):
            task.attempts += 1
        else:
            task.exceeded += 1
            if task.exceeded > EXCEEDED_MAX:
                task.dry_run, task.error = None, error
                await self._take(task, tasks)
                return
        self._queue.hold(task, Breath(again=True), tasks)

    async def _follow_up(self, work: Callable[[], None]) -> None:
        """Commits what is due before a task, or pending behind one. When the log cannot take it now, it is tried again
        soon."""
        try:
            await self._do(work)
        except BaseException as error:
            self._reactions.retry_later(failure(error))

    async def _do(self, work: Callable[[], Result], *, long: bool = False, in_loop: bool = False) -> Result:
        """Does a work in the loop if it is short, else in slices. Raises what it raises.

        long: it is not expected to be short; in_loop: only what is pending before it can be long.
        """
        slicer = self._slicer
        while not long:
            slicer.whole = True
            try:
                return work()
            except LongError:
                slicer.whole = False
                if not in_loop:
                    break  # it has appended nothing, so it is run again, from its beginning
                await self._in_slices(self._reactions.flush_pending)
            finally:
                slicer.whole = False
        return await self._in_slices(work)

    async def _in_slices(self, work: Callable[[], Result]) -> Result:
        """Does a work while others go on, but for tasks. Raises what it raises."""
        self._count_hold(work)
        try:
            return await self._slicer.run(work)
        finally:
            self.held_since = perf_counter(), thread_time()


@dataclass(eq=False, repr=False)
class GroupEnd:
    """Ends groups: syncs what one wrote, and releases what came of it."""

    _queue: Queue
    _ledger: Ledger
    _executor: TaskExecutor
    _scheduler: Scheduler
    _timings: Timings
    disk: ThreadPoolExecutor = field(init=False)
    appended: int = field(default=0, init=False)  # the last record of the groups before
    _quick: int = field(default=0, init=False)  # quick syncs in a row
    _quick_min: int = field(default=QUICK_MIN, init=False)
    _in_thread_until: float = field(default=0.0, init=False)  # by perf_counter

    def __post_init__(self) -> None:
        self.disk = ThreadPoolExecutor(1, thread_name_prefix="sync")

    async def finish(self) -> None:
        """Nothing is released, neither answer nor notification, before every record that it saw is durable (design
        4.5). Raises ChangeLogError when the disk cannot be trusted any more."""
        log, timings, executor = self._ledger.log, self._timings, self._executor
        since, held = executor.held_since, (perf_counter(), thread_time())  # nobody else has run since
        work, executor.work = executor.work, None
        if log.broken is not None:
            raise log.broken
        group, self._queue.group = self._queue.group, ReleaseGroup()
        appended, self.appended = log.sequence != self.appended, log.sequence
        last, resumed = (log.epoch, log.sequence), held
        if appended:
            self._queue.counters.syncs += 1
            if log.waits:
                # A thread takes as much processor time as the disk. A disk that was quick until now may stall, though.
                quick = self._quick >= self._quick_min and held[0] >= self._in_thread_until
                if quick and len(group.releases) <= QUICK_REQUESTS_MAX:
                    took = self._sync()
                    timings.group.append((timings.loop_held, took))
                    if took >= QUICK_S:
                        soon = self._quick < 2 * self._quick_min
                        self._quick_min = min(2 * self._quick_min, QUICK_MIN_MAX) if soon else QUICK_MIN
                        if took >= SLICE_S:
                            self._in_thread_until = perf_counter() + STALL_TIMES * took
                    if not self._queue.empty:
                        await asyncio.sleep(0)  # others go on between two groups, as while a thread syncs
                else:  # that does nothing else, so that no other work keeps it waiting
                    took = await asyncio.get_running_loop().run_in_executor(self.disk, self._sync)
                self._quick = self._quick + 1 if took < QUICK_S else 0
                timings.group.append((timings.sync, took))
                resumed = perf_counter(), thread_time()
            log.tail.acknowledge(last)
        if self._ledger.engine.timetable.conditions:
            self._scheduler.rearm_boundary()
        if work is not None:
            timings.group.append((timings.loop_held, held[0] - since[0]))
            if (busy := held[1] - since[1]) > timings.loop_held.busiest:
                timings.loop_held.note_busiest(busy, work)
        timings.end_group(group.begun)
        for release in group.releases:
            try:
                release()
            except Exception:  # it is one client's; the others are told
                logger.exception("answer not delivered")
            if perf_counter() - resumed[0] > SLICE_S:
                timings.loop_held.count_work(resumed, release)
                await asyncio.sleep(0)
                resumed = perf_counter(), thread_time()

    def _sync(self) -> float:
        """Syncs the log; how long that took."""
        begun = perf_counter()
        self._ledger.log.sync()
        return perf_counter() - begun

    async def sync(self) -> None:
        """Syncs the log between groups, by the interval of the settings."""
        await asyncio.get_running_loop().run_in_executor(self.disk, self._ledger.log.sync)
