"""The delta in the answer of an update: what its client may read, and not too much."""

from __future__ import annotations

import pytest

from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import Quad
from lamplighter.gateway.loop.updates import DELTA_CHARACTERS_MAX, DELTA_QUADS_MAX, visible_delta

OPEN, HIDDEN = (Quad("<x:a>", "<x:p>", f'"{graph}"', graph) for graph in ("<x:open>", "<x:hidden>"))
DEFAULT = Quad("<x:a>", "<x:p>", '"default"')
DELTA = QuadDelta(removed=(HIDDEN, DEFAULT), added=(OPEN,), kept=(DEFAULT,))


@pytest.mark.parametrize(
    ("access", "added", "removed"),
    [
        (FULL, [OPEN], [HIDDEN, DEFAULT]),
        (Access(read=Graphs(frozenset({"<x:open>"}))), [OPEN], []),
        (Access(read=Graphs(frozenset({None})), write=Graphs(frozenset({"<x:hidden>"}))), [], [DEFAULT]),
        (Access(read=Graphs(frozenset())), [], []),
    ],
)
def test_only_what_the_client_may_read_is_told(access: Access, added: list[Quad], removed: list[Quad]) -> None:
    results = visible_delta(DELTA, access)
    assert results is not None
    assert (list(results.added), list(results.removed)) == (added, removed)
    assert b"hidden" not in results.members or access is FULL


def test_a_delta_that_is_too_large_is_not_told() -> None:
    many = tuple(Quad(f"<x:{number}>", "<x:p>", "<x:o>", "<x:open>") for number in range(DELTA_QUADS_MAX))
    assert visible_delta(QuadDelta(added=many), FULL) is not None
    assert visible_delta(QuadDelta(added=many, removed=(OPEN,)), FULL) is None
    assert visible_delta(QuadDelta(added=(*many, OPEN)), FULL) is None
    long = Quad("<x:a>", "<x:p>", '"' + "x" * DELTA_CHARACTERS_MAX + '"', "<x:hidden>")
    assert visible_delta(QuadDelta(added=(long,)), FULL) is None
    results = visible_delta(QuadDelta(added=(long, OPEN)), Access(read=Graphs(frozenset({"<x:open>"}))))
    assert results is not None
    assert list(results.added) == [OPEN]
