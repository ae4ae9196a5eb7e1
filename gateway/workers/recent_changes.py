"""What commits have changed since a dry run began, or since queries were read, as long as somebody may ask. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from weakref import WeakSet

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.lutt import ANY, Lutt, PatternSignature
from lamplighter.engine.matching.signatures import signature_of_text
from lamplighter.engine.sparql.requests import canonical
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.terms import Term

QUADS_MAX = 5_000
"""Quads and graphs of the deltas that are kept; to look at them all takes some milliseconds."""
DELTAS_MAX = 5_000


class Version:
    """A version of the dataset. number: of the changes before it that were noted."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


class QueryWatch:
    """Whether a commit may have touched what some queries read. It costs a commit a look-up until one has. valueless:
    predicates of which only the subjects matter, so that another object in place of one does not."""

    __slots__ = ("__weakref__", "_lutt", "_predicates", "_valueless", "touched")

    def __init__(self, queries: Iterable[str], valueless: Collection[Term] = ()) -> None:
        self._valueless = frozenset(valueless)
        lifter = Lifter(canonical)
        self._lutt = Lutt[str]()
        self._predicates = set[Term]()
        for query in queries:
            signature = signature_of_text(query, lifter, chosen=False)
            self._lutt.add(query, signature)
            self._predicates.update(pattern.p for pattern in signature.patterns)
        self.touched = False

    def note(self, delta: QuadDelta) -> None:
        if self.touched:
            return
        if _size(delta) > QUADS_MAX:  # it would take long to look at
            self.touched = True
        elif self._may_matter(delta):
            self.touched = bool(self._lutt.lookup(self._without_replaced(delta)))

    def _without_replaced(self, delta: QuadDelta) -> QuadDelta:
        """Without the objects that others replace."""
        if not self._valueless:
            return delta
        removed, added = (
            {(quad.s, quad.p, quad.g) for quad in quads if quad.p in self._valueless}
            for quads in (delta.removed, delta.added)
        )
        both = removed & added
        removed_quads, added_quads = (
            tuple(quad for quad in quads if (quad.s, quad.p, quad.g) not in both)
            for quads in (delta.removed, delta.added)
        )
        return delta._replace(removed=removed_quads, added=added_quads)

    def _may_matter(self, delta: QuadDelta) -> bool:
        """Most commits have predicates that no query reads: this is faster than a look-up."""
        predicates = self._predicates
        return bool(
            ANY in predicates
            or delta.created
            or delta.dropped
            or any(quad.p in predicates for quad in delta.removed)
            or any(quad.p in predicates for quad in delta.added)
        )


class RecentChanges:
    """The deltas of the last commits. watched: the versions that somebody has; where there is none, nobody asks what
    has changed, and no commit needs to be kept."""

    def __init__(self) -> None:
        self.watched = WeakSet[Version]()
        self._queries = WeakSet[QueryWatch]()
        self._number = 0
        self._deltas: deque[QuadDelta] = deque()
        self._size = 0

    def watch(self) -> Version:
        """The present version. What changes is to be noted as long as the caller keeps it."""
        if not self.watched:
            self._deltas.clear()
            self._size = 0
        version = Version(self._number)
        self.watched.add(version)
        return version

    def watch_queries(self, queries: Iterable[str], valueless: Collection[Term] = ()) -> QueryWatch:
        """Looks at each commit from now on, as long as the caller keeps the result. queries: SELECT queries over the
        dataset of the store. valueless: as of `QueryWatch`."""
        watch = QueryWatch(queries, valueless)
        self._queries.add(watch)
        return watch

    def note(self, delta: QuadDelta) -> None:
        """A commit changes the dataset."""
        for watch in self._queries:
            watch.note(delta)
        if not self.watched:
            return
        removed, added, _, created, dropped = delta
        if not (removed or added or created or dropped):
            return
        self._number += 1
        self._deltas.append(delta._replace(kept=()))  # what it asserts again may be long
        self._size += _size(delta)
        while self._size > QUADS_MAX or len(self._deltas) > DELTAS_MAX:
            self._size -= _size(self._deltas.popleft())

    def since(self, version: Version) -> bool:
        """Whether a commit since that version has changed anything."""
        return version.number != self._number

    def touches(self, signature: PatternSignature, version: Version) -> bool:
        """Whether a commit since that version may have touched what a query reads."""
        count = self._number - version.number
        if not count:
            return False
        if count > len(self._deltas):
            return True  # it is not known any more
        lutt = Lutt[None]()
        lutt.add(None, signature)
        return any(lutt.lookup(self._deltas[-number]) for number in range(1, count + 1))


def _size(delta: QuadDelta) -> int:
    return sum(map(len, (delta.removed, delta.added, delta.created, delta.dropped)))
