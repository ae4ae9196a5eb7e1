"""A device reports 20 times a second while it is removed, over MQTT and over CoAP, and the gateway is killed meanwhile:
nothing of it remains at any interface, and nothing comes back.

3 rounds; `REMOVAL_ROUNDS=20` in the environment makes more.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.announcements import zigbee_house
from tests.support.brokers import PUBLISH_TIMEOUT_S, Mosquitto, mosquitto, subscribed
from tests.support.coap_peers import free_udp_port
from tests.support.coap_sensor import sensor_process
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.tables import each_row

pytestmark = pytest.mark.faults

ROUNDS = int(os.environ.get("REMOVAL_ROUNDS", "3"))
REPORTS_PER_S = 20
STAYS_S = 1.5
"""So long nothing may come back: rules are followed after 0.1 s, and the state of devices is written each second."""
REGISTRY = Registry("http://lamplighter.local/")
PATHS = (
    "devices",
    "things",
    *(f"v1.1/{name}" for name in ("Things", "Datastreams", "Sensors", "Observations", "FeaturesOfInterest")),
    f"ngsi-ld/v1/entities?type={urllib.parse.quote(f'{GATEWAY}Stream', safe='')}",
)


@contextmanager
def motion_sensor(broker: Mosquitto) -> Iterator[Device]:
    """A device that publishes at a broker."""
    found = Announcements(["zigbee2mqtt"], devices_max=10).read(
        "default", "zigbee2mqtt/bridge/devices", zigbee_house(1)
    )
    [device] = [one for one in found.devices if one.name == "room1/motion"]
    over = threading.Event()

    def report() -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        number = 0
        while not over.wait(1 / REPORTS_PER_S):
            number += 1
            state = json.dumps({"occupancy": bool(number % 2), "illuminance": number})
            client.publish("zigbee2mqtt/room1/motion", state, 1)
        client.disconnect()
        client.loop_stop()

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield device
    finally:
        over.set()
        thread.join(PUBLISH_TIMEOUT_S)


@contextmanager
def counter(broker: Mosquitto) -> Iterator[Device]:
    """A device whose resource is observed."""
    port = free_udp_port()
    with sensor_process(port, 1):
        base = f"coap://127.0.0.1:{port}"
        device = propose(parse_links(b'</count>;obs;ct=0;rt="temperature"'), base=base, place="test").device
        assert device is not None
        yield device


def traces(gateway: GatewayProcess, broker: Mosquitto, device: Device) -> list[str]:
    """What the interfaces have of a device."""
    name = device.id
    everything = "{ ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } }"
    about = " || ".join(f'CONTAINS(STR(?{one}), "{name}")' for one in ("s", "o", "g"))
    found = [f"dataset: {row}" for row in gateway.rows(f"SELECT ?s ?p ?o ?g {{ {everything} FILTER({about}) }}")]
    for path in PATHS:
        with urllib.request.urlopen(f"{gateway.http_url}/{path}", timeout=120) as answer:
            found += [path] * (name in answer.read().decode())
    return found + [topic for topic in retained(broker) if name in topic.replace("!7E", "~")]


def retained(broker: Mosquitto) -> list[str]:
    """The topics of the retained messages."""
    found: queue.Queue[str] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _userdata, message: found.put(message.topic)
    with subscribed(client, broker, "v1.1/#"):
        client.publish("v1.1/end", "", 1)
        return list(iter(lambda: found.get(timeout=PUBLISH_TIMEOUT_S), "v1.1/end"))


@each_row("reporting", [motion_sensor, counter])
def test_nothing_of_a_removed_device_remains(
    tmp_path: Path, reporting: Callable[[Mosquitto], AbstractContextManager[Device]]
) -> None:
    chance = Random(36)
    with mosquitto() as broker, reporting(broker) as device:
        tables = {
            "mqtt": {"host": "127.0.0.1", "port": broker.port, "discovery": []},
            "coap": {"networks": ["127.0.0.0/8"]},
            "sensorthings": {"enabled": True, "mqtt": True},
            **{name: {"enabled": True} for name in ("wot", "ngsild")},
        }
        with GatewayProcess(tmp_path, "--all", **tables) as gateway:
            for _ in range(ROUNDS):
                gateway.update(REGISTRY.announced(None, device, "all") or "")

                def everywhere(gateway: GatewayProcess = gateway) -> bool:
                    found = traces(gateway, broker, device)
                    return any("/Observations" in one for one in found) and set(PATHS) - set(found) <= set()

                wait_for(everywhere, what="the readings at all interfaces")
                time.sleep(chance.uniform(0, 0.1))
                gateway.update(REGISTRY.removal(Entry(device, "adopted")))
                time.sleep(chance.choice((0, 0.05, 0.2)))
                gateway.end(signal.SIGKILL)
                gateway.start()
                wait_for(lambda gateway=gateway: not traces(gateway, broker, device), what="that nothing remains")
                end = time.monotonic() + STAYS_S
                while time.monotonic() < end:
                    assert traces(gateway, broker, device) == []
