"""Modules that a running gateway does not load. Each takes memory for as long as the process runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT

HEAVY = {
    "aiocoap.oscore": "secured CoAP devices only",
    "cbor2": "secured CoAP devices only",
    "cryptography": "secure mode only",
    "fsspec": "lamplighter sync",
    "html.entities": "HTML pages of resources and notebooks",
    "httpcore": "webhooks and LDN",
    "httpx": "client library over HTTP",
    "jwt": "secure mode only",
    "numpy": "fleet",
    "prometheus_client": "GET /metrics",
    "pyarrow": "fleet",
    "rdflib": "conversions to RDFLib",
    "tarfile": "lamplighter bundle",
    "lamplighter.cloud_sync.shipper": "lamplighter sync",
    "lamplighter.demo": "lamplighter demo",
    "lamplighter.engine.rdflib": "conversions to RDFLib",
    "lamplighter.gateway.cli.command_tree": "lamplighter completion",
    "lamplighter.gateway.cli.commands": "commands on the data folder",
    "lamplighter.gateway.cli.status_command": "lamplighter status",
    "lamplighter.gateway.gates.deliveries": "webhooks and LDN",
    "lamplighter.gateway.gates.ldn": "[ldn]",
    "lamplighter.gateway.gates.webhooks": "[webhooks]",
    "lamplighter.gateway.history.verification": "lamplighter verify",
    "lamplighter.gateway.service.preflight": "lamplighter check",
}
"""Module -> what loads it."""
_IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s*(\S+)$", re.MULTILINE)


def test_idle_gateway_with_both_adapters_loads_no_heavy_modules(tmp_path: Path) -> None:
    config, told = tmp_path / "lamplighter.toml", tmp_path / "imports"
    config.write_text(
        "[http]\nport = 0\n[websocket]\nport = 0\n"
        '[mqtt]\nhost = "127.0.0.1"\nport = 1\n[coap]\nenabled = true\n[coap.server]\nport = 0\n'
    )
    command = [sys.executable, "-X", "importtime", "-m", "lamplighter.gateway", "run", "--all", "--config", str(config)]
    with told.open("w") as errors:
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
        try:
            assert gateway.stdout is not None
            assert "ready" in gateway.stdout.readline()
        finally:
            gateway.terminate()
            gateway.communicate(timeout=120)
    loaded = set(_IMPORTED.findall(told.read_text()))
    assert {"lamplighter.gateway.loop.runner", "lamplighter.adapters.coap.adapter", "paho.mqtt.client"} <= loaded
    assert HEAVY.keys() & loaded == set()


def test_a_command_loads_no_gateway_and_no_other_command() -> None:
    """A Raspberry Pi takes seconds for what a command does not need."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "lamplighter.gateway",
        "status",
        "--url",
        "http://127.0.0.1:1/",
    ]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    loaded = set(_IMPORTED.findall(told.stderr))
    assert "lamplighter.gateway.cli.status_command" in loaded
    unneeded = {"pyoxigraph", "lamplighter.engine.core", "lamplighter.gateway.service.process"}
    assert unneeded & loaded == set()
    assert {
        name for name in loaded if name.startswith("lamplighter.gateway.cli.") and name.endswith("commands")
    } == set()
