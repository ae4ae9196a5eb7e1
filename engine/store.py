"""The dataset behind the engine: pyoxigraph in memory, seen through terms as text.

What comes out of it is canonical, and what goes in must be (`1.5`, not `1.50`): terms that came out of it
or of `parse_quads`.
"""

from collections.abc import Callable, Iterator, Sequence

import pyoxigraph as ox

from engine.delta import QuadDelta
from engine.errors import RequestSyntaxError, StoreError, UnsupportedRequestError
from engine.renewal import Ageing, Renewal, RenewalPolicy, native_name, native_quads, split, write
from engine.terms import Bag, Binding, Quad, Term

MEDIA_TYPES = {
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/n-quads": ox.RdfFormat.N_QUADS,
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/trig": ox.RdfFormat.TRIG,
}
"""RDF syntaxes that can be loaded and dumped."""


class QuadStore:
    """An RDF dataset with SPARQL queries. Not for concurrent use; all methods are synchronous.

    Write-behind: `apply` only notes what the dataset shall hold, netted, and the native store is brought up
    to date when it is read or when enough has come together. It is renewed when too much of it is dead.

    ::

        apply ─▶ pending ─ flush ─▶ native ─▶ select, quads, dump, native
                    └─▶ contains ◀────┘  └ slices ─▶ fresh, which takes its place

    retire: is given the native store that a renewal has replaced, in the call that ends it. The last reference
    to that blocks the interpreter while its memory is freed, 0.2 us a quad, dead or alive; a caller with a
    loop lets it go when nobody waits. Without, it goes at once.
    """

    def __init__(
        self,
        policy: RenewalPolicy = RenewalPolicy(),  # noqa: B008 - frozen
        retire: Callable[[object], None] = lambda native: None,
    ) -> None:
        self._policy = policy
        self.retire = retire
        self.around_select: Callable[[str, Callable[[], Bag]], Bag] = lambda text, select: select()
        """Is given the text of each `select` and what runs it, and returns the result: for whoever measures."""
        self._native = ox.Store()
        self._pending: dict[Quad, bool] = {}
        self._pending_graphs: dict[Term, bool] = {}
        self._names: dict[Term, None] | None = None  # not known until the first delta
        self._count = 0
        self._ageing = Ageing(policy)
        self._renewal: Renewal | None = None
        self.renewals = 0
        """How often the native store was replaced; iterators over the one before keep its memory."""

    def __len__(self) -> int:
        self._graph_names()
        return self._count

    @property
    def native(self) -> ox.Store:
        """The store underneath, up to date, for reading until the next delta.

        It may be filled by other means as long as no delta has been applied.
        """
        self.flush()
        return self._native

    @property
    def dead(self) -> int:
        """Removed quads that the native store still carries."""
        return self._ageing.dead

    @property
    def renewing(self) -> bool:
        """Whether `step` has something to copy."""
        return self._renewal is not None or self._ageing.due(self._count)

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
        native = self.native

        def run() -> Bag:
            solutions = query_native(native, text, default_graphs, named_graphs)
            assert isinstance(solutions, ox.QuerySolutions), "callers pass SELECT queries"
            variables = [variable.value for variable in solutions.variables]
            return Bag(variables, [_binding(solution) for solution in solutions])

        return self.around_select(text, run)

    def contains(self, quads: Sequence[Quad]) -> list[bool]:
        """For each quad, whether the dataset holds it."""
        pending = self._pending
        found = [pending.get(quad) for quad in quads]
        unknown = native_quads([quad for quad, there in zip(quads, found, strict=True) if there is None])
        rest = iter(unknown)
        return [next(rest) in self._native if there is None else there for there in found]

    def quads(self, graph: Term | None) -> Iterator[Quad]:
        """The quads of one graph; None is the default graph."""
        name = ox.DefaultGraph() if graph is None else native_name(graph)
        return map(quad_from_native, self.native.quads_for_pattern(None, None, None, name))

    def all_quads(self, wanted: Callable[[Term], bool]) -> Iterator[Quad | None]:
        """All quads as they are when the first is asked for; None for each whose predicate is not wanted."""
        for quad in self.native:
            yield quad_from_native(quad) if wanted(str(quad.predicate)) else None

    def quads_with(self, predicate: Term | None) -> Iterator[Quad]:
        """All quads of a predicate, of all predicates for None, read as text that the native store has written."""
        name = "?p" if predicate is None else predicate
        triples = self.native.query(f"CONSTRUCT {{ ?s {name} ?o }} WHERE {{ ?s {name} ?o }}")
        assert isinstance(triples, ox.QueryTriples)
        text = triples.serialize(format=ox.RdfFormat.N_TRIPLES)
        assert text is not None, "without an output file the text is returned"
        for line in text.decode().split("\n")[:-1]:  # literals hold other line ends, such as U+2028, as they are
            s, p, rest = line.split(" ", 2)
            yield Quad(s, p, rest[:-2], None)
        for row in self.select(f"SELECT ?s ?p ?o ?g WHERE {{ GRAPH ?g {{ ?s {name} ?o }} }}"):
            subject, found, object_, graph = row
            assert subject is not None and object_ is not None
            yield Quad(subject, found or name, object_, graph)

    def graphs(self) -> list[Term]:
        """Names of all named graphs, the empty ones too."""
        return list(self._graph_names())

    def has_graph(self, graph: Term) -> bool:
        return graph in self._graph_names()

    def apply(self, delta: QuadDelta) -> None:
        """Makes a delta true that is exact: what it removes is there, what it adds is not."""
        names = self._names
        if names is None:
            names = self._names = self._graph_names()
        pending = self._pending
        for quad in delta.removed:
            if pending.pop(quad, None) is None:
                pending[quad] = False
        for name in delta.dropped:
            if name in names:
                del names[name]
                if self._pending_graphs.pop(name, None) is None:
                    self._pending_graphs[name] = False
        for quad in delta.added:
            if pending.pop(quad, None) is None:
                pending[quad] = True
            if quad[3] is not None and quad[3] not in names:
                self._create(quad[3], names)
        for name in delta.created:
            if name not in names:
                self._create(name, names)
        self._count += len(delta.added) - len(delta.removed)
        if len(pending) + len(self._pending_graphs) > self._policy.pending_max:
            self.flush()

    def _create(self, name: Term, names: dict[Term, None]) -> None:
        names[name] = None
        if self._pending_graphs.pop(name, None) is None:
            self._pending_graphs[name] = True

    def flush(self) -> None:
        """Brings the native store up to date, and its renewal a little further. Does nothing when nothing waits."""
        changes, graphs = self._pending, self._pending_graphs
        if not changes and not graphs:
            return
        removed, added = split(changes)
        write(self._native, removed, added, graphs)
        self._pending, self._pending_graphs = {}, {}
        self._ageing.count(removed, self._count)
        if self._renewal is not None:
            self._renewal.record(changes, graphs)
        paced = min(len(changes), self._policy.pending_max)  # one huge delta does not copy everything
        slices = self._policy.copies_per_change * paced // self._policy.slice_quads
        for _ in range(max(1, slices)):
            if not self._renew():
                break

    def step(self) -> bool:
        """Goes on with the renewal by one slice, for whoever has time to spare. True when there is more to do."""
        self.flush()
        return self._renew()

    def _renew(self) -> bool:
        if self._renewal is None:
            if not self._ageing.due(self._count):
                return False
            self._renewal = Renewal(self._native, self._graph_names(), self._policy)
        if not self._renewal.step(self._count):
            return True
        old = self._native
        self._native, self._ageing, self._renewal = self._renewal.fresh, self._renewal.ageing, None
        self.renewals += 1
        self.retire(old)
        return False

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

    def _graph_names(self) -> dict[Term, None]:
        """Also counts the quads, as long as only the native store knows."""
        if self._names is not None:
            return self._names
        self._count = len(self._native)
        return {str(name): None for name in self._native.named_graphs()}


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
    """Runs a query of any form. Raises StoreError when the evaluation fails, RequestSyntaxError for no query."""
    try:
        return store.query(
            text,
            default_graph=None if default_graphs is None else [native_name(name) for name in default_graphs],
            named_graphs=None if named_graphs is None else [native_name(name) for name in named_graphs],
        )
    except SyntaxError as error:
        raise RequestSyntaxError(error.msg or str(error), error.lineno, error.offset) from error
    except (RuntimeError, ValueError, OSError) as error:
        raise StoreError(str(error)) from error


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
