"""Subscriptions: who has subscribed to what, and what a commit changes for each of them.

::

    quad delta ─▶ LUTT ─▶ matchers ─────────────────────────────▶ rows removed and added, by unit
                   │  └─▶ seeders ─▶ evaluators, before and after ──▶┤
                   └────▶ re-evaluated SPUs, behind the store ───────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from engine.aggregates import OrderMattersError
from engine.cts import Cts
from engine.delta import QuadDelta
from engine.errors import RequestError
from engine.grammar import constant_spans
from engine.lifting import Lifted, Lifter, skeleton_of
from engine.lutt import Lutt, Matcher
from engine.plan import Seeding
from engine.shapes import Dataset, Shape, Spelling, Unit, read_spelling
from engine.sparql import canonical, declarations_and_body, subscribable
from engine.spu import ReevaluatingSpu
from engine.store import QuadStore
from engine.terms import Binding, Term

SPELLINGS_MAX = 1024
"""Skeletons of queries that are remembered, the last used ones."""

Rows = list[Binding]
Change = tuple[Unit, Rows, Rows]
"""A unit, the rows that left its result and the rows that entered it."""


class Entered(NamedTuple):
    """An accepted subscription: its number, its names of the columns, its first rows, and how they are kept true."""

    number: int
    columns: tuple[str, ...]
    rows: Sequence[Binding]
    spu_class: str


class Subscriptions:
    """The units, by shape and constants, and the subscribers, by number. Numbers grow and are never used again."""

    def __init__(self, store: QuadStore, cts: Cts, lifter: Lifter) -> None:
        self._store = store
        self._cts = cts
        self._lifter = lifter
        self._lutt: Lutt[Unit] = Lutt()
        self._spellings: dict[str, Spelling] = {}
        self._shapes: dict[Any, Shape] = {}
        self._matchers: dict[Shape, list[tuple[Term | None, Matcher]]] = {}
        self._units: dict[int, Unit] = {}
        self._touched: dict[_Seeds, None] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._units)

    # --- subscribing ---

    def subscribe(self, text: str, dataset: Dataset | None) -> Entered:
        """Raises RequestError."""
        spelling, terms = self._read(text)
        unit = self._unit(spelling, terms, dataset)
        try:
            rows = unit.rows()
        except OrderMattersError:
            self._demote(unit.shape)
            rows = unit.rows()
        number = self._next
        self._next += 1
        unit.enter(number, spelling.columns)
        self._units[number] = unit
        return Entered(number, spelling.columns, rows, unit.spu_class)

    def unsubscribe(self, number: int) -> None:
        """Raises KeyError."""
        unit = self._units.pop(number)
        if not unit.leave(number):
            self._drop(unit)

    def classes(self) -> dict[str, int]:
        """How many subscriptions there are of each class."""
        return dict(Counter(unit.spu_class for unit in self._units.values()))

    def _read(self, text: str) -> tuple[Spelling, list[Term]]:
        lifted: Lifted | None = None
        with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser says better what is wrong
            lifted = self._lifter.lift(text)
        if lifted is not None:
            known = self._spellings.pop(lifted.skeleton, None)
            if known is not None:
                self._spellings[lifted.skeleton] = known  # now the last used one
                return known, lifted.terms
        columns = subscribable(text).columns
        prologue, body = declarations_and_body(text)
        spans = constant_spans(body)
        raws = ["".join(token.text for token in body[start:end]) for start, end in spans]
        terms = [canonical(prologue, raw) for raw in raws]
        spelling = read_spelling(body, columns, lambda raw: canonical("", raw))
        if any(token.is_word("IRI", "URI") for token in body):
            if "BASE" in prologue.upper():
                spelling = replace(spelling, text=f"{prologue} {spelling.text}", prologue=prologue)
        elif lifted is not None and lifted.skeleton == skeleton_of(text, len(lifted.prologue), body, spans):
            while len(self._spellings) >= SPELLINGS_MAX:
                del self._spellings[next(iter(self._spellings))]
            self._spellings[lifted.skeleton] = spelling
        return spelling, terms

    def _unit(self, spelling: Spelling, terms: Sequence[Term], dataset: Dataset | None) -> Unit:
        lifted = spelling.lifted
        fixed = tuple(term for number, term in enumerate(terms) if number not in lifted)
        free = [term for number, term in enumerate(terms) if number in lifted]
        equal = None if len(set(free)) == len(free) else tuple(free.index(term) for term in free)
        key = (spelling.text, dataset, fixed, equal)
        shape = self._shapes.get(key)
        if shape is None:
            shape = Shape(spelling, terms, self._cts, dataset)
            self._shapes[key] = shape
            shape.key = key
            self._file(shape)
        constants = shape.constants(terms)
        unit: Unit | None = shape.units.all.get(constants)
        if unit is None:
            unit = Unit(shape, constants)
            try:
                if shape.plan is None:
                    self._re_evaluate(unit)
            except BaseException:
                if not shape.units.all:
                    self._drop_shape(shape)
                raise
            shape.units.add(constants, unit)
        return unit

    def _file(self, shape: Shape) -> None:
        """Puts the matchers and seeders of a shape into the LUTT."""
        filed: list[tuple[Term | None, Matcher]] = []
        if shape.plan is not None:
            filed += shape.plan.matchers
            for seeding in shape.plan.seedings:
                seeds = _Seeds(shape, seeding)
                for leaf, seeders in enumerate(seeding.seeders):
                    filed += [
                        (predicate, seeds.collector(leaf, seeder, self._touched)) for predicate, seeder in seeders
                    ]
        for predicate, matcher in filed:
            self._lutt.add_matcher(predicate, matcher)
        self._matchers[shape] = filed

    def _re_evaluate(self, unit: Unit) -> None:
        """Makes a unit one that the store evaluates, with its result as the store is now."""
        shape = unit.shape
        default_graphs, named_graphs = shape.dataset or (None, None)
        unit.spu = ReevaluatingSpu(
            self._store, shape.text(unit.key), shape.spelling.order, default_graphs, named_graphs
        )
        self._lutt.add(unit, shape.footprint(unit.key))

    def _drop(self, unit: Unit) -> None:
        if unit.spu is not None:
            self._lutt.remove(unit, unit.shape.footprint(unit.key))
        unit.shape.units.remove(unit.key)
        if not unit.shape.units.all:
            self._drop_shape(unit.shape)

    def _drop_shape(self, shape: Shape) -> None:
        for predicate, matcher in self._matchers.pop(shape):
            self._lutt.remove_matcher(predicate, matcher)
        shape.close()
        del self._shapes[shape.key]

    # --- following the dataset ---

    def follow(self, delta: QuadDelta) -> list[Change]:
        """Applies a delta to the CTS and to the store, and tells what it changes."""
        matchers, wildcards = self._lutt.matchers, self._lutt.wildcards
        add, remove = self._cts.add, self._cts.remove
        found: dict[Unit, tuple[Rows, Rows]] = {}
        for quad in delta.removed:
            s, p, o, g = quad
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 0)
            for matcher in wildcards:
                matcher(s, p, o, g, found, 0)
            remove(quad)
        for quad in delta.added:
            add(quad)
            s, p, o, g = quad
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 1)
            for matcher in wildcards:
                matcher(s, p, o, g, found, 1)
        if self._touched:
            self._follow_seeds(delta, found)
        self._store.apply(delta)
        changes = []
        for unit, (removed, added) in found.items():
            removed, added = _netted(removed, added)
            if removed or added:
                changes.append((unit, removed, added))
        for unit in self._lutt.touched(delta):
            assert unit.spu is not None
            change = unit.spu.follow()
            if change:
                changes.append((unit, list(change.removed), list(change.added)))
        return changes

    def _follow_seeds(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """Evaluates what the seeds tell, after the change and, with the change taken back, before it."""
        touched = list(self._touched)
        self._touched.clear()
        after = [seeds.evaluated() for seeds in touched]
        self._cts.apply(delta.invert())
        before = [seeds.evaluated() for seeds in touched]
        self._cts.apply(delta)
        doubtful: dict[Shape, None] = {}
        for seeds, old, new in zip(touched, before, after, strict=True):
            seeds.clear()
            if old is None or new is None:
                doubtful[seeds.shape] = None
                continue
            for sign, rows_of in ((0, old), (1, new)):
                for unit, rows in rows_of.items():
                    found.setdefault(unit, ([], []))[sign].extend(rows)
        for shape in doubtful:
            for unit in shape.units.all.values():
                found.pop(unit, None)
            self._demote(shape)

    def _demote(self, shape: Shape) -> None:
        """From now on the store, which has not taken a change yet, evaluates the units of a shape."""
        for predicate, matcher in self._matchers[shape]:
            self._lutt.remove_matcher(predicate, matcher)
        self._matchers[shape] = []
        shape.close()
        shape.plan = None
        for unit in shape.units.all.values():
            self._re_evaluate(unit)


class _Seeds:
    """The seeds of one branch of a plan while a commit is followed, by leaf."""

    def __init__(self, shape: Shape, seeding: Seeding) -> None:
        self.shape = shape
        self._seeding = seeding
        self._seeds: list[set[Any]] = [set() for _ in seeding.evaluators]

    def collector(self, leaf: int, seeder: Callable[..., None], touched: dict[_Seeds, None]) -> Matcher:
        seeds = self._seeds[leaf]

        def collect(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            seeder(s, p, o, g, seeds)
            if seeds:
                touched[self] = None

        return collect

    def evaluated(self) -> dict[Unit, Rows] | None:
        """The rows that agree with the seeds, by unit; None where they depend on their order."""
        rows: dict[Unit, Rows] = {}
        try:
            for seeds, evaluate in zip(self._seeds, self._seeding.evaluators, strict=True):
                if seeds:
                    evaluate(seeds, self._seeds, rows)
        except OrderMattersError:
            return None
        return rows

    def clear(self) -> None:
        for seeds in self._seeds:
            seeds.clear()


def _netted(removed: Rows, added: Rows) -> tuple[Rows, Rows]:
    """Without the rows that left as often as they entered."""
    if not removed or not added:
        return removed, added
    if len(removed) == 1 == len(added):
        return ([], []) if removed == added else (removed, added)
    gone, come = Counter(removed), Counter(added)
    return list((gone - come).elements()), list((come - gone).elements())
