"""docs/choose-interface.md says what is so: each recipe is followed at one gateway, and prints what is shown.

The files, settings, commands and programs are those of the page, with free ports. What is shown below the publishing of
a reading has to come from the command before it, which goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.brokers import Mosquitto, free_port, mosquitto
from tests.support.coap_peers import free_udp_port
from tests.support.commands import command_line
from tests.support.components import require_command, require_module
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "choose-interface.md").read_text()
SECTIONS = dict(zip(*[iter(re.split(r"^## (.*)\n", DOCUMENT, flags=re.M)[1:])] * 2, strict=True))
EXAMPLE, *DOORS, MORE = SECTIONS
LIMIT_S = 120.0
PUBLISH = "mosquitto_pub"
POSITION = r"gw-[0-9a-f]{8}/\d+/\d+/[0-9a-f]{8}"
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
Step = tuple[str, list[str]]
"""A command, and the lines that are shown below it."""


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)


def steps(section: str) -> list[Step]:
    found: list[Step] = []
    for line in "".join(blocks(section, "console")).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def settings() -> dict[str, dict[str, Any]]:
    """The tables of all recipes together."""
    tables: dict[str, dict[str, Any]] = {}
    for section in SECTIONS.values():
        for block in blocks(section, "toml"):
            for name, table in tomllib.loads(block).items():
                if name != "stream":  # the mapping rule
                    tables[name] = tables.get(name, {}) | table
    return tables


@dataclass
class Kitchen:
    """Where recipes are followed. replaced: texts of the page -> what they are here."""

    gateway: GatewayProcess
    broker: Mosquitto
    replaced: dict[str, str] = field(default_factory=dict)

    def here(self, text: str) -> str:
        for shown, used in self.replaced.items():
            text = text.replace(shown, used)
        return text

    def line(self, command: str) -> str:
        """A command line for the shell."""
        lamplighter = shlex.join(command_line())
        text = re.sub(r"^lamplighter\b", lambda _: lamplighter, self.here(command))
        return re.sub(r"^(mosquitto_\w+)", rf"\1 -p {self.broker.port}", text)

    @asynccontextmanager
    async def started(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """The output of a program, which is ended afterwards with all that it started."""
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=self.gateway.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def output(self, command: str) -> list[str]:
        """The lines that a command prints until it ends."""
        async with self.started("sh", "-c", self.line(command)) as out:
            return (await asyncio.wait_for(out.read(), LIMIT_S)).decode().splitlines()

    async def until(self, command: str, shown: list[str]) -> None:
        """Repeats a command until it prints what is shown: a reading takes a moment."""
        end = time.monotonic() + LIMIT_S
        while not self.same(shown, printed := await self.output(command)):
            assert time.monotonic() < end, (command, printed)
            await asyncio.sleep(0.05)

    def same(self, shown: list[str], printed: list[str]) -> bool:
        """Whether lines are as shown: `…` stands for any text, an id for any id, spaces for any number of them."""

        def pattern(text: str) -> str:
            parts = re.split(rf"…|{ID}|{POSITION}", " ".join(text.split()))
            return ".*".join(map(re.escape, parts))

        lines = [" ".join(line.split()) for line in printed]
        return len(shown) == len(lines) and all(
            re.fullmatch(pattern(self.here(text)), line) for text, line in zip(shown, lines, strict=True)
        )

    async def check(self, out: asyncio.StreamReader, shown: list[str], *, later: bool = False) -> None:
        """Reads as many lines as are shown, without empty ones, and compares them.

        later: whether other lines may come before, since a retained message may be that of the reading before.
        """
        printed: list[str] = []
        while len(printed) < len(shown):
            line = (await asyncio.wait_for(out.readline(), LIMIT_S)).decode()
            assert line, f"the program ended after {printed}"
            if line.strip() and not (later and not printed and not self.same(shown[:1], [line])):
                printed.append(line)
        assert self.same(shown, printed), printed


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    for program in ("curl", "mosquitto_pub", "mosquitto_sub"):
        require_command(program)
    require_module("mcp")
    folder = tmp_path_factory.mktemp("porch")
    example = SECTIONS[EXAMPLE]
    for name in ("mapping", "apps"):
        (folder / name).mkdir()
    (folder / "mapping" / "porch.toml").write_text(blocks(example, "toml")[1])
    (folder / "apps" / "porch.jsap").write_text(blocks(example, "json")[0])
    tables, coap_port = settings(), free_udp_port()
    with mosquitto() as broker:
        tables["mqtt"]["port"] = broker.port
        tables["gateway"] = {"durability": "off", "clock_trusted": "always"}
        with GatewayProcess(folder, "--all", **{"coap.server": {"port": coap_port}}, **tables) as gateway:
            here = {
                "127.0.0.1:8000": f"127.0.0.1:{gateway.http_port}",
                "127.0.0.1:8088": f"127.0.0.1:{free_port()}",
                "coap://127.0.0.1/": f"coap://127.0.0.1:{coap_port}/",
            }
            wait_for(
                lambda: any("porch/temperature" in line for line in list(broker.log)), what="the adapter's request"
            )
            yield Kitchen(gateway, broker, here)


@pytest.fixture
async def first(kitchen: Kitchen) -> None:
    """The row with which each recipe begins."""
    query = json.loads(blocks(SECTIONS[EXAMPLE], "json")[0])["queries"]["READINGS"]["sparql"]
    text = f"PREFIX sosa: <http://www.w3.org/ns/sosa/> {query}"

    def there() -> bool:
        return [row["value"] for row in kitchen.gateway.rows(text)] == ["20.5"]

    if not await asyncio.to_thread(there):
        await asyncio.to_thread(kitchen.broker.publish, ("porch/temperature", "20.5"))
        await asyncio.to_thread(wait_for, there, what="the first reading")


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("name", SECTIONS)
async def test_the_recipe_gives_what_is_shown(kitchen: Kitchen, name: str) -> None:
    section = SECTIONS[name]
    programs, printed = blocks(section, "python"), "".join(blocks(section, "text")).splitlines()
    todo = steps(section)
    if name == EXAMPLE:
        assert todo.pop(0) == ("lamplighter run --all", [])
    assert programs or todo, "the recipe has no command"
    if not programs:
        await followed(kitchen, todo)
        return
    async with kitchen.started(sys.executable, "-c", program(kitchen, programs[0])) as out:
        if "HTTPServer" in programs[0]:
            await asyncio.to_thread(wait_for, lambda: listens(kitchen.here("127.0.0.1:8088")), what="the receiver")
        for command, shown in todo:
            if command.startswith(PUBLISH):
                await kitchen.check(out, printed[:1])  # until it has the first result
                printed = printed[1:]
            assert kitchen.same(shown, await kitchen.output(command))
        await kitchen.check(out, printed)


def listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def program(kitchen: Kitchen, text: str) -> str:
    """The program with the addresses of this gateway."""
    port = kitchen.here("127.0.0.1:8088").partition(":")[2]
    return kitchen.here(text).replace('"127.0.0.1", 8088', f'"127.0.0.1", {port}')


async def followed(kitchen: Kitchen, todo: list[Step]) -> None:
    """Follows the steps of a recipe without a program."""
    if not todo:
        return
    (command, shown), *rest = todo
    more = rest.pop(0) if rest and rest[0][0].startswith(PUBLISH) and rest[0][1] else None
    if more or command.startswith("curl -sN"):
        async with kitchen.started("sh", "-c", kitchen.line(command)) as out:
            await kitchen.check(out, shown, later=command.startswith("mosquitto_sub"))
            if more:
                await kitchen.output(more[0])
                await kitchen.check(out, more[1])
    elif re.fullmatch(POSITION, "".join(shown)):
        [position] = await kitchen.output(command)
        assert re.fullmatch(POSITION, position)
        kitchen.replaced[shown[0]] = position
    else:
        await kitchen.until(command, shown)
    await followed(kitchen, rest)


def test_each_interface_has_a_recipe_and_a_page() -> None:
    """Each anchor of the table is a recipe; the rest of each is on a page of its own, or below."""
    anchors = re.findall(r"^\| \[[^]]*\]\(#([\w-]+)\)", DOCUMENT, re.M)
    assert anchors == [name.lower().replace(" ", "-") for name in DOORS]
    assert len(anchors) == 11 and f"](#{MORE.lower().replace(' ', '-')})" in SECTIONS["Server-Sent Events"]
    for name in DOORS:
        assert re.search(r"^More: \[.*\]\(.*\)", SECTIONS[name], re.M), name
