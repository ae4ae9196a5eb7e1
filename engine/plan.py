"""Plan: a query's algebra as functions over the CTS, made once for all who share the shape.

How a plan follows a change of the dataset depends on its class:

- *telescoped*: patterns with FILTER, BIND and VALUES, and their UNION. The changed quads are taken one at a
  time, and each one's part in the result is found by joining from it (`Plan.matchers`): the rule for the delta
  of a join, with the CTS in step. A removed quad is matched while it is still there, an added one when it is.
  Where several patterns of a tree fit one quad, those before the one that it was put into must not match it
  again, or its rows would be counted for each.
- *seeded*: everything else that can be compiled. A changed quad is joined with the patterns around the one
  that it fits, which gives bindings, the seeds (`Plan.seeders`); the rows that agree with them are evaluated
  before and after the change, and compared (`Plan.evaluators`).

Sources: Roffia 2016, III.C, where the BOOSTER runs one query per changed triple over each SPU's own CTS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.algebra import (
    Bgp,
    Constant,
    Distinct,
    Node,
    Pattern,
    Project,
    Variable,
    walk,
)
from engine.cts import Cts
from engine.terms import Binding, Term
from engine.trees import Leaf, Unsupported, branches, check, leaves, monotone
from engine.units import Units
from engine.writer import UNIT, Scope, Writer, tuple_text

TELESCOPED, SEEDED = "telescoped", "seeded"

Matcher = Callable[..., None]
"""(s, p, o, g, found, sign): found maps a unit to its rows ([removed], [added]); sign chooses the list."""
Seeder = Callable[..., None]
"""(s, p, o, g, seeds): puts the seeds of one quad into a set."""
Evaluator = Callable[..., None]
"""(seeds, earlier, found): found maps a unit to the rows that agree with the seeds and with none of the earlier."""


@dataclass(frozen=True)
class Seeding:
    """One branch of a seeded plan: for each of its leaves the seeders, by predicate, and the evaluator."""

    seeders: tuple[tuple[tuple[Term | None, Seeder], ...], ...]
    evaluators: tuple[Evaluator, ...]


class Plan:
    """The functions of one shape, and the predicates that it holds in the CTS until `close`.

    Raises Unsupported for a tree that only the store can evaluate.
    """

    def __init__(self, root: Node, columns: Sequence[Variable], units: Units, cts: Cts) -> None:
        self._cts = cts
        self._held: list[Term | None] = []
        self.units = units
        self._columns = tuple(columns)
        self.matchers: list[tuple[Term | None, Matcher]] = []
        self.seedings: list[Seeding] = []
        check(root)
        inner = root.node if isinstance(root, Project) else root
        if not isinstance(root, (Project, Distinct)):
            raise Unsupported(f"{type(root).__name__} around the projection")
        try:
            found = branches(inner)
            self._first = [self._compile_first(branch) for branch in found]
            for branch in found:
                if monotone(branch):
                    self._compile_matchers(branch)
                else:
                    self._compile_seeding(branch)
        except Unsupported:
            self.close()
            raise
        self.spu_class = SEEDED if self.seedings else TELESCOPED

    def close(self) -> None:
        """Lets go of the CTS."""
        for predicate in self._held:
            self._cts.release(predicate)
        self._held.clear()

    def first(self, key: Any) -> list[Binding]:
        """All rows for a unit's key."""
        rows: list[Binding] = []
        for function in self._first:
            function(key, rows)
        return rows

    # --- compiling ---

    def _writer(self, units: Units | None) -> Writer:
        return Writer(self._cts, self._hold, units)

    def _hold(self, predicate: Term | None, by_object: bool) -> None:
        self._cts.hold(predicate, by_object=by_object)
        self._held.append(predicate)

    def _row(self, scope: Scope) -> str:
        return tuple_text([scope.name(column) for column in self._columns])

    def _compile_first(self, branch: Node) -> Callable[[Any, list[Binding]], None]:
        writer = self._writer(None)
        constants = self.units.constants
        names = ["key"] if len(constants) == 1 else [f"key[{position}]" for position in range(len(constants))]

        def body() -> None:
            scope = Scope({}, {})
            for constant, name in zip(constants, names, strict=True):
                local = writer.name("c")
                writer.emit(f"{local} = {name}")
                scope = scope.binding(constant, local)
            writer.produce(branch, scope, lambda found: writer.emit(f"rows.append({self._row(found)})"))

        return writer.compiled("first", "key, rows", body)

    def _compile_matchers(self, branch: Node) -> None:
        """For each pattern the rows that a quad has a part in by it, with the exclusion of the patterns before."""
        bgps = (node for node in walk(branch) if isinstance(node, Bgp))
        numbered = list(dict.fromkeys(pattern for node in bgps for pattern in node.patterns))
        for number, pattern in enumerate(numbered):
            writer = self._writer(self.units)

            def body(writer: Writer = writer, number: int = number, pattern: Pattern = pattern) -> None:
                writer.match(numbered, number)

                def hit(scope: Scope) -> None:
                    unit = scope.name(UNIT)
                    writer.emit(f"rows = found.get({unit})")
                    with writer.block("if rows is None:"):
                        writer.emit(f"rows = found[{unit}] = ([], [])")
                    writer.emit(f"rows[sign].append({self._row(scope)})")

                writer.quad(pattern, lambda scope: writer.produce(branch, scope, hit))

            function = writer.compiled("match", "s, p, o, g, found, sign", body)
            self.matchers.append((pattern.p if isinstance(pattern.p, str) else None, function))

    def _compile_seeding(self, branch: Node) -> None:
        found = [leaf for leaf in leaves(branch) if leaf.patterns]
        keys = [[*leaf.seeds, *_constants(leaf)] for leaf in found]
        if not all(keys):
            raise Unsupported("a pattern that has no certain variable in common with the result")
        self.seedings.append(
            Seeding(
                tuple(self._compile_seeders(leaf, key) for leaf, key in zip(found, keys, strict=True)),
                tuple(self._compile_evaluator(branch, keys, number) for number in range(len(found))),
            )
        )

    def _compile_seeders(self, leaf: Leaf, keys: Sequence[Any]) -> tuple[tuple[Term | None, Seeder], ...]:
        seeders = []
        for number, pattern in enumerate(leaf.patterns):
            rest = [(other, it) for other, it in enumerate(leaf.patterns) if other != number]
            writer = self._writer(None)

            def body(writer: Writer = writer, rest: Any = rest, pattern: Pattern = pattern) -> None:
                def seed(scope: Scope) -> None:
                    writer.emit(f"seeds.add({tuple_text([scope.name(key) for key in keys])})")

                writer.quad(pattern, lambda scope: writer.patterns(rest, scope, seed))

            function = writer.compiled("seed", "s, p, o, g, seeds", body)
            seeders.append((pattern.p if isinstance(pattern.p, str) else None, function))
        return tuple(seeders)

    def _compile_evaluator(self, branch: Node, keys: Sequence[Sequence[Any]], number: int) -> Evaluator:
        writer = self._writer(self.units)

        def body() -> None:
            names = [writer.name("seed") for _ in keys[number]]
            scope = Scope(dict(zip(keys[number], names, strict=True)), {})

            def hit(found: Scope) -> None:
                unit = found.name(UNIT)
                with writer.block(f"if {unit} not in found:"):
                    writer.emit(f"found[{unit}] = []")
                writer.emit(f"found[{unit}].append({self._row(found)})")

            def once(found: Scope) -> None:
                """A row that agrees with seeds of two leaves is counted for the first."""
                tests = [
                    f"{tuple_text([found.name(key) for key in earlier])} not in earlier[{index}]"
                    for index, earlier in enumerate(keys[:number])
                ]
                if tests:
                    with writer.block(f"if {' and '.join(tests)}:"):
                        hit(found)
                else:
                    hit(found)

            with writer.block(f"for {tuple_text(names)} in seeds:"):
                writer.produce(branch, scope, once)

        return writer.compiled("evaluate", "seeds, earlier, found", body)


def _constants(leaf: Leaf) -> list[Constant]:
    return list(dict.fromkeys(part for pattern in leaf.patterns for part in pattern if isinstance(part, Constant)))
