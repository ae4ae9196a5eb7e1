"""The wanted states of actuators -> attempts of a sender, and the records of what came of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S
from lamplighter.adapters.devices.actuation_writer import ActuationWriter
from lamplighter.adapters.devices.actuator import DrivenActuator
from lamplighter.adapters.devices.counters import OutputCounters
from lamplighter.adapters.devices.desired import (
    BY_HAND_ORIGIN,
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
    RefusedByDevice,
    Rule,
    Sender,
)
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s

FOLLOWED_S = 10.0
"""How long a report may take to become the desired state."""

logger = EventLogger(__name__)


class Delivery(Generic[Rule]):
    """Sends for one adapter. kind, note, retry: as for `Output`."""

    def __init__(
        self,
        sender: Sender[Rule],
        writer: ActuationWriter,
        counters: OutputCounters,
        *,
        kind: str,
        note: Callable[[str, str], None],
        retry: tuple[float, float] | None = None,
    ) -> None:
        self._sender = sender
        self._writer = writer
        self._counters = counters
        self._kind = kind
        self._note = note
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
            if actuator.is_moved_by_hand and actuator.told == actuator.wanted:
                await self._follow(actuator, rule)
                continue
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

    async def _attempt(self, actuator: DrivenActuator[Rule], rule: Rule) -> None:
        """One message with the newest wanted state, and its record."""
        state, before = actuator.wanted, (actuator.told, actuator.contrary, actuator.back)
        assert state is not None
        loop = asyncio.get_running_loop()
        repeated, retried, starts = actuator.told == state, actuator.failures > 0, actuator.starts
        if repeated:
            actuator.cause = "client" if actuator.contrary or actuator.back is not None else "timer"
        cause, followed = actuator.cause, actuator.followed
        actuator.told = None  # from here on the device may have it
        actuator.contrary, actuator.back = False, None
        actuator.pace.take(loop.time())
        actuator.repeats += repeated and cause == "client"
        attempt = Attempt(
            actuator.iri,
            rule,
            state,
            cause,
            lambda: actuator.wanted == state and actuator.rule == rule,
            actuator.from_file,
            retried,
        )
        try:
            acknowledged = await self._sender.send(attempt)
        except PayloadError as error:
            actuator.told, actuator.contrary, actuator.back = before
            actuator.refused = state
            await self._refuse(actuator, rule, str(error))
            return
        except Outdated as error:
            self._counters.outdated += 1
            if isinstance(error, OutdatedUnsent) and actuator.starts == starts:
                actuator.told, actuator.contrary, actuator.back = before
            return
        except NotSentError as error:
            if actuator.starts == starts:
                actuator.told, actuator.contrary, actuator.back = before
            await self._fail(actuator, rule, attempt, error)
            return
        except NotRepeatedError as error:
            actuator.failures, actuator.retry_at = 0, 0.0
            actuator.told, actuator.sent_at = state, loop.time()
            if str(error):
                self._counters.sent += 1
                self._counters.failed += 1
                await self._refuse_once(actuator, rule, str(error))
            return
        except UpstreamError as error:
            self._counters.sent += 1
            self._counters.failed += 1
            self._counters.reasserted += repeated
            await self._fail(actuator, rule, attempt, error)
            return
        self._counters.reasserted += repeated
        actuator.told = state if actuator.starts == starts else None  # else the device may have lost it
        await self._acknowledge(actuator, attempt, acknowledged, followed)

    async def _acknowledge(
        self,
        actuator: DrivenActuator[Rule],
        attempt: Attempt[Rule],
        acknowledged: Acknowledged,
        followed: tuple[int, int] | None,
    ) -> None:
        """Records what was acknowledged."""
        self._counters.sent += 1
        self._counters.acknowledged += 1
        if actuator.refusal:
            logger.info(f"{self._kind} state accepted again", actuator=actuator.iri)
        actuator.failures, actuator.retry_at, actuator.refusal = 0, 0.0, ""
        actuator.sent_at, actuator.spread = asyncio.get_running_loop().time(), random.uniform(0.9, 1.1)
        if attempt.cause == "timer" and not attempt.retried and actuator.is_recorded(attempt.state):
            return
        rule, target = attempt.rule, self._sender.target(attempt.rule)
        sending = Sending(acknowledged.sent, attempt.cause, acknowledged.answer, rule.place, target, followed)
        text = actuation_update(actuator.iri, attempt.state, acknowledged.at, sending, rule.condition)
        await self._writer.record(text, target)

    async def _fail(
        self, actuator: DrivenActuator[Rule], rule: Rule, attempt: Attempt[Rule], error: UpstreamError
    ) -> None:
        """Has an attempt repeated later. A state that the device refuses is recorded once, and repeated seldom."""
        if not attempt.is_current():
            return
        actuator.failures += 1
        refused = isinstance(error, RefusedByDevice)
        pause = back_off_s(
            1 if refused else actuator.failures, self._retry_max_s if refused else self._retry_min_s, self._retry_max_s
        )
        actuator.retry_at = asyncio.get_running_loop().time() + pause
        if refused:
            await self._refuse_once(actuator, rule, str(error))

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
