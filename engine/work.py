"""Work: counts the cost of an evaluation inside the engine, and limits it.

A plan runs as nested Python loops within the engine's step, so it cannot be cancelled from outside. It counts its work
in units of about 0.1 us on the machine of docs/internals/benchmarks.md: quads read, rows made, expressions evaluated,
characters of their operands and values. Counting is deterministic. With a clock, the time is limited too, for slow
machines and for work that takes longer than its units.

Each plan has a `Meter`. It costs a subtraction and a comparison for each loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from sys import maxsize
from typing import Final

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.slices import Slices

# Default limit of one evaluation, in milliseconds.
EVALUATION_MS_MAX = 500
UNITS_PER_MS = 10_000
# Units between two checks of limit and clock.
SLICE = 10_000
# Units from which an evaluation counts as long, so that other tasks should run meanwhile.
LONG_UNITS = 20 * UNITS_PER_MS
# Evaluations after a long commit during which a commit may be long.
HEAVY_TURNS = 1_000
# Additional units that a plan may use in a commit: for each changed quad and query that shares the plan (up to
# `TOGETHER_MAX` of them), and for each such query.
SHARE = 1_000
# Factor of the limit for evaluations together: those of the queries that share a plan, and those of all plans in one
# commit. In a commit that others wait for, what a plan may use whatever the others do is a part of the limit instead.
TOGETHER_MAX = 20
# In a commit, a plan is stopped by the clock only if it has used at least a 16th of its units. Otherwise other plans
# spent the time.
SLOWNESS_MAX = 16

# Units of: a quad read; a row of a result; a quad made by a template; an expression with a cached value; an expression
# evaluated by the store, to which its characters add; a value of an aggregate that is computed from all values.
STEP: Final = 1
ROW: Final = 10
QUAD_MADE: Final = 40
CALL: Final = 4
EVALUATION: Final = 400
CHARACTERS_PER_UNIT: Final = 8
VALUE: Final = 10

_NARROW = "join its patterns by more variables or name constants"


def in_turn_ms(evaluation_ms_max: int) -> int:
    """The part of the limit for what others wait for, if more of it may be evaluated beside them. With what comes
    before and behind it, they wait for half of the limit."""
    return max(1, evaluation_ms_max * 2 // 5)


class TooMuchWork(Exception):
    """An evaluation exceeds its limit. The message says what it needs, and the cure."""


class PlanExceededError(LimitExceededError):
    """The plan of a request needs too much work, and the store may need less. What is asked for again is evaluated by
    the store, so a caller that must not block has it pass a trial before."""


class Work:
    """The limit of one engine's evaluations, and the state of the current one.

    clock: processor time in seconds; None to limit units only. It is read every `SLICE` units, and slices pauses then.
    waited_for: whether others wait for each commit, so that all its plans have `in_turn_ms` together. turn: the number
    of the current evaluation. heavy_until: the turn before which commits may be long, since a recent one was.
    """

    def __init__(
        self,
        evaluation_ms_max: int = EVALUATION_MS_MAX,
        clock: Callable[[], float] | None = None,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
        *,
        waited_for: bool = False,
    ) -> None:
        self._together_max = 1 if waited_for else TOGETHER_MAX
        self._waited_for = waited_for
        self.clock = clock
        self.slices = slices
        self.heavy_until = 0
        self.allow(evaluation_ms_max)
        self.turn = 0
        self._quads: int | None = None
        self._more = 0
        self._look(0.0)

    def allow(self, evaluation_ms_max: int) -> None:
        """Sets the limit. It holds from the next check."""
        self.evaluation_ms_max = evaluation_ms_max
        self._elsewhere = (evaluation_ms_max - in_turn_ms(evaluation_ms_max)) * UNITS_PER_MS
        self._commit_units = (in_turn_ms(evaluation_ms_max) if self._waited_for else evaluation_ms_max) * UNITS_PER_MS
        # Quads that templates may make in one evaluation. They have a counter of their own, which is cheaper.
        self.quads_max = evaluation_ms_max * UNITS_PER_MS // QUAD_MADE

    def begin(self, quads: int | None = None, more: int = 0, *, in_turn: bool = False, compiles: bool = False) -> None:
        """Begins an evaluation.

        quads: for the evaluation of all plans in a commit, how many quads it changes. more: units beyond the limit, for
        another evaluation. in_turn: whether a part of the limit is allowed (`in_turn_ms`), since what needs more is
        evaluated elsewhere. compiles: whether the time to compile its plan, for which others wait too, counts.
        """
        if in_turn:
            more -= self._elsewhere
        self.turn += 1
        if compiles and self.clock is not None:
            self._look(self.clock())
        self._quads = quads
        self._more = more

    def _look(self, now: float) -> None:
        """Begins to count: the units of all plans, and what they may have more."""
        self._looked = self.turn
        self._together = self._more_together = 0
        self._started = now

    def check(self, units: int, spent: int, sharers: int) -> None:
        """Raises TooMuchWork if a plan has exceeded its limit; else pauses.

        units: its work since the last check; spent: its work in this evaluation; sharers: the queries that share it.
        """
        now = 0.0 if self.clock is None else self.clock()
        if self._looked != self.turn:
            self._look(now)
        allowed = self.evaluation_ms_max * UNITS_PER_MS
        quads = self._quads
        if quads is None:
            allowed += self._more
            if spent > LONG_UNITS:
                self.slices.begin(spent)  # not in a commit, which has changed something
        else:
            if self._together > LONG_UNITS:
                self.heavy_until = self.turn + HEAVY_TURNS
            one, most = self._commit_units, self._together_max
            sharing = max(1, min(sharers, TOGETHER_MAX))
            more = SHARE * (quads * sharing + sharers)
            allowed = one * min(sharing, most) + more
            self._together += units
            if spent == units:  # the first check of this plan
                self._more_together += more
            if self._together > one * most + self._more_together and spent * TOGETHER_MAX > one:
                raise self.exceeded()
        elsewhere = quads is not None and spent * SLOWNESS_MAX < allowed
        late = not elsewhere and (now - self._started) * 1000 > allowed / UNITS_PER_MS
        if late or spent > allowed:
            raise self.exceeded()
        self.slices.pause()

    def exceeded(self) -> TooMuchWork:
        """The error for an evaluation above the limit."""
        return TooMuchWork(f"more work than limits.evaluation_ms_max = {self.evaluation_ms_max} allows; {_NARROW}")


class Meter:
    """Counts the work of one plan.

    left: units until the next check. Code that takes it below zero must call `more`. sharers: the queries that share
    the plan. code: characters of the plan's functions.
    """

    __slots__ = ("_sharers", "_spent", "_turn", "_work", "code", "left")

    def __init__(self, work: Work, sharers: Sized = ()) -> None:
        self._work = work
        self._sharers = sharers
        self._turn = -1
        self._spent = 0
        self.code = 0
        self.left = SLICE

    def more(self) -> None:
        """Checks the limit, and begins the next slice. Raises TooMuchWork."""
        work = self._work
        if self._turn != work.turn:
            self._turn, self._spent = work.turn, 0
        units = SLICE - self.left
        self._spent += units
        self.left = SLICE
        work.check(units, self._spent, len(self._sharers))

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within the context, the plan may do any amount of work."""
        left, self.left = self.left, maxsize
        try:
            yield
        finally:
            self.left = left

    def take(self, units: int) -> None:
        """Counts work that is about to be done. Raises TooMuchWork."""
        self.left -= units
        if self.left < 0:
            self.more()
