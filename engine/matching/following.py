"""Following a commit: quad delta -> the rows that leave and enter each unit's result.

::

    quad delta ─▶ LUTT ─▶ matchers ─────────────────────────────▶ rows removed and added, by unit
                   │  └─▶ seeders ─▶ evaluators, before and after ──▶┤
                   └────▶ re-evaluated SPUs, after the store ────────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from lamplighter.engine.delta import BindingDelta, QuadDelta
from lamplighter.engine.errors import bare
from lamplighter.engine.matching.clock_index import ClockDelta
from lamplighter.engine.matching.collectors import EXPECTED, Rows, SeedCollector
from lamplighter.engine.matching.lutt import ByPredicate, Matcher
from lamplighter.engine.matching.registry import ShapeRegistry
from lamplighter.engine.matching.shapes import Shape, SharedQuery
from lamplighter.engine.slices import LONG, SLICE, Slices, sliced
from lamplighter.engine.terms import Binding, Quad, Term
from lamplighter.engine.work import TooMuchWork

# A unit, the rows that left its result and the rows that entered it.
Change = tuple[SharedQuery, Rows, Rows]

# Calls of a matcher with a quad above which a commit counts as long. One takes 0.2 to 1 us.
LONG_MATCHINGS = 20_000
# Calls between two pauses.
SLICE_MATCHINGS = LONG_MATCHINGS * SLICE // LONG

_NOTHING = QuadDelta()

# The rows removed and added so far, by unit; equal rows may still stand in both lists.
Found = dict[SharedQuery, tuple[Rows, Rows]]


class CommitCost(NamedTuple):
    """What following a delta costs.

    quads: how many change. matchings: calls of matchers, at most. long: whether these take long, or the next commits do
    because a recent one did. re_evaluated: the queries that the store would evaluate; not listed for a long one.
    """

    quads: int
    matchings: int
    long: bool
    re_evaluated: Sequence[str]


class Follower:
    """Applies deltas to the CTS and to the store, and computes what they change for each unit.

    now: the clock function's time. ends: whether a unit ends if its plan cannot follow a commit within the work limit;
    otherwise, and if its rows are ordered and cut, the store evaluates it from then on, without a limit of the engine.
    in_order: the order in which the store evaluates the units of a commit. ended: units whose result is not known any
    more, with the reason. The caller unsubscribes and removes them.

    It is one class because matching a commit, taking it back and repeating it share the state of the commit.
    """

    def __init__(self, shapes: ShapeRegistry, now: Callable[[], int], slices: Slices, *, ends: bool) -> None:
        # Attributes of its own: each commit uses them.
        self._cts, self._work, self._clock_index = shapes.context
        self._prices = shapes.prices
        self._store = shapes.store
        self._lutt = shapes.lutt
        self._matchers, self._wildcards = shapes.lutt.matchers, shapes.lutt.wildcards
        self._takeovers = shapes.takeovers
        self._shapes = shapes
        self._state = shapes.state
        self._now = now
        self._slices = slices
        self._ends = ends
        self.in_order: Callable[[Sequence[SharedQuery]], Iterable[SharedQuery]] = iter
        self.ended: dict[SharedQuery, BaseException] = {}

    def cost(self, delta: QuadDelta) -> CommitCost:
        """What following a delta would cost. Nothing is changed."""
        quads = len(delta.removed) + len(delta.added)
        matchings = quads * self._lutt.filed
        if matchings > LONG_MATCHINGS and quads <= LONG:
            matchings = self._lutt.matchings(delta)
        work = self._work
        long = quads > LONG or matchings > LONG_MATCHINGS or work.turn < work.heavy_until
        texts: Sequence[str] = ()
        if self._lutt.owners and not long:
            texts = [unit.shape.name(unit.key) for unit in self._lutt.lookup(delta)]
        return CommitCost(quads, matchings, long, texts)

    def advance(self, now: int) -> list[Change]:
        """Lets the instant become now, which may be earlier, and returns the changed units with their rows."""
        return self.follow(_NOTHING, self._clock_index.advance(now))

    def follow(self, delta: QuadDelta, passed: ClockDelta | None = None) -> list[Change]:
        """Applies a delta, and returns the changed units with their rows.

        passed: what a step of the clock changes, beside an empty delta.

        After a fault in the matching the CTS is restored and the delta is matched again, with each matcher guarded: a
        plan that fails then hands its shape over to the store. A unit that the store cannot evaluate either is put into
        `ended`. Any error that this method raises leaves index, store and units in an unknown state.
        """
        state, clock_index, prices, clock_delta = self._state, self._clock_index, self._prices, passed
        changed = len(delta.removed) + len(delta.added)
        due = self._takeovers.pending(delta) if self._takeovers.waiting else ()
        self._work.begin(changed if passed is None else len(passed.removed) + len(passed.added))
        found: Found = {}
        changes: list[Change] = []
        try:
            matchers: ByPredicate = self._matchers
            wildcards: Sequence[Matcher] = self._wildcards
            # One commit of many is measured with each matcher timed, since a clock call for each quad would double the
            # time.
            prices.left -= 1
            if not prices.left:
                prices.begin()
                matchers, wildcards = prices.time_matchers(self._shapes.shapes, matchers, wildcards)
            if changed > LONG or changed * self._lutt.filed > LONG_MATCHINGS:
                self._match_in_slices(delta, found, matchers, wildcards)
            else:
                self._match(delta, found, matchers, wildcards)
            # After the quads: which comparisons are due follows from operands that they changed.
            if clock_index.touched or passed is not None:
                clock_delta = passed or clock_index.changes(state.lose_time)
                clock_delta.match(found, matchers, self._slices)
            if found or state.seeds or state.groups or state.doubtful:
                changes = self._changes(delta, found, clock_delta)
            # Last, while a failure can still be taken back.
            touched = self._touched_units(delta, clock_delta) if self._lutt.owners else ()
        except BaseException as error:
            state.note(error)
            prices.drop()
            # Backwards: the quads of the clock came after those of the delta.
            if clock_delta is not None:
                clock_delta.take_back()
            self._take_back(delta)
            self._work.begin(changed)
            found = {}
            # Now each failure makes its own shape doubtful, so the second run ends.
            matchers, wildcards = self._guarded_matchers()
            self._match(delta, found, matchers, wildcards)
            clock_delta = passed or clock_index.changes(state.lose_time)
            clock_delta.match(found, matchers, self._slices)
            changes = self._changes(delta, found, clock_delta)
            touched = self._touched_units(delta, clock_delta)
        # The store is unchanged up to here. From here on nothing is taken back, only repeated.
        if prices.measuring:
            prices.settle()
        if state.seeds or state.groups:
            state.again(state.clear_collectors)
        if state.windows:
            state.again(state.settle_windows)
        # The store takes the delta last: doubtful shapes have got their first result from it as it was.
        self._store.apply(delta)
        if clock_delta is not None:
            clock_index.accept(clock_delta)
            clock_index.touched.clear()
        if changes or touched or due or self.ended:
            return self._told_changes(changes, touched, due)
        return changes

    def _told_changes(
        self, changes: list[Change], touched: Sequence[SharedQuery], due: Sequence[Shape]
    ) -> list[Change]:
        """The changes as subscribers are told of them. touched: units that the store evaluates, unless
        they have a plan again. due: shapes for which that is tried."""
        for shape in due:
            changes += self._resume_shape(shape)
        for unit in self.in_order(touched) if touched else ():
            change = self._re_evaluate(unit) if unit.spu is not None else None
            if change:
                changes.append((unit, list(change.removed), list(change.added)))
        if self._shapes.constructed:
            changes = self._construct(changes)
        if self._shapes.timed:
            changes = [self._with_times(change) if change[0].times is not None else change for change in changes]
        if self.ended:
            changes = [change for change in changes if change[0] not in self.ended]
        return changes

    def _touched_units(self, delta: QuadDelta, clock_delta: ClockDelta | None) -> Sequence[SharedQuery]:
        """The re-evaluated units whose result a delta or the clock can change."""
        found = dict.fromkeys(self._lutt.lookup(delta, self._slices))
        for condition in clock_delta.conditions() if clock_delta is not None else ():
            found.update((unit, None) for unit in condition.shape.units.all.values() if unit.spu is not None)
        return list(found)

    # --- matching ---

    def _match(self, delta: QuadDelta, found: Found, matchers: ByPredicate, wildcards: Sequence[Matcher]) -> None:
        """Matches each quad while it is in the CTS, and keeps the CTS in step: the telescoping rule.

        matchers, wildcards: as in `Lutt`.
        """
        # The two loops are written out because an update spends its time in them.
        add, remove = self._cts.add, self._cts.remove
        for quad in delta.removed:
            s, p, o, g = quad
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 0)
            for matcher in wildcards:
                matcher(s, p, o, g, found, 0)
            # Behind its matchers: a row that leaves needs the quad to be found.
            remove(quad)
        for quad in delta.added:
            # Before its matchers, for the same reason. So each changed row is found exactly once, at the first of its
            # quads to leave or the last to come.
            add(quad)
            s, p, o, g = quad
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 1)
            for matcher in wildcards:
                matcher(s, p, o, g, found, 1)

    def _match_in_slices(
        self, delta: QuadDelta, found: Found, matchers: ByPredicate, wildcards: Sequence[Matcher]
    ) -> None:
        """The same for a large delta, or one that many matchers are called with."""
        followed = QuadDelta(removed=self._followed_quads(delta.removed), added=self._followed_quads(delta.added))
        changed, matchings = len(followed.removed) + len(followed.added), self._lutt.matchings(followed, self._slices)
        # A pause must come after so many matchings, not after so many quads.
        size = min(SLICE, max(1, changed * SLICE_MATCHINGS // max(1, matchings)))
        for some in sliced(followed.removed, self._slices, size):
            self._match(QuadDelta(removed=tuple(some)), found, matchers, wildcards)
        for some in sliced(followed.added, self._slices, size):
            self._match(QuadDelta(added=tuple(some)), found, matchers, wildcards)

    def _followed_quads(self, quads: Sequence[Quad]) -> tuple[Quad, ...]:
        """The quads that a matcher or the CTS takes; of a large delta often few."""
        if self._wildcards or self._cts.has_everything or self._cts.filling:
            return tuple(quads)
        matchers, tables = self._matchers, self._cts.tables
        return tuple(
            quad for some in sliced(quads, self._slices) for quad in some if quad[1] in tables or quad[1] in matchers
        )

    def _guarded_matchers(self) -> tuple[dict[Term, list[Matcher]], list[Matcher]]:
        """The LUTT's matchers and wildcards, all guarded."""
        matchers: dict[Term, list[Matcher]] = {}
        wildcards: list[Matcher] = []
        for shape, filed in self._shapes.filed.items():
            for predicate, matcher in filed:
                guarded = self._state.guard(shape, matcher)
                (wildcards if predicate is None else matchers.setdefault(predicate, [])).append(guarded)
        for shape, filed in self._shapes.sources.items():
            for predicate, matcher in filed:
                guarded = self._state.guarded_source(shape, matcher)
                (wildcards if predicate is None else matchers.setdefault(predicate, [])).append(guarded)
        return matchers, wildcards

    def _take_back(self, delta: QuadDelta) -> None:
        """Restores CTS and groups to their state before a delta, however much of it they have taken."""
        state = self._state
        self._clock_index.touched.clear()
        self._cts.apply(delta.invert())
        for collector in state.groups:
            # The store takes these over; their groups are not used again.
            if collector.shape.plan is None or collector.shape in state.doubtful:
                continue
            try:
                collector.take_back()
            except BaseException as error:
                state.give_up(collector.shape, error)
        for window in state.windows:
            window.forget()
        state.windows.clear()
        state.clear_collectors()

    # --- rows of plans ---

    def _changes(self, delta: QuadDelta, found: Found, clock_delta: ClockDelta | None) -> list[Change]:
        """The net changes of the units with plans, after all quads have been matched."""
        state = self._state
        if state.seeds:
            self._follow_seeds(delta, found, clock_delta)
        if state.groups:
            self._follow_groups(found)
        if self._shapes.ordered:
            self._follow_windows(found)
        if state.doubtful:
            self._follow_doubtful(delta, found, clock_delta)
        changes = []
        for unit, (removed, added) in found.items():
            if len(removed) + len(added) > LONG:
                with self._slices.beside():
                    removed, added = _net_rows(removed, added)
            else:
                removed, added = _net_rows(removed, added)
            if removed or added:
                changes.append((unit, removed, added))
        return changes

    def _follow_windows(self, found: Found) -> None:
        """Replaces the rows of units with ORDER BY and LIMIT by those that leave and enter their windows."""
        for unit, (removed, added) in found.items():
            window = unit.window
            if window is None or unit.shape in self._state.doubtful:
                continue
            self._state.windows.append(window)
            try:
                found[unit] = self._prices.measure(unit.shape, window.change, *_net_rows(removed, added))
            except BaseException as reason:
                self._state.give_up(unit.shape, reason)

    def _follow_seeds(self, delta: QuadDelta, found: Found, clock_delta: ClockDelta | None) -> None:
        """Evaluates the rows that agree with the seeds: after the delta, and with the delta taken back."""
        doubtful = self._state.doubtful
        touched = [collector for collector in self._state.seeds if collector.shape not in doubtful]
        # The CTS has the delta now. After first, since it is taken back once only.
        after = [self._rows_of(collector) for collector in touched]
        self._cts.apply(delta.invert())
        if clock_delta is not None:
            clock_delta.take_back()
        before = [self._rows_of(collector) for collector in touched]
        self._cts.apply(delta)
        if clock_delta is not None:
            clock_delta.apply()
        for sign, results in ((0, before), (1, after)):
            for rows_of in results:
                for unit, rows in rows_of.items():
                    found.setdefault(unit, ([], []))[sign].extend(rows)

    def _rows_of(self, collector: SeedCollector) -> dict[SharedQuery, Rows]:
        """The rows that agree with the seeds, by unit; none if the plan fails."""
        if collector.shape not in self._state.doubtful:
            try:
                return self._prices.measure(collector.shape, collector.rows)
            except BaseException as reason:
                self._state.give_up(collector.shape, reason)
        return {}

    def _follow_groups(self, found: Found) -> None:
        """Adds the rows of the groups that change."""
        for collector in self._state.groups:
            if collector.shape not in self._state.doubtful:
                try:
                    self._prices.measure(collector.shape, collector.follow, found)
                except BaseException as reason:
                    self._state.give_up(collector.shape, reason)
                # Between two collectors all groups are consistent.
                self._slices.pause()

    def _follow_doubtful(self, delta: QuadDelta, found: Found, clock_delta: ClockDelta | None) -> None:
        """Hands the units of doubtful shapes over to the store, which has not taken the delta yet, or ends them."""
        doubtful = self._state.doubtful
        for shape, reason in list(doubtful.items()):
            too_much = self._state.timeless.pop(shape, None)
            # A window may cost less in the store, which sorts in native code.
            if too_much is None and self._ends and shape.window is None:
                too_much = self._too_much(shape, reason)
            told = self._visible_rows(shape, delta, clock_delta) if too_much is None else {}
            for unit in shape.units.all.values():
                # What a failed plan has found is incomplete.
                found.pop(unit, None)
                if too_much is not None:
                    self.ended[unit] = too_much
                elif unit.spu is None and unit not in self.ended:
                    try:
                        self._state.again(self._shapes.re_evaluate, unit, told.get(unit))
                    except BaseException as error:
                        self._end(unit, error)
            if shape.plan is not None:
                self._shapes.close_plan(shape, reason)
            del doubtful[shape]

    def _visible_rows(
        self, shape: Shape, delta: QuadDelta, clock_delta: ClockDelta | None
    ) -> dict[SharedQuery, Sequence[Binding] | None]:
        """`SharedQuery.visible_rows` of the units of a shape. Ends the units for which they are unknown."""
        told: dict[SharedQuery, Sequence[Binding] | None] = {}
        plan = shape.plan
        assert plan is not None
        # Then the store, as it is before the delta, gives the rows that subscribers have.
        if shape.window is None and not plan.differs:
            return told
        self._cts.apply(delta.invert())
        if clock_delta is not None:
            clock_delta.take_back()
        # The rows are needed once, to tell subscribers what changes, so the limit is lifted.
        with nullcontext() if self._ends else plan.meter.lifted():
            for unit in shape.units.all.values():
                try:
                    told[unit] = unit.visible_rows()
                except BaseException as error:
                    self._end(unit, error)
        self._cts.apply(delta)
        if clock_delta is not None:
            clock_delta.apply()
        return told

    def _too_much(self, shape: Shape, reason: BaseException) -> TooMuchWork | None:
        """The error if a shape's units cost too much for the store as well, which takes about as long as the plan."""
        # A failure of another kind says nothing of the cost: the first result of each unit does.
        if isinstance(reason, TooMuchWork):
            return reason
        assert shape.plan is not None
        for unit in shape.units.all.values():
            try:
                shape.plan.first(unit.key)
            except TooMuchWork as too_much:
                return bare(too_much)
            except Exception:  # the plan is known to fail; only its cost is asked for
                continue
        return None

    # --- rows of the store ---

    def _resume_shape(self, shape: Shape) -> list[Change]:
        """Tries to have a plan follow a shape again, as in another commit. Returns how it changes the rows of units."""
        self._work.begin(0)
        try:
            changes = self._shapes.plan_again(shape)
        except BaseException as reason:
            if not isinstance(reason, EXPECTED):
                self._state.note(reason)
            self._takeovers.note_failure(shape)
            return []
        return [(unit, list(change.removed), list(change.added)) for unit, change in changes if change]

    def _re_evaluate(self, unit: SharedQuery) -> BindingDelta | None:
        """The delta of a re-evaluated unit after the applied delta; None if the unit ends."""
        assert unit.spu is not None
        try:
            change: BindingDelta = self._prices.measure_evaluation(unit.spu, self._state.again, unit.spu.follow)
            return change
        except BaseException as error:
            self._end(unit, error)
            return None

    def _end(self, unit: SharedQuery, error: BaseException) -> None:
        """Ends a unit that the store cannot evaluate: its last result may be outdated."""
        if not isinstance(error, EXPECTED):
            self._state.note(error)
        self.ended[unit] = bare(error)

    def _construct(self, changes: Sequence[Change]) -> list[Change]:
        """The changes with triples in place of the rows of CONSTRUCT queries."""
        found = []
        for unit, removed, added in changes:
            if unit.triples is not None:
                with self._slices.beside() if len(removed) + len(added) > LONG else nullcontext():
                    removed, added = self._state.again(unit.triples.change, removed, added)
            if removed or added:
                found.append((unit, removed, added))
        return found

    def _with_times(self, change: Change) -> Change:
        unit, removed, added = change
        return unit, *self._state.again(unit.timed_change, removed, added, self._now())


def _net_rows(removed: Rows, added: Rows) -> tuple[Rows, Rows]:
    """The two bags without the rows that they have in common."""
    if not removed or not added:
        return removed, added
    # Most commits change one value of one row; a Counter costs more than the rest.
    if len(removed) == 1 == len(added):
        return ([], []) if removed == added else (removed, added)
    gone, come = Counter(removed), Counter(added)
    return list((gone - come).elements()), list((come - gone).elements())
