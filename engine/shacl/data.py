"""The data graph: the merge of some graphs of the dataset, as the CTS has it at the moment.

A predicate is read by a function that is made once. For the default graph alone, it is one lookup in a dict: an update
spends its time there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.quad_tables import Table, Tables
from lamplighter.engine.shacl.paths import inverse, step_of
from lamplighter.engine.sparql.paths import Path, PathAlternative, PathRepeated, PathSequence
from lamplighter.engine.terms import Term
from lamplighter.engine.work import Meter

# (node) -> the nodes that a path leads to, each once. The caller must not change them.
Walk = Callable[[Term], Collection[Term]]


class DataGraph:
    """Walks over the data graph. It holds the predicates that are walked in the CTS, until `close`.

    graphs: None stands for the default graph; None in place of the list for all graphs but excluded. meter: counts the
    work of walks, which raise TooMuchWork. held: the predicates, None for all.
    """

    def __init__(
        self, cts: Cts, graphs: Sequence[Term | None] | None, excluded: Collection[Term], meter: Meter
    ) -> None:
        self._cts = cts
        self._graphs = None if graphs is None else tuple(dict.fromkeys(graphs))
        self._excluded = frozenset(excluded)
        self.meter = meter
        self.held: set[Term | None] = set()
        self._walks: dict[Path, Walk] = {}

    def close(self) -> None:
        """Releases the predicates. The walks must not be used any more."""
        for predicate in self.held:
            self._cts.release(predicate)
        self.held.clear()
        self._walks.clear()

    def __contains__(self, graph: Term | None) -> bool:
        return graph not in self._excluded if self._graphs is None else graph in self._graphs

    # --- walks ---

    def walk(self, path: Path) -> Walk:
        """Along a path. Inverses stand at steps only."""
        found = self._walks.get(path)
        if found is None:
            found = self._walks[path] = self._make_walk(path)
        return found

    def back(self, path: Path) -> Walk:
        """Along the inverse of a path."""
        return self.walk(inverse(path))

    def _make_walk(self, path: Path) -> Walk:
        step = step_of(path)
        if step is not None:
            return self._step(*step)
        match path:
            case PathSequence(parts):
                return self._sequence([self.walk(part) for part in parts])
            case PathAlternative(parts):
                return self._alternative([self.walk(part) for part in parts])
            case PathRepeated(inner, zero, repeated):
                return self._repeat(self.walk(inner), zero=zero, repeated=repeated)
        raise AssertionError(path)

    def _step(self, predicate: Term, backwards: bool) -> Walk:
        tables = self.tables(predicate, by_object=backwards)
        if self._graphs == (None,):
            half = tables.default.po if backwards else tables.default.sp
            assert half is not None
            get = half.get

            def one(node: Term) -> Collection[Term]:
                return get(node, ())

            return one

        meter = self.meter

        def merged_values(node: Term) -> Collection[Term]:
            found: dict[Term, None] = {}
            meter.take(self._lookups(tables))
            for table in self._of(tables):
                half = table.po if backwards else table.sp
                assert half is not None
                found.update(dict.fromkeys(half.get(node, ())))
            return found

        return merged_values

    def _sequence(self, walks: Sequence[Walk]) -> Walk:
        meter = self.meter

        def along(node: Term) -> Collection[Term]:
            found: Collection[Term] = (node,)
            for walk in walks:
                meter.take(2 * len(found))
                found = dict.fromkeys(other for one in found for other in walk(one))
            return found

        return along

    def _alternative(self, walks: Sequence[Walk]) -> Walk:
        def along(node: Term) -> Collection[Term]:
            return dict.fromkeys(other for walk in walks for other in walk(node))

        return along

    def _repeat(self, walk: Walk, *, zero: bool, repeated: bool) -> Walk:
        meter = self.meter

        def along(node: Term) -> Collection[Term]:
            found = dict.fromkeys((node,)) if zero else {}
            waiting = [node]
            while waiting:
                others = walk(waiting.pop())
                meter.take(2 + 2 * len(others))
                for other in others:
                    if other not in found:
                        found[other] = None
                        if repeated:
                            waiting.append(other)
            return found

        return along

    # --- what is there ---

    def pairs(self, predicate: Term) -> Iterator[tuple[Term, Term]]:
        """(subject, object) of each triple with a predicate."""
        return (
            (s, o) for table in self._of(self.tables(predicate)) for s, objects in table.sp.items() for o in objects
        )

    def triples_of(self, node: Term) -> Iterator[tuple[Term, Term]]:
        """(predicate, object) of each triple with a subject. Everything must be held (`hold_everything`)."""
        tables = self._cts.tables
        self.meter.take(len(tables))
        for predicate, its in tables.items():
            self.meter.take(self._lookups(its))
            for table in self._of(its):
                for o in table.sp.get(node, ()):
                    yield predicate, o

    def hold_everything(self) -> None:
        """Has the CTS index all quads, for `triples_of`."""
        if None not in self.held:
            self._cts.hold(None)
            self.held.add(None)

    def tables(self, predicate: Term, *, by_object: bool = False) -> Tables:
        """The tables of a predicate, which is held from now on."""
        if predicate not in self.held:
            self._cts.hold(predicate)
            self.held.add(predicate)
        tables = self._cts.tables[predicate]
        if by_object and not tables.by_object:
            tables.index_objects()
        return tables

    def _lookups(self, tables: Tables) -> int:
        """How many tables are looked into for one node."""
        return 1 + len(tables.named) if self._graphs is None else len(self._graphs)

    def _of(self, tables: Tables) -> Iterator[Table]:
        if self._graphs is None:
            if None not in self._excluded:
                yield tables.default
            for name, table in tables.named.items():
                if name not in self._excluded:
                    yield table
            return
        for graph in self._graphs:
            its = tables.default if graph is None else tables.named.get(graph)
            if its is not None:
                yield its
