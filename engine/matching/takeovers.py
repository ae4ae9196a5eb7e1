"""Takeovers: shapes whose plan gave up, so that the store evaluates them, and when a plan is tried again.

A plan gives up because of how much data there is, or because of its values. So a new plan is tried

- when the predicates of the shape have less than half of the quads that they had at the takeover, or at the last trial;
- whatever they have, after `LATER` commits that touch them, and then after twice as many each time: what was too much
  may be a small part of them.

A trial is limited as a commit is. A shape that has returned to a plan waits after its next takeover for `WAIT` such
commits, after the one behind that for twice as many, and so on up to `WAIT_MAX`. So the trials of a shape whose data
grows and shrinks all the time cost a bounded share of its commits. Nothing depends on a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.analysis import WIDE
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.shapes import Shape, SharedQuery
from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.terms import Term

# Commits that touch a shape after a takeover before it returns to a plan for the second time.
WAIT = 8
# The same at most.
WAIT_MAX = 1024
# Commits that touch a shape after a takeover before a plan is tried although the quads are not fewer.
LATER = 256


class _WithoutPlan:
    """A shape without its plan.

    predicates: those of the plan's matchers, None for all. quads: how many quads they have. wait: commits that have to
    touch them before the first trial.
    """

    def __init__(self, predicates: Collection[Term | None], quads: int, wait: int) -> None:
        self._predicates = predicates
        self._quads = quads
        self._wait = wait
        self._below = quads / 2
        self._later = self._left = LATER

    def is_due(self, change: Counter[Term]) -> bool:
        """Counts the change of a commit by predicate, and returns whether a plan is to be tried."""
        every = change if None in self._predicates else self._predicates
        touched = [name for name in every if name is not None and name in change]
        if not touched:
            return False
        self._quads += sum(change[name] for name in touched)
        self._left -= 1
        self._wait -= self._wait > 0
        return not self._wait and (self._quads < self._below or self._left <= 0)

    def put_off(self) -> None:
        """Waits for fewer quads, or more commits, since a trial failed."""
        # Half of what was too much.
        self._below = min(self._below, self._quads / 2)
        if self._left <= 0:
            self._later *= 2
            self._left = self._later


class Takeovers:
    """The shapes that the store has taken over from their plans, and the units that a commit hands to and fro.

    waiting: the shapes without their plans, but for wide ones, whose plan takes too long to compile within a commit.
    count: how many plans were closed. moves: subscriptions that were taken over or have returned, with their units; the
    caller reports and removes them. commits: the last takeover of each unit that has had one, None until `date`.
    """

    def __init__(self, cts: Cts, slices: Slices) -> None:
        self._cts = cts
        self._slices = slices
        self._returns: Counter[Shape] = Counter()
        self.waiting: dict[Shape, _WithoutPlan] = {}
        self.count = 0
        self.moves: list[tuple[int, SharedQuery]] = []
        self.commits: dict[SharedQuery, int | None] = {}

    def begin(self, shape: Shape, predicates: Collection[Term | None]) -> None:
        """Notes that the store has taken over a shape. Its predicates are still indexed, as they are from now on."""
        self.count += 1
        returns = self._returns[shape]
        # Twice as long after each return: a shape near the limit must not go to and fro with each commit.
        wait = min(WAIT << returns - 1, WAIT_MAX) if returns else 0
        if shape.parsed.patterns <= WIDE:
            self.waiting[shape] = _WithoutPlan(predicates, self._cts.count(predicates), wait)
        for unit in shape.units.all.values():
            if unit.number is not None:
                self.commits[unit] = None
                self._move(unit)

    def _move(self, unit: SharedQuery) -> None:
        self.moves += [(number, unit) for number in unit.numbers]

    def pending(self, delta: QuadDelta) -> list[Shape]:
        """The shapes that a plan is to be tried for behind a delta, which is counted."""
        change: Counter[Term] = Counter()
        for quads, sign in ((delta.removed, -1), (delta.added, 1)):
            for some in sliced(quads, self._slices):
                for quad in some:
                    change[quad.p] += sign
        return [shape for shape, waiting in self.waiting.items() if waiting.is_due(change)]

    def note_failure(self, shape: Shape) -> None:
        """Notes that a plan has given up again."""
        self.waiting[shape].put_off()

    def end(self, shape: Shape) -> None:
        """Notes that a plan follows a shape again."""
        del self.waiting[shape]
        self._returns[shape] += 1
        for unit in shape.units.all.values():
            self._move(unit)

    def date(self, sequence: int) -> None:
        """Notes the number of the commit of the moves."""
        for _, unit in self.moves:
            if self.commits.get(unit, 0) is None:
                self.commits[unit] = sequence

    def drop(self, unit: SharedQuery) -> None:
        """Forgets a unit without subscribers."""
        self.commits.pop(unit, None)

    def drop_shape(self, shape: Shape) -> None:
        """Forgets a shape without units."""
        self.waiting.pop(shape, None)
        self._returns.pop(shape, None)
