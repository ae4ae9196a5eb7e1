"""The dataset of the engine: a pyoxigraph store in memory or on disk, whose terms are handled as text.

All terms are in canonical form (`1.5`, not `1.50`). Terms that are written must come from the store or from
`engine.updating.documents`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from itertools import chain, islice
from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple, NoReturn, Protocol
from weakref import WeakSet

import pyoxigraph as ox

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import (
    ConfigurationError,
    GatewayError,
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
    split_changes,
    write,
)
from lamplighter.engine.term_bounds import TERM_BYTES_MAX, check_terms
from lamplighter.engine.terms import Bag, Binding, Quad, Term, is_blank, is_iri

# RDF syntaxes of `load` and `dump`.
MEDIA_TYPES = {
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/n-quads": ox.RdfFormat.N_QUADS,
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/trig": ox.RdfFormat.TRIG,
}

# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__
_TERMS = (ox.NamedNode, ox.BlankNode, ox.Literal, ox.Triple)
# The largest number of quads in one batch of `QuadStore.batches`.
BATCH_QUADS = 1000
# The approximate size of a batch if the quads are long.
_BATCH_BYTES = 1024 * 1024
_FIRST_BATCH_QUADS = 64
_SHOWN_CHARACTERS_MAX = 200

# Rows of a result between two calls of a `SelectRun`'s check.
BATCH_ROWS = 1000


class SelectRun(Protocol):
    """Runs a query. check: called repeatedly while the result is read; an error that it raises ends the query."""

    def __call__(self, check: Callable[[], None] = ...) -> Bag: ...


class Asked(NamedTuple):
    """A SELECT query. name: what it is known by, if that is not the text: the text differs with the time.
    default_graphs, named_graphs: its dataset, None for that of the text."""

    text: str
    default_graphs: Sequence[Term | None] | None
    named_graphs: Sequence[Term] | None
    name: str


# Free bytes on the disk before a store that could not be written is opened again.
ROOM_BYTES_MIN = 4 * 1024 * 1024


class Loaded(tuple[Quad, ...]):
    """Quads that a native store has already. native: that store, which has nothing else; None after their commit."""

    native: ox.Store | None

    def __new__(cls, quads: Iterable[Quad], native: ox.Store | None = None) -> Loaded:
        loaded = super().__new__(cls, quads)
        loaded.native = native
        return loaded


class _Absent:
    """Stands for a native store that could not be opened again; every access raises OSError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise OSError("it could not be opened again after a failed write")

    def __contains__(self, quad: object) -> bool:
        return bool(self.quads)

    def __iter__(self) -> Iterator[ox.Quad]:
        return iter(self.quads)

    def __len__(self) -> int:
        return len(self.quads)


class QuadStore:
    """An RDF dataset with SPARQL queries. All methods are synchronous; concurrent calls are not allowed.

    Write-behind: `apply` records the net changes. They are written to the native store before it is read, or when
    enough have accumulated. A store in memory is renewed when too many of its quads are dead (`engine.store.renewal`).

    It is one class because every read and write needs the same three members together: the pending changes, the native
    store, and the names of the graphs.

    ::

        apply ─▶ pending ─ flush ─▶ native ─▶ select, quads, dump, native
                    └─▶ contains ◀────┘  └ slices ─▶ fresh, which takes its place

    retire: called with the replaced native store at the end of a renewal. Dropping the last reference to that store
    blocks the interpreter for 0.25 us a quad, dead or live, and for twice as long if its quads were removed and added
    again. An event loop can keep it until it is idle.

    path: folder of a store on disk (RocksDB), created if it is missing; None for memory. A store on disk is not
    renewed, because RocksDB compacts itself. Written changes survive the end of the process, and a power cut after
    `persist_native`. Raises ConfigurationError for an unusable folder, StoreError for a damaged store.

    term_bytes_max: the limit of `check`. rewrite: changes the text of each `select`, not its result. staged: deltas
    that are applied temporarily. renewals: completed renewals; iterators that began before one keep the replaced store
    in memory.
    """

    def __init__(
        self,
        policy: RenewalPolicy = RenewalPolicy(),  # noqa: B008 - frozen
        retire: Callable[[object], None] = lambda native: None,
        path: Path | None = None,
        term_bytes_max: int = TERM_BYTES_MAX,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
        rewrite: Callable[[str], str] = str,
    ) -> None:
        self._slices = slices
        self._rewrite = rewrite
        self._policy = policy
        self.term_bytes_max = term_bytes_max
        self._path = path
        self.retire = retire
        # Wraps each `select`: called with the query and the function that runs it.
        self.around_select: Callable[[Asked, SelectRun], Bag] = lambda asked, select: select()
        self._native = ox.Store() if path is None else _open(path)
        self._readings: WeakSet[Generator[Any, None, None]] = WeakSet()
        self._pending: dict[Quad, bool] = {}
        self._pending_graphs: dict[Term, bool] = {}
        self._names: dict[Term, None] | None = None  # unknown until the first delta
        self._count = 0
        self._waiting_max = policy.pending_max
        self.staged: list[QuadDelta] = []
        self._failed = False
        self._ageing = Ageing(policy)
        self._renewal: Renewal | None = None
        self._owed = 0
        self.renewals = 0

    def __len__(self) -> int:
        self._graph_names()
        return self._count

    @property
    def native(self) -> ox.Store:
        """The native store without pending changes, for reading until the next delta.

        Before the first delta, a store in memory may also be filled through it.
        """
        self.flush()
        return self._native

    @property
    def dead(self) -> int:
        """Removed quads that the native store still has in its lists."""
        return self._ageing.dead

    @property
    def in_memory(self) -> bool:
        return self._path is None

    def passed_over(self, position: int, term: object) -> int:
        """At least the removed quads that the native store passes over when it reads all quads with a term.

        term: as the native store has it, at a position of 0 to 2; anything for a graph, and None for all quads. For a
        store in memory.
        """
        return self._ageing.dead_max(position, term_text(term) if isinstance(term, _TERMS) else None)

    @property
    def renewing(self) -> bool:
        """Whether `step` has work to do."""
        return self._renewal is not None or self._ageing.is_due(self._count)

    def select(
        self,
        text: str,
        default_graphs: Sequence[Term | None] | None = None,
        named_graphs: Sequence[Term] | None = None,
        name: str | None = None,
    ) -> Bag:
        """The solutions of a SELECT query in the order of evaluation.

        name: as in `Asked`. default_graphs, named_graphs: the dataset of the protocol request, None to use the query's;
        in default_graphs, None is the store's default graph. Raises RequestSyntaxError, StoreError, and what `rewrite`
        raises.
        """
        # Reading `native` writes what is pending, so the query sees it.
        native, asked = self.native, Asked(text, default_graphs, named_graphs, name or text)
        text = self._rewrite(text)

        def evaluate(check: Callable[[], None] = lambda: None) -> Bag:
            solutions = query_native(native, text, default_graphs, named_graphs)
            assert isinstance(solutions, ox.QuerySolutions), "callers pass SELECT queries"
            variables = [variable.value for variable in solutions.variables]
            rows: list[Binding] = []
            try:
                # In portions, so that `check` may interrupt a long answer between two of them.
                while some := _next_solutions(solutions):
                    rows += some
                    check()
            finally:
                del solutions  # only this thread can release them, and another may release the frames of an error
            return Bag(variables, rows)

        with self._slices.beside():
            return self.around_select(asked, evaluate)

    def check(self, quads: Iterable[Quad]) -> None:
        """Raises LimitExceededError for quads with terms that are too long or too deep for the dataset.

        Must be called with all quads of a request before `contains` and `apply`.
        """
        check_terms(quads, self.term_bytes_max)

    def contains(self, quads: Sequence[Quad]) -> list[bool]:
        """For each quad, whether the dataset holds it."""
        if len(quads) > LONG:
            # A first large load: nothing to look up.
            if not len(self):
                return [False] * len(quads)
            return list(chain.from_iterable(map(self.contains, sliced(quads, self._slices))))
        pending = self._pending
        # True or false where a change is pending, None where the native store knows.
        found = [pending.get(quad) for quad in quads]
        unknown = native_quads([quad for quad, there in zip(quads, found, strict=True) if there is None])
        rest = iter(unknown)
        try:  # a context manager would take longer than the lookup
            return [next(rest) in self._native if there is None else there for there in found]
        except (OSError, RuntimeError) as error:
            if not self._failed:
                raise _trouble(error) from error
        self.flush()  # opens the store again, or raises
        return self.contains(quads)

    def quads(self, graph: Term | None) -> Iterator[Quad]:
        """The quads of one graph; None is the default graph."""
        name = ox.DefaultGraph() if graph is None else native_name(graph)
        return map(quad_from_native, self.native.quads_for_pattern(None, None, None, name))

    def all_quads(self, wanted: Callable[[Term], bool]) -> Iterator[Quad | None]:
        """All quads, as of the first call of next; None in place of each whose predicate is not wanted."""

        def generate() -> Generator[Quad | None, None, None]:
            for quad in self.native:
                yield quad_from_native(quad) if wanted(str(quad.predicate)) else None

        reading = generate()
        self._readings.add(reading)  # an open reading keeps the native store open
        return reading

    def quads_with(self, predicate: Term | None) -> Iterator[Quad]:
        """All quads of a predicate, in all graphs; for None, all quads."""
        if predicate is None:
            return chain.from_iterable(self.batches())
        found = self.native.quads_for_pattern(None, ox.NamedNode(predicate[1:-1]), None, None)
        return chain.from_iterable(_batches(found))

    def batches_with(self, predicate: Term | None) -> Iterator[list[Quad] | None]:
        """The same in batches, as of this call, and None behind the last: without it, the store was closed meanwhile,
        which its caller may do while the dataset changes."""
        native = self.native
        name = None if predicate is None else ox.NamedNode(predicate[1:-1])
        found = _batches(iter(native) if name is None else native.quads_for_pattern(None, name, None, None))

        def generate() -> Generator[list[Quad] | None, None, None]:
            yield from found
            yield None

        reading = generate()
        self._readings.add(reading)
        return reading

    def batches(self) -> Iterator[list[Quad]]:
        """All quads in batches, as of the first call of next."""
        return _batches(iter(self.native))

    def fill(self, batches: Iterable[Sequence[Quad]], graphs: Iterable[Term]) -> None:
        """Fills an empty store. Terms and blank nodes are kept as they are.

        batches: the quads, each once; graphs: named graphs, at least those without quads. Raises StoreError, and the
        errors of batches; the store is then incomplete and must not be used.
        """
        with _native_errors():
            if self._path is None:
                for batch in batches:
                    write(self._native, (), batch, {})
            else:  # one call sorts all quads and writes them once, in 40 % of the time
                self._native.bulk_extend(chain.from_iterable(map(native_quads, batches)))
            for name in graphs:
                self._native.add_graph(native_name(name))
        self._names = None
        self._names = self._graph_names()

    def graphs(self) -> list[Term]:
        """The names of all named graphs, empty ones included."""
        return list(self._graph_names())

    def has_graph(self, graph: Term) -> bool:
        return graph in self._graph_names()

    def apply(self, delta: QuadDelta, again: bool = True) -> None:
        """Applies an exact delta: the quads that it removes are present, and those that it adds are absent.

        again: whether the delta is completed after a failure, such as MemoryError. If this raises, the delta may be
        applied in part.
        """
        names = self._names
        if names is None:
            names = self._names = self._graph_names()
        # The count follows the delta, since counting the native store takes 0.05 us a quad.
        more, fewer = len(delta.added), len(delta.removed)
        if more + fewer > LONG:
            native = _native_store_of(delta.added)
            # A document that was parsed into a native store becomes the dataset, if there is none yet: nothing is
            # copied.
            if native is None or self._count or names:
                self._apply_in_slices(delta, again)
            else:
                self._become(native, more, delta.created)
            return
        count = self._count + more - fewer
        pending = self._pending
        try:  # the dataset is consistent after each quad and graph, so `missing` finds the rest
            for quad in delta.removed:
                if pending.pop(quad, None) is None:
                    # A quad that was added and not written yet is forgotten: the native store never hears of it.
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
            # What was done is left out, what was not is done.
            self.apply(self.missing(delta), again=False)
        self._count = count
        try:
            waiting = len(self._pending) + len(self._pending_graphs)
            if waiting > self._waiting_max:
                # So that a disk that refuses is not asked again with each commit.
                self._waiting_max = waiting + self._policy.pending_max
                self.flush()
        except Exception:
            # The delta is applied. Writing is tried again at the next read, or after pending_max more changes.
            return

    def stage(self, delta: QuadDelta) -> None:
        """Applies an exact delta temporarily, until `unstage`, or until `take_back` after a failure."""
        # Before it is applied: `take_back` undoes what was applied of it.
        self.staged.append(delta)
        self.apply(delta)

    def unstage(self) -> None:
        """Takes back the staged deltas."""
        while self.staged:
            self.apply(self.staged[-1].invert())
            self.staged.pop()

    def take_back(self) -> None:
        """Takes back the staged deltas after a failure; the last one may be applied in part. Raises StoreError."""
        while self.staged:
            self.apply(self.missing(self.staged[-1].invert()))
            self.staged.pop()

    def new_native(self) -> ox.Store | None:
        """A native store for quads that are to be `Loaded`, None if the dataset would not take it: only one in memory
        does, and without quads and graphs."""
        return ox.Store() if self._path is None and not len(self) and not self._graph_names() else None

    def _become(self, native: ox.Store, count: int, graphs: Iterable[Term]) -> None:
        """Takes a filled native store in place of one without live quads. What is pending there is of no more use."""
        old, self._native = self._native, native
        self._pending, self._pending_graphs, self._waiting_max = {}, {}, self._policy.pending_max
        self._names, self._count = dict.fromkeys(graphs), count
        self._ageing, self._renewal, self._owed = Ageing(self._policy), None, 0
        self.retire(old)

    def _apply_in_slices(self, delta: QuadDelta, again: bool) -> None:
        """As `apply`, in slices with pauses."""
        # In the order of `apply`.
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
        """The exact delta with the effect of a delta that need not be exact: its changes that are not applied yet."""
        # One lookup for all.
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
        """Writes the pending changes to the native store, and advances its renewal. Does nothing without changes.

        Raises StoreError if the disk refuses the write; the changes stay pending, and all of them are written again.
        """
        if self._failed:
            if self._slices.elsewhere:  # open readings can only be closed by their own thread
                raise StoreError("the store could not be written; it is tried again soon")
            self._reopen()
        changes, graphs = self._pending, self._pending_graphs
        if not changes and not graphs:
            return
        # Removed first: a quad may be in neither, never in both.
        removed, added = split_changes(changes)
        try:
            with _native_errors():
                write(self._native, removed, added, graphs)
        except StoreError:
            # RocksDB refuses everything after a failed write; memory does not fail for good.
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
            if self._slices.elsewhere:  # the iterator of a renewal stays in its thread
                if self.renewing:  # removing makes the old store no larger, and leaves less to copy
                    self._owed += self._policy.copies_per_change * len(added)
                return
            paced = min(len(changes), self._policy.pending_max)  # a large delta must not copy the whole store at once
            slices = self._policy.copies_per_change * paced // self._policy.slice_quads
            for _ in range(max(1, slices)):
                if not self._renew():
                    break
        except BaseException:
            self._renewal = None  # it may lack a change; a new one begins when it is due
            raise

    def _reopen(self) -> None:
        """Opens the store again. Raises StoreError."""
        # RocksDB refuses all writes after one that failed.
        assert self._path is not None
        # Opening writes: without room it would fail as well, and take long.
        if disk_usage(self._path).free < ROOM_BYTES_MIN:
            raise _trouble(OSError(ENOSPC, "No space left on device"))
        self._let_go(_Absent())
        try:
            self._native = _open(self._path)
        except ConfigurationError as error:  # the folder was usable when the process began
            raise _trouble(error) from error
        self._failed = False

    def _let_go(self, instead: ox.Store | _Absent) -> None:
        for reading in list(self._readings):
            reading.close()
        self._native = instead  # type: ignore[assignment]  # every access to it raises OSError

    def persist_native(self) -> None:
        """Makes the written changes durable, so that they survive a power cut. Does nothing in memory.

        Blocks for 0.1 to 0.3 s. It may run in another thread while the dataset changes, but not during `close`. Raises
        StoreError.
        """
        if self._path is not None:
            try:
                with _native_errors():
                    self._native.flush()
            except StoreError:
                self._failed = True
                raise

    def close(self) -> None:
        """Writes the pending changes and closes the native store. The dataset is empty afterwards.

        Raises StoreError if a change could not be written; the store is closed nevertheless.
        """
        try:
            if self._path is not None:
                self.flush()
        finally:
            self._let_go(ox.Store())
            # An empty store in memory: late readers find nothing instead of a closed one.
            self._path, self._failed, self._renewal = None, False, None
            self._pending, self._pending_graphs, self._names, self._count = {}, {}, None, 0

    def step(self) -> bool:
        """Advances the renewal by one slice; meant for idle times. Returns whether more is to do."""
        self.flush()
        return self._renew()

    def catch_up(self) -> bool:
        """Copies some of the quads that long work in another thread owes the renewal; returns whether it copied any.

        Must be called where that work pauses, in the thread that does short work, while True is returned.
        """
        # Without it, a few large updates would make a store of several versions of the dataset.
        policy = self._policy
        if self._owed > 0 and self._renewal is None:
            self.flush()  # a renewal begins without pending changes
        before, end = self._owed, self._owed - policy.copies_per_change * policy.pending_max
        while self._owed > max(0, end):
            self._owed = self._owed - policy.slice_quads if self._renew() else 0
        return before > 0

    def _renew(self) -> bool:
        if self._renewal is None:
            if not self._ageing.is_due(self._count):
                return False
            self._renewal = Renewal(self._native, self._graph_names(), self._policy)
        try:
            if not self._renewal.step(self._count):
                return True
        except BaseException:
            self._renewal = None  # it may lack quads
            raise
        old = self._native
        self._native, self._ageing, self._renewal = self._renewal.fresh, self._renewal.ageing, None
        # Open iterators keep the old store; `retire` decides when the last reference goes, which blocks.
        self.renewals += 1
        self.retire(old)
        return False

    def dump(self, media_type: str) -> bytes:
        """The whole dataset as a document. Raises UnsupportedRequestError for a media type without named graphs."""
        syntax = MEDIA_TYPES.get(media_type)
        if syntax is None or not syntax.supports_datasets:
            raise UnsupportedRequestError(
                f"a dataset cannot be written as {media_type!r}; use application/n-quads or application/trig"
            )
        data = self.native.dump(format=syntax)
        assert data is not None, "without an output file the dump is returned"
        return data

    def _graph_names(self) -> dict[Term, None]:
        """The names of the graphs. Before the first delta it also counts the quads, 0.05 us each (0.2 us on disk)."""
        if self._names is not None:
            return self._names
        with _native_errors():
            self._count = len(self._native)
            names: dict[Term, None] = {str(name): None for name in self._native.named_graphs()}
        if self._path is not None:  # a store on disk is filled through this class only
            self._names = names
        return names


def _native_store_of(quads: tuple[Quad, ...]) -> ox.Store | None:
    """The native store that has the quads of a delta, which lose it."""
    if not isinstance(quads, Loaded):
        return None
    native, quads.native = quads.native, None
    return native


def _open(path: Path) -> ox.Store:
    try:
        path.mkdir(mode=0o700, exist_ok=True)  # RocksDB creates files that all users may read
        return ox.Store(path)
    except RuntimeError as error:
        raise StoreError(
            f"the store {path} is damaged: {error}; move the folder away, and the gateway fills a new one from its "
            "snapshot and change log"
        ) from error
    except OSError as error:
        if "lock" in str(error).lower():
            raise ConfigurationError(
                f"the store {path} is in use; stop the other process, or set store.path to another folder"
            ) from error
        raise ConfigurationError(
            f"the store {path} cannot be opened: {error}; set store.path to a folder that can be written"
        ) from error


@contextmanager
def _native_errors() -> Iterator[None]:
    """Turns errors of the native store into StoreError."""
    try:
        yield
    except (OSError, RuntimeError, SyntaxError) as error:
        raise _trouble(error) from error


def _trouble(error: Exception) -> StoreError:
    return StoreError(f"the store cannot be read or written: {error}; check the disk, and whether it has room")


def _batches(quads: Iterator[ox.Quad]) -> Iterator[list[Quad]]:
    """The quads in batches. They are parsed from text that the native library has written, which takes 1 us a quad."""
    size = _FIRST_BATCH_QUADS
    while data := ox.serialize(islice(quads, size), format=ox.RdfFormat.N_QUADS):
        # By the size of the last batch: long literals make small batches.
        size = max(1, min(BATCH_QUADS, 4 * size, size * _BATCH_BYTES // len(data)))
        yield quads_of_lines(data)


def quads_of_lines(data: bytes) -> list[Quad]:
    """The quads of N-Quads as the native library writes them, with its spelling of each term.

    Equal predicates and objects, and equal subjects of consecutive quads, are one text. That saves a third of the
    memory.
    """
    found = []
    subject, texts = "", dict[Term, Term]()
    one = texts.setdefault
    for line in data.decode().split("\n")[:-1]:  # literals may contain other line ends, such as U+2028
        s, p, rest = line.split(" ", 2)
        if s != subject:
            subject = s
        rest = rest[:-2]
        o, g = _object_and_graph(rest) if " " in rest else (rest, None)
        found.append(_new(Quad, (subject, one(p, p), one(o, o), g)))
    return found


def canonical_objects(terms: Sequence[Term]) -> list[Term]:
    """Objects in the store's canonical form."""
    store = ox.Store()
    store.extend(native_quads([Quad(f"<n:{number}>", "<n:>", term, None) for number, term in enumerate(terms)]))
    found = {quad.subject.value: term_text(quad.object) for quad in store}
    return [found[f"n:{number}"] for number in range(len(terms))]


def _object_and_graph(text: str) -> tuple[Term, Term | None]:
    """(object, graph) of a line of N-Quads, given its text after the predicate and without the final point, which has
    a space."""
    if text[0] == '"':
        close = text.rindex('"')  # language tags, datatypes and graph names have no quote
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
    """The result of a query of any form. The dataset is given as in `QuadStore.select`.

    Raises StoreError if the evaluation fails, RequestSyntaxError.
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
        raise _evaluation_error(error) from error


@contextmanager
def evaluating() -> Iterator[None]:
    """Turns what the native store raises while its solutions are read, and evaluated, into StoreError; for a function
    that it does not know, into UnsupportedRequestError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise _evaluation_error(error) from error


def _evaluation_error(error: Exception) -> GatewayError:
    """The error for an evaluation that failed; for a known fault of Oxigraph 0.5, with what to write instead."""
    if str(error).startswith("The custom function"):
        return UnsupportedRequestError(str(error))
    if "is not a valid RDF 1.2 term" not in str(error):
        return StoreError(str(error))
    return StoreError(
        "the store cannot evaluate a triple term whose subject is a literal or a triple term, or whose predicate is no "
        "IRI; write a variable in place of the triple term, and compare SUBJECT(?t), PREDICATE(?t) and OBJECT(?t)"
    )


def _next_solutions(solutions: ox.QuerySolutions) -> list[Binding]:
    """The next solutions; at the end, none."""
    try:
        with evaluating():
            return list(map(_binding, islice(solutions, BATCH_ROWS)))
    finally:
        del solutions


def check_quads(quads: Sequence[Quad], before: int = 0) -> None:
    """Raises ValueError for quads from a foreign source that are malformed; the message names the first of them.

    before: the number of quads checked before, for the message.
    """
    # Writing to the store does not check, and would read one malformed quad as several.
    if _are_quads(quads):
        return
    for number, quad in enumerate(quads, before + 1):
        if not _are_quads([quad]):
            raise ValueError(f"quad {number} is none: {' '.join(str(term) for term in quad)[:_SHOWN_CHARACTERS_MAX]!r}")


def check_graph_names(names: Iterable[Term]) -> None:
    """Raises ValueError for terms that cannot name a graph."""
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
    """A term of the native store as text. Takes linear time."""
    # The library writes nested triples at once.
    return f"<<( {term} )>>" if isinstance(term, ox.Triple) else str(term)


def _binding(solution: ox.QuerySolution) -> Binding:
    return tuple(None if term is None else term_text(term) for term in solution)
