"""How often something is done for one device. Pure.

A device that announces itself in another way each time would otherwise fill the change log: one short message can
replace a record of 80,000 characters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

# Between changes of the dataset: after a first one, and at most.
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 600.0
# Devices whose pauses are remembered.
DEVICES_MAX = 10_000


Device = TypeVar("Device", bound=Hashable)


@dataclass(slots=True)
class _Changed:
    at: float
    pause_s: float


class Pauses(Generic[Device]):
    """When it was last done for each device, and the pause after it, which doubles each time.

    Times are those of one clock that never goes back, in seconds. min_s, max_s: the first and the longest pause.
    quiet_s: a device that was quiet for so long begins with the shortest one again; None: for ten of its pauses.
    """

    def __init__(
        self,
        min_s: float = PAUSE_MIN_S,
        max_s: float = PAUSE_MAX_S,
        *,
        quiet_s: float | None = None,
        devices_max: int = DEVICES_MAX,
    ) -> None:
        self._min_s, self._max_s = min_s, max_s
        self._quiet_s, self._devices_max = quiet_s, devices_max
        self._changed: OrderedDict[Device, _Changed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._changed)

    def due(self, device: Device) -> float:
        """When it may be done again."""
        last = self._changed.get(device)
        return float("-inf") if last is None else last.at + last.pause_s

    def changed(self, device: Device, now: float) -> None:
        """Notes that it is done."""
        last = self._changed.pop(device, None)
        pause_s = self._min_s
        if last is not None and now - last.at < (self._quiet_s or 10 * last.pause_s):
            pause_s = min(2 * last.pause_s, self._max_s)
        self._changed[device] = _Changed(now, pause_s)
        if len(self._changed) > self._devices_max:
            self._changed.popitem(last=False)

    def shorten(self, device: Device) -> None:
        """Notes that it had its effect: the pause is the shortest one again, from when it was last done."""
        last = self._changed.get(device)
        if last is not None:
            last.pause_s = self._min_s
