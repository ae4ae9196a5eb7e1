"""The queue of the loop: which task is next, and what is released together.

::

    submit ─▶ a queue for each class ─▶ tasks of a group, in turn ─▶ records, one sync ─▶ releases of the group
                ▲                               │ cost unknown
                └── lane ◀────────────── dry run in a fork

What waits when the disk is free is the next group: one task when the gateway is idle, many under load. A task whose
cost is unknown waits for a dry run (`gateway.workers.dry_runs`); later tasks of its lane wait behind it, others go on.

Each class of requests (`engine.protocol.priorities`; Roffia 2018, 4.2) has a queue of its own, first in, first out.
Which class is next is start-time fair queueing (Goyal 1996): while several classes have tasks, each gets its share by
`WEIGHTS`, and a class that was idle is next. Tasks of one lane keep their order whatever their classes: a task never
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
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import AccessDeniedError, GatewayError, QueueFullError, StoreError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.sharing import Usage, fits, refusal
from lamplighter.gateway.loop.failures import failure
from lamplighter.gateway.monitoring.figures import Counters, HighWaterMarks
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import GatewaySettings, QuotaSettings, Settings
from lamplighter.gateway.workers.ad_hoc import Answer
from lamplighter.gateway.workers.dry_runs import Breath, DryRun, IndexJob, ParseJob

GROUP_MAX = 1000
"""Most tasks between two syncs, so that the first of them does not wait for long."""
WEIGHTS = {Priority.ALARM: 16, Priority.CONTROL: 8, Priority.NORMAL: 4, Priority.BULK: 1}
"""Tasks of a class for each one of bulk, while all classes have tasks that wait."""
_ROUND = max(WEIGHTS.values())
_NORMAL = Priority.NORMAL
_ROOM_PARTS = {Priority.ALARM: 4, Priority.CONTROL: 4, Priority.NORMAL: 1, Priority.BULK: 2}
"""Into how many parts ``gateway.queue_max`` is divided, of which the class has one."""


AccessOf = Callable[[str], Access | None]
"""What a client may do now, None for one that is not registered (any more)."""


def not_registered(client: str) -> AccessDeniedError:
    """The error for a request of a client that was removed before its turn came."""
    return AccessDeniedError(f"the client {client} is no longer registered")


@dataclass
class LiveSettings:
    """Shared by the parts of the loop, which read it where they use it. A reload replaces `settings` between two steps;
    access_of: asks the registry."""

    settings: Settings
    access_of: AccessOf = lambda client: FULL

    def quotas(self) -> QuotaSettings:
        """What one client may use."""
        return self.settings.quotas

    def access(self, caller: Caller) -> Access:
        """What a caller may do now and might do when its request came: it may take long to send the body, and another
        client may have come under its name. Raises AccessDeniedError for a client that was removed."""
        access = self.access_of(caller.name) if caller.registered else caller.access
        if access is None:
            raise not_registered(caller.name)
        return access if access is caller.access else access & caller.access


class OrderedLane:
    """Requests that keep their order, such as those of one connection.

    waiting: the first of them has its dry run. entered, taken: how many were put into the queue, and how many have had
    their turn. early: those whose turn came before that of an earlier one of a higher class, by their number. priority:
    the class in which the newest waits or has waited.
    """

    __slots__ = ("early", "entered", "priority", "taken", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Task] = deque()
        self.entered = self.taken = 0
        self.early: dict[int, Task] = {}
        self.priority = Priority.NORMAL

    def class_of_next(self, asked: Priority) -> Priority:
        """The class in which another task of it would wait: not above that of the one before, if that waits still."""
        if asked < self.priority and (self.entered != self.taken or self.waiting):
            return self.priority
        return asked


class ClientRequest(Protocol):
    """What a client asks for, as data. caller: whose permissions count, as they are when its turn comes; lane: with
    what it keeps its order."""

    @property
    def caller(self) -> Caller: ...

    @property
    def lane(self) -> OrderedLane | None: ...

    @property
    def priority(self) -> Priority: ...


@dataclass(frozen=True, slots=True)
class RequestKind:
    """How the requests of one type are served. `gateway.loop.requests` has the table, and the rule for handlers.

    run: does what a request asks for. check: what has to pass before, None for nothing. refused: runs in its turn
    instead, with the error of a check that failed; without it, the requester is told, and nothing else. in_loop: it
    forks, so the loop itself runs it, however long it takes. timed: from its arrival to its release.
    """

    run: Callable[[Any], Any]
    check: Callable[[Any], DryRun | ParseJob | IndexJob | None] | None = None
    refused: Callable[[Any, GatewayError], Any] | None = None
    in_loop: bool = False
    timed: bool = False


_POSTED, _POSTED_IN_LOOP = (
    RequestKind(failure),
    RequestKind(failure, in_loop=True),
)  # their `run` is not called: a task has its own


@dataclass(slots=True, eq=False)
class Task:
    """One entry of the queue: a request that has its turn, or a step that the gateway itself posted.

    outcome: of `run`, for the requester. begun: when it arrived, if it is timed. priority: the class in which it waits.
    number: of its lane's, from 0. client: whose share of the room it takes, "" for none. dry_run, error: what it has
    had to pass, and why that failed. attempts: how often commits have touched what it had found. exceeded: how often a
    plan was not enough, so that the store evaluates more of it.
    """

    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    kind: RequestKind = _POSTED
    request: Any = None
    lane: OrderedLane | None = None
    priority: Priority = Priority.NORMAL
    client: str = ""
    begun: float = 0.0
    number: int = 0
    dry_run: DryRun | ParseJob | IndexJob | Breath | None = None
    error: GatewayError | None = None
    attempts: int = 0
    exceeded: int = 0


class _LaneTurn(NamedTuple):
    """The first task of a lane has had its dry run: the lane's turn."""

    lane: OrderedLane
    dry_run: DryRun | ParseJob | IndexJob | Breath
    error: GatewayError | None
    priority: Priority


QueueEntry = Task | _LaneTurn


class _Class:
    """The entries of one class. waiting: its tasks that had no turn yet, those in lanes too; usage: the same by client.
    room: how many of clients may wait. tag: of its next entry in virtual time, in which each entry takes a
    `stride`."""

    __slots__ = ("entries", "room", "stride", "tag", "usage", "waiting")

    def __init__(self, stride: int) -> None:
        # A deque and a future: an asyncio.Queue takes 3 us of processor time for a task, mostly in function calls.
        self.entries: deque[QueueEntry] = deque()
        self.stride = stride
        self.room = self.waiting = self.tag = 0
        self.usage = Usage()


_tag = attrgetter("tag")


@dataclass
class ReleaseGroup:
    """What is released together. begun: the classes of the tasks that are timed, and when they arrived."""

    releases: list[Callable[[], None]] = field(default_factory=list)
    begun: list[tuple[Priority, float]] = field(default_factory=list)


class Queue:
    """Owns the tasks that wait, the lanes, and the group that is being filled.

    kinds: by the type of the request; filled when the parts of the loop are made. counters, peaks: of requests. taken:
    entries since the start.
    """

    def __init__(self, current: LiveSettings, counters: Counters, peaks: HighWaterMarks) -> None:
        self.kinds: dict[type, RequestKind] = {}
        self._current = current
        self.counters = counters
        self.peaks = peaks
        self._classes = [_Class(_ROUND // WEIGHTS[priority]) for priority in Priority]
        self._normal, self._bulk = self._classes[Priority.NORMAL], self._classes[Priority.BULK]
        self._divided: GatewaySettings | None = None  # by which the rooms of the classes are set
        self._entries = self._waiting = 0
        self._time = 0  # the tag of the entry that was taken last
        self._filled: asyncio.Future[None] | None = None  # what `wait_filled` waits for
        self.group = ReleaseGroup()
        self.taken = 0

    # --- in ---

    def submit(self, request: ClientRequest, *, admitted: bool = False) -> asyncio.Future[Any]:
        """The outcome of a client's request. admitted: it takes no room, as a delayed update that is due. Raises
        QueueFullError."""
        kind, lane, client = self.kinds[type(request)], request.lane, ""
        if not admitted:
            client = request.caller.client
            self.check_room(1, request.priority, lane, client)
        outcome = asyncio.get_running_loop().create_future()
        run, begun = partial(kind.run, request), perf_counter() if kind.timed else 0.0
        self._put(Task(run, outcome, kind, request, lane, request.priority, client, begun))
        return outcome

    def post(
        self,
        run: Callable[[], Any],
        lane: OrderedLane | None = None,
        *,
        in_loop: bool = False,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Any]:
        """The outcome of a step that the gateway itself asks for. It takes no room from clients."""
        outcome = asyncio.get_running_loop().create_future()
        self._put(Task(run, outcome, _POSTED_IN_LOOP if in_loop else _POSTED, None, lane, priority))
        return outcome

    def _put(self, entry: QueueEntry) -> None:
        if isinstance(entry, Task):
            lane = entry.lane
            if lane is not None:
                if lane.priority is not entry.priority:
                    entry.priority = lane.priority = lane.class_of_next(entry.priority)
                entry.number = lane.entered
                lane.entered += 1
            found = self._classes[entry.priority]
            found.waiting += 1
            self._waiting += 1
            if entry.client:
                found.usage.add(entry.client)
        else:
            found = self._classes[entry.priority]
        if not found.entries and found.tag < self._time:
            found.tag = self._time  # a class does not save up what it did not use
        found.entries.append(entry)
        self._entries += 1
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

    def check_room(
        self, count: int, priority: Priority = Priority.NORMAL, lane: OrderedLane | None = None, client: str = ""
    ) -> None:
        """Raises QueueFullError unless the queue has room for so many requests of a class. lane: theirs; client: whose
        they are, "" for one that has no share."""
        if lane is not None and lane.priority is not priority:
            priority = lane.class_of_next(priority)
        free = self.free(priority)
        if count > free:
            self.counters.queue_full += 1
            raise QueueFullError(self._full(priority))
        if client and not fits(client, used := self._usage_of(client, priority), count, free):
            self.counters.queue_full += 1
            room = f"gateway.queue_max = {self.room}, the room for {priority.word} requests,"
            why = refusal(client, used, count, free, room)
            raise QueueFullError(f"{why}; wait for answers, or send fewer requests in one message")
        waiting = self._waiting + count
        if waiting > self.peaks.waiting:
            self.peaks.waiting = waiting

    def _usage_of(self, client: str, priority: Priority) -> int:
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
        """Tasks that wait, those behind a dry run too."""
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
        # The gateway's own tasks wait beyond the room, so what is shared may be below 0.
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
        """Whether no task can be taken now."""
        return not self._entries

    def has(self, priority: Priority) -> bool:
        """Whether a task of this class or a higher one can be taken now."""
        return any(one.entries for one in self._classes[: priority + 1])

    # --- out ---

    async def wait_filled(self) -> None:
        """Waits until there is something to take. For one task only."""
        if not self._entries:
            self._filled = asyncio.get_running_loop().create_future()
            await self._filled

    def in_turn(self) -> Iterator[Task]:
        """The tasks of a group whose turn it is. To be read one by one: each is chosen when those before it are done,
        and `hold` for one makes those of its lane wait."""
        for _ in range(min(self._entries, GROUP_MAX)):
            # The entry with the smallest tag, of the highest class that has it.
            least = self._normal
            if len(least.entries) != self._entries:  # some are of other classes
                least = min((one for one in self._classes if one.entries), key=_tag)
            self._time = least.tag
            least.tag += least.stride
            self._entries -= 1
            self.taken += 1
            entry = least.entries.popleft()
            if isinstance(entry, _LaneTurn):
                yield from self._behind_dry_run(entry)
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
                while lane.early and (task := lane.early.pop(lane.taken, None)) is not None:
                    lane.taken += 1
                    if self._ready(task):
                        yield task

    def _behind_dry_run(self, entry: _LaneTurn) -> Iterator[Task]:
        """The first task of a lane, and those that waited behind its dry run."""
        tasks, entry.lane.waiting = entry.lane.waiting, deque()
        first = tasks.popleft()
        first.dry_run, first.error = entry.dry_run, entry.error
        self._ready(first)
        yield first
        for task in tasks:
            if self._ready(task):
                yield task

    def _ready(self, task: Task) -> bool:
        """Whether a task is run now. It is not if one before it on its lane has its dry run, or its requester is
        gone."""
        if task.lane is not None and task.lane.waiting:
            task.lane.waiting.append(task)
            return False
        found = self._classes[task.priority]
        found.waiting -= 1
        self._waiting -= 1
        if task.client:
            found.usage.add(task.client, -1)
        return not task.outcome.cancelled()

    def hold(self, task: Task, dry_run: DryRun | ParseJob | IndexJob | Breath, tasks: asyncio.TaskGroup) -> None:
        """Begins the dry run of a task. It is taken again when that has ended, with the tasks of its lane behind
        it."""
        lane, found = task.lane or OrderedLane(), self._classes[task.priority]
        found.waiting += 1
        self._waiting += 1
        if task.client:
            found.usage.add(task.client)
        lane.waiting.append(task)
        tasks.create_task(self._try(dry_run, lane, task), name="dry run")

    async def _try(self, dry_run: DryRun | ParseJob | IndexJob | Breath, lane: OrderedLane, task: Task) -> None:
        error: GatewayError | None = None
        try:
            await dry_run.perform(task.client)
        except OSError as raised:
            error = StoreError(f"there is no process to try the request in: {raised.strerror}")
        except BaseException as raised:
            error = failure(raised)
        self._put(_LaneTurn(lane, dry_run, error, task.priority))

    # --- what is released together ---

    def release(self, call: Callable[[], None]) -> None:
        """Has something done when every record up to now is as durable as the policy says."""
        self.group.releases.append(call)

    def refuse(self, task: Task, error: GatewayError) -> None:
        """Has the requester of a task told, with the group."""
        self.counters.refused += 1
        self.release(partial(_fail, task.outcome, error))


def fulfil(outcome: asyncio.Future[Any], result: Any) -> None:
    """Tells a requester the result of its task."""
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Answer):
        result.abandon()  # its requester is gone


def _fail(outcome: asyncio.Future[Any], error: GatewayError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
