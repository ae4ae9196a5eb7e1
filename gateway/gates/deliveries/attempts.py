"""When a delivery is tried again, and how many requests run at the same time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from random import Random

from lamplighter.gateway.sharing import ClientTurns

SLOW_S = 1.0
"""A receiver that took longer for its last answer counts as slow."""


def pause_s(failures: int, first_s: float, most_s: float, retry_after_s: float, random: Random) -> float:
    """The pause behind so many failures in a row, from 1: it doubles with each, and has a jitter of a half, so that
    receivers that came back are not called by all at once. retry_after_s: what the receiver asked for at least."""
    whole = min(most_s, first_s * 2.0 ** min(failures - 1, 60))
    return max(retry_after_s, whole * random.uniform(0.5, 1.0))


class Slots:
    """The requests that run at the same time. Those that fail, are slow, or have not answered yet have slots of their
    own, so that they do not take those of the others."""

    def __init__(self, concurrent_max: int) -> None:
        slow = concurrent_max // 2
        self._prompt, self._slow = ClientTurns(concurrent_max - slow), ClientTurns(slow)

    def of(self, client: str, *, slow: bool) -> AbstractAsyncContextManager[None]:
        """One of a client, whose requests have their turns with those of the others."""
        return (self._slow if slow else self._prompt).of(client)
