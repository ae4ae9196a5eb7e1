"""Registry of shapes: the shapes that have subscribers, their units, and their entries in the LUTT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import BindingDelta
from lamplighter.engine.matching.analysis import WIDE
from lamplighter.engine.matching.collectors import CommitState, GroupCollector, SeedCollector
from lamplighter.engine.matching.lutt import Lutt, Matcher, PatternSignature
from lamplighter.engine.matching.ordering import OrderedRows
from lamplighter.engine.matching.prices import Price, Prices
from lamplighter.engine.matching.query_texts import ParsedQuery
from lamplighter.engine.matching.shapes import PlanContext, Shape, SharedQuery
from lamplighter.engine.matching.spu import RE_EVALUATED, ReevaluatingSpu
from lamplighter.engine.matching.takeovers import Takeovers
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Binding, Term

# Shapes that are remembered to have no plan, and queries whose plan needs too much work.
UNPLANNED_MAX = 256
# Characters of their texts.
UNPLANNED_CHARACTERS_MAX = 512 * 1024


class ShapeRegistry:
    """Creates and removes shapes and units, and files their matchers and signatures in the LUTT.

    lutt: has the matchers of every shape with a plan, and the signature of every re-evaluated unit.
    by_key: `ParsedQuery.key` -> shape; the key with the name of the class, for units whose plan does too much work.
    filed: the matchers of each shape, as they stand in the LUTT. shapes: the shape of each matcher in the LUTT. groups:
    the collectors of each counted shape. timed, ordered, constructed: how many units have a clock column, a window, or
    a template. takeovers: those of shapes by the store. sources: the matchers of comparisons with the clock, by shape;
    they stay when a plan is closed. wide: shapes with a plan of many patterns.
    """

    def __init__(
        self,
        store: QuadStore,
        context: PlanContext,
        lutt: Lutt[SharedQuery],
        state: CommitState,
        prices: Prices,
        takeovers: Takeovers,
    ) -> None:
        self.store = store
        self.context = context
        self.lutt = lutt
        self.state = state
        self.prices = prices
        self.takeovers = takeovers
        self._clock_index = context.clock_index
        self.by_key: dict[Any, Shape] = {}
        self.filed: dict[Shape, list[tuple[Term | None, Matcher]]] = {}
        self.shapes: dict[Matcher, Shape] = {}
        self.groups: dict[Shape, list[GroupCollector]] = {}
        self.sources: dict[Shape, list[tuple[Term | None, Matcher]]] = {}
        self.timed = 0
        self.ordered = 0
        self.constructed = 0
        self.wide: set[Shape] = set()
        # Writing and compiling the functions of a shape takes up to 250 ms, so it is not done again for its first unit.
        self._viewed: Shape | None = None
        self._unplanned = LruCache[Any, str](UNPLANNED_MAX, UNPLANNED_CHARACTERS_MAX)

    def view(
        self, parsed: ParsedQuery, terms: Sequence[Term], dataset: Dataset | None, by_store: str | None = None
    ) -> Shape:
        """The shape that a unit of a query would have. A new one is kept for `unit` until the next call of either."""
        key: Any = parsed.key(terms, dataset)
        if by_store is not None:
            key = (key, RE_EVALUATED)
        shape = self.by_key.get(key)
        if shape is None:
            shape = self._viewed = self._new_shape(key, parsed, terms, dataset, by_store)
        return shape

    def _new_shape(
        self, key: Any, parsed: ParsedQuery, terms: Sequence[Term], dataset: Dataset | None, by_store: str | None
    ) -> Shape:
        """A shape that is not filed: the one viewed last if it has this key."""
        # `view` is followed by `unit` for the same query, as a rule.
        viewed, self._viewed = self._viewed, None
        if viewed is not None:
            if viewed.key == key:
                return viewed
            viewed.close()
        reason = by_store or self._unplanned.get(key)
        shape = Shape(parsed, terms, self.context, dataset, reason)
        shape.key = key
        # Planning may take long; a query that has no plan is remembered, since its clients come back.
        if shape.plan is None and reason is None:
            self._unplanned.put(key, shape.reason, len(parsed.text))
        return shape

    def unit(
        self, parsed: ParsedQuery, terms: Sequence[Term], dataset: Dataset | None, by_store: str | None = None
    ) -> SharedQuery:
        """The unit of a query, created if there is none. Raises StoreError, TooMuchWork; then nothing has changed.

        by_store: the reason if the store is to evaluate the unit, although its shape has a plan.
        """
        shape = self._shape(parsed, terms, dataset, by_store)
        constants = shape.constants(terms)
        unit: SharedQuery | None = shape.units.all.get(constants)
        if unit is None:
            unit = SharedQuery(shape, constants)
            try:
                for condition in shape.conditions:
                    # Everything that may fail comes before the unit is added, in an order that the except branch takes
                    # back.
                    self._clock_index.enter(condition, constants)
                if shape.plan is None:
                    self.re_evaluate(unit)
                for collector in self.groups.get(shape, ()):
                    collector.enter(unit)
            except BaseException:
                for collector in self.groups.get(shape, ()):
                    collector.leave(unit)
                self._leave_conditions(unit)
                if not shape.units.all:
                    self._drop_shape(shape)
                raise
            shape.units.add(constants, unit)
            self.timed += unit.times is not None
            self.ordered += unit.window is not None
            self.constructed += unit.triples is not None
        return unit

    def _shape(
        self, parsed: ParsedQuery, terms: Sequence[Term], dataset: Dataset | None, by_store: str | None
    ) -> Shape:
        key: Any = parsed.key(terms, dataset)
        # A unit that was given to the store alone stays there, whoever subscribes to it next.
        # A unit that the store is to evaluate has a shape of its own, so that the other units of its query keep their
        # plan.
        beside = self.by_key.get((key, RE_EVALUATED))
        if beside is not None and beside.constants(terms) in beside.units.all:
            return beside
        if by_store is not None:
            key = (key, RE_EVALUATED)
        shape = self.by_key.get(key)
        if shape is None:
            shape = self.by_key[key] = self._new_shape(key, parsed, terms, dataset, by_store)
            # Wide plans are limited in number, as the text of each is long.
            if shape.plan is not None and parsed.patterns > WIDE:
                self.wide.add(shape)
            try:
                # The shape is in `by_key` already: `_drop_shape` removes whatever of it has been filed.
                self._file(shape)
            except BaseException:
                self._drop_shape(shape)
                raise
        return shape

    def _file(self, shape: Shape) -> None:
        """Files the matchers of a shape's plan, and of its comparisons with the clock, in the LUTT."""
        self._file_plan(shape)
        for condition in shape.conditions:
            self._clock_index.begin(condition)
            for predicate, source in condition.matchers:
                # If an operand of a comparison is lost, the store would not know when to evaluate: another guard than
                # for plans.
                bounded = self.state.guarded_source(shape, source) if source.may_exceed else source
                self.sources.setdefault(shape, []).append((predicate, bounded))
        self._enter(shape, self.sources.get(shape, ()))

    def _enter(self, shape: Shape, matchers: Sequence[tuple[Term | None, Matcher]]) -> None:
        for predicate, matcher in matchers:
            self.lutt.add_matcher(predicate, matcher)
            self.shapes[matcher] = shape
        self.prices.expect()

    def _file_plan(self, shape: Shape) -> None:
        filed = self.filed[shape] = []
        if shape.plan is not None:
            for predicate, matcher in shape.plan.matchers:
                filed.append((predicate, self._guard_if_bounded(shape, matcher, matcher)))
            for seeding in shape.plan.seedings:
                seeds = SeedCollector(shape, seeding)
                for leaf, seeders in enumerate(seeding.seeders):
                    for predicate, seeder in seeders:
                        collect = seeds.matcher(leaf, seeder, self.state.seeds)
                        filed.append((predicate, self._guard_if_bounded(shape, collect, seeder)))
            for counting in shape.plan.countings:
                groups = GroupCollector(shape, counting)
                self.groups.setdefault(shape, []).append(groups)
                for predicate, matcher in counting.matchers:
                    collect = groups.matcher(matcher, self.state.groups)
                    filed.append((predicate, self._guard_if_bounded(shape, collect, matcher)))
        self._enter(shape, filed)

    def _unfile(self, matchers: Sequence[tuple[Term | None, Matcher]]) -> None:
        for predicate, matcher in matchers:
            self.lutt.remove_matcher(predicate, matcher)
            self.shapes.pop(matcher, None)

    def price(self, unit: SharedQuery) -> Price:
        """The cost of a unit."""
        groups = sum(collector.size(unit) for collector in self.groups.get(unit.shape, ()))
        instants = sum(len(condition.moments) for condition in unit.shape.conditions)
        if unit.spu is not None:
            return Price(unit.spu.spent.us, unit.spu.spent.commits, 1, unit.row_count + instants)
        spent = unit.shape.spent
        return Price(spent.us, spent.commits, len(unit.shape.units.all), unit.row_count + groups + instants)

    def _guard_if_bounded(self, shape: Shape, matcher: Matcher, compiled: Any) -> Matcher:
        """The matcher, guarded if its compiled function counts work and so may exceed the limit.

        The others stay unguarded, which saves a call for each quad; `Follower` guards them after a fault.
        """
        return self.state.guard(shape, matcher) if compiled.may_exceed else matcher

    def re_evaluate(self, unit: SharedQuery, told: Sequence[Binding] | None = None) -> None:
        """Hands a unit over to the store, with its result in the store as it is now. Raises StoreError.

        told: `SharedQuery.visible_rows`, if it has subscribers.
        """
        # The SPU is made first: it evaluates, and may fail.
        spu = self.new_spu(unit, told)
        self.lutt.add(unit, unit.shape.signature(unit.key))
        unit.spu = spu

    def new_spu(self, unit: SharedQuery, told: Sequence[Binding] | None = None) -> ReevaluatingSpu:
        """The unit's result by the store as it is now. told: as in `re_evaluate`. Raises StoreError."""
        shape = unit.shape
        at = self._clock_index.text_now if shape.conditions else None
        return ReevaluatingSpu(self.store, shape.name(unit.key), shape.parsed.order, shape.dataset, told, at)

    def demote(self, shape: Shape, reason: Exception) -> None:
        """Hands all units of a shape over to the store. Raises StoreError, TooMuchWork; the plan then stays in use."""
        units = list(shape.units.all.values())
        try:
            for unit in units:
                # All or none: a shape whose units are half with the store would be followed twice.
                self.re_evaluate(unit, unit.visible_rows())
        except BaseException:
            for unit in units:
                if unit.spu is not None:
                    self.lutt.remove(unit, shape.signature(unit.key))
                    unit.spu = None
            raise
        self.close_plan(shape, reason)

    def close_plan(self, shape: Shape, reason: BaseException) -> None:
        """Removes a shape's plan and its matchers. reason: what `Engine.describe` reports."""
        self.takeovers.begin(shape, frozenset(predicate for predicate, _ in self.filed[shape]))
        shape.reason = str(reason) or repr(reason)
        # The windows were windows of the plan. The store evaluates ORDER BY and LIMIT itself.
        for unit in shape.units.all.values() if shape.window is not None else ():
            unit.window = None
            self.ordered -= 1
        self._close_plan(shape)

    def _close_plan(self, shape: Shape) -> None:
        self.wide.discard(shape)
        self._unfile(self.filed[shape])
        self.filed[shape] = []
        self.groups.pop(shape, None)
        shape.close_plan()

    def plan_again(self, shape: Shape) -> list[tuple[SharedQuery, BindingDelta]]:
        """Has a new plan follow a shape that the store has taken over.

        Returns for each unit what leads from the rows that subscribers have to those of the plan; it may be empty.
        Raises what the plan raises; then nothing has changed.
        """
        units = list(shape.units.all.values())
        shape.begin_plan()
        try:
            self._file_plan(shape)
            for collector in self.groups.get(shape, ()):
                for unit in units:
                    collector.enter(unit)
            # Computed for all units before any of them is changed.
            found = [self._plan_unit(unit) for unit in units]
        except BaseException:
            self._close_plan(shape)
            raise
        for unit, window, signature, _ in found:
            self.lutt.remove(unit, signature)
            unit.spu, unit.window = None, window
            self.ordered += window is not None
        self.takeovers.end(shape)
        return [(unit, change) for unit, _, _, change in found]

    def _plan_unit(self, unit: SharedQuery) -> tuple[SharedQuery, OrderedRows | None, PatternSignature, BindingDelta]:
        """A unit with the window that it gets, the signature that it loses, and the change to the rows of its plan."""
        shape, window = unit.shape, unit.new_window()
        assert shape.plan is not None and unit.spu is not None
        rows = shape.plan.first(unit.key) if window is None else window.rows()
        return unit, window, shape.signature(unit.key), unit.spu.change_to(rows)

    def drop(self, unit: SharedQuery) -> None:
        """Removes a unit without subscribers, and its shape with the last unit."""
        if unit.spu is not None:
            self.lutt.remove(unit, unit.shape.signature(unit.key))
        self.timed -= unit.times is not None
        self.ordered -= unit.window is not None
        self.constructed -= unit.triples is not None
        for collector in self.groups.get(unit.shape, ()):
            collector.leave(unit)
        self._leave_conditions(unit)
        self.takeovers.drop(unit)
        unit.shape.units.remove(unit.key)
        if not unit.shape.units.all:
            self._drop_shape(unit.shape)

    def _leave_conditions(self, unit: SharedQuery) -> None:
        """Forgets the operands of a unit's comparisons with the clock, unless its shape goes as a whole."""
        # `_drop_shape` ends the conditions as a whole, which costs nothing for each operand.
        others = len(unit.shape.units.all) > (unit.key in unit.shape.units.all)
        for condition in unit.shape.conditions if others else ():
            self._clock_index.leave(condition, unit.key)

    def _drop_shape(self, shape: Shape) -> None:
        self._unfile([*self.filed.pop(shape, ()), *self.sources.pop(shape, ())])
        self.groups.pop(shape, None)
        self.wide.discard(shape)
        self.takeovers.drop_shape(shape)
        shape.close()
        for condition in shape.conditions:
            self._clock_index.end(condition)
        del self.by_key[shape.key]
