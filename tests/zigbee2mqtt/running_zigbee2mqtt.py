"""The published Zigbee2MQTT with a simulated radio: its devices are adopted, read, switched, renamed and lost.

`make test-zigbee2mqtt` installs it and runs this module, whose name keeps it out of the other tiers.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.commands import command
from tests.support.components import missing, require_command
from tests.support.gateway_process import GatewayProcess, mqtt_gateway, wait_for
from tests.support.places import ROOT

PROGRAM = ROOT / "build" / "zigbee2mqtt" / "node_modules" / "zigbee2mqtt" / "cli.js"
RADIO = ROOT / "tests" / "zigbee2mqtt" / "radio.cjs"
COORDINATOR, SENSOR, LAMP = "0x00124b0000000001", "0x00158d0001e82a4c", "0x000b57fffe3e40c1"
TEMPERATURE, DECIMAL_OF_SENSOR = 0x0402, 41
PREFIXES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "


def entry(number: int, kind: str, address: str, clusters: Sequence[int], **more: object) -> dict[str, object]:
    """A device that has joined the network, as Zigbee2MQTT's database has it."""
    endpoint = {
        "profId": 260,
        "epId": 1,
        "devId": 1,
        "inClusterList": clusters,
        "outClusterList": [],
        "clusters": {},
        "binds": [],
        "configuredReportings": [],
        "meta": {},
    }
    return {
        "id": number,
        "type": kind,
        "ieeeAddr": address,
        "nwkAddr": number - 1,
        "manufId": 4151,
        "epList": [1],
        "endpoints": {"1": endpoint},
        "interviewCompleted": True,
        "interviewState": "SUCCESSFUL",
        "meta": {},
        **more,
    }


NETWORK = [
    entry(1, "Coordinator", COORDINATOR, []),
    entry(
        2, "EndDevice", SENSOR, [0, 1026, 1027, 1029], manufName="LUMI", modelId="lumi.weather", powerSource="Battery"
    ),
    entry(
        3,
        "Router",
        LAMP,
        [0, 4, 5, 6, 8, 768],
        manufName="IKEA of Sweden",
        modelId="TRADFRI bulb E27 WS opal 980lm",
        powerSource="Mains (single phase)",
    ),
]


class Zigbee2Mqtt:
    """The bridge as a process. `told`: the commands that its radio sent, oldest first."""

    def __init__(self, folder: Path, broker_port: int) -> None:
        if not PROGRAM.exists():
            missing("Zigbee2MQTT is not installed; `make test-zigbee2mqtt` installs it")
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._data = folder
        folder.mkdir()
        (folder / "database.db").write_text("".join(json.dumps(one) + "\n" for one in NETWORK))
        settings = {
            "version": 5,
            "mqtt": {"base_topic": "zigbee2mqtt", "server": f"mqtt://127.0.0.1:{broker_port}"},
            "serial": {"port": "/dev/null", "adapter": "zstack"},
            "frontend": {"enabled": False},
            "homeassistant": {"enabled": False},
            "advanced": {
                "log_output": ["console"],
                "network_key": list(range(1, 17)),
                "pan_id": 6754,
                "ext_pan_id": [221] * 8,
                "channel": 11,
            },
            "devices": {SENSOR: {"friendly_name": "hall"}, LAMP: {"friendly_name": "lamp"}},
        }
        (folder / "configuration.yaml").write_text(json.dumps(settings))  # JSON is YAML

    def start(self) -> None:
        node = require_command("node")
        environment = {
            "ZIGBEE2MQTT_DATA": str(self._data),
            "Z2M_ONBOARD_NO_SERVER": "1",
            "PATH": str(Path(node).parent),
        }
        self._process = subprocess.Popen(
            [node, "--require", RADIO, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._data,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def report(self, address: int, cluster: int, attribute: int, kind: int, value: int) -> None:
        assert self._process.stdin
        attributes = [{"attrId": attribute, "dataType": kind, "attrData": value}]
        self._process.stdin.write(json.dumps([address, 1, cluster, attributes]) + "\n")
        self._process.stdin.flush()

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(120)
        self._reader.join(120)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("told "):
                self.told.put(line.strip())


@contextmanager
def started(folder: Path, broker: Mosquitto) -> Iterator[Zigbee2Mqtt]:
    bridge = Zigbee2Mqtt(folder, broker.port)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.end(signal.SIGTERM)


def devices(gateway: GatewayProcess, *arguments: str) -> str:
    done = command("devices", *arguments, "--config", gateway.config)
    assert done.returncode == 0, done.stderr
    return done.stdout


def online(gateway: GatewayProcess) -> list[str]:
    return [row["state"] for row in gateway.rows(f"{PREFIXES} SELECT ?state {{ ?device gateway:online ?state }}")]


def temperatures(gateway: GatewayProcess) -> dict[str, str]:
    query = f"""{PREFIXES} SELECT ?name ?value {{ ?device a gateway:Device ; rdfs:label ?name ; sosa:hosts ?sensor .
      ?sensor sosa:observes gateway:temperature . ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"""
    return {row["name"]: row["value"] for row in gateway.rows(query)}


def test_devices_of_zigbee2mqtt_are_adopted_read_switched_renamed_and_lost(tmp_path: Path) -> None:
    with (
        mosquitto() as broker,
        mqtt_gateway(tmp_path / "gateway", broker.port) as gateway,
        started(tmp_path / "bridge", broker) as bridge,
    ):
        proposed = f"{PREFIXES} SELECT ?device {{ GRAPH ?g {{ ?device gateway:adoption 'proposed' }} }}"
        wait_for(lambda: len(gateway.rows(proposed)) == 2, what="both devices")
        listed = devices(gateway)
        assert f"zigbee2mqtt/{SENSOR}" in listed and "Aqara WSDCGQ11LM" in listed and "IKEA LED1545G12" in listed
        assert "no problems" in devices(gateway, "problems")
        devices(gateway, "adopt", "--all")

        def read(name: str, value: int) -> None:
            def there() -> bool:
                bridge.report(1, TEMPERATURE, 0, DECIMAL_OF_SENSOR, value * 100)
                return temperatures(gateway) == {name: str(value)}

            wait_for(there, what=f"{value} degrees of {name}")

        def told(what: str) -> None:
            """Waits for a command on the air."""
            while what not in (line := bridge.told.get(timeout=120)):
                assert line

        read("hall", 21)
        devices(gateway, "set", "lamp", "on")
        told(f"told {LAMP} genOnOff on")
        devices(gateway, "set", "lamp", "brightness", "100")
        told(f"told {LAMP} genLevelCtrl moveToLevel")
        brightness = "?actuator gateway:reportedState ?state ; gateway:controls gateway:brightness"
        reported = f"{PREFIXES} SELECT ?state {{ {brightness} }}"
        wait_for(lambda: {"state": "100"} in gateway.rows(reported), what="what the lamp reports")

        broker.publish(("zigbee2mqtt/bridge/request/device/rename", '{"from": "hall", "to": "cellar"}'))
        read("cellar", 12)
        assert f"zigbee2mqtt/{SENSOR}" in devices(gateway)
        assert "no problems" in devices(gateway, "problems")

        wait_for(lambda: online(gateway) == ["true", "true"], what="both devices online")
        bridge.end(signal.SIGKILL)
        wait_for(lambda: online(gateway) == ["false", "false"], what="both devices offline by the last will")
        devices(gateway, "set", "lamp", "off")
        bridge.start()
        wait_for(lambda: online(gateway) == ["true", "true"], what="both devices online again")
        told(f"told {LAMP} genOnOff off")
        read("cellar", 13)
