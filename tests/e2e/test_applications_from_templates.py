"""`lamplighter init` -> readings over mosquitto -> the desired state, and the delay, across SIGKILL."""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from tests.support.announcements import zigbee_house
from tests.support.brokers import Mosquitto
from tests.support.coap_peers import libcoap_server
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess, wait_for

DELAY_S = 5.0
"""On a busy machine, a delayed update may be over before anybody looks; tests then see what it did."""
SOON_S = 60.0
"""How late a busy machine may be."""
TOPIC = "home/sensor"


def adopt(gateway: GatewayProcess, broker: Mosquitto, device: Device, area: str) -> str:
    """Adopts a device into an area, as `lamplighter devices adopt` does. Its topic, once the gateway follows it."""
    registry = Registry("http://lamplighter.local/")
    proposed = registry.announced(None, device, "ask")
    assert proposed is not None
    gateway.update(proposed)
    gateway.update(registry.adoption(Entry(device, "proposed"), area=area))
    topic = str(device.sensors[0].table["topic"])
    wait_for(lambda: any(f"{topic} (QoS" in line for line in broker.log), what=f"the subscription to {topic}")
    return topic


def init(folder: Path, *arguments: str) -> str:
    """What `lamplighter init` prints. The folder has settings already, as the gateway's process writes them."""
    done = command("init", *arguments, "--config", folder / "lamplighter.toml")
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(folder: Path, broker: Mosquitto, *arguments: str) -> Iterator[tuple[GatewayProcess, str]]:
    """A gateway with the application that init writes for these arguments, and what init printed."""
    mqtt = {"host": "127.0.0.1", "port": broker.port}
    gateway = GatewayProcess(folder, "--all", mqtt=mqtt, coap={"networks": ["127.0.0.0/8"]})
    told = init(folder, *arguments)
    with gateway:
        wait_for(lambda: any(f"{TOPIC} (QoS" in line for line in broker.log), what="the subscription at the broker")
        yield gateway, told


@contextmanager
def heard(broker: Mosquitto, topic: str) -> Iterator[list[str]]:
    """The payloads on a topic, as mosquitto_sub prints them."""
    program = require_command("mosquitto_sub")
    line = [program, "-h", "127.0.0.1", "-p", str(broker.port), "-q", "1", "-t", topic]
    payloads: list[str] = []
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        listener = threading.Thread(target=lambda: payloads.extend(map(str.strip, process.stdout or ())), daemon=True)
        listener.start()
        try:
            wait_for(lambda: any(f"{topic} (QoS" in line for line in broker.log), what="the subscription of the test")
            yield payloads
        finally:
            process.terminate()
            listener.join(60)


def state(gateway: GatewayProcess) -> str | None:
    found = gateway.rows(
        "SELECT ?state WHERE { ?actuator <http://lamplighter.example/ns/gateway#desiredState> ?state }"
    )
    assert len(found) <= 1, found
    return found[0]["state"] if found else None


def actuations(gateway: GatewayProcess) -> list[str]:
    """The states that the adapter has recorded as sent."""
    text = (
        "SELECT ?state WHERE { ?actuation <http://www.w3.org/ns/sosa/madeByActuator> ?actuator ; "
        "<http://www.w3.org/ns/sosa/hasSimpleResult> ?state }"
    )
    return [row["state"] for row in gateway.rows(text)]


def kill(gateway: GatewayProcess) -> None:
    gateway.end(signal.SIGKILL)
    gateway.start()


def publish(broker: Mosquitto, payload: str) -> float:
    """Publishes a reading; the time before that."""
    begun = time.time()
    broker.publish((TOPIC, payload))
    return begun


@pytest.mark.faults
@pytest.mark.parametrize(
    ("arguments", "payloads", "states"),
    [
        (
            ("motion-light", "--light", "x", "--member", "occupancy", "--off-after", "5s"),
            ('{"occupancy": true}', '{"occupancy": false, "battery": 90}'),
            ("true", "false"),
        ),
        pytest.param(
            ("leak-alarm", "--alarm", "x", "--wet", "WET", "--dry", "DRY", "--off-after", "PT5S"),
            ("WET", "DRY"),
            ("true", "false"),
            marks=pytest.mark.faults,
        ),
        pytest.param(
            ("presence-heating", "--thermostat", "x", "--room", "home", "--lower-after", "5s", "--absent", "16.5"),
            ("on", "off"),
            ("21", "16.5"),
            marks=pytest.mark.faults,
        ),
    ],
    ids=["motion-light", "leak-alarm", "presence-heating"],
)
def test_state_is_set_at_once_and_set_back_after_the_delay_across_kills(
    tmp_path: Path, broker: Mosquitto, arguments: tuple[str, ...], payloads: tuple[str, str], states: tuple[str, str]
) -> None:
    with running(tmp_path / "gateway", broker, *arguments, "--topic", TOPIC) as (gateway, _):
        publish(broker, payloads[1])
        publish(broker, payloads[0])
        wait_for(lambda: state(gateway) == states[0], what="the first state")
        kill(gateway)
        assert state(gateway) == states[0]
        left = publish(broker, payloads[1])
        wait_for(lambda: len(gateway.delayed()) == 1 or state(gateway) == states[1], what="the delayed update")
        kill(gateway)
        back = wait_for(lambda: state(gateway) == states[1], what="the second state")
        assert DELAY_S - 0.1 <= back - left <= DELAY_S + SOON_S
        publish(broker, payloads[0])
        wait_for(lambda: state(gateway) == states[0], what="the first state again")


@pytest.mark.faults
def test_alarm_of_a_door_begins_after_the_delay_and_ends_at_once_across_kills(
    tmp_path: Path, broker: Mosquitto
) -> None:
    arguments = ("door-left-open", "--alarm", "x", "--topic", TOPIC, "--closed", "shut", "--open", "ajar")
    with running(tmp_path / "gateway", broker, *arguments, "--open-for", "5s") as (gateway, _):
        publish(broker, "shut")
        opened = publish(broker, "ajar")
        wait_for(lambda: len(gateway.delayed()) == 1 or state(gateway) == "true", what="the delayed update")
        kill(gateway)
        begun = wait_for(lambda: state(gateway) == "true", what="the alarm")
        assert DELAY_S - 0.1 <= begun - opened <= DELAY_S + SOON_S
        kill(gateway)
        assert state(gateway) == "true"
        publish(broker, "shut")
        wait_for(lambda: state(gateway) == "false", what="the end of the alarm")


def test_desired_state_reaches_a_coap_lamp_that_init_named(tmp_path: Path, broker: Mosquitto) -> None:
    with libcoap_server() as device:
        arguments = ("motion-light", "--light", "x", "--room", "hall", "--topic", TOPIC, "--off-after", "1s")
        with running(tmp_path / "gateway", broker, *arguments, "--coap", device.uri("lamp")) as (gateway, told):
            *_, update = shlex.split(told.splitlines()[-1])
            gateway.update(update)
            publish(broker, "true")
            wait_for(lambda: device.get("lamp") == "true", what="the lamp on")
            publish(broker, "false")
            wait_for(lambda: device.get("lamp") == "false", what="the lamp off")


@pytest.mark.parametrize(
    ("arguments", "name", "detected", "gone"),
    [
        (
            ("motion-light", "--light", "x", "--off-after", "1s"),
            "room1/motion",
            '{"occupancy": true}',
            '{"occupancy": false}',
        ),
        (
            ("door-left-open", "--alarm", "x", "--open-for", "1s"),
            "room1/window",
            '{"contact": false}',
            '{"contact": true}',
        ),
    ],
    ids=["motion-light", "door-left-open"],
)
def test_a_zigbee_device_is_found_by_its_room(
    tmp_path: Path, broker: Mosquitto, arguments: tuple[str, ...], name: str, detected: str, gone: str
) -> None:
    """Of two devices in two rooms, the application follows the one in its room, whatever its topic is."""
    announced = Announcements(["zigbee2mqtt"], devices_max=9).read(
        "default", "zigbee2mqtt/bridge/devices", zigbee_house(2)
    )
    here, there = (one for one in announced.devices if one.name.partition("/")[2] == name.partition("/")[2])
    other = (*arguments, "--room", "Living room", "--topic", TOPIC)
    with running(tmp_path / "gateway", broker, *other) as (gateway, _):
        topic = adopt(gateway, broker, here, "Living room")
        elsewhere = adopt(gateway, broker, there, "Hall")
        broker.publish((elsewhere, detected), (topic, gone), (topic, detected))
        wait_for(lambda: state(gateway) == "true", what="the state while it is detected")
        broker.publish((topic, gone))
        wait_for(lambda: state(gateway) == "false", what="the state after that")


@pytest.mark.faults
def test_motion_over_mqtt_switches_a_zigbee_lamp_across_kills(tmp_path: Path, broker: Mosquitto) -> None:
    arguments = ("motion-light", "--light", "x", "--topic", TOPIC, "--member", "occupancy", "--off-after", "5s")
    lamp = ("--command-topic", "zigbee2mqtt/lamp/set", "--command-payload", '{"state": "{value}"}')
    values = ("--command-value", "true=ON", "--command-value", "false=OFF")
    on, off = '{"state": "ON"}', '{"state": "OFF"}'
    with (
        heard(broker, "zigbee2mqtt/lamp/set") as payloads,
        running(tmp_path / "gateway", broker, *arguments, *lamp, *values) as (gateway, _),
    ):
        publish(broker, '{"occupancy": true}')
        wait_for(lambda: payloads == [on], what="the lamp on")
        # A state that was sent and not recorded is sent again: at least once.
        wait_for(lambda: actuations(gateway) == ["true"], what="the record of the actuation")
        kill(gateway)
        left = publish(broker, '{"occupancy": false}')
        wait_for(lambda: len(gateway.delayed()) == 1 or off in payloads, what="the delayed update")
        kill(gateway)
        back = wait_for(lambda: off in payloads, what="the lamp off")
        assert DELAY_S - 0.1 <= back - left <= DELAY_S + SOON_S
        assert payloads == [on, off], "nothing is sent again after a restart"
