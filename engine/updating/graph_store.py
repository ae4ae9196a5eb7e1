"""Whole graphs that are replaced, added to or dropped (SPARQL 1.1 Graph Store HTTP Protocol) -> quad delta."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import UnknownGraphError
from lamplighter.engine.slices import LONG, SLICE, Slices, sliced
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term


class GraphVerb(Enum):
    """What becomes of the graph: PUT, POST and DELETE of the protocol."""

    REPLACE = auto()
    ADD = auto()
    DROP = auto()


@dataclass(frozen=True)
class GraphWrite:
    """graph: its name, None for the default graph; quads: all of them in it, in canonical terms."""

    verb: GraphVerb
    graph: Term | None
    quads: tuple[Quad, ...] = ()


def graph_write_delta(
    store: QuadStore,
    write: GraphWrite,
    slices: Slices = Slices(),  # noqa: B008 - it has no state
) -> QuadDelta:
    """The net effect of a write; the store is left as it was. Raises UnknownGraphError when the graph that is to be
    dropped does not exist; the default graph always does, and is emptied. LimitExceededError for terms that are too
    long or too deep."""
    graph = write.graph
    exists = graph is None or store.has_graph(graph)
    created = () if exists or graph is None else (graph,)
    if write.verb is GraphVerb.DROP:
        if not exists:
            raise UnknownGraphError(f"there is no graph {graph}")
        there = all_of(store, graph, slices)
        return QuadDelta(removed=tuple(there), dropped=() if graph is None else (graph,))
    if len(write.quads) > LONG:
        slices.begin(len(write.quads))
    wanted: dict[Quad, None] = {}
    for some in sliced(write.quads, slices):
        store.check(some)
        wanted.update(dict.fromkeys(some))
    there = {} if write.verb is GraphVerb.ADD or not exists else all_of(store, graph, slices)
    removed = [quad for some in sliced(list(there), slices) for quad in some if quad not in wanted]
    added: list[Quad] = []
    kept: list[Quad] = []
    for some in sliced(list(wanted), slices):
        present = store.contains(some) if write.verb is GraphVerb.ADD else [quad in there for quad in some]
        for quad, known in zip(some, present, strict=True):
            (kept if known else added).append(quad)
    return QuadDelta(tuple(removed), tuple(added), tuple(kept), created)


def all_of(store: QuadStore, graph: Term | None, slices: Slices) -> dict[Quad, None]:
    """The quads of a graph."""
    found: dict[Quad, None] = {}
    rest = store.quads(graph)
    while some := list(islice(rest, SLICE)):
        found.update(dict.fromkeys(some))
        if len(found) > LONG:
            slices.begin(len(found))
            slices.pause()
    return found
