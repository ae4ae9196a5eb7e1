"""What the queries of a request found in a fork, and whether that holds in the request's turn.

::

    fork   request ─▶ store.select ─▶ Recorder ─▶ frames ─▶ pipe
    loop   frames ─▶ Trial ─▶ the solutions of each query, if no commit since then touched what it reads

So others need not wait while the store evaluates. The queries of a request are told apart by their order. A later one
sees what the earlier operations change: the fork's changes are those of the loop, since they come of the same
solutions, and new blank nodes have the fork's labels.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import blake2b
from struct import Struct
from time import thread_time

import msgspec

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching.lutt import EVERYTHING, PatternSignature, TriplePattern
from lamplighter.engine.matching.signatures import signature_of_text
from lamplighter.engine.sparql.requests import canonical
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.store.quad_store import Asked, SelectRun
from lamplighter.engine.terms import Bag, Binding, Term
from lamplighter.gateway.workers.fresh_nodes import draw_anew
from lamplighter.gateway.workers.recent_changes import RecentChanges, Version

SOLUTIONS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a request's solutions that a fork returns."""
PART_ROWS = 1000
"""Rows that are read at a time, in a millisecond."""
_CHANCE = re.compile(r"\b(?:BNODE|RAND|STRUUID|UUID)(?:\s|#[^\r\n]*+)*+\(", re.I)
_SIZE = Struct("!I")


class _Findings(msgspec.Struct, array_like=True):
    """ms: processor time of the queries; labels: of new blank nodes, in order; queries: how many were evaluated."""

    ms: float
    labels: list[str]
    queries: int


class _Query(msgspec.Struct, array_like=True):
    """key: equal for equal queries; patterns, graph_names: its `PatternSignature`; parts: the frames of its rows, which
    follow."""

    key: bytes
    variables: tuple[str, ...]
    patterns: list[tuple[Term, Term, Term, Term | None]]
    graph_names: bool
    parts: int


_encode = msgspec.msgpack.encode
_decode_findings = msgspec.msgpack.Decoder(_Findings).decode
_decode_query = msgspec.msgpack.Decoder(_Query).decode
_decode_rows = msgspec.msgpack.Decoder(list[Binding]).decode


def _key(asked: Asked) -> bytes:
    return blake2b(repr(asked).encode(errors="surrogatepass"), digest_size=16).digest()


# --- in the fork ------------------------------------------------------------------------------------


class TooManySolutionsError(LimitExceededError):
    """The solutions are too long to be returned."""


class _Recorder:
    """Records what the store evaluates for an engine, and the labels that the engine gives.

    bare: whether the solutions count at once, so that nobody asks what they depend on. data: whether the limit of
    processor time is for the evaluations only, since all else is the fault of much data.
    """

    def __init__(self, engine: Engine, *, bare: bool, data: bool = False) -> None:
        self._frames: list[bytes] = []
        self._size = self._queries = 0
        self._ms = 0.0
        self._labels: list[str] = []
        self._lifter = None if bare else Lifter(canonical)
        self._drawn = False
        self._left_s = signal.setitimer(signal.ITIMER_PROF, 0)[0] if data else None
        engine.store.around_select = self.select
        self._identifier, engine.new_identifier = engine.new_identifier, self._new_identifier

    def _new_identifier(self) -> str:
        self._labels.append(self._identifier())
        return self._labels[-1]

    def select(self, asked: Asked, select: SelectRun) -> Bag:
        """The solutions of a query, which are recorded."""
        if not self._drawn and _CHANCE.search(asked.text):
            draw_anew()
            self._drawn = True
        begun = thread_time()
        bag = self._time_select(select)
        self._ms += (thread_time() - begun) * 1000
        signature = EVERYTHING
        if self._lifter is not None:
            chosen = asked.default_graphs is not None or asked.named_graphs is not None
            signature = signature_of_text(asked.text, self._lifter, chosen=chosen)
        patterns = [(one.s, one.p, one.o, one.graph) for one in signature.patterns]
        parts = range(0, len(bag.rows), PART_ROWS)
        self._add(_Query(_key(asked), tuple(bag.variables), patterns, signature.graph_names, len(parts)))
        for start in parts:
            self._add(bag.rows[start : start + PART_ROWS])
        self._queries += 1
        return bag

    def _time_select(self, select: SelectRun) -> Bag:
        if self._left_s is None:
            return select()
        begun = thread_time()
        signal.setitimer(signal.ITIMER_PROF, max(self._left_s, 0.001))  # 0 would be for ever
        try:
            return select()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._left_s -= thread_time() - begun

    def _add(self, member: object) -> None:
        frame = _encode(member)
        self._size += len(frame)
        if self._size > SOLUTIONS_BYTES_MAX:
            raise TooManySolutionsError(
                f"the solutions of the WHERE have more than {SOLUTIONS_BYTES_MAX} bytes; restrict it, or send it in "
                "parts"
            )
        self._frames += [_SIZE.pack(len(frame)), frame]

    def frames(self) -> bytes:
        head = _encode(_Findings(self._ms, self._labels, self._queries))
        return b"".join([_SIZE.pack(len(head)), head, *self._frames])


def record_work(engine: Engine, work: Callable[[], object], *, bare: bool, data: bool) -> bytes:
    """Does a work in a fork, and returns what it found, for `Trial`. bare, data: as in `_Recorder`. Raises
    LimitExceededError."""
    recorder = _Recorder(engine, bare=bare, data=data)
    try:
        work()
    except (LimitExceededError, MemoryError):
        raise
    except Exception:
        return recorder.frames()  # the loop comes to it too, by the same solutions
    return recorder.frames()


def record_select(engine: Engine, asked: Asked, select: SelectRun, *, refuses: bool) -> bytes:
    """The same of one query. refuses: whether TooManySolutionsError is raised; otherwise nothing is returned then."""
    recorder = _Recorder(engine, bare=True)
    try:
        recorder.select(asked, select)
    except TooManySolutionsError:
        if refuses:
            raise
        return b""
    return recorder.frames()


# --- in the loop ------------------------------------------------------------------------------------


class Trial:
    """What a request's queries found in a fork.

    version: of the dataset that the fork had; now: the value of NOW() there. whole: whether any
    change of the dataset may have changed what it found. ms: processor time of the queries.
    """

    def __init__(self, frames: bytes, version: Version, now: datetime, *, whole: bool = False) -> None:
        self._frames = memoryview(frames)
        self._version = version
        self.now = now
        self._whole = whole
        self._at = 0
        head = _decode_findings(self._next())
        self.ms = head.ms
        self._labels, self._left = head.labels, head.queries
        self._begin = self._at, self._left

    def _next(self) -> memoryview:
        [size] = _SIZE.unpack_from(self._frames, self._at)
        start = self._at + _SIZE.size
        self._at = start + size
        return self._frames[start : self._at]

    def rewind(self) -> None:
        """The request is evaluated from its beginning."""
        self._at, self._left = self._begin

    def solutions(self, asked: Asked, changes: RecentChanges) -> Bag | None:
        """Those of the next query of the request; None if they do not hold, and then for all later ones."""
        if not self._left:
            return None
        query = _decode_query(self._next())
        patterns = tuple(TriplePattern(*pattern) for pattern in query.patterns)
        signature = PatternSignature(patterns, query.graph_names)
        changed = changes.since(self._version) if self._whole else changes.touches(signature, self._version)
        if query.key != _key(asked) or changed:
            self._left = 0
            return None
        self._left -= 1
        rows: list[Binding] = []
        for _ in range(query.parts):
            rows += _decode_rows(self._next())
        return Bag(query.variables, rows)

    @contextmanager
    def labelling(self, engine: Engine) -> Iterator[None]:
        """Within the context, new blank nodes have the labels of the fork."""
        labels, others = iter(self._labels), engine.new_identifier
        engine.new_identifier = lambda: next(labels, "") or others()
        try:
            yield
        finally:
            engine.new_identifier = others
