"""What the fleet's tables and jobs cost by `--engine local`, and a DuckDB script of the same work beside it.

`python -m benchmarks.fleet_local` simulates fleets of some sizes. Both sides go from landed segments to files, in
turns. Each of our stages and the script have a process of their own, and the median counts. The script's SQL is that of
the tests. Its silver takes the versions of streams as they are, so silver has no target.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import report, text_table
from benchmarks.fleet_peer import peer_costs
from benchmarks.measuring import Cost, cost_of, machine, target
from lamplighter.cloud_sync.fleet.__main__ import main as fleet_command
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.demo.fleet.simulate import Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan

GATEWAYS = (2, 25)
ROUNDS = 3
# Our time as a multiple of the script's.
TIMES_MAX = {"bronze": 1.3, "jobs": 1.5}
# Processor seconds of all jobs over the smallest fleet, with the start of Python.
SMALL_MAX_S = 12
COMMANDS = {"bronze": ("ingest",), "silver": ("silver",), "jobs": ("jobs", "all")}


@dataclass(frozen=True)
class Measured:
    """cpu, wall: seconds; whole: processor seconds of the process, with the imports; mb: the most memory."""

    cpu: float
    wall: float
    whole: float
    mb: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_local", description=__doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=GATEWAYS, help="sizes (default: 2 25)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave the script out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fleet-local-bench-") as name:
        folder = Path(name)
        plan = FleetPlan(1.0, event_share=0.5, states=1)
        orders = [
            Order(number, 1, plan, folder / "fleet", records=10_000) for number in range(1, max(options.gateways) + 1)
        ]
        quads = {truth.gw: truth.quads_added + truth.quads_deleted for truth in fleet(orders, os.cpu_count() or 1)}
        print(f"{machine()}\n")
        limits = []
        for count in sorted(options.gateways):
            chosen = sorted(quads)[:count]
            ours, theirs = _in_turns(folder, chosen, 1 if options.no_peer else options.rounds, not options.no_peer)
            print(f"{_table(count, sum(quads[gateway] for gateway in chosen), ours, theirs)}\n", flush=True)
            limits += _targets(count, ours, theirs, small=count == min(options.gateways))
    print(report.summary({"local": {"targets": limits}}))
    return 0 if all(limit["met"] for limit in limits) else 1


def _in_turns(
    folder: Path, gateways: Sequence[str], rounds: int, with_peer: bool
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """The median of each stage, of ours and of the script."""
    ours: list[dict[str, Measured]] = []
    theirs: list[dict[str, Measured]] = []
    for _ in range(rounds):
        lake = Lake(str(folder / "lake"))
        segments = [path for gateway in gateways for path in land(folder, lake, gateway)]
        ours.append({stage: _in_process(_command, command, lake.url)[0] for stage, command in COMMANDS.items()})
        if with_peer:
            streams = tables.table(lake, "streams")
            files = [Path(lake.path(streams.name, file)) for batch in streams.live() for file in batch.files]
            measured, costs = _in_process(peer_costs, segments, files)
            theirs.append(
                {
                    stage: Measured(cost.cpu, cost.wall, 0, measured.mb)
                    for stage, cost in costs.items()
                    if stage in COMMANDS
                }
            )
        shutil.rmtree(lake.path())
    return _medians(ours), _medians(theirs)


def land(folder: Path, lake: Lake, gateway: str) -> list[Path]:
    """Puts the segments of a gateway into the lake. Returns their files."""
    landed = Path(lake.path("segments", gateway))
    landed.mkdir(parents=True)
    for path in (folder / "fleet" / "shipped" / gateway).glob("*.ndjson.zst"):
        (landed / path.name).hardlink_to(path)
    return list(landed.iterdir())


def _medians(rounds: Sequence[dict[str, Measured]]) -> dict[str, Measured]:
    return {
        stage: sorted((one[stage] for one in rounds), key=lambda one: one.cpu)[len(rounds) // 2]
        for stage in (rounds[0] if rounds else ())
    }


def _in_process(work: Callable[..., Any], *arguments: Any) -> tuple[Measured, Any]:
    """What a function costs in a new process, and what it returns."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measure, work, *arguments).result()


def _measure(work: Callable[..., Any], *arguments: Any) -> tuple[Measured, Any]:
    results = []
    cost: Cost = cost_of(lambda: results.append(work(*arguments)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(cost.cpu, cost.wall, time.process_time(), memory), results[0]


def _command(command: Sequence[str], lake: str) -> None:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        assert fleet_command([*command, lake, "--engine", "local"]) == 0, command


def _table(count: int, quads: int, ours: dict[str, Measured], theirs: dict[str, Measured]) -> str:
    rows = [["stage", "CPU s", "wall s", "MB", "script CPU s", "wall s", "MB", "times"]]
    for stage, mine in ours.items():
        row = [stage, *_cells(mine)]
        if stage in theirs:
            row += [*_cells(theirs[stage]), f"{mine.cpu / theirs[stage].cpu:.2f}"]
        rows.append(row + [""] * (len(rows[0]) - len(row)))
    speed = quads / sum(one.cpu for one in ours.values()) / 1e3
    return f"{count} gateways, {quads:,} quads: {speed:.0f} K quads per core-second\n{text_table.table(rows)}"


def _cells(one: Measured) -> list[str]:
    return [f"{one.cpu:.2f}", f"{one.wall:.2f}", f"{one.mb:.0f}"]


def _targets(
    count: int, ours: dict[str, Measured], theirs: dict[str, Measured], *, small: bool
) -> list[dict[str, Any]]:
    found = [
        target(f"{stage} of {count} gateways, times the script", ours[stage].cpu / theirs[stage].cpu, most)
        for stage, most in TIMES_MAX.items()
        if stage in theirs
    ]
    if small:
        found.append(target(f"all jobs of {count} gateways, CPU s with the start", ours["jobs"].whole, SMALL_MAX_S))
    return found


if __name__ == "__main__":
    sys.exit(main())
