"""Commands use what the running gateway has from `--set`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.brokers import free_port
from tests.support.commands import command
from tests.support.gateway_process import GatewayProcess


def test_commands_reach_a_gateway_by_its_settings_of_the_command_line(tmp_path: Path) -> None:
    other, base = free_port(), "http://house.example/"
    assigned = ("--set", f"http.port={other}", "--set", "http.query_path=/ask", "--set", f"gateway.base_iri={base}")
    gateway = GatewayProcess(tmp_path, *assigned)
    config = ("--config", gateway.config)
    with gateway:
        assert command("status", *config).returncode == 0
        assert json.loads(command("query", "ASK { }", *config).stdout)["boolean"]
        typed = f"INSERT DATA {{ <{base}actuator/hall> a <http://www.w3.org/ns/sosa/Actuator> }}"
        assert command("update", typed, *config).returncode == 0
        assert command("names", "--plain", *config).stdout == "actuator/hall\n", "below the base IRI of the gateway"
        gateway.end(signal.SIGKILL)
        done = command("status", *config)
        assert done.returncode == 3 and f":{gateway.http_port}/" in done.stderr, "of the file, when no gateway runs"
        gateway.start()
    with GatewayProcess(tmp_path) as gateway:
        assert command("status", *config).returncode == 0, "those of an earlier start are gone"
