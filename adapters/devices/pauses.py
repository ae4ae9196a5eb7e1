"""How often the dataset is changed for one device. Pure.

A device that announces itself in another way each time would otherwise fill the change log: one short message can
replace a record of 80,000 characters.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 600.0
"""After a first change, and at most. Doubled with each further change."""
DEVICES_MAX = 10_000
"""Devices whose pauses are remembered."""


@dataclass(slots=True)
class _Changed:
    at: float
    pause_s: float


class Pauses:
    """Times are those of one clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self._changed: OrderedDict[str, _Changed] = OrderedDict()

    def due(self, identity: str) -> float:
        """When the device may be changed again."""
        last = self._changed.get(identity)
        return float("-inf") if last is None else last.at + last.pause_s

    def changed(self, identity: str, now: float) -> None:
        """Notes a change. A device that was quiet for ten of its pauses begins with the shortest one again."""
        last = self._changed.pop(identity, None)
        pause_s = PAUSE_MIN_S
        if last is not None and now - last.at < 10 * last.pause_s:
            pause_s = min(2 * last.pause_s, PAUSE_MAX_S)
        self._changed[identity] = _Changed(now, pause_s)
        if len(self._changed) > DEVICES_MAX:
            self._changed.popitem(last=False)
