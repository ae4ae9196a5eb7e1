"""Inferred triples: cost of updates that they do not concern, of instances, and of edits of the ontology; memory."""

import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.measuring import Progress, cost_of, resident_mb, target
from lamplighter.engine import Engine

_E = "http://bench.example/"
_PREFIXES = f"PREFIX : <{_E}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
_ONTOLOGY = f"<{_E}ontology>"
_TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
_DEPTH = 10
_READINGS = 100
_CHUNK = 50


def inference(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """A chain of eleven classes, readings, and instances of the lowest class."""
    with closing(_engine(False)) as off, closing(_engine(True)) as on:
        result: dict[str, Any] = {"us": _updates(off, on, effort.inference_updates)}
    us = result["us"]
    progress(f"a reading takes {us['reading, on']:.1f} us, {us['reading, off']:.1f} without inference")
    result |= {"instances": effort.inference_instances, **_instances(effort.inference_instances, progress)}
    ratio = us["reading, on"] / us["reading, off"]
    ms, memory = result["ms"], result["memory"]
    result["note"] = (
        f"A reading that the ontology does not concern takes {us['reading, on']:.1f} us of CPU with inference and "
        f"{us['reading, off']:.1f} without; one whose property has a domain {us['reading with a domain']:.1f}. An "
        f"instance below {_DEPTH} superclasses takes {us['instance, on']:.1f} us to add and "
        f"{us['instance, removed']:.1f} to remove, without inference {us['instance, off']:.1f}. With "
        f"{result['instances']:,} instances, a start infers in {ms['start']:,.0f} ms; an edge at the lower end of the "
        f"chain goes in {ms['lower edge removed']:,.0f} ms and comes in {ms['lower edge added']:,.0f}, one above it "
        f"comes in {ms['upper edge added']:,.0f} and goes in {ms['upper edge removed']:,.0f}. Memory of "
        f"{memory['inferred triples']:,} inferred triples: {memory['MB']:.1f} MB."
    )
    result["targets"] = [target("reading that inference does not concern, on against off", ratio, 1.05, "")]
    return result


def _engine(on: bool) -> Engine:
    engine = Engine()
    readings = " . ".join(f":r{number} :value 0 ; :level 0" for number in range(_READINGS))
    engine.update(f"{_PREFIXES} INSERT DATA {{ {readings} }}")
    if on:
        engine.infer([None], [_ONTOLOGY])
    engine.update(f"{_PREFIXES} INSERT DATA {{ GRAPH {_ONTOLOGY} {{ {_chain()} . :level rdfs:domain :C0 }} }}")
    return engine


def _chain() -> str:
    return " . ".join(f":C{number} rdfs:subClassOf :C{number + 1}" for number in range(_DEPTH))


def _updates(off: Engine, on: Engine, updates: int) -> dict[str, float]:
    """Microseconds of CPU of an update, median of chunks in turns."""

    def reading(name: str) -> Callable[[int], str]:
        return lambda n: (
            f"PREFIX : <{_E}> DELETE {{ :r{n % _READINGS} :{name} ?o }} INSERT {{ :r{n % _READINGS} :{name} {n + 1} }} "
            f"WHERE {{ :r{n % _READINGS} :{name} ?o }}"
        )

    def instance(verb: str) -> Callable[[int], str]:
        return lambda n: f"PREFIX : <{_E}> {verb} DATA {{ :x{n} a :C0 }}"

    sides = [
        ("reading, off", off, reading("value")),
        ("reading, on", on, reading("value")),
        ("reading with a domain", on, reading("level")),
        ("instance, off", off, instance("INSERT")),
        ("instance, on", on, instance("INSERT")),
        ("instance, removed", on, instance("DELETE")),
    ]
    spent: dict[str, list[float]] = {name: [] for name, _, _ in sides}
    for first in range(0, updates, _CHUNK):
        for name, engine, text in sides:
            texts = [text(number) for number in range(first, first + _CHUNK)]
            cost = cost_of(lambda engine=engine, texts=texts: [engine.update(text) for text in texts])  # type: ignore[misc]
            spent[name].append(cost.cpu / _CHUNK * 1e6)
    return {name: statistics.median(costs) for name, costs in spent.items()}


def _instances(instances: int, progress: Progress) -> dict[str, Any]:
    """Milliseconds of CPU of a start and of edits of the ontology, and the memory of the inferred triples."""
    ms: dict[str, float] = {}
    with closing(Engine(evaluation_ms_max=60_000)) as engine:
        engine.load("".join(f"<{_E}x{number}> {_TYPE} <{_E}C0> .\n" for number in range(instances)).encode())
        engine.update(f"{_PREFIXES} INSERT DATA {{ GRAPH {_ONTOLOGY} {{ {_chain()} }} }}")
        engine.store.flush()
        before = resident_mb()
        ms["start"] = cost_of(lambda: engine.infer([None], [_ONTOLOGY])).cpu * 1e3
        engine.store.flush()
        memory = {"inferred triples": engine.quad_count - instances - _DEPTH, "MB": resident_mb() - before}
        progress(f"{instances:,} instances: a start infers in {ms['start']:,.0f} ms")
        top, bottom = f":C{_DEPTH} rdfs:subClassOf :Top", ":C0 rdfs:subClassOf :C1"
        for name, verb, edge in (
            ("upper edge added", "INSERT", top),
            ("upper edge removed", "DELETE", top),
            ("lower edge removed", "DELETE", bottom),
            ("lower edge added", "INSERT", bottom),
        ):
            text = f"{_PREFIXES} {verb} DATA {{ GRAPH {_ONTOLOGY} {{ {edge} }} }}"
            ms[name] = cost_of(lambda text=text: engine.update(text)).cpu * 1e3  # type: ignore[misc]
    return {"ms": ms, "memory": memory}
