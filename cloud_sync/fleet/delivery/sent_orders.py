"""Orders of update sinks that gateways have not answered yet, and what becomes of them.

`<lake>/subscriptions/orders.json` has them. It is written before the cursors, so an order whose notification counts as
delivered is in it. An order that a gateway refuses, or does not answer until it has expired, is a dead letter.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

import msgspec

from lamplighter.cloud_sync.fleet.delivery.cursors import SinkName
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.orders import Kind, OrderAnswer
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

SENT = "subscriptions", "orders.json"
SENT_BYTES_MAX = 256 * 1024 * 1024
# A gateway that is away for longer does not execute the update.
EXPIRES_S = 7 * 86_400.0
# How long after the expiry of an order its answer may come. A gateway may be reading it when it expires.
OVERDUE_S = 3600.0
# Orders of one gateway that may wait for answers, and of one while those of all are as many as the third number. Sinks
# pass a gateway with more.
WAITING_MAX, FEW_WAITING, ALL_WAITING_MAX = 1000, 10, 50_000
_WILDCARDS = frozenset("*?[")


class SendsOrders(Protocol):
    """`cloud_sync.orders.Orders`."""

    def send(self, gateway: str, order_id: str, kind: Kind, body: Mapping[str, str | int], expires_s: float) -> int: ...

    def answers(self, gateway: str, numbers: Iterable[int]) -> dict[int, OrderAnswer]: ...


class SentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order without an answer. id, source, epoch, sequence: of the notification; expires: seconds since 1970."""

    gateway: str
    number: int
    subscription: str
    sink: str
    id: str
    source: str
    epoch: int
    sequence: int
    expires: int

    @property
    def name(self) -> SinkName:
        return self.subscription, self.sink


class DeadOrder(NamedTuple):
    """An order that had no effect, and why."""

    order: SentOrder
    reason: str


class _SentFile(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    orders: list[SentOrder]


class OrderDesk:
    """Orders to the gateways of a lake, from several threads. Raises ConfigurationError for a damaged file."""

    def __init__(self, orders: SendsOrders, lake: Lake) -> None:
        self._orders = orders
        self._lake = lake
        # A destination may be slow: what asks for the waiting orders meanwhile has a lock of its own.
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._waiting = {(one.gateway, one.number): one for one in _load_orders(lake)}
        self._counts = Counter(gateway for gateway, _ in self._waiting)
        self._changed = False

    def gateways(self, patterns: Sequence[str]) -> list[str]:
        """The gateways that patterns name, sorted: those with segments in the lake, and names without wildcards."""
        plain = {pattern for pattern in patterns if not _WILDCARDS & set(pattern)}
        landed = self._lake.gateways() if len(plain) < len(patterns) else []
        return sorted(plain | {name for name in landed if any(fnmatchcase(name, pattern) for pattern in patterns)})

    def send(
        self, gateway: str, order_id: str, update: str, notification: MatchNotification, sink: str, now: float
    ) -> None:
        """Sends an update, unless it was sent before, and notes it.

        now: seconds since 1970. Raises as `Orders.send`.
        """
        match = notification.match
        with self._sending:
            number = self._orders.send(gateway, order_id, "update", {"update": update}, EXPIRES_S)
            sent = SentOrder(
                gateway=gateway,
                number=number,
                subscription=match.subscription,
                sink=sink,
                id=notification.id,
                source=match.gw,
                epoch=match.epoch,
                sequence=match.seq,
                expires=int(now + EXPIRES_S),
            )
            with self._lock:
                self._counts[gateway] += (gateway, number) not in self._waiting
                self._waiting[gateway, number] = sent
                self._changed = True

    def full_reason(self, gateway: str) -> str:
        """Why no further order may be sent to a gateway; empty if it may."""
        with self._lock:
            count, all_counts = self._counts[gateway], len(self._waiting)
        if count < (WAITING_MAX if all_counts < ALL_WAITING_MAX else FEW_WAITING):
            return ""
        return f"gateway {gateway} has not answered {count} orders"

    def settle(self, now: float) -> list[DeadOrder]:
        """Reads answers. Returns the orders that were refused, and those that are overdue, which stay until `forget`.

        A gateway whose answers cannot be read does not stop the others.
        """
        with self._lock:
            waiting = list(self._waiting.values())
        dead, done = [], []
        for gateway in sorted({one.gateway for one in waiting}):
            orders = [one for one in waiting if one.gateway == gateway]
            answers: dict[int, OrderAnswer] = {}
            try:
                answers = self._orders.answers(gateway, [one.number for one in orders])
            except UpstreamError as error:
                logger.warning("answers not readable", gateway=gateway, reason=str(error))
            for one in orders:
                answer = answers.get(one.number)
                if answer is not None and answer.outcome == "done":
                    done.append(one)
                elif answer is not None:
                    dead.append(DeadOrder(one, f"gateway {gateway} refused order {one.number}: {answer.reason}"))
                elif now > one.expires + OVERDUE_S:
                    dead.append(
                        DeadOrder(one, f"gateway {gateway} did not answer order {one.number} before it expired")
                    )
        self.forget(done)
        return dead

    def forget(self, orders: Iterable[SentOrder]) -> None:
        """These orders wait no more."""
        with self._lock:
            for one in orders:
                if self._waiting.pop((one.gateway, one.number), None) is not None:
                    self._changed = True
                    self._counts[one.gateway] -= 1

    def unanswered_counts(self) -> Counter[SinkName]:
        """The number of waiting orders of each sink."""
        with self._lock:
            return Counter(one.name for one in self._waiting.values())

    def write(self) -> None:
        """Writes the file if something has changed. Raises OSError."""
        with self._lock:
            if not self._changed:
                return
            orders = list(self._waiting.values())
            self._changed = False
        try:
            _write_orders(self._lake, orders)
        except BaseException:
            self._changed = True
            raise


def _write_orders(lake: Lake, orders: Iterable[SentOrder]) -> None:
    lake.write(msgspec.json.encode(_SentFile(orders=list(orders))) + b"\n", *SENT)


def _load_orders(lake: Lake) -> list[SentOrder]:
    path = lake.path(*SENT)
    try:
        data = lake.fs.cat_file(path, start=0, end=SENT_BYTES_MAX + 1)
        return msgspec.json.decode(data, type=_SentFile).orders
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:  # those of msgspec too
        raise ConfigurationError(
            f"{path}: damaged: {error}; remove it, and the answers to orders before now are not looked at"
        ) from error
