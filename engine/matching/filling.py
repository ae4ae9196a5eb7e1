"""Fillings: tables that are filled from the store in portions, while the dataset changes.

::

    store, as it was at the first portion ─▶ portions ─▶ tables ─▶ the CTS holds them
    changes meanwhile ─▶ late ──────────── last portion ──▲

A predicate may have millions of quads, of which one takes 7 us. So a subscription that needs them is told first
(`NotIndexedError`), and others go on between two portions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lamplighter.engine.matching.quad_tables import Tables
from lamplighter.engine.terms import Quad, Term

# (predicate) -> its quads in all graphs in batches, for None those of all predicates; None behind the last. Fewer come,
# without None, if the store had to be closed meanwhile.
BatchesOf = Callable[[Term | None], Iterator[list[Quad] | None]]


class NotIndexedError(Exception):
    """A plan needs quads that are not indexed, and so many that they are to be indexed in portions. predicate: theirs,
    None for all; by_object: whether they are to be found by their objects."""

    def __init__(self, predicate: Term | None, by_object: bool) -> None:
        super().__init__(f"the quads of {predicate or 'all predicates'} are to be indexed in portions")
        self.predicate = predicate
        self.by_object = by_object


class Filling:
    """The tables of a predicate, or of all for None. done: whether they have all quads; they follow changes from then
    on, as those of the CTS do. turns: how often `Cts.forget_filled` has found them."""

    def __init__(self, predicate: Term | None, batches_of: BatchesOf, *, by_object: bool) -> None:
        self._predicate = predicate
        self._batches_of = batches_of
        self._by_object = by_object
        self.tables: dict[Term, Tables] = {} if predicate is None else {predicate: Tables(by_object)}
        self._rest: Iterator[list[Quad] | None] | None = None
        self._shared: dict[Term, Term] = {}  # equal terms become one string, as in the CTS
        self._late: dict[Quad, bool] = {}
        self.done = False
        self.turns = 0

    def fill_some(self) -> bool:
        """Takes a portion. Returns whether it is done. Always from the same thread, as iterators of the store are."""
        if self.done:
            return True
        if self._rest is None:
            self._rest = self._batches_of(self._predicate)
            self._late.clear()
        batch = next(self._rest, [])
        if batch:
            one = self._shared.setdefault
            for s, p, o, g in batch:
                self._tables_of(p).table(g).add(one(s, s), one(o, o))
        elif batch is None:
            self._rest = None
            for quad, added in self._late.items():
                self._apply(quad, added)
            self._shared, self._late = {}, {}
            self.done = True
        else:  # the store was opened again: from the beginning, without what has left meanwhile
            self.__init__(self._predicate, self._batches_of, by_object=self._by_object)  # type: ignore[misc]
        return self.done

    def change(self, quad: Quad, added: bool) -> None:
        """A quad comes or leaves. It may be told several times."""
        if self.done:
            self._apply(quad, added)
        elif self._rest is not None:
            self._late[quad] = added

    def _apply(self, quad: Quad, added: bool) -> None:
        s, p, o, g = quad
        if added:
            self._tables_of(p).table(g).add(s, o)
            return
        tables = self.tables.get(p)
        table = None if tables is None else tables.default if g is None else tables.named.get(g)
        if tables is None or table is None:
            return
        table.remove(s, o)
        if g is not None and not table.sp:
            del tables.named[g]

    def _tables_of(self, predicate: Term) -> Tables:
        tables = self.tables.get(predicate)
        if tables is None:
            tables = self.tables[predicate] = Tables(self._by_object)
        return tables
