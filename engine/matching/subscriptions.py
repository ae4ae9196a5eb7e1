"""Subscriptions: which queries are subscribed to, and what a commit changes for each of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching.aggregates import CONCATENATION, OrderMattersError
from lamplighter.engine.matching.analysis import WIDE, WIDE_PLANS_MAX
from lamplighter.engine.matching.clock_index import ClockIndex
from lamplighter.engine.matching.collectors import CommitState
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.following import Change, CommitCost, Follower
from lamplighter.engine.matching.lutt import Lutt
from lamplighter.engine.matching.prices import Price, Prices
from lamplighter.engine.matching.query_texts import ParsedQuery, QueryTextCache
from lamplighter.engine.matching.registry import UNPLANNED_CHARACTERS_MAX, UNPLANNED_MAX, ShapeRegistry
from lamplighter.engine.matching.shapes import PlanContext, SharedQuery
from lamplighter.engine.matching.subscription_numbers import SubscriptionNumbers
from lamplighter.engine.matching.takeovers import Takeovers
from lamplighter.engine.slices import LONG
from lamplighter.engine.sparql.algebra import Group, Slice, walk
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Binding, Term
from lamplighter.engine.work import PlanExceededError, TooMuchWork, Work


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

    now: the clock function's time. work: the limit of an evaluation by a plan; without a clock there are no prices.
    ends: as in `Follower`.
    clock_index: the instant, and what is due. takeovers: of plans by the store. cost: of following a delta. advance:
    changes the instant. follow: applies a delta to CTS and store, and returns what it changes (all three of
    `Follower`). ended: units that the last commit ended, with the reason; the caller unsubscribes and removes them.
    faults: tracebacks of failures that were recovered from; the caller logs and removes them. note: adds one.
    """

    def __init__(
        self,
        store: QuadStore,
        cts: Cts,
        lifter: Lifter,
        now: Callable[[], int],
        work: Work,
        *,
        ends: bool,
    ) -> None:
        self._now = now
        self._work = work
        self._slices = slices = work.slices
        self._store = store
        self._texts = QueryTextCache(lifter, slices)
        self._lutt: Lutt[SharedQuery] = Lutt()
        self._state = CommitState()
        self.clock_index = ClockIndex(now, slices)
        self.takeovers = Takeovers(cts, slices)
        context = PlanContext(cts, work, self.clock_index)
        self._shapes = ShapeRegistry(store, context, self._lutt, self._state, Prices(work.clock), self.takeovers)
        self._follower = Follower(self._shapes, now, slices, ends=ends)
        # Attributes and not methods: each commit uses them.
        self.cost: Callable[[QuadDelta], CommitCost] = self._follower.cost
        self.follow: Callable[[QuadDelta], list[Change]] = self._follower.follow
        self.advance: Callable[[int], list[Change]] = self._follower.advance
        self.ended: dict[SharedQuery, BaseException] = self._follower.ended
        self.faults: deque[str] = self._state.faults
        self.note: Callable[[BaseException], None] = self._state.note
        self._units = SubscriptionNumbers()
        self._exceeded = LruCache[Any, str](UNPLANNED_MAX, UNPLANNED_CHARACTERS_MAX)
        self._long = LruCache[Any, str](UNPLANNED_MAX, UNPLANNED_CHARACTERS_MAX)

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, number: int) -> bool:
        return number in self._units

    # --- subscribing ---

    def evaluation(self, text: str, dataset: Dataset | None, *, gradual: bool = False) -> str | None:
        """The query that the store would evaluate for a subscription, if only for its first result; None if a plan
        serves it. gradual: whether NotIndexedError is raised for what `Cts.fill_some` is to index before. Raises
        RequestError."""
        parsed, terms, dataset, by_store = self._parse(text, dataset)
        cts = self._shapes.context.cts
        cts.gradual = gradual
        try:
            shape = self._shapes.view(parsed, terms, dataset, by_store)
        finally:
            cts.gradual = False
        if shape.plan is not None and self._long.get((parsed.key(terms, dataset), tuple(terms))) is None:
            return None
        return shape.text(shape.constants(terms))

    def subscribe(self, text: str, dataset: Dataset | None, tried_first: bool = False) -> Entered:
        """Adds a subscription. Raises RequestError, StoreError; then nothing has changed.

        tried_first: whether PlanExceededError is raised where the store may evaluate a first result that is too much
        work for a plan; otherwise the store does so at once, if it follows the subscription too.
        """
        parsed, terms, dataset, by_store = self._parse(text, dataset)
        handed_over = by_store is None and _faster_in_store(parsed)
        # Where the store has the first rows only, and the plan what follows.
        compiles = tried_first and not handed_over
        self._work.begin(in_turn=handed_over or tried_first, compiles=compiles)
        try:
            unit, rows = self._evaluate(parsed, terms, dataset, by_store)
        except TooMuchWork as error:
            reason = f"the first result needs {error}"
            if tried_first:
                size = min(len(text), UNPLANNED_CHARACTERS_MAX)  # a longer one would not be kept
                key = parsed.key(terms, dataset), tuple(terms)
                # What a plan of groups keeps can be too much work by itself, whoever evaluates the rows.
                known = self._exceeded if handed_over or self._long.get(key) is not None else self._long
                known.put(key, reason, size)
                raise PlanExceededError(reason) from error
            if not handed_over:
                raise LimitExceededError(f"the first result of the subscription needs {error}") from error
            by_store = reason
            self._work.begin()
            unit, rows = self._evaluate(parsed, terms, dataset, by_store)
        number = self._units.add(unit)
        unit.enter(number, parsed.columns)
        unit.shape.subscribers += 1
        return Entered(number, parsed.columns, rows, unit.spu_class)

    def _parse(self, text: str, dataset: Dataset | None) -> tuple[ParsedQuery, list[Term], Dataset | None, str | None]:
        """A query, and why a new shape of it gets no plan, if it does not. Announces work that takes long: a plan has
        the quads of its predicates indexed."""
        if max(len(self._store), len(text)) > LONG:
            self._slices.begin(max(len(self._store), len(text)))
        parsed, terms = self._texts.parse(text)
        dataset = parsed.narrow(dataset, terms)
        key = parsed.key(terms, dataset)
        by_store = self._exceeded.get((key, tuple(terms)))
        if by_store is None and key not in self._shapes.by_key:
            by_store = self._left_to_store(parsed)
        return parsed, terms, dataset, by_store

    def _evaluate(
        self, parsed: ParsedQuery, terms: Sequence[Term], dataset: Dataset | None, by_store: str | None = None
    ) -> tuple[SharedQuery, Sequence[Binding]]:
        """The unit of a query and its rows. by_store: as in `ShapeRegistry.unit`. An error leaves nothing behind."""
        unit = self._shapes.unit(parsed, terms, dataset, by_store)
        try:
            return unit, self._first_rows(unit, long=self._long.get((unit.shape.key, tuple(terms))) is not None)
        except BaseException:
            if unit.number is None:  # without a subscriber, it would be matched for nothing
                self._shapes.drop(unit)
            raise

    def _left_to_store(self, parsed: ParsedQuery) -> str | None:
        """Why a new shape gets no plan, although it may have one. Announces long work if it takes long to compile."""
        if parsed.patterns > WIDE and len(self._shapes.wide) >= WIDE_PLANS_MAX:
            return f"{WIDE_PLANS_MAX} other shapes have plans of more than {WIDE} triple patterns"
        if parsed.pairs > WIDE * WIDE:
            self._slices.begin(LONG)
        return None

    def _first_rows(self, unit: SharedQuery, *, long: bool) -> Sequence[Binding]:
        """long: whether the plan needs too much work for them, so that the store evaluates them, and them only."""
        plan = unit.shape.plan
        try:
            # A plan that the store may differ from goes on from rows of its own.
            rows = self._shapes.new_spu(unit).rows if long and plan is not None and not plan.differs else unit.rows()
        except OrderMattersError as reason:
            self._shapes.demote(unit.shape, reason)
            rows = unit.rows()
        if unit.triples is not None:
            return unit.triples.first(rows)
        return rows if unit.times is None else unit.with_times(rows, self._now())

    def unsubscribe(self, number: int) -> None:
        """Ends a subscription. Raises KeyError."""
        unit = self._units.pop(number)
        unit.shape.subscribers -= 1
        if not unit.leave(number):
            self._shapes.drop(unit)

    def unit(self, number: int) -> SharedQuery:
        """The unit of a subscription. Raises KeyError."""
        return self._units[number]

    def price(self, number: int) -> Price:
        """The cost of a subscription. Raises KeyError."""
        return self._shapes.price(self._units[number])

    def re_evaluated_with(self, number: int) -> list[SharedQuery]:
        """The units that the store may evaluate in a commit that touches this subscription, if the store does so for
        it; none otherwise. Raises KeyError."""
        unit = self._units[number]
        return [] if unit.spu is None else self._lutt.beside(unit.shape.signature(unit.key))

    def order_evaluations(self, in_order: Callable[[Sequence[SharedQuery]], Iterable[SharedQuery]]) -> None:
        """Sets the order in which the store evaluates the units of a commit."""
        self._follower.in_order = in_order

    @property
    def unit_count(self) -> int:
        return sum(len(shape.units.all) for shape in self._shapes.by_key.values())

    def classes(self) -> dict[str, int]:
        """The number of subscriptions of each SPU class."""
        found: Counter[str] = Counter()
        for shape in self._shapes.by_key.values():
            found[shape.spu_class] += shape.subscribers
        return dict(found)


def _faster_in_store(parsed: ParsedQuery) -> bool:
    """Whether the store evaluates a first result that is too much work for a plan. Of an ordered result and of texts
    that are joined, the plan makes all rows in Python to keep a few of them, and of many patterns it joins in one order
    whatever their numbers of quads are."""
    if parsed.select is None:
        return False
    node = parsed.select.node
    if isinstance(node, Slice) or parsed.patterns > WIDE:
        return True
    groups = (part for part in walk(node) if isinstance(part, Group))
    return any(aggregate.name == CONCATENATION for group in groups for _, aggregate in group.aggregates)
