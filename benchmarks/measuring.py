"""What the benchmarks share: the two sides of a comparison, their interleaved run, and memory.

The machine is not quiet, so both sides run the same texts in turns, a few updates each, and the figures are ratios
of CPU time; the wall clock is printed beside it. Garbage is collected before each repetition and the collector
stays on during it, for both sides alike.
"""

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pyoxigraph as ox

from lamplighter.engine import Commit, Engine
from lamplighter.engine.change_log import VERSION, Record, encode
from lamplighter.engine.protocol import Results, results_message

CHUNK = 31
"""Updates of one side before the other has its turn."""

Progress = Callable[[str], None]


@dataclass
class Cost:
    """CPU time of the process and wall time, in seconds."""

    cpu: float = 0.0
    wall: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu + other.cpu, self.wall + other.wall)


def cost_of(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


class Side(Protocol):
    """One of the systems that a race compares."""

    def run(self, texts: Sequence[str]) -> None: ...

    def finish(self) -> None: ...


class LogFile:
    """A change log that is written and never synced: the cost of an append without the disk's."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._second, self._prefix = -1, ""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, commit: Commit) -> None:
        second, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        record = Record(
            v=VERSION,
            type="commit",
            gw="gw-00000000",
            epoch=1,
            seq=commit.sequence,
            ts=f"{self._prefix}{microseconds:06d}Z",
            trusted=True,
            boot="00000000-0000-0000-0000-000000000000",
            boottime_us=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000,
            d=tuple(commit.removed),
            a=tuple(commit.added),
        )
        os.write(self._file, encode(record))

    def close(self) -> None:
        """Closes the file and removes it."""
        os.close(self._file)
        self._path.unlink()


def serialise(commit: Commit) -> int:
    """Turns each notification into the bytes that the gateway sends; how many they are.

    As in the gateway, results that several subscribers share are written once.
    """
    size = 0
    shared: dict[tuple[int, int], Results] = {}
    for spuid, sequence, added, removed in commit.notifications:
        results = shared.get((id(added), id(removed)))
        if results is None:
            results = shared[id(added), id(removed)] = Results(added, removed)
        size += len(results_message(spuid, sequence, results))
    return size


def flush(engine: Engine) -> None:
    """Brings the engine's store up to date, if the engine writes behind."""
    write = getattr(engine, "flush", None)
    if write is not None:
        write()


class EngineSide:
    """The engine, with the log append and the JSON of each notification inside the measured time."""

    def __init__(self, engine: Engine, log: LogFile) -> None:
        self.engine = engine
        self._log = log
        self.notified = 0

    def run(self, texts: Sequence[str]) -> None:
        update, append = self.engine.update, self._log.append
        for text in texts:
            commit = update(text)
            append(commit)
            if commit.notifications:
                serialise(commit)
                self.notified += len(commit.notifications)

    def finish(self) -> None:
        flush(self.engine)


class RawSide:
    """The store alone, given the same texts."""

    def __init__(self, knowledge_base: bytes) -> None:
        self.store = ox.Store()
        self.store.bulk_load(knowledge_base, format=ox.RdfFormat.N_TRIPLES)

    def run(self, texts: Sequence[str]) -> None:
        update = self.store.update
        for text in texts:
            update(text)

    def finish(self) -> None:
        """Has nothing left to do."""


def race(sides: Mapping[str, tuple[Side, Sequence[str]]], chunk: int = CHUNK) -> dict[str, Cost]:
    """Runs the texts of each side in turns of `chunk` updates; the side that begins changes with each turn.

    The cost of a side has that of its `finish` in it.
    """
    spent = {name: Cost() for name in sides}
    order = list(sides)
    gc.collect()
    for start in range(0, max(len(texts) for _, texts in sides.values()), chunk):
        for name in order:
            side, texts = sides[name]
            part = texts[start : start + chunk]
            spent[name] += cost_of(lambda side=side, part=part: side.run(part))  # type: ignore[misc]
        order.append(order.pop(0))
    for name, (side, _) in sides.items():
        spent[name] += cost_of(side.finish)
    return spent


def resident_mb() -> float:
    """Resident memory of this process in MB (10^6 bytes), after garbage was collected and free memory given back."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyoxigraph": version("pyoxigraph"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def target(name: str, value: float, limit: float, unit: str = "", *, at_least: bool = False) -> dict[str, Any]:
    """A limit of the project beside what was measured; value and limit in the same unit."""
    met = value >= limit if at_least else value <= limit
    return {"name": name, "value": value, "limit": limit, "unit": unit, "at_least": at_least, "met": met}
