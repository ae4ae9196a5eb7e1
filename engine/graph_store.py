"""Whole graphs that are replaced, added to or dropped (SPARQL 1.1 Graph Store HTTP Protocol) -> quad delta."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from engine.delta import QuadDelta
from engine.errors import UnknownGraphError
from engine.store import QuadStore
from engine.terms import Quad, Term


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


def graph_write_delta(store: QuadStore, write: GraphWrite) -> QuadDelta:
    """The net effect of a write; the store is left as it was. Raises UnknownGraphError when the graph that is to be
    dropped does not exist; the default graph always does, and is emptied. LimitExceededError for terms that are too
    long or too deep."""
    graph = write.graph
    exists = graph is None or store.has_graph(graph)
    created = () if exists or graph is None else (graph,)
    if write.verb is GraphVerb.DROP:
        if not exists:
            raise UnknownGraphError(f"there is no graph {graph}")
        return QuadDelta(removed=tuple(store.quads(graph)), dropped=() if graph is None else (graph,))
    store.check(write.quads)
    wanted = dict.fromkeys(write.quads)
    if write.verb is GraphVerb.ADD:
        there = {quad for quad, present in zip(wanted, store.contains(list(wanted)), strict=True) if present}
        removed: tuple[Quad, ...] = ()
    else:
        there = set(store.quads(graph)) if exists else set()
        removed = tuple(quad for quad in there if quad not in wanted)
    return QuadDelta(
        removed,
        tuple(quad for quad in wanted if quad not in there),
        tuple(quad for quad in wanted if quad in there),
        created,
    )
