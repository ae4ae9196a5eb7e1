"""Observes a property by Server-Sent Events: the data of each event is a value as JSON.

The first event has the value as it is. What a commit adds follows; a client that comes back with ``Last-Event-ID``
receives what it missed. If that is not possible any more, an event ``reset`` tells why, and the value follows. When
the thing has the property no more, an event ``ended`` says so, and the stream is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from lamplighter.gateway.state.resumption import AttachedSubscription


class ValueSink:
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
        self._add(in_order(subscription.first)[-1:], subscription.spuid, 0)
        if not _has_property(subscription.first):
            self._end(subscription.spuid)

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        self._resumable = True
        self._outbox.replay(self._replay(spuid, attached), attached.bytes)

    def _replay(self, spuid: str, attached: AttachedSubscription[Sink]) -> Iterator[StreamEvent]:
        for one in attached.missed:
            found = msgspec.json.decode(b"{" + one.members + b"}")
            added, removed = Bag.from_json(found["addedResults"]), Bag.from_json(found["removedResults"])
            yield StreamEvent(b"".join(self._events(in_order(added), spuid, one.sequence)))
            if _has_property(removed):
                self._end(spuid)
                return

    def notify(self, notification: Notification, results: Results) -> None:
        self._add(in_order(results.added), notification.spuid, notification.sequence)
        if _has_property(results.removed):
            self._end(notification.spuid)

    def name_no_commits(self) -> None:
        """Values name none."""

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.over = True
        self.connection.forget(spuid, self)
        self._outbox.put(StreamEvent(b"event: ended\ndata: %b\n\n" % msgspec.json.encode({"reason": str(error)})))

    def taken_over(self, spuid: str, by: Sink) -> None:
        self.over = True
        self.connection.forget(spuid, self)

    def _end(self, spuid: str) -> None:
        """Tells the client that nothing follows; the stream then leaves its subscription."""
        self.connection.forget(spuid, self)
        self._outbox.put(StreamEvent(b'event: ended\ndata: {"reason":"the thing has this property no more"}\n\n'))

    def _add(self, values: Sequence[Term], spuid: str, sequence: int) -> None:
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


def _has_property(rows: Bag) -> bool:
    """Whether the row without a value is among rows of `ThingProperty.observed_query`."""
    return any(row[0] is None for row in rows)
