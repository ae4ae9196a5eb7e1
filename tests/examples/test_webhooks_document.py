"""docs/webhooks-ldn.md: its receiver and its commands work at a gateway with its settings."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import free_port
from tests.support.commands import command as lamplighter
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway

WEBHOOKS, _, LDN = (ROOT / "docs" / "webhooks-ldn.md").read_text().partition("\n## Linked Data Notifications\n")


def settings(document: str) -> dict[str, dict[str, object]]:
    [block] = re.findall(r"```toml\n(.*?)```", document, re.S)
    return tomllib.loads(block)


def commands(document: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", document, re.M)


async def run(command: str, addresses: Addresses, folder: Path, **ports: str) -> str:
    for documented, used in ports.items():
        command = command.replace(documented.strip("_"), used)
    command = command.replace("http://127.0.0.1:8000/", addresses.page)
    words = shlex.split(command)
    if words[0] == "lamplighter":
        url = [] if words[1] == "notifications" else ["--url", addresses.page]
        return (await asyncio.to_thread(lamplighter, *words[1:], *url, check=True, cwd=folder)).stdout
    words = [require_command(words[0]), "-sS", *words[1:]]
    done = await asyncio.to_thread(
        subprocess.run, words, cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


async def test_receiver_of_webhooks_prints_what_is_said(tmp_path: Path) -> None:
    port = str(free_port())
    [program] = re.findall(r"```python\n(.*?)```", WEBHOOKS, re.S)
    (tmp_path / "receiver.py").write_text(program.replace("8088", port))
    register, update = commands(WEBHOOKS)
    receiver = await asyncio.create_subprocess_exec(
        sys.executable, "receiver.py", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    assert receiver.stdout is not None
    try:
        async with running_gateway(tmp_path, **settings(WEBHOOKS)) as addresses:
            for _ in range(1000):  # until the receiver listens
                await run(register, addresses, tmp_path, _8088=port)
                if "secret" in json.loads((tmp_path / "webhook.json").read_text()):
                    break
                await asyncio.sleep(0.05)
            await run(update, addresses, tmp_path)
            printed = [(await asyncio.wait_for(receiver.stdout.readline(), 120)).decode().strip() for _ in range(2)]
            assert printed == list(re.findall(r"prints `(.*)` and `(.*)`", WEBHOOKS)[0])
    finally:
        receiver.terminate()
        await receiver.wait()


def columns(table: str) -> list[list[str]]:
    """The cells of a table without the first column, which has ids."""
    return [line.split()[1:] for line in table.strip().splitlines()]


async def test_commands_of_ldn_do_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    post, listing, query, notifications, register, update, shown = commands(LDN)
    [program] = re.findall(r"```python\n(.*?)```", LDN, re.S)
    [printed] = re.findall(r"```text\n(.*?)```", LDN, re.S)
    async with running_gateway(tmp_path, **settings(LDN)) as addresses:
        assert "201 Created" in await run(post, addresses, tmp_path)
        assert "contains" in await run(listing, addresses, tmp_path)
        assert "http://example.org/anna" in await run(query, addresses, tmp_path)
        found = await run(notifications, addresses, tmp_path)
        assert columns(found) == columns(LDN.partition(notifications)[2].partition("```")[0])
        names: dict[str, Callable[[str], Awaitable[None]]] = {}
        exec(compile(program, "webhooks-ldn.md", "exec"), names)
        await names["main"](addresses.page)
        expected = printed.replace("http://127.0.0.1:8000/", addresses.page)
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected.splitlines())
        one = json.loads(await run(register, addresses, tmp_path))
        assert one["receiver"] == f"{addresses.page}inbox/"
        await run(update, addresses, tmp_path)
        for _ in range(1000):
            text = await run(listing, addresses, tmp_path)
            if text.count("/inbox/") > 3:
                break
            await asyncio.sleep(0.05)
        assert json.loads(await run(shown, addresses, tmp_path))["total"] == 1


@pytest.mark.parametrize("document", [WEBHOOKS, LDN])
def test_named_settings_exist(document: str) -> None:
    defaults = tomllib.loads((ROOT / "lamplighter.toml").read_text())
    named = set(re.findall(r"`(webhooks|ldn|resume|quotas)\.(\w+)`", document))
    assert named
    assert {f"{table}.{key}" for table, key in named if key not in defaults[table]} == set()
