"""A disk that does not come to an end with a sync until the test lets it."""

from __future__ import annotations

import threading

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
