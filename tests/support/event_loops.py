"""Coroutines in callers that cannot be coroutines: Hypothesis tests and fuzz targets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, which runs in an event loop of its own."""
    return asyncio.run(coroutine)
