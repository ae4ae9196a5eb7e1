"""Quad deltas of Graph Store writes."""

from __future__ import annotations

import pytest

from lamplighter.engine.errors import UnknownGraphError
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite, graph_write_delta


def test_deltas_of_writes_are_exact() -> None:
    old, both, new = (Quad(f"<http://{name}>", "<http://p>", '"1"', "<http://g>") for name in ("old", "both", "new"))
    quads = QuadStore()
    put_both = GraphWrite(GraphVerb.REPLACE, "<http://g>", (old, both))
    created = graph_write_delta(quads, put_both)
    assert (created.created, set(created.added), created.removed) == (("<http://g>",), {old, both}, ())
    quads.apply(created)
    replaced = graph_write_delta(quads, GraphWrite(GraphVerb.REPLACE, "<http://g>", (both, new)))
    assert (replaced.removed, replaced.added, replaced.kept, replaced.created) == ((old,), (new,), (both,), ())
    added = graph_write_delta(quads, GraphWrite(GraphVerb.ADD, "<http://g>", (both, new, new)))
    assert (added.removed, added.added, added.kept) == ((), (new,), (both,))
    dropped = graph_write_delta(quads, GraphWrite(GraphVerb.DROP, "<http://g>"))
    assert (set(dropped.removed), dropped.dropped) == ({old, both}, ("<http://g>",))
    emptied = graph_write_delta(quads, GraphWrite(GraphVerb.DROP, None))
    assert not emptied.changes
    with pytest.raises(UnknownGraphError):
        graph_write_delta(quads, GraphWrite(GraphVerb.DROP, "<http://nowhere>"))
