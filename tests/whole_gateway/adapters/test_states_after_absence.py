"""What devices were switched to while the gateway was away is corrected: a real mosquitto and a running gateway.

The devices of the test have no memory at the broker: they answer when they are asked, or report periodically.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt import state_asks
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.event_loops import beside
from tests.support.running_gateway import TIMEOUT_S, rows, running_gateway, until_it_is

BASE = "http://lamplighter.local/"
PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "

Answer = Callable[[str, bytes], list[tuple[str, str]]]
"""Topic and payload of a message -> messages of the device."""


@pytest.fixture(autouse=True)
def no_second_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_asks, "AGAIN_S", 3_600.0)


@contextmanager
def device(broker: Mosquitto, topic: str, answer: Answer) -> Iterator[list[str]]:
    """A device that reads a topic, and answers. It says when it is online. Yields the messages that it got."""
    client, heard, ready = mqtt.Client(CallbackAPIVersion.VERSION2), [], threading.Event()

    def on_message(_client: object, _userdata: object, message: mqtt.MQTTMessage) -> None:
        heard.append(message.payload.decode())
        for place, payload in answer(message.topic, message.payload):
            client.publish(place, payload)

    client.on_message = on_message
    client.on_connect = lambda *_: client.subscribe(topic)

    def on_subscribe(*_: object) -> None:
        client.publish("tele/plug/LWT", "Online", retain=True)
        ready.set()

    client.on_subscribe = on_subscribe
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        assert ready.wait(TIMEOUT_S)
        yield heard
    finally:
        client.disconnect()
        client.loop_stop()


@asynccontextmanager
async def adapter(addresses: Addresses, broker: Mosquitto, source: str) -> AsyncIterator[MqttAdapter]:
    settings = MqttSettings(host="127.0.0.1", port=broker.port, client_id="adapter", discovery=(source,), adopt="all")
    async with EngineClient(addresses.subscribe, name="mqtt") as client:
        discovering = Discovering(client, base_iri=BASE, formats=[source], adopt="all", devices_max=10)
        running = MqttAdapter(
            settings,
            Mapping([]),
            AdapterContext(client, BASE),
            rules=DatasetRules(BASE),
            feed=client,
            discovering=discovering,
        )
        async with beside(running.run()):
            yield running


async def until(addresses: Addresses, wanted: dict[str, str]) -> None:
    """Waits for the values of sensors, by the end of the sensor's IRI."""
    query = f"{PREFIX} SELECT ?sensor ?value {{ ?reading sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"

    async def values() -> dict[str, str | None]:
        found = {row["sensor"].rpartition("/")[2]: row["value"] for row in await rows(addresses, query)}
        return {key: found.get(key) for key in wanted}

    await until_it_is(values, wanted)


async def publish(broker: Mosquitto, topic: str, message: Any, *, retain: bool = False) -> None:
    text = message if isinstance(message, str) else json.dumps(message)
    await asyncio.to_thread(broker.publish, (topic, text), retain=retain)


TASMOTA = {
    "ip": "192.0.2.9", "dn": "Plug", "fn": ["Plug"], "hn": "plug", "mac": "0A1B2C3D4E5F", "md": "Some plug",
    "ofln": "Offline", "onln": "Online", "state": ["OFF", "ON", "TOGGLE", "HOLD"], "t": "plug",
    "ft": "%prefix%/%topic%/", "tp": ["cmnd", "stat", "tele"], "rl": [1, 0], "so": {}, "lk": 1, "lt_st": 0, "ver": 1,
}  # fmt: skip
TELEMETRY = {"sn": {"ENERGY": {"Power": 0}}, "ver": 1}


async def test_tasmota_is_asked_on_each_connection_and_its_periodic_state_is_read(tmp_path: Path) -> None:
    state = {"POWER": "ON", "ENERGY": {"Power": 5}}

    def answer(_topic: str, payload: bytes) -> list[tuple[str, str]]:
        sensors, system = {"StatusSNS": {"ENERGY": state["ENERGY"]}}, {"StatusSTS": {"POWER": state["POWER"]}}
        about = sensors if payload == b"10" else system
        return [(f"stat/plug/STATUS{payload.decode()}", json.dumps(about))]

    with mosquitto() as broker, device(broker, "cmnd/plug/STATUS", answer):
        await publish(broker, "tasmota/discovery/0A1B2C3D4E5F/config", TASMOTA, retain=True)
        await publish(broker, "tasmota/discovery/0A1B2C3D4E5F/sensors", TELEMETRY, retain=True)
        async with running_gateway(tmp_path) as addresses:
            async with adapter(addresses, broker, "tasmota"):
                await until(addresses, {"POWER": "true", "ENERGY.Power": "5"})
                await publish(broker, "tele/plug/STATE", {"Time": "2026-11-21T12:00:00", "POWER": "OFF"})
                await until(addresses, {"POWER": "false"})
                await publish(broker, "stat/plug/POWER", "ON")
                await until(addresses, {"POWER": "true"})
                await publish(broker, "tele/plug/SENSOR", {"ENERGY": {"Power": 7}})
                await until(addresses, {"ENERGY.Power": "7"})
            state |= {"POWER": "OFF", "ENERGY": {"Power": 0}}  # by hand, while nobody listens
            async with adapter(addresses, broker, "tasmota"):
                await until(addresses, {"POWER": "false", "ENERGY.Power": "0"})
                await asyncio.to_thread(broker.stop)
                state |= {"POWER": "ON"}
                await asyncio.to_thread(broker.start)
                await until(addresses, {"POWER": "true"})


async def test_shelly_is_asked_on_each_connection_and_its_components_are_read(tmp_path: Path) -> None:
    state: dict[str, Any] = {"id": 0, "output": True, "apower": 9.5}

    def answer(_topic: str, payload: bytes) -> list[tuple[str, str]]:
        call = json.loads(payload)
        assert call["method"] == "Shelly.GetStatus"
        about = {"id": call["id"], "src": "shellyplugs-0a1b2c3d4e5f", "dst": call["src"], "result": {"switch:0": state}}
        return [(f"{call['src']}/rpc", json.dumps(about))]

    notified = {"src": "shellyplugs-0a1b2c3d4e5f", "method": "NotifyStatus", "params": {"switch:0": state}}
    with mosquitto() as broker, device(broker, "plug/rpc", answer):
        async with running_gateway(tmp_path) as addresses:
            async with adapter(addresses, broker, "shelly") as running:
                await running.brokers["default"].inbox.subscribed.wait()
                await publish(broker, "plug/events/rpc", notified)
                await until(addresses, {"switch.0.output": "true", "switch.0.apower": "9.5"})
                await publish(broker, "plug/status/switch:0", {"id": 0, "output": False, "apower": 0})
                await until(addresses, {"switch.0.output": "false", "switch.0.apower": "0"})
            state |= {"output": True, "apower": 3}
            async with adapter(addresses, broker, "shelly"):
                await until(addresses, {"switch.0.output": "true", "switch.0.apower": "3"})


async def test_zigbee_device_is_asked_on_each_connection(tmp_path: Path) -> None:
    state = {"state": "ON"}
    exposed = {
        "type": "binary",
        "name": "state",
        "property": "state",
        "access": 7,
        "value_on": "ON",
        "value_off": "OFF",
    }
    listed = [
        {
            "ieee_address": "0x00158d0001e82a4c",
            "type": "Router",
            "friendly_name": "plug",
            "definition": {"vendor": "V", "model": "M", "exposes": [{"type": "switch", "features": [exposed]}]},
        }
    ]

    def answer(_topic: str, _payload: bytes) -> list[tuple[str, str]]:
        return [("zigbee2mqtt/plug", json.dumps(state))]

    with mosquitto() as broker, device(broker, "zigbee2mqtt/plug/get", answer) as heard:
        await publish(broker, "zigbee2mqtt/bridge/devices", listed, retain=True)
        async with running_gateway(tmp_path) as addresses:
            async with adapter(addresses, broker, "zigbee2mqtt"):
                await until(addresses, {"state": "true"})
            state["state"] = "OFF"
            async with adapter(addresses, broker, "zigbee2mqtt"):
                await until(addresses, {"state": "false"})
        assert set(heard) == {'{"state": ""}'}


async def test_announcer_that_retains_nothing_hears_the_birth_message(tmp_path: Path) -> None:
    state = {"now": "21"}
    config = {"name": "Temperature", "unique_id": "t1", "device_class": "temperature", "state_topic": "porch/t"}
    config["device"] = {"identifiers": ["porch"], "name": "Porch"}  # type: ignore[assignment]

    def answer(_topic: str, payload: bytes) -> list[tuple[str, str]]:
        assert payload == b"online"
        return [("homeassistant/sensor/porch/config", json.dumps(config)), ("porch/t", state["now"])]

    with mosquitto() as broker, device(broker, "homeassistant/status", answer):
        async with running_gateway(tmp_path) as addresses:
            async with adapter(addresses, broker, "homeassistant") as running:
                await running.brokers["default"].inbox.subscribed.wait()
                query = f"{PREFIX} SELECT ?device {{ ?device a gateway:Device }}"
                async with asyncio.timeout(TIMEOUT_S):
                    while not await rows(addresses, query):
                        await asyncio.sleep(0.05)
            async with adapter(addresses, broker, "homeassistant"):
                await until(addresses, {"t1": "21"})
