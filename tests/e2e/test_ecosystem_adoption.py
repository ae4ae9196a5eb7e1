"""Devices of several ecosystems at a real broker: adopted, they are read and switched without a rule."""

from __future__ import annotations

import json
from pathlib import Path

import paho.mqtt.client as mqtt

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.brokers import Mosquitto, subscribed
from tests.support.commands import command
from tests.support.gateway_process import mqtt_gateway, wait_for

PREFIXES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> "
READ = f"{PREFIXES} SELECT ?sensor ?value {{ ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"
PROPOSED = f"{PREFIXES} SELECT ?device {{ GRAPH ?g {{ ?device gateway:adoption 'proposed' }} }}"
VENT = "homie/5/greenhouse/vent/position"
DESCRIPTION = {
    "homie": "5.0",
    "version": 1,
    "nodes": {"vent": {"properties": {"position": {"datatype": "integer", "format": "0:100", "settable": True}}}},
}
HEATER = {
    "name": "heater",
    "uniq_id": "h",
    "dev": {"ids": ["heater"]},
    "stat_t": "heater/raw",
    "dev_cla": "temperature",
    "val_tpl": "{{ (value_json.sensors[-1].raw | float / 10) | round(1) }}",
}
SERIAL = "c0619ab1c2d3"


def event(number: int, temperature: float) -> tuple[str, str]:
    return "rtl_433/attic/events", json.dumps({"model": "Tower", "id": number, "temperature_C": temperature})


def test_devices_of_several_ecosystems_are_read_and_switched(tmp_path: Path, broker: Mosquitto) -> None:
    broker.publish(("homie/5/greenhouse/$description", json.dumps(DESCRIPTION)), retain=True)
    broker.publish(("homeassistant/sensor/heater/config", json.dumps(HEATER)), retain=True)
    broker.publish((f"N/{SERIAL}/system/0/Serial", json.dumps({"value": SERIAL})), retain=True)
    heard: list[tuple[str, bytes]] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, userdata, message: heard.append((message.topic, message.payload))
    with (
        subscribed(client, broker, f"{VENT}/set", f"R/{SERIAL}/keepalive"),
        mqtt_gateway(tmp_path, broker.port) as running,
    ):
        wait_for(lambda: len(running.rows(PROPOSED)) == 3, what="the retained devices")
        broker.publish(event(1, 4.5), event(2, -7.5))
        wait_for(lambda: len(running.rows(PROPOSED)) == 5, what="the devices of the radio")
        done = command("devices", "adopt", "--all", "--config", running.config)
        assert (done.returncode, done.stderr) == (0, "")
        broker.publish(event(1, 5.5), event(2, -8.5), (VENT, "40"), ("heater/raw", '{"sensors": [{"raw": "215"}]}'))

        def values() -> dict[str, str]:
            return {row["sensor"].rpartition("sensor/")[2]: row["value"] for row in running.rows(READ)}

        expected = {
            "rtl433/Tower-1/temperature_C": "5.5",
            "rtl433/Tower-2/temperature_C": "-8.5",
            "homie5/greenhouse/vent.position": "40",
            "homeassistant/heater/h": "21.5",
        }
        wait_for(lambda: values().items() >= expected.items(), what=f"{expected}")
        wait_for(lambda: (f"R/{SERIAL}/keepalive", b"") in heard, what="the question for all values")
        done = command("devices", "set", "greenhouse", "75", "--config", running.config)
        assert (done.returncode, done.stderr) == (0, "")
        wait_for(lambda: (f"{VENT}/set", b"75") in heard, what="the command")
