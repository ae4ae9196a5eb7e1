"""Who observes resources of the CoAP server: bounds for all observers, and for those of one source. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

OBSERVERS_MAX, OBSERVERS_OF_SOURCE_MAX, OBSERVERS_OF_CONTEXT_MAX = 1_000, 20, 100


class ObserverPlace(NamedTuple):
    """name: peer and token, which another registration under the same token takes over; source: an address, or the
    device of a key."""

    name: Hashable
    source: Hashable
    protected: bool


class Observers:
    """The observers of all resources."""

    def __init__(self) -> None:
        self._places: dict[Hashable, tuple[ObserverPlace, object]] = {}
        self._of_source: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def may_take(self, place: ObserverPlace) -> bool:
        """Whether there is room. One that renews its registration has a place."""
        if place.name in self._places:
            return True
        most = OBSERVERS_OF_CONTEXT_MAX if place.protected else OBSERVERS_OF_SOURCE_MAX
        return len(self._places) < OBSERVERS_MAX and self._of_source[place.source] < most

    def take(self, place: ObserverPlace, holder: object) -> None:
        """Takes a place, also from a holder before: its registration was renewed."""
        self._drop(place.name)
        self._places[place.name] = place, holder
        self._of_source[place.source] += 1

    def free(self, place: ObserverPlace, holder: object) -> None:
        """Frees a place, unless another holder has taken it."""
        found = self._places.get(place.name)
        if found is not None and found[1] is holder:
            self._drop(place.name)

    def _drop(self, name: Hashable) -> None:
        found = self._places.pop(name, None)
        if found is not None:
            source = found[0].source
            self._of_source[source] -= 1
            if not self._of_source[source]:
                del self._of_source[source]
