"""The solutions of fleet subscriptions in one event, by the store that gateways have. Needs no Spark.

It gives the same rows as `osma.solutions`. A plan of Spark takes a second and more to be made, however few the events;
here an event and a query take a fraction of a millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.query_text import SolutionsText
from lamplighter.engine.sparql.algebra import Constant, Pattern, Variable
from lamplighter.engine.terms import Term

Triple = tuple[Term, Term, Term]
Row = tuple[Term | None, ...]

ROWS_MAX = 10_000
"""Rows that a query may have between two of its patterns in an event, by an estimate. Below it, no plan of Spark
exceeds one of its own bounds."""


class LeftToSparkError(Exception):
    """What Spark has to match, since it is too much for the driver, or not exact there. The text says why."""


class EventStore:
    """The triples of one event. graph: the name of its graph, None for the default graph.

    Raises LeftToSparkError for terms that the store would write in another way, such as ``"01"^^xsd:integer``.
    """

    def __init__(self, new: Sequence[Triple], old: Sequence[Triple], graph: Term | None) -> None:
        self._graph = graph
        self._all = [*new, *old]
        self._old = old
        self._stores: dict[tuple[bool, bool], ox.Store] = {}
        self._predicates = Counter(triple[1] for triple in self._all)

    def rows(self, query: SolutionsText, constants: Sequence[Term]) -> list[Row]:
        """The projected rows of the solutions that use a new triple, sorted; unbound terms first."""
        if self._estimate(query.patterns, constants) * query.factor > ROWS_MAX:
            raise LeftToSparkError("a query joins many triples of an event")
        found = self._solutions(query, False)
        if self._old and found:
            found.subtract(self._solutions(query, True))
        rows = (
            tuple(None if place is None else solution[place] for place in query.projected)
            for solution in found.elements()
        )
        return sorted(rows, key=_order)

    def _estimate(self, patterns: Iterable[Pattern], constants: Sequence[Term]) -> int:
        def triples(predicate: Variable | Constant | Term) -> int:
            if isinstance(predicate, Variable):
                return len(self._all)
            return self._predicates[constants[predicate.number] if isinstance(predicate, Constant) else predicate]

        return prod(max(1, triples(one.p)) for one in patterns)

    def _solutions(self, query: SolutionsText, old: bool) -> Counter[Row]:
        answer = self._store(old, query.graphs).query(query.text)
        assert isinstance(answer, ox.QuerySolutions)
        return Counter(tuple(None if term is None else str(term) for term in solution) for solution in answer)

    def _store(self, old: bool, graphs: bool) -> ox.Store:
        """old: only the old triples; graphs: in the event's named graph too."""
        graphs = graphs and self._graph is not None
        if (old, graphs) not in self._stores:
            self._stores[old, graphs] = self._loaded(self._old if old else self._all, self._graph if graphs else None)
        return self._stores[old, graphs]

    def _loaded(self, triples: Sequence[Triple], graph: Term | None) -> ox.Store:
        store = ox.Store()
        text = "".join(f"{s} {p} {o} .\n" for s, p, o in triples).encode()
        try:
            store.load(text, ox.RdfFormat.N_TRIPLES)
            if graph is not None:
                name = ox.BlankNode(graph[2:]) if graph.startswith("_:") else ox.NamedNode(graph[1:-1])
                store.add_graph(name)
                store.load(text, ox.RdfFormat.N_TRIPLES, to_graph=name)
        except (SyntaxError, ValueError) as error:
            raise LeftToSparkError(f"an event has a term that the store refuses: {error}") from error
        stored = {(str(quad.subject), str(quad.predicate), str(quad.object)) for quad in store}
        if len(stored) < len(triples) or not stored.issubset(triples):
            raise LeftToSparkError("an event has a triple twice, or a term that is not in its canonical form")
        return store


def _order(row: Row) -> list[tuple[bool, Term]]:
    return [(term is not None, term or "") for term in row]
