"""Triples and property paths: tokens -> patterns and nodes of the algebra (SPARQL 1.1 Query, 18.2.2.3 and 18.2.2.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lamplighter.engine.sparql.algebra import (
    Bgp,
    Distinct,
    Join,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Project,
    Union,
    Variable,
)
from lamplighter.engine.sparql.cursor import Resolve, TokenCursor
from lamplighter.engine.sparql.lexer import Token

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDF_TYPE, RDF_FIRST, RDF_REST, RDF_NIL = (f"<{RDF}{name}>" for name in ("type", "first", "rest", "nil"))

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


def joined(left: Node, right: Node) -> Node:
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


class TripleParser(TokenCursor):
    """Reads triples with their property paths, and the blocks and templates of updates, which have nothing else.

    paths: whether a plus belongs to a path rather than to a number.
    """

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        super().__init__(found, resolve)
        self.paths = True

    def _triples(self, node: Node, graph: Part | None) -> Node:
        """The node joined with the triples of one subject."""
        patterns, paths = self._same_subject(graph)
        for more in [Bgp(tuple(patterns)), *paths]:
            node = joined(node, more)
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
                        node = joined(node, more)
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
