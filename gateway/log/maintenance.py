"""Upkeep of the change log: sealing, snapshots, retention.

One task beside the event loop's requests: threads wait for the disk, and a fork reads the dataset. A failed step is
logged and retried; clients do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lamplighter.engine.change_log import Gap, Record, SegmentName
from lamplighter.engine.errors import ChangeLogError, GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.disk import TEMPORARY
from lamplighter.gateway.log import retention
from lamplighter.gateway.log.sealing import seal, superseded_files, unsealed_segments
from lamplighter.gateway.log.snapshots import KEPT, snapshots
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.settings import LogSettings
from lamplighter.gateway.workers.ad_hoc import Answer, again_if_stuck

logger = EventLogger(__name__)

PAUSE_S = 1.0
LOOK_TURNS = 60  # the files are listed at least every so many turns; a log of a gigabyte has some thousand
_AGAIN_S = 10.0


@dataclass(frozen=True)
class SnapshotResult:
    """A snapshot in progress. head: its place; content: its bytes, as the fork delivers them."""

    head: Record
    content: Answer


class Owner(Protocol):
    """The owner of the engine, which does these steps in their turn."""

    def take_snapshot(self) -> asyncio.Future[SnapshotResult]:
        """Forks. The outcome is set when every record up to it is as durable as the policy requires."""
        ...

    def note_gap(self, gap: Gap) -> asyncio.Future[None]: ...

    @property
    def quad_count(self) -> int: ...


class LogMaintenance:
    """The upkeep. failed: called with a description of damage; in_thread: runs a function that waits for the disk."""

    def __init__(
        self,
        log: LogWriter,
        owner: Owner,
        settings: LogSettings,
        clock: Clock,
        failed: Callable[[str], None],
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._log = log
        self._owner = owner
        self._settings = settings
        self._clock = clock
        self._failed = failed
        self._in_thread = in_thread
        self._unsealable: set[SegmentName] = set()
        self._cramped = False
        self._turns = 0
        self._looked_at = -1  # segments that had ended when the files were last listed
        self._one_at_a_time = asyncio.Lock()
        self.snapshot = (0, 0)  # the place of the newest snapshot
        self.sealed = 0
        self.evicted = 0
        self.used = 0  # bytes on the disk, when last measured

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await self.turn()
            except Exception as error:
                unexpected = not isinstance(error, (OSError, GatewayError))
                logger.warning("change log upkeep failed", reason=error, exc_info=unexpected)
                await asyncio.sleep(_AGAIN_S)

    async def turn(self) -> None:
        """Does what is due. Raises OSError, GatewayError."""
        self._log.look()
        if self._log.folder.gone:
            return  # a snapshot or a sealed segment in another folder would make that a log with a hole
        async with self._one_at_a_time:
            self._end_segment()
            ended, due = self._log.ended, self._snapshot_due()
            self._turns += 1
            if ended == self._looked_at and not due and self._turns % LOOK_TURNS:
                return  # there is nothing new to seal or to make room for
            try:
                await self._seal()
                if due:
                    await self._take_snapshot()
            except (OSError, GatewayError):  # the disk may be full
                await self._make_room()
                raise
            await self._make_room()
            self._looked_at = ended

    def _end_segment(self) -> None:
        log, settings = self._log, self._settings
        age_s = (self._clock.boottime_us() - log.begun_us) / 1e6
        if (
            log.current is not None
            and log.size
            and (log.size >= settings.segment_bytes_max or age_s >= settings.segment_s_max)
        ):
            log.end_segment()

    async def _seal(self) -> None:
        for path in superseded_files(self._log.path):
            self._log.disk.remove(path)
        log = self._log
        for segment in unsealed_segments(log.path, log.current, log.epoch, log.sequence):
            if segment.name in self._unsealable:
                continue
            await self._in_thread(lambda: self._log.sync(always=True))
            try:
                if await self._in_thread(seal, self._log.disk, self._log.path, segment) is not None:
                    self.sealed += 1
            except ChangeLogError as error:
                self._unsealable.add(segment.name)
                self._failed(str(error))
                logger.error("segment not sealed", reason=error)

    def _snapshot_due(self) -> bool:
        log = self._log
        if not log.sequence or (log.epoch, log.sequence) == self.snapshot:
            return False
        if self.snapshot[0] != log.epoch and log.epoch > 1:
            return True  # records before the gap must not be read again
        base = self.snapshot[1] if self.snapshot[0] == log.epoch else 0
        return log.sequence - base >= max(self._settings.snapshot_records, self._owner.quad_count // 4)

    async def take_snapshot(self) -> None:
        """Takes a snapshot now. Raises OSError, GatewayError."""
        async with self._one_at_a_time:
            await self._take_snapshot()

    async def _take_snapshot(self) -> None:
        await again_if_stuck(self._take_one_snapshot)

    async def _take_one_snapshot(self) -> None:
        disk, folder = self._log.disk, self._log.data / "snapshots"
        taken = await self._owner.take_snapshot()
        name = SegmentName(taken.head.epoch, taken.head.seq)
        temporary = folder / f"{name}{TEMPORARY}"
        try:
            file = disk.create(temporary)
            try:
                async for chunk in taken.content.chunks():
                    await self._in_thread(disk.write_all, file, chunk)
                await self._in_thread(disk.sync, file)
            finally:
                disk.close(file)
            await self._in_thread(lambda: self._log.sync(always=True))  # it must not contain more than the log
            disk.rename(temporary, folder / str(name))
            await self._in_thread(disk.sync_folder, folder)
        except BaseException:
            taken.content.abandon()
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise
        self.snapshot = taken.head.epoch, taken.head.seq
        for old in snapshots(folder)[:-KEPT]:
            disk.remove(old.path)
        epoch, sequence = self.snapshot
        logger.info("snapshot taken", epoch=epoch, sequence=sequence, quads=self._owner.quad_count)

    async def _make_room(self) -> None:
        data, bytes_max = self._log.data, self._settings.bytes_max
        for path in retention.too_much_damaged(data, bytes_max):
            logger.warning("damaged file removed to free space", path=path)
            self._log.disk.remove(path)
        self.used = retention.used_bytes(data)
        if self.used <= bytes_max:
            self._cramped = False
            return
        going, shipped = [], retention.shipped_place(data)
        excess = self.used - bytes_max
        for segment in retention.evictable(data):
            if excess <= 0:
                break
            excess -= retention.size(segment)
            going.append(segment)
        lost = [segment for segment in going if (segment.name.epoch, segment.name.last or 0) > shipped]
        for gap in retention.gaps(lost, bytes_max):
            logger.warning("history removed to free space", epoch=gap.epoch, first=gap.first, last=gap.last)
            await self._owner.note_gap(gap)
        for segment in going:
            for path in retention.files(segment):
                self._log.disk.remove(path)
            self.evicted += 1
        if excess > 0 and not self._cramped:
            self._cramped = True  # logged once
            logger.warning("change log over its limit, nothing left to remove", bytes_max=bytes_max)
            if not going and self._log.sequence:
                await self._take_snapshot()
