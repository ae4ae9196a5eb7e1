"""Somebody who subscribes at a `Runner`, and what he was told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Bag
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.resumption import AttachedSubscription


class RecordingSink:
    """Of each notification its sequence, and what was added and removed.

    first, keep: the first result and how long it is kept, None after a subscription was resumed. reset: why it could
    not be. by: the sink that took the subscription over. commits: sequence -> place of the commit of each notification.
    """

    kind = "ws"

    def __init__(self) -> None:
        self.client = "test"
        self.identity: str | None = None
        self.since: datetime | None = None
        self.connection = self
        self.first: Bag | None = None
        self.keep: str | None = None
        self.told: list[tuple[int, Bag, Bag]] = []
        self.commits: dict[int, tuple[int, int] | None] = {}
        self.reset: str | None = None
        self.by: Sink | None = None

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self.first, self.keep, self.reset = subscription.first, keep, reset

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        for missed in attached.missed:
            self._hear(missed.sequence, b"{%b}" % missed.members, missed.commit)

    def notify(self, notification: Notification, results: Results) -> None:
        self._hear(notification.sequence, b"{%b}" % results.members, results.commit)

    def _hear(self, sequence: int, text: bytes, commit: tuple[int, int] | None) -> None:
        body: dict[str, Any] = msgspec.json.decode(text)
        self.told.append((sequence, Bag.from_json(body["addedResults"]), Bag.from_json(body["removedResults"])))
        self.commits[sequence] = commit

    def ended(self, spuid: str, error: GatewayError) -> None:
        raise AssertionError(error)

    def taken_over(self, spuid: str, by: Sink) -> None:
        self.by = by

    def name_no_commits(self) -> None:
        raise AssertionError("the client may read every graph")
