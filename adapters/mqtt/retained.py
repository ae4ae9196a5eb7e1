"""The retained messages of a broker, read whole.

::

    session (QoS 1, kept)       ─▶ messages as they come
    RetainedReading (QoS 0)     ─▶ retained messages, once: for a new session, for new rules, after a burst

For a session at QoS 1 a broker keeps some messages in flight and some more in a queue (mosquitto: 20 and 1,000), and
drops the rest: of 5,000 retained messages, that it sends at once, 1,020 arrive however fast they are read. At QoS 0
nothing bounds them. So they are read on a connection of their own, which ends when all have come.

What the session hears of a topic is newer than what the broker retained before, and nothing is lost of it: such topics
are left to the session until it may have lost messages. After a burst, a retained message counts only if it is another
one than at the last reading, or if the topic's retained message has followed what was heard before: many devices retain
their first message only, and a broker with a steady flood would else give it back each minute.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lamplighter.adapters.mapping.patterns import minimal_filters, own_topics
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.link import End, PahoConnection, Publish
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import TokenBucket, back_off_s

GATHERING_S = 0.2
"""Rules come in groups; each group is read at once."""
QUIET_S = 0.5
"""Without a retained message, behind the sentinel: some brokers send them behind later messages."""
QUIET_WITHOUT_S = 5.0
"""The same where the sentinel does not return: the broker may not permit its topic."""
READING_BYTES_MAX = 16 * 1024 * 1024
"""Of messages that wait for the gateway; above it the socket is not read."""
BURST_MESSAGES_MIN = 500
"""Messages of a second behind which some may have been dropped: half of the usual queue."""
BURST_OVER_S, BURST_S_MAX = 1.0, 30.0
PASSED_EVERY_S = 60.0
QUEUE_MESSAGES_MIN = 100
"""A session with so many messages waiting may have lost some: the smallest queue that a broker is likely to have."""
HEARD_TOPICS_MAX = 50_000
FOLLOWED_MIN = 2
"""Readings that show that a device retains all that it sends, and not its first message only. One may be the first
message after its restart."""
RETRY_MIN_S, RETRY_MAX_S = 2.0, 300.0
PACKETS_AHEAD = 65_535
"""At QoS 0 it bounds nothing."""

logger = EventLogger(__name__)


class RetainedReading(PahoConnection):
    """One reading. The messages are in `messages`, which `arrived` tells of."""

    def __init__(self, settings: BrokerSettings, credentials: BrokerCredentials, filters: Sequence[str]) -> None:
        super().__init__(
            settings, credentials, client_id=f"{settings.session}-retained", kept=False, receive_max=PACKETS_AHEAD
        )
        self.messages: deque[Publish] = deque()
        self.arrived = asyncio.Event()
        self.refused: list[str] = []
        self._filters = filters
        self._sentinel = f"{own_topics(settings.session)}retained"
        self._bytes = 0
        self._quiet_since = self.loop.time()
        self._granted = self._returned = False
        self.client.on_subscribe = self._on_subscribe

    @property
    def complete(self) -> bool:
        """Whether no further message is to be expected."""
        quiet_s = self.loop.time() - self._quiet_since
        return self._granted and not self.messages and quiet_s >= (QUIET_S if self._returned else QUIET_WITHOUT_S)

    def take(self) -> list[Publish]:
        """All that wait."""
        messages = list(self.messages)
        self.messages.clear()
        self.arrived.clear()
        self._bytes = 0
        self._quiet_since = self.loop.time()  # whoever took long was not listening
        self.resume()
        return messages

    def on_accepted(self, session_present: bool) -> None:
        self.client.subscribe([(one, 0) for one in [self._sentinel, *self._filters]])

    def on_message(self, message: Publish) -> None:
        is_sentinel = message.topic == self._sentinel
        if is_sentinel:
            self._returned = True
        if is_sentinel or not message.retain:
            return
        self._quiet_since = self.loop.time()
        self.messages.append(message)
        self._bytes += len(message.payload)
        self.arrived.set()
        if self._bytes >= READING_BYTES_MAX:
            self.pause()

    def _on_subscribe(
        self, _client: mqtt.Client, _userdata: Any, mid: int, codes: list[ReasonCode], _more: Properties | None
    ) -> None:
        self._granted = True
        self._quiet_since = self.loop.time()
        self.refused = [one for one, code in zip(self._filters, codes[1:], strict=False) if code.is_failure]
        self.client.publish(self._sentinel, b"", qos=0)


async def retained_messages(
    settings: BrokerSettings, credentials: BrokerCredentials, filters: Sequence[str]
) -> AsyncGenerator[Publish]:
    """The retained messages of the filters. Raises UpstreamError if they cannot be read, or not all of them."""
    reading = RetainedReading(settings, credentials, filters)
    try:
        await reading.open()
        ended: asyncio.Task[End] = asyncio.create_task(reading.ended(), name="mqtt connection of retained messages")
        try:
            while not reading.complete:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S / 2):
                        await reading.arrived.wait()
                for message in reading.take() if reading.messages else ():
                    yield message
                if ended.done():
                    raise UpstreamError(ended.result().reason)
        finally:
            ended.cancel()
            await asyncio.wait({ended})
    except (OSError, ValueError) as error:  # ssl.SSLError is one
        raise UpstreamError(str(error) or type(error).__name__) from error
    finally:
        reading.close()
    if reading.refused:
        raise UpstreamError(f"the broker refuses the subscription to {', '.join(reading.refused)}")


class Bursts:
    """Notices that messages come faster than a broker may keep them.

    passed: called when a burst is over, or goes on for long, and once a minute at most.
    """

    def __init__(self, passed: Callable[[], None]) -> None:
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._noticed_at = 0.0
        self._count = 0
        """Messages since `_begun_at`, within a second."""
        self._bucket = TokenBucket(1 / PASSED_EVERY_S, 1)
        self._due: asyncio.TimerHandle | None = None

    def count(self) -> None:
        """A message came."""
        now = self._loop.time()
        if now - self._begun_at > 1.0:
            self._begun_at, self._count = now, 0
        self._count += 1
        if self._count >= BURST_MESSAGES_MIN:
            self._noticed_at = now
            if self._due is None:
                wait_s = self._bucket.take(now)
                self._due = self._loop.call_later(max(wait_s, BURST_OVER_S), self._end, now + wait_s + BURST_S_MAX)

    def _end(self, latest: float) -> None:
        now = self._loop.time()
        if now - self._noticed_at < BURST_OVER_S and now < latest:
            self._due = self._loop.call_later(BURST_OVER_S, self._end, latest)
            return
        self._due = None
        self._bucket.take(now)
        self._passed()


class _LastReading(NamedTuple):
    """What the broker retained of a topic at the last reading. payload: its hash; followed: how often it was what the
    session had heard, and another one than before."""

    payload: int
    followed: int = 0


class RetainedStates:
    """Reads what a broker retains when that is due, one reading after the other.

    credentials: for its connections. filters: what the session subscribes to. room: returns when `enqueue` may be
    called, which takes a message. problem: why not all retained messages are read; empty: they are. on_problem: called
    when it changes.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        credentials: Callable[[], BrokerCredentials],
        filters: Callable[[], Sequence[str]],
        room: Callable[[], Awaitable[object]],
        enqueue: Callable[[Publish], None],
        on_problem: Callable[[], None],
    ) -> None:
        self.problem = ""
        self._on_problem = on_problem
        self._settings, self._credentials, self._filters = settings, credentials, filters
        self._room, self._enqueue = room, enqueue
        self._due: dict[str, None] = {}
        self._demanded = asyncio.Event()
        self._heard: dict[str, int] = {}
        """Topics that the session heard since the messages that it missed, with the hash of the last payload."""
        self._kept: dict[str, _LastReading] = {}
        self._lossy = False
        """Whether messages of a burst may have been dropped since the last reading."""
        self._unread: dict[str, None] = {}
        """Filters that are due when the messages have come that the broker had queued for the session."""
        self._waiting: int | None = None
        """How many of these messages have come; None: all."""
        self._bursts = Bursts(self._end_burst)

    def connect(self) -> None:
        """The session has a new connection, and the broker may have queued messages for it."""
        self._waiting = 0

    def subscribe(self, filters: Sequence[str]) -> None:
        """The session has subscribed to these topics, of which it heard nothing before."""
        if len(filters) == len(self._filters()):
            self._heard.clear()
        self._unread |= dict.fromkeys(filters)

    def hear(self, topic: str, message: Publish) -> None:
        """The session got a message."""
        if self._waiting is not None:
            self._waiting += 1
        if message.qos:
            self._bursts.count()
        if not message.retain:
            if len(self._heard) >= HEARD_TOPICS_MAX:
                self._heard.clear()
            self._heard[topic] = hash(message.payload)

    def drain(self) -> None:
        """The messages that the broker had queued have come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting >= QUEUE_MESSAGES_MIN:
            self._lose()
        self.demand(self._unread)
        self._unread = {}

    def _lose(self) -> None:
        """The broker has not kept all messages while the session was away: what is retained counts again."""
        self._heard.clear()
        self.demand(self._filters())

    def _end_burst(self) -> None:
        """The broker may have dropped messages of the burst."""
        self._lossy = True
        self.demand(self._filters())

    def demand(self, filters: Iterable[str]) -> None:
        """What is retained at these topics is to be read."""
        if not self._settings.shared:  # a shared subscription gets no retained messages (MQTT 5, 4.8.2)
            self._due |= dict.fromkeys(filters)
        if self._due:
            self._demanded.set()

    async def follow(self) -> None:
        """Reads until cancelled. A reading that fails is repeated with back-off."""
        failures = 0
        while True:
            await self._demanded.wait()
            await asyncio.sleep(GATHERING_S)
            filters, self._due = minimal_filters(self._due), {}
            lossy, self._lossy = self._lossy, False
            self._demanded.clear()
            try:
                count = await self._take_all(filters, lossy)
            except UpstreamError as error:
                self._lossy |= lossy
                failures += 1
                self._say(f"retained messages not read: {error}")
                if failures == 1:
                    logger.warning("mqtt retained messages not read", host=self._settings.host, reason=error)
                await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))
                self.demand(filters)
                continue
            failures = 0
            self._say("")
            logger.info("mqtt retained messages read", host=self._settings.host, messages=count)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_problem()

    async def _take_all(self, filters: Sequence[str], lossy: bool) -> int:
        """Returns how many messages were given on."""
        count = 0
        async with aclosing(retained_messages(self._settings, self._credentials(), filters)) as retained:
            async for message in retained:
                await self._room()
                if self._is_newest(message, lossy):
                    self._enqueue(message)
                    count += 1
        return count

    def _is_newest(self, message: Publish, lossy: bool) -> bool:
        """Whether a message that is retained is not older than what the session has heard of its topic. lossy: messages
        of a burst may have been dropped."""
        topic, payload = message.topic, hash(message.payload)
        if not topic:
            return True
        heard, before = self._heard.get(topic), self._kept.get(topic)
        changed = before is None or before.payload != payload
        followed = 0 if before is None else before.followed + (changed and heard == payload)
        if len(self._kept) >= HEARD_TOPICS_MAX:
            self._kept.clear()
        self._kept[topic] = _LastReading(payload, followed)
        return heard is None or heard == payload or (lossy and (changed or followed >= FOLLOWED_MIN))
