"""The delta of an update as its answer tells it: the quads that its client may read, if they are not too many."""

from __future__ import annotations

from itertools import islice

from lamplighter.engine.access import Access
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Bag, Quad

QUADS_MAX = 1_000
"""Quads of a delta in an answer. Writing them takes some milliseconds."""
CHARACTERS_MAX = 256 * 1024
"""Characters of their terms together."""
_COLUMNS = ("subject", "predicate", "object", "graph")


def visible_delta(delta: QuadDelta, access: Access) -> Results | None:
    """The readable quads that an update added and removed, as results with an unbound graph for the default graph.

    None if there are more than `QUADS_MAX`, or if their terms are longer than `CHARACTERS_MAX`.
    """
    readable = access.read
    added, removed = (
        list(islice((quad for quad in quads if quad.g in readable), QUADS_MAX + 1))
        for quads in (delta.added, delta.removed)
    )
    if len(added) + len(removed) > QUADS_MAX or sum(map(_length, (*added, *removed))) > CHARACTERS_MAX:
        return None
    return Results(Bag(_COLUMNS, added), Bag(_COLUMNS, removed))


def _length(quad: Quad) -> int:
    return sum(len(term) for term in quad if term is not None)
