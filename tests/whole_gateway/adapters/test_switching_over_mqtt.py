"""A motion light over MQTT: mosquitto_pub -> mosquitto -> gateway -> mosquitto -> subscriber, with kills on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lamplighter.gateway.__main__ import main
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess, wait_for

BASE = "http://lamplighter.local/"
LAMP = f"<{BASE}actuator/kitchen>"
NAMES = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
ON, OFF = 'zigbee2mqtt/lamp/set {"state": "ON"}', 'zigbee2mqtt/lamp/set {"state": "OFF"}'
STATE = '[command.state]\ntopic = "zigbee2mqtt/lamp"\nmember = "state"\n'


class Listener:
    """The messages of a topic filter, as `mosquitto_sub` prints them."""

    def __init__(self, broker: Mosquitto, topic_filter: str, file: Path) -> None:
        self.file = file
        client = f"listener-{file.name}"
        with file.open("wb") as output:
            command = [require_command("mosquitto_sub"), "-p", str(broker.port), "-i", client, "-v", "-q", "1"]
            self.process = subprocess.Popen([*command, "-t", topic_filter], stdout=output)
        said = f"Sending SUBACK to {client}"
        wait_for(lambda: any(line.endswith(said) for line in broker.log), what="the subscription")

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()


@contextmanager
def listening(broker: Mosquitto, topic_filter: str, file: Path) -> Iterator[Listener]:
    listener = Listener(broker, topic_filter, file)
    try:
        yield listener
    finally:
        listener.process.terminate()
        listener.process.wait(120)


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with mosquitto(settings=("allow_anonymous true", "persistence true")) as running:
        yield running


@pytest.fixture
def light(broker: Mosquitto, tmp_path: Path) -> GatewayProcess:
    """A gateway with the application of `lamplighter init motion-light`, not started."""
    gateway = GatewayProcess(tmp_path / "gateway", "--all", mqtt={"host": "127.0.0.1", "port": broker.port})
    line = ["init", "motion-light", "--config", str(gateway.config), "--light", "kitchen", "--off-after", "3s"]
    line += ["--topic", "zigbee2mqtt/pir", "--member", "occupancy", "--command-topic", "zigbee2mqtt/lamp/set"]
    line += ["--command-payload", '{"state": "{value}"}', "--command-value", "true=ON", "--command-value", "false=OFF"]
    assert main(line) == 0
    with (gateway.folder / "mapping" / "motion-light.toml").open("a") as file:
        file.write(STATE)
    return gateway


def publish(broker: Mosquitto, topic: str, payload: str, *more: str) -> None:
    command = [require_command("mosquitto_pub"), "-p", str(broker.port), "-q", "1", "-t", topic, "-m", payload]
    subprocess.run([*command, *more], check=True, timeout=120)


def wait_for_adapter(broker: Mosquitto) -> None:
    """Waits until the broker keeps a session for the gateway."""
    said = "Sending SUBACK to lamplighter-"
    wait_for(lambda: any(said in line for line in broker.log), what="the gateway's subscription")


def desire(gateway: GatewayProcess, state: str) -> None:
    gateway.update(
        f"{NAMES} DELETE {{ {LAMP} gateway:desiredState ?was }} INSERT {{ {LAMP} gateway:desiredState {state} }} "
        f"WHERE {{ OPTIONAL {{ {LAMP} gateway:desiredState ?was }} }}"
    )


def recorded(gateway: GatewayProcess) -> list[str]:
    """The results of the lamp's actuation."""
    where = f"?a sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult ?x"
    return [row["x"] for row in gateway.rows(f"{NAMES} SELECT ?x {{ {where} }}")]


def reported(gateway: GatewayProcess) -> list[str]:
    return [row["x"] for row in gateway.rows(f"{NAMES} SELECT ?x {{ {LAMP} gateway:reportedState ?x }}")]


@pytest.mark.faults
def test_motion_switches_a_lamp_on_and_its_end_off_across_kills(
    broker: Mosquitto, light: GatewayProcess, tmp_path: Path
) -> None:
    with listening(broker, "zigbee2mqtt/lamp/set", tmp_path / "heard") as heard, light:
        wait_for_adapter(broker)
        publish(broker, "zigbee2mqtt/pir", '{"occupancy": true}')
        wait_for(lambda: heard.lines() == [ON], what="the lamp's ON")
        wait_for(lambda: recorded(light) == ["true"], what="its actuation")
        publish(broker, "zigbee2mqtt/pir", '{"occupancy": false}')
        # On a busy machine it may be over before anybody looks.
        wait_for(lambda: len(light.delayed()) == 1 or OFF in heard.lines(), what="the delayed update")
        light.end(signal.SIGKILL)
        time.sleep(3)  # the update becomes due while the gateway is off
        light.start()
        wait_for(lambda: heard.lines() == [ON, OFF], what="the lamp's OFF")
        wait_for(lambda: recorded(light) == ["false"], what="its actuation")
        light.end(signal.SIGKILL)
        light.start()
        publish(broker, "zigbee2mqtt/pir", '{"occupancy": true}')
        wait_for(lambda: len(heard.lines()) == 3, what="the lamp's second ON")
    assert heard.lines() == [ON, OFF, ON]  # each once, none for an obsolete state


def test_retained_states_cause_no_message_at_a_restart(
    broker: Mosquitto, light: GatewayProcess, tmp_path: Path
) -> None:
    publish(broker, "zigbee2mqtt/lamp", '{"state": "OFF"}', "-r")
    publish(broker, "zigbee2mqtt/pir", '{"occupancy": true}', "-r")
    with listening(broker, "zigbee2mqtt/lamp/set", tmp_path / "heard") as heard, light:
        wait_for_adapter(broker)
        wait_for(lambda: reported(light) == ["false"], what="the reported state")
        wait_for(lambda: recorded(light) == ["true"], what="the actuation")
        for number in (signal.SIGKILL, signal.SIGTERM):
            light.end(number)
            light.start()
            publish(broker, "zigbee2mqtt/lamp", '{"state": "ON"}')
            wait_for(lambda: reported(light) == ["true"], what="the reported state")
            assert (heard.lines(), light.delayed()) == ([ON], [])


def test_a_state_that_changed_while_the_broker_was_away_is_sent_once(
    broker: Mosquitto, light: GatewayProcess, tmp_path: Path
) -> None:
    with light:
        wait_for_adapter(broker)
        with listening(broker, "zigbee2mqtt/lamp/set", tmp_path / "before") as heard:
            desire(light, "false")
            wait_for(lambda: heard.lines() == [OFF], what="the first state")
        broker.stop()
        for state in ("true", "false", "true"):
            desire(light, state)
        broker.start()
        with listening(broker, "zigbee2mqtt/#", tmp_path / "after") as heard:
            wait_for(lambda: recorded(light) == ["true"], what="the actuation")
            publish(broker, "zigbee2mqtt/end", "")
            wait_for(lambda: any(line.startswith("zigbee2mqtt/end") for line in heard.lines()), what="the end")
            assert heard.lines()[:-1] in ([ON], [])  # the adapter may have been faster than the listener


def explained(gateway: GatewayProcess, *arguments: str) -> dict[str, Any]:
    done = command("explain", "actuator/kitchen", "--json", *arguments, "--config", gateway.config)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def kinds(found: dict[str, Any]) -> list[str]:
    return [link["link"] for link in found["links"]]


def test_each_actuation_can_be_explained(broker: Mosquitto, light: GatewayProcess) -> None:
    sending = ["notification", "rule", "request", "acknowledgement"]
    with light:
        wait_for_adapter(broker)
        publish(broker, "zigbee2mqtt/pir", '{"occupancy": true}')
        wait_for(lambda: recorded(light) == ["true"], what="the actuation")
        by_reading = explained(light)
        assert (kinds(by_reading), by_reading["cause"]) == (["reading", "query", "update", *sending], "notification")
        reading, query, changed, notification, rule, request, acknowledgement = by_reading["links"]
        assert reading["by"] == ["mqtt", "zigbee2mqtt/pir"]
        assert (query["application"], "SELECT" in query["text"]) == ("motion-light", True)
        assert notification["record"] == changed["record"] != reading["record"]
        assert rule["text"].endswith("motion-light.toml line 10: command 1")
        assert (request["text"], acknowledgement["text"]) == ("zigbee2mqtt/lamp/set", "PUBACK")
        assert all("time" in link and "doubt" not in link for link in by_reading["links"])

        publish(broker, "zigbee2mqtt/pir", '{"occupancy": false}')
        wait_for(lambda: recorded(light) == ["false"], what="the actuation")
        by_timer = explained(light)
        assert kinds(by_timer) == ["reading", "query", "update", "query", "delay", "update", *sending]
        assert by_timer["links"][4]["text"] == "in 3 s"
        assert not any("doubt" in link for link in by_timer["links"])

        desire(light, "true")
        wait_for(lambda: recorded(light) == ["true"], what="the actuation")
        by_client = explained(light)
        assert kinds(by_client) == ["update", *sending]
        assert by_client["links"][0]["by"][0] == "http"

        publish(broker, "zigbee2mqtt/lamp", '{"state": "OFF"}')
        wait_for(lambda: explained(light)["cause"] == "client", what="the message after the report")
        assert kinds(explained(light)) == ["update", "notification", "report", *sending[1:]]

        assert explained(light, "--at", acknowledgement["time"]) == by_reading
        done = command("explain", "actuator/kitchen", "--config", light.config)
        assert len(done.stdout.splitlines()) == 7
