"""Whether time grows with the length of a text, and not with its square: texts that are doubled, and processor time."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.garbage import no_garbage_collection

RATIO_MAX = 2.6
"""Of the time for a text to that for its half: 2 is linear, 4 is quadratic. On a busy machine, a linear one has reached
2.33: its neighbours left no cache for the long text."""
_DOUBLINGS = 3
_ENOUGH_S = 0.001
"""What the shortest text takes that is measured."""
_ATTEMPTS = 60


def cost_s(run: Callable[[str], object], text: str) -> float:
    """Processor time of this thread, once; without the collection of garbage, whose time is that of other objects."""
    with no_garbage_collection():
        begun = time.thread_time()
        run(text)
        return time.thread_time() - begun


def growth(run: Callable[[str], object], text: Callable[[int], str], characters_max: int) -> float:
    """By how much the time grows with each doubling, the best of some attempts; 0 where even long texts take none.

    text: by the number of its repetitions. It is doubled until a run takes long enough, so that what is quadratic is
    found before it takes long.
    """
    count = max(1, 250 // max(1, len(text(1))))
    while True:
        small, large = text(count), text(count << _DOUBLINGS)
        if len(large) > characters_max:
            return 0.0
        if cost_s(run, small) >= _ENOUGH_S:
            break
        count *= 2
    found = _ratio(run, small, large)
    if found >= RATIO_MAX and len(large) <= characters_max // 2:  # caches may be too small for the large one only
        found = min(found, _ratio(run, text(count * 2), text(count * 2 << _DOUBLINGS)))
    return found


def _ratio(run: Callable[[str], object], small: str, large: str) -> float:
    best_small = best_large = float("inf")
    for _ in range(_ATTEMPTS):
        best_small = min(best_small, cost_s(run, small))
        best_large = min(best_large, cost_s(run, large))
        if best_large < best_small * RATIO_MAX**_DOUBLINGS:
            break
    return (best_large / best_small) ** (1 / _DOUBLINGS)
