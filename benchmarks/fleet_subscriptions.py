"""What fleet subscriptions cost on Spark: `make bench-fleet-subscriptions`, ARGS="osma-csma latency" for some parts.

The first parts make the experiments of EventCloud again (Pellegrino 2013, 5). A figure is processor time of Spark's JVM
and of the Python process that drives it, all threads added, per event. Each side of a comparison first runs without
being measured; then the sides run in turns, and the median counts. Wall times are those of the machine with whatever
else it had to do; the load is printed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import fleet_workload as workload
from benchmarks import plot, report, text_table
from benchmarks.fleet_latency import latency
from benchmarks.measuring import Cost, machine, target
from benchmarks.spark_cost import SparkCost, SparkProcesses, line_fit, say
from lamplighter.cloud_sync.fleet.events.events import events
from lamplighter.cloud_sync.fleet.queries.fleet_data import by_subject
from lamplighter.cloud_sync.fleet.queries.star_plan import StarPlan
from lamplighter.cloud_sync.fleet.session import session
from lamplighter.cloud_sync.fleet.sparql import csma, osma
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query
from lamplighter.cloud_sync.fleet.subscriptions.index import candidates, entries
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription, matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP = "2g"
ROUNDS = 5
WARM_UP = 2
"""Runs of each side that are not measured."""
PAPER_RATIO = 5.43
"""Subscriber throughput of OSMA by that of CSMA, median over 1 to 25 peers (Pellegrino 2013, 5)."""


@dataclass
class PartResult:
    """What a part found. series: for the plots, by name."""

    note: str
    targets: list[dict[str, Any]] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Bench:
    """A session, a folder for its data, and how often each side runs. quick: small sizes."""

    def __init__(self, folder: Path, rounds: int, *, quick: bool, spark: "SparkSession | None" = None) -> None:
        self.folder = folder
        self.quick = quick
        self._rounds = rounds
        self._cores = min(2, os.cpu_count() or 1)
        self.spark = spark or self._session(self._cores)

    def sizes(self, *usual: int) -> list[int]:
        """The sizes of a series; with `quick` a hundredth of the first."""
        return [max(10, usual[0] // 100)] if self.quick else list(usual)

    def cores(self, count: int) -> None:
        """Goes on with another number of cores, in the same JVM."""
        if count != self._cores:
            self.spark.stop()
            self._cores = count
            self.spark = self._session(count)

    def _session(self, cores: int) -> "SparkSession":
        return session("benchmark", f"local[{cores}]", {"spark.driver.memory": HEAP})

    def stored(self, name: str, make: Callable[["SparkSession"], "DataFrame"]) -> "DataFrame":
        """A frame from Parquet files, which are made first if they are missing."""
        path = self.folder / name
        if not path.exists():
            make(self.spark).write.parquet(str(path))
        return self.spark.read.parquet(str(path))

    def medians(self, sides: Mapping[str, Callable[[], None]]) -> dict[str, SparkCost]:
        """Runs the sides in turns. The medians of processor time, of wall time, and of processor time that compiled."""
        processes = SparkProcesses(self.spark)
        found: dict[str, list[SparkCost]] = {name: [] for name in sides}
        order = list(sides)
        for number in range(0 if self.quick else -WARM_UP, self._rounds):
            for name in order:
                costs: dict[str, SparkCost] = {}
                with processes.measured(costs, name):
                    sides[name]()
                if number >= 0:
                    found[name].append(costs[name])
            order.append(order.pop(0))
        return {
            name: SparkCost(*(median(getattr(cost, part) for cost in costs) for part in ("cpu", "wall", "compiling")))
            for name, costs in found.items()
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_subscriptions", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measured runs of each side (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that all parts work")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write the plots of the measured parts there")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(prefix="fleet-subscriptions-") as folder:
        bench = Bench(Path(folder), options.rounds, quick=options.quick)
        try:
            results = {name: run_part(name, bench) for name in PARTS if name in (options.parts or PARTS)}
        finally:
            bench.spark.stop()
    if options.plot is not None:
        _draw(results, options.plot)
    limits = [limit for result in results.values() for limit in result.targets]
    print(report.summary({"fleet subscriptions": {"targets": limits}}))
    return 0 if all(limit["met"] for limit in limits) else 1


def run_part(name: str, bench: Bench) -> PartResult:
    """Measures and prints one part."""
    say(name)
    before = os.getloadavg()[0]
    result = PARTS[name](bench)
    print(f"{name} (load {before:.1f} before, {os.getloadavg()[0]:.1f} after)\n\n{result.note}\n", flush=True)
    return result


# --- the two plans


def _osma_csma(bench: Bench) -> PartResult:
    """Pellegrino 2013, 5, Fig. 2 (a) and (b): one subscription of five patterns; (d): one that accepts all events.

    "Steady" is without the time in which HotSpot compiles, which is much of a run at these sizes and ends in a process
    that runs for long.
    """
    sizes = bench.sizes(10_000, 50_000, 200_000)
    rows = [["events", "query", "OSMA us", "CSMA us", "stored quads us", "CSMA / OSMA", "steady us", "steady ratio"]]
    found: dict[int, dict[str, SparkCost]] = {}
    for size, accept_all in [*((size, False) for size in sizes), (sizes[len(sizes) // 2], True)]:
        costs = _plan_costs(bench, size, accept_all)
        steady = [Cost(cost.cpu - cost.compiling) for cost in costs.values()]
        ratio = f"{costs['CSMA'].cpu / costs['OSMA'].cpu:.2f}"
        steadily = (", ".join(_us(steady, size)), f"{steady[1].cpu / steady[0].cpu:.2f}")
        name = "accept-all" if accept_all else "5 patterns"
        rows.append([f"{size:,}", name, *_us(costs.values(), size), ratio, *steadily])
        if not accept_all:
            found[size] = costs
    sides = list(found[sizes[0]])
    fits = {
        side: line_fit([(float(size), costs[side].cpu - costs[side].compiling) for size, costs in found.items()])
        for side in sides
    }
    lines = [
        f"{side}: {fixed:.2f} s a batch and {slope * 1e6:.1f} us an event" for side, (fixed, slope, _) in fits.items()
    ]
    note = (
        f"{text_table.table(rows)}\n\nsteady, 5 patterns, straight lines: {'; '.join(lines)}\n"
        f"CSMA / OSMA of an event without the batch: {fits['CSMA'][1] / fits['OSMA'][1]:.2f}\n"
        f"paper: {PAPER_RATIO} times the throughput, by median over 1 to 25 peers"
    )
    ratios = [costs["CSMA"].cpu / costs["OSMA"].cpu for costs in found.values()]
    note += f"\nCSMA / OSMA by the median of the sizes: {median(ratios):.2f}"
    # The paper's figure is throughput: the size at which the fixed cost of a batch counts least.
    limit = target(f"CSMA / OSMA, 5 patterns, {sizes[-1]:,} events", ratios[-1], 4, at_least=True)
    series = {side: [(float(size), costs[side].cpu / size) for size, costs in found.items()] for side in sides}
    return PartResult(note, [limit], series)


def _plan_costs(bench: Bench, size: int, accept_all: bool) -> dict[str, SparkCost]:
    """OSMA and CSMA begin with records, and give the same columns. CSMA reads the records once for each pattern; the
    third side has quads that are stored in rows of their own, whose making is not measured."""
    query = fleet_query(workload.ACCEPT_ALL if accept_all else workload.chain_query())
    frame = bench.stored(f"chains-{size}", lambda spark: workload.chains(spark, size))
    stored = bench.stored(f"chain-quads-{size}", lambda spark: _quads(frame))
    sides: dict[str, Callable[[], DataFrame]] = {
        "OSMA": lambda: _osma(frame, query),
        "CSMA": lambda: csma.solutions(_quads(frame), query),
        "CSMA, stored quads": lambda: csma.solutions(stored, query),
    }
    assert {make().count() for make in sides.values()} == {size * (workload.LENGTH if accept_all else 1)}
    return bench.medians({side: lambda make=make: _drain(make()) for side, make in sides.items()})  # type: ignore[misc]


def _osma(frame: "DataFrame", query: FleetQuery) -> "DataFrame":
    from pyspark.sql import functions as F

    constants = F.array(*map(F.lit, query.constants)).cast("ARRAY<STRING>")
    wanted = events(frame, deleted=False).select(*csma.EVENT_KEY, "triples", constants.alias("constants"))
    return osma.solutions(wanted, query)


def _quads(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return events(frame, deleted=False).select(*csma.EVENT_KEY, F.inline("triples"))


# --- growing numbers


def _events(bench: Bench) -> PartResult:
    """Fine subscriptions; cost over the number of events in a batch."""
    subscribed = workload.followed([workload.fine_query(number) for number in range(bench.sizes(1000)[0])])
    rows = [["events", "CPU s", "us an event", "events per core-second", "wall s"]]
    points = []
    for size in bench.sizes(10_000, 50_000, 100_000, 200_000):
        frame = bench.stored(f"readings-{size}", lambda spark, size=size: workload.readings(spark, size))  # type: ignore[misc]
        cost = bench.medians({"match": lambda frame=frame: _match(frame, subscribed)})["match"]  # type: ignore[misc]
        points.append((size, cost.cpu))
        rows.append([f"{size:,}", f"{cost.cpu:.2f}", *_us([cost], size), f"{size / cost.cpu:,.0f}", f"{cost.wall:.1f}"])
    fixed, slope, off = line_fit(points)
    note = (
        f"{text_table.table(rows)}\n\n{len(subscribed):,} subscriptions; straight line: {fixed:.2f} s a batch and "
        f"{slope * 1e6:.1f} us an event, furthest off {off * 100:.0f} %"
    )
    return PartResult(note, [target("events: furthest from a straight line", off * 100, 15, " %")])


def _subscriptions(bench: Bench) -> PartResult:
    """Subscriptions of one shape, on as many matches whatever their number, and on matches that grow with it."""
    size = bench.sizes(50_000)[0]
    counts = (1, 10) if bench.quick else (1, 10, 100, 1000, 10_000)
    rows = [["subscriptions", "same matches us", "growing matches us", "chains us"]]
    sides: dict[str, Callable[[], None]] = {}
    for count in counts:
        fine = workload.followed([workload.fine_query(number) for number in range(count)])
        same = bench.stored(
            f"same-{count}",
            lambda spark, count=count: workload.readings(spark, size, sensors=count, share=0.1),  # type: ignore[misc]
        )
        growing = bench.stored("growing", lambda spark: workload.readings(spark, size))
        assert _matched(same, fine) == size // 10
        sides[f"{count} same"] = lambda same=same, fine=fine: _match(same, fine)  # type: ignore[misc]
        sides[f"{count} growing"] = lambda growing=growing, fine=fine: _match(growing, fine)  # type: ignore[misc]
        if count <= 1000:
            chains = workload.followed([workload.chain_query(number) for number in range(count)])
            evenly = bench.stored(f"evenly-{count}", lambda spark, count=count: workload.chains(spark, size, count))  # type: ignore[misc]
            assert _matched(evenly, chains) == size
            sides[f"{count} chains"] = lambda evenly=evenly, chains=chains: _match(evenly, chains)  # type: ignore[misc]
    costs = bench.medians(sides)
    kinds = ("same", "growing", "chains")
    series = {
        kind: [(float(count), costs[f"{count} {kind}"].cpu / size) for count in counts if f"{count} {kind}" in costs]
        for kind in kinds
    }
    for count in counts:
        cells = (costs.get(f"{count} {kind}") for kind in kinds)
        rows.append([f"{count:,}", *(_us([cost], size)[0] if cost else "" for cost in cells)])
    most = 10 if bench.quick else 1000
    growth = costs[f"{most} same"].cpu / costs[f"{10 if most > 10 else 1} same"].cpu
    note = (
        f"{text_table.table(rows)}\n\n{size:,} events a batch. Same: one event in ten matches one subscription; "
        "growing: "
        f"one in {workload.SENSORS:,} for each subscription; chains: each event matches one "
        "(Pellegrino 2013, 5, Fig. 2 (c))"
    )
    names = {"same": "same matches", "growing": "growing matches", "chains": "5 patterns, all match"}
    return PartResult(
        note,
        [target("cost of an event, 1,000 subscriptions / 10", growth, 2, " times")],
        {names[kind]: points for kind, points in series.items()},
    )


def _shapes(bench: Bench) -> PartResult:
    """Subscriptions of different shapes: each has a plan of its own, which costs the driver time in every batch."""
    small, large = (10, 100) if bench.quick else (1000, 50_000)
    counts = (2, 4) if bench.quick else (1, 10, 30, 100)
    rows = [["shapes", f"CPU s, {small:,} events", f"CPU s, {large:,} events", "ms a shape", "us an event", "wall s"]]
    sides: dict[str, Callable[[], None]] = {}
    for count in counts:
        subscribed = workload.followed(workload.shaped_queries(count))
        for size in (small, large):
            frame = bench.stored(
                f"shapes-{count}-{size}",
                lambda spark, count=count, size=size: workload.readings(spark, size, sensors=count, share=0.1),  # type: ignore[misc]
            )
            sides[f"{count} {size}"] = lambda frame=frame, subscribed=subscribed: _match(frame, subscribed)  # type: ignore[misc]
    costs = bench.medians(sides)
    for count in counts:
        one, other = costs[f"{count} {small}"], costs[f"{count} {large}"]
        rows.append(
            [
                f"{count}",
                f"{one.cpu:.2f}",
                f"{other.cpu:.2f}",
                f"{one.cpu / count * 1e3:.0f}",
                f"{(other.cpu - one.cpu) / (large - small) * 1e6:.1f}",
                _walls((one, other)),
            ]
        )
    return PartResult(text_table.table(rows))


def _stages(bench: Bench) -> PartResult:
    """Where the cost of an event goes: each stage contains those above it."""
    size = bench.sizes(100_000)[0]
    subscribed = workload.followed([workload.fine_query(number) for number in range(bench.sizes(1000)[0])])
    frame = bench.stored("stages", lambda spark: workload.readings(spark, size, sensors=len(subscribed), share=0.1))
    costs = bench.medians(
        {
            "read bronze": lambda: _drain(frame.select("gw", "epoch", "seq", "ts", "a", "k", "request")),
            "events": lambda: _drain(events(frame, deleted=False)),
            "candidates": lambda: _drain(candidates(events(frame, deleted=False), entries(subscribed))),
            "matches": lambda: _match(frame, subscribed),
        }
    )
    rows = [["stage", "us an event", "without those before", "wall s"]]
    before = 0.0
    for name, cost in costs.items():
        rows.append([name, *_us([cost, Cost(cost.cpu - before)], size), f"{cost.wall:.1f}"])
        before = cost.cpu
    return PartResult(f"{text_table.table(rows)}\n\n{size:,} events, {len(subscribed):,} subscriptions")


def _partitions(bench: Bench) -> PartResult:
    """One and two cores."""
    size = bench.sizes(200_000)[0]
    subscribed = workload.followed([workload.fine_query(number) for number in range(bench.sizes(1000)[0])])
    rows = [["cores", "us an event", "wall s", "events/s"]]
    walls = []
    for cores in (1, 2):
        bench.cores(cores)
        frame = bench.stored("partitions", lambda spark: workload.readings(spark, size).repartition(8))
        cost = bench.medians({f"{cores} cores": lambda frame=frame: _match(frame, subscribed)})[f"{cores} cores"]  # type: ignore[misc]
        walls.append(cost.wall)
        rows.append([f"{cores}", *_us([cost], size), f"{cost.wall:.2f}", f"{size / cost.wall:,.0f}"])
    return PartResult(
        f"{text_table.table(rows)}\n\ntwo cores are {walls[0] / walls[1]:.2f} times as fast as one (wall)"
    )


def _stars(bench: Bench) -> PartResult:
    """`lamplighter-fleet query`: patterns with one subject, from the quads of readings to the rows of the answer."""
    rows = [["readings", "patterns", "star CPU s", "joins CPU s", "joins / star", "wall s"]]
    sides: dict[str, Callable[[], None]] = {}
    sizes = bench.sizes(1_000, 50_000)
    for size, patterns in product(sizes, (3, 5)):
        quads = bench.stored(f"star-{size}", lambda spark, size=size: _quads_of(workload.readings(spark, size)))  # type: ignore[misc]
        query = fleet_query(workload.star_query(patterns))
        for as_star in (True, False):
            assert _answered(quads, query, as_star, lambda rows: rows.count()) == size
            sides[f"{size} {patterns} {as_star}"] = (
                lambda quads=quads, query=query, as_star=as_star: _answered(quads, query, as_star, _drain)  # type: ignore[misc]
            )
    costs = bench.medians(sides)
    for size, patterns in product(sizes, (3, 5)):
        star, joins = (costs[f"{size} {patterns} {as_star}"] for as_star in (True, False))
        ratio = f"{joins.cpu / star.cpu:.2f}"
        rows.append([f"{size:,}", f"{patterns}", f"{star.cpu:.2f}", f"{joins.cpu:.2f}", ratio, _walls((star, joins))])
    return PartResult(text_table.table(rows))


def _quads_of(records: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return records.select(F.inline("a")).withColumnRenamed("g", "graph")


def _answered(quads: "DataFrame", query: FleetQuery, as_star: bool, take: Callable[["DataFrame"], Any]) -> Any:
    """What is taken of the answer, with the cost of the dataset that each plan wants."""
    found = (by_subject(quads, query) if as_star else quads).distinct().persist()
    try:
        narrow = StarPlan.of(found, (), query).narrow if as_star else frozenset()
        return take(csma.solutions(found, query, (), narrow))
    finally:
        found.unpersist(blocking=True)


def _latency(bench: Bench) -> PartResult:
    """File landed -> notification written."""
    found = latency(bench.folder / "latency", seconds=3 if bench.quick else 60, rate=100 if bench.quick else 1000)
    return PartResult(found.text, [target("landed -> notification written, p95", found.p95_s, 3, " s")])


def _match(frame: "DataFrame", subscribed: Sequence[FollowedSubscription]) -> None:
    with matches(_late(frame), subscribed) as found:
        _drain(found)


def _matched(frame: "DataFrame", subscribed: Sequence[FollowedSubscription]) -> int:
    with matches(_late(frame), subscribed) as found:
        return int(found.count())


def _late(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return events(frame, deleted=False).withColumn("late", F.lit(False))


def _drain(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _us(costs: Any, size: int) -> list[str]:
    return [f"{cost.cpu / size * 1e6:.1f}" for cost in costs]


def _walls(costs: Any) -> str:
    return ", ".join(f"{cost.wall:.1f}" for cost in costs)


def _draw(results: Mapping[str, PartResult], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, title, x_name in (
        ("osma-csma", "One subscription of 5 patterns", "events in a batch"),
        ("subscriptions", "Cost of an event", "subscriptions"),
    ):
        if name in results:
            text = plot.svg(title, x_name, "microseconds of CPU per event", results[name].series, scale=1e6)
            (folder / f"fleet-{name}.svg").write_text(text)


PARTS: dict[str, Callable[[Bench], PartResult]] = {
    "osma-csma": _osma_csma,
    "events": _events,
    "subscriptions": _subscriptions,
    "shapes": _shapes,
    "stages": _stages,
    "partitions": _partitions,
    "stars": _stars,
    "latency": _latency,
}

if __name__ == "__main__":
    sys.exit(main())
