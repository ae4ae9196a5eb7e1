"""The queue of the loop: which steps are next, and what is released together.

::

    submit ─▶ a queue for each class ─▶ steps of a group, in turn ─▶ records, one sync ─▶ releases of the group
                ▲                               │ cost unknown
                └── lane ◀─────────────── trial in a fork

What waits when the disk is free is the next group: one step when the gateway is idle, many under load. A step whose
cost is unknown waits for a trial (`gateway.workers.trials`); later steps of its lane wait behind it, others go on.

Each class of requests (`engine.protocol.priorities`; Roffia 2018, 4.2) has a queue of its own, first in, first out.
Which class is next is start-time fair queueing (Goyal 1996): while several classes have steps, each gets its share by
`WEIGHTS`, and a class that was idle is next. Steps of one lane keep their order whatever their classes: a step never
has a higher class than the one before it on its lane that still waits, and one of a lower class that comes first waits
for the others.

The queue is bounded for clients (``gateway.queue_max``): a request beyond it is refused at once (SEPA protocol 5.1).
Normal and bulk requests share that room, and bulk requests have half of it at most. Alarms and control requests each
have a quarter of it beside, which no other class can take. Each client has a share of the room of a class
(`gateway.sharing`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from lamplighter.engine.errors import GatewayError, QueueFullError, StoreError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.sharing import Usage, fits, refusal
from lamplighter.gateway.loop.current import Current
from lamplighter.gateway.loop.failures import failure
from lamplighter.gateway.monitoring.figures import Counters, HighWaterMarks
from lamplighter.gateway.settings import GatewaySettings
from lamplighter.gateway.workers.large_updates import ParseJob
from lamplighter.gateway.workers.trials import Trial

GROUP_MAX = 1000
"""Most steps between two syncs, so that the first of them does not wait for long."""
WEIGHTS = {Priority.ALARM: 16, Priority.CONTROL: 8, Priority.NORMAL: 4, Priority.BULK: 1}
"""Steps of a class for each one of bulk, while all classes have steps that wait."""
_ROUND = max(WEIGHTS.values())
_NORMAL = Priority.NORMAL
_ROOM_PARTS = {Priority.ALARM: 4, Priority.CONTROL: 4, Priority.NORMAL: 1, Priority.BULK: 2}
"""Into how many parts ``gateway.queue_max`` is divided, of which the class has one."""


class Lane:
    """Requests that keep their order, such as those of one connection.

    waiting: the first of them is on trial. entered, taken: how many were put into the queue, and how many have had
    their turn. early: those whose turn came before that of an earlier one of a higher class, by their number. priority:
    the class in which the newest waits or has waited.
    """

    __slots__ = ("early", "entered", "priority", "taken", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Step] = deque()
        self.entered = self.taken = 0
        self.early: dict[int, Step] = {}
        self.priority = Priority.NORMAL

    def reached(self, asked: Priority) -> Priority:
        """The class in which another step of it would wait: not above that of the one before, if that waits still."""
        if asked < self.priority and (self.entered != self.taken or self.waiting):
            return self.priority
        return asked


@dataclass(slots=True, eq=False)
class Step:
    """One entry of the queue.

    outcome: of `run`, for the requester. trial: makes the trial that has to pass before, None if there is none.
    refused: runs in its place when the trial fails; without it the requester is told only. begun: when it arrived, if
    it is to be timed. in_loop: it forks, so the loop itself runs it, however long it takes. priority: the class in
    which it waits. number: of its lane's, from 0. client: whose share of the room it takes, "" for none.
    tried, error: the trial that it has had, and why that failed.
    """

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    lane: Lane | None = None
    trial: Callable[[], Trial | ParseJob | None] | None = None
    refused: Callable[[GatewayError], Any] | None = None
    begun: float | None = None
    in_loop: bool = False
    priority: Priority = Priority.NORMAL
    number: int = 0
    client: str = ""
    tried: Trial | ParseJob | None = None
    error: GatewayError | None = None


class _Tried(NamedTuple):
    """The first step of a lane has had its trial: the lane's turn."""

    lane: Lane
    trial: Trial | ParseJob
    error: GatewayError | None


QueueEntry = Step | _Tried


class _Class:
    """The entries of one class. waiting: its steps that had no turn yet, those in lanes too; usage: the same by client.
    room: how many of clients may wait. tag: of its next entry in virtual time, in which each entry takes a
    `stride`."""

    __slots__ = ("entries", "room", "stride", "tag", "usage", "waiting")

    def __init__(self, stride: int) -> None:
        # A deque and a future: an asyncio.Queue takes 3 us of processor time for a step, mostly in function calls.
        self.entries: deque[QueueEntry] = deque()
        self.stride = stride
        self.room = self.waiting = self.tag = 0
        self.usage = Usage()


_tag = attrgetter("tag")


@dataclass
class ReleaseGroup:
    """What is released together. begun: the classes of the steps that are timed, and when they arrived."""

    releases: list[Callable[[], None]] = field(default_factory=list)
    begun: list[tuple[Priority, float]] = field(default_factory=list)


class Queue:
    """Owns the steps that wait, the lanes, and the group that is being filled. taken: entries since the start."""

    def __init__(self, current: Current, counters: Counters, peaks: HighWaterMarks) -> None:
        self._current = current
        self._counters = counters
        self._peaks = peaks
        self._classes = [_Class(_ROUND // WEIGHTS[priority]) for priority in Priority]
        self._normal, self._bulk = self._classes[Priority.NORMAL], self._classes[Priority.BULK]
        self._divided: GatewaySettings | None = None  # by which the rooms of the classes are set
        self._entries = self._waiting = 0
        self._time = 0  # the tag of the entry that was taken last
        self._filled: asyncio.Future[None] | None = None  # what `filled` waits for
        self._group = ReleaseGroup()
        self.taken = 0

    # --- in ---

    def put(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | ParseJob | None] | None = None,
        refused: Callable[[GatewayError], Any] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
        priority: Priority = Priority.NORMAL,
        client: str = "",
    ) -> asyncio.Future[Any]:
        """The outcome of a step that the gateway itself asks for. It takes no room from clients."""
        step = Step(run, asyncio.get_running_loop().create_future(), lane, trial, refused, begun, in_loop, priority)
        step.client = client
        if lane is not None:
            if lane.priority is not priority:
                step.priority = lane.priority = lane.reached(priority)
            step.number = lane.entered
            lane.entered += 1
        found = self._classes[step.priority]
        self._count(step, 1)
        self._enter(step, found)
        return step.outcome

    def _enter(self, entry: QueueEntry, found: _Class) -> None:
        if not found.entries and found.tag < self._time:
            found.tag = self._time  # a class does not save up what it did not use
        found.entries.append(entry)
        self._entries += 1
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

    def submit(
        self,
        run: Callable[[], Any],
        lane: Lane | None = None,
        trial: Callable[[], Trial | ParseJob | None] | None = None,
        begun: float | None = None,
        *,
        in_loop: bool = False,
        priority: Priority = Priority.NORMAL,
        client: str = "",
    ) -> asyncio.Future[Any]:
        """The outcome of a client's step. client: as in `check_room`. Raises QueueFullError."""
        self.check_room(1, priority, lane, client)
        return self.put(run, lane, trial, begun=begun, in_loop=in_loop, priority=priority, client=client)

    def check_room(
        self, count: int, priority: Priority = Priority.NORMAL, lane: Lane | None = None, client: str = ""
    ) -> None:
        """Raises QueueFullError unless the queue has room for so many requests of a class. lane: theirs; client: whose
        they are, "" for one that has no share."""
        if lane is not None and lane.priority is not priority:
            priority = lane.reached(priority)
        free = self.free(priority)
        if count > free:
            self._counters.queue_full += 1
            raise QueueFullError(self._full(priority))
        if client and not fits(client, used := self._used(client, priority), count, free):
            self._counters.queue_full += 1
            room = f"gateway.queue_max = {self.room}, the room for {priority.word} requests,"
            why = refusal(client, used, count, free, room)
            raise QueueFullError(f"{why}; wait for answers, or send fewer requests in one message")
        waiting = self._waiting + count
        if waiting > self._peaks.waiting:
            self._peaks.waiting = waiting

    def _used(self, client: str, priority: Priority) -> int:
        """How many requests of a client wait in the room of a class."""
        found = self._classes[priority]
        if found is self._normal or found is self._bulk:  # they share it
            return self._normal.usage.of(client) + self._bulk.usage.of(client)
        return found.usage.of(client)

    def _full(self, priority: Priority) -> str:
        """Why there is no room."""
        found = self._classes[priority]
        if found is self._normal or self.free(_NORMAL) < found.room - found.waiting:
            return f"gateway.queue_max = {self.room} requests are waiting; try again later"
        return (
            f"{found.waiting} {priority.word} requests are waiting, and gateway.queue_max = {self.room} has room for "
            f"{found.room} of this class; try again later"
        )

    @property
    def waiting(self) -> int:
        """Steps that wait, those behind a trial too."""
        return self._waiting

    @property
    def waiting_by_class(self) -> tuple[int, ...]:
        """The same by class, in the order of `Priority`."""
        return tuple(one.waiting for one in self._classes)

    @property
    def room(self) -> int:
        """Most normal and bulk requests that may wait."""
        return self._current.settings.gateway.queue_max

    def free(self, priority: Priority) -> int:
        """How many more requests of a class may wait."""
        if self._current.settings.gateway is not self._divided:
            self._divide(self._current.settings.gateway)
        # The gateway's own steps wait beyond the room, so what is shared may be below 0.
        free = self._normal.room - self._normal.waiting - self._bulk.waiting
        if priority is not _NORMAL:
            found = self._classes[priority]
            own = found.room - found.waiting
            free = min(own, free) if found is self._bulk else own
        return free if free > 0 else 0

    def _divide(self, settings: GatewaySettings) -> None:
        for priority, one in zip(Priority, self._classes, strict=True):
            one.room = max(1, settings.queue_max // _ROOM_PARTS[priority])
        self._divided = settings

    @property
    def empty(self) -> bool:
        """Whether no step can be taken now."""
        return not self._entries

    def has(self, priority: Priority) -> bool:
        """Whether a step of this class or a higher one can be taken now."""
        return any(one.entries for one in self._classes[: priority + 1])

    # --- out ---

    async def filled(self) -> None:
        """Waits until there is something to take. For one task only."""
        if not self._entries:
            self._filled = asyncio.get_running_loop().create_future()
            await self._filled

    def in_turn(self) -> Iterator[Step]:
        """The steps of a group whose turn it is. To be read step by step: each is chosen when those before it are
        done, and `hold` for one makes those of its lane wait."""
        for _ in range(min(self._entries, GROUP_MAX)):
            entry = self._next()
            if isinstance(entry, _Tried):
                yield from self._tried(entry)
                continue
            lane = entry.lane
            if lane is None:
                if self._ready(entry):
                    yield entry
            elif entry.number != lane.taken:
                lane.early[entry.number] = entry
            else:
                lane.taken += 1
                if self._ready(entry):
                    yield entry
                while lane.early and (step := lane.early.pop(lane.taken, None)) is not None:
                    lane.taken += 1
                    if self._ready(step):
                        yield step

    def _tried(self, entry: _Tried) -> Iterator[Step]:
        """The first step of a lane, and those that waited behind its trial."""
        steps, entry.lane.waiting = entry.lane.waiting, deque()
        first = steps.popleft()
        first.tried, first.error = entry.trial, entry.error
        self._count(first, -1)
        yield first
        for step in steps:
            if self._ready(step):
                yield step

    def _next(self) -> QueueEntry:
        """Takes the entry with the smallest tag, of the highest class that has it."""
        least = self._normal
        if len(least.entries) != self._entries:  # some are of other classes
            least = min((one for one in self._classes if one.entries), key=_tag)
        self._time = least.tag
        least.tag += least.stride
        self._entries -= 1
        self.taken += 1
        return least.entries.popleft()

    def _count(self, step: Step, change: int) -> None:
        """A step waits, or does not any more."""
        found = self._classes[step.priority]
        found.waiting += change
        self._waiting += change
        if step.client:
            found.usage.add(step.client, change)

    def _ready(self, step: Step) -> bool:
        """Whether a step is run now. It is not if one before it on its lane is on trial, or its requester is gone."""
        if step.lane is not None and step.lane.waiting:
            step.lane.waiting.append(step)
            return False
        self._count(step, -1)
        return not step.outcome.cancelled()

    def hold(self, step: Step, trial: Trial | ParseJob, tasks: asyncio.TaskGroup) -> None:
        """Puts a step on trial. It is taken again when that has ended, with the steps of its lane behind it."""
        lane = step.lane or Lane()
        self._count(step, 1)
        lane.waiting.append(step)
        tasks.create_task(self._try(trial, lane, step), name="trial")

    async def _try(self, trial: Trial | ParseJob, lane: Lane, step: Step) -> None:
        error: GatewayError | None = None
        try:
            await trial.run(step.client)
        except OSError as raised:
            error = StoreError(f"there is no process to try the request in: {raised.strerror}")
        except BaseException as raised:
            error = failure(raised)
        self._enter(_Tried(lane, trial, error), self._classes[step.priority])

    # --- what is released together ---

    def release(self, call: Callable[[], None]) -> None:
        """Has something done when every record up to now is as durable as the policy says."""
        self._group.releases.append(call)

    def time(self, begun: float, priority: Priority) -> None:
        """Has the time of a step noted, from its arrival to its release."""
        self._group.begun.append((priority, begun))

    def end_group(self) -> ReleaseGroup:
        """What has gathered since the last group."""
        group, self._group = self._group, ReleaseGroup()
        return group
