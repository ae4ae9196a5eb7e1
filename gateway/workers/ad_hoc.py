"""Ad-hoc queries in processes that can be killed, and trial runs of evaluations for the engine.

pyoxigraph cannot cancel a query, and the engine's loop never runs a client's unbounded query (design 4.9). So a fork of
the gateway runs each of them. It has a copy-on-write copy of the dataset, and the kernel enforces the limits. A runaway
query costs only its own process.

A store on disk has its own threads, and one of them may hold a lock at the fork. In the child that lock is never
released, so a child that waits for it is replaced. Measured with an update, a fork and a query in turn: 4 of 500 waited
beside a `flush` every half second, none of 500 without; each for the first lock that a query takes.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, NoReturn, TypeVar

import msgspec
import pyoxigraph as ox

from lamplighter.engine.errors import (
    AccessDeniedError,
    GatewayError,
    LimitExceededError,
    QueueFullError,
    RequestSyntaxError,
    StoreError,
    UnknownResourceError,
    UnsupportedRequestError,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.sparql.projections import with_columns
from lamplighter.engine.sparql.requests import QueryOutline, parse_query
from lamplighter.engine.sparql.wide_joins import in_parts
from lamplighter.engine.store.quad_store import evaluating, query_native
from lamplighter.engine.store.renewal import native_name
from lamplighter.engine.terms import Term
from lamplighter.engine.work import in_turn_ms
from lamplighter.gateway.settings import LimitSettings, QuerySettings
from lamplighter.gateway.sharing import Steady, TotalBudget
from lamplighter.gateway.workers.fresh_nodes import draw_anew

logger = EventLogger(__name__)

# Media types of SELECT and ASK answers.
SOLUTION_FORMATS = {
    "application/sparql-results+json": ox.QueryResultsFormat.JSON,
    "application/sparql-results+xml": ox.QueryResultsFormat.XML,
    "text/csv": ox.QueryResultsFormat.CSV,
    "text/tab-separated-values": ox.QueryResultsFormat.TSV,
}

# Media types of CONSTRUCT and DESCRIBE answers.
GRAPH_FORMATS = {
    "text/turtle": ox.RdfFormat.TURTLE,
    "application/n-triples": ox.RdfFormat.N_TRIPLES,
    "application/rdf+xml": ox.RdfFormat.RDF_XML,
    "application/ld+json": ox.RdfFormat.JSON_LD,
}
_WITHOUT_TRIPLE_TERMS = (ox.RdfFormat.JSON_LD,)

# Bytes of a result that is received as a whole.
WHOLE_BYTES_MAX = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_CHUNK = 64 * 1024
# Factor between the processor time and the elapsed time of a trial, for busy machines.
_TRIAL_WAIT = 20
# Silence of a reader until it is checked; the second check decides whether it is stuck.
_LOOK_S = 0.25
_RESTARTS_MAX = 5
# Requests that are one work, such as the rows of a reaction, and whose limits add up: they hold up all others.
TOGETHER_MAX = 20

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class _Bounds:
    """Limits of one reader, None for none.

    late, hungry, broken: error texts for too much time, too much memory, and an unexpected end. restarts_max: how often
    a stuck reader is replaced.
    """

    time_ms_max: int
    cpu_ms_max: int | None
    memory_bytes_max: int | None
    late: str
    hungry: str
    broken: str = "the answer is incomplete: the query exceeded its memory limit while the result was sent"
    restarts_max: int = _RESTARTS_MAX

    def of(self, times: float) -> _Bounds:
        """The limits of so many requests that are one work, up to `TOGETHER_MAX`."""
        times = min(times, TOGETHER_MAX)
        cpu_ms_max = None if self.cpu_ms_max is None else round(times * self.cpu_ms_max)
        return replace(self, time_ms_max=round(times * self.time_ms_max), cpu_ms_max=cpu_ms_max)


_STREAM_BOUNDS = _Bounds(
    time_ms_max=600_000,
    cpu_ms_max=None,
    memory_bytes_max=None,
    late="writing took longer than ten minutes",
    hungry="nothing was written: the machine has too little memory",
    broken="writing failed: the store cannot be read, or the machine has too little memory",
    # A stuck stream is not replaced by itself, since the dataset has changed: see `again_if_stuck`.
    restarts_max=0,
)


class Reader:
    """Starts readers and bounds their number and their cost.

    store: its folder, if it is on disk. took: called with the seconds until the first byte of each answered query.
    """

    def __init__(
        self,
        settings: QuerySettings,
        limits: LimitSettings,
        store: Path | None = None,
        took: Callable[[float], None] | None = None,
    ) -> None:
        # Set while no step changes the dataset; a fork outside of a step waits for it.
        self.steady = Steady()
        self.steady.set()
        self._took = took
        self._store = None if store is None else store.resolve()
        self._running: set[int] = set()
        self._room = TotalBudget(lambda: self._settings.concurrent_max, "query.concurrent_max")
        # Forks for the gateway itself, which take no room of clients; ended with it all the same.
        self._trying: set[int] = set()
        self.apply(settings, limits)

    def apply(self, settings: QuerySettings, limits: LimitSettings) -> None:
        """Applies limits to readers that are started from now on."""
        self._settings = settings
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
        turn_ms = in_turn_ms(evaluation_ms)
        self._turn_bounds = replace(
            self._trial_bounds,
            time_ms_max=_TRIAL_WAIT * turn_ms,
            cpu_ms_max=turn_ms,
            late=f"the evaluation takes longer than {turn_ms} ms, two fifths of limits.evaluation_ms_max = "
            f"{evaluation_ms}, and others, who change what it reads all the time, would wait for it; narrow the WHERE "
            "down, or send it again later",
        )
        memory = limits.parse_memory_bytes_max
        self._parse_bounds = _Bounds(
            _TRIAL_WAIT * limits.parse_ms_max,
            limits.parse_ms_max,
            memory,
            f"parsing takes longer than limits.parse_ms_max = {limits.parse_ms_max}; send it in parts",
            f"parsing needs more than limits.parse_memory_bytes_max = {memory}; send it in parts",
            broken="parsing failed: the machine has too little memory",
        )

    def start(
        self,
        store: ox.Store,
        query: QueryOutline,
        media_type: str,
        default_graphs: Sequence[Term | None] | None,
        named_graphs: Sequence[Term] | None,
        client: str = "",
    ) -> Answer:
        """Forks a reader of the current store, or of a slightly later one if the reader had to be replaced.

        client: whose share of the readers it takes, "" for none. Raises QueueFullError when too many of its readers, or
        of all, are running.
        """
        self._check_room(client)

        def answer(out: BinaryIO) -> None:
            write_answer(store, query, media_type, default_graphs, named_graphs, out, self._settings)

        return self._read_by(client, answer, self._took)

    def graph(self, store: ox.Store, graph: Term | None, media_type: str, client: str = "") -> Answer:
        """Forks a reader of one graph that exists, within the limits of a query but that of rows: it is written as it
        is read. Otherwise as `start`."""
        self._check_room(client)
        name = ox.DefaultGraph() if graph is None else native_name(graph)

        def answer(out: BinaryIO) -> None:
            if GRAPH_FORMATS[media_type] in _WITHOUT_TRIPLE_TERMS:
                for quad in store.quads_for_pattern(None, None, None, name):
                    _check_written(quad)
            out.write(b"+")
            # One pass: whatever the number of rows, the format cannot fail any more.
            store.dump(out, GRAPH_FORMATS[media_type], from_graph=name)

        return self._read_by(client, answer)

    def output_of(self, work: Callable[[BinaryIO], None], client: str = "") -> Answer:
        """The output of a work that reads the dataset for a client, behind a ``+``, within the limits of a query
        but that of rows; its errors are raised here. Otherwise as `start`."""
        self._check_room(client)
        return self._read_by(client, work, self._took)

    def _check_room(self, client: str) -> None:
        if why := self._room.refusal(client):
            raise QueueFullError(f"{why}; try again when a query has ended")

    def _read_by(
        self, client: str, work: Callable[[BinaryIO], None], took: Callable[[float], None] | None = None
    ) -> Answer:
        bounds = self._query_bounds
        return Answer(
            lambda: self._held_by(client, _Child(work, bounds, self._store, self._running)), bounds, self.steady, took
        )

    def _held_by(self, client: str, child: _Child) -> _Child:
        """A child that takes room until it has ended."""
        self._room.usage.add(client)
        child.status.add_done_callback(lambda _: self._room.usage.add(client, -1))
        return child

    async def trial(
        self, work: Callable[[], object], besides_s: float = 0.0, times: float = 1, *, in_turn: bool = False
    ) -> bytes:
        """Runs a work in a fork, without effect here, to check whether it stays within so many times the limits.

        besides_s: for what the limit of processor time does not count. in_turn: whether the limit is that of what
        others wait for. Returns the bytes that the work returned; none if it
        returned something else or failed. Raises LimitExceededError, and StoreError when it could not be run. Other
        errors of `work` are ignored: it will raise them again in the loop.
        """

        await self.steady.wait()
        bounds = self._bounds_of(besides_s, times, in_turn=in_turn)
        # Reading to the end also waits for the status.
        answer = self._fork_answer(partial(_try_work, work), bounds, self._trying)
        return b"".join([part async for part in answer.chunks()])

    def try_here(
        self, work: Callable[[], object], besides_s: float = 0.0, times: float = 1, *, in_turn: bool = False
    ) -> bytes:
        """As `trial`, within a running step: its thread waits, and the fork has the current dataset. Where no process
        can be started, or each one is stuck, the work counts as passed."""
        bounds = self._bounds_of(besides_s, times, in_turn=in_turn)
        for _ in range(_RESTARTS_MAX):
            source, sink = os.pipe()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # as in `_Child`
                    number = os.fork()
            except OSError as error:
                os.close(source)
                os.close(sink)
                logger.warning("trial not started", reason=error.strerror)
                break
            if number == 0:
                _run_child(partial(_try_work, work), sink, bounds, self._store)
            os.close(sink)
            # So that `close` ends it while the thread of the step waits.
            self._trying.add(number)
            try:
                ended = _wait_for(number, source, bounds.time_ms_max / 1000)
            finally:
                os.close(source)
                self._trying.discard(number)
            if ended is None:
                continue  # it was stuck
            status, told = ended
            # SIGPROF: the limit of processor time, set by the child; SIGKILL: that of real time, sent by this process.
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL):
                raise LimitExceededError(bounds.late)
            if told[:1] == b"-":
                raise _error(told[1:])
            # It ended without a word: malloc failed at the limit of address space, where Python or Rust abort.
            if not told:
                raise LimitExceededError(bounds.hungry)
            return told[1:]
        return b""

    def _bounds_of(self, besides_s: float, times: float, *, in_turn: bool) -> _Bounds:
        bounds = (self._turn_bounds if in_turn else self._trial_bounds).of(times)
        return replace(bounds, time_ms_max=bounds.time_ms_max + round(besides_s * 1000))

    def parse(self, work: Callable[[BinaryIO], None]) -> Answer:
        """The output of a work that parses a client's text in a fork, behind a ``+``; its errors are raised here.

        The caller bounds their number.
        """

        def run_nicely(out: BinaryIO) -> None:
            os.nice(10)  # the loop goes first
            work(out)

        return self._fork_answer(run_nicely, self._parse_bounds, self._trying)

    def stream(self, work: Callable[[BinaryIO], None], *, opens_files: bool = False) -> Answer:
        """The output of a work in a fork, which has the current dataset. It serves no request of a client.

        opens_files: the work opens files, and reads nothing of the dataset. Iteration raises StoreError where the
        output ends early, whatever `work` raised; another try may succeed.
        """

        def stream_work(out: BinaryIO) -> None:
            os.nice(10)
            out.write(b"+")
            try:
                work(out)
            except GatewayError as error:  # too late for an error: a part may have been sent
                raise RuntimeError from error

        store = None if opens_files else self._store
        return Answer(lambda: _Child(stream_work, _STREAM_BOUNDS, store, self._trying), _STREAM_BOUNDS, self.steady)

    async def beside(self, work: Callable[[BinaryIO], None], client: str = "") -> Answer:
        """The output of a work that reads files and nothing of the dataset, behind a ``+``, within the limits of a
        query but that of rows; its errors are raised here. Otherwise as `start`."""
        self._check_room(client)
        await self.steady.wait()
        self._check_room(client)

        def run_beside(out: BinaryIO) -> None:
            os.nice(10)  # the loop goes first
            try:
                work(out)
            # MemoryError ends the child without a word, which is reported as too much memory.
            except (GatewayError, MemoryError):
                raise
            except Exception as error:
                raise StoreError(f"the request failed: {error!r}") from error

        # It may open files, since it does not use the store.
        bounds = self._query_bounds
        return Answer(
            lambda: self._held_by(client, _Child(run_beside, bounds, None, self._running)), bounds, self.steady
        )

    def _fork_answer(
        self,
        work: Callable[[BinaryIO], None],
        bounds: _Bounds,
        running: set[int],
        took: Callable[[float], None] | None = None,
    ) -> Answer:
        return Answer(lambda: _Child(work, bounds, self._store, running), bounds, self.steady, took)

    def close(self) -> None:
        """Ends the running readers."""
        for child in self._running | self._trying:
            os.kill(child, signal.SIGKILL)


class StuckError(StoreError):
    """The child waits for a lock that is never released; another fork may succeed."""


async def again_if_stuck(work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """The result of a work that forks a stream and reads it. A stream that is stuck behind the store's threads is
    replaced by one of a later dataset. Raises StuckError when that happens repeatedly."""
    for _ in range(_RESTARTS_MAX):
        with suppress(StuckError):
            return await work()
    return await work()


def _try_work(work: Callable[[], object], out: BinaryIO) -> None:
    """Whether a work is done or not, in a fork, and the bytes that it returned."""
    try:
        found = work()
    except (LimitExceededError, MemoryError):
        raise
    except Exception:
        out.write(b"!")
    else:
        out.write(b"+" + (found if isinstance(found, bytes) else b""))


def _wait_for(number: int, source: int, limit_s: float) -> tuple[int, bytes] | None:
    """The status and output of a fork; None for a stuck one. It is killed at its limit."""
    told, looks, deadline = bytearray(), _Looks(number), perf_counter() + limit_s
    poll = select.poll()
    poll.register(source, select.POLLIN)
    stuck = False
    while True:
        # Not a blocking read: a fork that waits for a lock writes nothing and does not end.
        if poll.poll(_LOOK_S * 1000):
            part = os.read(source, _CHUNK)
            if not part:
                break
            told += part
        elif perf_counter() > deadline or (stuck := looks.stuck()):
            os.kill(number, signal.SIGKILL)
            break
    _, status = os.waitpid(number, 0)
    return None if stuck else (status, bytes(told))


class _Looks:
    """Watches a process."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._seen: list[str] = []

    def stuck(self) -> bool:
        """Whether it waits for a lock and has used no processor time since the last call.

        It has one thread, so the lock is never released.
        """
        process = Path(f"/proc/{self._number}")
        try:
            # The name of the process is in brackets and may have any character, brackets too, so the last one counts
            # (proc(5)).
            state, *fields = (process / "stat").read_text().rpartition(")")[2].split()
            waits_in = (process / "wchan").read_text()
        except OSError:
            return False  # it has ended
        # One look could meet a lock that is about to be released: two with no processor time between them do not.
        before, self._seen = self._seen, fields[10:12]  # time as a user and in the kernel
        return state == "S" and (waits_in == "0" or "futex" in waits_in) and before == self._seen  # 0: it is hidden


class _Child:
    """A fork that runs a work, and the pipe that it writes to."""

    def __init__(
        self, work: Callable[[BinaryIO], None], bounds: _Bounds, store: Path | None, running: set[int]
    ) -> None:
        self.source, sink = os.pipe()
        with warnings.catch_warnings():
            # Python warns of forks beside threads. Python's threads wait for the disk, and the child uses only the
            # engine, which no other thread uses. For the threads of a store on disk see `stuck`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._number = os.fork()
        if self._number == 0:
            _run_child(work, sink, bounds, store)
        os.close(sink)
        self._running = running
        self._running.add(self._number)
        self.looks = _Looks(self._number)
        loop = asyncio.get_running_loop()
        # The status of waitpid(2), when the process has ended.
        self.status: asyncio.Future[int] = loop.create_future()
        # A pidfd is readable when its process ends. SIGCHLD is of the whole process, and others fork too.
        self._watch = os.pidfd_open(self._number)
        loop.add_reader(self._watch, self._reap, loop)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._watch)
        os.close(self._watch)
        # Before waitpid: afterwards the number may be that of another process, and `close` would kill it.
        self._running.discard(self._number)
        _, status = os.waitpid(self._number, 0)
        self.status.set_result(status)

    def kill(self) -> None:
        if not self.status.done():
            os.kill(self._number, signal.SIGKILL)


class Answer:
    """A running reader. Iteration yields the bytes of the result.

    Raises LimitExceededError or StoreError before the first byte, or where the result ends early. The process
    ends with the iteration, or at its time limit: that also holds for a client that does not read.
    """

    def __init__(
        self,
        fork: Callable[[], _Child],
        bounds: _Bounds,
        steady: Steady,
        took: Callable[[float], None] | None = None,
    ) -> None:
        self._begun, self._took = perf_counter(), took
        self._fork = fork
        self._steady = steady
        self._bounds = bounds
        self._restarts = 0
        self._iterated = False
        self._late = False
        # Iteration waits neither for the end of the process nor for its time limit: the iterating task may be
        # cancelled, or blocked by a socket.
        self._limit = asyncio.get_running_loop().call_later(bounds.time_ms_max / 1000, self._expire)
        self._child = self._start()

    def _start(self) -> _Child:
        child = self._fork()
        child.status.add_done_callback(self._cancel_limit)
        return child

    def _cancel_limit(self, _: asyncio.Future[int]) -> None:
        self._limit.cancel()

    def _let_go(self, child: _Child) -> None:
        """Kills a child without waiting."""
        # Until it is reaped, the callback would keep this answer, and so the store.
        child.status.remove_done_callback(self._cancel_limit)
        child.kill()

    async def whole(self, bytes_max: int = WHOLE_BYTES_MAX) -> bytes:
        """All bytes of the result. Raises LimitExceededError for more than bytes_max."""
        parts, size = [], 0
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > bytes_max:
                    raise _too_long(bytes_max)
                parts.append(chunk)
        return b"".join(parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        self._iterated = True
        stream, transport = await self._connect()
        try:
            while True:
                try:
                    first = await self._read_chunk(stream, 1)
                    break
                except StuckError:
                    if self._restarts == self._bounds.restarts_max:
                        raise
                    transport.close()
                    await self._steady.wait()
                    self._replace()
                    stream, transport = await self._connect()
            if first == b"+":
                if self._took is not None:
                    self._took(perf_counter() - self._begun)
                while chunk := await self._read_chunk(stream, _CHUNK):
                    yield chunk
            # Behind "-" the error; behind "+" nothing is left.
            members = await stream.read()
            # Not `await` of the future itself, which a cancelled iteration would cancel for all.
            await asyncio.wait([self._child.status])
            status = self._child.status.result()
            if self._late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
                raise LimitExceededError(self._bounds.late)
            if first == b"-":
                raise _error(members)
            if not first:
                raise LimitExceededError(self._bounds.hungry)
            # After a "+" the child may still fail: the output is then cut, and its end must not look like one.
            if status != 0:
                raise StoreError(self._bounds.broken)
        finally:
            transport.close()
            self._limit.cancel()
            self._let_go(self._child)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._child.source, "rb", buffering=0)
        stream = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        return stream, transport

    async def _read_chunk(self, stream: asyncio.StreamReader, size: int) -> bytes:
        """Some bytes, none at the end. Raises StuckError."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    return await stream.read(size)
            if self._child.looks.stuck():
                raise StuckError("the store was busy; try again")

    def _replace(self) -> None:
        self._restarts += 1
        logger.debug("worker replaced", reason="waits for a lock of the store", restarts=self._restarts)
        self._let_go(self._child)
        self._child = self._start()

    def _expire(self) -> None:
        if not self._child.status.done():
            self._late = True
            self._child.kill()

    def abandon(self) -> None:
        """Kills a reader whose answer is not needed any more."""
        self._limit.cancel()
        self._let_go(self._child)
        if not self._iterated:
            self._iterated = True
            # Iteration would have given it to a transport, which closes it.
            os.close(self._child.source)


class ReadyAnswer:
    """An answer that needed no reader; used like an `Answer`. content: all its bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def whole(self, bytes_max: int = WHOLE_BYTES_MAX) -> bytes:
        """As `Answer.whole`."""
        if len(self.content) > bytes_max:
            raise _too_long(bytes_max)
        return self.content

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self.content

    def abandon(self) -> None:
        """Has nothing to end."""


def _too_long(bytes_max: int) -> LimitExceededError:
    return LimitExceededError(f"the answer has more than {bytes_max} bytes; narrow the request down")


def _error(members: bytes) -> GatewayError:
    """The error of the child, as this process would have raised it."""
    found = msgspec.json.decode(members)
    kinds = (
        AccessDeniedError,
        LimitExceededError,
        RequestSyntaxError,
        StoreError,
        UnknownResourceError,
        UnsupportedRequestError,
    )
    [kind] = [kind for kind in kinds if kind.code == found["error"]]
    return kind(found["error_description"])


# --- in the child -----------------------------------------------------------------------------------


def _run_child(work: Callable[[BinaryIO], None], sink: int, bounds: _Bounds, store: Path | None) -> NoReturn:
    """The child: limits, work, exit. No clean-up of the parent runs."""
    status = 1
    try:
        gc.disable()  # a garbage collection would touch, and so copy, every page
        # It must not outlive the gateway, nor keep its sockets and its lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The handlers are those of the event loop of the parent.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # Or a signal here would write to the pipe that wakes the loop of the parent.
        signal.set_wakeup_fd(-1)
        if bounds.memory_bytes_max is not None:
            # RLIMIT_AS counts what was inherited, too.
            address_space = _address_space() + bounds.memory_bytes_max
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        if store is None:
            # Sockets of clients above all: they would stay open for as long as the query runs.
            os.closerange(3, sink)
            os.closerange(sink + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        else:
            _keep_readable(sink, str(store))
        # A core file would hold the dataset.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if bounds.cpu_ms_max is not None:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            # Processor time, so that a loaded machine does not refuse what it accepts when idle. The default action
            # ends the process, also within native code.
            signal.setitimer(signal.ITIMER_PROF, bounds.cpu_ms_max / 1000)
        with os.fdopen(sink, "wb", buffering=_CHUNK) as out:
            try:
                work(out)
            except GatewayError as error:
                members = {"error": error.code, "status_code": error.status, "error_description": str(error)}
                out.write(b"-" + msgspec.json.encode(members))
        status = 0
    finally:
        # Neither atexit handlers nor buffers of the parent.
        os._exit(status)


def _keep_readable(sink: int, store: str) -> None:
    """Closes all files except the pipe and those that a store on disk reads."""
    # The store cannot write: its log is closed, and no new file can be opened. So a work may change the dataset in the
    # memory of this process. New files would also get names that the parent's store gives to other files.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for link in Path("/proc/self/fd").iterdir():
        number = int(link.name)
        if number < 3 or number in (sink, nowhere):
            continue
        try:
            path = str(link.readlink())
        except OSError:
            continue  # the descriptor that listed the folder
        if path != store and not path.startswith(f"{store}/"):
            os.close(number)
        elif fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            # Closed instead, the next file would get this number, and the store would write to it.
            os.dup2(nowhere, number)
    # Last: it also forbids to open /proc/self/fd.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def write_answer(
    store: ox.Store,
    query: QueryOutline,
    media_type: str,
    default_graphs: Sequence[Term | None] | None,
    named_graphs: Sequence[Term] | None,
    out: BinaryIO,
    settings: QuerySettings,
    head: bytes = b"",
) -> None:
    """Writes the answer of a query behind a ``+`` and a head.

    Raises RequestSyntaxError, LimitExceededError, StoreError, UnsupportedRequestError.
    """
    columns = parse_query(query.text).columns  # here, since the planner may take long
    text = in_parts(with_columns(query.text, columns) if query.form == "SELECT" else query.text)

    if query.unrepeatable:
        # A fork has the random numbers of its parent: without this, two answers would have the same UUID().
        draw_anew()

    def evaluate() -> ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples:
        return query_native(store, text, default_graphs, named_graphs)

    # Evaluated twice: keeping the rows would take the memory of the longest answer.
    counted = evaluate()
    if not isinstance(counted, ox.QueryBoolean):
        checked = isinstance(counted, ox.QueryTriples) and GRAPH_FORMATS[media_type] in _WITHOUT_TRIPLE_TERMS
        # Counted before it is sent, so that an answer that is too long is an error, not a partial document.
        with evaluating():
            for number, found in enumerate(counted):
                if number >= settings.rows_max:
                    raise LimitExceededError(
                        f"the answer has more than query.rows_max = {settings.rows_max} rows; use LIMIT and OFFSET"
                    )
                if checked:
                    _check_written(found)
    result = evaluate()
    out.write(b"+" + head)
    if isinstance(result, ox.QueryTriples):
        result.serialize(out, format=GRAPH_FORMATS[media_type])
    else:
        result.serialize(out, format=SOLUTION_FORMATS[media_type])


def _check_written(found: ox.Quad | ox.Triple) -> None:
    """Raises UnsupportedRequestError for a triple that a format without triple terms does not have."""
    if isinstance(found.object, ox.Triple):
        raise UnsupportedRequestError(
            "JSON-LD has no triple terms, and the answer has some; ask for text/turtle or application/n-triples"
        )


def serialise(result: ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples, media_type: str) -> bytes:
    """A short result, as `write_answer` writes it. Raises UnsupportedRequestError."""
    if isinstance(result, ox.QueryTriples):
        triples = list(result)
        if GRAPH_FORMATS[media_type] in _WITHOUT_TRIPLE_TERMS:
            for triple in triples:
                _check_written(triple)
        written = ox.serialize(triples, format=GRAPH_FORMATS[media_type])
    else:
        written = result.serialize(format=SOLUTION_FORMATS[media_type])
    assert written is not None, "without an output file the bytes are returned"
    return written


def _address_space() -> int:
    """Bytes of address space of the process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
