"""Durations since the start: minimum, maximum, average and distribution."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Priority

logger = EventLogger(__name__)

# Upper bounds of the buckets; longer durations are in one more.
BOUNDS_S = (
    *(0.000_01, 0.000_025, 0.000_05),
    *(0.000_1, 0.000_25, 0.000_5),
    *(0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)


HELD_S_MAX = 0.25  # processor time that no piece of work should take from the event loop; longer ones are logged
Work = str | Callable[..., object]  # names a piece of work: a text, or the function that does it


class Timing:
    """Durations of one kind of work, in seconds. buckets: how many are up to each bound and above the previous one."""

    __slots__ = ("buckets", "last", "least", "most", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.total = self.last = self.most = 0.0
        self.least = float("inf")

    def add(self, other: Timing) -> None:
        """Counts what another one has, too. `last` stays."""
        self.buckets = [ours + theirs for ours, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def members(self) -> dict[str, Any]:
        """For JSON, in milliseconds; None where nothing was measured."""
        count = self.count
        if not count:
            return {"count": 0, "current": None, "min": None, "average": None, "max": None}
        found = {"current": self.last, "min": self.least, "average": self.total / count, "max": self.most}
        return {"count": count} | {name: round(seconds * 1000, 4) for name, seconds in found.items()}


def count_durations(durations: Iterable[tuple[Timing, float]]) -> None:
    """Counts each duration, in seconds, for its timing."""
    # One call for all: each update has five, of a third of a microsecond.
    for timing, seconds in durations:
        timing.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        timing.total += seconds
        timing.last = seconds
        if seconds < timing.least:
            timing.least = seconds
        if seconds > timing.most:
            timing.most = seconds


# What the steps of a group took, which is counted once, at its end.
StepTimes = list[tuple[Timing, float]]


class LoopHoldTimer(Timing):
    """Durations for which single pieces of work blocked the event loop.

    busiest: the most processor time of one, in seconds; on a busy machine the loop also waits for a processor, which
    no limit can shorten. busiest_work: the name of that work.
    """

    __slots__ = ("busiest", "busiest_work")

    def __init__(self) -> None:
        super().__init__()
        self.busiest = 0.0
        self.busiest_work: str | None = None

    def count_work(self, begun: tuple[float, float], work: Work) -> tuple[float, float]:
        """Counts a piece of work of this thread. begun: perf_counter and thread_time at its start. Returns these two
        of now."""
        now = perf_counter(), thread_time()
        count_durations(((self, now[0] - begun[0]),))
        if (busy := now[1] - begun[1]) > self.busiest:
            self.note_busiest(busy, work)
        return now

    def note_busiest(self, busy: float, work: Work) -> None:
        """Notes the work that took more processor time than any other. busy: that time, in seconds."""
        self.busiest = busy
        self.busiest_work = _name(work)
        if busy > HELD_S_MAX:
            logger.warning("loop held", work=self.busiest_work, processor_ms=round(busy * 1000))

    def members(self) -> dict[str, Any]:
        return super().members() | {
            "processor_max": round(self.busiest * 1000, 4),
            "processor_max_work": self.busiest_work,
        }


def _name(work: Work) -> str:
    while isinstance(work, partial):
        work = work.func
    if isinstance(work, str):
        return work
    return work.__qualname__


@dataclass
class Timings:
    """Durations of the gateway's own work.

    store_query: an ad-hoc query, from its turn until the first byte of its result. store_update: the evaluation of an
    update and the append of its record. spu_manager: matching a commit with all subscriptions. sync: the disk, once
    for all updates of a group. update_processing: an update, from its arrival until its answer and its notifications
    may leave; waiting, trial and sync are in it. updates: the same by class, in the order of `Priority`. http: a
    request, from its headers until its answer was handed over. loop_held: how long a step of the engine, a slice of a
    long one, or reading a message or a query blocked the event loop.
    group: what the steps of the present group took.
    """

    store_query: Timing = field(default_factory=Timing)
    store_update: Timing = field(default_factory=Timing)
    spu_manager: Timing = field(default_factory=Timing)
    sync: Timing = field(default_factory=Timing)
    updates: tuple[Timing, ...] = field(default_factory=lambda: tuple(Timing() for _ in Priority))
    http: Timing = field(default_factory=Timing)
    loop_held: LoopHoldTimer = field(default_factory=LoopHoldTimer)
    group: StepTimes = field(default_factory=list)
    _last_update: float = 0.0

    def end_group(self, begun: Iterable[tuple[Priority, float]]) -> None:
        """Counts what the steps of a group took. begun: the classes of its updates, and when they arrived: each took
        until now, when its answer may leave."""
        now = perf_counter()
        for priority, arrived in begun:
            self._last_update = now - arrived
            self.group.append((self.updates[priority], self._last_update))
        count_durations(self.group)
        self.group.clear()

    @property
    def update_processing(self) -> Timing:
        """Updates of all classes."""
        found = Timing()
        for one in self.updates:
            found.add(one)
        found.last = self._last_update
        return found
