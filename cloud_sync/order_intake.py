"""Reads a gateway's orders at the destination, in the order of their numbers, and answers them.

The number of the last settled order is durable in `orders.json` of the data folder. A number is settled once: an order
that is there again, or under another number, is not executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from lamplighter.cloud_sync.answers import ORDERS
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.files import write_whole
from lamplighter.cloud_sync.orders import (
    VERSION,
    Body,
    FleetOrder,
    OrderAnswer,
    answer_name,
    order_name,
    order_number,
    read_order,
    verify,
)
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.client.state_files import NEWER_CURE, file_content, newer_format
from lamplighter.engine.errors import ChangeLogError, MalformedRequestError
from lamplighter.engine.log_events import EventLogger

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

logger = EventLogger(__name__)

STATE = "orders.json"
# Orders of one round, and objects that are looked at behind a gap.
ROUND_MAX = 100
# Rounds in which an order that is missing, while a later one is there, or that cannot be verified is waited for.
GAP_ROUNDS = 10
# Missing orders of one gap that are answered.
MISSING_ANSWERS_MAX = 1000
TOMBSTONES_MAX = 1000
REASON_CHARACTERS_MAX = 500


class PushedSubscription(msgspec.Struct, frozen=True):
    """A subscription of the fleet at this gateway. spuid, sequence: where it is resumed; None before the first
    result."""

    id: str
    version: int
    query: str
    spuid: str | None = None
    sequence: int = 0


class OrderState(msgspec.Struct, frozen=True):
    """`orders.json`.

    number: of the last settled order; gap: rounds in which the next one was missing though a later one was there;
    unverified: rounds in which it was there and could not be verified; missing: orders that never came; unanswered:
    answers that are not at the destination yet; ended: last version of each subscription that has ended, by id; ahead:
    number of the next file of notifications; refused_at: time of the last refusal, in seconds since 1970; error: of
    the last round; waits: why the next order is not executed yet.
    """

    number: int = 0
    gap: int = 0
    unverified: int = 0
    done: int = 0
    refused: int = 0
    missing: int = 0
    unanswered: tuple[OrderAnswer, ...] = ()
    subscriptions: tuple[PushedSubscription, ...] = ()
    ended: dict[str, int] = {}
    ahead: int = 1
    last_refusal: str = ""
    refused_at: float | None = None
    waits: str = ""
    error: str = ""

    def version(self, subscription: str) -> int:
        """The newest version of a subscription that was begun or ended; 0 for an unknown one."""
        begun = [one.version for one in self.subscriptions if one.id == subscription]
        return max([*begun, self.ended.get(subscription, 0)])


def read_order_state(data: Path) -> OrderState:
    """The content of `orders.json`; the defaults if it does not exist. Raises ChangeLogError, OSError."""
    # A damaged file is an error: old orders would be executed again.
    path = data / STATE
    try:
        read = json_document(read_file(path))
        if reason := newer_format(read):
            raise ChangeLogError(reason, path=path, hint=NEWER_CURE)
        return msgspec.convert(read, OrderState)
    except FileNotFoundError:
        return OrderState()
    except msgspec.DecodeError as error:
        hint = f'restore it, or write {{"number": N}} with the number of the last answer at {ORDERS}/<gateway>'
        raise ChangeLogError(f"damaged: {error}", path=path, hint=hint) from error


@dataclass(frozen=True)
class ReceivedOrder:
    """The next object. order, body: None if it is refused; reason: why."""

    number: int
    order: FleetOrder | None = None
    body: Body | None = None
    reason: str = ""


class OrderIntake:
    """The orders of one gateway. data: its data folder; keys: of those who may sign.

    It is written to the state before the answer is at the destination, so an answer is repeated after a kill, and an
    order is not.
    """

    def __init__(
        self, data: Path, source: Destination, gateway: str, keys: Sequence[Ed25519PublicKey], clock: PaceClock
    ) -> None:
        self._data = data
        self._source = source
        self._gateway = gateway
        self.keys = keys
        self._clock = clock
        self.state = read_order_state(data)

    def next(self) -> ReceivedOrder | None:
        """The next order, verified, or with the reason of its refusal; None if there is none to settle now.

        Raises UpstreamError.
        """
        number = self.state.number + 1
        data = read_order(self._source, order_name(self._gateway, number))
        if data is None:
            return self._behind_gap(number)
        try:
            order = verify(data, self._gateway, number, self.keys)
        except MalformedRequestError as error:
            return self._refuse_later(number, str(error))
        return self._receive(order)

    def settle(self, received: ReceivedOrder, outcome: Literal["done", "refused"], reason: str = "") -> None:
        """Makes the outcome of an order durable; `answer` tells it. Raises OSError."""
        name = received.order.id if received.order else ""
        answer = self._answer_of(received.number, name, outcome, reason[:REASON_CHARACTERS_MAX])
        if outcome == "refused":
            logger.warning("order refused", number=answer.number, id=answer.id or None, reason=answer.reason)
            told, now = f"order {answer.number}: {answer.reason}", self._clock.wall()
            self.update(refused=self.state.refused + 1, last_refusal=told, refused_at=now)
        else:
            logger.info("order done", number=answer.number, id=answer.id)
            self.update(done=self.state.done + 1)
        missing = range(self.state.number + 1, received.number)
        if missing:
            logger.error("orders missing", first=missing[0], last=missing[-1])
        # The fleet is told of each: it must not take silence for an order that is still on its way.
        told = f"it was missing for {GAP_ROUNDS} rounds in which order {received.number} was there"
        never = [self._answer_of(number, "", "refused", told) for number in missing[:MISSING_ANSWERS_MAX]]
        self.update(
            number=received.number,
            gap=0,
            unverified=0,
            waits="",
            missing=self.state.missing + len(missing),
            unanswered=(*self.state.unanswered, *never, answer),
        )
        self.save()

    def _answer_of(self, number: int, name: str, outcome: Literal["done", "refused"], reason: str) -> OrderAnswer:
        trusted = self._clock.trusted()
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if trusted else ""
        return OrderAnswer(VERSION, self._gateway, number, name, outcome, reason, at)

    def answer(self) -> None:
        """Writes the answers that are not at the destination yet. Raises UpstreamError, OSError."""
        while self.state.unanswered:
            first, *rest = self.state.unanswered
            self._source.put(answer_name(self._gateway, first.number), msgspec.json.encode(first))
            self.update(unanswered=tuple(rest))
        self.save()

    def update(self, **members: object) -> None:
        self.state = msgspec.structs.replace(self.state, **members)

    def save(self) -> None:
        """Raises OSError."""
        path = self._data / STATE
        content = file_content(path, self.state)
        with suppress(FileNotFoundError):
            if path.read_bytes() == content:
                return
        write_whole(path, content)

    def note_begun(self, subscription: PushedSubscription) -> None:
        """Notes a subscription, in place of its earlier version. To be saved with its order."""
        others = tuple(one for one in self.state.subscriptions if one.id != subscription.id)
        self.update(subscriptions=(*others, subscription))

    def over(self, subscription: str, version: int) -> None:
        """Notes that a subscription has ended. To be saved."""
        ended = {name: one for name, one in self.state.ended.items() if name != subscription}
        ended[subscription] = max(version, self.state.version(subscription))
        self.update(
            subscriptions=tuple(one for one in self.state.subscriptions if one.id != subscription),
            ended=dict(list(ended.items())[-TOMBSTONES_MAX:]),
        )

    def _refuse_later(self, number: int, reason: str) -> ReceivedOrder | None:
        """An order that cannot be verified, once that has been so for `GAP_ROUNDS` rounds."""
        # A refusal is for ever, and one look is no proof: a store may show an object before all of it is there.
        self.update(unverified=self.state.unverified + 1)
        if self.state.unverified < GAP_ROUNDS:
            self.update(waits=f"order {number} cannot be verified: {reason[:REASON_CHARACTERS_MAX]}")
            return None
        return ReceivedOrder(number, reason=reason)

    def _receive(self, order: FleetOrder) -> ReceivedOrder | None:
        number = order.number
        if not self._clock.trusted():
            # As for delayed updates with `at`: an expired order must not be executed.
            self.update(waits=f"order {number} waits until the clock is synchronised, because it expires")
            return None
        if order.expires.timestamp() <= self._clock.wall():
            return ReceivedOrder(number, order, reason=f"it has expired at {order.expires:%Y-%m-%dT%H:%M:%SZ}")
        try:
            return ReceivedOrder(number, order, order.content)
        except MalformedRequestError as error:
            return ReceivedOrder(number, order, reason=str(error))

    def _behind_gap(self, number: int) -> ReceivedOrder | None:
        """The first signed order behind a missing one, once that has been missing for `GAP_ROUNDS` rounds."""
        folder, _, before = order_name(self._gateway, number - 1).rpartition("/")
        listed = self._source.entries(folder, before, 2 * ROUND_MAX + 2)
        numbers = [found for one in listed if (found := order_number(one.name))]
        if number in numbers:  # it has come since it was read; the next round reads it
            return None
        for later in numbers[:ROUND_MAX]:
            data = read_order(self._source, order_name(self._gateway, later)) or b""
            with suppress(MalformedRequestError):
                order = verify(data, self._gateway, later, self.keys)
                self.update(gap=self.state.gap + 1, unverified=0)
                if self.state.gap < GAP_ROUNDS:
                    self.update(waits=f"order {number} is missing, order {later} waits for it")
                    return None
                return self._receive(order)
        self.update(gap=0, unverified=0, waits="")
        return None
