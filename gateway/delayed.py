"""Delayed updates (Roffia 2016, II.C): timers are records of the change log, APScheduler executes them.

The job store is rebuilt from the log, so there is no second database; a timer goes only with the record of
its effect. A delay lasts its real time: it is measured on CLOCK_BOOTTIME, and APScheduler, which compares
wall clocks, is asked again whenever the wall clock is stepped. ``at`` waits until the clock is trusted.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import isodate
from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

from engine.change_log import Cause, Record, Timer
from engine.errors import MalformedRequestError
from gateway.clock import Clock, iso

Entry = TypeVar("Entry", tuple[int, str], tuple[datetime, str])

logger = logging.getLogger(__name__)

_DUE_AT_ONCE_MAX = 1000
_RETRY_S = 1.0
_DELAY_MAX = timedelta(days=3650)


def delay_us(text: str) -> int:
    """Microseconds of an ISO 8601 duration. Raises MalformedRequestError."""
    try:
        if text.endswith("T"):
            raise ValueError("nothing behind the T")
        duration = isodate.parse_duration(text)
    except (isodate.ISO8601Error, TypeError, ValueError, OverflowError) as error:
        raise MalformedRequestError(f"delay: {text!r} is not an ISO 8601 duration such as PT30S") from error
    if not isinstance(duration, timedelta):
        raise MalformedRequestError(f"delay: {text!r} has years or months, whose length is not fixed; use days")
    if not timedelta(0) <= duration <= _DELAY_MAX:
        raise MalformedRequestError(f"delay: {text!r} is not between 0 and {_DELAY_MAX.days} days")
    return duration // timedelta(microseconds=1)


def at_moment(text: str) -> datetime:
    """The moment of an xsd:dateTime, which must name its time zone. Raises MalformedRequestError."""
    try:
        moment: datetime = isodate.parse_datetime(text)
    except (isodate.ISO8601Error, TypeError, ValueError) as error:
        raise MalformedRequestError(f"at: {text!r} is not an xsd:dateTime such as 2030-01-01T08:00:00Z") from error
    if moment.tzinfo is None:
        raise MalformedRequestError(f"at: {text!r} names no time zone; put a Z behind it for UTC")
    try:
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedRequestError(f"at: {text!r} is not between the years 1 and 9999 in UTC") from error


@dataclass(frozen=True)
class Pending:
    """A delayed update that has not happened yet.

    sequence: of its record; due_us: on CLOCK_BOOTTIME, None for `at`, which is a wall-clock time.
    """

    timer: Timer
    cause: Cause | None
    sequence: int
    set_at: str
    due_us: int | None
    at: datetime | None


class DelayedUpdates:
    """The pending delayed updates, in memory, as the change log tells them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, Pending] = {}
        self._by_boottime: list[tuple[int, str]] = []
        self._by_wall: list[tuple[datetime, str]] = []
        self._earlier_boot: dict[str, Record] = {}  # timers from before the machine restarted, until `rebase`
        self._uptimes: dict[str, int] = {}  # boot -> last CLOCK_BOOTTIME known of it, oldest first

    def follow(self, record: Record) -> None:
        """Takes note of a record: of a timer, a cancellation, or the commit of one that fired."""
        self._uptimes[record.boot] = record.boottime_us
        if record.timer is not None:
            self._arm(record, record.timer)
        if record.cancel is not None:
            self._forget(record.cancel)
        if record.cause is not None and record.cause.kind == "timer":
            self._forget(record.cause.id)

    def _forget(self, name: str) -> None:
        pending = self._pending.pop(name, None)
        if pending is None:
            return
        if pending.at is not None:
            _take_out(self._by_wall, (pending.at, name))
        elif self._earlier_boot.pop(name, None) is None:
            assert pending.due_us is not None
            _take_out(self._by_boottime, (pending.due_us, name))

    def _arm(self, record: Record, timer: Timer) -> None:
        due_us = None if timer.delay_us is None else record.boottime_us + timer.delay_us
        at = None if timer.at is None else at_moment(timer.at)
        self._put(Pending(timer, record.cause, record.seq, record.ts, due_us, at), record)

    def _put(self, pending: Pending, record: Record) -> None:
        self._pending[pending.timer.id] = pending
        if pending.at is not None:
            heapq.heappush(self._by_wall, (pending.at, pending.timer.id))
        elif record.boot == self._clock.boot:
            assert pending.due_us is not None
            heapq.heappush(self._by_boottime, (pending.due_us, pending.timer.id))
        else:
            self._earlier_boot[pending.timer.id] = record

    def rebase(self) -> None:
        """After the replay: gives the timers of earlier boots their due time in this one.

        Where both clocks can be believed the wall clock tells what is left; otherwise what the log proves to
        have passed is taken off, and what passed in this boot. So a timer is never early, and starting the
        gateway again gives it no new time.
        """
        now_us, now = self._clock.boottime_us(), self._clock.wall()
        trusted = self._clock.trusted()
        boots = list(self._uptimes)
        for name, record in self._earlier_boot.items():
            pending = self._pending[name]
            delay = pending.timer.delay_us
            assert delay is not None
            if trusted and record.trusted:
                passed = (now - at_moment(record.ts)) // timedelta(microseconds=1)
            else:
                passed = self._uptimes[record.boot] - record.boottime_us
                later = boots[boots.index(record.boot) + 1 :]
                passed += sum(self._uptimes[boot] for boot in later if boot != self._clock.boot) + now_us
            due_us = now_us + min(max(delay - passed, 0), delay)
            self._pending[name] = Pending(pending.timer, pending.cause, pending.sequence, pending.set_at, due_us, None)
            heapq.heappush(self._by_boottime, (due_us, name))
        self._earlier_boot.clear()

    def __len__(self) -> int:
        return len(self._pending)

    def get(self, name: str) -> Pending | None:
        return self._pending.get(name)

    def due(self, claimed: set[str], limit: int) -> list[Pending]:
        """Those that are due and not claimed, earliest first."""
        found = []
        now_us = self._clock.boottime_us()
        for due_us, name in heapq.nsmallest(limit + len(claimed), self._by_boottime):
            if due_us <= now_us and name not in claimed:
                found.append(self._pending[name])
        if self._by_wall and self._clock.trusted():
            now = self._clock.wall()
            for moment, name in heapq.nsmallest(limit + len(claimed), self._by_wall):
                if moment <= now and name not in claimed:
                    found.append(self._pending[name])
        return found[:limit]

    def next_in(self, claimed: set[str]) -> timedelta | None:
        """How long until the next one that is not claimed, by what is known now; None when nothing is waited for."""
        waits = []
        for due_us, name in heapq.nsmallest(len(claimed) + 1, self._by_boottime):
            if name not in claimed:
                waits.append(timedelta(microseconds=due_us - self._clock.boottime_us()))
                break
        if self._clock.trusted():
            for moment, name in heapq.nsmallest(len(claimed) + 1, self._by_wall):
                if name not in claimed:
                    waits.append(moment - self._clock.wall())
                    break
        return min(waits, default=None)

    def table(self) -> list[dict[str, Any]]:
        """What `GET /delayed` shows, in the order of their records."""
        now, now_us, trusted = self._clock.wall(), self._clock.boottime_us(), self._clock.trusted()
        rows = []
        for pending in self._pending.values():
            if pending.at is not None:
                due, state = pending.at, "pending" if trusted else "waiting for a trusted clock"
            else:
                assert pending.due_us is not None
                due, state = now + timedelta(microseconds=pending.due_us - now_us), "pending"
            cause = pending.cause
            rows.append(
                {
                    "id": pending.timer.id,
                    "state": state,
                    "due": iso(due),
                    "set": pending.set_at,
                    "sequence": pending.sequence,
                    "cause": None if cause is None else {"kind": cause.kind, "id": cause.id, "seq": cause.seq},
                    "update": pending.timer.update,
                }
            )
        return rows


def _take_out(heap: list[Entry], entry: Entry) -> None:
    """Removes an entry; in one step where it is the first, as it is for what just fired."""
    if heap[0] == entry:
        heapq.heappop(heap)
    else:
        heap.remove(entry)
        heapq.heapify(heap)


class Scheduler:
    """APScheduler over the pending delayed updates. fire: makes one happen, and returns when that is durable."""

    def __init__(self, updates: DelayedUpdates, clock: Clock, fire: Callable[[str], Awaitable[None]]) -> None:
        self._clock = clock
        self._updates = updates
        self._fire = fire
        self._claimed: set[str] = set()
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            jobstores={"default": _JobStore(self)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            jobstore_retry_interval=0.5,
        )

    async def run(self) -> None:
        """Runs until cancelled; looks once a second whether somebody stepped the wall clock, or something is late."""
        self._scheduler.start()
        try:
            before = self._wall_minus_boottime()
            while True:
                await asyncio.sleep(1)
                now = self._wall_minus_boottime()
                if now[1] != before[1] or abs(now[0] - before[0]) > timedelta(seconds=0.1):
                    logger.info("clock changed stepped_s=%.3f trusted=%s", (now[0] - before[0]).total_seconds(), now[1])
                    self._scheduler.wakeup()
                elif (wait := self._updates.next_in(self._claimed)) is not None and wait <= timedelta(0):
                    self._scheduler.wakeup()  # the loop's timers stand still while the machine is suspended
                before = now
        finally:
            self._scheduler.shutdown(wait=False)
            await asyncio.sleep(0)  # the scheduler stops in a callback of the loop

    def _wall_minus_boottime(self) -> tuple[timedelta, bool]:
        boottime = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._clock.boottime_us())
        return self._clock.wall() - boottime, self._clock.trusted()

    def rearm(self) -> None:
        """To be called after timers came or went."""
        self._scheduler.wakeup()

    def due_jobs(self, now: datetime) -> list[Job]:
        """A job for each delayed update that is due, claimed until it has happened.

        now: the scheduler's; it only runs jobs that are not later than that.
        """
        jobs = []
        for pending in self._updates.due(self._claimed, _DUE_AT_ONCE_MAX):
            self._claimed.add(pending.timer.id)
            jobs.append(_job(self._scheduler, pending.timer.id, self._execute, now))
        return jobs

    def next_run_time(self) -> datetime | None:
        wait = self._updates.next_in(self._claimed)
        # APScheduler takes the wall clock off again at once, and sleeps on the monotonic one.
        return None if wait is None else datetime.now(UTC) + wait

    async def _execute(self, name: str) -> None:
        try:
            while True:  # APScheduler would refuse the same job until this one has ended
                try:
                    await self._fire(name)
                    return
                except Exception as error:
                    logger.error("delayed update waits for another try id=%s reason=%s", name, error)
                    await asyncio.sleep(_RETRY_S)
        except asyncio.CancelledError:
            # The gateway ends, and the timer is in its log. APScheduler would call this an error of the job.
            return
        finally:
            self._claimed.discard(name)


def _job(scheduler: AsyncIOScheduler, name: str, function: Callable[[str], Awaitable[None]], now: datetime) -> Job:
    """A job that is due now. APScheduler makes jobs only for its own stores to keep; this one is kept by the log."""
    job = Job.__new__(Job)
    job._scheduler = scheduler
    job._jobstore_alias = "default"
    for key, value in {
        "id": name,
        "name": name,
        "func": function,
        "func_ref": None,
        "trigger": DateTrigger(now, UTC),
        "executor": "default",
        "args": (name,),
        "kwargs": {},
        "misfire_grace_time": None,
        "coalesce": True,
        "max_instances": 1,
        "next_run_time": now,
    }.items():
        setattr(job, key, value)
    return job


class _JobStore(BaseJobStore):  # type: ignore[misc]  # the library ships no types
    """Shows APScheduler what is due. Nothing is kept here, so there is nothing to add, update or remove."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._source = scheduler

    def get_due_jobs(self, now: datetime) -> list[Job]:
        return self._source.due_jobs(now)

    def get_next_run_time(self) -> datetime | None:
        return self._source.next_run_time()

    def remove_job(self, job_id: str) -> None:
        """The commit of the effect removes the timer, not the start of its execution."""

    def update_job(self, job: Job) -> None:
        """Jobs of this store run once."""

    def lookup_job(self, job_id: str) -> None:
        return None

    def get_all_jobs(self) -> list[Job]:
        return []

    def add_job(self, job: Job) -> None:
        raise TypeError("delayed updates are added through the change log")

    def remove_all_jobs(self) -> None:
        raise TypeError("delayed updates are cancelled through the change log")
