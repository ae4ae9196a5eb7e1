"""The chat against a real gateway, from its JSAP file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

from docs.examples.chat.chat import NAMES, PROFILE, chat
from lamplighter.engine.client import load_profile
from tests.support.places import ROOT
from tests.support.profiles import settings
from tests.support.running_gateway import TIMEOUT_S, health, running_gateway


async def test_every_message_is_sent_read_and_removed_and_nothing_is_left(tmp_path: Path) -> None:
    clients, messages = 4, 3
    told: list[str] = []

    async with running_gateway(tmp_path) as at:
        profile = load_profile(PROFILE, settings(at))
        assert await chat(profile, clients, messages, told.append) == 0
        state = await health(at)
        sent = clients * (clients - 1) * messages
        assert state["counters"]["updates"] == 2 * clients + 3 * sent, "three for each message"
        assert state["subscriptions"] == 0
    assert told[0] == "4 people are here"
    kinds = Counter(line.split()[1] for line in told[1:])
    assert kinds == {"reads": 36, "sees": 36}
    for name in NAMES[:clients]:
        gone = [line.partition(": ")[2] for line in told if line.startswith(f"{name} sees it go")]
        expected = [f"hello {name}, message {number}" for number in (1, 2, 3)] * 3
        assert sorted(gone) == sorted(expected)


async def test_the_program_tells_how_it_ended(tmp_path: Path) -> None:
    program = ROOT / "docs" / "examples" / "chat" / "chat.py"

    async def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, str(program), "--clients", "2", "--messages", "1", *options]
        return await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path
        )

    async with running_gateway(tmp_path) as at:
        done = await run(*(part for setting in settings(at) for part in ("--set", setting)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("2 messages were sent, read and removed; 0 quads are left\n")
    done = await run("--set", "host=127.0.0.1", "--set", "sparql11protocol.port=1")
    assert (done.returncode, done.stderr[:25]) == (1, "chat: no answer from http")
