"""The solutions of fleet subscriptions in some events, by the store that gateways have. Needs no Spark.

It gives the same rows as `osma.solutions`. A plan of Spark takes a second and more to be made, however few the events.
Here one store holds many events, each as a graph of its own, so that it parses and plans a query once for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.query_text import IN_GRAPH, IS_EVENT, SolutionsText
from lamplighter.engine.sparql.algebra import Constant, Pattern, Variable
from lamplighter.engine.terms import Term

Triple = tuple[Term, Term, Term]
Row = tuple[Term | None, ...]
# Those of each event that has any, with all variables.
Solutions = dict[int, Counter[Row]]

# Rows that a query may have between two of its patterns in an event, by an estimate. Below it, no plan of Spark exceeds
# one of its own bounds.
ROWS_MAX = 10_000
# The name of an event's graph, before its number.
_GRAPH = "lamplighter:"
_IN_GRAPH = ox.NamedNode(IN_GRAPH[1:-1])
_IS_EVENT = [ox.NamedNode(part[1:-1]) for part in IS_EVENT.split()]


class StoredEvent(NamedTuple):
    """new: the triples that it changed; old: those that were there; graph: its graph, None for the default graph."""

    new: Sequence[Triple]
    old: Sequence[Triple]
    graph: Term | None


class EventStore:
    """Some events, by their numbers.

    left: the numbers of events that Spark has to match, with the reason: the store would write a term in another way,
    such as ``"01"^^xsd:integer``, or a query is too much.
    """

    def __init__(self, events: Mapping[int, StoredEvent]) -> None:
        self._events = events
        self.left: dict[int, str] = {}
        self._store = self._load({number: (*event.new, *event.old) for number, event in events.items()})
        self._size_max = max((len(event.new) + len(event.old) for event in events.values()), default=0)

    def rows(self, query: SolutionsText, constants: Sequence[Term], numbers: Iterable[int]) -> dict[int, list[Row]]:
        """The projected rows of the solutions that use a new triple, sorted with unbound terms first.

        numbers: of the events that are looked at. Those that have no such solution, or are left, are not in the result.
        """
        if self._size_max ** len(query.patterns) * query.factor > ROWS_MAX:
            self._leave_large(query, constants)
        found = _solutions(self._store, query, set(numbers) - self.left.keys())
        old = {number: self._events[number].old for number in found if self._events[number].old}
        if old:
            for number, solutions in _solutions(self._load(old), query, old.keys()).items():
                found[number].subtract(solutions)
        rows = {number: _project(solutions, query) for number, solutions in found.items()}
        return {number: some for number, some in rows.items() if some}

    def _leave_large(self, query: SolutionsText, constants: Sequence[Term]) -> None:
        """Leaves events in which a query joins too much."""
        # The store would also join those that it is not asked for.
        for number in self._events.keys() - self.left.keys():
            if _estimate(self._events[number], query.patterns, constants) * query.factor > ROWS_MAX:
                self.left[number] = "a query joins many triples of an event"
                self._store.remove_graph(ox.NamedNode(f"{_GRAPH}{number}"))

    def _load(self, triples: Mapping[int, Sequence[Triple]]) -> ox.Store:
        """A store of events without those that it would change, which are added to `left`."""
        rest = {}
        for number, some in triples.items():
            if len(set(some)) < len(some):
                self.left[number] = "an event has a triple twice"
            else:
                rest[number] = some
        while True:
            store = ox.Store()
            try:
                store.bulk_load("".join(map(_text, rest, rest.values())).encode(), ox.RdfFormat.N_QUADS)
            except (SyntaxError, ValueError) as error:
                refused = {number: reason for number, some in rest.items() if (reason := _refusal(number, some))}
                wrong = refused or dict.fromkeys(rest, f"some events have a term that the store refuses: {error}")
            else:
                wrong = _changed_events(store, rest)
            if not wrong:
                break
            # What such an event brought may be in the graphs of others: they begin anew without it.
            self.left |= wrong
            rest = {number: some for number, some in rest.items() if number not in wrong}
        store.extend(quad for number in rest for quad in _event_description(number, self._events[number].graph))
        return store


def _text(number: int, triples: Sequence[Triple]) -> str:
    return "".join([f"{s} {p} {o} <{_GRAPH}{number}> .\n" for s, p, o in triples])


def _refusal(number: int, triples: Sequence[Triple]) -> str:
    """Why the store does not take an event; empty if it does."""
    try:
        ox.Store().load(_text(number, triples).encode(), ox.RdfFormat.N_QUADS)
    except (SyntaxError, ValueError) as error:
        return f"an event has a term that the store refuses: {error}"
    return ""


def _changed_events(store: ox.Store, triples: Mapping[int, Sequence[Triple]]) -> dict[int, str]:
    """The events that the store does not have as they are; all, if it has more than they have."""
    stored = {(str(quad.subject), str(quad.predicate), str(quad.object), str(quad.graph_name)) for quad in store}
    reason = "an event has a term that is not in its canonical form"
    wrong = {}
    for number, some in triples.items():
        name = f"<{_GRAPH}{number}>"
        if not stored.issuperset([(s, p, o, name) for s, p, o in some]):
            wrong[number] = reason
    if not wrong and len(stored) > sum(map(len, triples.values())):
        return dict.fromkeys(triples, reason)
    return wrong


def _event_description(number: int, graph: Term | None) -> list[ox.Quad]:
    """What the default graph says of an event."""
    event = ox.NamedNode(f"{_GRAPH}{number}")
    said = [ox.Quad(event, *_IS_EVENT)]
    if graph is not None:
        name = ox.BlankNode(graph[2:]) if graph.startswith("_:") else ox.NamedNode(graph[1:-1])
        said.append(ox.Quad(event, _IN_GRAPH, name))
    return said


def _estimate(event: StoredEvent, patterns: Sequence[Pattern], constants: Sequence[Term]) -> int:
    """An upper bound of the rows that the patterns have in an event, and at least 1."""
    size = len(event.new) + len(event.old)
    most: int = size ** len(patterns)
    if most <= ROWS_MAX:
        return max(1, most)
    predicates = Counter(triple[1] for triple in (*event.new, *event.old))

    def triples(predicate: Variable | Constant | Term) -> int:
        if isinstance(predicate, Variable):
            return size
        return predicates[constants[predicate.number] if isinstance(predicate, Constant) else predicate]

    return prod(max(1, triples(one.p)) for one in patterns)


def _solutions(store: ox.Store, query: SolutionsText, wanted: Iterable[int]) -> Solutions:
    found: Solutions = defaultdict(Counter)
    names = {f"{_GRAPH}{number}": number for number in wanted}
    if not names:
        return found
    answer = store.query(query.text)
    assert isinstance(answer, ox.QuerySolutions)
    for solution in answer:
        event, *terms = solution
        assert isinstance(event, ox.NamedNode), query.text
        number = names.get(event.value)
        if number is not None:
            found[number][tuple([None if term is None else str(term) for term in terms])] += 1
    return found


def _project(solutions: Counter[Row], query: SolutionsText) -> list[Row]:
    rows = (
        tuple(None if place is None else solution[place] for place in query.projected)
        for solution in solutions.elements()
    )
    return sorted(rows, key=_order)


def _order(row: Row) -> list[tuple[bool, Term]]:
    return [(term is not None, term or "") for term in row]
