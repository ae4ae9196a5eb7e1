"""Reads the change log from its files: every good record in order, torn tails, damage.

A start appends nothing to the files of earlier starts. It begins a new segment that continues where the good records
ended. Everything behind those records is then no longer part of the log:

- a segment whose first record follows the last good one: the unreadable part was a torn tail;
- a segment that begins with a gap record at that place: it was damage, and an epoch ended. The same holds if the
previous segment has good records further on: they could not be applied.

If nothing follows, the reader decides: the unreadable part is an unacknowledged write that a power cut or a kill cut
short, or it is damage (design 4.6).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import Record, Seal, SegmentName, check, decode, place, seal_name, segment_name
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.client.files import json_document, own_problem, read_file
from lamplighter.engine.errors import ChangeLogError


@dataclass(frozen=True)
class Segment:
    path: Path
    name: SegmentName

    @property
    def is_sealed(self) -> bool:
        return self.name.last is not None

    @property
    def begin(self) -> tuple[int, int]:
        return self.name.epoch, self.name.first


@dataclass(frozen=True)
class ReadError:
    """Where good records of a segment end. bytes: how many are left; proven: they prove that records are missing."""

    segment: Segment
    offset: int
    bytes: int
    reason: str
    proven: bool


@dataclass
class Corruption:
    """Durable records cannot be read. aside: the segments with the rest of them."""

    reason: str
    aside: list[Segment] = field(default_factory=list)


@dataclass(frozen=True)
class UnreplayableRecord:
    """A record that is whole and cannot be applied. place: its epoch and sequence."""

    place: tuple[int, int]
    reason: str


def segments(folder: Path) -> list[Segment]:
    """The segments in the order of their records. If one exists both sealed and unsealed, the complete one."""
    found: dict[tuple[int, int], Segment] = {}
    for path in sorted(folder.iterdir()):
        name = segment_name(path.name)
        if name is None:
            continue
        segment = Segment(path, name)
        other = found.get(segment.begin)
        # The seal is written last. Without it, the original segment still exists.
        if other is None or (segment.is_sealed and seal_of(segment) is not None):
            found[segment.begin] = segment
    return [found[begin] for begin in sorted(found)]


def seal_of(segment: Segment) -> Seal | None:
    """The seal beside a segment, None if there is no readable one."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return json_document(read_file(segment.path.parent / seal_name(segment.name), follow=False), Seal)
    return None


def ends(found: Iterable[Segment]) -> dict[int, int]:
    """The epochs that recoveries ended, from the gap records that begin the next ones: for each, the first sequence
    that is no longer part of the log, though its record may exist."""
    first = (_first(segment) for segment in found if segment.name.first == 1 and segment.name.epoch > 1)
    gaps = (record.gap for record in first if record is not None and record.gap is not None)
    return {gap.epoch: gap.first for gap in gaps if gap.last is None}


LOG_FILE_BYTES_MAX = 2 * 1024**3  # of a segment. It ends at `log.segment_bytes_max`, or with one record more.


def contents(path: Path) -> bytes:
    """The bytes of a file of the log. Raises ChangeLogError."""
    try:
        return read_file(path, LOG_FILE_BYTES_MAX, follow=False)
    except OSError as error:
        reason, _, hint = own_problem(error, path.parent, "check the disk").partition("; ")
        raise ChangeLogError(reason, path=path, hint=hint) from error


class LogReader:
    """Iterates over the records behind a position, once; afterwards the attributes describe the end. epoch, sequence:
    the position, then that of the last good record. boot: of the machine, None for other readers than the gateway; then
    an unreadable tail is never called damage without proof. unfollowable: a record that counts as damage."""

    def __init__(
        self,
        folder: Path,
        epoch: int = 1,
        sequence: int = 0,
        boot: str | None = None,
        unfollowable: UnreplayableRecord | None = None,
    ) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.segments = segments(folder)
        # Segments that are no longer part of the log: another one continues where their good records ended.
        self.unread: list[Segment] = []
        self.torn: list[ReadError] = []  # tails that an interrupted write left and that were cut off at this place
        self.damage: Corruption | None = None
        self._boot = boot
        self._last_boot: str | None = None
        self._unfollowable = unfollowable
        self._ends: dict[int, int] = {}
        self._epoch_ids: dict[int, str] = {}

    @property
    def epoch_id(self) -> str:
        """The id of the epoch of the last good record; "" if the segments that were read do not name it."""
        return self._epoch_ids.get(self.epoch, "")

    def __iter__(self) -> Iterator[Record]:
        rest = self.segments
        # Segments that end before the position.
        while len(rest) > 1 and rest[1].begin <= (self.epoch, self.sequence + 1):
            rest = rest[1:]
        self._ends = ends(rest)
        open_: list[ReadError] = []
        while rest:
            segment, rest = rest[0], rest[1:]
            trouble = yield from self._records(segment)
            if trouble is not None:
                open_.append(trouble)
            next_ = next((index for index, later in enumerate(rest) if self._follows(_first(later))), None)
            # A later segment goes on exactly here, so what is unreadable in between was never acknowledged: a recovery
            # has begun again behind it.
            if next_ is not None:
                self.unread += rest[:next_]
                rest, open_ = rest[next_:], []
        if not open_:
            return
        # Records of several segments are lost only if one of them was durable.
        if any(trouble.proven for trouble in open_):
            self.damage = Corruption(open_[0].reason, [trouble.segment for trouble in open_])
        else:
            self.torn = open_

    def _follows(self, record: Record | None) -> bool:
        if record is None:
            return False
        if (record.epoch, record.seq) == (self.epoch, self.sequence + 1):
            return True
        gap = record.gap
        return (
            gap is not None
            and gap.last is None
            and record.epoch > self.epoch
            and record.seq == 1
            and (gap.epoch, gap.first) == (self.epoch, self.sequence + 1)
        )

    def _records(self, segment: Segment) -> Generator[Record, None, ReadError | None]:
        """Its good records behind the position; returns what is wrong with the rest, None if there is no rest."""
        data = contents(segment.path)
        lines = FrameReader(data)
        missing = False
        for line in lines:
            try:
                record = decode(line)
            except ValueError as error:
                lines.stop(str(error))
                missing = _whole(line)  # no write was cut short, so it was durable
                break
            self._last_boot = record.boot
            if record.epoch_id:
                self._epoch_ids[record.epoch] = record.epoch_id
            # Behind a snapshot: the segment began before it.
            if (record.epoch, record.seq) <= (self.epoch, self.sequence):
                continue
            if not self._follows(record):
                lines.stop(f"a record is missing: {record.epoch}/{record.seq} follows {self.epoch}/{self.sequence}")
                missing = True
                break
            reason = self._unfit(record)
            if reason:
                lines.stop(reason)
                missing = True
                break
            self.epoch, self.sequence = record.epoch, record.seq
            yield record
        tail = lines.tail
        if not tail.reason:
            return None
        # A sealed file, or one with the mark of a clean end, was durable as a whole.
        proven = missing or segment.is_sealed or lines.closed or self._proven(lines)
        return ReadError(segment, tail.offset, len(data) - tail.offset, tail.reason, proven)

    def _unfit(self, record: Record) -> str:
        """Why a readable record counts as damage, "" if it does not."""
        end = self._ends.get(record.epoch)
        if end is not None and record.seq >= end:
            return "an earlier start set aside what follows"
        unfollowable = self._unfollowable
        return unfollowable.reason if unfollowable and (record.epoch, record.seq) == unfollowable.place else ""

    def _proven(self, lines: FrameReader) -> bool:
        """Whether the unreadable part was durable: the machine has not lost power since, and more than the end of a
        single write is bad; or a later record proves it."""
        # Without a power cut the kernel has kept all writes; only the last one may have been cut short, by the end of
        # the process.
        same_boot = self._boot is not None and self._last_boot == self._boot
        if same_boot and lines.tail.blocks:
            return True
        for line in lines.later_lines():
            with contextlib.suppress(ValueError):
                record = decode(line)
                if same_boot:
                    return True
                if record.epoch == self.epoch and record.synced is not None and record.synced > self.sequence:
                    return True
        return False


def _whole(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        check(line)
        return True
    return False


def _first(segment: Segment) -> Record | None:
    """The first record of a segment, None if it cannot be read."""
    with contextlib.suppress(ValueError):
        for line in FrameReader(contents(segment.path)):
            return decode(line)
    return None


class CheckedLines:
    """Iterates over the good lines of a segment, without newlines. Afterwards `reason` says what is wrong behind them,
    "" if nothing is. Keeps the file in memory, not the lines. end: the first sequence that is no longer part of the
    log, if a recovery ended the epoch (`ends`)."""

    def __init__(self, segment: Segment, end: int | None = None) -> None:
        self._frames = FrameReader(contents(segment.path))
        self._end = end
        self.reason = ""

    def __iter__(self) -> Iterator[bytes]:
        for line in self._frames:
            try:
                check(line)
                if self._end is not None and place(line)[2] >= self._end:
                    return
            except ValueError as error:
                self.reason = str(error)
                return
            yield line
        self.reason = self._frames.tail.reason
