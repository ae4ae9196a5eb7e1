"""Messages of a broker as bytes on a socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Literal

import pytest

from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.link import PahoConnection, Publish
from lamplighter.adapters.mqtt.settings import BrokerSettings

TIMEOUT_S = 60.0
Protocol = Literal["3.1.1", "5"]
CONNACK = {"3.1.1": b"\x20\x02\x00\x00", "5": b"\x20\x03\x00\x00\x00"}
PINGRESP = b"\xd0\x00"
TOPICS = [b"a", "bücher/ﬁ".encode(), b"no/\xfftext", b"long/" + b"x" * 300]
SIZES = [0, 1, 2, 100, 127, 128, 16_383, 16_384, 70_000]


class Received(PahoConnection):
    """Keeps the messages. complete: set when so many have come."""

    def __init__(self, port: int, protocol: Protocol, expected: int) -> None:
        settings = BrokerSettings(host="127.0.0.1", port=port, protocol=protocol)
        super().__init__(settings, BrokerCredentials(), client_id="link", kept=False, receive_max=10)
        self.messages: list[Publish] = []
        self.complete = asyncio.Event()
        self._expected = expected

    def on_accepted(self, session_present: bool) -> None:
        """Nothing is subscribed to."""

    def on_message(self, message: Publish) -> None:
        self.messages.append(message._replace(properties=None))
        if len(self.messages) == self._expected:
            self.complete.set()


def packet(kind: int, body: bytes) -> bytes:
    """MQTT 3.1.1, 2.2.3."""
    size, length = len(body), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | 128 if size else low])
        if not size:
            return bytes([kind]) + length + body


def publish_packet(message: Publish, topic: bytes, protocol: Protocol) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic
    if message.qos:
        body += message.mid.to_bytes(2, "big")
    body += (b"\x00" if protocol == "5" else b"") + message.payload
    return packet(0x30 | message.dup << 3 | message.qos << 1 | message.retain, body)


def some_messages(chance: random.Random, count: int) -> list[tuple[Publish, bytes]]:
    found = []
    for _ in range(count):
        topic, qos = chance.choice(TOPICS), chance.randrange(2)
        text = "" if b"\xff" in topic else topic.decode()
        mid = chance.randrange(1, 65_536) if qos else 0
        payload = chance.randbytes(chance.choice(SIZES))
        found.append((Publish(text, payload, mid, qos, chance.random() < 0.3, chance.random() < 0.3), topic))
    return found


async def received(parts: Sequence[bytes], protocol: Protocol, expected: int) -> tuple[list[Publish], str]:
    """The messages that a connection takes from a broker that sends these bytes, and how it ended: the broker closes
    behind them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)  # CONNECT
        for part in [CONNACK[protocol], *parts]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)  # the connection reads what has come so far
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = Received(server.sockets[0].getsockname()[1], protocol, expected)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await connection.open()
                end = await connection.ended()
                if expected:
                    await connection.complete.wait()
        finally:
            connection.close()
    return connection.messages, end.kind


def cut(content: bytes, chance: random.Random, size_max: int) -> list[bytes]:
    parts = []
    while content:
        size = chance.randrange(1, size_max)
        parts.append(content[:size])
        content = content[size:]
    return parts


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("size_max", [4, 3_000, 200_000])
async def test_messages_are_the_same_however_their_bytes_come(protocol: Protocol, size_max: int) -> None:
    chance = random.Random(size_max)
    count = 200 if size_max > 4 else 5
    messages = some_messages(chance, count)
    if size_max == 4:
        messages = [(one._replace(payload=one.payload[:300]), topic) for one, topic in messages]
    content = b""
    for message, topic in messages:
        content += publish_packet(message, topic, protocol)
        if chance.random() < 0.2:
            content += PINGRESP
    found, end = await received(cut(content, chance, size_max), protocol, count)
    assert found == [message for message, _ in messages]
    assert end == "away"


@pytest.mark.parametrize(
    "wrong",
    [
        packet(0x30, b"\x00\x00value"),  # no topic
        packet(0x30, b"\x00\x09topic"),  # a topic that is longer than the packet
        packet(0x32, b"\x00\x01t\x00"),  # half an identifier
        packet(0x30, b"\x00"),
        packet(0x30, b""),
        b"\x30\xff\xff\xff\xff\x7f",  # a length of five bytes
    ],
)
async def test_a_packet_that_is_none_ends_the_connection_behind_the_messages_before_it(wrong: bytes) -> None:
    good = Publish("t", b"1")
    content = publish_packet(good, b"t", "3.1.1") + wrong + publish_packet(good, b"t", "3.1.1")
    found, end = await received([content], "3.1.1", 0)
    assert (found, end) == ([good], "away")


async def test_a_message_at_qos_2_is_left_to_the_library() -> None:
    two = packet(0x34, b"\x00\x01t\x00\x07value") + packet(0x62, b"\x00\x07")  # PUBLISH and PUBREL
    found, _ = await received([two + publish_packet(Publish("t", b"1"), b"t", "3.1.1")], "3.1.1", 2)
    assert found == [Publish("t", b"value", 7, 2), Publish("t", b"1")]
