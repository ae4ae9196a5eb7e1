"""Ad-hoc queries and whole graphs, of the dataset as it is in the request's turn.

A query that finds few quads is answered in the loop, within a bound that is known before (`engine.querying`). All else
is read by a fork, which can be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, UnknownGraphError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.querying.small_queries import SmallQueries
from lamplighter.engine.sparql.clock_function import query_at
from lamplighter.engine.sparql.exists_variables import with_own_variables
from lamplighter.engine.sparql.requests import QueryOutline, query_outline
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.loop.current import AccessOf, Current, current_access
from lamplighter.gateway.loop.queue import Lane, Queue
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.workers.ad_hoc import Answer, Reader, ReadyAnswer, serialise
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
    _access_of: AccessOf
    _small: SmallQueries = field(init=False)

    def __post_init__(self) -> None:
        self._small = SmallQueries(self._engine.store)

    def outline(self, sparql: str) -> QueryOutline:
        """What the tokens of a client's query tell (`query_outline`), which are read in the loop. Its text is the one
        to evaluate: variables of an EXISTS have names of their own (`with_own_variables`).

        Raises LimitExceededError, UnsupportedRequestError, RequestSyntaxError.
        """
        begun = self._timings.loop_held.now()
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
        lane: Lane | None = None,
        caller: Caller = ANYBODY,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Answer | ReadyAnswer]:
        """The outcome is the answer, of what the caller may read of the dataset as it was in the query's turn."""

        def start() -> Answer | ReadyAnswer:
            access = current_access(caller, self._access_of)
            self._counters.queries += 1
            graphs = self._engine.readable(query.text, default_graphs, named_graphs, access)
            text = query_at(query.text, self._clock.wall())
            begun = perf_counter()
            found = self._small.answer(text, *graphs, self._current.settings.query.rows_max)
            if found is not None:
                answer = ReadyAnswer(serialise(found, media_type))
                self._timings.store_query.took(perf_counter() - begun)
                return answer
            return self._reader.start(
                self._engine.store.native, replace(query, text=text), media_type, *graphs, caller.client
            )

        return self._queue.submit(start, lane, in_loop=True, priority=priority, client=caller.client)

    def graph(self, graph: Term | None, media_type: str, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with all triples of a graph, None for the default one, or UnknownGraphError."""

        def start() -> Answer:
            current_access(caller, self._access_of).read.check([graph], "read")
            if graph is not None and not self._engine.store.has_graph(graph):
                raise UnknownGraphError(f"there is no graph {graph}")
            self._counters.queries += 1
            return self._reader.graph(self._engine.store.native, graph, media_type, caller.client)

        return self._queue.submit(start, in_loop=True, client=caller.client)

    def resource(self, request: ResourceRequest, caller: Caller = ANYBODY) -> asyncio.Future[Answer]:
        """The outcome is an Answer with the description of a resource, whose iteration raises UnknownResourceError."""

        def start() -> Answer:
            readable = current_access(caller, self._access_of).read
            self._counters.queries += 1
            return self._reader.output_of(partial(request.write, self._engine.store.native, readable), caller.client)

        return self._queue.submit(start, in_loop=True, client=caller.client)
