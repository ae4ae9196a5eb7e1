"""What the parts of this room need of a protocol: requests to resources of devices, and how a resource is followed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from lamplighter.adapters.specs import Kind

# Of a request, and of an answer.
BODY_BYTES_MAX = 65_536


def always() -> bool:
    return True


class DeviceRequest(NamedTuple):
    """uri: in normal form. format, accept: numbers of content formats. device: its name in the settings, or "".
    is_current: false once the request is outdated; it is not sent again then. limit: bytes of the answer. retried: a
    request like this failed before; such requests use at most half of the slots."""

    uri: str
    method: Literal["GET", "PUT", "POST", "DELETE"]
    body: bytes = b""
    format: int | None = None
    accept: int | None = None
    device: str = ""
    is_current: Callable[[], bool] = always
    limit: int = BODY_BYTES_MAX
    retried: bool = False


class DeviceAnswer(NamedTuple):
    """code: as in CoAP or HTTP, such as "2.05" or "200": it begins with 2 if the device did it, with 5 if it could not
    for now, and else the device refuses. format: the number of its content format; max_age: in seconds; None: the
    answer does not say it. sent: when the request left; at: when the answer was complete."""

    code: str
    body: bytes
    format: int | None
    etag: bytes | None
    max_age: int | None
    sent: datetime
    at: datetime

    @property
    def successful(self) -> bool:
        return self.code.startswith("2")

    @property
    def refused(self) -> bool:
        """Whether the device would refuse the same request again."""
        return not self.successful and not self.code.startswith("5") and self.code not in ("408", "429")


class ObservedResource(NamedTuple):
    """uri: in normal form. accept: number of a content format. device: its name in the settings, or "". observe: "auto"
    polls where Observe is not offered. poll_s: interval of polls. max_age_s: instead of the device's Max-Age. limit:
    bytes of a state."""

    uri: str
    accept: int | None = None
    device: str = ""
    observe: Literal["auto", "always", "never"] = "auto"
    poll_s: float = 60.0
    max_age_s: float | None = None
    limit: int = BODY_BYTES_MAX


class Observed(NamedTuple):
    """A state. format: number of its content format. fresh_until: on the loop's clock. code: as in `DeviceAnswer`;
    one that does not begin with 2 says why there is no state, and its body is the device's text."""

    body: bytes
    format: int | None
    at: datetime
    fresh_until: float
    code: str

    @property
    def successful(self) -> bool:
        return self.code.startswith("2")


class ObservationStatus(NamedTuple):
    """withheld: nothing may be sent to the device. reason: for people, but for the operator only if it is withheld; why
    the device is unreachable, refuses, or is withheld."""

    state: Literal["starting", "observed", "polled", "unreachable", "refused", "withheld", "ended"]
    reason: str = ""


@dataclass(slots=True)
class ObservationCounters:
    """Since the start, over all observations. notifications: those taken; notifications_outdated: older than one before
    them, or replaced by a newer one before their time had come; observations_renewed: registrations after the first;
    polls: those answered."""

    notifications: int = 0
    notifications_outdated: int = 0
    observations_renewed: int = 0
    polls: int = 0


class ResourceObservation(ABC):
    """Follows the state of one resource, by Observe or by polling. `status` is for people and for counts."""

    def __init__(self, resource: ObservedResource, counters: ObservationCounters) -> None:
        self.status = ObservationStatus("starting")
        self._resource = resource
        self._counters = counters
        self._wake = asyncio.Event()
        self._cancelling = False
        self._running: asyncio.Event | None = None  # set at the end of `run`

    @abstractmethod
    async def run(self, on_state: Callable[[Observed], None]) -> None:
        """Until `cancel`. on_state: takes each state, the newest last; it must not raise."""

    def renew(self) -> None:
        """Asks for the state at once, for example because the device answers again or has a new state."""
        self._wake.set()

    async def cancel(self) -> None:
        """Ends `run`, and tells a device that is observed (RFC 7641, 3.6). Returns when `run` has ended."""
        self._cancelling = True
        self._wake.set()
        if self._running is not None:
            await self._running.wait()

    async def _rest(self, seconds: float) -> None:
        """Returns after a time, or when `renew` or `cancel` was called since the last clear of `_wake`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


class ResourceSettings(Protocol):
    """Of the table of an adapter. They mean the same in each."""

    @property
    def resources_max(self) -> int: ...
    @property
    def streams_max(self) -> int: ...
    @property
    def model(self) -> Literal["latest", "event"]: ...
    @property
    def events_kept(self) -> int: ...
    @property
    def contact_write_s(self) -> float: ...
    @property
    def retry_min_s(self) -> float: ...
    @property
    def retry_max_s(self) -> float: ...
    @property
    def reassert_s(self) -> float: ...
    def max_age_s(self, device: str, authority: str) -> float | None: ...


class ResourceExchanges(Protocol):
    """Requests to the devices of one protocol. kind: of the adapter; table: of its settings, such as "coap"."""

    @property
    def kind(self) -> Kind: ...
    @property
    def table(self) -> str: ...
    @property
    def settings(self) -> ResourceSettings: ...

    def now(self) -> datetime:
        """With a time zone."""
        ...

    async def request(self, request: DeviceRequest) -> DeviceAnswer:
        """The device's answer, whatever its code.

        Raises UpstreamError if there is none; PayloadError if the request cannot be sent as it is, or the answer is too
        large; Outdated.
        """
        ...

    def observation(self, resource: ObservedResource, counters: ObservationCounters) -> ResourceObservation: ...


def not_allowed(resource: str, table: str) -> str:
    """Why nothing is sent to a resource, for the graph.

    The reason names the setting. The text has no addresses, so that readers of the graph do not learn the networks of
    the gateway or what its names resolve to.
    """
    return f"the address of {resource} is in none of the networks that {table}.networks allows"
