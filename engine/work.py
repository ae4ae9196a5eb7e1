"""Work: what an evaluation inside the engine costs, counted while it runs, and what it may cost.

A plan is a nest of Python loops in the engine's own step, so nothing can cancel it from outside. It counts its work
itself, in units of about 0.1 us on the machine of docs/measurements.md: a quad looked at, a row made, an expression
evaluated, a character of the strings that go into it and come out of it. Counting is deterministic. A caller that has
a clock may lend it; then a slow machine, or work that is cheaper to count than to do, is noticed as well.

A meter belongs to one plan. One that never uses up a slice costs a subtraction and a comparison for each loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

from lamplighter.engine.slices import Slices

EVALUATION_MS_MAX = 500
"""Milliseconds that one evaluation may take, unless the caller says otherwise."""
UNITS_PER_MS = 10_000
SLICE = 10_000
"""Units between two looks at limit and clock."""
LONG_UNITS = 20 * UNITS_PER_MS
"""Beyond, an evaluation is a long one, which others should not have to wait for."""
HEAVY_TURNS = 1_000
"""Evaluations for which a commit that was long is remembered."""
SHARE = 1_000
"""Units that a commit allows a plan for each changed quad and for each query that shares the plan: a large commit, or
one that concerns many, is large work for every plan."""
TOGETHER_MAX = 20
"""How many evaluations may take all the time that one may: those of the queries that share a plan together, and those
of all plans for one commit together."""
SLOWNESS_MAX = 16
"""A plan among many is given up by the clock only if a unit takes less than this many times as long as it should:
beyond, the time is that of others."""

STEP: Final = 1
ROW: Final = 10
QUAD_MADE: Final = 40
CALL: Final = 4
EVALUATION: Final = 400
CHARACTERS_PER_UNIT: Final = 8
VALUE: Final = 10
"""Units of: a quad looked at; a row of a result; a quad that a template makes, until it is in the delta; an expression
whose value is remembered; one that the store evaluates; its characters, in and out; a value of an aggregate that is
computed from all."""


_NARROW = "join its patterns by more variables or name constants"


class TooMuchWork(Exception):
    """An evaluation that costs more than it may; the message says what it would need, and the cure."""


class Work:
    """What the evaluations of one engine may cost, and which of them is under way.

    clock: processor time in seconds, None where units alone count. It is read every `SLICE` units, and slices gets its
    chance to let others go on.
    """

    def __init__(
        self,
        evaluation_ms_max: int = EVALUATION_MS_MAX,
        clock: Callable[[], float] | None = None,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
    ) -> None:
        self._clock = clock
        self._slices = slices
        self._heavy_until = 0
        self.allow(evaluation_ms_max)
        self.turn = 0
        self._quads: int | None = None
        self._looked = 0  # the turn of what follows
        self._together = 0
        self._started = 0.0

    def allow(self, evaluation_ms_max: int) -> None:
        """Sets the limit, from the next look on."""
        self.evaluation_ms_max = evaluation_ms_max
        self.quads_max = evaluation_ms_max * UNITS_PER_MS // QUAD_MADE
        """Quads that templates may make in one evaluation: they are counted by themselves, since that costs less."""

    @property
    def heavy(self) -> bool:
        """Whether a commit was long of late, so that the next one may be as well."""
        return self.turn < self._heavy_until

    def begin(self, quads: int | None = None) -> None:
        """A new evaluation begins; quads: how many changed, if it is that of all plans for a commit."""
        self.turn += 1
        self._quads = quads

    def check(self, units: int, spent: int, sharers: int) -> None:
        """Raises TooMuchWork if a plan with so many queries may not go on.

        units: what it has done since the last look; spent: in all.
        """
        now = 0.0 if self._clock is None else self._clock()
        if self._looked != self.turn:
            self._looked, self._together, self._started = self.turn, 0, now
        allowed = one = self.evaluation_ms_max * UNITS_PER_MS
        quads = self._quads
        if quads is None:
            if spent > LONG_UNITS:
                self._slices.begin(spent)  # a commit has changed something, anything else has not
        else:
            if self._together > LONG_UNITS:
                self._heavy_until = self.turn + HEAVY_TURNS
            allowed = one * max(1, min(sharers, TOGETHER_MAX)) + SHARE * (quads + sharers)
            self._together += units
            if self._together > one * TOGETHER_MAX + SHARE * quads and spent * TOGETHER_MAX > one:
                raise self.exceeded()
        elsewhere = quads is not None and spent * SLOWNESS_MAX < allowed
        late = not elsewhere and (now - self._started) * 1000 > allowed / UNITS_PER_MS
        if late or spent > allowed:
            raise self.exceeded()
        self._slices.pause()

    def exceeded(self) -> TooMuchWork:
        """The error."""
        return TooMuchWork(f"more work than limits.evaluation_ms_max = {self.evaluation_ms_max} allows; {_NARROW}")


class Meter:
    """Counts the work of one plan. left: units until the next look; whoever takes it below zero calls `more`.

    sharers: those whose queries the plan follows.
    """

    __slots__ = ("_sharers", "_spent", "_turn", "_work", "left")

    def __init__(self, work: Work, sharers: Sized = ()) -> None:
        self._work = work
        self._sharers = sharers
        self._turn = -1
        self._spent = 0
        self.left = SLICE

    def more(self) -> None:
        """Raises TooMuchWork."""
        work = self._work
        if self._turn != work.turn:
            self._turn, self._spent = work.turn, 0
        units = SLICE - self.left
        self._spent += units
        self.left = SLICE
        work.check(units, self._spent, len(self._sharers))

    def take(self, units: int) -> None:
        """Counts work that is about to be done. Raises TooMuchWork."""
        self.left -= units
        if self.left < 0:
            self.more()
