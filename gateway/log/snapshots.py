"""Snapshots: the gateway's whole state at one record, so that a start need not read the log from its beginning.

A snapshot is a segment of records of the type ``snapshot`` (design section 5): the first has the names of the graphs
and the gateway's own state, those between have the quads, the last has their number. A fork of the gateway writes it
from its copy of the dataset, while updates continue. It gets its name when it is complete and every record before it is
durable. The two newest are kept, and the log behind the older one: a start that cannot read the newest uses that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import msgspec
import zstandard

from lamplighter.engine.change_log import GraphChanges, Record, SnapshotPart, decode, encode, segment_name
from lamplighter.engine.change_log.frames import ByteSource, frame_lines
from lamplighter.engine.client.files import open_file
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.state.delayed import checked_moment
from lamplighter.gateway.state.knowledge import snapshot_state

KEPT = 2
_LEVEL = 3

Place = tuple[int, int]  # epoch and sequence, the permanent name of a record; written ``1/17``

_NAME_CHARACTERS_MAX = 200
# Bytes of the terms in a line of a snapshot, unless a single quad has more; with escapes far below `LINE_BYTES_MAX`.
_LINE_CHARACTERS = 8 * 1024 * 1024
LINE_BYTES_MAX = 512 * 1024 * 1024  # longest line of a snapshot; earlier versions wrote long ones


def label(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def place_of(record: Record) -> Place:
    return record.epoch, record.seq


@dataclass(frozen=True)
class Snapshot:
    """A file with the name of a snapshot; the name has its record."""

    path: Path
    epoch: int
    sequence: int

    @property
    def place(self) -> Place:
        return self.epoch, self.sequence


def snapshots(folder: Path) -> list[Snapshot]:
    found = []
    for path in folder.iterdir():
        name = segment_name(path.name)
        if name is not None and name.last is None:
            found.append(Snapshot(path, name.epoch, name.first))
    return sorted(found, key=lambda snapshot: snapshot.place)


def write(out: BinaryIO, head: Record, graphs: Iterable[Term], state: bytes, batches: Iterable[Iterable[Quad]]) -> None:
    """Writes a snapshot. head: a record with the place and the clocks; state: JSON."""
    # With a checksum: a flipped bit must not become a quad.
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    count = number = 0

    def line(**members: object) -> bytes:
        return encode(msgspec.structs.replace(head, type="snapshot", **members))

    with compressor.stream_writer(out, closefd=False) as stream:
        names = tuple(graphs)
        stream.write(
            line(
                snapshot=SnapshotPart(0, state=msgspec.Raw(state)),
                graphs=GraphChanges(created=names) if names else None,
            )
        )
        for number, quads in enumerate(chain.from_iterable(map(_in_lines, batches)), 1):
            count += len(quads)
            stream.write(line(snapshot=SnapshotPart(number), a=quads))
        stream.write(line(snapshot=SnapshotPart(number + 1, last=True, quads=count)))


def _in_lines(batch: Iterable[Quad]) -> Iterator[tuple[Quad, ...]]:
    """The quads of a batch, as many at a time as one line takes."""
    line: list[Quad] = []
    size = 0
    for quad in batch:
        s, p, o, g = quad
        size += len(s) + len(p) + len(o) + len(g or "")
        if size > _LINE_CHARACTERS and line:
            yield tuple(line)
            line, size = [], 0
        line.append(quad)
    if line:
        yield tuple(line)


def read_snapshot(
    path: Path, place: Place | None = None, content: ByteSource | None = None
) -> tuple[Record, Iterator[tuple[Quad, ...]]]:
    """The first record of a snapshot, and its quads in batches. place: its expected record; content: the bytes of the
    file, where it cannot be opened. Raises ChangeLogError at the first error, also while the quads are read: after the
    last of them, the file is known to be complete. Raises ConfigurationError for the file of a newer program."""
    records = _snapshot_records(path, place, content)
    return next(records), (record.a for record in records if record.a)


def _check_head(head: Record) -> None:
    """Raises ValueError, also for invalid texts that would be shown or logged."""
    if len(head.gw) > _NAME_CHARACTERS_MAX or not head.gw.isprintable():
        raise ValueError(f"gw is no name of a gateway, of up to {_NAME_CHARACTERS_MAX} printable characters")
    checked_moment("ts", head.ts)
    snapshot_state(head)


def _snapshot_records(path: Path, place: Place | None, content: ByteSource | None) -> Iterator[Record]:
    first: Record | None = None
    number = quads = 0
    whole = False
    try:
        for line in _lines(path) if content is None else frame_lines(content, LINE_BYTES_MAX):
            record = decode(line)
            part = record.snapshot
            # The last part closes it; what follows was not written by a snapshot.
            if whole:
                raise ValueError("there is data after its end")
            if record.type != "snapshot" or part is None or part.number != number:
                raise ValueError(f"line {number + 1} is not the one that belongs there")
            first = first or record
            # A file that was put together of two is refused.
            if (record.gw, record.epoch, record.seq) != (first.gw, first.epoch, first.seq):
                raise ValueError(f"line {number + 1} is of another snapshot")
            if number == 0:
                if place is not None and place_of(record) != place:
                    raise ValueError(f"it is of record {label(place_of(record))}")
                _check_head(record)
            quads += len(record.a)
            # The last part has the number of quads: a lost line in the middle is noticed.
            whole = part.last
            if whole and part.quads != quads:
                raise ValueError(f"it has {quads} quads and should have {part.quads}")
            yield record
            number += 1
        if not whole:
            raise ValueError("it breaks off")
    except OSError as error:
        raise ChangeLogError(str(error.strerror), path=path, hint="check the name and the disk") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise ChangeLogError(f"damaged: {error}", path=path, hint="take an older one") from error


def _lines(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        yield from frame_lines(file, LINE_BYTES_MAX)


@dataclass(frozen=True)
class Base:
    """Where a start begins: the newest complete snapshot, and the faults of newer ones; or no snapshot."""

    snapshot: Snapshot | None
    head: Record | None
    errors: tuple[ChangeLogError, ...]

    @property
    def place(self) -> Place:
        return (1, 0) if self.snapshot is None else self.snapshot.place

    @property
    def graphs(self) -> tuple[Term, ...]:
        return self.head.graphs.created if self.head is not None and self.head.graphs is not None else ()


def newest(folder: Path, passed_over: Mapping[Place, str] = MappingProxyType({})) -> Base:
    """The newest complete snapshot. passed_over: those that cannot be used, and why."""
    errors: list[ChangeLogError] = []
    for snapshot in reversed(snapshots(folder)):
        try:
            if snapshot.place in passed_over:
                raise ChangeLogError(passed_over[snapshot.place], path=snapshot.path, hint="an older one was taken")
            first, quads = read_snapshot(snapshot.path, snapshot.place)
            deque(quads, maxlen=0)  # to their end: only then it is known to be complete
            return Base(snapshot, first, tuple(errors))
        except ChangeLogError as error:
            errors.append(error)
    return Base(None, None, tuple(errors))
