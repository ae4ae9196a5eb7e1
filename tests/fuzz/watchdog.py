"""A gateway whose threads are sampled: ``python -m tests.fuzz.watchdog run --config FILE ...``, as the command itself.

The process answers at ``watchdog.sock``, beside its settings, what its threads were doing in a period (`stacks`), and
what held its loop by its own figures (`holds`).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lamplighter.gateway.__main__ import main as gateway
from lamplighter.gateway.monitoring.timings import LoopHoldTimer, Work

SAMPLE_S = 0.02
SAMPLES_MAX = 20_000
"""Those of a few minutes; a thread that does nothing makes none."""
STACK_MAX = 24
"""Frames of a stack, of the innermost ones."""
HELD_NOTED_S = 0.1
_SOCKET = "watchdog.sock"
_THREADS = "watchdog.threads"


class _Sample(NamedTuple):
    """at: by time.monotonic; ms: processor time of the thread since its last sample; stack: innermost call first."""

    at: float
    thread: str
    ms: float
    stack: tuple[str, ...]


class Watchdog:
    """Samples all threads of this process but its own.

    A native call that keeps the interpreter's lock delays a sample, which then shows the call that has just returned.
    """

    def __init__(self) -> None:
        self.samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self.holds: list[tuple[float, float, str]] = []
        """When the gateway told a new maximum, its seconds and its work."""
        self._busy_ns: dict[int, int] = {}
        self._collecting = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        elif (ms := (time.thread_time() - self._collecting) * 1000) > 5:
            name = f"collection of generation {info['generation']}"
            self.samples.append(_Sample(time.monotonic(), threading.current_thread().name, ms, (name,)))

    def run(self) -> None:
        own = threading.get_native_id()
        while True:
            at = time.monotonic()
            found = _stacks()
            for thread in threading.enumerate():
                if thread.native_id is None or thread.native_id == own or thread.ident not in found:
                    continue
                with suppress(OSError):
                    spent = int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
                    ms = (spent - self._busy_ns.get(thread.native_id, 0)) / 1e6
                    if ms > 0.5:
                        self._busy_ns[thread.native_id] = spent
                        self.samples.append(_Sample(at, thread.name, ms, found[thread.ident]))
            time.sleep(SAMPLE_S)

    def answer(self, listener: socket.socket) -> None:
        """Answers one period a connection, for ever."""
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError, ValueError):
                period = json.loads(connection.makefile().readline())
                connection.sendall(json.dumps(self._doing(*period) if period else self._held()).encode())

    def _doing(self, since: float, until: float) -> list[dict[str, Any]]:
        return list(_merged([one for one in list(self.samples) if since <= one.at <= until + SAMPLE_S * 3]))

    def _held(self) -> list[dict[str, Any]]:
        return [
            {"at": at, "seconds": seconds, "work": work, "doing": self._doing(at - 3 * seconds, at)}
            for at, seconds, work in self.holds
        ]

    def follow_figures(self) -> None:
        """Notes each new maximum of the gateway's own figures."""
        note_busiest = LoopHoldTimer.note_busiest

        def noted(timer: LoopHoldTimer, busy: float, work: Work) -> None:
            note_busiest(timer, busy, work)
            if busy > HELD_NOTED_S:
                self.holds.append((time.monotonic(), busy, str(timer.busiest_work)))

        LoopHoldTimer.note_busiest = noted  # type: ignore[method-assign]


_DUMP = os.memfd_create("stacks")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+) \(most recent call first\):")
_FRAME = re.compile(r'  File "(?:.*/)?([^"/]+/[^"/]+)", line ([0-9]+) in (.*)')


def _stacks() -> dict[int, tuple[str, ...]]:
    """The stacks of all threads, the innermost call first. A frame object of each would keep what the frame has, and
    drop it in this thread."""
    os.ftruncate(_DUMP, 0)
    os.lseek(_DUMP, 0, os.SEEK_SET)
    faulthandler.dump_traceback(_DUMP)
    stacks: dict[int, list[str]] = {}
    for line in os.pread(_DUMP, 1 << 20, 0).decode(errors="replace").splitlines():
        if (thread := _THREAD.match(line)) is not None:
            stack = stacks[int(thread[1], 16)] = []
        elif (frame := _FRAME.match(line)) is not None and len(stack) < STACK_MAX:
            stack.append(f"{frame[1]}:{frame[2]} {frame[3]}")
    return {ident: tuple(stack) for ident, stack in stacks.items()}


def _merged(samples: list[_Sample]) -> Iterator[dict[str, Any]]:
    """Stacks that were seen again and again, each once, in the order of time."""
    last: dict[str, dict[str, Any]] = {}
    for one in samples:
        before = last.get(one.thread)
        if before is not None and before["stack"] == one.stack:
            before["ms"] = round(before["ms"] + one.ms, 1)
            continue
        if before is not None:
            yield before
        last[one.thread] = {"at": one.at, "thread": one.thread, "ms": round(one.ms, 1), "stack": one.stack}
    yield from last.values()


def cpu_s(folder: Path, pid: int) -> float:
    """The processor time that the watchdog itself has taken in the gateway whose settings are in a folder."""
    numbers = (folder / _THREADS).read_text().split()
    return sum(int(Path(f"/proc/{pid}/task/{one}/schedstat").read_text().split()[0]) for one in numbers) / 1e9


def stacks(folder: Path, since: float, until: float) -> list[dict[str, Any]]:
    """What the threads of the gateway whose settings are in a folder were doing, with their processor time; those that
    took a millisecond or more. since, until: by time.monotonic."""
    return [one for one in _asked(folder, [since, until]) if one["ms"] >= 1]


def holds(folder: Path) -> list[dict[str, Any]]:
    """The works that the gateway's own figures name, each longer than the one before, with the stacks of that time."""
    return _asked(folder, [])


def _asked(folder: Path, period: list[float]) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(30)
        asking.connect(str(folder / _SOCKET))
        asking.sendall(json.dumps(period).encode() + b"\n")
        return list(json.loads(asking.makefile().read()))


def main() -> int:
    folder = Path(sys.argv[sys.argv.index("--config") + 1]).parent
    watchdog = Watchdog()
    watchdog.follow_figures()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / _SOCKET))
        listener.listen()
        own = [
            threading.Thread(target=watchdog.run, name="watchdog", daemon=True),
            threading.Thread(target=watchdog.answer, args=(listener,), name="watchdog's socket", daemon=True),
        ]
        for thread in own:
            thread.start()
        (folder / _THREADS).write_text(" ".join(str(thread.native_id) for thread in own))
        return gateway()


if __name__ == "__main__":
    sys.exit(main())
