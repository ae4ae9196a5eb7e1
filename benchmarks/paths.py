"""Subscriptions with property paths: class hierarchies of Brick's size, and edges that come and go.

The building and its classes are generated, since the figures depend on sizes and shapes only: 1,400 classes up to eight
deep, as Brick 1.4 has, and 60,000 quads.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.effort import Effort
from benchmarks.measuring import EngineSide, LogFile, Progress, race, target
from lamplighter.engine import Engine

BRICK, RDFS = "https://brickschema.org/schema/Brick#", "http://www.w3.org/2000/01/rdf-schema#"
RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
PREFIXES = f"PREFIX brick: <{BRICK}> PREFIX rdfs: <{RDFS}> PREFIX : <urn:b:> "
CLASSES, DEPTH_MAX = 1_400, 8
CHILDREN = 10
"""Parts of a part, so that 10,000 edges are four levels."""
EDGE_UPDATES = 300
READINGS = 310
"""Readings of one run, as many as the paper's LAMP has."""


class Hierarchy:
    """Classes as a tree. parents: of each class, by number; the root, 0, has none."""

    def __init__(self, random: Random) -> None:
        self.parents: list[int | None] = [None]
        depths = [1]
        while len(self.parents) < CLASSES:
            parent = random.randrange(len(self.parents))
            if depths[parent] < DEPTH_MAX:
                self.parents.append(parent)
                depths.append(depths[parent] + 1)

    def ancestors(self, number: int) -> list[int]:
        """The class and those above it."""
        found = [number]
        while (parent := self.parents[found[-1]]) is not None:
            found.append(parent)
        return found

    def triples(self) -> Iterator[str]:
        for number, parent in enumerate(self.parents):
            if parent is not None:
                yield f"<{BRICK}C{number}> <{RDFS}subClassOf> <{BRICK}C{parent}> ."


def building(classes: Hierarchy, sensors: int, random: Random) -> bytes:
    """Sensors with a class, a value, a place, a unit and a label, as N-Triples; five quads each."""
    lines = list(classes.triples())
    for number in range(sensors):
        sensor = f"<urn:b:s{number}>"
        lines += [
            f"{sensor} <{RDF_TYPE}> <{BRICK}C{random.randrange(CLASSES)}> .",
            f'{sensor} <{BRICK}value> "0" .',
            f"{sensor} <{BRICK}isPointOf> <urn:b:e{number // 8}> .",
            f"{sensor} <{BRICK}hasUnit> <urn:b:u{number % 12}> .",
            f'{sensor} <{RDFS}label> "sensor {number}" .',
        ]
    return "\n".join(lines).encode()


def paths(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Readings beside class-aware subscriptions, and edges of trees of 10,000 edges that paths follow."""
    result = _class_aware(effort, out, progress)
    result["edges us"] = _edges(effort, progress)
    one, many = result["relative"]["one"], result["relative"]["many"]
    name = f"{effort.class_aware:,} class-aware subscriptions: cost of a reading relative to one"
    result["targets"] = [
        target(name, many, 1.2),
        target("one class-aware subscription: cost of a reading relative to a plain one", one, 2),
        *(
            target(f"{edges}: an edge that comes or goes, {rows:.0f} row(s) of output", us, 100, " us")
            for edges, us, rows in result["edges us"]
        ),
    ]
    return result


# --- class hierarchy --------------------------------------------------------------------------------


def _class_aware(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Engines with one plain, one class-aware and many class-aware subscriptions follow the same readings in turns.

    Each reading is of a sensor whose class the plain subscription names, and notifies one subscriber of each engine.
    """
    random = Random(1)
    classes = Hierarchy(random)
    data = building(classes, effort.building_sensors, random)
    chosen = max(range(CLASSES), key=lambda number: len(classes.ancestors(number)))
    above = set(classes.ancestors(chosen))
    top = classes.ancestors(chosen)[-2]
    others = [number for number in range(CLASSES) if number not in above][: effort.class_aware - 1]
    plain = f"{PREFIXES} SELECT ?s ?v {{ ?s a brick:C{chosen} ; brick:value ?v }}"
    aware = f"{PREFIXES} SELECT ?s ?v {{ ?s a/rdfs:subClassOf* brick:C%d ; brick:value ?v }}"
    texts = {"plain": [plain], "one": [aware % top], "many": [aware % number for number in (top, *others)]}
    logs = {name: LogFile(out / f"paths-{name}.log") for name in texts}
    sides: dict[str, EngineSide] = {}
    for name, subscriptions in texts.items():
        engine = Engine()
        engine.load(data, media_type="application/n-triples")
        for sensor in range(READINGS):
            engine.update(f"{PREFIXES} DELETE WHERE {{ :s{sensor} a ?c }}")
            engine.update(f"{PREFIXES} INSERT DATA {{ :s{sensor} a brick:C{chosen} }}")
        for text in subscriptions:
            engine.subscribe(text)
        sides[name] = EngineSide(engine, logs[name])
        progress(f"{name}: {len(subscriptions):,} subscription(s) over {engine.quad_count:,} quads")
    costs: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(-2, 2 * effort.scaling):
        readings = [_reading(sensor, repetition % 7) for sensor in range(READINGS)]
        notified = {name: side.notified for name, side in sides.items()}
        order = list(sides) if repetition % 2 else list(reversed(sides))
        spent = race({name: (sides[name], readings) for name in order})
        if repetition >= 0:  # those before warm up
            told = {name: side.notified - notified[name] for name, side in sides.items()}
            assert set(told.values()) == {READINGS}, f"{told} notifications"
            for name, cost in spent.items():
                costs[name].append(cost.cpu)
    for log in logs.values():
        log.close()
    us = {name: median(found) / READINGS * 1e6 for name, found in costs.items()}
    progress(", ".join(f"{name} {cost:.1f} us" for name, cost in us.items()))
    ratios = {
        name: median(one / other for one, other in zip(costs[name], costs[base], strict=True))
        for name, base in (("one", "plain"), ("many", "one"))
    }
    return {"reading us": us, "relative": ratios, "quads": sides["one"].engine.quad_count}


def _reading(sensor: int, value: int) -> str:
    subject = f"<urn:b:s{sensor}> <{BRICK}value>"
    return f"DELETE {{ {subject} ?v }} INSERT {{ {subject} {value} }} WHERE {{ {subject} ?v }}"


# --- edges ------------------------------------------------------------------------------------------


def _edges(effort: Effort, progress: Progress) -> list[tuple[str, float, float]]:
    """For each query: its name, the median CPU time in us of an update that adds or removes an edge, and its rows."""
    edges = effort.path_edges
    queries = (
        ("feeds+ between all", "feeds", "SELECT ?x ?y { ?x brick:feeds+ ?y }"),
        ("feeds+ from one", "feeds", "SELECT ?y { :n0 brick:feeds+ ?y }"),
        ("isPartOf* to one", "isPartOf", "SELECT ?x { ?x brick:isPartOf* :n0 }"),
        ("isPartOf* of rooms", "isPartOf", "SELECT ?x ?y { ?x a brick:Room ; brick:isPartOf* ?y . ?y a brick:Floor }"),
    )
    found = []
    for name, predicate, query in queries:
        engine = Engine()
        engine.load(_tree(predicate, edges), media_type="application/n-triples")
        subscription = engine.subscribe(PREFIXES + query)
        us, rows = _edge_updates(engine, predicate, edges)
        found.append((f"{name}, {edges:,} edges, {subscription.spu_class}", us, rows))
        progress(f"{name}: {us:.1f} us an edge, {rows:.1f} rows; first result {len(subscription.first):,} rows")
        engine.close()
    return found


def _edge(predicate: str, child: int, parent: int) -> str:
    """feeds leads down the tree, isPartOf up."""
    ends = (parent, child) if predicate == "feeds" else (child, parent)
    return f"<urn:b:n{ends[0]}> <{BRICK}{predicate}> <urn:b:n{ends[1]}> ."


def _tree(predicate: str, edges: int) -> bytes:
    lines = [_edge(predicate, child, (child - 1) // CHILDREN) for child in range(1, edges + 1)]
    lines += [f"<urn:b:n{node}> <{RDF_TYPE}> <{BRICK}Room> ." for node in range(edges // CHILDREN, edges + 1)]
    lines += [f"<urn:b:n{node}> <{RDF_TYPE}> <{BRICK}Floor> ." for node in range(1, CHILDREN + 1)]
    return "\n".join(lines).encode()


def _edge_updates(engine: Engine, predicate: str, edges: int) -> tuple[float, float]:
    """Takes leaves off the tree and puts them back."""
    random = Random(2)
    gc.collect()
    costs, rows = [], 0
    leaves: Sequence[int] = [random.randrange(edges // CHILDREN + 1, edges) for _ in range(EDGE_UPDATES // 2)]
    for leaf in leaves:
        edge = _edge(predicate, leaf, (leaf - 1) // CHILDREN)
        for form in ("DELETE", "INSERT"):
            text = f"{form} DATA {{ {edge} }}"
            started = time.process_time()
            commit = engine.update(text)
            costs.append(time.process_time() - started)
            rows += sum(len(it.added) + len(it.removed) for it in commit.notifications)
    return median(costs) * 1e6, rows / len(costs)
