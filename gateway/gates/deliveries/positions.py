"""Which notifications the receivers have, in a file. It only saves repetitions: without it, deliveries begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.deliveries.folder import store

logger = EventLogger(__name__)

PAUSE_S = 1.0
"""Between two writes."""
AGAIN_S = 10.0
"""After one that failed."""


class _PositionFile(msgspec.Struct, frozen=True):
    """positions: spuid -> sequence of the last acknowledged notification."""

    positions: dict[str, int] = {}


class Positions:
    """The file. written: called with a spuid and a sequence when it is certain that a restart knows it."""

    def __init__(self, disk: Disk, path: Path, written: Callable[[str, int], None]) -> None:
        self._disk = disk
        self._path = path
        self._written = written
        self._positions: dict[str, int] = {}
        self._unwritten: dict[str, int | None] = {}  # None: removed
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """A damaged file counts as none."""
        try:
            self._positions = json_document(read_file(self._path, follow=False), _PositionFile).positions
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("positions of deliveries not read", path=self._path, reason=error)

    def retain(self, spuids: Collection[str]) -> None:
        """Forgets all others: they have ended while nobody kept the file."""
        for spuid in self._positions.keys() - set(spuids):
            self.forget(spuid)

    def of(self, spuid: str) -> int:
        """-1 if the receiver has nothing."""
        return self._positions.get(spuid, -1)

    def acknowledge(self, spuid: str, sequence: int) -> None:
        self._positions[spuid] = self._unwritten[spuid] = sequence
        self._changed.set()

    def forget(self, spuid: str) -> None:
        if self._positions.pop(spuid, None) is not None:
            self._unwritten[spuid] = None
            self._changed.set()

    async def keep(self) -> None:
        """Writes what changes, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(PAUSE_S if await asyncio.shield(self.write()) else AGAIN_S)

    async def write(self) -> bool:
        """Writes what has changed; whether it could."""
        async with self._writing:
            return await self._write()

    async def _write(self) -> bool:
        self._changed.clear()
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return True
        content = msgspec.json.encode(_PositionFile(self._positions))
        try:
            await asyncio.to_thread(store, self._disk, self._path, content)
        except OSError as error:
            logger.warning("positions of deliveries not written", path=self._path, reason=error.strerror)
            self._unwritten = unwritten | self._unwritten
            self._changed.set()
            return False
        for spuid, sequence in unwritten.items():
            if sequence is not None:
                self._written(spuid, sequence)
        return True
