"""A published client in a process of its own, told what to do by JSON lines (js/drive.js, drive_sepy.py)."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.components import missing, require_command

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parent.parent / "build" / "clients"
TIMEOUT_S = 120.0


class PeerError(Exception):
    """What the client's call failed with. members: as the driver tells them."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__(str(members))
        self.members = members


class Peer:
    """The client at work; it ends when its input does.

    sepa-js 0.13.2 fails by itself a second after it closed a socket that several of its subscriptions had shared: it
    connects again, and sends before it is connected.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._events: deque[dict[str, Any]] = deque()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _next(self) -> dict[str, Any]:
        try:
            message = self._lines.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"the client told nothing within {TIMEOUT_S} s") from None
        assert message is not None, f"the client ended with {self._process.wait()}"
        return message

    def call(self, call: str, /, **members: Any) -> Any:
        """The result of a call; events meanwhile wait. Raises PeerError."""
        assert self._process.stdin
        self._number += 1
        self._process.stdin.write(json.dumps({"id": self._number, "call": call, **members}) + "\n")
        self._process.stdin.flush()
        while (message := self._next()).get("id") != self._number:
            self._events.append(message)
        if "error" in message:
            raise PeerError(message["error"])
        return message["result"]

    def event(self, of: str, *names: str) -> tuple[str, Any]:
        """The next event with one of these names that the subscription called `of` told, and its data; the others of it
        are left out."""
        for place, message in enumerate(self._events):
            if message["of"] == of and message["event"] in names:
                del self._events[place]
                return message["event"], message["data"]
        while True:
            message = self._next()
            if message.get("of") == of and message["event"] in names:
                return message["event"], message["data"]
            if message.get("of") != of:
                self._events.append(message)

    def notification(self, of: str) -> Any:
        return self.event(of, "notification")[1]

    def close(self) -> int:
        """Ends the client; its exit code."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            code = self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            self._reader.join()
            self._process.stdout.close()
        return code


def _installed(path: Path) -> Path:
    if not path.exists():
        missing(f"{path} is not there; tests/clients/fetch.sh installs it, or says why it could not")
    return path


def javascript_environment(authority: Path | None = None) -> dict[str, str]:
    """The environment in which Node finds sepa-js. authority: the certificate authority to trust, in PEM."""
    modules = _installed(INSTALLED / "js" / "installed").parent / "node_modules"
    environment = {**os.environ, "NODE_PATH": str(modules)}
    return environment if authority is None else environment | {"NODE_EXTRA_CA_CERTS": str(authority)}


@contextmanager
def javascript_client(authority: Path | None = None) -> Iterator[Peer]:
    """sepa-js in Node. authority: as for its environment."""
    peer = Peer([require_command("node"), str(HERE / "js" / "drive.js")], javascript_environment(authority))
    try:
        yield peer
    finally:
        code = peer.close()
    assert code == 0


@contextmanager
def python_client() -> Iterator[Peer]:
    """sepy in its own environment."""
    python = _installed(INSTALLED / "sepy" / "installed").parent / "bin" / "python"
    peer = Peer([str(python), str(HERE / "drive_sepy.py")], {"PYTHONWARNINGS": "ignore"})
    try:
        yield peer
    finally:
        code = peer.close()
    assert code == 0
