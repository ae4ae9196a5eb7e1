"""Registry of shapes: the shapes that have subscribers, their units, and their entries in the LUTT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamplighter.engine.access import Dataset
from lamplighter.engine.matching.collectors import CommitState, GroupCollector, SeedCollector
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.lutt import Lutt, Matcher
from lamplighter.engine.matching.shapes import Shape, Unit
from lamplighter.engine.matching.spellings import Spelling
from lamplighter.engine.matching.spu import ReevaluatingSpu
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Term
from lamplighter.engine.work import Work


class ShapeRegistry:
    """Creates and removes shapes and units, and files their matchers and footprints in the LUTT.

    lutt: has the matchers of every shape with a plan, and the footprint of every re-evaluated unit.
    by_key: `Spelling.key` -> shape. filed: the matchers of each shape, as they stand in the LUTT.
    groups: the collectors of each counted shape. timed: how many units use the clock function.
    """

    def __init__(self, store: QuadStore, cts: Cts, lutt: Lutt[Unit], work: Work, state: CommitState) -> None:
        self._store = store
        self._cts = cts
        self._lutt = lutt
        self._work = work
        self._state = state
        self.by_key: dict[Any, Shape] = {}
        self.filed: dict[Shape, list[tuple[Term | None, Matcher]]] = {}
        self.groups: dict[Shape, list[GroupCollector]] = {}
        self.timed = 0

    def unit(self, spelling: Spelling, terms: Sequence[Term], dataset: Dataset | None) -> Unit:
        """The unit of a query, created if there is none. Raises StoreError, TooMuchWork; then nothing has changed."""
        shape = self._shape(spelling, terms, dataset)
        constants = shape.constants(terms)
        unit: Unit | None = shape.units.all.get(constants)
        if unit is None:
            unit = Unit(shape, constants)
            try:
                if shape.plan is None:
                    self.re_evaluate(unit)
                for collector in self.groups.get(shape, ()):
                    collector.enter(unit)
            except BaseException:
                for collector in self.groups.get(shape, ()):
                    collector.leave(unit)
                if not shape.units.all:
                    self._drop_shape(shape)
                raise
            shape.units.add(constants, unit)
            if spelling.clocks:
                self.timed += 1
        return unit

    def _shape(self, spelling: Spelling, terms: Sequence[Term], dataset: Dataset | None) -> Shape:
        key = spelling.key(terms, dataset)
        shape = self.by_key.get(key)
        if shape is None:
            shape = Shape(spelling, terms, self._cts, dataset, self._work)
            self.by_key[key] = shape
            shape.key = key
            try:
                self._file(shape)
            except BaseException:
                self._drop_shape(shape)
                raise
        return shape

    def _file(self, shape: Shape) -> None:
        """Files the matchers of a shape's plan in the LUTT."""
        filed = self.filed[shape] = []
        if shape.plan is not None:
            for predicate, matcher in shape.plan.matchers:
                filed.append((predicate, self._bounded(shape, matcher, matcher)))
            for seeding in shape.plan.seedings:
                seeds = SeedCollector(shape, seeding)
                for leaf, seeders in enumerate(seeding.seeders):
                    for predicate, seeder in seeders:
                        collect = seeds.matcher(leaf, seeder, self._state.seeds)
                        filed.append((predicate, self._bounded(shape, collect, seeder)))
            for counting in shape.plan.countings:
                groups = GroupCollector(shape, counting)
                self.groups.setdefault(shape, []).append(groups)
                for predicate, matcher in counting.matchers:
                    collect = groups.matcher(matcher, self._state.groups)
                    filed.append((predicate, self._bounded(shape, collect, matcher)))
        for predicate, matcher in filed:
            self._lutt.add_matcher(predicate, matcher)

    def _bounded(self, shape: Shape, matcher: Matcher, compiled: Any) -> Matcher:
        """The matcher, guarded if its compiled function counts work and so may exceed the limit.

        The others stay unguarded, which saves a call for each quad; `Follower` guards them after a fault.
        """
        return self._state.guarded(shape, matcher) if compiled.may_exceed else matcher

    def re_evaluate(self, unit: Unit) -> None:
        """Hands a unit over to the store, with its result in the store as it is now. Raises StoreError."""
        shape = unit.shape
        spu = ReevaluatingSpu(self._store, shape.text(unit.key), shape.spelling.order, shape.dataset)
        self._lutt.add(unit, shape.footprint(unit.key))
        unit.spu = spu

    def demote(self, shape: Shape, reason: Exception) -> None:
        """Hands all units of a shape over to the store. Raises StoreError; the plan then stays in use."""
        units = list(shape.units.all.values())
        try:
            for unit in units:
                self.re_evaluate(unit)
        except BaseException:
            for unit in units:
                if unit.spu is not None:
                    self._lutt.remove(unit, shape.footprint(unit.key))
                    unit.spu = None
            raise
        self.close_plan(shape, reason)

    def close_plan(self, shape: Shape, reason: BaseException) -> None:
        """Removes a shape's plan and its matchers. reason: what `Engine.describe` reports."""
        shape.reason = str(reason) or repr(reason)
        for predicate, matcher in self.filed[shape]:
            self._lutt.remove_matcher(predicate, matcher)
        self.filed[shape] = []
        self.groups.pop(shape, None)
        shape.close()
        shape.plan = None

    def drop(self, unit: Unit) -> None:
        """Removes a unit without subscribers, and its shape with the last unit."""
        if unit.spu is not None:
            self._lutt.remove(unit, unit.shape.footprint(unit.key))
        self.timed -= unit.times is not None
        for collector in self.groups.get(unit.shape, ()):
            collector.leave(unit)
        unit.shape.units.remove(unit.key)
        if not unit.shape.units.all:
            self._drop_shape(unit.shape)

    def _drop_shape(self, shape: Shape) -> None:
        for predicate, matcher in self.filed.pop(shape, ()):
            self._lutt.remove_matcher(predicate, matcher)
        self.groups.pop(shape, None)
        shape.close()
        del self.by_key[shape.key]
