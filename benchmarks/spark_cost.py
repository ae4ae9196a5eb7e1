"""Processor time of Spark: its JVM and the Python process that drives it, all threads added."""

import os
import re
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Cost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")


class SparkProcesses:
    """The JVM of a session and this process."""

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # type: ignore[attr-defined]
        self._folder = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}")

    def cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS + time.process_time()

    def memory_mb_max(self) -> float:
        """The largest resident memory of the JVM so far, in MB (10^6 bytes)."""
        found = re.search(r"VmHWM:\s*(\d+) kB", (self._folder / "status").read_text())
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    @contextmanager
    def measured(self, costs: MutableMapping[str, Cost], name: str) -> Iterator[None]:
        """Puts the cost of the block into `costs`."""
        wall, cpu = time.perf_counter(), self.cpu_s()
        yield
        costs[name] = Cost(self.cpu_s() - cpu, time.perf_counter() - wall)
        say(f"  {name}: {costs[name].cpu:.1f} s CPU, {costs[name].wall:.1f} s")


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
