"""`lamplighter-fleet simulate`: segments, seals and snapshots as a fleet would ship them, with ground truth.

::

    DEST/shipped/<gw>/<epoch>-<first>-<last>.ndjson.zst    objects as a shipper writes them, with seals
    DEST/shipped/<gw>/snapshots/<epoch>-<seq>.ndjson.zst
    DEST/late/<gw>/...                                     objects that arrive later, and good copies of damaged ones
    DEST/truth/<gw>.json                                   ground truth (`demo.fleet.truth`)
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from lamplighter.cloud_sync.answers import SnapshotSeal
from lamplighter.cloud_sync.fleet.subcommands import add_command
from lamplighter.demo.fleet.simulated_gateway import SimulatedGateway
from lamplighter.demo.fleet.simulated_machine import FleetPlan
from lamplighter.demo.fleet.truth import Fate, SegmentTruth, Truth
from lamplighter.engine.change_log import (
    VERSION,
    GraphChanges,
    Record,
    Seal,
    SegmentName,
    SnapshotPart,
    encode,
    seal_name,
)
from lamplighter.engine.errors import ConfigurationError

_LEVEL = 3  # a third of the time of a gateway's level, for a tenth more bytes
_SNAPSHOT_QUADS = 1000
_PROGRESS_S = 1.0


@dataclass(frozen=True)
class Mishaps:
    """Shares of segments, 0 to 1, that arrive late, twice, damaged or never."""

    late: float = 0.0
    duplicated: float = 0.0
    damaged: float = 0.0
    missing: float = 0.0


@dataclass(frozen=True)
class Order:
    """A gateway to simulate. records: per segment; snapshots: number of segments per snapshot."""

    number: int
    seed: int
    plan: FleetPlan
    destination: Path
    records: int = 2000
    snapshots: int = 10
    mishaps: Mishaps = field(default_factory=Mishaps)


def simulate(order: Order) -> Truth:
    """Writes the objects of one gateway, and its ground truth."""
    gateway = SimulatedGateway(order.number, order.seed, order.plan)
    writer = _Writer(order, gateway)
    for record in gateway.records():
        writer.add(record)
    writer.end()
    path = order.destination / "truth" / f"{gateway.name}.json"
    path.write_bytes(msgspec.json.encode(gateway.truth) + b"\n")
    return gateway.truth


class _Writer:
    """Records of a gateway -> its files."""

    def __init__(self, order: Order, gateway: SimulatedGateway) -> None:
        self._order = order
        self._gateway = gateway
        self._random = random.Random(f"{order.seed}/{order.number}/mishaps")
        self._shipped = order.destination / "shipped" / gateway.name
        self._late = order.destination / "late" / gateway.name
        (self._shipped / "snapshots").mkdir(parents=True, exist_ok=True)
        self._lines: list[bytes] = []
        self._last: Record | None = None
        self._first = 1
        self._readings = 0
        self._previous: str | None = None
        self._before: tuple[SegmentTruth, list[bytes]] | None = None
        self._sealed = 0
        self._due = False

    def add(self, record: Record) -> None:
        if self._last is not None and record.epoch != self._last.epoch:
            self._seal()
            self._before, self._due = None, True
        if not self._lines:
            self._first = record.seq
        self._lines.append(encode(record))
        self._last = record
        if len(self._lines) >= self._order.records:
            self._seal()
        if self._due:
            self._snapshot(record)

    def end(self) -> None:
        """Writes the remaining records as a segment."""
        self._seal()
        if self._last is not None:
            self._snapshot(self._last)

    def _seal(self) -> None:
        if not self._lines or self._last is None:
            return
        name = SegmentName(self._last.epoch, self._first, self._last.seq)
        readings = self._gateway.truth.readings
        truth = SegmentTruth(str(name), self._first, self._last.seq, readings - self._readings, self._fate())
        self._readings = readings
        lines, self._lines = self._lines, []
        data = _compressed(lines)
        seal = self._sealed_as(name, data, len(lines), self._previous)
        if truth.fate == "shipped":
            _put(self._shipped, name, data, seal)
        elif truth.fate == "late":
            _put(self._late, name, data, seal)
        elif truth.fate == "damaged":
            _put(self._shipped, name, self._damaged(data), seal)
            _put(self._late, name, data, seal)
        if self._before is not None and self._random.random() < self._order.mishaps.duplicated:
            self._resend(truth, lines)
        self._previous = seal.sha256
        self._before = truth, lines
        self._gateway.truth.segments.append(truth)
        self._sealed += 1
        # A snapshot follows a gap. From there on the dataset is known again.
        self._due = self._due or truth.fate == "missing" or self._sealed % self._order.snapshots == 0

    def _fate(self) -> Fate:
        mishaps, chance = self._order.mishaps, self._random.random()
        shares: list[tuple[Fate, float]] = [
            ("late", mishaps.late),
            ("damaged", mishaps.damaged),
            ("missing", mishaps.missing),
        ]
        for fate, share in shares:
            if chance < share:
                return fate
            chance -= share
        return "shipped"

    def _resend(self, truth: SegmentTruth, lines: list[bytes]) -> None:
        """A sealed segment with half of the previous segment and half of this one."""
        assert self._before is not None and self._last is not None
        before, earlier = self._before
        if "missing" in (before.fate, truth.fate):
            return  # a copy would have the missing records
        head, tail = earlier[len(earlier) // 2 :], lines[: max(1, len(lines) // 2)]
        name = SegmentName(self._last.epoch, before.last - len(head) + 1, truth.first + len(tail) - 1)
        data = _compressed([*head, *tail])
        _put(self._shipped, name, data, self._sealed_as(name, data, len(head) + len(tail), self._previous))
        truth.resent = str(name)

    def _damaged(self, data: bytes) -> bytes:
        if self._random.random() < 0.5:
            return data[: len(data) * 2 // 3]
        place = self._random.randrange(len(data) // 4, len(data))
        return data[:place] + bytes([data[place] ^ 1 << self._random.randrange(8)]) + data[place + 1 :]

    def _sealed_as(self, name: SegmentName, data: bytes, count: int, previous: str | None) -> Seal:
        assert name.last is not None
        digest = hashlib.sha256(data).hexdigest()
        return Seal(
            v=VERSION,
            gw=self._gateway.name,
            epoch=name.epoch,
            first=name.first,
            last=name.last,
            count=count,
            bytes=len(data),
            sha256=digest,
            previous=previous,
        )

    def _snapshot(self, record: Record) -> None:
        """The dataset after a record, in the lines that `gateway.log.snapshots` writes."""
        self._due = False
        head = Record(
            v=VERSION,
            type="snapshot",
            gw=record.gw,
            epoch=record.epoch,
            seq=record.seq,
            ts=record.ts,
            trusted=record.trusted,
            boot=record.boot,
            boottime_us=record.boottime_us,
        )
        quads = self._gateway.snapshot_quads()
        graphs = tuple(sorted({quad.g for quad in quads if quad.g is not None}))
        first = msgspec.structs.replace(
            head,
            snapshot=SnapshotPart(0, state=msgspec.Raw(b"{}")),
            graphs=GraphChanges(created=graphs) if graphs else None,
        )
        parts = [quads[begin : begin + _SNAPSHOT_QUADS] for begin in range(0, len(quads), _SNAPSHOT_QUADS)]
        middle = [
            msgspec.structs.replace(head, snapshot=SnapshotPart(number), a=tuple(part))
            for number, part in enumerate(parts, 1)
        ]
        last = msgspec.structs.replace(head, snapshot=SnapshotPart(len(parts) + 1, last=True, quads=len(quads)))
        data = _compressed([encode(line) for line in (first, *middle, last)])
        folder, name = self._shipped / "snapshots", SegmentName(record.epoch, record.seq)
        seal = SnapshotSeal(
            v=VERSION,
            gw=record.gw,
            epoch=record.epoch,
            seq=record.seq,
            quads=len(quads),
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        (folder / str(name)).write_bytes(data)
        (folder / seal_name(name)).write_bytes(msgspec.json.encode(seal) + b"\n")


def _compressed(lines: list[bytes]) -> bytes:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False).compressobj()
    return compressor.compress(b"".join(lines)) + compressor.flush()


def _put(folder: Path, name: SegmentName, data: bytes, seal: Seal) -> None:
    """Writes the segment, then its seal, as the shipper does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(name)).write_bytes(data)
    (folder / seal_name(name)).write_bytes(msgspec.json.encode(seal) + b"\n")


# --- the command --------------------------------------------------------------------------------------------


def fleet(orders: list[Order], processes: int) -> Iterator[Truth]:
    """Simulates gateways in parallel, and yields their truths as they finish."""
    if not orders:
        return
    (orders[0].destination / "truth").mkdir(parents=True, exist_ok=True)
    if processes == 1:
        yield from map(simulate, orders)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(simulate, order) for order in orders]):
            yield done.result()


def add_commands(commands: Any) -> None:
    """Declares `simulate`."""
    parser = add_command(commands, "simulate", "write the segments of a simulated fleet, and its ground truth")
    parser.add_argument("destination", type=Path, metavar="DEST", help="a new or empty folder")
    parser.add_argument("--gateways", type=int, required=True, metavar="N", help="number of gateways")
    parser.add_argument("--days", type=float, required=True, metavar="D", help="simulated days")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same seed gives the same fleet")
    parser.add_argument("--posts", type=int, default=FleetPlan.posts, help="posts per gateway (default %(default)s)")
    for name, default, unit, what in (
        ("interval", FleetPlan.interval_s, "SECONDS", "interval of temperature readings"),
        ("events", FleetPlan.event_share, "SHARE", "share of gateways with model event"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, metavar=unit, help=f"{what} (default %(default)s)"
        )
    parser.add_argument("--records", type=int, default=Order.records, help="records per segment (default %(default)s)")
    for name, what in (
        ("late", "go to DEST/late"),
        ("duplicated", "are shipped twice, split differently"),
        ("damaged", "are truncated or have a flipped bit"),
        ("missing", "are not shipped"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=0.0, metavar="SHARE", help=f"share of segments that {what}"
        )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per CPU)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    destination: Path = arguments.destination
    if destination.exists() and any(destination.iterdir()):
        raise ConfigurationError(f"{destination} is not empty; name a new folder")
    shares = {name: getattr(arguments, name) for name in ("late", "duplicated", "damaged", "missing")}
    if any(not 0 <= share <= 1 for share in (*shares.values(), arguments.events)):
        raise ConfigurationError("shares (--late, --duplicated, --damaged, --missing, --events) must be from 0 to 1")
    if min(arguments.gateways, arguments.days, arguments.posts, arguments.interval, arguments.records) <= 0:
        raise ConfigurationError("--gateways, --days, --posts, --interval and --records must be greater than 0")
    plan = FleetPlan(arguments.days, posts=arguments.posts, interval_s=arguments.interval, event_share=arguments.events)
    orders = [
        Order(number, arguments.seed, plan, destination, records=arguments.records, mishaps=Mishaps(**shares))
        for number in range(1, arguments.gateways + 1)
    ]
    began, records, quads, segments = time.monotonic(), 0, 0, 0
    told = began
    for number, truth in enumerate(fleet(orders, arguments.processes), 1):
        records += truth.records
        quads += truth.quads_added + truth.quads_deleted
        segments += len(truth.segments)
        if time.monotonic() - told >= _PROGRESS_S or number == len(orders):
            told = time.monotonic()
            print(f"{number}/{len(orders)} gateways, {records:,} records, {quads:,} quads", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    print(f"{len(orders)} gateways: {records:,} records with {quads:,} quads in {segments:,} segments, in {took:.1f} s")
    return 0
