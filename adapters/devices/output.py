"""Keeps actuators in their desired states: what the adapters share of it.

::

    gateway ─▶ subscription: desired states ─▶ one worker an actuator ─▶ Sender ─▶ device
       ▲                                          │                                  │
       └── sosa:Actuation, gateway:reportedState ◀┴── reported state ◀───────────────┘

`adapters.devices.desired` has the contract. At a start, a state is not sent if the device reports it, or if the last
recorded actuation has it. A retained report is shown, and never the reason of a message. A sender whose devices do not
report asks for re-assertion at an interval.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.devices.actuation_writer import ActuationWriter
from lamplighter.adapters.devices.actuator import KEYS, DrivenActuator
from lamplighter.adapters.devices.counters import OutputCounters
from lamplighter.adapters.devices.delivery import Delivery
from lamplighter.adapters.devices.desired import desired_pattern, reported_update, same_state
from lamplighter.adapters.devices.sender import Sender
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import STATE_CHARS_SAID
from lamplighter.engine.client import Notification
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term, iri, is_iri, is_literal
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

QUERY = (
    "SELECT ?actuator ?desired ?reported ?recorded ?online ?command WHERE { "
    f"{desired_pattern('desired')} "
    f"UNION {{ ?actuator <{REPORTED_STATE}> ?reported }} "
    f"UNION {{ ?actuation <{MADE_BY_ACTUATOR}> ?actuator ; <{HAS_SIMPLE_RESULT}> ?recorded }} "
    f"UNION {{ ?actuator <{RDF_TYPE}> <{ACTUATOR}> . ?device <{HOSTS}> ?actuator ; <{ONLINE}> ?online }} "
    f"UNION {{ ?actuator <{COMMAND}> ?command }} }}"
)
"""Each row has an actuator and one value. A first result has all of one moment."""
logger = EventLogger(__name__)


class ReportedState(NamedTuple):
    """A state that a device reports of an actuator. retained: an old state, which is stored, and never the reason of a
    message."""

    rule: CommandRule
    state: Term
    retained: bool


class ActuatorStates(NamedTuple):
    """Numbers of actuators. known: those with a rule; of these: disagreeing: the device reports another state than the
    wanted one; waiting: the wanted state is still to be sent; refused: the wanted state is never sent, or the device
    refuses it."""

    known: int
    disagreeing: int
    waiting: int
    refused: int


class Output:
    """The actuators of one adapter. kind: of the adapter, such as "mqtt"; note: takes target and reason of a state that
    is refused."""

    def __init__(
        self,
        client: AdapterClient,
        sender: Sender,
        *,
        kind: str,
        note: Callable[[str, str], None] = lambda target, reason: None,
    ) -> None:
        self.counters = OutputCounters()
        self._client = client
        self._sender = sender
        self._kind = kind
        self._writer = ActuationWriter(client, kind, self.counters)
        self._delivery = Delivery(sender, self._writer, self.counters, kind=kind, note=note)
        self._files: dict[Term, CommandRule] = {}
        self._dataset: dict[Term, CommandRule] = {}
        self._pointed: dict[Term, CommandRule] = {}  # those that actuators have as gateway:command, by their node
        self._actuators: dict[Term, DrivenActuator] = {}  # those with a rule, or with rows of the result
        self._by_place: dict[str, list[DrivenActuator]] = {}  # those with a rule, by its place
        self._by_target: dict[str, list[DrivenActuator]] = {}  # the same by what the rule sends to
        self._ready = False
        self._workers: asyncio.TaskGroup | None = None

    def change_rules(self, files: Sequence[CommandRule], dataset: Sequence[CommandRule] = ()) -> None:
        """Takes the rules in force, of mapping/*.toml and of the dataset. Those of files come first."""
        self._files = {iri(one.actuator): one for one in reversed(files) if one.actuator is not None}
        self._dataset = {iri(one.actuator): one for one in reversed(dataset) if one.actuator is not None}
        self._pointed = {one.place: one for one in dataset if one.actuator is None}
        for actuator in [*self._files, *self._dataset]:
            self._known(actuator)
        self._assign(list(self._actuators))

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed. If the gateway
        refuses the subscription, no states are sent, and the log says so."""
        try:
            async with asyncio.TaskGroup() as self._workers:
                writing = self._workers.create_task(self._writer.run(), name=f"{self._kind} actuations")
                try:
                    await self._follow()
                except UpstreamError:
                    raise
                except GatewayError as error:
                    logger.warning(f"{self._kind} desired states are not followed", reason=error)
                for actuator in self._actuators.values():
                    if actuator.worker is not None:
                        actuator.worker.cancel()
                writing.cancel()
        finally:
            self._workers = None

    async def _follow(self) -> None:
        async with aclosing(self._client.subscribe(QUERY, tell_commit=True)) as notifications:
            async for notification in notifications:
                self._apply(notification)

    def states(self) -> ActuatorStates:
        ours = [one for one in self._actuators.values() if one.rule is not None]
        return ActuatorStates(
            len(ours),
            disagreeing=sum(one.disagrees for one in ours),
            waiting=sum(one.worker is not None and one.told != one.wanted and not one.refusal for one in ours),
            refused=sum(one.refused is not None or bool(one.refusal) for one in ours),
        )

    def contact(self, target: str) -> None:
        """Notes that the device at a target was heard: attempts that failed are repeated at once. Not those that it
        refused, since it would again."""
        for actuator in self._by_target.get(target, ()):
            if actuator.failures and not actuator.refusal:
                actuator.retry_at = 0.0
            self._settle(actuator)

    def returned(self, target: str) -> None:
        """Notes that the device at a target has started again, so that its state is unknown."""
        for actuator in self._by_target.get(target, ()):
            if actuator.told == actuator.wanted or actuator.cause != "notification":
                actuator.cause = "client"
            actuator.starts += 1
            actuator.told, actuator.refusal = None, ""
            actuator.contrary, actuator.back = False, None
            actuator.retry_at = 0.0
            self._settle(actuator)

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
            await self._writer.store([reported_update(one, state) for one, state in changed.items()], "reported states")
            self.counters.reported += len(changed)

    def _compare(self, actuator: DrivenActuator, state: Term) -> None:
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
        self._assign(touched, notification.commit)
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
            key = next((name for name in KEYS if name in row), None)
            if key is None or not is_iri(actuator) or not (key == "command" or is_literal(row[key])):
                continue
            value = row[key]
            rows = self._known(actuator).rows[key]
            rows[value] += change
            if rows[value] <= 0:
                del rows[value]
            touched.add(actuator)
        return touched

    def _known(self, actuator: Term) -> DrivenActuator:
        found = self._actuators.get(actuator)
        if found is None:
            found = self._actuators[actuator] = DrivenActuator(actuator, self._sender)
        return found

    def _assign(self, touched: Iterable[Term], commit: tuple[int, int] | None = None) -> None:
        """Gives actuators their rules, and settles them. commit: of the notification that is about them."""
        for one in touched:
            actuator = self._actuators[one]
            pointed = (self._pointed[node] for node in sorted(actuator.rows["command"]) if node in self._pointed)
            rule = self._files.get(one) or self._dataset.get(one) or next(pointed, None)
            if rule != actuator.rule:
                self._change_rule(actuator, rule, from_file=one in self._files)
            self._settle(actuator, commit)
            if rule is None and actuator.worker is None and not any(actuator.rows.values()):
                del self._actuators[one]

    def _change_rule(self, actuator: DrivenActuator, rule: CommandRule | None, *, from_file: bool) -> None:
        for index, key in self._keys(actuator.rule):
            index[key].remove(actuator)
            if not index[key]:
                del index[key]
        for index, key in self._keys(rule):
            index.setdefault(key, []).append(actuator)
        actuator.rule, actuator.from_file = rule, from_file
        actuator.refused, actuator.refusal = None, ""

    def _keys(self, rule: CommandRule | None) -> list[tuple[dict[str, list[DrivenActuator]], str]]:
        """Where an actuator with the rule is found."""
        return [] if rule is None else [(self._by_place, rule.place), (self._by_target, self._sender.target(rule))]

    def _settle(self, actuator: DrivenActuator, commit: tuple[int, int] | None = None) -> None:
        """Sets the wanted state from the rows; starts or wakes the worker if there is something to send."""
        wanted = max(actuator.rows["desired"], default=None)
        if wanted != actuator.wanted:
            actuator.wanted = wanted
            actuator.cause, actuator.followed = "notification", commit
            actuator.repeats = 0
            actuator.refused, actuator.refusal = None, ""
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
                if self._sender.reassert_s(actuator.rule) is not None:  # not all devices at once
                    actuator.sent_at, actuator.spread = asyncio.get_running_loop().time(), random.random()
        actuator.wake.set()
        if self._workers is not None and actuator.worker is None and actuator.due() is not None:
            actuator.worker = self._workers.create_task(
                self._delivery.deliver(actuator), name=f"{self._kind} {actuator.iri}"
            )
