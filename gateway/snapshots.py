"""Snapshots: everything that the gateway knew at one record, so that a start need not read the log from its beginning.

A snapshot is a segment of records of the type ``snapshot`` (design section 5): the first has the names of the graphs
and the gateway's own state, those between the quads, the last their number. It is written by a fork of the gateway,
which has the dataset as it stood, while updates go on; it gets its name when it is whole and every record before it
is durable. The two newest are kept, and the log behind the older one: a start that cannot read the newest takes that.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from engine.change_log import Graphs, Part, Record, check, decode, encode, segment_name
from engine.errors import ChangeLogError
from engine.terms import Quad, Term

KEPT = 2
_LEVEL = 3


@dataclass(frozen=True)
class Snapshot:
    """A file that claims to be one; its name says which record it stands at."""

    path: Path
    epoch: int
    sequence: int

    @property
    def place(self) -> tuple[int, int]:
        return self.epoch, self.sequence


def snapshots(folder: Path) -> list[Snapshot]:
    """The snapshots, oldest first."""
    found = []
    for path in folder.iterdir():
        name = segment_name(path.name)
        if name is not None and name.last is None:
            found.append(Snapshot(path, name.epoch, name.first))
    return sorted(found, key=lambda snapshot: snapshot.place)


def write(out: BinaryIO, head: Record, graphs: Iterable[Term], state: bytes, batches: Iterable[Iterable[Quad]]) -> None:
    """Writes a snapshot. head: a record with the place and the clocks; state: JSON."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    count = number = 0

    def line(**members: object) -> bytes:
        return encode(msgspec.structs.replace(head, type="snapshot", **members))

    with compressor.stream_writer(out, closefd=False) as stream:
        names = tuple(graphs)
        stream.write(line(snapshot=Part(0, state=msgspec.Raw(state)), graphs=Graphs(created=names) if names else None))
        for number, batch in enumerate(batches, 1):
            quads = tuple(batch)
            count += len(quads)
            stream.write(line(snapshot=Part(number), a=quads))
        stream.write(line(snapshot=Part(number + 1, last=True, quads=count)))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a snapshot without newlines, as far as they can be read. Raises ValueError, OSError."""
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            for line in io.BufferedReader(stream, 1024 * 1024):
                yield line.removesuffix(b"\n")
    except zstandard.ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


def head(snapshot: Snapshot) -> Record:
    """The first record of a snapshot that was checked from end to end. Raises ChangeLogError when it is damaged."""
    first, last, count = b"", b"", 0
    try:
        for line in lines(snapshot.path):
            check(line)
            first, last, count = first or line, line, count + 1
        if not first:
            raise ValueError("it is empty")
        begin, end = decode(first), decode(last)
        if begin.snapshot is None or end.snapshot is None or not end.snapshot.last or end.snapshot.number != count - 1:
            raise ValueError("it is not complete")
        if (begin.epoch, begin.seq) != snapshot.place:
            raise ValueError(f"it is of record {begin.epoch}/{begin.seq}")
    except (ValueError, OSError) as error:
        raise ChangeLogError(
            f"damaged: {error}", path=snapshot.path, hint="an older one and the log are used"
        ) from error
    return begin


def quads(snapshot: Snapshot) -> Iterator[tuple[Quad, ...]]:
    """The quads in batches. Raises ChangeLogError when it is damaged."""
    try:
        for line in lines(snapshot.path):
            record = decode(line)
            if record.a:
                yield record.a
    except (ValueError, OSError) as error:
        raise ChangeLogError(f"damaged: {error}", path=snapshot.path, hint="take an older one") from error


@dataclass(frozen=True)
class Base:
    """Where a start begins: the newest snapshot that is whole, and what is wrong with newer ones. None of it there:
    before the first record."""

    snapshot: Snapshot | None
    head: Record | None
    errors: tuple[ChangeLogError, ...]

    @property
    def place(self) -> tuple[int, int]:
        return (1, 0) if self.snapshot is None else self.snapshot.place

    @property
    def graphs(self) -> tuple[Term, ...]:
        """Names of its graphs."""
        return self.head.graphs.created if self.head is not None and self.head.graphs is not None else ()


def newest(folder: Path) -> Base:
    """The newest snapshot that can be read from end to end."""
    errors: list[ChangeLogError] = []
    for snapshot in reversed(snapshots(folder)):
        try:
            return Base(snapshot, head(snapshot), tuple(errors))
        except ChangeLogError as error:
            errors.append(error)
    return Base(None, None, tuple(errors))
