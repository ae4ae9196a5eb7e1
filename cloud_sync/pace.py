"""The shipper's clock, and its bandwidth limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class PaceClock:
    """wall: seconds since 1970; trusted: whether the wall clock is synchronised; steady, sleep: monotonic seconds."""

    wall: Callable[[], float] = time.time
    trusted: Callable[[], bool] = lambda: True
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """Limits the average rate of chunks. bytes_per_s_max: 0 for no limit."""

    def __init__(self, bytes_per_s_max: int, clock: PaceClock) -> None:
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
