"""The way back: the previous version starts on a folder in which this one has used every feature, and goes on."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.test_state_files import is_listed
from tests.support.brokers import free_port, mosquitto
from tests.support.components import require_command
from tests.support.every_feature import EveryFeature, configure, put_receiver
from tests.support.places import ROOT
from tests.support.previous_version import previous_tree

pytestmark = pytest.mark.faults


class FolderShell:
    """Shell commands of this machine, with the `lamplighter` of one version. tree: its checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = ROOT
        self.config = folder / "lamplighter.toml"
        programs = folder / "programs"
        programs.mkdir()
        script = f'#!/bin/sh\nexec {sys.executable} -P -m lamplighter.gateway "$@" --config {self.config}\n'
        (programs / "lamplighter").write_text(script)
        (programs / "lamplighter").chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'programs'}:{os.environ['PATH']}"
        others = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**others, "PATH": path, "PYTHONPATH": str(self.tree), "PYTHONUNBUFFERED": "1"}

    def __call__(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=self.environment, cwd=self.folder, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def put(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.05)  # another process has no other way to tell
        raise AssertionError(f"{what} did not come true within {timeout_s} s")


class Versions:
    """The gateway of one version after the other, on one folder."""

    def __init__(self, shell: FolderShell) -> None:
        self._shell = shell
        self._gateway: subprocess.Popen[str] | None = None

    def start(self, tree: Path) -> None:
        """Ends the gateway, and starts that of another version. Returns when it is ready."""
        self.end()
        self._shell.tree = tree
        with (self._shell.folder / "gateway.log").open("a") as log:
            self._gateway = subprocess.Popen(
                [str(self._shell.folder / "programs/lamplighter"), "run", "--all"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._shell.environment,
                cwd=self._shell.folder,
            )
        assert self._gateway.stdout is not None
        line = self._gateway.stdout.readline()
        assert "ready" in line, (self._shell.folder / "gateway.log").read_text()[-4000:]

    def end(self) -> None:
        if self._gateway is not None:
            self._gateway.terminate()
            assert self._gateway.wait(60) == 0
            assert self._gateway.stdout is not None
            self._gateway.stdout.close()
            self._gateway = None


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[FolderShell]:
    require_command("curl")
    yield FolderShell(tmp_path)


def test_back_and_forward_nothing_is_lost(shell: FolderShell) -> None:
    previous, folder = previous_tree(), shell.folder
    https, wss, coap, receiver = free_port(), free_port(), free_port(), free_port()
    with mosquitto() as broker:
        tables = configure(shell, str(folder), coap)
        shell.put(
            str(shell.config),
            '[security]\nenabled = true\nattempts_per_min = 6000\nhost = "127.0.0.1"\n'
            f"https_port = {https}\nwss_port = {wss}\n"
            f'[mqtt]\nhost = "127.0.0.1"\nport = {broker.port}\n[sync]\ndestination = "{folder}/shipped"\n{tables}',
        )
        files = str(folder / "files")
        receiving = subprocess.Popen(shlex.split(put_receiver(shell, files, receiver).removeprefix("exec ")))
        sockets = folder / "data/run"
        house = EveryFeature(
            shell,
            http=str(sockets / "http.sock"),
            websocket=str(sockets / "ws.sock"),
            https=https,
            files=files,
            python=sys.executable,
            broker=broker.port,
            coap=coap,
            receiver=receiver,
        )
        versions = Versions(shell)
        try:
            (folder / "shipped").mkdir()
            shell("lamplighter devices key porch --address 127.0.0.1:5998")
            versions.start(ROOT)
            house.begin()
            for tree in (previous, ROOT):  # tests/systemd/test_versions.py goes five times
                house.use()
                versions.start(tree)
                house.check()
                shell("lamplighter sync run --once")
            versions.end()
            shell("lamplighter verify")
            data = {str(path.relative_to(folder / "data")) for path in (folder / "data").rglob("*") if path.is_file()}
            assert [path for path in sorted(data) if not is_listed(path)] == []
        finally:
            versions.end()
            receiving.kill()
            receiving.wait()
