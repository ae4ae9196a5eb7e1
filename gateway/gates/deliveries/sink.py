"""The sink of a delivery in the loop: what it is told waits for the receiver."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Bag
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.resumption import Attached

if TYPE_CHECKING:
    from lamplighter.gateway.gates.deliveries.dispatch import Dispatch


class DispatchSink:
    """Hands on to its dispatch, as long as it is its newest sink: a subscription that begins anew has another one."""

    __slots__ = ("client", "connection", "identity", "since")
    kind = "http"

    def __init__(self, dispatch: Dispatch, client: str) -> None:
        self.connection = dispatch
        self.client = client
        self.identity: str | None = None
        self.since: datetime | None = None

    @property
    def _is_current(self) -> bool:
        return self.connection.sink is self

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        if self._is_current:
            results = Results(subscription.first, Bag(subscription.first.variables))
            self.connection.began(subscription.spuid, results.members, reset)

    def resumed(self, spuid: str, attached: Attached[Sink]) -> None:
        if self._is_current:
            for missed in attached.missed:
                self.connection.put(spuid, missed.sequence, missed.members)

    def notify(self, notification: Notification, results: Results) -> None:
        if self._is_current:
            self.connection.put(notification.spuid, notification.sequence, results.members)

    def ended(self, spuid: str, error: GatewayError) -> None:
        if self._is_current:
            self.connection.end(str(error))

    def taken_over(self, spuid: str, by: Sink) -> None:
        """By a newer sink of the same dispatch."""

    def name_no_commits(self) -> None:
        """No delivery names its commit."""
