"""How often something may be sent: at once so many times, and then in turn after a pause.

Rules and applications can feed each other without an end. A pace keeps such a loop slow, so that it fills neither the
broker nor the change log, and is the place where the operator is told.
"""

from __future__ import annotations

TOLD_AGAIN_S = 3_600.0


class MessagePace:
    """at_once: messages without a pause; pause_s: between two of those that follow. Times are of one clock."""

    __slots__ = ("_at_once", "_due", "_pause_s", "_told")

    def __init__(self, at_once: int, pause_s: float) -> None:
        self._at_once, self._pause_s = at_once, pause_s
        self._due = 0.0
        self._told: float | None = None

    def free_at(self) -> float:
        """When the next message may be sent."""
        return self._due - (self._at_once - 1) * self._pause_s

    def sent(self, now: float) -> None:
        self._due = max(self._due, now) + self._pause_s

    def tells(self, now: float) -> bool:
        """Whether to tell the operator now that a message waits."""
        if self._told is not None and now - self._told < TOLD_AGAIN_S:
            return False
        self._told = now
        return True
