"""docs/sepa.md says what is so: its programs run with the published JavaScript client, and the chat in secure mode."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.peer import javascript_environment
from tests.clients.secure_gateway import SecureGateway, free_host
from tests.support.commands import TIMEOUT_S, command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT
from tests.support.running_gateway import rows, running_gateway, update

DOCUMENT = (ROOT / "docs" / "sepa.md").read_text()
PLAIN, SECURE = re.findall(r"```js\n(.*?)```", DOCUMENT, re.S)
MOVE, CONSOLE = re.findall(r"```console\n(.*?)```", DOCUMENT, re.S)
HOST, CODE = "gateway.local", "7K2M-XW4P"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure") / "gateway") as process:
        yield process


def printed(program: str, authority: Path | None = None) -> str:
    """The output of a program of the document."""
    node = [require_command("node"), "-e", program]
    done = subprocess.run(
        node, env=javascript_environment(authority), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_of(gateway: SecureGateway, name: str, graph: str) -> str:
    """A one-time code for a client that may do everything with one graph."""
    wanted = [word for what in ("read", "write", "subscribe") for word in (f"--{what}", graph)]
    done = command("clients", "code", name, *wanted, "--config", gateway.config)
    code, *_ = re.findall(r"\b[0-9A-Z]{4}-[0-9A-Z]{4}\b", done.stdout)
    return str(code)


async def test_a_dataset_is_moved(tmp_path: Path) -> None:
    fetch, load, shown = MOVE.splitlines()
    triples = "<http://example.org/lamp/1> a <http://example.org/Lamp> ; <http://example.org/state> 'ON'"
    async with running_gateway(tmp_path / "old") as old, running_gateway(tmp_path / "new") as new:
        assert (await update(old, f"INSERT DATA {{ {triples} }}")).status == 200
        line = shlex.split(fetch.removeprefix("$ ").replace("http://endpoint.example/query", old.query))
        line[0] = require_command(line[0])
        await asyncio.to_thread(subprocess.run, line, check=True, timeout=TIMEOUT_S, cwd=tmp_path)
        words = shlex.split(load.removeprefix("$ lamplighter "))
        url = new.query.removesuffix("/query")
        done = await asyncio.to_thread(command, *words, "--url", url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, shown + "\n")
        assert len(await rows(new, "SELECT ?o { ?s ?p ?o }")) == 2


def test_a_program_for_plain_mode(tmp_path: Path) -> None:
    host = free_host(8000, 9000)
    places = {"http": {"host": host, "port": 8000}, "websocket": {"host": host, "port": 9000}}
    with GatewayProcess(tmp_path, **places):
        assert printed(PLAIN.replace("127.0.0.1", host)) == "0 \n1 http://example.org/lamp/1 ON\n"


def test_a_program_for_secure_mode(secure: SecureGateway) -> None:
    program = SECURE.replace(HOST, secure.host).replace(CODE, code_of(secure, "lamps", "default"))
    assert printed(program, secure.authority) == "ON\n"


def test_the_chat_in_secure_mode(secure: SecureGateway, tmp_path: Path) -> None:
    register, chat = (shlex.split(line.removeprefix("$ ")) for line in CONSOLE.splitlines())
    code = code_of(secure, "chat", "http://lamplighter.example/chat")
    named = {f"https://{HOST}:8443": secure.url(""), CODE: code, f"host={HOST}": f"host={secure.host}"}
    named |= {"ca.pem": str(secure.authority), "chat.json": str(tmp_path / "chat.json")}
    assert command(*(named.get(word, word) for word in register[1:])).returncode == 0
    address = f"oauth.tokenRequest={secure.url('/oauth/token')}"
    line = [sys.executable, *(named.get(word, word) for word in chat[1:]), "--set", address]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("12 messages were sent, read and removed; 0 quads are left\n")
