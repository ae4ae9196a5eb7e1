"""An adoption answers when the topics of the device are read, at a real broker."""

from __future__ import annotations

import json
from pathlib import Path

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.announcements import zigbee_house
from tests.support.brokers import Mosquitto
from tests.support.commands import command
from tests.support.gateway_process import mqtt_gateway, wait_for

PREFIXES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> "
READ = f"""{PREFIXES} SELECT ?value {{
  ?sensor sosa:observes gateway:motion . ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"""


def test_a_message_right_after_the_answer_is_read(tmp_path: Path, broker: Mosquitto) -> None:
    broker.publish(("zigbee2mqtt/bridge/devices", zigbee_house(5)), retain=True)
    proposed = f"{PREFIXES} SELECT ?device {{ GRAPH ?g {{ ?device gateway:adoption 'proposed' }} }}"
    with mqtt_gateway(tmp_path, broker.port) as running:
        wait_for(lambda: len(running.rows(proposed)) == 20, what="the devices")
        for room in range(1, 6):
            done = command("devices", "adopt", f"room{room}/motion", "--config", running.config)
            assert (done.returncode, done.stderr) == (0, "")
            broker.publish((f"zigbee2mqtt/room{room}/motion", json.dumps({"occupancy": True})))  # not retained
        wait_for(lambda: len(running.rows(READ)) == 5, what="what each motion sensor saw")
