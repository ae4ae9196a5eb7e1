"""The index of subscriptions for one event at a time, without Spark. `index.candidates` finds the same in frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from lamplighter.cloud_sync.fleet.events.single_events import SingleEvent
from lamplighter.cloud_sync.fleet.subscriptions.index import ANY_NAMED, BranchEntry, IndexedBranch

_Key = tuple[str, ...]


class SingleIndex:
    """rows: as `index.entries` returns them."""

    def __init__(self, rows: Sequence[BranchEntry]) -> None:
        self._rows: dict[_Key, list[BranchEntry]] = defaultdict(list)
        for row in rows:
            self._rows[_key(row.branch)].append(row)
        self._kinds = frozenset(row.branch.kind for row in rows)

    def candidates(self, event: SingleEvent) -> Iterator[tuple[str, int]]:
        """The id and version of each subscription that the event may match, once. Its gateways are not looked at."""
        has = _TermsOfEvent(event, self._kinds)
        found: set[tuple[str, int]] = set()
        for key in has.keys & self._rows.keys():
            for row in self._rows[key]:
                subscription = (row.subscription, row.version)
                if subscription not in found and row.changes in ("both", event.change) and has.has_needed(row.branch):
                    found.add(subscription)
                    yield subscription


class _TermsOfEvent:
    """The terms of an event. kinds: the kinds of keys that the index has."""

    def __init__(self, event: SingleEvent, kinds: frozenset[str]) -> None:
        self._graph = event.graph
        self._places: tuple[set[str], set[str], set[str]] = (set(), set(), set())
        self.keys: set[_Key] = {("*",)} if "*" in kinds else set()
        subjects, predicates, objects = self._places
        for s, p, o in (*event.new, *event.old):
            subjects.add(s)
            predicates.add(p)
            objects.add(o)
            if "po" in kinds:
                self.keys.add(("po", p, o))
            if "sp" in kinds:
                self.keys.add(("sp", s, p))
        if "p" in kinds:
            self.keys |= {("p", p) for p in predicates}

    def has_needed(self, branch: IndexedBranch) -> bool:
        """Whether the event has what the branch needs besides its key."""
        if branch.graph is not None and (
            self._graph is None or (branch.graph != ANY_NAMED and branch.graph != self._graph)
        ):
            return False
        wanted = (branch.subjects, branch.predicates, branch.objects)
        return all(there.issuperset(terms) for there, terms in zip(self._places, wanted, strict=True))


def _key(branch: IndexedBranch) -> _Key:
    return tuple(part for part in branch[:3] if part is not None)
