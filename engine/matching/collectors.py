"""Collectors: what the matchers of one commit have found so far, for the plans that need a second pass.

A telescoped plan writes its rows at once. A seeded plan collects seeds, and a counted plan collects changes of groups;
both are evaluated when all quads of the commit have been matched (`engine.matching.following`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from traceback import format_exception
from typing import Any, TypeVar

from lamplighter.engine.errors import bare, is_fault
from lamplighter.engine.matching.aggregates import Accumulator, OrderMattersError
from lamplighter.engine.matching.lutt import Matcher
from lamplighter.engine.matching.ordering import OrderedRows
from lamplighter.engine.matching.plan import Counting, Seeding
from lamplighter.engine.matching.shapes import Shape, SharedQuery
from lamplighter.engine.terms import Binding, Term
from lamplighter.engine.work import TooMuchWork

# Recovered faults that are kept until the engine's owner reads them.
FAULTS_MAX = 8
# Characters kept of each traceback, from its end.
FAULT_CHARACTERS_MAX = 4000

# Errors by which a plan says that it cannot tell the rows; the store can. They are no faults.
EXPECTED = (OrderMattersError, TooMuchWork)

T = TypeVar("T")
Rows = list[Binding]


class CommitState:
    """The remaining work of one commit, and the faults that were recovered from.

    seeds, groups: the collectors that a matcher has put something into, in the order of the first entry.
    windows: the windows that the commit may have changed; the change is not settled.
    doubtful: shapes whose plan failed, with the reason; the store evaluates them from this commit on.
    timeless: those of them whose comparisons with the clock failed, so that the store would not know when to evaluate.
    faults: tracebacks of unexpected failures, for the engine's owner to log.
    """

    def __init__(self) -> None:
        self.seeds: dict[SeedCollector, None] = {}
        self.groups: dict[GroupCollector, None] = {}
        self.windows: list[OrderedRows] = []
        self.doubtful: dict[Shape, BaseException] = {}
        self.timeless: dict[Shape, BaseException] = {}
        self.faults: deque[str] = deque(maxlen=FAULTS_MAX)

    def clear_collectors(self) -> None:
        """Empties the collectors; may be repeated if it failed."""
        for collectors in (self.seeds, self.groups):
            for collector in collectors:
                collector.clear()
            collectors.clear()

    def settle_windows(self) -> None:
        """Makes the changes of the windows take effect; may be repeated if it failed."""
        for window in self.windows:
            window.settle()
        self.windows.clear()

    def give_up(self, shape: Shape, reason: BaseException) -> None:
        """Marks a shape as doubtful. Raises the reason again if it is no failure (`note`)."""
        self.doubtful[shape] = bare(reason) if isinstance(reason, EXPECTED) else reason
        if not isinstance(reason, EXPECTED):
            self.note(reason)

    def guard(self, shape: Shape, matcher: Matcher) -> Matcher:
        """The matcher, whose failure makes its shape doubtful instead of failing the commit."""
        doubtful = self.doubtful

        def match(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            # Two tests: the dictionary is empty nearly always, and its truth costs less than a lookup.
            if doubtful and shape in doubtful:
                return  # the store will evaluate the shape, and the next quad could cost as much
            try:
                matcher(s, p, o, g, found, sign)
            except BaseException as reason:
                self.give_up(shape, reason)

        return match

    def guarded_source(self, shape: Shape, matcher: Matcher) -> Matcher:
        """The same for a matcher of operands that are compared with the clock."""
        timeless = self.timeless

        def match(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            if timeless and shape in timeless:
                return
            try:
                matcher(s, p, o, g, found, sign)
            except BaseException as reason:
                self.lose_time(shape, reason)

        return match

    def lose_time(self, shape: Shape, reason: BaseException) -> None:
        """Marks a shape as timeless."""
        self.give_up(shape, reason)
        self.timeless[shape] = self.doubtful[shape]

    def again(self, work: Callable[..., T], *arguments: Any) -> T:
        """Calls work, and calls it a second time after a fault. work: changes nothing unless it succeeds."""
        try:
            return work(*arguments)
        except TooMuchWork:
            raise
        except BaseException as error:
            self.note(error)
            return work(*arguments)

    def note(self, error: BaseException) -> None:
        """Records a fault. Raises the error again if it is a request to end the task or the process."""
        if not is_fault(error):
            raise error
        try:
            # The end of a traceback has the error.
            self.faults.append("".join(format_exception(error))[-FAULT_CHARACTERS_MAX:])
        except Exception:  # out of memory, for example
            self.faults.append(type(error).__name__)
        # Its frames hold the commit, which would live until the next garbage collection.
        bare(error)


class SeedCollector:
    """The seeds of one branch of a seeded plan, by leaf."""

    def __init__(self, shape: Shape, seeding: Seeding) -> None:
        self.shape = shape
        self._seeding = seeding
        self._seeds: list[set[Any]] = [set() for _ in seeding.evaluators]

    def matcher(self, leaf: int, seeder: Callable[..., None], touched: dict[SeedCollector, None]) -> Matcher:
        """A matcher that collects the seeds of a leaf, and puts this collector into touched if there are any."""
        seeds = self._seeds[leaf]

        def collect(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            try:
                # Also after a failure: what has been collected must be cleared.
                seeder(s, p, o, g, seeds)
            finally:
                if seeds:
                    touched[self] = None

        return collect

    def rows(self) -> dict[SharedQuery, Rows]:
        """The rows that agree with the seeds in the index as it is now, by unit. Raises what the plan raises."""
        rows: dict[SharedQuery, Rows] = {}
        for seeds, evaluate in zip(self._seeds, self._seeding.evaluators, strict=True):
            if seeds:
                evaluate(seeds, self._seeds, rows)
        return rows

    def clear(self) -> None:
        for seeds in self._seeds:
            seeds.clear()


class GroupCollector:
    """The groups of one branch of a counted plan: per unit, each group's number of solutions and its aggregates.

    The groups are kept from commit to commit. What a commit adds to them and removes is collected as pairs of a group's
    key and the arguments of its aggregates.
    """

    def __init__(self, shape: Shape, counting: Counting) -> None:
        self.shape = shape
        self._counting = counting
        self._groups: dict[SharedQuery, dict[Any, tuple[list[int], list[Accumulator]]]] = {}
        self._pairs: dict[SharedQuery, tuple[list[Any], list[Any]]] = {}

    def matcher(self, matcher: Callable[..., None], touched: dict[GroupCollector, None]) -> Matcher:
        """A matcher that collects pairs, and puts this collector into touched if there are any."""
        pairs = self._pairs

        def collect(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            try:
                matcher(s, p, o, g, pairs, sign)
            finally:
                if pairs:
                    touched[self] = None

        return collect

    def enter(self, unit: SharedQuery) -> None:
        """Counts all groups of a unit in the index as it is now."""
        pairs: list[Any] = []
        for first in self._counting.first:
            first(unit.key, pairs)
        groups = self._groups[unit] = {}
        if self._counting.everything:
            groups[()] = self._new()
        self._add(groups, pairs, 1)

    def leave(self, unit: SharedQuery) -> None:
        self._groups.pop(unit, None)

    def size(self, unit: SharedQuery) -> int:
        """The number of groups of a unit."""
        return len(self._groups.get(unit, ()))

    def _new(self) -> tuple[list[int], list[Accumulator]]:
        assert self.shape.plan is not None
        meter = self.shape.plan.meter
        return [0], [Accumulator(aggregate, meter) for aggregate in self._counting.aggregates]

    def _add(self, groups: dict[Any, tuple[list[int], list[Accumulator]]], pairs: Iterable[Any], times: int) -> None:
        for group, arguments in pairs:
            known = groups.get(group)
            if known is None:
                known = groups[group] = self._new()
            size, accumulators = known
            size[0] += times
            for accumulator, argument in zip(accumulators, arguments, strict=True):
                accumulator.add(argument, times)

    def _rows(self, unit: SharedQuery, wanted: Iterable[Any]) -> Rows:
        """The rows of the wanted groups of a unit. Raises OrderMattersError."""
        known = self._groups[unit]
        rows: Rows = []
        for group in wanted:
            found = known.get(group)
            if found is not None:
                (size,), accumulators = found
                values = [accumulator.result(size) for accumulator in accumulators]
                self._counting.rows(unit.key, group, values, rows)
        return rows

    def follow(self, found: dict[SharedQuery, tuple[Rows, Rows]]) -> None:
        """Applies the collected pairs to the groups, and adds the rows that change to found.

        Raises OrderMattersError; the groups are then inconsistent and must not be used again.
        """
        for unit, (removed, added) in self._pairs.items():
            groups = self._groups[unit]
            touched = dict.fromkeys(group for group, _ in (*removed, *added))
            # The rows before are computed of the groups that change, so none are kept.
            before = self._rows(unit, touched)
            # Added first, so that no group gets empty in between.
            self._add(groups, added, 1)
            self._add(groups, removed, -1)
            for group in touched:
                # A group without solutions is gone, except the one of a query without GROUP BY.
                if not groups[group][0][0] and not self._counting.everything:
                    del groups[group]
            rows = found.setdefault(unit, ([], []))
            rows[0].extend(before)
            rows[1].extend(self._rows(unit, touched))

    def take_back(self) -> None:
        """Counts the groups of the touched units again, in the index as it is now."""
        # Only these have pairs, so only they may have changed.
        for unit in self._pairs:
            self.enter(unit)

    def clear(self) -> None:
        self._pairs.clear()
