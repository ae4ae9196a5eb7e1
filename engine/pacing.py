"""How often something may happen, and when a failed attempt is repeated.

Times are those of one clock that never goes back, in seconds. Who calls has the clock.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable

_EXACT_S = 1e-6  # a shorter wait may be none: it comes from adding floats
_DOUBLED_MAX = 60


class TokenBucket:
    """`burst` may happen at once, and `per_s` a second on average."""

    __slots__ = ("_burst_s", "_each_s", "_full_at")

    def __init__(self, per_s: float, burst: float) -> None:
        self._each_s = 1 / per_s
        self._burst_s = burst / per_s
        self._full_at = -math.inf  # when the whole burst may happen again

    def is_full(self, now: float) -> bool:
        return self._full_at <= now

    def free_at(self) -> float:
        """When the next one may happen. It may be past."""
        return self._full_at + self._each_s - self._burst_s

    def take(self, now: float, cost: float = 1) -> float:
        """Seconds until so many may happen; 0: they may, and are counted."""
        full_at = max(self._full_at, now) + cost * self._each_s
        wait_s = full_at - now - self._burst_s
        if wait_s > _EXACT_S:
            return wait_s
        self._full_at = full_at
        return 0.0

    def give_back(self) -> None:
        """One that was taken does not count."""
        self._full_at -= self._each_s


class TokenBuckets:
    """A bucket for each key, of `keys_max` at most.

    per_s: 0 for no limit. A new key, where there is no room: with `forgets`, the key unused for longest is forgotten,
    and begins with a full bucket again; else the new one waits until the bucket of another one is full.
    """

    def __init__(self, per_s: float, burst: float, keys_max: int = 4096, *, forgets: bool = True) -> None:
        self._per_s, self._burst = per_s, burst
        self._keys_max, self._forgets = keys_max, forgets
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable, now: float, cost: float = 1) -> float:
        """As `TokenBucket.take`; math.inf for a key that there is no room for."""
        if not self._per_s:
            return 0.0
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._keys_max and not self._made_room(now):
                return math.inf
            bucket = self._buckets[key] = TokenBucket(self._per_s, self._burst)
        self._buckets.move_to_end(key)
        return bucket.take(now, cost)

    def give_back(self, key: Hashable) -> None:
        """One that the key has taken does not count."""
        if key in self._buckets:
            self._buckets[key].give_back()

    def _made_room(self, now: float) -> bool:
        if self._forgets:
            self._buckets.popitem(last=False)
        else:
            for key in [key for key, bucket in self._buckets.items() if bucket.is_full(now)]:
                del self._buckets[key]
        return len(self._buckets) < self._keys_max


def back_off_s(
    failures: int, first_s: float, longest_s: float, jitter: Callable[[float, float], float] = random.uniform
) -> float:
    """Seconds before the next attempt behind so many failures in a row, from 1: twice as many with each.

    jitter: gives a number between two, such as `Random.uniform`.
    """
    # Up to half is left out by it, so that not all who lost the same peer come back at once.
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _DOUBLED_MAX)) * jitter(0.5, 1.0)
