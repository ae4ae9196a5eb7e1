"""Validation by SHACL shapes: LAMP updates with and without, a reading of the profile, and a start."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.measuring import EngineSide, LogFile, Progress, cost_of, race, target
from lamplighter.engine import Engine
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.updating.documents import opened, quads_of
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings.reasoning import ShaclSettings
from lamplighter.ontology.vocabulary import PREFIXES

SHAPES = f"""
@prefix ns: <{street.NS}> .
@prefix sh: <http://www.w3.org/ns/shacl#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
ns:LampShape a sh:NodeShape ; sh:targetSubjectsOf ns:hasDimmingValue ;
    sh:nodeKind sh:IRI ;
    sh:property [ sh:path ns:hasDimmingValue ; sh:minCount 1 ; sh:maxCount 1 ; sh:datatype xsd:string ;
                  sh:pattern "^[0-9]+$" ] ;
    sh:property [ sh:path [ sh:inversePath ns:hasLamp ] ; sh:minCount 1 ; sh:maxCount 1 ] .
"""
"""What holds for each lamp of the benchmark. Four constraints concern an update."""
AS_QUERIES = (
    "?x ns:hasDimmingValue ?a . ?x ns:hasDimmingValue ?b FILTER(!sameTerm(?a, ?b))",
    "?post ns:hasLamp ?x FILTER NOT EXISTS { ?x ns:hasDimmingValue ?a }",
    "?x ns:hasDimmingValue ?a FILTER(DATATYPE(?a) != <http://www.w3.org/2001/XMLSchema#string>)",
    'SELECT * { ?x ns:hasDimmingValue ?a FILTER(!REGEX(STR(?a), "^[0-9]+$")) }',
)
"""The same four as subscriptions whose results are the violations."""
_CHUNK = 50
_STREAMS = 100


def validation(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """LAMP beside the paper's 1,004 subscriptions, in engines that check shapes in different ways."""
    ratios, us = _lamp(effort, out, progress)
    result: dict[str, Any] = {"us": us | _readings(effort), "ms": {"start": us.pop("start ms")}}
    ratio, queries = ratios
    us, start = result["us"], result["ms"]["start"]
    result["note"] = (
        f"A LAMP update takes {us['plain']:.1f} us of CPU, with append and JSON; checked against four constraints "
        f"{us['validated']:.1f}. With the same constraints as subscriptions, which refuse nothing, it takes "
        f"{us['queries']:.1f} ({queries:.2f} times a plain one). A reading takes {us['reading']:.1f} us, checked "
        f"against the shapes of the profile {us['reading, validated']:.1f}. A start checks "
        f"{street.POSTS:,} lamps in {start:,.0f} ms."
    )
    result["targets"] = [
        target("validated LAMP update against a plain one", ratio, 2.0, ""),
        target("validated reading against a plain one", us["reading, validated"] / us["reading"], 2.0, ""),
    ]
    return result


def _lamp(effort: Effort, out: Path, progress: Progress) -> tuple[tuple[float, float], dict[str, float]]:
    """The median ratios to a plain engine, and microseconds of CPU of an update."""
    document = street.document(bare=effort.bare)
    sides: dict[str, EngineSide] = {}
    logs = {name: LogFile(out / f"validation-{name}.log") for name in ("plain", "validated", "queries")}
    start = 0.0
    for name in logs:
        engine = Engine()
        engine.load(document)
        for entry in street.subscription_profile():
            engine.subscribe(entry.text)
        if name == "validated":
            triples = quads_of(opened(SHAPES.encode(), "ttl", 10**6), None, None, 10**6, 10**6)
            sources = ShapeSources(tuple(quad[:3] for quad in triples))
            start = cost_of(lambda engine=engine, sources=sources: engine.validate(sources)).cpu * 1e3  # type: ignore[misc]
        if name == "queries":
            for text in AS_QUERIES:
                where = text if text.startswith("SELECT") else f"SELECT * {{ {text} }}"
                engine.subscribe(f"PREFIX ns: <{street.NS}> {where}")
        sides[name] = EngineSide(engine, logs[name])
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(effort.validation_rounds + 1):
        texts = street.lamp_profile(str(100 + number))
        costs = race({name: (side, texts) for name, side in sides.items()})
        if number:
            for name, cost in costs.items():
                rounds[name].append(cost.cpu / len(texts) * 1e6)
    us = {name: statistics.median(spent) for name, spent in rounds.items()}
    progress(f"LAMP: {', '.join(f'{name} {spent:.1f} us' for name, spent in us.items())}")
    for name, side in sides.items():
        side.engine.close()
        logs[name].close()
    ratios = tuple(
        statistics.median(one / plain for one, plain in zip(rounds[name], rounds["plain"], strict=True))
        for name in ("validated", "queries")
    )
    return (ratios[0], ratios[1]), us | {"start ms": start}


def _readings(effort: Effort) -> dict[str, float]:
    """Microseconds of CPU of a reading of the observation model, without and with the shapes of the profile."""
    sources = shape_sources(ShaclSettings(profile=True), Path())
    assert sources is not None
    names = "".join(f"PREFIX {name}: <{iri}> " for name, iri in PREFIXES.items()) + "BASE <http://bench.example/> "
    streams = " . ".join(
        f"<s{n}> a gateway:Stream ; gateway:mqttTopic 't{n}' ; gateway:liveObservation <o{n}> . <o{n}> a "
        f"sosa:Observation ; sosa:madeBySensor <s> ; sosa:observedProperty <p> ; sosa:hasFeatureOfInterest <f> ; "
        f"sosa:hasSimpleResult 0 ; sosa:resultTime '2026-01-01T00:00:00Z'^^xsd:dateTime"
        for n in range(_STREAMS)
    )
    about = (
        "<s> a sosa:Sensor ; sosa:observes <p> . <h> a sosa:Platform ; sosa:hosts <s> . "
        "<p> a sosa:ObservableProperty . <f> a sosa:FeatureOfInterest"
    )
    spent: dict[str, list[float]] = {"reading": [], "reading, validated": []}

    def text(number: int) -> str:
        one, second = f"<o{number % _STREAMS}>", number // _STREAMS % 60
        gone = f"{one} sosa:hasSimpleResult ?r ; sosa:resultTime ?t"
        time = f"'2026-01-01T00:01:{second:02}.{number % 1000:03}Z'^^xsd:dateTime"
        come = f"{one} sosa:hasSimpleResult {number} ; sosa:resultTime {time}"
        return f"{names} DELETE {{ {gone} }} INSERT {{ {come} }} WHERE {{ {gone} }}"

    with closing(Engine()) as off, closing(Engine()) as on:
        for engine in (off, on):
            engine.update(f"{names} INSERT DATA {{ {about} . {streams} }}")
        on.validate(sources)
        for first in range(0, effort.validation_readings, _CHUNK):
            texts = [text(number) for number in range(first, first + _CHUNK)]
            for name, engine in (("reading", off), ("reading, validated", on)):
                cost = cost_of(_all(engine.update, texts))
                spent[name].append(cost.cpu / _CHUNK * 1e6)
    return {name: statistics.median(costs) for name, costs in spent.items()}


def _all(update: Callable[[str], object], texts: Sequence[str]) -> Callable[[], object]:
    return lambda: [update(text) for text in texts]
