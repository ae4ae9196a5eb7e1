"""The MQTT adapter between a real broker and a running gateway, in the process of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import Mosquitto

BASE = "http://lamplighter.local/"


@asynccontextmanager
async def mqtt_adapter(
    addresses: Addresses, broker: Mosquitto, mapping: Mapping, *, switches: bool = False, **settings: Any
) -> AsyncIterator[MqttAdapter]:
    """A running adapter, with the rules of `mapping` only. switches: it follows desired states, too. settings: further
    ones."""
    async with EngineClient(addresses.subscribe, name="mqtt") as client:
        mqtt = MqttSettings(host="127.0.0.1", port=broker.port, client_id="adapter", **settings)
        adapter = MqttAdapter(mqtt, mapping, AdapterContext(client, BASE), feed=client if switches else None)
        task = asyncio.create_task(adapter.run())
        try:
            yield adapter
        finally:
            task.cancel()
            await asyncio.wait([task])
