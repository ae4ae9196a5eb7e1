"""The change log on disk: one writer that appends, syncs, and continues where an earlier one ended.

::

    <data>/lock, identity                   see `gateway.log.data_folder`
    <data>/log/1-000000000001.ndjson.zst    <epoch>-<first sequence>, a segment that is or was being written
    <data>/log/1-000000000001-000000000999.ndjson.zst, .json    the same, sealed (`gateway.log.sealing`)
    <data>/snapshots/1-000000000999.ndjson.zst    what was known at that record (`gateway.log.snapshots`)
    <data>/damaged/...                      what recovery set aside
    <data>/damage.json                      reports of it (`gateway.log.damage`)

A record is written with one `write` and is durable after `sync`. A failed write and each start begin a new segment.
Everything before it is made durable before its first record. So only the end of the last segment can be torn
(`gateway.log.reader`). While the disk cannot be written, append raises ChangeLogError; each later append tries again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import (
    EPOCH_REQUEST,
    RECORD_BYTES_MAX,
    RECORD_REST_BYTES_MAX,
    VERSION,
    Gap,
    GraphChanges,
    Record,
    SegmentName,
    encode,
)
from lamplighter.engine.change_log.frames import CLOSED, FrameWriter
from lamplighter.engine.errors import ChangeLogError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import Slices
from lamplighter.gateway.clock import Clock, RecordClocks, iso
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.damage import DamageReport, KnownDamage
from lamplighter.gateway.log.data_folder import DataFolder, requested_epoch
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.reader import Corruption, LogReader, Segment, UnreplayableRecord
from lamplighter.gateway.log.tail import LogTail
from lamplighter.gateway.settings import Durability

logger = EventLogger(__name__)


@dataclass(frozen=True)
class Recovery:
    """The result of a replay. records: that were replayed; cut_bytes: of the torn tail; set_aside: the folder with the
    rest of damaged segments, if there are any; reason: what is wrong with them."""

    records: int
    cut_bytes: int
    set_aside: Path | None
    reason: str = ""


class LogWriter:
    """Single writer of a gateway's change log. Use: `open`, `replay`, then `append` and `sync`. append is cheap and
    synchronous; sync blocks for the disk and may run in another thread while append does."""

    def __init__(self, data: Path, clock: Clock, durability: Durability = "fsync", disk: Disk | None = None) -> None:
        self.data = data
        self.path = data / "log"
        self.disk = disk or Disk()
        self.folder = DataFolder(data, self.disk)
        self.clock = clock
        self._durability = durability
        self.waits = durability == "fsync"  # whether answers have to wait for `sync`
        self._file: int | None = None
        self._frames = FrameWriter()
        self._files = threading.Lock()  # held while files are synced, opened or closed
        self._behind: list[int] = []  # files of segments that are ended and may not be durable
        self._before: list[Segment] = []  # the same, of earlier runs
        self._removed: list[Segment] = []  # no longer part of the log; removed when there is a next one
        self._damage: Corruption | None = None
        self._gap: Gap | None = None
        self._dirty = False  # whether there is something to sync
        self._named = True  # whether the name of the file is durable
        self._placed = False  # whether the names of the folders are durable
        self._durable = 0  # the last sequence that is durable
        self.tail = LogTail()
        self.damage = KnownDamage(data, self.disk)  # what starts have found and no operator has accepted
        self.slices = Slices()  # called where the encoding of a long record may be interrupted
        self.gateway = ""
        self.epoch, self.sequence = 1, 0
        self.epoch_id = ""  # empty in an epoch that an earlier version has begun
        self.current: SegmentName | None = None  # the segment that is being written
        self.size = 0  # its bytes
        self.begun_us = 0  # CLOCK_BOOTTIME at which it was begun
        self.ended = 0  # segments that ended since the start
        self.refusing = ""  # why the last append failed; empty when it did not
        # Set after a failed sync. It is then unknown what is on the disk, and another sync reports nothing. No record
        # is accepted any more; only a restart recovers.
        self.broken: ChangeLogError | None = None

    # --- start ---

    def open(self) -> None:
        """Locks the data folder. Raises ConfigurationError when it cannot be used or another gateway has it."""
        self.folder.open()
        self.gateway = self.folder.gateway

    def replay(
        self,
        take: Callable[[Record], None],
        epoch: int = 1,
        sequence: int = 0,
        *,
        strict: bool = False,
        unfollowable: UnreplayableRecord | None = None,
    ) -> Recovery:
        """Passes every good record behind a position to `take`, in order, and makes the log ready for append.

        After damage, the files behind it are set aside, and a gap record begins a new epoch; strict: damage is refused.
        unfollowable: a record that counts as damage. Raises ChangeLogError when a file cannot be read, or is damaged
        and strict is set.
        """
        reader = LogReader(self.path, epoch, sequence, self.clock.boot, unfollowable)
        count = 0
        for record in reader:
            take(record)
            count += 1
        self.epoch, self.sequence, self.epoch_id = reader.epoch, reader.sequence, reader.epoch_id
        self._before = [segment for segment in reader.segments if not segment.is_sealed]
        # Files that a recovery left behind; they go when the log has a segment that makes them useless.
        self._removed = reader.unread
        if reader.damage is not None:
            if strict:
                raise ChangeLogError(
                    f"damaged: {reader.damage.reason}",
                    path=reader.damage.aside[0].path,
                    hint='log.recovery = "strict" allows no start after damage; restore a copy, or set "continue"',
                    sequence=self.sequence,
                )
            self._damage = reader.damage
            self.damage.note(
                DamageReport(
                    iso(self.clock.wall()),
                    f"the change log was damaged: {reader.damage.reason}; records that could not be recovered are in "
                    f"{self.data / 'damaged'}",
                )
            )
            # Written as the first record of the new epoch, so that readers and the fleet know what is lacking.
            self._gap = Gap(self.epoch, self.sequence + 1, reader.damage.reason, aside="damaged")
            # Later segments are set aside too, and their epochs are used up.
            self.epoch = 1 + max([self.epoch, *(segment.name.epoch for segment in reader.segments)])
            self.sequence = 0
        elif self.sequence and (reason := requested_epoch(self.data, self.epoch)):
            # Another history has the records behind this one, in the fleet's tables or in the future of a backup.
            self._gap = Gap(self.epoch, self.sequence + 1, reason)
            self.epoch, self.sequence = self.epoch + 1, 0
        if not self.sequence:
            self.epoch_id = secrets.token_hex(8)
        try:
            self._begin()
        except ChangeLogError as error:
            # A full disk does not keep the gateway from reading: it starts, and refuses updates.
            logger.error("change log not writable", reason=error)
        aside, reason = (self.data / "damaged", reader.damage.reason) if reader.damage else (None, "")
        return Recovery(count, sum(trouble.bytes for trouble in reader.torn), aside, reason)

    # --- running ---

    def append(self, entry: LogEntry, clocks: RecordClocks | None = None) -> Record:
        """Writes one record with the next sequence. clocks: at its moment, if the caller has looked. Raises
        ChangeLogError, or LimitExceededError for one that is too long to be read; then the log is unchanged."""
        if self.broken is not None or self.folder.gone:
            raise self.broken or self.folder.refusal()
        if self._file is None:
            self._begin()
        # Behind `_begin`, which writes the gap record: a record that was given its number before would come in its
        # place.
        delta, clocks = entry.delta, clocks or self.clock.sample()
        record = Record(
            v=VERSION,
            type=entry.type,
            gw=self.gateway,
            epoch=self.epoch,
            seq=self.sequence + 1,
            ts=iso(clocks.wall),
            trusted=clocks.trusted,
            boot=self.clock.boot,
            boottime_us=clocks.boottime_us,
            cause=entry.cause,
            request=entry.request,
            client=entry.client,
            instant=entry.instant,
            graphs=GraphChanges(delta.created, delta.dropped) if delta.created or delta.dropped else None,
            d=delta.removed,
            a=delta.added,
            k=delta.kept,
            timer=entry.timer,
            cancel=entry.cancel,
            gap=entry.gap,
            subscribe=entry.subscribe,
            unsubscribe=entry.unsubscribe,
            # Once a frame is enough. It proves to a later start that records up to there were on the disk.
            synced=self._durable if self._frames.at_start and self._durable else None,
            # Once a segment: it says of which epoch it is, also if those before it are lost.
            epoch_id="" if self.size else self.epoch_id,
        )
        line = encode(record, self.slices)
        # Nearly all records are shorter than even the smaller limit, so they need no second encoding.
        if len(line) > RECORD_REST_BYTES_MAX:
            _check_size(line, record)
        if self._file is None:  # the segment was ended while a long record was encoded
            self._begin()
        assert self._file is not None
        try:
            data = self._frames.add(line)
            # write(2) may write a part when the disk is nearly full.
            if self.disk.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException as error:
            with contextlib.suppress(OSError):  # part of it may be written, and takes space
                self.disk.truncate(self._file, self.size)
            self.end_segment()  # the frames refer to bytes that were not written
            if isinstance(error, OSError):
                raise self._error(error) from error
            raise
        self.size += len(data)
        self.sequence += 1
        self.refusing = ""
        self._dirty = True
        # Before it is durable: `LogTail` gives out only what was acknowledged.
        self.tail.append((record.epoch, record.seq), line)
        return record

    def look(self) -> None:
        """Looks whether the log is still there, as `DataFolder.look`."""
        self.folder.look(self.path / str(self.current) if self.current else None, self._file)

    def _begin(self) -> None:
        """Begins a segment, when all before it is durable. Raises ChangeLogError; the next append tries again."""
        frames, begun_us = FrameWriter(), self.clock.boottime_us()  # before the file exists: the two belong together
        try:
            with self._files:
                # A segment begins only when all before it is durable: so only the last one can have a torn tail.
                self._settle()
                self._set_aside()
                name = SegmentName(self.epoch, self.sequence + 1)
                self._file = self.disk.create(self.path / str(name))
                self._named = False
        except OSError as error:
            raise self._error(error) from error
        self.current, self.size, self.begun_us = name, 0, begun_us
        self._frames, self._durable = frames, self.sequence
        if self._gap is not None:
            gap, self._gap = self._gap, None
            try:
                # Durable before anything else of the new epoch: without it, the next start could not follow from the
                # old one.
                self.append(entries.gap(gap))
                self.sync(always=True)
            except BaseException:
                # The next append tries again.
                self._gap, self.sequence = gap, 0
                self.end_segment()
                raise
            self._damage = None
            with contextlib.suppress(OSError):  # a request for an epoch that has ended is left alone
                self.disk.remove(self.data / EPOCH_REQUEST)
        for segment in self._removed:
            with contextlib.suppress(OSError):  # they do no harm
                self.disk.remove(segment.path)
        self._removed = []

    def _settle(self) -> None:
        """Syncs everything that was written before, also by an earlier run that may have been killed."""
        self._sync_ended()
        for segment in self._before:
            # Written again: after a failed sync the kernel marks pages as clean that never reached the disk.
            with contextlib.suppress(FileNotFoundError):  # it was sealed in the meantime
                self.disk.write_file(segment.path, [segment.path.read_bytes()])
        if not self._placed:  # an earlier run may have made the folders, and been killed before they were durable
            for folder in (self.data, self.data.parent):
                self.disk.sync_folder(folder)
            self._placed = True
        if not self._named:
            self.disk.sync_folder(self.path)
            self._named = True
        self._before = []

    def _set_aside(self) -> None:
        """Links the rest of damaged segments into `damaged`."""
        # After the gap record, segments without a good record before the damage are removed from the log.
        if self._damage is None:
            return
        # The report before the files move: a crash in between must not make damage look like health.
        self.damage.write()
        aside = self.data / "damaged"
        for segment in self._damage.aside:
            # A link: the file stays in the log until the gap record is durable.
            self.disk.link(segment.path, aside / f"{segment.path.name}.{self.epoch}")
        self.disk.sync_folder(aside)
        self._removed += self._damage.aside[1:]

    def end_segment(self) -> None:
        """Ends the current segment; the next record begins another one. Does not wait for the disk."""
        with self._files:
            if self._file is not None:
                self._behind.append(self._file)
                self._file = None
                self.current = None
                self.ended += 1

    def sync(self, *, always: bool = False) -> None:
        """Syncs what was appended, if the policy or `always` requires it. Raises ChangeLogError after a disk error."""
        if self._durability == "off" and not always and self.broken is None:
            return
        with self._files:  # a caller that finds nothing to do has waited for the one that synced
            if self.broken is not None:
                raise self.broken
            if not self._dirty:
                return
            sequence, self._dirty = self.sequence, False  # before, since records may come while the disk works
            try:
                self._sync_files()
            except OSError as error:
                self._dirty = True
                raise self._error(error, "check the disk") from error
            self._durable = sequence

    def _sync_file(self, file: int) -> None:
        try:
            self.disk.sync(file)
        except OSError as error:
            self.broken = self._error(error, "check the disk")
            raise

    def _sync_ended(self) -> None:
        while self._behind:
            self._sync_file(self._behind[-1])
            self.disk.close(self._behind.pop())

    def _sync_files(self) -> None:
        self._sync_ended()
        if self._file is not None:
            self._sync_file(self._file)
        if not self._named:
            self.disk.sync_folder(self.path)
            self._named = True

    def _error(self, error: OSError, hint: str = "free some space; nothing was changed") -> ChangeLogError:
        self.refusing = str(error.strerror)
        return ChangeLogError(self.refusing, path=self.path, hint=hint, sequence=self.sequence)

    def head(self) -> Record:
        """The place of the last record and the current clocks, for files beside the log."""
        clocks = self.clock.sample()
        return Record(
            v=VERSION,
            type="snapshot",
            gw=self.gateway,
            epoch=self.epoch,
            seq=self.sequence,
            ts=iso(clocks.wall),
            trusted=clocks.trusted,
            boot=self.clock.boot,
            boottime_us=clocks.boottime_us,
        )

    def finish(self) -> None:
        """A clean end: everything is durable, and a file records it. Errors are logged."""
        try:
            self.sync(always=True)
            if self._file is not None:
                # The mark says that nothing can be missing behind it: bytes after it are damage, not a torn tail.
                self.disk.write_all(self._file, self._frames.end() + CLOSED)
                self.disk.sync(self._file)
        except (ChangeLogError, OSError) as error:
            logger.error("change log not closed cleanly", reason=error)
        self.close()

    def close(self) -> None:
        with self._files:
            for descriptor in (self._file, *self._behind):
                if descriptor is not None:
                    self.disk.close(descriptor)
            self._file, self._behind = None, []
        self.folder.close()


def _check_size(line: bytes, record: Record) -> None:
    """Raises LimitExceededError for a record that would be too long for its readers."""
    if len(line) > RECORD_BYTES_MAX:
        raise LimitExceededError(
            f"the change-log record of this request has {len(line)} bytes, and {RECORD_BYTES_MAX} is the most; "
            "change fewer quads at once, for instance one graph after the other"
        )
    # Readers hold all but the quads in memory, so that has a limit of its own.
    rest = len(encode(msgspec.structs.replace(record, d=(), a=(), k=())))
    if rest > RECORD_REST_BYTES_MAX:
        raise LimitExceededError(
            f"the change-log record of this request has {rest} bytes besides its quads, and {RECORD_REST_BYTES_MAX} is "
            "the most; send a shorter text, or create and drop fewer graphs at once"
        )
