"""The dataset behind the engine: pyoxigraph in memory, seen through terms as text.

The only module besides `sparql` that knows pyoxigraph. What comes out of it is canonical; what goes in is
made canonical by it (`1.50` becomes `1.5`), so callers look things up only with terms that came out.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyoxigraph as ox

from engine.delta import QuadDelta
from engine.errors import RequestSyntaxError, StoreError, UnsupportedRequestError
from engine.terms import Bag, Binding, Quad, Term

MEDIA_TYPES = {
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/n-quads": ox.RdfFormat.N_QUADS,
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/trig": ox.RdfFormat.TRIG,
}
"""RDF syntaxes that can be loaded and dumped."""


class QuadStore:
    """An RDF dataset with SPARQL queries. Not for concurrent use; all methods are synchronous."""

    def __init__(self) -> None:
        self.native = ox.Store()

    def __len__(self) -> int:
        return len(self.native)

    def select(
        self,
        text: str,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
    ) -> Bag:
        """The solutions of a SELECT query in the order of evaluation.

        default_graphs, named_graphs: the dataset that the protocol asks for; None leaves it to the query.
        Raises RequestSyntaxError, StoreError.
        """
        solutions = query_native(self.native, text, default_graphs, named_graphs)
        assert isinstance(solutions, ox.QuerySolutions), "callers pass SELECT queries"
        variables = [variable.value for variable in solutions.variables]
        return Bag(variables, [_binding(solution) for solution in solutions])

    def contains(self, quads: Sequence[Quad]) -> list[bool]:
        """For each quad, whether the dataset holds it."""
        return [quad in self.native for quad in _native_quads(quads)]

    def quads(self, graph: Term | None) -> Iterator[Quad]:
        """The quads of one graph; None is the default graph."""
        name = ox.DefaultGraph() if graph is None else _native_term(graph)
        for quad in self.native.quads_for_pattern(None, None, None, name):
            yield quad_from_native(quad)

    def graphs(self) -> list[Term]:
        """Names of all named graphs, the empty ones too."""
        return [str(name) for name in self.native.named_graphs()]

    def has_graph(self, graph: Term) -> bool:
        return self.native.contains_named_graph(_native_term(graph))

    def apply(self, delta: QuadDelta) -> None:
        """Makes the delta true. Applying it again changes nothing more."""
        for quad in _native_quads(delta.removed):
            self.native.remove(quad)
        for name in delta.dropped:
            self.native.remove_graph(_native_term(name))
        self.native.extend(_native_quads(delta.added))
        for name in delta.created:
            self.native.add_graph(_native_term(name))

    def dump(self, media_type: str) -> bytes:
        """The whole dataset. Raises UnsupportedRequestError for a media type without named graphs or unknown."""
        syntax = MEDIA_TYPES.get(media_type)
        if syntax is None or not syntax.supports_datasets:
            raise UnsupportedRequestError(
                f"a dataset cannot be written as {media_type!r}; use application/n-quads or application/trig"
            )
        data = self.native.dump(format=syntax)
        assert data is not None, "without an output file the dump is returned"
        return data


def parse_quads(data: bytes, media_type: str) -> list[Quad]:
    """The quads of an RDF document in the store's canonical terms, with fresh blank nodes.

    Raises RequestSyntaxError with the place, UnsupportedRequestError for an unknown media type.
    """
    syntax = MEDIA_TYPES.get(media_type)
    if syntax is None:
        raise UnsupportedRequestError(f"cannot read {media_type!r}; known: {', '.join(MEDIA_TYPES)}")
    scratch = ox.Store()
    try:
        scratch.extend(ox.parse(data, format=syntax, rename_blank_nodes=True))
    except SyntaxError as error:
        raise RequestSyntaxError(error.msg or str(error), error.lineno, error.offset) from error
    return [quad_from_native(quad) for quad in scratch]


def query_native(
    store: ox.Store,
    text: str,
    default_graphs: Sequence[Term] | None = None,
    named_graphs: Sequence[Term] | None = None,
) -> ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples:
    """Runs a query of any form. Raises StoreError when the evaluation fails."""
    try:
        return store.query(
            text,
            default_graph=None if default_graphs is None else [_native_term(name) for name in default_graphs],
            named_graphs=None if named_graphs is None else [_native_term(name) for name in named_graphs],
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise StoreError(str(error)) from error


def _native_quads(quads: Iterable[Quad]) -> list[ox.Quad]:
    # One parse of many lines is several times cheaper than building each term from Python.
    text = "\n".join(quad.to_nquads() for quad in quads)
    return list(ox.parse(text, format=ox.RdfFormat.N_QUADS)) if text else []


def _native_term(term: Term) -> ox.NamedNode | ox.BlankNode:
    return ox.BlankNode(term[2:]) if term.startswith("_:") else ox.NamedNode(term[1:-1])


def quad_from_native(quad: ox.Quad) -> Quad:
    graph = quad.graph_name
    return Quad(
        str(quad.subject),
        str(quad.predicate),
        _term(quad.object),
        None if isinstance(graph, ox.DefaultGraph) else str(graph),
    )


def _term(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> Term:
    if isinstance(term, ox.Triple):  # whose own text lacks the brackets
        return f"<<( {term.subject} {term.predicate} {_term(term.object)} )>>"
    return str(term)


def _binding(solution: ox.QuerySolution) -> Binding:
    return tuple(None if term is None else _term(term) for term in solution)
