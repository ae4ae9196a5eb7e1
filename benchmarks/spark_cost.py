"""Processor time of Spark: its JVM and the Python process that drives it, all threads added."""

import os
import re
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Cost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class SparkCost(Cost):
    """compiling: the part of cpu in which HotSpot compiled methods, in seconds."""

    compiling: float = 0.0


class SparkProcesses:
    """The JVM of a session and this process."""

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # type: ignore[attr-defined]
        self._folder = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}")

    def cpu_s(self) -> float:
        _, fields = _stat(self._folder)
        return (int(fields[11]) + int(fields[12])) / _TICKS + time.process_time()

    def compiling_s(self) -> float:
        """The part of `cpu_s` in which HotSpot compiled methods. It ends in a process that runs for long."""
        found = 0.0
        for task in (self._folder / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                name, fields = _stat(task)
                if name.startswith(("C1 Compiler", "C2 Compiler")):
                    found += (int(fields[11]) + int(fields[12])) / _TICKS
        return found

    def memory_mb_max(self) -> float:
        """The largest resident memory of the JVM so far, in MB (10^6 bytes)."""
        found = re.search(r"VmHWM:\s*(\d+) kB", (self._folder / "status").read_text())
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    @contextmanager
    def measured(self, costs: MutableMapping[str, SparkCost], name: str) -> Iterator[None]:
        """Puts the cost of the block into `costs`."""
        wall, cpu, compiling = time.perf_counter(), self.cpu_s(), self.compiling_s()
        yield
        compiling = self.compiling_s() - compiling
        costs[name] = SparkCost(self.cpu_s() - cpu, time.perf_counter() - wall, compiling)
        say(f"  {name}: {costs[name].cpu:.1f} s CPU ({compiling:.1f} s compiling), {costs[name].wall:.1f} s")


def _stat(folder: Path) -> tuple[str, list[str]]:
    """The name of a process or thread, and what follows it in its `stat`."""
    name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
    return name, rest.split()


def line_fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Least squares through (x, y): intercept, slope, and the largest distance from the line as a share of y."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else mean_y / mean_x
    intercept = mean_y - slope * mean_x
    return intercept, slope, max(abs(y - intercept - slope * x) / y for x, y in points)


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)
