"""Prices: the processor time that each plan and each re-evaluated query takes in commits.

A clock reading takes longer than many a matcher, so only a sample of the commits is measured: the first ones after a
new plan, and then one in `EVERY`. In a measured commit each call for a plan is timed, less the time of the readings.
Evaluations by the store are timed in all commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from lamplighter.engine.matching.lutt import ByPredicate, Matcher
from lamplighter.engine.terms import Term

# Commits of which one is measured.
EVERY = 64
# Commits that are all measured after a new plan.
FIRST = 8
_READINGS = 32

T = TypeVar("T")


class Price(NamedTuple):
    """The cost of a subscription.

    us: mean processor time, in microseconds, of a commit that its query is matched with: one with a quad of a predicate
    of the query, or an instant at which a comparison with the clock changes. None before the first such commit that was
    measured. commits: how many were measured. queries: those that this time is for, which differ in constants only.
    kept: rows, groups and instants that are kept for it, besides the index that all share.
    """

    us: float | None
    commits: int
    queries: int
    kept: int


class Spent:
    """The processor time of one plan or query. commits: how many were measured; seconds: of all of them."""

    __slots__ = ("commits", "seconds")

    def __init__(self) -> None:
        self.commits = 0
        self.seconds = 0.0

    @property
    def us(self) -> float | None:
        """The mean in microseconds."""
        return 1e6 * self.seconds / self.commits if self.commits else None


class Priced(Protocol):
    """An object with a cost: a shape, or the query of a re-evaluated unit."""

    @property
    def spent(self) -> Spent: ...


class Prices:
    """Measures commits. clock: processor time in seconds; None for no measurements.

    left: counted down by each commit; at 0, it is to be measured, and calls `begin`. measuring: whether it is.
    """

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._clock = clock
        self.left = 0  # without a clock, it never comes to 0 again
        self.measuring = False
        self._first = 0
        self._seconds: dict[Priced, float] = {}
        self._reading = min((_reading(clock) for _ in range(_READINGS)), default=0.0) if clock else 0.0

    def expect(self) -> None:
        """Has the next commits measured, for a new plan."""
        if self._clock is not None:
            self._first, self.left = FIRST, 1

    def begin(self) -> None:
        """Begins to measure a commit."""
        self.measuring = True
        self._first -= self._first > 0
        self.left = 1 if self._first else EVERY
        self._seconds.clear()

    def time_matchers(
        self, shapes: Mapping[Matcher, Priced], matchers: ByPredicate, wildcards: Sequence[Matcher]
    ) -> tuple[ByPredicate, Sequence[Matcher]]:
        """The matchers and wildcards of the LUTT, with each call timed for the shape of the matcher."""
        return _Timed(self, shapes, matchers), [self.wrap(shapes[matcher], matcher) for matcher in wildcards]

    def wrap(self, priced: Priced, matcher: Matcher) -> Matcher:
        """The matcher, timed."""
        clock, seconds, reading = self._clock, self._seconds, self._reading
        assert clock is not None

        def match(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            begun = clock()
            matcher(s, p, o, g, found, sign)
            seconds[priced] = seconds.get(priced, 0.0) + clock() - begun - reading

        return match

    def measure(self, priced: Priced, work: Callable[..., T], *arguments: Any) -> T:
        """Calls work, and times it if this commit is measured."""
        if not self.measuring:
            return work(*arguments)
        assert self._clock is not None
        begun = self._clock()
        result = work(*arguments)
        self._seconds[priced] = self._seconds.get(priced, 0.0) + self._clock() - begun - self._reading
        return result

    def measure_evaluation(self, priced: Priced, work: Callable[..., T], *arguments: Any) -> T:
        """Calls the evaluation of a query by the store, and times it in any commit."""
        if self._clock is None:
            return work(*arguments)
        begun = self._clock()
        result = work(*arguments)
        priced.spent.commits += 1
        priced.spent.seconds += self._clock() - begun
        return result

    def settle(self) -> None:
        """Ends the measurement of a commit that succeeded."""
        self.measuring = False
        for priced, seconds in self._seconds.items():
            priced.spent.commits += 1
            priced.spent.seconds += max(seconds, 0.0)
        self._seconds.clear()

    def drop(self) -> None:
        """Ends the measurement of a commit that is matched again."""
        self.measuring = False
        self._seconds.clear()


class _Timed:
    """The timed matchers by predicate. They are made when a predicate is looked up.

    No `Mapping`, whose `get` takes a KeyError from within for a missing key; rows would be lost without a word.
    """

    def __init__(self, prices: Prices, shapes: Mapping[Matcher, Priced], matchers: ByPredicate) -> None:
        self._prices = prices
        self._shapes = shapes
        self._matchers = matchers
        self._made: dict[Term, list[Matcher]] = {}

    def get(self, predicate: Term, default: tuple[()], /) -> Sequence[Matcher]:
        made = self._made.get(predicate)
        if made is None:
            filed = self._matchers.get(predicate, default)
            made = self._made[predicate] = [self._prices.wrap(self._shapes[one], one) for one in filed]
        return made


def _reading(clock: Callable[[], float]) -> float:
    """The time between two readings of a clock."""
    begun = clock()
    return clock() - begun
