"""How many deliveries are tried at the same time."""

from __future__ import annotations

import asyncio

SLOW_S = 1.0
"""A receiver that took longer for its last answer counts as slow."""


class Slots:
    """The requests that run at the same time. Those that fail, are slow, or have not answered yet have slots of their
    own, so that they do not take those of the others."""

    def __init__(self, concurrent_max: int) -> None:
        slow = concurrent_max // 2
        self._prompt, self._slow = asyncio.Semaphore(concurrent_max - slow), asyncio.Semaphore(slow)

    def of(self, *, slow: bool) -> asyncio.Semaphore:
        return self._slow if slow else self._prompt
