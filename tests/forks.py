"""Which forks of a process there are: readers, trials, snapshots."""

from __future__ import annotations

import os
from pathlib import Path


def forks(process: int | None = None) -> set[int]:
    """The processes, zombies too, that were forked from this one or another and run the same; servers that tests have
    started beside are none."""
    parent = process or os.getpid()
    command = Path(f"/proc/{parent}/cmdline").read_bytes()
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            its_parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            # One that is about to end has no command any more.
            if int(its_parent) == parent and (path / "cmdline").read_bytes() in (command, b""):
                found.add(int(path.name))
        except OSError:
            continue  # it ended meanwhile
    return found
