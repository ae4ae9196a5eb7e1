"""Time as the shipper knows it, and how fast it sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """What the shipper asks of time. wall: seconds since 1970; trusted: whether that is synchronised; steady, sleep:
    seconds for the bandwidth."""

    wall: Callable[[], float] = time.time
    trusted: Callable[[], bool] = lambda: True
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """Holds bytes back, so that no more than so many go in a second on average."""

    def __init__(self, bytes_per_s_max: int, clock: Clock) -> None:
        self._rate = bytes_per_s_max
        self._clock = clock
        self._due = clock.steady()

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            if self._rate:
                now = self._clock.steady()
                self._due = max(self._due, now) + len(chunk) / self._rate
                if self._due - now > 0.01:
                    self._clock.sleep(self._due - now)
