"""The auditor: compares the index with the store while the engine runs.

Both follow from the same deltas, so a difference means a fault in the engine or in the machine's memory. Each step
compares a few quads, in endless rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term


class Index(Protocol):
    """The quads of some predicates; `engine.matching.cts.Cts` implements it."""

    def contains(self, quad: Quad) -> bool: ...

    def holds(self, p: Term) -> bool:
        """Whether all quads of this predicate are indexed."""
        ...

    def quads(self) -> Iterator[Quad]:
        """All indexed quads. Raises RuntimeError if the index changes during the iteration, as a dict does."""
        ...


class Auditor:
    """Finds quads that are in the index or in the store only.

    Changes between two steps are no findings: each quad is looked up in the current state of both. Each round compares
    all quads that stay unchanged; while the index changes constantly, some may wait for a later round.
    """

    def __init__(self, store: QuadStore, index: Index) -> None:
        self._store = store
        self._index = index
        self._indexed = index.quads()
        self._position = 0
        self._stored = store.all_quads(index.holds)
        self._renewals = store.renewals
        # Completed comparisons of the whole store.
        self.rounds = 0

    def step(self, count: int) -> list[str]:
        """Compares the next count quads of the index and of the store; returns a message for each difference."""
        return [*self._missing_in_store(count), *self._missing_in_index(count)]

    def _missing_in_store(self, count: int) -> Iterator[str]:
        quads = self._next_indexed(count)
        for quad, there in zip(quads, self._store.contains(quads), strict=True):
            if not there and self._index.contains(quad):
                yield f"the index has a quad that the store lacks: {quad.to_nquads()}"

    def _next_indexed(self, count: int) -> list[Quad]:
        quads: list[Quad] = []
        try:
            for quad in islice(self._indexed, count):
                quads.append(quad)
        except RuntimeError:
            # Skipping compared quads is about thirty times cheaper than comparing them again.
            self._indexed = islice(self._index.quads(), self._position + len(quads), None)
            quads += islice(self._indexed, count - len(quads))
        self._position += len(quads)
        if len(quads) < count:
            self._indexed, self._position = self._index.quads(), 0
        return quads

    def _missing_in_index(self, count: int) -> Iterator[str]:
        if self._store.renewals != self._renewals:  # the old iterator would keep the old store in memory
            self._renewals = self._store.renewals
            self._stored = self._store.all_quads(self._index.holds)
        read = list(islice(self._stored, count))
        if len(read) < count:
            self._stored = self._store.all_quads(self._index.holds)
            self.rounds += 1
        # The iterator reads the store as it was at the beginning of the round.
        unknown = [quad for quad in read if quad and self._index.holds(quad.p) and not self._index.contains(quad)]
        for quad, there in zip(unknown, self._store.contains(unknown), strict=True):
            if there:
                yield f"the store has a quad that the index lacks: {quad.to_nquads()}"
