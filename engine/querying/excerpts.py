"""An excerpt of the dataset: the quads that one query can use, or somewhat more.

A query over the excerpt has the same solutions as one over the dataset. The excerpt is gathered from the constants of
the query outwards: a pattern with a constant subject reads the quads of that subject, and the values that its variables
have in them restrict the patterns that share these variables. The choice of a dataset (FROM, the protocol, permissions)
does not restrict anything, so it cannot be mistaken: the store applies it to the excerpt.

The store in memory keeps a list of quads for each subject, predicate, object and graph. Only such whole lists are read,
quad by quad, up to a limit: for a pair of terms the store may pass over any number of quads until it finds one. What it
passes over in a list are removed quads, whose number is known (`QuadStore.passed_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.querying.query_reads import QueryReads
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Constant,
    Distinct,
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
    Slice,
    Union,
    Values,
    Variable,
)
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.store.renewal import native_quads
from lamplighter.engine.terms import Quad, Term

# Quads that are read for one query, at 2 us each.
READ_MAX = 400
# Removed quads that the store may pass over while it reads, at 0.06 us each.
PASSED_OVER_MAX = 40_000
# Characters of the quads that are read.
CHARACTERS_MAX = 256 * 1024

Native = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple | ox.DefaultGraph

_TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
_SUBJECT, _PREDICATE, _OBJECT, _GRAPH = range(4)
# How many quads a list is expected to have, by the position of its term; decides which one is read first.
_ORDER = {_SUBJECT: 1, _OBJECT: 8, _GRAPH: 32, _PREDICATE: 10_000}
_CLASS, _ALL = 128, 1_000_000
_TERM: tuple[Callable[[ox.Quad], Native], ...] = tuple(
    map(attrgetter, ("subject", "predicate", "object", "graph_name"))
)
_DEFAULT = ox.DefaultGraph()

# Variable -> all values that it can have in a solution, and maybe more; without an entry, any value.
Candidates = dict[Variable, frozenset[Native]]


class TooLarge(Exception):
    """A query reads more than an excerpt may have."""


class Excerpt:
    """Gathers the quads of one query. quads: those that were gathered; longest: characters of the longest one."""

    def __init__(self, store: QuadStore, reads: QueryReads, terms: Sequence[Term]) -> None:
        """terms: the constants of the query. Raises TooLarge."""
        self._store = store
        self._native = store.native
        self._reads = reads
        self._terms = terms
        self._natives: dict[Term, Native] = {}
        self._lists: dict[tuple[int, Native | None], list[ox.Quad]] = {}
        self._read = self._passed_over = self._characters = 0
        self.longest = 0
        self.quads: dict[ox.Quad, None] = {}
        self._gather(reads.node, {})

    def solutions_max(self) -> int:
        """A bound on the solutions of each part of the query, in whatever order the store joins its patterns.

        A solution of a part has one quad for each pattern that it contains, or none where it may lack it.
        """
        bound = self._reads.rows
        by_predicate: dict[Native, int] | None = None
        for counted in self._reads.patterns:
            matches = len(self.quads)
            predicate = counted.pattern.p
            if matches > 1 and not isinstance(predicate, Variable):
                if by_predicate is None:
                    by_predicate = {}
                    for quad in self.quads:
                        by_predicate[quad.predicate] = by_predicate.get(quad.predicate, 0) + 1
                matches = by_predicate.get(self._native_of(predicate), 0)
            bound *= matches + 1 if counted.optional else max(1, matches)
        return bound

    # --- parts ---

    def _gather(self, node: Node, known: Candidates) -> Candidates:
        """Gathers the quads of a part. known: candidates from what it is joined with; those of variables that it does
        not bind in each solution are ignored. Returns the candidates of the variables that it does."""
        certain = self._reads.certain[id(node)]
        known = {variable: values for variable, values in known.items() if variable in certain}
        match node:
            case Bgp() | Join() | Values():
                found = self._join(_conjuncts(node), known)
            case LeftJoin(left, right, condition):
                found = self._gather(left, known)
                both = {**self._gather(right, found), **found}
                self._conditions(condition, both)
            case Minus(left, right):
                found = self._gather(left, known)
                self._gather(right, found)
            case Union(left, right):
                one, other = self._gather(left, known), self._gather(right, known)
                found = {variable: one[variable] | other[variable] for variable in one.keys() & other.keys()}
            case Filter(inner, condition):
                found = self._gather(inner, known)
                self._conditions((condition,), found)
            case Extend(inner, _, expression):
                found = self._gather(inner, known)
                self._conditions((expression,), found)
            case Group(inner, keys, aggregates):
                found = self._gather(inner, {key: known[key] for key in keys if key in known})
                self._conditions([it.argument for _, it in aggregates if it.argument is not None], found)
            case Project(inner) | Distinct(inner):
                found = self._gather(inner, known)
            case Slice(inner, order):  # which solutions it keeps depends on all of them
                found = self._gather(inner, {})
                self._conditions([key.expression for key in order], found)
            case _:
                raise TooLarge
        return {variable: values for variable, values in found.items() if variable in certain}

    def _conditions(self, expressions: Sequence[Expression], found: Candidates) -> None:
        for expression in expressions:
            for exists in expression.exists:
                self._gather(exists.node, found)

    def _join(self, parts: Sequence[Node], known: Candidates) -> Candidates:
        known = dict(known)
        patterns: list[Pattern] = []
        for part in parts:
            match part:
                case Values(variables, rows):
                    for column, variable in enumerate(variables):
                        self._restrict(known, variable, [row[column] for row in rows])
                case Bgp(its):
                    patterns += its
        while patterns:
            anchors = [min(self._anchors(it, known), default=(_ALL, -1)) for it in patterns]
            _, first, anchor = min((expected, index, position) for index, (expected, position) in enumerate(anchors))
            self._match(patterns.pop(first), anchor, known)
        for part in parts:
            if not isinstance(part, (Values, Bgp)):
                for variable, values in self._gather(part, known).items():
                    known[variable] = known[variable] & values if variable in known else values
        return known

    def _restrict(self, known: Candidates, variable: Variable, column: Sequence[Part | None]) -> None:
        if None not in column:
            found = frozenset(self._native_of(part) for part in column if not isinstance(part, (Variable, NoneType)))
            known[variable] = known[variable] & found if variable in known else found

    # --- patterns ---

    def _term(self, part: Constant | Term) -> Term:
        return self._terms[self._reads.skipped + part.number] if isinstance(part, Constant) else part

    def _native_of(self, part: Constant | Term) -> Native:
        """A constant as the store has it."""
        term = self._term(part)
        native = self._natives.get(term)
        if native is None:
            if term[0] == "<" and term[1] != "<":
                native = ox.NamedNode(term[1:-1])
            else:
                native = native_quads([Quad("<urn:x>", "<urn:x>", term, None)])[0].object
            self._natives[term] = native
        return native

    def _anchors(self, pattern: Pattern, known: Mapping[Variable, frozenset[Native]]) -> Iterator[tuple[int, int]]:
        """(quads to be expected, position) of each position whose terms are known."""
        for position, part in enumerate(pattern):
            if part is None:
                continue
            if not isinstance(part, Variable):
                yield _CLASS if position == _OBJECT and self._is_type(pattern.p) else _ORDER[position], position
            elif part in known:
                yield len(known[part]) * _ORDER[position], position

    def _is_type(self, predicate: Part) -> bool:
        return not isinstance(predicate, Variable) and self._term(predicate) == _TYPE

    def _match(self, pattern: Pattern, anchor: int, known: Candidates) -> None:
        """Gathers the quads of a pattern, and restricts its variables to their values. anchor: the position of the
        terms whose lists are read; -1 for all quads."""
        values: Iterable[Native | None] = (None,)
        tests = []
        seen: dict[Variable, tuple[Callable[[ox.Quad], Native], set[Native]]] = {}
        for position, part in enumerate(pattern):
            if part is None:
                continue
            get = _TERM[position]
            if isinstance(part, Variable):
                candidates = known.get(part)
                if part not in seen or position == anchor:
                    seen[part] = get, set()
            else:
                candidates = frozenset((self._native_of(part),))
            if position == anchor:
                values = candidates or ()
            elif candidates is not None:
                tests.append((get, candidates))
        for value in values:
            for quad in self._list(anchor, value):
                if all(get(quad) in candidates for get, candidates in tests):
                    self.quads[quad] = None
                    for get, found in seen.values():
                        found.add(get(quad))
        for variable, (_, found) in seen.items():
            found.discard(_DEFAULT)  # no variable has it as its value
            known[variable] = frozenset(found)

    def _list(self, position: int, term: Native | None) -> list[ox.Quad]:
        """The quads that have a term at a position, all quads for -1. Raises TooLarge."""
        key = (position, term)
        found = self._lists.get(key)
        if found is not None:
            return found
        self._passed_over += self._store.passed_over(position, term)
        if self._passed_over > PASSED_OVER_MAX:
            raise TooLarge
        pattern: list[Any] = [None] * 4
        if term is not None:
            if not _possible(position, term):
                return []
            pattern[position] = term
        found = self._lists[key] = []
        for quad in self._native.quads_for_pattern(*pattern):
            size = len(str(quad))
            self._read += 1
            self._characters += size
            if self._read > READ_MAX or self._characters > CHARACTERS_MAX:
                raise TooLarge
            self.longest = max(self.longest, size)
            found.append(quad)
        return found


def _possible(position: int, term: Native) -> bool:
    """Whether a term may be at a position of a quad."""
    if position == _PREDICATE:
        return isinstance(term, ox.NamedNode)
    return position == _OBJECT or isinstance(term, (ox.NamedNode, ox.BlankNode))


def _conjuncts(node: Node) -> list[Node]:
    if isinstance(node, Join):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]
