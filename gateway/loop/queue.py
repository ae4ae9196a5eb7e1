"""The queue of the loop: which steps are next, and what is released together.

::

    submit ─▶ queue ─▶ steps of a group, in turn ─▶ records, one sync ─▶ releases of the group
                ▲              │ cost unknown
                └── lane ◀── trial in a fork

What waits when the disk is free is the next group: one step when the gateway is idle, many under load. A step whose
cost is unknown waits for a trial (`gateway.workers.trials`); later steps of its lane wait behind it, others go on. The
queue is bounded for clients (``gateway.queue_max``): a request beyond it is refused at once (SEPA protocol 5.1).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lamplighter.engine.errors import GatewayError, QueueFullError, StoreError
from lamplighter.gateway.loop.current import Current
from lamplighter.gateway.loop.failures import failure
from lamplighter.gateway.monitoring.figures import Counters, Peaks
from lamplighter.gateway.workers.large_updates import RequestReading
from lamplighter.gateway.workers.trials import Trial

GROUP_MAX = 1000
"""Most steps between two syncs, so that the first of them does not wait for long."""


class Lane:
    """Requests that keep their order, such as those of one connection. waiting: the first of them is on trial."""

    def __init__(self) -> None:
        self.waiting: deque[Step] = deque()


@dataclass(slots=True, eq=False)
class Step:
    """One entry of the queue.

    outcome: of `run`, for the requester. trial: makes the trial that has to pass before, None if there is none.
    refused: runs in its place when the trial fails; without it the requester is told only. begun: when it arrived, if
    it is to be timed. in_loop: it forks, so the loop itself runs it, however long it takes.
    tried, error: the trial that it has had, and why that failed.
    """

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    lane: Lane | None = None
    trial: Callable[[], Trial | RequestReading | None] | None = None
    refused: Callable[[GatewayError], Any] | None = None
    begun: float | None = None
    in_loop: bool = False
    tried: Trial | RequestReading | None = None
    error: GatewayError | None = None


class _Tried(NamedTuple):
    """The first step of a lane has had its trial: the lane's turn."""

    lane: Lane
    trial: Trial | RequestReading
    error: GatewayError | None


QueueEntry = Step | _Tried


@dataclass
class ReleaseGroup:
    """What is released together. begun: when the steps arrived that are timed."""

    releases: list[Callable[[], None]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)


class Queue:
    """Owns the steps that wait, the lanes, and the group that is being filled. taken: entries since the start."""

    def __init__(self, current: Current, counters: Counters, peaks: Peaks) -> None:
        self._current = current
        self._counters = counters
        self._peaks = peaks
        # A deque and a future: an asyncio.Queue takes 3 us of processor time for a step, mostly in function calls.
        self._entries: deque[QueueEntry] = deque()
        self._filled: asyncio.Future[None] | None = None  # what `next` waits for
        self._in_lanes = 0
        self._group = ReleaseGroup()
        self.taken = 0

    # --- in ---

    def put(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | RequestReading | None] | None = None,
        refused: Callable[[GatewayError], Any] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
    ) -> asyncio.Future[Any]:
        """The outcome of a step that the gateway itself asks for. It takes no room from clients."""
        step = Step(run, asyncio.get_running_loop().create_future(), lane, trial, refused, begun, in_loop)
        self._enter(step)
        return step.outcome

    def _enter(self, entry: QueueEntry) -> None:
        self._entries.append(entry)
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

    def submit(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | RequestReading | None] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
    ) -> asyncio.Future[Any]:
        """The outcome of a client's step. Raises QueueFullError."""
        self.check_room(1)
        return self.put(run, lane, trial, begun=begun, in_loop=in_loop)

    def check_room(self, count: int) -> None:
        """Raises QueueFullError unless the queue has room for so many requests."""
        waiting = self.waiting + count
        if waiting > self.room:
            self._counters.queue_full += 1
            raise QueueFullError(f"gateway.queue_max = {self.room} requests are waiting; try again later")
        if waiting > self._peaks.waiting:
            self._peaks.waiting = waiting

    @property
    def waiting(self) -> int:
        """Steps that wait, those behind a trial too."""
        return len(self._entries) + self._in_lanes

    @property
    def room(self) -> int:
        """Most requests that may wait."""
        return self._current.settings.gateway.queue_max

    @property
    def free(self) -> int:
        """How many more requests may wait."""
        return max(0, self.room - self.waiting)  # the gateway's own steps wait beyond the room

    @property
    def empty(self) -> bool:
        """Whether no step can be taken now."""
        return not self._entries

    # --- out ---

    async def next(self) -> list[QueueEntry]:
        """What is taken next, in order. Waits until there is something. For one task only."""
        waiting = self._entries
        if not waiting:
            self._filled = asyncio.get_running_loop().create_future()
            await self._filled
        entries = [waiting.popleft() for _ in range(min(len(waiting), GROUP_MAX))]
        self.taken += len(entries)
        return entries

    def in_turn(self, entries: Sequence[QueueEntry]) -> Iterator[Step]:
        """The steps of a group whose turn it is. To be read step by step: `hold` for one makes those of its lane
        wait."""
        for entry in entries:
            if isinstance(entry, Step):
                if not self._waits(entry):
                    yield entry
                continue
            steps, entry.lane.waiting = entry.lane.waiting, deque()
            self._in_lanes -= len(steps)
            first = steps.popleft()
            first.tried, first.error = entry.trial, entry.error
            yield first
            for step in steps:
                if not self._waits(step):
                    yield step

    def _waits(self, step: Step) -> bool:
        """Whether a step is not run now: its requester is gone, or one before it on its lane is on trial."""
        if step.outcome.cancelled():
            return True
        if step.lane is None or not step.lane.waiting:
            return False
        self._add(step, step.lane)
        return True

    def _add(self, step: Step, lane: Lane) -> None:
        lane.waiting.append(step)
        self._in_lanes += 1

    def hold(self, step: Step, trial: Trial | RequestReading, tasks: asyncio.TaskGroup) -> None:
        """Puts a step on trial. It is taken again when that has ended, with the steps of its lane behind it."""
        lane = step.lane or Lane()
        self._add(step, lane)
        tasks.create_task(self._try(trial, lane), name="trial")

    async def _try(self, trial: Trial | RequestReading, lane: Lane) -> None:
        error: GatewayError | None = None
        try:
            await trial.run()
        except OSError as raised:
            error = StoreError(f"there is no process to try the request in: {raised.strerror}")
        except BaseException as raised:
            error = failure(raised)
        self._enter(_Tried(lane, trial, error))

    # --- what is released together ---

    def release(self, call: Callable[[], None]) -> None:
        """Has something done when every record up to now is as durable as the policy says."""
        self._group.releases.append(call)

    def time(self, begun: float) -> None:
        """Has the time of a step noted, from its arrival to its release."""
        self._group.begun.append(begun)

    def end_group(self) -> ReleaseGroup:
        """What has gathered since the last group."""
        group, self._group = self._group, ReleaseGroup()
        return group
