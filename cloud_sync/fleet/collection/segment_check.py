"""Whether an object is what it should be, by its content alone: a segment, or a snapshot, with its seal.

Everything is read as a stream within bounds. Numbers and times outside the ranges below are refused here, so that
whatever has landed fits the manifest (64-bit integers), the tables (32-bit epochs) and the clocks of the jobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from lamplighter.cloud_sync.answers import SnapshotSeal
from lamplighter.cloud_sync.files import open_plain
from lamplighter.engine.change_log import (
    RECORD_BYTES_MAX,
    RECORD_REST_BYTES_MAX,
    VERSION,
    Gap,
    Record,
    Seal,
    check,
    decode,
)
from lamplighter.engine.change_log.frames import frame_lines
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import Quad

Range = tuple[int, int]
"""First and last sequence, both in it."""

GATEWAY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""What a gateway may be called; it becomes a folder's name."""

EPOCH_MAX = 999_999_999
"""A loss of history begins an epoch; bronze has 32 bits for its number."""
SEQUENCE_MAX = 999_999_999_999
"""The names of segments have twelve digits for it."""
INTEGER_MAX = 2**63 - 1
BOOTTIME_US_MAX = 2**53
"""285 years. Jobs add wall clocks to it."""
GAPS_MAX = 10_000
"""Gap records in one segment, which the collector keeps in memory; a gateway writes a few in its life."""
REASON_CHARACTERS_MAX = 500

NEWER, CHAIN, CONFLICT = "newer", "chain", "conflict"

_TIME = re.compile(
    r"(?:19[7-9]|20\d|21\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-](?:0\d|1[0-4]):[0-5]\d)", re.ASCII
)
_HASH = re.compile(r"[0-9a-f]{64}")

TYPES = frozenset({"commit", "timer", "cancel", "subscribe", "unsubscribe", "gap"})


class Bad(Exception):
    """An object is not what it should be; the text says why.

    kind: ``damaged`` in itself; ``newer``: of a newer program, which may be good; ``chain``: its neighbours name other
    segments beside them; ``conflict``: it has another record under a sequence that has landed.
    """

    def __init__(self, reason: str, kind: str = "damaged") -> None:
        super().__init__(printable(reason))
        self.kind = kind


class Bounds(NamedTuple):
    """What an object may take: in the lake, unpacked, and in memory for one of its lines.

    rest_bytes_max: of a line without its quads. A line of 256 MiB has over a million quads; memory is two such lines
    and some 400 MB at most, whatever is in them.
    """

    bytes_max: int = 2 * 1024**3
    content_bytes_max: int = 16 * 1024**3
    line_bytes_max: int = RECORD_BYTES_MAX
    rest_bytes_max: int = RECORD_REST_BYTES_MAX


def printable(text: str) -> str:
    """Text of a gateway as one line for terminals and files: cut, and without control characters."""
    cut = text if len(text) <= REASON_CHARACTERS_MAX else text[:REASON_CHARACTERS_MAX] + "..."
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


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
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_segment(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSegment:
    """Checks a segment against its seal: hash, every line's checksum and JSON, sequences. gateway: whose folder it
    was in. Raises Bad, OSError."""
    said = _seal(seal, Seal)
    _check_file(path, said, gateway)
    if not _agrees(said):
        raise Bad("the numbers in its seal contradict each other, or are larger than those of a log")
    if said.previous is not None and not _HASH.fullmatch(said.previous):
        raise Bad(f"its seal names {said.previous!r} as the segment before it, which is no sha256")
    gaps: list[tuple[int, int, Gap]] = []
    expected, ts = said.first, ""
    for record, _ in records(path, bounds):
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, expected):
            raise Bad(
                f"record {record.gw}/{record.epoch}/{record.seq} stands where {said.gw}/{said.epoch}/{expected} should"
            )
        if record.type not in TYPES:
            raise Bad(f"record {record.epoch}/{record.seq} has the type {record.type[:99]!r}, which is none of a log")
        _check_numbers(record)
        if record.gap is not None:
            _check_gap(record, record.gap)
            gaps.append((record.epoch, record.seq, record.gap))
            if len(gaps) > GAPS_MAX:
                raise Bad(f"it has more than {GAPS_MAX} gap records")
        expected, ts = expected + 1, record.ts
    if expected != said.last + 1:
        raise Bad(f"it has {expected - said.first} records, and its seal says {said.count}")
    return CheckedSegment(said, ts, tuple(gaps))


def checked_snapshot(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSnapshot:
    """The same for a snapshot. Raises Bad, OSError."""
    said = _seal(seal, SnapshotSeal)
    _check_file(path, said, gateway)
    if not 1 <= said.epoch <= EPOCH_MAX or not 0 <= said.seq <= SEQUENCE_MAX:
        raise Bad("the numbers in its seal are none of a record")
    quads, whole = 0, False
    for number, (record, added) in enumerate(records(path, bounds)):
        part = record.snapshot
        if whole:
            raise Bad("something stands behind its end")
        if record.type != "snapshot" or part is None or part.number != number:
            raise Bad(f"line {number + 1} is not the one that belongs there")
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, said.seq):
            raise Bad(f"line {number + 1} is of {record.gw}/{record.epoch}/{record.seq}, and its seal says otherwise")
        _check_numbers(record)
        quads += added
        whole = part.last
        if whole and part.quads != quads:
            raise Bad(f"it has {quads} quads, and says {part.quads}")
    if not whole:
        raise Bad("it breaks off")
    if quads != said.quads:
        raise Bad(f"it has {quads} quads, and its seal says {said.quads}")
    return CheckedSnapshot(said)


def records(path: Path, bounds: Bounds) -> Iterator[tuple[Record, int]]:
    """The records in a file, each with the number of quads that it adds; large ones without their quads, which have
    been checked. Raises Bad."""
    for number, line in enumerate(lines(path, bounds), 1):
        try:
            if len(line) > _WHOLE_BYTES_MAX:
                yield _large(line, bounds)
            else:
                record = decode(line)
                yield record, len(record.a)
        except ConfigurationError as error:
            raise Bad(f"line {number}: {error}", NEWER) from error
        except (ValueError, RecursionError) as error:
            raise Bad(f"line {number}: {error}") from error


def lines(path: Path, bounds: Bounds) -> Iterator[bytes]:
    """The lines of a file that is one zstd frame, without their newlines. Raises Bad."""
    with open_plain(path) as file:
        try:
            yield from frame_lines(file, bounds.line_bytes_max, bounds.content_bytes_max)
        except ValueError as error:
            raise Bad(str(error)) from error


def _agrees(seal: Seal) -> bool:
    """Whether a seal's numbers are possible, each and together."""
    return (
        1 <= seal.epoch <= EPOCH_MAX
        and 1 <= seal.first <= seal.last <= SEQUENCE_MAX
        and seal.count == seal.last - seal.first + 1
    )


def is_time(text: str) -> bool:
    """Whether this is a time of RFC 3339 with its zone, in the years 1970 to 2199."""
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:  # such as the 30th of February
        return False
    return True


def _check_numbers(record: Record) -> None:
    """Raises Bad for a time or a number that the tables have no room for; its place is the seal's, and checked."""
    if not is_time(record.ts):
        raise Bad(f"record {record.epoch}/{record.seq} has the time {record.ts!r}; years 1970 to 2199 with a zone are")
    cause, timer, followed = record.cause, record.timer, record.subscribe
    for name, number, most in (
        ("boottime_us", record.boottime_us, BOOTTIME_US_MAX),
        ("cause.seq", None if cause is None else cause.seq, SEQUENCE_MAX),
        ("synced", record.synced, SEQUENCE_MAX),
        ("timer.delay_us", None if timer is None else timer.delay_us, INTEGER_MAX),
        ("subscribe.keep_us", None if followed is None else followed.keep_us, INTEGER_MAX),
    ):
        if number is not None and not 0 <= number <= most:
            raise Bad(f"record {record.epoch}/{record.seq}: {name} is {_shown(number)}, and 0 to {most} is possible")


def _check_gap(record: Record, gap: Gap) -> None:
    """Raises Bad for a gap that cannot be: it is of records that came before, or of what follows the log in its epoch
    where nobody knows how many are lost."""
    last = gap.first if gap.last is None else gap.last
    possible = 1 <= gap.epoch <= record.epoch and 1 <= gap.first <= last <= SEQUENCE_MAX
    if not possible or len(gap.reason) > REASON_CHARACTERS_MAX:
        raise Bad(
            f"record {record.epoch}/{record.seq} says that records {_shown(gap.epoch)}/{_shown(gap.first)} to "
            f"{_shown(last)} are lost ({gap.reason}), which cannot be"
        )


def _shown(number: int) -> str:
    """A number that may have any length, which Python does not write."""
    return str(number) if number.bit_length() < 128 else f"of {number.bit_length()} bits"


# --- lines that are large -----------------------------------------------------------------------------------

_WHOLE_BYTES_MAX = 1024**2
"""A longer line is read piece by piece: as objects its quads take 20 times their bytes."""
_PIECE = re.compile(
    # Any JSON strings; msgspec judges what is in them. Possessive, so that no text is looked at twice.
    rb'(?:\[(?:(?:"(?:[^"\\]++|\\.)*+"|null),?){4}\],?){1,4096}+',
    re.DOTALL,
)
_quads = msgspec.json.Decoder(list[Quad])


class _Large(msgspec.Struct):
    """Where the quads of a record stand."""

    d: msgspec.Raw = msgspec.Raw(b"[]")
    a: msgspec.Raw = msgspec.Raw(b"[]")
    k: msgspec.Raw = msgspec.Raw(b"[]")


class _Lean(Record, frozen=True):
    """A record whose quads are left as they are."""

    d: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    a: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    k: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


_large_of = msgspec.json.Decoder(_Large).decode
_lean_of = msgspec.json.Decoder(_Lean).decode


def _large(line: bytes, bounds: Bounds) -> tuple[Record, int]:
    """The record in a line of any length, without its quads, and how many it adds. Raises ValueError."""
    try:
        content = check(line) + b"}"
        found = _large_of(content)
        if len(line) - sum(len(part) for part in (found.d, found.a, found.k)) > bounds.rest_bytes_max:
            raise ValueError(f"without its quads it is longer than {bounds.rest_bytes_max} bytes")
        record = _lean_of(content)
        if record.v != VERSION:
            raise ConfigurationError(f"it is a record of version {record.v}, and this program reads version {VERSION}")
        counts = [_quad_count(part) for part in (found.d, found.a, found.k)]
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    return record, counts[1]


def _quad_count(array: msgspec.Raw) -> int:
    """How many quads a JSON array has. Raises ValueError, DecodeError unless all of its items are quads."""
    text = memoryview(array)
    if bytes(text[:1]) != b"[" or bytes(text[-1:]) != b"]":
        raise ValueError("its quads are no array")
    place, count = 1, 0
    while place < len(text) - 1:
        found = _PIECE.match(text, place)
        if found is None:
            raise ValueError("its quads are no array of quads")
        count += len(_quads.decode(b"[%s]" % found[0].removesuffix(b",")))
        place = found.end()
    return count


_S = TypeVar("_S", Seal, SnapshotSeal)


class _Versioned(msgspec.Struct):
    v: int


def _seal(content: bytes, kind: type[_S]) -> _S:
    try:
        version = msgspec.json.decode(content, type=_Versioned).v
        if version > VERSION:
            raise Bad(f"its seal is of a newer program than this one, which reads version {VERSION}", NEWER)
        if version < VERSION:
            raise Bad(f"its seal is of version {_shown(version)}, which no program has written")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
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
