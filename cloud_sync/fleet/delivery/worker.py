"""One sink of one subscription: reads, delivers, retries, gives up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from lamplighter.cloud_sync.fleet.delivery.catching_up import catch_up, with_passed
from lamplighter.cloud_sync.fleet.delivery.cursors import SinkCursor, SinkName
from lamplighter.cloud_sync.fleet.delivery.dead_letters import reason_line
from lamplighter.cloud_sync.fleet.delivery.match_files import DamagedMatchesError
from lamplighter.cloud_sync.fleet.delivery.match_table import MatchChunk, MatchTable
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification, MatchPosition, UnreadMatches
from lamplighter.cloud_sync.fleet.delivery.parts import DeliveryParts
from lamplighter.cloud_sync.fleet.delivery.sinks import DeliverySink, UndeliveredError
from lamplighter.cloud_sync.fleet.delivery.sinks.updates import UpdateNotifications
from lamplighter.cloud_sync.fleet.subscriptions.records import Sink
from lamplighter.engine.errors import GatewayError, PayloadError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.tables import count_text

logger = EventLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 2.0, 300.0
# Interval in which a sink tries to read what it could not read.
UNREAD_S = 60.0
# Interval in which it is looked whether a gateway that is behind has room again: that of reading answers.
BEHIND_S = 10.0
# Damaged batches that a sink passes. It waits at the next one.
UNREAD_MAX = 20


class SinkWorker:
    """Delivers the matches of one subscription to one sink, in order.

    waiting: matches that are not delivered yet; next_try: when it tries again after a failure, in seconds since 1970.
    """

    def __init__(self, subscription: str, sink: Sink, cursor: SinkCursor, parts: DeliveryParts) -> None:
        self.name: SinkName = subscription, sink.name
        self.record = sink
        self.cursor = cursor
        self.waiting = 0
        self.last_error = ""
        self.last_error_at: float | None = None
        self.last_success: float | None = None
        self.next_try: float | None = None
        self._parts = parts
        self._failures = 0
        self._tried_unread_at: float | None = None
        self._news = asyncio.Event()
        self._sink: DeliverySink | None = None

    def tell(self, matches: int) -> None:
        """There are more matches of the subscription in the table."""
        self.waiting += matches
        self._news.set()

    async def run(self, until: str) -> None:
        """Delivers until the parts are stopping. until: the last batch whose matches it was not told about."""
        parts, stopping = self._parts, self._parts.stopping
        try:
            self._news.set()
            counted = False
            while not stopping.is_set():
                try:
                    if not counted:
                        self.waiting += await parts.in_reader_thread(parts.table.waiting, *self._place, until)
                        counted = True
                    await self._take_unread()
                    caught_up = await self._take_behind()
                    if not await self._step() and not caught_up:
                        await self._first_of(self._until_news())
                except Exception as error:
                    await self._wait_after(error)
        finally:
            if self._sink is not None:
                await self._sink.close()

    async def _until_news(self) -> None:
        """Waits for matches, or until it is time to try again what could not be read or sent."""
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._news.wait())]
        if self.cursor.behind or self.cursor.unread:
            pause = BEHIND_S if self.cursor.behind else UNREAD_S
            waiting.append(asyncio.ensure_future(self._parts.clock.sleep(pause)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def once(self, until: str) -> None:
        """Delivers the matches up to the end of a batch, until a delivery fails or the parts are stopping."""
        parts = self._parts
        try:
            self.waiting += await parts.in_reader_thread(parts.table.waiting, *self._place, until)
            await self._take_unread()
            while until and not parts.stopping.is_set() and (await self._step(until) or await self._take_behind()):
                pass
        except Exception as error:
            self._note_failure(error)
        finally:
            if self._sink is not None:
                await self._sink.close()

    @property
    def undelivered_reason(self) -> str:
        """Why matches up to the end of `once` are not delivered; empty if they are, or are dead letters."""
        if self.next_try is not None:
            left = count_text(self.waiting, "notification") if self.waiting > 0 else "its notifications are"
            return f"{self.last_error}; {left} not delivered"
        if self.cursor.behind:
            names = ", ".join(one.gateway for one in self.cursor.behind)
            return f"gateways that answer no orders wait for notifications: {names}"
        return f"{count_text(self.waiting, 'notification')} not delivered; run it again" if self.waiting > 0 else ""

    @property
    def _place(self) -> tuple[str, Any]:
        return self.name[0], self.cursor.position

    async def _take_unread(self) -> None:
        """Delivers what could not be read before, if it can be read now."""
        now = self._parts.clock.monotonic()
        if self._tried_unread_at is not None and now - self._tried_unread_at < UNREAD_S:
            return
        self._tried_unread_at = now
        for lane in self.cursor.unread:
            with contextlib.suppress(DamagedMatchesError):
                rest: UnreadMatches | None = lane
                while rest is not None and not self._parts.stopping.is_set():
                    await self._step_from(rest.position, rest.until, late=True)
                    rest = next((one for one in self.cursor.unread if one.until == lane.until), None)

    async def _take_behind(self) -> bool:
        """Delivers what gateways have missed that have room again. False if there is nothing."""
        if not self.cursor.behind:
            return False
        sink = self._sink = self._sink or self._parts.make(self.record)
        async with self._parts.slots if sink.blocking else contextlib.nullcontext():
            moved = await catch_up(self.cursor, sink, self._parts)
        if moved is None:
            return False
        self.cursor = moved
        self._parts.cursors.replace(moved)
        return True

    async def _step(self, until: str | None = None) -> bool:
        """Delivers one chunk of the matches, or passes a damaged batch. False if there is none.

        until: the last batch to look at.
        """
        try:
            if await self._step_from(self.cursor.position, until):
                return True
            self.waiting = 0
            return False
        except DamagedMatchesError as error:
            if len(self.cursor.unread) >= UNREAD_MAX:
                raise
            self.cursor = self.cursor.without(error.first, error.last)
            self._parts.cursors.replace(self.cursor)
            return True

    async def _step_from(self, place: MatchPosition, until: str | None, *, late: bool = False) -> bool:
        """Delivers one chunk. False if there is none. late: matches of later records were delivered."""
        sink = self._sink = self._sink or self._parts.make(self.record)
        # A sink that fails holds no notifications in the pauses.
        async with self._parts.slots if sink.blocking else contextlib.nullcontext():
            self._news.clear()
            args = self.name[0], place, sink.bounds, until
            chunk = await self._parts.in_reader_thread(_next_chunk, self._parts.table, late, *args)
            if chunk.notifications:
                await self._parts.write(self._parts.check_lock)
                await self._deliver(sink, chunk.notifications, place)
            elif chunk.position != place:
                self.cursor = self._parts.cursors.move(self.cursor.at(chunk.position))
            else:
                return False
        return True

    async def _deliver(
        self, sink: DeliverySink, notifications: Sequence[MatchNotification], place: MatchPosition
    ) -> None:
        sound = next((number for number, one in enumerate(notifications) if not _is_sound(one)), len(notifications))
        if not sound:
            await self._bury(notifications[:1], _fault(notifications[0]))
            return
        if isinstance(sink, UpdateNotifications):
            sink.pass_by(one.gateway for one in self.cursor.behind)
        try:
            try:
                await sink.deliver(notifications[:sound])
            finally:
                self.cursor = with_passed(self.cursor, sink, place, notifications, self._parts.clock.wall())
        except GatewayError as error:
            accepted = error.accepted if isinstance(error, UndeliveredError) else 0
            self._accept(notifications[:accepted])
            if isinstance(error, UndeliveredError) and error.permanent:
                await self._bury(notifications[accepted : accepted + error.refused], str(error))
                return
            if await self._is_overdue(notifications[accepted]):
                await self._bury(notifications[accepted:sound], f"given up: {error}")
            raise
        else:
            self._accept(notifications[:sound])

    def _accept(self, notifications: Sequence[MatchNotification]) -> None:
        if notifications:
            self._failures = 0
            self.next_try = None
            self.last_success = self._parts.clock.wall()
            self._advance(notifications, delivered=len(notifications))

    async def _bury(self, notifications: Sequence[MatchNotification], reason: str) -> None:
        """Puts notifications into the dead letters."""
        parts, told = self._parts, reason_line(reason)
        await parts.write(parts.letters.write, parts.lake, self.name, notifications, told, parts.clock.wall())
        logger.error(
            "notifications not delivered",
            subscription=self.name[0],
            sink=self.name[1],
            notifications=len(notifications),
            first=notifications[0].id,
            reason=told,
        )
        self._advance(notifications, dead=len(notifications))

    def note_dead(self, reason: str) -> None:
        """An order of a notification that the sink has accepted is in the dead letters."""
        self.last_error, self.last_error_at = reason_line(reason), self._parts.clock.wall()
        self.cursor = msgspec.structs.replace(self.cursor, dead=self.cursor.dead + 1)
        self._parts.cursors.replace(self.cursor)

    def _advance(self, notifications: Sequence[MatchNotification], *, delivered: int = 0, dead: int = 0) -> None:
        old, position = self.cursor, notifications[-1].next
        if position > old.position:
            self.waiting -= len(notifications)
        self.cursor = msgspec.structs.replace(
            old.at(position),
            delivered=old.delivered + delivered,
            dead=old.dead + dead,
            failing_since=None if delivered else old.failing_since,
        )
        self._parts.cursors.replace(self.cursor)

    async def _is_overdue(self, notification: MatchNotification) -> bool:
        """Whether the sink has failed, and the notification has been there, for longer than the time to give up."""
        since, now = self.cursor.failing_since, self._parts.clock.wall()
        if since is None or now - since < self._parts.give_up_s:
            return False
        written = await self._parts.in_reader_thread(self._parts.table.write_time, notification.next.batch)
        return written is None or now - written >= self._parts.give_up_s

    async def _wait_after(self, error: Exception) -> None:
        """Notes a failure, and waits."""
        await self._first_of(self._parts.clock.sleep(self._note_failure(error)))

    def _note_failure(self, error: Exception) -> float:
        """Notes a failure. Returns the pause after it, in seconds."""
        parts = self._parts
        now = parts.clock.wall()
        self._failures += 1
        pause = max(
            back_off_s(self._failures, RETRY_FIRST_S, RETRY_MAX_S, parts.chance.uniform), getattr(error, "wait_s", 0.0)
        )
        self.last_error, self.last_error_at, self.next_try = reason_line(str(error)), now, now + pause
        if self.cursor.failing_since is None:
            self.cursor = msgspec.structs.replace(self.cursor, failing_since=now)
            parts.cursors.replace(self.cursor)
        expected = isinstance(error, GatewayError | OSError)
        logger.warning(
            "delivery failed",
            exc_info=None if expected else error,
            subscription=self.name[0],
            sink=self.name[1],
            failures=self._failures,
            retry_s=round(pause),
            reason=self.last_error or type(error).__name__,
        )
        return pause

    async def _first_of(self, awaited: Coroutine[Any, Any, Any]) -> None:
        """Waits for it, or until the parts are stopping."""
        tasks = [asyncio.ensure_future(awaited), asyncio.ensure_future(self._parts.stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _next_chunk(table: MatchTable, late: bool, *args: Any) -> MatchChunk:
    """The next chunk. Its bodies are made here, beside the event loop."""
    chunk = table.chunk(*args)
    if late:
        chunk = chunk._replace(notifications=[one.as_late() for one in chunk.notifications])
    for notification in chunk.notifications:
        _is_sound(notification)
    return chunk


def _is_sound(notification: MatchNotification) -> bool:
    return not _fault(notification)


def _fault(notification: MatchNotification) -> str:
    """Why a notification has no body; empty if it has one."""
    try:
        notification.body  # noqa: B018
    except PayloadError as error:
        return str(error)
    return ""
