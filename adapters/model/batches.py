"""How messages become batches of readings, so that the loop and the memory stay free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

# Readings that are written together, besides those of the last message: each takes 2 kB as an update, and one message
# can have thousands.
BATCH_READINGS_MAX = 4_096
# How long messages are read in one go, besides the time of one message.
SLICE_S = 0.02
# How often readings that `throttle_s` holds back are looked at.
HELD_CHECK_S = 0.5

Message = TypeVar("Message")


async def in_slices(messages: Iterable[Message]) -> AsyncIterator[Message]:
    """The messages. Other work of the loop, such as the watchdog, runs at least each `SLICE_S` between two of them:
    expressions and large payloads may take long."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for message in messages:
        yield message
        if loop.time() - begun >= SLICE_S:
            await asyncio.sleep(0)
            begun = loop.time()
