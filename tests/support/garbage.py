"""Control of the garbage collector in tests that count calls or objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Objects in cycles are kept until the end; objects that nothing refers to are freed as ever."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def uncollected() -> Iterator[list[object]]:
    """Has the list, when left, what only the collector could free of the objects made in the block."""
    found: list[object] = []
    gc.collect()
    gc.freeze()  # what a thread or a cache of an earlier test holds, and lets go meanwhile, is not looked at
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
