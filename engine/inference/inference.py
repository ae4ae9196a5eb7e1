"""Inference: completes deltas, so that each commit has the inferred triples that it adds and removes.

::

    delta ─▶ its quads in source graphs, with predicates of rules ─▶ Closure.follow, over the CTS ─▶ delta
                                                                        └─ taken back: the dataset is unchanged

The state is the dataset and nothing else: what is asserted, and for each graph what is inferred. The CTS indexes the
predicates that rules name and the properties that the schema mentions (`Inference.held`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from lamplighter.engine.access import INFERRED
from lamplighter.engine.delta import QuadDelta, join_deltas
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.inference.closure import Closure
from lamplighter.engine.inference.facts import InferredFacts
from lamplighter.engine.inference.rules import VOCABULARY, Triple, is_property, is_schema, mentioned_properties
from lamplighter.engine.inference.sources import Sources, inferred_graph
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import SHARE, Meter, TooMuchWork, Work


class Inference:
    """The inferred graphs of a dataset.

    store, cts: both in the state before the next commit, whenever a method is called and when it returns. quads_max:
    inferred triples that an update may change. Use: `difference` once, which has to be committed; then `complete` for
    each delta, and `take_back` if that raises anything; `close` at the end.

    held: the predicates that it has the CTS index.
    """

    def __init__(
        self, store: QuadStore, cts: Cts, work: Work, sources: Sources, quads_max: int, slices: Slices
    ) -> None:
        self.sources = sources
        self._store = store
        self._cts = cts
        self._work = work
        self._slices = slices
        self.held: set[Term] = set()
        # Whether triples of the schema have gone, so that some predicates may be held in vain.
        self._outdated = False
        # The delta that is followed, once the CTS has it.
        self._followed: QuadDelta | None = None
        # Its quads in the source graphs whose predicate was not held, by predicate, when one of them is needed.
        self._late: dict[Term, QuadDelta] | None = None
        # What the CTS has of it.
        self._settled: list[QuadDelta] = []
        # Whose facts are changed.
        self._changing: Closure | None = None
        meter = Meter(work)
        self._closures = [
            Closure(InferredFacts(cts, sources.of(graph), inferred_graph(graph)), self._hold, meter, quads_max)
            for graph in dict.fromkeys(sources.graphs)
        ]
        self._by_graph: dict[Term | None, list[Closure]] = {}
        for closure in self._closures:
            for source in closure.facts.sources:
                self._by_graph.setdefault(source, []).append(closure)

    def close(self) -> None:
        """Releases the predicates in the CTS."""
        for predicate in self.held:
            self._cts.release(predicate)
        self.held.clear()

    # --- deltas ---

    def difference(self) -> QuadDelta:
        """The delta that brings all inferred graphs in line, and removes those of earlier sources."""
        for predicate in VOCABULARY:
            self._hold(predicate)
        found = []
        for closure in self._closures:
            present: list[Triple] = [quad[:3] for quad in self._store.quads(closure.facts.inferred)]
            self._changing = closure
            try:
                closure.rebuild(present)
                found.append(self._apply(closure))
            finally:
                self.take_back()
        # The earlier graphs may have mentioned more properties.
        self._outdated = True
        current = {closure.facts.inferred for closure in self._closures}
        for name in self._store.graphs():
            if name.startswith(INFERRED) and name not in current:
                found.append(QuadDelta(removed=tuple(self._store.quads(name)), dropped=(name,)))
        return join_deltas(QuadDelta(), found)

    def complete(self, delta: QuadDelta) -> QuadDelta:
        """A delta together with what it changes in the inferred graphs, which it does not change itself.

        Raises LimitExceededError for more changes, or more work, than is allowed.
        """
        held, by_graph = self.held, self._by_graph
        touched: dict[Closure, None] = {}
        for quads in (delta.removed, delta.added):
            for quad in quads:
                if quad[1] in held and quad[3] in by_graph:
                    touched.update(dict.fromkeys(by_graph[quad[3]]))
        if not touched:
            return delta
        if self._outdated:
            self._release_unmentioned()
        changed = len(delta.removed) + len(delta.added)
        if changed > LONG:
            self._slices.begin(changed)
        # More quads may infer more: the limit grows with them.
        self._work.begin(more=SHARE * changed)
        found = []
        for closure in touched:
            self._changing = closure
            try:
                self._follow(closure, delta)
            except TooMuchWork as error:
                raise LimitExceededError(
                    f"the update would infer more in {closure.facts.inferred} than limits.evaluation_ms_max = "
                    f"{self._work.evaluation_ms_max} allows; send it in parts, or raise the limit"
                ) from error
            # Before `take_back`, which forgets what has changed.
            noted = self._apply(closure)
            self._outdated |= any(is_schema(quad[:3]) for some in (*self._settled, noted) for quad in some.removed)
            self.take_back()
            found.append(noted)
        return join_deltas(delta, found)

    def _follow(self, closure: Closure, delta: QuadDelta) -> None:
        sources, contains, held = closure.facts.sources, self._cts.contains, self.held
        removed, added = (
            [quad for quad in quads if quad[1] in held and quad[3] in sources] for quads in (delta.removed, delta.added)
        )
        come: dict[Triple, None] = {quad[:3]: None for quad in added}
        gone: dict[Triple, None] = {quad[:3]: None for quad in removed}
        if len(sources) > 1:  # a triple counts as long as one of them has it
            going, coming = set(removed), set(added)

            def stays(triple: Triple) -> bool:
                quads = [Quad(*triple, graph) for graph in sources]
                return any(quad in coming or (quad not in going and contains(quad)) for quad in quads)

            gone = {triple: None for triple in gone if not stays(triple)}
            come = {triple: None for triple in come if not closure.facts.asserted.has(*triple)}
        own = QuadDelta(removed=tuple(removed), added=tuple(added))
        self._settled.append(own)  # the closure removes what is gone
        self._cts.apply(QuadDelta(removed=_still_asserted(own.removed, gone), added=own.added))
        self._followed = delta
        closure.follow(gone, come)

    def _apply(self, closure: Closure) -> QuadDelta:
        """The delta of an inferred graph. It exists while it has triples."""
        facts, noted = closure.facts, closure.changes
        there, exists = facts.infers_any(self.held), self._store.has_graph(facts.inferred)
        return noted._replace(
            created=(facts.inferred,) if there and not exists else (),
            dropped=(facts.inferred,) if exists and not there else (),
        )

    def take_back(self) -> None:
        """Restores the CTS to the state of the dataset, however much has been changed. It may be repeated."""
        self._followed = self._late = None
        closure = self._changing
        if closure is None:
            return
        self._cts.apply(closure.changes.invert())
        for delta in reversed(self._settled):
            self._cts.apply(delta.invert())
        self._settled.clear()
        closure.forget()
        self._changing = None

    # --- predicates ---

    def _hold(self, predicate: Term) -> None:
        """Has the CTS index a predicate, in the state that the delta has led to so far."""
        if predicate in self.held:
            return
        if len(self._store) > LONG:
            self._slices.begin(len(self._store))
        # Predicates that a rule asks for in the middle of a delta: the CTS takes them from the store, which has not got
        # the delta yet.
        if self._followed is not None and self._late is None:
            self._late = _unheld(self._followed, self._by_graph, self.held)
        self._cts.hold(predicate, by_object=True)
        self.held.add(predicate)
        late = None if self._late is None else self._late.get(predicate)
        if late is not None:
            self._settled.append(late)
            self._cts.apply(late)

    def _release_unmentioned(self) -> None:
        """Releases the properties that the schema does not mention any more."""
        needed = set(VOCABULARY)
        for closure in self._closures:
            for triple in closure.facts.schema():
                needed.update(filter(is_property, mentioned_properties(triple)))
        for predicate in self.held - needed:
            self._cts.release(predicate)
        self.held &= needed
        self._outdated = False


def _still_asserted(removed: Sequence[Quad], gone: Container[Triple]) -> tuple[Quad, ...]:
    """Removed quads whose triples another graph has."""
    return tuple(quad for quad in removed if quad[:3] not in gone)


def _unheld(delta: QuadDelta, graphs: dict[Term | None, list[Closure]], held: set[Term]) -> dict[Term, QuadDelta]:
    """The quads of a delta in the graphs whose predicates are not held, by predicate."""
    found: dict[Term, tuple[list[Quad], list[Quad]]] = {}
    for sign, quads in enumerate((delta.removed, delta.added)):
        for quad in quads:
            if quad.p not in held and quad.g in graphs:
                found.setdefault(quad.p, ([], []))[sign].append(quad)
    return {p: QuadDelta(removed=tuple(removed), added=tuple(added)) for p, (removed, added) in found.items()}
