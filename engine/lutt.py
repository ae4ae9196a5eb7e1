"""LUTT: the look-up triple table (Roffia 2016, III.B): which subscriptions can a changed quad touch?

The paper gives each SPU a table of its own and asks all of them. Here one index serves all: a pattern is
filed under the positions that it fixes and under their terms, so a changed quad costs one hash probe for
each combination of fixed positions in use (sixteen at most), however many subscriptions there are. It may
let too much through (bindings that a join would refuse), never too little.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from engine.delta import QuadDelta
from engine.sparql import ANY, Footprint, TriplePattern
from engine.terms import Quad, Term

Owner = TypeVar("Owner")

_Mask = tuple[bool, bool, bool, bool]
_Key = tuple[Term | None, ...]


class Lutt(Generic[Owner]):
    """Footprints and who has them. Owners are hashable; they come out in the order in which they came in."""

    def __init__(self) -> None:
        self._patterns: dict[_Mask, dict[_Key, dict[Owner, None]]] = {}
        self._graph_names: dict[Owner, None] = {}
        self._order: dict[Owner, int] = {}
        self._next = 0

    def add(self, owner: Owner, footprint: Footprint) -> None:
        self._order[owner] = self._next
        self._next += 1
        for pattern in footprint.patterns:
            mask, key = _mask_and_key(pattern)
            self._patterns.setdefault(mask, {}).setdefault(key, {})[owner] = None
        if footprint.graph_names:
            self._graph_names[owner] = None

    def remove(self, owner: Owner, footprint: Footprint) -> None:
        """Takes out what `add` put in; the memory comes back."""
        del self._order[owner]
        for pattern in footprint.patterns:
            mask, key = _mask_and_key(pattern)
            owners = self._patterns[mask][key]
            del owners[owner]
            if not owners:
                del self._patterns[mask][key]
                if not self._patterns[mask]:
                    del self._patterns[mask]
        self._graph_names.pop(owner, None)

    def touched(self, delta: QuadDelta) -> list[Owner]:
        """Owners whose result the delta can change, in the order in which they were added."""
        found: dict[Owner, None] = {}
        for quads in (delta.removed, delta.added):
            self._collect(quads, found)
        if delta.created or delta.dropped:
            found.update(self._graph_names)
        return sorted(found, key=self._order.__getitem__)

    def _collect(self, quads: Iterable[Quad], found: dict[Owner, None]) -> None:
        for quad in quads:
            for mask, filed in self._patterns.items():
                key = tuple(term for term, fixed in zip(quad, mask, strict=True) if fixed)
                owners = filed.get(key)
                if owners:
                    found.update(owners)


def _mask_and_key(pattern: TriplePattern) -> tuple[_Mask, _Key]:
    terms = (pattern.s, pattern.p, pattern.o, pattern.graph)
    fixed = tuple(term != ANY for term in terms)
    assert len(fixed) == 4
    return fixed, tuple(term for term in terms if term != ANY)
