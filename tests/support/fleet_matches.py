"""What fleet subscriptions must match, by the store: docs/fleet-subscriptions.md defines events and matches."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery
from tests.support.fleet_events import Key, Triple

Row = tuple[str | None, ...]


def rows_of_event(query: FleetQuery, everything: str, key: Key, triples: Iterable[Triple]) -> list[Row] | None:
    """The rows of a match, sorted; None if the event does not match. For ASK, a match has no rows.

    everything: the query's text as SELECT of all variables in its pattern, which `query` then projects.
    """
    graph, told = key[4], list(triples)
    whole = _solutions(everything, graph, [one[:3] for one in told])
    old = _solutions(everything, graph, [one[:3] for one in told if not one[3]])
    left = whole - old
    if not left:
        return None
    if query.form == "ASK":
        return []
    found = [tuple(dict(solution).get(name) for name in query.variables) for solution in left.elements()]
    return sorted(found, key=lambda row: [(value is not None, value or "") for value in row])


def _solutions(
    text: str, graph: str | None, triples: Sequence[tuple[str, str, str]]
) -> Counter[tuple[tuple[str, str], ...]]:
    """The solutions over one event: its triples are the default graph, and the named graph if it is in one."""
    store = ox.Store()
    lines = [f"{s} {p} {o} ." for s, p, o in triples]
    if graph is not None:
        lines += [f"{s} {p} {o} {graph} ." for s, p, o in triples]
    store.load("\n".join(lines).encode(), ox.RdfFormat.N_QUADS)
    found: Any = store.query(text)
    names = [variable.value for variable in found.variables]
    return Counter(
        tuple((name, str(solution[name])) for name in names if solution[name] is not None) for solution in found
    )
