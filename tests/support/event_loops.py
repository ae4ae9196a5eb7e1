"""Coroutines in callers that cannot be coroutines, and beside a block; waiting for what becomes true by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

TIMEOUT_S = 120.0


def run_in_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, which runs in an event loop of its own; for Hypothesis tests and fuzz targets."""
    return asyncio.run(coroutine)


@asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """The coroutine as a task, which is cancelled when the block ends."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settled() -> None:
    """Lets everything run that does not wait for time."""
    for _ in range(100):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Returns once the condition holds, which nobody tells."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    while not condition():
        waited_s = clock() - begun
        assert waited_s < TIMEOUT_S, f"{what} did not come true within {TIMEOUT_S:g} s"
        await asyncio.sleep(min(max(0.002, waited_s / 10), 0.01))  # a look may be a query
