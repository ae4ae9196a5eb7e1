"""Gateways with events that the driver cannot match, so that they wait for Spark, which takes seconds for a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class SlowGateways:
    """Gateways whose segments wait for Spark. The others go on, so one gateway cannot slow down a whole fleet.

    pauses: after Spark took some time for such gateways, it is not used for them for so many times as long. elapsed: a
    clock in seconds.
    """

    def __init__(self, pauses: float, elapsed: Callable[[], float]) -> None:
        self._pauses = pauses
        self._elapsed = elapsed
        self._gateways: set[str] = set()
        self._not_before = elapsed()

    def __contains__(self, gateway: str) -> bool:
        return gateway in self._gateways

    def add(self, gateways: Iterable[str]) -> None:
        self._gateways.update(gateways)

    def pending(self) -> frozenset[str]:
        """Those that Spark may match now."""
        return frozenset(self._gateways) if self._elapsed() >= self._not_before else frozenset()

    def note_matched(self, seconds: float) -> None:
        """All of them are matched, which took some seconds."""
        self._gateways.clear()
        self._not_before = self._elapsed() + self._pauses * seconds
