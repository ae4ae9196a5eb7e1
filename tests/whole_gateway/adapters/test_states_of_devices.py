"""What the dataset says of the states of devices is true, or it says that it does not know: a real mosquitto and a
running gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.adapters.mapping import CommandTable, Mapping, command_rule, protobuf
from lamplighter.adapters.mqtt import inbox
from lamplighter.gateway.addresses import Addresses
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.coap_processes import AdapterProcess
from tests.support.event_loops import until
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.mapping_rules import BASE, rules
from tests.support.mqtt_adapter import mqtt_adapter
from tests.support.running_gateway import TIMEOUT_S, rows, running_gateway, until_it_is

PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
UNCONFIRMED = """SELECT DISTINCT ?stream ?value ?last WHERE {
  ?stream gateway:liveObservation ?reading ; gateway:receivedFrom/gateway:since ?since .
  ?reading sosa:hasSimpleResult ?value OPTIONAL { ?reading sosa:resultTime ?last }
  FILTER(!BOUND(?last) || ?last < ?since) }"""
"""As docs/mqtt-devices.md has it."""


def states(addresses: Addresses) -> Callable[[], Awaitable[dict[str, str]]]:
    """Topic -> value, or the reason why there is none in angle brackets."""

    async def found() -> dict[str, str]:
        query = """SELECT ?topic ?value ?nil { ?stream gateway:mqttTopic ?topic ; gateway:liveObservation ?reading
            OPTIONAL { ?reading sosa:hasSimpleResult ?value } OPTIONAL { ?reading gateway:nilReason ?nil } }"""
        listed = await rows(addresses, PREFIX + query)
        return {row["topic"]: row["value"] if "value" in row else f"<{row.get('nil')}>" for row in listed}

    return found


def unconfirmed(addresses: Addresses) -> Callable[[], Awaitable[list[str]]]:
    """Values that nothing has confirmed."""

    async def found() -> list[str]:
        return sorted(row["value"] for row in await rows(addresses, PREFIX + UNCONFIRMED))

    return found


async def publish(broker: Mosquitto, topic: str, payload: str | bytes, *, retain: bool = False, qos: int = 1) -> None:
    await asyncio.to_thread(broker.publish, (topic, payload), retain=retain, qos=qos)


HOUSE = rules(
    """
    [[stream]]
    topic = "motion"
    payload = "boolean"
    property = "ex:motion"
    off_delay_s = 0.4
    [[stream]]
    topic = "power"
    payload = "number"
    property = "ex:power"
    expire_after_s = 0.4
    [[stream]]
    topic = "door"
    payload = "boolean"
    property = "ex:door"
    on_repeat = "ignore"
    """
)


async def test_values_end_by_the_clock_of_the_gateway_and_while_no_adapter_runs(tmp_path: Path) -> None:
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses:
            async with mqtt_adapter(addresses, broker, HOUSE) as adapter:
                await adapter.brokers["default"].inbox.subscribed.wait()
                await publish(broker, "motion", "on")
                await publish(broker, "power", "5")
                await until_it_is(states(addresses), {"motion": "false", "power": "<expired>"})
                await publish(broker, "power", "6")
                await publish(broker, "motion", "on")
                await until_it_is(states(addresses), {"motion": "true", "power": "6"})
            await until_it_is(states(addresses), {"motion": "false", "power": "<expired>"})


async def test_value_that_ends_while_the_gateway_is_off_is_over_at_its_start(tmp_path: Path) -> None:
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses, mqtt_adapter(addresses, broker, HOUSE) as adapter:
            await adapter.brokers["default"].inbox.subscribed.wait()
            await publish(broker, "power", "5")
            await until_it_is(states(addresses), {"power": "5"})
        async with running_gateway(tmp_path) as addresses:
            await until_it_is(states(addresses), {"power": "<expired>"})


async def test_state_is_unconfirmed_after_a_reconnection_until_its_device_reports(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(inbox, "BACKOFF_MAX_ONCE_CONNECTED_S", 0.2)
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses:
            async with mqtt_adapter(addresses, broker, HOUSE) as adapter:
                connections = adapter.counters
                await adapter.brokers["default"].inbox.subscribed.wait()
                await publish(broker, "door", "on")
                await until_it_is(states(addresses), {"door": "true"})
                await until_it_is(unconfirmed(addresses), [])
                await asyncio.to_thread(broker.stop)
                await asyncio.to_thread(broker.start)
                await until_it_is(unconfirmed(addresses), ["true"])
                async with asyncio.timeout(TIMEOUT_S):
                    while connections.connections < 2 or not adapter.brokers["default"].inbox.subscribed.is_set():
                        await asyncio.sleep(0.02)
                await publish(broker, "door", "on")  # the same value, which the rule ignores otherwise
                await until_it_is(unconfirmed(addresses), [])
            async with mqtt_adapter(addresses, broker, HOUSE):
                await until_it_is(unconfirmed(addresses), ["true"])


UNCONFIRMED_STATES = """SELECT DISTINCT ?actuator ?state ?last WHERE {
  ?actuator gateway:reportedState ?state ; gateway:receivedFrom/gateway:since ?since
  OPTIONAL { ?actuator gateway:reportedTime ?last }
  FILTER(!BOUND(?last) || ?last < ?since) }"""


async def test_state_of_an_actuator_is_unconfirmed_after_each_absence_until_its_device_reports(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(inbox, "BACKOFF_MAX_ONCE_CONNECTED_S", 0.2)
    table = {"topic": "lamp/set", "actuator": "actuator/lamp", "state": {"topic": "lamp", "payload": "boolean"}}
    made = command_rule(msgspec.convert(table, CommandTable), prefixes=PREFIXES, base_iri=BASE, place="line 1")
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses:

            async def doubted() -> list[str]:
                return [row["state"] for row in await rows(addresses, PREFIX + UNCONFIRMED_STATES)]

            async def reported() -> list[str]:
                return [row["x"] for row in await rows(addresses, PREFIX + "SELECT ?x { ?a gateway:reportedState ?x }")]

            async with mqtt_adapter(addresses, broker, Mapping([], [made]), switches=True) as adapter:
                here, counters = adapter.brokers["default"].inbox, adapter.counters
                await here.subscribed.wait()
                await publish(broker, "lamp", "on")
                await until_it_is(reported, ["true"])
                await until_it_is(doubted, [])
                connections = counters.connections
                await asyncio.to_thread(broker.stop)
                await asyncio.to_thread(broker.start)
                await until_it_is(doubted, ["true"])
                async with asyncio.timeout(TIMEOUT_S):
                    while counters.connections == connections or not here.subscribed.is_set():
                        await asyncio.sleep(0.02)
                # At QoS 0: of what is not acknowledged when the adapter ends, the next one would be told as news.
                await publish(broker, "lamp", "on", qos=0)
                await until_it_is(doubted, [])
                received = counters.received
                await publish(broker, "lamp", "on", retain=True, qos=0)
                await until(lambda: counters.received > received)
            async with mqtt_adapter(addresses, broker, Mapping([], [made]), switches=True) as adapter:
                await until_it_is(doubted, ["true"])
                async with asyncio.timeout(TIMEOUT_S):
                    while not adapter.counters.received:  # the message that the broker had stored confirms nothing
                        await asyncio.sleep(0.02)
                assert await doubted() == ["true"]


CONFIRMED = """SELECT ?value WHERE {
  ?stream gateway:liveObservation ?reading .
  ?reading sosa:hasSimpleResult ?value ; sosa:resultTime ?last
  FILTER NOT EXISTS { ?stream gateway:receivedFrom/gateway:since ?since FILTER(?since > ?last) } }"""


async def test_state_is_unconfirmed_after_a_restart_of_the_gateway_that_the_adapter_outlives(tmp_path: Path) -> None:
    table = {"host": "127.0.0.1", "adopt": "all", "discovery": []}
    (tmp_path / "mapping").mkdir()
    rule = '[[stream]]\ntopic = "door"\npayload = "boolean"\nproperty = "gateway:contact"\non_repeat = "ignore"\n'
    (tmp_path / "mapping" / "door.toml").write_text(rule)
    with mosquitto() as broker:
        tables: dict[str, Any] = {"mqtt": table | {"port": broker.port}, "coap": {"enabled": False}}
        with GatewayProcess(tmp_path, **tables) as gateway:
            adapter = AdapterProcess(gateway, "mqtt", gateway.config)
            adapter.start()
            try:

                def values(query: str) -> list[str]:
                    return [row["value"] for row in gateway.rows(PREFIX + query)]

                wait_for(lambda: broker.publish(("door", "on")) or values(CONFIRMED) == ["true"], what="the value")
                gateway.end(signal.SIGKILL)
                gateway.start()
                wait_for(lambda: values(UNCONFIRMED) == ["true"], what="the doubt")
                assert values(CONFIRMED) == []
                broker.publish(("door", "on"))  # the same value, which the rule ignores otherwise
                wait_for(lambda: values(UNCONFIRMED) == [] and values(CONFIRMED) == ["true"], what="the confirmation")
            finally:
                adapter.end(signal.SIGKILL)


def metric(name: str, *, value: int | None = None, alias: int | None = None, **fields: int) -> bytes:
    found = protobuf.bytes_field(1, name.encode()) if name else b""
    if alias is not None:
        found += protobuf.varint_field(2, alias)
    numbers = {"type": 4, "historical": 5, "null": 7}
    for key, number in fields.items():
        found += protobuf.varint_field(numbers[key], number)
    return protobuf.bytes_field(2, found if value is None else found + protobuf.varint_field(11, value))


SPARKPLUG = rules(
    """
    [[stream]]
    topic = "spBv1.0/g/{type}/{node}"
    payload = "sparkplug"
    property = "ex:{n}"
    [[stream]]
    topic = "spBv1.0/g/{type}/{node}/{device}"
    payload = "sparkplug"
    property = "ex:{n}"
    """
)


async def test_death_of_a_sparkplug_node_ends_the_values_of_its_devices(tmp_path: Path) -> None:
    node, device = "spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d"
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses, mqtt_adapter(addresses, broker, SPARKPLUG) as adapter:
            await adapter.brokers["default"].inbox.subscribed.wait()
            born = metric("bdSeq", value=7, type=8) + metric("a", alias=1, value=1, type=4)
            await publish(broker, "spBv1.0/g/NBIRTH/n", born)
            await publish(broker, "spBv1.0/g/DBIRTH/n/d", metric("b", alias=2, value=2, type=4))
            await until_it_is(states(addresses), {node: "1", device: "2"})
            await publish(broker, "spBv1.0/g/DDATA/n/d", metric("", alias=2, value=9, historical=1))
            await publish(broker, "spBv1.0/g/NDATA/n", metric("", alias=1, null=1))
            await until_it_is(states(addresses), {node: "<unknown>", device: "2"})
            await publish(broker, "spBv1.0/g/NDEATH/n", metric("bdSeq", value=6))
            await publish(broker, "spBv1.0/g/NDATA/n", metric("", alias=1, value=4))
            await until_it_is(states(addresses), {node: "4", device: "2"})
            await publish(broker, "spBv1.0/g/NDEATH/n", metric("bdSeq", value=7))
            await until_it_is(states(addresses), {node: "<offline>", device: "<offline>"})
            await publish(broker, "spBv1.0/g/NBIRTH/n", born)
            await until_it_is(states(addresses), {node: "1", device: "<offline>"})
