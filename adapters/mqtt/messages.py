"""Messages of a broker, and the queue in which they wait for the gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from paho.mqtt.properties import Properties

from lamplighter.adapters.mapping import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mqtt.link import Publish

WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Of the payloads of waiting messages; above it there is no space, as with a full queue."""
LARGE_BYTES_MAX = 16 * 1024 * 1024
"""Of waiting messages that are longer than the mapping reads: lists of devices."""
PROPERTIES_MAX = 100
PROPERTY_CHARS_MAX = 1_024
"""User properties of a message that are kept, and the length of each."""
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class TopicUse(NamedTuple):
    """What messages of a topic are for, as far as the topic alone tells. own: for what the adapter announces, and for
    nothing else (`HomeTopics.covers`); death: of Sparkplug."""

    own: bool
    death: bool


OTHER_USE = TopicUse(own=False, death=False)


@dataclass(slots=True, eq=False)
class Message:
    """A message of the broker. payload: cut behind `PAYLOAD_BYTES_MAX` + 1 bytes; received: by the inbox's clock;
    properties: user properties of MQTT 5; connection: number of the connection that takes its acknowledgement; done: it
    may be acknowledged; use: of its topic."""

    topic: str
    payload: bytes
    retained: bool
    received: datetime
    properties: Mapping[str, str]
    connection: int
    mid: int
    qos: int
    done: bool = False
    use: TopicUse = OTHER_USE


class MessageQueue:
    """A bounded queue that gives out batches.

    batch_max: messages of a batch; queue_max: of the queue (`MqttSettings`). clock: gives the time of receipt.
    bytes_max: how much of the payload of a topic is kept. on_full: called when enough messages wait for a full batch.
    space: not set while the queue is full; then set once half of it is taken, and on_space called. under_way: messages
    that were given out, and are not taken back by `Inbox.acknowledge`.
    """

    def __init__(
        self,
        batch_max: int = 256,
        queue_max: int = 1024,
        *,
        clock: Callable[[], datetime],
        bytes_max: Callable[[str], int] = lambda topic: PAYLOAD_BYTES_MAX,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._batch_max, self._queue_max = batch_max, queue_max
        self._clock, self._bytes_max, self._on_full = clock, bytes_max, on_full
        self.on_space: Callable[[], None] = lambda: None
        self.under_way = 0
        self._messages: deque[Message] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self.space = asyncio.Event()
        self.space.set()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether enough messages wait for a full batch."""
        return len(self._messages) >= self._batch_max

    async def batch(self) -> list[Message]:
        """The next messages. Waits for one. Cancelling it loses none."""
        await self._arrived.wait()
        batch = [self._messages.popleft() for _ in range(min(len(self._messages), self._batch_max))]
        self._waiting_bytes -= sum(len(message.payload) for message in batch)
        if not self._messages:
            self._arrived.clear()
        half_empty = len(self._messages) <= self._queue_max // 2 and self._waiting_bytes <= WAITING_BYTES_MAX // 2
        if half_empty and not self.space.is_set():
            self.space.set()
            self.on_space()
        self.under_way += len(batch)
        return batch

    def append(self, message: Message) -> None:
        """Takes a message even if there is no space: whoever puts it stops."""
        self._messages.append(message)
        self._waiting_bytes += len(message.payload)
        self._arrived.set()
        if len(self._messages) == self._batch_max:
            self._on_full()
        if len(self._messages) >= self._queue_max or self._waiting_bytes >= WAITING_BYTES_MAX:
            self.space.clear()

    def message(self, message: Publish, connection: int) -> Message:
        """A message of the broker, as the queue keeps it."""
        topic, payload = message.topic, message.payload
        if len(payload) > PAYLOAD_BYTES_MAX:
            payload = payload[: self._kept_bytes(topic, len(payload)) + 1]  # enough to be refused
        return Message(
            topic=topic,
            payload=payload,
            retained=message.retain,
            received=self._clock(),
            properties=_NO_PROPERTIES if message.properties is None else _user_properties(message.properties),
            connection=connection,
            mid=message.mid,
            qos=message.qos,
        )

    def _kept_bytes(self, topic: str, size: int) -> int:
        """How many bytes of a large payload are kept: few while others wait."""
        waiting = sum(len(one.payload) for one in self._messages if len(one.payload) > PAYLOAD_BYTES_MAX + 1)
        return self._bytes_max(topic) if waiting + size <= LARGE_BYTES_MAX else PAYLOAD_BYTES_MAX


def _user_properties(properties: Properties) -> Mapping[str, str]:
    """Those of MQTT 5 (its section 3.3.2.3.7); of two with one name the last."""
    found = getattr(properties, "UserProperty", ())
    return {name: value for name, value in found[-PROPERTIES_MAX:] if len(name) + len(value) <= PROPERTY_CHARS_MAX}
