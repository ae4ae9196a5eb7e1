"""The properties of a stream that no reading changes."""

from __future__ import annotations

from lamplighter.adapters.model.readings import Stream
from lamplighter.engine.terms import Term, iri, is_iri, literal
from lamplighter.ontology.vocabulary import (
    FEATURE_OF_INTEREST,
    HAS_FEATURE_OF_INTEREST,
    HAS_RESULT,
    HAS_UNIT,
    HOSTS,
    LIVE_OBSERVATION,
    MADE_BY_SENSOR,
    MQTT_TOPIC,
    OBSERVABLE_PROPERTY,
    OBSERVATION,
    OBSERVED_PROPERTY,
    OBSERVES,
    PLATFORM,
    QUANTITY_VALUE,
    RDF_TYPE,
    RDFS_LABEL,
    RECEIVED_FROM,
    SENSOR,
    STREAM,
    UNIT_CLASS,
    UNKNOWN_UNIT,
)


def description_update(stream: Stream, *, live: bool = True) -> str:
    """The update that describes a stream, its sensor, platform, property, feature and unit, under its condition.

    Unit, label and source of a former description are replaced. Repeated, it changes nothing.

    live: the stream has one live observation (model "latest"). Otherwise the stream itself has sensor, property and
    feature, since each reading is an observation of its own.
    """
    about = stream.observation if live else stream.iri
    triples: list[tuple[Term, str, Term]] = [
        (stream.platform, RDF_TYPE, iri(PLATFORM)),
        (stream.platform, HOSTS, stream.sensor),
        (stream.sensor, RDF_TYPE, iri(SENSOR)),
        (stream.sensor, OBSERVES, stream.property),
        (stream.property, RDF_TYPE, iri(OBSERVABLE_PROPERTY)),
        (stream.feature, RDF_TYPE, iri(FEATURE_OF_INTEREST)),
        (stream.iri, RDF_TYPE, iri(STREAM)),
        (stream.iri, MQTT_TOPIC, literal(stream.topic)),
        (about, MADE_BY_SENSOR, stream.sensor),
        (about, OBSERVED_PROPERTY, stream.property),
        (about, HAS_FEATURE_OF_INTEREST, stream.feature),
    ]
    if live:
        triples += [
            (stream.iri, LIVE_OBSERVATION, stream.observation),
            (stream.observation, RDF_TYPE, iri(OBSERVATION)),
        ]
    if stream.unit is not None and is_iri(stream.unit):
        triples += [(stream.unit, RDF_TYPE, iri(UNIT_CLASS)), (stream.iri, HAS_UNIT, stream.unit)]
    elif stream.unit is not None:
        triples.append((stream.iri, UNKNOWN_UNIT, stream.unit))
    triples += [(stream.iri, RECEIVED_FROM, source) for source in stream.sources]
    if stream.label is not None:
        triples.append((stream.iri, RDFS_LABEL, literal(stream.label)))
    if live and stream.result is not None:
        triples += quantity(stream, stream.observation, stream.result)
    former = [(stream.iri, HAS_UNIT, "?unit"), (stream.iri, UNKNOWN_UNIT, "?code"), (stream.iri, RDFS_LABEL, "?label")]
    if stream.sources:
        former.append((stream.iri, RECEIVED_FROM, "?source"))
    if live and stream.result is not None:
        former += [(stream.result, HAS_UNIT, "?former"), (stream.result, UNKNOWN_UNIT, "?formerCode")]
    optional = "".join(f"  OPTIONAL {{ {s} <{p}> {o} }}\n" for s, p, o in former)
    return f"DELETE {{\n{_lines(former)}}}\nINSERT {{\n{_lines(triples)}}}\nWHERE {{\n{stream.condition}{optional}}}"


def _lines(triples: list[tuple[Term, str, Term]]) -> str:
    return "".join(f"  {s} <{p}> {o} .\n" for s, p, o in triples)


def quantity(stream: Stream, observation: Term, result: Term) -> list[tuple[Term, str, Term]]:
    """The qudt:QuantityValue of an observation, without its number."""
    triples = [(observation, HAS_RESULT, result), (result, RDF_TYPE, iri(QUANTITY_VALUE))]
    if stream.unit is not None:
        triples.append((result, HAS_UNIT if is_iri(stream.unit) else UNKNOWN_UNIT, stream.unit))
    return triples
