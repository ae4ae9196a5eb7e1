"""Executes delayed updates that are due: firing and effect are one commit, recorded even when it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Priority
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.state.delayed import CLOCK
from lamplighter.gateway.workers.dry_runs import DryRun, DryRuns, ParseJob

logger = EventLogger(__name__)

_FAILED = "delayed update failed"


class DueUpdate(msgspec.Struct, frozen=True, eq=False):
    """A delayed update that is due. What its client may do is asked when its turn comes, by the name in its record."""

    name: str
    request: Request
    lane: OrderedLane
    caller: Caller = ANYBODY
    priority: Priority = Priority.NORMAL


@dataclass(slots=True, eq=False, repr=False)
class Timers:
    """Executes what is due, and tells the log of the clocks. The scheduler calls `fire` and `note`."""

    _queue: Queue
    _ledger: Ledger
    _reactions: Reactions
    _delays: Delays
    _dry_runs: DryRuns
    _current: LiveSettings
    _lane: OrderedLane = field(default_factory=OrderedLane, init=False)

    async def fire(self, name: str) -> None:
        """Executes a delayed update. Returns when that is durable."""
        waiting = self._delays.delayed.pending.get(name)
        if waiting is not None:
            request = self._ledger.engine.request(waiting.timer.update, parts=waiting.timer.texts)
            request.tried_first = True
            await self._queue.submit(DueUpdate(name, request, self._lane), admitted=True)

    def check_due(self, due: DueUpdate) -> DryRun | ParseJob | None:
        """What has to pass before it runs; nothing if it will not run."""
        delayed = self._delays.delayed
        pending = delayed.pending.get(due.name)
        if pending is None or (pending.timer.missed == "skip" and delayed.miss_of(due.name) is not None):
            return None
        client = pending.timer.client
        access = FULL if client is None else self._current.access_of(client)
        return None if access is None else self._dry_runs.of_update(due.request, access)

    def run_due(self, due: DueUpdate) -> None:
        """Firing and effect are one commit. Raises ChangeLogError, and PlanExceededError where it needs a dry run."""
        pending = self._delays.delayed.pending.get(due.name)
        if pending is None:
            return  # it was cancelled while it waited for its turn
        self._reactions.flush_pending()
        if self._delays.skip_missed(pending):
            return
        self._reactions.new_request()
        failures: list[Exception] = []
        evaluations, client = self._ledger.evaluations, pending.timer.client
        delta = evaluations.effect(due.request, client, _FAILED, {"id": due.name}, failures.append)
        cause, outcomes = Cause("timer", due.name, pending.sequence), self._reactions.outcomes
        try:
            self._ledger.commit(delta, cause)
        except LimitExceededError as error:  # its record would be too long
            logger.error(_FAILED, id=due.name, reason=error)
            self._ledger.commit(QuadDelta(), cause)
            failures.append(error)
        if failures:
            outcomes.note_refusal(pending.cause, failures[0])
        else:
            outcomes.note_success(pending.cause)
        self._queue.counters.delayed_fired += 1

    def refuse_due(self, due: DueUpdate, error: GatewayError) -> None:
        """Its dry run failed: it is done without effect, so that it does not stay pending. Raises ChangeLogError."""
        pending = self._delays.delayed.pending.get(due.name)
        if pending is None:
            return
        logger.error(_FAILED, id=due.name, reason=error)
        self._reactions.flush_pending()
        self._ledger.commit(QuadDelta(), Cause("timer", due.name, pending.sequence))
        self._reactions.outcomes.note_refusal(pending.cause, error)
        self._queue.counters.delayed_fired += 1

    async def note(self) -> None:
        """Tells the log of the clocks, where it has to know of them. On no lane: a dry run is no reason to wait."""
        await self._queue.post(self.note_now)

    def note_now(self) -> None:
        """The same as a part of a step. Raises ChangeLogError."""
        self._reactions.flush_pending()
        reason = self._delays.delayed.news()
        if reason is not None:
            self._ledger.commit(QuadDelta(), Cause(CLOCK, reason))
