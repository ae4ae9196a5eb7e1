"""Renewal: replaces an aged native store in memory by a fresh copy, while the old one stays in use.

pyoxigraph's store in memory frees nothing. A removed quad stays in the lists of its subject, predicate and object, and
each read of these lists passes over it (0.06 us a quad, docs/internals/benchmarks.md). A fresh store is filled
in slices from a snapshot of the old one. It then takes over the changes made meanwhile, and replaces the old store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyoxigraph as ox

from lamplighter.engine.terms import Quad, Term

# Subjects, predicates and objects that are counted each. Counts of other terms have a bounded error.
TRACKED_MAX = 4096


@dataclass(frozen=True)
class RenewalPolicy:
    """When a store is renewed, and how fast. The defaults come from `benchmarks/ageing.py`.

    pending_max: changes that wait before they are written. slice_quads: quads copied in one step; few, because a hash
    table of the fresh store may grow in a step (5 ms at 334K quads). copies_per_change: quads copied for each written
    change during a renewal, in long work for each added quad. dead_floor, dead_share: a renewal is due when more dead
    quads exist than dead_floor and than this share of the live ones. hot_floor: as dead_floor, for the quads of one
    subject, predicate or object.
    """

    pending_max: int = 1000
    slice_quads: int = 128
    copies_per_change: int = 3
    dead_floor: int = 10_000
    dead_share: float = 1.0
    hot_floor: int = 500

    def hot_dead_max(self, live: int) -> int:
        """The dead quads of one subject above which a renewal is due. live: the live quads of the store."""
        # With a read after each change, D dead quads cost 0.06 us * D^2 / 2 in total, and copying costs 2.2 us a quad.
        # The cost per change is least at D = sqrt(73 * live). Twice that costs a quarter more and halves the number of
        # renewals, each of which ends in a pause (`QuadStore`).
        return max(self.hot_floor, 2 * math.isqrt(73 * live))


class Ageing:
    """Counts the dead quads of a native store: removed, but still in its lists. dead: their number."""

    SAMPLE = 8

    def __init__(self, policy: RenewalPolicy) -> None:
        self._policy = policy
        self.dead = 0
        self._uncounted = 0  # removed quads that the sampling left out
        self._turn = 0
        self._hot = False
        self._subjects, self._predicates, self._objects = _Heavy(), _Heavy(), _Heavy()

    def count(self, removed: Sequence[Quad], live: int) -> None:
        """Counts removed quads. live: the quads that the store has left."""
        self.dead += len(removed)
        # A read by predicate or object returns many rows anyway, so dead quads may be more.
        subject_max = self._policy.hot_dead_max(live)
        shared_max = max(subject_max, live // 2)
        hot = self._subjects.count([quad[0] for quad in removed]) > subject_max
        # These limits are high, so it is exact enough to count every eighth large write eightfold.
        self._turn += 1
        if len(removed) <= self.SAMPLE or self._turn % self.SAMPLE == 0:
            weight = 1 if len(removed) <= self.SAMPLE else self.SAMPLE
            hot |= self._predicates.count([quad[1] for quad in removed], weight) > shared_max
            hot |= self._objects.count([quad[2] for quad in removed], weight) > shared_max
        else:
            self._uncounted += len(removed)
        self._hot |= hot

    def dead_max(self, position: int, term: Term | None) -> int:
        """At least the dead quads with a term as their subject (position 0), predicate (1) or object (2); all of them
        for None, and for a graph (3)."""
        if not self.dead or term is None or position > 2:
            return self.dead
        if position == 0:
            return self._subjects.most(term)
        counts = self._predicates if position == 1 else self._objects
        return min(self.dead, counts.most(term) + self._uncounted)

    def is_due(self, live: int) -> bool:
        """Whether the store should be renewed."""
        return self._hot or self.dead > max(self._policy.dead_floor, self._policy.dead_share * live)


class _Heavy:
    """Counts per term in bounded space. After n counts, each is too small by at most n / TRACKED_MAX.

    Source: Misra and Gries, Finding repeated elements, 1982, in the merged form of Agarwal et al., 2012.
    """

    def __init__(self) -> None:
        self._counts: Counter[Term] = Counter()
        self._lost = 0  # what each count may be too small by

    def most(self, term: Term) -> int:
        """At least as often as the term was counted."""
        return self._counts.get(term, 0) + self._lost

    def count(self, terms: Sequence[Term], weight: int = 1) -> int:
        """Counts the terms, each weight times; returns the largest count among them."""
        counts = self._counts
        if weight == 1:
            counts.update(terms)
        else:
            counts.update({term: count * weight for term, count in Counter(terms).items()})
        largest = max(map(counts.__getitem__, terms), default=0)
        if len(counts) > 2 * TRACKED_MAX:
            common = sorted(counts.values(), reverse=True)[TRACKED_MAX]
            self._counts = Counter({term: count - common for term, count in counts.items() if count > common})
            self._lost += common
        return largest


class Renewal:
    """A renewal in progress.

    fresh: the new store. old: the store to replace, without pending changes. names: its named graphs.
    """

    def __init__(self, old: ox.Store, names: Iterable[Term], policy: RenewalPolicy) -> None:
        self.fresh = ox.Store()
        self.ageing = Ageing(policy)
        self._policy = policy
        self._snapshot = iter(old)
        self._names = iter(list(names))  # graphs without quads are not copied with the quads
        self._late: dict[Quad, bool] = {}
        self._late_graphs: dict[Term, bool] = {}

    def record(self, changes: Mapping[Quad, bool], graphs: Mapping[Term, bool]) -> None:
        """Records changes that have been written to the old store since the renewal began."""
        late = self._late
        for quad, present in changes.items():
            if late.pop(quad, None) is None:  # otherwise it cancels an earlier change
                late[quad] = present
        self._late_graphs.update(graphs)  # these do not cancel: copying a quad may have created the graph

    def step(self, live: int) -> bool:
        """Copies one slice. Returns True when the fresh store equals the old one; no step may follow."""
        size = self._policy.slice_quads
        quads = list(islice(self._snapshot, size))
        if quads:
            self.fresh.extend(quads)
            return False
        names = list(islice(self._names, size))
        if names:
            for name in names:
                self.fresh.add_graph(native_name(name))
            return False
        changes = dict(islice(self._late.items(), size))
        for quad in changes:
            del self._late[quad]
        graphs = {} if self._late else self._late_graphs
        removed, added = split_changes(changes)
        write(self.fresh, removed, added, graphs)
        self.ageing.count(removed, live)
        return not self._late


def split_changes(changes: Mapping[Quad, bool]) -> tuple[list[Quad], list[Quad]]:
    """The quads that are to be absent, and those that are to be present."""
    return [quad for quad, present in changes.items() if not present], [
        quad for quad, present in changes.items() if present
    ]


def write(store: ox.Store, removed: Sequence[Quad], added: Sequence[Quad], graphs: Mapping[Term, bool]) -> None:
    """Removes and adds quads, and graphs (name -> whether it shall exist). It may be repeated.

    No added quad may be in a graph that is removed.
    """
    for quad in native_quads(removed):
        store.remove(quad)
    for name, present in graphs.items():
        if not present:
            store.remove_graph(native_name(name))
    if added:
        text = nquads(added)
        if len(added) < 5 or "_:" in text:  # `load` renames blank nodes, and is slower for a few quads
            store.extend(ox.parse(text, format=ox.RdfFormat.N_QUADS, lenient=True))
        else:
            store.load(text, format=ox.RdfFormat.N_QUADS, lenient=True)
    for name, present in graphs.items():
        if present:
            store.add_graph(native_name(name))


def nquads(quads: Iterable[Quad]) -> str:
    return "".join(
        [f"{s} {p} {o} .\n" if g is None else f"{s} {p} {o} {g} .\n" for s, p, o, g in quads]  # a list is faster
    )


def native_quads(quads: Sequence[Quad]) -> list[ox.Quad]:
    # One parse of many lines is faster than creating each term from Python. Lenient, since the terms are canonical.
    return list(ox.parse(nquads(quads), format=ox.RdfFormat.N_QUADS, lenient=True)) if quads else []


def native_name(term: Term) -> ox.NamedNode | ox.BlankNode:
    return ox.BlankNode(term[2:]) if term.startswith("_:") else ox.NamedNode(term[1:-1])
