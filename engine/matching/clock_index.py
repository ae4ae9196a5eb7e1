"""ClockIndex: which comparisons with the clock hold at the engine's instant, and when that changes.

::

    quad delta ─▶ matchers of the sources ─▶ operands that come and go ─┐
                                                                        ├─▶ ClockDelta: clock quads that come and go
    advance(now) ─▶ boundaries that are passed ─────────────────────────┘

Each condition knows the operands that occur in solutions of its sources, with their number, and for each the boundary:
it is computed once. The boundaries ahead are in a heap. A step of the clock costs as much as what it passes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from lamplighter.engine.matching.boundaries import AFTER, BEFORE, boundary
from lamplighter.engine.matching.clock_patterns import ClockPattern, clock_quad, sources
from lamplighter.engine.matching.codegen import CodeGenerator
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.lutt import ByPredicate
from lamplighter.engine.matching.quad_tables import Tables
from lamplighter.engine.matching.query_constants import QueryConstants
from lamplighter.engine.matching.source_text import Scope, tuple_text
from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.sparql.algebra import Bgp, Constant, Node, Pattern, takes_apart, walk
from lamplighter.engine.sparql.clock_function import EPOCH, query_at
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import Meter

# Instants in the heap at which nothing changes any more, besides as many as there are others.
_STALE_MAX = 1024

Terms = tuple[Term, ...]
# The operands of solutions of the sources that went and that came.
Pairs = tuple[list[Terms], list[Terms]]


class ClockDelta:
    """The changes of one commit: clock quads removed and added, as condition and operands, and the state behind it.

    counted: (condition, operands, change of their number, boundary). instant: the new one, None for the same.
    """

    __slots__ = ("added", "counted", "instant", "removed")

    def __init__(self, instant: int | None = None) -> None:
        self.removed: list[tuple[Condition, Terms]] = []
        self.added: list[tuple[Condition, Terms]] = []
        self.counted: list[tuple[Condition, Terms, int, int]] = []
        self.instant = instant

    def conditions(self) -> dict[Condition, None]:
        """The conditions whose quads change."""
        return dict.fromkeys(condition for changed in (self.removed, self.added) for condition, _ in changed)

    def match(self, found: Any, matchers: ByPredicate, slices: Slices) -> None:
        """Matches the quads behind those of the dataset.

        found: takes what the matchers find, as in `Follower`. matchers: by predicate.
        """
        # The telescoping rule: each quad is matched while it is in its table.
        for some in sliced(self.removed, slices):
            for condition, terms in some:
                s, p, o, g = condition.quad(terms)
                for matcher in matchers.get(p, ()):
                    matcher(s, p, o, g, found, 0)
                condition.take(terms)
        for some in sliced(self.added, slices):
            for condition, terms in some:
                condition.add(terms)
                s, p, o, g = condition.quad(terms)
                for matcher in matchers.get(p, ()):
                    matcher(s, p, o, g, found, 1)

    def apply(self) -> None:
        """Changes the tables. Quads that are absent, or present already, do no harm."""
        for condition, terms in self.removed:
            condition.take(terms)
        for condition, terms in self.added:
            condition.add(terms)

    def take_back(self) -> None:
        """Undoes `apply`, also a part of it."""
        for condition, terms in self.added:
            condition.take(terms)
        for condition, terms in self.removed:
            condition.add(terms)


class Condition:
    """A comparison with the clock in one shape.

    tables: its quads, in `Cts.virtual`. moments: operands -> [number of solutions, boundary]. matchers: by predicate;
    they collect pairs in touched. Raises ClockRefusal and Unsupported for sources that cannot be compiled.
    """

    def __init__(
        self,
        shape: Any,
        clock_pattern: ClockPattern,
        tree: Any,
        cts: Cts,
        meter: Meter,
        touched: dict[Condition, Pairs],
    ) -> None:
        self.shape = shape
        self._touched = touched
        self.predicate = clock_pattern.predicate
        self.opens = clock_pattern.condition.opens
        self.boundary = boundary(clock_pattern.condition, clock_pattern.operands, meter)
        self.moments: dict[Terms, list[int]] = {}
        self.matchers: list[tuple[Term | None, Any]] = []
        self._cts = cts
        self._meter = meter
        self._operands = clock_pattern.operands
        self._held: list[Term | None] = []
        self._first: list[Callable[..., None]] = []
        self._entered: set[Any] = set()
        self._parts: Counter[Any] = Counter()
        found = sources(tree, clock_pattern)
        units: QueryConstants = shape.units
        # Operands are kept once for all units that agree in the constants which sources and operands name.
        constants = [part for source in found for part in _constants(source)]
        constants += [part for part in clock_pattern.operands if isinstance(part, Constant)]
        self._places = tuple(place for place, constant in enumerate(units.constants) if constant in constants)
        self._units = units.projection(constants)
        # In the CTS before anything is compiled: plans look its quads up as those of a predicate.
        self.tables = cts.virtual[self.predicate] = Tables(by_object=True)
        try:
            for source in found:
                self._first.append(self._compile_first(source))
                self.matchers += self._compile_matchers(source)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the predicates in the CTS, and removes the quads."""
        while self._held:
            # One by one, so that an exception in between loses none.
            self._cts.release(self._held.pop())
        self._cts.virtual.pop(self.predicate, None)

    # --- quads ---

    def quad(self, terms: Terms) -> Quad:
        s, o, g = clock_quad(terms)
        return Quad(s, self.predicate, o, g)

    def add(self, terms: Terms) -> None:
        s, o, g = clock_quad(terms)
        self.tables.table(g).add(s, o)

    def take(self, terms: Terms) -> None:
        s, o, g = clock_quad(terms)
        table = self.tables.table(g)
        table.remove(s, o)
        # Empty graphs would be visited by GRAPH ?g.
        if g is not None and not table.sp:
            del self.tables.named[g]

    # --- units ---

    def entering(self, key: Any) -> list[Terms]:
        """The operands of a new unit's solutions, in the index as it is now. Raises TooMuchWork."""
        part = self._part(key)
        found: list[Terms] = []
        if not self._parts[part]:
            for first in self._first:
                first(part, found)
        # Counted after the evaluation, which may fail.
        self._parts[part] += 1
        self._entered.add(key)
        return found

    def leaving(self, key: Any) -> list[Terms]:
        """The operands that only solutions of this unit have had."""
        if key not in self._entered:
            return []
        self._entered.discard(key)
        part = self._part(key)
        self._parts[part] -= 1
        if self._parts[part]:
            return []
        del self._parts[part]
        found: list[Terms] = []
        for first in self._first:
            first(part, found)
        return found

    def _part(self, key: Any) -> Any:
        """The constants of a unit that its sources name."""
        if self._units is None:
            return ()
        if not isinstance(key, tuple):
            return key
        return key[self._places[0]] if len(self._places) == 1 else tuple(key[place] for place in self._places)

    # --- compiling ---

    def _generator(self, units: QueryConstants | None) -> CodeGenerator:
        return CodeGenerator(self._cts, self._hold, units, self._meter)

    def _hold(self, predicate: Term | None, by_object: bool) -> None:
        self._cts.hold(predicate, by_object=by_object)
        self._held.append(predicate)

    def _row(self, generator: CodeGenerator, scope: Scope) -> str:
        return tuple_text([generator.part(operand, scope) for operand in self._operands])

    def _compile_first(self, source: Node) -> Callable[..., None]:
        generator = self._generator(None)
        constants = () if self._units is None else self._units.constants

        def body() -> None:
            scope = Scope({}, {})
            for place, constant in enumerate(constants):
                local = generator.name("c")
                generator.emit(f"{local} = key" if len(constants) == 1 else f"{local} = key[{place}]")
                scope = scope.binding(constant, local)
            generator.produce(
                source, scope, lambda found: generator.emit(f"rows.append({self._row(generator, found)})")
            )

        return generator.compile("first", "key, rows", body)

    def _compile_matchers(self, source: Node) -> Iterator[tuple[Term | None, Any]]:
        bgps = (node for node in walk(source) if isinstance(node, Bgp))
        numbered = list(dict.fromkeys(pattern for node in bgps for pattern in node.patterns))
        for number, pattern in enumerate(numbered):
            # No quad matches it.
            if takes_apart(pattern):
                continue
            generator = self._generator(self._units)

            def body(generator: CodeGenerator = generator, number: int = number, pattern: Pattern = pattern) -> None:
                # As in a plan: a solution that the quad has twice counts for the first pattern.
                generator.match(numbered, number)
                touched, condition = generator.share("touched", self._touched), generator.share("condition", self)

                def hit(scope: Scope) -> None:
                    generator.emit(f"pairs = {touched}.get({condition})")
                    with generator.block("if pairs is None:"):
                        generator.emit(f"pairs = {touched}[{condition}] = [], []")
                    generator.emit(f"pairs[sign].append({self._row(generator, scope)})")
                    generator.count_row()

                generator.quad(pattern, lambda scope: generator.produce(source, scope, hit))

            function = generator.compile("match_source", "s, p, o, g, found, sign", body)
            yield pattern.p if isinstance(pattern.p, str) else None, function


def _constants(source: Node) -> list[Constant]:
    patterns = (node for node in walk(source) if isinstance(node, Pattern))
    return [part for pattern in patterns for part in pattern if isinstance(part, Constant)]


class ClockIndex:
    """The conditions of all shapes, the instant, and the boundaries ahead of it.

    now: the engine's clock, in microseconds, which gives the first instant if none was given. conditions: by
    predicate. touched: those that the matchers of this commit have collected pairs for. predicates: for new conditions.
    """

    def __init__(self, now: Callable[[], int], slices: Slices = Slices()) -> None:  # noqa: B008 - it has no state
        self._now = now
        self._slices = slices
        self._given = False
        self.instant = BEFORE
        self.conditions: dict[Term, Condition] = {}
        self.touched: dict[Condition, Pairs] = {}
        self.predicates: Iterator[Term] = (f"clock {number}" for number in count())
        self._heap: list[int] = []
        self._at: dict[int, dict[tuple[Condition, Terms], None]] = {}

    # --- conditions ---

    def begin(self, condition: Condition) -> None:
        """Follows a condition from now on."""
        # Time matters from the first condition on; before, nobody asks for it.
        if not self.conditions and not self._given:
            self.instant = self._now()
        self.conditions[condition.predicate] = condition

    def end(self, condition: Condition) -> None:
        """Forgets a condition, with all of its boundaries."""
        self.conditions.pop(condition.predicate, None)
        for terms, (_, edge) in condition.moments.items():
            self._unschedule(condition, terms, edge)
        condition.moments.clear()
        condition.close()

    def enter(self, condition: Condition, key: Any) -> None:
        """Counts the operands of a new unit. No unit's result changes by that. Raises TooMuchWork."""
        for some in sliced(condition.entering(key), self._slices):
            self._count_terms(condition, some, [])

    def leave(self, condition: Condition, key: Any) -> None:
        """Forgets the operands of a unit that ends. Raises TooMuchWork; the operands then stay, which does no harm."""
        self._count_terms(condition, [], condition.leaving(key))

    def _count_terms(self, condition: Condition, added: Sequence[Terms], removed: Sequence[Terms]) -> None:
        clock_delta = ClockDelta()
        self._count(condition, added, removed, clock_delta)
        clock_delta.apply()
        self.accept(clock_delta)

    # --- time ---

    def text_now(self, text: str) -> str:
        """A query with the instant in place of the clock."""
        return query_at(text, EPOCH + timedelta(microseconds=self.instant))

    @property
    def next_instant(self) -> int | None:
        """The next instant at which a condition changes, None if there is none."""
        heap, at = self._heap, self._at
        # A boundary that went is taken out of the dictionary only: removing it from the heap would search for it.
        while heap and heap[0] not in at:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def reach(self, now: int) -> None:
        """Lets time go by, up to the next boundary at most. Earlier times are ignored."""
        self._given = True
        if now > self.instant or not self.conditions:
            due = self.next_instant
            # Just before the boundary: to pass it is a commit of its own (`advance`), which subscribers see.
            self.instant = now if due is None or now < due else max(self.instant, due - 1)

    def advance(self, now: int) -> ClockDelta:
        """The changes when the instant becomes now, which may also be earlier. `accept` has to follow."""
        self._given = True
        clock_delta = ClockDelta(instant=now)
        if now < self.instant:
            for condition in self.conditions.values():
                for terms, (_, edge) in condition.moments.items():
                    # Back over boundaries that were passed: what opened closes, and what closed opens.
                    if now < edge <= self.instant:
                        (clock_delta.removed if condition.opens else clock_delta.added).append((condition, terms))
            return clock_delta
        # Several boundaries in one step: after a pause, or while the machine slept.
        while (due := self.next_instant) is not None and due <= now:
            while self._heap and self._heap[0] == due:  # more than once if it was stale in between
                heapq.heappop(self._heap)
            for condition, terms in self._at[due]:
                (clock_delta.added if condition.opens else clock_delta.removed).append((condition, terms))
        return clock_delta

    def changes(self, give_up: Callable[[Any, BaseException], None]) -> ClockDelta:
        """The changes by the operands that the matchers of a commit have collected.

        give_up: called for the shape of a condition whose operands cost too much.
        """
        clock_delta = ClockDelta()
        for condition, (removed, added) in self.touched.items():
            try:
                self._count(condition, added, removed, clock_delta)
            except BaseException as reason:
                give_up(condition.shape, reason)
        return clock_delta

    def _count(
        self, condition: Condition, added: Sequence[Terms], removed: Sequence[Terms], clock_delta: ClockDelta
    ) -> None:
        change: dict[Terms, int] = {}
        for terms in added:
            change[terms] = change.get(terms, 0) + 1
        for terms in removed:
            change[terms] = change.get(terms, 0) - 1
        moments, instant, opens = condition.moments, self.instant, condition.opens
        for terms, difference in change.items():
            # As many came as went, such as the update of another value.
            if not difference:
                continue
            known = moments.get(terms)
            if known is not None:
                before, edge = known
            elif difference > 0:
                before, edge = 0, condition.boundary(*terms)
            else:
                continue  # they were not counted, because that was too much work
            clock_delta.counted.append((condition, terms, difference, edge))
            # Its quad is there now only on this side of the boundary.
            if (instant >= edge) == opens:
                # The quad exists once, however many solutions have its operands.
                if not before:
                    clock_delta.added.append((condition, terms))
                elif before + difference <= 0:
                    clock_delta.removed.append((condition, terms))

    def accept(self, clock_delta: ClockDelta) -> None:
        """Takes over the state behind a commit. Its quads are in the tables already."""
        for condition, terms, difference, edge in clock_delta.counted:
            known = condition.moments.get(terms)
            if known is None:
                condition.moments[terms] = [difference, edge]
                self._schedule(condition, terms, edge)
                continue
            known[0] += difference
            if known[0] <= 0:
                del condition.moments[terms]
                self._unschedule(condition, terms, edge)
        if clock_delta.instant is not None:
            # `_schedule` compares with the new instant.
            earlier, self.instant = clock_delta.instant < self.instant, clock_delta.instant
            for changed in (clock_delta.removed, clock_delta.added):
                for condition, terms in changed:
                    edge = condition.moments[terms][1]
                    # It lies ahead again.
                    if earlier:
                        self._schedule(condition, terms, edge)
                    else:
                        self._at.pop(edge, None)

    def _schedule(self, condition: Condition, terms: Terms, edge: int) -> None:
        # Passed, or never: only what is to come is kept.
        if edge <= self.instant or edge in (BEFORE, AFTER):
            return
        members = self._at.get(edge)
        if members is None:
            self._at[edge] = {(condition, terms): None}
            heapq.heappush(self._heap, edge)
        else:
            members[condition, terms] = None

    def _unschedule(self, condition: Condition, terms: Terms, edge: int) -> None:
        members = self._at.get(edge)
        if members is not None and members.pop((condition, terms), ()) is None and not members:
            del self._at[edge]
            # Stale entries are dropped together once they are more than the rest, which costs nothing on average.
            if len(self._heap) > 2 * len(self._at) + _STALE_MAX:
                self._heap = list(self._at)
                heapq.heapify(self._heap)

    def changes_until(self, now: int) -> int:
        """An upper bound on the number of operands that change until an instant."""
        due = self.next_instant
        if now < self.instant:
            return sum(len(condition.moments) for condition in self.conditions.values())
        if due is None or now < due:
            return 0
        return len(self._at[due]) if now == due else len(self._at)
