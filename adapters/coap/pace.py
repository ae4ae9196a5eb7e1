"""How often something may happen: so many times at once, and so many a second on average. Pure."""

from __future__ import annotations

_EXACT_S = 1e-6
"""A shorter wait may be none on a clock of floats."""


class CoapPace:
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
