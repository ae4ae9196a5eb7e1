"""All deliveries of one kind: registered by requests, found again in the log by a start."""

from __future__ import annotations

import asyncio
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
from lamplighter.gateway.sharing import SharedRoom, Usage
from lamplighter.gateway.state.delayed import delay_us

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
        self.http = _client(settings, kind)
        self.asking_http = _client(settings, kind)
        """For all but notifications: receivers that hang when they are asked keep no notification waiting."""
        self._dispatches: dict[str, Dispatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = Usage()  # what waits
        places = settings.deliveries_max
        self._places = SharedRoom(lambda: places, f"{kind.name}.deliveries_max")
        at_once = settings.concurrent_max
        self._asked = SharedRoom(lambda: at_once, f"{kind.name}.concurrent_max")
        self._told = SharedRoom(lambda: _TOLD_MAX, "the number of receivers that may be told of their end")
        self._found = asyncio.Event()  # whether those of the log are known

    # --- for its dispatches ---

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._clock.wall().timestamp()

    def grown(self, client: str, size: int) -> None:
        """What waits for a client has changed. Where all have too much, the client with most loses what waits for the
        one of its deliveries with most."""
        self._bytes.add(client, size)
        while size > 0 and self._bytes.total > self.runner.settings.resume.bytes_max:
            several = (one for one in self._dispatches.values() if len(one.waiting) > 1)
            largest = max(several, key=lambda one: (self._bytes.of(one.client), one.bytes), default=None)
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
        if not self._remove(dispatch):
            return
        self.positions.forget(dispatch.followed.spuid)
        logger.info("delivery ended", delivery=dispatch.id, reason=dispatch.ended)
        if not self._told.refusal(dispatch.client):
            self._start(self._tell(dispatch), f"{self.kind.name} {dispatch.id} ended")

    async def _tell(self, dispatch: Dispatch) -> None:
        with self._told.held(dispatch.client):
            try:
                await self.kind.ended(dispatch)
            except Exception as error:
                logger.info("receiver not told of the end", delivery=dispatch.id, reason=error)

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
    def asking(self, caller: Caller) -> Iterator[None]:
        """A delivery is about to begin, and its receiver is asked. Raises LimitExceededError when there is no room for
        it, QueueFullError while too many receivers of the client, or of all, are asked."""
        if why := self._places.refusal(caller.name):
            raise LimitExceededError(f"{why}; end some, or have the operator raise it")
        if why := self._asked.refusal(caller.client):
            raise QueueFullError(f"too many receivers are being asked: {why}; try again later")
        with self._places.held(caller.name), self._asked.held(caller.client):
            yield

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
        self._put(dispatch)
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
            self._remove(dispatch)
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
            self._put(dispatch)
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

    def _put(self, dispatch: Dispatch) -> None:
        self._dispatches[dispatch.id] = dispatch
        self._places.take(dispatch.client)

    def _remove(self, dispatch: Dispatch) -> bool:
        """Whether it was there."""
        there = self._dispatches.pop(dispatch.id, None) is not None
        if there:
            self._places.take(dispatch.client, -1)
        return there

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


def _client(settings: DeliverySettings, kind: DeliveryKind) -> OutwardHttp:
    return OutwardHttp(
        address_refusal(settings.networks, f"{kind.name}.networks"),
        total_s=settings.timeout_s,
        answer_bytes_max=ANSWER_BYTES_MAX,
        connections_max=settings.concurrent_max,
    )


def new_id() -> str:
    return str(uuid.uuid4())


def _may(caller: Caller, dispatch: Dispatch) -> bool:
    return caller.operator or (bool(caller.name) and dispatch.followed.identity == caller.name)
