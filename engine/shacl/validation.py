"""Validation: completes deltas with the violations that they make and end, or refuses them.

::

    delta ─▶ its quads in the data graph, by predicate ─▶ triggers ─▶ focus nodes, before and after ─▶ parts of shapes
                                                                        └─ nothing found: the delta as it is
                                                                        └─ else all violations of the node, before and
                                                                           after ─▶ refusal, or quads of the difference

The state is the dataset and nothing else: the graph of violations has what the shapes find in the data graph. A delta
is matched in the CTS alone, and taken back before `complete` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamplighter.engine.access import FULL, VIOLATIONS, Access
from lamplighter.engine.delta import QuadDelta, join_deltas
from lamplighter.engine.errors import InvalidShapesError, LimitExceededError, ShapesViolatedError
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.shacl.compiling import CompiledShapes
from lamplighter.engine.shacl.data import DataGraph
from lamplighter.engine.shacl.finding import Touched, ViolationFinder, too_many
from lamplighter.engine.shacl.model import TARGET_NODE, Triple, Violation
from lamplighter.engine.shacl.reading import TRIPLES_MAX, read_shapes
from lamplighter.engine.shacl.results import quads_of, report_of, short, summary
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import SHARE, Meter, TooMuchWork, Work


class Validation:
    """The shapes of a dataset, and the graph of their violations.

    store, cts: both in the state before the next commit, whenever a method is called and when it returns. quads_max:
    quads of violations that an update may change. Use: `difference` once, which has to be committed; then `complete`
    for each delta, `accept` when it is committed, and `take_back` if `complete` raises anything; `close` at the end.
    """

    def __init__(
        self, store: QuadStore, cts: Cts, work: Work, sources: ShapeSources, quads_max: int, slices: Slices
    ) -> None:
        self.sources = sources
        self._store = store
        self._cts = cts
        self._work = work
        self._slices = slices
        self._quads_max = quads_max
        self._meter = Meter(work)
        # What the CTS has of the delta that is followed.
        self._applied: QuadDelta | None = None
        # A delta that changes the shapes, and those that count once it is committed.
        self._next: tuple[QuadDelta, ViolationFinder] | None = None
        cts.hold(TARGET_NODE, by_object=True)
        self._marked = cts.tables[TARGET_NODE]
        try:
            self._finder = self._compile(self._triples_of_graph())
        except BaseException:
            cts.release(TARGET_NODE)
            raise

    def close(self) -> None:
        """Releases the predicates in the CTS."""
        self._discard()
        self._finder.shapes.data.close()
        self._cts.release(TARGET_NODE)

    @property
    def shape_count(self) -> int:
        """How many shapes there are, those that others refer to included."""
        return self._finder.shapes.count()

    @property
    def violation_count(self) -> int:
        """How many violations there are."""
        table = self._marked.named.get(VIOLATIONS)
        return 0 if table is None else len(table.sp)

    # --- shapes ---

    def _compile(self, more: Iterable[Triple]) -> ViolationFinder:
        """The shapes of the sources and of the shapes graph. Raises InvalidShapesError."""
        sources = self.sources
        shapes = read_shapes((*sources.triples, *more))
        excluded = [VIOLATIONS] if sources.graph is None else [VIOLATIONS, sources.graph]
        data = DataGraph(self._cts, sources.data, excluded, self._meter)
        if len(self._store) > LONG:
            self._slices.begin(len(self._store))  # predicates are indexed
        try:
            return ViolationFinder(CompiledShapes(shapes, data), sources, self._quads_max)
        except BaseException:
            data.close()
            raise

    def _triples_of_graph(self) -> list[Triple]:
        """The shapes graph in the dataset. Raises InvalidShapesError for one that is too large."""
        graph, found = self.sources.graph, []
        for quad in self._store.quads(graph) if graph is not None else ():
            found.append(quad[:3])
            if len(found) > TRIPLES_MAX:
                raise InvalidShapesError(f"{graph} has more than {TRIPLES_MAX} triples; use fewer shapes")
        return found

    # --- deltas ---

    def difference(self) -> QuadDelta:
        """The delta that brings the graph of violations in line with the data. Without a limit."""
        with self._meter.lifted():
            found = self._finder.all()
        present = list(self._store.quads(VIOLATIONS))
        return self._change(_quads(found), dict.fromkeys(present))

    def complete(self, delta: QuadDelta, access: Access = FULL, *, refuses: bool = True) -> QuadDelta:
        """A delta together with what it changes in the graph of violations, which it does not change itself.

        access: the client's permissions, for what a refusal tells. refuses: whether shapes may refuse the delta.
        Raises ShapesViolatedError, InvalidShapesError for a change of the shapes graph that cannot be followed, and
        LimitExceededError for more work, or more violations, than is allowed.
        """
        if self._next is not None:
            self._discard()
        if self.sources.graph is not None and self._changes_shapes(delta):
            return self._with_other_shapes(delta)
        shapes = self._finder.shapes
        triggers, data, any_ = shapes.triggers, shapes.data, shapes.any
        removed = [quad for quad in delta.removed if (any_ or quad[1] in triggers) and quad[3] in data]
        added = [quad for quad in delta.added if (any_ or quad[1] in triggers) and quad[3] in data]
        if not removed and not added:
            return delta
        changed = len(removed) + len(added)
        if changed > LONG:
            self._slices.begin(changed)
        self._work.begin(more=SHARE * changed)
        own = QuadDelta(tuple(removed), tuple(added))
        try:
            suspects = self._suspects(own)
            if not suspects:
                self.take_back()
                return delta
            # The index has the delta now; the dataset has not. So the later state comes first, and the index is taken
            # back once.
            after = self._finder.violations(suspects)
            self.take_back()
            before = self._finder.violations(suspects)
        except TooMuchWork as error:
            raise LimitExceededError(
                "the validation of the update would need more work than limits.evaluation_ms_max = "
                f"{self._work.evaluation_ms_max} allows; send it in parts, or raise the limit"
            ) from error
        # Old violations do not refuse, or shapes could not be added to data that has some.
        refused = [one for one, rejects in after.items() if rejects and one not in before] if refuses else []
        if refused:
            raise self._refusal(refused, access)
        gone = _quads(one for one in before if one not in after)
        come = _quads(one for one in after if one not in before)
        return join_deltas(delta, [self._change(come, gone)]) if gone or come else delta

    def accept(self, delta: QuadDelta) -> None:
        """A delta is committed: shapes that it changes count from now on."""
        if self._next is not None and self._next[0] is delta:
            (_, finder), self._next = self._next, None
            self._finder.shapes.data.close()
            self._finder = finder

    def take_back(self) -> None:
        """Restores the CTS to the state of the dataset. It may be repeated."""
        if self._applied is not None:
            self._change_index(self._applied.added, self._applied.removed)
            self._applied = None

    def _apply(self, delta: QuadDelta) -> None:
        self._applied = delta  # taking back what was not applied does no harm
        self._change_index(delta.removed, delta.added)

    def _change_index(self, removed: tuple[Quad, ...], added: tuple[Quad, ...]) -> None:
        cts = self._cts
        if len(removed) + len(added) > LONG:
            cts.apply(QuadDelta(removed, added))
            return
        for quad in removed:
            cts.remove(quad)
        for quad in added:
            cts.add(quad)

    def _discard(self) -> None:
        if self._next is not None:
            (_, finder), self._next = self._next, None
            finder.shapes.data.close()

    def _suspects(self, delta: QuadDelta) -> list[Term]:
        """The nodes whose violations may change. Leaves the delta applied."""
        finder, touched = self._finder, Touched()
        # What led to a focus node by removed quads can only be found while they are there.
        finder.touch(delta.removed, touched, None)
        known = finder.targets(delta.added)
        self._apply(delta)
        finder.touch(delta.added, touched, known)
        marked = self._marked.named.get(VIOLATIONS)
        return finder.suspects(touched, None if marked is None else marked.po)

    # --- other shapes ---

    def _changes_shapes(self, delta: QuadDelta) -> bool:
        graph = self.sources.graph
        return any(quad[3] == graph for quads in (delta.removed, delta.added) for quad in quads)

    def _with_other_shapes(self, delta: QuadDelta) -> QuadDelta:
        """A delta that changes the shapes graph, with the violations of the shapes that count then.

        It is not refused: the violations are those of old data.
        """
        graph = self.sources.graph
        gone = {quad[:3] for quad in delta.removed if quad[3] == graph}
        triples = [triple for triple in self._triples_of_graph() if triple not in gone]
        triples += [quad[:3] for quad in delta.added if quad[3] == graph]
        self._slices.begin(LONG)
        self._work.begin(more=SHARE * (len(delta.removed) + len(delta.added)))
        finder = self._compile(triples)
        try:
            self._apply(QuadDelta(delta.removed, delta.added))
            found = finder.all()
            self.take_back()
            present = list(self._store.quads(VIOLATIONS))
            whole = join_deltas(delta, [self._change(_quads(found), dict.fromkeys(present))])
        except TooMuchWork as error:
            finder.shapes.data.close()
            raise LimitExceededError(
                "the validation of all data with other shapes needs more work than limits.evaluation_ms_max = "
                f"{self._work.evaluation_ms_max} allows; raise the limit, or name the shapes as files and restart"
            ) from error
        except BaseException:
            finder.shapes.data.close()
            raise
        # In force when this very delta is committed: another one may come before it.
        self._next = whole, finder
        return whole

    # --- the graph of violations ---

    def _change(self, come: dict[Quad, None], gone: dict[Quad, None]) -> QuadDelta:
        """The delta of the graph of violations. The graph exists while it has quads."""
        removed = tuple(quad for quad in gone if quad not in come)
        added = tuple(quad for quad in come if quad not in gone)
        if len(removed) + len(added) > self._quads_max:
            raise too_many(self._quads_max)
        count = self.violation_count
        for sign, quads in ((-1, removed), (1, added)):
            count += sign * sum(quad[1] == TARGET_NODE for quad in quads)
        exists = self._store.has_graph(VIOLATIONS)
        return QuadDelta(
            removed=removed,
            added=added,
            created=(VIOLATIONS,) if count and not exists else (),
            dropped=(VIOLATIONS,) if exists and not count else (),
        )

    def _refusal(self, refused: Sequence[tuple[Term, Violation]], access: Access) -> ShapesViolatedError:
        if self.sources.readable_by(access):
            return ShapesViolatedError(summary(refused), report_of(refused))
        # A client that may not read the data learns which shapes, not which nodes.
        names = ", ".join(sorted({short(violation.shape.place) for _, violation in refused})[:3])
        return ShapesViolatedError(f"the update violates SHACL shapes: {names}", None)


def _quads(violations: Iterable[tuple[Term, Violation]]) -> dict[Quad, None]:
    return dict.fromkeys(quad for one in violations for quad in quads_of(*one))
