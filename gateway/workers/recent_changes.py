"""What the last commits have changed, for what was evaluated before them. Pure."""

from __future__ import annotations

from collections import deque

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.lutt import Lutt, PatternSignature

QUADS_MAX = 5_000
"""Quads of the deltas that are kept; to look at them all takes some milliseconds."""
DELTAS_MAX = 5_000


class RecentChanges:
    """The deltas of the last commits. version: the number of those that changed something."""

    def __init__(self) -> None:
        self.version = 0
        self._deltas: deque[QuadDelta] = deque()
        self._quads = 0

    def note(self, delta: QuadDelta) -> None:
        """A commit changes the dataset."""
        removed, added, _, created, dropped = delta
        if not (removed or added or created or dropped):
            return
        self.version += 1
        self._deltas.append(delta)
        self._quads += len(removed) + len(added)
        while self._quads > QUADS_MAX or len(self._deltas) > DELTAS_MAX:
            gone = self._deltas.popleft()
            self._quads -= len(gone.removed) + len(gone.added)

    def touches(self, signature: PatternSignature, version: int) -> bool:
        """Whether a commit since that version may have touched what a query reads."""
        count = self.version - version
        if not count:
            return False
        if count > len(self._deltas):
            return True  # it is not known any more
        lutt = Lutt[None]()
        lutt.add(None, signature)
        return any(lutt.lookup(self._deltas[-number]) for number in range(1, count + 1))
