"""Observes a property by Server-Sent Events: the data of each event is a value as JSON.

The first event has the value as it is. What a commit adds follows; a client that comes back with ``Last-Event-ID``
receives what it missed. If that is not possible any more, an event ``reset`` tells why, and the value follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.gates.event_streams import EventStream, StreamEvent, event_id
from lamplighter.gateway.gates.wot.things import in_order
from lamplighter.gateway.gates.wot.values import json_value
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.resumption import Attached


class ValueSink:
    """The sink of one stream."""

    kind = "http"

    def __init__(self, stream: EventStream) -> None:
        self.connection = stream
        self.client = stream.name
        self.identity: str | None = None
        self.since: datetime | None = None
        self.over = False
        self._outbox = stream.outbox
        self._resumable = False

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self._resumable = keep is not None
        if reset is not None:
            self._outbox.put(StreamEvent(b"event: reset\ndata: %b\n\n" % msgspec.json.encode({"reason": reset})))
        self._put(in_order(subscription.first)[-1:], subscription.spuid, 0)

    def resumed(self, spuid: str, attached: Attached[Sink]) -> None:
        self._resumable = True
        missed = (b"".join(self._events(in_order(_added(one.members)), spuid, one.sequence)) for one in attached.missed)
        self._outbox.replay(map(StreamEvent, missed), attached.bytes)

    def notify(self, notification: Notification, results: Results) -> None:
        self._put(in_order(results.added), notification.spuid, notification.sequence)

    def name_no_commits(self) -> None:
        """Values name none."""

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.over = True
        self.connection.ended(spuid, self)
        self._outbox.put(StreamEvent(b"event: ended\ndata: %b\n\n" % msgspec.json.encode({"reason": str(error)})))

    def taken_over(self, spuid: str, by: Sink) -> None:
        self.over = True
        self.connection.ended(spuid, self)

    def _put(self, values: Sequence[Term], spuid: str, sequence: int) -> None:
        for event in self._events(values, spuid, sequence):
            self._outbox.put(StreamEvent(event))

    def _events(self, values: Iterable[Term], spuid: str, sequence: int) -> list[bytes]:
        """The events of a notification. The last one has its id; without a value, an event has nothing but the id, and
        the client is told nothing."""
        events = [b"data: %b\n\n" % msgspec.json.encode(json_value(value)) for value in values]
        if self._resumable:
            events = events or [b"\n"]
            events[-1] = b"id: %b\n%b" % (event_id(spuid, sequence), events[-1])
        return events


def _added(members: bytes) -> Bag:
    """The rows that a retained notification added."""
    return Bag.from_json(msgspec.json.decode(b"{" + members + b"}")["addedResults"])
