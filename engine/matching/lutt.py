"""LUTT: the look-up triple table (Roffia 2016, III.B): which subscriptions can a changed quad touch?

The paper gives each SPU a table of its own and asks all of them. Here one index serves all. A shape's matchers
are filed under the predicates of its patterns, and find those of its subscribers whose constants fit in one
hash probe, so a changed quad costs as much with a million subscribers of a shape as with one. Re-evaluated
subscriptions are filed under the positions that their patterns fix and the terms there: one probe for each
combination of fixed positions in use, sixteen at most. The LUTT may let too much through (bindings that a join
would refuse), never too little.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.terms import Quad, Term

ANY = "*"
"""Stands in a `TriplePattern` for every term, and as graph for every graph, the default graph too."""


@dataclass(frozen=True)
class TriplePattern:
    """One triple pattern of a query as the LUTT sees it: each position a term or `ANY`.

    graph: a name, None for the default graph, or `ANY`.
    """

    s: Term
    p: Term
    o: Term
    graph: Term | None


@dataclass(frozen=True)
class Footprint:
    """What of a dataset a query can depend on.

    patterns: its triple patterns (none when the query reads no quad); graph_names: whether it also
    depends on which named graphs exist.
    """

    patterns: tuple[TriplePattern, ...]
    graph_names: bool


EVERYTHING = Footprint((TriplePattern(ANY, ANY, ANY, ANY),), graph_names=True)

Owner = TypeVar("Owner")
Matcher = Callable[..., None]
"""Called with s, p, o, g, where to put what it finds, and 0 for a removed quad or 1 for an added one."""

_Mask = tuple[bool, bool, bool, bool]
_Key = tuple[Term | None, ...]


class Lutt(Generic[Owner]):
    """Footprints and who has them. Owners are hashable; they come out in the order in which they came in."""

    def __init__(self) -> None:
        self.matchers: dict[Term, list[Matcher]] = {}
        """By predicate."""
        self.wildcards: list[Matcher] = []
        """Matchers of patterns whose predicate is a variable."""
        self._patterns: dict[_Mask, dict[_Key, dict[Owner, None]]] = {}
        self._graph_names: dict[Owner, None] = {}
        self._order: dict[Owner, int] = {}
        self._next = 0

    def add_matcher(self, predicate: Term | None, matcher: Matcher) -> None:
        if predicate is None:
            self.wildcards.append(matcher)
        else:
            self.matchers.setdefault(predicate, []).append(matcher)

    def remove_matcher(self, predicate: Term | None, matcher: Matcher) -> None:
        """Takes it out if it is there."""
        filed = self.wildcards if predicate is None else self.matchers.get(predicate, [])
        if matcher in filed:
            filed.remove(matcher)
        if predicate is not None and not filed:
            self.matchers.pop(predicate, None)

    @property
    def owners(self) -> int:
        """How many have been added with a footprint."""
        return len(self._order)

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

    def touched(self, delta: QuadDelta, slices: Slices = Slices()) -> list[Owner]:  # noqa: B008 - it has no state
        """Owners whose result the delta can change, in the order in which they were added."""
        found: dict[Owner, None] = {}
        for quads in (delta.removed, delta.added):
            for some in sliced(quads, slices):
                self._collect(some, found)
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
