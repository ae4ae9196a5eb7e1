"""docs/choose-interface.md says what is so: its commands print what is shown, and its tables have what there is."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from lamplighter.gateway.gates import apis
from lamplighter.gateway.gates.sse import api
from lamplighter.gateway.settings import Settings
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway

DOCUMENT = (ROOT / "docs" / "choose-interface.md").read_text()
[CONSOLE] = re.findall(r"^```console\n(.*?)^```$", DOCUMENT, re.M | re.S)
STEPS = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", CONSOLE, re.M)
"""Commands, and what is shown below them."""
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LIMIT_S = 120.0


def pattern(shown: str) -> str:
    """A regular expression for a line: `…` stands for any text, an id for any id."""
    return ".*".join(map(re.escape, re.split(rf"…|{ID}", shown)))


async def test_the_stream_has_what_is_shown(tmp_path: Path) -> None:
    require_command("curl")
    (follow, first), (change, second) = STEPS
    async with running_gateway(tmp_path) as at:
        base = at.query.removesuffix("/query")
        stream = await asyncio.create_subprocess_exec(
            *shlex.split(follow.replace("http://127.0.0.1:8000", base)),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert stream.stdout is not None
        try:
            for shown, update in ((first, change), (second, None)):
                for line in shown.splitlines():
                    while not (printed := (await asyncio.wait_for(stream.stdout.readline(), LIMIT_S)).decode().strip()):
                        pass
                    assert re.fullmatch(pattern(line), printed), printed
                if update is not None:
                    words = shlex.split(update)[1:]
                    assert (await asyncio.to_thread(command, *words, "--url", base)).returncode == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(stream.pid, signal.SIGKILL)
            await stream.wait()


def test_each_interface_is_switched_on_as_its_row_says() -> None:
    """Every interface that the settings switch on has a row with its table, whose default is off."""
    rows = re.findall(r"^\| \[.*\| (`\[\w+\]`.*|.*on\b.*) \|$", DOCUMENT, re.M)
    assert len(rows) == DOCUMENT.partition("\n\n`[name]`")[0].count("\n| [") == 11
    named = {name for row in rows for name in re.findall(r"`\[(\w+)\]`", row)}
    switched = set(re.findall(r"settings\.(\w+)\.enabled", inspect.getsource(apis)))
    assert named <= switched
    assert switched - named <= {"page", "security"}, switched - named
    defaults = msgspec.to_builtins(Settings())
    assert not any(defaults[name]["enabled"] for name in named)


def test_the_parameters_are_those_of_the_stream() -> None:
    table = DOCUMENT.partition("| parameter | meaning |\n")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`([a-z-]+)(?:=true)?`", row.split("|")[1])}
    assert named == {"query", *api._GRAPHS, *api._NAMES}
