"""The gateway is killed while it publishes Observations: every one reaches the broker, in order, and may come twice."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers import mosquitto, subscribed
from tests.support.gateway_process import GatewayProcess
from tests.support.small_house import PREFIXES, SMALL_HOUSE

pytestmark = pytest.mark.faults

TOPIC = "v1.1/Datastreams('stream~1')/Observations"
KILLS, UPDATES = 4, 40
TIMEOUT_S = 120.0


def test_kills_lose_no_observation(tmp_path: Path) -> None:
    came: list[Any] = []
    arrived = threading.Condition()

    def on_message(_client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        with arrived:
            came.append(json.loads(message.payload)["result"])
            arrived.notify_all()

    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = on_message
    with mosquitto() as broker, subscribed(client, broker, TOPIC):
        mqtt_table = {"host": "127.0.0.1", "port": broker.port}
        with GatewayProcess(tmp_path, sensorthings={"enabled": True, "mqtt": True}, mqtt=mqtt_table) as gateway:
            gateway.update(SMALL_HOUSE)
            deadline = time.monotonic() + TIMEOUT_S
            with arrived:  # it has begun; before, nothing but the present Observation is promised
                while 20.5 not in came:
                    assert arrived.wait(deadline - time.monotonic()), came
            number = 0
            for _ in range(KILLS):
                for _ in range(UPDATES):
                    number += 1
                    gateway.update(
                        f"{PREFIXES} DELETE {{ <observation/1> sosa:hasSimpleResult ?old }} "
                        f"INSERT {{ <observation/1> sosa:hasSimpleResult {number} }} "
                        "WHERE { <observation/1> sosa:hasSimpleResult ?old }"
                    )
                gateway.end(signal.SIGKILL)
                gateway.start()
            deadline = time.monotonic() + TIMEOUT_S
            with arrived:
                while number not in came:
                    assert arrived.wait(deadline - time.monotonic()), came[-5:]
    seen: list[Any] = []
    for one in came:
        if one not in seen:
            seen.append(one)
    assert [one for one in seen if one != 20.5] == list(range(1, number + 1))
