"""Subscriptions that the gateway delivers itself: their end and their lease, as steps of the loop."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.errors import UnknownSpuidError
from lamplighter.engine.protocol import Priority
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import OrderedLane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.resumption import ResumptionService
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.security.callers import ANYBODY, Caller


class QueuedRenewal(msgspec.Struct, frozen=True, eq=False):
    """A delivery whose lease is to be renewed. Its gate has checked the caller."""

    delivery: Receiver
    cause: Cause
    caller: Caller = ANYBODY
    lane: OrderedLane | None = None
    priority: Priority = Priority.NORMAL


@dataclass(eq=False, repr=False)
class DeliveredSubscriptions:
    """By the id of the delivery. They begin as those of clients do (`Subscribers.run_subscription`)."""

    _ledger: Ledger
    _resumption: ResumptionService[Sink]
    _reactions: Reactions
    _queue: Queue

    def of_kind(self, kind: str) -> list[Followed]:
        """As the log has them, also those that a start could not continue."""
        return self._resumption.resumables.deliveries(kind)

    def has(self, name: str) -> bool:
        """Whether the log has a delivery with that id."""
        return self._resumption.resumables.of_delivery(name) is not None

    def acknowledge(self, spuid: str, sequence: int) -> None:
        """The receiver has the notifications up to that one, and a restart knows it."""
        self._resumption.resumables.acknowledge(spuid, sequence)

    def end(self, name: str) -> None:
        """Its sink is not told. Raises UnknownSpuidError, ChangeLogError; then it goes on."""
        self._reactions.flush_pending()  # which may end it, too
        spuid = self._spec(name).spuid
        self._ledger.record(entries.unsubscribe(spuid))
        self._queue.counters.unsubscribes += 1

    def run_renewal(self, asked: QueuedRenewal) -> Followed:
        """Records another lease. What the log has of the subscription now. Raises UnknownSpuidError, ChangeLogError."""
        delivery = asked.delivery
        self._reactions.flush_pending()  # which may end it, or record something else of it
        followed = msgspec.structs.replace(self._spec(delivery.id), delivery=delivery)
        if followed.spuid not in self._resumption.resumables:
            raise UnknownSpuidError("the subscription is about to begin anew; try again")
        self._ledger.record(entries.subscribe(followed, asked.cause))
        return followed

    def _spec(self, name: str) -> Followed:
        followed = self._resumption.resumables.of_delivery(name)
        if followed is None:
            raise UnknownSpuidError(f"there is no delivery with the id {name!r}")
        return followed
