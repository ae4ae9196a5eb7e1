"""How pyoxigraph's store in memory ages, and how it is built anew while it is being used.

It frees nothing: a removed quad stays in the list of its subject, of its predicate and of its object, and
whoever reads one of these lists walks past it (0.06 us each on the machine of docs/measurements.md). The cure
is a fresh store. It is filled in slices, from a snapshot that the old one keeps for us, while everybody
still reads the old one; then it catches up with what changed since, and takes its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyoxigraph as ox

from lamplighter.engine.terms import Quad, Term

TRACKED_MAX = 4096
"""How many subjects, predicates and objects are counted each; the rest are known up to an error."""


@dataclass(frozen=True)
class RenewalPolicy:
    """When a store is old and how fast it is renewed. The defaults come from `benchmarks/ageing.py`.

    pending_max: changes that wait before they are written. slice_quads: quads copied in one step; small, for
    a hash table of the fresh store may grow in it (5 ms at 334K quads). copies_per_change: quads copied for
    each change that is written, while a renewal is under way. dead_floor: so many dead quads harm nobody;
    dead_share: beyond, as many as this share of the living. hot_floor: as dead_floor, for those of one subject,
    predicate or object.
    """

    pending_max: int = 1000
    slice_quads: int = 128
    copies_per_change: int = 3
    dead_floor: int = 10_000
    dead_share: float = 1.0
    hot_floor: int = 500

    def hot_dead_max(self, live: int) -> int:
        """From how many dead quads of one subject on the store is renewed.

        With a read after each change, D dead quads have cost 0.06 us * D^2 / 2, and copying costs 2.2 us a
        quad: the sum per change is least at D = sqrt(73 * live). Twice that costs a quarter more and halves
        the number of renewals, each of which ends in a pause (`QuadStore`).
        """
        return max(self.hot_floor, 2 * math.isqrt(73 * live))


class Ageing:
    """Counts the removed quads that a native store still carries."""

    SAMPLE = 8

    def __init__(self, policy: RenewalPolicy) -> None:
        self._policy = policy
        self.dead = 0
        self._turn = 0
        self._hot = False
        self._subjects, self._predicates, self._objects = _Heavy(), _Heavy(), _Heavy()

    def count(self, removed: Sequence[Quad], live: int) -> None:
        """Takes note of quads that are removed from a store which has so many left."""
        self.dead += len(removed)
        # Many rows share a predicate or an object, and whoever reads these reads many rows anyway.
        subject_max = self._policy.hot_dead_max(live)
        shared_max = max(subject_max, live // 2)
        hot = self._subjects.count([quad[0] for quad in removed]) > subject_max
        # These limits are far off, so that of large writes every eighth, for eight, is near enough.
        self._turn += 1
        if len(removed) <= self.SAMPLE or self._turn % self.SAMPLE == 0:
            weight = 1 if len(removed) <= self.SAMPLE else self.SAMPLE
            hot |= self._predicates.count([quad[1] for quad in removed], weight) > shared_max
            hot |= self._objects.count([quad[2] for quad in removed], weight) > shared_max
        self._hot |= hot

    def due(self, live: int) -> bool:
        return self._hot or self.dead > max(self._policy.dead_floor, self._policy.dead_share * live)


class _Heavy:
    """Counts per term in bounded space: after n counts a count is too small by at most n / TRACKED_MAX.

    Source: Misra and Gries, Finding repeated elements, 1982, in the merged form of Agarwal et al., 2012.
    """

    def __init__(self) -> None:
        self._counts: Counter[Term] = Counter()

    def count(self, terms: Sequence[Term], weight: int = 1) -> int:
        """Counts the terms; the largest count among them. weight: for how many each stands."""
        counts = self._counts
        if weight == 1:
            counts.update(terms)
        else:
            counts.update({term: count * weight for term, count in Counter(terms).items()})
        largest = max(map(counts.__getitem__, terms), default=0)
        if len(counts) > 2 * TRACKED_MAX:
            common = sorted(counts.values(), reverse=True)[TRACKED_MAX]
            self._counts = Counter({term: count - common for term, count in counts.items() if count > common})
        return largest


class Renewal:
    """A fresh store on its way to take the place of an old one.

    names: the named graphs of the old store, which must have been brought up to date.
    """

    def __init__(self, old: ox.Store, names: Iterable[Term], policy: RenewalPolicy) -> None:
        self.fresh = ox.Store()
        self.ageing = Ageing(policy)
        self._policy = policy
        self._snapshot = iter(old)
        self._names = iter(list(names))  # those of graphs without quads would not come with the quads
        self._late: dict[Quad, bool] = {}
        self._late_graphs: dict[Term, bool] = {}

    def record(self, changes: Mapping[Quad, bool], graphs: Mapping[Term, bool]) -> None:
        """Takes note of what was written to the old store since, and changed it."""
        late = self._late
        for quad, present in changes.items():
            if late.pop(quad, None) is None:  # otherwise the change undoes one that waits
                late[quad] = present
        self._late_graphs.update(graphs)  # not so: the copy of a quad may have brought about the graph

    def step(self, live: int) -> bool:
        """Copies one slice. True when the fresh store holds the same as the old one; no step may follow."""
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
        removed, added = split(changes)
        write(self.fresh, removed, added, graphs)
        self.ageing.count(removed, live)
        return not self._late


def split(changes: Mapping[Quad, bool]) -> tuple[list[Quad], list[Quad]]:
    """The quads that are to be absent, and those that are to be present."""
    return [quad for quad, present in changes.items() if not present], [
        quad for quad, present in changes.items() if present
    ]


def write(store: ox.Store, removed: Sequence[Quad], added: Sequence[Quad], graphs: Mapping[Term, bool]) -> None:
    """Makes quads absent and present, and graphs; writing it again changes nothing more.

    A graph that is to be absent has no quads among the added ones.
    """
    for quad in native_quads(removed):
        store.remove(quad)
    for name, present in graphs.items():
        if not present:
            store.remove_graph(native_name(name))
    if added:
        text = nquads(added)
        if len(added) < 5 or "_:" in text:  # `load` renames blank nodes, and costs more for a few quads
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
    # One parse of many lines is cheaper than building each term from Python. Lenient: they are canonical already.
    return list(ox.parse(nquads(quads), format=ox.RdfFormat.N_QUADS, lenient=True)) if quads else []


def native_name(term: Term) -> ox.NamedNode | ox.BlankNode:
    return ox.BlankNode(term[2:]) if term.startswith("_:") else ox.NamedNode(term[1:-1])
