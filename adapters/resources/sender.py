"""Desired states -> requests to devices.

`states` reads what the devices report, by observing their resources or by polling. A device that is known to have
another state is sent the wanted one again by `Output`. Where the state cannot be read, it is written again at an
interval.

A request that is not idempotent has an effect each time. Before it, the state is read where it can be; where it cannot,
a request without an answer is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lamplighter.adapters.devices.desired import same_state
from lamplighter.adapters.devices.draft import plain
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
from lamplighter.adapters.mapping.command_payloads import is_same_command, state_texts
from lamplighter.adapters.networks import NotAllowedError
from lamplighter.adapters.resources.commands import BoundCommand
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.exchange import (
    DeviceAnswer,
    DeviceRequest,
    ResourceExchanges,
    not_allowed,
)
from lamplighter.adapters.resources.reachability import Reachability
from lamplighter.adapters.resources.states import DeviceStates
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term

# Of a device's text, in a reason.
TEXT_CHARS_MAX = 200

logger = EventLogger(__name__)


class ResourceSender(Sender[BoundCommand]):
    """states: what the devices report."""

    def __init__(
        self, exchanges: ResourceExchanges, counters: ResourceCounters, reachability: Reachability, states: DeviceStates
    ) -> None:
        self._exchanges = exchanges
        self._settings = exchanges.settings
        self._counters = counters
        self._reachability = reachability
        self._states = states

    def target(self, rule: BoundCommand) -> str:
        return rule.resource

    def device(self, rule: BoundCommand) -> str:
        return rule.device

    def is_same(self, rule: BoundCommand, one: Term, other: Term) -> bool:
        said = rule.body if rule.rule.registers is not None else partial(state_texts, rule.table)
        return is_same_command(rule.table, said, one, other)

    async def ready(self, rule: BoundCommand) -> None:
        """At once."""

    def reassert_s(self, rule: BoundCommand) -> float | None:
        """The rule's interval; else that of the settings, as long as the state cannot be read."""
        if not rule.rule.idempotent:
            return None
        if rule.table.reassert_s is not None:
            return rule.table.reassert_s or None
        return None if self._states.is_readable(rule) else self._settings.reassert_s or None

    def follow(self, rule: BoundCommand) -> None:
        self._states.follow(rule)

    def leave(self, rule: BoundCommand) -> None:
        self._states.leave(rule)

    async def send(self, attempt: Attempt[BoundCommand]) -> Acknowledged:
        rule = attempt.rule
        self._counters.retried += attempt.retried
        body = rule.body(attempt.state)
        if rule.rule.idempotent:
            answer = await self._put(attempt, body, _Sent(attempt.is_current))
        else:
            has_it = await self._read(attempt)
            if isinstance(has_it, DeviceAnswer):
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
            raise RefusedByDevice(said) if answer.refused else UpstreamError(said)
        if attempt.is_current():  # else the rule may not be in force any more
            self._states.follow(rule)
        self._states.refresh(rule)
        logger.debug(
            f"{self._exchanges.kind} command acknowledged", device=rule.device, resource=rule.resource, code=answer.code
        )
        return Acknowledged(answer.sent, answer.at, answer.code)

    async def _put(self, attempt: Attempt[BoundCommand], body: bytes, sent: _Sent) -> DeviceAnswer:
        rule = attempt.rule
        return await self._request(
            rule,
            DeviceRequest(
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

    async def _read(self, attempt: Attempt[BoundCommand]) -> DeviceAnswer | bool:
        """The answer, if the device has the state; else whether its state can be read. Raises UpstreamError if it does
        not answer."""
        rule = attempt.rule
        for resource, epoch in self._states.places(rule):
            if epoch:
                continue
            sent = _Sent(attempt.is_current)
            request = DeviceRequest(
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
            if answer.code.startswith("5"):
                raise UpstreamError(answer.code)
            if not answer.successful:
                return False
            try:
                found = self._states.value(rule, resource.uri, answer.body, answer.format)
            except PayloadError as error:
                self._states.unreadable(rule, resource.uri, error)
                return False
            return answer if found is not None and self._has(rule, found, attempt.state) else found is not None
        return False

    def _has(self, rule: BoundCommand, found: Term, state: Term) -> bool:
        return same_state(found, state) or self.is_same(rule, found, state)

    async def _request(self, rule: BoundCommand, request: DeviceRequest, sent: _Sent) -> DeviceAnswer:
        """The answer of the device. Raises NotSentError, other UpstreamErrors, and Outdated."""
        device = rule.device
        try:
            answer = await self._exchanges.request(request)
        except NotAllowedError as error:
            self._counters.outside += 1
            self._reachability.withheld(device, request.uri, str(error))
            raise NotSentError(not_allowed(request.uri, self._exchanges.table)) from error
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
