"""Brokers that do not permit everything: a real mosquitto with an access control list, and one that hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.mqtt import connection, sender
from lamplighter.adapters.mqtt.inbox import Inbox, InboxCounters
from lamplighter.adapters.mqtt.messages import MessageQueue
from lamplighter.adapters.mqtt.sender import MqttSender, output_status
from lamplighter.adapters.mqtt.settings import BrokerSettings
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.desired_states import REFUSED, StatesGateway, rule, running
from tests.support.event_loops import beside, until

TIMEOUT_S = 120.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PERMITTED, FORBIDDEN = rule(topic="permitted/set"), rule(topic="forbidden/set")


@contextmanager
def strict_broker(folder: Path, *lines: str) -> Iterator[Mosquitto]:
    """lines: of the access control list."""
    acl = folder / "acl"
    acl.write_text("\n".join(lines) + "\n")
    acl.chmod(0o700)
    with mosquitto(settings=("allow_anonymous true", f"acl_file {acl}")) as broker:
        yield broker


@asynccontextmanager
async def connected(port: int, told: list[tuple[bool, str]] | None = None, **changes: object) -> AsyncIterator[Inbox]:
    """told: takes the states of the connection."""
    settings = msgspec.convert({"host": "127.0.0.1", "port": port, "client_id": "edge"} | changes, BrokerSettings)
    states = [] if told is None else told
    inbox = Inbox(
        settings,
        ["t/#"],
        MessageQueue(clock=lambda: NOON),
        counters=InboxCounters(),
        on_state=lambda connected, reason: states.append((connected, reason)),
    )
    async with beside(inbox.run()):
        async with asyncio.timeout(TIMEOUT_S):
            await inbox.subscribed.wait()
        yield inbox


@asynccontextmanager
async def switching(inbox: Inbox, noted: list[tuple[str, str]]) -> AsyncIterator[tuple[StatesGateway, Output]]:
    gateway = StatesGateway()
    of_inbox = MqttSender({"default": inbox}, ("+/set",))
    async with running(gateway, of_inbox, files=[FORBIDDEN], note=lambda *one: noted.append(one)) as output:
        yield gateway, output


async def test_a_command_that_the_broker_does_not_permit_is_refused_with_its_reason(tmp_path: Path) -> None:
    noted: list[tuple[str, str]] = []
    with strict_broker(
        tmp_path, "topic readwrite t/#", "topic readwrite lamplighter/#", "topic write permitted/#"
    ) as broker:
        async with connected(broker.port, protocol="5") as inbox, switching(inbox, noted) as (gateway, output):
            gateway.desire("true")
            await until(lambda: bool(gateway.found(REFUSED)))
            [reason] = gateway.found(REFUSED)
            assert reason == (
                "the broker refuses the message: Not authorized; permit clients without a user to write this topic, in "
                "the broker's access control list"
            )
            assert noted == [("forbidden/set", reason)]
            assert output.states().refused == 1
            assert "1 with a refused state" in output_status(output)
            output.change_rules([PERMITTED])
            await until(lambda: output.counters.acknowledged >= 1)
            await until(lambda: gateway.found(REFUSED) == [])
            assert inbox.counters.connections == 1


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("permitted", ["topic read lamplighter/#", "topic write lamplighter/#", ""])
async def test_a_broker_that_forbids_the_canary_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, permitted: str
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.2)
    told: list[tuple[bool, str]] = []
    with strict_broker(tmp_path, "topic readwrite t/#", permitted) as broker:
        async with connected(broker.port, told, protocol=protocol) as inbox:
            await until(lambda: bool(told) and "canary" in told[-1][1])
            assert told[-1] == (
                True,
                "it does not return lamplighter/edge/canary, so a failure to deliver is not noticed; permit the "
                "adapter to read and write the topics below, or set canary_s = 0",
            )
            await asyncio.to_thread(broker.publish, ("t/1", "x"))
            assert [message.payload for message in await anext(inbox)] == [b"x"]
            assert inbox.counters.connections == 1
            assert all(connected for connected, _ in told)


class HangingUp:
    """A broker of MQTT 3.1.1 that ends the connection when it gets a message whose topic begins so."""

    def __init__(self, *forbidden: bytes) -> None:
        self._forbidden = forbidden
        self.published: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answered(reader, writer):
                await writer.drain()
        writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, length, shift = (await reader.readexactly(1))[0], 0, 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        body = await reader.readexactly(length)
        match head >> 4:
            case 1:
                writer.write(b"\x20\x02\x00\x00")
            case 3:
                size = int.from_bytes(body[:2], "big")
                topic, rest = body[2 : 2 + size], body[2 + size :]
                self.published.append(topic)
                if topic.startswith(self._forbidden):
                    return False
                if head & 0x06:
                    writer.write(b"\x40\x02" + rest[:2])
            case 8:
                filters, at = 0, 2
                while at < len(body):
                    at += 3 + int.from_bytes(body[at : at + 2], "big")
                    filters += 1
                writer.write(bytes([0x90, 2 + filters]) + body[:2] + b"\x01" * filters)
            case 12:
                writer.write(b"\xd0\x00")
            case _:
                pass
        return True


@asynccontextmanager
async def hanging_up(*forbidden: bytes) -> AsyncIterator[tuple[HangingUp, int]]:
    broker = HangingUp(*forbidden)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    async with server:
        yield broker, server.sockets[0].getsockname()[1]


async def test_a_broker_that_hangs_up_at_a_command_is_left_alone_with_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lamplighter.adapters.devices.delivery.RETRY_MIN_S", 0.01)
    monkeypatch.setattr("lamplighter.adapters.devices.delivery.RETRY_MAX_S", 0.01)
    noted: list[tuple[str, str]] = []
    async with (
        hanging_up(b"forbidden/") as (broker, port),
        connected(port, canary_s=0) as inbox,
        switching(inbox, noted) as (gateway, output),
    ):
        gateway.desire("true")
        await until(lambda: bool(gateway.found(REFUSED)))
        [reason] = gateway.found(REFUSED)
        assert reason.startswith("the broker ended the connection: ")
        assert f"{sender.ENDS_MAX} times at a message of this topic; permit it" in reason
        assert noted[-1] == ("forbidden/set", reason)
        await until(lambda: inbox.subscribed.is_set())
        connections = broker.connections
        for state in ("false", "true"):
            gateway.desire(state)
            await asyncio.sleep(0.05)
        assert broker.published.count(b"forbidden/set") == sender.ENDS_MAX
        assert broker.connections == connections, "it does not flap"
        output.change_rules([PERMITTED])
        await until(lambda: output.counters.acknowledged >= 1)


async def test_a_broker_that_hangs_up_at_our_own_topics_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.mqtt.inbox.BACKOFF_MIN_S", 0.001)
    async with hanging_up(b"lamplighter/") as (broker, port), connected(port) as inbox:
        await until(lambda: broker.connections > connection.SHORT_MAX and inbox.subscribed.is_set())
        await until(lambda: "canary" in inbox.problem)
        connections, published = broker.connections, len(broker.published)
        await inbox.publish("permitted/set", b"x", 1, retain=False)
        assert (broker.connections, broker.published[published:]) == (connections, [b"permitted/set"])
