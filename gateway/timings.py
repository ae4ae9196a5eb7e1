"""How long things took: least, most, average, and how they are spread, since the start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time, thread_time
from typing import Any

BOUNDS_S = (
    *(0.000_01, 0.000_025, 0.000_05),
    *(0.000_1, 0.000_25, 0.000_5),
    *(0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets; what took longer is in one more."""


class Timing:
    """Durations of one kind of work, in seconds. buckets: how many there were up to each bound and over the one
    before it."""

    __slots__ = ("buckets", "last", "least", "most", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.total = self.last = self.most = 0.0
        self.least = float("inf")

    def took(self, seconds: float) -> None:
        # A third of a microsecond, paid several times by each update.
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds
        self.last = seconds
        if seconds < self.least:
            self.least = seconds
        if seconds > self.most:
            self.most = seconds

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def members(self) -> dict[str, Any]:
        """As JSON has it, in milliseconds; None where nothing was measured."""
        count = self.count
        if not count:
            return {"count": 0, "current": None, "min": None, "average": None, "max": None}
        found = {"current": self.last, "min": self.least, "average": self.total / count, "max": self.most}
        return {"count": count} | {name: round(seconds * 1000, 4) for name, seconds in found.items()}


class Holds(Timing):
    """Durations for which the loop was held. busiest: the most processor time of one, in seconds: on a busy machine the
    loop also waits for a processor, which no limit can shorten."""

    __slots__ = ("busiest",)

    def __init__(self) -> None:
        super().__init__()
        self.busiest = 0.0

    @staticmethod
    def now() -> tuple[float, float]:
        """The time of both clocks, to be given to `ended`."""
        return perf_counter(), thread_time()

    def ended(self, begun: tuple[float, float]) -> None:
        """One that had begun then, in this thread."""
        self._took(begun[0], thread_time() - begun[1])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For a wait of the loop for another thread, while no third one has anything to do."""
        begun, busy = perf_counter(), process_time()
        yield
        self._took(begun, process_time() - busy)

    def _took(self, begun: float, busy: float) -> None:
        self.took(perf_counter() - begun)
        if busy > self.busiest:
            self.busiest = busy

    def members(self) -> dict[str, Any]:
        return super().members() | {"processor_max": round(self.busiest * 1000, 4)}


@dataclass
class Timings:
    """What the gateway measures of its own work.

    store_query: an ad-hoc query, from its turn until the first byte of its result. store_update: the evaluation of an
    update and the append of its record. spu_manager: matching a commit with all subscriptions. sync: the disk, once
    for all updates of a group. update_processing: an update, from its arrival until its answer and its notifications
    may leave; waiting, trial and sync are in it. http: a request, from its headers until its answer was handed over.
    loop_held: how long a step of the engine, a slice of a long one, or reading a message or a query kept everything
    else waiting at a time.
    """

    store_query: Timing = field(default_factory=Timing)
    store_update: Timing = field(default_factory=Timing)
    spu_manager: Timing = field(default_factory=Timing)
    sync: Timing = field(default_factory=Timing)
    update_processing: Timing = field(default_factory=Timing)
    http: Timing = field(default_factory=Timing)
    loop_held: Holds = field(default_factory=Holds)
