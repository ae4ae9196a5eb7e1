"""Takeovers: shapes whose plan gave up, so that the store evaluates them, and when a plan is tried again.

A plan gives up because of how much data there is, or because of its values. So a new plan is tried when the predicates
of the shape have less than half of the quads that they had at the takeover. A trial is limited as a commit is; each one
that fails halves that number again. A shape that has returned to a plan waits after its next takeover for `WAIT`
commits that touch its predicates, after the one behind that for twice as many, and so on up to `WAIT_MAX`. So the
trials of a shape whose data grows and shrinks all the time cost a bounded share of its commits. Nothing depends on a
clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.analysis import WIDE
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.shapes import Shape, Unit
from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.terms import Term

WAIT = 8
"""Commits that touch a shape after a takeover before it returns to a plan for the second time."""
WAIT_MAX = 1024
"""The same at most."""


class _WithoutPlan:
    """A shape without its plan.

    predicates: those of the plan's matchers, None for all. quads: how many quads they have. below: the number of quads
    below which a plan is tried. commits: how many more have to touch the predicates before that.
    """

    __slots__ = ("below", "commits", "predicates", "quads")

    def __init__(self, predicates: Collection[Term | None], quads: int, commits: int) -> None:
        self.predicates = predicates
        self.quads = quads
        self.commits = commits
        self.below = 0.0
        self.halve()

    def halve(self) -> None:
        self.below = self.quads / 2

    def count(self, change: Counter[Term]) -> bool:
        """Counts the change of a commit by predicate, and returns whether a plan is to be tried."""
        touched = change if None in self.predicates else [name for name in self.predicates if name in change]
        if not touched:
            return False
        self.quads += sum(change[name] for name in touched if name is not None)
        self.commits -= self.commits > 0
        return not self.commits and self.quads < self.below


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
        self.moves: list[tuple[int, Unit]] = []
        self.commits: dict[Unit, int | None] = {}

    def begin(self, shape: Shape, predicates: Collection[Term | None]) -> None:
        """Notes that the store has taken over a shape. Its predicates are still indexed, as they are from now on."""
        self.count += 1
        returns = self._returns[shape]
        commits = min(WAIT << returns - 1, WAIT_MAX) if returns else 0
        if shape.spelling.patterns <= WIDE:
            self.waiting[shape] = _WithoutPlan(predicates, self._cts.count(predicates), commits)
        for unit in shape.units.all.values():
            if unit.number is not None:
                self.commits[unit] = None
                self._move(unit)

    def _move(self, unit: Unit) -> None:
        self.moves += [(number, unit) for number in unit.numbers]

    def due(self, delta: QuadDelta) -> list[Shape]:
        """The shapes that a plan is to be tried for behind a delta, which is counted."""
        change: Counter[Term] = Counter()
        for quads, sign in ((delta.removed, -1), (delta.added, 1)):
            for some in sliced(quads, self._slices):
                for quad in some:
                    change[quad.p] += sign
        return [shape for shape, waiting in self.waiting.items() if waiting.count(change)]

    def failed(self, shape: Shape) -> None:
        """Notes that a plan has given up again."""
        self.waiting[shape].halve()

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

    def drop(self, unit: Unit) -> None:
        """Forgets a unit without subscribers."""
        self.commits.pop(unit, None)

    def drop_shape(self, shape: Shape) -> None:
        """Forgets a shape without units."""
        self.waiting.pop(shape, None)
        self._returns.pop(shape, None)
