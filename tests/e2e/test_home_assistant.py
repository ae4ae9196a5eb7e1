"""What the gateway announces to Home Assistant: a running gateway with its adapters, and a real broker."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mqtt.discovery import homeassistant
from lamplighter.ontology.vocabulary import GATEWAY, LIGHTING, SOSA
from tests.support.brokers import Mosquitto, subscribed
from tests.support.gateway_process import GatewayProcess, mqtt_gateway, wait_for

PREFIXES = (
    f"PREFIX gateway: <{GATEWAY}> PREFIX lighting: <{LIGHTING}> PREFIX sosa: <{SOSA}> "
    "PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> PREFIX : <http://lamplighter.local/> "
)
RULES = """\
[[stream]]
topic = "cellar/temperature"
payload = "number"
property = "gateway:temperature"
unit = "Cel"
label = "cellar temperature"

[[command]]
actuator = "lamp/1"
topic = "cellar/lamp/set"
state = {topic = "cellar/lamp"}
"""
ENTITY = {
    "light": {"command_topic", "payload_on", "payload_off"},
    "switch": {"command_topic", "payload_on", "payload_off"},
    "sensor": {"unit_of_measurement", "device_class", "state_class"},
    "binary_sensor": {"payload_on", "payload_off", "device_class"},
}
"""Keys of the documented configuration of a component that are used, besides the common ones."""
COMMON = {
    *("name", "unique_id", "state_topic", "qos", "device", "origin"),
    *("availability_topic", "payload_available", "payload_not_available"),
}


class Home:
    """What Home Assistant would know: the retained messages of a broker, by topic, as they change."""

    def __init__(self, client: mqtt.Client) -> None:
        self._messages: dict[str, str] = {}
        self._client = client
        client.on_message = self._on_message

    @property
    def messages(self) -> dict[str, str]:
        """Those so far: a thread takes them."""
        return dict(self._messages)

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        if message.payload:
            self._messages[message.topic] = message.payload.decode()
        else:
            self._messages.pop(message.topic, None)

    def configs(self) -> dict[str, dict[str, Any]]:
        """By component and name of the entity, or of its device."""
        found = {}
        for topic, text in self.messages.items():
            if topic.startswith("homeassistant/") and topic.endswith("/config"):
                config = json.loads(text)
                found[f"{topic.split('/')[1]} {config['name'] or config['device']['name']}"] = config
        return found

    def state(self, name: str) -> str | None:
        config = self.configs().get(name)
        return None if config is None else self.messages.get(config["state_topic"])

    def available(self, name: str) -> str | None:
        return self.messages.get(self.configs()[name]["availability_topic"])

    def switch(self, name: str, payload: str, *, retain: bool = False) -> None:
        self._client.publish(self.configs()[name]["command_topic"], payload, qos=1, retain=retain)


@contextmanager
def home(broker: Mosquitto) -> Iterator[Home]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    one = Home(client)
    with subscribed(client, broker, "homeassistant/#", "lamplighter/#"):
        yield one


def gateway(folder: Path, broker: Mosquitto, **settings: object) -> GatewayProcess:
    (folder / "mapping").mkdir(exist_ok=True)
    (folder / "mapping" / "home.toml").write_text(RULES)
    return mqtt_gateway(folder, broker.port, **{"announce": True, "adopt": "all"} | settings)


def lamps(running: GatewayProcess) -> None:
    running.update(
        f"{PREFIXES} INSERT DATA {{ :lamp\\/1 a lighting:Lamp ; rdfs:label 'cellar lamp' ; lighting:hasStatus 'OFF' . "
        ":fan gateway:desiredState false ; gateway:reportedState false . :box a sosa:Platform ; rdfs:label 'box' ; "
        "sosa:hosts :fan . :dimmer gateway:desiredState 5 }"
    )


def check_schema(component: str, config: dict[str, Any]) -> None:
    """The configuration is what Home Assistant documents of the component."""
    assert config.keys() <= COMMON | ENTITY[component]
    assert {"unique_id", "state_topic", "device", "origin"} <= config.keys()
    assert config["device"]["identifiers"] and config["device"]["name"]
    assert config["origin"]["name"] == "Lamplighter" and config["origin"]["sw_version"]
    for key, value in config.items():
        if key.endswith("_topic"):
            assert re.fullmatch(r"[^+#\x00]+", value)


def test_lamps_and_readings_are_announced_switched_and_withdrawn(tmp_path: Path, broker: Mosquitto) -> None:
    with home(broker) as ha, gateway(tmp_path, broker) as running:
        lamps(running)

        def measured() -> bool:
            broker.publish(("cellar/temperature", "11.5"))
            return "sensor cellar temperature" in ha.configs()

        wait_for(measured, what="the sensor")
        wait_for(lambda: len(ha.configs()) == 3, what="three entities")
        for name, config in ha.configs().items():
            check_schema(name.partition(" ")[0], config)
        sensor = ha.configs()["sensor cellar temperature"]
        assert {key: sensor[key] for key in ENTITY["sensor"]} == {
            "unit_of_measurement": "°C",
            "device_class": "temperature",
            "state_class": "measurement",
        }
        wait_for(lambda: ha.state("sensor cellar temperature") == "11.5", what="the reading")
        assert ha.available("sensor cellar temperature") == "online"
        assert ha.configs()["switch fan"]["device"]["name"] == "box"
        wait_for(lambda: ha.state("switch fan") == "OFF", what="the state of the fan")

        # The gateway does not propose its own announcements, or take them for a fault.
        known = (
            f"{PREFIXES} SELECT ?x {{ GRAPH ?g {{ {{ ?x gateway:adoption ?y }} UNION {{ ?x gateway:reason ?y }} }} }}"
        )
        assert running.rows(known) == []

        lamp = "light cellar lamp"
        ha.switch(lamp, "ON")
        status = f"{PREFIXES} SELECT ?s {{ :lamp\\/1 lighting:hasStatus ?s }}"
        wait_for(lambda: running.rows(status) == [{"s": "ON"}], what="the command")
        wait_for(lambda: ha.state(lamp) == "ON", what="the acknowledged state")
        broker.publish(("cellar/lamp", "OFF"))
        wait_for(lambda: ha.state(lamp) == "OFF", what="the reported state")
        ha.switch("switch fan", "ON")
        desired = f"{PREFIXES} SELECT ?s {{ :fan gateway:desiredState ?s }}"
        wait_for(lambda: running.rows(desired) == [{"s": "true"}], what="the desired state")
        ha.switch("switch fan", "OFF", retain=True)
        ha.switch("switch fan", "toggle")
        refused = f"{PREFIXES} SELECT ?text {{ GRAPH ?g {{ ?p gateway:reason ?text }} }}"
        wait_for(lambda: any("write ON or OFF" in row["text"] for row in running.rows(refused)), what="the refusal")
        running.update(f"{PREFIXES} DELETE WHERE {{ :fan ?p ?o }}")
        wait_for(lambda: set(ha.configs()) == {lamp, "sensor cellar temperature"}, what="the end of the fan")
        config = ha.configs()[lamp]
        assert all(config["state_topic"].rpartition("/")[0] in topic or "fan" not in topic for topic in ha.messages)

        running.end(signal.SIGKILL)
        wait_for(lambda: ha.available(lamp) == "offline", what="the last will")
        running.start()
        wait_for(lambda: ha.available(lamp) == "online", what="the return")


@pytest.mark.faults
def test_announcements_of_an_earlier_run_are_removed(tmp_path: Path, broker: Mosquitto) -> None:
    with home(broker) as ha:
        with gateway(tmp_path, broker) as running:
            lamps(running)
            wait_for(lambda: len(ha.configs()) == 2, what="two entities")
        assert len(ha.configs()) == 2
        for settings, left in (({"announce": True}, {"light cellar lamp"}), ({"announce": False}, set())):
            (tmp_path / "mapping" / "home.toml").unlink()
            with gateway(tmp_path, broker, announce=False, discovery=[]) as running:
                running.update(f"{PREFIXES} DELETE WHERE {{ :fan ?p ?o }}")
            with gateway(tmp_path, broker, **settings) as running:
                wait_for(lambda left=left: set(ha.configs()) == left, what=f"{left}")
                proposed = f"{PREFIXES} SELECT ?x {{ GRAPH ?g {{ ?x gateway:adoption ?y }} }}"
                assert running.rows(proposed) == []


def test_a_device_that_announces_itself_is_not_announced(tmp_path: Path, broker: Mosquitto) -> None:
    config = {
        "name": "hall",
        "unique_id": "hall1",
        "state_topic": "hall/state",
        "command_topic": "hall/set",
        "device": {"identifiers": ["hall1"], "name": "hall"},
    }
    broker.publish(("homeassistant/switch/hall1/config", json.dumps(config)), retain=True)
    with gateway(tmp_path, broker) as running, home(broker) as ha:
        actuators = f"{PREFIXES} SELECT ?x {{ ?x a sosa:Actuator ; gateway:command ?rule }}"
        wait_for(lambda: len(running.rows(actuators)) == 1, what="the adopted device")
        [row] = running.rows(actuators)
        running.update(f"{PREFIXES} INSERT DATA {{ <{row['x']}> gateway:desiredState true }}")
        wait_for(lambda: any("hall/set" in line for line in broker.log), what="the command for it")
        lamps(running)
        wait_for(lambda: len(ha.configs()) == 3, what="the lamps of the gateway")
        assert set(ha.configs()) == {"switch hall", "light cellar lamp", "switch fan"}


@pytest.mark.faults
def test_another_gateway_reads_the_announcements_as_devices(tmp_path: Path, broker: Mosquitto) -> None:
    with home(broker) as ha, gateway(tmp_path, broker) as running:
        lamps(running)
        wait_for(lambda: len(ha.configs()) == 2, what="two entities")
        for topic, text in ha.messages.items():
            if topic.startswith("homeassistant/") and topic.endswith("/config"):
                found = homeassistant.announced("default", topic, topic.removeprefix("homeassistant/"), text.encode())
                assert found.parts and not found.problems, found


def test_nothing_is_announced_by_default(tmp_path: Path, broker: Mosquitto) -> None:
    with home(broker) as ha, mqtt_gateway(tmp_path, broker.port) as running:
        lamps(running)
        wait_for(lambda: any(topic.endswith("/status") for topic in ha.messages), what="the adapter")
        running.update(f"{PREFIXES} INSERT DATA {{ :x gateway:desiredState true }}")
        assert ha.configs() == {}
        assert not any("things" in line for line in broker.log if "SUBSCRIBE" in line)
