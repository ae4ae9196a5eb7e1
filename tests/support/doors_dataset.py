"""A small dataset that all doors show, spread over graphs that a client may each be permitted or not.

A change is of one graph. `part` is what a client may read of a dataset: a raw store with nothing but those graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import NamedTuple

import pyoxigraph as ox

from tests.support.small_house import PREFIXES

BASE = "http://lamplighter.local/"
DEFAULT = "default"
"""Stands for the default graph, as in permissions."""
ENTITIES, INBOX = f"{BASE}ngsi-ld", f"{BASE}inbox/"
EVENTS = [f"{BASE}stream/{stream}/event/{number}" for stream in (3, 4) for number in (0, 1)]
PLAIN = ["http://e/g0", "http://e/g1"]
GRAPHS = [DEFAULT, ENTITIES, INBOX, *EVENTS, *PLAIN]
NOTES = [f"00000000-0000-4000-8000-{number:012}" for number in range(3)]

_ABOUT = "sosa:madeBySensor <sensor/{n}> ; sosa:observedProperty <property/p> ; sosa:hasFeatureOfInterest <place/1> ."
_NGSI = "https://uri.etsi.org/ngsi-ld/"
_ATTRIBUTE = f"{_NGSI}default-context/a"


def description() -> str:
    """The update that makes it. Streams 1 and 2 have a live observation, 3 and 4 have events."""
    sensors = "".join(f"<sensor/{n}> a sosa:Sensor ; sosa:observes <property/p> . " for n in range(1, 6))
    live = "".join(
        f"<stream/{n}> a gateway:Stream ; gateway:liveObservation <observation/{n}> . "
        f"<observation/{n}> a sosa:Observation ; sosa:hasSimpleResult {n} ; {_ABOUT.format(n=n)} "
        for n in (1, 2)
    )
    events = "".join(f"<stream/{n}> a gateway:Stream ; {_ABOUT.format(n=n)} " for n in (3, 4))
    notes = "".join(f'GRAPH <inbox/{name}> {{ <inbox/{name}> <http://e/says> "{name[-1]}" }} ' for name in NOTES)
    return (
        f"{PREFIXES} INSERT DATA {{ {sensors} {live} {events} "
        "<platform/1> a sosa:Platform ; sosa:hosts <sensor/1>, <sensor/3> . "
        "<platform/2> a sosa:Platform ; sosa:hosts <sensor/2>, <sensor/4>, <actuator/9> . "
        f'<actuator/9> a sosa:Actuator ; gateway:desiredState "OFF" . {notes} }}'
    )


class GraphChange(NamedTuple):
    """graph: the only one that the update changes, as in `GRAPHS`."""

    graph: str
    update: str


def change(random: Random, graphs: Collection[str] = GRAPHS) -> GraphChange:
    """A change of one of the graphs."""
    graph = random.choice(sorted(graphs))
    value = random.randrange(10)
    if graph == DEFAULT:
        return GraphChange(graph, _described(random, value))
    if graph == ENTITIES:
        entity = f"<urn:e:{random.randrange(3)}>"
        node = f"<{BASE}node/{entity[-2]}>"
        text = f"DELETE WHERE {{ GRAPH <{graph}> {{ {entity} ?p ?o }} }}"
        if random.random() < 0.7:
            text += (
                f" ; DELETE WHERE {{ GRAPH <{graph}> {{ {node} ?p ?o }} }} ; INSERT DATA {{ GRAPH <{graph}> {{ "
                f"{entity} a <{_NGSI}default-context/T> ; <{_ATTRIBUTE}> {node} . "
                f"{node} a <{_NGSI}Property> ; <{_NGSI}hasValue> {value} }} }}"
            )
        return GraphChange(graph, text)
    if graph == INBOX:
        note, box = f"<{INBOX}{random.choice(NOTES)}>", f"<{INBOX}>"
        listed = f'{box} <http://www.w3.org/ns/ldp#contains> {note} . {note} <http://purl.org/dc/terms/created> "t"'
        return GraphChange(graph, f"{random.choice(('INSERT', 'DELETE'))} DATA {{ GRAPH {box} {{ {listed} }} }}")
    if graph in EVENTS:
        if random.random() < 0.2:
            return GraphChange(graph, f"CLEAR SILENT GRAPH <{graph}>")
        return GraphChange(graph, event(graph, str(random.randrange(10)), value))
    triple = f"<http://e/s{random.randrange(4)}> <http://e/p> {value}"
    return GraphChange(
        graph, f"{random.choice(('INSERT', 'INSERT', 'DELETE'))} DATA {{ GRAPH <{graph}> {{ {triple} }} }}"
    )


def event(graph: str, value: str, hour: int) -> str:
    """An update that replaces an event. graph: one of `EVENTS`."""
    stream = graph.partition("/event/")[0]
    return (
        f"{PREFIXES} CLEAR SILENT GRAPH <{graph}> ; INSERT DATA {{ GRAPH <{graph}> {{ "
        f"<{stream}> gateway:liveObservation <{graph}/o> . <{graph}/o> a sosa:Observation ; "
        f'sosa:hasSimpleResult {value} ; sosa:resultTime "2026-11-26T1{hour}:00:00Z"^^xsd:dateTime ; '
        f"{_ABOUT.format(n=stream[-1])} }} }}"
    )


def _described(random: Random, value: int) -> str:
    subject, predicate, term = random.choice(
        (
            ("<observation/1>", "sosa:hasSimpleResult", str(value)),
            ("<observation/2>", "sosa:hasSimpleResult", str(value)),
            ("<actuator/9>", "gateway:desiredState", random.choice(('"ON"', '"OFF"'))),
            ("<platform/3>", "sosa:hosts", random.choice(("<sensor/5>", ""))),
        )
    )
    made = f"{subject} {predicate} {term}" if term else ""
    return f"{PREFIXES} DELETE WHERE {{ {subject} {predicate} ?o }} ; INSERT DATA {{ {made} }}"


# --- what a client may read ---


def graph_of(quad: ox.Quad) -> str:
    """The graph of a quad as in `GRAPHS`."""
    return quad.graph_name.value if isinstance(quad.graph_name, ox.NamedNode) else DEFAULT


def part(dataset: Iterable[ox.Quad], graphs: Collection[str]) -> ox.Store:
    """A store with nothing but these graphs; "*" stands for all."""
    store = ox.Store()
    store.extend(quad for quad in dataset if "*" in graphs or graph_of(quad) in graphs)
    return store


def rows(store: ox.Store, pattern: str, *variables: str) -> list[tuple[str, ...]]:
    """The solutions of a pattern, as lexical values; "" for an unbound variable."""
    found = store.query(f"{PREFIXES} SELECT {' '.join(f'?{name}' for name in variables)} {{ {pattern} }}")
    assert isinstance(found, ox.QuerySolutions)
    return [tuple("" if (term := row[name]) is None else str(term.value) for name in variables) for row in found]
