"""Closure: keeps one inferred graph, under added and removed triples of its sources.

Insertion is semi-naive: each new triple is joined with the others once. Deletion is DRed (Gupta, Mumick, Subrahmanian,
Maintaining Views Incrementally, SIGMOD 1993): what a removed triple contributed to is removed too, then what still
follows from the rest is derived again. Counting derivations would keep a cycle of subclasses alive that nothing leads
to any more. A triple that stays asserted is not removed, so nothing is followed beyond it; nor is one that follows in
one step from asserted triples that stay, such as the class of a subject whose value is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.inference.facts import InferredFacts
from lamplighter.engine.inference.rules import (
    TYPE,
    Triple,
    classes,
    consequences,
    is_property,
    is_schema,
    is_supported,
    is_triple,
    mentioned_properties,
)
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import STEP, Meter

# Has the triples of a property among the facts from now on, as they are at this moment.
Hold = Callable[[Term], None]

# Units of work of: a triple that a rule gives, new or not; the search for a rule that gives a triple; a change of the
# inferred graph.
DERIVED, CHECKED, CHANGED = 5 * STEP, 20 * STEP, 60 * STEP


class Closure:
    """Changes the facts of one graph, and notes what changes in the inferred graph.

    The caller takes back what was changed in the CTS, by what `changes` has, and calls `forget`. Each method raises
    TooMuchWork, or LimitExceededError for more than quads_max changes.
    """

    def __init__(self, facts: InferredFacts, hold: Hold, meter: Meter, quads_max: int) -> None:
        self.facts = facts
        self._hold = hold
        self._meter = meter
        self._quads_max: int | None = quads_max
        # The changed triples of the inferred graph; True for those that are in it now.
        self._inferred: dict[Triple, bool] = {}

    def follow(self, gone: Iterable[Triple], come: Collection[Triple]) -> None:
        """Infers what changes when triples are no longer asserted, and when others are.

        The facts have both. Those that are gone are removed from them.
        """
        self.facts.forget()
        # DRed: first everything that may depend on what is gone, then again what still follows.
        lost = self._retract(gone)
        self._hold_mentioned(come)
        new = []
        for triple in come:
            # Asserted and inferred are kept apart: a triple is in one of the graphs.
            if self.facts.infers(triple):
                self._unmake(triple)  # it is asserted now; all that follows from it is there
            else:
                new.append(triple)
        for triple in lost:
            self._meter.take(CHECKED)
            if not self.facts.has(*triple) and is_supported(
                self.facts, self.facts.property(triple[1]), triple, self._meter
            ):
                self._make(triple)
                new.append(triple)
        self._derive(new)

    def rebuild(self, present: Sequence[Triple]) -> None:
        """Infers everything anew, without a limit. present: the triples of the inferred graph, which are replaced."""
        quads_max, self._quads_max = self._quads_max, None
        for predicate in dict.fromkeys(p for _, p, _ in present):
            self._hold(predicate)
        with self._meter.lifted():
            for triple in present:
                self._unmake(triple)
            schema = self.facts.schema()
            self._hold_mentioned(schema)
            self._derive(schema)  # each rule has a premise of the schema
        self._quads_max = quads_max

    @property
    def changes(self) -> QuadDelta:
        """The delta of the inferred graph."""
        graph = self.facts.inferred
        removed = [Quad(*triple, graph) for triple, there in self._inferred.items() if not there]
        added = [Quad(*triple, graph) for triple, there in self._inferred.items() if there]
        return QuadDelta(tuple(removed), tuple(added))

    def forget(self) -> None:
        """Begins with the next delta."""
        self._inferred = {}
        self.facts.forget()

    def _retract(self, gone: Iterable[Triple]) -> dict[Triple, None]:
        """Removes triples, and inferred triples that they contributed to. Returns all of them.

        A derivation may need several of them. It is found when the first one is removed, as the others are still there.
        """
        facts = self.facts
        lost = dict.fromkeys(gone)
        waiting = list(lost)
        covered: set[Triple] = set()
        asserted = facts.asserted
        for triple in waiting:  # which becomes longer
            members = () if triple in covered else classes(facts, triple)
            for found in members:
                self._meter.take(DERIVED)
                if found not in lost and facts.infers(found):
                    lost[found] = None
                    waiting.append(found)
                    # Not what a lost subclass gave: in a cycle its instance may be one of that subclass by it alone.
                    if triple[1] == TYPE:
                        covered.add(found)
            suspects = []
            for found in consequences(facts, facts.property(triple[1]), triple):
                self._meter.take(DERIVED)
                if found not in lost and is_triple(found) and facts.infers(found):
                    suspects.append(found)
            if facts.infers(triple):
                self._unmake(triple)
            else:
                facts.unassert(triple)
            for found in suspects:  # if a triple that supports it is removed later, it is suspected again
                self._meter.take(CHECKED)
                if found not in lost and not is_supported(asserted, asserted.property(found[1]), found, self._meter):
                    lost[found] = None
                    waiting.append(found)
        return lost

    def _derive(self, waiting: list[Triple]) -> None:
        """Adds what follows from triples that the facts have, and from what is added."""
        facts = self.facts
        covered: set[Triple] = set()
        for triple in waiting:  # which becomes longer
            members = () if triple in covered else classes(facts, triple)
            for found in members:
                self._meter.take(DERIVED)
                if is_triple(found) and not facts.has(*found):
                    self._make(found)
                    waiting.append(found)
                    covered.add(found)
            for found in consequences(facts, facts.property(triple[1]), triple):
                self._meter.take(DERIVED)
                if is_triple(found) and not facts.has(*found):
                    self._make(found)
                    waiting.append(found)

    def _hold_mentioned(self, triples: Iterable[Triple]) -> None:
        """Has the triples of properties among the facts before anything follows from what the schema says of them."""
        for triple in triples:
            if is_schema(triple):
                for name in mentioned_properties(triple):
                    if is_property(name):
                        self._hold(name)

    def _make(self, triple: Triple) -> None:
        self._hold_mentioned((triple,))
        self._note(triple, True)
        self.facts.infer(triple)

    def _unmake(self, triple: Triple) -> None:
        self._note(triple, False)
        self.facts.uninfer(triple)

    def _note(self, triple: Triple, there: bool) -> None:
        self._meter.take(CHANGED)
        if self._inferred.pop(triple, there) is not there:
            return  # as before
        self._inferred[triple] = there
        if self._quads_max is not None and len(self._inferred) > self._quads_max:
            raise LimitExceededError(
                f"the update would change more than limits.delta_quads_max = {self._quads_max} inferred triples; send "
                "it in parts, or raise the limit"
            )
