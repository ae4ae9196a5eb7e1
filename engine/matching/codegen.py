"""Algebra -> Python functions over the CTS.

A tree becomes nested loops over the CTS's dicts, written out as source text and compiled once for a shape.
Bindings are pushed inwards, but only those of variables that are *certain* in the part they are pushed into;
what else two parts have in common is compared when their solutions meet. So the loops give the solutions that
SPARQL 1.1 defines bottom-up.

The text counts its work on a meter: each loop what it is about to look at, each row that a loop makes, each expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lamplighter.engine.matching import aggregates, expressions
from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.units import Units
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Distinct,
    Exists,
    Expression,
    Extend,
    Filter,
    Group,
    Join,
    LeftJoin,
    Minus,
    Node,
    Part,
    Pattern,
    Project,
    Union,
    Values,
    Variable,
    certain,
    visible,
)
from lamplighter.engine.sparql.grammar import RDF_TYPE
from lamplighter.engine.terms import Term
from lamplighter.engine.work import ROW, Meter

Key = Variable | Constant
UNIT = Variable("unit of the shape")
"""Holds the unit once it is known; its name has spaces, as no variable of a text."""
_NEAR = 2.4
"""Rank (`Writer._rank`) below which a pattern is found from what is known, and above which a table is scanned."""


@dataclass(frozen=True)
class Scope:
    """The Python names that hold variables and constants; those of `maybe` may hold None, unbound."""

    bound: Mapping[Key, str]
    maybe: Mapping[Key, str]

    def name(self, key: Key) -> str:
        """The Python name, ``None`` where nothing is known."""
        return self.bound.get(key) or self.maybe.get(key) or "None"

    def binding(self, key: Key, name: str) -> Scope:
        return Scope({**self.bound, key: name}, self.maybe)

    def constants(self) -> dict[Key, str]:
        """What holds everywhere in a tree: its constants, and the unit whose they are."""
        return {key: name for key, name in self.bound.items() if isinstance(key, Constant) or key == UNIT}


Consume = Callable[[Scope], None]


class Writer:
    """Source text of one function. Names are never used twice, so no loop can overwrite another's."""

    def __init__(
        self,
        cts: Cts,
        hold: Callable[[Term | None, bool], None],
        units: Units | None,
        meter: Meter,
        counted: Sequence[str] = (),
    ) -> None:
        """counted: names of the function's own that the text counts down, wherever it stands."""
        self._nonlocal = ", ".join(counted)
        self.meter = meter
        self._cts = cts
        self._hold = hold
        self._units = units
        self._lines: list[str] = []
        self._depth = 0
        self._functions = 0
        self._names = 0
        self.space: dict[str, Any] = {"meter": meter}
        self._ambient: frozenset[Variable] = frozenset()
        self._numbers: dict[Pattern, int] = {}
        self._match: int | None = None
        self._given: Node | None = None
        self._loops = 0
        self._asking = 0
        self._counted = False
        self._tested = False

    def compiled(self, title: str, signature: str, body: Callable[[], None]) -> Callable[..., Any]:
        """The function of that name. may_exceed: whether it counts, and so may raise TooMuchWork."""
        with self.block(f"def {title}({signature}):"):
            body()
        source = "\n".join(self._lines)
        try:
            exec(compile(source, f"<plan {title}>", "exec"), self.space)
        except (SyntaxError, RecursionError, MemoryError) as error:  # too deeply nested for Python
            raise Unsupported("patterns nested too deeply") from error
        function = self.space.pop(title)  # in its own globals it would be a cycle, and only the collector frees those
        function.source = source
        function.may_exceed = self._counted
        return function  # type: ignore[no-any-return]

    def match(self, numbered: Sequence[Pattern], number: int) -> None:
        """From now on, the quad s, p, o, g stands in one of a tree's patterns, and not in those before it."""
        self._numbers = {pattern: numbered.index(pattern) for pattern in numbered}
        self._match = self._numbers[numbered[number]]

    def given(self, node: Node) -> None:
        """From now on, the solution of this node is in the scope already."""
        self._given = node

    def _exclusion(self, number: int, pattern: Pattern, scope: Scope) -> str | None:
        """The condition that a matched pattern has not taken the quad that stands in a later one."""
        if self._match is None or number > self._match:
            return None
        matched = next(other for other, it in self._numbers.items() if it == self._match)
        tests = []
        for name, part, quad_part in zip("spog", pattern, matched, strict=True):
            if (part is None) != (quad_part is None):
                return None
            if isinstance(part, str) and isinstance(quad_part, str):
                if part != quad_part:
                    return None
            elif part is not None and self.part(part, scope) != name:
                tests.append(f"{self.part(part, scope)} == {name}")
        return f"not ({' and '.join(tests) or True})"

    def emit(self, line: str) -> None:
        self._lines.append(" " * self._depth + line)

    @contextmanager
    def loop(self, name: str, members: str) -> Iterator[None]:
        """A loop over members, which are counted."""
        self._counted = True
        self._loops += 1
        if self._asking:  # it ends with the first solution
            with self.block(f"for {name} in {members}:"):
                self._count("1")
                yield
        else:
            counted = self.name("members")
            self.emit(f"{counted} = {members}")
            with self.block(f"if len({counted}) > 1:"):  # one multiplies nothing
                self._count(f"len({counted})")
            with self.block(f"for {name} in {counted}:"):
                yield
        self._loops -= 1

    def _count(self, units: str) -> None:
        self.emit(f"meter.left -= {units}")
        with self.block("if meter.left < 0:"):
            self.emit("meter.more()")

    def made(self) -> None:
        """Counts a row that is kept, where a loop may make many; the next loop looks whether that was too much."""
        if self._loops:
            self.emit(f"meter.left -= {ROW}")

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.emit(line)
        self._depth += 1
        self._functions += line.startswith("def ")
        if self._nonlocal and line.startswith("def ") and self._functions > 1:
            self.emit(f"nonlocal {self._nonlocal}")
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.emit("pass")
        self._depth -= 1
        self._functions -= line.startswith("def ")

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def share(self, stem: str, value: Any) -> str:
        """A name for an object that the function uses."""
        name = self.name(stem)
        self.space[name] = value
        return name

    def part(self, part: Part, scope: Scope) -> str:
        """The Python expression for a term, constant or variable."""
        return scope.name(part) if isinstance(part, (Variable, Constant)) else repr(part)

    # --- nodes ---

    def produce(self, node: Node, scope: Scope, consume: Consume) -> None:
        """Writes loops over the node's solutions that agree with the scope, and consume's text inside."""
        if node is self._given:
            consume(scope)
            return
        match node:
            case Bgp(patterns) if patterns:
                left = [(self._numbers.get(it, number), it) for number, it in enumerate(dict.fromkeys(patterns))]
                self.patterns([found for found in left if found[0] != self._match], scope, consume)
                return
            case Join(left, right):
                self._right(left, scope, lambda inner: self._right(right, inner, consume))
                return
            case LeftJoin():
                self.produce(node.left, scope, lambda inner: self._optional(node, inner, consume))
                return
            case Minus():
                self.produce(node.left, scope, lambda inner: self._minus(node, inner, consume))
                return
            case Filter(inner_node, condition):
                seen = visible(inner_node) | self._ambient
                self.produce(inner_node, scope, lambda inner: self._filter([condition], seen, inner, consume))
                return
            case Extend(inner_node, variable, expression):
                seen = visible(inner_node) | self._ambient
                self.produce(inner_node, scope, lambda inner: self._extend(variable, expression, seen, inner, consume))
                return
        self.bind_constants(scope, lambda inner: self._closed(node, inner, consume))

    def _closed(self, node: Node, scope: Scope, consume: Consume) -> None:
        """The nodes for which all constants have to be known before."""
        match node:
            case Bgp():
                consume(scope)
            case Union():
                self._union(node, scope, consume)
            case Values():
                self._values(node, scope, consume)
            case Project(inner, variables):
                known: dict[Key, str] = {name: scope.bound[name] for name in variables if name in scope.bound}
                self.produce(
                    inner,
                    Scope({**known, **scope.constants()}, {}),
                    lambda found: consume(_only(found, frozenset(variables))),
                )
            case Distinct(inner):
                self._distinct(inner, scope, consume)
            case Group():
                self._group(node, scope, consume)
            case _:
                raise Unsupported(type(node).__name__)

    def _right(self, node: Node, scope: Scope, consume: Consume) -> None:
        """Joins the scope with the solutions of a node that is evaluated for itself (SPARQL 1.1 Query, 18.5)."""
        sure = certain(node)
        shown = visible(node)
        seen = shown | self._ambient

        ambient = self._ambient - shown
        inner = Scope(
            {
                **{key: name for key, name in scope.bound.items() if key in sure or key in ambient},
                **scope.constants(),
            },
            {key: name for key, name in scope.maybe.items() if key in ambient},
        )

        def meet(found: Scope) -> None:
            bound, maybe = {**scope.bound, **found.constants()}, dict(scope.maybe)
            conditions = []
            merged = []
            for key in sorted(key for key in seen if key not in inner.bound and key in {*found.bound, *found.maybe}):
                name, here = found.name(key), scope.name(key)
                if here == "None":
                    (bound if key in found.bound else maybe)[key] = name
                    continue
                if here == name:
                    continue
                self.emit(f"meter.left -= len({here} or '') >> 12")
                tests = [f"{here} == {name}"]
                if key in scope.maybe:
                    tests.append(f"{here} is None")
                if key in found.maybe:
                    tests.append(f"{name} is None")
                conditions.append(f"({' or '.join(tests)})")
                if key in scope.maybe:
                    new = self.name("m")
                    merged.append(f"{new} = {name} if {here} is None else {here}")
                    del maybe[key]
                    (bound if key in found.bound else maybe)[key] = new
            if conditions:
                with self.block(f"if {' and '.join(conditions)}:"):
                    for line in merged:
                        self.emit(line)
                    consume(Scope(bound, maybe))
            else:
                consume(Scope(bound, maybe))

        self.produce(node, inner, meet)

    def _optional(self, node: LeftJoin, scope: Scope, consume: Consume) -> None:
        new = sorted(key for key in visible(node.right) if key not in scope.bound)
        target = self.name("next")
        names = [self.name("v") for _ in new]
        with self.block(f"def {target}({', '.join(names)}):"):
            maybe = {key: name for key, name in scope.maybe.items() if key not in new}
            consume(Scope(scope.bound, {**maybe, **dict(zip(new, names, strict=True))}))
        matched = self.name("matched")
        self.emit(f"{matched} = [False]")

        def found(inner: Scope) -> None:
            def accept(final: Scope) -> None:
                self.emit(f"{matched}[0] = True")
                self.emit(f"{target}({', '.join(final.name(key) for key in new)})")

            seen = visible(node.left) | visible(node.right) | self._ambient
            self._filter(node.condition, seen, inner, accept)

        self._right(node.right, scope, found)
        with self.block(f"if not {matched}[0]:"):
            self.emit(f"{target}({', '.join(scope.name(key) for key in new)})")

    def _any(self, body: Callable[[Callable[[], None]], None]) -> str:
        """Writes a function that tells whether body comes to the text that it is given; returns the call."""
        test, hit = self.name("any"), self.name("hit")
        with self.block(f"def {test}():"):
            self.emit(f"{hit} = [False]")
            level = self._functions

            def succeed() -> None:
                # From within another function, which a `return` would only end itself, it is left as a note.
                self.emit("return True" if self._functions == level else f"{hit}[0] = True")

            self._asking += 1
            body(succeed)
            self._asking -= 1
            self.emit(f"return {hit}[0]")
        return f"{test}()"

    def _minus(self, node: Minus, scope: Scope, consume: Consume) -> None:
        shared = visible(node.left) & visible(node.right)
        if not shared:
            consume(scope)
            return
        sure = certain(node.right)
        pushed: dict[Key, str] = {key: name for key, name in scope.bound.items() if key in sure and key in shared}

        def body(succeed: Callable[[], None]) -> None:
            def meet(found: Scope) -> None:
                compatible, overlap = [], []
                for key in sorted(shared - set(pushed)):
                    here, name = scope.name(key), found.name(key)
                    if "None" not in (here, name):
                        compatible.append(f"({here} is None or {name} is None or {here} == {name})")
                        overlap.append(f"({here} is not None and {name} is not None)")
                if not pushed:
                    compatible.append(f"({' or '.join(overlap) or False})")
                if compatible:
                    with self.block(f"if {' and '.join(compatible)}:"):
                        succeed()
                else:
                    succeed()

            self.produce(node.right, Scope({**pushed, **scope.constants()}, {}), meet)

        with self.block(f"if not {self._any(body)}:"):
            consume(scope)

    def _union(self, node: Union, scope: Scope, consume: Consume) -> None:
        sure = certain(node)
        new = sorted(key for key in visible(node) if key not in scope.bound)
        target = self.name("next")
        names = [self.name("v") for _ in new]
        with self.block(f"def {target}({', '.join(names)}):"):
            bound, maybe = dict(scope.bound), dict(scope.maybe)
            for key, name in zip(new, names, strict=True):
                maybe.pop(key, None)
                (bound if key in sure else maybe)[key] = name
            self._counted = True
            self._count("1")  # two branches multiply without a loop
            consume(Scope(bound, maybe))
        for branch in (node.left, node.right):
            self._right(
                branch, scope, lambda found: self.emit(f"{target}({', '.join(found.name(key) for key in new)})")
            )

    def _values(self, node: Values, scope: Scope, consume: Consume) -> None:
        known = [column for column, variable in enumerate(node.variables) if variable in scope.bound]
        index: dict[Any, list[tuple[Term | None, ...]]] = {}
        for row in node.rows:
            assert all(part is None or isinstance(part, str) for part in row), "constants of VALUES are the shape's own"
            index.setdefault(tuple(row[column] for column in known), []).append(row)  # type: ignore[arg-type]
        table = self.share("table", index)
        row_name = self.name("row")
        key = "".join(f"{scope.name(node.variables[column])}, " for column in known)
        with self.loop(row_name, f"{table}.get(({key}), ())"):
            bound, maybe = dict(scope.bound), dict(scope.maybe)
            sure = certain(node)
            for column, variable in enumerate(node.variables):
                if column in known:
                    continue
                name = self.name("v")
                self.emit(f"{name} = {row_name}[{column}]")
                (bound if variable in sure else maybe)[variable] = name
            consume(Scope(bound, maybe))

    def _distinct(self, node: Node, scope: Scope, consume: Consume) -> None:
        columns = sorted(visible(node))
        if all(column in scope.bound for column in columns):
            with self.block(f"if {self._any(lambda succeed: self.produce(node, scope, lambda _: succeed()))}:"):
                consume(scope)
            return
        seen = self.name("seen")
        row = self.name("row")
        self.emit(f"{seen} = set()")

        def once(found: Scope) -> None:
            self.emit(f"{row} = {tuple_text([found.name(column) for column in columns])}")
            with self.block(f"if {row} not in {seen}:"):
                self.emit(f"{seen}.add({row})")
                self.made()
                consume(found)

        self.produce(node, scope, once)

    def group_pair(self, node: Group, seen: frozenset[Variable], scope: Scope) -> str:
        """The group that a solution belongs to and what it gives to the aggregates, as a Python tuple."""
        return tuple_text(list(self._grouped(node, seen, scope)))

    def _grouped(self, node: Group, seen: frozenset[Variable], scope: Scope) -> tuple[str, str]:
        arguments = []
        for _, aggregate in node.aggregates:
            if aggregate.argument is None:
                arguments.append("None")
            else:
                arguments.append(self._expression(aggregate.argument, seen, scope, expressions.value))
        keys = [scope.name(key) if key in seen else "None" for key in node.keys]
        return tuple_text(keys), tuple_text(arguments)

    def _group(self, node: Group, scope: Scope, consume: Consume) -> None:
        groups = self.name("groups")
        key_name, rows_name = self.name("key"), self.name("rows")
        self.emit(f"{groups} = {{}}" if node.keys else f"{groups} = {{(): []}}")
        sure = certain(node)
        known: dict[Key, str] = {key: scope.bound[key] for key in node.keys if key in scope.bound}
        seen = visible(node.node)

        def collect(found: Scope) -> None:
            key, arguments = self._grouped(node, seen, found)
            self.emit(f"{groups}.setdefault({key}, []).append({arguments})")
            self.made()

        self.produce(node.node, Scope({**known, **scope.constants()}, {}), collect)
        with self.loop(f"{key_name}, {rows_name}", f"{groups}.items()"):
            bound, maybe = dict(scope.bound), dict(scope.maybe)
            for column, variable in enumerate(node.keys):
                if variable in known:
                    continue
                name = self.name("v")
                self.emit(f"{name} = {key_name}[{column}]")
                (bound if variable in sure else maybe)[variable] = name
            for column, (variable, aggregate) in enumerate(node.aggregates):
                name = self.name("v")
                function = self.share("aggregate", aggregates.compiled(aggregate, self.meter))
                self.emit(f"{name} = {function}([row[{column}] for row in {rows_name}])")
                maybe[variable] = name
            consume(Scope(bound, maybe))

    # --- expressions ---

    def _filter(self, found: Iterable[Expression], seen: frozenset[Variable], scope: Scope, consume: Consume) -> None:
        tests = [self._expression(expression, seen, scope, expressions.condition) for expression in found]
        if tests:
            with self.block(f"if {' and '.join(tests)}:"):
                consume(scope)
        else:
            consume(scope)

    def _extend(
        self, variable: Variable, expression: Expression, seen: frozenset[Variable], scope: Scope, consume: Consume
    ) -> None:
        match expression.parts:
            case (Constant() as constant,):
                consume(scope.binding(variable, scope.name(constant)))
            case (Variable() as other,) if other in seen and other in scope.bound:
                consume(scope.binding(variable, scope.name(other)))
            case _:
                name = self.name("v")
                self.emit(f"{name} = {self._expression(expression, seen, scope, expressions.value)}")
                consume(Scope(scope.bound, {**scope.maybe, variable: name}))

    def _expression(
        self,
        expression: Expression,
        seen: frozenset[Variable],
        scope: Scope,
        compiled: Callable[[Expression, Meter], Callable[..., Any]],
    ) -> str:
        """The call that gives the expression's value; variables that the expression does not see are unbound."""
        if compiled is expressions.value:
            match expressions.without_brackets(expression.parts):
                case (Constant() as constant,):
                    return scope.name(constant)
                case (Variable() as variable,):
                    return scope.name(variable) if variable in seen else "None"
                case (Exists() as exists,):
                    return self._exists(exists, seen, scope)
        arguments = []
        for operand in expressions.operands(expression):
            if isinstance(operand, Exists):
                arguments.append(self._exists(operand, seen, scope))
            elif isinstance(operand, Variable) and operand not in seen:
                arguments.append("None")
            else:
                arguments.append(scope.name(operand))
        self._counted = True
        return f"{self.share('expression', compiled(expression, self.meter))}({', '.join(arguments)})"

    def _exists(self, exists: Exists, seen: frozenset[Variable], scope: Scope) -> str:
        result = self.name("v")
        outer = Scope(
            {**{key: name for key, name in scope.bound.items() if key in seen}, **scope.constants()},
            {key: name for key, name in scope.maybe.items() if key in seen},
        )
        before, self._ambient = self._ambient, self._ambient | seen
        test = self._any(lambda succeed: self._right(exists.node, outer, lambda _: succeed()))
        self._ambient = before
        yes, no = (expressions.FALSE, expressions.TRUE) if exists.negated else (expressions.TRUE, expressions.FALSE)
        self.emit(f"{result} = {yes!r} if {test} else {no!r}")
        return result

    # --- patterns ---

    def patterns(
        self,
        left: list[tuple[int, Pattern]],
        scope: Scope,
        consume: Consume,
    ) -> None:
        """Joins numbered patterns, the cheapest next one first."""
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
        if rank >= 1.0 and self._may_test(scope):  # a subject that is known costs no more than the test
            self._test_constants(scope, lambda: self.patterns(left, scope, consume))
            return
        rest = [(other, it) for other, it in left if other != number]

        def matched(found: Scope) -> None:
            condition = self._exclusion(number, pattern, found)
            if condition:
                with self.block(f"if {condition}:"):
                    self.patterns(rest, found, consume)
            else:
                self.patterns(rest, found, consume)

        self._pattern(pattern, scope, matched)

    def seeds(self, left: Sequence[Pattern], keys: Sequence[Key], scope: Scope, consume: Consume) -> None:
        """Writes loops that bind the keys, for all solutions of the patterns that agree with the scope.

        There may be more: a pattern that no key depends on is only looked for where it is found from what is known.
        """
        groups = self._connected(left, scope)
        wanted = [key for key in keys if key not in scope.bound]
        needed = [it for group in groups if any(key in it for it in group for key in wanted) for it in group]
        beside = [group for group in groups if group[0] not in needed]
        rank, pattern = min(((self._rank(it, scope), it) for it in needed), key=_first, default=(0.0, None))
        unit_first = self._unit_rank(scope)
        if unit_first is not None and unit_first <= rank:
            self.bind_constants(scope, lambda bound: self.seeds(left, keys, bound, consume))
        elif self._may_test(scope):
            self._test_constants(scope, lambda: self.seeds(left, keys, scope, consume))
        elif pattern is None:
            self._near(beside, scope, lambda: self.bind_constants(scope, consume))
        else:
            rest = [it for it in needed if it != pattern]

            def look_up() -> None:
                self._pattern(pattern, scope, lambda found: self.seeds(rest, keys, found, consume))

            self._near(beside, scope, look_up)

    def _connected(self, left: Sequence[Pattern], scope: Scope) -> list[list[Pattern]]:
        """The patterns in groups that share nothing which is not known yet."""
        groups: list[tuple[set[Key], list[Pattern]]] = []
        for pattern in left:
            free = {part for part in pattern if isinstance(part, (Variable, Constant)) and part not in scope.bound}
            apart = [group for group in groups if not group[0] & free]
            joined = [group for group in groups if group[0] & free]
            members = [it for _, found in joined for it in found]
            groups = [*apart, (free.union(*(parts for parts, _ in joined)), [*members, pattern])]
        return [members for _, members in groups]

    def _near(self, groups: Sequence[Sequence[Pattern]], scope: Scope, consume: Callable[[], None]) -> None:
        """Goes on only if each group of patterns has a solution, as far as it is found from what is known."""
        if not groups:
            consume()
            return
        first, *rest = groups
        rank = min(self._rank(it, scope) for it in first)
        if rank >= _NEAR:
            self._near(rest, scope, consume)
        elif len(first) == 1 and rank == 0.0:
            self._pattern(first[0], scope, lambda _: self._near(rest, scope, consume))
        else:
            with self.block(f"if {self._any(lambda succeed: self._walk(first, scope, succeed))}:"):
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
        """Whether it can be told before anything is looked up that no unit has the constants which are known."""
        if self._units is None or self._tested or UNIT in scope.bound:
            return False
        known = sum(constant in scope.bound for constant in self._units.constants)
        return 0 < known < len(self._units.constants)

    def _test_constants(self, scope: Scope, consume: Callable[[], None]) -> None:
        assert self._units is not None
        index, part = self._units_with(scope)
        self._tested = True
        with self.block(f"if {part} in {index}:"):
            consume()
        self._tested = False

    def _units_with(self, scope: Scope) -> tuple[str, str]:
        """The index of the units by the constants that are known, and the key to look up."""
        assert self._units is not None
        constants = self._units.constants
        positions = tuple(position for position, constant in enumerate(constants) if constant in scope.bound)
        index = self.share("index", self._units.part(positions))
        return index, _key([scope.name(constants[position]) for position in positions])

    def _rank(self, pattern: Pattern, scope: Scope) -> float:
        """How many quads are to be expected, roughly, as a power of ten."""

        def known(part: Part | None) -> bool:
            return not isinstance(part, (Variable, Constant)) or part in scope.bound

        s, p, o = known(pattern.s), known(pattern.p), known(pattern.o)
        graph = 0.0 if known(pattern.graph) else 0.5
        if s and p and o:
            return graph
        if p and s:
            return 0.5 + graph
        if p and o:
            return (3.0 if pattern.p == RDF_TYPE else 1.5) + graph
        if s:
            return 1.0 + graph
        if o:
            return 2.5 + graph
        return (4.0 if p else 6.0) + graph

    def _unit_rank(self, scope: Scope) -> float | None:
        """The same for the shape's units; None if their constants are known already."""
        if self._units is None:
            return None
        known = sum(constant in scope.bound for constant in self._units.constants)
        if UNIT in scope.bound:
            return None
        if known == len(self._units.constants):
            return -1.0
        return 2.0 if known else 3.5

    def bind_constants(self, scope: Scope, consume: Consume) -> None:
        """Joins with the units, if that has not been done; afterwards every constant and the unit is known."""
        units = self._units
        if units is None or UNIT in scope.bound:
            consume(scope)
            return
        key_name, unit = self.name("key"), self.name("unit")
        known = [constant in scope.bound for constant in units.constants]
        everyone = self.share("units", units.all)
        if all(known):
            self.emit(f"{unit} = {everyone}.get({_key([scope.name(constant) for constant in units.constants])})")
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
            inner = scope.binding(UNIT, unit)
            for position, constant in enumerate(units.constants):
                if not known[position]:
                    inner = inner.binding(
                        constant, key_name if len(units.constants) == 1 else f"{key_name}[{position}]"
                    )
            consume(inner)

    def _pattern(self, pattern: Pattern, scope: Scope, consume: Consume) -> None:
        """Loops over the quads that match a pattern."""
        if isinstance(pattern.p, str):
            self._hold(pattern.p, False)
            tables = self._cts.tables[pattern.p]
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
        """The subject and object within a table, which is known now or has a name in the function."""

        def known(part: Part) -> bool:
            return not isinstance(part, (Variable, Constant)) or part in scope.bound

        def half(name: str) -> str:
            return f"{table_name}.{name}" if table_name else self.share(name, getattr(table, name))

        s, o = pattern.s, pattern.o
        subject, object_ = self.part(s, scope), self.part(o, scope)
        if known(s) and known(o):
            with self.block(f"if {object_} in {half('sp')}.get({subject}, ()):"):
                consume(scope)
        elif known(s):
            assert isinstance(o, (Variable, Constant))
            name = self.name("v")
            with self.loop(name, f"{half('sp')}.get({subject}, ())"):
                consume(scope.binding(o, name))
        elif known(o):
            assert isinstance(s, (Variable, Constant))
            self._hold(pattern.p if isinstance(pattern.p, str) else None, True)
            name = self.name("v")
            with self.loop(name, f"{half('po')}.get({object_}, ())"):
                consume(scope.binding(s, name))
        else:
            assert isinstance(s, (Variable, Constant)) and isinstance(o, (Variable, Constant))
            name, members = self.name("v"), self.name("members")
            with self.loop(f"{name}, {members}", f"{half('sp')}.items()"):
                inner = scope.binding(s, name)
                if s == o:
                    with self.block(f"if {name} in {members}:"):
                        consume(inner)
                else:
                    other = self.name("v")
                    with self.loop(other, members):
                        consume(inner.binding(o, other))

    def quad(self, pattern: Pattern, consume: Consume) -> None:
        """Takes the names s, p, o, g as the quad of a pattern whose predicate is known to fit."""
        scope = Scope({}, {})
        tests = []
        for name, part in zip("spog", pattern, strict=True):
            if part is None:
                tests.append("g is None")
            elif isinstance(part, str):
                if name != "p":
                    tests.append(f"{name} == {part!r}")
            elif part in scope.bound:
                tests.append(f"{name} == {scope.name(part)}")
            else:
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


def _only(scope: Scope, variables: frozenset[Variable]) -> Scope:
    return Scope(
        {
            key: name
            for key, name in scope.bound.items()
            if not isinstance(key, Variable) or key in variables or key == UNIT
        },
        {key: name for key, name in scope.maybe.items() if key in variables},
    )


def tuple_text(names: Sequence[str]) -> str:
    """The names as a Python tuple."""
    return f"({''.join(name + ', ' for name in names)})"


def _key(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else tuple_text(names)
