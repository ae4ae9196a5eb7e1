"""Reactions of applications: each trigger has its reaction exactly once (design 4.11).

::

    commit ─▶ Obligations ─▶ Reactions.flush_pending: for each trigger a commit or a timer, in order
                                 └─▶ beginnings and ends of applications, ends of subscriptions, removals

A reaction stands right behind its trigger in the log, before anything else. What the log does not take stays pending,
and is tried again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import thread_time

from lamplighter.engine.change_log import Cause
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import BrokenEngineError, ChangeLogError, GatewayError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.evaluations import REACTION_MS
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.queue import Queue
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import REACTIONS_MAX, Trigger
from lamplighter.gateway.state.outcomes import Outcomes

logger = EventLogger(__name__)

_REACT_AGAIN_S = 1.0


@dataclass(slots=True, eq=False, repr=False)
class Reactions:
    """Records what is pending: reactions first, then what may follow them."""

    obligations: Obligations
    outcomes: Outcomes
    _ledger: Ledger
    _aggregators: Aggregators
    _delays: Delays
    _queue: Queue
    _in_a_row: Counter[str] = field(default_factory=Counter, init=False)  # by application, since the last request
    _took_ms: Counter[str] = field(default_factory=Counter, init=False)  # the same: their processor time
    _retrying: bool = field(default=False, init=False)

    def flush_pending(self) -> None:
        """Records all that is pending, in order. Raises ChangeLogError; the rest stays pending."""
        obligations = self.obligations
        if not obligations.pending:
            return
        starts = obligations.starts
        self._run_reactions()
        while starts:
            starts[0]()
            starts.popleft()
            self._run_reactions()
        self._begin_and_end()
        obligations.pending = False  # what is enqueued from here on is for the next time
        try:
            for record in obligations.recorders:
                record()
        except BaseException:
            obligations.pending = True
            raise

    def new_request(self) -> None:
        """A request comes from outside: what is pending goes before it, and the reactions that it leads to are counted
        from here. Raises ChangeLogError."""
        if self.obligations.pending:
            self.flush_pending()
        self._in_a_row.clear()
        self._took_ms.clear()

    def retry_later(self, failure: GatewayError) -> None:
        """Tries again soon what the log did not take now."""
        # The requester already has its answer; only the follow-up is retried.
        logger.error("reactions will be retried", owed=len(self.obligations.reactions), reason=failure)
        self.obligations.pending = True
        if not self._retrying:
            self._retrying = True
            asyncio.get_running_loop().call_later(_REACT_AGAIN_S, self._queue.post, self._retry)

    def _retry(self) -> None:
        """A step that does nothing: what is pending follows each step."""
        self._retrying = False

    def _begin_and_end(self) -> None:
        """Records that applications ended or began since the last run."""
        ending, beginning = self.obligations.ending, self.obligations.beginning
        while ending:
            self._ledger.commit(QuadDelta(), Cause(APPLICATION, f"{ending[0]}@"))
            logger.info("application ended", name=ending.popleft())
        while beginning:
            commit = self._ledger.commit(QuadDelta(), beginning[0].began)
            application = beginning.popleft()
            logger.info("application started", name=application.name, version=application.digest)
            self._aggregators.begin(application, commit.sequence)
            self._run_reactions()

    def _run_reactions(self) -> None:
        obligations = self.obligations
        while obligations.reactions or obligations.stopped:
            if not obligations.reactions:
                # Behind all reactions: recovery looks for missing ones only behind the last record that is none.
                self._ledger.commit(QuadDelta(), Cause(APPLICATION, f"{obligations.stopped[0].name}@"))
                obligations.stopped.popleft()
                continue
            self._ledger.slicer.pause()
            trigger = obligations.reactions[0]
            name = trigger.application.name
            if self._in_a_row[name] >= REACTIONS_MAX:
                problem = f"it was stopped: one request led to {REACTIONS_MAX} reactions"
                self._aggregators.stop(trigger.application, problem)
                continue
            limit = self._ledger.evaluations.again.limit_ms
            if self._took_ms[name] > limit + REACTION_MS * self._in_a_row[name]:
                # Behind at least one reaction, so that what one alone needs is said by its own limit.
                error = LimitExceededError(
                    f"its reactions to one request took {self._took_ms[name]} ms, more than "
                    f"limits.evaluation_ms_max = {limit}, and others waited; narrow the WHERE of its updates down"
                )
                self._aggregators.interrupt_reactions(trigger.application, error)
                continue
            self._took_ms[name] += self._react(trigger)
            if obligations.reactions and obligations.reactions[0] is trigger:  # its application may have been stopped
                obligations.reactions.popleft()  # only now: what the log did not take stays pending
            self._in_a_row[name] += 1
            self._queue.counters.reactions += 1
            self.outcomes.note_reaction(trigger.cause)

    def _react(self, trigger: Trigger) -> int:
        """Records the reaction to a trigger; returns its processor time in milliseconds. One that fails has no effect;
        it would fail again."""
        cause, ledger = trigger.cause, self._ledger
        before, took_ms = ledger.log.sequence, self._watch()
        ms: int | None = None
        failures: list[Exception] = []
        try:
            reaction = trigger.reaction(ledger.slicer)
            request = ledger.engine.request(reaction.sparql, parts=reaction.texts)
            request.tried_first = True
            if reaction.delay is None and reaction.at is None:
                ids = {"reaction": cause.id}
                # Nothing comes between it and its trigger.
                delta = ledger.evaluations.effect(request, None, "update failed", ids, failures.append, here=True)
                ms = took_ms()  # without its commit, whose cost is that of what others have subscribed to
                ledger.commit(delta, cause)
                if failures:
                    self.outcomes.note_failure(cause, failures[0])
                else:
                    self.outcomes.note_success(cause)
            else:
                self._delays.add(request, reaction.delay, reaction.at, reaction.missed, cause)
        except (ChangeLogError, BrokenEngineError):
            raise
        except Exception as error:
            if ledger.log.sequence != before:
                raise behind_its_log(error) from error
            ms = took_ms() if ms is None else ms
            unexpected = not isinstance(error, GatewayError)
            logger.error(
                "reaction failed", reaction=cause.id, sequence=trigger.sequence, reason=error, exc_info=unexpected
            )
            self._ledger.commit(QuadDelta(), cause)
            self.outcomes.note_failure(cause, error)
        return took_ms() if ms is None else ms

    def _watch(self) -> Callable[[], int]:
        """Returns the processor time since now in milliseconds, that of forks too."""
        evaluations, begun = self._ledger.evaluations, thread_time()
        tried_ms = evaluations.tried_ms
        return lambda: round((thread_time() - begun) * 1000 + evaluations.tried_ms - tried_ms)
