"""Rate limits by token buckets."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address

from lamplighter.engine.errors import QueueFullError

KEYS_MAX = 4096
"""Keys that are remembered. Beyond it, the key unused for longest is forgotten and has a full bucket again."""


class Buckets:
    """A bucket for each key: `burst` takes at once, then `per_s` a second.

    per_s: 0 for no limit. now_s: a monotonic clock.
    """

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float], keys_max: int = KEYS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now_s = now_s
        self._keys_max = keys_max
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # key -> level, as of when

    def take(self, key: Hashable) -> int:
        """Takes one from the bucket of a key. Returns 0, or the whole seconds until there is one again."""
        if not self._per_s:
            return 0
        now = self._now_s()
        level, since = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_s)
        wait = 0 if level >= 1 else max(1, math.ceil((1 - level) / self._per_s))
        self._levels[key] = (level if wait else level - 1, now)
        if len(self._levels) > self._keys_max:
            self._levels.popitem(last=False)
        return wait

    def give(self, key: Hashable) -> None:
        """Puts one back into the bucket of a key, which then does not count."""
        if key in self._levels:
            level, since = self._levels[key]
            self._levels[key] = (min(self._burst, level + 1), since)

    def __len__(self) -> int:
        return len(self._levels)


def network(address: str) -> str:
    """The part of an address that one machine cannot change at will: all of IPv4, the first half of IPv6."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


def too_many(wait_s: int, reason: str) -> QueueFullError:
    """The error for a caller that has to wait."""
    error = QueueFullError(f"{reason}; try again in {wait_s} s")
    error.retry_after_s = wait_s
    return error
