"""Ad-hoc queries in processes of their own, where they can be killed.

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
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pyoxigraph as ox

from engine.errors import GatewayError, LimitExceededError, QueueFullError, RefusedError, StoreError
from engine.sparql import Query
from engine.store import query_native
from engine.terms import Term
from gateway.settings import QuerySettings

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


class Reader:
    """Starts readers and keeps their number and their cost within the limits."""

    def __init__(self, settings: QuerySettings) -> None:
        self._settings = settings
        self._running: set[int] = set()

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
        source, sink = os.pipe()
        with warnings.catch_warnings():
            # Python warns of forks beside threads. The only other thread waits for the disk, and the child
            # uses nothing but the store, which no other thread has touched.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _read(store, query, media_type, default_graphs, named_graphs, sink, self._settings)
        os.close(sink)
        self._running.add(child)
        return Answer(child, source, self._settings, self._running)


class Answer:
    """A reader at work. Iterating gives the result's bytes as they come, and ends the process whatever happens.

    Raises LimitExceededError or StoreError before the first byte, or StoreError where the result breaks off.
    """

    def __init__(self, child: int, source: int, settings: QuerySettings, running: set[int]) -> None:
        self._child = child
        self._source = source
        self._settings = settings
        self._running = running
        self._ended = False

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._source, "rb", buffering=0)
        stream = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            # One limit over the whole answer: a client that does not read must not keep a process either.
            async with asyncio.timeout(self._settings.time_ms_max / 1000):
                first = await stream.read(1)
                if first == b"+":
                    while chunk := await stream.read(_CHUNK):
                        yield chunk
                    if not await self._end_of_child(kill=False):
                        raise StoreError("the answer broke off; the query went over its memory limit while it was sent")
                elif first == b"-":
                    raise _error(await stream.read())
                else:
                    raise LimitExceededError(
                        f"the query needs more than query.memory_bytes_max = {self._settings.memory_bytes_max}; "
                        "narrow it down"
                    )
        except TimeoutError as error:
            raise LimitExceededError(
                f"the query takes longer than query.time_ms_max = {self._settings.time_ms_max}; narrow it down"
            ) from error
        finally:
            transport.close()
            await self._end_of_child(kill=True)

    async def _end_of_child(self, *, kill: bool) -> bool:
        """Waits for the process; whether it ended well."""
        if self._ended:
            return True
        if kill:
            os.kill(self._child, signal.SIGKILL)
        _, status = await asyncio.to_thread(os.waitpid, self._child, 0)
        self._ended = True
        self._running.discard(self._child)
        return status == 0

    def abandon(self) -> None:
        """Ends a reader whose answer nobody will ask for."""
        if not self._ended:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            os.close(self._source)
            self._ended = True
            self._running.discard(self._child)


def _error(members: bytes) -> GatewayError:
    found = msgspec.json.decode(members)
    if found["error"] == LimitExceededError.code:
        return LimitExceededError(found["error_description"])
    return RefusedError(found["error"], found["status_code"], found["error_description"])


# --- in the child -----------------------------------------------------------------------------------


def _read(
    store: ox.Store,
    query: Query,
    media_type: str,
    default_graphs: Sequence[Term] | None,
    named_graphs: Sequence[Term] | None,
    sink: int,
    settings: QuerySettings,
) -> NoReturn:
    """The life of a reader: limits, query, answer, end. Nothing of the parent's is run or closed down."""
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
        address_space = _address_space() + settings.memory_bytes_max
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(sink, "wb", buffering=_CHUNK) as out:
            try:
                _answer(store, query, media_type, default_graphs, named_graphs, out, settings)
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
    out: object,
    settings: QuerySettings,
) -> None:
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
    write = out.write  # type: ignore[attr-defined]
    write(b"+")
    if isinstance(result, ox.QueryTriples):
        result.serialize(out, format=GRAPH_FORMATS[media_type])  # type: ignore[arg-type]
    else:
        result.serialize(out, format=SOLUTION_FORMATS[media_type])  # type: ignore[arg-type]


def _address_space() -> int:
    """Bytes of address space that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
