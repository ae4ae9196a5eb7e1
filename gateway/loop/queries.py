"""Ad-hoc queries and whole graphs, of the dataset as it is in the request's turn.

A query that finds few quads is answered in the loop, within a bound that is known before (`engine.querying`). All else
is read by a fork, which can be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, thread_time

import msgspec

from lamplighter.engine.errors import LimitExceededError, UnknownGraphError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.querying.small_queries import SmallQueries
from lamplighter.engine.sparql.clock_function import query_at
from lamplighter.engine.sparql.exists_variables import with_own_variables
from lamplighter.engine.sparql.requests import QueryOutline, query_outline
from lamplighter.engine.terms import Term
from lamplighter.gateway.loop.dataset import LiveDataset
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.workers.ad_hoc import Answer, Reader, ReadyAnswer, serialise
from lamplighter.gateway.workers.resources import ResourceRequest


class QueuedQuery(msgspec.Struct, frozen=True, eq=False):
    """A query in the queue. default_graphs, named_graphs: the dataset, if the protocol names one."""

    query: QueryOutline
    media_type: str
    default_graphs: Sequence[Term] | None
    named_graphs: Sequence[Term] | None
    caller: Caller
    lane: OrderedLane | None
    priority: Priority


class QueuedGraph(msgspec.Struct, frozen=True, eq=False):
    """A graph that is to be read whole, None for the default one."""

    graph: Term | None
    media_type: str
    caller: Caller
    lane: OrderedLane | None = None
    priority: Priority = Priority.NORMAL


class QueuedResource(msgspec.Struct, frozen=True, eq=False):
    """A resource that is to be described."""

    resource: ResourceRequest
    caller: Caller
    lane: OrderedLane | None = None
    priority: Priority = Priority.NORMAL


class Queries:
    """Serves these requests. Nothing is changed by them."""

    def __init__(
        self, dataset: LiveDataset, reader: Reader, queue: Queue, current: LiveSettings, timings: Timings
    ) -> None:
        self._engine = dataset.engine
        self._clock = dataset.clock
        self._reader = reader
        self._queue = queue
        self._current = current
        self._timings = timings
        self._small = SmallQueries(self._engine.store)

    def outline(self, sparql: str) -> QueryOutline:
        """What the tokens of a client's query tell (`query_outline`), which are read in the loop. Its text is the one
        to evaluate: variables of an EXISTS have names of their own (`with_own_variables`).

        Raises LimitExceededError, UnsupportedRequestError, RequestSyntaxError.
        """
        begun = perf_counter(), thread_time()
        try:
            self.check_length(sparql)
            sparql = with_own_variables(sparql)
            return self._small.outline(sparql) or query_outline(sparql)
        finally:
            self._timings.loop_held.count_work(begun, self.outline)

    def check_length(self, sparql: str) -> None:
        """Raises LimitExceededError for a query or subscription that is too long to be looked at."""
        bytes_max = self._current.settings.limits.query_bytes_max
        if len(sparql) > bytes_max or len(sparql.encode(errors="surrogatepass")) > bytes_max:
            raise LimitExceededError(
                f"the text of a query or subscription is longer than limits.query_bytes_max = {bytes_max} bytes; send "
                "long lists of values with an update, and join with them"
            )

    def query(
        self,
        query: QueryOutline,
        media_type: str,
        default_graphs: Sequence[Term] | None = None,
        named_graphs: Sequence[Term] | None = None,
        lane: OrderedLane | None = None,
        caller: Caller = ANYBODY,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Answer | ReadyAnswer]:
        """The outcome is the answer, of what the caller may read of the dataset as it was in the query's turn."""
        graphs = default_graphs, named_graphs
        return self._queue.submit(QueuedQuery(query, media_type, *graphs, caller, lane, priority))

    def run_query(self, queued: QueuedQuery) -> Answer | ReadyAnswer:
        """Raises GatewayError."""
        engine, access = self._engine, self._current.access(queued.caller)
        self._queue.counters.queries += 1
        graphs = engine.readable(queued.query.text, queued.default_graphs, queued.named_graphs, access)
        text = query_at(queued.query.text, self._clock.wall())
        begun = perf_counter()
        found = self._small.answer(text, *graphs, self._current.settings.query.rows_max)
        if found is not None:
            answer = ReadyAnswer(serialise(found, queued.media_type))
            self._timings.group.append((self._timings.store_query, perf_counter() - begun))
            return answer
        outline = replace(queued.query, text=text)
        return self._reader.start(engine.store.native, outline, queued.media_type, *graphs, queued.caller.client)

    def graph(self, graph: Term | None, media_type: str, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with all triples of a graph, None for the default one, or UnknownGraphError."""
        return self._queue.submit(QueuedGraph(graph, media_type, caller))

    def run_graph(self, queued: QueuedGraph) -> Answer:
        """Raises AccessDeniedError, UnknownGraphError."""
        graph, caller = queued.graph, queued.caller
        self._current.access(caller).read.check([graph], "read")
        if graph is not None and not self._engine.store.has_graph(graph):
            raise UnknownGraphError(f"there is no graph {graph}")
        self._queue.counters.queries += 1
        return self._reader.graph(self._engine.store.native, graph, queued.media_type, caller.client)

    def resource(self, request: ResourceRequest, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with the description of a resource, whose iteration raises UnknownResourceError."""
        return self._queue.submit(QueuedResource(request, caller))

    def run_resource(self, queued: QueuedResource) -> Answer:
        """Raises AccessDeniedError."""
        caller = queued.caller
        readable = self._current.access(caller).read
        self._queue.counters.queries += 1
        write = partial(queued.resource.write, self._engine.store.native, readable)
        return self._reader.output_of(write, caller.client)
