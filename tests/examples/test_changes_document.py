"""docs/change-feed.md says what is so: its commands and its program run against a gateway."""

from __future__ import annotations

import asyncio
import re
import shlex
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.change_replica import Replica
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import TIMEOUT_S, running_gateway, update

DOCUMENT = (ROOT / "docs" / "change-feed.md").read_text()
[SETTINGS] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)
[PROGRAM] = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
COMMANDS = re.findall(r"^\$ (curl .*)$", DOCUMENT, re.M)
OFF = "INSERT DATA { <http://example.org/lamp/1> <http://example.org/state> 'OFF' }"
ON = "DELETE { ?lamp ?p 'OFF' } INSERT { ?lamp ?p 'ON' } WHERE { ?lamp ?p 'OFF' }"


def shown(command: str) -> str:
    """What the document shows below a command."""
    return re.split(r"^(?:\$ .*|```)$", DOCUMENT.split(f"$ {command}\n")[1], maxsplit=1, flags=re.M)[0]


def shape(text: str) -> str:
    """A text without what differs from run to run."""
    text = re.sub(r"gw-[0-9a-f]{8}/(\d+/\d+)/[0-9a-f]{8}", r"gw/\1", text)
    return re.sub(r"urn:uuid:[0-9a-f-]{36}|\d{4}-\d\d-\d\dT[\d:.]+Z", "...", text)


async def run(command: str, gateway: Addresses, folder: Path, end: str = "") -> str:
    """The output of a command, up to its end or up to a line that is `end`."""
    base = gateway.query.removesuffix("/query")
    words = shlex.split(command.replace("http://127.0.0.1:8000", base))
    words[0] = require_command(words[0])
    process = await asyncio.create_subprocess_exec(*words, cwd=folder, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        if not end:
            output = (await process.communicate())[0].decode()
            assert process.returncode == 0
            return output
        output = ""
        while not output.endswith(end):
            output += (await process.stdout.readline()).decode()
        process.kill()
        await process.wait()
    return output


@asynccontextmanager
async def patch_service() -> AsyncIterator[tuple[str, Replica]]:
    """A store that takes RDF Patches by POST. It reads them with nothing of the gateway."""
    replica = Replica()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("post /copy/patch ") and "content-type: application/rdf-patch\r\n" in head
        length = re.search(r"content-length: (\d+)", head)
        assert length is not None
        replica.patches((await reader.readexactly(int(length[1]))).decode())
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", replica


async def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    base, lines, patches, post, events = COMMANDS
    tables = tomllib.loads(SETTINGS)
    async with running_gateway(tmp_path, **tables) as gateway, patch_service() as (store, replica):
        assert (await update(gateway, OFF)).status == 200
        await run(base, gateway, tmp_path)
        head = shape((tmp_path / "head.txt").read_text())
        told = shape(shown("cat head.txt"))
        assert set(told.splitlines()) <= set(head.splitlines()), head
        found = re.search(r"(?i)^lamplighter-position: (\S+)$", (tmp_path / "head.txt").read_text(), re.M)
        assert found is not None
        position = found[1]
        replica.patches(await run(base.replace("-o base.nq", "-H 'Accept: application/rdf-patch'"), gateway, tmp_path))
        assert (await update(gateway, ON)).status == 200
        output = await run(lines.replace("$POSITION", position), gateway, tmp_path)
        assert shape(output) == shape(shown(lines))
        await run(patches.replace("$POSITION", position), gateway, tmp_path)
        assert shape((tmp_path / "changes.rdfp").read_text()) == shape(shown("cat changes.rdfp"))
        await run(post.replace("http://store.example:3030", store), gateway, tmp_path)
        copied = Replica()
        await run(base, gateway, tmp_path)
        copied.quads((tmp_path / "base.nq").read_bytes())
        assert replica.content == copied.content
        assert replica.position in (tmp_path / "head.txt").read_text()
        output = await run(events.replace("$POSITION", position), gateway, tmp_path, end="\n\n")
        assert shape(output).rstrip("\n") == shape(shown(events)).rstrip("\n")


async def test_the_program_keeps_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Callable[..., Awaitable[None]]] = {}
    exec(compile(PROGRAM, "changes.md", "exec"), names)
    store = ox.Store()
    async with running_gateway(tmp_path, **tomllib.loads(SETTINGS)) as gateway:
        assert (await update(gateway, OFF)).status == 200
        program = asyncio.create_task(names["main"](gateway.query.removesuffix("/query"), store, "ON"))
        async with asyncio.timeout(TIMEOUT_S):
            while not len(store):
                await asyncio.sleep(0.01)
            assert (await update(gateway, ON)).status == 200
            await program
    [quad] = store
    assert quad.object == ox.Literal("ON")
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["from the beginning: the follower begins", *["at a position, 1 quads"] * 2]
