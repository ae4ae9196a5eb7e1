"""Outbox: what waits to be sent to one client, bounded in bytes (design 4.2).

A client that reads too slowly is disconnected when its outbox is full; it connects again and starts from a
fresh first result, so it never misses a change without knowing.
"""

import asyncio
from collections import deque


class Outbox:
    """Messages in the order in which they are to be sent. put never waits; get does."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self.overflowed = asyncio.Event()

    def put(self, message: bytes) -> None:
        """Adds a message. One alone may be larger than the limit: a first result goes out as one message."""
        if self._messages and self._bytes + len(message) > self._bytes_max:
            self.overflowed.set()
        if self.overflowed.is_set():
            return
        self._messages.append(message)
        self._bytes += len(message)
        self._filled.set()

    async def get(self) -> bytes:
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        message = self._messages.popleft()
        self._bytes -= len(message)
        return message
