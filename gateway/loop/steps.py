"""Runs steps: a short one in the loop, a long one in slices (`gateway.loop.slices`), one that is refused not at all.

What is pending after a step is recorded right behind it. A step that fails, whatever it raises, has changed nothing,
and only its requester is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.work import PlanExceededError
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.clock_commits import ClockCommits
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.failures import behind_its_log, failure
from lamplighter.gateway.loop.queue import Queue, Step
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.slices import SLICE_S, LongError, LoopSlices
from lamplighter.gateway.loop.upkeep import Upkeep
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import LoopHoldTimer
from lamplighter.gateway.workers.ad_hoc import Answer

GROUP_S = (0.1, 0.1, 0.1, 0.01)
"""How long steps are run before their group ends, by the class (`Priority`) of the last one: what they leave to be
released takes memory, and clients wait. An alarm waits for the releases of the group that it comes into."""
HELD_S = (SLICE_S, SLICE_S, SLICE_S, 0.002)
"""How long steps hold the loop at a time, by the class of the last one: no alarm arrives meanwhile."""
_NORMAL = Priority.NORMAL
TURNS = 4
"""Iterations of the loop between two steps: a message passes its socket, its task and its parser in three."""

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class Steps:
    """Runs the steps of a group, one at a time. _held_by: is told how long the loop was held.

    held_since: the time of its two clocks when the last piece of work ended.
    """

    _queue: Queue
    _log: LogWriter
    _commits: Commits
    _reactions: Reactions
    _clock_commits: ClockCommits
    _evaluations: Evaluations
    _slices: LoopSlices
    _upkeep: Upkeep
    _held_by: LoopHoldTimer
    _counters: Counters
    held_since: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.held_since = self._held_by.now()

    async def run(self, tasks: asyncio.TaskGroup, finish: Callable[[], Awaitable[None]]) -> None:
        """Runs the steps whose turn it is. tasks: where trials run; finish: ends a group, and is awaited whenever one
        has taken `GROUP_S`, and behind the last alarm or control request that waits. The last group is left to the
        caller.

        Raises BrokenEngineError, and what `finish` raises, but nothing else that a step may raise.
        """
        self.held_since = self._held_by.now()
        begun = self.held_since[0]
        step: Step | None = None
        for step in self._queue.in_turn():
            await self._take(step, tasks)
            priority = step.priority
            if perf_counter() - begun > GROUP_S[priority] or (priority < _NORMAL and not self._queue.has(priority)):
                self._held(step.run)
                await finish()
                self.held_since = self._held_by.now()
                begun = perf_counter()
            if perf_counter() - self.held_since[0] > HELD_S[priority]:
                self._held(step.run)
                for _ in range(TURNS):
                    await asyncio.sleep(0)  # others go on between two steps
                self.held_since = self._held_by.now()
        if step is not None:
            self._held(step.run)

    def _held(self, work: Callable[[], object]) -> None:
        """Counts how long the loop was held until now. work: what was done last."""
        self.held_since = self._held_by.count_work(self.held_since, work)

    async def _take(self, step: Step, tasks: asyncio.TaskGroup) -> None:
        """Runs a step, puts it on trial, or refuses it. Its outcome goes out with the group."""
        if step.error is not None:
            await self._refuse(step, step.error, tasks)
            return
        if step.tried is None and step.trial is not None:
            try:
                trial = await self._done(step.trial)
                passed = trial is None or trial.has_passed
            except BaseException as error:  # whatever a text does to those who look at it
                await self._refuse(step, failure(error), tasks)
                return
            if trial is not None and not passed:
                self._queue.hold(step, trial, tasks)
                return
            step.tried = trial
        await self._run(step, tasks)

    async def _run(self, step: Step, tasks: asyncio.TaskGroup) -> None:
        if self._clock_commits.due:
            await self._commit_clock()
        trial, before = step.tried, self._log.sequence
        self._evaluations.prepared_s, self._evaluations.timed = 0.0, trial is not None
        try:
            result = await self._done(step.run, long=trial is not None, in_loop=step.in_loop)
        except PlanExceededError:
            step.tried = None
            await self._take(step, tasks)  # the store evaluates it now, so it has to pass a trial
            return
        except BaseException as error:
            if self._log.sequence != before and isinstance(error, Exception) and not isinstance(error, GatewayError):
                raise behind_its_log(error) from error
            refusal = failure(error)
            self._counters.refused += 1
            self._queue.release(partial(_fail, step.outcome, refusal))
            return
        finally:
            if trial is not None:
                trial.took(self._evaluations.prepared_s)
            if step.begun is not None:
                self._queue.time(step.begun, step.priority)
        self._queue.release(partial(_fulfil, step.outcome, result))
        if self._reactions.obligations.pending:
            await self._flush_pending()
        while self._commits.unwritten:
            await self._in_slices(self._commits.write_results)

    async def _refuse(self, step: Step, error: GatewayError, tasks: asyncio.TaskGroup) -> None:
        if step.refused is not None:
            await self._run(Step(partial(step.refused, error), step.outcome, priority=step.priority), tasks)
            return
        self._counters.refused += 1
        self._queue.release(partial(_fail, step.outcome, error))

    async def _commit_clock(self) -> None:
        """Commits what became due before a step. When the log cannot take it now, it is due still."""
        try:
            await self._done(self._clock_commits.catch_up)
        except BaseException as error:
            self._reactions.retry_later(failure(error))

    async def _flush_pending(self) -> None:
        """Records what is pending. When the log cannot take it now, it is tried again soon."""
        try:
            await self._done(self._reactions.flush_pending)
        except BaseException as error:
            self._reactions.retry_later(failure(error))

    async def _done(self, work: Callable[[], Result], *, long: bool = False, in_loop: bool = False) -> Result:
        """Does a work in the loop if it is short, else in slices. Raises what it raises.

        long: it is not expected to be short; in_loop: only what is pending before it can be long.
        """
        while not long:
            try:
                return self._slices.at_once(work)
            except LongError:
                if not in_loop:
                    break
                await self._in_slices(self._reactions.flush_pending)
        return await self._in_slices(work)

    async def _in_slices(self, work: Callable[[], Result]) -> Result:
        """Does a work while others go on, but for steps. Raises what it raises."""
        self._held(work)
        try:
            return await self._slices.run(work)
        finally:
            self._upkeep.large_work_ended()
            self.held_since = self._held_by.now()


def _fulfil(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Answer):
        result.abandon()  # its requester is gone


def _fail(outcome: asyncio.Future[Any], error: GatewayError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
