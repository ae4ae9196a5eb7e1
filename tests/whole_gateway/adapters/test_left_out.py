"""A house with announcements of all ecosystems: `lamplighter devices problems` lists all that is left out of them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS
from lamplighter.engine.client import EngineClient
from tests.adapters.mqtt.discovery.test_left_out import birth
from tests.support.announcements import announcements
from tests.support.commands import command
from tests.support.event_loops import beside
from tests.support.running_gateway import TIMEOUT_S, running_gateway

BASE = "http://lamplighter.local/"
Message = tuple[str, bytes]


def house() -> list[Message]:
    """The announcements of each format, each with something that no format knows."""
    messages: list[Message] = [("spBv1.0/plant/NBIRTH/press", birth(engHigh=b"50"))]
    for name in ("zigbee2mqtt", "homeassistant", "tasmota", "shelly"):
        for topic, payload in announcements(name):
            document: Any = json.loads(payload) if payload[:1] in (b"{", b"[") else None
            if isinstance(document, list):
                for entry in document:
                    entry["frobnicate"] = True
            elif isinstance(document, dict) and "params" in document:
                document["params"]["frobnicate:0"] = {"id": 0}
            elif isinstance(document, dict):
                document["frobnicate"] = True
            messages.append((topic, payload if document is None else json.dumps(document).encode()))
    return [*messages, ("shellies/shellyswitch25-B929CC/longpush/0", b"1")]


async def test_all_that_is_left_out_is_listed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses, EngineClient(addresses.subscribe, name="mqtt") as client:
        toml = tmp_path / "lamplighter.toml"
        toml.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")
        part = Discovering(client, base_iri=BASE, formats=FORMATS, adopt="ask", devices_max=100)
        async with beside(part.feed.run()):
            await asyncio.wait_for(part.feed.ready.wait(), TIMEOUT_S)
            for topic, payload in house():
                part.take("default", topic, payload)
            listed: dict[str, list[str]] = {}
            async with asyncio.timeout(TIMEOUT_S):
                while len(EXPECTED.keys() - listed.keys()) or not all(
                    all(text in str(listed[device]) for text in texts) for device, texts in EXPECTED.items()
                ):
                    done = await asyncio.to_thread(command, "devices", "problems", "--json", "--config", toml)
                    listed = defaultdict(list)
                    for line in done.stdout.splitlines():
                        row = json.loads(line)
                        device = (row["device"] or "").partition("/device/")[2]
                        listed[device].append(row["reason"])
            plain = await asyncio.to_thread(command, "devices", "problems", "--config", toml)
            assert "topics: longpush/0" in plain.stdout
        assert {device for device in listed if device} <= EXPECTED.keys() | {"homeassistant/a8032abe54dc"}


EXPECTED = {
    "zigbee2mqtt/0x00158d0001e82a4c": ["frobnicate"],
    "zigbee2mqtt/0x00158d0002b4e1f7": ["frobnicate"],
    "zigbee2mqtt/0xa4c138f00d2b77aa": ["frobnicate"],
    "zigbee2mqtt/0xa4c13895af2c1df3": ["frobnicate", "schedule: the value of the type list"],
    "zigbee2mqtt/0x84fd27fffe1b3c55": ["frobnicate"],
    "zigbee2mqtt/0xbc33acfffe62e0b1": ["frobnicate"],
    "zigbee2mqtt/0x00158d00cafe0001": ["the device, which Zigbee2MQTT does not know"],
    "homeassistant/a8032abe54dc": ["frobnicate"],
    "homeassistant/02_5b_26_a8_dc_12~3e4f16271dcb": ["frobnicate"],
    "homeassistant/ea334450945afc": ["frobnicate"],
    "homeassistant/living-1": ["frobnicate"],
    "homeassistant/blind-1": ["frobnicate"],
    "tasmota/E09806F17F56": ["frobnicate"],
    "tasmota/8CAAB5610A22": ["frobnicate"],
    "tasmota/8CAAB5610B33": ["frobnicate"],
    "shelly/98F4ABB929CC": ["frobnicate", "longpush/0"],
    "shelly/A8032ABE54DC": ["frobnicate:0"],
    "shelly/08B61FCB7F3C": ["frobnicate:0"],
    "sparkplug/plant_press~6d26a039a67f": ["property engHigh"],
}
"""What is listed of each device."""
