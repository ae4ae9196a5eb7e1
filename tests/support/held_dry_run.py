"""A dry run of a request that passes when the test lets it."""

from __future__ import annotations

import asyncio


class HeldDryRun:
    """begun: set when the request waits for it; go_on: to be set; over: set when the request has run."""

    has_passed = is_long = again = False
    trial = None

    def __init__(self) -> None:
        self.begun, self.go_on, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def perform(self, client: str) -> None:
        self.begun.set()
        await self.go_on.wait()

    def took(self, seconds: float) -> None:
        self.over.set()
