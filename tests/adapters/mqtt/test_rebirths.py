"""Requests for the births of Sparkplug nodes, at a real mosquitto."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mapping import Births, Mapping, protobuf
from lamplighter.adapters.mapping.sparkplug import rebirth_request
from lamplighter.adapters.mqtt import rebirths
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.rebirths import AT_ONCE_MAX, PAUSE_MAX_S, PAUSE_MIN_S, Node, due_nodes, rebirth_pauses
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from tests.support.brokers import Mosquitto, mosquitto, subscribed
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import rule

TIMEOUT_S = 120.0
ALL = {"topic": "spBv1.0/{group}/{type}/{node}", "payload": "sparkplug", "property": "ex:{n}"}
ONE = ALL | {"topic": "spBv1.0/plant/{type}/press"}
DATA = protobuf.bytes_field(2, protobuf.varint_field(2, 7) + b"\x69" + struct.pack("<d", 61.5))
BIRTH = protobuf.bytes_field(
    2, protobuf.bytes_field(1, b"temperature") + protobuf.varint_field(2, 7) + b"\x69" + struct.pack("<d", 61.5)
)


class Gateway:
    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        return [UpdateAnswer(sequence=1) for _ in requests]


class Nodes:
    """What the nodes of a broker are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bytes]] = []

    def take(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self.told.append((message.topic, message.payload))


@contextmanager
def nodes(broker: Mosquitto) -> Iterator[Nodes]:
    """The broker has granted their subscription: a request before it would reach none."""
    told = Nodes()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_message = told.take
    with subscribed(client, broker, "spBv1.0/+/NCMD/+"):
        yield told


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebirths, "CHECK_S", 0.01)


@asynccontextmanager
async def running(
    broker: Mosquitto, table: dict[str, str], elapsed: Callable[[], float] = lambda: 0.0, **changes: object
) -> AsyncIterator[MqttAdapter]:
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker.port, "client_id": "a"} | changes, MqttSettings)
    adapter = MqttAdapter(settings, Mapping([rule(table)]), AdapterContext(cast(Any, Gateway()), elapsed=elapsed))
    async with beside(adapter.run()) as task:
        async with asyncio.timeout(TIMEOUT_S):
            await adapter.brokers["default"].inbox.subscribed.wait()
        yield adapter
        assert not task.done()


async def data(broker: Mosquitto, adapter: MqttAdapter, *nodes: str) -> None:
    """Data with an alias of each node; returns when the adapter has refused it."""
    before = adapter.counters.dropped_payload
    await asyncio.to_thread(broker.publish, *((f"spBv1.0/plant/NDATA/{node}", DATA) for node in nodes))
    await until(lambda: adapter.counters.dropped_payload == before + len(nodes))


async def test_a_node_is_asked_for_its_birth_and_ever_less_often() -> None:
    time = [0.0]
    with mosquitto() as broker, nodes(broker) as node:
        async with running(broker, ALL, lambda: time[0], commands=["spBv1.0/+/NCMD/+"]) as adapter:
            unborn = adapter.brokers["default"].births.unborn
            for requests, pause_s in enumerate((0.0, PAUSE_MIN_S, 2 * PAUSE_MIN_S, 4 * PAUSE_MIN_S), 1):
                if pause_s:
                    time[0] += pause_s - 1
                    await data(broker, adapter, "press")
                    await until(lambda: not unborn)
                    assert len(node.told) == requests - 1
                    time[0] += 1
                await data(broker, adapter, "press")
                await until(lambda count=requests: len(node.told) == count)  # type: ignore[misc]
            topic, payload = node.told[0]
            assert topic == "spBv1.0/plant/NCMD/press"
            fields = [(number, value) for number, _, value in protobuf.fields(memoryview(payload))]
            assert fields[0][0] == 1 and isinstance(fields[0][1], int)
            metric = fields[1][1]
            assert isinstance(metric, memoryview)
            assert [
                (number, value if isinstance(value, int) else bytes(value))
                for number, _, value in protobuf.fields(metric)
            ] == [(1, b"Node Control/Rebirth"), (4, 11), (14, 1)]
            await asyncio.to_thread(broker.publish, ("spBv1.0/plant/NBIRTH/press", BIRTH))
            await asyncio.to_thread(broker.publish, ("spBv1.0/plant/NDATA/press", DATA))
            await until(lambda: adapter.counters.committed == 2)
            assert not unborn
            # It has answered, so that the pause is the shortest one again.
            births = adapter.brokers["default"].births
            await until(lambda: not births.born)
            births.bury("spBv1.0/plant/NDEATH/press", b"")
            time[0] += PAUSE_MIN_S
            await data(broker, adapter, "press")
            await until(lambda: len(node.told) == 5)


@pytest.mark.parametrize(
    ("table", "changes", "problem"),
    [
        (ALL, {}, True),
        (ALL, {"commands": ["spBv1.0/other/NCMD/+"]}, True),
        (ONE | {"topic": "spBv1.0/plant/{type:NDATA}/press"}, {"commands": ["#"]}, False),
    ],
)
async def test_a_node_is_not_asked_without_permission_or_beyond_the_filters(
    table: dict[str, str], changes: dict[str, object], problem: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Node] = []
    ask = rebirths._ask

    async def noted(*arguments: object) -> None:
        await ask(*arguments)  # type: ignore[arg-type]
        asked.append(arguments[1])  # type: ignore[arg-type]

    monkeypatch.setattr(rebirths, "_ask", noted)
    notes: list[tuple[str, str]] = []
    with mosquitto() as broker, nodes(broker) as node:
        async with running(broker, table, **changes) as adapter:
            monkeypatch.setattr(adapter._warnings, "state", lambda *note: notes.append(note))
            if not problem:  # the births of the node are not followed
                adapter.brokers["default"].inbox._filters = ["spBv1.0/plant/NDATA/press"]
            await data(broker, adapter, "press")
            await until(lambda: asked == [("plant", "press")])
        await asyncio.to_thread(broker.publish, ("spBv1.0/x/NCMD/last", b""))
        await until(lambda: bool(node.told))
        assert [topic for topic, _ in node.told] == ["spBv1.0/x/NCMD/last"]


def test_few_nodes_are_asked_at_once_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebirths, "NODES_MAX", 20)
    pauses = rebirth_pauses()
    unborn = {("g", f"n{number:02}") for number in range(50)}
    asked: list[Node] = []
    while unborn:
        some = list(due_nodes(pauses, unborn, 0.0))
        assert len(some) <= AT_ONCE_MAX
        asked += some
    assert asked == sorted(asked) and len(asked) == 50
    assert len(pauses) == 20


def test_the_pause_is_bounded_and_begins_again_after_a_long_time() -> None:
    pauses, now, times = rebirth_pauses(), 0.0, []
    while now < 6 * PAUSE_MAX_S:
        if list(due_nodes(pauses, {("g", "n")}, now)):
            times.append(now)
        now += 1
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[:3] == [PAUSE_MIN_S, 2 * PAUSE_MIN_S, 4 * PAUSE_MIN_S] and max(gaps) == gaps[-1] == PAUSE_MAX_S
    quiet = rebirth_pauses()
    for at in (0.0, PAUSE_MIN_S, 3 * PAUSE_MAX_S):
        assert list(due_nodes(quiet, {("g", "n")}, at))
    assert list(due_nodes(quiet, {("g", "n")}, 3 * PAUSE_MAX_S + PAUSE_MIN_S)), "it begins with the shortest pause"


def test_a_node_of_an_adopted_device_waits_for_the_end_of_its_pause() -> None:
    pauses, unborn = rebirth_pauses(), {("g", "adopted"), ("g", "other")}
    assert len(list(due_nodes(pauses, unborn, 0.0))) == 2
    unborn |= {("g", "adopted"), ("g", "other")}  # the connection broke, and is there again
    assert not list(due_nodes(pauses, unborn, 1.0, {("g", "adopted")}.__contains__))
    assert list(due_nodes(pauses, unborn, PAUSE_MIN_S, {("g", "adopted")}.__contains__)) == [("g", "adopted")]
    assert not unborn


def test_a_request_is_read_as_a_sparkplug_message() -> None:
    assert Births().records("spBv1.0/g/NDATA/n", rebirth_request(datetime(2026, 11, 22, tzinfo=UTC))) == []
