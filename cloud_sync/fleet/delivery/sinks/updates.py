"""Notifications as SPARQL updates for gateways: signed orders, which the gateways execute."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sent_orders import OrderDesk
from lamplighter.cloud_sync.fleet.delivery.sinks.base import SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.subscriptions.records import UpdateSink
from lamplighter.cloud_sync.status import age
from lamplighter.engine.errors import ConfigurationError, RequestError, UpstreamError
from lamplighter.engine.sparql.forced_bindings import bind

# Clocks of gateways and of this machine differ by less.
AHEAD_S_MAX = 300.0


class UpdateNotifications:
    """Sends an update to each gateway of the sink, for each row of a notification."""

    bounds = ChunkBounds(32, 200_000)
    blocking = True

    def __init__(
        self, sink: UpdateSink, desk: OrderDesk | None, threads: SinkThreads, wall: Callable[[], float] = time.time
    ) -> None:
        self._sink = sink
        self._wall = wall
        self._desk = desk
        self._threads = threads

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        if self._desk is None:
            raise ConfigurationError(
                f"sink {self._sink.name}: updates are signed orders; run deliver with --orders and --orders-key"
            )
        await self._threads.run(self._send, self._desk, notifications)

    def _send(self, desk: OrderDesk, notifications: Sequence[MatchNotification]) -> None:
        gateways = desk.gateways(self._sink.gateways)
        for number, notification in enumerate(notifications):
            if reason := self._age_fault(notification):
                raise UndeliveredError(f"sink {self._sink.name}: {reason}", accepted=number, permanent=True)
            try:
                for row, update in enumerate(updates(self._sink.update, notification)):
                    for gateway in gateways:
                        name = order_id(notification, self._sink.name, row)
                        desk.send(gateway, name, update, notification, self._sink.name, self._wall())
            except RequestError as error:
                raise UndeliveredError(
                    f"sink {self._sink.name}: {error}", accepted=number, permanent=not error.retriable
                ) from error
            except UpstreamError as error:
                raise UndeliveredError(str(error), accepted=number) from error

    def _age_fault(self, notification: MatchNotification) -> str:
        """Why an event is too old for an order; "" if it is not."""
        match, most = notification.match, self._sink.event_age_s_max
        if not most or match.ts is None:
            return ""
        if not match.trusted:
            return "the clock of the event is not trusted, so it may be too old for an order (event_age_s_max)"
        age_s = self._wall() - match.ts / 1000
        if age_s < -AHEAD_S_MAX:
            return "the clock of the event is ahead, so it may be too old for an order (event_age_s_max)"
        return f"the event is {age(age_s)} old, more than event_age_s_max = {most}" if age_s > most else ""

    async def close(self) -> None:
        pass


def updates(template: str, notification: MatchNotification) -> Iterator[str]:
    """The update for each row, with the variables of the query replaced by its terms; for ASK the text as it is.

    A variable that is unbound in a row stays a variable. Raises ForcedBindingError for a blank node.
    """
    match = notification.match
    if match.form == "ASK":
        yield template
        return
    for row in match.rows:
        values = {name: term for name, term in zip(match.variables, row, strict=True) if term is not None}
        yield bind(template, values)


def order_id(notification: MatchNotification, sink: str, row: int) -> str:
    """The same for each repetition."""
    # So a gateway executes the update once.
    place = f"{notification.id}\n{sink}\n{row}"
    return f"{notification.match.subscription}/{hashlib.sha256(place.encode()).hexdigest()}"
