"""Completed events by replaying change logs into pyoxigraph and asking SPARQL. It shares no code with the pipeline."""

from collections.abc import Iterable
from functools import lru_cache

import pyoxigraph as ox

from lamplighter.engine.change_log import Record
from tests.support.fleet_events import Key, Triple, plain_events

_PREFIXES = {
    "sosa": "http://www.w3.org/ns/sosa/",
    "gateway": "http://lamplighter.example/ns/gateway#",
    "lighting": "http://lamplighter.example/ns/lighting#",
    "qudt": "http://qudt.org/schema/qudt/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
}
_STREAMS = """
SELECT ?stream WHERE {
  ?stream a gateway:Stream . FILTER(?stream = SUBJECT || EXISTS { ?stream gateway:liveObservation SUBJECT })
}
"""
_DESCRIBE = """
CONSTRUCT { ?s ?p ?o } WHERE {
  {
    STREAM ?p ?o BIND(STREAM AS ?s)
    FILTER(?p IN (gateway:mqttTopic, rdfs:label, qudt:hasUnit, gateway:liveObservation, sosa:madeBySensor,
      sosa:observedProperty, sosa:hasFeatureOfInterest) || (?p = rdf:type && ?o = gateway:Stream))
  } UNION {
    STREAM gateway:liveObservation ?s . ?s ?p ?o
    FILTER(?p IN (sosa:madeBySensor, sosa:observedProperty, sosa:hasFeatureOfInterest)
      || (?p = rdf:type && ?o = sosa:Observation))
  } UNION {
    STREAM gateway:liveObservation?/sosa:madeBySensor ?o . ?s ?p ?o FILTER(?p = sosa:hosts)
  } UNION {
    STREAM gateway:liveObservation?/sosa:hasFeatureOfInterest ?s . ?s ?p ?o
    FILTER(?p IN (lighting:hasLatitude, lighting:hasLongitude))
  }
}
"""


def description(store: ox.Store, subject: str) -> set[tuple[str, str, str]]:
    """The triples of the default graph that describe a stream, or the streams of a live observation."""
    found = set()
    for [stream] in store.query(_STREAMS.replace("SUBJECT", subject), prefixes=_PREFIXES):
        for triple in store.query(_DESCRIBE.replace("STREAM", str(stream)), prefixes=_PREFIXES):
            found.add((str(triple.subject), str(triple.predicate), str(triple.object)))
    return found


def completed_events(records: Iterable[Record]) -> dict[Key, list[Triple]]:
    """What completion should give for the events of one gateway's records, added and deleted ones."""
    store = ox.Store()
    found: dict[Key, list[Triple]] = {}
    for record in records:
        if record.type != "commit":
            continue
        events = plain_events([record], deleted=True)
        _complete({key: one for key, one in events.items() if key[3] == "deleted"}, store, found)
        for quad in _parsed(record.d):
            store.remove(quad)
        store.extend(_parsed(record.a))
        _complete({key: one for key, one in events.items() if key[3] == "added"}, store, found)
    return found


def _complete(events: dict[Key, list[Triple]], store: ox.Store, found: dict[Key, list[Triple]]) -> None:
    for key, triples in events.items():
        there = {triple[:3] for triple in triples}
        more = {one for subject in {triple[0] for triple in triples} for one in description(store, subject)}
        found[key] = sorted([*triples, *((*one, False) for one in more - there)])


def _parsed(quads: Iterable[object]) -> list[ox.Quad]:
    return [quad for text in quads for quad in _one(text.to_nquads())]


@lru_cache(maxsize=10_000)
def _one(text: str) -> list[ox.Quad]:
    return list(ox.parse(text, ox.RdfFormat.N_QUADS))
