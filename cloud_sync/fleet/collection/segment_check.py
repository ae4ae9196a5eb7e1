"""Checks an object by its content: a segment, or a snapshot, with its seal.

Everything is read as a stream within bounds. Numbers and times outside the ranges below are refused, so every landed
record fits the manifest (64-bit integers), the tables (32-bit epochs) and the jobs' clocks.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

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
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Quad

# First and last sequence, inclusive.
Range = tuple[int, int]

# A gateway's name, which is also the name of its folder.
GATEWAY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

# Bronze stores epochs in 32 bits. A new epoch begins only after a loss of history.
EPOCH_MAX = 999_999_999
# Names of segments have twelve digits for the sequence.
SEQUENCE_MAX = 999_999_999_999
INTEGER_MAX = 2**63 - 1
# 285 years. Jobs add wall-clock times to it.
BOOTTIME_US_MAX = 2**53
# Gap records in one segment. The collector keeps them in memory; a gateway writes a few in its lifetime.
GAPS_MAX = 10_000
REASON_CHARACTERS_MAX = 500
EPOCH_ID_CHARACTERS_MAX = 64

DAMAGED, NEWER, CHAIN, CONFLICT = "damaged", "newer", "chain", "conflict"

_TIME = re.compile(
    r"(?:19[7-9]|20\d|21\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-](?:0\d|1[0-4]):[0-5]\d)", re.ASCII
)
_HASH = re.compile(r"[0-9a-f]{64}")

TYPES = frozenset({"commit", "timer", "cancel", "subscribe", "unsubscribe", "gap"})


class Bad(Exception):
    """An object fails a check; the text is the reason.

    kind: ``damaged``; ``newer``: written by a newer version, and possibly good; ``chain``: its neighbours' seals name
    other segments, or what is before it has not landed; ``conflict``: a sequence that has landed has another record
    here. gaps: that a segment reports which is whole, and waits.
    """

    def __init__(self, reason: str, kind: str = DAMAGED, gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(printable(reason))
        self.kind = kind
        self.gaps = gaps


class Bounds(NamedTuple):
    """Limits of an object: in the lake, decompressed, and in memory for one line.

    rest_bytes_max: of a line without its quads. A line of 256 MiB has over a million quads. Two such lines and at most
    400 MB more are in memory, whatever they contain.
    """

    bytes_max: int = 2 * 1024**3
    content_bytes_max: int = 16 * 1024**3
    line_bytes_max: int = RECORD_BYTES_MAX
    rest_bytes_max: int = RECORD_REST_BYTES_MAX


def printable(text: str) -> str:
    """A gateway's text as one line for terminals and files: truncated, without control characters."""
    cut = text if len(text) <= REASON_CHARACTERS_MAX else text[:REASON_CHARACTERS_MAX] + "..."
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


@dataclass(frozen=True)
class CheckedSegment:
    """A segment that has passed the checks. ts: of its last record; gaps: (epoch, sequence, gap) of each gap record;
    epoch_id: the random id of its epoch, "" if it does not name it."""

    seal: Seal
    ts: str
    gaps: tuple[tuple[int, int, Gap], ...]
    epoch_id: str = ""


@dataclass(frozen=True)
class CheckedSnapshot:
    """A snapshot that has passed the checks."""

    seal: SnapshotSeal


def without(whole: Range, parts: Iterable[Range]) -> list[Range]:
    """A range minus other ranges. parts: ascending, without overlaps."""
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
    """The seal of a segment whose data failed a check; None if the seal is invalid too."""
    with contextlib.suppress(Bad):
        said = _seal(seal, Seal)
        if said.gw == gateway and _agrees(said):
            return said
    return None


def sha256_of(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_segment(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSegment:
    """Checks a segment against its seal: hash, every line's checksum and JSON, sequences.

    gateway: the name of its folder. Raises Bad, OSError.
    """
    said = _seal(seal, Seal)
    _check_file(path, said, gateway)
    if not _agrees(said):
        raise Bad("the numbers in its seal contradict each other or are out of range")
    if said.previous is not None and not _HASH.fullmatch(said.previous):
        raise Bad(f"its seal names {said.previous!r} as the previous segment, which is not a sha256")
    gaps: list[tuple[int, int, Gap]] = []
    expected, ts, epoch_id = said.first, "", ""
    for record, _ in records(path, bounds):
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, expected):
            raise Bad(
                f"record {record.gw}/{record.epoch}/{record.seq} is at the place of {said.gw}/{said.epoch}/{expected}"
            )
        if record.type not in TYPES:
            raise Bad(f"record {record.epoch}/{record.seq} has the unknown type {record.type[:99]!r}")
        _check_numbers(record)
        if record.gap is not None:
            _check_gap(record, record.gap)
            gaps.append((record.epoch, record.seq, record.gap))
            if len(gaps) > GAPS_MAX:
                raise Bad(f"it has more than {GAPS_MAX} gap records")
        if record.epoch_id and epoch_id not in ("", record.epoch_id):
            raise Bad(f"record {record.epoch}/{record.seq} is of another epoch {record.epoch} than those before it")
        expected, ts, epoch_id = expected + 1, record.ts, record.epoch_id or epoch_id
    if expected != said.last + 1:
        raise Bad(f"it has {count_text(expected - said.first, 'record')}, but its seal says {said.count}")
    return CheckedSegment(said, ts, tuple(gaps), epoch_id)


def checked_snapshot(path: Path, seal: bytes, gateway: str, bounds: Bounds) -> CheckedSnapshot:
    """Checks a snapshot against its seal. Raises Bad, OSError."""
    said = _seal(seal, SnapshotSeal)
    _check_file(path, said, gateway)
    if not 1 <= said.epoch <= EPOCH_MAX or not 0 <= said.seq <= SEQUENCE_MAX:
        raise Bad("the numbers in its seal are out of range")
    quads, whole = 0, False
    for number, (record, added) in enumerate(records(path, bounds)):
        part = record.snapshot
        if whole:
            raise Bad("it has lines after its last one")
        if record.type != "snapshot" or part is None or part.number != number:
            raise Bad(f"line {number + 1} is not part {number} of a snapshot")
        if (record.gw, record.epoch, record.seq) != (said.gw, said.epoch, said.seq):
            raise Bad(
                f"line {number + 1} is of {record.gw}/{record.epoch}/{record.seq}, but its seal says "
                f"{said.gw}/{said.epoch}/{said.seq}"
            )
        _check_numbers(record)
        quads += added
        whole = part.last
        if whole and part.quads != quads:
            raise Bad(f"it has {count_text(quads, 'quad')}, but its last line says {part.quads}")
    if not whole:
        raise Bad("it is truncated")
    if quads != said.quads:
        raise Bad(f"it has {count_text(quads, 'quad')}, but its seal says {said.quads}")
    return CheckedSnapshot(said)


def records(path: Path, bounds: Bounds) -> Iterator[tuple[Record, int]]:
    """The records of a file, each with the number of quads that it adds. Raises Bad.

    Large records come without their quads, which have been checked.
    """
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
    """The lines of a file with one zstd frame, without newlines. Raises Bad."""
    with open_plain(path) as file:
        yield from lines_in(file, bounds)


def lines_in(file: BinaryIO, bounds: Bounds) -> Iterator[bytes]:
    """As `lines`, of an open file."""
    try:
        yield from frame_lines(file, bounds.line_bytes_max, bounds.content_bytes_max)
    except ValueError as error:
        raise Bad(str(error)) from error


def _agrees(seal: Seal) -> bool:
    """Whether a seal's numbers are in range and consistent."""
    return (
        1 <= seal.epoch <= EPOCH_MAX
        and 1 <= seal.first <= seal.last <= SEQUENCE_MAX
        and seal.count == seal.last - seal.first + 1
    )


def is_time(text: str) -> bool:
    """Whether a text is an RFC 3339 time with a zone, in the years 1970 to 2199."""
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:  # such as the 30th of February
        return False
    return True


def _check_numbers(record: Record) -> None:
    """Raises Bad for a time or a number that does not fit the tables. Epoch and sequence are checked elsewhere."""
    if not is_time(record.ts):
        raise Bad(f"record {record.epoch}/{record.seq}: {record.ts!r} is not a time with a zone in 1970 to 2199")
    if len(record.epoch_id) > EPOCH_ID_CHARACTERS_MAX:
        raise Bad(f"record {record.epoch}/{record.seq}: epoch_id has more than {EPOCH_ID_CHARACTERS_MAX} characters")
    cause, timer, followed = record.cause, record.timer, record.subscribe
    for name, number, most in (
        ("boottime_us", record.boottime_us, BOOTTIME_US_MAX),
        ("cause.seq", None if cause is None else cause.seq, SEQUENCE_MAX),
        ("synced", record.synced, SEQUENCE_MAX),
        ("timer.delay_us", None if timer is None else timer.delay_us, INTEGER_MAX),
        ("subscribe.keep_us", None if followed is None else followed.keep_us, INTEGER_MAX),
    ):
        if number is not None and not 0 <= number <= most:
            raise Bad(
                f"record {record.epoch}/{record.seq}: {name} is {_number_text(number)}; it must be from 0 to {most}"
            )


def _check_gap(record: Record, gap: Gap) -> None:
    """Raises Bad for an impossible gap. A gap is of earlier records, or of an unknown number at the end of an epoch."""
    last = gap.first if gap.last is None else gap.last
    possible = 1 <= gap.epoch <= record.epoch and 1 <= gap.first <= last <= SEQUENCE_MAX
    if not possible or len(gap.reason) > REASON_CHARACTERS_MAX:
        raise Bad(
            f"record {record.epoch}/{record.seq} says that records {_number_text(gap.epoch)}/{_number_text(gap.first)} "
            f"to {_number_text(last)} are lost ({gap.reason}), which is impossible"
        )


def _number_text(number: int) -> str:
    """A number as text. Python refuses to write very long ones."""
    return str(number) if number.bit_length() < 128 else f"of {number.bit_length()} bits"


# --- lines that are large -----------------------------------------------------------------------------------

# Longer lines are read in pieces, because quads as objects take 20 times their bytes.
_WHOLE_BYTES_MAX = 1024**2
_PIECE = re.compile(
    # Matches any JSON strings; msgspec checks their content. Possessive quantifiers avoid backtracking.
    rb'(?:\[(?:(?:"(?:[^"\\]++|\\.)*+"|null),?){4}\],?|(?!)){1,4096}+',
    re.DOTALL,
)
_quads = msgspec.json.Decoder(list[Quad])


class _Large(msgspec.Struct):
    """The quads of a record, not decoded."""

    d: msgspec.Raw = msgspec.Raw(b"[]")
    a: msgspec.Raw = msgspec.Raw(b"[]")
    k: msgspec.Raw = msgspec.Raw(b"[]")


class _Lean(Record, frozen=True):
    """A record whose quads are not decoded."""

    d: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    a: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    k: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


_large_of = msgspec.json.Decoder(_Large).decode
_lean_of = msgspec.json.Decoder(_Lean).decode


def _large(line: bytes, bounds: Bounds) -> tuple[Record, int]:
    """The record of a long line without its quads, and the number of quads that it adds. Raises ValueError."""
    try:
        content = check(line) + b"}"
        found = _large_of(content)
        if len(line) - sum(len(part) for part in (found.d, found.a, found.k)) > bounds.rest_bytes_max:
            raise ValueError(f"it has more than {bounds.rest_bytes_max} bytes besides its quads")
        record = _lean_of(content)
        if record.v != VERSION:
            raise ConfigurationError(f"the record has version {record.v}; this program reads version {VERSION}")
        counts = [_quad_count(part) for part in (found.d, found.a, found.k)]
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    return record, counts[1]


def _quad_count(array: msgspec.Raw) -> int:
    """The number of quads in a JSON array. Raises ValueError or DecodeError if an item is not a quad."""
    text = memoryview(array)
    if bytes(text[:1]) != b"[" or bytes(text[-1:]) != b"]":
        raise ValueError("its quads are not an array")
    place, count = 1, 0
    while place < len(text) - 1:
        found = _PIECE.match(text, place)
        if found is None:
            raise ValueError("its quads are not an array of quads")
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
            raise Bad(f"its seal has version {_number_text(version)}; this program reads version {VERSION}", NEWER)
        if version < VERSION:
            raise Bad(f"its seal has version {_number_text(version)}, which does not exist")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Bad(f"its seal cannot be read: {error}") from error


def _check_file(path: Path, seal: Seal | SnapshotSeal, gateway: str) -> None:
    if seal.gw != gateway:
        raise Bad(f"its seal is of gateway {seal.gw}, but it is in the folder of {gateway}")
    size = path.stat().st_size
    if size != seal.bytes:
        raise Bad(f"it has {count_text(size, 'byte')}, but its seal says {seal.bytes}")
    sha256 = sha256_of(path)
    if sha256 != seal.sha256:
        raise Bad(f"its sha256 is {sha256}, but its seal says {seal.sha256}")
