"""A small simulated fleet, and a lake in which its good segments have landed; the collector has tests of its own."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.demo.fleet.simulate import Mishaps, Order, fleet
from lamplighter.demo.fleet.simulated_machine import FleetPlan
from lamplighter.demo.fleet.truth import Truth
from lamplighter.engine.change_log import Record, SegmentName, decode, encode
from tests.support import odd_gateway

SEED = 6
PLAN = FleetPlan(0.1, posts=2, interval_s=60, visits_per_day=200, event_share=0.5, gap_share=1.0, states=2)
MISHAPS = Mishaps(late=0.35, damaged=0.1, duplicated=0.2)


@dataclass(frozen=True)
class SmallFleet:
    """folder: what was simulated; truths: of its gateways, by name."""

    folder: Path
    truths: dict[str, Truth]

    @property
    def gateways(self) -> list[str]:
        return [*self.truths, odd_gateway.NAME]

    def land(
        self, lake: Lake, arrives: Callable[[str], bool] = lambda fate: True, gateways: Iterable[str] = ()
    ) -> list[str]:
        """Copies segments with such fates, and all snapshots, to where the collector lands them; returns their names.

        The gateway with what is rare is among them. gateways: only these.
        """
        landed = []
        for gateway in gateways or self.gateways:
            segments = Path(lake.path("segments", gateway))
            segments.mkdir(parents=True, exist_ok=True)
            if gateway == odd_gateway.NAME:
                for number, records in enumerate(odd_gateway.segments()):
                    if arrives("late" if number == odd_gateway.LATE else "shipped"):
                        write_segment(segments, records)
                        landed.append(f"{gateway}/{_name(records)}")
                continue
            snapshots = self.folder / "shipped" / gateway / "snapshots"
            shutil.copytree(snapshots, lake.path("snapshots", gateway), dirs_exist_ok=True)
            for segment in self.truths[gateway].segments:
                if arrives(segment.fate):
                    shutil.copy(self.segment(gateway, segment.name, segment.fate), segments)
                    landed.append(f"{gateway}/{segment.name}")
        return landed

    def segment(self, gateway: str, name: str, fate: str) -> Path:
        """The good copy of a segment."""
        return self.folder / ("shipped" if fate == "shipped" else "late") / gateway / name

    def records(self, gateway: str) -> list[Record]:
        """Everything that a gateway committed, in order."""
        if gateway == odd_gateway.NAME:
            return [record for segment in odd_gateway.segments() for record in segment]
        found = []
        for segment in self.truths[gateway].segments:
            found += records_of(self.segment(gateway, segment.name, segment.fate))
        return found


def small_fleet(
    folder: Path, gateways: int = 4, plan: FleetPlan = PLAN, mishaps: Mishaps = MISHAPS, seed: int = SEED
) -> SmallFleet:
    orders = [Order(number, seed, plan, folder, 100, 3, mishaps) for number in range(1, gateways + 1)]
    return SmallFleet(folder, {truth.gw: truth for truth in fleet(orders, 1)})


def records_of(path: Path) -> list[Record]:
    text = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return [decode(line) for line in text.split(b"\n")[:-1]]


def write_segment(folder: Path, records: list[Record]) -> Path:
    """A segment without its seal."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(records)
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(map(encode, records))))
    return path


def renamed(records: Iterable[Record], gateway: str) -> list[Record]:
    """The same of another gateway."""
    return [msgspec.structs.replace(record, gw=gateway) for record in records]


def _name(records: list[Record]) -> str:
    return str(SegmentName(records[0].epoch, records[0].seq, records[-1].seq))
