"""All deliveries of one kind: registered by requests, found again in the log by a start."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol

from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import (
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
    RequestError,
    UnknownSpuidError,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Resume
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import MachineClock, iso
from lamplighter.gateway.gates.deliveries.attempts import Slots
from lamplighter.gateway.gates.deliveries.dispatch import DeliveryRequest, Dispatch, WaitingNotification
from lamplighter.gateway.gates.deliveries.folder import FOLDER
from lamplighter.gateway.gates.deliveries.keys import SecretKeys
from lamplighter.gateway.gates.deliveries.positions import Positions
from lamplighter.gateway.gates.deliveries.targets import address_refusal
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings.deliveries import DeliverySettings
from lamplighter.gateway.state.delayed import delay_us
from lamplighter.gateway.state.quotas import SharedRoom

logger = EventLogger(__name__)

ANSWER_BYTES_MAX = 64 * 1024
FAILING_AFTER = 3
"""Failures in a row after which a delivery makes its component degraded."""
LEASE_DEFAULT = "P10D"
_TOLD_MAX = 10
"""Receivers that are told of their end at the same time; further ones are not told."""


class UnknownDeliveryError(RequestError):
    """There is no such delivery, or it is another client's."""

    code = "not_found"
    status = 404


class DeliveryExistsError(RequestError):
    """There is a delivery with this id."""

    code = "already_exists"
    status = 409


class DeliveryKind(Protocol):
    """What differs between the doors. name: of the table in the settings, and of the component; kind: in the log;
    manual: the document for people."""

    name: str
    kind: str

    @property
    def manual(self) -> str: ...

    async def request(self, dispatch: Dispatch, message: WaitingNotification, part: int) -> DeliveryRequest | None:
        """A request that delivers a notification, or a part of it, from 0; None if nothing of it is to be sent. Raises
        GatewayError where it cannot be made now."""
        ...

    async def ended(self, dispatch: Dispatch) -> None:
        """Tells the receiver that nothing follows, if it can be told. `Dispatch.ended` has the reason."""
        ...


@dataclass
class DeliveryCounters:
    """Figures since the start."""

    delivered: int = 0
    failed: int = 0


class Deliveries:
    """The deliveries by id. run: what it does beside requests."""

    def __init__(self, runner: Runner, settings: DeliverySettings, data: Path, kind: DeliveryKind) -> None:
        self.runner = runner
        self.settings = settings
        self.kind = kind
        self.slots = Slots(settings.concurrent_max)
        self.random = SystemRandom()
        self.counters = DeliveryCounters()
        self.outbox_bytes_max = runner.settings.resume.outbox_bytes_max
        self.positions = Positions(runner.log.disk, data / FOLDER / f"{kind.name}.json", runner.acknowledge)
        self.keys = SecretKeys(runner.log.disk, data / FOLDER / "key")
        self._clock = MachineClock(runner.settings.gateway.clock_trusted)
        tls = ssl.create_default_context()
        self.http = _client(settings, kind, tls)
        self.asking_http = _client(settings, kind, tls)
        """For all but notifications: receivers that hang when they are asked keep no notification waiting."""
        self._dispatches: dict[str, Dispatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._beginning = 0  # registrations whose receiver is asked
        self._asked = SharedRoom(settings.concurrent_max)
        self._telling = 0  # receivers that are told of their end
        self._found = asyncio.Event()  # whether those of the log are known

    # --- for its dispatches ---

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._clock.wall().timestamp()

    def grown(self, size: int) -> None:
        """What waits for all has changed. Where it is too much, what waits for the one with most is dropped."""
        self._bytes += size
        while size > 0 and self._bytes > self.runner.settings.resume.bytes_max:
            several = (one for one in self._dispatches.values() if len(one.waiting) > 1)
            largest = max(several, key=lambda one: one.bytes, default=None)
            if largest is None:
                return  # one of each, such as first results
            largest.drop()

    async def end(self, dispatch: Dispatch, reason: str) -> None:
        """Ends a subscription that goes on, with a record."""
        async with dispatch.attaching:
            with suppress(UnknownSpuidError):  # the gateway has ended it meanwhile
                await self.runner.end_delivery(dispatch.id)
            dispatch.end(reason)

    def over(self, dispatch: Dispatch) -> None:
        """A dispatch has ended: its receiver is told."""
        if self._dispatches.pop(dispatch.id, None) is None:
            return
        self.positions.forget(dispatch.followed.spuid)
        logger.info("delivery ended", delivery=dispatch.id, reason=dispatch.ended)
        if self._telling < _TOLD_MAX:
            self._start(self._tell(dispatch), f"{self.kind.name} {dispatch.id} ended")

    async def _tell(self, dispatch: Dispatch) -> None:
        self._telling += 1
        try:
            await self.kind.ended(dispatch)
        except Exception as error:
            logger.info("receiver not told of the end", delivery=dispatch.id, reason=error)
        finally:
            self._telling -= 1

    # --- requests ---

    async def ready(self) -> None:
        """Returns when those of the log are known. The HTTP gate is open before."""
        await self._found.wait()

    def lease(self, asked: str | None, lease_s_max: int) -> tuple[str, int | None]:
        """When a lease ends that begins now, and for how many seconds it is granted; without an end while the clock is
        not trusted. Raises MalformedRequestError."""
        try:
            lasts_us = delay_us(asked or LEASE_DEFAULT)
        except MalformedRequestError as error:
            raise MalformedRequestError(f"lease: {str(error).removeprefix('delay: ')}") from error
        if not self._clock.trusted():
            return "", None
        seconds = max(1, min(lasts_us // 1_000_000, lease_s_max))
        return iso(self._clock.wall() + timedelta(seconds=seconds)), seconds

    @contextmanager
    def asking(self, client: str, caller: Caller) -> Iterator[None]:
        """A delivery is about to begin, and its receiver is asked. Raises LimitExceededError when there is no room for
        it, QueueFullError while too many receivers of the client, or of all, are asked."""
        self._check_room(caller)
        if not self._asked.has(client):
            raise QueueFullError("too many receivers of this client, or of all, are being asked; try again later")
        self._beginning += 1
        try:
            with self._asked.held(client):
                yield
        finally:
            self._beginning -= 1

    def _check_room(self, caller: Caller) -> None:
        """Raises LimitExceededError where all places are taken, or a registered client has as many as it leaves free:
        one alone takes half of them."""
        places = self.settings.deliveries_max
        free = places - len(self._dispatches) - self._beginning
        if free <= 0:
            raise LimitExceededError(f"{self.kind.name}.deliveries_max = {places} is reached")
        own = sum(one.followed.identity == caller.name for one in self._dispatches.values())
        if caller.registered and own >= free:
            raise LimitExceededError(
                f"this client has {own} of {self.kind.name}.deliveries_max = {places} places, which leaves {free} to "
                "others; end some, or have the operator raise it"
            )

    async def begin(
        self,
        sparql: str,
        default_graphs: tuple[Term, ...] | None,
        named_graphs: tuple[Term, ...] | None,
        receiver: Receiver,
        caller: Caller,
    ) -> Dispatch:
        """A new delivery, when its record is durable. Raises GatewayError."""
        if receiver.id in self._dispatches:
            raise DeliveryExistsError(f"there is a delivery with the id {receiver.id[:200]!r}")
        followed = Followed("", sparql, 0, default_graphs, named_graphs, caller.name or None, delivery=receiver)
        dispatch = Dispatch(self, followed, -1, None)
        self._dispatches[dispatch.id] = dispatch
        try:
            async with dispatch.attaching:
                await self.runner.subscribe(
                    sparql,
                    dispatch.attached(),
                    default_graphs,
                    named_graphs,
                    resume=Resume("PT0S"),
                    caller=caller,
                    delivery=receiver,
                )
        except BaseException:
            self._dispatches.pop(dispatch.id, None)
            dispatch.sink = None
            raise
        if not dispatch.ended:
            self._start(dispatch.run(), f"{self.kind.name} {dispatch.id}")
        return dispatch

    async def renew(self, dispatch: Dispatch, receiver: Receiver, cause: Cause) -> None:
        """Raises UnknownDeliveryError, ChangeLogError."""
        try:
            dispatch.renewed(await self.runner.renew_delivery(receiver, cause))
        except UnknownSpuidError as error:
            raise UnknownDeliveryError(str(error)) from error

    def of(self, caller: Caller) -> list[Dispatch]:
        """Those that a caller has registered; all for an operator."""
        return [one for one in self._dispatches.values() if _may(caller, one)]

    def one(self, name: str, caller: Caller) -> Dispatch:
        """Raises UnknownDeliveryError, also for those of others."""
        found = self._dispatches.get(name)
        if found is None or not _may(caller, found):
            raise UnknownDeliveryError(f"this client has no delivery {name[:100]!r} here")
        return found

    # --- beside the requests ---

    async def run(self) -> None:
        await asyncio.to_thread(self.positions.read)
        found = self.runner.deliveries(self.kind.kind)
        self.positions.retain([followed.spuid for followed in found])
        for followed in found:
            assert followed.delivery is not None
            dispatch = Dispatch(self, followed, self.positions.of(followed.spuid), None)
            self._dispatches[dispatch.id] = dispatch
            self._start(dispatch.run(), f"{self.kind.name} {dispatch.id}")
        self._found.set()
        self.runner.figures.health.add(self)
        try:
            await self.positions.keep()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.http.aclose()
            await self.asking_http.aclose()
            await self.positions.write()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def components(self) -> list[Component]:
        """Degraded while deliveries fail again and again, or wait for a decision."""
        failing = [one for one in self._dispatches.values() if one.dead or one.failures >= FAILING_AFTER]
        if not failing:
            return [Component(name=self.kind.name)]
        worst = max(failing, key=lambda one: (one.dead, one.failures))
        count = f"{len(failing)} of {len(self._dispatches)} fail"
        reason = f"{count}: {worst.id} after {worst.failures} attempts: {worst.error}"
        cure = f"check the receiver; {self.kind.manual} says how to list them, and to resend or drop what waits"
        return [not_ok(self.kind.name, "degraded", reason, cure)]


def _client(settings: DeliverySettings, kind: DeliveryKind, tls: ssl.SSLContext) -> OutwardHttp:
    return OutwardHttp(
        address_refusal(settings.networks, f"{kind.name}.networks"),
        total_s=settings.timeout_s,
        answer_bytes_max=ANSWER_BYTES_MAX,
        connections_max=settings.concurrent_max,
        tls=tls,
    )


def new_id() -> str:
    return str(uuid.uuid4())


def _may(caller: Caller, dispatch: Dispatch) -> bool:
    return caller.operator or (bool(caller.name) and dispatch.followed.identity == caller.name)
