"""Graph Store write -> quad delta: replaces, adds to or drops a whole graph (SPARQL 1.1 Graph Store HTTP Protocol)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import UnknownGraphError
from lamplighter.engine.slices import LONG, Slices, distinct, sliced
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term


class GraphVerb(Enum):
    """The effect on the graph: PUT, POST and DELETE of the protocol."""

    REPLACE = auto()
    ADD = auto()
    DROP = auto()


@dataclass(frozen=True)
class GraphWrite:
    """A write to one graph.

    graph: its name, None for the default graph; quads: its new content, in canonical terms.
    """

    verb: GraphVerb
    graph: Term | None
    quads: tuple[Quad, ...] = ()


def graph_write_delta(
    store: QuadStore,
    write: GraphWrite,
    slices: Slices = Slices(),  # noqa: B008 - it has no state
) -> QuadDelta:
    """The net effect of a write. The store is unchanged.

    Raises UnknownGraphError if the graph to drop does not exist; the default graph always exists, and is emptied.
    Raises LimitExceededError for terms that are too long or too deep.
    """
    graph = write.graph
    exists = graph is None or store.has_graph(graph)
    created = () if exists or graph is None else (graph,)
    if write.verb is GraphVerb.DROP:
        if not exists:
            raise UnknownGraphError(f"there is no graph {graph}")
        there = distinct(store.quads(graph), slices)
        return QuadDelta(removed=tuple(there), dropped=() if graph is None else (graph,))
    if len(write.quads) > LONG:
        slices.begin(len(write.quads))
    wanted: dict[Quad, None] = {}
    for some in sliced(write.quads, slices):
        store.check(some)
        wanted.update(dict.fromkeys(some))
    there = {} if write.verb is GraphVerb.ADD or not exists else distinct(store.quads(graph), slices)
    removed = [quad for some in sliced(list(there), slices) for quad in some if quad not in wanted]
    added: list[Quad] = []
    kept: list[Quad] = []
    for some in sliced(list(wanted), slices):
        present = store.contains(some) if write.verb is GraphVerb.ADD else [quad in there for quad in some]
        for quad, known in zip(some, present, strict=True):
            (kept if known else added).append(quad)
    return QuadDelta(tuple(removed), tuple(added), tuple(kept), created)
