"""CTS: the context triple store (Roffia 2016, III.C): the quads that matching and planning look up, in memory.

The paper gives each SPU a CTS of its own. Here all share one. It holds the quads of the predicates that a pattern of a
subscription or of a frequent update names, and drops them when the last such pattern is gone. A quad is found by its
subject, and by its object if a pattern needs that. Equal terms share one string. The members of a key are a tuple,
since most subjects have one object; many members are a dict. Paths of any length are looked up by searches
(`engine.matching.reachability`). Many quads can be indexed in portions, before they are held
(`engine.matching.filling`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.filling import BatchesOf, Filling, NotIndexedError
from lamplighter.engine.matching.quad_tables import Table, Tables
from lamplighter.engine.matching.reachability import PathPredicate, PathRelation
from lamplighter.engine.slices import LONG, SLICE, Slices, sliced
from lamplighter.engine.terms import Quad, Term

# (predicate) -> its quads in all graphs; for None, the quads of all predicates.
QuadsOf = Callable[[Term | None], Iterable[Quad]]
FILLED_TURNS_MAX = 30
"""Calls of `Cts.forget_filled` before tables are dropped that nobody has held."""


class Cts:
    """The shared index. quads_of: reads the quads of a predicate from the store, when it is held for the first time.

    virtual: the quads of predicates that no dataset has (`engine.matching.clock_patterns`). Only patterns that name the
    predicate see them, and their owner changes them. batches_of: reads quads for fillings. gradual: whether `hold`
    raises NotIndexedError for many quads that are not indexed. filling: tables that are being filled, or were lately,
    by predicate.
    """

    def __init__(
        self,
        quads_of: QuadsOf,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
        batches_of: BatchesOf | None = None,
    ) -> None:
        self._quads_of = quads_of
        self._batches_of = batches_of
        self.gradual = False
        self.filling: dict[Term | None, Filling] = {}
        self._slices = slices
        self.tables: dict[Term, Tables] = {}
        self.paths: dict[PathPredicate, PathRelation] = {}
        self._path_uses: Counter[PathPredicate] = Counter()
        self.virtual: dict[Term, Tables] = {}
        self._everything = 0
        self._everything_by_object = False

    # --- what is indexed ---

    def hold(self, predicate: Term | None, *, by_object: bool = False) -> None:
        """Indexes the quads of a predicate, of a path, or of all for None, until `release` has been called as often.
        Raises NotIndexedError if `gradual`; then nothing has changed."""
        if isinstance(predicate, PathPredicate):
            self._hold_path(predicate)
            return
        if predicate in self.virtual:
            return
        if predicate is None:
            if not self._everything:
                filled = self._done_filling(None)
                quads = self._quads_to_hold(None, by_object) if filled is None else ()
                self._everything = 1
                if filled is None:
                    held = set(self.tables)
                    self._fill(quad for quad in quads if quad.p not in held)
                else:
                    for name, tables in filled.tables.items():
                        self.tables.setdefault(name, tables)
            else:
                self._everything += 1
            if by_object and not self._everything_by_object:
                self._everything_by_object = True
                for tables in self.tables.values():
                    tables.index_objects()
            return
        found = self.tables.get(predicate)
        if found is None:
            filled = self._done_filling(predicate)
            if filled is None:
                quads = self._quads_to_hold(predicate, by_object)
                found = self.tables[predicate] = Tables(by_object or self._everything_by_object)
                # The table is there before it is filled: what is read ends up in it.
                self._fill(quads)
            else:
                found = self.tables[predicate] = filled.tables[predicate]
        if by_object and not found.by_object:
            found.index_objects()
        found.uses += 1

    def release(self, predicate: Term | None) -> None:
        """Ends one `hold`."""
        if isinstance(predicate, PathPredicate):
            self._release_path(predicate)
            return
        if predicate in self.virtual:
            return
        if predicate is None:
            self._everything -= 1
            if not self._everything:
                self._everything_by_object = False
                for name in [name for name, tables in self.tables.items() if not tables.uses]:
                    del self.tables[name]
            return
        found = self.tables[predicate]
        found.uses -= 1
        if not found.uses and not self._everything:
            del self.tables[predicate]

    def _hold_path(self, path: PathPredicate) -> None:
        held: list[Term | None] = []
        try:
            for predicate in (None, *path.predicates) if path.nodes else path.predicates:
                self.hold(predicate, by_object=True)
                held.append(predicate)
        except NotIndexedError:
            for predicate in held:
                self.release(predicate)
            raise
        self._path_uses[path] += 1
        if path not in self.paths:
            relation = self.paths[path] = PathRelation(path, self.tables)
            for predicate in path.predicates:
                # A changed quad of a step makes the searches that are remembered worthless.
                self.tables[predicate].forget.append(relation.forget)

    def _release_path(self, path: PathPredicate) -> None:
        self._path_uses[path] -= 1
        if not self._path_uses[path]:
            del self._path_uses[path]
            relation = self.paths.pop(path)
            for predicate in path.predicates:
                self.tables[predicate].forget.remove(relation.forget)
        for predicate in path.predicates:
            self.release(predicate)
        if path.nodes:
            self.release(None)

    def _done_filling(self, predicate: Term | None) -> Filling | None:
        """The filling of a predicate that is to be held, None if it is to be filled now."""
        filling = self.filling.get(predicate)
        if filling is None or not filling.done:
            return None
        filling.turns = 0
        return filling

    def _quads_to_hold(self, predicate: Term | None, by_object: bool) -> Iterable[Quad]:
        """Those that are to be indexed now. Raises NotIndexedError."""
        quads = self._quads_of(predicate)
        if not self.gradual or self._batches_of is None:
            return quads
        some = list(islice(quads, LONG + 1))
        if len(some) > LONG:
            raise NotIndexedError(predicate, by_object)
        return some

    def fill_some(self, predicate: Term | None, *, by_object: bool) -> bool:
        """Indexes a portion of the quads of a predicate, or of all for None. Returns whether it can be held now. Always
        from the same thread, between two steps of the engine."""
        if self._everything or predicate in self.tables:
            return True
        filling = self.filling.get(predicate)
        if filling is None:
            assert self._batches_of is not None
            filling = self.filling[predicate] = Filling(predicate, self._batches_of, by_object=by_object)
            # Only as long as something is filled, since each quad of a commit comes here.
            self.__dict__.update(add=self._add_and_note, remove=self._remove_and_note)
        return filling.fill_some()

    def forget_filled(self) -> None:
        """Drops what was filled some calls ago: it is held now, or whoever wanted it is gone."""
        if all(filling.done for filling in self.filling.values()):  # else somebody may need several
            for predicate, filling in list(self.filling.items()):
                filling.turns += 1
                if filling.turns > FILLED_TURNS_MAX:
                    self._forget(predicate)

    def stop_filling(self, predicate: Term | None) -> None:
        """Drops what is filled in part: nobody fills it any more."""
        filling = self.filling.get(predicate)
        if filling is not None and not filling.done:
            self._forget(predicate)

    def _forget(self, predicate: Term | None) -> None:
        del self.filling[predicate]
        if not self.filling:
            del self.__dict__["add"], self.__dict__["remove"]

    def _add_and_note(self, quad: Quad) -> None:
        self._note(quad, True)
        Cts.add(self, quad)

    def _remove_and_note(self, quad: Quad) -> None:
        self._note(quad, False)
        Cts.remove(self, quad)

    def _note(self, quad: Quad, added: bool) -> None:
        """Tells the fillings of a change."""
        for filling in (self.filling.get(quad[1]), self.filling.get(None)):
            if filling is not None:
                filling.change(quad, added)

    def _fill(self, quads: Iterable[Quad]) -> None:
        # Equal terms become one string, which saves most of the memory of an index.
        shared: dict[Term, Term] = {}
        rest = iter(quads)
        while some := list(islice(rest, SLICE)):
            for s, p, o, g in some:
                self._table(p, g).add(shared.setdefault(s, s), shared.setdefault(o, o))
            self._slices.pause()

    def _table(self, p: Term, g: Term | None) -> Table:
        tables = self.tables.get(p)
        if tables is None:
            tables = self.tables[p] = Tables(self._everything_by_object)
        return tables.table(g)

    # --- the dataset changes ---

    def add(self, quad: Quad) -> None:
        s, p, o, g = quad
        tables = self.tables.get(p)
        if tables is None:
            if self._everything:
                self._table(p, g).add(s, o)
            return
        if g is not None:
            self._table(p, g).add(s, o)
            return
        table = tables.default
        sp = table.sp
        if table.po is None and s not in sp:  # the most frequent case: a new value of a property
            sp[s] = (o,)
        else:
            table.add(s, o)

    def remove(self, quad: Quad) -> None:
        s, p, o, g = quad
        tables = self.tables.get(p)
        if tables is None:
            return
        table = tables.default if g is None else tables.named.get(g)
        if table is None:
            return
        sp = table.sp
        if table.po is None and sp.get(s) == (o,):
            del sp[s]
        else:
            table.remove(s, o)
        if not sp:
            if g is not None:
                del tables.named[g]
            if not tables.uses and not tables.named and not tables.default.sp:
                del self.tables[p]

    def apply(self, delta: QuadDelta) -> None:
        """Removes and adds the quads of a delta. Quads that are absent, or present already, do no harm."""
        for some in sliced(delta.removed, self._slices):
            for quad in some:
                self.remove(quad)
        for some in sliced(delta.added, self._slices):
            for quad in some:
                self.add(quad)

    # --- reading ---

    @property
    def has_everything(self) -> bool:
        """Whether the quads of all predicates are indexed."""
        return self._everything > 0

    def holds(self, predicate: Term) -> bool:
        """Whether the quads of a predicate are indexed."""
        return predicate in self.tables or self._everything > 0

    def contains(self, quad: Quad) -> bool:
        """Whether a quad is indexed and in the dataset."""
        return self.find(quad) is True

    def find(self, quad: Quad) -> bool | None:
        """Whether a quad is in the dataset, None if its predicate is not indexed."""
        s, p, o, g = quad
        tables = self.tables.get(p)
        if tables is None:
            return False if self._everything else None
        table = tables.default if g is None else tables.named.get(g)
        return table is not None and o in table.sp.get(s, ())

    def count(self, predicates: Collection[Term | None]) -> int:
        """The number of indexed quads of some predicates, None for all. Takes time linear in the number of subjects."""
        every = self.tables if None in predicates else predicates
        some = [its for name in every if name is not None and (its := self.tables.get(name)) is not None]
        return sum(
            len(objects)
            for its in some
            for table in (its.default, *its.named.values())
            for objects in table.sp.values()
        )

    def quads(self) -> Iterator[Quad]:
        """All indexed quads."""
        for p, tables in self.tables.items():
            for g, table in (None, tables.default), *tables.named.items():
                for s, objects in table.sp.items():
                    for o in objects:
                        yield Quad(s, p, o, g)

    def __len__(self) -> int:
        """The number of indexed quads. Takes time linear in it."""
        return sum(1 for _ in self.quads())
