"""All deliveries of one kind: registered by requests, found again in the log by a start."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lamplighter.adapters.networks import Networks
from lamplighter.engine.change_log import Followed, Receiver
from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, QueueFullError, RequestError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.networks import Address, public_refusal, refusal
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import iso
from lamplighter.gateway.gates.deliveries.files import FOLDER, Positions, SecretKeys
from lamplighter.gateway.gates.deliveries.worker import (
    DeliveryContext,
    DeliveryKind,
    DeliveryWorker,
    UnknownDeliveryError,
)
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings.deliveries import DeliverySettings
from lamplighter.gateway.sharing import TotalBudget
from lamplighter.gateway.state.delayed import delay_us

logger = EventLogger(__name__)

ANSWER_BYTES_MAX = 64 * 1024
FAILING_AFTER = 3  # failures in a row after which a delivery makes its component degraded
LEASE_DEFAULT = "P10D"
_TOLD_MAX = 10  # receivers that are told of their end at the same time; further ones are not told
URL_BYTES_MAX = 2000
# The characters of a URL (RFC 3986, appendix A).
_PRINTABLE = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_PORTS = {"http": 80, "https": 443}


class DeliveryExistsError(RequestError):
    code = "already_exists"
    status = 409


class DeliveryRegistry:
    """The deliveries by id. run: what it does beside requests."""

    def __init__(self, runner: Runner, settings: DeliverySettings, data: Path, kind: DeliveryKind) -> None:
        self.settings = settings
        self.kind = kind
        self.keys = SecretKeys(runner.log.disk, data / FOLDER / "key")
        self._http = _client(settings, kind)
        # For all but notifications: receivers that hang when they are asked keep no notification waiting.
        self.asking_http = _client(settings, kind)
        positions = Positions(runner.log.disk, data / FOLDER / f"{kind.name}.json", runner.delivered.acknowledge)
        self.context = DeliveryContext(runner, settings, kind, self._http, positions, self._on_end)
        self._tasks: set[asyncio.Task[None]] = set()
        deliveries_max, at_once = settings.deliveries_max, settings.concurrent_max
        self._room = TotalBudget(lambda: deliveries_max, f"{kind.name}.deliveries_max")
        self._asking_room = TotalBudget(lambda: at_once, f"{kind.name}.concurrent_max")
        self._telling_room = TotalBudget(lambda: _TOLD_MAX, "the number of receivers that may be told of their end")
        self.recovered = asyncio.Event()  # whether those of the log are known. The HTTP gate is open before.

    def _on_end(self, worker: DeliveryWorker) -> None:
        """A delivery has ended: its receiver is told."""
        if not self._remove(worker):
            return
        self.context.positions.forget(worker.followed.spuid)
        logger.info("delivery ended", delivery=worker.id, reason=worker.ended)
        if not self._telling_room.refusal(worker.client):
            self._start(self._tell_end(worker), f"{self.kind.name} {worker.id} ended")

    async def _tell_end(self, worker: DeliveryWorker) -> None:
        with self._telling_room.hold(worker.client):
            try:
                await self.kind.tell_end(worker)
            except Exception as error:
                logger.info("receiver not told of the end", delivery=worker.id, reason=error)

    # --- requests ---

    def lease(self, text: str | None, lease_s_max: int) -> tuple[str, int | None]:
        """The end of a lease and its seconds; none while the clock is not trusted. Raises MalformedRequestError."""
        try:
            lasts_us = delay_us(text or LEASE_DEFAULT)
        except MalformedRequestError as error:
            raise MalformedRequestError(f"lease: {str(error).removeprefix('delay: ')}") from error
        if not self.context.clock.trusted():
            return "", None
        seconds = max(1, min(lasts_us // 1_000_000, lease_s_max))
        return iso(self.context.clock.wall() + timedelta(seconds=seconds)), seconds

    @contextmanager
    def asking(self, caller: Caller) -> Iterator[None]:
        """A delivery is about to begin, and its receiver is asked. Raises LimitExceededError when there is no room for
        it, QueueFullError while too many receivers of the client, or of all, are asked."""
        if why := self._room.refusal(caller.name):
            raise LimitExceededError(f"{why}; end some, or have the operator raise it")
        if why := self._asking_room.refusal(caller.client):
            raise QueueFullError(f"too many receivers are being asked: {why}; try again later")
        with self._room.hold(caller.name), self._asking_room.hold(caller.client):
            yield

    async def begin(
        self,
        sparql: str,
        default_graphs: tuple[Term, ...] | None,
        named_graphs: tuple[Term, ...] | None,
        receiver: Receiver,
        caller: Caller,
    ) -> DeliveryWorker:
        """A new delivery, when its record is durable. Raises GatewayError."""
        if receiver.id in self.context.workers:
            raise DeliveryExistsError(f"there is a delivery with the id {receiver.id[:200]!r}")
        followed = Followed("", sparql, 0, default_graphs, named_graphs, caller.name or None, delivery=receiver)
        worker = DeliveryWorker(self.context, followed, -1)
        self._add(worker)
        try:
            await worker.start(caller)
        except BaseException:
            self._remove(worker)
            worker.sink = None
            raise
        if not worker.ended:
            self._start(worker.run(), f"{self.kind.name} {worker.id}")
        return worker

    def of(self, caller: Caller) -> list[DeliveryWorker]:
        """Those that a caller has registered; all for an operator."""
        return [worker for worker in self.context.workers.values() if _may(caller, worker)]

    def one(self, name: str, caller: Caller) -> DeliveryWorker:
        """Raises UnknownDeliveryError, also for those of others."""
        worker = self.context.workers.get(name)
        if worker is None or not _may(caller, worker):
            raise UnknownDeliveryError(f"this client has no delivery {name[:100]!r} here")
        return worker

    # --- beside the requests ---

    async def run(self) -> None:
        runner, positions = self.context.runner, self.context.positions
        await asyncio.to_thread(positions.read)
        recovered = runner.delivered.of_kind(self.kind.kind)
        positions.retain([followed.spuid for followed in recovered])
        for followed in recovered:
            worker = DeliveryWorker(self.context, followed, positions.of(followed.spuid))
            self._add(worker)
            self._start(worker.run(), f"{self.kind.name} {worker.id}")
        self.recovered.set()
        runner.figures.health.sources.append(self)
        try:
            await positions.keep()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._http.aclose()
            await self.asking_http.aclose()
            await positions.write()

    def _add(self, worker: DeliveryWorker) -> None:
        self.context.workers[worker.id] = worker
        self._room.usage.add(worker.client)

    def _remove(self, worker: DeliveryWorker) -> bool:
        """Whether it was there."""
        there = self.context.workers.pop(worker.id, None) is not None
        if there:
            self._room.usage.add(worker.client, -1)
        return there

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def components(self) -> list[Component]:
        """Degraded while deliveries fail again and again, or wait for a decision."""
        workers = self.context.workers
        failing = [worker for worker in workers.values() if worker.dead or worker.failures >= FAILING_AFTER]
        if not failing:
            return [Component(name=self.kind.name)]
        worst = max(failing, key=lambda one: (one.dead, one.failures))
        count = f"{len(failing)} of {len(workers)} fail"
        reason = f"{count}: {worst.id} after {worst.failures} attempts: {worst.error}"
        remedy = f"check the receiver; {self.kind.manual} says how to list them, and to resend or drop what waits"
        return [not_ok(self.kind.name, "degraded", reason, remedy)]


def _client(settings: DeliverySettings, kind: DeliveryKind) -> OutwardHttp:
    return OutwardHttp(
        address_refusal(settings.networks, f"{kind.name}.networks"),
        total_s=settings.timeout_s,
        answer_bytes_max=ANSWER_BYTES_MAX,
        connections_max=settings.concurrent_max,
    )


def new_id() -> str:
    return str(uuid.uuid4())


def _may(caller: Caller, worker: DeliveryWorker) -> bool:
    return caller.operator or (bool(caller.name) and worker.followed.identity == caller.name)


def checked_url(text: str, ports: Collection[int], table: str, member: str) -> str:
    """The URL. ports: that may be called, none for all; member: of the request. Raises MalformedRequestError."""
    if len(text) > URL_BYTES_MAX:
        raise MalformedRequestError(f"{member}: the URL has {len(text)} characters; {URL_BYTES_MAX} are the most")
    if not _PRINTABLE.fullmatch(text):
        raise MalformedRequestError(f"{member}: a URL has ASCII only; encode other characters (RFC 3986)")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise MalformedRequestError(f"{member}: not a URL: {error}") from error
    if parts.scheme not in _PORTS or not text.startswith(f"{parts.scheme}://") or not parts.hostname:
        raise MalformedRequestError(f"{member}: write a URL such as https://example.org/hook, with https or http")
    if "@" in parts.netloc:
        raise MalformedRequestError(f"{member}: no user or password in the URL; the change log would have it")
    if "#" in text:
        raise MalformedRequestError(f"{member}: a URL that is called has no fragment; remove it")
    port = _PORTS[parts.scheme] if port is None else port
    if port == 0 or (ports and port not in ports):
        raise MalformedRequestError(f"{member}: the port {port} is not in {table}.ports; the operator can add it")
    return text


def address_refusal(entries: list[str], setting: str) -> Callable[[Address], str]:
    """Why an address may not be called: it is not public, and in none of the networks of the setting."""
    listed = Networks(entries, setting)

    def reason_against(address: Address) -> str:
        reason = public_refusal(address)
        if not reason or not refusal(address, listed.current()):
            return ""
        return f"{reason}, and not in {setting}; the operator can add its network there"

    return reason_against
