"""The wanted states of actuators -> attempts of a sender, and the records of what came of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S
from lamplighter.adapters.devices.actuation_writer import ActuationWriter
from lamplighter.adapters.devices.actuator import DrivenActuator
from lamplighter.adapters.devices.desired import (
    BY_HAND_ORIGIN,
    Cause,
    Sending,
    actuation_update,
    followed_update,
    refusal_update,
)
from lamplighter.adapters.devices.sender import (
    Acknowledged,
    Attempt,
    NotRepeatedError,
    NotSentError,
    Outdated,
    OutdatedUnsent,
    OutputCounters,
    RefusedByDevice,
    Rule,
    Sender,
)
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import Term

# How long a report may take to become the desired state.
FOLLOWED_S = 10.0

logger = EventLogger(__name__)


@dataclass(slots=True)
class _Try(Generic[Rule]):
    """One state of an attempt. before: what was known of the actuator before it."""

    actuator: DrivenActuator[Rule]
    rule: Rule
    state: Term
    before: tuple[Term | None, bool, float | None]
    repeated: bool
    retried: bool
    starts: int
    cause: Cause
    followed: tuple[int, int] | None

    @classmethod
    def begin(cls, actuator: DrivenActuator[Rule], now: float) -> _Try[Rule]:
        rule, state = actuator.rule, actuator.wanted
        assert rule is not None and state is not None
        repeated = actuator.told == state
        if repeated:
            # The state was sent before: it is repeated since the device is not in it, or because the time has come.
            actuator.cause = "client" if actuator.contrary or actuator.back is not None else "timer"
        begun = cls(
            actuator,
            rule,
            state,
            (actuator.told, actuator.contrary, actuator.back),
            repeated,
            actuator.failures > 0,
            actuator.starts,
            actuator.cause,
            actuator.followed,
        )
        actuator.told, actuator.busy = None, True  # from here on the device may have it
        actuator.contrary, actuator.back = False, None
        actuator.pace.take(now)
        actuator.repeats += repeated and begun.cause == "client"
        return begun

    @property
    def is_current(self) -> bool:
        """Whether the state is still wanted."""
        return self.actuator.wanted == self.state and self.actuator.rule == self.rule

    def restore(self) -> None:
        """Nothing was sent."""
        if self.actuator.starts == self.starts:
            self.actuator.told, self.actuator.contrary, self.actuator.back = self.before


class Delivery(Generic[Rule]):
    """Sends for one adapter. note, retry: as for `Output`. settle: has another actuator of a lamp looked at, of
    which a state was under way."""

    def __init__(
        self,
        sender: Sender[Rule],
        writer: ActuationWriter,
        counters: OutputCounters,
        *,
        note: Callable[[str, str], None],
        settle: Callable[[DrivenActuator[Rule]], None],
        retry: tuple[float, float] | None = None,
    ) -> None:
        self._sender = sender
        self._writer = writer
        self._counters = counters
        self._kind = writer.kind
        self._note = note
        self._settle = settle
        self._retry_min_s, self._retry_max_s = retry or (RETRY_MIN_S, RETRY_MAX_S)

    async def deliver(self, actuator: DrivenActuator[Rule]) -> None:
        """Sends until the device has the wanted state, or none is wanted."""
        loop = asyncio.get_running_loop()
        while True:
            actuator.wake.clear()
            due = actuator.due()
            if due is None:
                actuator.worker = None
                return
            # Waiting for the pause may be ended by a new state, a contact, or another rule.
            if due > loop.time():
                self._tell_of_pace(actuator, loop.time())
                try:
                    async with asyncio.timeout(due - loop.time()):
                        await actuator.wake.wait()
                except TimeoutError:
                    pass
                continue
            rule = actuator.rule
            assert rule is not None
            # Only if the device had the desired state: else the report may be older than the message.
            if actuator.is_moved_by_hand and actuator.told == actuator.wanted:
                await self._follow(actuator, rule)
                continue
            # A broker that is away: the newest state is sent when it is back, not all of them.
            await self._sender.ready(rule)
            due = actuator.due()  # what is wanted by now is sent
            if actuator.rule == rule and due is not None and due <= loop.time():
                await self._attempt(actuator, rule)

    def _tell_of_pace(self, actuator: DrivenActuator[Rule], now: float) -> None:
        reason = actuator.pace_reason(now)
        if not reason:
            return
        assert actuator.rule is not None
        place = actuator.rule.place
        logger.warning(f"{self._kind} actuator switched too often", actuator=actuator.iri, rule=place, reason=reason)
        self._note(self._sender.target(actuator.rule), f"{place}: {reason}")

    async def _follow(self, actuator: DrivenActuator[Rule], rule: Rule) -> None:
        """Makes what the device reports the desired state; returns when the dataset has it."""
        wanted, state = actuator.wanted, actuator.reported
        assert wanted is not None and state is not None
        actuator.following, actuator.contrary = state, False
        actuator.moved_at = asyncio.get_running_loop().time()
        actuator.repeats += 1
        target = self._sender.target(rule)
        self._counters.followed += 1
        logger.info(f"{self._kind} actuator follows its device", actuator=actuator.iri, target=target)
        await self._writer.record(
            followed_update(actuator.iri, wanted, state, rule.condition), f"{BY_HAND_ORIGIN}{target}"
        )
        # What is desired by now is known from the subscription only. If that does not come, the update was refused.
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWED_S):
                while actuator.following is not None:
                    actuator.wake.clear()
                    await actuator.wake.wait()
        actuator.following = None

    def _together(self, actuator: DrivenActuator[Rule], now: float) -> list[DrivenActuator[Rule]]:
        return [actuator] if actuator.lamp is None else actuator.lamp.together(actuator, now)

    async def _attempt(self, actuator: DrivenActuator[Rule], rule: Rule) -> None:
        """One message with the newest wanted state, and with those that go along with it; and its records."""
        now = asyncio.get_running_loop().time()
        members = self._together(actuator, now)
        together = tuple((one.rule, one.wanted) for one in members if one.rule is not None and one.wanted is not None)
        changed = [one for one in members if one.lamp is None or not one.lamp.is_rider(one)]
        # What was known is kept in each try, since a message that was not sent changes nothing.
        tries = [_Try.begin(one, now) for one in changed]
        try:
            await self._send(actuator, rule, tries, together)
        finally:
            for one in tries:
                one.actuator.busy = False
        for one in tries:  # not when it is cancelled: no task can be started then
            if one.actuator is not actuator:
                self._settle(one.actuator)

    async def _send(
        self,
        actuator: DrivenActuator[Rule],
        rule: Rule,
        tries: Sequence[_Try[Rule]],
        together: tuple[tuple[Rule, Term], ...],
    ) -> None:
        own = next(one for one in tries if one.actuator is actuator)
        attempt = Attempt(
            actuator.iri, rule, own.state, own.cause, lambda: own.is_current, actuator.from_file, own.retried, together
        )
        now = asyncio.get_running_loop().time
        try:
            acknowledged = await self._sender.send(attempt)
        except (PayloadError, RefusedByDevice) as error:
            if len(together) > 1:  # which of them is refused? Each is tried alone, this one at once.
                for one in tries:
                    one.restore()
                own = _Try.begin(actuator, now())
                await self._send(actuator, rule, [own], ((rule, own.state),))
                return
            # The device still has the state before.
            if isinstance(error, NotSentError):
                own.restore()
            if isinstance(error, RefusedByDevice):
                self._counters.sent += not isinstance(error, NotSentError)
                self._counters.failed += not isinstance(error, NotSentError)
                await self._fail(own, error)
                return
            own.restore()
            # It cannot be sent at all, so it is not tried again until another one is wanted.
            actuator.refused = own.state
            await self._refuse(actuator, rule, str(error))
        except Outdated as error:
            self._counters.outdated += 1
            if isinstance(error, OutdatedUnsent):
                own.restore()
        except NotSentError as error:
            for one in tries:
                one.restore()
                await self._fail(one, error)
        except NotRepeatedError as error:
            actuator.failures, actuator.retry_at = 0, 0.0
            # It may have arrived: repeating a toggle or an impulse would do it twice.
            actuator.told, actuator.sent_at = own.state, now()
            if str(error):
                self._counters.sent += 1
                self._counters.failed += 1
                await self._refuse_once(actuator, rule, str(error))
        except UpstreamError as error:
            for one in tries:
                self._counters.sent += 1
                self._counters.failed += 1
                self._counters.reasserted += one.repeated
                await self._fail(one, error)
        else:
            for one in tries:
                self._counters.reasserted += one.repeated
                # Else the device may have lost it.
                one.actuator.told = one.state if one.actuator.starts == one.starts else None
            for one in tries:
                await self._acknowledge(one, acknowledged)

    async def _acknowledge(self, one: _Try[Rule], acknowledged: Acknowledged) -> None:
        """Records what was acknowledged."""
        actuator, rule = one.actuator, one.rule
        self._counters.sent += 1
        self._counters.acknowledged += 1
        if actuator.refusal:
            logger.info(f"{self._kind} state accepted again", actuator=actuator.iri)
        actuator.failures, actuator.retry_at, actuator.refusal = 0, 0.0, ""
        actuator.sent_at, actuator.spread = asyncio.get_running_loop().time(), random.uniform(0.9, 1.1)
        # A re-assertion that changes nothing is no news, and would wear the card.
        if one.cause == "timer" and not one.retried and actuator.is_recorded(one.state):
            return
        target = self._sender.target(rule)
        sending = Sending(acknowledged.sent, one.cause, acknowledged.answer, rule.place, target, one.followed)
        text = actuation_update(actuator.iri, one.state, acknowledged.at, sending, rule.condition)
        await self._writer.record(text, target)

    async def _fail(self, one: _Try[Rule], error: UpstreamError) -> None:
        """Has an attempt repeated later. A state that the device refuses is recorded once, and repeated seldom."""
        if not one.is_current:
            return
        actuator = one.actuator
        actuator.failures += 1
        refused = isinstance(error, RefusedByDevice)
        pause = back_off_s(
            1 if refused else actuator.failures, self._retry_max_s if refused else self._retry_min_s, self._retry_max_s
        )
        actuator.retry_at = asyncio.get_running_loop().time() + pause
        if refused:
            await self._refuse_once(actuator, one.rule, str(error))

    async def _refuse_once(self, actuator: DrivenActuator[Rule], rule: Rule, reason: str) -> None:
        if actuator.refusal != reason:
            actuator.refusal = reason
            await self._refuse(actuator, rule, reason)

    async def _refuse(self, actuator: DrivenActuator[Rule], rule: Rule, reason: str) -> None:
        self._counters.refused += 1
        logger.warning(f"{self._kind} state refused", actuator=actuator.iri, reason=reason)
        target = self._sender.target(rule)
        self._note(target, reason)
        await self._writer.record(refusal_update(actuator.iri, reason, rule.condition), target)
