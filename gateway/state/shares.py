"""Shares: what waits for the clients that have a name, over all of their connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """What waits to be sent on one connection (`gateway.gates.outbox`)."""

    share: Share | None

    @property
    def waiting_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...

    def overflow(self) -> None: ...


class Share:
    """The outboxes of one client, which have a limit together. bytes_max: as it is now."""

    def __init__(self, client: str, bytes_max: Callable[[], int]) -> None:
        self.client = client
        self._bytes_max = bytes_max
        self.outboxes: set[Waiting] = set()

    def grown(self, outbox: Waiting) -> None:
        """Ends the connection of the largest when all together have too much. One below the mean is not looked at any
        further, so a client that reads what it is sent costs nothing."""
        bytes_max = self._bytes_max()
        if outbox.waiting_bytes * len(self.outboxes) <= bytes_max or self.waiting_bytes() <= bytes_max:
            return
        largest = max(self.outboxes, key=lambda one: one.waiting_bytes)
        if len(largest) > 1 or largest is not outbox:  # one message alone may be as large as it is
            largest.overflow()

    def waiting_bytes(self) -> int:
        """What waits in all of them."""
        return sum(one.waiting_bytes for one in self.outboxes)


class Shares:
    """The shares of all clients that have outboxes now, by their names."""

    def __init__(self) -> None:
        self._of: dict[str, Share] = {}

    def join(self, client: str, outbox: Waiting, bytes_max: Callable[[], int]) -> None:
        """It is one of that client's, and of no other's. bytes_max: of all of them, as it is now."""
        if outbox.share is not None and outbox.share.client == client:
            return
        self.leave(outbox)
        outbox.share = self._of.setdefault(client, Share(client, bytes_max))
        outbox.share.outboxes.add(outbox)

    def leave(self, outbox: Waiting) -> None:
        """Its connection has ended."""
        share, outbox.share = outbox.share, None
        if share is not None:
            share.outboxes.discard(outbox)
            if not share.outboxes:
                del self._of[share.client]

    def most(self) -> int:
        """What waits for the client for which most waits."""
        return max((share.waiting_bytes() for share in self._of.values()), default=0)
