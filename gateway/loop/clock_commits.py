"""Commits clock ticks: one commit for each instant at which a time-dependent subscription changes.

::

    Scheduler, one job for the next instant ─▶ `fire` ─┐
    each step, before it runs ─────────────────────────┴─▶ `catch_up`: clock commits, each with its reactions

What is due is committed before the step that comes then, so the log has updates and instants in their order. While the
clock is not trusted, nothing is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lamplighter.engine.core import Engine
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.state.delayed import STEP_US

logger = EventLogger(__name__)

LATE = timedelta(seconds=2)
"""Instants that are later than that have one commit together: the gateway was off, or the clock was set."""
AT_ONCE_MAX = 100
"""Commits before a step. The others come behind it."""
_STEP = timedelta(microseconds=STEP_US)


@dataclass(slots=True, eq=False, repr=False)
class ClockCommits:
    """Commits what is due."""

    _ledger: Ledger
    _reactions: Reactions
    _queue: Queue
    _engine: Engine = field(init=False)
    _clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self._engine, self._clock = self._ledger.engine, self._ledger.clock

    @property
    def next_due(self) -> datetime | None:
        """The next instant at which something changes, None while it is not known."""
        return self._engine.due if self._engine.timetable.conditions and self._clock.trusted() else None

    @property
    def due(self) -> bool:
        """Whether something has changed that is not committed."""
        if not self._engine.timetable.conditions:  # asked before each step
            return False
        due = self._engine.due
        return due is not None and due <= self._clock.wall() and self._clock.trusted()

    @property
    def set_back(self) -> bool:
        """Whether the clock was set back, so that what has changed has to be taken back."""
        if not self._engine.timetable.conditions:
            return False
        return self._clock.trusted() and self._clock.wall() < self._engine.instant - _STEP

    async def fire(self) -> None:
        """Commits what is due, in its turn. Returns when that is durable."""
        await self._queue.post(self.catch_up)

    def catch_up(self) -> None:
        """A step: commits what is due. Raises ChangeLogError; the rest is due still."""
        self._reactions.flush_pending()
        if self.set_back:
            now = self._clock.wall()
            logger.info("clock set back", instant=iso(self._engine.instant), to=iso(now))
            self._advance_clock(now)
        for _ in range(AT_ONCE_MAX):
            due, now = self._engine.due, self._clock.wall()
            if due is None or due > now or not self._clock.trusted():
                break
            self._ledger.slicer.pause()
            self._advance_clock(due if now - due <= LATE else now)

    def _advance_clock(self, instant: datetime) -> None:
        self._reactions.new_request()
        self._ledger.advance_clock(instant)
        self._reactions.flush_pending()
