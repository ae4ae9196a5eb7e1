"""Devices that report regularly and become silent, at a real mosquitto. The time is that of the test."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.devices.device import Availability, Device, Sensor
from lamplighter.adapters.devices.intervals import REPORTS_MIN
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt import connection, inbox, silence
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.settings import FIRST_BROKER, MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import Bag, literal
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE, rule

TIMEOUT_S = 120.0
PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
TABLES = (
    {"topic": "home/{room}/climate", "payload": "number", "property": "ex:temperature", "platform": "node/{room}"},
    {"topic": "home/{room}/button", "payload": "text", "property": "ex:pressed", "platform": "node/{room}"},
)
KITCHEN = f"{BASE}node/kitchen"


class Time:
    """Goes on only when the test says so."""

    def __init__(self) -> None:
        self.elapsed_s = 1_000.0
        self.begin = datetime(2026, 11, 22, tzinfo=UTC)

    def elapsed(self) -> float:
        return self.elapsed_s

    def clock(self) -> datetime:
        return self.begin + timedelta(seconds=self.elapsed_s)


class Gateway:
    """Applies updates to an engine, and sends the first results of subscriptions. open: it answers while set."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.open = asyncio.Event()
        self.open.set()

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        await self.open.wait()
        await asyncio.sleep(0)
        return [UpdateAnswer(sequence=self.engine.update(str(request.sparql)).sequence) for request in requests]

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        rows = Bag.from_json(self.engine.query(sparql).to_json())
        yield Notification("spu", 0, rows, Bag(rows.variables))
        await asyncio.Event().wait()

    def rows(self, pattern: str) -> list[dict[str, str]]:
        found: Any = self.engine.query(f"{PREFIX} SELECT * {{ {pattern} }}").to_json()
        return [{name: term["value"] for name, term in row.items()} for row in found["results"]["bindings"]]

    @property
    def online(self) -> dict[str, str]:
        return {row["device"]: row["online"] for row in self.rows("?device gateway:online ?online")}

    @property
    def last_seen(self) -> dict[str, str]:
        return {row["device"]: row["seen"] for row in self.rows("?device gateway:lastSeen ?seen")}


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "CHECK_S", 0.01)
    monkeypatch.setattr(inbox, "BACKOFF_MAX_ONCE_CONNECTED_S", 0.2)
    monkeypatch.setattr(silence, "STALL_S", float("inf"))  # a busy machine stops the test for seconds


@asynccontextmanager
async def running(
    broker: Mosquitto, gateway: Gateway, time: Time, mapping: Mapping | None = None, **changes: object
) -> AsyncIterator[MqttAdapter]:
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker.port, "client_id": "a"} | changes, MqttSettings)
    client: Any = gateway
    discovering = Discovering(client, base_iri=BASE, formats=settings.discovery, adopt="ask", devices_max=10)
    adapter = MqttAdapter(
        settings,
        Mapping(list(map(rule, TABLES))) if mapping is None else mapping,
        AdapterContext(client, now=time.clock, elapsed=time.elapsed),
        rules=DatasetRules(BASE),
        feed=client,
        discovering=discovering,
    )
    async with beside(adapter.run()) as task:
        async with asyncio.timeout(TIMEOUT_S):
            await adapter.brokers[FIRST_BROKER].inbox.subscribed.wait()
        yield adapter
        assert not task.done(), task


async def report(broker: Mosquitto, adapter: MqttAdapter, topic: str, payload: str = "21") -> None:
    """Returns when the reading is committed."""
    before = adapter.counters.committed
    await asyncio.to_thread(broker.publish, (topic, payload))
    await until(lambda: adapter.counters.committed > before)


async def report_regularly(
    broker: Mosquitto, adapter: MqttAdapter, time: Time, topic: str = "home/kitchen/climate", every: float = 60
) -> None:
    """So often that the interval is learned."""
    await report(broker, adapter, topic)
    for _ in range(REPORTS_MIN):
        time.elapsed_s += every
        await report(broker, adapter, topic)


@asynccontextmanager
async def kitchen_online(gateway: Gateway, time: Time) -> AsyncIterator[tuple[Mosquitto, MqttAdapter]]:
    """A broker and an adapter that has learned how often the kitchen reports."""
    with mosquitto() as broker:
        async with running(broker, gateway, time) as adapter:
            await report_regularly(broker, adapter, time)
            await until(lambda: gateway.online == {KITCHEN: "true"})
            yield broker, adapter


async def silent_until(time: Time, condition: Callable[[], bool], step_s: float = 10) -> float:
    """Lets the time go on until the condition holds; how long that took."""
    begin = time.elapsed_s
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            time.elapsed_s += step_s
            await asyncio.sleep(0.05)
    return time.elapsed_s - begin


def stop_process() -> None:
    """Nothing of this process runs for longer than the `STALL_S` of a test."""
    sleep(0.3)


async def checked(adapter: MqttAdapter) -> None:
    """The adapter has looked for silent devices, and again after the broker has delivered something."""
    inbox = adapter.brokers[FIRST_BROKER].inbox
    await asyncio.sleep(20 * silence.CHECK_S)
    if inbox.subscribed.is_set():
        before = inbox.arrivals
        inbox.demand_canary()
        await until(lambda: inbox.arrivals != before)
    await asyncio.sleep(20 * silence.CHECK_S)


async def test_a_silent_device_is_offline_with_the_time_of_its_last_report_and_online_with_its_next_one() -> None:
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (broker, adapter):
        assert [row["s"] for row in gateway.rows("?stream gateway:reportingInterval ?s")] == ["60"]
        last = time.clock()
        took = await silent_until(time, lambda: gateway.online == {KITCHEN: "false"})
        assert took >= 180
        assert {device: datetime.fromisoformat(seen) for device, seen in gateway.last_seen.items()} == {KITCHEN: last}
        await report(broker, adapter, "home/kitchen/button", "pressed")
        await until(lambda: gateway.online == {KITCHEN: "true"})
        assert gateway.last_seen == {}


async def test_irregular_devices_and_a_switched_off_setting_mark_nothing() -> None:
    gateway, time = Gateway(), Time()
    with mosquitto() as broker:
        async with running(broker, gateway, time) as adapter:
            for number in range(3 * REPORTS_MIN):
                time.elapsed_s += 20 + 50 * (number % 3)
                await report(broker, adapter, "home/kitchen/climate")
            time.elapsed_s += 100_000
            await checked(adapter)
        async with running(broker, gateway, time, offline_intervals=0) as adapter:
            await report_regularly(broker, adapter, time)
            time.elapsed_s += 100_000
            await checked(adapter)
    assert gateway.online == {} and gateway.rows("?stream gateway:reportingInterval ?s") == []


async def test_what_was_learned_survives_a_restart() -> None:
    gateway, time = Gateway(), Time()
    with mosquitto() as broker:
        async with running(broker, gateway, time) as adapter:
            await report_regularly(broker, adapter, time)
            await report_regularly(broker, adapter, time, "home/attic/climate")
            await until(lambda: len(gateway.online) == 2)
        last = time.clock()
        time.elapsed_s += 100_000  # the adapter was away
        async with running(broker, gateway, time) as adapter:
            time.elapsed_s += 120
            await report(broker, adapter, "home/kitchen/climate")
            await checked(adapter)
            assert set(gateway.online.values()) == {"true"}, "none is offline at once"
            time.elapsed_s += 60
            await report(broker, adapter, "home/kitchen/climate")
            time.elapsed_s += 120  # 300 s after the connection, and 120 s after the kitchen's report
            await until(lambda: gateway.online[f"{BASE}node/attic"] == "false")
            assert gateway.online[KITCHEN] == "true"
            assert gateway.last_seen[f"{BASE}node/attic"][:19] == last.isoformat()[:19]
        async with running(broker, gateway, time) as adapter:
            await report(broker, adapter, "home/attic/climate")
            await until(lambda: gateway.online[f"{BASE}node/attic"] == "true")


async def test_a_retained_message_is_no_sign_of_life() -> None:
    gateway, time = Gateway(), Time()
    with mosquitto() as broker:
        async with running(broker, gateway, time) as adapter:
            await report_regularly(broker, adapter, time)
            await silent_until(time, lambda: gateway.online == {KITCHEN: "false"})
        broker.publish(("home/kitchen/climate", "22"), retain=True)
        async with running(broker, gateway, time, client_id="b") as adapter:  # its session is new
            await until(lambda: adapter.counters.committed > 0)
            await checked(adapter)
            assert gateway.online == {KITCHEN: "false"}


async def test_a_process_that_was_stopped_makes_no_device_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (_, adapter):
        monkeypatch.setattr(silence, "STALL_S", 0.05)
        time.elapsed_s += 100_000
        stop_process()
        await checked(adapter)
        assert gateway.online == {KITCHEN: "true"}
        monkeypatch.setattr(silence, "STALL_S", float("inf"))
        await silent_until(time, lambda: gateway.online == {KITCHEN: "false"})


async def test_a_broker_that_is_away_makes_no_device_offline() -> None:
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (broker, adapter):
        subscribed = adapter.brokers[FIRST_BROKER].inbox.subscribed
        await asyncio.to_thread(broker.stop)
        await until(lambda: not subscribed.is_set())
        time.elapsed_s += 100_000
        await checked(adapter)
        await asyncio.to_thread(broker.start)
        await until(subscribed.is_set)
        time.elapsed_s += silence.RECONNECT_S + 170
        await checked(adapter)
        assert gateway.online == {KITCHEN: "true"}
        await silent_until(time, lambda: gateway.online == {KITCHEN: "false"})


@pytest.mark.parametrize("waits", [True, False], ids=["its report waits", "its report is under way"])
async def test_a_gateway_that_takes_nothing_makes_no_device_offline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    caplog.set_level(logging.INFO)
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (broker, adapter):
        inbox = adapter.brokers[FIRST_BROKER].inbox
        gateway.open.clear()
        before = [("home/attic/climate", "20")] if waits else []
        await asyncio.to_thread(broker.publish, *before, ("home/kitchen/climate", "21"))
        await until(lambda: bool(inbox.queue.under_way))
        time.elapsed_s += 100_000
        await checked(adapter)
        monkeypatch.setattr(silence, "STALL_S", -1.0)  # the commit counts as a long one
        gateway.open.set()
        await until(lambda: not inbox.queue.under_way and not len(inbox))
        monkeypatch.setattr(silence, "STALL_S", float("inf"))
        await checked(adapter)
        assert gateway.online == {KITCHEN: "true"}
        assert "mqtt device silent" not in caplog.text
        await silent_until(time, lambda: gateway.online == {KITCHEN: "false"})


async def test_a_broker_that_delivers_nothing_makes_no_device_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 2.5)
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (_, adapter):
        inbox = adapter.brokers[FIRST_BROKER].inbox
        inbox._canary.heard = lambda now: None  # type: ignore[method-assign]
        time.elapsed_s += 100_000
        await asyncio.sleep(2)  # longer than a canary takes
        assert gateway.online == {KITCHEN: "true"}
        del inbox._canary.heard
        await until(lambda: gateway.online == {KITCHEN: "false"})


async def test_an_availability_topic_takes_precedence_once_it_was_heard() -> None:
    topics = ({"topic": "node/status", "broker": FIRST_BROKER, "on": ["online"], "off": ["offline"]},)
    device = Device("n", "shelly", FIRST_BROKER, "node", availability=Availability(topics), sensors=(_sensor("n"),))
    registry = Registry(BASE)
    node = f"{BASE}device/shelly/n"
    gateway, time = Gateway(), Time()
    gateway.engine.update(registry.announced(None, device, "all") or "")
    with mosquitto() as broker:
        async with running(broker, gateway, time, Mapping([])) as adapter:
            await until(lambda: "node/n/t" in adapter.brokers[FIRST_BROKER].mapping.filters)
            async with asyncio.timeout(TIMEOUT_S):
                while not adapter.counters.committed:
                    await asyncio.to_thread(broker.publish, ("node/n/t", "20"))
                    await asyncio.sleep(0.05)
            await report_regularly(broker, adapter, time, "node/n/t")
            await silent_until(time, lambda: gateway.online == {node: "false"})
            assert set(gateway.last_seen) == {node}
            await asyncio.to_thread(broker.publish, ("node/status", "online"))
            await until(lambda: gateway.online == {node: "true"})
            assert gateway.last_seen == {}
            await report_regularly(broker, adapter, time, "node/n/t")
            time.elapsed_s += 100_000
            await checked(adapter)
            assert gateway.online == {node: "true"}
            await asyncio.to_thread(broker.publish, ("node/status", "offline"))
            await until(lambda: gateway.online == {node: "false"})
            await report(broker, adapter, "node/n/t")
            await checked(adapter)
            assert gateway.online == {node: "false"}


async def test_a_device_whose_rule_goes_is_not_watched_any_more() -> None:
    gateway, time = Gateway(), Time()
    async with kitchen_online(gateway, time) as (_, adapter):
        adapter.remap(Mapping([]))
        await until(lambda: gateway.online == {})
        await until(lambda: gateway.rows("?stream gateway:reportingInterval ?s") == [])


async def test_a_device_whose_rule_goes_while_the_adapter_is_stopped_is_forgotten() -> None:
    gateway, time = Gateway(), Time()
    attic = f"{BASE}node/attic"
    async with kitchen_online(gateway, time) as (broker, adapter):
        await report_regularly(broker, adapter, time, "home/attic/climate")
        await until(lambda: set(gateway.online) == {KITCHEN, attic})
    table = {"topic": "home/attic/climate", "payload": "number", "property": "gateway:temperature"}
    text = literal(json.dumps({"stream": table}))
    gateway.engine.update(f"{PREFIX} INSERT DATA {{ <x:rule> a gateway:Mapping ; gateway:rule {text} }}")
    with mosquitto() as broker:
        async with running(broker, gateway, time, Mapping([])):
            await until(lambda: set(gateway.online) == {attic})
            await until(lambda: len(gateway.rows("?stream gateway:reportingInterval ?s")) == 1)


def test_fewer_than_two_intervals_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="offline_intervals: write at least 2"):
        msgspec.convert({"offline_intervals": 1.5}, MqttSettings)


def _sensor(name: str) -> Sensor:
    table = {
        "topic": f"node/{name}/t",
        "broker": FIRST_BROKER,
        "payload": "number",
        "property": "gateway:temperature",
        "sensor": f"sensor/shelly/{name}/t",
        "platform": f"device/shelly/{name}",
        "feature": f"device/shelly/{name}",
    }
    return Sensor("t", "gateway:temperature", "temperature", json.loads(json.dumps(table)))
