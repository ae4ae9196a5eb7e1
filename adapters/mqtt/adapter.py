"""Readings from brokers to the gateway: each message is acknowledged after its durable commit. `sender` sends
states, `publishing` rows of queries.

For each broker::

    inbox ─▶ batch ─▶ readings ─▶ updates ─▶ gateway
      ▲                                         │
      └─────────────── acknowledge ◀────────────┘

Under load two batches of a broker are under way (`model.commits`). Across a restart of the adapter, a reading may be
committed twice. None is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.intervals import Intervals
from lamplighter.adapters.devices.output import ReportedState
from lamplighter.adapters.literals import OFFLINE, datetime_term
from lamplighter.adapters.mapping import PAYLOAD_BYTES_MAX, Births, CommandRule, Mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.patterns import MinimalFilters, is_reserved, minimal_filters
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.mapping.rules import changed_reads, new_rules
from lamplighter.adapters.mapping.sparkplug import is_death, is_of_dead
from lamplighter.adapters.mapping.times import RETAINED
from lamplighter.adapters.model.commits import (
    BATCH_READINGS_MAX,
    HELD_CHECK_S,
    ReadingCommits,
    StreamOwners,
    Writing,
    in_slices,
)
from lamplighter.adapters.model.failures import Failures
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.broker_states import BrokerStates
from lamplighter.adapters.mqtt.counters import MqttCounters
from lamplighter.adapters.mqtt.credentials import read_credentials, table_of
from lamplighter.adapters.mqtt.discovering import ALL_FILTERS, Discovering
from lamplighter.adapters.mqtt.discovery.homeassistant import filters_of_topic
from lamplighter.adapters.mqtt.entities import HomeTopics
from lamplighter.adapters.mqtt.inbox import Inbox
from lamplighter.adapters.mqtt.keep_alives import keep_alive
from lamplighter.adapters.mqtt.messages import Message, MessageQueue, TopicUse
from lamplighter.adapters.mqtt.outward import Outward, announced_filters, outward, place
from lamplighter.adapters.mqtt.rebirths import ask_for_rebirths
from lamplighter.adapters.mqtt.sampling import TopicSampling, known_topics
from lamplighter.adapters.mqtt.settings import BrokerSettings, MqttSettings
from lamplighter.adapters.mqtt.silence import Silence
from lamplighter.adapters.mqtt.subscribed import SubscribedDevices
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.presence import keep_presence
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import iri
from lamplighter.ontology.vocabulary import adapter_iri, broker_iri

UNDER_WAY_MAX = 2
"""Batches of a broker on their way to the gateway. Where more requests wait, the gateway stops reading."""
LEFT_MAX = 1_000
"""Topics of former subscriptions of a broker, in a connection."""
TOPICS_MAX, TOPIC_CHARS_MAX = 10_000, 200
"""Topics of a broker whose use is kept, and characters of one."""
NO_RULES = Mapping([])

logger = EventLogger(__name__)


@dataclass(slots=True)
class Broker:
    """One broker, the rules for it, and what it sends. place: where the adapter announces there, None if it sends
    nothing. under_way: its batches, in order; turn: set when a further one may be taken; read: the topic filters that
    have a reader; uses: of topics that have sent a message."""

    name: str
    settings: BrokerSettings
    mapping: Mapping
    inbox: Inbox
    births: Births
    place: HomeTopics | None
    under_way: deque[Writing] = field(default_factory=deque)
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    read: frozenset[str] = frozenset()
    minimal: MinimalFilters = field(default_factory=MinimalFilters)
    left: set[str] = field(default_factory=set)
    uses: dict[str, TopicUse] = field(default_factory=dict)

    def find_use(self, topic: str) -> TopicUse:
        """The use of a topic. Those of short topics are kept."""
        own = self.place is not None and self.place.covers(topic)
        found = TopicUse(own, death=is_death(topic))
        if len(topic) <= TOPIC_CHARS_MAX:
            if len(self.uses) >= TOPICS_MAX:
                self.uses.clear()
            self.uses[topic] = found
        return found

    async def may_take(self, commits: ReadingCommits) -> None:
        """Returns when a batch may be taken: while one is under way, a full one."""
        queue = self.inbox.queue
        while self.under_way and not (commits.numbered and len(self.under_way) < UNDER_WAY_MAX and queue.full):
            self.turn.clear()
            await self.turn.wait()

    def done(self) -> None:
        """The oldest batch is not under way any more."""
        self.under_way.popleft().settled.set()
        self.turn.set()

    def leave_former(self, topic: str) -> None:
        """Ends the subscription that a kept session has of an earlier configuration, when it sends a message that
        nobody has subscribed to: that of the topic itself, and of another discovery_prefix."""
        if len(self.left) < LEFT_MAX and topic not in self.left:
            self.left.add(topic)
            if not any(topic_matches_sub(one, topic) for one in self.inbox.filters):
                self.inbox.leave([topic, *filters_of_topic(topic)])

    def status(self) -> str:
        """Its state in a few words."""
        address = f"broker {self.settings.host}:{self.settings.port}"
        if not self.inbox.subscribed.is_set():
            return f"{address} is not connected, retrying"
        waiting = f" ({count_text(len(self.inbox), 'message', ',')} waiting for the gateway)" if len(self.inbox) else ""
        problem = f" ({self.inbox.problem})" if self.inbox.problem else ""
        return f"{address} connected{waiting}{problem}"

    def subscribe(self, filters: Sequence[str], mapping: Mapping) -> None:
        """Reads these topics from now on, by these rules. What the broker retains comes again for new readers."""
        readers = [rule.filter for rule in new_rules(self.mapping.readers, mapping.readers)]
        new = [*readers, *(one for one in filters if one not in self.read)]
        self.mapping, self.read = mapping, frozenset(filters)
        self.inbox.change_filters(self.minimal.of(filters), new_readers=new)


class MqttAdapter:
    """Reads brokers for as long as `run` runs.

    mapping: rules of files; rules: those of the dataset. feed: follows these and the desired states of actuators; None:
    neither. discovering: reads announcements of devices; None: they are not read. tried: set once each broker has
    granted the subscriptions, or an attempt to connect to it has failed.

    It is one class because rules, subscriptions, readings and devices of a broker change together.
    """

    def __init__(
        self,
        settings: MqttSettings,
        mapping: Mapping,
        context: AdapterContext,
        *,
        rules: DatasetRules | None = None,
        feed: AdapterClient | None = None,
        discovering: Discovering | None = None,
    ) -> None:
        client, base_iri = context.client, context.base_iri
        self.counters, self._last, self.tried = MqttCounters(), context.last, context.tried
        self._unread = context.unread
        self._settings, self._client, self._base_iri = settings, client, base_iri
        self._files, self._mapping, self._rules = mapping, mapping, rules
        self._feed, self._discovering = feed, discovering
        self._rules_known = asyncio.Event()
        if rules is None or feed is None:
            self._rules_known.set()
        self._clock, self._elapsed, self._trusted = context.now, context.elapsed, context.trusted
        note = _unlisted if discovering is None else discovering.feed.note
        self._warnings, self._failures = DropWarnings("mqtt", note), Failures("mqtt")
        self._states = BrokerStates(client, base_iri, settings.all_brokers(), context.now) if base_iri else None
        self.brokers = {
            name: self._broker(name, broker, self._of_broker(mapping, name))
            for name, broker in settings.all_brokers().items()
        }
        self.forget(NO_RULES)
        self._silence = Silence(
            context,
            Intervals(settings.offline_intervals, settings.streams_max),
            feed,
            self.brokers,
            says_online=discovering.says_online if discovering else lambda device: False,
        )
        self._subscribed = SubscribedDevices(client, discovering, self.brokers)
        inboxes = {name: broker.inbox for name, broker in self.brokers.items()}
        self._subscribed.asks.follow(inboxes)
        if discovering is not None:
            discovering.filters_changed = self._subscribe
        self._outward: Outward | None = None
        if feed is not None:
            self._outward = outward(
                settings,
                context,
                inboxes,
                warnings=self._warnings,
                reader=lambda name, topic: self.brokers[name].mapping.reader(topic),
                adopted=discovering.has_adopted if discovering else lambda rule: False,
            )
            self._outward.change_rules(mapping.commands, (), mapping.publishes)
        self._owners = StreamOwners(settings.streams_max, self._warnings.reading, kind="mqtt")
        self._commits = ReadingCommits(
            client,
            kind="mqtt",
            settings=settings,
            counters=self.counters,
            warn=self._warnings.reading,
        )

    def _broker(self, name: str, settings: BrokerSettings, mapping: Mapping) -> Broker:
        read, found = self._filters(name, mapping), self._discovering
        queue = MessageQueue(
            self._settings.batch_max,
            self._settings.queue_max,
            clock=self._clock,
            bytes_max=found.bytes_max if found else lambda topic: PAYLOAD_BYTES_MAX,
            on_full=lambda: self.brokers[name].turn.set(),
        )
        inbox = Inbox(
            settings,
            minimal_filters(read),
            queue,
            counters=self.counters,
            asks=found.asks if found else (),
            on_state=partial(self._on_state, name),
        )
        own = None if self._feed is None else place(settings, self._settings)
        return Broker(name, settings, mapping, inbox, Births(), own, read=frozenset(read))

    def forget(self, former: Mapping) -> None:
        """Ends subscriptions that the sessions of the brokers may still have: of rules that were in force before, and
        of what is not read. To be called before `run`."""
        for name, broker in self.brokers.items():
            own = place(broker.settings, self._settings).filters
            maybe = (*former.of_broker(name).filters, *ALL_FILTERS, *own)
            broker.inbox.forget([one for one in maybe if one not in broker.inbox.filters])

    def _of_broker(self, mapping: Mapping, name: str, former: Mapping | None = None) -> Mapping:
        base = self._base_iri
        sources = (iri(broker_iri(base, name)), iri(adapter_iri(base, "mqtt"))) if base else ()
        return mapping.of_broker(name, sources, former)

    def _filters(self, broker: str, mapping: Mapping) -> list[str]:
        """What to read: for the rules, for devices that announce themselves, and for commands."""
        own = announced_filters(self._settings, broker) if self._feed is not None else ()
        rules = dict.fromkeys(rule.filter for rule in mapping.readers)
        return [*rules, *(self._discovering.filters(broker) if self._discovering else ()), *own]

    def _announced(self, broker: str, message: Message) -> bool:
        if message.use.death or is_reserved(message.topic):
            return True
        return self._discovering is not None and self._discovering.covers(broker, message.topic)

    def _subscribe(self) -> None:
        """Subscribes to what is needed now; connections stay."""
        for name, broker in self.brokers.items():
            broker.subscribe(self._filters(name, broker.mapping), broker.mapping)

    def _on_state(self, name: str, connected: bool, reason: str) -> None:
        if self._states is not None:
            self._states.changed(name, connected=connected, reason=reason)
        self._silence.connected(name, connected=connected)
        if not connected:
            self.brokers[name].left.clear()  # an UNSUBSCRIBE may be lost with the connection
            self._interrupt()
        if self._outward is not None:
            self._outward.connected(name, connected)
        self._subscribed.note_connection(name, connected=connected)

    async def run(self) -> None:
        """Runs until cancelled; then the connections are closed and no task is left. Raises ConfigurationError for
        settings that cannot work, and an ExceptionGroup with the client's UpstreamError when that is closed."""
        brokers = self.brokers.values()
        if self._feed is None and not any(self._filters(broker.name, broker.mapping) for broker in brokers):
            raise ConfigurationError("mqtt.host is set, but there is no [[stream]] rule in mapping/*.toml; add one")
        for broker in brokers:
            broker.inbox.credentials = read_credentials(broker.settings, table_of(broker.name))
        async with asyncio.TaskGroup() as tasks:
            if self._states is not None:
                tasks.create_task(self._states.run(), name="mqtt broker states")
                tasks.create_task(
                    keep_counters(self._client, self._base_iri, "mqtt", self.counts), name="mqtt counters"
                )
            if self._base_iri and self._feed is not None:
                presence = keep_presence(self._feed, self._base_iri, "mqtt", self._clock, self._ask_again)
                tasks.create_task(presence, name="mqtt presence")
            if self._rules is not None and self._feed is not None:
                following = self._follow_rules(self._feed, self._rules)
                tasks.create_task(following, name="mqtt rules of the dataset")
            if self._discovering is not None:
                tasks.create_task(self._discovering.feed.run(), name="mqtt discovery")
                tasks.create_task(self._subscribed.asks.send_due(), name="mqtt state asks")
                tasks.create_task(self._subscribed.follow(), name="mqtt subscribed devices")
                inboxes = {broker.name: broker.inbox for broker in brokers}
                kept_alive = keep_alive(inboxes, self._subscribed.asks_of_broker)
                tasks.create_task(kept_alive, name="mqtt keep-alives")
            tasks.create_task(self._silence.run(), name="mqtt silence")
            asks = ask_for_rebirths(
                brokers,
                self._settings.commands,
                self._clock,
                self._elapsed,
                self._warnings.state,
                self._subscribed.reads_node,
            )
            tasks.create_task(asks, name="mqtt rebirths")
            for broker in brokers:
                tasks.create_task(broker.inbox.run(), name=f"mqtt connection {broker.name}")
                tasks.create_task(self._take_batches(broker, tasks), name=f"mqtt batches {broker.name}")
                tasks.create_task(self._sampling(broker).keep_sampling(), name=f"mqtt samples {broker.name}")
            if self._outward is not None:
                tasks.create_task(self._outward.run(), name="mqtt outward")
            for broker in brokers:
                await broker.inbox.tried.wait()
            self.tried.set()

    def _sampling(self, broker: Broker) -> TopicSampling:
        def reader() -> Callable[[str], bool]:
            found = self._discovering
            entries = () if found is None else found.feed.entries.values()
            known = known_topics(
                lambda: broker.mapping, [one.device for one in entries if one.device.broker == broker.name]
            )
            return lambda topic: known(topic) or (found is not None and found.covers(broker.name, topic))

        return TopicSampling(
            broker.name, broker.settings, lambda: broker.inbox.credentials, reader, self._unread, self._clock
        )

    async def _follow_rules(self, feed: AdapterClient, rules: DatasetRules) -> None:
        await follow_rules(feed, rules, self._apply)
        self._rules_known.set()  # the gateway has refused to tell those of the dataset: those of files are all

    def _ask_again(self) -> None:
        """The gateway has come back."""
        self._interrupt()
        self._subscribed.ask_again()

    def _interrupt(self) -> None:
        """Reports may have been missed."""
        now = self._clock()
        self._commits.repeats.interrupt(now)
        if self._outward is not None:
            self._outward.output.interrupt(now)

    def remap(self, mapping: Mapping) -> None:
        """Takes other rules of files. Connections stay."""
        self._files = mapping
        self._apply()

    def _apply(self) -> None:
        """Puts the rules of files and of the dataset into force; those of files come first."""
        before, found = self._mapping, self._rules
        after = self._files
        if found is not None:
            after = Mapping(
                [*after.rules, *found.streams()],
                [*after.commands, *found.commands()],
                [*after.publishes, *found.publishes()],
            )
        self._mapping = after
        redescribed = self._owners.forget(changed_reads(before.rules, after.rules))
        self._commits.describe_again(redescribed)
        for name, broker in self.brokers.items():
            own = self._of_broker(after, name, broker.mapping)
            broker.subscribe(self._filters(name, own), own)
        self._silence.change_rules(redescribed, known=found is None or found.known)
        self._subscribed.changed.set()
        if self._outward is not None:
            dataset = () if found is None else found.commands()
            self._outward.change_rules(self._files.commands, dataset, after.publishes)
        if found is not None and found.known:
            self._rules_known.set()

    def status(self) -> str:
        """The adapter's health in one line."""
        brokers = ", ".join(broker.status() for broker in self.brokers.values())
        devices = self._discovering.feed.status() if self._discovering else ""
        said = "" if self._outward is None else self._outward.status()
        if len(self._unread):
            said += f", {count_text(len(self._unread), 'topic', ',')} without a rule"
        return f"{brokers}, {count_text(self.counters.committed, 'reading', ',')} committed{said}{devices}"

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        counts = self.counters.counts() | {"problems": self._warnings.count, "topics_unread": self._unread.noted}
        return counts if self._outward is None else counts | self._outward.counts()

    async def _take_batches(self, broker: Broker, tasks: asyncio.TaskGroup) -> None:
        """tasks: where the batches are written."""
        await self._rules_known.wait()  # a kept session begins with messages for rules of the dataset
        while True:
            await broker.may_take(self._commits)
            batch: list[Message] = []
            with suppress(TimeoutError):  # readings that are held back are due some time
                check_s = HELD_CHECK_S if self._commits.repeats.held else None
                # Not `wait_for`: that of Python 3.11 loses a cancellation in the moment of a message.
                async with asyncio.timeout(check_s):
                    batch = await anext(broker.inbox)
            for message in batch:
                message.use = broker.uses.get(message.topic) or broker.find_use(message.topic)
            if self._discovering is not None:
                await self._discovering.take_all(broker.name, [message for message in batch if not message.use.own])
            taken = await self._take(broker, batch, tasks)
            while taken < len(batch):
                await broker.may_take(self._commits)
                batch = batch[taken:]
                taken = await self._take(broker, batch, tasks)

    async def _take(self, broker: Broker, batch: list[Message], tasks: asyncio.TaskGroup) -> int:
        """Reads the first messages of a batch, and has them written. Returns how many."""
        began = asyncio.get_running_loop().time()
        trusted = self._trusted()
        readings: list[Reading] = []
        taken = 0
        async for message in in_slices(batch):
            readings += self._readings(broker, message, trusted)
            taken += 1
            if len(readings) >= BATCH_READINGS_MAX:
                break
        batch = batch[:taken]
        self._silence.take(broker.name, readings)
        written = self._commits.selected(readings, self._clock())
        one, before = Writing(), broker.under_way[-1] if broker.under_way else None
        broker.under_way.append(one)

        async def write() -> None:
            await self._commits.write(written, one, before)
            own = [message for message in batch if message.use.own]
            reports: list[ReportedState[CommandRule]] = []
            if broker.mapping.states is not None:
                reports = [report for message in batch for report in self._reports(broker, message)]
            if self._outward is not None and (own or reports):
                await self._outward.take(broker.name, own, reports)
            broker.inbox.acknowledge(batch)
            broker.done()
            self._silence.note_commit(broker.name, asyncio.get_running_loop().time() - began)

        tasks.create_task(write(), name=f"mqtt commits {broker.name}")
        return taken

    def _reports(self, broker: Broker, message: Message) -> Iterator[ReportedState[CommandRule]]:
        """What a message says of the states of actuators."""
        try:
            found = broker.mapping.reports(
                message.topic, message.payload, retained=message.retained, received=message.received
            )
        except Exception as error:
            found = [self._failures.payload_error(message.topic, error)]
        for one in found or ():
            if isinstance(one, PayloadError):
                self._drop(message, one)
            else:
                # That a device does not know its state is no reason to send it one.
                retained = message.retained or one[1] is None
                yield ReportedState(*one, message.received, retained, broker.mapping.sources)

    def _readings(self, broker: Broker, message: Message, trusted: bool) -> list[Reading]:
        if message.use.own:
            return []
        try:
            if message.use.death:
                found = _lost_readings(broker, message, self._owners)
            else:
                found = broker.mapping.readings(
                    message.topic,
                    message.payload,
                    retained=message.retained,
                    received=message.received,
                    properties=message.properties,
                    births=broker.births,
                    trusted=trusted,
                )
        except Exception as error:
            found = [self._failures.payload_error(message.topic, error)]
        if found or broker.mapping.covers(message.topic):
            self._last.keep(
                message.topic, message.payload, message.received, broker=broker.name, retained=message.retained
            )
        elif not self._announced(broker.name, message):
            self.counters.dropped_unmapped += 1
            broker.leave_former(message.topic)
            self._warnings.reading(message.topic, "no mapping rule covers the topic")
        readings: list[Reading] = []
        for reading in found:
            if isinstance(reading, PayloadError):
                self._drop(message, reading)
            elif self._owners.may_write(broker.name, reading):
                readings.append(reading)
            else:
                self.counters.refused += 1
        return readings

    def _drop(self, message: Message, error: PayloadError) -> None:
        self.counters.dropped_payload += 1
        if message.payload:  # an empty message deletes the retained one, and is no fault of a device
            self._warnings.reading(message.topic, str(error))


def _lost_readings(broker: Broker, message: Message, owners: StreamOwners) -> list[Reading | PayloadError]:
    """That a Sparkplug node or device died with its values."""
    try:
        dead = broker.births.bury(message.topic, message.payload)
    except PayloadError as error:
        return [error]
    if dead is None:
        return []
    at, problem = datetime_term(message.received), RETAINED if message.retained else None
    return [
        Reading(stream, OFFLINE, at, message.retained, problem, message.received)
        for stream in owners.streams(broker.name)
        if is_of_dead(stream.topic, dead)
    ]


def _unlisted(problem: Problem) -> None:
    """For adapters without a list of problems."""
