"""Runs delayed updates when they are due, and commits at boundaries of comparisons with the clock, by APScheduler.

APScheduler has one job for each of the two, for the time when the next one is due. It reads CLOCK_BOOTTIME, on which
delays are measured; when the wall clock is stepped, the jobs are set again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, tzinfo
from typing import Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock, since_1970_us
from lamplighter.gateway.state.delayed import DelayedUpdates

logger = EventLogger(__name__)

_DUE_AT_ONCE_MAX = 1000
_BEGIN_AT_ONCE_MAX = 100  # jobs that may run: APScheduler counts a job for one pass of the loop longer than it runs
_RETRY_S = 1.0
_LOOK_S = 1.0
_LOOK_AGAIN = timedelta(days=1)
_MILLISECOND = timedelta(milliseconds=1)


class _BootTime(tzinfo):
    """A time zone whose time is the passed-in clock's CLOCK_BOOTTIME; 1970 is the start of the machine."""

    # APScheduler reads the time as ``datetime.now(timezone)``. With this zone it waits and compares on the same clock
    # as `DelayedUpdates`. With another one, the time between two readings is lost: a simulated clock stands still
    # meanwhile.

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def fromutc(self, _: datetime) -> datetime:
        return self.at(self._clock.boottime_us())

    def at(self, boottime_us: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=self) + timedelta(microseconds=boottime_us)

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "CLOCK_BOOTTIME"


class Executor(Protocol):
    """What a scheduler calls."""

    async def fire(self, name: str) -> None:
        """Makes a delayed update happen. Returns when that is durable."""
        ...

    async def note(self) -> None:
        """Writes the record that `DelayedUpdates.news` asks for."""
        ...


class Boundaries(Protocol):
    """What a scheduler knows of comparisons with the clock in subscriptions."""

    @property
    def next_due(self) -> datetime | None:
        """The next instant at which one changes, None while it is not known."""
        ...

    @property
    def set_back(self) -> bool:
        """Whether the clock was set back behind what has changed."""
        ...

    async def fire(self) -> None:
        """Commits what is due. Returns when that is durable."""
        ...


class Scheduler:
    """APScheduler over the pending delayed updates, and the boundaries of comparisons with the clock."""

    def __init__(self, updates: DelayedUpdates, clock: Clock) -> None:
        self._clock = clock
        self._updates = updates
        self._executor: Executor | None = None
        self._claimed: set[str] = set()
        self._boottime = _BootTime(clock)
        # Its times are boot times that look like dates, so a step of the wall clock moves no job.
        self._scheduler = AsyncIOScheduler(timezone=self._boottime)
        self._boundaries: Boundaries | None = None
        self._armed_us: int | None = None  # the boot time for which the job is set
        self._boundary_us: int | None = None  # the same for the job of boundaries
        self._firing: asyncio.TaskGroup | None = None

    async def run(self, executor: Executor, boundaries: Boundaries | None = None) -> None:
        """Runs until cancelled; looks once a second whether the wall clock was stepped, or something is late."""
        self._executor, self._boundaries = executor, boundaries
        async with asyncio.TaskGroup() as self._firing:
            self._scheduler.start()
            try:
                self.rearm()
                self.rearm_boundary()
                before = self._wall_minus_boottime()
                while True:
                    await asyncio.sleep(_LOOK_S)
                    now = self._wall_minus_boottime()
                    # The two clocks drift apart a little all the time, when the wall clock is slewed; only a step is
                    # news.
                    if now[1] != before[1] or abs(now[0] - before[0]) > timedelta(seconds=0.1):
                        stepped_s = (now[0] - before[0]).total_seconds()
                        logger.info("clock changed", stepped_s=round(stepped_s, 3), trusted=now[1])
                    before = now
                    # The loop's timers stop while the machine is suspended, and `at` follows the wall clock.
                    self.rearm()
                    self.rearm_boundary()
                    if boundaries is not None and boundaries.set_back:
                        await self._begin_boundary()
                    if self._updates.news() is not None:
                        try:
                            await executor.note()
                        except GatewayError as error:
                            logger.debug("clock record not written", reason=error)  # tried again in a second
            finally:
                self._scheduler.shutdown(wait=False)
                await asyncio.sleep(0)  # the scheduler stops in a callback of the loop

    def _wall_minus_boottime(self) -> tuple[timedelta, bool]:
        offset_us = since_1970_us(self._clock.wall()) - self._clock.boottime_us()
        return timedelta(microseconds=offset_us), self._clock.trusted()

    @property
    def _busy(self) -> bool:
        """Whether enough updates run, so that no more are claimed until half of them are done."""
        # Half, and not one less: otherwise each update that is done would arm the job again for a single other one.
        return len(self._claimed) > _DUE_AT_ONCE_MAX // 2

    def rearm(self) -> None:
        """Sets the job again. Called after timers were added or removed, or the clocks changed."""
        # A job that runs too early does no harm: it checks, and is set again.
        wait = None if self._busy else self._updates.next_in(self._claimed)
        if wait is not None:
            self._armed_us = self._arm(wait, self._armed_us, self._begin_due, "next due")

    def rearm_boundary(self) -> None:
        """The same for the next boundary. Called after each group of steps, so it is cheap if nothing is sooner."""
        due = None if self._boundaries is None else self._boundaries.next_due
        if due is not None:
            wait = due - self._clock.wall()
            self._boundary_us = self._arm(wait, self._boundary_us, self._begin_boundary, "next boundary")

    def _arm(self, wait: timedelta, armed_us: int | None, begin: Callable[[], Awaitable[None]], job: str) -> int:
        """Sets a job unless it is set for an earlier time; the boot time for which it is set then."""
        # Up to the next millisecond: for the last microseconds the loop would only spin.
        wait_us = -(-min(wait, _LOOK_AGAIN) // _MILLISECOND) * 1000 if wait > timedelta(0) else 0
        due_us = self._clock.boottime_us() + wait_us
        if armed_us is not None and due_us >= armed_us and wait_us:
            return armed_us
        self._scheduler.add_job(
            begin,
            DateTrigger(self._boottime.at(due_us), self._boottime),
            id=job,
            replace_existing=True,
            misfire_grace_time=None,
            max_instances=_BEGIN_AT_ONCE_MAX,
        )
        return due_us

    async def _begin_boundary(self) -> None:
        """Commits the boundaries that are due. A job of APScheduler."""
        assert self._boundaries is not None
        self._boundary_us = None
        try:
            await self._boundaries.fire()
        except GatewayError as error:
            logger.debug("instant not committed", reason=error)  # tried again in a second
            return
        self.rearm_boundary()

    async def _begin_due(self) -> None:
        """Starts each delayed update that is due, claimed until it has ended. A job of APScheduler."""
        assert self._firing is not None
        self._armed_us = None
        if not self._busy:
            for pending in self._updates.due_updates(self._claimed, _DUE_AT_ONCE_MAX):
                self._claimed.add(pending.timer.id)
                self._firing.create_task(self._execute(pending.timer.id), name=f"delayed update {pending.timer.id}")
        self.rearm()

    async def _execute(self, name: str) -> None:
        assert self._executor is not None
        try:
            while True:  # it stays claimed until this has ended
                try:
                    await self._executor.fire(name)
                    return
                except Exception as error:
                    logger.error("delayed update will be retried", id=name, reason=error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            busy = self._busy
            self._claimed.discard(name)
            if busy and not self._busy:
                self.rearm()
