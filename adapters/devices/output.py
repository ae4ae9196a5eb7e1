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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from itertools import islice
from typing import Any, Generic, NamedTuple

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.devices.actuation_writer import ActuationWriter
from lamplighter.adapters.devices.actuator import KEYS, DrivenActuator
from lamplighter.adapters.devices.delivery import Delivery
from lamplighter.adapters.devices.desired import desired_pattern, reported_update, same_state
from lamplighter.adapters.devices.lamps import LampGroup
from lamplighter.adapters.devices.queried import QUERIES_MAX, Key, QueriedStates, QueryRule
from lamplighter.adapters.devices.sender import OutputCounters, Rule, Sender
from lamplighter.adapters.mapping.command_payloads import STATE_CHARS_SAID
from lamplighter.adapters.mapping.tables import LampPart
from lamplighter.engine.client import Notification
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term, iri, is_iri, is_literal
from lamplighter.ontology.vocabulary import (
    ACTUATOR,
    BY_HAND,
    COMMAND,
    CONTROLS,
    HAS_SIMPLE_RESULT,
    HOSTS,
    MADE_BY_ACTUATOR,
    ONLINE,
    RDF_TYPE,
    REPORTED_STATE,
)

# Each row has an actuator and one value. A first result has all of one moment.
QUERY = (
    "SELECT ?actuator ?desired ?reported ?recorded ?online ?by_hand ?command ?controls WHERE { "
    f"{desired_pattern('desired')} "
    f"UNION {{ ?actuator <{REPORTED_STATE}> ?reported }} "
    f"UNION {{ ?actuation <{MADE_BY_ACTUATOR}> ?actuator ; <{HAS_SIMPLE_RESULT}> ?recorded }} "
    f"UNION {{ ?actuator <{RDF_TYPE}> <{ACTUATOR}> . ?device <{HOSTS}> ?actuator ; <{ONLINE}> ?online }} "
    f"UNION {{ ?actuator <{BY_HAND}> ?by_hand }} "
    f"UNION {{ ?actuator <{COMMAND}> ?command }} "
    f"UNION {{ ?actuator <{CONTROLS}> ?controls }} }}"
)
logger = EventLogger(__name__)


class ReportedState(NamedTuple, Generic[Rule]):
    """A state that a device reports of an actuator; None: it says that it has none. at: when it came, an aware
    datetime; retained: an old state of unknown time, which is stored, and never the reason of a message; sources: what
    it came through, such as a broker and the adapter: a state from before one of them came back is unconfirmed."""

    rule: Rule
    state: Term | None
    at: datetime
    retained: bool
    sources: tuple[Term, ...] = ()


class ActuatorStates(NamedTuple):
    """Numbers of actuators. known: those with a rule; of these: disagreeing: the device reports another state than the
    wanted one; waiting: the wanted state is still to be sent; refused: the wanted state is never sent, or the device
    refuses it."""

    known: int
    disagreeing: int
    waiting: int
    refused: int


class OutputPolicy(NamedTuple):
    """How an adapter keeps its devices in their states. kind: of the adapter, such as "mqtt"; retry: the pause after a
    first failure, and the longest; follows_online: whether a device that comes online in the dataset is sent its states
    again; follows: what adopted actuators control that follow their device by default."""

    kind: str
    retry: tuple[float, float] | None = None
    follows_online: bool = True
    follows: frozenset[Term] = frozenset()


def _differing(before: Mapping[Term, object], after: Mapping[Term, object]) -> set[Term]:
    """The keys whose value is another object."""
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


class Output(Generic[Rule]):
    """The actuators of one adapter. note: takes target and reason of a state that is refused. tried: set
    after the first result of the query of a rule for other actuators.

    It is one class because each change of rows, rules, queries or reports finds actuators by indices that all of them
    keep.
    """

    def __init__(
        self,
        client: AdapterClient,
        sender: Sender[Rule],
        policy: OutputPolicy,
        *,
        note: Callable[[str, str], None] = lambda target, reason: None,
        counters: OutputCounters | None = None,
        tried: asyncio.Event | None = None,
    ) -> None:
        self.counters = OutputCounters() if counters is None else counters
        self._client = client
        self._sender = sender
        self._policy = policy
        self._kind = policy.kind
        self._note = note
        self._writer = ActuationWriter(client, policy.kind, self.counters)
        self._delivery = Delivery(sender, self._writer, self.counters, note=note, settle=self._wake, retry=policy.retry)
        self._tried = tried
        self._lamps: dict[str, LampGroup[DrivenActuator[Rule]]] = {}
        self._changes = 0  # of wanted states in this run
        self._files: dict[Term, Rule] = {}
        self._dataset: dict[Term, Rule] = {}
        self._pointed: dict[Term, Rule] = {}  # those that actuators have as gateway:command, by their node
        self._actuators: dict[Term, DrivenActuator[Rule]] = {}  # those with a rule, or with rows of the result
        self._queries: list[QueriedStates[Rule]] = []  # rules with a query, in their order; those for others are last
        self._following: dict[QueriedStates[Rule], asyncio.Task[None]] = {}
        self._queried: dict[Term, dict[str, DrivenActuator[Rule]]] = {}  # by actuator and target
        self._by_place: dict[tuple[str, str], list[DrivenActuator[Rule]]] = {}  # with a rule, by its place and target
        self._by_device: dict[str, list[DrivenActuator[Rule]]] = {}  # the same by the device
        self._known_states = False
        self._ready = False  # after the first results of all queries
        self._workers: asyncio.TaskGroup | None = None

    def change_rules(
        self, files: Sequence[Rule], dataset: Sequence[Rule] = (), queries: Sequence[QueryRule[Rule]] = ()
    ) -> None:
        """Takes the rules in force, of mapping/*.toml and of the dataset, and those with a query. Those of files come
        first, and the order of the others decides."""
        before = self._files, self._dataset, self._pointed
        self._files = {iri(one.actuator): one for one in reversed(files) if one.actuator is not None}
        self._dataset = {iri(one.actuator): one for one in reversed(dataset) if one.actuator is not None}
        self._pointed = {one.place: one for one in dataset if one.actuator is None}
        named, others, nodes = map(_differing, before, (self._files, self._dataset, self._pointed))
        for actuator in named | others:
            self._known(actuator)
        changed = self._change_queries(queries)
        pointing = (one.iri for one in self._actuators.values() if nodes and not nodes.isdisjoint(one.rows["command"]))
        self._assign(list(self._actuators) if changed else [*(named | others).union(pointing)])

    def _change_queries(self, queries: Sequence[QueryRule[Rule]]) -> bool:
        """A rule that stays keeps its subscription and its rows. Returns whether any did not."""
        if len(queries) > QUERIES_MAX:
            logger.error(f"{self._kind} rules with a query are too many", ignored=len(queries) - QUERIES_MAX)
        others = [rule for rule in queries if rule.others]
        ordered = [*[rule for rule in queries if not rule.others][: QUERIES_MAX - len(others)], *others]
        before, self._queries = self._queries, []
        for rule in ordered:
            kept = next((one for one in before if one.rule == rule), None)
            self._queries.append(kept or QueriedStates(rule, self._sender, self._kind, self.counters))
        gone = [one for one in before if one not in self._queries]
        for one in gone:
            task = self._following.pop(one, None)
            if task is not None:
                task.cancel()
        self._start_queries()
        for one in gone:
            self._assign_queried(one.keys())
        return self._queries != before

    def _start_queries(self) -> None:
        if self._workers is None:
            return
        for one in self._queries:
            if one not in self._following:
                self._following[one] = self._workers.create_task(
                    self._follow_query(one), name=f"{self._kind} query {one.rule.place}"
                )

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed, or with the
        error of a query of a rule for other actuators. If the gateway refuses another subscription, its states are not
        sent, and the log says so."""
        try:
            async with asyncio.TaskGroup() as self._workers:
                writing = self._workers.create_task(self._writer.run(), name=f"{self._kind} actuations")
                self._start_queries()
                try:
                    await self._follow()
                except UpstreamError:
                    raise
                except GatewayError as error:
                    logger.warning(f"{self._kind} desired states are not followed", reason=error)
                # Desired states are not followed any more: nothing may be sent by what is known of them.
                for actuator in self._all():
                    if actuator.worker is not None:
                        actuator.worker.cancel()
                for following in self._following.values():
                    following.cancel()
                writing.cancel()
        finally:
            self._workers = None
            self._following.clear()

    async def _follow(self) -> None:
        async with aclosing(self._client.subscribe(QUERY, tell_commit=True)) as notifications:
            async for notification in notifications:
                self._apply(notification)

    async def _follow_query(self, queried: QueriedStates[Rule]) -> None:
        try:
            async with aclosing(self._client.subscribe(queried.rule.query, tell_commit=True)) as notifications:
                async for notification in notifications:
                    if notification.sequence == 0:
                        queried.rule.check(notification.added.variables)
                        logger.info(f"{self._kind} subscribed", rule=queried.rule.place, rows=len(notification.added))
                    touched = queried.take(notification)
                    others = (self._keys_of(actuator) for actuator in {actuator for actuator, _ in touched})
                    self._assign_queried(touched.union(*others), notification.commit)
                    self._check_ready()
                    if queried.rule.others and self._tried is not None:
                        self._tried.set()
        except UpstreamError:
            raise
        except GatewayError as error:
            # The settings asked for it: then the adapter must not run as if all was well.
            if queried.rule.others:
                raise
            logger.error(f"{self._kind} query is not followed", rule=queried.rule.place, reason=error)
            self._note(queried.rule.place, str(error))
            # Known to have no rows, or the other actuators would wait for it for ever.
            queried.known = True
            self._check_ready()

    def _all(self) -> list[DrivenActuator[Rule]]:
        queried = (one for targets in self._queried.values() for one in targets.values())
        return [*self._actuators.values(), *queried]

    def states(self) -> ActuatorStates:
        ours = [one for one in self._all() if one.rule is not None]
        return ActuatorStates(
            len(ours),
            disagreeing=sum(one.disagrees for one in ours),
            waiting=sum(one.worker is not None and one.told != one.wanted and not one.refusal for one in ours),
            refused=sum(one.refused is not None or bool(one.refusal) for one in ours),
        )

    def refusals(self, most: int) -> list[tuple[str, str]]:
        """Targets that refuse their state, and their reasons."""
        refusing = ((one.rule, one.refusal) for one in self._all() if one.refusal)
        return list(islice(((self._sender.target(rule), reason) for rule, reason in refusing if rule), most))

    def hosted(self, device: str) -> set[Term] | None:
        """The actuators of a device; None: no rule is about it."""
        if device not in self._by_device:
            return None
        return {actuator.iri for actuator in self._by_device[device]}

    @property
    def settled(self) -> bool:
        """Whether the first results of all queries are known, so that each actuator has its rule."""
        return self._known_states and all(one.known for one in self._queries)

    def contact(self, device: str) -> None:
        """Notes that a device was heard: attempts that failed are repeated at once. Not those that it refused, since it
        would again. device: as `Sender.device`."""
        for actuator in self._by_device.get(device, ()):
            if actuator.failures and not actuator.refusal:
                actuator.retry_at = 0.0
            self._settle(actuator)

    def returned(self, device: str) -> None:
        """Notes that a device has started again, so that its state is unknown."""
        for actuator in self._by_device.get(device, ()):
            # The next message repeats a state because the device is back, unless the state has not been sent at all.
            if actuator.told == actuator.wanted or actuator.cause != "notification":
                actuator.cause = "client"
            # An attempt that is under way sees by it that its acknowledgement is of the time before.
            actuator.starts += 1
            actuator.told, actuator.refusal = None, ""
            actuator.contrary, actuator.back = False, None
            actuator.retry_at = 0.0
            self._settle(actuator)

    async def take(self, reports: Iterable[ReportedState[Rule]]) -> None:
        """Takes what devices report, oldest first; returns when the dataset has it."""
        texts: dict[Term, str] = {}
        now = asyncio.get_running_loop().time()
        for report in reports:
            for actuator in self._by_place.get((report.rule.place, self._sender.target(report.rule)), ()):
                if actuator.rule != report.rule:
                    continue
                state = actuator.as_wanted(report.state)
                at = None if report.retained else report.at
                if actuator.take_report(state, at):
                    of_rule = report.rule.condition
                    texts[actuator.iri] = reported_update(actuator.iri, state, at, report.sources, of_rule)
                # A retained report may be of yesterday: it is shown, and compared with nothing.
                if not report.retained:
                    actuator.compare(state, now)
                self._settle(actuator)
        if texts:
            await self._writer.store(list(texts.values()), "reported states")
            self.counters.reported += len(texts)

    def interrupt(self, at: datetime, device: str | None = None) -> None:
        """Reports may have been missed: the next one of each actuator that is received later is written with its time.
        at: by the clock of the reports; device: as `Sender.device`; None: all."""
        for actuator in self._all() if device is None else self._by_device.get(device, ()):
            actuator.interrupt(at)

    def _apply(self, notification: Notification) -> None:
        """Takes a change of the result. Sequence 0 is the whole result and replaces all rows."""
        touched: set[Term] = set()
        # Before the rows change: afterwards nobody knows who was offline.
        offline = self._offline(notification) if self._policy.follows_online else set()
        if notification.sequence == 0:
            for actuator in self._actuators.values():
                for rows in actuator.rows.values():
                    rows.clear()
            touched.update(self._actuators)
        # Counts, since rows are a bag: two graphs may say the same.
        for bag, change in ((notification.removed, -1), (notification.added, 1)):
            touched |= self._count(bag, change)
        if notification.sequence == 0:
            self._known_states = True
            self._check_ready()
        self._assign(touched, notification.commit)
        for one in touched & offline & self._actuators.keys():
            again = self._actuators[one]
            if again.rows["online"] and not again.offline:
                again.back = asyncio.get_running_loop().time()
                self._settle(again)

    def _offline(self, notification: Notification) -> set[Term]:
        """The actuators of offline devices that a change may bring back."""
        if notification.sequence == 0:
            return {one.iri for one in self._actuators.values() if one.offline}
        about = {row["actuator"] for row in notification.removed.bindings() if "online" in row and "actuator" in row}
        return {one for one in about if one in self._actuators and self._actuators[one].offline}

    def _check_ready(self) -> None:
        # Before, an actuator without a rule might still get one of a query.
        if not self._ready and self.settled:
            self._ready = True
            self._assign(list(self._actuators))

    def _count(self, bag: Bag, change: int) -> set[Term]:
        """Adds or removes rows; the actuators that they are about."""
        touched = set()
        for row in bag.bindings():
            actuator = row.get("actuator", "")
            key = next((name for name in KEYS if name in row), None)
            if key is None or not is_iri(actuator) or not (key in ("command", "controls") or is_literal(row[key])):
                continue
            value = row[key]
            rows = self._known(actuator).rows[key]
            rows[value] += change
            if rows[value] <= 0:
                del rows[value]
            touched.add(actuator)
        return touched

    def _known(self, actuator: Term) -> DrivenActuator[Rule]:
        found = self._actuators.get(actuator)
        if found is None:
            found = self._actuators[actuator] = DrivenActuator(actuator, self._sender)
        return found

    def _assign(self, touched: Iterable[Term], commit: tuple[int, int] | None = None) -> None:
        """Gives actuators their rules, and settles them. commit: of the notification that is about them."""
        for one in touched:
            actuator = self._actuators[one]
            # Sorted, so that a restart takes the same one.
            pointed = (self._pointed[node] for node in sorted(actuator.rows["command"]) if node in self._pointed)
            rule = self._files.get(one) or self._dataset.get(one) or next(pointed, None)
            actuator.follows = one not in self._files and not self._policy.follows.isdisjoint(actuator.rows["controls"])
            if rule != actuator.rule:
                self._change_rule(actuator, rule, from_file=one in self._files)
                if rule is not None:
                    self._sender.follow(rule)
            self._settle(actuator, commit)
            queried = self._queried.get(one, {})
            self._assign_queried({(one, target) for target in queried} if rule is not None else self._keys_of(one))
            if (
                rule is None
                and actuator.worker is None
                and not any(actuator.rows.values())
                and one not in self._queried
            ):
                self._actuators.pop(one, None)  # if its last target has not taken it along

    def _keys_of(self, actuator: Term) -> set[Key]:
        """What queries have of an actuator."""
        found = {(actuator, target) for target in self._queried.get(actuator, ())}
        return found.union(*(one.of(actuator) for one in self._queries if one.has(actuator)))

    def _assign_queried(self, keys: Iterable[Key], commit: tuple[int, int] | None = None) -> None:
        """Gives targets the rules and the states of their queries, and settles them."""
        for key in keys:
            one, target = key
            found = self._wanted(key)
            actuator = self._queried.get(one, {}).get(target)
            if actuator is None:
                if found is None:
                    continue
                facts = self._known(one).rows  # what the dataset says is of the actuator, whatever the target
                actuator = DrivenActuator(one, self._sender, rows={**facts, "desired": Counter()}, followable=False)
                self._queried.setdefault(one, {})[target] = actuator
            rule, state = (None, None) if found is None else found
            if rule != actuator.rule:
                if actuator.rule is not None and rule is not None:  # the message is another one
                    actuator.told, actuator.cause, actuator.followed = None, "notification", commit
                self._change_rule(actuator, rule, from_file=True)
            actuator.rows["desired"].clear()
            if state is not None:
                actuator.rows["desired"][state] = 1
            self._settle(actuator, commit)
            if rule is None and actuator.worker is None:
                del self._queried[one][target]
                if not self._queried[one]:
                    del self._queried[one]
                    self._assign([one] if one in self._actuators else [])

    def _wanted(self, key: Key) -> tuple[Rule, Term] | None:
        """The rule and the state that the first query has. A query for other actuators is the last."""
        actuator, _ = key
        for one in self._queries:
            if one.rule.others and (self._has_rule(actuator) or any(it.has(actuator) for it in self._queries[:-1])):
                return None
            found = one.wanted(key)
            if found is not None:
                return found
        return None

    def _has_rule(self, actuator: Term) -> bool:
        return actuator in self._actuators and self._actuators[actuator].rule is not None

    def _change_rule(self, actuator: DrivenActuator[Rule], rule: Rule | None, *, from_file: bool) -> None:
        before = actuator.rule
        if before is not None:
            for index, key in self._indices(before):
                index[key].remove(actuator)
                if not index[key]:
                    del index[key]
        if rule is not None:
            for index, key in self._indices(rule):
                index.setdefault(key, []).append(actuator)
        self._change_lamp(actuator, None if rule is None else self._sender.lamp(rule), from_file)
        actuator.rule, actuator.from_file = rule, from_file
        actuator.refused, actuator.refusal, actuator.following = None, "", None
        actuator.retry_at, actuator.failures = 0.0, 0
        if before is not None:
            self._sender.leave(before)

    def _change_lamp(self, actuator: DrivenActuator[Rule], part: LampPart | None, from_file: bool) -> None:
        if actuator.lamp is not None:
            actuator.lamp.remove(actuator)
            self._lamps = {name: one for name, one in self._lamps.items() if one is not actuator.lamp or len(one)}
            actuator.lamp = None
        if part is not None:
            actuator.lamp = self._lamps.setdefault(f"{from_file} {part.of}", LampGroup())
            actuator.lamp.add(actuator, part)

    def _indices(self, rule: Rule) -> list[tuple[dict[Any, list[DrivenActuator[Rule]]], Any]]:
        """Where an actuator with the rule is found."""
        place = rule.place, self._sender.target(rule)
        return [(self._by_place, place), (self._by_device, self._sender.device(rule))]

    def _settle(self, actuator: DrivenActuator[Rule], commit: tuple[int, int] | None = None) -> None:
        """Sets the wanted state from the rows; starts or wakes the workers of all parts of the lamp."""
        # Of several desired states the greatest, so that the choice does not depend on their order.
        wanted = max(actuator.rows["desired"], default=None)
        if wanted != actuator.wanted:
            self._changes += self._ready  # the order of those before is unknown
            actuator.want(wanted, self._changes if self._ready else 0)
            actuator.cause, actuator.followed = "notification", commit
            if len(actuator.rows["desired"]) > 1:
                logger.warning(
                    f"{self._kind} desired states conflict",
                    actuator=actuator.iri,
                    winner=(wanted or "")[:STATE_CHARS_SAID],
                )
        # Once after a start: what the device reports, or was told last, need not be sent again.
        if self._ready and not actuator.started and actuator.rule is not None and wanted is not None:
            actuator.started = True
            reported, recorded = actuator.known_report, max(actuator.rows["recorded"], default=None)
            if any(one is not None and same_state(one, wanted) for one in (reported, recorded)):
                actuator.told, actuator.confirmed = wanted, True
                self._sender.follow(actuator.rule)
                if self._sender.reassert_s(actuator.rule) is not None:  # not all devices at once
                    actuator.sent_at, actuator.spread = asyncio.get_running_loop().time(), random.random()
        for one in actuator.lamp or (actuator,):
            self._wake(one)

    def _wake(self, actuator: DrivenActuator[Rule]) -> None:
        """Starts or wakes the worker if there is something to send."""
        actuator.wake.set()
        if self._workers is not None and actuator.worker is None and actuator.due() is not None:
            actuator.worker = self._workers.create_task(
                self._delivery.deliver(actuator), name=f"{self._kind} {actuator.iri}"
            )
            target = "" if actuator.rule is None else self._sender.target(actuator.rule)
            actuator.worker.add_done_callback(lambda _: self._forget(actuator, target))

    def _forget(self, actuator: DrivenActuator[Rule], target: str) -> None:
        """Forgets a target that no query has any more, once nothing is sent to it."""
        targets = self._queried.get(actuator.iri, {})
        if targets.get(target) is actuator and actuator.rule is None and actuator.worker is None:
            del targets[target]
            if not targets:
                del self._queried[actuator.iri]
