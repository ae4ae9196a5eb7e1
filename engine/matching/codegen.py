"""Algebra tree -> Python functions over the CTS.

A tree becomes nested loops over the CTS's dicts, as source text that is compiled once for each shape. The loops give
the solutions that SPARQL 1.1 defines bottom-up: a known variable is passed into a part of the tree only if the part
binds it in each of its solutions (`certain`). Other variables that two parts share are compared where their solutions
meet.

The text counts its work on a meter: the members of each loop, each row made within a loop, each expression.

For ``SELECT ?lamp ?level { ?lamp <urn:street> <urn:s7> ; <urn:level> ?level }`` the matcher of the second pattern is::

    def match(s, p, o, g, found, sign):
     if g is None:
      members3 = sp2.get(s, ())
      if len(members3) > 1:
       meter.left -= len(members3)
       if meter.left < 0:
        meter.more()
      for v1 in members3:
       unit5 = units6.get(v1)
       if unit5 is not None:
        rows = found.get(unit5)
        if rows is None:
         rows = found[unit5] = ([], [])
        rows[sign].append((s, o, ))
        meter.left -= 10

It is called with each quad whose predicate is ``<urn:level>``. ``sp2`` holds the streets of each lamp, ``units6`` the
units of the shape by street. The names of shared objects and of locals end in a number, so that each is used once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from lamplighter.engine.matching import aggregates, expressions
from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.joins import JoinCodegen
from lamplighter.engine.matching.source_text import UNIT, Consume, Key, Scope, tuple_text
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
    Project,
    Union,
    Values,
    Variable,
    certain,
    visible,
    without_brackets,
)
from lamplighter.engine.terms import Term
from lamplighter.engine.work import Meter


class CodeGenerator(JoinCodegen):
    """Writes the text of one function over an algebra tree.

    It is one class because its methods, one for each kind of node, call each other recursively.
    """

    # The variables of the solution around the EXISTS that is being written.
    _ambient: frozenset[Variable] = frozenset()
    _given: Node | None = None

    def assume(self, node: Node) -> None:
        """Declares that the scope holds the solution of this node already, so that it is not evaluated."""
        self._given = node

    # --- nodes ---

    def produce(self, node: Node, scope: Scope, consume: Consume) -> None:
        """Writes loops over the node's solutions that agree with the scope, and consume's text inside."""
        if node is self._given:
            consume(scope)
            return
        match node:
            case Bgp(patterns) if patterns:
                left = [(self._numbers.get(it, number), it) for number, it in enumerate(dict.fromkeys(patterns))]
                # The pattern that the changed quad matches is bound already.
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
        # The rest cannot be joined with units from inside: a solution that no unit needs would be counted or
        # deduplicated with others.
        self.bind_constants(scope, lambda inner: self._evaluate_closed(node, inner, consume))

    def _evaluate_closed(self, node: Node, scope: Scope, consume: Consume) -> None:
        """As `produce`, for nodes that need all constants before they can be evaluated."""
        match node:
            case Bgp():
                consume(scope)
            case Union():
                self._union(node, scope, consume)
            case Values():
                self._values(node, scope, consume)
            case Project(inner, variables):
                # Only projected variables are the same ones outside of a sub-select.
                known: dict[Key, str] = {name: scope.bound[name] for name in variables if name in scope.bound}
                self.produce(
                    inner,
                    Scope({**known, **scope.constants()}, {}),
                    lambda found: consume(self._around(scope, _only(found, frozenset(variables)))),
                )
            case Distinct(inner):
                self._distinct(inner, scope, consume)
            case Group():
                self._group(node, scope, consume)
            case _:
                raise Unsupported(type(node).__name__)

    def _around(self, scope: Scope, found: Scope) -> Scope:
        """What a sub-select found, with the solution around the EXISTS that the sub-select stands in."""
        ambient = self._ambient - {*found.bound, *found.maybe}
        return Scope(
            {**{key: name for key, name in scope.bound.items() if key in ambient}, **found.bound},
            {**{key: name for key, name in scope.maybe.items() if key in ambient}, **found.maybe},
        )

    def _right(self, node: Node, scope: Scope, consume: Consume) -> None:
        """Joins the scope with the solutions of a node that is evaluated on its own (SPARQL 1.1 Query, 18.5)."""
        sure = certain(node)
        shown = visible(node)
        seen = shown | self._ambient

        # A value from outside may be pushed into the node only if the node binds the variable in each solution. Where
        # it may stay unbound, a filter inside would see a value that SPARQL does not give it.
        ambient = self._ambient - shown
        inner = Scope(
            {**{key: name for key, name in scope.bound.items() if key in sure or key in ambient}, **scope.constants()},
            {key: name for key, name in scope.maybe.items() if key in ambient},
        )

        def meet(found: Scope) -> None:
            bound, maybe = {**scope.bound, **found.constants()}, dict(scope.maybe)
            conditions = []
            merged = []
            for key in sorted(key for key in seen if key not in inner.bound and key in {*found.bound, *found.maybe}):
                name, here = found.name(key), scope.name(key)
                # Unbound on the left: what is found is compatible, whatever it is.
                if here == "None":
                    (bound if key in found.bound else maybe)[key] = name
                    continue
                if here == name:
                    continue
                # Comparing long literals takes time that no loop counts: a unit for 4,096 characters.
                self.emit(f"meter.left -= len({here} or '') >> 12")
                tests = [f"{here} == {name}"]
                if key in scope.maybe:
                    tests.append(f"{here} is None")
                if key in found.maybe:
                    tests.append(f"{name} is None")
                conditions.append(f"({' or '.join(tests)})")
                if key in scope.maybe:
                    # Bound on one side at least: the merged solution has that value.
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
        # What follows is written once, as a function, and called with a match or without: written twice, nested
        # OPTIONALs would double the text each time.
        new = sorted(key for key in visible(node.right) if key not in scope.bound)
        target = self.name("next")
        names = [self.name("v") for _ in new]
        with self.block(f"def {target}({', '.join(names)}):"):
            maybe = {key: name for key, name in scope.maybe.items() if key not in new}
            consume(Scope(scope.bound, {**maybe, **dict(zip(new, names, strict=True))}))
        matched = self.name("matched")
        # A list, because a nested function cannot assign to a name of the function around it without a declaration.
        self.emit(f"{matched} = [False]")

        def accept_match(inner: Scope) -> None:
            def accept(final: Scope) -> None:
                self.emit(f"{matched}[0] = True")
                self.emit(f"{target}({', '.join(final.name(key) for key in new)})")

            seen = visible(node.left) | visible(node.right) | self._ambient
            self._filter(node.condition, seen, inner, accept)

        self._right(node.right, scope, accept_match)
        with self.block(f"if not {matched}[0]:"):
            self.emit(f"{target}({', '.join(scope.name(key) for key in new)})")

    def _minus(self, node: Minus, scope: Scope, consume: Consume) -> None:
        shared = visible(node.left) & visible(node.right)
        # MINUS without a shared variable removes nothing (SPARQL 1.1 Query, 8.3.3).
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
                    # Compatible as in a join, and at least one variable bound on both sides: disjoint domains remove
                    # nothing.
                    if "None" not in (here, name):
                        compatible.append(f"({here} is None or {name} is None or {here} == {name})")
                        overlap.append(f"({here} is not None and {name} is not None)")
                # A pushed variable is bound on both sides, so the domains overlap.
                if not pushed:
                    compatible.append(f"({' or '.join(overlap) or False})")
                if compatible:
                    with self.block(f"if {' and '.join(compatible)}:"):
                        succeed()
                else:
                    succeed()

            self.produce(node.right, Scope({**pushed, **scope.constants()}, {}), meet)

        with self.block(f"if not {self.any(body)}:"):
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
            self.count("1")  # two branches multiply the work without a loop
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
            # VALUES is a constant of the text: the rows are indexed by what is known, once.
            index.setdefault(tuple(row[column] for column in known), []).append(row)  # type: ignore[arg-type]
        table = self.share("table", index)
        row_name = self.name("row")
        key = "".join(f"{scope.name(node.variables[column])}, " for column in known)
        with self.loop(row_name, f"{table}.get(({key}), ())"):
            rest = [(column, variable) for column, variable in enumerate(node.variables) if column not in known]
            consume(self._unpack(row_name, rest, certain(node), scope))

    def _unpack(
        self, row: str, columns: Iterable[tuple[int, Variable]], sure: Collection[Variable], scope: Scope
    ) -> Scope:
        """Writes an assignment for each column of a row; the scope with these variables."""
        bound, maybe = dict(scope.bound), dict(scope.maybe)
        for column, variable in columns:
            name = self.name("v")
            self.emit(f"{name} = {row}[{column}]")
            (bound if variable in sure else maybe)[variable] = name
        return Scope(bound, maybe)

    def _distinct(self, node: Node, scope: Scope, consume: Consume) -> None:
        columns = sorted(visible(node))
        # All is known, so there is one solution or none, and the first match is enough.
        if all(column in scope.bound for column in columns):
            with self.block(f"if {self.any(lambda succeed: self.produce(node, scope, lambda _: succeed()))}:"):
                consume(scope)
            return
        seen = self.name("seen")
        row = self.name("row")
        self.emit(f"{seen} = set()")

        def once(found: Scope) -> None:
            self.emit(f"{row} = {tuple_text([found.name(column) for column in columns])}")
            with self.block(f"if {row} not in {seen}:"):
                self.emit(f"{seen}.add({row})")
                self.count_row()
                consume(found)

        self.produce(node, scope, once)

    def group_pair(self, node: Group, seen: frozenset[Variable], scope: Scope) -> str:
        """The Python tuple of a solution's group key and of its arguments to the aggregates."""
        return tuple_text(list(self._group_row(node, seen, scope)))

    def _group_row(self, node: Group, seen: frozenset[Variable], scope: Scope) -> tuple[str, str]:
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
        # Without GROUP BY there is one group, also without solutions (SPARQL 1.1 Query, 18.5.1).
        self.emit(f"{groups} = {{}}" if node.keys else f"{groups} = {{(): []}}")
        known: dict[Key, str] = {key: scope.bound[key] for key in node.keys if key in scope.bound}
        seen = visible(node.node)

        def collect(found: Scope) -> None:
            key, arguments = self._group_row(node, seen, found)
            self.emit(f"{groups}.setdefault({key}, []).append({arguments})")
            self.count_row()

        self.produce(node.node, Scope({**known, **scope.constants()}, {}), collect)
        with self.loop(f"{key_name}, {rows_name}", f"{groups}.items()"):
            rest = [(column, variable) for column, variable in enumerate(node.keys) if variable not in known]
            unpacked = self._unpack(key_name, rest, certain(node), scope)
            maybe = dict(unpacked.maybe)
            for column, (variable, aggregate) in enumerate(node.aggregates):
                name = self.name("v")
                function = self.share("aggregate", aggregates.compile_aggregate(aggregate, self.meter))
                self.emit(f"{name} = {function}([row[{column}] for row in {rows_name}])")
                maybe[variable] = name
            consume(Scope(unpacked.bound, maybe))

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
                # A name instead of a call, and the variable stays certain, so that it can be looked up.
                consume(scope.binding(variable, scope.name(constant)))
            case (Variable() as other,) if other in seen and other in scope.bound:
                consume(scope.binding(variable, scope.name(other)))
            case _:
                name = self.name("v")
                self.emit(f"{name} = {self._expression(expression, seen, scope, expressions.value)}")
                # An expression may fail, and then the variable is unbound.
                consume(Scope(scope.bound, {**scope.maybe, variable: name}))

    def _expression(
        self,
        expression: Expression,
        seen: frozenset[Variable],
        scope: Scope,
        compiled: Callable[[Expression, Meter], Callable[..., Any]],
    ) -> str:
        """The call that evaluates an expression. Variables that are not in seen are unbound in it."""
        if compiled is expressions.value:
            match without_brackets(expression.parts):
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
        # The pattern of an EXISTS sees the solution around it by substitution (SPARQL 1.1 Query, 18.6).
        before, self._ambient = self._ambient, self._ambient | seen
        test = self.any(lambda succeed: self._right(exists.node, outer, lambda _: succeed()))
        self._ambient = before
        yes, no = (expressions.FALSE, expressions.TRUE) if exists.negated else (expressions.TRUE, expressions.FALSE)
        self.emit(f"{result} = {yes!r} if {test} else {no!r}")
        return result


def _only(scope: Scope, variables: frozenset[Variable]) -> Scope:
    """The scope without the variables that are not among these."""
    return Scope(
        {
            key: name
            for key, name in scope.bound.items()
            if not isinstance(key, Variable) or key in variables or key == UNIT
        },
        {key: name for key, name in scope.maybe.items() if key in variables},
    )
