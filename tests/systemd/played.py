"""Plays systemd for one process of Lamplighter: its notifications, its sockets, its watchdog."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.places import ROOT

TIMEOUT_S = 120.0


class PlayedSystemd:
    """Keeps the sockets open while the process comes and goes, as systemd does. Used as a context manager.

    listening: sockets by the names that they are passed under; each name may have several.
    """

    def __init__(self, folder: Path, *listening: tuple[str, socket.socket], watchdog_s: float = 3.0) -> None:
        self._listening = listening
        self._watchdog_s = watchdog_s
        self._config = folder / "lamplighter.toml"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._notify.settimeout(TIMEOUT_S)
        self._address = str(folder / "notify")
        self._output = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PlayedSystemd:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        self._notify.close()
        for _, one in self._listening:
            one.close()

    def start(self, *command: str) -> None:
        """Starts Python with a module's arguments, by default those of the gateway."""
        count = len(self._listening)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LISTEN_", "NOTIFY_"))},
            "NOTIFY_SOCKET": self._address,
            "WATCHDOG_USEC": str(int(self._watchdog_s * 1e6)),
            "LISTEN_FDS": str(count),
            "LISTEN_FDNAMES": ":".join(name for name, _ in self._listening),
        }

        def arrange() -> None:
            copies = [os.dup(one.fileno()) for _, one in self._listening]
            high = [os.dup2(copy, 100 + number) for number, copy in enumerate(copies)]
            for number, descriptor in enumerate(high):
                os.dup2(descriptor, 3 + number)

        # The shell becomes the process, so that LISTEN_PID is right.
        program = [sys.executable, *(command or ("-m", "lamplighter.gateway", "run")), "--config", str(self._config)]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *program],
                cwd=ROOT,
                env=environment,
                preexec_fn=arrange,
                pass_fds=[3 + number for number in range(count)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def heard(self, beginning: str) -> str:
        """The next notification with a line that begins so; those before it are passed over."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            try:
                text = self._notify.recv(65536).decode()
            except TimeoutError:
                break
            if any(line.startswith(beginning) for line in text.splitlines()):
                return text
        raise AssertionError(f"no {beginning} within {TIMEOUT_S} s; the process said:\n{self.output}")

    def forget(self) -> None:
        """Passes over what was said so far."""
        self._notify.setblocking(False)
        try:
            while True:
                self._notify.recv(65536)
        except BlockingIOError:
            self._notify.settimeout(TIMEOUT_S)

    def silent_for(self, seconds: float, beginning: str) -> bool:
        """Whether nothing that begins so is said for so long."""
        end = time.monotonic() + seconds
        self._notify.settimeout(0.1)
        try:
            while time.monotonic() < end:
                try:
                    if beginning in self._notify.recv(65536).decode():
                        return False
                except TimeoutError:
                    continue
            return True
        finally:
            self._notify.settimeout(TIMEOUT_S)

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    @property
    def output(self) -> str:
        return self._output.read_text()
