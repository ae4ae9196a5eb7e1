"""What evaluations cost: of updates, and of the queries that the store evaluates for subscriptions.

pyoxigraph cannot be stopped, so each evaluation in the loop is timed, and `re_evaluations` limits those of a commit
together. What may take long is known before it begins, so that it is run in slices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError, RequestError, StoreError, is_fault
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.engine.sparql.clock_function import EPOCH
from lamplighter.engine.store.quad_store import Asked, SelectRun
from lamplighter.engine.terms import Bag
from lamplighter.engine.updating.request import Request
from lamplighter.engine.work import PlanExceededError, TooMuchWork, in_turn_ms
from lamplighter.gateway.loop.queue import LiveSettings, not_registered
from lamplighter.gateway.loop.re_evaluations import ReEvaluations
from lamplighter.gateway.loop.time_slicer import TimeSlicer
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.dry_runs import CHARACTER_S, Breath, DryRun, DryRuns, IndexJob, ParseJob
from lamplighter.gateway.workers.solutions import Trial, record_select, record_work

logger = EventLogger(__name__)

SLOW_TIMES = 3
"""How many times the limit one evaluation for an application may take."""
REACTION_MS = 1
"""Processor time by which the limit grows for each further update of a reaction, and for each further reaction."""
EVALUATIONS_MS_MAX = 20
"""Processor time that the store took last for what it evaluates for a commit; beyond, the commit is a long step."""


class TouchedError(BaseException):
    """What a request found in a dry run does not hold any more: it is to be tried again. Not an Exception: only the
    executor deals with it."""


class _InTurnError(BaseException):
    """An update is to be evaluated now, in a fork. Not an Exception: only `Evaluations.prepare` deals with it."""


class Evaluations:
    """Runs and times what the engine evaluates.

    following: whether a commit is being matched. replaying: whether it is one that recovery reads: nobody waits for it,
    and what had its time then does not end now. timed: whether the present step has had a dry run, which is told
    prepared_s, the processor time of what the step evaluated. evaluated_s: the time of the same, since the last commit.
    tried_ms: the processor time that forks have taken for updates in their turn, since the start.
    """

    def __init__(
        self, engine: Engine, reader: Reader, dry_runs: DryRuns, slicer: TimeSlicer, current: LiveSettings
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._dry_runs = dry_runs
        self._slicer = slicer
        self._current = current
        self._process = os.getpid()
        self.again = ReEvaluations(engine, current)
        self.too_slow: dict[str, float] = {}
        """Queries of applications that the last commit was too slow for, with milliseconds."""
        self.following = False
        self.replaying = False
        self.timed = False
        self.prepared_s = 0.0
        self.evaluated_s = 0.0
        self.tried_ms = 0.0
        self.changes = dry_runs.changes
        self._trial: Trial | None = None  # of the present request
        self._long = self._may_wait = False
        self.asking = False  # whether the present request is evaluated, and not what is pending before it
        self._preparing = False  # whether that is an update
        self._found: Trial | None = None  # whose solutions count for what is evaluated
        self._settled = False  # whether its forks are over
        engine.store.around_select = self.measure_select

    def begin(self, dry_run: DryRun | ParseJob | IndexJob | Breath | None, *, may_wait: bool) -> None:
        """A request begins. dry_run: what it passed; may_wait: whether it can have another one."""
        self.prepared_s, self.timed = 0.0, dry_run is not None
        self._trial, self._long = (None, False) if dry_run is None else (dry_run.trial, dry_run.is_long)
        self._may_wait = may_wait

    def end(self) -> None:
        """The present request has ended."""
        self._trial = self._found = None
        self.asking = self._long = self._may_wait = False

    def prepare(self, request: Request, access: Access, *, here: bool = False) -> QuadDelta:
        """The delta of an update. Nothing is changed. Raises GatewayError, StoreError for whatever is unexpected.

        here: whether nothing may come before the update, which is not the present request. Otherwise PlanExceededError
        and TouchedError are raised, behind which it has to pass a dry run.
        """
        begun, wall = thread_time() if self.timed else 0.0, perf_counter()
        self._preparing, self.asking = True, not here
        try:
            try:
                if here or self._trial is None:  # every update comes here, so it is no further call
                    return self._engine.prepare(request, access=access)
                return self._delta(request, access, self._trial)
            except (_InTurnError, PlanExceededError) as error:
                if isinstance(error, PlanExceededError) and not here:
                    raise
                trial = self._tried_in_turn(request, access)
                self.tried_ms += 0.0 if trial is None else trial.ms
                self._settled = True
                return self._delta(request, access, trial)
        except GatewayError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            logger.exception("update preparation failed")
            raise StoreError(f"the update could not be evaluated: {error!r}") from error
        finally:
            self._preparing = self.asking = self._settled = False
            self._found = None
            if self.timed:
                self.prepared_s = thread_time() - begun
            self.evaluated_s = perf_counter() - wall

    def _delta(self, request: Request, access: Access, trial: Trial | None) -> QuadDelta:
        self._found = trial
        if trial is None:
            return self._engine.prepare(request, access=access)
        trial.rewind()
        with trial.labelling(self._engine):
            return self._engine.prepare(request, access=access, now=trial.now)

    def _tried_in_turn(self, request: Request, access: Access) -> Trial | None:
        """What all queries of an update find now, in one fork, for which others wait. None where that is not known."""
        engine, now = self._engine, self._engine.now

        def work() -> bytes:
            # Its limit is for the evaluations: data may be large, and is not their fault.
            prepare = partial(engine.prepare, request, access=access, now=now)
            return record_work(engine, prepare, bare=True, data=True)

        data_s = len(request.text) * CHARACTER_S
        with self._slicer.beside():
            # A reaction has an update for each row of its trigger, and others wait for all of them.
            times = 1 + REACTION_MS * (len(request.texts) - 1) / self.again.limit_ms
            frames = self._try_here(work, data_s, times)
        return Trial(frames, self.changes.watch(), now) if frames else None

    def expect_first_result(self, *, may_wait: bool) -> None:
        """What is evaluated from here on is the first result of the present request. may_wait: whether TouchedError may
        be raised, behind which it has to pass a dry run."""
        self.asking, self._found = True, self._trial
        self._may_wait = self._may_wait and may_wait
        if self._found is not None:
            self._found.rewind()

    def effect(
        self,
        request: Request,
        client: str | None,
        event: str,
        ids: Mapping[str, Any],
        failed: Callable[[Exception], None],
        *,
        here: bool = False,
    ) -> QuadDelta:
        """The delta of an update whose requester does not wait. One that fails is logged, and has an empty delta.

        client: who asked for it, None for the gateway itself, which may do everything; its permissions of now count.
        event, ids: for the log. failed: called with the error. here: as in `prepare`. Raises PlanExceededError as that.
        """
        try:
            access = FULL if client is None else self._current.access_of(client)
            if access is None:
                raise not_registered(client or "")
            return self.prepare(request, access, here=here)
        except PlanExceededError:
            raise
        except (RequestError, StoreError) as error:
            logger.error(event, **ids, reason=error)
            failed(error)
            return QuadDelta()

    def are_slow(self, texts: Sequence[str]) -> bool:
        """Whether the store may need long for these queries, which a commit would have it evaluate."""
        last = [self.again.times.price(text) for text in texts]
        if None in last or sum(ms for ms in last if ms) > EVALUATIONS_MS_MAX:
            return True
        return any(self._dry_runs.risky(text) for text in texts)

    def measure_select(self, asked: Asked, select: SelectRun) -> Bag:
        """The result of a SELECT of the engine's: what a dry run found, if that holds. A risky one is evaluated by a
        fork, which has the same dataset, unless its request can have another dry run.

        Raises LimitExceededError, TouchedError, and TooMuchWork while a commit is matched.
        """
        if os.getpid() != self._process:
            return select()  # it is being tried
        if self.following:
            return self._follow(asked, select)
        found = None if self._found is None else self._found.solutions(asked, self.changes)
        if found is not None:
            if not self._preparing and self._found is not None:
                self.again.times.begin(asked.name, self._found.ms)
            return found
        if self._preparing:
            return self._select(asked, select)
        begun = thread_time()
        result = self._select(asked, select)
        self.again.times.begin(asked.name, (thread_time() - begun) * 1000)
        return result

    def _select(self, asked: Asked, select: SelectRun) -> Bag:
        """The same where no dry run has found it."""
        if self._settled or not ((self.asking and self._long) or self._dry_runs.risky(asked.name)):
            return select()
        if self.asking and self._may_wait:
            raise TouchedError
        if self._preparing:
            raise _InTurnError
        found, _ = self._select_here(asked, select)
        return select() if found is None else found

    def _follow(self, asked: Asked, select: SelectRun) -> Bag:
        """The same while a commit is matched."""
        again, ms_max = self.again, self._current.settings.limits.evaluation_ms_max
        free = self.replaying or again.is_free(asked.name)
        if not free:
            again.check(asked.name)
        found, ms = None, 0.0
        begun = thread_time()
        if self._dry_runs.risky(asked.name):
            try:
                found, ms = self._select_here(asked, select, in_turn=not free)
            except TooMuchWork:
                again.spend(asked.name, in_turn_ms(ms_max))  # the fork has taken as much, and others waited
                raise
        left_ms = SLOW_TIMES * ms_max if free else again.left_ms

        def check() -> None:
            """A long result is not waited for to its end."""
            if (thread_time() - begun) * 1000 > left_ms:
                raise self._engine.work.exceeded() if free else again.too_much()

        try:
            result = select(check) if found is None else found
        finally:  # others waited for what was interrupted, too
            ms += (thread_time() - begun) * 1000
            again.note(asked.name, ms)
        if free and (again.times.price(asked.name) or 0.0) > ms_max:
            self.too_slow[asked.name] = ms
        return result

    def _select_here(self, asked: Asked, select: SelectRun, *, in_turn: bool = False) -> tuple[Bag | None, float]:
        """What a fork finds, None where that is not known, and its processor time in milliseconds. in_turn: as in
        `Reader.trial`."""
        refuses = not self.following
        frames = self._try_here(lambda: record_select(self._engine, asked, select, refuses=refuses), in_turn=in_turn)
        if not frames:
            return None, 0.0
        trial = Trial(frames, self.changes.watch(), EPOCH)
        return trial.solutions(asked, self.changes), trial.ms

    def _try_here(
        self, work: Callable[[], object], besides_s: float = 0.0, times: float = 1, *, in_turn: bool = False
    ) -> bytes:
        if not self.following and not self._slicer.elsewhere:
            self._slicer.begin(LONG)  # the loop is not to wait for a fork
        try:
            return self._reader.try_here(work, besides_s, times, in_turn=in_turn or self.asking)
        except LimitExceededError:
            if self.following:
                raise self._engine.work.exceeded() from None
            raise

    def take_slow(self) -> list[tuple[str, float]]:
        """What `too_slow` has. It is forgotten."""
        found = list(self.too_slow.items())
        self.too_slow.clear()
        return found
