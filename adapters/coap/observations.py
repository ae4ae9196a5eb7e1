"""The state of one resource, by observing it (RFC 7641), or by polling where that is not offered.

A device that rebooted has forgotten its observers and stays silent. The registration is therefore renewed when no
notification came for Max-Age and some seconds.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import aiocoap

from lamplighter.adapters.coap.endpoint import Ongoing
from lamplighter.adapters.coap.exchanges import CheckedPeer, Exchanges, Opener, failure, uri_message
from lamplighter.adapters.coap.freshness import MARGIN_S, NotificationOrder, fresh
from lamplighter.adapters.networks import NotAllowedError
from lamplighter.adapters.resources.exchange import (
    DeviceRequest,
    ObservationCounters,
    ObservationStatus,
    Observed,
    ObservedResource,
    ResourceObservation,
)
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.pacing import TokenBucket, back_off_s

# After so many failures in a row a device counts as unreachable.
FAILURES_MAX = 3
# A device that does not offer Observe is asked again after so many polls, or so many seconds.
OBSERVE_AGAIN, OBSERVE_AGAIN_S_MAX = 10, 3_600.0
# States of one resource that are taken. Of those that come faster, the newest is taken when its time has come.
STATES_PER_S, STATES_BURST = 20.0, 100
# Requests that a device causes, by an end of the observation or by a state in blocks.
STEPS_PER_S, STEPS_BURST = 1.0, 10


@dataclass(eq=False, slots=True)
class _Registration:
    """answered: the answer to it; a notification of the registration before may come first."""

    peer: CheckedPeer
    opened: Opener | None
    answered: asyncio.Future[aiocoap.Message]
    ongoing: Ongoing | None = None
    confirmed: bool = False

    def stop(self) -> None:
        if self.ongoing is not None:
            self.ongoing.stop()


class Observation(ResourceObservation):
    """Follows a resource by Observe (RFC 7641), or by polling where the device does not offer it."""

    def __init__(
        self,
        exchanges: Exchanges,
        resource: ObservedResource,
        counters: ObservationCounters,
        *,
        margin_s: tuple[float, float] = MARGIN_S,
    ) -> None:
        super().__init__(resource, counters)
        self._exchanges = exchanges
        self._margin_s = margin_s
        # RFC 7641 section 3.3.1: a registration with the same token replaces the one before, in one step, at the
        # device.
        self._token = secrets.token_bytes(8)  # kept, so that a renewal replaces the registration
        self._registration: _Registration | None = None
        self._order: NotificationOrder | None = None
        self._on_state: Callable[[Observed], None] = lambda state: None
        self._due = 0.0  # on the loop's clock: renewal, or the next poll
        self._polls_until = 0.0
        self._incomplete = False  # the newest state has more blocks
        self._delivered = 0  # states that needed no blocks
        self._failure: UpstreamError | None = None  # what ended the observation
        self._states_pace, self._steps_pace = (
            TokenBucket(STATES_PER_S, STATES_BURST),
            TokenBucket(STEPS_PER_S, STEPS_BURST),
        )
        self._held: Observed | None = None  # the newest state, whose time has not come
        self._later: asyncio.TimerHandle | None = None

    async def run(self, on_state: Callable[[Observed], None]) -> None:
        """Follows the resource until `cancel`. on_state: takes each state, the newest last; it must not raise. A task
        that is cancelled sends nothing: the device drops the observer at its next notification."""
        self._on_state = on_state
        self._cancelling = False
        self._running = ended = asyncio.Event()
        failures = 0
        try:
            while not self._cancelling:
                try:
                    await self._step(retried=failures > 0)
                    failures = 0
                    await self._wait()
                except UpstreamError as error:
                    failures += 1
                    if failures >= FAILURES_MAX:
                        self.status = ObservationStatus("unreachable", str(error))
                    settings = self._exchanges.settings
                    await self._pause(back_off_s(failures, settings.retry_min_s, settings.retry_max_s))
                except PayloadError as error:
                    failures += 1
                    state: Literal["withheld", "refused"] = "refused"
                    if isinstance(error, NotAllowedError):
                        state = "withheld"
                    self.status = ObservationStatus(state, str(error))
                    await self._pause(self._exchanges.settings.retry_max_s)
            # Reached by `cancel` only: a task that is cancelled sends nothing more.
            await self._deregister()
        finally:
            if self._registration is not None:
                self._registration.stop()
                self._registration = None
            if self._later is not None:
                self._later.cancel()
            self._held = None
            self.status = ObservationStatus("ended")
            ended.set()

    async def _step(self, *, retried: bool) -> None:
        """Registers, or asks for the state. Raises UpstreamError and PayloadError."""
        self._wake.clear()
        self._failure = None
        now = asyncio.get_running_loop().time()
        if self._incomplete:
            self._incomplete = False
            await self._get(retried=retried)
        elif self._resource.observe == "never" or now < self._polls_until:
            await self._get(retried=retried)
            self._counters.polls += 1
            self._due = asyncio.get_running_loop().time() + self._resource.poll_s
            if self.status.state != "refused":
                self.status = ObservationStatus("polled")
        else:
            await self._register(retried=retried)

    async def _wait(self) -> None:
        """Returns when the next step is due. Notifications put it off. Raises what ended the observation."""
        while (pause := self._due - asyncio.get_running_loop().time()) > 0 and not self._wake.is_set():
            await self._rest(pause)
        await self._keep_pace()
        if self._failure is not None:
            raise self._failure

    async def _keep_pace(self) -> None:
        """Returns when a step that is not due may be taken: a device must not cause one after the other."""
        loop = asyncio.get_running_loop()
        while not self._cancelling and self._failure is None and loop.time() < self._due:
            pause = self._steps_pace.take(loop.time())
            if not pause:
                return
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        if not self._cancelling:
            await self._rest(seconds)

    async def _get(self, *, retried: bool) -> None:
        """Takes the whole state by a request of its own, unless a newer one comes meanwhile."""
        resource, before = self._resource, self._delivered
        answer = await self._exchanges.request(
            DeviceRequest(
                resource.uri,
                "GET",
                accept=resource.accept,
                device=resource.device,
                limit=resource.limit,
                retried=retried,
            )
        )
        if self._delivered == before:
            self._say(answer.code, answer.body)
            until = self._fresh_until(answer.max_age)
            self._give(Observed(answer.body, answer.format, answer.at, until, answer.code))

    async def _register(self, *, retried: bool) -> None:
        async with self._exchanges.turn(self._resource.uri, retried=retried):
            peer = await self._exchanges.peer(self._resource.uri, self._resource.device)
            if self._order is None:
                self._order = NotificationOrder(protected=peer.seal is not None)
            answer = await self._send_registration(peer, None)
            if answer.code == aiocoap.UNAUTHORIZED and answer.opt.echo:
                answer = await self._send_registration(peer, answer.opt.echo)  # RFC 9175 section 2.3
        if answer.code.is_successful() and answer.opt.observe is not None:
            self.status = ObservationStatus("observed")
            return
        self._end_observing(answer)

    async def _send_registration(self, peer: CheckedPeer, echo: bytes | None) -> aiocoap.Message:
        """Sends a registration; its answer. The state of a successful one is taken at once."""
        message = self._message(0, echo)
        sealed, opened = (message, None) if peer.seal is None else peer.seal(message)
        sealed.remote = peer.remote
        registration = _Registration(peer, opened, asyncio.get_running_loop().create_future())
        before, self._registration = self._registration, registration
        if before is not None:
            # The observation before must not take what comes under the shared token.
            self._counters.observations_renewed += 1
            before.stop()  # nothing may come between this and the start: both have the same token
        registration.ongoing = self._exchanges.endpoint.start(
            sealed, lambda event: self._take(registration, event), self._token
        )
        try:
            async with asyncio.timeout(self._exchanges.settings.answer_timeout_s):
                return await registration.answered
        except TimeoutError as error:
            raise UpstreamError("no answer") from error
        finally:
            if not registration.confirmed:
                registration.stop()

    def _take(self, registration: _Registration, event: Any) -> None:
        """Takes an answer, a notification or a failure."""
        if registration is not self._registration:
            return
        try:
            if event.message is None:
                raise failure(event.exception)
            message = event.message if registration.opened is None else registration.opened(event.message)
        except UpstreamError as error:
            if event.is_last:
                self._fail(registration, error)
            return  # else it is forged, came twice, or belongs to the registration before
        assert self._order is not None
        # An answer without the Observe option says that the device has no observer of this token (RFC 7641 section
        # 3.2).
        number, now = message.opt.observe, asyncio.get_running_loop().time()
        last = event.is_last or number is None
        # A notification of the registration before may overtake the answer. The first message after the acknowledgement
        # of the new one is its answer.
        acknowledged = registration.ongoing is None or registration.ongoing.acknowledged
        if not registration.confirmed and (last or acknowledged):
            registration.confirmed = True
            if number is not None:
                # Whatever its number is: the device may count anew.
                self._order.restart(number, now)
                self._deliver(message)
            if not registration.answered.done():
                registration.answered.set_result(message)
        elif last:
            self._end_observing(message)
            self._wake.set()
        elif self._order.takes(number, now):
            self._counters.notifications += 1
            self._deliver(message)
        else:
            self._counters.notifications_outdated += 1

    def _fail(self, registration: _Registration, error: UpstreamError) -> None:
        if registration.confirmed:
            self._failure = error
            self._wake.set()
        elif not registration.answered.done():
            registration.answered.set_exception(error)

    def _end_observing(self, message: aiocoap.Message) -> None:
        """Takes an answer after which the device sends no notifications."""
        settings, now = self._exchanges.settings, asyncio.get_running_loop().time()
        code = message.code.dotted
        self._deliver(message)
        # An error ends the observation (RFC 7641 section 4.2). It is tried again after the longest pause, not at the
        # next poll.
        if not message.code.is_successful():
            self._say(code, message.payload)
            self._due = now + settings.retry_max_s
            return
        self._due = now + self._resource.poll_s
        if self._resource.observe == "always":
            self.status = ObservationStatus("refused", "the device does not offer Observe")
        else:
            self.status = ObservationStatus("polled")
            # A device that was updated may offer Observe some day.
            self._polls_until = now + min(OBSERVE_AGAIN * self._resource.poll_s, OBSERVE_AGAIN_S_MAX)

    def _deliver(self, message: aiocoap.Message) -> None:
        """Gives the state on, or asks for the whole of it."""
        block = message.opt.block2
        until = self._fresh_until(message.opt.max_age)
        # A notification holds the first block only (RFC 7959 section 2.6); the rest is asked for by a GET of its own.
        if block is not None and (block.more or block.block_number):
            self._incomplete = True
            self._wake.set()
            return
        self._delivered += 1
        content_format = message.opt.content_format
        self._give(
            Observed(
                bytes(message.payload),
                None if content_format is None else int(content_format),
                self._exchanges.now(),
                until,
                message.code.dotted,
            )
        )

    def _give(self, state: Observed) -> None:
        """Gives a state on when its time has come, unless a newer one comes before."""
        # One state waits at a time; a newer one takes its place, so a device that sends too fast costs no memory.
        if self._held is not None:
            self._counters.notifications_outdated += 1
            self._held = state
            return
        loop = asyncio.get_running_loop()
        wait_s = self._states_pace.take(loop.time())
        if not wait_s:
            self._on_state(state)
            return
        self._held, self._later = state, loop.call_later(wait_s, self._give_held)

    def _give_held(self) -> None:
        state, self._held = self._held, None
        if state is not None:
            self._give(state)

    def _fresh_until(self, max_age: float | None) -> float:
        """When the state that arrives now is old. Sets when the registration is renewed."""
        if self._resource.max_age_s is not None:
            max_age = self._resource.max_age_s
        found = fresh(asyncio.get_running_loop().time(), max_age, random.uniform(*self._margin_s))
        self._due = found.renewal
        return found.until

    def _say(self, code: str, text: bytes) -> None:
        """Sets the status by an answer that is no notification."""
        if not code.startswith("2."):
            said = text.decode(errors="replace")[:200]
            self.status = ObservationStatus("refused", f"{code} {said}".strip())
        elif self.status.state in ("refused", "withheld"):
            self.status = ObservationStatus("starting")

    async def _deregister(self) -> None:
        registration = self._registration
        if registration is None or self._failure is not None or self.status.state != "observed":
            return
        registration.stop()
        # Observe: 1 (RFC 7641 section 3.6). It is a courtesy: the device finds out by the RST to its next notification.
        with suppress(UpstreamError, PayloadError):  # then the device drops the observer at its next notification
            async with self._exchanges.turn(self._resource.uri):
                await self._exchanges.exchange(self._message(1, None), registration.peer, token=self._token)

    def _message(self, observe: int, echo: bytes | None) -> aiocoap.Message:
        resource = self._resource
        return uri_message("GET", resource.uri, observe=observe, accept=resource.accept, echo=echo)


class ObservingExchanges(Exchanges):
    """Exchanges, and how their resources are followed."""

    kind: Kind = "coap"
    table = "coap"

    def observation(self, resource: ObservedResource, counters: ObservationCounters) -> Observation:
        return Observation(self, resource, counters)
