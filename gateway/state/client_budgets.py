"""Shares: the bytes that wait for each named client, over all of its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """The outbox of one connection (`gateway.gates.outbox`)."""

    share: ClientBudget | None

    @property
    def waiting_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...

    def overflow(self, exceeded: str) -> None: ...


class ClientBudget:
    """The outboxes of one client, with a common limit. bytes_max: the current one."""

    def __init__(self, client: str, bytes_max: Callable[[], int]) -> None:
        self.client = client
        self._bytes_max = bytes_max
        self.outboxes: set[Waiting] = set()

    def on_growth(self, outbox: Waiting) -> None:
        """Closes the connection of the largest when all together exceed the limit."""
        # One below the mean is not checked further, so a client that keeps up costs nothing.
        bytes_max = self._bytes_max()
        if outbox.waiting_bytes * len(self.outboxes) <= bytes_max or self.waiting_bytes() <= bytes_max:
            return
        # Not the one that grew: it may be a fast one that only came last. The largest is the one that does not read.
        largest = max(self.outboxes, key=lambda one: one.waiting_bytes)
        if len(largest) > 1 or largest is not outbox:  # a single message may exceed the limit
            largest.overflow("quotas.outbox_bytes_max")

    def waiting_bytes(self) -> int:
        return sum(one.waiting_bytes for one in self.outboxes)


class ClientBudgets:
    """The shares of all clients with outboxes, by their names."""

    def __init__(self) -> None:
        self._of: dict[str, ClientBudget] = {}

    def join(self, client: str, outbox: Waiting, bytes_max: Callable[[], int]) -> None:
        """Adds an outbox of that client, and of no other. bytes_max: the current limit of all of them."""
        if outbox.share is not None and outbox.share.client == client:
            return
        self.leave(outbox)
        outbox.share = self._of.setdefault(client, ClientBudget(client, bytes_max))
        outbox.share.outboxes.add(outbox)

    def leave(self, outbox: Waiting) -> None:
        share, outbox.share = outbox.share, None
        if share is not None:
            share.outboxes.discard(outbox)
            if not share.outboxes:
                del self._of[share.client]

    def most(self) -> int:
        """The largest number of bytes that wait for one client."""
        return max((share.waiting_bytes() for share in self._of.values()), default=0)
