"""Devices as the adapters write them, for the Web of Things; the published JSON Schema of Thing Descriptions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mapping import Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.components import missing, require_command
from tests.support.places import ROOT

BASE = "http://lamplighter.local/"
INSTALLED = ROOT / "build" / "wot"
HALL, TOPIC = "zigbee2mqtt/0x00158d0001e82a4c", "zigbee2mqtt/hall"
HALL_IRI = f"{BASE}device/{HALL}"
ACTUATORS = f"{BASE}actuator/{HALL}/"


def node_environment() -> dict[str, str]:
    """The environment in which Node finds node-wot and the schema."""
    if not (INSTALLED / "installed").exists():
        missing(f"{INSTALLED} is not there; sh tests/fetch-npm.sh tests/wot build/wot node-wot")
    return {**os.environ, "NODE_PATH": str(INSTALLED / "node_modules")}


def schema_faults(descriptions: Sequence[Any]) -> list[list[str]]:
    """What the JSON Schema of TD 1.1, as the W3C publishes it, finds in each description."""
    done = subprocess.run(
        [require_command("node"), str(ROOT / "tests" / "wot" / "validate.js")],
        input="".join(json.dumps(one) + "\n" for one in descriptions),
        env=node_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(descriptions)
    return found


def hall() -> Device:
    """A device that was announced: it senses temperature and motion, and switches and dims a light."""
    draft = Draft(
        *HALL.split("/"),
        broker="default",
        topic="zigbee2mqtt/bridge/devices",
        about=DeviceTexts("hall", "Aqara", "X1", "Hall"),
    )
    draft.sensor("temperature", "gateway:temperature", TOPIC, "number", member=["temperature"], unit="°C")
    draft.sensor("motion", "gateway:motion", TOPIC, "boolean", member=["occupancy"], on=[True], off=[False])
    set_topic, values = f"{TOPIC}/set", {"true": "ON", "false": "OFF"}
    draft.actuator("light", "gateway:light", set_topic, payload='{"state": "{value}"}', values=values)
    draft.actuator("level", "gateway:brightness", set_topic, payload='{"level": {json}}', minimum=0, maximum=254)
    draft.actuator("effect", "gateway:effect", set_topic, values={"blink": "blink", "okay": "okay"})
    assert not draft.problems
    return draft.device()


def adoption(device: Device) -> str:
    """The update by which the dataset has an adopted device."""
    text = Registry(BASE).announced(None, device, "all")
    assert text is not None
    return text


def readings(device: Device, topic: str, payload: str) -> list[Reading]:
    tables = [rule["stream"] for rule in Registry(BASE).rules(device).values() if "stream" in rule]
    rules = [
        StreamRule(msgspec.convert(table, StreamTable), prefixes=PREFIXES, base_iri=BASE, place=f"rule {number}")
        for number, table in enumerate(tables)
    ]
    found = Mapping(rules).readings(topic, payload.encode(), retained=False, received=datetime.now(UTC))
    assert all(isinstance(one, Reading) for one in found)
    return [one for one in found if isinstance(one, Reading)]


def reading_updates(device: Device, topic: str, payload: str, model: LatestModel | EventModel) -> Iterator[str]:
    """The updates of a message, as the adapter writes them."""
    for one in readings(device, topic, payload):
        yield model.description(one.stream)
        yield from model.updates(one)
