"""Keeps actuators in their desired states: what the adapters share of it.

::

    gateway ─▶ subscription: desired states ─▶ one worker an actuator ─▶ Sender ─▶ device
       ▲                                          │                                  │
       └── sosa:Actuation, gateway:reportedState ◀┴── reported state ◀───────────────┘

`adapters.devices.desired` has the contract. At a start, a state is not sent if the device reports it, or if the last
recorded actuation has it. A retained report is shown, and never the reason of a message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient, retry_s
from lamplighter.adapters.devices.desired import (
    actuation_update,
    desired_pattern,
    refusal_update,
    reported_update,
    same_state,
)
from lamplighter.adapters.devices.pace import MessagePace
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import STATE_CHARS_SAID
from lamplighter.engine.client import DeclaredCause, Notification, UpdateRequest
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term, iri, is_iri, is_literal, lexical
from lamplighter.ontology.vocabulary import (
    ACTUATOR,
    COMMAND,
    HAS_SIMPLE_RESULT,
    HOSTS,
    MADE_BY_ACTUATOR,
    ONLINE,
    RDF_TYPE,
    REPORTED_STATE,
)

SETTLE_S, REASSERT_MAX_S = 2.0, 300.0
"""The pause before a state is sent again; it doubles while the device goes on reporting another state."""
AT_ONCE, PAUSE_S = 120, 1.0
"""Messages to one actuator without a pause, and the pause between further ones: applications, or a rule for its state,
may set states that change each other."""

QUERY = (
    "SELECT ?actuator ?desired ?reported ?recorded ?online ?command WHERE { "
    f"{desired_pattern('desired')} "
    f"UNION {{ ?actuator <{REPORTED_STATE}> ?reported }} "
    f"UNION {{ ?actuation <{MADE_BY_ACTUATOR}> ?actuator ; <{HAS_SIMPLE_RESULT}> ?recorded }} "
    f"UNION {{ ?actuator <{RDF_TYPE}> <{ACTUATOR}> . ?device <{HOSTS}> ?actuator ; <{ONLINE}> ?online }} "
    f"UNION {{ ?actuator <{COMMAND}> ?command }} }}"
)
"""Each row has an actuator and one value. A first result has all of one moment."""
_KEYS = ("desired", "reported", "recorded", "online", "command")

logger = EventLogger(__name__)


class Attempt(NamedTuple):
    """One attempt to bring an actuator into a state. from_file: the rule is one of mapping/*.toml; retried: the attempt
    before it failed."""

    actuator: Term
    rule: CommandRule
    state: Term
    from_file: bool
    retried: bool


class Sender(Protocol):
    """How a protocol brings a state to a device."""

    def target(self, rule: CommandRule) -> str:
        """What the rule sends to, such as a topic: for causes and for people."""
        ...

    async def ready(self, rule: CommandRule) -> None:
        """Returns when something can be sent by the rule."""
        ...

    async def send(self, attempt: Attempt) -> None:
        """Returns when the state is acknowledged, and logs how it went.

        Raises PayloadError, whose reason is for people, if the state is never sent, and UpstreamError if it is to be
        sent again later."""
        ...


@dataclass(slots=True)
class OutputCounters:
    """Since the adapter was made. sent: messages with states, repeated ones too; acknowledged: those of them that were;
    failed: the others; reasserted: messages for devices that did not report the wanted state; refused: states that are
    never sent; reported: states of devices that were stored; unrecorded: actuations and reports that the gateway
    refused to store."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    reasserted: int = 0
    refused: int = 0
    reported: int = 0
    unrecorded: int = 0


class ReportedState(NamedTuple):
    """A state that a device reports of an actuator. retained: an old state, which is stored, and never the reason of a
    message."""

    rule: CommandRule
    state: Term
    retained: bool


@dataclass(eq=False)
class _Actuator:
    """One actuator, with or without a rule.

    rows: what the dataset says of it, by variable of the query. rule: the one in force; from_file: it is one of
    mapping/*.toml. told: the state that the device was told last; None if that is unknown. sent_at: when, on the
    loop's clock. refused: the state that cannot be sent. reported: by a message of this run; live: it was not a
    retained one. contrary: after the last message the device has reported another state. back: it has come back online
    at this time. pace: of its messages. repeats: messages in a row about one state. retry_at: not before.
    """

    iri: Term
    rows: dict[str, Counter[Term]] = field(default_factory=lambda: {key: Counter() for key in _KEYS})
    rule: CommandRule | None = None
    from_file: bool = False
    wanted: Term | None = None
    started: bool = False
    told: Term | None = None
    sent_at: float = 0.0
    refused: Term | None = None
    reported: Term | None = None
    contrary: bool = False
    back: float | None = None
    pace: MessagePace = field(default_factory=lambda: MessagePace(AT_ONCE, PAUSE_S))
    repeats: int = 0
    retry_at: float = 0.0
    failures: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    worker: asyncio.Task[None] | None = None

    @property
    def known_report(self) -> Term | None:
        """What the device reported last, in this run or before."""
        return self.reported if self.reported is not None else max(self.rows["reported"], default=None)

    @property
    def offline(self) -> bool:
        """Whether a device that has it is offline, as far as known."""
        return any(lexical(one) in ("false", "0") for one in self.rows["online"])

    @property
    def disagrees(self) -> bool:
        """Whether the device reports another state than the wanted one."""
        reported = self.known_report
        return self.wanted is not None and reported is not None and not same_state(reported, self.wanted)

    def due(self) -> float | None:
        """When to send the wanted state, on the loop's clock; None: not as things are."""
        needed = self.needed()
        return None if needed is None else max(needed, self.pace.free_at())

    def needed(self) -> float | None:
        """When the wanted state is to be sent, whatever the pace."""
        if self.rule is None or self.wanted is None or not self.started or self.refused == self.wanted:
            return None
        if self.told is None or self.told != self.wanted:
            return self.retry_at
        pause = self.rule.table.reassert_s
        if pause == 0:
            return None
        times = []
        if self.back is not None:
            times.append(self.back + SETTLE_S)
        if pause is None and self.contrary:
            times.append(self.sent_at + min(SETTLE_S * 2.0 ** min(self.repeats, 32), REASSERT_MAX_S))
        reported = self.known_report
        if pause is not None and (reported is None or not same_state(reported, self.wanted)):
            times.append(self.sent_at + pause)
        return max(min(times), self.retry_at) if times else None


class ActuatorStates(NamedTuple):
    """Numbers of actuators. known: those with a rule; of these: disagreeing: the device reports another state than the
    wanted one; waiting: the wanted state is still to be sent; refused: the wanted state is never sent."""

    known: int
    disagreeing: int
    waiting: int
    refused: int


class Output:
    """The actuators of one adapter. kind: of the adapter, such as "mqtt"; now: returns the time of an acknowledgement;
    note: takes target and reason of a state that is refused."""

    def __init__(
        self,
        client: AdapterClient,
        sender: Sender,
        *,
        kind: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        note: Callable[[str, str], None] = lambda target, reason: None,
    ) -> None:
        self.counters = OutputCounters()
        self._note = note
        self._client = client
        self._sender = sender
        self._kind = kind
        self._now = now
        self._files: dict[Term, CommandRule] = {}
        self._dataset: dict[Term, CommandRule] = {}
        self._pointed: dict[Term, CommandRule] = {}  # those that actuators have as gateway:command, by their node
        self._actuators: dict[Term, _Actuator] = {}  # those with a rule, or with rows of the result
        self._by_place: dict[str, list[_Actuator]] = {}  # those with a rule, by its place
        self._ready = False
        self._workers: asyncio.TaskGroup | None = None

    def change_rules(self, files: Sequence[CommandRule], dataset: Sequence[CommandRule] = ()) -> None:
        """Takes the rules in force, of mapping/*.toml and of the dataset. Those of files come first."""
        self._files = {iri(one.actuator): one for one in reversed(files) if one.actuator is not None}
        self._dataset = {iri(one.actuator): one for one in reversed(dataset) if one.actuator is not None}
        self._pointed = {one.place: one for one in dataset if one.actuator is None}
        for actuator in [*self._files, *self._dataset]:
            self._actuators.setdefault(actuator, _Actuator(actuator))
        self._assign(list(self._actuators))

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed. If the gateway
        refuses the subscription, no states are sent, and the log says so."""
        try:
            async with asyncio.TaskGroup() as self._workers:
                try:
                    await self._follow()
                except UpstreamError:
                    raise
                except GatewayError as error:
                    logger.warning(f"{self._kind} desired states are not followed", reason=error)
                for actuator in self._actuators.values():
                    if actuator.worker is not None:
                        actuator.worker.cancel()
        finally:
            self._workers = None

    async def _follow(self) -> None:
        async with aclosing(self._client.subscribe(QUERY)) as notifications:
            async for notification in notifications:
                self._apply(notification)

    def states(self) -> ActuatorStates:
        ours = [one for one in self._actuators.values() if one.rule is not None]
        return ActuatorStates(
            len(ours),
            disagreeing=sum(one.disagrees for one in ours),
            waiting=sum(one.worker is not None and one.told != one.wanted for one in ours),
            refused=sum(one.refused is not None for one in ours),
        )

    async def take(self, reports: Iterable[ReportedState]) -> None:
        """Takes what devices report, oldest first; returns when the dataset has it."""
        changed: dict[Term, Term] = {}
        for report in reports:
            for actuator in self._by_place.get(report.rule.place, ()):
                if actuator.rule != report.rule:
                    continue
                if actuator.known_report != report.state:
                    changed[actuator.iri] = report.state
                actuator.reported = report.state
                if not report.retained:
                    self._compare(actuator, report.state)
                self._settle(actuator)
        if changed:
            await self._store([reported_update(one, state) for one, state in changed.items()], "reported states")
            self.counters.reported += len(changed)

    def _compare(self, actuator: _Actuator, state: Term) -> None:
        agrees = actuator.wanted is not None and same_state(state, actuator.wanted)
        actuator.contrary = not agrees
        if agrees:
            actuator.repeats = 0
            actuator.back = None

    def _apply(self, notification: Notification) -> None:
        """Takes a change of the result. Sequence 0 is the whole result and replaces all rows."""
        touched: set[Term] = set()
        offline = {one.iri for one in self._actuators.values() if one.offline}
        if notification.sequence == 0:
            for actuator in self._actuators.values():
                for rows in actuator.rows.values():
                    rows.clear()
            touched.update(self._actuators)
        for bag, change in ((notification.removed, -1), (notification.added, 1)):
            touched |= self._count(bag, change)
        if notification.sequence == 0:
            self._ready = True
        self._assign(touched)
        for one in touched & offline & self._actuators.keys():
            again = self._actuators[one]
            if again.rows["online"] and not again.offline:
                again.back = asyncio.get_running_loop().time()
                self._settle(again)

    def _count(self, bag: Bag, change: int) -> set[Term]:
        """Adds or removes rows; the actuators that they are about."""
        touched = set()
        for row in bag.bindings():
            actuator = row.get("actuator", "")
            key = next((name for name in _KEYS if name in row), None)
            if key is None or not is_iri(actuator) or not (key == "command" or is_literal(row[key])):
                continue
            value = row[key]
            rows = self._actuators.setdefault(actuator, _Actuator(actuator)).rows[key]
            rows[value] += change
            if rows[value] <= 0:
                del rows[value]
            touched.add(actuator)
        return touched

    def _assign(self, touched: Iterable[Term]) -> None:
        """Gives actuators their rules, and settles them."""
        for one in touched:
            actuator = self._actuators[one]
            pointed = (self._pointed[node] for node in sorted(actuator.rows["command"]) if node in self._pointed)
            rule = self._files.get(one) or self._dataset.get(one) or next(pointed, None)
            if rule != actuator.rule:
                self._change_rule(actuator, rule, from_file=one in self._files)
            self._settle(actuator)
            if rule is None and actuator.worker is None and not any(actuator.rows.values()):
                del self._actuators[one]

    def _change_rule(self, actuator: _Actuator, rule: CommandRule | None, *, from_file: bool) -> None:
        if actuator.rule is not None:
            places = self._by_place[actuator.rule.place]
            places.remove(actuator)
            if not places:
                del self._by_place[actuator.rule.place]
        if rule is not None:
            self._by_place.setdefault(rule.place, []).append(actuator)
        actuator.rule, actuator.from_file = rule, from_file
        actuator.refused = None

    def _settle(self, actuator: _Actuator) -> None:
        """Sets the wanted state from the rows; starts or wakes the worker if there is something to send."""
        wanted = max(actuator.rows["desired"], default=None)
        if wanted != actuator.wanted:
            actuator.wanted = wanted
            actuator.repeats = 0
            actuator.refused = None
            actuator.contrary = False
            actuator.retry_at, actuator.failures = 0.0, 0
            if len(actuator.rows["desired"]) > 1:
                logger.warning(
                    f"{self._kind} desired states conflict",
                    actuator=actuator.iri,
                    winner=(wanted or "")[:STATE_CHARS_SAID],
                )
        if self._ready and not actuator.started and actuator.rule is not None and wanted is not None:
            actuator.started = True
            reported, recorded = actuator.known_report, max(actuator.rows["recorded"], default=None)
            if any(one is not None and same_state(one, wanted) for one in (reported, recorded)):
                actuator.told = wanted
        actuator.wake.set()
        if self._workers is not None and actuator.worker is None and actuator.due() is not None:
            actuator.worker = self._workers.create_task(self._deliver(actuator), name=f"{self._kind} {actuator.iri}")

    async def _deliver(self, actuator: _Actuator) -> None:
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
            await self._sender.ready(rule)
            due = actuator.due()  # what is wanted by now is sent
            if actuator.rule == rule and due is not None and due <= loop.time():
                await self._attempt(actuator, rule)

    def _tell_of_pace(self, actuator: _Actuator, now: float) -> None:
        """Tells the operator if the pace alone makes a message wait."""
        needed = actuator.needed()
        if needed is None or needed > now or actuator.pace.free_at() <= now or not actuator.pace.tells(now):
            return
        assert actuator.rule is not None
        reason = (
            f"more than {AT_ONCE} messages in a short time, now one in {PAUSE_S:g} s at most: two applications, or an "
            "application and what the device reports, set states that change each other; stop one of them"
        )
        logger.warning(
            f"{self._kind} actuator switched too often",
            actuator=actuator.iri,
            rule=actuator.rule.place,
            reason=reason,
        )
        self._note(self._sender.target(actuator.rule), f"{actuator.rule.place}: {reason}")

    async def _attempt(self, actuator: _Actuator, rule: CommandRule) -> None:
        """One message with the newest wanted state, and its record."""
        state, before = actuator.wanted, (actuator.told, actuator.contrary, actuator.back)
        assert state is not None
        loop = asyncio.get_running_loop()
        repeated = actuator.told == state
        actuator.told = None  # from here on the device may have it
        actuator.contrary, actuator.back = False, None
        actuator.pace.sent(loop.time())
        actuator.repeats += repeated
        failed = False
        try:
            await self._sender.send(Attempt(actuator.iri, rule, state, actuator.from_file, actuator.failures > 0))
        except PayloadError as error:
            actuator.told, actuator.contrary, actuator.back = before
            await self._refuse(actuator, rule, state, str(error))
            return
        except UpstreamError:
            failed = True
        self.counters.sent += 1
        self.counters.reasserted += repeated
        if failed:
            self.counters.failed += 1
            actuator.failures += 1
            actuator.retry_at = loop.time() + retry_s(actuator.failures, RETRY_MIN_S, RETRY_MAX_S)
            return
        self.counters.acknowledged += 1
        actuator.failures, actuator.retry_at = 0, 0.0
        actuator.told, actuator.sent_at = state, loop.time()
        await self._store([actuation_update(actuator.iri, state, self._now())], self._sender.target(rule))

    async def _refuse(self, actuator: _Actuator, rule: CommandRule, state: Term, reason: str) -> None:
        self.counters.refused += 1
        actuator.refused = state
        logger.warning(f"{self._kind} state refused", actuator=actuator.iri, reason=reason)
        target = self._sender.target(rule)
        self._note(target, reason)
        await self._store([refusal_update(actuator.iri, reason)], target)

    async def _store(self, texts: Sequence[str], origin: str) -> None:
        """The client retries while the gateway is away or full; other refusals are final."""
        cause = DeclaredCause(self._kind, origin)
        answers = await self._client.updates([UpdateRequest(sparql=text, cause=cause) for text in texts])
        for answer in answers:
            if isinstance(answer, GatewayError):
                self.counters.unrecorded += 1
                logger.error(f"{self._kind} state not recorded", origin=origin, reason=answer)
