"""Notifications as SPARQL updates for gateways: signed orders, which the gateways execute."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.base import SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.records import UpdateSink
from lamplighter.engine.errors import ConfigurationError, RequestError, UpstreamError
from lamplighter.engine.sparql.forced_bindings import bind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lamplighter.cloud_sync.orders import Kind

# A gateway that is away for longer does not execute the update.
EXPIRES_S = 7 * 86_400.0
_WILDCARDS = frozenset("*?[")


class SendsOrders(Protocol):
    """`cloud_sync.orders.Orders`."""

    def send(self, gateway: str, order_id: str, kind: Kind, body: Mapping[str, str | int], expires_s: float) -> Any: ...


class OrderDesk:
    """Orders to the gateways of a lake, from several threads."""

    def __init__(self, orders: SendsOrders, lake: Lake) -> None:
        self._orders = orders
        self._lake = lake
        self._lock = threading.Lock()

    def gateways(self, patterns: Sequence[str]) -> list[str]:
        """The gateways that patterns name, sorted: those with segments in the lake, and names without wildcards."""
        plain = {pattern for pattern in patterns if not _WILDCARDS & set(pattern)}
        landed = self._lake.names("segments") if len(plain) < len(patterns) else []
        return sorted(plain | {name for name in landed if any(fnmatchcase(name, pattern) for pattern in patterns)})

    def send(self, gateway: str, order_id: str, update: str) -> None:
        with self._lock:
            self._orders.send(gateway, order_id, "update", {"update": update}, EXPIRES_S)


class UpdateNotifications:
    """Sends an update to each gateway of the sink, for each row of a notification."""

    bounds = ChunkBounds(32, 200_000)
    blocking = True

    def __init__(self, sink: UpdateSink, desk: OrderDesk | None, threads: SinkThreads) -> None:
        self._sink = sink
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
            try:
                for row, update in enumerate(updates(self._sink.update, notification)):
                    for gateway in gateways:
                        desk.send(gateway, order_id(notification, self._sink.name, row), update)
            except RequestError as error:
                raise UndeliveredError(
                    f"sink {self._sink.name}: {error}", accepted=number, permanent=not error.retriable
                ) from error
            except UpstreamError as error:
                raise UndeliveredError(str(error), accepted=number) from error

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
