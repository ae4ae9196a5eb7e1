"""Update plans: functions from the constants of a request to its quad delta, one for each shape of frequent requests.

A plan evaluates each WHERE over the CTS and instantiates the templates from the solutions, as
`engine.updating.by_store` does over the store. It is compiled when a skeleton occurs again with the same
predicates, because compiling takes as long as tens of updates, and the quads that it reads have to be indexed in the
CTS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lamplighter.engine.access import EVERY, Graphs
from lamplighter.engine.delta import DELTA_QUADS_MAX, QuadDelta, compose
from lamplighter.engine.matching.analysis import Unsupported, check, with_equalities
from lamplighter.engine.matching.codegen import CodeGenerator
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.source_text import Scope, tuple_text
from lamplighter.engine.slices import LONG, sliced
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Expression,
    Extend,
    Function,
    Group,
    Node,
    Part,
    Pattern,
    Variable,
    certain,
    rewritten,
    walk,
)
from lamplighter.engine.sparql.clock_function import CLOCKS
from lamplighter.engine.sparql.cursor import Resolve, UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import UpdateReader
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.sparql.skeletons import IRI, Recogniser, kind_of
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.updating.by_store import too_many_quads
from lamplighter.engine.work import Meter, Work

# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__

Instantiate = Callable[[Sequence[Term], list[Quad], list[Quad], Callable[[], Term], int], None]
"""(constants, deletes, inserts, new blank node, room): adds the quads of all solutions to the lists.

room: the largest number of quads. Raises _TooManyQuads before it is exceeded.
"""

# A compiled operation; whether it deletes only quads that its WHERE has found, which need no lookup; whether it may
# make new terms, whose length has to be checked.
_Function = tuple[Instantiate, bool, bool]

_GRAPH_VERBS = ("LOAD", "CLEAR", "DROP", "CREATE", "COPY", "MOVE", "ADD")
# Functions whose value depends on more than their operands: the time, chance, or BASE.
_DEPENDENT = ("NOW", "RAND", "UUID", "STRUUID", "BNODE", "IRI", "URI")


class _TooManyQuads(Exception):
    """The templates of a request make more quads than allowed."""


@dataclass(frozen=True)
class _Operation:
    """An operation as algebra. graph: the graph of WITH."""

    delete: tuple[Pattern, ...]
    insert: tuple[Pattern, ...]
    where: Node
    graph: Part | None = None


class UpdatePlan:
    """The compiled operations of one shape. Raises Unsupported for requests that the store has to evaluate.

    fixed: numbers of the constants that are compiled into the plan; it serves only requests with the same ones. served,
    recogniser: how many texts were lifted for it, and what finds others faster; both are for `UpdatePlans`.
    """

    def __init__(self, found: Sequence[Token], terms: Sequence[Term], resolve: Resolve, cts: Cts, work: Work) -> None:
        """found: the tokens after the declarations; terms: the constants of the text; work: its limit."""
        self._cts = cts
        self._work = work
        self._meter = Meter(work)
        self._held: list[Term | None] = []
        self.served = 0
        self.recogniser: Recogniser | None = None
        self._closed = False
        spans = constant_spans(found)
        iris = {number for number, (start, end) in enumerate(spans) if kind_of(found[start].text) == IRI}
        try:
            operations = _OperationReader(found, resolve).operations()
        except (UnknownSyntaxError, IndexError) as error:
            raise Unsupported("syntax that only the store knows") from error
        fixed = _fixed(operations)
        self.fixed = tuple(sorted(fixed))

        def change(part: Any) -> Any:
            if isinstance(part, Function):
                if terms[part.number] in CLOCKS:
                    raise Unsupported("the clock function")
                return terms[part.number]
            return terms[part.number] if isinstance(part, Constant) and part.number in fixed else part

        def named(part: Part) -> bool:
            return part.number in iris if isinstance(part, Constant) else isinstance(part, str) and part[0] == "<"

        self._reads: dict[Term | int | None, None] | None = {}
        self._functions: list[_Function] = []
        try:
            for operation in operations:
                changed = rewritten(operation, change)
                check(changed.where)
                self._note_reads(changed)
                # An update is applied once and logged: its value must be that of the store, whichever way it takes.
                if any(isinstance(node, Group) for node in walk(changed.where)):
                    raise Unsupported("an aggregate, which may depend on the order of the solutions")
                where = with_equalities(changed.where, named)
                self._functions.append((self._compiled(changed, where), _matched(changed), _makes(changed)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the predicates in the CTS."""
        self._closed = True
        for predicate in self._held:
            self._cts.release(predicate)
        self._held.clear()

    def _note_reads(self, operation: _Operation) -> None:
        """Adds the graphs that an operation reads, constants by number; None from then on if a variable names one."""
        found = [node.graph for node in walk(operation.where) if isinstance(node, Pattern)]
        for graph in found if operation.graph is None else [operation.graph, *found]:
            if isinstance(graph, Variable):
                self._reads = None
            elif self._reads is not None:
                self._reads[graph.number if isinstance(graph, Constant) else graph] = None

    def serves(self, read: Graphs, terms: Sequence[Term]) -> bool:
        """Whether it can be used for a request with these constants that must read only graphs of this set."""
        if self._closed:
            return False
        if read.names is None:
            return True
        return self._reads is not None and all(
            (terms[graph] if isinstance(graph, int) else graph) in read for graph in self._reads
        )

    def delta(
        self,
        terms: Sequence[Term],
        store: QuadStore,
        new_blank_node: Callable[[], Term],
        write: Graphs = EVERY,
        quads_max: int = DELTA_QUADS_MAX,
    ) -> QuadDelta:
        """The net effect of a request with these constants. The dataset is unchanged.

        write: the graphs that the client may write; quads_max: as in `engine.updating.by_store.quad_delta`. Raises
        AccessDeniedError, LimitExceededError, TooMuchWork.
        """
        # Comparisons instead of min(): a call costs more than the test.
        room = self._work.quads_max
        if quads_max < room:
            room = quads_max
        try:
            if len(self._functions) == 1:
                return self._one(self._functions[0], terms, store, new_blank_node, write, room)[0]
            return self._composed(terms, store, new_blank_node, write, room)
        except _TooManyQuads as error:
            raise (too_many_quads(quads_max) if room == quads_max else self._work.exceeded()) from error

    def _composed(
        self,
        terms: Sequence[Term],
        store: QuadStore,
        new_blank_node: Callable[[], Term],
        write: Graphs,
        room: int,
    ) -> QuadDelta:
        """The effect of several operations."""
        done: list[QuadDelta] = []
        try:
            for function in self._functions:
                if done:
                    # Only later operations of the request may see the effect of earlier ones.
                    store.stage(done[-1])
                    self._cts.apply(done[-1])
                delta, asked = self._one(function, terms, store, new_blank_node, write, room)
                done.append(delta)
                room -= asked
            for delta in reversed(store.staged):
                self._cts.apply(delta.invert())
            store.unstage()
        except BaseException:
            for delta in reversed(store.staged):
                self._cts.apply(delta.invert())  # harmless if it has been taken back already
            store.take_back()
            raise
        return compose(done, self._work.slices)

    def _one(
        self,
        function: _Function,
        terms: Sequence[Term],
        store: QuadStore,
        new_blank_node: Callable[[], Term],
        write: Graphs,
        room: int,
    ) -> tuple[QuadDelta, int]:
        """The effect of one operation, and the number of quads that its templates made.

        It is one function because each further call would slow down every update.
        """
        instantiate, matched, makes = function
        slices = self._work.slices
        deletes: list[Quad] = []
        inserts: list[Quad] = []
        # Most updates are small, and run without a time slice. A larger one is found out here, before anything has
        # changed, and begins again.
        small = room if room < LONG else LONG
        try:
            instantiate(terms, deletes, inserts, new_blank_node, small)
        except _TooManyQuads:
            if small == room:
                raise
            slices.begin(room)
            deletes.clear()
            inserts.clear()
            with slices.beside():
                instantiate(terms, deletes, inserts, new_blank_node, room)
        # Terms of the dataset and of the text were checked when they came.
        if makes:
            store.check(inserts)
            store.check(deletes)
        if not write.every:
            write.check((quad.g for quads in (inserts, deletes) for quad in quads), "write")
        asked = len(deletes) + len(inserts)
        wanted: Any = inserts
        unwanted: Any = deletes
        if len(inserts) > 1:
            wanted = dict.fromkeys(inserts)
        if len(deletes) > 1:
            unwanted = dict.fromkeys(deletes)
        find = self._cts.find
        removed: list[Quad] = []
        added: list[Quad] = []
        kept: list[Quad] = []
        created: dict[Term, None] = {}
        long = asked > LONG
        for some in sliced(list(unwanted), slices) if long else (unwanted,):
            # What the WHERE has found is there: no lookup.
            if matched:
                removed += [quad for quad in some if quad not in wanted]
                continue
            for quad in some:
                if quad not in wanted:
                    there = find(quad)
                    if store.contains((quad,))[0] if there is None else there:
                        removed.append(quad)
        for some in sliced(list(wanted), slices) if long else (wanted,):
            for quad in some:
                there = find(quad)
                if store.contains((quad,))[0] if there is None else there:
                    kept.append(quad)
                else:
                    added.append(quad)
                    g = quad[3]
                    if g is not None and not store.has_graph(g):
                        created[g] = None
        # The empty tuple is one object; most updates create no graph.
        names = tuple(created) if created else ()
        return _new(QuadDelta, (tuple(removed), tuple(added), tuple(kept), names, ())), asked

    # --- compiling ---

    def _hold(self, predicate: Term | None, by_object: bool) -> None:
        self._cts.hold(predicate, by_object=by_object)
        self._held.append(predicate)

    def _compiled(self, operation: _Operation, where: Node) -> Instantiate:
        writer = CodeGenerator(self._cts, self._hold, None, self._meter, counted=("room",))
        numbers = sorted({part.number for part in walk((operation, where)) for part in _constants(part)})

        def body() -> None:
            scope = Scope({}, {})
            for number in numbers:
                name = writer.name("c")
                writer.emit(f"{name} = constants[{number}]")
                scope = scope.binding(Constant(number), name)
            writer.produce(where, scope, solution)

        quads_each = len(operation.delete) + len(operation.insert)

        def solution(scope: Scope) -> None:
            if operation.where != Bgp(()):  # quad data makes no more quads than its text has
                writer.emit(f"room -= {quads_each}")
                with writer.block("if room < 0:"):
                    writer.emit("raise TooManyQuads")
            for patterns, target in ((operation.delete, "deletes"), (operation.insert, "inserts")):
                fresh: dict[Variable | Constant, str] = {}
                for pattern in patterns:
                    for part in pattern:
                        if isinstance(part, Variable) and part.name.startswith("_:") and part not in fresh:
                            fresh[part] = writer.name("blank")
                            writer.emit(f"{fresh[part]} = new_blank_node()")
                for pattern in patterns:
                    self._instance(writer, pattern, Scope({**scope.bound, **fresh}, scope.maybe), target, nodes)

        nodes = _nodes(where)
        self._share(writer)
        return writer.compile("instantiate", "constants, deletes, inserts, new_blank_node, room", body)

    @staticmethod
    def _share(writer: CodeGenerator) -> None:
        writer.space["Quad"] = Quad
        writer.space["TooManyQuads"] = _TooManyQuads
        writer.space["new"] = tuple.__new__

    @staticmethod
    def _instance(
        writer: CodeGenerator, pattern: Pattern, scope: Scope, target: str, nodes: frozenset[Variable]
    ) -> None:
        """Writes the quad of a template's pattern, and the test for unbound and misplaced terms."""
        tests: list[str] = []
        for place, part in zip("spog", pattern, strict=True):
            if not isinstance(part, Variable) or part.name.startswith("_:"):
                continue
            name = scope.name(part)
            if part not in scope.bound and part not in scope.maybe:
                return
            if part not in scope.bound:
                tests.append(f"{name} is not None")
            if place == "p":
                # An IRI: a triple term begins with `<<(`.
                tests.append(f"{name}[0] == '<' and {name}[1] != '<'")
            elif place in "sg" and part not in nodes:
                tests.append(f"{name}[0] in '<_' and {name}[1] != '<'")
        names = ["None" if part is None else writer.part(part, scope) for part in pattern]
        line = f"{target}.append(new(Quad, {tuple_text(names)}))"
        if tests:
            with writer.block(f"if {' and '.join(dict.fromkeys(tests))}:"):
                writer.emit(line)
        else:
            writer.emit(line)


def _constants(node: Any) -> Iterable[Constant]:
    if isinstance(node, Constant):
        yield node
    elif isinstance(node, Pattern):
        yield from (part for part in node if isinstance(part, Constant))
    elif isinstance(node, Expression):
        yield from (part for part in node.parts if isinstance(part, Constant))


def _matched(operation: _Operation) -> bool:
    """Whether an operation deletes only quads that its WHERE has found."""
    return isinstance(operation.where, Bgp) and set(operation.delete) <= set(operation.where.patterns)


def _makes(operation: _Operation) -> bool:
    """Whether an operation may make terms that are neither in the dataset nor in its text."""
    return any(isinstance(node, Extend) and len(node.expression.parts) > 1 for node in walk(operation.where))


def _nodes(where: Node) -> frozenset[Variable]:
    """Variables that are never literals, because they are a subject or a graph in every solution."""
    if not isinstance(where, Bgp):
        return frozenset()
    found = (part for pattern in where.patterns for part in (pattern.s, pattern.graph))
    return frozenset(part for part in found if isinstance(part, Variable)) & certain(where)


def _fixed(operations: Iterable[_Operation]) -> set[int]:
    """Numbers of the constants that are compiled into a plan: predicates, functions, those of VALUES."""
    free: set[int] = set()
    fixed: set[int] = set()
    for node in walk(tuple(operations)):
        if isinstance(node, Pattern):
            free |= {part.number for part in (node.s, node.o, node.graph) if isinstance(part, Constant)}
            fixed |= {part.number for part in (node.p,) if isinstance(part, Constant)}
        elif isinstance(node, Function):
            fixed.add(node.number)
    for node in walk(tuple(operation.where for operation in operations)):
        if hasattr(node, "rows"):
            fixed |= {part.number for row in node.rows for part in row if isinstance(part, Constant)}
    return fixed


class _OperationReader:
    """Reads the operations of a request as algebra."""

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        self._found = found
        self._reader = UpdateReader(found, resolve)

    def operations(self) -> list[_Operation]:
        found = []
        position = 0
        for token, following in pairwise(self._found):
            if token.is_word(*_DEPENDENT) and following.text == "(":
                raise Unsupported(f"{token.text.upper()}()")
        while position < len(self._found):
            if self._found[position].text == ";":
                position += 1
                continue
            operation, position = self._operation(position)
            found.append(operation)
        if not found:
            raise Unsupported("no operation")
        return found

    def _operation(self, position: int) -> tuple[_Operation, int]:
        words = self._found
        if words[position].is_word("PREFIX", "BASE", "VERSION"):
            raise Unsupported("declarations between operations")
        if words[position].is_word(*_GRAPH_VERBS):
            raise Unsupported("graph management")
        verb = words[position].text.upper()
        if words[position + 1].is_word("DATA"):
            patterns = self._reader.template(position + 2)
            delete, insert = (patterns, ()) if verb == "DELETE" else ((), patterns)
            return _Operation(delete, insert, Bgp(())), self._after(position + 2)
        if words[position + 1].is_word("WHERE"):
            patterns = self._reader.template(position + 2)
            return _Operation(patterns, (), Bgp(patterns)), self._after(position + 2)
        delete, insert = (), ()
        graph: Part | None = None
        default: Part | None = None
        while not words[position].is_word("WHERE") and words[position].text != "{":
            if words[position].is_word("WITH"):
                graph = default = self._reader.name(position + 1)
                position += 2
            elif words[position].is_word("USING"):
                raise Unsupported("USING")
            else:
                patterns = self._reader.template(position + 1)
                if words[position].is_word("DELETE"):
                    delete = patterns
                else:
                    insert = patterns
                position = self._after(position + 1)
        if words[position].is_word("WHERE"):
            position += 1
        where = self._reader.group(position, default)
        end = self._after(position)
        if graph is not None:
            delete, insert = (_in_graph(patterns, graph) for patterns in (delete, insert))
        return _Operation(delete, insert, where, graph), end

    def _after(self, position: int) -> int:
        """The position after the block whose brace is at position."""
        depth = 0
        for index in range(position, len(self._found)):
            if self._found[index].kind == "sign":
                depth += {"{": 1, "}": -1}.get(self._found[index].text, 0)
            if depth == 0:
                return index + 1
        raise UnknownSyntaxError("braces that do not balance")


def _in_graph(patterns: tuple[Pattern, ...], graph: Part) -> tuple[Pattern, ...]:
    return tuple(pattern if pattern.graph is not None else pattern._replace(graph=graph) for pattern in patterns)
