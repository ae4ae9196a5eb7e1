"""Publishes rows of query results as messages, by the `[[publish]]` rules.

::

    gateway ─▶ subscription of each rule ─▶ change ─▶ topic ─▶ one worker a topic ─▶ broker

The newest state of a topic wins: what still waits for the broker is replaced. A message whose acknowledgement is
missing is sent again, so a subscriber may get it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient
from lamplighter.adapters.devices.sender import RefusedByDevice
from lamplighter.adapters.mapping import PublishRule
from lamplighter.adapters.mapping.publishes import PublishedResult, Waiting
from lamplighter.adapters.mqtt.sender import OutputBroker
from lamplighter.adapters.mqtt.settings import FIRST_BROKER
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import TokenBuckets, back_off_s
from lamplighter.engine.tables import count_text

TOPICS_MAX = 10_000
"""Topics whose messages wait for the broker; messages for further ones are dropped."""

LOOP_AT_ONCE, LOOP_PAUSE_S = 20, 1.0
"""Messages without a pause to one topic that another rule of the adapter reads, and the pause between further ones."""
NOTED_AGAIN_S = 3_600.0

logger = EventLogger(__name__)


@dataclass(slots=True)
class PublishCounters:
    """Since the adapter was made. published: messages that the broker has acknowledged; failed: attempts; refused: rows
    that give no message; replaced: changes of a topic that gave way to a newer one, or were joined with it."""

    published: int = 0
    failed: int = 0
    refused: int = 0
    replaced: int = 0


@dataclass(eq=False, slots=True)
class _Topic:
    """A topic with messages to send. waiting: not given to the broker yet."""

    rule: PublishRule
    name: str
    waiting: Waiting | None
    worker: asyncio.Task[None] | None = None


class RowPublisher:
    """Runs beside the inboxes. brokers: by name; note: takes topic and reason of what is not published; reader: the
    place of the rule that reads a topic of a broker, None if there is none."""

    def __init__(
        self,
        client: AdapterClient,
        brokers: Mapping[str, OutputBroker],
        note: Callable[[str, str], None],
        reader: Callable[[str, str], str | None] = lambda broker, topic: None,
    ) -> None:
        self.counters = PublishCounters()
        self._failing = False
        """Whether the last attempt failed; the log has only the first of several failures in a row."""
        self._client = client
        self._brokers = brokers
        self._note, self._reader = note, reader
        self._loops = TokenBuckets(1 / LOOP_PAUSE_S, LOOP_AT_ONCE, TOPICS_MAX)
        """Of topics that a rule reads."""
        self._noted = TokenBuckets(1 / NOTED_AGAIN_S, 1, TOPICS_MAX)
        self._followers: dict[PublishRule, asyncio.Task[None] | None] = {}
        self._topics: dict[tuple[PublishRule, str], _Topic] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def change_rules(self, rules: Iterable[PublishRule]) -> None:
        """Takes the rules in force. Those that stay keep their subscriptions."""
        wanted = dict.fromkeys(rules)
        for rule in [one for one in self._followers if one not in wanted]:
            follower = self._followers.pop(rule)
            if follower is not None:
                follower.cancel()
            for key in [key for key in self._topics if key[0] == rule]:
                worker = self._topics.pop(key).worker
                assert worker is not None
                worker.cancel()
        for rule in wanted:
            if rule not in self._followers:
                self._followers[rule] = None if self._tasks is None else self._followed(rule, self._tasks)

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for rule in self._followers:
                    self._followers[rule] = self._followed(rule, self._tasks)
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    def status(self) -> str:
        """In a few words; empty without rules."""
        if not self._followers:
            return ""
        waiting = f", {count_text(len(self._topics), 'topic', ',')} waiting" if self._topics else ""
        return f"{count_text(self.counters.published, 'message', ',')} of query results published{waiting}"

    def _followed(self, rule: PublishRule, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        return tasks.create_task(self._follow(rule), name=f"mqtt publish {rule.place}")

    async def _follow(self, rule: PublishRule) -> None:
        result = PublishedResult(rule)
        try:
            async with aclosing(self._client.subscribe(rule.select)) as notifications:
                async for notification in notifications:
                    found = result.take(notification.sequence, notification.added, notification.removed)
                    for error in found.errors:
                        self._refuse(rule, str(error))
                    for topic, waiting in found.waiting.items():
                        self._put(rule, topic, waiting)
        except UpstreamError:
            raise
        except GatewayError as error:
            self._refuse(rule, f"the gateway does not follow the query: {error}")

    def _refuse(self, rule: PublishRule, reason: str) -> None:
        self.counters.refused += 1
        self._note(rule.table.topic, f"{rule.place}: {reason}")

    def _put(self, rule: PublishRule, name: str, waiting: Waiting) -> None:
        topic = self._topics.get((rule, name))
        if topic is not None:
            self.counters.replaced += topic.waiting is not None
            topic.waiting = waiting if topic.waiting is None else topic.waiting.followed_by(waiting)
            return
        if len(self._topics) >= TOPICS_MAX:
            self._refuse(rule, f"messages for more than {TOPICS_MAX} topics wait for the broker")
            return
        assert self._tasks is not None
        topic = self._topics[rule, name] = _Topic(rule, name, waiting)
        topic.worker = self._tasks.create_task(self._deliver(topic), name=f"mqtt publish {name}")

    async def _deliver(self, topic: _Topic) -> None:
        """Sends until nothing waits."""
        table = topic.rule.table
        broker = self._brokers.get(table.broker or FIRST_BROKER)
        if broker is None:
            self._refuse(topic.rule, f"[mqtt.brokers] has no broker {table.broker!r}")
            topic.waiting = None
        failures = 0
        while broker is not None and topic.waiting is not None:
            if not broker.subscribed.is_set():
                await broker.subscribed.wait()  # what is newest by then is sent
                continue
            if (pause_s := self._loop_pause_s(topic)) > 0:
                await asyncio.sleep(pause_s)  # what is newest by then is sent
                continue
            sending, topic.waiting = topic.waiting, None
            left = await self._send(topic, sending, broker)
            if left is None:
                failures = 0
                continue
            # mypy takes it for None, but others set it while this task waited
            later: Waiting | None = topic.waiting
            topic.waiting = left if later is None else left.followed_by(later)
            failures += 1
            await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))
        if self._topics.get((topic.rule, topic.name)) is topic:
            del self._topics[topic.rule, topic.name]

    def _loop_pause_s(self, topic: _Topic) -> float:
        """How long the next message has to wait: a rule that reads it could cause another one without an end. Where
        there is no pause, the message counts as sent."""
        table = topic.rule.table
        place = self._reader(table.broker or FIRST_BROKER, topic.name)
        if place is None:
            return 0.0
        key, now = (topic.rule, topic.name), asyncio.get_running_loop().time()
        if not self._noted.take(key, now):
            reason = (
                f"{topic.rule.place} publishes to it, and {place} reads it: a message that changes the result of the "
                f"query causes another one. More than {LOOP_AT_ONCE} in a short time wait {LOOP_PAUSE_S:g} s each; "
                "give one of the rules another topic"
            )
            self._note(topic.name, reason)
        return self._loops.take(key, now)

    async def _send(self, topic: _Topic, sending: Waiting, broker: OutputBroker) -> Waiting | None:
        """What is left to be sent again, None: nothing."""
        table = topic.rule.table
        try:
            payloads = sending.encode(table)
        except PayloadError as error:
            self._refuse(topic.rule, str(error))
            return None
        for sent, payload in enumerate(payloads):
            try:
                await broker.publish(topic.name, payload, min(table.qos, 1), retain=table.retain)
            except UpstreamError as error:
                if isinstance(error, RefusedByDevice):
                    self._note(topic.name, f"{topic.rule.place}: {error}")
                elif not self._failing:
                    logger.warning("mqtt rows not published", topic=topic.name, reason=error)
                self._failing = True
                self.counters.failed += 1
                return sending.after(sent)
            self._failing = False
            self.counters.published += 1
        return None
