"""Nothing that an ecosystem publishes is silent: a value that is right, a problem that names it, or a topic in
`devices unread`. A real mosquitto, the adapter and a running gateway; a file for each ecosystem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mqtt import sampling
from lamplighter.adapters.mqtt.parts import MqttParts
from lamplighter.adapters.mqtt.sampling import device_topics
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import mosquitto
from tests.support.event_loops import beside
from tests.support.places import ROOT
from tests.support.running_gateway import http, rows, running_gateway

BASE = "http://lamplighter.local/"
FOLDER = ROOT / "tests" / "adapters" / "mqtt" / "ecosystems"
ECOSYSTEMS = sorted(path.stem for path in FOLDER.glob("*.json"))
PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
STREAMS = """SELECT ?topic ?property ?value ?nil {
  ?stream gateway:mqttTopic ?topic ; gateway:liveObservation ?o . ?o sosa:observedProperty ?property
  OPTIONAL { ?o sosa:hasSimpleResult ?value } OPTIONAL { ?o gateway:nilReason ?nil } }"""
REPORTED = "SELECT ?actuator ?value { ?actuator gateway:reportedState ?value }"
PROBLEMS = """SELECT ?topic ?reason { GRAPH ?g {
  ?p a gateway:ReportedProblem ; gateway:mqttTopic ?topic ; gateway:reason ?reason } }"""
ROUNDS_MAX = 100


@dataclass(frozen=True)
class Ecosystem:
    """What the file of an ecosystem has. messages: by topic; announcements: topics whose messages announce a device
    or describe it; without_value: topics whose messages say that there is no value, or are of a device that is left
    alone; devices: identities of those that are announced; values: by topic and local name of the property, as they
    must be in the dataset."""

    messages: dict[str, bytes]
    announcements: Collection[str]
    without_value: Collection[str]
    devices: Collection[str]
    values: dict[str, str]

    @classmethod
    def read(cls, name: str) -> Ecosystem:
        document = json.loads((FOLDER / f"{name}.json").read_text())
        messages = {topic: _payload(payload) for topic, payload in document["messages"].items()}
        lists = (document.get(name, ()) for name in ("announcements", "without_value", "devices"))
        return cls(messages, *lists, document.get("values", {}))


def _payload(payload: Any) -> bytes:
    """A text as it is, bytes as hexadecimal digits, all else as JSON."""
    if isinstance(payload, dict) and payload.keys() == {"hex"}:
        return bytes.fromhex(payload["hex"])
    return payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()


@dataclass(frozen=True)
class Told:
    """What the gateway says. filters: of topics that it says something of; reasons: of problems; devices: identities of
    those that are adopted; values: as of `Ecosystem`, of readings and of states that actuators report."""

    filters: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)

    def names(self, topic: str) -> bool:
        """Whether it says something of a topic. A problem of a device names topics below the device."""
        if any(topic_matches_sub(one, topic) for one in self.filters):
            return True
        below = topic.split("/", 2)[2:]
        return bool(below) and any(below[0] in reason for reason in self.reasons)


async def told(addresses: Addresses) -> Told:
    problems = await rows(addresses, PREFIX + PROBLEMS)
    topics = {row["topic"] for row in problems}
    unread = (await http(addresses.query.replace("/query", "/messages/unread"))).json
    topics.update(one["place"] for one in unread["unread"])
    values: dict[str, str] = {}
    for row in await rows(addresses, PREFIX + STREAMS):
        topics.add(row["topic"])
        values[f"{row['topic']} {_local(row['property'])}"] = row["value"] if "value" in row else f"<{row.get('nil')}>"
    reported = {row["actuator"]: row["value"] for row in await rows(addresses, PREFIX + REPORTED)}
    devices = set()
    for row in await rows(addresses, Registry(BASE).query):
        device = Device.from_json(row["announcement"])
        devices.add(device.identity)
        topics.update(device_topics(device))
        for one in device.actuators:
            value = reported.get(lexical(Registry(BASE).actuator_iri(one)))
            if one.state is not None and value is not None:
                values[f"{one.state['topic']} {_local(one.kind)}"] = value
    return Told(topics, {row["reason"] for row in problems}, devices, values)


def _local(name: str) -> str:
    return name.replace("#", ":").replace("/", ":").rpartition(":")[2]


@pytest.mark.parametrize("name", ECOSYSTEMS)
async def test_each_message_is_a_right_value_or_a_problem_or_unread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr(sampling, "ASKED_AGAIN_S", 0.1)
    monkeypatch.setattr(sampling, "SAMPLE_S", 1.0)
    of = Ecosystem.read(name)
    with mosquitto() as broker:
        async with running_gateway(tmp_path) as addresses, EngineClient(addresses.subscribe, name="mqtt") as client:
            context = AdapterContext(client)
            client.offer_messages(context.last.find, context.unread.find)
            settings = MqttSettings(host="127.0.0.1", port=broker.port, client_id="adapter", adopt="all")
            adapter = MqttParts(settings, BASE, ([], [], [])).adapter(context, None)
            async with beside(adapter.run()):
                await adapter.tried.wait()
                found = Told()
                missing: list[str] = []
                for _ in range(ROUNDS_MAX):
                    # Again, as devices do: an announcement comes first, and nothing else is retained.
                    for topic, payload in of.messages.items():
                        await asyncio.to_thread(broker.publish, (topic, payload))
                    found = await told(addresses)
                    missing = [
                        *(
                            one
                            for one in of.messages
                            if not found.names(one) and one not in (*of.announcements, *of.without_value)
                        ),
                        *(one for one in of.devices if one not in found.devices),
                        *(key for key, value in of.values.items() if found.values.get(key) != value),
                    ]
                    if not missing:
                        return
                    await asyncio.sleep(0.1)
    values = {key: found.values.get(key) for key in of.values}
    raise AssertionError(f"silent or wrong: {missing}; values: {values}; devices: {found.devices}")


def test_there_are_files_of_all_kinds() -> None:
    assert len(ECOSYSTEMS) >= 26
