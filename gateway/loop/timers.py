"""Executes delayed updates that are due: firing and effect are one commit, recorded even when it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from lamplighter.engine.change_log import Cause
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.queue import Lane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.state.delayed import CLOCK, DelayedUpdates
from lamplighter.gateway.state.outcomes import Outcomes
from lamplighter.gateway.workers.large_updates import LargeUpdateParser, ParseJob
from lamplighter.gateway.workers.trials import Trial, Trials

logger = EventLogger(__name__)

_FAILED = "delayed update failed"


@dataclass(slots=True, eq=False, repr=False)
class Timers:
    """Executes what is due, and tells the log of the clocks. The scheduler calls `fire` and `note`."""

    _engine: Engine
    _delays: Delays
    _delayed: DelayedUpdates
    _commits: Commits
    _reactions: Reactions
    _trials: Trials
    _large_updates: LargeUpdateParser
    _queue: Queue
    _counters: Counters
    _outcomes: Outcomes
    _lane: Lane = field(default_factory=Lane, init=False)

    async def fire(self, name: str) -> None:
        """Executes a delayed update. Returns when that is durable."""
        waiting = self._delayed.get(name)
        if waiting is None:
            return
        timer = waiting.timer
        request = self._engine.request(timer.update)

        def trial() -> Trial | ParseJob | None:
            if self._delayed.get(name) is None or (timer.missed == "skip" and self._delayed.miss_of(name) is not None):
                return None
            access = self._commits.access(timer.client)
            if access is None:
                return None
            tried = partial(self._trials.of_update, request, access)
            return ParseJob(self._large_updates, request, tried) if request.large else tried()

        await self._queue.put(partial(self._fire, name, request), self._lane, trial, partial(self._refused, name))

    def _fire(self, name: str, request: Request) -> None:
        pending = self._delayed.get(name)
        if pending is None:
            return  # it was cancelled while it waited for its turn
        self._reactions.flush_pending()
        if self._delays.skipped(pending):
            return
        self._reactions.new_request()
        failures: list[Exception] = []
        delta = self._commits.effect(request, _FAILED, {"id": name}, failures.append, pending.timer.client)
        cause = Cause("timer", name, pending.sequence)
        try:
            self._commits.commit(delta, cause)
        except LimitExceededError as error:  # its record would be too long
            logger.error(_FAILED, id=name, reason=error)
            self._commits.commit(QuadDelta(), cause)
            failures.append(error)
        if failures:
            self._outcomes.note_refusal(pending.cause, failures[0])
        else:
            self._outcomes.note_success(pending.cause)
        self._counters.delayed_fired += 1

    def _refused(self, name: str, error: GatewayError) -> None:
        """Its trial failed: it is done without effect."""
        pending = self._delayed.get(name)
        if pending is None:
            return
        logger.error(_FAILED, id=name, reason=error)
        self._reactions.flush_pending()
        self._commits.commit(QuadDelta(), Cause("timer", name, pending.sequence))
        self._outcomes.note_refusal(pending.cause, error)
        self._counters.delayed_fired += 1

    async def note(self) -> None:
        """Tells the log of the clocks, where it has to know of them. On no lane: a trial is no reason to wait."""
        await self._queue.put(self.note_now)

    def note_now(self) -> None:
        """The same as a part of a step. Raises ChangeLogError."""
        self._reactions.flush_pending()
        reason = self._delayed.news()
        if reason is not None:
            self._commits.commit(QuadDelta(), Cause(CLOCK, reason))
