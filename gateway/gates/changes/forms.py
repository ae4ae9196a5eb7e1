"""Changes and datasets as bytes. The functions also run in forks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from lamplighter.engine.access import Graphs
from lamplighter.engine.change_log import GraphChanges
from lamplighter.engine.change_log.rdf_patch import BEGIN, END, change_rows, header, patch
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import Quad, Term, literal
from lamplighter.gateway.gates.changes.positions import FeedPositions
from lamplighter.gateway.history.changes import LoggedChange, LogPosition

NDJSON: Final = "application/x-ndjson"
RDF_PATCH: Final = "application/rdf-patch"
EVENTS: Final = "text/event-stream"
N_QUADS: Final = "application/n-quads"

Write = Callable[[Sequence[LoggedChange]], bytes]


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of NDJSON. Members as in a record of the change log; position: the one behind it. A dataset is lines
    without a position, and a last one that has it."""

    position: str | None = None
    epoch: int | None = None
    seq: int | None = None
    ts: str | None = None
    trusted: bool | None = None
    graphs: GraphChanges | None = None
    d: tuple[Quad, ...] = ()
    a: tuple[Quad, ...] = ()


def ndjson(positions: FeedPositions, changes: Sequence[LoggedChange]) -> bytes:
    return b"".join([_line(positions, change) + b"\n" for change in changes])


def events(positions: FeedPositions, changes: Sequence[LoggedChange]) -> bytes:
    """Events (HTML Living Standard, section 9.2) whose data is a line of NDJSON, and whose id is its position."""
    return b"".join(
        [b"id: %b\ndata: %b\n\n" % (positions.text(one.at).encode(), _line(positions, one)) for one in changes]
    )


def reset_event(reason: str) -> bytes:
    return b"event: reset\ndata: %b\n\n" % msgspec.json.encode({"reason": reason})


def patches(positions: FeedPositions, changes: Sequence[LoggedChange]) -> bytes:
    """A patch for each change. Each refers to the one before it."""
    previous: Term | None = None
    texts = []
    for change in changes:
        name = positions.patch_id(change.at)
        head = header(name, previous, {"position": literal(positions.text(change.at))}, change.ts)
        texts.append(patch(head, change_rows(change.delta)))
        previous = name
    return "".join(texts).encode()


WRITERS: Final = {NDJSON: ndjson, RDF_PATCH: patches, EVENTS: events}  # by media type, in order of preference


def _line(positions: FeedPositions, change: LoggedChange) -> bytes:
    delta = change.delta
    graphs = GraphChanges(delta.created, delta.dropped) if delta.created or delta.dropped else None
    epoch, sequence = change.at.place if positions.numbered else (None, None)
    return _encode(
        Line(positions.text(change.at), epoch, sequence, change.ts, change.trusted, graphs, delta.removed, delta.added)
    )


# --- datasets -----------------------------------------------------------------------------------------------


class DatasetForm(ABC):
    """How a dataset is written: its begin and end by the gateway, its rows by a fork."""

    def begin(self, positions: FeedPositions, at: LogPosition, ts: str) -> bytes:
        """What comes first. at: the position of the dataset; ts: the time at which it was copied."""
        return b""

    @abstractmethod
    def rows(self, part: QuadDelta) -> Iterable[bytes]:
        """A part of the dataset: graphs or quads, as a change that adds them."""

    def end(self, positions: FeedPositions, at: LogPosition, ts: str) -> bytes:
        return b""

    def write(self, visible: Graphs, names: Sequence[Term], batches: Iterable[Iterable[Quad]], out: BinaryIO) -> None:
        """Writes some graphs. names: of all graphs."""
        for part in _parts(visible, names, batches):
            for row in self.rows(part):
                out.write(row)


class NdjsonForm(DatasetForm):
    def rows(self, part: QuadDelta) -> Iterable[bytes]:
        graphs = GraphChanges(created=part.created) if part.created else None
        yield _encode(Line(graphs=graphs, a=part.added)) + b"\n"

    def end(self, positions: FeedPositions, at: LogPosition, ts: str) -> bytes:
        epoch, sequence = at.place if positions.numbered else (None, None)
        return _encode(Line(positions.text(at), epoch, sequence, ts)) + b"\n"


class PatchForm(DatasetForm):
    """One transaction. Jena keeps the labels of its blank nodes, which a file of N-Quads gets new ones for."""

    def begin(self, positions: FeedPositions, at: LogPosition, ts: str) -> bytes:
        head = header(positions.patch_id(at), None, {"position": literal(positions.text(at))}, ts)
        return "\n".join([*head, BEGIN, ""]).encode()

    def rows(self, part: QuadDelta) -> Iterable[bytes]:
        return (f"{row}\n".encode() for row in change_rows(part))

    def end(self, positions: FeedPositions, at: LogPosition, ts: str) -> bytes:
        return f"{END}\n".encode()


class QuadsForm(DatasetForm):
    """N-Quads. The names of graphs are comments: the format has no graphs without quads."""

    def rows(self, part: QuadDelta) -> Iterable[bytes]:
        yield from (f"# graph created: {name}\n".encode() for name in part.created)
        yield from (f"{quad.to_nquads()}\n".encode() for quad in part.added)


# By media type, in order of preference.
DATASETS: Final = {N_QUADS: QuadsForm(), NDJSON: NdjsonForm(), RDF_PATCH: PatchForm()}
_NAMES_MAX = 1_000


def _parts(visible: Graphs, names: Sequence[Term], batches: Iterable[Iterable[Quad]]) -> Iterator[QuadDelta]:
    """The names of the graphs, and their quads, some at a time."""
    seen = [name for name in names if name in visible]
    for begin in range(0, len(seen), _NAMES_MAX):
        yield QuadDelta(created=tuple(seen[begin : begin + _NAMES_MAX]))
    for batch in batches:
        quads = tuple(batch) if visible.every else tuple(quad for quad in batch if quad.g in visible)
        if quads:
            yield QuadDelta(added=quads)


_encode = msgspec.json.Encoder().encode
