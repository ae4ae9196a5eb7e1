"""Devices that call the gateway: libcoap's client sends readings and observes a query, and an application switches
libcoap's server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamplighter.engine.change_log import Cause
from lamplighter.ontology.vocabulary import LISTENS_ON
from tests.support.coap_peers import CLIENT_COMMANDS, LibcoapServer, libcoap_server
from tests.support.components import require_command
from tests.support.gateway_parts import records
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.places import ROOT

BASE = "http://lamplighter.local/"
RULES = """
[prefixes]
lighting = "http://lamplighter.example/ns/lighting#"

[[stream]]
path = "street/{post}"
payload = "senml"
sensor = "sensor/{post}/{n}"
property = "lighting:presence"
feature = "post/{post}"
"""
STATE = {
    "sparql": "SELECT ?state WHERE { ?lamp lighting:hasStatus ?state }",
    "forcedBindings": {"lamp": {"type": "uri", "value": ""}},
}
LAMP_STATE = "queries/LAMP_STATE?lamp=http%3A%2F%2Flamplighter.local%2Flamp%2F1"


class Client:
    """libcoap's client against the server of a gateway."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._command = [require_command(*CLIENT_COMMANDS), "-v", "3", "-B", "100"]

    def call(self, path: str, *arguments: str) -> str:
        """What it prints: the content, or the code and the reason of an error."""
        command = [*self._command, *arguments, f"coap://{self._address}/{path}"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
        return (done.stdout + done.stderr).decode().strip()

    def post(self, path: str, present: bool, *arguments: str) -> str:
        pack = json.dumps([{"n": "pir", "vb": present}]).replace(" ", " " * 60)  # longer than a block of 64 bytes
        return self.call(path, "-m", "post", "-t", "110", "-e", pack, *arguments)

    @contextmanager
    def observing(self, path: str, output: Path) -> Iterator[None]:
        """Writes each notification to a file."""
        with output.open("wb") as file:
            command = [*self._command, "-s", "600", "-A", "0", f"coap://{self._address}/{path}"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def street(folder: Path, lamp: LibcoapServer, **server: object) -> Iterator[tuple[GatewayProcess, Client]]:
    """A gateway with its adapters and the application of the street, and a client of its CoAP server."""
    for name in ("mapping", "apps"):
        (folder / name).mkdir(parents=True)
    (folder / "mapping" / "street.toml").write_text(RULES)
    application = json.loads((ROOT / "apps" / "smart-lighting.jsap").read_text())
    application["queries"]["LAMP_STATE"] = STATE
    application["updates"]["SWITCH_OFF"]["delay"] = "PT0S"
    (folder / "apps" / "smart-lighting.jsap").write_text(json.dumps(application))
    tables = {"coap": {"networks": ["127.0.0.0/8"]}, "coap.server": {"port": 0, **server}}
    with GatewayProcess(folder, "--all", **tables) as gateway:
        gateway.update(
            "PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
            f"<{BASE}post/1> lighting:hasLamp <{BASE}lamp/1> . "
            f"<{BASE}lamp/1> gateway:coapResource <{lamp.uri('lamp')}> ; lighting:hasStatus 'OFF' }}"
        )
        query = f"SELECT ?address WHERE {{ GRAPH ?graph {{ ?adapter <{LISTENS_ON}> ?address }} }}"
        wait_for(lambda: bool(gateway.rows(query)), what="the address of the CoAP server")
        yield gateway, Client(gateway.rows(query)[0]["address"])


@pytest.fixture
def lamp() -> Iterator[LibcoapServer]:
    with libcoap_server() as running:
        yield running


def test_a_reading_that_is_posted_in_blocks_switches_a_lamp_and_is_observed(
    tmp_path: Path, lamp: LibcoapServer
) -> None:
    with street(tmp_path / "gateway", lamp) as (gateway, client):
        wait_for(lambda: lamp.get("lamp") == "OFF", what="the lamp's first state")
        output = tmp_path / "notifications"
        with client.observing(LAMP_STATE, output):
            wait_for(lambda: output.read_bytes().startswith(b"OFF"), what="the first notification")
            assert client.post("street/1", True, "-b", "64") == ""
            wait_for(lambda: lamp.get("lamp") == "ON", what="the lamp ON")
            wait_for(lambda: b"ON" in output.read_bytes(), what="the notification ON")
            assert client.post("street/1", False) == ""
            wait_for(lambda: lamp.get("lamp") == "OFF", what="the lamp OFF")
            wait_for(lambda: output.read_bytes().rstrip().endswith(b"OFF"), what="the notification OFF")
        rows = gateway.rows(
            "PREFIX sosa: <http://www.w3.org/ns/sosa/> SELECT ?result ?sensor WHERE { ?o a sosa:Observation ; "
            f"sosa:hasFeatureOfInterest <{BASE}post/1> ; sosa:hasSimpleResult ?result ; sosa:madeBySensor ?sensor }}"
        )
        assert rows == [{"result": "false", "sensor": f"{BASE}sensor/1/pir"}]
        causes = {record.cause for record in records(gateway.folder / "data")}
        assert Cause("coap", "street/1") in causes
        assert client.call(LAMP_STATE, "-A", "0") == "OFF"
        core = client.call(".well-known/core")
        assert "</queries/LAMP_STATE>" in core


def test_a_client_repeats_the_echo_value_where_writes_need_it(tmp_path: Path, lamp: LibcoapServer) -> None:
    with street(tmp_path / "gateway", lamp, echo="writes") as (_, client):
        assert client.post("street/1", True, "-b", "64") == ""
        wait_for(lambda: lamp.get("lamp") == "ON", what="the lamp ON")
        assert client.call("street/1").startswith("4.05")
        assert client.call("nothing").startswith("4.04")
        assert client.call("street/1", "-m", "post", "-t", "50", "-e", "{}").startswith("4.15")
        assert client.call("street/1", "-m", "post", "-t", "110", "-e", "{}").startswith("4.00")
        assert client.call(LAMP_STATE, "-A", "40").startswith("4.06")
