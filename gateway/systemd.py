"""The interface to systemd: readiness, progress, sockets, credentials, journal.

No library: datagrams and inherited files, as sd_notify(3), sd_listen_fds(3), systemd.exec(5) and systemd's "Journal
Native Protocol" describe them. The environment variables read here are systemd's own; without them, nothing happens.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lamplighter.engine.log_events import Event

FAILED = "failed: "  # before the error with which a process ends, in its status
_FIRST_SOCKET = 3
_EXTENSION_S = 120  # extra time of a start for each sign of progress
_RECORDS_EACH = 1000
_SAY_S = 1.0
_TOLD_CHARACTERS_MAX = 1000  # of one line; systemd ignores a message of more than 4,096 bytes
_JOURNAL = Path("/run/systemd/journal/socket")
_JOURNAL_SEND_S = 1.0
_JOURNAL_PAUSE_S = 30.0
_MESSAGE_CHARACTERS_MAX = 32_768  # a datagram holds 200 KiB by default; the end of a long traceback is cut


@dataclass(frozen=True)
class Passed:
    """A socket that systemd opened for this process. name: `FileDescriptorName=` of its unit."""

    name: str
    socket: socket.socket

    @property
    def place(self) -> str:
        """Its address, for people."""
        address = self.socket.getsockname()
        if not isinstance(address, tuple):
            return str(address)
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


class Supervisor:
    """The supervisor of a service. environment: of the process, {} without a supervisor. watchdog_s: the time without
    `alive` after which the service is killed, None for no limit."""

    def __init__(
        self, environment: Mapping[str, str], *, monotonic: Callable[[], float] = time.monotonic, pid: int | None = None
    ) -> None:
        self._environment = environment
        self._pid = os.getpid() if pid is None else pid
        self._monotonic = monotonic
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._said = ""
        self._said_at = -_SAY_S
        self.watchdog_s = self._watchdog_s()

    def _watchdog_s(self) -> float | None:
        limit = self._environment.get("WATCHDOG_USEC", "")
        meant = self._environment.get("WATCHDOG_PID", str(self._pid)) == str(self._pid)
        return int(limit) / 1e6 if limit.isdecimal() and int(limit) and meant else None

    @property
    def active(self) -> bool:
        return bool(self._address)

    # --- to systemd ---

    def ready(self, status: str) -> None:
        self._tell("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(f"STATUS={text}")

    def alive(self) -> None:
        if self.watchdog_s is not None:
            self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        self._said = ""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={status}")

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Says with which error the body ends. `systemctl status` shows it until the next start."""
        try:
            yield
        except Exception as error:
            self.status(f"{FAILED}{error or type(error).__name__}")
            raise

    def recovering(self, records: int) -> None:
        """Reports the number of replayed records, and extends the time limit of the start."""
        if records % _RECORDS_EACH == 0 and (now := self._monotonic()) - self._said_at >= _SAY_S:
            self._said_at = now
            self._tell(f"EXTEND_TIMEOUT_USEC={_EXTENSION_S * 1_000_000}")
            self.status(f"recovering, {records:,} records so far")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(" ".join(line.splitlines())[:_TOLD_CHARACTERS_MAX] for line in lines)
        place = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.sendto(text.encode(errors="replace"), place)

    # --- from systemd ---

    def sockets(self) -> list[Passed]:
        """The sockets that systemd opened for this process; to be called once."""
        count = self._environment.get("LISTEN_FDS", "")
        if self._environment.get("LISTEN_PID") != str(self._pid) or not count.isdecimal():
            return []
        names = self._environment.get("LISTEN_FDNAMES", "").split(":")
        passed = []
        for number in range(int(count)):
            descriptor = _FIRST_SOCKET + number
            os.set_inheritable(descriptor, False)
            name = names[number] if number < len(names) else ""
            passed.append(Passed(name, socket.socket(fileno=descriptor)))
        return passed

    def credential(self, name: str) -> Path | None:
        """The file of a credential (`LoadCredential=` of the unit), None if it has none of that name."""
        folder = self._environment.get("CREDENTIALS_DIRECTORY", "")
        if not folder or "/" in name or name in ("", ".", ".."):
            return None
        path = Path(folder) / name
        return path if path.exists() else None


# --- units ----------------------------------------------------------------------------------------------------

_PROGRAM_S = 2.0
_LINE_CHARACTERS_MAX = 500
_PROPERTIES = ("Id", "ActiveState", "SubState", "Result", "NRestarts", "StatusText", "ExecMainStatus", "LoadState")


@dataclass(frozen=True)
class UnitState:
    """What systemd knows of a service. status: what its process said last (`Supervisor.status`); it is empty from the
    next start on. code: with which it ended; 200 to 243 are systemd's own (systemd.exec(5)). load: "loaded", "masked",
    or why systemd cannot read its unit."""

    unit: str
    state: str
    sub: str
    result: str
    restarts: str
    status: str = ""
    code: str = "0"
    load: str = "loaded"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.sub not in ("auto-restart", "dead", "failed")

    @property
    def failing(self) -> bool:
        """Whether systemd starts it again and again, or has given up."""
        return self.state in ("activating", "failed")

    @property
    def start(self) -> str:
        """The command that starts it; where systemd cannot read its unit, the one that says why."""
        start = f"systemctl start {self.unit}"
        if self.load == "masked":
            return f"systemctl unmask {self.unit} && {start}"
        return start if self.load == "loaded" else f"systemd-analyze verify {self.unit}"

    def text(self) -> str:
        """For people, with the last line of its processes, or with what starts it."""
        if self.load != "loaded":
            return f"{self.unit} is {self.load}, so systemd does not start it; `{self.start}`"
        # Lines of systemd itself about the unit have another unit: they say that it failed, and not why.
        last = _output("journalctl", f"_SYSTEMD_UNIT={self.unit}", "--lines=1", "--output=cat").strip()
        line = f"; its last line: {last.splitlines()[-1][:_LINE_CHARACTERS_MAX]}" if last else ""
        more = f"`journalctl -u {self.unit} -n 50` has more"
        if not self.running and not self.failing:
            more += f", `{self.start}` starts it"
        state = f"{self.state} ({self.sub}), {self.result}, restarted {self.restarts or 0} times"
        return f"{self.unit}: {state}{line}; {more}"


def unit_states(units: Sequence[str]) -> dict[str, UnitState]:
    """By their names, with ``.service``; without those that systemd does not know, and without systemd none."""
    if not Path("/run/systemd/system").is_dir():
        return {}
    shown = _output("systemctl", "show", *units, f"--property={','.join(_PROPERTIES)}")
    states = {}
    for one in shown.split("\n\n"):
        found = dict(line.split("=", 1) for line in one.splitlines() if "=" in line)
        state = UnitState(*(found.get(key, "") for key in _PROPERTIES))
        if state.load not in ("", "not-found"):
            states[state.unit] = state
    return states


def unit_state(unit: str) -> UnitState | None:
    return unit_states([unit]).get(unit)


def _output(*command: str) -> str:
    """What a program prints; empty if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_PROGRAM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# --- the journal ---------------------------------------------------------------------------------------------

_NAMES = {"spuid": "SUBSCRIPTION", "id": "TIMER_ID"}  # fields whose name in the journal is not their key in capitals
_RESERVED = re.compile(r"(MESSAGE|PRIORITY|ERRNO|LOGGER|GATEWAY|(CODE|SYSLOG|OBJECT|COREDUMP|INVOCATION)_.*)")


def fields(record: logging.LogRecord) -> dict[str, str]:
    """The journal's fields of a record: those of its `Event`, in capitals; none of records of libraries."""
    if not isinstance(record.msg, Event):
        return {}
    named = {_NAMES.get(key, key.upper()): str(value) for key, value in record.msg.fields.items()}
    return {name: value for name, value in named.items() if not _RESERVED.fullmatch(name)}


def priority(level: int) -> int:
    """The priority of syslog(3) for a level of logging."""
    bounds = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((found for bound, found in bounds if level >= bound), 7)


class JournalHandler(logging.Handler):
    """Writes to the journal, with fields. constant: fields of every line, such as GATEWAY; may be changed.

    A journal that takes nothing, as while its disk hangs, stops the process for `_JOURNAL_SEND_S` in each
    `_JOURNAL_PAUSE_S`. The lines meanwhile are lost, and counted in the next one.
    """

    def __init__(self, path: Path = _JOURNAL) -> None:
        super().__init__()
        self.constant: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_JOURNAL_SEND_S)
        self._path = str(path)
        self._lost, self._silent_until = 0, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if self._lost:
            if time.monotonic() < self._silent_until:
                self._lost += 1
                return
            lost = f'log lines lost count={self._lost} reason="the journal took none"'
            if not self._send({"MESSAGE": lost, "PRIORITY": "4", "LOGGER": __name__, **self.constant}):
                self._lost += 1
                return
            self._lost = 0
        try:
            line = self.format(record)
            if len(line) > _MESSAGE_CHARACTERS_MAX:
                line = line[:_MESSAGE_CHARACTERS_MAX] + " ..."
            entry = {
                "MESSAGE": line,
                "PRIORITY": str(priority(record.levelno)),
                "LOGGER": record.name,
                "SYSLOG_IDENTIFIER": "lamplighter",
                **self.constant,
                **fields(record),
            }
            try:
                self._lost += not self._send(entry)
            except OSError as error:
                small = {name: entry[name] for name in ("MESSAGE", "PRIORITY", "LOGGER")}
                if error.errno == errno.EMSGSIZE:
                    small["MESSAGE"] = line[:1000] + " ..."
                    self._lost += not self._send(small)
                else:
                    raise
        except Exception:
            self._otherwise(record)

    def _send(self, entry: Mapping[str, str]) -> bool:
        """False if the journal did not take it in time. Standard error is the same journal, so it is no way out. Raises
        OSError."""
        try:
            self._socket.sendto(b"".join(_field(name, value) for name, value in entry.items()), self._path)
        except TimeoutError:
            self._silent_until = time.monotonic() + _JOURNAL_PAUSE_S
            return False
        return True

    def _otherwise(self, record: logging.LogRecord) -> None:
        """Writes to standard error, where the socket of the journal fails."""
        with suppress(Exception):
            sys.stderr.write(PrefixFormatter().format(record) + "\n")

    def close(self) -> None:
        self._socket.close()
        super().close()


def _field(name: str, value: str) -> bytes:
    data = value.encode(errors="backslashreplace")
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


class PrefixFormatter(logging.Formatter):
    """For a journal that reads standard error: each line begins with its priority (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        level = priority(record.levelno)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).splitlines())


def mark_lines(**constant: str) -> None:
    """Adds these fields to all journal entries of this process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, JournalHandler):
            handler.constant.update(constant)


def journal_handler(environment: Mapping[str, str], descriptor: int = 2) -> logging.Handler | None:
    """The handler where standard error is the journal, None where it is not. environment: JOURNAL_STREAM names the file
    that the journal has connected, since output may be redirected."""
    stream = environment.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    if stream != f"{status.st_dev}:{status.st_ino}":
        return None
    if _JOURNAL.exists():
        return JournalHandler()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrefixFormatter())
    return handler


def set_up_logging(environment: Mapping[str, str]) -> None:
    """Makes this process log to the journal if it is connected, else to standard error with the time."""
    journal = journal_handler(environment)
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s" if journal is not None else "%(asctime)s %(levelname)s %(name)s %(message)s",
        handlers=[journal or logging.StreamHandler(sys.stderr)],
    )
    for chatty in ("apscheduler", "aiocoap", "websockets", "uvicorn", "asyncio", "httpx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
