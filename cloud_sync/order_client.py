"""Executes orders as an ordinary client of the local gateway, within the permissions and limits of that client.

An update has the order's id as its request id, so the gateway executes it once, also if this process is killed before
it notes that. A subscription stays with the gateway between two rounds, and is resumed behind the last notification
that is in the outbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.early_notifications import (
    EarlyNotification,
    EarlyNotificationOutbox,
    line,
    record_times,
    with_time,
)
from lamplighter.cloud_sync.order_intake import ROUND_MAX, OrderIntake, PushedSubscription, ReceivedOrder
from lamplighter.cloud_sync.orders import VERSION, SubscribeBody, UpdateBody, trusted_keys
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.cloud_sync.settings import OrderSettings
from lamplighter.engine.client import EngineClient, Notification
from lamplighter.engine.client.oauth import Credentials, OAuth
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, GatewayError, RefusedError, UpstreamError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

SUBSCRIPTIONS_MAX = 100
# How long the gateway may take for one order.
ANSWER_S = 60.0
# How long the gateway retains notifications between two rounds, if its `resume.keep_s_max` allows it.
KEEP = "P1D"
Answered = TypeVar("Answered")


class GatewayAccess:
    """Connections to the local gateway, with the rights of the fleet's client there.

    folder: of the configuration file. Raises ConfigurationError.
    """

    def __init__(self, settings: OrderSettings, folder: Path) -> None:
        self._url = settings.url
        self._ca = folder / settings.ca_file if settings.ca_file else None
        self._tokens: OAuth | None = None
        if settings.credentials_file:
            credentials = Credentials.load(folder / settings.credentials_file)
            if not settings.token_url:
                raise ConfigurationError("sync.orders.token_url is empty; write https://localhost:8443/oauth/token")
            self._tokens = OAuth(settings.token_url, credentials, ca=self._ca)

    async def check(self) -> None:
        """Gets a token.

        Raises ConfigurationError, UpstreamError.
        """
        # Otherwise an order would be refused for a fault of the credentials.
        if self._tokens is not None:
            try:
                await self._tokens.token()
            except RefusedError as error:
                if error.retriable:
                    raise UpstreamError(f"the gateway gives no token: {error}; it is asked again") from error
                raise ConfigurationError(
                    f"the gateway gives no token: {error}; check sync.orders.token_url, and register the client for "
                    "sync.orders.credentials_file"
                ) from error

    def client(self) -> EngineClient:
        return EngineClient(self._url, name="fleet", tokens=self._tokens, ca=self._ca)


@dataclass
class OrderRound:
    """Executes what is at the destination, and takes the notifications of the fleet's subscriptions.

    data: the gateway's data folder, whose log has the times of records. answer_s: how long the gateway may take for one
    order.
    """

    data: Path
    intake: OrderIntake
    outbox: EarlyNotificationOutbox
    gateway: str
    access: GatewayAccess
    answer_s: float = ANSWER_S

    async def run(self) -> None:
        """Raises GatewayError, OSError; what was done until then is kept, and the next round continues."""
        self.intake.answer()
        client: EngineClient | None = None
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(ROUND_MAX):
                received = self.intake.next()
                if received is None:
                    break
                if received.body is None:
                    self.intake.settle(received, "refused", received.reason)
                    continue
                if client is None:
                    await self.access.check()
                    client = await stack.enter_async_context(self.access.client())
                try:
                    await self._execute(client, received)
                except RefusedError as error:
                    if error.retriable or error.status == 401:
                        raise
                    self.intake.settle(received, "refused", str(error))
        self.intake.answer()
        shipped = self.outbox.ship()
        if self.intake.state.subscriptions and self.outbox.room() > 0:
            await self.access.check()
            await self._take()
            shipped += self.outbox.ship()
        if shipped:
            logger.info("notifications shipped", objects=shipped)

    # --- orders ---

    async def _execute(self, client: EngineClient, received: ReceivedOrder) -> None:
        order, body, intake = received.order, received.body, self.intake
        assert order is not None
        assert body is not None
        if isinstance(body, UpdateBody):
            await self._in_time(client.update(body.update, request_id=f"order {order.id}"))
            intake.settle(received, "done")
            return
        known = intake.state.version(body.subscription)
        going = next((one for one in intake.state.subscriptions if one.id == body.subscription), None)
        if body.version < known or (isinstance(body, SubscribeBody) and body.version == known and going is None):
            intake.settle(received, "refused", f"{body.subscription} has had version {known}; use a higher one")
        elif isinstance(body, SubscribeBody):
            await self._subscribe(client, received, body, going)
        else:
            if going is not None:
                await self._end(client, going)
            intake.over(body.subscription, body.version)
            intake.settle(received, "done")

    async def _subscribe(
        self, client: EngineClient, received: ReceivedOrder, body: SubscribeBody, going: PushedSubscription | None
    ) -> None:
        """Begins a subscription, then ends its earlier version."""
        # In this order, so that a version that is refused ends nothing.
        intake = self.intake
        wanted = PushedSubscription(body.subscription, body.version, body.query)
        if going is not None and going.version == body.version:
            same = going.query == body.query
            told = f"{going.id} has version {going.version} with another query; use a higher version"
            intake.settle(received, "done" if same else "refused", "" if same else told)
            return
        if going is None and len(intake.state.subscriptions) >= SUBSCRIPTIONS_MAX:
            intake.settle(
                received, "refused", f"the gateway has {SUBSCRIPTIONS_MAX} subscriptions of the fleet; end one"
            )
            return
        async with contextlib.aclosing(
            client.subscribe(body.query, keep=KEEP, leave=True, tell_commit=True)
        ) as told_of:
            first = await self._in_time(anext(told_of))
        if going is not None:
            await self._end(client, going)
        taken = _Taken(self.gateway, wanted, _Budget(0))
        taken.add(first)
        self._note([taken])
        intake.settle(received, "done")

    async def _end(self, client: EngineClient, going: PushedSubscription) -> None:
        """Ends a subscription at the gateway."""
        taken = _Taken(self.gateway, going, _Budget(1))
        task = asyncio.create_task(taken.fill(_resume(client, going, leave=False)))
        await asyncio.sleep(0)  # it is asked for before the connection is
        with contextlib.suppress(RefusedError):
            await self._in_time(client.ask("ASK {}"))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GatewayError):
            await task
        with contextlib.suppress(RefusedError):
            await self._in_time(client.ask("ASK {}"))  # answered behind the end

    async def _in_time(self, work: Awaitable[Answered]) -> Answered:
        try:
            async with asyncio.timeout(self.answer_s):
                return await work
        except TimeoutError as error:
            raise UpstreamError(
                f"no answer of the gateway within {self.answer_s:.0f} s; is it running, and is sync.orders.url its "
                "address?"
            ) from error

    # --- notifications ---

    async def _take(self) -> None:
        """Resumes all subscriptions, and puts what they have into the outbox, as far as it has room."""
        budget = _Budget(self.outbox.room())
        taken = [_Taken(self.gateway, one, budget) for one in self.intake.state.subscriptions]
        async with self.access.client() as client:
            tasks = [asyncio.create_task(one.fill(_resume(client, one.subscription))) for one in taken]
            # The requests are made before there is a connection, which sends them in this order. So the answer to the
            # query comes behind what the gateway had retained.
            await asyncio.sleep(0)
            try:
                with contextlib.suppress(RefusedError):
                    await self._in_time(client.ask("ASK {}"))
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
        over = {}
        for one, end in zip(taken, ends, strict=True):
            if isinstance(end, RefusedError) and not end.retriable and end.status != 401:
                logger.warning("subscription of the fleet ended", id=one.subscription.id, reason=end)
                one.end(str(end))
                over[one.subscription.id] = one.subscription.version
        self._note(taken)
        for name, version in over.items():
            self.intake.over(name, version)
        self.intake.save()

    def _note(self, taken: Sequence[_Taken]) -> None:
        """Puts notifications into the outbox, then notes where each subscription is resumed. To be saved."""
        told = [one for some in taken for one in some.lines]
        if told:
            times = record_times(self.data, {one.commit for one in told if one.commit is not None})
            lines = [one.line if one.commit not in times else with_time(one.line, times[one.commit]) for one in told]
            self.intake.update(ahead=self.outbox.add(lines, self.intake.state.ahead))
        for one in taken:
            if one.lines:
                self.intake.note_begun(one.subscription)


@dataclass
class _Budget:
    """Bytes that may still be taken."""

    left: int


class _TakenLine(NamedTuple):
    """A line for the outbox. commit: epoch and sequence of the record that it tells of."""

    line: bytes
    commit: tuple[int, int] | None


@dataclass
class _Taken:
    """What was taken of a subscription in one round: lines for the outbox. subscription: with the place behind them."""

    gateway: str
    subscription: PushedSubscription
    budget: _Budget
    lines: list[_TakenLine] = field(default_factory=list)

    def add(self, one: Notification) -> None:
        known = self.subscription
        results = one.added.to_json(), one.removed.to_json()
        self._line(EarlyNotification(*self._name_fields(one.spuid), one.sequence, one.commit, *results))
        self.subscription = PushedSubscription(known.id, known.version, known.query, one.spuid, one.sequence)

    def end(self, reason: str) -> None:
        """Tells the fleet that the gateway has ended it."""
        known = self.subscription
        self._line(EarlyNotification(*self._name_fields(known.spuid or ""), known.sequence, ended=reason))

    async def fill(self, told_of: AsyncGenerator[Notification, None]) -> None:
        """Takes notifications until it is cancelled or there is no room. Raises the error that ends them."""
        async with contextlib.aclosing(told_of):
            async for notification in told_of:
                self.add(notification)
                if self.budget.left <= 0:
                    return

    def _name_fields(self, spuid: str) -> tuple[int, str, str, int, str]:
        return VERSION, self.gateway, self.subscription.id, self.subscription.version, _incarnation(spuid)

    def _line(self, notification: EarlyNotification) -> None:
        self.lines.append(_TakenLine(line(notification), notification.commit))
        self.budget.left -= len(self.lines[-1].line)


def _resume(client: EngineClient, one: PushedSubscription, *, leave: bool = True) -> AsyncGenerator[Notification, None]:
    assert one.spuid is not None
    place = one.spuid, one.sequence
    return client.subscribe(one.query, keep=KEEP, resume=place, leave=leave, tell_commit=True)


def _incarnation(spuid: str) -> str:
    """A name for the subscription at the gateway."""
    # The spuid itself would permit others to resume it.
    return hashlib.sha256(spuid.encode()).hexdigest()[:16]


def run_orders(
    data: Path, to: Destination, gateway: str, settings: OrderSettings, folder: Path, clock: PaceClock
) -> None:
    """One round. Raises GatewayError, after writing it to `orders.json`."""
    intake = OrderIntake(data, to, gateway, [], clock)
    try:
        intake.keys = trusted_keys(folder / settings.key_file)
        outbox = EarlyNotificationOutbox(data, to, gateway)
        asyncio.run(OrderRound(data, intake, outbox, gateway, GatewayAccess(settings, folder)).run())
        intake.update(error="")
        intake.save()
    except (GatewayError, OSError) as error:
        with contextlib.suppress(OSError):  # the first error is reported
            intake.update(error=str(error))
            intake.save()
        if isinstance(error, OSError):
            place = Path(error.filename) if error.filename else data
            raise ChangeLogError(str(error.strerror), path=place, hint="check the disk") from error
        raise
