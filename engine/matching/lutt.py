"""LUTT: the look-up triple table (Roffia 2016, III.B): the subscriptions that a changed quad can touch.

The paper gives each SPU a table of its own and asks all of them. Here one index serves all. The matchers of a shape are
filed under the predicates of its patterns, and find the subscribers whose constants match in one hash probe. So a
changed quad costs as much with a million subscribers of a shape as with one. Re-evaluated subscriptions are filed under
the terms that their patterns fix: one probe for each combination of fixed positions in use, sixteen at most.

The LUTT may report too many subscriptions (for bindings that a join would refuse), never too few.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.terms import Quad, Term

# In a `TriplePattern`: any term; as its graph: any graph, the default graph included.
ANY = "*"


@dataclass(frozen=True)
class TriplePattern:
    """One triple pattern of a query: each position a term or `ANY`.

    graph: a name, None for the default graph, or `ANY`.
    """

    s: Term
    p: Term
    o: Term
    graph: Term | None


@dataclass(frozen=True)
class PatternSignature:
    """The part of a dataset that a query can depend on.

    patterns: its triple patterns, empty if the query reads no quad; graph_names: whether it also depends on which named
    graphs exist.
    """

    patterns: tuple[TriplePattern, ...]
    graph_names: bool


EVERYTHING = PatternSignature((TriplePattern(ANY, ANY, ANY, ANY),), graph_names=True)

Owner = TypeVar("Owner")
# (s, p, o, g, found, sign): adds what it finds to found. sign: 0 for a removed quad, 1 for an added one.
Matcher = Callable[..., None]


class ByPredicate(Protocol):
    """Matchers by the predicate of the quads that they are called with; a dict, for example."""

    def get(self, predicate: Term, default: tuple[()], /) -> Sequence[Matcher]: ...


# Patterns of a signature that `beside` compares with all others; a longer one may meet any.
_PATTERNS_COMPARED = 8

_Mask = tuple[bool, bool, bool, bool]
_Key = tuple[Term | None, ...]


class Lutt(Generic[Owner]):
    """Matchers by predicate, and owners by signature.

    matchers: by predicate; wildcards: the matchers of patterns whose predicate is a variable; filed: how many both are.
    owners: their places in the order in which they were added. Owners are hashable.
    """

    def __init__(self) -> None:
        self.matchers: dict[Term, list[Matcher]] = {}
        self.wildcards: list[Matcher] = []
        self.filed = 0
        self._patterns: dict[_Mask, dict[_Key, dict[Owner, None]]] = {}
        self._graph_names: dict[Owner, None] = {}
        self.owners: dict[Owner, int] = {}
        self._next = 0

    def add_matcher(self, predicate: Term | None, matcher: Matcher) -> None:
        """Files a matcher under a predicate, or under all predicates for None."""
        if predicate is None:
            self.wildcards.append(matcher)
        else:
            self.matchers.setdefault(predicate, []).append(matcher)
        self.filed += 1

    def remove_matcher(self, predicate: Term | None, matcher: Matcher) -> None:
        """Removes a matcher, if it is filed."""
        filed = self.wildcards if predicate is None else self.matchers.get(predicate, [])
        # It may be gone: what failed half-way is unfiled as a whole.
        if matcher in filed:
            filed.remove(matcher)
            self.filed -= 1
        if predicate is not None and not filed:
            self.matchers.pop(predicate, None)

    def matchings(self, delta: QuadDelta, slices: Slices = Slices()) -> int:  # noqa: B008 - it has no state
        """The number of calls of matchers for a delta, at most `filed` times for each quad."""
        wildcards, matchers = len(self.wildcards), self.matchers
        return sum(
            wildcards + len(matchers.get(quad.p, ()))
            for quads in (delta.removed, delta.added)
            for some in sliced(quads, slices)
            for quad in some
        )

    def add(self, owner: Owner, signature: PatternSignature) -> None:
        """Files an owner under its signature."""
        self.owners[owner] = self._next
        self._next += 1
        for pattern in signature.patterns:
            mask, key = _mask_and_key(pattern)
            self._patterns.setdefault(mask, {}).setdefault(key, {})[owner] = None
        if signature.graph_names:
            self._graph_names[owner] = None

    def remove(self, owner: Owner, signature: PatternSignature) -> None:
        """Removes what `add` filed, and frees the memory."""
        del self.owners[owner]
        for pattern in signature.patterns:
            mask, key = _mask_and_key(pattern)
            owners = self._patterns[mask][key]
            del owners[owner]
            if not owners:
                del self._patterns[mask][key]
                if not self._patterns[mask]:
                    del self._patterns[mask]
        self._graph_names.pop(owner, None)

    def lookup(self, delta: QuadDelta, slices: Slices = Slices()) -> list[Owner]:  # noqa: B008 - it has no state
        """The owners whose result the delta can change, in the order in which they were added."""
        found: dict[Owner, None] = {}
        for quads in (delta.removed, delta.added):
            for some in sliced(quads, slices):
                self._collect(some, found)
        if delta.created or delta.dropped:
            found.update(self._graph_names)
        # In a fixed order, so that notifications do not depend on hashes.
        return sorted(found, key=self.owners.__getitem__)

    def beside(self, signature: PatternSignature) -> list[Owner]:
        """The owners that a quad may touch which touches a signature. Changes of graphs are not looked at."""
        found: dict[Owner, None] = {}
        patterns = signature.patterns
        if len(patterns) > _PATTERNS_COMPARED:
            patterns = EVERYTHING.patterns
        for mask, filed in self._patterns.items():
            for key, owners in filed.items():
                terms = iter(key)
                other = [next(terms) if fixed else ANY for fixed in mask]
                if any(_may_meet(pattern, other) for pattern in patterns):
                    found.update(owners)
        return list(found)

    def _collect(self, quads: Iterable[Quad], found: dict[Owner, None]) -> None:
        for quad in quads:
            # One lookup for each set of fixed places, at most 16, however many patterns there are.
            for mask, filed in self._patterns.items():
                key = tuple(term for term, fixed in zip(quad, mask, strict=True) if fixed)
                owners = filed.get(key)
                if owners:
                    found.update(owners)


def _may_meet(pattern: TriplePattern, other: Sequence[Term | None]) -> bool:
    """Whether a quad may match a pattern and the terms of another one."""
    terms = (pattern.s, pattern.p, pattern.o, pattern.graph)
    return all(one == two or ANY in (one, two) for one, two in zip(terms, other, strict=True))


def _mask_and_key(pattern: TriplePattern) -> tuple[_Mask, _Key]:
    terms = (pattern.s, pattern.p, pattern.o, pattern.graph)
    fixed = tuple(term != ANY for term in terms)
    assert len(fixed) == 4
    return fixed, tuple(term for term in terms if term != ANY)
