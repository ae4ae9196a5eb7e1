"""The built image on an emulated board: the disk is a card, this module plays the boards' firmware.

What the firmware of a board does is done here from the same files: autoboot.txt on the first partition says which boot
partition is taken, its config.txt names kernel and initramfs, its cmdline.txt is what the kernel is told. Not emulated:
bootcode.bin, start*.elf and the device trees; of these the static checks say that they are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BOOT_S = float(os.environ.get("IMAGE_BOOT_S", "1500"))
"""How long a start may take while the emulator has the processor whenever it wants it."""
STEP_S = BOOT_S / 2
BUSY = 4
"""How many times as long it may take beside other work, which only stretches a wait (`Patience`)."""
DIAGNOSIS = """
systemctl is-system-running; systemctl list-jobs --no-pager
units=$(systemctl list-units --plain --no-legend --state=failed,activating --type=service | cut -d ' ' -f 1)
for unit in $units; do systemctl status --no-pager --full --lines=40 "$unit"; done
journalctl --boot --no-pager --priority=warning --lines=60
"""
"""What explains a service that does not run, in the words of the machine itself."""
_SECTOR = 512


@dataclass(frozen=True)
class Partition:
    number: int
    type: int
    begin: int  # bytes
    size: int


def partitions(disk: Path) -> dict[int, Partition]:
    """The partitions of an MBR, with those in its extended one; read here, not by the tool that wrote them."""
    found: dict[int, Partition] = {}
    with disk.open("rb") as file:

        def entries(sector: int) -> list[tuple[int, int, int]]:
            file.seek(sector * _SECTOR)
            record = file.read(_SECTOR)
            assert record[510:] == b"\x55\xaa", f"sector {sector} of {disk} is no partition table"
            rows = (record[446 + 16 * at : 462 + 16 * at] for at in range(4))
            return [(row[4], *struct.unpack("<II", row[8:])) for row in rows]

        extended = 0
        for number, (kind, begin, sectors) in enumerate(entries(0), 1):
            if kind:
                found[number] = Partition(number, kind, begin * _SECTOR, sectors * _SECTOR)
            if kind in (0x05, 0x0F):
                extended = begin
        number, at = 5, extended
        while at:
            (kind, begin, sectors), (following, relative, _), *_ = entries(at)
            found[number] = Partition(number, kind, (at + begin) * _SECTOR, sectors * _SECTOR)
            number, at = number + 1, extended + relative if following else 0
    return found


class Card:
    """A disk image as a card: its FAT partitions are read and written without mounting them."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def names(self, partition: int) -> set[str]:
        listed = self._mtools("mdir", partition, "-b", "-/", "::").decode()
        return {line.strip().removeprefix("::/") for line in listed.splitlines() if line.strip()}

    def read(self, partition: int, name: str) -> bytes:
        return self._mtools("mtype", partition, f"::{name}")

    def write(self, partition: int, name: str, content: bytes) -> None:
        self._mtools("mcopy", partition, "-o", "-", f"::{name}", given=content)

    def overwrite(self, partition: int, begin: bytes) -> None:
        """The first bytes of a partition, whatever is in it."""
        with self.disk.open("r+b") as file:
            file.seek(partitions(self.disk)[partition].begin)
            file.write(begin)

    def _mtools(self, program: str, partition: int, *arguments: str, given: bytes | None = None) -> bytes:
        drive = f"{self.disk}@@{partitions(self.disk)[partition].begin}"
        done = subprocess.run(
            [program, "-i", drive, *arguments],
            input=given,
            capture_output=True,
            check=False,
            env={**os.environ, "MTOOLS_SKIP_CHECK": "1"},
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stderr.decode()}"
        return done.stdout


def autoboot(text: str) -> dict[str, int]:
    """The boot partition of each section of an autoboot.txt."""
    found, section = {}, "all"
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("boot_partition="):
            found[section] = int(line.split("=")[1])
    return found


def config(text: str) -> dict[str, str]:
    """The assignments and directives of a config.txt."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(line.replace("initramfs ", "initramfs=").split("=", 1) for line in lines if "=" in line or " " in line)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Patience:
    """How much longer to wait for an emulator: time in which it wanted the processor and others had it does not count.

    The kernel says for each thread how long it waited to run. The hard limit is BUSY times the other one.
    """

    def __init__(self, process: int, limit_s: float) -> None:
        self._threads = Path(f"/proc/{process}/task")
        self._limit_s = limit_s
        self._begin_s = time.monotonic()
        self._waited_s = self._processor_awaited_s()

    def _processor_awaited_s(self) -> float:
        """Of the thread that waited longest."""
        awaited_ns = [0]
        for thread in self._threads.glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                awaited_ns.append(int(thread.read_text().split()[1]))
        return max(awaited_ns) / 1e9

    @property
    def is_over(self) -> bool:
        elapsed_s = time.monotonic() - self._begin_s
        undisturbed_s = elapsed_s - (self._processor_awaited_s() - self._waited_s)
        return undisturbed_s > self._limit_s or elapsed_s > BUSY * self._limit_s


@dataclass
class Machine:
    """A board with a card. ports: those of the guest, and where they are reached on this machine's loopback."""

    folder: Path
    image: Path
    card_bytes: int = 4 << 30
    ports: dict[int, int] = field(default_factory=lambda: {port: free_port() for port in (22, 80, 1883, 8443, 9443)})
    pi3: bool = False  # the emulated Pi 3 itself, which has no network and is slower, in place of a generic board
    starts: int = 0
    booted: list[int] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _connection: subprocess.Popen[bytes] | None = None  # which the others share: to make one takes seconds, emulated

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        disk = self.folder / "card.img"
        subprocess.run(["cp", "--sparse=always", str(self.image), str(disk)], check=True)
        with disk.open("r+b") as file:
            file.truncate(self.card_bytes)
        self.card = Card(disk)
        self._key = self.folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)], check=True)
        self.card.write(1, "authorized_keys", self._key.with_suffix(".pub").read_bytes())

    @property
    def console(self) -> str:
        """Everything that came over the serial line, of all starts."""
        return "".join(
            (self.folder / f"console-{number}.log").read_text(errors="replace")
            for number in range(1, self.starts + 1)
            if (self.folder / f"console-{number}.log").exists()
        )

    @property
    def last_console(self) -> str:
        """The same, of the last start."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Power on: what the firmware does, then the kernel."""
        assert not self.running
        slot = autoboot(self.card.read(1, "autoboot.txt").decode())["all"]
        self.booted.append(slot)
        self.starts += 1
        settings = config(self.card.read(slot, "config.txt").decode())
        names = {"kernel": settings["kernel"], "initrd": settings["initramfs"].split()[0]}
        if self.pi3:
            names["dtb"] = "bcm2837-rpi-3-b.dtb"  # the firmware takes it by the board that it runs on
        for kind, name in names.items():
            (self.folder / kind).write_bytes(self.card.read(slot, name))
        told = self.card.read(slot, "cmdline.txt").decode().split()
        board = self._pi3(told) if self.pi3 else self._generic_board(told)
        self._process = subprocess.Popen(
            [
                *("qemu-system-aarch64", "-accel", "tcg,thread=multi"),
                *("-kernel", str(self.folder / "kernel"), "-initrd", str(self.folder / "initrd")),
                *("-display", "none", "-monitor", "none", "-no-reboot"),
                *board,
            ],
            stdin=subprocess.DEVNULL,
        )

    def _generic_board(self, told: list[str]) -> list[str]:
        # It has another serial line; the last console is the one that services write to.
        told = [*(word for word in told if not word.startswith("console=")), "console=ttyAMA0"]
        # What goes wrong before there is a login is read there, too.
        told += ["systemd.journald.forward_to_console=1", "systemd.journald.max_level_console=warning"]
        forwarded = "".join(f",hostfwd=tcp:127.0.0.1:{ours}-:{theirs}" for theirs, ours in self.ports.items())
        return [
            *("-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024", "-append", " ".join(told)),
            *("-drive", f"file={self.card.disk},format=raw,if=virtio"),
            *("-netdev", f"user,id=net{forwarded}", "-device", "virtio-net-pci,netdev=net,romfile="),
            *("-device", "virtio-rng-pci", "-serial", f"file:{self._log}"),
        ]

    def _pi3(self, told: list[str]) -> list[str]:
        # No screen. Its watchdog counts in the time of the machine that emulates, which may leave it no time.
        told = [*(word for word in told if word != "console=tty0"), "systemd.watchdog_sec=0"]
        return [
            *("-M", "raspi3b", "-dtb", str(self.folder / "dtb"), "-append", " ".join(told)),
            *("-drive", f"file={self.card.disk},format=raw,if=sd"),
            *("-serial", "null", "-serial", f"file:{self._log}"),  # the second one is ttyS1
        ]

    @property
    def _log(self) -> Path:
        return self.folder / f"console-{self.starts}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cut_power(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._disconnect()

    def wait_for_reset(self) -> None:
        """Until the board resets itself or is off (the emulator ends then)."""
        self.wait("reset of the board", lambda: None if self.running else True, BOOT_S, running=False)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection.wait()
            self._connection = None

    def wait(self, what: str, attempt: Callable[[], T | None], limit_s: float = STEP_S, *, running: bool = True) -> T:
        """Polls until there is an answer. running: an answer that only a running machine can give."""
        assert self._process is not None
        patience = Patience(self._process.pid, limit_s)
        last: Exception | None = None
        while not patience.is_over:
            assert self.running or not running, f"the machine is off while waiting for {what}\n{self.console[-4000:]}"
            try:
                found = attempt()
            except (OSError, AssertionError, ValueError, subprocess.SubprocessError) as error:
                found, last = None, error
            if found is not None:
                return found
            time.sleep(2)
        raise AssertionError(f"no {what} within {limit_s:.0f} s: {last!r}\n{self.diagnosis()}\n{self.console[-8000:]}")

    def diagnosis(self) -> str:
        """Units that failed or are not ready yet, with the end of their journals, and all warnings."""
        try:
            return self.ssh(DIAGNOSIS, check=False, limit_s=300)
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            return f"no login, so no journal: {error!r:.300}"

    def assert_no_failed_unit(self) -> None:
        failed = self.ssh("systemctl list-units --failed --plain --no-legend")
        assert failed == "", f"{failed}\n{self.diagnosis()}"

    @property
    def _ssh_options(self) -> list[str]:
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=60")
        shared = ("ServerAliveInterval=30", f"ControlPath={self.folder / 'ssh'}")
        return ["-i", str(self._key), *(word for option in (*options, *shared) for word in ("-o", option))]

    def ssh(self, command: str, *, check: bool = True, limit_s: float = STEP_S) -> str:
        """What a command says; it runs as root over the network."""
        done = subprocess.run(
            ["ssh", *self._ssh_options, "-p", str(self.ports[22]), "root@127.0.0.1", command],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if check or done.returncode == 255:
            assert done.returncode == 0, f"{command}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout.strip()

    def send(self, file: Path, to: str) -> None:
        """Copies a file into the machine."""
        command = ["scp", "-q", *self._ssh_options, "-P", str(self.ports[22]), str(file), f"root@127.0.0.1:{to}"]
        subprocess.run(command, check=True, timeout=STEP_S)

    def wait_until_up(self) -> None:
        """Until all that starts has started."""
        self.wait("login by ssh", lambda: self.ssh("true") or "", BOOT_S)
        (self.folder / "ssh").unlink(missing_ok=True)  # of a start before
        self._connection = subprocess.Popen(
            ["ssh", "-M", "-N", *self._ssh_options, "-p", str(self.ports[22]), "root@127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait(
            "end of the start",
            lambda: self.ssh("systemctl is-system-running", check=False) in ("running", "degraded") or None,
            BOOT_S,
        )

    def credentials(self) -> dict[str, str]:
        """What the first start has written to the firmware partition, by the words before the values."""
        text = self.wait("credentials", lambda: self.ssh("cat /boot/config/lamplighter-credentials.txt") or None)
        rows = re.findall(
            r"^  (gateway|authority|fingerprint|client id|client secret|MQTT \w+) +(.*?)\r?$", text, re.MULTILINE
        )
        return dict(rows)

    def https(
        self, path: str, content: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any] | str]:
        """An HTTPS request from outside; status and what is answered."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        request = urllib.request.Request(f"https://127.0.0.1:{self.ports[8443]}{path}", content, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read().decode()
        with contextlib.suppress(ValueError):
            return status, json.loads(text)
        return status, text

    def close(self) -> None:
        if self.running:
            self.cut_power()
        (self.folder / "card.img").unlink(missing_ok=True)


@contextlib.contextmanager
def machine(folder: Path, image: Path, *, pi3: bool = False) -> Iterator[Machine]:
    one = Machine(folder, image, pi3=pi3)
    try:
        yield one
    finally:
        one.close()
