"""A command whose output nobody reads any more, as in `| head -1`, ends without a traceback."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator

import pytest

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.gateway.__main__ import command_parser
from tests.support.commands import TIMEOUT_S, command
from tests.support.fork_server import ForkedProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT

PROFILE = ROOT / "apps" / "smart-lighting.jsap"
ALARM = "http://lamplighter.local/actuator/a"
LINES = {
    "check": ["check"],
    "subscriptions": ["subscriptions"],
    "timers": ["timers"],
    "status": ["status"],
    "verify": ["verify"],
    "backup": ["backup", "{folder}/b.zst", "--yes"],
    "restore": ["restore", "{folder}/good.zst", "--yes"],
    "log": ["log", "show"],
    "log export": ["log", "export", "--format", "ndjson"],
    "log restore": ["log", "restore", "--at", "1", "-o", "{folder}/x.nq"],
    "query": ["query", "SELECT ?o { ?s ?p ?o }", "--format", "csv"],
    "update": ["update", "INSERT DATA { <urn:s> <urn:p> 2 }"],
    "subscribe": ["subscribe", "SELECT ?o { ?s ?p ?o }", "--count", "1"],
    "devices": ["devices"],
    "readings": ["readings"],
    "mapping": ["mapping", "check"],
    "load": ["load", "{folder}/a.ttl"],
    "bundle": ["bundle", "{folder}/bundle.tar.gz", "--yes"],
    "try": ["try", str(PROFILE), "--since", "1"],
    "init": ["init", "leak-alarm", "--alarm", "a", "--force"],
    "install": ["install", "--dry-run"],
    "uninstall": ["uninstall", "--dry-run"],
    "completion": ["completion", "bash"],
    "sync": ["sync", "status"],
    "apps": ["apps", "list"],
    "names": ["names"],
    "logbook": ["logbook"],
}
ELSEWHERE = {
    "run": "prints once, at its start",
    **{spec.name: "prints nothing" for spec in ADAPTERS},
    "demo": "plays for seconds; see tests/e2e/test_demo.py",
    "register": "prints one line after it wrote the credentials",
    "explain": "prints after it found a chain, as log show does",
    "clients": "in secure mode only; prints as timers does",
    "keys": "in secure mode only; prints as timers does",
    "notifications": "prints after it read an inbox, as timers does",
    "new-epoch": "prints one line after it noted the epoch",
    "history": "prints what it got of the gateway, as logbook does",
    "mcp": "prints answers to what it reads; see test_mcp_command.py",
}
"""Commands that no line above runs -> why."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder) as running:
        running.update("INSERT DATA { <urn:s> <urn:p> 1 }")
        running.update(f"INSERT DATA {{ <{ALARM}> a <http://www.w3.org/ns/sosa/Actuator> }}")
        (folder / "a.ttl").write_text("<urn:s> <urn:p> 1 .")
        assert command("backup", folder / "good.zst", "--config", running.config).returncode == 0
        yield running


def unread(arguments: list[str]) -> tuple[int | None, str]:
    """Runs a command with a standard output that nobody reads; its exit code and standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        streams = {"stdin": subprocess.DEVNULL, "stdout": writing, "stderr": subprocess.PIPE}
        with ForkedProcess(arguments, cwd=ROOT, **streams) as process:
            _, errors = process.communicate(TIMEOUT_S)
            return process.returncode, errors
    finally:
        os.close(writing)


@pytest.mark.parametrize("name", LINES)
def test_a_command_ends_quietly(gateway: GatewayProcess, name: str) -> None:
    line = [word.replace("{folder}", str(gateway.folder)) for word in LINES[name]]
    code, errors = unread([*line, *(["--config", str(gateway.config)] if "install" not in name else [])])
    assert "Traceback" not in errors and "BrokenPipe" not in errors, errors
    assert code == 0 or "install" in name or name == "sync", errors


def test_the_help_ends_quietly(gateway: GatewayProcess) -> None:
    for arguments in (["--help"], ["query", "--help"], ["--version"]):
        assert unread(arguments) == (0, "")


def test_no_command_is_left_out() -> None:
    [commands] = [one for one in command_parser()._actions if isinstance(one, argparse._SubParsersAction)]
    assert {line[0] for line in LINES.values()} | set(ELSEWHERE) == set(commands.choices)
