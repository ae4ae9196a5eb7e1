"""RDFLib beside the engine: terms, results and deltas in both directions, and a graph that follows a query.

RDFLib is optional (the extra `rdflib`). RDFLib 7 has neither triple terms nor literals with a base
direction; a term of these kinds is an UnsupportedRequestError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Self

import pyoxigraph as ox

from lamplighter.engine.extras import pip_install

try:
    import rdflib
    from rdflib.graph import DATASET_DEFAULT_GRAPH_ID
    from rdflib.query import Result
    from rdflib.term import Identifier
except ImportError as missing:
    raise ImportError(f"RDFLib is not installed; {pip_install('rdflib')}") from missing

from lamplighter.engine.core import Commit, Engine, QueryResult
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import StoreError, UnsupportedRequestError
from lamplighter.engine.sparql.plain_updates import VARIABLE
from lamplighter.engine.sparql.requests import QuadPattern, construct_parts, parse_query
from lamplighter.engine.store.quad_store import quad_from_native
from lamplighter.engine.term_bounds import TERM_BYTES_MAX, check_terms
from lamplighter.engine.terms import Bag, Binding, Quad, Term, iri, is_blank, is_iri, literal, term_to_json

RdflibTriple = tuple[Identifier, Identifier, Identifier]
_SHORT = 200
_LABEL = re.compile(r"\w(?:[\w.-]*[\w-])?")


# --- terms ---


def term_to_rdflib(term: Term) -> Identifier:
    """The term as a URIRef, BNode or Literal; its lexical form and its blank node label stay.

    Raises UnsupportedRequestError for a triple term and for a literal with a base direction.
    """
    return _short_to_rdflib(term) if len(term) <= _SHORT else _to_rdflib(term)


def _to_rdflib(term: Term) -> Identifier:
    member = term_to_json(term)
    value = member["value"]
    if member["type"] == "uri":
        return rdflib.URIRef(value)
    if member["type"] == "bnode":
        return rdflib.BNode(value)
    if member["type"] == "triple" or "its:dir" in member:
        kind = "triple terms" if member["type"] == "triple" else "literals with a base direction"
        raise UnsupportedRequestError(f"RDFLib has no {kind}: {term[:_SHORT]}; leave it out with FILTER")
    return rdflib.Literal(value, lang=member.get("xml:lang"), datatype=member.get("datatype"), normalize=False)


_short_to_rdflib = lru_cache(maxsize=16384)(_to_rdflib)


def term_from_rdflib(node: Identifier) -> Term:
    """The term of a URIRef, BNode or Literal, with the lexical form as it is.

    The dataset has canonical forms (``1.5`` for ``1.50``); `delta_from_rdflib` makes them. Raises
    UnsupportedRequestError for another node and for what is not an RDF term, such as an IRI with a space.
    """
    try:
        if isinstance(node, rdflib.URIRef):
            return iri(str(node))
        if isinstance(node, rdflib.BNode) and _LABEL.fullmatch(node):
            return f"_:{node}"
        if isinstance(node, rdflib.Literal):
            datatype = None if node.datatype is None or node.language else str(node.datatype)
            return literal(str(node), datatype=datatype, language=node.language)
    except ValueError as error:
        raise UnsupportedRequestError(f"{node!r} is not an RDF term: {error}") from error
    raise UnsupportedRequestError(f"{node!r} is not an IRI, blank node or literal")


# --- results ---


def result_to_rdflib(result: QueryResult | Bag | bool) -> Result:
    """A result as RDFLib gives it: rows for a SELECT, ``askAnswer`` for an ASK, ``graph`` for a CONSTRUCT."""
    value = result.value if isinstance(result, QueryResult) else result
    if isinstance(value, bool):
        answer = Result("ASK")
        answer.askAnswer = value
        return answer
    if not isinstance(value, Bag):
        answer = Result("CONSTRUCT")
        answer.graph = graph_to_rdflib(quad[:3] for quad in value)
        return answer
    answer = Result("SELECT")
    answer.vars = [rdflib.Variable(name) for name in value.variables]
    answer.bindings = [
        {rdflib.Variable(name): term_to_rdflib(term) for name, term in binding.items()} for binding in value.bindings()
    ]
    return answer


def bag_from_rdflib(result: Result) -> Bag:
    """The rows of a SELECT result. Raises UnsupportedRequestError for another form."""
    if result.type != "SELECT":
        raise UnsupportedRequestError(f"the form of the result is {result.type}; a bag has the rows of a SELECT")
    variables = result.vars or []
    return Bag([str(name) for name in variables], [_row(binding, variables) for binding in result.bindings])


def _row(binding: Any, variables: Sequence[rdflib.Variable]) -> Binding:
    return tuple(term_from_rdflib(binding[name]) if binding.get(name) is not None else None for name in variables)


def graph_to_rdflib(triples: Iterable[tuple[Term, Term, Term]] | QueryResult) -> rdflib.Graph:
    """The triples of a CONSTRUCT or DESCRIBE, or any others, as a graph."""
    graph = rdflib.Graph()
    for triple in triples:
        graph.add(_triple(triple))
    return graph


def _triple(triple: Sequence[Term]) -> RdflibTriple:
    s, p, o = (term_to_rdflib(term) for term in triple)
    return s, p, o


# --- deltas ---


def apply_to_rdflib(delta: QuadDelta, dataset: rdflib.Dataset) -> None:
    """Makes the change of a commit in an RDFLib dataset; nothing is changed if a term is unsupported.

    A copy of the whole dataset is ``apply_to_rdflib(QuadDelta(added=tuple(quads)), rdflib.Dataset())``.
    """
    removed, added = ([(_triple(quad[:3]), quad.g) for quad in quads] for quads in (delta.removed, delta.added))
    for triple, name in removed:
        _graph_of(dataset, name).remove(triple)
    for name in delta.dropped:
        dataset.remove_graph(_graph_of(dataset, name))
    for triple, name in added:
        _graph_of(dataset, name).add(triple)
    for name in delta.created:
        _graph_of(dataset, name)


def _graph_of(dataset: rdflib.Dataset, name: Term | None) -> rdflib.Graph:
    if name is None:
        default: rdflib.Graph = dataset.default_graph
        return default
    node = term_to_rdflib(name)
    assert isinstance(node, (rdflib.URIRef, rdflib.BNode)), "the name of a graph"
    return dataset.graph(node)


def delta_from_rdflib(
    added: Iterable[Sequence[Any]] = (), removed: Iterable[Sequence[Any]] = (), *, graph: Term | None = None
) -> QuadDelta:
    """A delta for `Engine.converge`, which adds and removes what is not there, or not gone, yet.

    added, removed: graphs or datasets of RDFLib, or any triples and quads; blank nodes keep their labels. graph: the
    graph for triples, None for the default graph. Raises UnsupportedRequestError for what is no RDF,
    LimitExceededError for terms that are too long.
    """
    gone, come = _canonical(_quads(removed, graph)), _canonical(_quads(added, graph))
    return QuadDelta(tuple(quad for quad in gone if quad not in come), tuple(come))


def _quads(statements: Iterable[Sequence[Any]], graph: Term | None) -> Iterator[Quad]:
    for s, p, o, *context in statements:
        name = graph
        if context:
            node = getattr(context[0], "identifier", context[0])
            name = None if node in (None, DATASET_DEFAULT_GRAPH_ID) else term_from_rdflib(node)
        quad = Quad(term_from_rdflib(s), term_from_rdflib(p), term_from_rdflib(o), name)
        if not is_iri(quad.p) or not (is_iri(quad.s) or is_blank(quad.s)):
            raise UnsupportedRequestError(f"no RDF triple: {quad.to_nquads()[:_SHORT]}")
        yield quad


def _canonical(quads: Iterable[Quad]) -> dict[Quad, None]:
    """The quads in the store's canonical terms, each once."""
    store = ox.Store()
    given = list(quads)
    check_terms(given, TERM_BYTES_MAX)
    try:
        store.extend(ox.parse("\n".join(quad.to_nquads() for quad in given), format=ox.RdfFormat.N_QUADS))
    except SyntaxError as error:
        raise UnsupportedRequestError(f"no RDF: {error.msg}") from error
    found = dict.fromkeys(quad_from_native(quad) for quad in store)
    check_terms(found, TERM_BYTES_MAX)
    return found


# --- graphs that follow a query ---


class FollowingGraph(rdflib.Graph):
    """A graph that holds what a query constructs, and that only its query changes.

    sparql: a CONSTRUCT, or a SELECT of three variables, whose rows are triples. A triple stays as long as one solution
    makes it. Blank nodes of the template are made for each solution, and stay with it. A graph that can no longer
    follow raises StoreError with the reason whenever it is read.
    """

    def __init__(self, sparql: str) -> None:
        super().__init__()
        query = parse_query(sparql)
        if query.form == "SELECT":
            if len(query.columns) != 3:
                raise UnsupportedRequestError(
                    f"the query has {len(query.columns)} variables; SELECT a subject, a predicate and an object, "
                    "or write a CONSTRUCT"
                )
            s, p, o = (f"<{VARIABLE}{name}>" for name in query.columns)
            self._select = sparql
            self._patterns: tuple[QuadPattern, ...] = (Quad(s, p, o),)
        else:
            construct = construct_parts(sparql)
            self._select, self._patterns = construct.select, construct.patterns
            for prefix, namespace in construct.prefixes:
                self.bind(prefix, namespace)
        self._instances = _Instances(self._patterns)
        self._reason: BaseException | None = None

    def _replace(self, rows: Bag) -> None:
        """Holds what these solutions make, and nothing else."""
        instances = _Instances(self._patterns)
        come, _ = instances.change(rows, Bag(rows.variables))
        there: set[RdflibTriple] = set(super().triples((None, None, None)))  # type: ignore[arg-type]
        self._instances = instances
        self._write(come - there, there - come)

    def _change(self, added: Bag, removed: Bag) -> None:
        self._write(*self._instances.change(added, removed))

    def _write(self, come: Iterable[RdflibTriple], gone: Iterable[RdflibTriple]) -> None:
        for triple in gone:
            super().remove(triple)
        for triple in come:
            super().add(triple)

    def _stop(self, reason: BaseException) -> None:
        self._reason = reason

    def _check(self) -> None:
        if self._reason is not None:
            raise StoreError(f"the graph no longer follows its query: {self._reason}") from self._reason

    def triples(self, triple: Any) -> Iterator[Any]:  # type: ignore[override]
        self._check()
        return super().triples(triple)

    def __len__(self) -> int:
        self._check()
        return super().__len__()

    def add(self, triple: Any) -> Self:
        raise _read_only()

    def addN(self, quads: Any) -> Self:
        raise _read_only()

    def remove(self, triple: Any) -> Self:
        raise _read_only()


def _read_only() -> TypeError:
    return TypeError("this graph follows a query; update the dataset instead, or copy the graph first")


class LiveGraph(FollowingGraph):
    """A graph that follows a query on an `Engine`: after each commit it is what the query constructs then.

    Used as ``with LiveGraph(engine, "CONSTRUCT ...") as graph``, or closed by `close`; it keeps its last content then.
    default_graphs, named_graphs: the dataset, as for `Engine.subscribe`. Raises as `Engine.subscribe`.
    """

    def __init__(
        self,
        engine: Engine,
        sparql: str,
        *,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
    ) -> None:
        super().__init__(sparql)
        self._engine = engine
        subscription = engine.subscribe(self._select, default_graphs=default_graphs, named_graphs=named_graphs)
        self.spuid: str | None = subscription.spuid
        try:
            self._replace(subscription.first)
        except BaseException:
            engine.unsubscribe(subscription.spuid)
            raise
        self._end = engine.listen(self._follow)

    def _follow(self, commit: Commit) -> None:
        for notification in commit.notifications:
            if notification.spuid == self.spuid and self._reason is None:
                try:
                    self._change(notification.added, notification.removed)
                except Exception as error:  # the commit has taken effect all the same
                    self._stop(error)
        for ended in commit.ended:
            if ended.spuid == self.spuid:
                self.spuid = None
                self._stop(ended.error)

    def close(self, commit_pending_transaction: bool = False) -> None:
        """Ends the subscription; the graph keeps its content."""
        self._end()
        spuid, self.spuid = self.spuid, None
        if spuid is not None and self._engine.subscribed(spuid):
            self._engine.unsubscribe(spuid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Instances:
    """The triples that the solutions of a query make of a template, each with the number of solutions that make it."""

    def __init__(self, patterns: Sequence[QuadPattern]) -> None:
        self._patterns = patterns
        self._labels = tuple({part for pattern in patterns for part in pattern[:3] if part and is_blank(part)})
        for pattern in patterns:
            for part in pattern[:3]:
                if not part.startswith(f"<{VARIABLE}") and not is_blank(part):
                    term_to_rdflib(part)  # a triple term is refused at once
        self._counts: Counter[RdflibTriple] = Counter()
        self._blank: dict[Binding, list[dict[Term, Identifier]]] = {}

    def change(self, added: Bag, removed: Bag) -> tuple[set[RdflibTriple], set[RdflibTriple]]:
        """The triples that come and go with solutions. Nothing is changed if a term is unsupported."""
        difference: Counter[RdflibTriple] = Counter()
        taken: Counter[Binding] = Counter()
        made: list[tuple[Binding, dict[Term, Identifier]]] = []
        for row in removed:
            blank: dict[Term, Identifier] = {}
            if self._labels:
                taken[row] += 1
                blank = self._blank[row][-taken[row]]
            difference.subtract(self._triples(row, removed.variables, blank))
        for row in added:
            blank = {label: rdflib.BNode() for label in self._labels}
            if self._labels:
                made.append((row, blank))
            difference.update(self._triples(row, added.variables, blank))
        for row, times in taken.items():
            del self._blank[row][-times:]
            if not self._blank[row]:
                del self._blank[row]
        for row, blank in made:
            self._blank.setdefault(row, []).append(blank)
        come, gone = set(), set()
        for triple, change in difference.items():
            before = self._counts[triple]
            after = self._counts[triple] = before + change
            assert after >= 0, "a solution was removed that was not there"
            if not after:
                del self._counts[triple]
            if before and not after:
                gone.add(triple)
            elif after and not before:
                come.add(triple)
        return come, gone

    def _triples(self, row: Binding, variables: Sequence[str], blank: dict[Term, Identifier]) -> set[RdflibTriple]:
        """The triples of one solution; those with an unbound or misplaced term are left out."""
        values = dict(zip(variables, row, strict=True))
        found: set[RdflibTriple] = set()
        for pattern in self._patterns:
            s, p, o = (_instance(part, values, blank) for part in pattern[:3])
            if isinstance(s, (rdflib.URIRef, rdflib.BNode)) and isinstance(p, rdflib.URIRef) and o is not None:
                found.add((s, p, o))
        return found


def _instance(part: Term, values: dict[str, Term | None], blank: dict[Term, Identifier]) -> Identifier | None:
    if part.startswith(f"<{VARIABLE}"):
        term = values.get(part[len(VARIABLE) + 1 : -1])
        return None if term is None else term_to_rdflib(term)
    return blank[part] if is_blank(part) else term_to_rdflib(part)
