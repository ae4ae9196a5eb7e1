"""docs/python-client.md says what is so: its programs and commands run against real gateways."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.commands import command
from tests.support.places import ROOT
from tests.support.profiles import settings
from tests.support.running_gateway import running_gateway

DOCUMENT = (ROOT / "docs" / "python-client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
[PROFILE] = re.findall(r"```json\n(.*?)```", DOCUMENT, re.S)
[CONSOLE] = re.findall(r"```console\n(.*?)```", DOCUMENT, re.S)


def main_of(number: int) -> Callable[..., Awaitable[None]]:
    names: dict[str, Callable[..., Awaitable[None]]] = {}
    exec(compile(PROGRAMS[number], f"client.md, program {number + 1}", "exec"), names)
    return names["main"]


def test_every_program_is_run_here() -> None:
    assert len(PROGRAMS) == 4


async def test_without_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as at:
        await main_of(0)(at.subscribe)
    lines = ["first result: 0 rows", "http://example.org/lamp/1 is ON", "is one on? True"]
    assert capsys.readouterr().out.splitlines() == lines


async def test_with_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lamps.jsap").write_text(PROFILE)

    async with running_gateway(tmp_path) as at:
        await main_of(1)(str(tmp_path / "lamps.jsap"), settings(at))
    *counts, last = capsys.readouterr().out.splitlines()
    assert sorted(counts) == [f"http://example.org/lamp/{number} was switched 1 times" for number in (1, 2)]
    assert last == "1 of lamps 1 and 3 has a state"


async def test_other_endpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as at:
        await main_of(2)(at.query.removesuffix("/query"))
    assert capsys.readouterr().out == 'True\n<http://example.org/a> <http://example.org/p> "x"\n'


async def test_secure_gateways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = {f"grant_{kind}": ["*"] for kind in ("read", "write", "subscribe")}
    security = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0, "registration": "open", **grants}
    monkeypatch.chdir(tmp_path)

    async with running_gateway(tmp_path, security=security) as at:
        ca = tmp_path / "data" / "security" / "authority.pem"
        await main_of(3)(at.register, at.token, at.subscribe, str(ca))
    assert capsys.readouterr().out == "True\n"


async def test_commands_print_what_is_shown(tmp_path: Path) -> None:
    shown = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", CONSOLE, re.M)
    assert len(shown) == 3
    async with running_gateway(tmp_path) as at:
        for line, output in shown:
            name, *words = shlex.split(line)
            assert name == "lamplighter"
            url = at.subscribe if words[0] == "subscribe" else at.query.removesuffix("/query")
            assert (await asyncio.to_thread(command, *words, "--url", url)).stdout == output
