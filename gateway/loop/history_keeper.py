"""Keeps the index of values (`history.series_index`) complete, beside the requests: a fork makes what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

import msgspec

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.history.indexing import IndexStep, next_step
from lamplighter.gateway.history.series_index import FOLDER, INDEX_BYTES_MAX
from lamplighter.gateway.log.maintenance import LogMaintenance
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.workers.ad_hoc import Reader

logger = EventLogger(__name__)

PAUSE_S, NEXT_S = 10.0, 1.0
"""Between two looks, and before the next file where one is missing."""
_AGAIN_S = 60.0
_HEAD_BYTES_MAX = 16 * 1024 * 1024


class HistoryKeeper:
    """One file is made at a time, the newest first. in_thread: runs a function that waits for the disk."""

    def __init__(
        self,
        log: LogWriter,
        keeper: LogMaintenance,
        reader: Reader,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._log = log
        self._keeper = keeper
        self._reader = reader
        self._in_thread = in_thread
        self._seen: tuple[int, int] | None = None  # segments that were sealed and removed when all had an index

    async def keep(self) -> None:
        await asyncio.sleep(NEXT_S)
        while True:
            try:
                more = await self.turn()
                await asyncio.sleep(NEXT_S if more else PAUSE_S)
            except Exception as error:
                unexpected = not isinstance(error, (OSError, GatewayError))
                logger.warning("history index not kept", reason=error, exc_info=unexpected)
                await asyncio.sleep(_AGAIN_S)

    async def turn(self) -> bool:
        """Makes a file, if one is missing, and removes those that are not needed. Whether more may be missing. Raises
        OSError, GatewayError."""
        seen = self._keeper.sealed, self._keeper.evicted
        if seen == self._seen:
            return False
        answer = await self._reader.stream(self._write_next, opens_files=True).whole(INDEX_BYTES_MAX + _HEAD_BYTES_MAX)
        head, _, content = answer.partition(b"\n")
        found = _decode(head)
        disk, folder = self._log.disk, self._log.data / FOLDER
        if found.name:
            disk.make_folder(folder)  # not at the start, which has to work on a full or broken disk
            await self._in_thread(disk.write_file, folder / found.name, [content])
        for name in found.obsolete:
            disk.remove(folder / name)
        if not found.more:
            self._seen = seen
        return found.more

    def _write_next(self, out: BinaryIO) -> None:
        found, content = next_step(self._log.data)
        out.write(msgspec.json.encode(found) + b"\n")
        out.write(content)


_decode = msgspec.json.Decoder(IndexStep).decode
