"""Doors that are off are not loaded; those that lack a package stop the start, and a check, with the cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.tables import each_row

WITHOUT = """import sys
sys.modules['{name}'] = None
from lamplighter.gateway.__main__ import main
sys.exit(main(sys.argv[1:]))"""


@each_row("name", ["mcp", "mcp.server.context"], is_amount=True)  # not installed; one of another generation
@each_row("command", ["check", "run"], is_amount=True)
def test_without_its_package_the_cure_is_named(tmp_path: Path, name: str, command: str) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("[mcp]\nenabled = true\n[http]\nport = 0\n[websocket]\nport = 0\n[coap]\nenabled = false\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name), command, "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "[mcp] enabled = true needs a package that cannot be loaded" in told
    assert "; pip install 'mcp<" in told and "', or set enabled = false" in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("check", "line 2: modbus.enabled: needs pymodbus, which is not installed; "),
        ("modbus", "[modbus] enabled = true needs a package that cannot be loaded: "),
    ],
)
def test_without_pymodbus_the_cure_is_named(tmp_path: Path, command: str, reason: str) -> None:
    config = tmp_path / "lamplighter.toml"
    ports = "" if command == "modbus" else "[http]\nport = 0\n[websocket]\nport = 0\n"
    config.write_text(f"[modbus]\nenabled = true\n{ports}")
    words = [sys.executable, "-c", WITHOUT.format(name="pymodbus"), command, "--config", str(config)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    told = done.stdout + done.stderr
    assert done.returncode != 0 and reason in told and "Traceback" not in told
    assert "pip install 'pymodbus<" in told and "', or set enabled = false" in told


PROGRAM = """
import sys
from pathlib import Path
import msgspec
from lamplighter.gateway.gates.apis import api_routes
from lamplighter.gateway.settings import Settings

def loaded(tables):
    api_routes(msgspec.convert(tables, Settings), Path("."))
    return {room for room in sys.argv[1:] if "lamplighter.gateway.gates." + room in sys.modules}

assert loaded({}) == set()
for number, room in enumerate(sys.argv[1:], 1):
    assert loaded({room: {"enabled": True}}) == set(sys.argv[1 : number + 1]), room
"""
ROOMS = ("changes", "ldn", "mcp", "ngsild", "sensorthings", "webhooks", "wot")


def test_a_door_is_loaded_only_where_it_is_on() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *ROOMS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
