"""Tells gateways which fleet subscriptions they evaluate, by signed orders. No Spark.

The file `<lake>/subscriptions/pushed.json` has the last order for each subscription and gateway. If it is lost, the
next run sends all subscriptions again, with higher versions, which replace those that the gateways have.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.orders import Kind, OrderAnswer
from lamplighter.engine.errors import ConfigurationError, GatewayError, MalformedRequestError, RequestError

# A gateway that is away for longer is told again.
EXPIRES_S = 7 * 86_400.0
# After so long a gateway is asked again what it refused.
AGAIN_S = 86_400.0
# Subscriptions that a gateway takes.
OF_GATEWAY_MAX = 100
PUSHED = "subscriptions", "pushed.json"
PUSHED_BYTES_MAX = 512 * 1024 * 1024
# Gateways at which a run may fail before it ends; then the fault is not theirs.
FAILING_MAX = 10
_TIMES = 2**32


class SendsAnsweredOrders(Protocol):
    """`cloud_sync.orders.Orders`."""

    def send(self, gateway: str, order_id: str, kind: Kind, body: Mapping[str, str | int], expires_s: float) -> int: ...

    def answer(self, gateway: str, number: int) -> OrderAnswer | None: ...


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class PushedOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last order for a subscription and a gateway.

    version: of the order, see `order_version`; query: for the gateway; number: of the order there; at: when it was
    sent, in seconds since 1970; reason: of a refusal.
    """

    subscription: str
    gateway: Annotated[str, msgspec.Meta(pattern=r"^[^/]+$", max_length=255)]
    kind: Literal["subscribe", "unsubscribe"]
    version: _Count
    query: str = ""
    number: _Count
    at: _Count
    outcome: Literal["", "done", "refused"] = ""
    reason: str = ""

    @property
    def hindrance(self) -> str:
        """Why the gateway does not evaluate the subscription; empty if it has confirmed that it does."""
        if self.kind == "unsubscribe":
            from lamplighter.cloud_sync.fleet.subscriptions.planner import UNTOLD

            return UNTOLD
        if self.outcome == "refused":
            return f"it has refused order {self.number}: {self.reason}"
        return "" if self.outcome == "done" else f"it has not answered order {self.number} yet"


class _PushedFile(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    orders: list[PushedOrder]


class PushSummary(NamedTuple):
    """What one run has done, and which gateways do not confirm. faults: lines about subscriptions and gateways."""

    sent: int
    confirmed: int
    unanswered: int
    refused: tuple[PushedOrder, ...]
    faults: tuple[str, ...]


def order_version(version: int, at: int) -> int:
    """The version of an order, which ascends with the version of the subscription and with time.

    A gateway takes no version twice, but a subscription that was paused keeps its version. at: seconds since 1970.
    """
    return version * _TIMES + at


def subscription_version(order: int) -> int:
    """The version of the subscription in the version of an order."""
    return order // _TIMES


def read_pushed(lake: Lake) -> list[PushedOrder]:
    """The last orders. Raises ConfigurationError for a damaged file, OSError."""
    path = lake.path(*PUSHED)
    try:
        data = lake.fs.cat_file(path, start=0, end=PUSHED_BYTES_MAX + 1)
        if len(data) > PUSHED_BYTES_MAX:
            raise ValueError(f"it has more than {PUSHED_BYTES_MAX} bytes")
        return msgspec.json.decode(data, type=_PushedFile).orders
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:  # those of msgspec too
        raise ConfigurationError(
            f"{path}: damaged: {error}; remove it, and `subscriptions push` tells all gateways again"
        ) from error


def write_pushed(lake: Lake, orders: Iterable[PushedOrder]) -> None:
    """Replaces the last orders. Raises OSError."""
    content = _PushedFile(orders=sorted(orders, key=lambda one: (one.subscription, one.gateway)))
    lake.write(msgspec.json.encode(content) + b"\n", *PUSHED)


def confirmations(orders: Iterable[PushedOrder], record: SubscriptionRecord) -> dict[str, str]:
    """For each gateway that was told of this version of a subscription, what hinders it; "" if it has confirmed."""
    return {
        one.gateway: one.hindrance
        for one in orders
        if one.subscription == record.id and subscription_version(one.version) == record.version
    }


class Push:
    """Brings the gateways up to date with the subscriptions of a lake. Only one process may do so at a time.

    wall: seconds since 1970.
    """

    def __init__(self, lake: Lake, orders: SendsAnsweredOrders, wall: Callable[[], float] = time.time) -> None:
        self._lake = lake
        self._orders = orders
        self._wall = wall
        self._registry = SubscriptionRegistry(lake)
        self._last = {(one.subscription, one.gateway): one for one in read_pushed(lake)}
        self._sent = 0
        # Gateways at which this run has failed, with the first fault.
        self._failing: dict[str, GatewayError] = {}

    def once(self) -> PushSummary:
        """Reads the answers of gateways, and sends what they have to be told.

        A fault at one gateway does not stop the others. Raises UpstreamError, OSError; what was sent is noted, and the
        next run continues.
        """
        self._sent = 0
        self._failing.clear()
        try:
            return self._once()
        finally:
            self._write()

    def _once(self) -> PushSummary:
        found = self._registry.all("active", "paused")
        for name, one in self._last.items():
            self._last[name] = self._with_answer(one)
        wanted, unsupported = self._desired_orders(found.records)
        kept = {one.id for one in found.broken}
        for name, one in list(self._last.items()):
            if name in wanted or one.subscription in kept:
                continue
            if one.kind == "subscribe":
                self._send(one, "unsubscribe", one.version)
            elif self._is_old(one):
                self._send(one, "unsubscribe", one.version + 1)
            elif one.outcome == "done" and self._wall() - one.at > AGAIN_S:
                del self._last[name]
        self._subscribe(wanted)
        gateways = {gateway for _, gateway in (*self._last, *wanted)}
        if self._failing and gateways <= self._failing.keys():
            raise next(iter(self._failing.values()))
        faults = [f"gateway {name}: {error}" for name, error in sorted(self._failing.items())]
        going = [one for one in self._last.values() if one.kind == "subscribe"]
        return PushSummary(
            self._sent,
            sum(one.outcome == "done" for one in going),
            sum(not one.outcome for one in going),
            tuple(one for one in going if one.outcome == "refused"),
            (*unsupported, *(one.reason for one in found.broken), *faults),
        )

    def _desired_orders(
        self, records: Sequence[SubscriptionRecord]
    ) -> tuple[dict[tuple[str, str], PushedOrder], list[str]]:
        """What each gateway shall evaluate, as orders without a number; and why queries are not supported."""
        # The planner needs the store's library, which drivers of a cluster may not have.
        from lamplighter.cloud_sync.fleet.subscriptions.planner import plan

        found, unsupported = {}, []
        gateways = self._lake.gateways()
        for record in records:
            try:
                one = plan(record, gateways, {})
            except RequestError as error:
                unsupported.append(f"subscription {record.id}: {error}; replace its query")
                continue
            for gateway, _ in one.gateways if one.pushed is not None else ():
                assert one.pushed is not None
                version = order_version(record.version, int(self._wall()))
                found[record.id, gateway] = PushedOrder(
                    subscription=record.id,
                    gateway=gateway,
                    kind="subscribe",
                    version=version,
                    query=one.pushed.text,
                    number=0,
                    at=0,
                )
        return found, unsupported

    def _subscribe(self, wanted: Mapping[tuple[str, str], PushedOrder]) -> None:
        """Begins and replaces subscriptions, as far as the gateways take them."""
        had = Counter(one.gateway for one in self._last.values() if one.kind == "subscribe")
        for name, order in wanted.items():
            last = self._last.get(name)
            going = last is not None and last.kind == "subscribe"
            if last is not None and going and not self._is_due(last, order):
                continue
            if not going:
                if had[order.gateway] >= OF_GATEWAY_MAX:
                    continue
                had[order.gateway] += 1
            self._send(order, "subscribe", order.version if last is None else max(order.version, last.version + 1))

    def _is_due(self, last: PushedOrder, order: PushedOrder) -> bool:
        """Whether a gateway has to be told again of a subscription."""
        if (subscription_version(last.version), last.query) != (subscription_version(order.version), order.query):
            return True
        return self._is_old(last)

    def _is_old(self, last: PushedOrder) -> bool:
        """Whether an order that had no effect is old enough to be sent again."""
        patience = {"done": float("inf"), "refused": AGAIN_S, "": EXPIRES_S}[last.outcome]
        return self._wall() - last.at > patience

    def _with_answer(self, one: PushedOrder) -> PushedOrder:
        if one.outcome or one.gateway in self._failing:
            return one
        try:
            answer = self._orders.answer(one.gateway, one.number)
        except GatewayError as error:
            self._note_failure(one.gateway, error)
            return one
        if answer is None:
            return one
        return msgspec.structs.replace(one, outcome=answer.outcome, reason=answer.reason)

    def _note_failure(self, gateway: str, error: GatewayError) -> None:
        """Notes a fault at a gateway. Raises it if too many have one."""
        self._failing[gateway] = error
        if len(self._failing) > FAILING_MAX:
            raise error

    def _send(self, order: PushedOrder, kind: Literal["subscribe", "unsubscribe"], version: int) -> None:
        name = order.subscription, order.gateway
        if order.gateway in self._failing:
            return
        body: dict[str, str | int] = {"subscription": order.subscription, "version": version}
        if kind == "subscribe":
            body["query"] = order.query
        order_id = f"push/{order.subscription}/{version}/{kind}"
        number, reason = 0, ""
        try:
            number = self._orders.send(order.gateway, order_id, kind, body, EXPIRES_S)
        except MalformedRequestError as error:  # of this order, and others go on
            reason = str(error)
        except GatewayError as error:
            self._note_failure(order.gateway, error)
            return
        self._last[name] = msgspec.structs.replace(
            order,
            kind=kind,
            version=version,
            number=number,
            at=int(self._wall()),
            outcome="refused" if reason else "",
            reason=reason,
        )
        self._sent += not reason

    def _write(self) -> None:
        write_pushed(self._lake, self._last.values())
