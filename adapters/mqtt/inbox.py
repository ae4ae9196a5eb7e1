"""The messages of a broker's session, as an asynchronous iterator of batches.

::

    socket ─▶ paho ─▶ queue (bounded: when full, the socket is not read) ─▶ batch
    broker ◀─ PUBACKs, in order ◀──────────── acknowledge ◀──────────────────┘

The retained messages come by `retained` into the same queue, and need no acknowledgement.

A `BrokerConnection` is one paho client. The session outlives it; the broker keeps it (fixed client id, not clean). The
broker sends unacknowledged messages again on the next connection. The inbox recognises those that it still holds and
does not give them out twice.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from lamplighter.adapters.mapping.patterns import own_topics
from lamplighter.adapters.mqtt.connection import BrokerConnection, Canary
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.link import End, Publish
from lamplighter.adapters.mqtt.messages import Message, MessageQueue
from lamplighter.adapters.mqtt.retained import RetainedStates
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 30.0
BACKOFF_MAX_ONCE_CONNECTED_S = 2.0
"""After a broker restart, or when another client uses our identifier; neither takes long."""
STABLE_AFTER_S = 10.0
"""After a connection that lived this long, the back-off starts from the beginning."""

logger = EventLogger(__name__)

RECEIVE_MAX = 65_535
"""Messages that an MQTT 5 broker sends ahead of their acknowledgement. Behind them its queue begins, which drops."""


@dataclass(slots=True)
class InboxCounters:
    """received: messages; redelivered: those of them that the inbox still held; attempts: to connect; connections:
    accepted by the broker."""

    received: int = 0
    redelivered: int = 0
    attempts: int = 0
    connections: int = 0


class Inbox:
    """Batches of messages: ``async for batch in inbox``, while `run` runs beside it.

    A batch has messages in order of receipt. Each batch is to be given to `acknowledge`, once and in order. filters:
    topic filters to subscribe to. subscribed: set while the broker has granted the subscriptions; tried: set once it
    has, or once an attempt has failed. asks: messages, topic and payload, to publish on each connection once
    subscribed. on_state: called with each change of the connection: whether there is one with its subscriptions, and
    why not, or what is wrong nevertheless. credentials: for the broker, set before `run`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        filters: Sequence[str],
        queue: MessageQueue,
        *,
        counters: InboxCounters,
        asks: Sequence[tuple[str, str]] = (),
        on_state: Callable[[bool, str], None] = lambda connected, reason: None,
    ) -> None:
        self.counters = counters
        self._on_state = on_state
        self.subscribed = asyncio.Event()
        self.tried = asyncio.Event()
        self._settings = settings
        self._filters = filters
        self.queue = queue
        queue.on_space = self._resume
        self._forget: Sequence[str] = ()
        self._asks = asks
        self._canary = Canary(settings.canary_s)
        self.credentials = BrokerCredentials()
        self._connection: BrokerConnection | None = None
        self._filters_granted = False
        self._retained = RetainedStates(
            settings,
            credentials=lambda: self.credentials,
            filters=lambda: self._filters,
            room=self.queue.space.wait,
            enqueue=self._take_retained,
            on_problem=self._tell_problem,
        )
        self._unacknowledged: dict[int, Message] = {}
        """By packet identifier, for the life of the broker's session."""
        self._reported: set[str] = set()
        """Kinds of ends that the log has since the last connection."""

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self.queue)

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self

    async def __anext__(self) -> list[Message]:
        """The next messages. Waits for one; never ends. Cancelling it loses none."""
        return await self.queue.batch()

    def acknowledge(self, batch: Sequence[Message]) -> None:
        """Sends the PUBACKs of a batch; where a connection is gone, once the broker has sent the message again."""
        for message in batch:
            message.done = True
        self.queue.under_way -= len(batch)
        self._acknowledge(batch)

    def forget(self, filters: Sequence[str]) -> None:
        """Ends subscriptions that the broker's session may still have. To be called before `run`."""
        self._forget = filters

    def change_filters(self, filters: Sequence[str], new_readers: Sequence[str] = ()) -> None:
        """Subscribes to other filters. A connection stays; new filters are granted before former ones end.

        new_readers: filters that these cover, and of which the retained messages are to be read again.
        """
        before, after = set(self._filters), set(filters)
        new = [one for one in filters if one not in before]
        gone = [one for one in self._filters if one not in after]
        self._filters = filters
        if self.subscribed.is_set():  # else all are read once they are subscribed to
            self._retained.demand(one for one in new_readers if one not in new)
        if not new and not gone:
            return
        self._filters_granted = self._filters_granted and not new
        self._forget = [one for one in [*self._forget, *gone] if one not in after]
        if self._connection is not None:
            if self._connection.alive:
                self._forget = ()
            self._connection.change_filters(filters, new=new, gone=gone)

    def leave(self, filters: Sequence[str]) -> None:
        """Ends subscriptions that the broker's session may have of an earlier configuration."""
        former = [one for one in filters if one not in self._filters]
        if self._connection is not None and self._connection.alive and former:
            self._connection.unsubscribe(former)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Publishes on the session's connection: see `BrokerConnection.publish`. Raises UpstreamError."""
        if self._connection is None:
            raise UpstreamError("the broker is not connected")
        await self._connection.publish(topic, payload, qos, retain=retain)

    @property
    def has_all_filters(self) -> bool:
        """Whether the broker has granted all subscriptions."""
        return self.subscribed.is_set() and self._filters_granted

    @property
    def filters(self) -> Sequence[str]:
        """What the session subscribes to."""
        return self._filters

    @property
    def arrivals(self) -> int | None:
        """Messages that came, canaries too; None if the adapter sends itself none."""
        return self._canary.arrivals if self._canary.used else None

    def demand_canary(self) -> None:
        """Sends the next canary at once, so that `arrivals` grows if messages still arrive."""
        self._canary.demand(asyncio.get_running_loop().time())

    @property
    def problem(self) -> str:
        """What is wrong although the broker is connected; empty: nothing."""
        unheard = (
            f"it does not return {own_topics(self._settings.session)}canary, so a failure to deliver is not noticed; "
            "permit the adapter to read and write the topics below, or set canary_s = 0"
        )
        return "; ".join(text for text in (self._retained.problem, unheard if self._canary.given_up else "") if text)

    async def run(self) -> None:
        """Connects to the broker, again and again with back-off, until cancelled; then the connection is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._retained.follow(), name="mqtt retained messages")
            tasks.create_task(self._connect(), name="mqtt connections")

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = BACKOFF_MIN_S
        while True:
            await self.queue.space.wait()  # a connection whose messages nobody reads would only be lost again
            started, connections = loop.time(), self.counters.connections
            end = await self._connect_once()
            self.tried.set()
            self._on_state(False, end.reason)
            if end.kind == "deaf":
                self._filters_granted = False
            if end.kind not in self._reported:
                self._reported.add(end.kind)
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
        connection = BrokerConnection(
            self._settings,
            self._filters,
            self,
            credentials=self.credentials,
            canary=self._canary,
            receive_max=RECEIVE_MAX,
        )
        try:
            await connection.open()
            self._connection = connection
            connection.change_filters(self._filters, new=(), gone=())  # they may have changed meanwhile
            return await connection.ended()
        except ssl.SSLError as error:
            return End("refused", str(error))
        except (OSError, ValueError) as error:  # ValueError: the host is no valid name, in IDNA
            return End("away", str(error) or type(error).__name__)
        finally:
            self._canary.end(asyncio.get_running_loop().time())
            self._connection = None
            self.subscribed.clear()
            connection.close()

    # What a connection reports

    def on_connected(self, connection: BrokerConnection, session_present: bool) -> None:
        """Subscribes, unless the broker's session certainly has the filters."""
        self.counters.connections += 1
        settings = self._settings
        logger.info("mqtt broker connected", host=settings.host, port=settings.port, session=session_present)
        self._reported.clear()
        if not session_present:
            self._unacknowledged.clear()
        if session_present and self._forget:
            connection.unsubscribe(self._forget)
        self._forget = ()
        subscribed = session_present and self._filters_granted
        self._retained.connect()
        if subscribed:
            self._granted(connection)  # subscribing again would have all retained messages sent again
        else:
            connection.subscribe()

    def on_subscribed(self, connection: BrokerConnection, filters: Sequence[str], refused: Sequence[str]) -> None:
        self._retained.subscribe(filters)
        for topic_filter in refused:
            logger.warning("mqtt subscription refused", filter=topic_filter)
        if refused:
            self._on_state(False, f"the broker refuses the subscription to {', '.join(refused)}")
        elif not connection.subscribing:
            self._filters_granted = True
            self._granted(connection)

    def _granted(self, connection: BrokerConnection) -> None:
        connection.listen()
        if not self.subscribed.is_set():
            for topic, text in self._asks:
                connection.send(topic, text)
        self.subscribed.set()
        self.tried.set()
        self._tell_problem()

    def _tell_problem(self) -> None:
        if self.subscribed.is_set():
            self._on_state(True, self.problem)

    def on_drained(self, connection: BrokerConnection) -> None:
        self._retained.drain()

    def on_canaries_given_up(self, connection: BrokerConnection) -> None:
        logger.warning("mqtt canaries given up", host=self._settings.host, port=self._settings.port)
        self._tell_problem()

    def on_message(self, connection: BrokerConnection, message: Publish) -> None:
        """Puts a message into the queue, unless the inbox still holds it; a full queue stops the reading."""
        self.counters.received += 1
        arrived = self.queue.message(message, connection.number)
        self._retained.hear(arrived.topic, message)
        if message.qos > 0:
            known = self._unacknowledged.get(message.mid)
            if message.dup and known and (known.topic, known.payload) == (arrived.topic, arrived.payload):
                # It was never acknowledged, so the broker cannot have used its identifier for another message.
                self.counters.redelivered += 1
                known.connection = connection.number
                if known.done:
                    self._acknowledge([known])
                return
            self._unacknowledged[message.mid] = arrived
        self._enqueue(arrived)

    def _take_retained(self, message: Publish) -> None:
        self.counters.received += 1
        self._enqueue(self.queue.message(message, 0))

    def _enqueue(self, message: Message) -> None:
        self.queue.append(message)
        if not self.queue.space.is_set() and self._connection is not None and self._connection.alive:
            self._connection.pause()

    def _resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def _acknowledge(self, messages: Sequence[Message]) -> None:
        """Sends the PUBACKs, or leaves them to the redelivery when the messages' connection is gone."""
        connection = self._connection
        if connection is None or not connection.alive:
            return
        due = [message for message in messages if message.qos and message.connection == connection.number]
        if due:
            connection.client.acknowledge([message.mid for message in due])
        for message in due:
            if self._unacknowledged.get(message.mid) is message:
                del self._unacknowledged[message.mid]
