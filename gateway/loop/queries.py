"""Ad-hoc queries and whole graphs: read by a fork, of the dataset as it is in the request's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, UnknownGraphError
from lamplighter.engine.sparql.clock_function import query_at
from lamplighter.engine.sparql.requests import QueryOutline, query_outline
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.loop.current import Current
from lamplighter.gateway.loop.queue import Lane, Queue
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.workers.ad_hoc import Answer, Reader
from lamplighter.gateway.workers.resources import ResourceRequest


@dataclass(slots=True, eq=False, repr=False)
class Queries:
    """The steps of these requests. Nothing is changed by them."""

    _engine: Engine
    _reader: Reader
    _queue: Queue
    _current: Current
    _clock: Clock
    _timings: Timings
    _counters: Counters

    def outline(self, sparql: str) -> QueryOutline:
        """What the tokens of a client's query tell (`query_outline`), which are read in the loop.

        Raises LimitExceededError, UnsupportedRequestError, RequestSyntaxError.
        """
        begun = self._timings.loop_held.now()
        try:
            self.check_length(sparql)
            return query_outline(sparql)
        finally:
            self._timings.loop_held.ended(begun, self.outline)

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
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        lane: Lane | None = None,
        caller: Caller = ANYBODY,
    ) -> asyncio.Future[Answer]:
        """The outcome is an Answer to iterate over, of what the caller may read of the dataset as it was in the query's
        turn."""

        def start() -> Answer:
            self._counters.queries += 1
            graphs = self._engine.readable(query.text, default_graphs, named_graphs, caller.access)
            store = self._engine.store.native
            asked = replace(query, text=query_at(query.text, self._clock.wall()))
            return self._reader.start(store, asked, media_type, *graphs)

        return self._queue.submit(start, lane, in_loop=True)

    def graph(self, graph: Term | None, media_type: str, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with all triples of a graph, None for the default one, or UnknownGraphError."""

        def start() -> Answer:
            caller.access.read.check([graph], "read")
            if graph is not None and not self._engine.store.has_graph(graph):
                raise UnknownGraphError(f"there is no graph {graph}")
            self._counters.queries += 1
            return self._reader.graph(self._engine.store.native, graph, media_type)

        return self._queue.submit(start, in_loop=True)

    def resource(self, request: ResourceRequest, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with the description of a resource, whose iteration raises UnknownResourceError."""

        def start() -> Answer:
            self._counters.queries += 1
            return self._reader.read(partial(request.write, self._engine.store.native, caller.access.read))

        return self._queue.submit(start, in_loop=True)
