"""Plan: a query's algebra as functions over the CTS, compiled once for each shape.

The class of a plan says how it follows a change of the dataset:

- *telescoped*: patterns with FILTER, BIND and VALUES, and their UNION. Each changed quad is joined with the other
  patterns while the CTS is in step (`Plan.matchers`): the rule for the delta of a join. A removed quad is matched
  before the CTS removes it, an added quad after the CTS has it. If several patterns match one quad, each row is counted
  for the first of them only.
- *seeded*: everything else that can be compiled. A changed quad is joined with the patterns around the one that it
  matches, which gives seeds: bindings that the changed rows agree with (`Seeding.seeders`). The rows that agree with
  the seeds are evaluated before and after the change, and compared (`Seeding.evaluators`).
- *counted*: aggregates without GROUP BY, and those whose groups seeds cannot name. The rows below the grouping are
  telescoped, and each group's aggregates are kept (`Counting`).

Source: Roffia 2016, III.C; there the BOOSTER runs one query for each changed triple over each SPU's own CTS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lamplighter.engine.matching import aggregates
from lamplighter.engine.matching.analysis import Leaf, Unsupported, branches, check, leaves, monotone
from lamplighter.engine.matching.codegen import CodeGenerator
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.path_joins import PathMatcher
from lamplighter.engine.matching.query_constants import QueryConstants
from lamplighter.engine.matching.reachability import Accept, PathPredicate
from lamplighter.engine.matching.source_text import UNIT, Scope, tuple_text
from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Bgp,
    Constant,
    Distinct,
    Extend,
    Filter,
    Group,
    Node,
    Part,
    Pattern,
    Project,
    Variable,
    certain,
    takes_apart,
    visible,
    walk,
)
from lamplighter.engine.terms import Binding, Term
from lamplighter.engine.work import Meter, Work

TELESCOPED, SEEDED, COUNTED = "telescoped", "seeded", "counted"

# (s, p, o, g, found, sign): found maps a unit to its rows ([removed], [added]); sign chooses the list.
Matcher = Callable[..., None]
# (s, p, o, g, seeds): adds the seeds of one quad to a set.
Seeder = Callable[..., None]
# (seeds, earlier, found): adds to found, by unit, the rows that agree with the seeds and with no earlier seeds.
Evaluator = Callable[..., None]


@dataclass(frozen=True)
class Seeding:
    """One branch of a seeded plan. seeders: (predicate, seeder) of each leaf; evaluators: one for each leaf."""

    seeders: tuple[tuple[tuple[Term | None, Seeder], ...], ...]
    evaluators: tuple[Evaluator, ...]


@dataclass(frozen=True)
class Counting:
    """One branch of a counted plan: a grouping of telescoped rows, with the filters and expressions around it.

    first: functions of (unit's key, pairs); matchers: as those of a plan. Both add pairs of group key and arguments.
    aggregates: those of the grouping. rows: function of (unit's key, group key, values, rows) that adds a group's rows.
    everything: whether there is no GROUP BY, so that the one group exists even without solutions.
    """

    first: tuple[Callable[..., None], ...]
    matchers: tuple[tuple[Term | None, Matcher], ...]
    aggregates: tuple[Aggregate, ...]
    rows: Callable[..., None]
    everything: bool


class Plan:
    """The functions of one shape, and the predicates that it holds in the CTS until `close`.

    work: the limit of its evaluations. All functions count on one meter and raise TooMuchWork. matchers, seedings,
    countings: the compiled functions, by class. differs: whether the store may give other rows that are as right,
    because of an aggregate. incremental: count groups even if seeds could name them, because each is large and changes
    often: a window. Raises Unsupported for a tree that only the store can evaluate.
    """

    def __init__(
        self,
        root: Node,
        columns: Sequence[Variable],
        units: QueryConstants,
        cts: Cts,
        work: Work,
        *,
        incremental: bool = False,
    ) -> None:
        self.meter = Meter(work, units.all)
        self._work = work
        self._cts = cts
        self._held: list[Term | None] = []
        self.units = units
        self._columns = tuple(columns)
        self.matchers: list[tuple[Term | None, Matcher]] = []
        self.seedings: list[Seeding] = []
        self.countings: list[Counting] = []
        check(root)
        inner = root.node if isinstance(root, Project) else root
        if not isinstance(root, (Project, Distinct)):
            raise Unsupported(f"{type(root).__name__} around the projection")
        try:
            found = branches(inner)
            self._first = [self._compile_first(branch) for branch in found]
            for branch in found:
                # The classes from cheap to dear: rows follow from the quad alone; groups are counted; seeds evaluate
                # again what may have changed.
                if monotone(branch):
                    self.matchers += self._compile_matchers(branch)
                elif _counts_rows(branch) and (incremental or not _grouping(branch).keys or not _has_seeds(branch)):
                    self._compile_counting(branch)
                elif _has_seeds(branch):
                    self._compile_seeding(branch)
                else:
                    raise Unsupported("a pattern that has no certain variable in common with the result")
        except BaseException:
            self.close()
            raise
        groups = (node for node in walk(root) if isinstance(node, Group))
        self.differs = any(aggregates.differs(aggregate) for group in groups for _, aggregate in group.aggregates)
        self.spu_class = SEEDED if self.seedings else COUNTED if self.countings else TELESCOPED

    def close(self) -> None:
        """Releases the predicates in the CTS."""
        while self._held:
            self._cts.release(self._held.pop())

    def first(self, key: Any) -> list[Binding]:
        """All rows for a unit's key."""
        rows: list[Binding] = []
        for function in self._first:
            function(key, rows)
        return rows

    # --- compiling ---

    def _generator(self, units: QueryConstants | None) -> CodeGenerator:
        self._work.slices.pause()  # compiling a plan with many patterns takes long
        return CodeGenerator(self._cts, self._hold, units, self.meter)

    def _hold(self, predicate: Term | None, by_object: bool) -> None:
        self._cts.hold(predicate, by_object=by_object)
        self._held.append(predicate)

    def _row(self, scope: Scope) -> str:
        return tuple_text([scope.name(column) for column in self._columns])

    def _compile_first(
        self, branch: Node, given: Callable[[CodeGenerator], Callable[[Scope], str]] | None = None
    ) -> Callable[[Any, list[Any]], None]:
        generator = self._generator(None)
        row = given(generator) if given else self._row

        def body() -> None:
            scope = self._constants_of_key(generator)

            def hit(found: Scope) -> None:
                generator.emit(f"rows.append({row(found)})")
                generator.count_row()

            generator.produce(branch, scope, hit)

        return generator.compile("first", "key, rows", body)

    def _compile_matchers(
        self, branch: Node, given: Callable[[CodeGenerator], Callable[[Scope], str]] | None = None
    ) -> list[tuple[Term | None, Matcher]]:
        """One matcher for each pattern; it leaves out the rows that an earlier pattern finds."""
        compiled: list[tuple[Term | None, Matcher]] = []
        bgps = (node for node in walk(branch) if isinstance(node, Bgp))
        numbered = list(dict.fromkeys(pattern for node in bgps for pattern in node.patterns))
        # Paths have the last numbers, which `JoinCodegen._excludes` relies on.
        numbered.sort(key=lambda pattern: isinstance(pattern.p, PathPredicate))
        for number, pattern in enumerate(numbered):
            if takes_apart(pattern):
                continue
            generator = self._generator(self.units)

            def body(generator: CodeGenerator = generator, number: int = number, pattern: Pattern = pattern) -> None:
                generator.match(numbered, number)

                def hit(scope: Scope) -> None:
                    unit = scope.name(UNIT)
                    # Text instead of setdefault, which would make two lists for each row.
                    generator.emit(f"rows = found.get({unit})")
                    with generator.block("if rows is None:"):
                        generator.emit(f"rows = found[{unit}] = ([], [])")
                    generator.emit(f"rows[sign].append({(given(generator) if given else self._row)(scope)})")
                    generator.count_row()

                generator.quad(pattern, lambda scope: generator.produce(branch, scope, hit))

            compiled += self._compile_calls(pattern, generator, "match", "found, sign", body, numbered)
        return compiled

    def _compile_calls(
        self,
        pattern: Pattern,
        generator: CodeGenerator,
        title: str,
        collectors: str,
        body: Callable[[], None],
        patterns: Sequence[Pattern],
    ) -> list[tuple[Term | None, Callable[..., None]]]:
        """Compiles what is called for each quad of a pattern, and returns it with the predicates of such quads.

        collectors: the last parameters of the call. patterns: what the pattern is joined with.
        """
        if not isinstance(pattern.p, PathPredicate):
            function = generator.compile(title, f"s, p, o, g, {collectors}", body)
            return [(pattern.p if isinstance(pattern.p, str) else None, function)]
        self._hold(pattern.p, True)
        function = generator.compile(title, f"s, p, o, g, {collectors}, quad", body)
        accepts = (
            self._accept(pattern.s, pattern, generator, patterns),
            self._accept(pattern.o, pattern, generator, patterns),
        )
        named = pattern.graph is not None
        matcher = PathMatcher(self._cts.paths[pattern.p], named, function, accepts, self.meter)
        # Zero hops join each node with itself, and any quad can make a node.
        return [(predicate, matcher) for predicate in ((None,) if pattern.p.nodes else pattern.p.predicates)]

    def _accept(self, end: Part, pattern: Pattern, around: CodeGenerator, patterns: Sequence[Pattern]) -> Accept:
        generator = self._generator(around.units)
        return generator.compile("accept", "node, graph", lambda: generator.accept(end, pattern.graph, patterns))

    def _compile_counting(self, branch: Node) -> None:
        group = _grouping(branch)
        first = []
        matchers: list[tuple[Term | None, Matcher]] = []
        for part in branches(group.node):
            seen = visible(part)

            def pair(generator: CodeGenerator, seen: frozenset[Variable] = seen) -> Callable[[Scope], str]:
                return lambda scope: generator.group_pair(group, seen, scope)

            first.append(self._compile_first(part, pair))
            matchers += self._compile_matchers(part, pair)
        self.countings.append(
            Counting(
                tuple(first),
                tuple(matchers),
                tuple(aggregate for _, aggregate in group.aggregates),
                self._compile_group_rows(branch, group),
                not group.keys,
            )
        )

    def _compile_group_rows(self, branch: Node, group: Group) -> Callable[..., None]:
        generator = self._generator(None)

        def body() -> None:
            scope = self._constants_of_key(generator)
            maybe: dict[Any, str] = {}
            sure = certain(group)
            for names, variables in (("group", group.keys), ("values", [variable for variable, _ in group.aggregates])):
                for position, variable in enumerate(variables):
                    local = generator.name("v")
                    generator.emit(f"{local} = {names}[{position}]")
                    if variable in sure:
                        scope = scope.binding(variable, local)
                    else:
                        maybe[variable] = local
            # The group is in the scope already; only what stands around it is evaluated.
            generator.assume(group)
            generator.produce(
                branch, Scope(scope.bound, maybe), lambda it: generator.emit(f"rows.append({self._row(it)})")
            )

        return generator.compile("group_rows", "key, group, values, rows", body)

    def _constants_of_key(self, generator: CodeGenerator) -> Scope:
        constants = self.units.constants
        names = ["key"] if len(constants) == 1 else [f"key[{position}]" for position in range(len(constants))]
        scope = Scope({}, {})
        for constant, name in zip(constants, names, strict=True):
            local = generator.name("c")
            generator.emit(f"{local} = {name}")
            scope = scope.binding(constant, local)
        return scope

    def _compile_seeding(self, branch: Node) -> None:
        found = [leaf for leaf in leaves(branch) if leaf.patterns]
        keys = [[*leaf.seeds, *_constants(leaf)] for leaf in found]
        self.seedings.append(
            Seeding(
                tuple(self._compile_seeders(leaf, key) for leaf, key in zip(found, keys, strict=True)),
                tuple(self._compile_evaluator(branch, keys, number) for number in range(len(found))),
            )
        )

    def _compile_seeders(self, leaf: Leaf, keys: Sequence[Any]) -> tuple[tuple[Term | None, Seeder], ...]:
        seeders: list[tuple[Term | None, Seeder]] = []
        for pattern in dict.fromkeys(leaf.patterns):
            if takes_apart(pattern):
                continue
            # What the changed quad is joined with to find seeds. Seeds too many cost an evaluation; a missing one would
            # be a wrong result.
            rest = [it for it in dict.fromkeys((*leaf.patterns, *leaf.context)) if it != pattern]
            generator = self._generator(self.units.projection(_constants(leaf)))

            def body(generator: CodeGenerator = generator, rest: Any = rest, pattern: Pattern = pattern) -> None:
                def seed(scope: Scope) -> None:
                    generator.emit(f"seeds.add({tuple_text([scope.name(key) for key in keys])})")
                    generator.count_row()

                generator.quad(pattern, lambda scope: generator.seeds(rest, keys, scope, seed))

            seeders += self._compile_calls(pattern, generator, "seed", "seeds", body, rest)
        return tuple(seeders)

    def _compile_evaluator(self, branch: Node, keys: Sequence[Sequence[Any]], number: int) -> Evaluator:
        generator = self._generator(self.units)

        def body() -> None:
            names = [generator.name("seed") for _ in keys[number]]
            scope = Scope(dict(zip(keys[number], names, strict=True)), {})

            def hit(found: Scope) -> None:
                unit = found.name(UNIT)
                with generator.block(f"if {unit} not in found:"):
                    generator.emit(f"found[{unit}] = []")
                generator.emit(f"found[{unit}].append({self._row(found)})")
                generator.count_row()

            def once(found: Scope) -> None:
                """Counts a row that agrees with seeds of two leaves for the first leaf only."""
                # A row can agree with the seeds of several leaves, and has to be counted once.
                tests = [
                    f"{tuple_text([found.name(key) for key in earlier])} not in earlier[{index}]"
                    for index, earlier in enumerate(keys[:number])
                ]
                if tests:
                    with generator.block(f"if {' and '.join(tests)}:"):
                        hit(found)
                else:
                    hit(found)

            with generator.loop(tuple_text(names), "seeds"):
                generator.produce(branch, scope, once)

        return generator.compile("evaluate", "seeds, earlier, found", body)


def _grouping(branch: Node) -> Group:
    """The grouping of a counted branch."""
    while isinstance(branch, (Extend, Filter)):
        branch = branch.node
    assert isinstance(branch, Group)
    return branch


def _counts_rows(branch: Node) -> bool:
    """Whether a branch is a grouping of telescoped rows, with filters and expressions around it."""
    expressions = []
    while isinstance(branch, (Extend, Filter)):
        expressions.append(branch.condition if isinstance(branch, Filter) else branch.expression)
        branch = branch.node
    if not isinstance(branch, Group):
        return False
    expressions += [aggregate.argument for _, aggregate in branch.aggregates if aggregate.argument is not None]
    return all(monotone(part) for part in branches(branch.node)) and not any(it.exists for it in expressions)


def _has_seeds(branch: Node) -> bool:
    return all(leaf.seeds or _constants(leaf) for leaf in leaves(branch) if leaf.patterns)


def _constants(leaf: Leaf) -> list[Constant]:
    patterns = (*leaf.patterns, *leaf.context)
    return list(dict.fromkeys(part for pattern in patterns for part in pattern if isinstance(part, Constant)))
