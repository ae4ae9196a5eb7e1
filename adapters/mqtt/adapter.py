"""The network side: paho-mqtt driven by the asyncio loop, each message acknowledged after its durable commit.

::

    socket ─▶ paho ─▶ queue (bounded: when full, the socket is not read) ─▶ batch ─▶ gateway ─▶ PUBACKs, in order

A `Connection` is one paho client; the session that outlives it is the broker's (fixed client id, not clean). What
was not acknowledged comes again on the next connection. What is still in our hands then is recognised and not
committed twice; across a restart of the adapter a reading may be committed twice, and is never lost.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import paho.mqtt.client as mqtt

from lamplighter.adapters.mqtt.connection import Connection, End
from lamplighter.adapters.mqtt.mapping import (
    PAYLOAD_BYTES_MAX,
    Mapping,
    Reading,
    Stream,
    description_update,
    reading_update,
)
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.engine.client import DeclaredCause, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import ConfigurationError, GatewayError, PayloadError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 30.0
BACKOFF_MAX_ONCE_CONNECTED_S = 2.0
"""A broker that took us a moment ago was restarted, or another client has our identifier; neither takes long."""
STABLE_AFTER_S = 10.0
"""A connection that lived this long was a good one: the next back-off starts from the beginning."""
UPDATE_CHARS_MAX = 256 * 1024
"""SPARQL in one message to the gateway, well below what its socket takes, unless a single update is longer."""
WARNINGS_MAX = 1_000
"""Pairs of topic and reason that are warned of; further ones are only counted."""
TOPIC_CHARS_SAID = 200

logger = EventLogger(__name__)


@dataclass(slots=True)
class MqttCounters:
    """Since the adapter was made. Messages, except where it says readings."""

    received: int = 0
    redelivered: int = 0
    """Recognised as still in our hands, and not committed again."""
    committed: int = 0
    """Readings whose update is durable."""
    dropped_payload: int = 0
    """Readings that could not be made of a message: broken payload or topic."""
    dropped_unmapped: int = 0
    """Messages whose topic no rule covers."""
    refused: int = 0
    """Readings of a stream that belongs to another topic, or of one stream too many."""
    rejected: int = 0
    """Readings that the gateway refused for good."""
    attempts: int = 0
    """To connect."""
    connections: int = 0


class UpdatesClient(Protocol):
    """What the adapter needs of `engine.client.EngineClient`."""

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]: ...


@dataclass(slots=True, eq=False)
class _Message:
    connection: int
    """Number of the connection that an acknowledgement of it can go to."""
    mid: int
    qos: int
    topic: str
    payload: bytes
    retained: bool
    received: datetime
    committed: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """One update of a batch. reading: what it writes; describes: it is the description of the reading's stream."""

    sparql: str
    reading: Reading
    describes: bool


class MqttAdapter:
    """Reads one broker for as long as `run` runs.

    counters: for metrics. subscribed: set while the broker has granted the subscriptions; tried: set when it has for
    the first time, or was found to be away.
    """

    def __init__(
        self,
        settings: MqttSettings,
        mapping: Mapping,
        client: UpdatesClient,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        forget: Sequence[str] = (),
    ) -> None:
        """forget: filters of rules that are no more, which the broker's session may still have."""
        self.counters = MqttCounters()
        self._forget = forget
        self.subscribed = asyncio.Event()
        self.tried = asyncio.Event()
        self._settings = settings
        self._mapping = mapping
        self._gateway = client
        self._clock = clock
        self._password = ""
        self._tls: ssl.SSLContext | None = None

        self._queue: deque[_Message] = deque()
        self._arrived = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._connection: Connection | None = None
        self._filters_granted = False
        self._unacknowledged: dict[int, _Message] = {}
        """By packet identifier, for the life of the broker's session."""

        self._owners: dict[Term, Stream] = {}
        self._described: set[Term] = set()
        self._warned: set[tuple[str, str]] = set()
        self._said: set[str] = set()
        """Kinds of ends that were told since the last time we were connected."""

    async def run(self) -> None:
        """Runs until cancelled; then the connection is closed and no task is left.

        Raises ConfigurationError when the settings cannot work at all, and an ExceptionGroup with the client's
        UpstreamError when the engine client was closed.
        """
        if not self._mapping.filters:
            raise ConfigurationError("mqtt.host is set, but there is no [[stream]] rule in mapping/*.toml; add one")
        self._read_secrets()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_connected(), name="mqtt connection")
            tasks.create_task(self._commit_readings(), name="mqtt commits")

    def status(self) -> str:
        """How it does, for people."""
        counters, settings = self.counters, self._settings
        broker = f"broker {settings.host}:{settings.port}"
        if not self.subscribed.is_set():
            return f"{broker} does not take us yet, trying again; {counters.committed:,} readings so far"
        waiting = f", {len(self._queue):,} wait for the gateway" if self._queue else ""
        return f"{broker} connected, {counters.committed:,} readings committed{waiting}"

    def _read_secrets(self) -> None:
        settings = self._settings
        if settings.password_file:
            try:
                self._password = Path(settings.password_file).read_text(encoding="utf-8").partition("\n")[0].strip("\r")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"mqtt.password_file cannot be read: {error}") from error
        if settings.tls:
            try:
                self._tls = ssl.create_default_context(cafile=settings.ca_file or None)
            except OSError as error:  # ssl.SSLError is one
                raise ConfigurationError(f"mqtt.ca_file = {settings.ca_file!r} cannot be used: {error}") from error

    # The connection

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = BACKOFF_MIN_S
        while True:
            await self._space.wait()  # a connection whose answers are not read would only be lost again
            started, connections = loop.time(), self.counters.connections
            end = await self._connect_once()
            self.tried.set()
            if end.kind not in self._said:
                self._said.add(end.kind)
                logger.warning(
                    "mqtt not connected",
                    host=self._settings.host,
                    port=self._settings.port,
                    cause=end.kind,
                    reason=end.reason,
                )
            if self.counters.connections > connections:
                lived_s = loop.time() - started
                delay_s = BACKOFF_MIN_S if lived_s >= STABLE_AFTER_S else min(delay_s, BACKOFF_MAX_ONCE_CONNECTED_S)
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)

    async def _connect_once(self) -> End:
        self.counters.attempts += 1
        connection = Connection(
            self._settings, self, number=self.counters.attempts, password=self._password, tls=self._tls
        )
        try:
            await connection.open()
            self._connection = connection
            return await connection.ended()
        except ssl.SSLError as error:
            return End("refused", str(error))
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name, in IDNA
            return End("away", str(error) or type(error).__name__)
        finally:
            self._connection = None
            self.subscribed.clear()
            connection.close()

    def on_connected(self, connection: Connection, session_present: bool) -> None:
        """The broker has accepted us. Subscribes where the session does not hold our filters for certain."""
        self.counters.connections += 1
        settings = self._settings
        logger.info("mqtt broker connected", host=settings.host, port=settings.port, session=session_present)
        self._said.clear()
        if not session_present:
            self._unacknowledged.clear()
        if session_present and self._forget:
            connection.unsubscribe(self._forget)
        self._forget = ()
        if session_present and self._filters_granted:
            self._taken()  # subscribing again would have all retained messages sent again
        else:
            connection.subscribe(self._mapping.filters)

    def on_subscribed(self, refused: Sequence[str]) -> None:
        for topic_filter in refused:
            logger.warning("mqtt subscription refused", filter=topic_filter)
        if not refused:
            self._filters_granted = True
            self._taken()

    def _taken(self) -> None:
        self.subscribed.set()
        self.tried.set()

    def on_message(self, connection: Connection, message: mqtt.MQTTMessage) -> None:
        """Puts the message into the queue, unless it is there already, and stops reading when the queue is full."""
        self.counters.received += 1
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # which the mapping refuses
        arrived = _Message(
            connection=connection.number,
            mid=message.mid,
            qos=message.qos,
            topic=topic,
            payload=bytes(message.payload[: PAYLOAD_BYTES_MAX + 1]),  # enough for the mapping to refuse it
            retained=message.retain,
            received=self._clock(),
        )
        if message.qos > 0:
            known = self._unacknowledged.get(message.mid)
            if message.dup and known and (known.topic, known.payload) == (arrived.topic, arrived.payload):
                # We never acknowledged it, so the broker cannot have used its identifier for another message.
                self.counters.redelivered += 1
                known.connection = connection.number
                if known.committed:
                    self._acknowledge(known)
                return
            self._unacknowledged[message.mid] = arrived
        self._queue.append(arrived)
        self._arrived.set()
        if len(self._queue) >= self._settings.queue_max:
            self._space.clear()
            connection.pause()

    # From the queue to the gateway and back

    async def _commit_readings(self) -> None:
        while True:
            await self._arrived.wait()
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._settings.batch_max))]
            if not self._queue:
                self._arrived.clear()
            if not self._space.is_set() and len(self._queue) <= self._settings.queue_max // 2:
                self._space.set()
                if self._connection:
                    self._connection.resume()
            for steps in _portions(self._steps(batch)):
                await self._commit(steps)
            for message in batch:
                message.committed = True
                self._acknowledge(message)

    def _acknowledge(self, message: _Message) -> None:
        """Sends the PUBACK, or leaves it to the redelivery when the message's connection is gone."""
        connection = self._connection
        if message.qos == 0 or connection is None or not connection.alive or message.connection != connection.number:
            return
        connection.acknowledge(message.mid, message.qos)
        if self._unacknowledged.get(message.mid) is message:
            del self._unacknowledged[message.mid]

    def _steps(self, batch: Sequence[_Message]) -> list[_Step]:
        """The updates of a batch, in order of receipt; a stream's description comes before its first reading."""
        steps: list[_Step] = []
        described: set[Term] = set()
        for message in batch:
            for reading in self._readings(message):
                stream = reading.stream.iri
                if stream not in self._described and stream not in described:
                    described.add(stream)
                    steps.append(_Step(description_update(reading), reading, describes=True))
                steps.append(_Step(reading_update(reading), reading, describes=False))
        return steps

    def _readings(self, message: _Message) -> list[Reading]:
        found = self._mapping.readings(
            message.topic, message.payload, retained=message.retained, received=message.received
        )
        if not found:
            self.counters.dropped_unmapped += 1
            self._warn(message.topic, "no mapping rule covers the topic")
        readings: list[Reading] = []
        for reading in found:
            if isinstance(reading, PayloadError):
                self.counters.dropped_payload += 1
                self._warn(message.topic, str(reading))
            elif self._may_write(reading):
                readings.append(reading)
            else:
                self.counters.refused += 1
        return readings

    def _may_write(self, reading: Reading) -> bool:
        """A stream belongs to the topic and rule that it was first read from."""
        stream = reading.stream
        owner = self._owners.get(stream.iri)
        if owner is None and len(self._owners) < self._settings.streams_max:
            self._owners[stream.iri] = owner = stream
        if owner is None:
            self._warn("*", f"more than {self._settings.streams_max} streams (mqtt.streams_max)")
        elif owner != stream:
            self._warn(stream.topic, f"its stream {stream.iri} is that of topic {owner.topic} by {owner.rule}")
        return owner == stream

    async def _commit(self, steps: list[_Step]) -> None:
        """Returns when each step has a final answer. What failed for now is sent again, and with it the later steps
        of the same stream, so that a stream's newest reading is also its last.
        """
        delay_s = BACKOFF_MIN_S
        said = False
        while steps:
            answers = await self._gateway.updates(
                [
                    UpdateRequest(sparql=step.sparql, cause=DeclaredCause("mqtt", step.reading.stream.topic))
                    for step in steps
                ]
            )
            again: list[_Step] = []
            streams: set[Term] = set()
            for step, answer in zip(steps, answers, strict=True):
                stream = step.reading.stream
                error = answer if isinstance(answer, GatewayError) else None
                if stream.iri in streams or (error and error.retriable):
                    streams.add(stream.iri)
                    again.append(step)
                    if error and not said:
                        said = True
                        logger.warning("mqtt readings wait for the gateway", reason=error)
                elif error:
                    self.counters.rejected += not step.describes
                    self._warn(stream.topic, f"the gateway refused it: {error}", lost=True)
                elif step.describes:
                    self._described.add(stream.iri)
                else:
                    self.counters.committed += 1
            steps = again
            if steps:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)

    def _warn(self, topic: str, reason: str, *, lost: bool = False) -> None:
        """Once per topic and reason: a device that chatters nonsense does not fill the journal."""
        if len(topic) > TOPIC_CHARS_SAID:
            topic = f"{topic[:TOPIC_CHARS_SAID]}…"
        key = (topic, reason)
        if key in self._warned or len(self._warned) > WARNINGS_MAX:
            return
        self._warned.add(key)
        if len(self._warned) > WARNINGS_MAX:
            logger.warning("mqtt warnings suppressed", kinds=WARNINGS_MAX)
        else:
            report = logger.error if lost else logger.warning
            report("mqtt reading dropped", topic=topic, reason=reason)


def _portions(steps: list[_Step]) -> Iterator[list[_Step]]:
    """The steps in order, in lists whose texts together have at most `UPDATE_CHARS_MAX`, or that hold one step."""
    portion: list[_Step] = []
    chars = 0
    for step in steps:
        if portion and chars + len(step.sparql) > UPDATE_CHARS_MAX:
            yield portion
            portion, chars = [], 0
        portion.append(step)
        chars += len(step.sparql)
    if portion:
        yield portion
