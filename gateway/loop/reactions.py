"""Reactions of applications: each trigger has its reaction exactly once (design 4.11).

::

    commit ─▶ Aggregators.owe: triggers ─▶ Reactions.settle: a commit or a timer for each, in order
                                              └─▶ beginnings and ends of applications, ends of subscriptions, removals

A reaction stands right behind its trigger in the log, before anything else. What the log does not take stays owed, and
is tried again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from lamplighter.engine.change_log import Cause
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import BrokenEngineError, ChangeLogError, GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.loop.inferring import Inferring
from lamplighter.gateway.loop.queue import Queue
from lamplighter.gateway.loop.removals import Removals
from lamplighter.gateway.loop.slices import LoopSlices
from lamplighter.gateway.loop.subscribers import Subscribers
from lamplighter.gateway.loop.validating import Validating
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import REACTIONS_MAX, Trigger
from lamplighter.gateway.state.outcomes import Outcomes

logger = EventLogger(__name__)

_REACT_AGAIN_S = 1.0


@dataclass(slots=True, eq=False, repr=False)
class Reactions:
    """Records what is owed: reactions first, then what may follow them."""

    _engine: Engine
    _aggregators: Aggregators
    _commits: Commits
    _delays: Delays
    _subscribers: Subscribers
    _removals: Removals
    _inferring: Inferring
    _validating: Validating
    _queue: Queue
    _log: LogWriter
    _counters: Counters
    _outcomes: Outcomes
    _slices: LoopSlices
    _in_a_row: Counter[str] = field(default_factory=Counter, init=False)  # by application, since the last request
    _retrying: bool = field(default=False, init=False)

    def settle(self) -> None:
        """Records all that is owed, in order. Raises ChangeLogError; the rest is owed still."""
        aggregators, subscribers = self._aggregators, self._subscribers
        # Asked before and behind each step, and next to never is there something: no call.
        if not (
            aggregators.owed
            or aggregators.stopped
            or aggregators.beginning
            or aggregators.ending
            or subscribers.takeovers
            or subscribers.given_up
            or self._removals.removed
            or self._inferring.due
            or self._validating.due
        ):
            return
        self._run_owed()
        if self._inferring.due:
            self._inferring.begin()
            self._run_owed()
        if self._validating.due:
            self._validating.begin()
            self._run_owed()
        if aggregators.beginning or aggregators.ending:
            self._begin_and_end()
        subscribers.record_takeovers()
        subscribers.record_ends()
        self._removals.record()

    def new_request(self) -> None:
        """A request comes from outside; the reactions that it leads to are counted from here."""
        self._in_a_row.clear()

    def retry_later(self, failure: GatewayError) -> None:
        """Tries again soon what the log did not take now."""
        # Whose request it was is told what became of that; this is none of its business.
        logger.error("reactions will be retried", owed=len(self._aggregators.owed), reason=failure)
        if not self._retrying:
            self._retrying = True
            asyncio.get_running_loop().call_later(_REACT_AGAIN_S, self._queue.put, self._retry)

    def _retry(self) -> None:
        """A step that does nothing: what is owed follows each step."""
        self._retrying = False

    def _begin_and_end(self) -> None:
        """Records that applications ended or began since the last run."""
        ending, beginning = self._aggregators.ending, self._aggregators.beginning
        while ending:
            self._commits.commit(QuadDelta(), Cause(APPLICATION, f"{ending[0]}@"))
            logger.info("application ended", name=ending.popleft())
        while beginning:
            commit = self._commits.commit(QuadDelta(), beginning[0].began)
            application = beginning.popleft()
            logger.info("application started", name=application.name, version=application.digest)
            self._aggregators.begin(application, commit.sequence)
            self._run_owed()

    def _run_owed(self) -> None:
        aggregators = self._aggregators
        while aggregators.owed or aggregators.stopped:
            if not aggregators.owed:
                # Behind all reactions: recovery looks for missing ones only behind the last record that is none.
                self._commits.commit(QuadDelta(), Cause(APPLICATION, f"{aggregators.stopped[0].name}@"))
                aggregators.stopped.popleft()
                continue
            trigger = aggregators.owed[0]
            name = trigger.application.name
            if self._in_a_row[name] >= REACTIONS_MAX:
                problem = f"it was stopped: one request led to {REACTIONS_MAX} reactions"
                aggregators.stop(trigger.application, problem)
                continue
            self._react(trigger)
            if aggregators.owed and aggregators.owed[0] is trigger:  # its application may have been stopped
                aggregators.owed.popleft()  # only now: what the log did not take is owed still
            self._in_a_row[name] += 1
            self._counters.reactions += 1
            self._outcomes.reacted(trigger.cause)

    def _react(self, trigger: Trigger) -> None:
        """Records the reaction to a trigger. One that fails has no effect; it would fail again."""
        cause, before = trigger.cause, self._log.sequence
        failures: list[Exception] = []
        try:
            reaction = trigger.reaction(self._slices)
            request = self._engine.request(reaction.sparql, parts=reaction.texts)
            if reaction.delay is None and reaction.at is None:
                delta = self._commits.effect(request, "update failed", {"reaction": cause.id}, failures.append)
                self._commits.commit(delta, cause)
                if failures:
                    self._outcomes.failed(cause, failures[0])
                else:
                    self._outcomes.succeeded(cause)
            else:
                self._delays.add(request, reaction.delay, reaction.at, reaction.missed, cause)
        except (ChangeLogError, BrokenEngineError):
            raise
        except Exception as error:
            if self._log.sequence != before:
                raise behind_its_log(error) from error
            unexpected = not isinstance(error, GatewayError)
            logger.error(
                "reaction failed", reaction=cause.id, sequence=trigger.sequence, reason=error, exc_info=unexpected
            )
            self._commits.commit(QuadDelta(), cause)
            self._outcomes.failed(cause, error)
