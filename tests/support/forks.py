"""The forks of a process (readers, trials, snapshots), and forks that wait for a lock forever."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from lamplighter.gateway.workers.ad_hoc import Answer, Reader


def forks(process: int | None = None) -> set[int]:
    """The processes, zombies too, that were forked from this one or another and run the same; servers that tests have
    started beside are none."""
    parent = process or os.getpid()
    command = Path(f"/proc/{parent}/cmdline").read_bytes()
    found = set()
    # Each thread has a list of those that it has forked: reading all processes of the machine takes 10 ms and more.
    for thread in Path(f"/proc/{parent}/task").iterdir():
        for number in _read(thread / "children").split():
            # One that is about to end has no command any more.
            if _read(Path(f"/proc/{int(number)}/cmdline")) in (command, b""):
                found.add(int(number))
    return found


def _read(path: Path) -> bytes:
    """The content of a file, and nothing for one whose process or thread has ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def no_forks() -> bool:
    """Whether this process has no forks."""
    return not forks()


def open_files(process: int) -> list[str]:
    """What a process has open besides the standard streams; nothing of one that ends meanwhile."""
    try:
        return [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if int(link.name) > 2]
    except FileNotFoundError:
        return []


async def forks_gone(before: set[int]) -> None:
    """Waits for the end of the forks that were not there before: a gateway that closes kills its own, and whoever looks
    for forks later in this process is not to find them."""
    while forks() - before:
        await asyncio.sleep(0.005)


def stuck_streams(monkeypatch: pytest.MonkeyPatch, count: int) -> list[bool]:
    """From now on the first so many streams wait for a lock for ever, as when a thread of a store on disk holds one
    while the process is forked. Returns a list that has a member for each stream: whether it is one of those."""
    held = threading.Lock()
    held.acquire()
    begun: list[bool] = []
    stream = Reader.stream

    def begin(reader: Reader, work: Callable[[BinaryIO], None]) -> Answer:
        begun.append(len(begun) < count)

        def waiting(out: BinaryIO) -> None:
            held.acquire()
            work(out)

        return stream(reader, waiting if begun[-1] else work)

    monkeypatch.setattr("lamplighter.gateway.workers.ad_hoc._LOOK_S", 0.01)
    monkeypatch.setattr(Reader, "stream", begin)
    return begun
