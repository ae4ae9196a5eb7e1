"""Triples and property paths: tokens -> patterns and nodes of the algebra (SPARQL 1.1 Query, 18.2.2.3 and 18.2.2.4).

Triple terms, reified triples and annotations: SPARQL 1.2 Query, 4.2.4 to 4.2.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lamplighter.engine.sparql.algebra import (
    TRIPLE_REST,
    TRIPLE_TERM,
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
from lamplighter.engine.sparql.cursor import Resolve, TokenCursor, UnknownSyntaxError
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.sparql.paths import (
    Path,
    PathAlternative,
    PathInverse,
    PathNegated,
    PathRepeated,
    PathSequence,
    PathStep,
    hops_of,
    steps_of,
    zero_length,
)
from lamplighter.engine.terms import RDF_TYPE

# Parts of a text that is read here of which each makes the tree one node deeper, and paths, of which an object list has
# one for each object. What is deeper than this or `grammar.DEPTH_MAX` is taken as a whole: those who read a tree are
# recursive, and some of them take O(n^2).
LINKS_MAX = 160

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDF_FIRST, RDF_REST, RDF_NIL, RDF_REIFIES = (f"<{RDF}{name}>" for name in ("first", "rest", "nil", "reifies"))


def join_nodes(left: Node, right: Node) -> Node:
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


class _Triples:
    """Collects the patterns of triples in one graph, and the nodes of paths that are no patterns."""

    def __init__(self, graph: Part | None) -> None:
        self.graph = graph
        self.patterns: list[Pattern] = []
        self.nodes: list[Node] = []

    def add(self, s: Part, p: Part, o: Part) -> None:
        self.patterns.append(Pattern(s, p, o, self.graph))

    @property
    def node(self) -> Node:
        node: Node = Bgp(tuple(self.patterns))
        for more in self.nodes:
            node = join_nodes(node, more)
        return node


class TripleParser(TokenCursor):
    """Reads triples with their property paths, and the blocks and templates of updates, which have nothing else.

    paths: whether a plus belongs to a path rather than to a number. triple_terms: whether triple terms, reified triples
    and annotations are read; otherwise they raise UnknownSyntaxError.
    """

    def __init__(self, found: Sequence[Token], resolve: Resolve, triple_terms: bool = False) -> None:
        super().__init__(found, resolve)
        self.paths = True
        self.triple_terms = triple_terms
        self._path_nodes = 0

    def _triples(self, node: Node, graph: Part | None) -> Node:
        """The node joined with the triples of one subject."""
        found = self._same_subject(graph)
        for more in [Bgp(tuple(found.patterns)), *found.nodes]:
            node = join_nodes(node, more)
        return node

    def _add_node(self, node: Node, found: _Triples) -> None:
        self._path_nodes += 1
        if self._path_nodes > LINKS_MAX:
            raise UnknownSyntaxError(f"more than {LINKS_MAX} paths")
        found.nodes.append(node)

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
                        yield from self._same_subject(name).patterns
            else:
                yield from self._same_subject(None).patterns

    def _same_subject(self, graph: Part | None) -> _Triples:
        """A subject with its properties."""
        found = _Triples(graph)
        subject = self._node(found)
        # A blank node with properties, a list and a reified triple may stand alone.
        if self._text not in (".", "}", "]") and not self._word(
            "OPTIONAL", "MINUS", "GRAPH", "FILTER", "BIND", "VALUES"
        ):
            self._properties(subject, found)
        return found

    def _properties(self, subject: Part, found: _Triples) -> None:
        while True:
            if self._text in ("]", ".", "}", "|") or self.position >= len(self.found):
                return
            if self._take(";"):
                continue
            if self._word("OPTIONAL", "MINUS", "GRAPH", "FILTER", "BIND", "VALUES") or self._text == "{":
                return
            verb = self._verb()
            while True:
                term = self._at("<", "<", "(")
                object_ = self._node(found)
                if term and not isinstance(verb, PathStep):
                    raise UnknownSyntaxError("a path to a triple term")
                self._follow(subject, verb, object_, found)
                self._annotations(subject, verb, object_, found)
                if not self._take(","):
                    break
            if not self._take(";"):
                return

    def _node(self, found: _Triples) -> Part:
        """A term; for a blank node with properties, a list, or a reified triple, its triples are added."""
        if self._take("["):
            subject = self._new("anonymous")
            self._properties(subject, found)
            self._expect("]")
            return subject
        # A string may have the text "(" too.
        if self._text == "(" and self.found[self.position].kind == "sign":
            self.position += 1
            members = []
            while not self._take(")"):
                members.append(self._node(found))
            rest: Part = RDF_NIL
            for member in reversed(members):
                # Variables instead of blank nodes: they match the same, and a plan has names for them.
                cell = self._new("list")
                found.add(cell, RDF_FIRST, member)
                found.add(cell, RDF_REST, rest)
                rest = cell
            return rest
        if self.triple_terms and self._at("<", "<"):
            return self._triple(found)
        return self.term()

    # --- triple terms ---

    def _at(self, *signs: str) -> bool:
        """Whether these signs follow, without white space between them."""
        tokens = self.found[self.position : self.position + len(signs)]
        return tuple(token.text for token in tokens if token.kind == "sign") == signs and all(
            one.end == other.start for one, other in pairwise(tokens)
        )

    def _triple(self, found: _Triples) -> Part:
        """``<<( s p o )>>``, or ``<< s p o ~ r >>``, which is its reifier."""
        term = self._at("<", "<", "(")
        self.position += 3 if term else 2
        subject = self._node(found)
        predicate: Part = RDF_TYPE if self._text == "a" else self.term()
        if predicate is RDF_TYPE:
            self.position += 1
        object_ = self._node(found)
        whole = self._new("triple")
        self._take_apart(whole, subject, predicate, object_, found)
        if term:
            self._expect(")")
        else:
            reifier = self._reifier() if self._take("~") else self._new("reifier")
            found.add(reifier, RDF_REIFIES, whole)
        self._expect(">")
        self._expect(">")
        return whole if term else reifier

    def _take_apart(self, whole: Variable, s: Part, p: Part, o: Part, found: _Triples) -> None:
        rest = self._new("rest")
        found.patterns += [Pattern(whole, TRIPLE_TERM, s, rest), Pattern(rest, TRIPLE_REST, p, o)]

    def _reifier(self) -> Part:
        """What follows ``~``: a new blank node if there is no name."""
        if self._at("{", "|") or self._at(">", ">") or (self._text in ("~", ",", ";", ".", "]", "}", "|")):
            return self._new("reifier")
        return self.term()

    def _annotations(self, s: Part, verb: Path, o: Part, found: _Triples) -> None:
        """The reifiers and annotation blocks after a triple."""
        reifier: Part | None = None
        while (named := self._text == "~") or self._at("{", "|"):
            if not self.triple_terms or not isinstance(verb, PathStep):
                raise UnknownSyntaxError("an annotation")
            if named:
                self.position += 1
            if named or reifier is None:
                reifier = self._reifier() if named else self._new("reifier")
                whole = self._new("triple")
                self._take_apart(whole, s, verb.part, o, found)
                found.add(reifier, RDF_REIFIES, whole)
            if self._at("{", "|"):
                self.position += 2
                self._properties(reifier, found)
                self._expect("|")
                self._expect("}")
                reifier = None

    # --- paths ---

    def _verb(self) -> Path:
        if not self.paths:
            if self._text == "a":
                self.position += 1
                return PathStep(RDF_TYPE)
            return PathStep(self.term())
        if self.found[self.position].kind == "variable":
            return PathStep(self._variable())
        return self._alternative()

    def _alternative(self) -> Path:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else PathAlternative(tuple(parts))

    def _sequence(self) -> Path:
        parts = [self._element()]
        while self._take("/"):
            parts.append(self._element())
        return parts[0] if len(parts) == 1 else PathSequence(tuple(parts))

    def _element(self) -> Path:
        if self._take("^"):
            return PathInverse(self._element_without_inverse())
        return self._element_without_inverse()

    def _element_without_inverse(self) -> Path:
        path = self._primary()
        # At most one, as the grammar has it.
        for sign in "*+?":
            if self._take(sign):
                return PathRepeated(path, zero_length=sign != "+", repeated=sign != "?")
        return path

    def _primary(self) -> Path:
        if self._take("("):
            path = self._alternative()
            self._expect(")")
            return path
        if self._take("!"):
            if self._text == "(":
                # What a negated path excludes does not matter: each quad may be one of its steps, as far as a plan can
                # tell.
                self.position = self._closing() + 1
            else:
                self._take("^")
                self.position += 1
            return PathNegated()
        if self._text == "a":
            self.position += 1
            return PathStep(RDF_TYPE)
        return PathStep(self.term())

    def _follow(self, s: Part, path: Path, o: Part, found: _Triples, anchored: bool = False) -> None:
        """The path from s to o: patterns for a fixed length, else nodes.

        anchored: another step of the same path follows a predicate, so that no node is joined to itself alone.
        """
        match path:
            case PathStep(step):
                found.add(s, step, o)
            case PathInverse(inverse):
                self._follow(o, inverse, s, found, anchored)
            case PathSequence(parts):
                # Some step of the sequence needs a quad, so its ends are nodes of the graph. Then a zero-length step
                # need not look for all nodes.
                anchored = anchored or not zero_length(path)
                for part in parts[:-1]:
                    middle = self._new("path")
                    self._follow(s, part, middle, found, anchored)
                    s = middle
                self._follow(s, parts[-1], o, found, anchored)
            case PathAlternative(parts):
                branches = []
                for part in parts:
                    branch = _Triples(found.graph)
                    self._follow(s, part, o, branch, anchored)
                    branches.append(branch.node)
                union = branches[0]
                for other in branches[1:]:
                    union = Union(union, other)
                # The store returns each pair of nodes once, even if several alternatives join it.
                ends = dict.fromkeys(part for part in (s, o, found.graph) if isinstance(part, Variable))
                self._add_node(Distinct(Project(union, tuple(ends))), found)
            case _:
                steps = tuple(dict.fromkeys(steps_of(path)))
                hops = hops_of(path)
                node = OpaquePath(s, steps, o, found.graph, zero_length(path) and not anchored, hops)
                self._add_node(node, found)
