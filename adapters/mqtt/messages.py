"""Messages of a broker, and the queue in which they wait for the gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import paho.mqtt.client as mqtt

from lamplighter.adapters.mapping import PAYLOAD_BYTES_MAX

WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Of the payloads of waiting messages; above it there is no space, as with a full queue."""
LARGE_BYTES_MAX = 16 * 1024 * 1024
"""Of waiting messages that are longer than the mapping reads: lists of devices."""
PROPERTIES_MAX = 100
PROPERTY_CHARS_MAX = 1_024
"""User properties of a message that are kept, and the length of each."""
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Message:
    """A message of the broker. payload: cut behind `PAYLOAD_BYTES_MAX` + 1 bytes; received: by the inbox's clock;
    properties: user properties of MQTT 5; connection: number of the connection that takes its acknowledgement; done: it
    may be acknowledged."""

    topic: str
    payload: bytes
    retained: bool
    received: datetime
    properties: Mapping[str, str]
    connection: int
    mid: int
    qos: int
    done: bool = False


class MessageQueue:
    """A bounded queue that gives out batches.

    batch_max: messages of a batch; queue_max: of the queue. bytes_max: how much of the payload of a topic is kept.
    on_full: called when enough messages wait for a full batch. space: not set while the queue is full; then set once
    half of it is taken, and on_space called.
    """

    def __init__(
        self,
        batch_max: int,
        queue_max: int,
        bytes_max: Callable[[str], int],
        *,
        on_full: Callable[[], None],
        on_space: Callable[[], None],
    ) -> None:
        self._batch_max, self._queue_max = batch_max, queue_max
        self._bytes_max, self._on_full, self._on_space = bytes_max, on_full, on_space
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
            self._on_space()
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

    def message(self, message: mqtt.MQTTMessage, received: datetime, connection: int) -> Message:
        """A message of the broker, as the queue keeps it."""
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # which the mapping refuses
        return Message(
            topic=topic,
            payload=bytes(message.payload[: self._size(topic, len(message.payload)) + 1]),  # enough to be refused
            retained=message.retain,
            received=received,
            properties=_user_properties(message),
            connection=connection,
            mid=message.mid,
            qos=message.qos,
        )

    def _size(self, topic: str, size: int) -> int:
        """How many bytes of a payload are kept: few of a large one while others wait."""
        if size <= PAYLOAD_BYTES_MAX:
            return size
        waiting = sum(len(one.payload) for one in self._messages if len(one.payload) > PAYLOAD_BYTES_MAX + 1)
        return self._bytes_max(topic) if waiting + size <= LARGE_BYTES_MAX else PAYLOAD_BYTES_MAX


def _user_properties(message: mqtt.MQTTMessage) -> Mapping[str, str]:
    """Those of MQTT 5 (its section 3.3.2.3.7); of two with one name the last."""
    found = getattr(message.properties, "UserProperty", None)
    if not found:
        return _NO_PROPERTIES
    return {name: value for name, value in found[-PROPERTIES_MAX:] if len(name) + len(value) <= PROPERTY_CHARS_MAX}
