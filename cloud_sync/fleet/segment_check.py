"""Whether an object is what it should be, by its content alone: a segment, or a snapshot, with its seal.

Everything is read as a stream within bounds, so that a hostile file costs time at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from cloud_sync.answers import SnapshotSeal
from engine.change_log import VERSION, Gap, Record, Seal, decode
from engine.errors import ConfigurationError
from engine.zstd_frames import frame_lines

Range = tuple[int, int]
"""First and last sequence, both in it."""

GATEWAY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""What a gateway may be called; it becomes a folder's name."""

NEWER, CHAIN, CONFLICT = "newer", "chain", "conflict"

TYPES = frozenset({"commit", "timer", "cancel", "subscribe", "unsubscribe", "gap"})


class Bad(Exception):
    """An object is not what it should be; the text says why.

    kind: ``damaged`` in itself; ``newer``: of a newer program, which may be good; ``chain``: its neighbours name other
    segments beside them; ``conflict``: it has another record under a sequence that has landed.
    """

    def __init__(self, reason: str, kind: str = "damaged") -> None:
        super().__init__(reason)
        self.kind = kind


class Bounds(NamedTuple):
    """What an object may take: in the lake, unpacked, and in memory for one of its lines."""

    bytes_max: int = 2 * 1024**3
    content_bytes_max: int = 32 * 1024**3
    line_bytes_max: int = 512 * 1024**2


@dataclass(frozen=True)
class CheckedSegment:
    """A segment that is good in itself. ts: of its last record; gaps: (epoch, sequence, what it says) of each gap
    record in it."""

    seal: Seal
    ts: str
    gaps: tuple[tuple[int, int, Gap], ...]


@dataclass(frozen=True)
class CheckedSnapshot:
    """A snapshot that is good in itself."""

    seal: SnapshotSeal


def without(whole: Range, parts: Iterable[Range]) -> list[Range]:
    """What is left of a range without those. parts: in their order, none overlapping another."""
    found = []
    begin, end = whole
    for first, last in parts:
        if last < begin:
            continue
        if first > end:
            break
        if first > begin:
            found.append((begin, first - 1))
        begin = last + 1
    if begin <= end:
        found.append((begin, end))
    return found


def sealed_range(seal: bytes, gateway: str) -> Seal | None:
    """What a seal says of its segment whose data are not good; None if it cannot be relied on either."""
    with contextlib.suppress(Bad):
        said = _seal(seal, Seal)
        if said.gw == gateway and _agrees(said):
            return said
    return None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_segment(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSegment:
    """Checks a segment against its seal: hash, every line's checksum and JSON, sequences. gateway: whose folder it
    was in. Raises Bad, OSError."""
    said = _seal(seal, Seal)
    _check_file(path, said, gateway)
    if not _agrees(said):
        raise Bad("the numbers in its seal contradict each other")
    gaps = []
    expected, ts = said.first, ""
    for record in records(path, bounds):
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, expected):
            raise Bad(
                f"record {record.gw}/{record.epoch}/{record.seq} stands where {said.gw}/{said.epoch}/{expected} should"
            )
        if record.type not in TYPES:
            raise Bad(f"record {record.epoch}/{record.seq} has the type {record.type!r}, which is none of a log")
        if record.gap is not None:
            gaps.append((record.epoch, record.seq, record.gap))
        expected, ts = expected + 1, record.ts
    if expected != said.last + 1:
        raise Bad(f"it has {expected - said.first} records, and its seal says {said.count}")
    return CheckedSegment(said, ts, tuple(gaps))


def checked_snapshot(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSnapshot:
    """The same for a snapshot. Raises Bad, OSError."""
    said = _seal(seal, SnapshotSeal)
    _check_file(path, said, gateway)
    if said.epoch < 1 or said.seq < 0:
        raise Bad("the numbers in its seal are none of a record")
    quads, whole = 0, False
    for number, record in enumerate(records(path, bounds)):
        part = record.snapshot
        if whole:
            raise Bad("something stands behind its end")
        if record.type != "snapshot" or part is None or part.number != number:
            raise Bad(f"line {number + 1} is not the one that belongs there")
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, said.seq):
            raise Bad(f"line {number + 1} is of {record.gw}/{record.epoch}/{record.seq}, and its seal says otherwise")
        quads += len(record.a)
        whole = part.last
        if whole and part.quads != quads:
            raise Bad(f"it has {quads} quads, and says {part.quads}")
    if not whole:
        raise Bad("it breaks off")
    if quads != said.quads:
        raise Bad(f"it has {quads} quads, and its seal says {said.quads}")
    return CheckedSnapshot(said)


def records(path: Path, bounds: Bounds) -> Iterator[Record]:
    """The records in a file. Raises Bad."""
    for number, line in enumerate(lines(path, bounds), 1):
        try:
            yield decode(line)
        except ConfigurationError as error:
            raise Bad(f"line {number}: {error}", NEWER) from error
        except ValueError as error:
            raise Bad(f"line {number}: {error}") from error


def lines(path: Path, bounds: Bounds) -> Iterator[bytes]:
    """The lines of a file that is one zstd frame, without their newlines. Raises Bad."""
    with path.open("rb") as file:
        try:
            yield from frame_lines(file, bounds.line_bytes_max, bounds.content_bytes_max)
        except ValueError as error:
            raise Bad(str(error)) from error


def _agrees(seal: Seal) -> bool:
    """Whether a seal's numbers are possible together."""
    return seal.epoch >= 1 and 1 <= seal.first <= seal.last and seal.count == seal.last - seal.first + 1


_S = TypeVar("_S", Seal, SnapshotSeal)


class _Versioned(msgspec.Struct):
    v: int


def _seal(content: bytes, kind: type[_S]) -> _S:
    try:
        if msgspec.json.decode(content, type=_Versioned).v > VERSION:
            raise Bad(f"its seal is of a newer program than this one, which reads version {VERSION}", NEWER)
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Bad(f"its seal cannot be read: {error}") from error


def _check_file(path: Path, seal: Seal | SnapshotSeal, gateway: str) -> None:
    if seal.gw != gateway:
        raise Bad(f"its seal is of gateway {seal.gw}, and it lies in the folder of {gateway}")
    size = path.stat().st_size
    if size != seal.bytes:
        raise Bad(f"it has {size} bytes, and its seal says {seal.bytes}")
    sha256 = sha256_of(path)
    if sha256 != seal.sha256:
        raise Bad(f"its sha256 is {sha256}, and its seal says {seal.sha256}")
