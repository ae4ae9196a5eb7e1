"""Facts of some graphs as the CTS has them: the asserted triples, and these with the inferred ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lamplighter.engine.inference.rules import (
    SUB_CLASS,
    SYMMETRIC,
    TRANSITIVE,
    TYPE,
    VOCABULARY,
    Property,
    Triple,
    is_schema,
)
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.quad_tables import Table
from lamplighter.engine.terms import Quad, Term


class GraphFacts:
    """The triples of some graphs together. The predicates that are read are held in the CTS, also by object."""

    def __init__(self, cts: Cts, graphs: Sequence[Term | None]) -> None:
        self._graphs = tuple(graphs)
        self._cts = cts
        self._properties: dict[Term, Property] = {}

    def property(self, p: Term) -> Property:
        """The characteristics of a property; looked up again after `forget`."""
        found = self._properties.get(p)
        if found is None:
            found = self._properties[p] = Property(self, p)
        return found

    def forget(self) -> None:
        """To be called when triples of the schema have changed."""
        self._properties.clear()

    def objects(self, s: Term, p: Term) -> tuple[Term, ...]:
        found: tuple[Term, ...] = ()
        for table in self._tables(p):
            members = table.sp.get(s)
            if members:
                found = (*found, *members)
        return found

    def subjects(self, p: Term, o: Term) -> tuple[Term, ...]:
        found: tuple[Term, ...] = ()
        for table in self._tables(p):
            assert table.po is not None, "the predicates are held by object"
            members = table.po.get(o)
            if members:
                found = (*found, *members)
        return found

    def pairs(self, p: Term) -> list[tuple[Term, Term]]:
        return [(s, o) for table in self._tables(p) for s, objects in table.sp.items() for o in objects]

    def has(self, s: Term, p: Term, o: Term) -> bool:
        tables = self._cts.tables.get(p)
        if tables is not None:
            for graph in self._graphs:  # not by `_tables`: inference spends its time here
                table = tables.default if graph is None else tables.named.get(graph)
                if table is not None and o in table.sp.get(s, ()):
                    return True
        return False

    def has_object(self, s: Term, p: Term) -> bool:
        return any(s in table.sp for table in self._tables(p))

    def has_subject(self, p: Term, o: Term) -> bool:
        return any(table.po is not None and o in table.po for table in self._tables(p))

    def schema(self) -> list[Triple]:
        """The triples that say something about properties and classes."""
        found: list[Triple] = [(s, p, o) for p in VOCABULARY if p != TYPE for s, o in self.pairs(p)]
        return found + [(s, TYPE, kind) for kind in (SYMMETRIC, TRANSITIVE) for s in self.subjects(TYPE, kind)]

    def _tables(self, p: Term) -> Iterator[Table]:
        tables = self._cts.tables.get(p)
        if tables is not None:
            for graph in self._graphs:
                table = tables.default if graph is None else tables.named.get(graph)
                if table is not None:
                    yield table


class InferredFacts(GraphFacts):
    """The triples of a graph, of its ontologies and of its inferred graph. A triple is asserted or inferred, not both.

    sources: the graphs of asserted triples; asserted: their facts; inferred: the graph of the others.
    """

    def __init__(self, cts: Cts, sources: Sequence[Term | None], inferred: Term) -> None:
        super().__init__(cts, (*sources, inferred))
        self.sources = tuple(sources)
        self.asserted = GraphFacts(cts, sources)
        self.inferred = inferred

    def forget(self) -> None:
        super().forget()
        self.asserted.forget()

    def infers(self, triple: Triple) -> bool:
        """Whether a triple is in the inferred graph."""
        return self._cts.contains(Quad(*triple, self.inferred))

    def infers_any(self, predicates: Iterable[Term]) -> bool:
        """Whether the inferred graph has a triple with one of the predicates."""
        tables = self._cts.tables
        return any(p in tables and self.inferred in tables[p].named for p in predicates)

    def infer(self, triple: Triple) -> None:
        """Adds a triple to the inferred graph."""
        self._cts.add(Quad(*triple, self.inferred))
        self._note_change(triple)

    def uninfer(self, triple: Triple) -> None:
        """Removes a triple from the inferred graph."""
        self._cts.remove(Quad(*triple, self.inferred))
        self._note_change(triple)

    def unassert(self, triple: Triple) -> None:
        """Removes a triple from the other graphs."""
        for graph in self.sources:
            self._cts.remove(Quad(*triple, graph))
        self._note_change(triple)

    def _note_change(self, triple: Triple) -> None:
        if is_schema(triple) and triple[1] != SUB_CLASS:
            self.forget()
