"""Engine: the sequential step of the SUB Engine (Roffia 2016, III). No threads; one call at a time; I/O in `load` only.

One guard (`Engine._enter`) refuses what would break this: a call in the middle of another one, from a listener or from
another thread, and any call after `close` or after a step that failed half-way. A delta that was prepared for another
state of the dataset is committed only if it is exact for the present one.

::

    update text ─ prepare ─▶ quad delta ─ commit ─▶ LUTT, CTS, SPUs, store ─▶ notifications
                                │
                                └ in between, the gateway appends the delta to its change log; a delta that
                                  cannot be logged is not committed, and has no effect
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyoxigraph as ox

from lamplighter.engine.access import DERIVED, FULL, VIOLATIONS, Access, Dataset
from lamplighter.engine.delta import DELTA_QUADS_MAX, QuadDelta
from lamplighter.engine.errors import (
    BrokenEngineError,
    EngineStateError,
    GatewayError,
    LimitExceededError,
    ListenerError,
    StoreError,
    UnknownSpuidError,
    check_function,
    check_list,
    check_type,
    is_fault,
    wrong_type,
)
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.following import Change, CommitCost
from lamplighter.engine.matching.prices import Price
from lamplighter.engine.matching.shapes import SharedQuery
from lamplighter.engine.matching.subscription_numbers import Spuids
from lamplighter.engine.matching.subscriptions import Subscriptions
from lamplighter.engine.slices import Slices, sliced, uncollected
from lamplighter.engine.sparql.clock_function import EPOCH, microseconds, query_at
from lamplighter.engine.sparql.exists_variables import with_own_variables
from lamplighter.engine.sparql.projections import with_columns
from lamplighter.engine.sparql.requests import canonical, dataset_of, parse_query
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.sparql.wide_joins import bounded_joins, in_parts
from lamplighter.engine.store.quad_store import Loaded, QuadStore, evaluating, quad_from_native, query_native
from lamplighter.engine.tables import changes, count_text, html_table, sample, text_table
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.engine.terms import Bag, Quad, Term
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.updating.documents import DOCUMENT_BYTES_MAX, SOURCE_TYPES, Document, Source, opened, quads_of
from lamplighter.engine.updating.graph_store import GraphWrite, graph_write_delta
from lamplighter.engine.updating.request import Request
from lamplighter.engine.updating.updates import UpdatePlans, Updates
from lamplighter.engine.work import EVALUATION_MS_MAX, TooMuchWork, Work

if TYPE_CHECKING:
    from lamplighter.engine.inference.inference import Inference
    from lamplighter.engine.shacl.sources import ShapeSources
    from lamplighter.engine.shacl.validation import Validation

# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__
_TRIPLE = ("subject", "predicate", "object")

SUBSCRIBERS_NAMED_MAX = 8

T = TypeVar("T")


class Notification(NamedTuple):
    """The change of one subscription's result by one commit (Roffia 2016, II.A).

    sequence: 1, 2, 3, ... of this spuid, without gaps; 0 is the first result. added and removed have no
    binding in common and are not both empty.
    """

    spuid: str
    sequence: int
    added: Bag
    removed: Bag

    def _repr_html_(self) -> str:
        """A table for notebooks, of bounded size: added rows with +, removed rows with -."""
        title = f"notification {self.sequence} of {self.spuid}"
        count = len(self.added) + len(self.removed)
        return html_table(title, ("", *self.added.variables), changes(self.added, self.removed), count)


class Ended(NamedTuple):
    """A subscription that a commit has ended, because its result could not be evaluated, or not within the limit."""

    spuid: str
    error: StoreError | LimitExceededError


class Takeover(NamedTuple):
    """A subscription that the store has taken over from its plan, or that a plan follows again.

    spu_class: its class from now on; re-evaluated if the store has it. reason: why its plan gave up; empty if one
    follows it.
    """

    spuid: str
    spu_class: str
    reason: str


class Commit(NamedTuple):
    """One update request that took effect.

    sequence: its number, one more than that of the previous commit unless the caller gave another. added, removed: the
    net delta. notifications: one for each subscription whose result changed, in the order of subscribing. ended: the
    subscriptions that the commit has ended; they get no notification of it. takeovers: those that the store has taken
    over, or has given back to a plan, since the commit before.
    """

    sequence: int
    delta: QuadDelta
    notifications: tuple[Notification, ...]
    ended: tuple[Ended, ...] = ()
    takeovers: tuple[Takeover, ...] = ()

    @property
    def added(self) -> tuple[Quad, ...]:
        return self.delta.added

    @property
    def removed(self) -> tuple[Quad, ...]:
        return self.delta.removed

    def __repr__(self) -> str:
        ended = f", ended={sample(self.ended)}" if self.ended else ""
        takeovers = f", takeovers={sample(self.takeovers)}" if self.takeovers else ""
        told = sample(self.notifications)
        return f"Commit(sequence={self.sequence}, delta={self.delta!r}, notifications={told}{ended}{takeovers})"

    def _repr_html_(self) -> str:
        """A table for notebooks, of bounded size: added quads with +, removed quads with -."""
        told = count_text(len(self.notifications), "notification")
        title = f"commit {self.sequence}: {len(self.added)} added, {len(self.removed)} removed, {told}"
        headings = ("", "subject", "predicate", "object", "graph")
        return html_table(title, headings, changes(self.added, self.removed), len(self.added) + len(self.removed))


class Subscription(NamedTuple):
    """An accepted subscription. first: its result at this moment (sequence 0 on the wire)."""

    spuid: str
    first: Bag
    spu_class: str


class ReEvaluated(NamedTuple):
    """A query that the store evaluates again after commits.

    text: as in `SubscriptionInfo`, with a comment of the dataset if it has one of its own. spuids: of its subscribers,
    the first `SUBSCRIBERS_NAMED_MAX`.
    """

    text: str
    spuids: tuple[str, ...]


class SubscriptionInfo(NamedTuple):
    """How a subscription is followed.

    spu_class: telescoped, seeded, counted, ordered or re-evaluated; reason: why it has no plan, empty if it has one;
    text: the query with full IRIs and renamed variables. price: what it costs; without times if the engine has no
    `processor_time`. tells_time: whether rows have the time at which they appeared. compares_clock: whether it compares
    the clock, so that rows come and go as time does. taken_over: the last commit at which the store took the query over
    from its plan, None for never; a plan may follow it again since (`spu_class`).
    """

    spuid: str
    spu_class: str
    reason: str
    text: str
    price: Price
    tells_time: bool
    compares_clock: bool
    taken_over: int | None


class QueryResult:
    """The answer of `Engine.query`: a bag, a truth value or quads, according to the form of the query.

    Iterable: for a SELECT each row is a dict of variable -> term, without unbound variables; for a CONSTRUCT or
    DESCRIBE each triple is a tuple. ``len`` counts them. ``bool`` is the answer of an ASK, and otherwise whether there
    is anything.
    """

    def __init__(self, value: Bag | bool | tuple[Quad, ...]) -> None:
        self.value = value

    @property
    def variables(self) -> tuple[str, ...]:
        """The columns: the variables of a SELECT; subject, predicate and object of triples; none of an ASK."""
        if isinstance(self.value, bool):
            return ()
        return self.value.variables if isinstance(self.value, Bag) else _TRIPLE

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.value, Bag):
            return self.value.bindings()
        return (quad[:3] for quad in self._quads())

    def __len__(self) -> int:
        return len(self.value) if isinstance(self.value, Bag) else len(self._quads())

    def __bool__(self) -> bool:
        return self.value if isinstance(self.value, bool) else bool(len(self.value))

    def _quads(self) -> tuple[Quad, ...]:
        if isinstance(self.value, bool):
            raise TypeError("the answer of an ASK query has no rows; use bool(result)")
        assert not isinstance(self.value, Bag)
        return self.value

    def __repr__(self) -> str:
        """A table of the first rows."""
        if isinstance(self.value, bool):
            return f"QueryResult: {self.value}"
        title, rows = self._table()
        return text_table(f"QueryResult: {title}", self.variables, rows, len(self.value))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        if isinstance(self.value, bool):
            return f"<b>{self.value}</b>"
        title, rows = self._table()
        return html_table(title, self.variables, rows, len(self.value))

    def _table(self) -> tuple[str, Iterable[Sequence[Term | None]]]:
        if isinstance(self.value, Bag):
            return count_text(len(self.value), "row"), self.value
        return count_text(len(self), "triple"), iter(self)

    def to_json(self) -> dict[str, object]:
        """SPARQL 1.1 Query Results JSON. The triples of CONSTRUCT and DESCRIBE come as the variables
        subject, predicate and object, as SEPA gives them (protocol 1.3)."""
        if isinstance(self.value, Bag):
            return self.value.to_json()
        if isinstance(self.value, bool):
            return {"head": {}, "boolean": self.value}
        return Bag(_TRIPLE, [quad[:3] for quad in self.value]).to_json()


class Engine:
    """A dataset and the subscriptions on it; each commit updates both.

    clock: the time for NOW(), and the first instant of comparisons with the clock (`advance`).
    new_identifier: returns labels for new blank nodes; letters and digits only.
    store_path: folder of the dataset, None for memory; raises as `QuadStore`.
    delta_quads_max: quads that the templates of one update may make. term_bytes_max: the longest term of an update or a
    document, in bytes of N-Triples syntax in UTF-8.
    evaluation_ms_max: the limit of one evaluation by a plan, counted in units of work, and also measured if there is a
    clock: processor_time, in seconds. All plans of a commit together may take twenty times as much. It does not limit
    evaluations by the store. With a clock, `describe` has prices.
    ends_costly: whether a subscription ends (`Commit.ended`) if its plan would exceed the limit in a commit, of which
    all plans have two fifths together then, since others wait; otherwise the store takes it over (`Commit.takeovers`),
    without a limit, until there is less data.
    slices: called where long work may be interrupted.

    It is one class because it is the interface of the library; each method delegates to one of the rooms.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_identifier: Callable[[], str] = lambda: uuid.uuid4().hex,
        store_path: Path | None = None,
        delta_quads_max: int = DELTA_QUADS_MAX,
        term_bytes_max: int = TERM_BYTES_MAX,
        evaluation_ms_max: int = EVALUATION_MS_MAX,
        processor_time: Callable[[], float] | None = None,
        ends_costly: bool = False,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
    ) -> None:
        self._slices = slices
        # Why the engine takes no calls: a step failed half-way, or it is closed.
        self._refusal: GatewayError | None = None
        # Empty during a call. To pop from a list is atomic, for several threads too.
        self._turn: list[None] = [None]
        # The delta that was prepared last, unless the dataset has changed since.
        self._exact: QuadDelta | None = None
        self._listeners: tuple[Callable[[Commit], None], ...] = ()
        self._delta_quads_max = delta_quads_max
        self._clock = clock
        # May be replaced between two steps.
        self.new_identifier = new_identifier
        self._spuids = Spuids()
        self._store = QuadStore(path=store_path, term_bytes_max=term_bytes_max, slices=slices, rewrite=bounded_joins)
        self._cts = Cts(self._store.quads_with, slices, self._store.batches_with)
        lifter = Lifter(canonical)
        self._inference: Inference | None = None
        self._validation: Validation | None = None
        self._derives = False
        self._ends_costly = ends_costly
        # The limit of evaluations by plans. It may be changed between two steps.
        self.work = Work(evaluation_ms_max, processor_time, slices, waited_for=ends_costly)
        plans = UpdatePlans(self._store, self._cts, lifter, self.work)
        self._updates = Updates(plans, self._store, self.work, clock, self._new_blank_node, delta_quads_max)
        self._subscriptions = Subscriptions(
            self._store,
            self._cts,
            lifter,
            lambda: microseconds(self._clock()),
            self.work,
            ends=ends_costly,
        )
        # What following a delta would cost; asked before it is committed.
        self.cost: Callable[[QuadDelta], CommitCost] = self._subscriptions.cost
        # The comparisons of subscriptions with the clock, for reading between two steps.
        self.timetable = self._subscriptions.clock_index
        # Tracebacks of failures in commits that were recovered from. The caller logs and removes them.
        self.faults: deque[str] = self._subscriptions.faults
        # The number of the last commit.
        self.sequence = 0

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- changing the dataset ---

    def update(self, sparql: str, *, access: Access = FULL) -> Commit:
        """Executes a SPARQL 1.1 Update request and computes all notifications.

        Raises RequestSyntaxError (a SyntaxError too), UnsupportedRequestError, AccessDeniedError, LimitExceededError or
        StoreError; then nothing changed.
        """
        return self.commit(self.prepare(sparql, access=access))

    def load(
        self,
        source: Source,
        media_type: str | None = None,
        *,
        graph: Term | None = None,
        base: str | None = None,
        bytes_max: int = DOCUMENT_BYTES_MAX,
    ) -> Commit:
        """Adds an RDF document or dataset in one commit, with fresh blank nodes.

        source: the path of a file, or the bytes of a document. The format of a file follows from its name: ``.ttl``,
        ``.nt``, ``.nq``, ``.trig``, ``.rdf``, ``.xml`` or ``.jsonld``, each with ``.gz`` behind it if it is
        compressed. media_type: the format as a media type or as one of these names, for bytes and for files with other
        names; bytes without it are N-Triples. graph: the term of the graph that takes the triples, such as
        ``<http://example.org/graph>``; None for the default graph. A dataset that names its graphs itself goes into
        them. base: the IRI that relative IRIs are resolved with. bytes_max: size limit of the document, decompressed,
        and of its quads as N-Quads.

        Raises RequestSyntaxError with file, line and column, UnsupportedRequestError for an unknown format,
        LimitExceededError, StoreError, and OSError for a file that cannot be read; then nothing changed.
        """
        return self.commit(self.prepare_load(source, media_type, graph=graph, base=base, bytes_max=bytes_max))

    def request(self, sparql: str, using: UsingGraphs | None = None, parts: Sequence[str] = ()) -> Request:
        """An update request for `prepare`. Its text is not read yet. using: the graphs that the protocol names. parts:
        the text as several requests, of which each has the limits of one."""
        if not isinstance(sparql, str):
            raise wrong_type("sparql", sparql, str)
        return Request(self._updates, sparql, using, parts)

    def prepare(self, request: str | Request, *, access: Access = FULL, now: datetime | None = None) -> QuadDelta:
        """The delta that an update request would have now. Nothing is changed.

        access: the client's permissions; they are checked for every quad that the request deletes or inserts, present
        or not. now: the value of NOW(), instead of the engine's clock. Raises as `update`.
        """
        if isinstance(request, str):
            request = Request(self._updates, request)
        # Every update comes here and to `commit`: what is as it should be needs no further call.
        if not isinstance(request, Request):
            raise wrong_type("request", request, Request)
        if not isinstance(access, Access):
            raise wrong_type("access", access, Access)
        if now is not None:
            check_type("now", now, datetime)
        self._enter()
        try:
            try:
                delta = request.delta(access, now)
            except BaseException:
                # Operations of one request were applied for the next ones to see. Of a request that fails half-way,
                # nothing may stay.
                if self._store.staged:
                    self._take_back()
                raise
            self._exact = delta = self._completed(delta, access) if self._derives else delta
            return delta
        finally:
            self._turn.append(None)

    def _enter(self) -> None:
        """Begins a call, which ends by putting the turn back. Raises EngineStateError, BrokenEngineError."""
        try:
            self._turn.pop()
        except IndexError:
            raise EngineStateError(
                "the engine is in the middle of another call: it takes one at a time, from one thread, and none from a "
                "listener; put later ones into a queue"
            ) from None
        if self._refusal is not None:
            self._turn.append(None)
            raise self._refusal

    def _take_back(self) -> None:
        """Takes back what a failed update has applied temporarily. Raises BrokenEngineError."""
        try:
            for delta in reversed(self._store.staged):
                self._cts.apply(delta.invert())
            self._store.take_back()
        except BaseException as error:
            raise self._breaks(error) from error

    def _breaks(self, error: BaseException) -> BrokenEngineError:
        """Marks the engine as broken, and returns the error that all later calls raise."""
        broken = BrokenEngineError(f"a step failed half-way: {error!r}; build a new engine from the change log")
        self._refusal = broken
        return broken

    def _new_blank_node(self) -> Term:
        return f"_:{self.new_identifier()}"

    def prepare_load(
        self,
        source: Source,
        media_type: str | None = None,
        *,
        graph: Term | None = None,
        base: str | None = None,
        bytes_max: int = DOCUMENT_BYTES_MAX,
    ) -> QuadDelta:
        """The delta of `load`. Nothing is changed. Raises as `load`."""
        check_type("source", source, *SOURCE_TYPES)
        for name, text in (("media_type", media_type), ("graph", graph), ("base", base)):
            check_type(name, text, str, type(None))
        check_type("bytes_max", bytes_max, int)
        document = opened(source, media_type, bytes_max)
        self._enter()
        try:
            self._exact = delta = self._loaded(document, graph, base, bytes_max)
            return delta
        finally:
            self._turn.append(None)

    def _loaded(self, document: Document, graph: Term | None, base: str | None, bytes_max: int) -> QuadDelta:
        # An empty dataset takes the native store that the parser has filled, as it is. Not where quads follow from
        # these: they are added to the delta.
        native = None if self._derives else self._store.new_native()
        # All of these tuples stay.
        with uncollected():
            quads = quads_of(document, graph, base, self._store.term_bytes_max, bytes_max, native)
        if self._derives:
            self._updates.permitted(FULL).write.check((graph, *(quad.g for quad in quads)), "write")
        if native is not None:
            # The dataset is empty then, so nothing can be there already.
            delta = QuadDelta(added=Loaded(quads, native))
        else:
            present = self._store.contains(quads)
            delta = QuadDelta(
                added=tuple(quad for quad, there in zip(quads, present, strict=True) if not there),
                kept=tuple(quad for quad, there in zip(quads, present, strict=True) if there),
            )
        # A dict and no set: the names stay in the order of the document, so the same document makes the same record.
        names = dict.fromkeys(quad.g for quad in delta.added if quad.g is not None)
        if graph is not None:
            names[graph] = None  # a graph may exist without quads
        delta = delta._replace(created=tuple(name for name in names if not self._store.has_graph(name)))
        return self._completed(delta) if self._derives else delta

    def prepare_write(self, write: GraphWrite, *, access: Access = FULL) -> QuadDelta:
        """The delta of a write to a whole graph. Nothing is changed.

        Raises AccessDeniedError, ShapesViolatedError, UnknownGraphError for a graph to drop that does not exist, and
        LimitExceededError.
        """
        check_type("write", write, GraphWrite)
        check_type("access", access, Access)
        self._enter()
        try:
            self._updates.permitted(access).write.check([write.graph], "write")
            delta = graph_write_delta(self._store, write, self._slices)
            self._exact = delta = self._completed(delta, access) if self._derives else delta
            return delta
        finally:
            self._turn.append(None)

    def prepare_change(self, delta: QuadDelta) -> QuadDelta:
        """An exact delta from elsewhere, such as another dataset's, with what follows from it here: inferred triples,
        and violations of shapes.

        Those of the other dataset are left out. Shapes do not refuse it. Nothing is changed. Raises LimitExceededError.
        """
        check_type("delta", delta, QuadDelta)
        removed, added, kept = (
            tuple(
                quad
                for part in sliced(quads, self._slices)
                for quad in part
                if quad.g is None or not quad.g.startswith(DERIVED)
            )
            for quads in (delta.removed, delta.added, delta.kept)
        )
        created, dropped = (
            tuple(name for name in names if not name.startswith(DERIVED)) for names in (delta.created, delta.dropped)
        )
        # Derived quads of elsewhere follow from the rules and shapes of that place; here others may hold.
        own = QuadDelta(removed, added, kept, created, dropped)
        self._enter()
        try:
            self._exact = own = self._completed(own, refuses=False) if self._derives else own
            return own
        finally:
            self._turn.append(None)

    # --- inference ---

    def infer(self, graphs: Sequence[Term | None], ontologies: Sequence[Term | None] = ()) -> Commit:
        """Has the triples that follow from each of these graphs in a graph of its own, from this commit on.

        graphs, ontologies: as in `engine.inference.sources`, where `inferred_graph` names the graph of the inferred
        triples. Without graphs, inference ends. Each later commit has the inferred triples that it adds and removes.
        Raises ValueError for a graph with inferred triples.
        """
        inference = self.new_inference(graphs, ontologies)
        try:
            # Marked as exact: `commit` need not compare each inferred triple with the store, from which they were just
            # made.
            self._exact = delta = self.validated(inference.difference())
            commit = self.commit(delta)
        except BaseException:
            inference.close()
            raise
        # Last: a commit that failed leaves the engine with the inference that it had before.
        self.begin_inference(inference)
        return commit

    def new_inference(self, graphs: Sequence[Term | None], ontologies: Sequence[Term | None] = ()) -> Inference:
        """As `infer`, for a caller that commits its `difference` itself, and then begins it."""
        check_list("graphs", graphs, str, type(None))
        check_list("ontologies", ontologies, str, type(None))
        from lamplighter.engine.inference.inference import Inference  # which is not loaded while it is off
        from lamplighter.engine.inference.sources import Sources

        sources = Sources(tuple(graphs), tuple(ontologies))
        return Inference(self._store, self._cts, self.work, sources, self._delta_quads_max, self._slices)

    def begin_inference(self, inference: Inference) -> None:
        """Completes each delta from now on. The dataset is in line: the inference's `difference` is committed."""
        if self._inference is not None:
            self._inference.close()
        if not inference.sources.graphs:
            inference.close()
        self._inference = inference if inference.sources.graphs else None
        self._begin_deriving()

    def _begin_deriving(self) -> None:
        self._derives = self._updates.derives = self._inference is not None or self._validation is not None

    def _completed(self, delta: QuadDelta, access: Access = FULL, *, refuses: bool = True) -> QuadDelta:
        """A delta with the inferred triples and the violations that it changes. Raises ShapesViolatedError."""
        try:
            if self._inference is not None:
                delta = self._inference.complete(delta)
            if self._validation is not None:
                delta = self._validation.complete(delta, access, refuses=refuses)
            return delta
        except BaseException:
            self._take_back_derived()
            raise

    def _take_back_derived(self) -> None:
        """Takes back what a failed inference or validation has changed. Raises BrokenEngineError."""
        try:
            for part in (self._inference, self._validation):
                if part is not None:
                    part.take_back()
        except BaseException as error:
            raise self._breaks(error) from error

    # --- validation ---

    def validate(self, sources: ShapeSources | None) -> Commit:
        """Has SHACL shapes checked against each change from now on, and their violations in a graph of their own.

        sources: as in `engine.shacl.sources`; None ends validation. The commit has the violations of the data that is
        there, ``<urn:lamplighter:violations>``; each later commit has those that it makes and ends. An update with new
        violations of shapes that reject raises ShapesViolatedError. Raises InvalidShapesError.
        """
        if sources is None:
            self.end_validation()
            names = [name for name in self._store.graphs() if name == VIOLATIONS]
            removed = [quad for name in names for quad in self._store.quads(name)]
            return self.commit(QuadDelta(removed=tuple(removed), dropped=tuple(names)))
        validation = self.new_validation(sources)
        try:
            self._exact = delta = validation.difference()
            commit = self.commit(delta)
        except BaseException:
            validation.close()
            raise
        self.begin_validation(validation)
        return commit

    def new_validation(self, sources: ShapeSources) -> Validation:
        """As `validate`, for a caller that commits its `difference` itself, and then begins it."""
        from lamplighter.engine.shacl.sources import ShapeSources  # which is not loaded while it is off
        from lamplighter.engine.shacl.validation import Validation

        check_type("sources", sources, ShapeSources)
        return Validation(self._store, self._cts, self.work, sources, self._delta_quads_max, self._slices)

    def begin_validation(self, validation: Validation) -> None:
        """Validates each delta from now on. The dataset is in line: the validation's `difference` is committed."""
        self.end_validation()
        self._validation = validation
        self._begin_deriving()

    def end_validation(self) -> None:
        """Validates no more. The graph of violations stays as it is."""
        if self._validation is not None:
            self._validation.close()
        self._validation = None
        self._begin_deriving()

    def validated(self, delta: QuadDelta) -> QuadDelta:
        """An exact delta, with the violations that it changes. Shapes do not refuse it. Raises LimitExceededError."""
        if self._validation is None:
            return delta
        try:
            return self._validation.complete(delta, refuses=False)
        except BaseException:
            self._take_back_derived()
            raise

    @property
    def validation(self) -> Validation | None:
        """The shapes and their violations, for reading between two steps; None while there is no validation."""
        return self._validation

    def commit(self, delta: QuadDelta, sequence: int | None = None) -> Commit:
        """Applies a delta and matches it.

        delta: prepared for the present state of the dataset, or exact for it; `converge` takes any other. sequence: the
        number of the change-log record, if there is one. Raises EngineStateError for another delta, ListenerError, and
        BrokenEngineError after a failure that cannot be recovered from; `faults` has the tracebacks.
        """
        if not isinstance(delta, QuadDelta):
            raise wrong_type("delta", delta, QuadDelta)
        self._enter()
        try:
            # By identity: the delta that was prepared last is exact by itself; to compare all others costs a look-up
            # for each quad.
            if delta is not self._exact and delta.changes:
                self._check_exact(delta)
            self._exact = None
            committed = self._committed(delta, self._subscriptions.follow, delta, sequence)
            if self._validation is not None:
                self._validation.accept(delta)
            if self._listeners:
                self._announce(committed)
            return committed
        finally:
            self._turn.append(None)

    def _check_exact(self, delta: QuadDelta) -> None:
        """Raises EngineStateError for a delta that does not fit the present state of the dataset."""
        missing = self._store.missing(delta)
        if (
            set(missing.removed) != set(delta.removed)
            or set(missing.added) != set(delta.added)
            or set(missing.dropped) != set(delta.dropped)
            # Not equality: the store also reports graphs as new that the delta makes by its quads without naming them.
            or not set(missing.created).issuperset(delta.created)
        ):
            raise EngineStateError(
                "the delta is not exact for the present state of the dataset, which has changed since it was prepared; "
                "prepare it again, or use `converge`"
            )

    # --- time ---

    @property
    def now(self) -> datetime:
        """The time for NOW()."""
        return self._clock()

    @property
    def due(self) -> datetime | None:
        """The next instant at which a subscription's comparison with the clock changes, None if there is none."""
        due = self.timetable.next_instant
        return None if due is None else EPOCH + timedelta(microseconds=due)

    @property
    def instant(self) -> datetime:
        """The time that comparisons with the clock in subscriptions are made with. It stands still between the calls
        of `advance` and `reach`; without any, it is the time of the first such subscription."""
        return EPOCH + timedelta(microseconds=self.timetable.instant)

    def advance(self, now: datetime | None = None, sequence: int | None = None) -> Commit:
        """Lets the instant become now, and commits what that changes for the subscriptions, without any quad.

        now: with a zone; it may be earlier than the instant, because a clock may be set back. None for the engine's
        clock. For a commit at each instant at which something changes, advance to `due` first. Raises as `commit`.
        """
        if now is not None:
            check_type("now", now, datetime)
        instant = microseconds(self._clock() if now is None else now)
        self._enter()
        try:
            committed = self._committed(QuadDelta(), self._subscriptions.advance, instant, sequence)
            if self._listeners:
                self._announce(committed)
            return committed
        finally:
            self._turn.append(None)

    def reach(self, now: datetime) -> None:
        """Lets time go by as far as nothing is due. Earlier times are ignored."""
        check_type("now", now, datetime)
        self.timetable.reach(microseconds(now))

    def changes_until(self, now: datetime) -> int:
        """How many operands of comparisons with the clock change until an instant, or more."""
        check_type("now", now, datetime)
        return self.timetable.changes_until(microseconds(now))

    def _committed(
        self, delta: QuadDelta, follow: Callable[[T], list[Change]], step: T, sequence: int | None
    ) -> Commit:
        try:
            subscriptions = self._subscriptions
            changes = follow(step)
            self.sequence = self.sequence + 1 if sequence is None else sequence
            notifications: tuple[Notification, ...] = ()
            if changes:
                try:
                    notifications = self._notifications(changes)
                except BaseException as error:
                    subscriptions.note(error)
                    notifications = self._notifications(changes)
                # A number that was given out is never given again, so it is counted only when nothing can fail any
                # more.
                for unit, _, _ in changes:  # last, so that everything before can be repeated
                    unit.sequence += 1
                    if unit.others:
                        unit.count_others()
            ended = tuple(self._leave()) if subscriptions.ended else ()
            takeovers = tuple(self._takeovers()) if subscriptions.takeovers.moves else ()
            committed: Commit = _new(Commit, (self.sequence, delta, notifications, ended, takeovers))
        except BaseException as error:
            broken = self._breaks(error)
            # A signal or a cancellation goes on as what it is; the engine is broken all the same, since the step was
            # left half-way.
            if not is_fault(error):
                raise
            raise broken from error
        return committed

    def _announce(self, commit: Commit) -> None:
        """Calls all listeners, whatever one of them raises. Raises ListenerError."""
        errors: list[Exception] = []
        for listener in self._listeners:
            try:
                listener(commit)
            except Exception as error:
                errors.append(error)
        if errors:
            text = f"commit {commit.sequence} stands, but {count_text(len(errors), 'listener')} failed: {errors[0]!r}"
            raise ListenerError(text, commit) from errors[0]

    def listen(self, listener: Callable[[Commit], None]) -> Callable[[], None]:
        """Calls the listener with each commit from now on, once it has taken effect; returns what ends that.

        A listener cannot change the engine: its calls raise EngineStateError. What it raises goes to the caller of the
        commit as a ListenerError, which has the commit; the other listeners are called all the same.
        """
        check_function("listener", listener)
        # A new tuple: a listener that ends another one, or itself, does not change what `_announce` walks through.
        self._listeners = (*self._listeners, listener)

        def end() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return end

    def _leave(self) -> Iterator[Ended]:
        """Ends the subscriptions of units that have ended."""
        while self._subscriptions.ended:
            unit, reason = self._subscriptions.ended.popitem()
            error = (
                LimitExceededError(f"the subscription was ended: a commit made it need {reason}")
                if isinstance(reason, TooMuchWork)
                else StoreError(f"the subscription was ended: its result could not be evaluated any more: {reason}")
            )
            # The unit has ended, and with it each subscription that shares it.
            for number in unit.numbers:
                self._subscriptions.unsubscribe(number)
                yield Ended(self._spuids.name(number), error)

    def _takeovers(self) -> Iterator[Takeover]:
        """The subscriptions that the store has taken over, or given back, since the commit before."""
        takeovers = self._subscriptions.takeovers
        takeovers.date(self.sequence)
        for number, unit in takeovers.moves:
            # It may have ended in the same commit; then nobody is to be told.
            if number in self._subscriptions:
                yield Takeover(self._spuids.name(number), unit.spu_class, unit.reason)
        takeovers.moves.clear()

    def converge(self, delta: QuadDelta, sequence: int | None = None) -> Commit:
        """Applies a delta that need not be exact. The commit has the part that was not applied yet.

        Applying a sequence of consecutive deltas to the state after any of them leads to the state after the last. With
        `delta.invert()` in reverse order it leads back.
        """
        check_type("delta", delta, QuadDelta)
        missing = self._store.missing(delta)
        return self.commit(self.prepare_change(missing) if self._derives else missing, sequence)

    def restore(self, batches: Iterable[Sequence[Quad]], graphs: Iterable[Term], sequence: int) -> None:
        """Fills a new engine from a snapshot, at 2 us a quad.

        batches: as `snapshot` returns them; graphs: the names of the named graphs, at least of those without quads.
        Raises StoreError, and the errors of batches; the engine and its store on disk must then not be used.
        """
        self._enter()
        try:
            # `fill` puts quads into the store without matching them: subscriptions and index would never learn of them.
            if self.sequence or self.subscription_count or self._cts.tables:
                raise EngineStateError("only a new engine takes a snapshot")
            self._store.fill(batches, graphs)
            self.sequence = sequence
            self._exact = None
        finally:
            self._turn.append(None)

    def snapshot(self) -> Iterator[list[Quad]]:
        """All quads in batches for `restore`, as of the first call of next. `store.graphs` has the graphs."""
        return self._store.batches()

    def _notifications(self, changes: Sequence[Change]) -> tuple[Notification, ...]:
        found = []
        for unit, removed, added in changes:
            gone, come = Bag(unit.columns, removed), Bag(unit.columns, added)
            assert unit.number is not None
            name = self._spuids.name(unit.number)
            found.append((unit.number, _new(Notification, (name, unit.sequence + 1, come, gone))))
            if not unit.others:
                continue
            for number, (sequence, columns) in unit.others.items():
                # Those who subscribed with other names of variables share the unit, and get the same rows below their
                # own names.
                same = columns == unit.columns
                their_gone, their_come = (gone, come) if same else (Bag(columns, removed), Bag(columns, added))
                found.append((number, Notification(self._spuids.name(number), sequence + 1, their_come, their_gone)))
        if len(found) > 1:
            # As `Commit` promises: in the order of subscribing, whatever units they belong to.
            found.sort(key=lambda numbered: numbered[0])
        return tuple([notification for _, notification in found])

    # --- subscriptions ---

    def subscribe(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
        access: Access = FULL,
        tried_first: bool = False,
    ) -> Subscription:
        """Subscribes to a SELECT query. Subscriptions to the same query share an SPU, whatever its spelling.

        default_graphs, named_graphs: the dataset, if the protocol names one. access: the query only sees the graphs
        that its client may subscribe to. tried_first: whether PlanExceededError is raised where the store is to
        evaluate the first result, since a plan needs too much work; the next call has the store do so, and a plan may
        follow the subscription all the same. Raises
        RequestSyntaxError, AccessDeniedError for a chosen graph, and UnsupportedRequestError for a query whose result
        does not follow from the dataset (SERVICE, NOW(), RAND()).
        """
        dataset = _dataset(sparql, default_graphs, named_graphs, access)
        self._enter()
        try:
            entered = self._subscriptions.subscribe(sparql, dataset, tried_first)
            self._subscriptions.takeovers.date(self.sequence)
        finally:
            self._turn.append(None)
        return Subscription(self._spuids.name(entered.number), Bag(entered.columns, entered.rows), entered.spu_class)

    def unsubscribe(self, spuid: str) -> None:
        """Ends a subscription; no notification of it follows. Raises UnknownSpuidError."""
        self._enter()
        try:
            self._subscriptions.unsubscribe(self._number(spuid))
        finally:
            self._turn.append(None)

    def _number(self, spuid: str) -> int:
        check_type("spuid", spuid, str)
        number = self._spuids.number(spuid)
        if number is None or number not in self._subscriptions:
            raise UnknownSpuidError(f"no subscription has the spuid {spuid!r}; it may have ended already")
        return number

    def subscribed(self, spuid: str) -> bool:
        """Whether a subscription has this spuid; one that has ended is none."""
        check_type("spuid", spuid, str)
        number = self._spuids.number(spuid)
        return number is not None and number in self._subscriptions

    def describe(self, spuid: str) -> SubscriptionInfo:
        """How a subscription is followed. Raises UnknownSpuidError."""
        number = self._number(spuid)
        unit = self._subscriptions.unit(number)
        return SubscriptionInfo(
            spuid,
            unit.spu_class,
            unit.reason,
            unit.shape.text(unit.key),
            self._subscriptions.price(number),
            unit.times is not None,
            bool(unit.shape.conditions),
            self._subscriptions.takeovers.commits.get(unit),
        )

    def re_evaluated_with(self, spuid: str) -> list[ReEvaluated]:
        """The queries that the store may evaluate after a commit that touches this subscription, its own among them.
        None if a plan follows it. Raises UnknownSpuidError."""
        return [self._outline(unit) for unit in self._subscriptions.re_evaluated_with(self._number(spuid))]

    def order_evaluations(self, order: Callable[[Sequence[ReEvaluated]], Sequence[int]]) -> None:
        """Sets the order in which the store evaluates the queries that a commit touches.

        order: returns the places of the queries that it is given, each once. It changes no notification.
        """

        def in_order(units: Sequence[SharedQuery]) -> Iterator[SharedQuery]:
            return map(units.__getitem__, order([self._outline(unit) for unit in units]))

        self._subscriptions.order_evaluations(in_order)

    def _outline(self, unit: SharedQuery) -> ReEvaluated:
        names = map(self._spuids.name, islice(unit.numbers, SUBSCRIBERS_NAMED_MAX))
        return ReEvaluated(unit.shape.name(unit.key), tuple(names))

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    @property
    def unit_count(self) -> int:
        """The number of different subscribed queries, regardless of spelling: the paper's SPUs."""
        return self._subscriptions.unit_count

    @property
    def takeovers(self) -> int:
        """How many plans the store has taken over so far (`Commit.takeovers`)."""
        return self._subscriptions.takeovers.count

    @property
    def subscription_classes(self) -> dict[str, int]:
        """The number of subscriptions of each SPU class."""
        return self._subscriptions.classes()

    # --- reading ---

    @property
    def quad_count(self) -> int:
        """How many quads the dataset has. Counted one by one when it was opened and not used yet, 0.2 us each."""
        return len(self._store)

    def query(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
        access: Access = FULL,
    ) -> QueryResult:
        """The answer of any SPARQL 1.1 query, without limits of time or size, over what its client may read.

        Raises RequestSyntaxError, AccessDeniedError, StoreError.
        """
        _check_query(sparql, default_graphs, named_graphs, access)
        self._check_open()
        query = parse_query(sparql)
        # The store confuses a variable inside EXISTS with one of the same name outside, where SPARQL says that they
        # differ.
        sparql = with_own_variables(sparql)
        graphs = self.readable(sparql, default_graphs, named_graphs, access)
        # All NOW() of one query are the same instant (SPARQL 1.1, 17.4.5.1), that of the engine's clock and not of the
        # system's.
        sparql = query_at(sparql, self._clock())
        if query.form == "SELECT":
            return QueryResult(self._store.select(with_columns(sparql, query.columns), *graphs))
        answer = query_native(self._store.native, in_parts(sparql), *graphs)
        if isinstance(answer, ox.QueryBoolean):
            return QueryResult(bool(answer))
        assert isinstance(answer, ox.QueryTriples)
        with evaluating():
            return QueryResult(tuple(quad_from_native(ox.Quad(t.subject, t.predicate, t.object)) for t in answer))

    def readable(
        self,
        sparql: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        access: Access,
    ) -> tuple[Sequence[Term | None] | None, Sequence[Term] | None]:
        """The default and named graphs of a client's query at this moment, as `query_native` takes them.

        Each is None for all graphs. Raises AccessDeniedError, RequestSyntaxError.
        """
        # Nothing to narrow, so the text's own FROM counts, and the store need not be given a list of all graphs.
        if access.read.every:
            return default_graphs, named_graphs
        return dataset_of(sparql, default_graphs, named_graphs, access.read, "read").graphs(self._store.has_graph)

    def evaluation_of_subscription(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
        access: Access = FULL,
        gradual: bool = False,
    ) -> str | None:
        """The query that the store would run in each commit for a subscription, None if a plan follows it. gradual:
        whether NotIndexedError is raised for many quads, which `Cts.fill_some` indexes in portions."""
        dataset = _dataset(sparql, default_graphs, named_graphs, access)
        return self._subscriptions.evaluation(sparql, dataset, gradual=gradual)

    def persist(self) -> None:
        """Makes all commits durable; does nothing for a dataset in memory. Blocks. Raises StoreError."""
        self._store.flush()
        self._store.persist_native()

    @property
    def cts(self) -> Cts:
        """The index of matching and update plans, for reading between two steps."""
        return self._cts

    @property
    def store(self) -> QuadStore:
        """The dataset, for reading between two steps."""
        return self._store

    def dump(self, media_type: str = "application/n-quads") -> bytes:
        """The whole dataset as N-Quads or TriG."""
        check_type("media_type", media_type, str)
        return self._store.dump(media_type)

    def close(self) -> None:
        """Ends all subscriptions, and closes the dataset after writing pending changes. Does nothing a second time.

        Later calls that would change it, or ask it, raise EngineStateError. Raises StoreError if a change could not be
        written.
        """
        if isinstance(self._refusal, EngineStateError):
            return
        try:
            self._store.close()
        finally:
            # By a call of the constructor, so that no attribute can be forgotten that keeps the old dataset alive.
            self.__init__(  # type: ignore[misc]  # an empty engine keeps nothing in memory
                clock=self._clock,
                new_identifier=self.new_identifier,
                delta_quads_max=self._delta_quads_max,
                term_bytes_max=self._store.term_bytes_max,
                evaluation_ms_max=self.work.evaluation_ms_max,
                processor_time=self.work.clock,
                ends_costly=self._ends_costly,
                slices=self._slices,
            )
            self._refusal = EngineStateError("the engine is closed; make another one")

    def _check_open(self) -> None:
        if isinstance(self._refusal, EngineStateError):
            raise self._refusal


def _dataset(
    sparql: str, default_graphs: Sequence[Term] | None, named_graphs: Sequence[Term] | None, access: Access
) -> Dataset | None:
    _check_query(sparql, default_graphs, named_graphs, access)
    dataset = dataset_of(sparql, default_graphs, named_graphs, access.subscribe, "subscribe to")
    return None if dataset == Dataset() else dataset


def _check_query(sparql: object, default_graphs: object, named_graphs: object, access: object) -> None:
    """Raises ArgumentTypeError for arguments of a query or subscription."""
    check_type("sparql", sparql, str)
    for name, graphs in (("default_graphs", default_graphs), ("named_graphs", named_graphs)):
        if graphs is not None:
            check_list(name, graphs, str, type(None))
    check_type("access", access, Access)
