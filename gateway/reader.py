"""Ad-hoc queries in processes of their own, where they can be killed, and trials of what the engine is to evaluate.

pyoxigraph cannot cancel a query, and the engine's loop never runs a client's unbounded one (design 4.9).
So each is run by a fork of the gateway: it has the dataset as it stood at that moment, copy on write, and
the kernel enforces the limits. A query that runs away costs its own process and nothing else.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
import pyoxigraph as ox

from engine.errors import (
    GatewayError,
    LimitExceededError,
    QueueFullError,
    RequestSyntaxError,
    StoreError,
    UnsupportedRequestError,
)
from engine.sparql import Query, parse_query
from engine.store import query_native
from engine.terms import Term
from gateway.settings import LimitSettings, QuerySettings

SOLUTION_FORMATS = {
    "application/sparql-results+json": ox.QueryResultsFormat.JSON,
    "application/sparql-results+xml": ox.QueryResultsFormat.XML,
    "text/csv": ox.QueryResultsFormat.CSV,
    "text/tab-separated-values": ox.QueryResultsFormat.TSV,
}
"""Media types of SELECT and ASK answers."""

GRAPH_FORMATS = {
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/rdf+xml": ox.RdfFormat.RDF_XML,
    "application/ld+json": ox.RdfFormat.JSON_LD,
}
"""Media types of CONSTRUCT and DESCRIBE answers."""

_PR_SET_PDEATHSIG = 1
_CHUNK = 64 * 1024
_TRIAL_WAIT = 20
"""How many times its processor time a trial may take by the clock: the machine may be busy."""


@dataclass(frozen=True)
class _Bounds:
    """Limits of one reader. late, hungry: what is said when it goes over its time and over its memory."""

    time_ms_max: int
    cpu_ms_max: int | None
    memory_bytes_max: int
    late: str
    hungry: str


class Reader:
    """Starts readers and keeps their number and their cost within the limits."""

    def __init__(self, settings: QuerySettings, limits: LimitSettings) -> None:
        self._settings = settings
        self._running: set[int] = set()
        self._trying: set[int] = set()
        memory = settings.memory_bytes_max
        hungry = f"needs more than query.memory_bytes_max = {memory}; narrow it down"
        self._query_bounds = _Bounds(
            settings.time_ms_max,
            None,
            memory,
            f"the query takes longer than query.time_ms_max = {settings.time_ms_max}; narrow it down",
            f"the query {hungry}",
        )
        evaluation_ms = limits.evaluation_ms_max
        self._trial_bounds = _Bounds(
            _TRIAL_WAIT * evaluation_ms,
            evaluation_ms,
            memory,
            f"the evaluation takes longer than limits.evaluation_ms_max = {evaluation_ms}; narrow the WHERE down",
            f"the evaluation {hungry}",
        )

    def start(
        self,
        store: ox.Store,
        query: Query,
        media_type: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
    ) -> Answer:
        """Forks a reader of the store as it is now. Raises QueueFullError when too many are running."""
        if len(self._running) >= self._settings.concurrent_max:
            raise QueueFullError(f"{self._settings.concurrent_max} queries are running already; try again")

        def answer(out: BinaryIO) -> None:
            _answer(store, query, media_type, default_graphs, named_graphs, out, self._settings)

        return self._forked(answer, self._query_bounds, self._running)

    async def trial(self, work: Callable[[], object]) -> None:
        """Does a work in a fork, with no effect here, to see whether it can be done within the limits.

        Raises LimitExceededError. Whatever else `work` raises it will soon raise again where it is meant to be done.
        """

        def tried(out: BinaryIO) -> None:
            try:
                work()
            except (LimitExceededError, MemoryError):
                raise
            except Exception:
                out.write(b"!")
            else:
                out.write(b"+")

        async for _ in self._forked(tried, self._trial_bounds, self._trying).chunks():
            pass

    def _forked(self, work: Callable[[BinaryIO], None], bounds: _Bounds, running: set[int]) -> Answer:
        source, sink = os.pipe()
        with warnings.catch_warnings():
            # Python warns of forks beside threads. The only other thread waits for the disk, and the child
            # uses nothing but the engine, which no other thread has touched.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _read(work, sink, bounds)
        os.close(sink)
        running.add(child)
        return Answer(child, source, bounds, running)

    def close(self) -> None:
        """Ends the readers that are running."""
        for child in self._running | self._trying:
            os.kill(child, signal.SIGKILL)


class Answer:
    """A reader at work. Iterating gives the result's bytes as they come.

    Raises LimitExceededError or StoreError before the first byte, or where the result breaks off. The process
    ends with the iteration, or at its time limit: that also holds for a client that does not read.
    """

    def __init__(self, child: int, source: int, bounds: _Bounds, running: set[int]) -> None:
        self._child = child
        self._source = source
        self._bounds = bounds
        self._running = running
        self._iterated = False
        self._late = False
        # Neither the end of the process nor its time limit is waited for by whoever iterates: that is often a
        # task which is cancelled, or stuck in a socket.
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = loop.create_future()
        self._watch = os.pidfd_open(child)
        loop.add_reader(self._watch, self._ended, loop)
        self._limit = loop.call_later(bounds.time_ms_max / 1000, self._expire)

    async def chunks(self) -> AsyncIterator[bytes]:
        self._iterated = True
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._source, "rb", buffering=0)
        stream = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            first = await stream.read(1)
            if first == b"+":
                while chunk := await stream.read(_CHUNK):
                    yield chunk
            members = await stream.read()
            await asyncio.wait([self._status])
            status = self._status.result()
            if self._late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
                raise LimitExceededError(self._bounds.late)
            if first == b"-":
                raise _error(members)
            if not first:
                raise LimitExceededError(self._bounds.hungry)
            if status != 0:
                raise StoreError("the answer broke off; the query went over its memory limit while it was sent")
        finally:
            transport.close()
            self._kill()

    def _expire(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        if not self._status.done():
            os.kill(self._child, signal.SIGKILL)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called when the process has ended."""
        loop.remove_reader(self._watch)
        os.close(self._watch)
        self._limit.cancel()
        self._running.discard(self._child)
        _, status = os.waitpid(self._child, 0)
        self._status.set_result(status)

    def abandon(self) -> None:
        """Ends a reader whose answer nobody will ask for."""
        self._kill()
        if not self._iterated:
            self._iterated = True
            os.close(self._source)


def _error(members: bytes) -> GatewayError:
    """The error that the child met, as this process would have raised it."""
    found = msgspec.json.decode(members)
    kinds = (LimitExceededError, RequestSyntaxError, StoreError, UnsupportedRequestError)
    [kind] = [kind for kind in kinds if kind.code == found["error"]]
    return kind(found["error_description"])


# --- in the child -----------------------------------------------------------------------------------


def _read(work: Callable[[BinaryIO], None], sink: int, bounds: _Bounds) -> NoReturn:
    """The life of a reader: limits, work, end. Nothing of the parent's is run or closed down."""
    status = 1
    try:
        gc.disable()  # a collection would touch, and so copy, every page
        # It must not outlive the gateway, nor keep its sockets and its lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.closerange(3, sink)
        os.closerange(sink + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        address_space = _address_space() + bounds.memory_bytes_max
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if bounds.cpu_ms_max is not None:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, bounds.cpu_ms_max / 1000)
        with os.fdopen(sink, "wb", buffering=_CHUNK) as out:
            try:
                work(out)
            except GatewayError as error:
                members = {"error": error.code, "status_code": error.status, "error_description": str(error)}
                out.write(b"-" + msgspec.json.encode(members))
        status = 0
    finally:
        os._exit(status)


def _answer(
    store: ox.Store,
    query: Query,
    media_type: str,
    default_graphs: Sequence[Term] | None,
    named_graphs: Sequence[Term] | None,
    out: BinaryIO,
    settings: QuerySettings,
) -> None:
    parse_query(query.text)  # here, since the planner may take its time

    def run() -> ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples:
        return query_native(store, query.text, default_graphs, named_graphs)

    counted = run()
    if not isinstance(counted, ox.QueryBoolean):
        # Counted before it is sent, so that an answer that is too long is an error and not half a document.
        for number, _ in enumerate(counted):
            if number >= settings.rows_max:
                raise LimitExceededError(
                    f"the answer has more than query.rows_max = {settings.rows_max} rows; use LIMIT and OFFSET"
                )
    result = run()
    out.write(b"+")
    if isinstance(result, ox.QueryTriples):
        result.serialize(out, format=GRAPH_FORMATS[media_type])
    else:
        result.serialize(out, format=SOLUTION_FORMATS[media_type])


def _address_space() -> int:
    """Bytes of address space that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
