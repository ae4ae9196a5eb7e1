"""What is made of the results of queries for many requests, kept until a commit touches what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

from lamplighter.engine.access import FULL
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.recent_changes import QueryWatch

ROWS_BYTES_MAX = 64 * 1024 * 1024
"""Of the result of a query."""
T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    value: T
    watch: QueryWatch
    beside: object


class KeptResult(Generic[T]):
    """Of a site of 10,000 devices, what is made takes seconds of the processor. Only that of callers who may read all
    is kept."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._kept: _Kept[T] | None = None

    async def get(
        self,
        caller: Caller,
        queries: Sequence[str],
        make: Callable[[Sequence[Bag]], T],
        beside: object = None,
        valueless: Collection[Term] = (),
    ) -> T:
        """What `make` makes, in a thread, of the results of SELECT queries as the caller may read them. beside: what
        else it is made of: with another one it is made again; valueless: predicates of which it takes the subjects
        only. Raises GatewayError, LimitExceededError."""
        reads_all = self._runner.access(caller) == FULL
        kept = self._kept
        if reads_all and kept is not None and not kept.watch.touched and kept.beside == beside:
            return kept.value
        watch = self._runner.watch_queries(queries, valueless) if reads_all else None  # before they are read
        rows = [await select(self._runner, caller, query, ROWS_BYTES_MAX) for query in queries]
        value = await asyncio.to_thread(make, rows)
        if watch is not None:
            self._kept = _Kept(value, watch, beside)
        return value
