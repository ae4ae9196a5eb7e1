"""Disks whose syncs wait until the test releases them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.running_gateway import TIMEOUT_S


class HeldDisk:
    """asked: set when a sync waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._released = threading.Event()
        self.asked = threading.Event()

    def hold(self) -> None:
        """Syncs wait from now on."""
        self._monkeypatch.setattr("lamplighter.gateway.disk.os.fdatasync", self._sync)

    def release(self) -> None:
        self._released.set()

    def _sync(self, descriptor: int) -> None:
        self.asked.set()
        assert self._released.wait(TIMEOUT_S)


class SteppedDisk:
    """A disk whose syncs wait until the test releases them, one by one."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.durable = 0
        """Bytes of the segment that the last sync covered, as it began."""

    def sync(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self.asked.release()
        if not self._go_on.acquire(timeout=TIMEOUT_S):
            raise AssertionError("the test did not release the sync")
        self.durable = size

    async def begun(self) -> None:
        """Waits until a sync has begun."""
        assert await asyncio.to_thread(self.asked.acquire, timeout=TIMEOUT_S)

    def go_on(self, times: int = 1) -> None:
        self._go_on.release(times)


@contextmanager
def stepped_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppedDisk]:
    disk = SteppedDisk()
    monkeypatch.setattr("lamplighter.gateway.disk.os.fdatasync", disk.sync)
    try:
        yield disk
    finally:
        disk.go_on(1000)
