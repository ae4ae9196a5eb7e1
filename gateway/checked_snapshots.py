"""Reads snapshots, and backups, which are the same, so that nothing wrong with them goes by unnoticed.

A place is (epoch, sequence), the name of a record for ever, written ``1/17``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import zstandard

from engine.change_log import Record, decode
from engine.errors import ChangeLogError
from engine.terms import Quad
from gateway.delayed import DelayedState

Place = tuple[int, int]

LINE_BYTES_MAX = 512 * 1024 * 1024
"""A longer line is no snapshot's."""
_READ_BYTES = 8 * 1024  # what that unpacks to is bounded


def shown(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def place_of(record: Record) -> Place:
    return record.epoch, record.seq


class Content(Protocol):
    """What bytes can be read from, one part after the other."""

    def read(self, size: int, /) -> bytes: ...


class Known(msgspec.Struct, frozen=True):
    """What a snapshot has besides the dataset; resumable subscriptions, which need an engine that follows them, are
    passed over. requests: (id, sequence, id of the delayed update), oldest first; applications: name -> digest."""

    delayed: DelayedState = DelayedState()
    requests: list[tuple[str, int, str | None]] = []
    applications: dict[str, str] = {}
    resumable: list[msgspec.Raw] = []


def read_snapshot(
    path: Path, place: Place | None = None, content: Content | None = None
) -> tuple[Record, Iterator[tuple[Quad, ...]]]:
    """The first record of a snapshot, and its quads in batches.

    place: where it must stand; content: what is in the file, for whoever cannot open it. Raises ChangeLogError as soon
    as anything is wrong, also while the quads are read: whoever has come to their end knows that the file is whole. A
    newer program's file: ConfigurationError.
    """
    records = _snapshot_records(path, place, content)
    return next(records), (record.a for record in records if record.a)


def known(head: Record) -> Known:
    """What the first record of a snapshot says besides the dataset. Raises ValueError."""
    assert head.snapshot is not None
    return msgspec.json.decode(head.snapshot.state, type=Known)


def _snapshot_records(path: Path, place: Place | None, content: Content | None) -> Iterator[Record]:
    first: Record | None = None
    number = quads = 0
    whole = False
    try:
        for line in _lines(path) if content is None else _content_lines(content):
            record = decode(line)
            part = record.snapshot
            if whole:
                raise ValueError("something stands behind its end")
            if record.type != "snapshot" or part is None or part.number != number:
                raise ValueError(f"line {number + 1} is not the one that belongs there")
            first = first or record
            if (record.gw, record.epoch, record.seq) != (first.gw, first.epoch, first.seq):
                raise ValueError(f"line {number + 1} is of another snapshot")
            if number == 0:
                if place is not None and place_of(record) != place:
                    raise ValueError(f"it is of record {shown(place_of(record))}")
                known(record)
            quads += len(record.a)
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
    with path.open("rb") as file:
        yield from _content_lines(file)


def _content_lines(content: Content) -> Iterator[bytes]:
    """Lines without newlines. Raises ValueError, also when bytes are missing or left over; OSError."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    while data := content.read(_READ_BYTES):
        if frame.eof:
            raise ValueError("something stands behind its end")
        try:
            text = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if frame.unused_data:
            raise ValueError("something stands behind its end")
        begin = 0
        while (end := text.find(b"\n", begin)) >= 0:
            yield b"".join([*parts, text[begin:end]])
            parts, size, begin = [], 0, end + 1
        parts.append(text[begin:])
        size += len(text) - begin
        if size > LINE_BYTES_MAX:
            raise ValueError(f"a line is longer than {LINE_BYTES_MAX} bytes")
    if not frame.eof or size:
        raise ValueError("it breaks off")
