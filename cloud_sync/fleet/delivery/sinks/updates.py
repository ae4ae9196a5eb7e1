"""Notifications as SPARQL updates for gateways: signed orders, which the gateways execute."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

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
    """Sends an update to each gateway of the sink, for each row of a notification.

    A gateway is passed if it has too many orders without an answer, or if only to it orders cannot be sent, so that the
    others do not wait for it. passed: for each gateway that the last delivery has passed, the number of notifications
    before that.
    """

    bounds = ChunkBounds(32, 200_000, written=True)
    blocking = True

    def __init__(
        self, sink: UpdateSink, desk: OrderDesk | None, threads: SinkThreads, wall: Callable[[], float] = time.time
    ) -> None:
        self._sink = sink
        self._wall = wall
        self._desk = desk
        self._threads = threads
        self.passed: dict[str, int] = {}

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        await self._threads.call(self._deliver, self._known_desk, notifications)

    def pass_by(self, gateways: Iterable[str]) -> None:
        """Before a delivery: the gateways that are behind."""
        self.passed = dict.fromkeys(gateways, 0)

    def gateways(self) -> list[str]:
        """The gateways that the sink names. Raises as `deliver`."""
        return self._known_desk.gateways(self._sink.gateways)

    async def catch_up(self, gateway: str, notifications: Sequence[MatchNotification]) -> int:
        """Sends notifications to a gateway alone, as many as it takes. Returns their number. Raises as `deliver`."""
        return await self._threads.call(self._send_to, self._known_desk, gateway, notifications)

    def _deliver(self, desk: OrderDesk, notifications: Sequence[MatchNotification]) -> None:
        gateways = [name for name in desk.gateways(self._sink.gateways) if name not in self.passed]
        failed: dict[str, UndeliveredError] = {}
        too_old = self._too_old(notifications) if gateways else None
        for number, notification in enumerate(notifications[: too_old.accepted if too_old else None]):
            for gateway in gateways:
                if gateway in self.passed:
                    continue
                try:
                    if self._is_sent(desk, gateway, notification, number):
                        continue
                except UndeliveredError as error:
                    if error.permanent:
                        raise
                    failed[gateway] = error
                self.passed[gateway] = number
            if failed and len(failed) == len(gateways):
                # The fault is not that of one gateway, so the sink waits with all that have come so far.
                last = {gateway: reason for gateway, reason in failed.items() if reason.accepted == number}
                for gateway in last:
                    del self.passed[gateway]
                raise next(iter(last.values()))
        if too_old:
            raise too_old

    def _send_to(self, desk: OrderDesk, gateway: str, notifications: Sequence[MatchNotification]) -> int:
        too_old = self._too_old(notifications)
        for number, notification in enumerate(notifications[: too_old.accepted if too_old else None]):
            if not self._is_sent(desk, gateway, notification, number):
                return number
        if too_old:
            raise too_old
        return len(notifications)

    def _is_sent(self, desk: OrderDesk, gateway: str, notification: MatchNotification, number: int) -> bool:
        """Sends the updates of a notification. False if the gateway has no room for them."""
        try:
            for row, update in enumerate(updates(self._sink.update, notification)):
                if desk.full_reason(gateway):
                    return False
                name = order_id(notification, self._sink.name, row)
                desk.send(gateway, name, update, notification, self._sink.name, self._wall())
        except RequestError as error:
            raise UndeliveredError(
                f"sink {self._sink.name}: {error}", accepted=number, permanent=not error.retriable
            ) from error
        except UpstreamError as error:
            raise UndeliveredError(str(error), accepted=number) from error
        return True

    @property
    def _known_desk(self) -> OrderDesk:
        if self._desk is None:
            raise ConfigurationError(
                f"sink {self._sink.name}: updates are signed orders; run deliver with --orders and --orders-key"
            )
        return self._desk

    def _too_old(self, notifications: Sequence[MatchNotification]) -> UndeliveredError | None:
        """The error for the first one whose event is too old for an order, and for those behind it."""
        # Judged once, so that no gateway gets an order that the next one does not.
        now = self._wall()
        faults = [self._age_fault(one, now) for one in notifications]
        first = next((number for number, fault in enumerate(faults) if fault), None)
        if first is None:
            return None
        same = sum(1 for _ in takewhile(lambda fault: fault == faults[first], faults[first:]))
        reason = f"sink {self._sink.name}: {faults[first]}"
        return UndeliveredError(reason, accepted=first, permanent=True, refused=same)

    def _age_fault(self, notification: MatchNotification, now: float) -> str:
        """Why an event is too old for an order; "" if it is not."""
        match, most = notification.match, self._sink.event_age_s_max
        if not most or match.ts is None:
            return ""
        if not match.trusted:
            return "the clock of the event is not trusted, so it may be too old for an order (event_age_s_max)"
        age_s = now - match.ts / 1000
        # An event does not become credible while it waits for a gateway.
        written = now if notification.written is None else min(now, notification.written)
        if written - match.ts / 1000 < -AHEAD_S_MAX:
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
