"""Tokens of a checked request -> algebra (SPARQL 1.1 Query, sections 18.2 and 19.8).

Oxigraph's parser has accepted the text before it comes here, so this one need not look for errors: it only has
to see the structure. rdflib's parser takes 2 to 6 ms for a short query, leaves out filters inside EXISTS and
resolves some names in another way than the store; this one takes about a tenth and knows the place of each
constant, without which a shape could not be lifted out of its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    OrderKey,
    Part,
    Pattern,
    Project,
    Select,
    Slice,
    Union,
    Variable,
    certain,
    visible,
    walk,
)
from lamplighter.engine.sparql.cursor import CLOSING, Resolve, UnknownSyntaxError
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.sparql.triples import LINKS_MAX, TripleParser, join_nodes

# Nested brackets of a text that is read here.
DEPTH_MAX = 24
# Conditions of ORDER BY of a text that is read here.
KEYS_MAX = 16

_LINKS = (
    *("FROM", "OPTIONAL", "MINUS", "UNION", "GRAPH", "FILTER", "BIND", "VALUES", "SELECT", "EXISTS", "AS", "HAVING"),
    *("SUM", "MIN", "MAX", "AVG", "SAMPLE", "COUNT", "GROUP_CONCAT", "ASC", "DESC"),
)
_AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG", "SAMPLE", "GROUP_CONCAT")
_MODIFIERS = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "VALUES")


def read_select(
    found: Sequence[Token], resolve: Resolve, *, triple_terms: bool = False, every_order: bool = False
) -> Select:
    """The algebra of a SELECT query, given its tokens after the declarations. Raises UnknownSyntaxError.

    triple_terms: whether patterns with triple terms, reified triples and annotations are read (`TRIPLE_TERM`).
    every_order: whether an ORDER BY without LIMIT and OFFSET, which changes no result, is read too.
    """
    _check_size(found)
    try:
        parser = _Parser(found, resolve, triple_terms)
        parser.every_order = every_order
        return parser.query()
    except IndexError as error:
        raise UnknownSyntaxError("the text ends too early") from error


def _check_size(found: Sequence[Token]) -> None:
    """Raises UnknownSyntaxError for a text whose tree may be too deep."""
    depth = links = 0
    for token in found:
        if token.kind == "sign":
            depth += (token.text in CLOSING) - (token.text in CLOSING.values())
            links += token.text in ("&&", "||", "|")
        elif token.kind == "word" and token.is_word(*_LINKS):
            links += 1
        if depth > DEPTH_MAX:
            raise UnknownSyntaxError(f"more than {DEPTH_MAX} nested brackets")
        if links > LINKS_MAX:
            raise UnknownSyntaxError(f"more than {LINKS_MAX} groups, conditions and assignments")


def _needs_its_graph(node: Node, name: Part) -> bool:
    """Whether GRAPH can be dropped: each solution has a quad of the graph, which binds its variable."""
    if not _certain_pattern(node):
        return False
    if not isinstance(name, Variable):
        return True
    inside = list(walk(node))
    hidden = any(
        isinstance(part, (Group, Minus)) or (isinstance(part, Project) and name not in part.variables)
        for part in inside
    )
    told = any(isinstance(part, Expression) and name in part.variables for part in inside)
    return name in certain(node) and not hidden and not told


def _certain_pattern(node: Node) -> bool:
    match node:
        case Bgp(patterns):
            return bool(patterns)
        case OpaquePath():
            return True  # without a hop, it joins the nodes that some quad of the graph has
        case Join(left, right):
            return _certain_pattern(left) or _certain_pattern(right)
        case Union(left, right):
            return _certain_pattern(left) and _certain_pattern(right)
        case LeftJoin(left, _, _) | Minus(left, _) | Filter(left, _) | Extend(left, _, _):
            return _certain_pattern(left)
        case Project(inner, _) | Distinct(inner):
            return _certain_pattern(inner)
    return False


class UpdateReader:
    """Reads the parts of an update request. Constants are numbered across the whole request."""

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        """Raises UnknownSyntaxError."""
        _check_size(found)
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


class _Parser(TripleParser):
    """A recursive-descent parser of queries and groups. Its methods follow the productions of the grammar."""

    def __init__(self, found: Sequence[Token], resolve: Resolve, triple_terms: bool = False) -> None:
        super().__init__(found, resolve, triple_terms)
        self.every_order = False
        self._graph: Part | None = None  # the graph of the enclosing GRAPH
        self._aggregates: list[tuple[Variable, Aggregate]] = []

    # --- queries ---

    def query(self) -> Select:
        node, default_graphs, named_graphs = self._select(None)
        return Select(node, tuple(default_graphs), tuple(named_graphs))

    def _select(self, graph: Part | None) -> tuple[Node, list[Part], list[Part]]:
        outer, self._aggregates = self._aggregates, []
        around, self._graph = self._graph, graph
        first = self.position
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
        node, order, limit, offset = self._modifiers(node, projected)
        if projection is None:
            names = (variable for variable in visible(node) if not variable.name.startswith("_:"))
            projection = sorted(names)
        node = Project(node, tuple(projection), (first, self.position))
        if distinct:
            node = Distinct(node)
        if reduced or limit is not None or offset is not None or (order and self.every_order):
            node = Slice(node, order, limit, offset, reduced)
        self._aggregates, self._graph = outer, around
        return node, default_graphs, named_graphs

    def _modifiers(
        self, node: Node, projected: Sequence[tuple[Variable, Expression]]
    ) -> tuple[Node, tuple[OrderKey, ...], Part | None, Part | None]:
        """Consumes the solution modifiers; returns the node with those before ORDER BY, and ORDER BY, LIMIT, OFFSET."""
        keys: list[Variable] = []
        grouped = False
        if self._take("GROUP"):
            self._expect("BY")
            grouped = True
            while not self._at_modifier():
                node, key = self._group_key(node)
                keys.append(key)
        having: list[Expression] = []
        if self._take("HAVING"):
            while not self._at_modifier():
                having += self._conjuncts()
        selected = len(self._aggregates)
        order = tuple(self._order_keys())
        if len(order) > KEYS_MAX:
            raise UnknownSyntaxError(f"more than {KEYS_MAX} conditions of ORDER BY")
        limit, offset = self._limits()
        grouped = grouped or bool(self._aggregates)
        if limit is None and offset is None and not self.every_order:  # notifications have no order
            del self._aggregates[selected:]
        values = self._values() if self._take("VALUES") else None
        if grouped:
            node = Group(node, tuple(keys), tuple(self._aggregates))
        for condition in having:
            node = Filter(node, condition)
        if values is not None:
            node = join_nodes(node, values)
        for variable, expression in projected:
            node = Extend(node, variable, expression)
        return node, order, limit, offset

    def _at_modifier(self) -> bool:
        """Whether the next token begins a solution modifier, or the query ends."""
        return self.position >= len(self.found) or self._text == "}" or self._word(*_MODIFIERS)

    def _order_keys(self) -> Iterator[OrderKey]:
        if not self._take("ORDER"):
            return
        self._expect("BY")
        while not self._at_modifier():
            descending = self._word("DESC")
            if descending or self._word("ASC"):
                self.position += 1
            start = self.position
            if self.found[start].kind == "variable":
                end = start + 1
            else:  # a bracket, or a call: its name has more than one token if it is an IRI
                self._skip_to("(", "{")
                end = self._closing() + 1
            yield OrderKey(self._parts(start, end), descending)
            self.position = end

    def _limits(self) -> tuple[Part | None, Part | None]:
        limit: Part | None = None
        offset: Part | None = None
        while self._word("LIMIT", "OFFSET"):
            if self._take("LIMIT"):
                limit = self.term()
            else:
                self._expect("OFFSET")
                offset = self.term()
        return limit, offset

    def _group_key(self, node: Node) -> tuple[Node, Variable]:
        if self.found[self.position].kind == "variable":
            return node, self._variable()
        if self._text == "(":
            end = self._closing()
            self.position += 1
            start, depth = self.position, 0
            variable = self._new("key")
            while self.position < end and (depth or not self._word("AS")):
                depth += (self._text in CLOSING) - (self._text in CLOSING.values())
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
                node = join_nodes(node, inner if _needs_its_graph(inner, name) else Graph(name, inner))
            elif self._take("FILTER"):
                filters += self._conjuncts()
            elif self._take("BIND"):
                self._expect("(")
                expression = self._expression_until("AS")
                variable = self._variable()
                self._expect(")")
                node = Extend(node, variable, expression)
            elif self._take("VALUES"):
                node = join_nodes(node, self._values())
            elif self._text == "{":
                inner = self.group(graph)
                while self._take("UNION"):
                    inner = Union(inner, self.group(graph))
                node = join_nodes(node, inner)
            else:
                node = self._triples(node, graph)
        return node, filters

    # --- expressions ---

    def _conjuncts(self) -> list[Expression]:
        """The next constraint, split at ``&&``."""
        start = self.position
        if self._text == "(":
            end = self._closing()
            self.position = end + 1
            return self._split_conditions(start + 1, end)
        self._skip_to("(", "{")
        self.position = self._closing() + 1
        return [self._parts(start, self.position)]

    def _split_conditions(self, start: int, end: int) -> list[Expression]:
        depth, cuts, disjunction = 0, [start], False
        for position in range(start, end):
            token = self.found[position]
            if token.kind == "sign":
                depth += (token.text in CLOSING) - (token.text in CLOSING.values())
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
                depth += (self._text in CLOSING) - (self._text in CLOSING.values())
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
                first = self.position
                parts.append(Exists(self.group(self._graph), negated, (first, self.position)))
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
        separator: Part | None = None
        last = next((it for it in range(self.position, end) if self._is_separator(it)), end)
        argument = None if everything else self._parts(self.position, last)
        if last < end:
            self.position = last + 3
            separator = self.term()
        self.position = end + 1
        aggregate = Aggregate(name, distinct, argument, separator)
        for variable, known in self._aggregates:
            if known == aggregate:
                return variable
        variable = self._new("aggregate")
        self._aggregates.append((variable, aggregate))
        return variable

    def _is_separator(self, position: int) -> bool:
        """Whether the tokens from a position on are ``; SEPARATOR =``, which ends the argument of GROUP_CONCAT."""
        return self.found[position].text == ";" and self.found[position + 1].is_word("SEPARATOR")
