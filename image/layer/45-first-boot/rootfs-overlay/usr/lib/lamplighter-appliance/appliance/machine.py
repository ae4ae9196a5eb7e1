"""The machine as this package sees it: its files, its console, its programs. Tests give another root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CREDENTIALS = "lamplighter-credentials.txt"
REPORT = "lamplighter-first-boot.txt"
WIRELESS = "/etc/wpa_supplicant/wpa_supplicant-wlan0.conf"


@dataclass(frozen=True)
class Machine:
    """root: what every path is under."""

    root: Path = Path("/")

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    @property
    def firmware(self) -> Path:
        """The firmware partition, where the user puts files."""
        return self.path("/boot/config")

    @property
    def state(self) -> Path:
        """Of this package, on the data partition."""
        return self.path("/data/appliance")

    def say(self, text: str) -> None:
        """A line for whoever looks at the screen or the serial console, and for the journal."""
        print(text, flush=True)
        self.show(text)

    def show(self, text: str) -> None:
        """The same, but not for the journal: it may have secrets in it."""
        for device in ("/dev/console", "/dev/tty1"):  # the serial line, and the screen
            with contextlib.suppress(OSError), self.path(device).open("a") as console:
                console.write("".join(f"lamplighter: {line}\r\n" for line in text.splitlines()))

    def run(self, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program of the machine; whether it went well is in what comes back."""
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)

    def write(self, path: Path, text: str, mode: int = 0o644, like: Path | None = None) -> None:
        """Writes a file as a whole: after a power cut there is the old one or the new one.

        like: whose owner it gets; root's without one.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            os.fchmod(file.fileno(), mode)  # one that was left over may have another mode
            if like is not None:
                owner = like.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def firmware_writable(self) -> Iterator[None]:
        """FAT is written for moments only: it has no journal."""
        self._remount("rw")
        try:
            yield
        finally:
            os.sync()
            self._remount("ro")

    def _remount(self, how: str) -> None:
        if self.root == Path("/"):
            done = self.run("mount", "-o", f"remount,{how}", str(self.firmware))
            if done.returncode:
                raise OSError(f"{self.firmware} cannot be mounted {how}: {done.stderr.strip()}")


def first_line(text: str, lines: Sequence[str] = ()) -> str:
    """What a program said, on one line."""
    return next((line.strip() for line in [*text.splitlines(), *lines] if line.strip()), "")
