"""What fleet subscriptions must match, by the store: docs/fleet-subscriptions.md defines events and matches."""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query
from lamplighter.engine.change_log import Record
from tests.support.fleet_events import Key, Triple, commit, plain_events

Row = tuple[str | None, ...]

EX = "PREFIX : <http://example.org/> "
QUERIES = {
    "warm": EX + "SELECT ?s ?v { ?s :value ?v FILTER(?v > 50) }",
    "hot": EX + "SELECT ?s ?v { ?s :value ?v FILTER(?v > 90) }",
    "placed": EX + "SELECT ?s ?v ?p { ?s :value ?v OPTIONAL { ?s :place ?p } }",
    "graphs": EX + "SELECT ?g ?s { GRAPH ?g { ?s :value 7 } }",
    "told": EX + "ASK { ?s :place :cellar ; :value ?v FILTER(?v < 20) }",
    "everything": EX + "SELECT ?p ?o { ?s ?p ?o }",
}
EVERYTHING = {name: text if "SELECT" in text else text.replace("ASK", "SELECT *") for name, text in QUERIES.items()}
EVERYTHING |= {name: text.replace(text[len(EX) : text.index("{")], "SELECT * ") for name, text in EVERYTHING.items()}
"""The queries as SELECT of all variables."""


def expected_matches(records: list[Record], names: Iterable[str] = QUERIES) -> Counter[tuple[Any, ...]]:
    """(subscription, gateway, epoch, sequence, change, graph, rows) of each match, by the store."""
    found: Counter[tuple[Any, ...]] = Counter()
    for name in names:
        query = fleet_query(QUERIES[name])
        for key, triples in plain_events(records, deleted=False).items():
            rows = rows_of_event(query, EVERYTHING[name], key, triples)
            if rows is not None:
                found[name, *key, tuple(rows)] += 1
    return found


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


def random_commits(draw: Random, gateway: str, number: int) -> list[Record]:
    """Commits that replace values, in several graphs, some of them repeated."""
    found, before = [], ""
    for seq in range(1, number + 1):
        graph = draw.choice(["", "", ":g1", ":g2"])
        sensor, place = draw.choice([":s1", ":s2"]), draw.choice([":cellar", ":roof"])
        text = f"{sensor} :value {draw.randrange(100) if draw.random() < 0.8 else 7} . "
        text += f"{sensor} :place {place} . " if draw.random() < 0.5 else ""
        added = f"{graph} {{ {text} }}" if graph else text
        kept = f"{sensor} :label 'a \"quoted\" one' ." if draw.random() < 0.3 else ""
        found.append(commit(seq, a=added, d=before if draw.random() < 0.5 else "", k=kept, gw=gateway))
        before = added
    return found


def in_segments(draw: Random, records: list[Record]) -> list[list[Record]]:
    found, at = [], 0
    while at < len(records):
        size = draw.randrange(1, 5)
        found.append(records[at : at + size])
        at += size
    return found
