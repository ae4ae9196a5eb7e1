"""What evaluations cost: of updates, and of the queries that the store evaluates for subscriptions.

pyoxigraph cannot be stopped, so each evaluation in the loop is timed. A query that is too slow at commit after commit
ends its subscriptions. What may take long is known before it begins, so that it is run in slices.
"""

from __future__ import annotations

import os
import re
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter, thread_time
from typing import Any

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError, RequestError, StoreError, is_fault
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.engine.store.quad_store import SelectRun
from lamplighter.engine.terms import Bag, Binding
from lamplighter.engine.updating.request import Request
from lamplighter.engine.work import PlanExceededError
from lamplighter.gateway.loop.queue import LiveSettings, not_registered
from lamplighter.gateway.loop.time_slicer import TimeSlicer
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.dry_runs import DryRuns

logger = EventLogger(__name__)

OVERRUNS_MAX = 3
"""Evaluations over the limit, one after the other, that end a subscription."""
MEASURED_MAX = 10_000
"""Evaluated queries whose last time is remembered."""
EVALUATIONS_MS_MAX = 20
"""Processor time that the store took last for what it evaluates for a commit; beyond, the commit is a long step."""
CHARACTER_S = 1e-5
"""Time for the data in each character of a text, on a busy machine."""


SOLUTIONS_MAX = 10_000
"""Solutions that a fork returns. More are evaluated once more: to write and read them takes as long."""
SOLUTIONS_BYTES_MAX = 1024 * 1024
"""Bytes of them, which take 10 ms to read."""
_CHANCE = re.compile(r"\b(?:BNODE|RAND|STRUUID|UUID)(?:\s|#[^\r\n]*+)*+\(", re.I)


class _Solutions(msgspec.Struct, array_like=True):
    """What a fork found. ms: processor time that it took."""

    ms: float
    variables: tuple[str, ...]
    rows: list[Binding]


_decode = msgspec.json.Decoder(_Solutions).decode


def _evaluate(select: SelectRun) -> bytes:
    """The solutions of a query, in a fork; nothing if they are many."""
    begun = thread_time()
    bag = select()
    if len(bag) > SOLUTIONS_MAX:
        return b""
    found = _Solutions((thread_time() - begun) * 1000, tuple(bag.variables), list(bag.rows))
    encoded = msgspec.json.encode(found)
    return encoded if len(encoded) <= SOLUTIONS_BYTES_MAX else b""


class _SeveralRiskyError(BaseException):
    """An update has a second risky evaluation. Not an Exception: only `Evaluations.prepare` deals with it."""


@dataclass
class Evaluation:
    """A query that is evaluated repeatedly. ms: processor time of the last evaluation; overruns: consecutive ones."""

    ms: float = 0.0
    overruns: int = 0


class LastEvaluations:
    """The last evaluation of each query, of those that were evaluated last.

    The key is a digest of the text: a text has up to 16 MiB, and a query is remembered longer than it is subscribed to.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._found: OrderedDict[bytes, Evaluation] = OrderedDict()

    def of(self, text: str) -> Evaluation:
        """The entry to update; a new one for an unknown query."""
        key = _digest(text)
        evaluation = self._found.get(key)
        if evaluation is None:
            evaluation = self._found[key] = Evaluation()
            if len(self._found) > self._entries_max:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(key)
        return evaluation

    def get(self, text: str) -> Evaluation | None:
        return self._found.get(_digest(text))

    def forget(self, text: str) -> None:
        self._found.pop(_digest(text), None)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


class Evaluations:
    """Runs and times what the engine evaluates.

    following: whether a commit is being matched. timed: whether the present step has had a dry run, which is told
    prepared_s, the processor time of what the step evaluated. evaluated_s: the time of the same, since the last commit.

    A fork takes some milliseconds, so an update has two at most: one for its first risky evaluation, and one for all of
    its evaluations together if there are more.
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
        self._last = LastEvaluations(MEASURED_MAX)
        self.too_slow: dict[str, float] = {}
        """Queries whose subscriptions are to be ended after the commit, with milliseconds."""
        self.following = False
        self.timed = False
        self.prepared_s = 0.0
        self.evaluated_s = 0.0
        self._tried: int | None = None  # risky evaluations of the present update; None where each is tried
        self._together = False  # whether those of the present update were tried together
        self._left_s: float | None = None  # in a fork that tries them together: what is left to them
        engine.store.around_select = self.measure_select

    def prepare(self, request: Request, access: Access, *, here: bool = False) -> QuadDelta:
        """The delta of an update. Nothing is changed. Raises GatewayError, StoreError for whatever is unexpected.

        here: whether the step waits for the trial of what is too much work for a plan, since nothing may come before
        the update. Otherwise PlanExceededError is raised.
        """
        begun, wall = thread_time() if self.timed else 0.0, perf_counter()
        self._tried = 0
        try:
            try:
                return self._engine.prepare(request, access=access)
            except (_SeveralRiskyError, PlanExceededError) as error:
                if isinstance(error, PlanExceededError) and not here:
                    raise
                with self._slicer.beside():
                    data_s = len(request.text) * CHARACTER_S
                    self._try_here(lambda: self._evaluate_all(request, access), data_s, len(request.texts))
                self._together = True
                return self._engine.prepare(request, access=access)
        except GatewayError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            logger.exception("update preparation failed")
            raise StoreError(f"the update could not be evaluated: {error!r}") from error
        finally:
            self._tried, self._together = None, False
            if self.timed:
                self.prepared_s = thread_time() - begun
            self.evaluated_s = perf_counter() - wall

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

    def _evaluate_all(self, request: Request, access: Access) -> None:
        """In a fork. Its limit is for the evaluations: data may be large, and is not their fault."""
        self._left_s = signal.setitimer(signal.ITIMER_PROF, 0)[0]
        self._engine.prepare(request, access=access)

    def _select_in_fork(self, select: SelectRun) -> Bag:
        """In a fork."""
        if self._left_s is None:
            return select()
        begun = thread_time()
        signal.setitimer(signal.ITIMER_PROF, max(self._left_s, 0.001))  # 0 would be for ever
        try:
            return select()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._left_s -= thread_time() - begun

    def are_slow(self, texts: Sequence[str]) -> bool:
        """Whether the store may need long for these queries, which a commit would have it evaluate."""
        last = [self._last.get(text) for text in texts]
        if None in last or sum(evaluation.ms for evaluation in last if evaluation) > EVALUATIONS_MS_MAX:
            return True
        return any(self._dry_runs.risky(text) for text in texts)

    def measure_select(self, text: str, select: SelectRun) -> Bag:
        """The result of a SELECT of the engine's. A risky one is evaluated by a fork, which has the same dataset: its
        solutions are the result, unless they are many, or random.

        Raises LimitExceededError, and TooMuchWork while a commit is matched.
        """
        if os.getpid() != self._process:
            return self._select_in_fork(select)  # it is being tried
        risky = not self._together and self._dry_runs.risky(text)
        solutions = self._try_one(select) if risky else None
        if solutions is not None and _CHANCE.search(text):
            solutions = None  # each fork begins with the random numbers of this process, so two would make equal UUIDs
        found = None if solutions is None else Bag(solutions.variables, solutions.rows)
        if not self.following:
            return select() if found is None else found
        ms_max = self._current.settings.limits.evaluation_ms_max
        begun = thread_time()

        def check() -> None:
            """A result that is longer and longer is not waited for three times."""
            if (thread_time() - begun) * 1000 > OVERRUNS_MAX * ms_max:
                raise self._engine.work.exceeded()

        result = select(check) if found is None else found
        evaluation = self._last.of(text)
        evaluation.ms = (thread_time() - begun) * 1000 if solutions is None else solutions.ms
        evaluation.overruns = evaluation.overruns + 1 if evaluation.ms > ms_max else 0
        if evaluation.overruns >= OVERRUNS_MAX:
            self.too_slow[text] = evaluation.ms
        return result

    def _try_one(self, select: SelectRun) -> _Solutions | None:
        if self._tried:
            raise _SeveralRiskyError
        encoded = self._try_here(lambda: _evaluate(select))
        if self._tried is not None:
            self._tried += 1
        return _decode(encoded) if encoded else None

    def _try_here(self, work: Callable[[], object], besides_s: float = 0.0, times: int = 1) -> bytes:
        if not self.following and not self._slicer.elsewhere:
            self._slicer.begin(LONG)  # the loop is not to wait for a fork
        try:
            return self._reader.try_here(work, besides_s, times)
        except LimitExceededError:
            if self.following:
                raise self._engine.work.exceeded() from None
            raise

    def take_slow(self) -> list[tuple[str, float]]:
        """What `too_slow` has. It is forgotten."""
        found = list(self.too_slow.items())
        self.too_slow.clear()
        for text, _ in found:
            self._last.forget(text)
        return found

    def slow_error(self) -> LimitExceededError:
        """What the subscribers of such a query are told."""
        return LimitExceededError(
            f"the subscription was ended: {OVERRUNS_MAX} evaluations in a row took longer than "
            f"limits.evaluation_ms_max = {self._current.settings.limits.evaluation_ms_max}; narrow it down"
        )
