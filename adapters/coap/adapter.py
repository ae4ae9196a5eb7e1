"""A consumer (Roffia 2016, II.B) that keeps devices in the state that the dataset gives for them.

A command sets a state, so only the newest payload of a resource is sent and nothing is queued. A resource has one
worker task while its device has not acknowledged the wanted payload, and none otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import WeakValueDictionary

import aiocoap
import aiocoap.error

from lamplighter.adapters.client import retry_s
from lamplighter.adapters.coap import mapping
from lamplighter.adapters.coap.mapping import Command
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.desired import actuation_update, refusal_update
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.networks import Network, Networks, machine_networks
from lamplighter.engine.client import DeclaredCause, EngineClient, Notification
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag

logger = EventLogger(__name__)

_LIBRARY_LOGGER = f"{__name__}.aiocoap"
_BLOCK_BYTES = 1024  # longer payloads go in blocks (RFC 7959)
_REFUSALS_REMEMBERED_MAX = 64


@dataclass
class CoapCounters:
    """Counts since the adapter was made.

    sent: attempts with a resolved address; acknowledged: attempts answered with 2.xx; failed: other attempts, except
    those outside; retried: attempts that repeat a failed one; outside: attempts that were not sent, because the
    device's address is not in `coap.networks`; rejected_rows: rows that give no command; unrecorded: acknowledgements
    whose actuation the gateway refused to store.
    """

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    retried: int = 0
    outside: int = 0
    rejected_rows: int = 0
    unrecorded: int = 0


class CoapAdapter:
    """Keeps every device of the subscription in its wanted state, and records the acknowledgements.

    now: returns the time of an acknowledgement, with a time zone; machine, monotonic: as for `Networks`. tried: set
    after the first result. base_iri: where the counters are kept as triples; empty: nowhere.
    """

    def __init__(
        self,
        settings: CoapSettings,
        client: EngineClient,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        machine: Callable[[], Iterable[Network]] = machine_networks,
        monotonic: Callable[[], float] = time.monotonic,
        base_iri: str = "",
        tried: asyncio.Event | None = None,
    ) -> None:
        self.counters = CoapCounters()
        self.tried = asyncio.Event() if tried is None else tried
        self._settings = settings
        self._client = client
        self._base_iri = base_iri
        self._now = now
        self._networks = Networks(settings.networks, "coap.networks", machine=machine, monotonic=monotonic)
        self._slots = asyncio.Semaphore(settings.concurrency_max)
        self._retry_slots = asyncio.Semaphore(max(1, settings.concurrency_max // 2))
        self._devices: WeakValueDictionary[str, _Device] = WeakValueDictionary()  # those that resources hold
        self._resources: dict[str, _Resource] = {}  # bounded by the rows of the result
        self._rejected: set[frozenset[tuple[str, str]]] = set()
        self._workers: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task or socket behind.

        Raises ConfigurationError if the query lacks a variable, a RequestError if the gateway refuses it, and
        UpstreamError if the client is closed.
        """
        # The library logs each retransmission at INFO. The adapter logs unreachable devices itself.
        library = logging.getLogger(_LIBRARY_LOGGER)
        if library.level == logging.NOTSET:
            library.setLevel(logging.WARNING)
        failure: GatewayError | None = None
        try:
            async with asyncio.TaskGroup() as self._workers:
                counting = None
                if self._base_iri:
                    counting = self._workers.create_task(
                        keep_counters(self._client, self._base_iri, "coap", self.counts), name="coap counters"
                    )
                try:
                    await self._follow()
                except GatewayError as error:
                    failure = error  # raised below, not in the ExceptionGroup that leaving the group would make
                for resource in self._resources.values():
                    if resource.worker is not None:
                        resource.worker.cancel()
                if counting is not None:
                    counting.cancel()
        finally:
            self._workers = None
            self._resources.clear()
            self._rejected.clear()
        if failure is not None:
            raise failure

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = self.counters
        return {
            "commands": found.sent,
            "commands_acknowledged": found.acknowledged,
            "commands_failed": found.failed,
            "commands_refused": found.outside + found.rejected_rows,
        }

    def status(self) -> str:
        """The adapter's health in one line."""
        if not self.tried.is_set():
            return "waiting for the first result of its query"
        away = sum(device.away for device in self._devices.values())
        outside = sum(bool(device.outside) for device in self._devices.values())
        return (
            f"{len(self._resources):,} resources, {self.counters.acknowledged:,} commands acknowledged"
            + (f", {away:,} devices do not answer" if away else "")
            + (f", {outside:,} are outside of coap.networks" if outside else "")
        )

    async def _follow(self) -> None:
        async with aclosing(self._client.subscribe(self._settings.query)) as notifications:
            async for notification in notifications:
                if notification.sequence == 0:
                    mapping.check_variables(notification.added.variables)
                    logger.info("coap subscribed", rows=len(notification.added))
                self._apply(notification)
                self.tried.set()

    def _apply(self, notification: Notification) -> None:
        """Updates the wanted states. Sequence 0 is the whole result and replaces all of them."""
        touched: set[str] = set()
        if notification.sequence == 0:
            for resource in self._resources.values():
                resource.commands.clear()
            touched.update(self._resources)
            self._rejected &= {frozenset(row.items()) for row in notification.added.bindings()}
        for row in self._commands(notification.removed, added=False):
            if row.resource in self._resources:
                commands = self._resources[row.resource].commands
                commands[row] -= 1
                if commands[row] <= 0:
                    del commands[row]
                touched.add(row.resource)
        for row in self._commands(notification.added, added=True):
            if row.resource not in self._resources:
                name = uris.authority(row.resource)
                device = self._devices.setdefault(name, _Device(name))
                self._resources[row.resource] = _Resource(row.resource, device)
            self._resources[row.resource].commands[row] += 1
            touched.add(row.resource)
        for uri in sorted(touched):
            self._settle(self._resources[uri])

    def _commands(self, bag: Bag, *, added: bool) -> list[Command]:
        """The commands of the bag's rows. A row that gives none is logged once as long as it stays."""
        commands = []
        for row in bag.bindings():
            try:
                commands.append(mapping.command(row))
            except PayloadError as error:
                key = frozenset(row.items())
                if not added:
                    self._rejected.discard(key)
                elif key not in self._rejected:
                    self._rejected.add(key)
                    self.counters.rejected_rows += 1
                    logger.warning("coap row rejected", actuator=row.get("actuator"), reason=error)
        return commands

    def _settle(self, resource: _Resource) -> None:
        """Sets the wanted command of a resource from its rows; starts, wakes or stops its worker."""
        assert self._workers is not None
        before = resource.wanted
        resource.wanted = max(resource.commands, default=None)
        if len(resource.commands) > 1 and not resource.in_conflict:
            assert resource.wanted is not None
            logger.warning(
                "coap conflict",
                device=resource.device.name,
                resource=resource.uri,
                rows=len(resource.commands),
                winner=resource.wanted.actuator,
            )
        resource.in_conflict = len(resource.commands) > 1
        if resource.worker is not None:
            if _payload(before) != _payload(resource.wanted):
                resource.wake.set()
        elif resource.pending() is not None:
            resource.worker = self._workers.create_task(self._deliver(resource), name=f"coap {resource.uri}")
        elif resource.wanted is None:
            del self._resources[resource.uri]

    async def _deliver(self, resource: _Resource) -> None:
        """Sends until the device has acknowledged the wanted payload, or none is wanted."""
        failures = 0
        while resource.pending() is not None:
            resource.wake.clear()
            if failures == 0:
                outcome = await self._attempt(resource, repeated=False)
            else:
                async with self._retry_slots:
                    outcome = await self._attempt(resource, repeated=True)
            if outcome is None:
                failures = 0
                continue
            failures += 1
            if outcome.outside is not None and outcome.outside != resource.outside:
                resource.outside = outcome.outside
                reason = mapping.refusal_reason(outcome.outside)
                await self._record(outcome.outside, refusal_update(outcome.outside.actuator, reason))
            settings = self._settings
            least_s = settings.retry_max_s if outcome.refused else settings.retry_min_s
            try:
                async with asyncio.timeout(retry_s(failures, least_s, settings.retry_max_s)):
                    await resource.wake.wait()
                failures = 0
            except TimeoutError:
                pass
        resource.worker = None
        if resource.wanted is None:
            self._resources.pop(resource.uri, None)

    async def _attempt(self, resource: _Resource, *, repeated: bool) -> _Failure | None:
        """One request with the newest wanted payload, and its record; None if it succeeded or is not needed."""
        async with resource.device.lock, self._slots:
            command = resource.pending()  # waiting may have taken a while
            if command is None:
                return None
            self.counters.retried += repeated
            try:
                code = await self._put(resource, command)
            except PayloadError as error:
                self._say_outside(resource, str(error))
                return _Failure(refused=True, outside=command)
            except UpstreamError as error:
                self.counters.failed += 1
                if not resource.device.away:
                    resource.device.away = True
                    logger.warning(
                        "coap device unreachable", device=resource.device.name, resource=resource.uri, reason=error
                    )
                return _Failure(refused=False)
            at = self._now()
        self._say_reachable(resource)
        if not code.is_successful():
            self.counters.failed += 1
            if resource.refusal_is_new(command.payload):
                logger.warning(
                    "coap command refused", device=resource.device.name, resource=resource.uri, code=code.dotted
                )
            return _Failure(refused=code.class_ == 4)
        self.counters.acknowledged += 1
        resource.acknowledged = command.payload
        if resource.refused:
            resource.refused.clear()
            logger.info("coap command accepted again", device=resource.device.name, resource=resource.uri)
        logger.debug("coap command acknowledged", device=resource.device.name, resource=resource.uri, code=code.dotted)
        resource.outside = None
        await self._record(command, actuation_update(command.actuator, command.result, at))
        return None

    def _say_outside(self, resource: _Resource, reason: str) -> None:
        self.counters.outside += 1
        if resource.device.outside != reason:
            resource.device.outside = reason
            logger.error("coap target refused", device=resource.device.name, resource=resource.uri, reason=reason)

    def _say_reachable(self, answered: _Resource) -> None:
        if answered.device.away:
            answered.device.away = False
            logger.info("coap device reachable again", device=answered.device.name)
            for resource in self._resources.values():
                if resource.device is answered.device and resource is not answered:
                    resource.wake.set()  # the device's other resources retry at once

    async def _put(self, resource: _Resource, command: Command) -> aiocoap.Code:
        """The device's answer to one confirmable PUT.

        Raises UpstreamError if there is no answer, and PayloadError, before anything is sent, if the device's address
        is in none of the networks. The name is resolved here, once, and not by the library, so that the request goes
        to the address that was checked, also block by block. The device's name goes along as Uri-Host.

        Each request has a context of its own. Its shutdown ends the exchange with its retransmissions, and idle devices
        hold no socket. A shared context keeps 64 sockets, drops the oldest even during an exchange, and retransmits
        cancelled requests.
        """
        message = aiocoap.Message(
            code=aiocoap.PUT,
            uri=resource.uri,
            payload=command.payload,
            content_format=aiocoap.numbers.ContentFormat.TEXT,
            transport_tuning=_Tuning(self._settings, lambda: _payload(resource.wanted) == command.payload),
        )
        context = await aiocoap.Context.create_client_context(loggername=_LIBRARY_LOGGER, transports=["simple6"])
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                host, port = uris.host_and_port(resource.uri)
                address = await self._networks.resolved(host, port, socket.SOCK_DGRAM)
                resource.device.outside = ""
                message.remote = aiocoap.message.UndecidedRemote("coap", aiocoap.util.hostportjoin(str(address), port))
                resource.acknowledged = None  # from here on the device may have acted on the request
                self.counters.sent += 1
                # Connected here, where it can be cancelled; the library uses a separate task.
                await context.find_remote_and_interface(message)
                request = context.request(message, handle_blockwise=len(command.payload) > _BLOCK_BYTES)
                # Not cancelled itself: the library fails if it reads an answer before it has noticed that.
                return (await asyncio.shield(request.response)).code
        except GatewayError:
            raise
        except (aiocoap.error.TimeoutError, TimeoutError) as error:
            raise UpstreamError("no answer") from error
        except Exception as error:  # an answer that breaks the library concerns this device only
            raise UpstreamError(str(error.__cause__ or error) or type(error).__name__) from error
        finally:
            _close_socket(message)
            await context.shutdown()

    async def _record(self, command: Command, update: str) -> None:
        """Stores the outcome of a command. The client retries while the gateway is away or full; other refusals are
        final."""
        try:
            await self._client.update(update, cause=DeclaredCause("coap", command.resource))
        except GatewayError as error:
            self.counters.unrecorded += 1
            logger.error("coap actuation not recorded", actuator=command.actuator, reason=error)


@dataclass(frozen=True, slots=True)
class _Failure:
    refused: bool
    """The device answered 4.xx, or is outside of the networks; an early retry would fail too."""
    outside: Command | None = None
    """The command that was not sent, because the device is outside of the networks."""


@dataclass(eq=False)
class _Device:
    """One address. lock: one request at a time (NSTART, RFC 7252 section 4.7). away: logged as unreachable; outside:
    the logged reason why nothing may be sent to it."""

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    away: bool = False
    outside: str = ""


@dataclass(eq=False)
class _Resource:
    """The state of one resource.

    commands: the rows that name it, each as often as it occurs; more than one is a conflict.
    wanted: the greatest of the commands, so that it depends on the result only.
    acknowledged: the payload that the device has; None if it may have another.
    refused: payloads whose refusal is logged. outside: the command that the actuation records as not sent.
    """

    uri: str
    device: _Device
    commands: Counter[Command] = field(default_factory=Counter)
    wanted: Command | None = None
    acknowledged: bytes | None = None
    refused: set[bytes] = field(default_factory=set)
    outside: Command | None = None
    in_conflict: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    worker: asyncio.Task[None] | None = None

    def pending(self) -> Command | None:
        """The wanted command, unless the device already has its payload."""
        return None if _payload(self.wanted) == self.acknowledged else self.wanted

    def refusal_is_new(self, payload: bytes) -> bool:
        if payload in self.refused:
            return False
        if len(self.refused) >= _REFUSALS_REMEMBERED_MAX:
            self.refused.clear()
        self.refused.add(payload)
        return True


class _Tuning(aiocoap.TransportTuning):  # type: ignore[misc]  # the library ships no types
    """Confirmable; retransmitted only as long as the payload is the wanted one."""

    reliability = True

    def __init__(self, settings: CoapSettings, is_current: Callable[[], bool]) -> None:
        self.ACK_TIMEOUT = settings.ack_timeout_s
        self._retransmissions_max = settings.retransmissions_max
        self._is_current = is_current

    @property
    def MAX_RETRANSMIT(self) -> int:
        """Read by the library before each retransmission."""
        return self._retransmissions_max if self._is_current() else 0


def _close_socket(message: aiocoap.Message) -> None:
    """Closes the message's socket at once, if it has one.

    The shutdown of the context takes several steps. A packet that arrives in between, such as a duplicated answer,
    would end as a traceback in the log. The library has no public way to do it.
    """
    transport: asyncio.DatagramTransport | None = getattr(message.remote, "_transport", None)
    if transport is not None:
        transport.abort()


def _payload(command: Command | None) -> bytes | None:
    return None if command is None else command.payload
