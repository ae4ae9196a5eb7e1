"""docs/mqtt-tls.md: its certificates, broker and settings fit together."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import subprocess
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mqtt.credentials import read_credentials
from lamplighter.gateway.settings import read_settings
from tests.support.brokers import mosquitto
from tests.support.components import require_command
from tests.support.places import ROOT

TEXT = (ROOT / "docs/mqtt-tls.md").read_text()
PASSWORD = "long enough"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def answer(broker_port: int, tls: ssl.SSLContext | None) -> str:
    """What the broker says to a client with this trust."""
    said: list[str] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("gateway", PASSWORD)
    client.tls_set_context(tls)
    client.on_connect = lambda client, data, flags, code, properties: said.append(str(code))
    client.connect("localhost", broker_port)
    while not said:
        assert client.loop(1.0) == 0
    client.disconnect()
    return said[0]


def test_gateway_trusts_the_broker_and_nobody_else(tmp_path: Path) -> None:
    require_command("openssl")
    for line in blocks("console")[0].splitlines():
        subprocess.run(shlex.split(line.removeprefix("$ ")), cwd=tmp_path, check=True, capture_output=True)
    passwords = ["-b", "-c", str(tmp_path / "passwords"), "gateway", PASSWORD]
    subprocess.run([require_command("mosquitto_passwd"), *passwords], check=True, capture_output=True)
    [conf] = blocks("conf")
    lines = conf.replace("/etc/mosquitto/certs", str(tmp_path)).replace("/etc/mosquitto", str(tmp_path)).splitlines()
    [settings] = blocks("toml")
    file = tmp_path / "lamplighter.toml"
    (tmp_path / "mqtt-ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    with mosquitto(settings=[line for line in lines if not line.startswith("listener")]) as broker:
        file.write_text(settings.replace("broker.lan", "localhost").replace("8883", str(broker.port)))
        trusted = read_credentials(read_settings(file).mqtt, "mqtt").tls
        assert answer(broker.port, trusted) == "Success"
        # Another authority, with the same name and the first of the documented commands.
        [first, *_] = blocks("console")[0].splitlines()
        subprocess.run(shlex.split(first.removeprefix("$ ")), cwd=tmp_path, check=True, capture_output=True)
        (tmp_path / "mqtt-ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
        other = read_credentials(read_settings(file).mqtt, "mqtt").tls
        assert other is not None
        with (
            socket.create_connection(("localhost", broker.port)) as connection,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            other.wrap_socket(connection, server_hostname="localhost")
