"""The lamps of the demo: CoAP servers, and one at a real broker."""

from __future__ import annotations

import asyncio

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.demo.street.story import Story
from lamplighter.demo.street.street import MQTT_POST, POSTS, CoapLamp, description, lamps
from tests.support.brokers import free_port, mosquitto
from tests.support.event_loops import until


async def test_the_mqtt_lamp_takes_states_reports_them_and_is_in_the_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with mosquitto() as broker:
        heard: list[str] = []
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.on_message = lambda _client, _data, message: heard.append(message.payload.decode())
        client.connect("127.0.0.1", broker.port)
        client.subscribe(f"street/{MQTT_POST}/lamp", qos=1)
        client.loop_start()
        try:
            await until(lambda: any("SUBACK" in line for line in broker.log))
            async with lamps("127.0.0.1", broker.port) as street:
                await until(lambda: heard == ["OFF"])
                await asyncio.to_thread(broker.publish, *[(f"street/{MQTT_POST}/lamp/set", one) for one in ("?", "ON")])
                await until(lambda: heard == ["OFF", "ON"])
                Story(street).tell("gateway", "the street")
                picture = "·" * (MQTT_POST - 1) + "●" + "·" * (POSTS - MQTT_POST)
                assert capsys.readouterr().out.endswith(f" {picture}\n")
                assert [lamp.number for lamp in street if not isinstance(lamp, CoapLamp)] == [MQTT_POST]
                text = description("http://e/", street)
                assert text.count("gateway:coapResource") == POSTS - 1
                assert f"<http://e/lamp/{MQTT_POST}> a lighting:Lamp ; lighting:hasStatus 'OFF'" in text
        finally:
            client.disconnect()
            client.loop_stop()


async def test_lamps_say_that_there_is_no_broker() -> None:
    with pytest.raises(OSError):
        async with lamps("127.0.0.1", free_port()):
            pass
