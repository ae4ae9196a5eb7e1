"""How often something may happen: so many times at once, and so many a second on average. Pure."""

from __future__ import annotations

from collections.abc import Hashable

_EXACT_S = 1e-6
"""A shorter wait may be none on a clock of floats."""


class RequestPace:
    """per_s: on average; burst: at once. Times are those of one clock that never goes back, in seconds."""

    __slots__ = ("_ahead_s", "_each_s", "_full")

    def __init__(self, per_s: float, burst: int) -> None:
        self._each_s = 1 / per_s
        self._ahead_s = (burst - 1) / per_s
        self._full = float("-inf")  # when all of the burst may happen again

    def idle(self, at: float) -> bool:
        """Whether all of the burst may happen at once."""
        return self._full <= at

    def wait_s(self, at: float) -> float:
        """Seconds until it may happen; 0: now, and it is counted."""
        full = max(self._full, at)
        wait_s = full - at - self._ahead_s
        if wait_s > _EXACT_S:
            return wait_s
        self._full = full + self._each_s
        return 0.0


class RequestPaces:
    """A pace for each of several. per_s, burst: as for one; most: that are remembered, as long as they are not idle."""

    def __init__(self, per_s: float, burst: int, most: int) -> None:
        self._per_s, self._burst, self._most = per_s, burst, most
        self._paces: dict[Hashable, RequestPace] = {}

    def __len__(self) -> int:
        return len(self._paces)

    def allows(self, one: Hashable, at: float) -> bool:
        """Whether it may happen to one now; it is counted then. One too many has to wait until another is idle."""
        if one not in self._paces and len(self._paces) >= self._most:
            self._paces = {name: pace for name, pace in self._paces.items() if not pace.idle(at)}
            if len(self._paces) >= self._most:
                return False
        return not self._paces.setdefault(one, RequestPace(self._per_s, self._burst)).wait_s(at)
