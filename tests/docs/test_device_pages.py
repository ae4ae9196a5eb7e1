"""docs/http-modbus-devices.md, docs/coap-devices.md: a device that POSTs, and the keys of devices."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from lamplighter.adapters.mapping import load_resource_rules
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT

HTTP = (ROOT / "docs" / "http-modbus-devices.md").read_text()
COAP = (ROOT / "docs" / "coap-devices.md").read_text()


def test_a_device_posts_its_value_and_replaces_it(tmp_path: Path) -> None:
    [line] = re.findall(r"^\$ (curl .*)$", HTTP, re.M)
    [described] = re.findall(r"^\$ \.venv/bin/lamplighter update '(.*)'$", HTTP, re.M)
    with GatewayProcess(tmp_path) as gateway:
        gateway.update(described)
        for value in ("41.5", "42"):
            words = shlex.split(line.replace("127.0.0.1:8000", f"127.0.0.1:{gateway.http_port}").replace("41.5", value))
            words[0] = require_command("curl")
            subprocess.run(words, check=True, timeout=120, capture_output=True)
        found = gateway.rows(
            "SELECT ?v { <http://lamplighter.local/tank-level> <http://www.w3.org/ns/sosa/hasSimpleResult> ?v }"
        )
        shown = command("readings", "tank", "--config", gateway.config).stdout
    assert [row["v"] for row in found] == ["42"]
    [table] = re.findall(r"readings tank\n(NAME.*\n.*\n)", HTTP)
    assert shown.split() == table.replace("41.5", "42").split()


def test_rules_of_the_http_plug_are_good(tmp_path: Path) -> None:
    [rules] = re.findall(r"```toml\n(\[\[stream\]\]\nresource = \"http:.*?)```", HTTP, re.S)
    (tmp_path / "plug.toml").write_text(rules)
    found = load_resource_rules(tmp_path, "http://lamplighter.local/", "http-devices")
    assert (len(found.resources), len(found.commands)) == (1, 1)


def test_a_key_is_made_as_the_document_shows(tmp_path: Path) -> None:
    [(line, shown)] = re.findall(r"^\$ sudo lamplighter (devices key .*)\n((?:(?!```).*\n)*)", COAP, re.M)
    (tmp_path / "lamplighter.toml").write_text("")
    done = command(*shlex.split(line), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "data-coap" / "contexts" / "hall-lamp"
    assert done.stdout == shown.replace("/var/lib/lamplighter-coap/contexts/hall-lamp", str(made))
    assert made.is_dir()
