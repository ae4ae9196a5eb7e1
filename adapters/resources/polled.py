"""Devices that answer only when they are asked: requests and polls, whatever the protocol.

::

    PolledObservation ─┐
    ResourceSender ────┴─▶ PolledExchanges: slots, one request a device, back-off ─▶ PolledProtocol ◀──▶ devices

A device that does not answer is asked again with growing pauses, once for all of its resources.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary
from zlib import crc32

from lamplighter.adapters.devices.sender import Outdated
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.model.failures import Failures
from lamplighter.adapters.networks import NotAllowedError
from lamplighter.adapters.resources.exchange import (
    BODY_BYTES_MAX,
    DeviceAnswer,
    DeviceRequest,
    ObservationCounters,
    ObservationStatus,
    Observed,
    ObservedResource,
    ResourceObservation,
)
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.pacing import back_off_s

# After so many failures in a row a device counts as unreachable.
FAILURES_MAX = 3
# Two polls of a resource are apart by at least this part of their interval.
POLL_GAP = 0.1
# A state is old after so many intervals without another one.
FRESH_POLLS = 2.5
# Devices that do not answer whose pauses are remembered.
SILENT_MAX = 10_000


class DeviceReply(NamedTuple):
    """code, format: as in `DeviceAnswer`; a body of a reply without success is a text for people."""

    code: str
    body: bytes = b""
    format: int | None = None


class PolledProtocol(Protocol):
    """One protocol, for all devices. One request to a device is under way at a time.

    Both requests raise UpstreamError if the device does not answer, NotAllowedError if its address may not be sent to,
    and other PayloadErrors if the request cannot be sent as it is, or the answer cannot be used. They are cancelled
    when their time is over, and leave nothing behind then.

    join_s: so long a read waits for others of its device, which `read_with` may join.
    """

    join_s: float = 0.0

    async def read(self, request: DeviceRequest) -> DeviceReply:
        """The state of a resource, whose method is GET; a body of at most `DeviceRequest.limit` bytes."""
        ...

    async def read_with(
        self, request: DeviceRequest, others: Sequence[DeviceRequest]
    ) -> tuple[DeviceReply, Mapping[DeviceRequest, DeviceReply]]:
        """The state of a resource, and the states of others of the device that come with it."""
        return await self.read(request), {}

    async def write(self, request: DeviceRequest) -> DeviceReply:
        """What the device says to a state, whose method is PUT or POST."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


@dataclass(eq=False, slots=True)
class _WaitingRead:
    """A request for a state that waits for its turn. answer: it came with another one."""

    request: DeviceRequest
    answer: DeviceAnswer | None = None


@dataclass(slots=True)
class _Silence:
    """What is known of a device that does not answer. until: on the loop's clock; nothing is sent before."""

    failures: int
    until: float
    reason: str


class PolledExchanges:
    """Requests to the devices of one adapter. kind, table, now: as in `ResourceExchanges`."""

    def __init__(
        self,
        protocol: PolledProtocol,
        settings: PolledSettings,
        *,
        kind: Kind,
        table: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.kind = kind
        self.table = table
        self.settings = settings
        self.now = now
        self._protocol = protocol
        self._failures = Failures(kind)
        self._slots = asyncio.Semaphore(settings.concurrency_max)
        self._retry_slots = asyncio.Semaphore(max(1, settings.concurrency_max // 2))
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by authority, those in use
        self._silent: OrderedDict[str, _Silence] = OrderedDict()  # by authority
        self._reads: dict[str, list[_WaitingRead]] = {}  # by authority

    def observation(self, resource: ObservedResource, counters: ObservationCounters) -> PolledObservation:
        return PolledObservation(self, resource, counters)

    async def request(self, request: DeviceRequest) -> DeviceAnswer:
        """As `ResourceExchanges.request`. UpstreamError also without a request, if the device has not answered before
        and its pause is not over."""
        if len(request.body) > BODY_BYTES_MAX:
            raise PayloadError(f"the body has more than {BODY_BYTES_MAX:,} bytes")
        authority = uris.authority(request.uri)
        waiting = _WaitingRead(request)
        if request.method != "GET":
            return await self._asked(authority, waiting)
        reads = self._reads.setdefault(authority, [])
        reads.append(waiting)
        try:
            return await self._asked(authority, waiting)
        finally:
            reads.remove(waiting)
            if not reads:
                self._reads.pop(authority, None)

    async def _asked(self, authority: str, waiting: _WaitingRead) -> DeviceAnswer:
        request, loop = waiting.request, asyncio.get_running_loop()
        async with self._turn(authority, retried=request.retried):
            if waiting.answer is not None:
                return waiting.answer
            silence = self._silent.get(authority)
            if silence is not None and loop.time() < silence.until:
                raise UpstreamError(silence.reason)
            if not request.is_current():
                raise Outdated
            sent = self.now()
            if request.method == "GET" and self._protocol.join_s:
                await asyncio.sleep(self._protocol.join_s)
            others = [one for one in self._reads.get(authority, ()) if one is not waiting and one.answer is None]
            came: Mapping[DeviceRequest, DeviceReply] = {}
            try:
                async with asyncio.timeout(self.settings.answer_timeout_s):
                    if request.method == "GET":
                        reply, came = await self._protocol.read_with(request, [one.request for one in others])
                    else:
                        reply = await self._protocol.write(request)
            except TimeoutError:
                raise self._no_answer(authority, "no answer in time") from None
            except UpstreamError as error:
                raise self._no_answer(authority, str(error)) from error
            except GatewayError:
                raise
            except Exception as error:  # an answer that breaks the protocol concerns this device only
                raise self._failures.payload_error(request.uri, error) from error
        self._silent.pop(authority, None)
        at = self.now()
        for one in others:
            if one.request in came:
                one.answer = _answer(came[one.request], sent, at)
        return _answer(reply, sent, at)

    def _no_answer(self, authority: str, reason: str) -> UpstreamError:
        before = self._silent.pop(authority, None)
        failures = 1 if before is None else before.failures + 1
        pause = back_off_s(failures, self.settings.retry_min_s, self.settings.retry_max_s)
        self._silent[authority] = _Silence(failures, asyncio.get_running_loop().time() + pause, reason)
        if len(self._silent) > SILENT_MAX:
            self._silent.popitem(last=False)
        return UpstreamError(reason)

    @asynccontextmanager
    async def _turn(self, authority: str, *, retried: bool) -> AsyncIterator[None]:
        """While it is held, no other request goes to the device."""
        lock = self._locks.setdefault(authority, asyncio.Lock())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(lock)
            if retried:
                await stack.enter_async_context(self._retry_slots)
            await stack.enter_async_context(self._slots)
            yield


def _answer(reply: DeviceReply, sent: datetime, at: datetime) -> DeviceAnswer:
    return DeviceAnswer(reply.code, reply.body, reply.format, None, None, sent, at)


class PolledObservation(ResourceObservation):
    """Follows a resource by asking for its state at an interval."""

    def __init__(self, exchanges: PolledExchanges, resource: ObservedResource, counters: ObservationCounters) -> None:
        super().__init__(resource, counters)
        self._exchanges = exchanges

    async def run(self, on_state: Callable[[Observed], None]) -> None:
        """Polls until `cancel`. on_state: takes each state; it must not raise."""
        self._cancelling = False
        self._running = ended = asyncio.Event()
        settings = self._exchanges.settings
        failures = 0
        try:
            while not self._cancelling:
                self._wake.clear()
                pause = self._resource.poll_s
                try:
                    state = await self._poll(retried=failures > 0)
                    failures = 0
                    on_state(state)
                    pause = self._until_next()
                except UpstreamError as error:
                    failures += 1
                    if failures >= FAILURES_MAX:
                        self.status = ObservationStatus("unreachable", str(error))
                    pause = back_off_s(failures, settings.retry_min_s, settings.retry_max_s)
                except NotAllowedError as error:
                    self.status = ObservationStatus("withheld", str(error))
                    pause = max(pause, settings.retry_max_s)
                except PayloadError as error:
                    self.status = ObservationStatus("refused", str(error))
                    pause = max(pause, settings.retry_max_s)
                await self._rest(pause)
        finally:
            self.status = ObservationStatus("ended")
            ended.set()

    def _until_next(self) -> float:
        """Seconds before the next poll. The resources of a device that have one interval are asked for in the same
        moment, since a protocol may join them; different devices have different moments."""
        interval = self._resource.poll_s
        phase = crc32(uris.authority(self._resource.uri).encode()) / 2**32
        pause = interval * (1 - (asyncio.get_running_loop().time() / interval - phase) % 1)
        return pause if pause >= POLL_GAP * interval else pause + interval

    async def _poll(self, *, retried: bool) -> Observed:
        """The state, or the answer that says why there is none. Raises UpstreamError and PayloadError."""
        one = self._resource
        answer = await self._exchanges.request(
            DeviceRequest(one.uri, "GET", accept=one.accept, device=one.device, limit=one.limit, retried=retried)
        )
        self._counters.polls += 1
        if answer.successful:
            self.status = ObservationStatus("polled")
        else:
            said = answer.body.decode(errors="replace")[:200]
            self.status = ObservationStatus("refused", f"{answer.code} {said}".strip())
        fresh_until = asyncio.get_running_loop().time() + FRESH_POLLS * one.poll_s
        return Observed(answer.body, answer.format, answer.at, fresh_until, answer.code)
