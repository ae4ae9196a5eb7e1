"""Subscriptions: which queries are subscribed to, and what a commit changes for each of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching.aggregates import OrderMattersError
from lamplighter.engine.matching.collectors import CommitState
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.following import LONG_MATCHINGS, Change, Follower
from lamplighter.engine.matching.lutt import Lutt
from lamplighter.engine.matching.registry import ShapeRegistry
from lamplighter.engine.matching.shapes import Shape, Unit
from lamplighter.engine.matching.spellings import Spellings
from lamplighter.engine.matching.unit_numbers import UnitNumbers
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Binding
from lamplighter.engine.work import TooMuchWork, Work


class Entered(NamedTuple):
    """An accepted subscription.

    number: its key in `Subscriptions`. columns: its variables, as the subscriber names them. rows: the first result.
    """

    number: int
    columns: tuple[str, ...]
    rows: Sequence[Binding]
    spu_class: str


class Subscriptions:
    """All subscriptions by number, and the units that they share.

    now: the clock function's time. work: the limit of an evaluation by a plan. ends: as in `Follower`.
    follow: applies a delta to CTS and store, and returns what it changes (`Follower.follow`). ended: units that the
    last commit ended, with the reason; the caller unsubscribes and removes them. faults: tracebacks of failures that
    were recovered from; the caller logs and removes them.
    """

    def __init__(
        self,
        store: QuadStore,
        cts: Cts,
        lifter: Lifter,
        now: Callable[[], int],
        work: Work,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
        *,
        ends: bool,
    ) -> None:
        self._now = now
        self._work = work
        self._slices = slices
        self._store = store
        self._spellings = Spellings(lifter, slices)
        self._lutt: Lutt[Unit] = Lutt()
        self._state = CommitState()
        self._shapes = ShapeRegistry(store, cts, self._lutt, work, self._state)
        self._follower = Follower(store, cts, self._lutt, self._shapes, self._state, now, work, slices, ends=ends)
        # Attributes and not methods: each commit uses them.
        self.follow: Callable[[QuadDelta], list[Change]] = self._follower.follow
        self.ended: dict[Unit, BaseException] = self._follower.ended
        self.faults: deque[str] = self._state.faults
        self._units = UnitNumbers()

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, number: int) -> bool:
        return number in self._units

    # --- subscribing ---

    def evaluation(self, text: str, dataset: Dataset | None) -> str | None:
        """The query that the store would evaluate for a subscription, None if a plan serves it. Raises RequestError."""
        if len(text) > LONG:
            self._slices.begin(len(text))
        spelling, terms = self._spellings.read(text)
        dataset = spelling.narrowed(dataset, terms)
        shape = self._shapes.by_key.get(spelling.key(terms, dataset))
        if shape is None:
            shape = Shape(spelling, terms, Cts(lambda predicate: ()), dataset, self._work)
        return None if shape.plan is not None else shape.text(shape.constants(terms))

    def subscribe(self, text: str, dataset: Dataset | None) -> Entered:
        """Adds a subscription. Raises RequestError, StoreError; then nothing has changed."""
        if max(len(self._store), len(text)) > LONG:
            self._slices.begin(max(len(self._store), len(text)))
        spelling, terms = self._spellings.read(text)
        self._work.begin()
        try:
            unit = self._shapes.unit(spelling, terms, spelling.narrowed(dataset, terms))
            try:
                rows = self._first_rows(unit)
            except BaseException:
                if unit.number is None:  # without a subscriber, it would be matched for nothing
                    self._shapes.drop(unit)
                raise
        except TooMuchWork as error:
            raise LimitExceededError(f"the first result of the subscription needs {error}") from error
        number = self._units.add(unit)
        unit.enter(number, spelling.columns)
        unit.shape.subscribers += 1
        return Entered(number, spelling.columns, rows, unit.spu_class)

    def _first_rows(self, unit: Unit) -> Sequence[Binding]:
        try:
            rows = unit.rows()
        except OrderMattersError as reason:
            self._shapes.demote(unit.shape, reason)
            rows = unit.rows()
        return rows if unit.times is None else unit.timed(rows, self._now())

    def unsubscribe(self, number: int) -> None:
        """Ends a subscription. Raises KeyError."""
        unit = self._units.pop(number)
        unit.shape.subscribers -= 1
        if not unit.leave(number):
            self._shapes.drop(unit)

    def unit(self, number: int) -> Unit:
        """The unit of a subscription. Raises KeyError."""
        return self._units[number]

    @property
    def unit_count(self) -> int:
        return sum(len(shape.units.all) for shape in self._shapes.by_key.values())

    def classes(self) -> dict[str, int]:
        """The number of subscriptions of each SPU class."""
        found: Counter[str] = Counter()
        for shape in self._shapes.by_key.values():
            found[shape.spu_class] += shape.subscribers
        return dict(found)

    # --- following the dataset ---

    def re_evaluated(self, delta: QuadDelta) -> list[str]:
        """The queries that the store would evaluate to follow a delta."""
        return self._follower.re_evaluated(delta)

    def has_many_matchings(self, delta: QuadDelta) -> bool:
        """Whether following a delta may take long because of the number of quads and subscriptions."""
        changed = len(delta.removed) + len(delta.added)
        return changed * self._lutt.filed > LONG_MATCHINGS and self._lutt.matchings(delta) > LONG_MATCHINGS

    def note(self, error: BaseException) -> None:
        """Records a fault (`CommitState.note`)."""
        self._state.note(error)
