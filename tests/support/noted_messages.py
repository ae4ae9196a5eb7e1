"""A broker that only notes messages, for what publishes through an inbox."""

from __future__ import annotations

import asyncio

from lamplighter.engine.errors import UpstreamError


class NotingBroker:
    """failures: so many messages fail first; acknowledging: acknowledgements wait while it is not set."""

    def __init__(self) -> None:
        self.subscribed = asyncio.Event()
        self.subscribed.set()
        self.acknowledging = asyncio.Event()
        self.acknowledging.set()
        self.failures = 0
        self.messages: list[tuple[str, str, int, bool]] = []

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        self.messages.append((topic, payload.decode(), qos, retain))
        await self.acknowledging.wait()
        if self.failures:
            self.failures -= 1
            raise UpstreamError("no acknowledgement")

    def payloads(self) -> list[str]:
        return [payload for _, payload, _, _ in self.messages]
