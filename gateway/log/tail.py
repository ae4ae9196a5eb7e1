"""The newest lines of the change log in memory, and the last record that was acknowledged.

Clients that follow the log ask for its end again and again. The lines in memory answer them without reading a segment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice, takewhile

from lamplighter.gateway.log.snapshots import Place

TAIL_BYTES_MAX = 256 * 1024  # bytes of all lines that are kept
LINE_BYTES_MAX = 16 * 1024  # a longer line is not kept, and neither are those before it


class LogTail:
    """The last lines, without a gap between them."""

    def __init__(self) -> None:
        self._lines: deque[tuple[Place, bytes]] = deque()
        self._bytes = 0
        self._before: Place | None = None  # the place before the first line; None: no line is kept
        self._woken: asyncio.Event | None = None  # set if somebody waits
        self._closed = False
        # The last record whose effects have left the gateway. Later ones are not shown.
        self.acknowledged: Place = (1, 0)

    def append(self, place: Place, line: bytes) -> None:
        """Adds the line of the next record, or of the last one again, where its first try failed."""
        # The log gave the number to another record, since writing the first one failed.
        if self._lines and self._lines[-1][0] >= place:
            self._bytes -= len(self._lines.pop()[1])
        if len(line) > LINE_BYTES_MAX:
            # Those before it would not be followed by it: a reader takes the file from here.
            self._lines.clear()
            self._bytes, self._before = 0, place
            return
        if self._before is None:
            self._before = place[0], place[1] - 1
        self._lines.append((place, line))
        self._bytes += len(line)
        while self._bytes > TAIL_BYTES_MAX:
            self._before, oldest = self._lines.popleft()
            self._bytes -= len(oldest)

    def acknowledge(self, place: Place) -> None:
        """All records up to a place were acknowledged. Wakes those who wait for them."""
        self.acknowledged = place
        if self._woken is not None:
            self._wake()

    def behind(self, after: Place, count: int) -> list[bytes] | None:
        """The first lines of acknowledged records behind a place; None if they are not in memory."""
        if after >= self.acknowledged:
            return []
        if self._before is None or after < self._before:
            return None
        # From the end: most of those who ask have all but the last of them, and many may ask after one commit.
        newer = list(takewhile(lambda entry: after < entry[0], reversed(self._lines)))
        found = (line for place, line in reversed(newer) if place <= self.acknowledged)
        return list(islice(found, count))

    def newest(self, count: int) -> list[bytes] | None:
        """The last lines of acknowledged records, oldest first; None if fewer are in memory."""
        found = [line for place, line in self._lines if place <= self.acknowledged]
        return found[-count:] if len(found) >= count else None

    async def wait(self, after: Place, seconds: float) -> None:
        """Returns when a record behind a place is acknowledged, when the time is up, or when the gateway stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.acknowledged <= after and not self._closed:
                    self._woken = self._woken or asyncio.Event()
                    await self._woken.wait()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends all waits, also later ones."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.set()
            self._woken = None
