"""The commands of docs/secure.md work at a gateway."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

from tests.support.commands import command as lamplighter
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.secure_gateway import SecureGateway

DOCUMENT = (ROOT / "docs" / "secure.md").read_text()
COMMANDS = re.findall(r"^\$ (.*)$", DOCUMENT, re.M)
KEY = re.compile(r"^\$ (sudo lamplighter devices key hall-lamp .*)\n((?:(?![$`]).*\n)+)", re.M)


def run(command: str, gateway: SecureGateway, **variables: str) -> str:
    for name, value in variables.items():
        command = command.replace(f"${name}", value)
    command = command.replace("kitchen.local:8443", f"localhost:{gateway.port}")
    words = shlex.split(command)
    if words[0] == "sudo":
        del words[0]
    if words[0] == "lamplighter":
        return lamplighter(*words[1:], "--config", gateway.toml, check=True, cwd=gateway.folder).stdout
    words[0] = require_command(words[0])
    if words[0].endswith("curl"):
        words.insert(1, "-sS")
    return subprocess.run(words, cwd=gateway.folder, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_commands_do_what_is_said(tmp_path: Path) -> None:
    [fetch, fingerprint, register, token, query, listing, rank, permit, forbid, remove, person] = COMMANDS
    code = re.search(r"`(sudo lamplighter clients code [^`]* default)`", DOCUMENT)
    assert code is not None
    with SecureGateway(tmp_path) as gateway:
        (tmp_path / "ca.pem").unlink()
        run(fetch, gateway)
        printed = run(fingerprint, gateway).strip().partition("=")[2]
        assert gateway.addresses.fingerprint == f"SHA-256 {printed}"
        given = run(code[1], gateway).split()[0]
        secret = json.loads(run(register.replace("7K2M-XW4P", given), gateway))["credentials"]["client_secret"]
        bearer = json.loads(run(token, gateway, SECRET=secret))["token"]["access_token"]
        assert json.loads(run(query, gateway, TOKEN=bearer))["boolean"] is True
        run(rank, gateway)
        run(permit, gateway)
        assert run(person, gateway)
        row = next(line for line in run(listing, gateway).splitlines() if line.startswith("anna "))
        assert row.split()[-5:] == ["*", "-", "*", "yes", "normal"]
        run(forbid, gateway)
        row = next(line for line in run(listing, gateway).splitlines() if line.startswith("lamp "))
        assert row.split()[3:] == ["default", "http://kitchen.example/lamps", "default", "-", "-", "control"]
        run(f"{remove} --yes", gateway)
        assert json.loads(run(query, gateway, TOKEN=bearer))["error"] == "invalid_grant"


def test_the_key_of_a_device_is_made_as_shown(tmp_path: Path) -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    [(key, shown)] = [found for page in pages for found in KEY.findall(page.read_text())]
    (tmp_path / "lamplighter.toml").write_text("")
    made = tmp_path / "data-coap" / "contexts" / "hall-lamp"
    words = shlex.split(key)[2:]
    printed = lamplighter(*words, "--config", tmp_path / "lamplighter.toml", check=True, cwd=tmp_path).stdout
    assert printed == shown.replace("/var/lib/lamplighter-coap/contexts/hall-lamp", str(made))
    assert made.is_dir()
