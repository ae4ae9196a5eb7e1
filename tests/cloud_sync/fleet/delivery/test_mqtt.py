"""Notifications as messages of a real mosquitto."""

import asyncio
import json
from collections.abc import Iterator

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.sinks import SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.delivery.sinks import mqtt as sinks
from lamplighter.cloud_sync.fleet.delivery.sinks.mqtt import BrokerLinks, MqttNotifications, topic
from lamplighter.cloud_sync.fleet.subscriptions.records import MqttSink
from tests.cloud_sync.fleet.delivery.made_up_matches import match
from tests.support.brokers import Mosquitto, free_port, mosquitto, subscribed
from tests.support.event_loops import until


@pytest.fixture
def threads() -> Iterator[SinkThreads]:
    made = SinkThreads(2)
    yield made
    made.close()


def notification(seq: int = 1, gw: str = "gw-1") -> MatchNotification:
    return MatchNotification(Match(**{**match(gw=gw, seq=seq), "ts": 0}), MatchPosition("000000000001", seq))


def sink(broker: Mosquitto, **members) -> MqttSink:
    return MqttSink(broker="127.0.0.1", port=broker.port, **{"topic": "fleet/{subscription}/{gateway}", **members})


async def test_notifications_arrive_in_order_on_one_connection(threads: SinkThreads) -> None:
    received: list[tuple[str, int, int]] = []
    listener = mqtt.Client(CallbackAPIVersion.VERSION2)
    listener.on_message = lambda _c, _d, one: received.append((one.topic, one.qos, json.loads(one.payload)["sequence"]))
    with mosquitto() as broker, subscribed(listener, broker, "fleet/#"):
        links = BrokerLinks(threads)
        first = MqttNotifications(sink(broker), links)
        second = MqttNotifications(sink(broker, name="second", topic="fleet/second"), links)
        await first.deliver([notification(seq, f"gw-{seq % 2}") for seq in range(100)])
        await second.deliver([notification(7)])
        await first.close()
        await second.deliver([notification(8)])
        await second.close()
        await until(lambda: len(received) >= 102, "the last of 102 messages")
        connections = sum("lamplighter-fleet-" in line and "New client connected" in line for line in broker.log)
    for gateway in ("gw-0", "gw-1"):
        found = [seq for name, _, seq in received if name == f"fleet/hot/{gateway}"]
        assert found == list(range(int(gateway[-1]), 100, 2))
    assert received[100:] == [("fleet/second", 1, 7), ("fleet/second", 1, 8)]
    assert {qos for _, qos, _ in received} == {1}
    assert connections == 1


async def test_a_broker_that_goes_and_comes_back(threads: SinkThreads) -> None:
    with mosquitto() as broker:
        one = MqttNotifications(sink(broker), BrokerLinks(threads))
        await one.deliver([notification(1)])
        broker.stop()
        with pytest.raises(UndeliveredError) as raised:
            await one.deliver([notification(2)])
        assert not raised.value.permanent
        with pytest.raises(UndeliveredError, match="check its name, and that it is running"):
            await one.deliver([notification(2)])
        broker.start()
        await one.deliver([notification(2)])
        await one.close()


async def test_what_the_broker_does_not_acknowledge_is_not_accepted(
    threads: SinkThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that acknowledges the connection and the first message only."""
    monkeypatch.setattr(sinks, "ACKNOWLEDGED_S", 0.5)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            acknowledged = False
            while head := await reader.readexactly(2):
                size, shift = head[1] & 127, 7
                while head[1] & 128:
                    head = b"\0" + await reader.readexactly(1)
                    size, shift = size | (head[1] & 127) << shift, shift + 7
                    if not head[1] & 128:
                        break
                kind = head[0] >> 4 if head[0] else 3
                body = await reader.readexactly(size)
                if kind == 1:
                    writer.write(b"\x20\x02\x00\x00")
                elif kind == 3 and not acknowledged:
                    acknowledged = True
                    place = 2 + int.from_bytes(body[:2], "big")
                    writer.write(b"\x40\x02" + body[place : place + 2])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = MqttNotifications(MqttSink(broker="127.0.0.1", port=port, topic="t"), BrokerLinks(threads))
    with pytest.raises(UndeliveredError, match="does not acknowledge") as raised:
        await one.deliver([notification(1), notification(2)])
    assert raised.value.accepted == 1
    await one.close()
    server.close()


async def test_a_broker_that_refuses_says_so(threads: SinkThreads) -> None:
    port = free_port()
    with mosquitto(port, settings=["allow_anonymous false"]) as broker:
        one = MqttNotifications(sink(broker), BrokerLinks(threads))
        with pytest.raises(UndeliveredError, match="refuses the connection: Not authorized; check user name"):
            await one.deliver([notification(1)])
        await one.close()


async def test_a_server_that_says_nothing(threads: SinkThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CONNECT_S", 0.3)
    silent = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = MqttNotifications(MqttSink(broker="127.0.0.1", port=port, topic="t"), BrokerLinks(threads))
    with pytest.raises(UndeliveredError, match="does not answer"):
        await one.deliver([notification(1)])
    await one.close()
    silent.set()
    server.close()


def test_topics() -> None:
    assert topic("a/{gateway}/{subscription}/{x}", notification(gw="gw 1")) == "a/gw 1/hot/{x}"
    assert topic("{gateway}", notification(gw="a/b+c#d\0%")) == "a%2Fb%2Bc%23d%00%25"
