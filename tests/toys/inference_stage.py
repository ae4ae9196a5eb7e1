"""A stage of inference: what somebody says is heard."""

from __future__ import annotations

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad

SAYS, HEARD = "<urn:toy:says>", "<urn:toy:heard>"


class Toy:
    """refusals: deltas that it had completed, or was about to, and that did not come into effect."""

    def __init__(self, store: QuadStore) -> None:
        self._store = store
        self.refusals = 0

    def complete(self, delta: QuadDelta) -> QuadDelta:
        """The delta with what is heard. It stays a net effect: nothing is added that is there already."""
        heard = dict.fromkeys(Quad(s, HEARD, o, g) for s, p, o, g in delta.added if p == SAYS)
        new = [quad for quad in self._store.missing(QuadDelta(added=tuple(heard))).added if quad not in delta.added]
        return delta._replace(added=(*delta.added, *new))

    def take_back(self) -> None:
        self.refusals += 1
