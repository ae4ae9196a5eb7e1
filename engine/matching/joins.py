"""Joins of triple patterns as nested loops over the CTS's dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.path_joins import PathCodegen
from lamplighter.engine.matching.query_constants import QueryConstants
from lamplighter.engine.matching.reachability import PathPredicate
from lamplighter.engine.matching.source_text import UNIT, Consume, Key, Scope, key_text
from lamplighter.engine.matching.triple_joins import TripleCodegen
from lamplighter.engine.sparql.algebra import Constant, Part, Pattern, Variable, takes_apart
from lamplighter.engine.terms import RDF_TYPE, Term
from lamplighter.engine.work import Meter

# Limit of `JoinCodegen._rank`: a pattern below it is looked up from what is known, one above it scans a table.
_NEAR = 2.4


class JoinCodegen(PathCodegen, TripleCodegen):
    """Writes the loops over the quads that match triple patterns, and the join with the units of a shape.

    hold: called with each predicate (None for all) that the text reads, and whether it looks up subjects by object.
    units: the units to join with; None for text that is given one unit's constants.

    It is one class because each join chooses the next pattern, or the join with the units, by what is known so far.
    """

    def __init__(
        self,
        cts: Cts,
        hold: Callable[[Term | None, bool], None],
        units: QueryConstants | None,
        meter: Meter,
        counted: Sequence[str] = (),
    ) -> None:
        super().__init__(cts, hold, meter, counted)
        self.units = units
        self._numbers: dict[Pattern, int] = {}
        self._match: int | None = None
        self._tested = False

    def match(self, numbered: Sequence[Pattern], number: int) -> None:
        """Declares that the quad s, p, o, g matches pattern number, and that no earlier pattern may match it.

        If the pattern is a path, s and o are its ends, and the quad is in the local ``quad``.
        """
        self._numbers = {pattern: numbered.index(pattern) for pattern in numbered}
        self._match = self._numbers[numbered[number]]

    def _exclusion(self, number: int, pattern: Pattern, scope: Scope) -> str | None:
        """The condition that an earlier pattern has not matched the quad; None if it cannot."""
        # A row whose patterns match the changed quad several times would be found once for each. So pattern number n
        # takes the quad only where no pattern before n takes it.
        if self._match is None or number > self._match or isinstance(pattern.p, PathPredicate) or takes_apart(pattern):
            return None
        matched = next(other for other, it in self._numbers.items() if it == self._match)
        path = matched.p if isinstance(matched.p, PathPredicate) else None
        tests = []
        for place, (name, part, quad_part) in enumerate(zip("spog", pattern, matched, strict=True)):
            # One is of the default graph and the other is not: they match no quad in common.
            if (part is None) != (quad_part is None):
                return None
            if isinstance(part, str) and name == "p" and path is not None:
                # The changed quad is a step of a path, and this pattern names another predicate: it cannot match it.
                if not path.follows(part):
                    return None
                if path.nodes or len(path.predicates) > 1:
                    tests.append(f"{part!r} == quad[1]")
            elif part is not None and path is not None:
                tests.append(f"{self.part(part, scope)} == quad[{place}]")
            elif isinstance(part, str) and isinstance(quad_part, str):
                if part != quad_part:
                    return None
            elif part is not None and self.part(part, scope) != name:
                tests.append(f"{self.part(part, scope)} == {name}")
        # Without tests each quad of the one matches the other, so the pattern never takes it here.
        return f"not ({' and '.join(tests) or True})"

    def _excludes(self, number: int, pattern: Pattern) -> bool:
        """Whether a path does not follow the quad, because a later path is matched with it."""
        if self._match is None or number > self._match or not isinstance(pattern.p, PathPredicate):
            return False
        matched = next(other for other, it in self._numbers.items() if it == self._match)
        assert isinstance(matched.p, PathPredicate), "paths have the last numbers"
        return matched.p.meets(pattern.p)

    def patterns(self, left: list[tuple[int, Pattern]], scope: Scope, consume: Consume) -> None:
        """Writes the join of numbered patterns, the cheapest next one first."""
        unit_first = self._unit_rank(scope)
        if not left:
            self.bind_constants(scope, consume)
            return
        rank, number, pattern = min(
            ((self._rank(pattern, scope), number, pattern) for number, pattern in left), key=lambda found: found[:2]
        )
        if unit_first is not None and unit_first <= rank:
            self.bind_constants(scope, lambda bound: self.patterns(left, bound, consume))
            return
        # Not for the cheapest lookups. Before a larger one, the test of what is known ends the join for the many rows
        # that no unit asks for.
        if rank >= 1.0 and self._may_test(scope):  # looking up a known subject costs no more than the test
            self._test_constants(scope, lambda: self.patterns(left, scope, consume))
            return
        rest = [(other, it) for other, it in left if other != number]

        def continue_join(found: Scope) -> None:
            condition = self._exclusion(number, pattern, found)
            if condition:
                with self.block(f"if {condition}:"):
                    self.patterns(rest, found, consume)
            else:
                self.patterns(rest, found, consume)

        self._pattern(pattern, scope, continue_join, self._excludes(number, pattern))

    def seeds(self, left: Sequence[Pattern], keys: Sequence[Key], scope: Scope, consume: Consume) -> None:
        """Writes loops that bind the keys to all their values in solutions of the patterns that agree with the scope.

        There may be values too many: patterns without a key are only tested as far as they can be looked up from what
        is known.
        """
        groups = self._connected_groups(left, scope)
        wanted = [key for key in keys if key not in scope.bound]
        # Patterns that share nothing unknown with a wanted key cannot change its values, but decide whether there are
        # any.
        needed = [it for group in groups if any(key in it for it in group for key in wanted) for it in group]
        beside = [group for group in groups if group[0] not in needed]
        rank, pattern = min(((self._rank(it, scope), it) for it in needed), key=_first, default=(0.0, None))
        unit_first = self._unit_rank(scope)
        if unit_first is not None and unit_first <= rank:
            self.bind_constants(scope, lambda bound: self.seeds(left, keys, bound, consume))
        elif self._may_test(scope):
            self._test_constants(scope, lambda: self.seeds(left, keys, scope, consume))
        elif pattern is None:
            # The tests come before the join with the units, as one that fails saves it.
            self._near(beside, scope, lambda: self.bind_constants(scope, consume))
        else:
            rest = [it for it in needed if it != pattern]

            def look_up() -> None:
                self._pattern(pattern, scope, lambda found: self.seeds(rest, keys, found, consume))

            self._near(beside, scope, look_up)

    def _connected_groups(self, left: Sequence[Pattern], scope: Scope) -> list[list[Pattern]]:
        """The patterns in groups; patterns of different groups share no unknown variable or constant."""
        groups: list[tuple[set[Key], list[Pattern]]] = []
        for pattern in left:
            free = {part for part in pattern if isinstance(part, (Variable, Constant)) and part not in scope.bound}
            apart = [group for group in groups if not group[0] & free]
            joined = [group for group in groups if group[0] & free]
            members = [it for _, found in joined for it in found]
            # A pattern that shares unknowns with two groups makes one of them.
            groups = [*apart, (free.union(*(parts for parts, _ in joined)), [*members, pattern])]
        return [members for _, members in groups]

    def _near(self, groups: Sequence[Sequence[Pattern]], scope: Scope, consume: Callable[[], None]) -> None:
        """Writes the test that each group of patterns has a solution, as far as lookups can tell, and then consume."""
        if not groups:
            consume()
            return
        first, *rest = groups
        rank = min(self._rank(it, scope) for it in first)
        if rank >= _NEAR:
            self._near(rest, scope, consume)
        # A quad that is known as a whole is one lookup: no loop has to be left early.
        elif len(first) == 1 and rank == 0.0:
            self._pattern(first[0], scope, lambda _: self._near(rest, scope, consume))
        else:
            with self.block(f"if {self.any(lambda succeed: self._walk(first, scope, succeed))}:"):
                self._near(rest, scope, consume)

    def _walk(self, left: Sequence[Pattern], scope: Scope, succeed: Callable[[], None]) -> None:
        ranked = [(self._rank(it, scope), it) for it in left]
        rank, pattern = min(ranked, key=_first, default=(_NEAR, None))
        if pattern is None or rank >= _NEAR:
            succeed()
            return
        rest = [it for it in left if it != pattern]
        self._pattern(pattern, scope, lambda found: self._walk(rest, found, succeed))

    def _may_test(self, scope: Scope) -> bool:
        """Whether some, but not all, constants are known, so that the units can be tested before a lookup."""
        if self.units is None or self._tested or UNIT in scope.bound:
            return False
        known = sum(constant in scope.bound for constant in self.units.constants)
        return 0 < known < len(self.units.constants)

    def _test_constants(self, scope: Scope, consume: Callable[[], None]) -> None:
        assert self.units is not None
        index, part = self._units_with(scope)
        self._tested = True
        with self.block(f"if {part} in {index}:"):
            consume()
        self._tested = False

    def _units_with(self, scope: Scope) -> tuple[str, str]:
        """The names of the index of units by the known constants, and of the key in it."""
        assert self.units is not None
        constants = self.units.constants
        # An index for each set of known positions, made when a text first needs it.
        positions = tuple(position for position, constant in enumerate(constants) if constant in scope.bound)
        index = self.share("index", self.units.part(positions))
        return index, key_text([scope.name(constants[position]) for position in positions])

    def _rank(self, pattern: Pattern, scope: Scope) -> float:
        """The expected number of matching quads, as a rough power of ten."""
        if isinstance(pattern.p, PathPredicate):
            return self.path_rank(pattern, scope)
        if takes_apart(pattern):
            return self.triple_rank(pattern, scope)

        def is_known(part: Part | None) -> bool:
            return not isinstance(part, (Variable, Constant)) or part in scope.bound

        s, p, o = is_known(pattern.s), is_known(pattern.p), is_known(pattern.o)
        graph = 0.0 if is_known(pattern.graph) else 0.5
        if s and p and o:
            return graph
        if p and s:
            return 0.5 + graph
        if p and o:
            # A class has far more members than another object has subjects.
            return (3.0 if pattern.p == RDF_TYPE else 1.5) + graph
        if s:
            return 1.0 + graph
        if o:
            return 2.5 + graph
        return (4.0 if p else 6.0) + graph

    def _unit_rank(self, scope: Scope) -> float | None:
        """The same for the join with the units; None if it has been written."""
        if self.units is None:
            return None
        known = sum(constant in scope.bound for constant in self.units.constants)
        if UNIT in scope.bound:
            return None
        if known == len(self.units.constants):
            # One lookup in a dictionary, which most rows fail: always first.
            return -1.0
        return 2.0 if known else 3.5

    def bind_constants(self, scope: Scope, consume: Consume) -> None:
        """Writes the join with the units, if it has not been written. Binds all constants and the unit."""
        units = self.units
        if units is None or UNIT in scope.bound:
            consume(scope)
            return
        key_name, unit = self.name("key"), self.name("unit")
        known = [constant in scope.bound for constant in units.constants]
        everyone = self.share("units", units.all)
        if all(known):
            self.emit(f"{unit} = {everyone}.get({key_text([scope.name(constant) for constant in units.constants])})")
            with self.block(f"if {unit} is not None:"):
                consume(scope.binding(UNIT, unit))
            return
        if any(known):
            index, part = self._units_with(scope)
            head = self.loop(key_name, f"{index}.get({part}, ())")
        else:
            head = self.loop(f"{key_name}, {unit}", f"{everyone}.items()")
        with head:
            if any(known):
                self.emit(f"{unit} = {everyone}[{key_name}]")
            # As `key_text` writes it: a single constant is its own key.
            inner = scope.binding(UNIT, unit)
            for position, constant in enumerate(units.constants):
                if not known[position]:
                    inner = inner.binding(
                        constant, key_name if len(units.constants) == 1 else f"{key_name}[{position}]"
                    )
            consume(inner)

    def accept(self, end: Part, graph: Part | None, patterns: Sequence[Pattern]) -> None:
        """Writes the body of an `Accept` for one end of a path: tests each pattern around it on its own."""
        if isinstance(end, str):
            self.emit(f"return node == {end!r}")
            return
        scope = Scope({end: "node"}, {})
        if isinstance(graph, (Variable, Constant)):
            scope = scope.binding(graph, "graph")
        tests: list[Callable[[Callable[[], None]], None]] = []
        if isinstance(end, Constant):
            tests.append(lambda succeed: self._if_units(scope, succeed))
        for pattern in patterns:
            place = pattern.graph is None or not isinstance(pattern.graph, Variable) or pattern.graph == graph
            # Each test looks at one pattern alone. It may let too much through, as the join itself comes later.
            simple = isinstance(pattern.p, str) and not isinstance(pattern.p, PathPredicate)
            if simple and place and not takes_apart(pattern) and end in (pattern.s, pattern.o):
                tests.append(
                    lambda succeed, pattern=pattern: self._pattern(  # type: ignore[misc]
                        pattern, scope, lambda found: self._if_units(found, succeed)
                    )
                )
        for test in tests:
            with self.block(f"if not {self.any(test)}:"):
                self.emit("return False")
        self.emit("return True")

    def _if_units(self, scope: Scope, succeed: Callable[[], None]) -> None:
        """Writes the test that there is a unit with the known constants."""
        constants = self.units.constants if self.units is not None else ()
        known = sum(constant in scope.bound for constant in constants)
        if not known:
            succeed()
        elif known == len(constants):
            self.bind_constants(scope, lambda _: succeed())
        else:
            index, part = self._units_with(scope)
            with self.block(f"if {part} in {index}:"):
                succeed()

    def _pattern(self, pattern: Pattern, scope: Scope, consume: Consume, without: bool = False) -> None:
        """Writes loops over the quads that match a pattern. without: as in `path`."""
        if isinstance(pattern.p, PathPredicate):
            self.path(pattern, scope, consume, without)
            return
        if takes_apart(pattern):
            self.triple(pattern, scope, consume)
            return
        if isinstance(pattern.p, str):
            self._hold(pattern.p, False)
            # Tables live as long as the CTS holds the predicate, so their dictionaries are constants of the text.
            tables = self._cts.virtual.get(pattern.p) or self._cts.tables[pattern.p]
            if pattern.graph is None:
                self._triple(pattern, scope, consume, tables.default, None)
            else:
                self._in_graph(pattern, scope, consume, self.share("named", tables.named))
            return
        self._hold(None, False)
        everything = self.share("tables", self._cts.tables)
        tables_name = self.name("tables")
        if pattern.p in scope.bound:
            self.emit(f"{tables_name} = {everything}.get({scope.name(pattern.p)})")
            head, inner = self.block(f"if {tables_name} is not None:"), scope
        else:
            predicate = self.name("v")
            head = self.loop(f"{predicate}, {tables_name}", f"{everything}.items()")
            inner = scope.binding(pattern.p, predicate)
        with head:
            if pattern.graph is None:
                self._triple(pattern, inner, consume, None, f"{tables_name}.default")
            else:
                self._in_graph(pattern, inner, consume, f"{tables_name}.named")

    def _in_graph(self, pattern: Pattern, scope: Scope, consume: Consume, named: str) -> None:
        table = self.name("table")
        graph = pattern.graph
        assert graph is not None
        if isinstance(graph, (Variable, Constant)) and graph not in scope.bound:
            name = self.name("v")
            with self.loop(f"{name}, {table}", f"{named}.items()"):
                self._triple(pattern, scope.binding(graph, name), consume, None, table)
            return
        self.emit(f"{table} = {named}.get({self.part(graph, scope)})")
        with self.block(f"if {table} is not None:"):
            self._triple(pattern, scope, consume, None, table)

    def _triple(self, pattern: Pattern, scope: Scope, consume: Consume, table: Any, table_name: str | None) -> None:
        """Writes the loops over subject and object in one table.

        table: known when the text is compiled; table_name: its name in the function. One of them is None.
        """

        def is_known(part: Part) -> bool:
            return not isinstance(part, (Variable, Constant)) or part in scope.bound

        def half(name: str) -> str:
            return f"{table_name}.{name}" if table_name else self.share(name, getattr(table, name))

        s, o = pattern.s, pattern.o
        subject, object_ = self.part(s, scope), self.part(o, scope)
        if is_known(s) and is_known(o):
            with self.block(f"if {object_} in {half('sp')}.get({subject}, ()):"):
                consume(scope)
        elif is_known(s):
            assert isinstance(o, (Variable, Constant))
            name = self.name("v")
            with self.loop(name, f"{half('sp')}.get({subject}, ())"):
                consume(scope.binding(o, name))
        elif is_known(o):
            assert isinstance(s, (Variable, Constant))
            # The half from objects to subjects exists only where a text asks for it, as it costs as much memory as the
            # other.
            self._hold(pattern.p if isinstance(pattern.p, str) else None, True)
            name = self.name("v")
            with self.loop(name, f"{half('po')}.get({object_}, ())"):
                consume(scope.binding(s, name))
        else:
            assert isinstance(s, (Variable, Constant)) and isinstance(o, (Variable, Constant))
            name, members = self.name("v"), self.name("members")
            with self.loop(f"{name}, {members}", f"{half('sp')}.items()"):
                inner = scope.binding(s, name)
                # ?x :p ?x: a lookup in the members instead of a loop over them.
                if s == o:
                    with self.block(f"if {name} in {members}:"):
                        consume(inner)
                else:
                    other = self.name("v")
                    with self.loop(other, members):
                        consume(inner.binding(o, other))

    def quad(self, pattern: Pattern, consume: Consume) -> None:
        """Binds a pattern to the quad s, p, o, g, whose predicate is known to match."""
        scope = Scope({}, {})
        tests = []
        for name, part in zip("spog", pattern, strict=True):
            if part is None:
                tests.append("g is None")
            elif isinstance(part, str):
                # The LUTT has called with this predicate, so it needs no test.
                if name != "p":
                    tests.append(f"{name} == {part!r}")
            elif part in scope.bound:
                tests.append(f"{name} == {scope.name(part)}")
            else:
                # GRAPH ?g does not match the default graph.
                if name == "g":
                    tests.append("g is not None")
                scope = scope.binding(part, name)
        if tests:
            with self.block(f"if {' and '.join(tests)}:"):
                consume(scope)
        else:
            consume(scope)


def _first(ranked: tuple[float, Any]) -> float:
    return ranked[0]
