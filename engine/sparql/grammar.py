"""Tokens of a checked request -> algebra (SPARQL 1.1 Query, sections 18.2 and 19.8).

Oxigraph's parser has accepted the text before it comes here, so this one need not look for errors: it only has
to see the structure. rdflib's parser takes 2 to 6 ms for a short query, leaves out filters inside EXISTS and
resolves some names in another way than the store; this one takes about a tenth and knows the place of each
constant, without which a shape could not be lifted out of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Bgp,
    Constant,
    Distinct,
    Exists,
    Expression,
    Extend,
    Filter,
    Function,
    Graph,
    Group,
    Join,
    LeftJoin,
    Minus,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Project,
    Select,
    Slice,
    Union,
    Values,
    Variable,
    certain,
    visible,
    walk,
)
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import Term

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDF_TYPE, RDF_FIRST, RDF_REST, RDF_NIL = (f"<{RDF}{name}>" for name in ("type", "first", "rest", "nil"))

_AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG", "SAMPLE", "GROUP_CONCAT")
_MODIFIERS = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "VALUES")
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class UnknownSyntaxError(Exception):
    """Syntax that only the store's parser knows, such as triple terms. The text is then taken as a whole."""


def constant_spans(found: Sequence[Token]) -> list[tuple[int, int]]:
    """(first token, end token) of each constant: an IRI, a name, an unsigned number, or a literal with its suffix."""
    spans = []
    position = 0
    while position < len(found):
        start = position
        token = found[position]
        position += 1
        if token.kind == "string":
            if position < len(found) and found[position].kind == "language":
                position += 1
            elif position < len(found) and found[position].text == "^^":
                position += 2
        elif token.kind == "number":
            if start and found[start - 1].text in ("+", "-") and found[start - 1].end == token.start:
                continue
        elif token.kind not in ("iri", "name"):
            continue
        spans.append((start, position))
    return spans


Resolve = Callable[[str], Term]
"""Literal as written -> canonical term."""


def read_select(found: Sequence[Token], resolve: Resolve) -> Select:
    """The algebra of a SELECT query, given its tokens after the declarations. Raises UnknownSyntaxError."""
    try:
        return _Parser(found, resolve).query()
    except IndexError as error:
        raise UnknownSyntaxError("the text ends too early") from error


# --- property paths ---


@dataclass(frozen=True)
class _PathStep:
    part: Part


@dataclass(frozen=True)
class _Inverse:
    path: _Path


@dataclass(frozen=True)
class _Sequence:
    parts: tuple[_Path, ...]


@dataclass(frozen=True)
class _Alternative:
    parts: tuple[_Path, ...]


@dataclass(frozen=True)
class _Repeated:
    path: _Path
    zero_length: bool


@dataclass(frozen=True)
class _Negated:
    pass


_Path = _PathStep | _Inverse | _Sequence | _Alternative | _Repeated | _Negated


def _steps(path: _Path) -> Iterator[Part | None]:
    match path:
        case _PathStep(step):
            yield step
        case _Inverse(inner) | _Repeated(inner, _):
            yield from _steps(inner)
        case _Sequence(parts) | _Alternative(parts):
            for part in parts:
                yield from _steps(part)
        case _Negated():
            yield None


def _zero_length(path: _Path) -> bool:
    match path:
        case _Repeated(inner, zero_length):
            return zero_length or _zero_length(inner)
        case _Inverse(inner):
            return _zero_length(inner)
        case _Sequence(parts):
            return all(_zero_length(part) for part in parts)
        case _Alternative(parts):
            return any(_zero_length(part) for part in parts)
    return False


def _joined(left: Node, right: Node) -> Node:
    """The join of two nodes. Patterns are merged into one group; an empty group is dropped."""
    if isinstance(left, Bgp) and isinstance(right, Bgp):
        return Bgp(left.patterns + right.patterns)
    if isinstance(right, Bgp) and not right.patterns:
        return left
    if isinstance(left, Bgp) and not left.patterns:
        return right
    if isinstance(left, Join) and isinstance(left.right, Bgp) and isinstance(right, Bgp):
        return Join(left.left, Bgp(left.right.patterns + right.patterns))
    return Join(left, right)


def _needs_its_graph(node: Node, name: Part) -> bool:
    """Whether GRAPH can be dropped: each solution has a quad of the graph, which binds its variable."""
    if not _certain_pattern(node):
        return False
    if not isinstance(name, Variable):
        return True
    inside = list(walk(node))
    hidden = any(isinstance(part, (Project, Group, Distinct, Minus)) for part in inside)
    told = any(isinstance(part, Expression) and name in part.variables for part in inside)
    return name in certain(node) and not hidden and not told


def _certain_pattern(node: Node) -> bool:
    match node:
        case Bgp(patterns):
            return bool(patterns)
        case Join(left, right):
            return _certain_pattern(left) or _certain_pattern(right)
        case Union(left, right):
            return _certain_pattern(left) and _certain_pattern(right)
        case LeftJoin(left, _, _) | Minus(left, _) | Filter(left, _) | Extend(left, _, _):
            return _certain_pattern(left)
        case Project(inner, _) | Distinct(inner):
            return _certain_pattern(inner)
    return False


# --- entry points ---


class UpdateReader:
    """Reads the parts of an update request. Constants are numbered across the whole request."""

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        self._reader = _Parser(found, resolve)

    def group(self, first: int, graph: Part | None) -> Node:
        """The WHERE whose opening brace is token number first. graph: the graph that serves as default graph."""
        self._reader.position = first
        return self._reader.group(graph)

    def template(self, first: int) -> tuple[Pattern, ...]:
        """The quads of the template or data block whose opening brace is token number first."""
        self._reader.position = first
        self._reader.paths = False
        found = tuple(self._reader.quads())
        self._reader.paths = True
        return found

    def name(self, position: int) -> Part:
        """The graph whose name is token number position."""
        self._reader.position = position
        return self._reader.term()


class _Parser:
    """A recursive-descent parser over tokens. position: the index of the next token.

    It is one class because its methods follow the productions of the grammar and share position and graph.
    """

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        self.found = found
        self._resolve = resolve
        self.position = 0
        self._constants = {start: (number, end) for number, (start, end) in enumerate(constant_spans(found))}
        self._fresh = 0
        self.paths = True  # whether a plus belongs to a path rather than to a number
        self._graph: Part | None = None  # the graph of the enclosing GRAPH
        self._aggregates: list[tuple[Variable, Aggregate]] = []

    # --- tokens ---

    @property
    def _text(self) -> str:
        return self.found[self.position].text if self.position < len(self.found) else ""

    def _word(self, *words: str) -> bool:
        return self.position < len(self.found) and self.found[self.position].is_word(*words)

    def _take(self, *words: str) -> bool:
        """Consumes the next token if it is one of these words or signs; returns whether it was."""
        if self._word(*words) or (self._text in words and self.found[self.position].kind == "sign"):
            self.position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise UnknownSyntaxError(f"{self._text!r} instead of {text!r}")

    def _new(self, name: str) -> Variable:
        self._fresh += 1
        return Variable(f"_:{name} {self._fresh}")  # the space keeps it different from all labels

    def _closing(self) -> int:
        """The position of the bracket that closes the next token."""
        depth = 0
        for position in range(self.position, len(self.found)):
            text = self.found[position].text
            if self.found[position].kind == "sign":
                depth += (text in _CLOSING) - (text in _CLOSING.values())
            if depth == 0:
                return position
        raise UnknownSyntaxError("brackets that do not balance")

    # --- queries ---

    def query(self) -> Select:
        node, default_graphs, named_graphs = self._select(None)
        return Select(node, tuple(default_graphs), tuple(named_graphs))

    def _select(self, graph: Part | None) -> tuple[Node, list[Part], list[Part]]:
        outer, self._aggregates = self._aggregates, []
        around, self._graph = self._graph, graph
        self._expect("SELECT")
        distinct = self._take("DISTINCT")
        reduced = not distinct and self._take("REDUCED")
        projection: list[Variable] | None = None
        projected: list[tuple[Variable, Expression]] = []
        if self._take("*"):
            pass
        else:
            projection = []
            while not self._word("WHERE", "FROM") and self._text != "{":
                if self._take("("):
                    expression = self._expression_until("AS")
                    variable = self._variable()
                    self._expect(")")
                    projected.append((variable, expression))
                    projection.append(variable)
                else:
                    projection.append(self._variable())
        default_graphs: list[Part] = []
        named_graphs: list[Part] = []
        while self._take("FROM"):
            if self._take("NAMED"):
                named_graphs.append(self.term())
            else:
                default_graphs.append(self.term())
        self._take("WHERE")
        node = self.group(graph)
        node, sliced, ordered = self._modified(node, projected, graph)
        if projection is None:
            names = (variable for variable in visible(node) if not variable.name.startswith("_:"))
            projection = sorted(names)
        node = Project(node, tuple(projection))
        if distinct:
            node = Distinct(node)
        if reduced or sliced:
            node = Slice(node, tuple(ordered))
        self._aggregates, self._graph = outer, around
        return node, default_graphs, named_graphs

    def _modified(
        self, node: Node, projected: Sequence[tuple[Variable, Expression]], graph: Part | None
    ) -> tuple[Node, bool, list[Exists]]:
        """Consumes the solution modifiers; returns whether they cut the solutions, and their EXISTS conditions."""
        keys: list[Variable] = []
        grouped = False
        if self._take("GROUP"):
            self._expect("BY")
            grouped = True
            while self.position < len(self.found) and not self._word(*_MODIFIERS) and self._text != "}":
                node, key = self._group_key(node)
                keys.append(key)
        having: list[Expression] = []
        if self._take("HAVING"):
            while self.position < len(self.found) and not self._word(*_MODIFIERS) and self._text != "}":
                having += self._conjuncts()
        sliced = False
        values: Values | None = None
        ordered: list[Exists] = []
        while self.position < len(self.found) and self._text != "}":
            if self._take("LIMIT", "OFFSET"):
                sliced = True
            elif self._take("VALUES"):
                values = self._values()
                continue
            # Only ORDER BY is left, and notifications have no order.
            grouped = grouped or self._word(*_AGGREGATES)
            self.position += 1
            if self.found[self.position - 1].is_word("EXISTS"):
                ordered.append(Exists(self.group(graph), negated=False))
        if grouped or self._aggregates:
            node = Group(node, tuple(keys), tuple(self._aggregates))
        for condition in having:
            node = Filter(node, condition)
        if values is not None:
            node = _joined(node, values)
        for variable, expression in projected:
            node = Extend(node, variable, expression)
        return node, sliced, ordered

    def _group_key(self, node: Node) -> tuple[Node, Variable]:
        if self.found[self.position].kind == "variable":
            return node, self._variable()
        if self._text == "(":
            end = self._closing()
            self.position += 1
            start, depth = self.position, 0
            variable = self._new("key")
            while self.position < end and (depth or not self._word("AS")):
                depth += (self._text in _CLOSING) - (self._text in _CLOSING.values())
                self.position += 1
            expression = self._parts(start, self.position)
            if self._take("AS"):
                variable = self._variable()
            self.position = end + 1
            return Extend(node, variable, expression), variable
        variable = self._new("key")
        start = self.position
        self.position += 1
        end = self._closing()
        expression = self._parts(start, end + 1)
        self.position = end + 1
        return Extend(node, variable, expression), variable

    # --- groups ---

    def group(self, graph: Part | None) -> Node:
        """A group graph pattern in braces. graph: the graph of the enclosing GRAPH."""
        node, filters = self._group(graph)
        for condition in filters:
            node = Filter(node, condition)
        return node

    def _group(self, graph: Part | None) -> tuple[Node, list[Expression]]:
        """A group, and the filters directly in it."""
        around, self._graph = self._graph, graph
        found = self._elements(graph)
        self._graph = around
        return found

    def _elements(self, graph: Part | None) -> tuple[Node, list[Expression]]:
        self._expect("{")
        if self._word("SELECT"):
            selected, _, _ = self._select(graph)
            self._expect("}")
            return selected, []
        node: Node = Bgp(())
        filters: list[Expression] = []
        while not self._take("}"):
            if self._take("."):
                continue
            if self._take("OPTIONAL"):
                inner, condition = self._group(graph)
                node = LeftJoin(node, inner, tuple(condition))
            elif self._take("MINUS"):
                node = Minus(node, self.group(graph))
            elif self._take("GRAPH"):
                name = self.term()
                inner = self.group(name)
                node = _joined(node, inner if _needs_its_graph(inner, name) else Graph(name, inner))
            elif self._take("FILTER"):
                filters += self._conjuncts()
            elif self._take("BIND"):
                self._expect("(")
                expression = self._expression_until("AS")
                variable = self._variable()
                self._expect(")")
                node = Extend(node, variable, expression)
            elif self._take("VALUES"):
                node = _joined(node, self._values())
            elif self._text == "{":
                inner = self.group(graph)
                while self._take("UNION"):
                    inner = Union(inner, self.group(graph))
                node = _joined(node, inner)
            else:
                node = self._triples(node, graph)
        return node, filters

    def _values(self) -> Values:
        variables = []
        single = not self._take("(")
        if single:
            variables.append(self._variable())
        else:
            while not self._take(")"):
                variables.append(self._variable())
        rows: list[tuple[Part | None, ...]] = []
        self._expect("{")
        while not self._take("}"):
            if single:
                rows.append((self._value(),))
            else:
                self._expect("(")
                row = []
                while not self._take(")"):
                    row.append(self._value())
                rows.append(tuple(row))
        return Values(tuple(variables), tuple(rows))

    def _value(self) -> Part | None:
        return None if self._take("UNDEF") else self.term()

    # --- triples ---

    def _triples(self, node: Node, graph: Part | None) -> Node:
        """The node joined with the triples of one subject."""
        patterns, paths = self._same_subject(graph)
        for more in [Bgp(tuple(patterns)), *paths]:
            node = _joined(node, more)
        return node

    def quads(self) -> Iterator[Pattern]:
        """The quads of a template or data block."""
        self._expect("{")
        while not self._take("}"):
            if self._take("."):
                continue
            if self._take("GRAPH"):
                name = self.term()
                self._expect("{")
                while not self._take("}"):
                    if not self._take("."):
                        yield from self._same_subject(name)[0]
            else:
                yield from self._same_subject(None)[0]

    def _same_subject(self, graph: Part | None) -> tuple[list[Pattern], list[Node]]:
        """The patterns of a subject with its properties, and the nodes of paths that are no patterns."""
        patterns: list[Pattern] = []
        nodes: list[Node] = []

        def emit(s: Part, p: Part, o: Part) -> None:
            patterns.append(Pattern(s, p, o, graph))

        subject = self._node(emit, nodes, graph)
        if self._text not in (".", "}", "]") and not self._word(
            "OPTIONAL", "MINUS", "GRAPH", "FILTER", "BIND", "VALUES"
        ):
            self._properties(subject, emit, nodes, graph)
        return patterns, nodes

    def _properties(
        self, subject: Part, emit: Callable[[Part, Part, Part], None], nodes: list[Node], graph: Part | None
    ) -> None:
        while True:
            if self._text in ("]", ".", "}") or self.position >= len(self.found):
                return
            if self._take(";"):
                continue
            if self._word("OPTIONAL", "MINUS", "GRAPH", "FILTER", "BIND", "VALUES") or self._text == "{":
                return
            verb = self._verb()
            while True:
                object_ = self._node(emit, nodes, graph)
                self._follow(subject, verb, object_, emit, nodes, graph)
                if not self._take(","):
                    break
            if not self._take(";"):
                return

    def _node(self, emit: Callable[[Part, Part, Part], None], nodes: list[Node], graph: Part | None) -> Part:
        """A term; for a blank node with properties or a list, its triples are emitted."""
        if self._take("["):
            subject = self._new("anonymous")
            self._properties(subject, emit, nodes, graph)
            self._expect("]")
            return subject
        if self._text == "(" and self.found[self.position].kind == "sign":
            self.position += 1
            members = []
            while not self._take(")"):
                members.append(self._node(emit, nodes, graph))
            rest: Part = RDF_NIL
            for member in reversed(members):
                cell = self._new("list")
                emit(cell, RDF_FIRST, member)
                emit(cell, RDF_REST, rest)
                rest = cell
            return rest
        return self.term()

    def term(self) -> Part:
        """A variable or constant."""
        if self.position in self._constants:
            number, self.position = self._constants[self.position]
            return Constant(number)
        token = self.found[self.position]
        self.position += 1
        if token.kind == "variable":
            return Variable(token.text[1:])
        if token.kind == "blank":
            return Variable(token.text)
        if token.is_word("TRUE", "FALSE"):
            return self._resolve(token.text)
        if token.text in ("+", "-") and self.found[self.position].kind == "number":
            self.position += 1
            return self._resolve(token.text + self.found[self.position - 1].text)
        raise UnknownSyntaxError(token.text)

    def _variable(self) -> Variable:
        token = self.found[self.position]
        self.position += 1
        if token.kind != "variable":
            raise UnknownSyntaxError(token.text)
        return Variable(token.text[1:])

    # --- paths ---

    def _verb(self) -> _Path:
        if not self.paths:
            if self._text == "a":
                self.position += 1
                return _PathStep(RDF_TYPE)
            return _PathStep(self.term())
        if self.found[self.position].kind == "variable":
            return _PathStep(self._variable())
        return self._alternative()

    def _alternative(self) -> _Path:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Alternative(tuple(parts))

    def _sequence(self) -> _Path:
        parts = [self._element()]
        while self._take("/"):
            parts.append(self._element())
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _element(self) -> _Path:
        if self._take("^"):
            return _Inverse(self._element_without_inverse())
        return self._element_without_inverse()

    def _element_without_inverse(self) -> _Path:
        path = self._primary()
        if self._take("*", "?"):
            return _Repeated(path, zero_length=True)
        if self._take("+"):
            return _Repeated(path, zero_length=False)
        return path

    def _primary(self) -> _Path:
        if self._take("("):
            path = self._alternative()
            self._expect(")")
            return path
        if self._take("!"):
            if self._text == "(":
                self.position = self._closing() + 1
            else:
                self._take("^")
                self.position += 1
            return _Negated()
        if self._text == "a":
            self.position += 1
            return _PathStep(RDF_TYPE)
        return _PathStep(self.term())

    def _follow(
        self,
        s: Part,
        path: _Path,
        o: Part,
        emit: Callable[[Part, Part, Part], None],
        nodes: list[Node],
        graph: Part | None,
        anchored: bool = False,
    ) -> None:
        """The path from s to o: patterns for a fixed length, else nodes.

        anchored: another step of the same path follows a predicate, so that no node is joined to itself alone.
        """
        match path:
            case _PathStep(step):
                emit(s, step, o)
            case _Inverse(inverse):
                self._follow(o, inverse, s, emit, nodes, graph, anchored)
            case _Sequence(parts):
                anchored = anchored or not _zero_length(path)
                for part in parts[:-1]:
                    middle = self._new("path")
                    self._follow(s, part, middle, emit, nodes, graph, anchored)
                    s = middle
                self._follow(s, parts[-1], o, emit, nodes, graph, anchored)
            case _Alternative(parts):
                branches = []
                for part in parts:
                    branch: list[Pattern] = []
                    rest: list[Node] = []

                    def emit_branch(s: Part, p: Part, o: Part, branch: list[Pattern] = branch) -> None:
                        branch.append(Pattern(s, p, o, graph))

                    self._follow(s, part, o, emit_branch, rest, graph, anchored)
                    node: Node = Bgp(tuple(branch))
                    for more in rest:
                        node = _joined(node, more)
                    branches.append(node)
                union = branches[0]
                for branch_node in branches[1:]:
                    union = Union(union, branch_node)
                # The store returns each pair of nodes once, even if several alternatives join it.
                ends = dict.fromkeys(part for part in (s, o, graph) if isinstance(part, Variable))
                nodes.append(Distinct(Project(union, tuple(ends))))
            case _:
                steps = tuple(dict.fromkeys(_steps(path)))
                nodes.append(OpaquePath(s, steps, o, graph, _zero_length(path) and not anchored))

    # --- expressions ---

    def _conjuncts(self) -> list[Expression]:
        """The next constraint, split at ``&&``."""
        start = self.position
        if self._text == "(":
            end = self._closing()
            self.position = end + 1
            return self._split(start + 1, end)
        while self._text not in ("(", "{"):
            self.position += 1
        self.position = self._closing() + 1
        return [self._parts(start, self.position)]

    def _split(self, start: int, end: int) -> list[Expression]:
        depth, cuts, disjunction = 0, [start], False
        for position in range(start, end):
            token = self.found[position]
            if token.kind == "sign":
                depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
                disjunction = disjunction or (depth == 0 and token.text == "||")
                if depth == 0 and token.text == "&&":
                    cuts.append(position + 1)
        if disjunction or len(cuts) == 1:
            return [self._parts(start, end)]
        ends = [cut - 1 for cut in cuts[1:]] + [end]
        return [self._parts(first, last) for first, last in zip(cuts, ends, strict=True)]

    def _expression_until(self, word: str) -> Expression:
        """The expression up to a word outside of brackets; consumes the word."""
        start, depth = self.position, 0
        while depth or not self._word(word):
            if self.found[self.position].kind == "sign":
                depth += (self._text in _CLOSING) - (self._text in _CLOSING.values())
            self.position += 1
        expression = self._parts(start, self.position)
        self.position += 1
        return expression

    def _parts(self, start: int, end: int) -> Expression:
        """The tokens as an expression, with variables for aggregates. The position is unchanged."""
        before, self.position = self.position, start
        parts: list[str | Variable | Constant | Function | Exists] = []
        while self.position < end:
            token = self.found[self.position]
            following = self.found[self.position + 1] if self.position + 1 < len(self.found) else None
            if self.position in self._constants:
                number, after = self._constants[self.position]
                called = token.kind in ("iri", "name") and following is not None and following.text == "("
                parts.append(Function(number) if called else Constant(number))
                self.position = after
            elif token.kind == "variable":
                parts.append(self._variable())
            elif token.is_word(*_AGGREGATES) and following is not None and following.text == "(":
                parts.append(self._aggregate())
            elif token.is_word("EXISTS"):
                negated = bool(parts) and isinstance(parts[-1], str) and parts[-1].upper() == "NOT"
                if negated:
                    parts.pop()
                self.position += 1
                parts.append(Exists(self.group(self._graph), negated))
            elif token.text == "<" and following is not None and (following.text, following.start) == ("<", token.end):
                raise UnknownSyntaxError("a triple term")
            else:
                parts.append(token.text)
                self.position += 1
        self.position = before
        return Expression(tuple(parts))

    def _aggregate(self) -> Variable:
        name = self._text.upper()
        self.position += 1
        end = self._closing()
        self.position += 1
        distinct = self._take("DISTINCT")
        everything = self._text == "*"
        argument = None if everything else self._parts(self.position, end)
        self.position = end + 1
        aggregate = Aggregate(name, distinct, argument)
        for variable, known in self._aggregates:
            if known == aggregate:
                return variable
        variable = self._new("aggregate")
        self._aggregates.append((variable, aggregate))
        return variable
