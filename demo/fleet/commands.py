"""`lamplighter-fleet demo`: the steps of the demo."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subcommands import add_command
from lamplighter.demo.fleet.gateways import RealGateway, running
from lamplighter.demo.fleet.simulate import Mishaps, Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan
from lamplighter.demo.fleet.store import Store, store
from lamplighter.demo.fleet.truth import Truth, read_truth
from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from lamplighter.demo.fleet.checks import Check

_MISHAPS = Mishaps(late=0.08, duplicated=0.05, damaged=0.04, missing=0.01)
_READINGS_PER_S = 20.0
_PUTS_AT_ONCE = 8


def add_commands(commands: Any) -> None:
    """Declares `demo`."""
    parser = add_command(
        commands, "demo", "simulate a fleet, ship it through a real S3 server, run all jobs, compare with ground truth"
    )
    parser.add_argument(
        "--gateways", type=int, default=24, metavar="N", help="number of simulated gateways (default %(default)s)"
    )
    parser.add_argument("--days", type=float, default=0.5, metavar="D", help="simulated days (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same seed gives the same fleet")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="a new or empty folder (default: a temporary folder)"
    )
    session.add_arguments(parser)
    parser.set_defaults(run=_run)


class NumberedSteps:
    """Prints the steps with their durations."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._began = time.monotonic()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """One step. Lines within the block are indented below it."""
        self._step += 1
        began = time.monotonic()
        self.tell(f"[{self._step}/{self._steps}] {what}", indent=0)
        yield
        self.tell(f"{time.monotonic() - began:.1f} s")

    def tell(self, line: str, indent: int = 6) -> None:
        elapsed = int(time.monotonic() - self._began)
        print(f"{elapsed // 60:2}:{elapsed % 60:02}  {' ' * indent}{line}", flush=True)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.gateways < 1 or arguments.days <= 0:
        raise ConfigurationError("--gateways and --days must be greater than 0")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="lamplighter-fleet-"))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty; name a new folder")
    for package in ("pyspark", "s3fs", "jinja2", "matplotlib"):  # a missing one is reported before anything starts
        import_module(package)
    arguments.master = arguments.master or "local[2]"
    story = NumberedSteps(10)
    story.tell(f"everything is in {folder}", indent=0)
    with contextlib.ExitStack() as open_:
        # Spark takes seconds to start. The other steps run meanwhile.
        starting = open_.enter_context(ThreadPoolExecutor(1)).submit(session.of_arguments, arguments, "demo")
        with story.step("an S3 server (SeaweedFS) on loopback"):
            bucket = open_.enter_context(store(folder / "s3"))
        with story.step("two real gateways, one for each observation model"):
            real = open_.enter_context(running(folder / "gateways", bucket, ("latest", "event")))
            for gateway in real:
                gateway.describe()
                story.tell(f"{gateway.name} ({gateway.model}) at {gateway.urls['update']}")
        truths = _live(story, arguments, folder / "simulated", real)
        _ship(story, bucket, folder / "simulated", real)
        lake = Lake(str(folder / "lake"))
        quarantined = _collect(story, bucket, Path(lake.path()), real)
        spark = starting.result()
        open_.callback(spark.stop)
        checks = _tables(story, spark, lake, bucket, folder / "simulated", truths, real, quarantined)
    failed = [check for check in checks if not check.ok]
    print(f"\nthe report: {lake.path('results', 'report.html')}")
    print(f"{len(checks) - len(failed)} checks ok, {len(failed)} failed")
    return 1 if failed else 0


def _live(story: NumberedSteps, arguments: argparse.Namespace, folder: Path, real: list[RealGateway]) -> list[Truth]:
    """Simulates days of gateways, while the real ones receive readings."""
    with story.step(f"{arguments.gateways} simulated gateways, {arguments.days:g} days of their lives"):
        plan = FleetPlan(arguments.days, posts=4, interval_s=60)
        orders = [
            Order(number, arguments.seed, plan, folder, records=400, mishaps=_MISHAPS)
            for number in range(1, arguments.gateways + 1)
        ]
        done = threading.Event()
        with ThreadPoolExecutor(len(real)) as readers:
            told = [readers.submit(_read, gateway, number, done) for number, gateway in enumerate(real)]
            try:
                list(fleet(orders, os.cpu_count() or 1))
            finally:
                done.set()
            for one in told:
                one.result()
        truths = [read_truth(path.read_bytes()) for path in sorted((folder / "truth").iterdir())]
        segments = [segment.fate for truth in truths for segment in truth.segments]
        records = sum(truth.records for truth in truths)
        story.tell(f"{records:,} records in {len(segments)} segments: " + ", ".join(_fates(segments)))
        for gateway in real:
            gateway.finish()
            readings = sum(map(len, gateway.readings.values()))
            story.tell(
                f"{gateway.name} meanwhile: {readings} readings over HTTP, {gateway.sequence} records, all sealed"
            )
    return truths


def _fates(segments: Sequence[str]) -> Iterator[str]:
    for fate, said in (
        ("shipped", "in time"),
        ("late", "late"),
        ("damaged", "damaged on the way"),
        ("missing", "that never come"),
    ):
        yield f"{segments.count(fate)} {said}"


def _read(gateway: RealGateway, seed: int, done: threading.Event) -> None:
    chance, number = random.Random(seed), 0
    while not done.wait(1 / _READINGS_PER_S) or number < 100:
        gateway.read(number, chance)
        number += 1


def _ship(story: NumberedSteps, bucket: Store, folder: Path, real: list[RealGateway]) -> None:
    with story.step("shipping into S3"):
        count, size = _put(bucket, folder / "shipped")
        story.tell(f"simulated gateways: {count} objects, {size / 1e6:.1f} MB")
        for gateway in real:
            story.tell(f"{gateway.name}: {gateway.ship()}")


def _put(bucket: Store, folder: Path, again: frozenset[str] = frozenset()) -> tuple[int, int]:
    """Writes segments and snapshots, each before its seal. Returns the numbers of objects and bytes.

    again: segments whose damaged copies are at the destination. They get another name, as from a shipper.
    """
    destination = bucket.open()

    def put(gateway: Path) -> tuple[int, int]:
        size = count = 0
        # `1-...-...json` is the seal of `1-...-....ndjson.zst`, and must be written after it.
        for path in sorted(
            gateway.rglob("*.*"), key=lambda path: (path.name.partition(".")[0], path.suffix == ".json")
        ):
            name = str(path.relative_to(folder))
            stem, dot, suffix = name.partition(".")
            if stem in again:
                name = f"{stem}.r1{dot}{suffix}"
            data = path.read_bytes()
            destination.create(name, [data])
            size, count = size + len(data), count + 1
        return count, size

    with ThreadPoolExecutor(_PUTS_AT_ONCE) as puts:
        done = list(puts.map(put, sorted(folder.glob("*"))))  # a small fleet may have no late segments
    destination.close()
    return sum(count for count, _ in done), sum(size for _, size in done)


def _collect(story: NumberedSteps, bucket: Store, lake: Path, real: list[RealGateway]) -> int:
    """Returns the number of objects in quarantine."""
    with story.step("the collector checks and lands the objects in S3"):
        quarantined = _collect_round(story, bucket, lake)
        for gateway in real:
            story.tell(f"{gateway.name}: {gateway.ship()}")
    return quarantined


def _collect_round(story: NumberedSteps, bucket: Store, lake: Path) -> int:
    with Collector(bucket.open(), lake) as collector:
        while True:
            tally = collector.collect(full=True)
            story.tell(str(tally))
            if not tally["left"]:
                break
    with contextlib.closing(Manifest(lake)) as manifest:
        found, gaps = manifest.quarantined_objects(), manifest.gaps()
    for reason in sorted({one.reason.partition(":")[0] for one in found})[:3]:
        story.tell(f"in quarantine: {reason}")
    said = sum(gap.said for gap in gaps)
    story.tell(f"gaps: {len(gaps) - said} of missing records, {said} of records that gateways report as lost")
    return len(found)


def _tables(
    story: NumberedSteps,
    spark: Any,
    lake: Lake,
    bucket: Store,
    simulated: Path,
    truths: list[Truth],
    real: list[RealGateway],
    quarantined: int,
) -> list[Check]:
    from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis
    from lamplighter.cloud_sync.fleet.jobs.commands import write_results
    from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
    from lamplighter.cloud_sync.fleet.lake.tables import read
    from lamplighter.cloud_sync.fleet.report import write_report
    from lamplighter.cloud_sync.fleet.tables.bronze import ingest
    from lamplighter.cloud_sync.fleet.tables.silver import Silver
    from lamplighter.demo.fleet.checks import Checks, gaps, same, table
    from lamplighter.demo.fleet.subscriptions import WarmPlaces

    with story.step("Spark: segments into bronze, bronze into silver, events matched with a fleet subscription"):
        warm = WarmPlaces(lake, story.tell)
        ingest(spark, lake, say=story.tell)
        warm.match(spark, late=False)
        Silver(spark, lake, story.tell).update()
    with story.step("late segments, and good copies of the damaged ones, arrive and are ingested"):
        damaged = frozenset(
            f"{truth.gw}/{segment.name.partition('.')[0]}"
            for truth in truths
            for segment in truth.segments
            if segment.fate == "damaged"
        )
        _put(bucket, simulated / "late", damaged)
        _collect_round(story, bucket, Path(lake.path()))
        ingest(spark, lake, say=story.tell)
        warm.match(spark, late=True)
        Silver(spark, lake, story.tell).update()
    with story.step("the subscription fires: notifications of the whole fleet, in the order of each gateway"):
        warm.deliver()
    out = Lake(lake.path("results"))
    names = ("streams", "observations", "actuations", "gateway_health")
    with story.step("all jobs, and the report"), Analysis(*(read(spark, lake, name) for name in names)) as found:
        sys.stdout.flush()
        results = write_results(found, tuple(RESULTS), out)
        story.tell(write_report(found, results, out))
    with story.step("the lake compared with ground truth"):
        with contextlib.closing(Manifest(Path(lake.path()))) as manifest:
            reported = gaps(truths, manifest.gaps())
        confirmed = sum("0 segments with 0 records unconfirmed" in gateway.ship() for gateway in real)
        checks = [
            same("damaged segments in quarantine", len(damaged), quarantined),
            reported,
            same("real gateways: all confirmed", len(real), confirmed),
            *Checks(spark, lake, truths, real, results).all(),
            *warm.checks(spark, real),
        ]
    print(f"\n{table(checks)}")
    return checks
