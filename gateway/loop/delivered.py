"""Subscriptions that the gateway delivers itself: their end and their lease, as steps of the loop."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.errors import UnknownSpuidError
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.resuming import Resuming
from lamplighter.gateway.loop.subscribers import PendingRecords, Sink
from lamplighter.gateway.monitoring.figures import Counters


@dataclass(eq=False, repr=False)
class DeliveredSubscriptions:
    """By the id of the delivery. They begin as those of clients do (`Subscribers.begin`)."""

    _ledger: Ledger
    _resuming: Resuming[Sink]
    _counters: Counters

    def of_kind(self, kind: str) -> list[Followed]:
        """As the log has them, also those that a start could not continue."""
        return self._resuming.resumables.deliveries(kind)

    def has(self, name: str) -> bool:
        """Whether the log has a delivery with that id."""
        return self._resuming.resumables.of_delivery(name) is not None

    def acknowledge(self, spuid: str, sequence: int) -> None:
        """The receiver has the notifications up to that one, and a restart knows it."""
        self._resuming.resumables.acknowledge(spuid, sequence)

    def end(self, name: str, pending: PendingRecords) -> None:
        """Its sink is not told. Raises UnknownSpuidError, ChangeLogError; then it goes on."""
        pending.flush_pending()  # which may end it, too
        spuid = self._followed(name).spuid
        self._ledger.record(entries.unsubscribe(spuid))
        self._counters.unsubscribes += 1

    def renew(self, delivery: Receiver, cause: Cause, pending: PendingRecords) -> Followed:
        """Records another lease. What the log has of the subscription now. Raises UnknownSpuidError, ChangeLogError."""
        pending.flush_pending()  # which may end it, or record something else of it
        followed = msgspec.structs.replace(self._followed(delivery.id), delivery=delivery)
        if followed.spuid not in self._resuming.resumables:
            raise UnknownSpuidError("the subscription is about to begin anew; try again")
        self._ledger.record(entries.subscribe(followed, cause))
        return followed

    def _followed(self, name: str) -> Followed:
        followed = self._resuming.resumables.of_delivery(name)
        if followed is None:
            raise UnknownSpuidError(f"there is no delivery with the id {name!r}")
        return followed
