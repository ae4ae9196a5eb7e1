"""What the fleet's tables and jobs cost on Spark: `make bench-fleet`, with DuckDB on the same segments beside it.

The cost of a stage is processor time of Spark's JVM and of the Python process that drives it, all threads added; the
wall clock is printed beside it. The session is started and a small fleet is worked through first, outside of what is
measured: that costs the same for one gateway and for thousands, and is printed too.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import report, text_table
from benchmarks.fleet_peer import MEMORY, peer_costs
from benchmarks.measuring import Cost, machine, target
from benchmarks.spark_cost import SparkCost, SparkProcesses, line_fit, say
from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis
from lamplighter.cloud_sync.fleet.jobs.commands import write_results
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.session import session
from lamplighter.cloud_sync.fleet.tables.bronze import ingest
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.demo.fleet.simulate import Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = (1, 2, 4, 8)
QUADS = 1_250_000
"""About so many at size 1."""
WARM_UP = 0.1
HEAP = "4g"
EVENT_SHARE = 0.5
FLEET = 100_000
SILVER = ("streams", "observations", "actuations", "gateway_health")
_QUADS_PER_GATEWAY_DAY = 50_000


@dataclass
class Run:
    """One size. quads: added and deleted in the segments; costs: by stage."""

    gateways: int
    quads: int = 0
    records: int = 0
    segment_bytes: int = 0
    costs: dict[str, SparkCost] = field(default_factory=dict)
    peer: dict[str, Cost] = field(default_factory=dict)

    def cpu(self, *stages: str) -> float:
        return sum(self.costs[name].cpu for name in stages or self.costs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="times --quads (default: 1 2 4 8)")
    parser.add_argument("--quads", type=int, default=QUADS, help="at size 1 (default %(default)s)")
    parser.add_argument("--events", type=float, default=EVENT_SHARE, help="share of gateways with model event")
    parser.add_argument("--no-peer", action="store_true", help="leave DuckDB out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        return _run(Path(folder), options)


def _run(folder: Path, options: argparse.Namespace) -> int:
    base = max(1, round(options.quads / _QUADS_PER_GATEWAY_DAY))
    most = base * max(options.sizes)
    plan = FleetPlan(1.0, event_share=options.events, states=1)
    say(f"simulating {most} gateways, one day each")
    orders = [Order(number, 1, plan, folder / "fleet", records=10_000) for number in range(1, most + 1)]
    truths = {}
    for truth in fleet(orders, os.cpu_count() or 1):
        truths[truth.gw] = (truth.quads_added + truth.quads_deleted, truth.records)
    began = time.perf_counter()
    spark = session("benchmark", f"local[{min(2, os.cpu_count() or 1)}]", {"spark.driver.memory": HEAP})
    try:
        jvm = SparkProcesses(spark)
        started = Cost(jvm.cpu_s(), time.perf_counter() - began)
        names = sorted(truths)
        warm_up = _one(spark, jvm, folder, names[: max(1, round(base * WARM_UP))], truths, peer=False)
        runs = [
            _one(spark, jvm, folder, names[: base * size], truths, peer=not options.no_peer) for size in options.sizes
        ]
        memory = jvm.memory_mb_max()
    finally:
        spark.stop()
    print(f"{machine()}\n")
    text, limits = _summary(runs, warm_up, started, memory)
    print(report.summary({"fleet": {"note": text, "targets": limits}}))
    return 0 if all(limit["met"] for limit in limits) else 1


def _one(
    spark: "SparkSession",
    jvm: SparkProcesses,
    folder: Path,
    gateways: Sequence[str],
    truths: dict[str, tuple[int, int]],
    *,
    peer: bool,
) -> Run:
    """Everything, from landed segments to results, for some of the gateways."""
    run = Run(len(gateways), sum(truths[gw][0] for gw in gateways), sum(truths[gw][1] for gw in gateways))
    say(f"{run.gateways} gateways, {run.quads:,} quads")
    lake = Lake(str(folder / "lake"))
    segments = []
    for gateway in gateways:
        landed = Path(lake.path("segments", gateway))
        landed.mkdir(parents=True)
        for path in (folder / "fleet" / "shipped" / gateway).glob("*.ndjson.zst"):
            (landed / path.name).hardlink_to(path)
            segments.append(landed / path.name)
    run.segment_bytes = sum(path.stat().st_size for path in segments)
    with jvm.measured(run.costs, "bronze"):
        ingest(spark, lake)
    with jvm.measured(run.costs, "silver"):
        Silver(spark, lake).update()
    with (
        jvm.measured(run.costs, "jobs"),
        Path(os.devnull).open("w") as nowhere,
        redirect_stderr(nowhere),
        Analysis(*(tables.read(spark, lake, name) for name in SILVER)) as found,
    ):
        write_results(found, tuple(RESULTS), Lake(lake.path("results")))
    if peer:
        run.peer = peer_costs(segments, [Path(path) for path in _files(lake, "streams")])
        for stage, cost in run.peer.items():
            say(f"  DuckDB, {stage}: {cost.cpu:.1f} s CPU, {cost.wall:.1f} s")
    shutil.rmtree(lake.path())
    return run


def _files(lake: Lake, name: str) -> list[str]:
    table = tables.table(lake, name)
    return [lake.path(table.name, file) for batch in table.live() for file in batch.files]


def _summary(runs: Sequence[Run], warm_up: Run, started: Cost, memory: float) -> tuple[str, list[dict[str, Any]]]:
    stages = list(runs[0].costs)
    rows = [
        ["gateways", "M quads", "MB segments", *(f"{name} CPU s" for name in stages), "all", "wall s", "K quads/core-s"]
    ]
    for run in runs:
        rows.append(
            [
                f"{run.gateways:,}",
                f"{run.quads / 1e6:.2f}",
                f"{run.segment_bytes / 1e6:.0f}",
                *(f"{run.cpu(name):.1f}" for name in stages),
                f"{run.cpu():.1f}",
                f"{sum(cost.wall for cost in run.costs.values()):.1f}",
                f"{run.quads / run.cpu() / 1e3:.0f}",
            ]
        )
    fits = [["fit, CPU", "fixed s", "s per M quads", "K quads/core-s", "furthest off"]]
    slopes = {}
    for name, chosen in (*((stage, (stage,)) for stage in stages), ("all", tuple(stages))):
        fixed, slope, off = line_fit([(run.quads, run.cpu(*chosen)) for run in runs])
        slopes[name] = slope
        fits.append([name, f"{fixed:.1f}", f"{slope * 1e6:.2f}", f"{1 / slope / 1e3:.0f}", f"{off * 100:.0f} %"])
    off = line_fit([(run.quads, run.cpu()) for run in runs])[2]
    last = runs[-1]
    peers = [[f"DuckDB, 2 threads, {MEMORY}", "CPU s", "wall s", "K quads/core-s", "Spark's CPU s", "times"]]
    for name, cost in last.peer.items():
        ours = last.cpu("bronze" if name == "read segments" else name)
        peers.append(
            [
                name,
                f"{cost.cpu:.1f}",
                f"{cost.wall:.1f}",
                f"{last.quads / cost.cpu / 1e3:.0f}",
                f"{ours:.1f}",
                f"{ours / cost.cpu:.1f}",
            ]
        )
    quads_day = last.quads / last.gateways * FLEET
    core_hours = slopes["all"] * quads_day / 3600
    notes = [
        text_table.table(rows),
        text_table.table(fits),
        text_table.table(peers) if last.peer else "",
        f"not in these: the session, {started.wall:.1f} s and {started.cpu:.1f} s CPU; a first small fleet of "
        f"{warm_up.quads:,} quads, {warm_up.cpu():.1f} s CPU; most memory of the JVM {memory:,.0f} MB, heap {HEAP}",
        f"{FLEET:,} gateways like these commit {quads_day / 1e9:.1f} G quads a day: by the slope "
        f"{core_hours:,.0f} core-hours, {core_hours / 24:.1f} cores all day",
    ]
    return "\n\n".join(note for note in notes if note), _targets(last, slopes["bronze"], off)


def _targets(last: Run, bronze_slope: float, off: float) -> list[dict[str, Any]]:
    return [
        target(
            f"bronze at {last.quads / 1e6:.1f} M quads, K quads per core-second",
            last.quads / last.cpu("bronze") / 1e3,
            400,
            at_least=True,
        ),
        target("bronze by the slope, K quads per core-second", 1 / bronze_slope / 1e3, 400, at_least=True),
        target(
            "bronze, silver and all jobs, K quads per core-second", last.quads / last.cpu() / 1e3, 100, at_least=True
        ),
        target("furthest from a straight line", off * 100, 15, " %"),
        target("most quads with a heap of 4 GB, M", last.quads / 1e6, 10, at_least=True),
    ]


if __name__ == "__main__":
    sys.exit(main())
