"""Desired states -> requests to CoAP devices, and the states that the devices report.

A state is read by observing its resource, or by polling. A device that is known to have another state is sent the
wanted one again by `Output`. Where the state cannot be read, it is written again at an interval.

A request that is not idempotent has an effect each time. Before it, the state is read where it can be; where it cannot,
a request without an answer is never repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lamplighter.adapters.coap.commands import BoundCommand
from lamplighter.adapters.coap.counters import CoapCounters
from lamplighter.adapters.coap.exchanges import CoapAnswer, CoapRequest, Exchanges
from lamplighter.adapters.coap.formats import read_body
from lamplighter.adapters.coap.observations import Observation, Observed, ObservedResource
from lamplighter.adapters.coap.reachability import Reachability
from lamplighter.adapters.coap.settings import normal_authority
from lamplighter.adapters.devices.desired import same_state
from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.devices.output import ReportedState
from lamplighter.adapters.devices.sender import (
    Acknowledged,
    Attempt,
    NotRepeatedError,
    NotSentError,
    Outdated,
    OutdatedUnsent,
    RefusedByDevice,
    Sender,
)
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.tables import ResourceStateTable
from lamplighter.adapters.networks import NotAllowedError
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term

CHECK_S = 1.0
"""How often it is looked which observations have lost their device."""
TEXT_CHARS_MAX = 200
"""Of a device's text, in a reason."""

logger = EventLogger(__name__)


@dataclass(eq=False)
class _Followed:
    """A resource with the state of actuators. rules: those that read it; readable: whether the last answer was a state,
    or that there is none; epoch: it is read for its changes only."""

    resource: ObservedResource
    observation: Observation
    epoch: bool
    rules: set[BoundCommand] = field(default_factory=set)
    readable: bool = False
    body: bytes | None = None
    task: asyncio.Task[None] | None = None
    lost: bool = False


class CoapSender(Sender[BoundCommand]):
    """take: what devices report, newest of each rule; changed: called with a device when how its states are read
    changes; returned: called with a device that has started again; note: takes target and reason of what cannot be
    read."""

    def __init__(
        self,
        exchanges: Exchanges,
        counters: CoapCounters,
        reachability: Reachability,
        *,
        take: Callable[[Sequence[ReportedState[BoundCommand]]], Awaitable[None]],
        changed: Callable[[str], None],
        returned: Callable[[str], None],
        note: Callable[[str, str], None],
    ) -> None:
        self._exchanges = exchanges
        self._settings = exchanges.settings
        self._counters = counters
        self._reachability = reachability
        self._take, self._changed, self._returned, self._note = take, changed, returned, note
        self._followed: dict[tuple[ObservedResource, bool], _Followed] = {}
        self._places: dict[BoundCommand, list[tuple[ObservedResource, bool]]] = {}  # of rules in force
        self._reports: dict[BoundCommand, ReportedState[BoundCommand]] = {}
        self._reported = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    def target(self, rule: BoundCommand) -> str:
        return rule.resource

    def device(self, rule: BoundCommand) -> str:
        return rule.device

    async def ready(self, rule: BoundCommand) -> None:
        """At once."""

    def reassert_s(self, rule: BoundCommand) -> float | None:
        """The rule's interval; else that of the settings, as long as the state cannot be read."""
        if not rule.rule.idempotent:
            return None
        if rule.table.reassert_s is not None:
            return rule.table.reassert_s or None
        return None if self._is_readable(rule) else self._settings.reassert_s or None

    async def run(self) -> None:
        """Reads states until cancelled. Raises UpstreamError when the gateway's client is closed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for one in self._followed.values():
                    self._start(one)
                self._tasks.create_task(self._report(), name="coap reports")
                while True:
                    await asyncio.sleep(CHECK_S)
                    self._check()
        finally:
            self._tasks = None

    # --- states of devices ------------------------------------------------------------------------------------

    def follow(self, rule: BoundCommand) -> None:
        if rule in self._places:
            return
        self._places[rule] = self._places_of(rule)
        for resource, epoch in self._places[rule]:
            followed = self._followed.get((resource, epoch))
            if followed is None:
                if len(self._followed) >= self._settings.resources_max:
                    self._note(resource.uri, "more resources than coap.resources_max are read; this one is not")
                    continue
                observation = Observation(self._exchanges, resource, self._counters.observations)
                followed = self._followed[resource, epoch] = _Followed(resource, observation, epoch)
                self._start(followed)
            followed.rules.add(rule)

    def leave(self, rule: BoundCommand) -> None:
        self._reports.pop(rule, None)
        for key in self._places.pop(rule, ()):
            followed = self._followed.get(key)
            if followed is None or rule not in followed.rules:
                continue
            followed.rules.remove(rule)
            if not followed.rules:
                del self._followed[key]
                if self._tasks is not None:
                    self._tasks.create_task(followed.observation.cancel(), name=f"coap end of {key[0].uri}")

    def renew(self, device: str) -> None:
        """Reads the states of a device again at once, as it may have forgotten who observes it."""
        for followed in self._followed.values():
            if any(rule.device == device for rule in followed.rules):
                followed.observation.renew()

    def observed(self) -> int:
        return sum(one.observation.status.state == "observed" for one in self._followed.values())

    def stale(self) -> int:
        return sum(one.observation.status.state == "unreachable" for one in self._followed.values())

    def _read_by(self, rule: BoundCommand) -> list[tuple[ObservedResource, bool]]:
        """The resources that are read for a rule; true for those that tell of a start."""
        found = self._places.get(rule)
        return self._places_of(rule) if found is None else found

    def _places_of(self, rule: BoundCommand) -> list[tuple[ObservedResource, bool]]:
        found = []
        settings, table, read = self._settings, rule.table, rule.rule.state
        interval = table.reassert_s or settings.reassert_s or 60.0
        try:
            uri, epoch = rule.state_uri(), rule.epoch_uri()
        except PayloadError as error:
            self._note(rule.resource, f"{rule.place}: {error}")
            return []
        device = table.device or ""
        if uri is not None and read is not None:
            chosen = read.table
            state = ObservedResource(
                uri,
                read.accepted.number,
                chosen.device or device,
                "never" if read.observe == "never" else "always" if read.observe == "always" else "auto",
                chosen.poll_s if isinstance(table.state, ResourceStateTable) else max(interval, 1.0),
                chosen.max_age_s or self._max_age_s(chosen.device or device, uri),
            )
            found.append((state, False))
        if epoch is not None:
            found.append((ObservedResource(epoch, device=device, observe="never", poll_s=interval / 2), True))
        return found

    def _max_age_s(self, device: str, uri: str) -> float | None:
        """That of the settings of a device."""
        for name, one in self._settings.devices.items():
            if device == name or (not device and normal_authority(one.address) == uris.authority(uri)):
                return one.max_age_s
        return None

    def _is_readable(self, rule: BoundCommand) -> bool:
        for key in self._read_by(rule):
            followed = self._followed.get(key)
            if not key[1] and followed is not None:
                return followed.readable and followed.observation.status.state != "unreachable"
        return False

    def _start(self, followed: _Followed) -> None:
        if self._tasks is not None:
            followed.task = self._tasks.create_task(
                followed.observation.run(lambda state: self._on_state(followed, state)),
                name=f"coap state {followed.resource.uri}",
            )

    def _on_state(self, followed: _Followed, state: Observed) -> None:
        if not followed.rules:
            return
        device = next(iter(followed.rules)).device
        self._reachability.heard(device)
        if followed.epoch:
            before, followed.body = followed.body, state.body if state.code == "2.05" else followed.body
            if before is not None and followed.body != before:
                logger.info("coap device started again", device=device)
                self._returned(device)
                self.renew(device)
            return
        readable = False
        for rule in followed.rules:
            if state.code == "4.04":  # it has forgotten the resource, or never had it
                self._reports[rule] = ReportedState(rule, None, retained=False)
                readable = True
            elif state.code == "2.05":
                try:
                    found = self._value(rule, followed.resource.uri, state.body, state.format)
                except PayloadError as error:
                    self._note(followed.resource.uri, f"{rule.place}: {error}")
                    continue
                readable = True
                if found is not None:
                    self._reports[rule] = ReportedState(rule, found, retained=False)
        self._reported.set()
        if readable != followed.readable:
            followed.readable = readable
            self._changed(device)

    def _value(self, rule: BoundCommand, uri: str, body: bytes, content_format: int | None) -> Term | None:
        """Raises PayloadError."""
        state = rule.rule.state
        assert state is not None
        return state.value(read_body(body, content_format, state.accepted), uri, self._exchanges.now())

    def _check(self) -> None:
        """Tells of devices that an observation cannot reach."""
        for followed in self._followed.values():
            status = followed.observation.status
            lost = status.state == "unreachable"
            if lost and followed.rules and not followed.lost:
                device = next(iter(followed.rules)).device
                self._reachability.failed(device, followed.resource.uri, status.reason)
                self._changed(device)
            followed.lost = lost

    async def _report(self) -> None:
        while True:
            await self._reported.wait()
            self._reported.clear()
            found, self._reports = list(self._reports.values()), {}
            await self._take(found)

    # --- desired states ---------------------------------------------------------------------------------------

    async def send(self, attempt: Attempt[BoundCommand]) -> Acknowledged:
        rule = attempt.rule
        self._counters.retried += attempt.retried
        body = rule.body(attempt.state)
        if rule.rule.idempotent:
            answer = await self._put(attempt, body, _Sent(attempt.is_current))
        else:
            has_it = await self._read(attempt)
            if isinstance(has_it, CoapAnswer):
                return Acknowledged(has_it.sent, has_it.at, has_it.code)
            if not has_it and attempt.cause == "timer":
                raise NotRepeatedError("")
            if not attempt.is_current():
                raise OutdatedUnsent
            sent = _Sent(lambda: True)  # another one may overtake a request that is given up
            try:
                answer = await self._put(attempt, body, sent)
            except NotSentError:
                raise
            except UpstreamError as error:
                if sent.happened and not has_it:
                    raise NotRepeatedError(str(error)) from error
                raise
        text = plain(answer.body.decode(errors="replace"), TEXT_CHARS_MAX)
        said = f"{answer.code}: {text}" if text else answer.code
        if not answer.successful:
            raise RefusedByDevice(said) if answer.code.startswith("4.") else UpstreamError(said)
        if attempt.is_current():  # else the rule may not be in force any more
            self.follow(rule)
        for key in self._read_by(rule):
            if key in self._followed and self._followed[key].observation.status.state != "observed":
                self._followed[key].observation.renew()
        logger.debug("coap command acknowledged", device=rule.device, resource=rule.resource, code=answer.code)
        return Acknowledged(answer.sent, answer.at, answer.code)

    async def _put(self, attempt: Attempt[BoundCommand], body: bytes, sent: _Sent) -> CoapAnswer:
        rule = attempt.rule
        return await self._request(
            rule,
            CoapRequest(
                rule.resource,
                rule.table.method,
                body,
                rule.rule.content_format,
                device=rule.table.device or "",
                is_current=sent,
                retried=attempt.retried,
            ),
            sent,
        )

    async def _read(self, attempt: Attempt[BoundCommand]) -> CoapAnswer | bool:
        """The answer, if the device has the state; else whether its state can be read. Raises UpstreamError if it does
        not answer."""
        rule = attempt.rule
        for resource, epoch in self._read_by(rule):
            if epoch:
                continue
            sent = _Sent(attempt.is_current)
            request = CoapRequest(
                resource.uri,
                "GET",
                accept=resource.accept,
                device=resource.device,
                is_current=sent,
                retried=attempt.retried,
            )
            answer = await self._request(rule, request, sent)
            if answer.code == "4.04":
                return True
            if answer.code.startswith("5."):
                raise UpstreamError(answer.code)
            if answer.code != "2.05":
                return False
            try:
                found = self._value(rule, resource.uri, answer.body, answer.format)
            except PayloadError as error:
                self._note(resource.uri, f"{rule.place}: {error}")
                return False
            return answer if found is not None and same_state(found, attempt.state) else found is not None
        return False

    async def _request(self, rule: BoundCommand, request: CoapRequest, sent: _Sent) -> CoapAnswer:
        """The answer of the device. Raises NotSentError, other UpstreamErrors, and Outdated."""
        device = rule.device
        try:
            answer = await self._exchanges.request(request)
        except NotAllowedError as error:
            self._counters.outside += 1
            self._reachability.withheld(device, request.uri, str(error))
            raise NotSentError(not_allowed(request.uri)) from error
        except PayloadError as error:
            if sent.happened:
                raise UpstreamError(str(error)) from error
            self._counters.outside += 1
            self._reachability.withheld(device, request.uri, str(error))
            raise NotSentError(str(error)) from error
        except Outdated as error:
            raise error if sent.happened else OutdatedUnsent from None
        except GatewayError as error:
            self._reachability.failed(device, request.uri, str(error))
            raise
        except Exception as error:  # an answer that breaks the library concerns this device only
            reason = str(error.__cause__ or error) or type(error).__name__
            self._reachability.failed(device, request.uri, reason)
            raise UpstreamError(reason) from error
        self._reachability.heard(device)
        return answer


class _Sent:
    """Says whether a request is current, and notes that it was asked, which happens before each message."""

    def __init__(self, is_current: Callable[[], bool]) -> None:
        self.happened = False
        self._is_current = is_current

    def __call__(self) -> bool:
        current = self._is_current()
        self.happened |= current
        return current


def not_allowed(resource: str) -> str:
    """Why nothing is sent to a resource, for the graph.

    The reason names the setting. The text has no addresses, so that readers of the graph do not learn the networks of
    the gateway or what its names resolve to.
    """
    return f"the address of {resource} is in none of the networks that coap.networks allows"
