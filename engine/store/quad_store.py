"""The dataset behind the engine: pyoxigraph in memory or on disk, seen through terms as text.

What comes out of it is canonical, and what goes in must be (`1.5`, not `1.50`): terms that came out of it
or of `engine.updating.documents`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from itertools import chain, islice
from pathlib import Path
from shutil import disk_usage
from typing import NoReturn, Protocol
from weakref import WeakSet

import pyoxigraph as ox

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import (
    ConfigurationError,
    RequestSyntaxError,
    StoreError,
    UnsupportedRequestError,
)
from lamplighter.engine.slices import LONG, Slices, sliced
from lamplighter.engine.store.renewal import (
    Ageing,
    Renewal,
    RenewalPolicy,
    native_name,
    native_quads,
    nquads,
    split,
    write,
)
from lamplighter.engine.term_bounds import TERM_BYTES_MAX, check_terms
from lamplighter.engine.terms import Bag, Binding, Quad, Term, is_blank, is_iri

MEDIA_TYPES = {
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/n-quads": ox.RdfFormat.N_QUADS,
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/trig": ox.RdfFormat.TRIG,
}
"""RDF syntaxes that can be loaded and dumped."""

BATCH_QUADS = 1000
"""Quads in one batch of `QuadStore.batches`, at most."""
_BATCH_BYTES = 1024 * 1024
"""About as many bytes it has where quads are long."""
_FIRST_BATCH_QUADS = 64
_SHOWN_CHARACTERS_MAX = 200


BATCH_ROWS = 1000
"""Rows of a result between two looks at whether it takes too long."""


class Select(Protocol):
    """Runs a query. check: is called again and again while the result comes, and may raise what ends it."""

    def __call__(self, check: Callable[[], None] = ...) -> Bag: ...


ROOM_BYTES_MIN = 4 * 1024 * 1024
"""Room on the disk before a store that could not be written is tried again."""


class _Absent:
    """In the place of a native store that could not be opened again."""

    def __getattr__(self, name: str) -> NoReturn:
        raise OSError("it could not be opened again after a failed write")

    def __contains__(self, quad: object) -> bool:
        return bool(self.quads)

    def __iter__(self) -> Iterator[ox.Quad]:
        return iter(self.quads)

    def __len__(self) -> int:
        return len(self.quads)


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

    path: folder of a store on disk (RocksDB), which is made if there is none; None for memory. On disk nothing is
    renewed, for RocksDB compacts by itself. What was written survives the end of the process, and a power cut after
    `persist_native`. Raises ConfigurationError for a folder that cannot be used, StoreError for a damaged store.
    term_bytes_max: what `check` lets pass.
    """

    def __init__(
        self,
        policy: RenewalPolicy = RenewalPolicy(),  # noqa: B008 - frozen
        retire: Callable[[object], None] = lambda native: None,
        path: Path | None = None,
        term_bytes_max: int = TERM_BYTES_MAX,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
    ) -> None:
        self._slices = slices
        self._policy = policy
        self.term_bytes_max = term_bytes_max
        self._path = path
        self.retire = retire
        self.around_select: Callable[[str, Select], Bag] = lambda text, select: select()
        """Is given the text of each `select` and what runs it, and returns the result: for whoever measures."""
        self._native = ox.Store() if path is None else _opened(path)
        self._readings: WeakSet[Generator[Quad | None, None, None]] = WeakSet()
        self._pending: dict[Quad, bool] = {}
        self._pending_graphs: dict[Term, bool] = {}
        self._names: dict[Term, None] | None = None  # not known until the first delta
        self._count = 0
        self._waiting_max = policy.pending_max
        self.staged: list[QuadDelta] = []
        """Deltas that were applied for a moment."""
        self._failed = False
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

        One in memory may be filled by other means as long as no delta has been applied.
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
        default_graphs: Sequence[Term | None] | None = None,
        named_graphs: Sequence[Term] | None = None,
    ) -> Bag:
        """The solutions of a SELECT query in the order of evaluation.

        default_graphs, named_graphs: the dataset that the protocol asks for; None leaves it to the query, and None
        among the former is the default graph.
        Raises RequestSyntaxError, StoreError.
        """
        native = self.native

        def run(check: Callable[[], None] = lambda: None) -> Bag:
            solutions = query_native(native, text, default_graphs, named_graphs)
            assert isinstance(solutions, ox.QuerySolutions), "callers pass SELECT queries"
            variables = [variable.value for variable in solutions.variables]
            rows: list[Binding] = []
            while some := [_binding(solution) for solution in islice(solutions, BATCH_ROWS)]:
                rows += some
                check()
            return Bag(variables, rows)

        with self._slices.beside():
            return self.around_select(text, run)

    def check(self, quads: Iterable[Quad]) -> None:
        """Raises LimitExceededError for quads with terms that are too long or too deep for the dataset.

        To be called with all that a request makes, before `contains` or `apply`.
        """
        check_terms(quads, self.term_bytes_max)

    def contains(self, quads: Sequence[Quad]) -> list[bool]:
        """For each quad, whether the dataset holds it."""
        pending = self._pending
        found = [pending.get(quad) for quad in quads]
        unknown = native_quads([quad for quad, there in zip(quads, found, strict=True) if there is None])
        rest = iter(unknown)
        try:  # a context manager would cost more than the rest
            return [next(rest) in self._native if there is None else there for there in found]
        except (OSError, RuntimeError) as error:
            if not self._failed:
                raise _trouble(error) from error
        self.flush()  # opens it again, or raises
        return self.contains(quads)

    def quads(self, graph: Term | None) -> Iterator[Quad]:
        """The quads of one graph; None is the default graph."""
        name = ox.DefaultGraph() if graph is None else native_name(graph)
        return map(quad_from_native, self.native.quads_for_pattern(None, None, None, name))

    def all_quads(self, wanted: Callable[[Term], bool]) -> Iterator[Quad | None]:
        """All quads as they are when the first is asked for; None for each whose predicate is not wanted."""

        def read() -> Generator[Quad | None, None, None]:
            for quad in self.native:
                yield quad_from_native(quad) if wanted(str(quad.predicate)) else None

        reading = read()
        self._readings.add(reading)  # it keeps the native store until it is closed
        return reading

    def quads_with(self, predicate: Term | None) -> Iterator[Quad]:
        """All quads of a predicate, of all predicates for None."""
        if predicate is None:
            return chain.from_iterable(self.batches())
        found = self.native.quads_for_pattern(None, ox.NamedNode(predicate[1:-1]), None, None)
        return chain.from_iterable(_batches(found))

    def batches(self) -> Iterator[list[Quad]]:
        """All quads as they are when the first is asked for, up to `BATCH_QUADS` at a time."""
        return _batches(iter(self.native))

    def fill(self, batches: Iterable[Sequence[Quad]], graphs: Iterable[Term]) -> None:
        """Puts quads, each once, and named graphs into an empty store; terms and blank nodes stay as they are.

        graphs: at least those without quads. Raises StoreError, and whatever `batches` raises; then the store holds a
        part, and is of no use.
        """
        with _told():
            if self._path is None:
                for batch in batches:
                    write(self._native, (), batch, {})
            else:  # one call: it sorts the quads and writes them where they stay, in 40 % of the time
                self._native.bulk_extend(chain.from_iterable(map(native_quads, batches)))
            for name in graphs:
                self._native.add_graph(native_name(name))
        self._names = None
        self._names = self._graph_names()

    def graphs(self) -> list[Term]:
        """Names of all named graphs, the empty ones too."""
        return list(self._graph_names())

    def has_graph(self, graph: Term) -> bool:
        return graph in self._graph_names()

    def apply(self, delta: QuadDelta, again: bool = True) -> None:
        """Makes a delta true that is exact: what it removes is there, what it adds is not.

        again: whether a failure on the way, of memory say, is made good. If it raises, the delta may be true in part.
        """
        names = self._names
        if names is None:
            names = self._names = self._graph_names()
        more, fewer = len(delta.added), len(delta.removed)
        if more + fewer > LONG:
            self._apply_in_slices(delta, again)
            return
        count = self._count + more - fewer
        pending = self._pending
        try:  # the dataset is consistent after each quad and graph, so that `missing` knows what is left
            for quad in delta.removed:
                if pending.pop(quad, None) is None:
                    pending[quad] = False
            for name in delta.dropped:
                if name in names:
                    if self._pending_graphs.pop(name, None) is None:
                        self._pending_graphs[name] = False
                    del names[name]
            for quad in delta.added:
                if pending.pop(quad, None) is None:
                    pending[quad] = True
                if quad[3] is not None and quad[3] not in names:
                    self._create(quad[3], names)
            for name in delta.created:
                if name not in names:
                    self._create(name, names)
        except Exception:
            if not again:
                raise
            self.apply(self.missing(delta), again=False)
        self._count = count
        try:
            waiting = len(self._pending) + len(self._pending_graphs)
            if waiting > self._waiting_max:
                self._waiting_max = waiting + self._policy.pending_max
                self.flush()
        except Exception:
            # The delta took effect all the same. It is tried again when it is read, or when as many more wait.
            return

    def stage(self, delta: QuadDelta) -> None:
        """Applies an exact delta for a moment: until `unstage`, or `take_back` after a failure."""
        self.staged.append(delta)
        self.apply(delta)

    def unstage(self) -> None:
        """Takes back what is staged."""
        while self.staged:
            self.apply(self.staged[-1].invert())
            self.staged.pop()

    def take_back(self) -> None:
        """Takes back what is staged, after a failure that has left the last of it applied or not. Raises StoreError."""
        while self.staged:
            self.apply(self.missing(self.staged[-1].invert()))
            self.staged.pop()

    def _apply_in_slices(self, delta: QuadDelta, again: bool) -> None:
        """As `apply`, by parts that are written one after the other."""
        for some in sliced(delta.removed, self._slices):
            self.apply(QuadDelta(removed=tuple(some)), again)
        for names in sliced(delta.dropped, self._slices):
            self.apply(QuadDelta(dropped=tuple(names)), again)
        for some in sliced(delta.added, self._slices):
            self.apply(QuadDelta(added=tuple(some)), again)
        for names in sliced(delta.created, self._slices):
            self.apply(QuadDelta(created=tuple(names)), again)

    def _create(self, name: Term, names: dict[Term, None]) -> None:
        if self._pending_graphs.pop(name, None) is None:
            self._pending_graphs[name] = True
        names[name] = None

    def missing(self, delta: QuadDelta) -> QuadDelta:
        """The exact delta that makes a delta true which need not be exact: what of it is not true yet."""
        there = dict(zip(quads := (*delta.removed, *delta.added), self.contains(quads), strict=True))
        removed = dict.fromkeys(quad for quad in delta.removed if there[quad])
        dropped = tuple(name for name in delta.dropped if self.has_graph(name))
        for name in dropped:
            removed.update(dict.fromkeys(self.quads(name)))
        added = tuple(quad for quad in delta.added if not there[quad])
        names = dict.fromkeys([*delta.created, *(quad.g for quad in added if quad.g is not None)])
        return QuadDelta(
            tuple(removed), added, created=tuple(name for name in names if not self.has_graph(name)), dropped=dropped
        )

    def flush(self) -> None:
        """Brings the native store up to date, and its renewal a little further. Does nothing when nothing waits.

        Raises StoreError when the disk does not take it; it still waits then, and whatever was written of it is
        written again.
        """
        if self._failed:
            if self._slices.elsewhere:  # what reads it would have to be closed there
                raise StoreError("the store could not be written; it is tried again soon")
            self._reopen()
        changes, graphs = self._pending, self._pending_graphs
        if not changes and not graphs:
            return
        removed, added = split(changes)
        try:
            with _told():
                write(self._native, removed, added, graphs)
        except StoreError:
            self._failed = self._path is not None
            raise
        self._pending, self._pending_graphs = {}, {}
        self._waiting_max = self._policy.pending_max
        if self._path is not None:
            return
        try:
            self._ageing.count(removed, self._count)
            if self._renewal is not None:
                self._renewal.record(changes, graphs)
            paced = min(len(changes), self._policy.pending_max)  # one huge delta does not copy everything
            slices = self._policy.copies_per_change * paced // self._policy.slice_quads
            for _ in range(max(1, slices)):
                if not self._renew():
                    break
        except BaseException:
            self._renewal = None  # it may lack a change; another begins when it is due
            raise

    def _reopen(self) -> None:
        """After a write that failed RocksDB takes no other until it is opened again. Raises StoreError."""
        assert self._path is not None
        if disk_usage(self._path).free < ROOM_BYTES_MIN:
            raise _trouble(OSError(ENOSPC, "No space left on device"))
        self._let_go(_Absent())
        try:
            self._native = _opened(self._path)
        except ConfigurationError as error:  # it was in order when the process began
            raise _trouble(error) from error
        self._failed = False

    def _let_go(self, instead: ox.Store | _Absent) -> None:
        for reading in list(self._readings):
            reading.close()
        self._native = instead  # type: ignore[assignment]  # whatever is asked of it is an OSError

    def persist_native(self) -> None:
        """Has on disk what was written so far, so that a power cut does not take it; nothing to do in memory.

        Blocks for 0.1 to 0.3 s. May run in a thread of its own while the dataset goes on changing, but not beside
        `close`. Raises StoreError.
        """
        if self._path is not None:
            try:
                with _told():
                    self._native.flush()
            except StoreError:
                self._failed = True
                raise

    def close(self) -> None:
        """Writes what waits and lets go of the native store, so that another may open it. The dataset is empty then.

        Raises StoreError when not all could be written.
        """
        try:
            if self._path is not None:
                self.flush()
        finally:
            self._let_go(ox.Store())
            self._path, self._failed, self._renewal = None, False, None
            self._pending, self._pending_graphs, self._names, self._count = {}, {}, None, 0

    def step(self) -> bool:
        """Goes on with the renewal by one slice, for whoever has time to spare. True when there is more to do."""
        self.flush()
        return self._renew()

    def _renew(self) -> bool:
        if self._slices.elsewhere:
            return False
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
        """Also counts the quads, as long as only the native store knows: 0.05 us each, 0.2 us on disk."""
        if self._names is not None:
            return self._names
        with _told():
            self._count = len(self._native)
            names: dict[Term, None] = {str(name): None for name in self._native.named_graphs()}
        if self._path is not None:  # nobody else fills it
            self._names = names
        return names


def _opened(path: Path) -> ox.Store:
    try:
        path.mkdir(mode=0o700, exist_ok=True)  # RocksDB would let everybody read what it makes
        return ox.Store(path)
    except RuntimeError as error:
        raise StoreError(
            f"the store {path} is damaged: {error}; move the folder away, and the gateway fills a new one from its "
            "snapshot and change log"
        ) from error
    except OSError as error:
        if "lock" in str(error).lower():
            raise ConfigurationError(
                f"the store {path} is in use; stop who is using it, or set store.path to another folder"
            ) from error
        raise ConfigurationError(
            f"the store {path} cannot be opened: {error}; set store.path to a folder that can be written"
        ) from error


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong in the native store, as StoreError."""
    try:
        yield
    except (OSError, RuntimeError, SyntaxError) as error:
        raise _trouble(error) from error


def _trouble(error: Exception) -> StoreError:
    return StoreError(f"the store cannot be read or written: {error}; check the disk, and whether it has room")


def _batches(quads: Iterator[ox.Quad]) -> Iterator[list[Quad]]:
    """Quads, up to `BATCH_QUADS` at a time. They are read as text that the native library has written, 1 us a quad."""
    size = _FIRST_BATCH_QUADS
    while data := ox.serialize(islice(quads, size), format=ox.RdfFormat.N_QUADS):
        size = max(1, min(BATCH_QUADS, 4 * size, size * _BATCH_BYTES // len(data)))
        batch = []
        for line in data.decode().split("\n")[:-1]:  # literals hold other line ends, such as U+2028, as they are
            s, p, rest = line.split(" ", 2)
            o, g = _object_and_graph(rest[:-2])
            batch.append(Quad(s, p, o, g))
        yield batch


def _object_and_graph(text: str) -> tuple[Term, Term | None]:
    """What stands behind subject and predicate in a line of N-Quads, without the point at its end."""
    if " " not in text:
        return text, None
    if text[0] == '"':
        close = text.rindex('"')  # none stands in a language tag, a datatype or a name
        space = text.find(" ", close)
    elif text.startswith("<<("):
        space = text.rindex(")>>") + 3
        space = space if space < len(text) else -1
    else:
        space = text.find(" ")
    return (text, None) if space < 0 else (text[:space], text[space + 1 :])


def query_native(
    store: ox.Store,
    text: str,
    default_graphs: Sequence[Term | None] | None = None,
    named_graphs: Sequence[Term] | None = None,
) -> ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples:
    """Runs a query of any form; the dataset is as in `QuadStore.select`.

    Raises StoreError when the evaluation fails, RequestSyntaxError for no query.
    """
    try:
        return store.query(
            text,
            default_graph=None
            if default_graphs is None
            else [ox.DefaultGraph() if name is None else native_name(name) for name in default_graphs],
            named_graphs=None if named_graphs is None else [native_name(name) for name in named_graphs],
        )
    except SyntaxError as error:
        raise RequestSyntaxError(error.msg or str(error), error.lineno, error.offset) from error
    except (RuntimeError, ValueError, OSError) as error:
        raise StoreError(str(error)) from error


def check_quads(quads: Sequence[Quad], before: int = 0) -> None:
    """Raises ValueError for quads that somebody else wrote and no dataset can have; it names the first of them.

    before: how many others came before. What is written to a store is not checked there, since it was when it came in;
    a text of several terms in the place of one would be several quads.
    """
    if _are_quads(quads):
        return
    for number, quad in enumerate(quads, before + 1):
        if not _are_quads([quad]):
            raise ValueError(f"quad {number} is none: {' '.join(str(term) for term in quad)[:_SHOWN_CHARACTERS_MAX]!r}")


def check_graph_names(names: Iterable[Term]) -> None:
    """Raises ValueError for what is no name of a graph."""
    for name in names:
        if not (is_iri(name) or is_blank(name)) or not _are_quads([Quad("<urn:s>", "<urn:p>", "<urn:o>", name)]):
            raise ValueError(f"it is no name of a graph: {name[:_SHOWN_CHARACTERS_MAX]!r}")


def _are_quads(quads: Sequence[Quad]) -> bool:
    if any("\n" in term or "\r" in term for quad in quads for term in quad if term is not None):
        return False
    try:
        return len(list(ox.parse(nquads(quads), format=ox.RdfFormat.N_QUADS))) == len(quads)
    except SyntaxError:
        return False


def quad_from_native(quad: ox.Quad) -> Quad:
    graph = quad.graph_name
    return Quad(
        str(quad.subject),
        str(quad.predicate),
        term_text(quad.object),
        None if isinstance(graph, ox.DefaultGraph) else str(graph),
    )


def term_text(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> Term:
    """A term of the native store as text. Linear, since a triple has those within it written in one go."""
    return f"<<( {term} )>>" if isinstance(term, ox.Triple) else str(term)


def _binding(solution: ox.QuerySolution) -> Binding:
    return tuple(None if term is None else term_text(term) for term in solution)
