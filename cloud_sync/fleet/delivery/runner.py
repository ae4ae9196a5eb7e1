"""Delivers the matches of a lake to all sinks of its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

import msgspec

from lamplighter.cloud_sync.fleet.delivery.cursors import SinkCursor, SinkName
from lamplighter.cloud_sync.fleet.delivery.match_files import DamagedMatchesError
from lamplighter.cloud_sync.fleet.delivery.notifications import ALL_ROWS, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.parts import DeliveryParts
from lamplighter.cloud_sync.fleet.delivery.worker import SinkWorker
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError
from lamplighter.cloud_sync.fleet.subscriptions.records import Sink, SubscriptionRecord
from lamplighter.cloud_sync.fleet.subscriptions.registry import Registered
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text

logger = EventLogger(__name__)

STATES = "subscriptions", "delivery.json"
# Interval in which cursors are written: after a crash the notifications of so long are delivered again.
FLUSH_S = 1.0
# Interval in which the states are written, and cursors of sinks without notifications.
STATES_S = 10.0
# Interval in which the answers of gateways to orders are read.
ANSWERS_S = 10.0
# How long deliveries under way may take when the process is told to end.
GRACE_S = 15.0
# `SinkWorker.run` or `SinkWorker.once`.
RunWorker = Callable[[SinkWorker, str], Coroutine[Any, Any, None]]


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """How the delivery to a sink is. Times are seconds since 1970.

    state: "delivering", "retrying" after a failure until next_try, or "paused". delivered, dead: numbers of
    notifications since the sink was added. waiting: matches that are not delivered yet. unread: the batches of those
    that could not be read, and are not among the waiting. unanswered: orders to gateways that have no answer yet; those
    that are refused or overdue are among the dead. behind: gateways that answer no orders, and wait for notifications
    that others have. full: whether further dead letters are not kept.
    """

    subscription: str
    sink: str
    kind: str
    state: Literal["delivering", "retrying", "paused"]
    delivered: int
    dead: int
    waiting: int
    position: MatchPosition
    last_success: float | None = None
    last_error: str = ""
    last_error_at: float | None = None
    next_try: float | None = None
    unread: list[str] = []
    unanswered: int = 0
    behind: list[str] = []
    full: bool = False


class DeliveryStates(msgspec.Struct, frozen=True, kw_only=True):
    """`<lake>/subscriptions/delivery.json`. at: when it was written, in seconds since 1970. damaged: names files."""

    v: int = 1
    at: float
    sinks: list[SinkState]
    damaged: list[str] = []


class FleetDelivery:
    """All workers of a lake. read: reads the records in every state, those of removed subscriptions too."""

    def __init__(self, parts: DeliveryParts, read: Callable[[], Registered]) -> None:
        self._parts = parts
        self._read = read
        self._workers: dict[SinkName, SinkWorker] = {}
        self._tasks: dict[SinkName, asyncio.Task[None]] = {}
        self._paused: dict[SinkName, Sink] = {}
        # The last batch that the workers were told about.
        self._last = ""
        self._written_at = 0.0

    def stop(self) -> None:
        """Ends `run` after the deliveries under way."""
        self._parts.stopping.set()

    async def run(self, every_s: float) -> None:
        """Delivers until it is stopped. every_s: interval of looking for new matches and changed subscriptions.

        Raises LockLostError if another process delivers; OSError and UpstreamError if cursors cannot be written at the
        end.
        """
        parts = self._parts
        self._last = await parts.in_reader_thread(parts.table.last)
        beside = [asyncio.ensure_future(self._keep_flushing()), asyncio.ensure_future(self._keep_settling())]
        try:
            while not parts.stopping.is_set():
                try:
                    await parts.write(parts.check_lock)
                    await self.look()
                except LockLostError:
                    raise
                except (GatewayError, OSError) as error:
                    logger.warning("lake not readable", lake=parts.lake.url, reason=str(error))
                await self._pause(every_s)
        finally:
            parts.stopping.set()
            for task in beside:
                task.cancel()
            await self._end(list(self._tasks))
            await self._flush(whole=True)

    async def once(self) -> list[str]:
        """Delivers the matches that are in the table now; each sink ends at its first failure.

        Returns a line for each sink with matches that were not delivered, and for each broken record and damaged file.
        Raises GatewayError, OSError.
        """
        parts = self._parts
        self._last = await parts.in_reader_thread(parts.table.last)
        found = await parts.write(self._read)
        flushing = asyncio.ensure_future(self._keep_flushing())
        stopped = asyncio.ensure_future(parts.stopping.wait())
        try:
            await self._follow(found, SinkWorker.once)
            dead = {name: worker.cursor.dead for name, worker in self._workers.items()}
            await self._settle_orders()
            ends: list[asyncio.Future[Any]] = [asyncio.gather(*self._tasks.values(), return_exceptions=True), stopped]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            parts.stopping.set()
            flushing.cancel()
            stopped.cancel()
            await self._end(list(self._tasks))
            await self._flush(whole=True)
        told = [*(one.reason for one in found.broken), *parts.table.read_errors]
        for name, worker in sorted(self._workers.items()):
            buried = worker.cursor.dead - dead[name]
            reasons = [f"{count_text(buried, 'notification')} to the dead letters"] if buried else []
            reasons += [worker.undelivered_reason] if worker.undelivered_reason else []
            reasons += [f"matches of {unread} not read" for unread in unread_batches(worker.cursor)]
            told += [f"subscription {name[0]}, sink {name[1]}: {reason}" for reason in reasons]
        return told

    async def look(self) -> None:
        """Reads the subscriptions, and tells the workers about new matches. Raises GatewayError, OSError."""
        parts = self._parts
        await self._follow(await parts.write(self._read))
        while True:
            try:
                following = await parts.in_reader_thread(parts.table.after, self._last)
                if following is None:
                    return
                counts = await parts.in_reader_thread(parts.table.counts, following)
            except DamagedMatchesError as error:
                logger.error("matches not readable", first=error.first, last=error.last, reason=str(error))
                self._last = error.last
                for worker in self._workers.values():
                    worker.tell(0)  # each notes that it has to read them later
                continue
            self._last = following
            for name, worker in self._workers.items():
                if counts.get(name[0]):
                    worker.tell(counts[name[0]])

    async def _settle_orders(self) -> None:
        """Reads the answers of gateways to orders. Those without effect become dead letters. Raises OSError."""
        parts, desk = self._parts, self._parts.desk
        if desk is None:
            return
        for dead in await parts.in_answer_thread(desk.settle, parts.clock.wall()):
            await parts.write(parts.check_lock)
            # The letter first: after a kill between the two it is written again, under the same name.
            await parts.write(parts.letters.write_order, parts.lake, dead, parts.clock.wall())
            logger.error("order without effect", subscription=dead.order.subscription, reason=dead.reason)
            desk.forget([dead.order])
            worker, cursor = self._workers.get(dead.order.name), parts.cursors.by_name.get(dead.order.name)
            if worker is not None:
                worker.note_dead(dead.reason)
            elif cursor is not None:
                parts.cursors.replace(msgspec.structs.replace(cursor, dead=cursor.dead + 1))

    async def _keep_settling(self) -> None:
        """Beside the deliveries: they go on while the destination of orders does not answer."""
        while True:
            try:
                await self._settle_orders()
            except (GatewayError, OSError) as error:
                logger.warning("answers to orders not noted", lake=self._parts.lake.url, reason=str(error))
            await self._parts.clock.sleep(ANSWERS_S)

    async def _pause(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._parts.clock.sleep(seconds))
        stopped = asyncio.ensure_future(self._parts.stopping.wait())
        try:
            await asyncio.wait([sleeping, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            stopped.cancel()

    # --- subscriptions ---

    async def _follow(self, found: Registered, run: RunWorker = SinkWorker.run) -> None:
        """Starts and ends workers as the subscriptions say. A broken record keeps the sinks that it had."""
        broken = {one.id for one in found.broken}
        wanted: dict[SinkName, tuple[SubscriptionRecord, Sink]] = {}
        self._paused = {}
        for record in found.records:
            for sink in record.deliver:
                if record.state == "active":
                    wanted[record.id, sink.name] = record, sink
                elif record.state == "paused":
                    self._paused[record.id, sink.name] = sink
        changed = [
            name
            for name, worker in self._workers.items()
            if name[0] not in broken and (name not in wanted or wanted[name][1] != worker.record)
        ]
        # A task that failed without our doing is started again.
        failed = [name for name, task in self._tasks.items() if task.done()]
        await self._end([*changed, *failed])
        self._forget(found)
        for name, (record, sink) in wanted.items():
            if name not in self._workers:
                self._start(record, sink, run)

    def _forget(self, found: Registered) -> None:
        """Removes the cursors of removed subscriptions, and of sinks that their subscription does not have any more."""
        cursors = self._parts.cursors
        for record in found.records:
            if record.state == "removed":
                cursors.remove_subscription(record.id, MatchPosition(self._last, ALL_ROWS))
            else:
                cursors.remove_sinks(record.id, [sink.name for sink in record.deliver])

    def _start(self, record: SubscriptionRecord, sink: Sink, run: RunWorker) -> None:
        name = record.id, sink.name
        cursors = self._parts.cursors
        cursor = cursors.by_name.get(name) or cursors.begin(record.id, sink.name, whole=record.begin == "all")
        worker = SinkWorker(record.id, sink, cursor, self._parts)
        self._workers[name] = worker
        self._tasks[name] = asyncio.ensure_future(run(worker, self._last))

    async def _end(self, names: Sequence[SinkName]) -> None:
        """Ends workers. If everything is stopping, deliveries under way have time to end, and the states are kept."""
        tasks = [self._tasks.pop(name) for name in dict.fromkeys(names)]
        if not tasks:
            return
        if self._parts.stopping.is_set():
            await asyncio.wait(tasks, timeout=GRACE_S)
        else:
            for name in names:
                self._workers.pop(name, None)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                logger.error("delivery to a sink ended", exc_info=ended)

    # --- files ---

    async def _keep_flushing(self) -> None:
        while True:
            await self._parts.clock.sleep(FLUSH_S)
            try:
                await self._flush(whole=False)
            except LockLostError:
                self._parts.stopping.set()  # the flush at the end raises it again
                return
            except (GatewayError, OSError) as error:
                logger.warning("cursors not written", lake=self._parts.lake.url, reason=str(error))

    async def _flush(self, *, whole: bool) -> None:
        """Writes the cursors, and from time to time the states. whole: all of them now."""
        parts = self._parts
        now = parts.clock.monotonic()
        due = whole or now - self._written_at >= STATES_S
        if parts.desk is not None:
            await parts.write(parts.desk.write)
        changes = parts.cursors.changes(moved=due)
        if changes is not None:
            await parts.write(parts.cursors.write, changes)
        if due:
            self._written_at = now
            found = DeliveryStates(at=parts.clock.wall(), sinks=self.states(), damaged=parts.table.read_errors)
            states = msgspec.json.encode(found)
            await parts.write(parts.lake.write, states + b"\n", *STATES)

    def states(self) -> list[SinkState]:
        """The state of each sink, sorted by name."""
        desk = self._parts.desk
        unanswered: Mapping[SinkName, int] = desk.unanswered_counts() if desk is not None else {}
        full = self._parts.letters.full
        found = [
            SinkState(
                subscription=name[0],
                sink=name[1],
                kind=kind_of(worker.record),
                state="delivering" if worker.next_try is None else "retrying",
                delivered=worker.cursor.delivered,
                dead=worker.cursor.dead,
                waiting=max(0, worker.waiting),
                position=worker.cursor.position,
                last_success=worker.last_success,
                last_error=worker.last_error,
                last_error_at=worker.last_error_at,
                next_try=worker.next_try,
                unread=unread_batches(worker.cursor),
                unanswered=unanswered.get(name, 0),
                behind=[one.gateway for one in worker.cursor.behind],
                full=name in full,
            )
            for name, worker in self._workers.items()
        ]
        for name, sink in self._paused.items():
            cursor = self._parts.cursors.by_name.get(name)
            if cursor is not None:
                found.append(
                    SinkState(
                        subscription=name[0],
                        sink=name[1],
                        kind=kind_of(sink),
                        state="paused",
                        delivered=cursor.delivered,
                        dead=cursor.dead,
                        waiting=0,
                        position=cursor.position,
                        unread=unread_batches(cursor),
                        unanswered=unanswered.get(name, 0),
                        behind=[one.gateway for one in cursor.behind],
                        full=name in full,
                    )
                )
        return sorted(found, key=lambda state: (state.subscription, state.sink))


def unread_batches(cursor: SinkCursor) -> list[str]:
    """The batches with matches that the sink has not read."""
    return [
        f"batch {one.until}" if one.position.batch == one.until else f"batches {one.position.batch} to {one.until}"
        for one in cursor.unread
    ]


def kind_of(sink: Sink) -> str:
    """The kind of a sink, as its record names it."""
    return str(msgspec.to_builtins(sink)["kind"])


def read_states(lake: Lake) -> DeliveryStates | None:
    """The states that the delivering process wrote last; None if there are none. Raises OSError."""
    try:
        return msgspec.json.decode(lake.fs.cat_file(lake.path(*STATES)), type=DeliveryStates)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
