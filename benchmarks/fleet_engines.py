"""What the commands of a fleet cost by `--engine local` and by `--engine spark`, over the same lakes of some sizes.

`python -m benchmarks.fleet_engines` simulates one day of gateways. Each command is started as an operator starts it.
Its processor time and memory are those of all its processes, looked at several times a second. ROWS_LOCAL in
`cloud_sync/fleet/session.py` is what `--engine auto` takes from it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import text_table
from benchmarks.fleet_local import COMMANDS, land
from benchmarks.measuring import machine
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.demo.fleet.simulate import Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan

GATEWAYS = (25, 100)
ENGINES = {"local": ("--engine", "local"), "spark": ("--master", "local[2]", "--conf", "spark.driver.memory=4g")}
POLL_S = 0.1
_TICKS, _PAGE_MB = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class EngineCost:
    """cpu, wall: seconds; mb: the most memory at a time."""

    cpu: float
    wall: float
    mb: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_engines", description=__doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=GATEWAYS, help="sizes (default: 25 100)")
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=list(ENGINES), help="(default: both)")
    options = parser.parse_args(arguments)
    print(f"{machine()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleet-engines-bench-") as name:
        folder = Path(name)
        plan = FleetPlan(1.0, event_share=0.5, states=1)
        orders = [Order(one, 1, plan, folder / "fleet", records=10_000) for one in range(1, max(options.gateways) + 1)]
        quads = {truth.gw: truth.quads_added + truth.quads_deleted for truth in fleet(orders, os.cpu_count() or 1)}
        for count in sorted(options.gateways):
            chosen = sorted(quads)[:count]
            rows = [["stage", *(f"{engine} {unit}" for engine in options.engine for unit in ("CPU s", "wall s", "MB"))]]
            costs = [_of_engine(folder, chosen, ENGINES[engine]) for engine in options.engine]
            for stage in COMMANDS:
                found = [cost[stage] for _, cost in costs]
                rows.append([stage, *(text for one in found for text in _cells(one))])
            whole = [EngineCost(*map(sum, _columns(cost)[:2]), max(_columns(cost)[2])) for _, cost in costs]
            rows.append(["all", *(text for one in whole for text in _cells(one))])
            size = f"{count} gateways, {costs[0][0]:,} records, {sum(quads[one] for one in chosen):,} quads"
            print(f"{size}\n{text_table.table(rows)}\n", flush=True)
    return 0


def _of_engine(folder: Path, gateways: Sequence[str], engine: Sequence[str]) -> tuple[int, dict[str, EngineCost]]:
    """The records of a lake, and what each command costs."""
    lake = Lake(str(folder / "lake"))
    for gateway in gateways:
        land(folder, lake, gateway)
    costs = {stage: _cost([*command, lake.url, *engine]) for stage, command in COMMANDS.items()}
    records = sum(batch.rows for batch in table(lake, "bronze").live())
    shutil.rmtree(lake.path())
    return records, costs


def _cost(command: Sequence[str]) -> EngineCost:
    began, ticks, memory = time.perf_counter(), dict[int, int](), 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "lamplighter.cloud_sync.fleet", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            found = _tree(process.pid)
            ticks.update({pid: used for pid, (used, _) in found.items()})
            memory = max(memory, sum(mb for _, mb in found.values()))
            time.sleep(POLL_S)
    assert process.returncode == 0, command
    return EngineCost(sum(ticks.values()) / _TICKS, time.perf_counter() - began, memory)


def _tree(root: int) -> dict[int, tuple[int, float]]:
    """Processor ticks and resident MB of a process and its descendants, by number."""
    parents, found = {}, {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split() if folder.name.isdecimal() else []
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if fields:
            parents[int(folder.name)] = int(fields[1])
            found[int(folder.name)] = int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_MB
    chosen = {root}
    while more := {pid for pid, parent in parents.items() if parent in chosen} - chosen:
        chosen |= more
    return {pid: found[pid] for pid in chosen if pid in found}


def _columns(costs: dict[str, EngineCost]) -> tuple[list[float], list[float], list[float]]:
    found = list(costs.values())
    return [one.cpu for one in found], [one.wall for one in found], [one.mb for one in found]


def _cells(one: EngineCost) -> list[str]:
    return [f"{one.cpu:.1f}", f"{one.wall:.1f}", f"{one.mb:.0f}"]


if __name__ == "__main__":
    sys.exit(main())
