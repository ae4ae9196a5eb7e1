"""Gateways that kill themselves where they are told to: run by `tests.support.kills`, one after the other.

Everything is imported once; each gateway is a fork of this warm process, which takes a twentieth of a second instead
of a whole one. A line on stdin is a gateway to start: JSON with ``config`` (path of its lamplighter.toml) and the place
of its death, ``point`` and ``number``: it passes there so many times less one. Lines on stdout: ``pid 17``, ``ready``,
``at`` with the place just before the end, and ``dead`` with the wait status.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from lamplighter.engine.core import Commit, Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.disk import TEMPORARY, Disk
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway, stop_on_signals

APPLY, RELEASE = "before apply", "before release"
PASS = "before time passes"
HALF = "half of write"


class Place:
    """Where the gateway is to die."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    def reached(self, point: str) -> bool:
        """Whether it is to die here."""
        if point != self._point:
            return False
        self._left -= 1
        return self._left == 0

    def pass_by(self, point: str) -> None:
        if self.reached(point):
            die(point)


def die(point: str) -> NoReturn:
    os.write(1, f"at {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still there")


class DeadlyDisk(Disk):
    """A disk whose operations are places."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._paths: dict[int, Path] = {}

    def _pass_by(self, kind: str, path: Path) -> None:
        self._place.pass_by(f"{kind} {_kind(path)}")

    def make_folder(self, path: Path) -> None:
        self._pass_by("make_folder", path)
        super().make_folder(path)

    def create(self, path: Path) -> int:
        self._pass_by("create", path)
        file = super().create(path)
        self._paths[file] = path
        return file

    def write(self, file: int, data: bytes) -> int:
        path = self._paths[file]
        self._pass_by("write", path)
        if self._place.reached(f"{HALF} {_kind(path)}"):
            super().write(file, data[: len(data) // 2])
            die(f"{HALF} {_kind(path)}")
        return super().write(file, data)

    def sync(self, file: int) -> None:
        self._pass_by("sync", self._paths[file])
        super().sync(file)

    def rename(self, source: Path, target: Path) -> None:
        self._pass_by("rename", target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._pass_by("remove", path)
        super().remove(path)

    def sync_folder(self, path: Path) -> None:
        self._pass_by("sync_folder", path / "any")
        super().sync_folder(path)


def _kind(path: Path) -> str:
    return f"{path.parent.name}{' temporary' if path.name.endswith(TEMPORARY) else ''}"


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            _say(f"pid {os.getpid()}")
            try:
                _run(Path(order["config"]), Place(order["point"], order["number"]))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        _say(f"dead {status}")


def _run(config: Path, place: Place) -> None:
    commit, advance, sync = Engine.commit, Engine.advance, LogWriter.sync

    def deadly_commit(engine: Engine, delta: QuadDelta, sequence: int) -> Commit:
        place.pass_by(APPLY)
        return commit(engine, delta, sequence)

    def deadly_advance(engine: Engine, now: datetime, sequence: int) -> Commit:
        place.pass_by(PASS)
        return advance(engine, now, sequence)

    def deadly_sync(log: LogWriter, **options: Any) -> None:
        sync(log, **options)
        place.pass_by(RELEASE)

    def ready(addresses: Addresses, recovery: Recovery) -> None:
        _say("ready")

    async def run() -> None:
        await run_gateway(Configuration.read(config, None), stop_on_signals(), ready, adapters=False)

    with (
        mock.patch("lamplighter.gateway.log.writer.Disk", lambda: DeadlyDisk(place)),
        mock.patch.object(Engine, "commit", deadly_commit),
        mock.patch.object(Engine, "advance", deadly_advance),
        mock.patch.object(LogWriter, "sync", deadly_sync),
        mock.patch("lamplighter.gateway.log.maintenance.PAUSE_S", 0.02),
    ):
        asyncio.run(run())


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
