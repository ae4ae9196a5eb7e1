"""A house of hundreds of devices at a broker with its default limits, at the start of the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import EngineClient
from tests.support.amounts import Amounts
from tests.support.brokers import mosquitto
from tests.support.event_loops import beside
from tests.support.running_gateway import rows, running_gateway

TIMEOUT_S = 240.0
BASE = "http://lamplighter.local/"
ENTITIES, QUEUED = 10, 1_020
"""Announcements of a device; messages that the broker keeps of a session at QoS 1."""
PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "


def house(devices: int) -> list[tuple[str, str]]:
    """Retained announcements of Home Assistant's format, and a retained state of each entity."""
    messages = []
    for number in range(devices):
        for entity in range(ENTITIES):
            announcement = {
                "name": f"value {entity}",
                "unique_id": f"device{number}_value{entity}",
                "state_topic": f"house/{number}/{entity}",
                "device": {"identifiers": [f"device{number}"], "name": f"device {number}"},
            }
            topic = f"homeassistant/sensor/device{number}/value{entity}/config"
            messages.append((topic, json.dumps(announcement)))
            messages.append((f"house/{number}/{entity}", str(number * ENTITIES + entity)))
    return messages


async def test_every_device_and_every_state_is_there_after_the_start(tmp_path: Path, amounts: Amounts) -> None:
    devices = amounts.of(300, least=60)
    messages = house(devices)
    assert len(messages) > QUEUED
    with mosquitto() as broker:
        await asyncio.to_thread(broker.publish, *messages, retain=True)
        async with running_gateway(tmp_path) as addresses, EngineClient(addresses.subscribe, name="mqtt") as client:
            settings = MqttSettings(host="127.0.0.1", port=broker.port, client_id="adapter", adopt="all")
            found = Discovering(
                client, base_iri=BASE, formats=settings.discovery, adopt="all", devices_max=settings.devices_max
            )
            rules = DatasetRules(BASE)
            adapter = MqttAdapter(
                settings, Mapping([]), AdapterContext(client, BASE), rules=rules, feed=client, discovering=found
            )
            async with beside(adapter.run()), asyncio.timeout(TIMEOUT_S):
                values: set[str] = set()
                while values != {payload for topic, payload in messages if topic.startswith("house/")}:
                    await asyncio.sleep(0.2)
                    found_rows = await rows(
                        addresses, f"{PREFIX} SELECT (STR(?v) AS ?value) {{ ?o sosa:hasSimpleResult ?v }}"
                    )
                    values = {row["value"] for row in found_rows}
            assert len(await rows(addresses, f"{PREFIX} SELECT ?d {{ ?d a gateway:Device }}")) == devices
