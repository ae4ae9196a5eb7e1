"""Destructive commands ask on a terminal, and require `--yes` without one."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.commands import command as lamplighter
from tests.support.running_gateway import health, http, running_gateway, update
from tests.support.secure_gateway import SecureGateway

NO = ("", "n", "yes please", "\x04")
YES = ("y", " YES ")


def command(toml: Path, *arguments: object, typed: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command, with "n" in a pipe before it, or with a terminal at which something is typed."""
    if typed is None:
        return lamplighter(*arguments, "--config", toml, input="n\n")
    typist, terminal = pty.openpty()
    try:
        os.write(typist, f"{typed}\n".encode() if typed != "\x04" else b"\x04")
        return lamplighter(*arguments, "--config", toml, stdin=terminal)
    finally:
        os.close(terminal)
        os.close(typist)


async def test_a_restore_wants_an_explicit_yes(tmp_path: Path) -> None:
    toml, file = tmp_path / "lamplighter.toml", tmp_path / "b.zst"
    async with running_gateway(tmp_path) as addresses:
        toml.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")
        await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")
        file.write_bytes((await http(addresses.query.removesuffix("/query") + "/backup")).body)
        await update(addresses, "INSERT DATA { <urn:s> <urn:p> 2 }")

        async def restored(*options: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(command, toml, "restore", file, *options, typed=typed)

        done = await restored()
        assert done.returncode == 2, done
        assert "--yes" in done.stderr and "Traceback" not in done.stderr
        for answer in NO:
            done = await restored(typed=answer)
            assert (done.returncode, "nothing was changed" in done.stderr) == (1, True), (answer, done)
            assert "[y/N]" in done.stderr and "[y/N]" not in done.stdout
        assert (await health(addresses))["quads"] == 2
        for number, answer in enumerate(YES, 3):
            done = await restored(typed=answer)
            assert (done.returncode, f"restored by record {number}" in done.stdout) == (0, True), (answer, done)
        assert (await health(addresses))["quads"] == 1
        done = await restored("--yes")
        assert done.returncode == 0 and "[y/N]" not in done.stderr
        done = await restored("--json", typed="n")
        assert (done.returncode, done.stdout) == (1, ""), done
        done = await restored("--json", typed="y")
        assert json.loads(done.stdout)["removed"] == 0, done


async def test_an_existing_backup_is_not_replaced_by_accident(tmp_path: Path) -> None:
    toml, file = tmp_path / "lamplighter.toml", tmp_path / "b.zst"
    async with running_gateway(tmp_path) as addresses:
        toml.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")

        async def saved(*options: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(command, toml, "backup", file, *options, typed=typed)

        assert (await saved()).returncode == 0
        file.write_text("mine")
        done = await saved()
        assert (done.returncode, "--yes" in done.stderr, file.read_text()) == (2, True, "mine"), done
        done = await saved(typed="n")
        assert (done.returncode, file.read_text()) == (1, "mine"), done
        assert (await saved(typed="y")).returncode == 0
        file.write_text("mine")
        assert (await saved("--yes")).returncode == 0 and file.read_bytes() != b"mine"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure"), attempts_per_min=0) as running:
        yield running


@pytest.mark.parametrize("line", [("clients", "remove", "lamp"), ("keys", "rotate", "--revoke")])
def test_clients_and_tokens_do_not_end_by_accident(gateway: SecureGateway, line: tuple[str, ...]) -> None:
    if not any(client["name"] == "lamp" for client in gateway.local("GET", "/clients").json["clients"]):
        gateway.client("lamp", read=["*"])

    def state() -> tuple[object, ...]:
        clients = gateway.local("GET", "/clients").json["clients"]
        return [client["name"] for client in clients], (gateway.data / "security" / "keys.json").read_bytes()

    before = state()
    done = command(gateway.toml, *line)
    assert (done.returncode, state()) == (2, before), done
    assert "--yes" in done.stderr and "Traceback" not in done.stderr
    for answer in ("n", "", "\x04"):
        done = command(gateway.toml, *line, typed=answer)
        assert (done.returncode, state()) == (1, before), done
    done = command(gateway.toml, *line, typed="yes")
    assert done.returncode == 0 and state() != before, done
    if line[0] == "clients":
        gateway.client("lamp", read=["*"])
    before = state()
    assert command(gateway.toml, *line, "--yes").returncode == 0
    assert state() != before


def test_a_rotation_that_revokes_nothing_asks_nothing(gateway: SecureGateway) -> None:
    assert command(gateway.toml, "keys", "rotate").returncode == 0
