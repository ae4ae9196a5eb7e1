"""Subscriptions: who has subscribed to what, and what a commit changes for each of them.

::

    quad delta ─▶ LUTT ─▶ matchers ─────────────────────────────▶ rows removed and added, by unit
                   │  └─▶ seeders ─▶ evaluators, before and after ──▶┤
                   └────▶ re-evaluated SPUs, behind the store ───────┘
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from traceback import format_exception
from typing import Any, NamedTuple, TypeVar

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import BindingDelta, QuadDelta
from lamplighter.engine.errors import LimitExceededError, RequestError, bare, is_fault
from lamplighter.engine.matching.aggregates import Accumulator, OrderMattersError
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.lutt import Lutt, Matcher
from lamplighter.engine.matching.plan import Counting, Seeding
from lamplighter.engine.matching.shapes import Shape, Spelling, Unit, graphs_read, read_spelling
from lamplighter.engine.matching.spu import ReevaluatingSpu
from lamplighter.engine.slices import LONG, Slices, sliced
from lamplighter.engine.sparql.clock_function import without_clock
from lamplighter.engine.sparql.grammar import constant_spans
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.sparql.limits import CONSTANTS_MAX
from lamplighter.engine.sparql.requests import canonical, declarations_and_body, subscribable
from lamplighter.engine.sparql.skeletons import Lifted, Lifter, skeleton_of
from lamplighter.engine.sparql.text_cache import Remembered
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Binding, Term
from lamplighter.engine.work import TooMuchWork, Work

SPELLINGS_MAX = 1024
"""Skeletons of queries that are remembered, the last used ones."""
SPELLINGS_CHARACTERS_MAX = 256 * 1024
"""Of these, all together; what is known of a skeleton takes some sixty bytes for each."""

FAULTS_MAX = 8
FAULT_CHARACTERS_MAX = 4000
"""Of each that is noted, from its end."""

_EXPECTED = (OrderMattersError, TooMuchWork)
"""What keeps a plan from telling the rows although nothing is wrong; the store can tell."""

T = TypeVar("T")
Rows = list[Binding]
Change = tuple[Unit, Rows, Rows]
"""A unit, the rows that left its result and the rows that entered it."""


class Timings:
    """The paper's timing components of one update, in seconds (Roffia 2016, V.B). clock: monotonic, in seconds.

    t_update: the delta and its way into CTS and store; t_lutt: finding who is touched; t_booster: computing
    what changes for them; t_notify: making the notifications.
    """

    __slots__ = ("clock", "t_booster", "t_lutt", "t_notify", "t_update")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.t_update = self.t_lutt = self.t_booster = self.t_notify = 0.0


class Entered(NamedTuple):
    """An accepted subscription: its number, its names of the columns, its first rows, and how they are kept true."""

    number: int
    columns: tuple[str, ...]
    rows: Sequence[Binding]
    spu_class: str


class _Counts:
    """The groups of one branch of a plan, for each unit: how many solutions each has, and its aggregates."""

    def __init__(self, shape: Shape, counting: Counting) -> None:
        self.shape = shape
        self._counting = counting
        self._groups: dict[Unit, dict[Any, tuple[list[int], list[Accumulator]]]] = {}
        self._pairs: dict[Unit, tuple[list[Any], list[Any]]] = {}

    def collector(self, matcher: Callable[..., None], touched: dict[_Counts, None]) -> Matcher:
        pairs = self._pairs

        def collect(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            try:
                matcher(s, p, o, g, pairs, sign)
            finally:
                if pairs:
                    touched[self] = None

        return collect

    def enter(self, unit: Unit) -> None:
        pairs: list[Any] = []
        for first in self._counting.first:
            first(unit.key, pairs)
        groups = self._groups[unit] = {}
        if self._counting.everything:
            groups[()] = self._new()
        self._add(groups, pairs, 1)

    def leave(self, unit: Unit) -> None:
        self._groups.pop(unit, None)

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

    def rows(self, unit: Unit, groups: Iterable[Any] | None = None) -> Rows:
        """The rows of some groups of a unit, of all if none are named. Raises OrderMattersError."""
        known = self._groups[unit]
        rows: Rows = []
        for group in known if groups is None else groups:
            found = known.get(group)
            if found is not None:
                (size,), accumulators = found
                values = [accumulator.result(size) for accumulator in accumulators]
                self._counting.rows(unit.key, group, values, rows)
        return rows

    def follow(self, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """What the telescoped rows of a commit change. Raises OrderMattersError, and then the groups are of no use."""
        for unit, (removed, added) in self._pairs.items():
            groups = self._groups[unit]
            touched = dict.fromkeys(group for group, _ in (*removed, *added))
            before = self.rows(unit, touched)
            self._add(groups, added, 1)
            self._add(groups, removed, -1)
            for group in touched:
                if not groups[group][0][0] and not self._counting.everything:
                    del groups[group]
            rows = found.setdefault(unit, ([], []))
            rows[0].extend(before)
            rows[1].extend(self.rows(unit, touched))

    def take_back(self) -> None:
        """Counts the groups of the touched units again, in the index as it is now."""
        for unit in self._pairs:
            self.enter(unit)

    def clear(self) -> None:
        self._pairs.clear()


class _Numbered:
    """Units by number, in little more room than the references need. Numbers grow and are never used again."""

    CHUNK = 256

    def __init__(self) -> None:
        self._chunks: dict[int, list[Unit | None]] = {}
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        chunk = self._chunks.get(number // self.CHUNK, [])
        place = number % self.CHUNK
        return place < len(chunk) and chunk[place] is not None

    def __getitem__(self, number: int) -> Unit:
        if number not in self:
            raise KeyError(number)
        unit = self._chunks[number // self.CHUNK][number % self.CHUNK]
        assert unit is not None
        return unit

    def add(self, unit: Unit) -> int:
        number = self._next
        self._next += 1
        self._count += 1
        self._chunks.setdefault(number // self.CHUNK, []).append(unit)
        return number

    def pop(self, number: int) -> Unit:
        unit = self[number]
        self._count -= 1
        chunk = self._chunks[number // self.CHUNK]
        chunk[number % self.CHUNK] = None
        if len(chunk) == self.CHUNK and not any(chunk):
            del self._chunks[number // self.CHUNK]
        return unit


class Subscriptions:
    """The units, by shape and constants, and the subscribers, by number.

    now: the clock function's time. work: what an evaluation by a plan may cost. ends: whether subscriptions end whose
    plan cannot follow a commit within that; else the store evaluates them from then on, which nothing can stop.
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
        self._ends = ends
        self._slices = slices
        self._store = store
        self._cts = cts
        self._lifter = lifter
        self._lutt: Lutt[Unit] = Lutt()
        self._spellings = Remembered[str, Spelling](SPELLINGS_MAX, SPELLINGS_CHARACTERS_MAX)
        self._shapes: dict[Any, Shape] = {}
        self._matchers: dict[Shape, list[tuple[Term | None, Matcher]]] = {}
        self._units = _Numbered()
        self._touched: dict[_Seeds, None] = {}
        self._counts: dict[Shape, list[_Counts]] = {}
        self._touched_counts: dict[_Counts, None] = {}
        self._doubtful: dict[Shape, BaseException] = {}
        self.ended: dict[Unit, BaseException] = {}
        """Units whose result cannot be told any more, and why; whoever unsubscribes them takes them out."""
        self._timed = 0
        self.faults: deque[str] = deque(maxlen=FAULTS_MAX)
        """What failed of late and was made good, with its traceback, for whoever owns the engine to log."""

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, number: int) -> bool:
        return number in self._units

    # --- subscribing ---

    def evaluation(self, text: str, dataset: Dataset | None) -> str | None:
        """The query that the store would evaluate for a subscriber, None where a plan serves. Raises RequestError."""
        if len(text) > LONG:
            self._slices.begin(len(text))
        spelling, terms = self._read(text)
        dataset = _needed(dataset, spelling, terms)
        key = self._key(spelling, terms, dataset)
        shape = self._shapes.get(key)
        if shape is None:
            shape = Shape(spelling, terms, Cts(lambda predicate: ()), dataset, self._work)
        return None if shape.plan is not None else shape.text(shape.constants(terms))

    def subscribe(self, text: str, dataset: Dataset | None) -> Entered:
        """Raises RequestError."""
        if max(len(self._store), len(text)) > LONG:
            self._slices.begin(max(len(self._store), len(text)))
        spelling, terms = self._read(text)
        self._work.begin()
        unit = self._unit(spelling, terms, _needed(dataset, spelling, terms))
        try:
            try:
                rows = unit.rows()
            except OrderMattersError as reason:
                self._demote(unit.shape, reason)
                rows = unit.rows()
            if spelling.clocks:
                rows = unit.timed(rows, self._now())
        except BaseException as error:
            if unit.number is None:  # nobody would be told, and each commit would find rows for it
                self._drop(unit)
            if isinstance(error, TooMuchWork):
                raise _too_costly(error) from error
            raise
        number = self._units.add(unit)
        unit.enter(number, spelling.columns)
        unit.shape.subscribers += 1
        return Entered(number, spelling.columns, rows, unit.spu_class)

    def unsubscribe(self, number: int) -> None:
        """Raises KeyError."""
        unit = self._units.pop(number)
        unit.shape.subscribers -= 1
        if not unit.leave(number):
            self._drop(unit)

    def unit(self, number: int) -> Unit:
        """Raises KeyError."""
        return self._units[number]

    @property
    def unit_count(self) -> int:
        return sum(len(shape.units.all) for shape in self._shapes.values())

    def classes(self) -> dict[str, int]:
        """How many subscriptions there are of each class."""
        found: Counter[str] = Counter()
        for shape in self._shapes.values():
            found[shape.spu_class] += shape.subscribers
        return dict(found)

    def _read(self, text: str) -> tuple[Spelling, list[Term]]:
        """Beside the loop if the text is long."""
        with self._slices.beside() if len(text) > LONG else nullcontext():
            return self._analysed(text)

    def _analysed(self, text: str) -> tuple[Spelling, list[Term]]:
        """Raises RequestError."""
        lifted: Lifted | None = None
        with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser says better what is wrong
            lifted = self._lifter.lift(text)
        if lifted is not None:
            known = self._spellings.get(lifted.skeleton)
            if known is not None:
                return known, lifted.terms
        columns = subscribable(text).columns
        prologue, body = declarations_and_body(text)
        if len(constant_spans(body)) > CONSTANTS_MAX:
            raise LimitExceededError(
                f"a subscription has {CONSTANTS_MAX} constants at most; send long lists of values with an update, and "
                "join with them"
            )
        if "clock" in text:
            body, clocks = without_clock(text, prologue, body, columns)
            if clocks:
                rest = [column for index, column in enumerate(columns) if index not in clocks]
                terms = [canonical(prologue, raw) for raw in _raws(body)]
                spelling = read_spelling(body, rest, lambda raw: canonical("", raw))
                text = f"{spelling.text} with the time in {sorted(clocks)}"
                return replace(spelling, text=text, columns=columns, clocks=tuple(sorted(clocks))), terms
        spans = constant_spans(body)
        terms = [canonical(prologue, raw) for raw in _raws(body)]
        spelling = read_spelling(body, columns, lambda raw: canonical("", raw))
        if any(token.is_word("IRI", "URI") for token in body):
            if "BASE" in prologue.upper():
                spelling = replace(spelling, text=f"{prologue} {spelling.text}", prologue=prologue)
        elif lifted is not None and lifted.skeleton == skeleton_of(text, len(lifted.prologue), body, spans):
            self._spellings.put(lifted.skeleton, spelling, len(lifted.skeleton))
        return spelling, terms

    @staticmethod
    def _key(spelling: Spelling, terms: Sequence[Term], dataset: Dataset | None) -> Any:
        """What queries of one shape have in common: all but the lifted constants, and which of these are equal."""
        lifted = spelling.lifted
        fixed = tuple([term for number, term in enumerate(terms) if number not in lifted])
        free = [term for number, term in enumerate(terms) if number in lifted]
        equal = None if len(set(free)) == len(free) else tuple([free.index(term) for term in free])
        return spelling.text, dataset, fixed, equal

    def _unit(self, spelling: Spelling, terms: Sequence[Term], dataset: Dataset | None) -> Unit:
        key = self._key(spelling, terms, dataset)
        shape = self._shapes.get(key)
        if shape is None:
            shape = Shape(spelling, terms, self._cts, dataset, self._work)
            self._shapes[key] = shape
            shape.key = key
            try:
                self._file(shape)
            except BaseException:
                self._drop_shape(shape)
                raise
        constants = shape.constants(terms)
        unit: Unit | None = shape.units.all.get(constants)
        if unit is None:
            unit = Unit(shape, constants)
            try:
                if shape.plan is None:
                    self._re_evaluate(unit)
                for counts in self._counts.get(shape, ()):
                    counts.enter(unit)
            except BaseException as error:
                for counts in self._counts.get(shape, ()):
                    counts.leave(unit)
                if not shape.units.all:
                    self._drop_shape(shape)
                if isinstance(error, TooMuchWork):
                    raise _too_costly(error) from error
                raise
            shape.units.add(constants, unit)
            if spelling.clocks:
                self._timed += 1
        return unit

    def _file(self, shape: Shape) -> None:
        """Puts the matchers and seeders of a shape into the LUTT."""
        filed = self._matchers[shape] = []
        if shape.plan is not None:
            for predicate, matcher in shape.plan.matchers:
                filed.append((predicate, self._watched(shape, matcher, matcher)))
            for seeding in shape.plan.seedings:
                seeds = _Seeds(shape, seeding)
                for leaf, seeders in enumerate(seeding.seeders):
                    for predicate, seeder in seeders:
                        collector = seeds.collector(leaf, seeder, self._touched)
                        filed.append((predicate, self._watched(shape, collector, seeder)))
            for counting in shape.plan.countings:
                counts = _Counts(shape, counting)
                self._counts.setdefault(shape, []).append(counts)
                for predicate, matcher in counting.matchers:
                    collector = counts.collector(matcher, self._touched_counts)
                    filed.append((predicate, self._watched(shape, collector, matcher)))
        for predicate, matcher in filed:
            self._lutt.add_matcher(predicate, matcher)

    def _watched(self, shape: Shape, matcher: Matcher, compiled: Any) -> Matcher:
        """A matcher that could look at too many quads gives up, and leaves its shape to the store.

        Whatever else it raises means the same: the commit stands, and the other subscriptions are told of it.
        """
        if not compiled.may_exceed:
            return matcher
        doubtful = self._doubtful

        def match(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            if doubtful and shape in doubtful:
                return  # the store evaluates all of it anyway, and the next quad would cost as much
            try:
                matcher(s, p, o, g, found, sign)
            except BaseException as reason:
                self._give_up(shape, reason)

        return match

    def _re_evaluate(self, unit: Unit) -> None:
        """Makes a unit one that the store evaluates, with its result as the store is now."""
        shape = unit.shape
        spu = ReevaluatingSpu(self._store, shape.text(unit.key), shape.spelling.order, shape.dataset)
        self._lutt.add(unit, shape.footprint(unit.key))
        unit.spu = spu

    def _drop(self, unit: Unit) -> None:
        if unit.spu is not None:
            self._lutt.remove(unit, unit.shape.footprint(unit.key))
        self._timed -= unit.times is not None
        for counts in self._counts.get(unit.shape, ()):
            counts.leave(unit)
        unit.shape.units.remove(unit.key)
        if not unit.shape.units.all:
            self._drop_shape(unit.shape)

    def _drop_shape(self, shape: Shape) -> None:
        for predicate, matcher in self._matchers.pop(shape, ()):
            self._lutt.remove_matcher(predicate, matcher)
        self._counts.pop(shape, None)
        shape.close()
        del self._shapes[shape.key]

    # --- following the dataset ---

    def follow(self, delta: QuadDelta, timings: Timings | None = None) -> list[Change]:
        """Applies a delta to the CTS and to the store, and tells what it changes. timings: to be added to.

        A failure on the way, whatever it is, is taken back and followed once more; what a plan cannot tell the store
        does. What the store cannot tell either has `ended`. Whatever this raises all the same leaves index, store and
        units as nobody knows.
        """
        changed = len(delta.removed) + len(delta.added)
        self._work.begin(changed)
        found: dict[Unit, tuple[Rows, Rows]] = {}
        changes: list[Change] = []
        try:
            if timings is not None:
                self._match_timed(delta, found, timings)
            elif changed > LONG:
                for some in sliced(delta.removed, self._slices):
                    self._match(QuadDelta(removed=tuple(some)), found)
                for some in sliced(delta.added, self._slices):
                    self._match(QuadDelta(added=tuple(some)), found)
            else:
                self._match(delta, found)
            if found or self._touched or self._touched_counts or self._doubtful:
                changes = self._changes(delta, found, timings)
            touched = self._touched_units(delta, timings) if self._lutt.owners else ()
        except BaseException as error:
            self.note(error)
            self._take_back(delta)
            self._work.begin(changed)
            found = {}
            self._match_one_by_one(delta, found)
            changes = self._changes(delta, found, None)
            touched = self._touched_units(delta, None)
        # The store had no part in this so far. From here on there is no way back, and what fails is asked again.
        if self._touched or self._touched_counts:
            self.again(self._forget_touched)
        started = 0.0 if timings is None else timings.clock()
        self._store.apply(delta)
        if timings is not None:
            timings.t_update += timings.clock() - started
            started = timings.clock()
        for unit in touched:
            change = self._evaluated(unit)
            if change:
                changes.append((unit, list(change.removed), list(change.added)))
        if timings is not None:
            timings.t_booster += timings.clock() - started
        if self._timed:
            changes = [self._with_times(change) if change[0].times is not None else change for change in changes]
        if self.ended:
            changes = [change for change in changes if change[0] not in self.ended]
        return changes

    def _changes(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]], timings: Timings | None) -> list[Change]:
        """What the plans tell of a delta that was matched."""
        started = 0.0 if timings is None else timings.clock()
        if self._touched:
            self._follow_seeds(delta, found)
        if self._touched_counts:
            self._follow_counts(found)
        if self._doubtful:
            self._follow_doubtful(found)
        changes = []
        for unit, (removed, added) in found.items():
            if len(removed) + len(added) > LONG:
                with self._slices.beside():
                    removed, added = _netted(removed, added)
            else:
                removed, added = _netted(removed, added)
            if removed or added:
                changes.append((unit, removed, added))
        if timings is not None:
            timings.t_booster += timings.clock() - started
        return changes

    def _touched_units(self, delta: QuadDelta, timings: Timings | None) -> Sequence[Unit]:
        """The units that the store has to tell of."""
        started = 0.0 if timings is None else timings.clock()
        touched = self._lutt.touched(delta, self._slices)
        if timings is not None:
            timings.t_lutt += timings.clock() - started
        return touched

    def _take_back(self, delta: QuadDelta) -> None:
        """Makes the CTS and the counts what they were before a delta, however much of it they have taken."""
        self._cts.apply(delta.invert())
        for counts in self._touched_counts:
            if counts.shape.plan is None or counts.shape in self._doubtful:
                continue
            try:
                counts.take_back()
            except BaseException as error:
                self._give_up(counts.shape, error)
        self._forget_touched()

    def _forget_touched(self) -> None:
        for touched in (self._touched, self._touched_counts):
            for one in touched:
                one.clear()
            touched.clear()

    def again(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does what changes nothing unless it succeeds, and if it fails once more."""
        try:
            return work(*arguments)
        except TooMuchWork:
            raise
        except BaseException as error:
            self.note(error)
            return work(*arguments)

    def note(self, error: BaseException) -> None:
        """Notes a fault. Raises it again if it is none."""
        if not is_fault(error):
            raise error
        try:
            self.faults.append("".join(format_exception(error))[-FAULT_CHARACTERS_MAX:])
        except Exception:  # no memory for that
            self.faults.append(type(error).__name__)
        bare(error)

    def _give_up(self, shape: Shape, reason: BaseException) -> None:
        """Leaves a shape to the store, from this commit on."""
        self._doubtful[shape] = bare(reason) if isinstance(reason, _EXPECTED) else reason
        if not isinstance(reason, _EXPECTED):
            self.note(reason)

    def _evaluated(self, unit: Unit) -> BindingDelta | None:
        """What the commit that the store has taken changes for a unit; None for one that ends."""
        assert unit.spu is not None
        try:
            return self.again(unit.spu.follow)
        except BaseException as error:
            self._end(unit, error)
            return None

    def _end(self, unit: Unit, error: BaseException) -> None:
        """Ends a unit that the store cannot evaluate; what was true before is not known to be true now."""
        if not isinstance(error, _EXPECTED):
            self.note(error)
        self.ended[unit] = bare(error)

    def re_evaluated(self, delta: QuadDelta) -> list[str]:
        """The queries that the store would evaluate to follow a delta."""
        if not self._lutt.owners:
            return []
        return [unit.shape.text(unit.key) for unit in self._lutt.touched(delta)]

    def _with_times(self, change: Change) -> Change:
        unit, removed, added = change
        return unit, *self.again(unit.timed_change, removed, added, self._now())

    def _match(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """The telescoping rule: each quad is matched while it is in the CTS, and the CTS goes along."""
        matchers, wildcards = self._lutt.matchers, self._lutt.wildcards
        add, remove = self._cts.add, self._cts.remove
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

    def _match_timed(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]], timings: Timings) -> None:
        """As `_match`, with a look at the clock between its parts."""
        clock = timings.clock
        for sign, quads in ((0, delta.removed), (1, delta.added)):
            for quad in quads:
                t0 = clock()
                if sign:
                    self._cts.add(quad)
                t1 = clock()
                s, p, o, g = quad
                matchers = [*self._lutt.matchers.get(p, ()), *self._lutt.wildcards]
                t2 = clock()
                for matcher in matchers:
                    matcher(s, p, o, g, found, sign)
                t3 = clock()
                if not sign:
                    self._cts.remove(quad)
                timings.t_update += t1 - t0 + clock() - t3
                timings.t_lutt += t2 - t1
                timings.t_booster += t3 - t2

    def _match_one_by_one(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """As `_match`, but a matcher that fails leaves its shape to the store."""
        shapes = {id(matcher): shape for shape, filed in self._matchers.items() for _, matcher in filed}
        for sign, quads in ((0, delta.removed), (1, delta.added)):
            for quad in quads:
                if sign:
                    self._cts.add(quad)
                for matcher in [*self._lutt.matchers.get(quad[1], ()), *self._lutt.wildcards]:
                    try:
                        matcher(*quad, found, sign)
                    except BaseException as error:
                        self._give_up(shapes[id(matcher)], error)
                if not sign:
                    self._cts.remove(quad)

    def _follow_seeds(self, delta: QuadDelta, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """Evaluates what the seeds tell, after the change and, with the change taken back, before it."""
        touched = [seeds for seeds in self._touched if seeds.shape not in self._doubtful]
        after = [self._rows_of(seeds) for seeds in touched]
        self._cts.apply(delta.invert())
        before = [self._rows_of(seeds) for seeds in touched]
        self._cts.apply(delta)
        for sign, results in ((0, before), (1, after)):
            for rows_of in results:
                for unit, rows in rows_of.items():
                    found.setdefault(unit, ([], []))[sign].extend(rows)

    def _rows_of(self, seeds: _Seeds) -> dict[Unit, Rows]:
        """The rows that agree with the seeds, by unit; none where the plan cannot tell."""
        if seeds.shape not in self._doubtful:
            try:
                return seeds.evaluated()
            except BaseException as reason:
                self._give_up(seeds.shape, reason)
        return {}

    def _follow_counts(self, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        for counts in self._touched_counts:
            if counts.shape not in self._doubtful:
                try:
                    counts.follow(found)
                except BaseException as reason:
                    self._give_up(counts.shape, reason)
                self._slices.pause()

    def _follow_doubtful(self, found: dict[Unit, tuple[Rows, Rows]]) -> None:
        """What plans could not tell, the store will, which has not taken the change yet, unless it costs too much."""
        for shape, reason in list(self._doubtful.items()):
            too_much = self._too_much(shape, reason) if self._ends else None
            for unit in shape.units.all.values():
                found.pop(unit, None)
                if too_much is not None:
                    self.ended[unit] = too_much
                elif unit.spu is None and unit not in self.ended:
                    try:
                        self.again(self._re_evaluate, unit)
                    except BaseException as error:
                        self._end(unit, error)
            self._close_plan(shape, reason)
            del self._doubtful[shape]

    def _too_much(self, shape: Shape, reason: BaseException) -> TooMuchWork | None:
        """Why the store must not evaluate a shape's units, which takes it about as long as their plan."""
        if isinstance(reason, TooMuchWork):
            return reason
        assert shape.plan is not None
        for unit in shape.units.all.values():
            try:
                shape.plan.first(unit.key)
            except TooMuchWork as too_much:
                return bare(too_much)
            except Exception:  # why the plan cannot tell is known; it was not its cost
                continue
        return None

    def _demote(self, shape: Shape, reason: Exception) -> None:
        """From now on the store evaluates the units of a shape. Raises StoreError; then its plan goes on."""
        units = list(shape.units.all.values())
        try:
            for unit in units:
                self._re_evaluate(unit)
        except BaseException:
            for unit in units:
                if unit.spu is not None:
                    self._lutt.remove(unit, shape.footprint(unit.key))
                    unit.spu = None
            raise
        self._close_plan(shape, reason)

    def _close_plan(self, shape: Shape, reason: BaseException) -> None:
        shape.reason = str(reason) or repr(reason)
        for predicate, matcher in self._matchers[shape]:
            self._lutt.remove_matcher(predicate, matcher)
        self._matchers[shape] = []
        self._counts.pop(shape, None)
        shape.close()
        shape.plan = None


class _Seeds:
    """The seeds of one branch of a plan while a commit is followed, by leaf."""

    def __init__(self, shape: Shape, seeding: Seeding) -> None:
        self.shape = shape
        self._seeding = seeding
        self._seeds: list[set[Any]] = [set() for _ in seeding.evaluators]

    def collector(self, leaf: int, seeder: Callable[..., None], touched: dict[_Seeds, None]) -> Matcher:
        seeds = self._seeds[leaf]

        def collect(s: Term, p: Term, o: Term, g: Term | None, found: Any, sign: int) -> None:
            try:
                seeder(s, p, o, g, seeds)
            finally:
                if seeds:
                    touched[self] = None

        return collect

    def evaluated(self) -> dict[Unit, Rows]:
        """The rows that agree with the seeds, by unit. Raises what the plan raises."""
        rows: dict[Unit, Rows] = {}
        for seeds, evaluate in zip(self._seeds, self._seeding.evaluators, strict=True):
            if seeds:
                evaluate(seeds, self._seeds, rows)
        return rows

    def clear(self) -> None:
        for seeds in self._seeds:
            seeds.clear()


def _needed(dataset: Dataset | None, spelling: Spelling, terms: Sequence[Term]) -> Dataset | None:
    """The dataset without what makes no difference to the query, so that who sees less shares where it asks for less.

    Most clients ask for graphs by name, or for the default graph, and may see those: then it is no matter what else
    they may see, and a plan serves.
    """
    if dataset is None or dataset.visible.every:
        return dataset
    default, named, visible = dataset
    if default is not None and named is not None:
        return Dataset(default, named)
    read = None if spelling.select is None else graphs_read(spelling.select.node, terms)
    if read is None or named is not None:
        return dataset
    if default is not None:
        return Dataset(default) if read <= {None} else dataset
    return None if all(graph in visible for graph in read) else dataset


def _too_costly(reason: TooMuchWork) -> LimitExceededError:
    return LimitExceededError(f"the first result of the subscription needs {reason}")


def _raws(body: Sequence[Token]) -> list[str]:
    """The constants as they are written."""
    return ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]


def _netted(removed: Rows, added: Rows) -> tuple[Rows, Rows]:
    """Without the rows that left as often as they entered."""
    if not removed or not added:
        return removed, added
    if len(removed) == 1 == len(added):
        return ([], []) if removed == added else (removed, added)
    gone, come = Counter(removed), Counter(added)
    return list((gone - come).elements()), list((come - gone).elements())
