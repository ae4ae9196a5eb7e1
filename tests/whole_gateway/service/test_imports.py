"""Modules that a running gateway does not load. Each takes memory for as long as the process runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

HEAVY = {
    "aiocoap.oscore": "secured CoAP devices only",
    "cbor2": "secured CoAP devices, CBOR payloads",
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
_STARTER = """\
import atexit, runpy, sys

place = sys.argv.pop(1)
atexit.register(lambda: open(place, "w").write("\\n".join(sys.modules)))
runpy.run_module("lamplighter.gateway", run_name="__main__", alter_sys=True)
"""


def test_idle_gateway_with_both_adapters_loads_no_heavy_modules(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text(
        "[http]\nport = 0\n[websocket]\nport = 0\n"
        '[mqtt]\nhost = "127.0.0.1"\nport = 1\n[coap]\nenabled = true\n[coap.server]\nport = 0\n'
    )
    loaded = _loaded_by_gateway(tmp_path, "run", "--all", "--config", str(config))
    assert {"lamplighter.gateway.loop.runner", "lamplighter.adapters.coap.adapter", "paho.mqtt.client"} <= loaded
    assert HEAVY.keys() & loaded == set()


def test_an_idle_gateway_without_adapters_loads_no_client(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("[http]\nport = 0\n[websocket]\nport = 0\n")
    loaded = _loaded_by_gateway(tmp_path, "run", "--config", str(config))
    assert {"lamplighter.gateway.loop.runner", "websockets.asyncio.server"} <= loaded
    clients = {"lamplighter.engine.client.connection", "websockets.asyncio.client", "urllib.request"}
    assert clients & loaded == set()


UNREACHABLE = ("--url", "http://127.0.0.1:1/")
GATEWAY = {
    "pyoxigraph",
    "starlette",
    "uvicorn",
    "lamplighter.adapters.mapping",
    "lamplighter.engine.core",
    "lamplighter.engine.sparql",
    "lamplighter.gateway.loop",
    "lamplighter.gateway.service.process",
    "lamplighter.gateway.settings",
}
"""Parts of a gateway that no command needs which asks the one at `--url`."""
CLIENTS = {"asyncio", "httpx", "websockets"}
SMALL = {*GATEWAY, *CLIENTS, "http", "msgspec", "ssl"}


@pytest.mark.parametrize(
    ("words", "own", "unneeded"),
    [
        (["--version"], set(), SMALL),
        (["--help"], set(), {*SMALL, "importlib.metadata"}),
        (["status", *UNREACHABLE], {"status_command"}, {*GATEWAY, *CLIENTS}),
        (["clients", "list", *UNREACHABLE], {"security_commands"}, {*GATEWAY, *CLIENTS}),
        (["query", "ASK {}", *UNREACHABLE], {"client_commands"}, {*GATEWAY, "websockets"}),
        (["update", "CLEAR ALL", *UNREACHABLE], {"client_commands"}, {*GATEWAY, "websockets"}),
        (["subscribe", "--help"], {"client_commands"}, {*GATEWAY, "httpx", "websockets"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_no_gateway_and_no_other_command(
    words: list[str], own: set[str], unneeded: set[str], tmp_path: Path
) -> None:
    """A Raspberry Pi takes seconds for what a command does not need.

    own: the modules that declare commands. unneeded: neither these modules nor those below them are loaded.
    """
    loaded = _loaded(tmp_path, *words)
    assert "lamplighter.gateway.cli.command_table" in loaded
    assert {name for name in loaded if any(f"{name}.".startswith(f"{one}.") for one in unneeded)} == set()
    cli = {name.removeprefix("lamplighter.gateway.cli.") for name in loaded}
    assert {name for name in cli if re.fullmatch(r"\w*commands?", name)} == own


def test_a_command_that_reads_the_settings_loads_no_mapping_rules(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("[http]\nport = 1\n")
    loaded = _loaded(tmp_path, "status", "--config", str(config))
    assert "lamplighter.gateway.settings" in loaded
    unneeded = {"httpx", "websockets", "lamplighter.adapters.mapping.rules", "lamplighter.adapters.mapping.files"}
    assert {*unneeded, *GATEWAY - {"lamplighter.adapters.mapping", "lamplighter.gateway.settings"}} & loaded == set()


@pytest.mark.parametrize("words", [["log", "show"], ["new-epoch"]], ids=lambda words: words[0])
def test_a_command_on_the_log_loads_neither_the_engine_nor_an_event_loop(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    loaded = _loaded(tmp_path, *words, "--data", str(tmp_path / "data"))
    assert "lamplighter.gateway.history.records" in loaded
    assert {"asyncio", "lamplighter.engine.core", "lamplighter.engine.sparql.algebra"} & loaded == set()


def test_a_check_loads_neither_the_loop_nor_the_handlers_of_the_gates(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("[http]\nport = 1\n")
    loaded = _loaded(tmp_path, "check", "--config", str(config))
    assert {"lamplighter.gateway.service.preflight", "lamplighter.adapters.mapping.rules"} <= loaded
    unneeded = {"apscheduler", "httpx", "starlette", "uvicorn", "websockets", "lamplighter.engine.core"}
    unneeded |= {"lamplighter.gateway.loop", "lamplighter.gateway.gates.http", "lamplighter.gateway.monitoring"}
    assert unneeded & loaded == set()


def _loaded(folder: Path, *words: str) -> set[str]:
    """The modules that a command has loaded at its end."""
    place = folder / "modules"
    command = [sys.executable, "-c", _STARTER, str(place), *words]
    subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    return set(place.read_text().splitlines())


def _loaded_by_gateway(folder: Path, *words: str) -> set[str]:
    """The modules that a gateway has loaded which stops as soon as it is ready."""
    place = folder / "modules"
    command = [sys.executable, "-c", _STARTER, str(place), *words]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    try:
        assert gateway.stdout is not None
        assert "ready" in gateway.stdout.readline()
    finally:
        gateway.terminate()
        gateway.communicate(timeout=120)
    return set(place.read_text().splitlines())
