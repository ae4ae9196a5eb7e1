"""Gateways whose clocks are in 1970 or in 2099 and say that they are right: from the collector to jobs and matches."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.local.session import local_session
from lamplighter.cloud_sync.fleet.session import Session
from lamplighter.cloud_sync.fleet.subscriptions.matcher import Matcher
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.fleet.tables.bronze import ingest
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.engine.change_log import encode
from tests.support.shipped_logs import record, written

BEGIN = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAYS = 5
# The days on which the clock is right, in 2099, in 1970, and on which nothing is shipped.
RIGHT, AHEAD, BEHIND, SILENT = "right", "2099", "1970", "silent"
PLANS = (
    [RIGHT, RIGHT, RIGHT, RIGHT, RIGHT],
    [AHEAD, AHEAD, AHEAD, AHEAD, AHEAD],
    [BEHIND, BEHIND, BEHIND, BEHIND, BEHIND],
    [RIGHT, RIGHT, AHEAD, AHEAD, AHEAD],
    [RIGHT, RIGHT, SILENT, SILENT, SILENT],
    [AHEAD, SILENT, SILENT, SILENT, SILENT],
    [AHEAD, RIGHT, RIGHT, RIGHT, RIGHT],
)
QUERY = "SELECT ?s ?v { ?s <http://e/p> ?v }"


@dataclass
class _Gateway:
    """days: what its clock is on each; landed: (sequence, day) of its records."""

    name: str
    days: list[str]
    landed: list[tuple[int, int]] = field(default_factory=list)
    previous: str | None = None

    def ship(self, source: Path, day: int, count: int) -> None:
        if self.days[day] == SILENT:
            return
        first = len(self.landed) + 1
        records = []
        for seq in range(first, first + count):
            true = BEGIN + timedelta(days=day, seconds=seq - 3600)
            shown = {RIGHT: true.year, AHEAD: 2099, BEHIND: 1970}[self.days[day]]
            one = record(self.name, 1, seq)
            ts = true.replace(year=shown).isoformat(timespec="microseconds").replace("+00:00", "Z")
            elapsed = int((true - BEGIN).total_seconds() * 1e6) + 10**11
            records.append(msgspec.structs.replace(one, ts=ts, boot=f"{self.days[day]}", boottime_us=elapsed))
            self.landed.append((seq, day))
        segment = written([encode(one) for one in records], records[0], self.previous)
        self.previous = segment.seal.sha256
        segment.put(source / self.name)

    @property
    def quality(self) -> str:
        shipped = set(self.days) - {SILENT}
        return "ahead" if AHEAD in shipped else "untrusted" if BEHIND in shipped else "good"


def _gateways(draw: random.Random | None) -> Iterator[_Gateway]:
    for number, plan in enumerate(PLANS):
        yield _Gateway(f"gw-{number}", plan)
    for number in range(40 if draw is not None else 0):
        assert draw is not None
        yield _Gateway(f"random-{number}", [draw.choice([RIGHT, RIGHT, AHEAD, BEHIND, SILENT]) for _ in range(DAYS)])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, id="some"), pytest.param(None, id="many", marks=[pytest.mark.faults, pytest.mark.fleet_faults])],
)
def test_no_clock_makes_another_gateway_silent_or_an_old_event_new(
    spark: SparkSession, tmp_path: Path, seed: int | None
) -> None:
    seed = random.randrange(10**6) if seed is None else seed
    print("seed", seed)
    draw = random.Random(seed)
    source, folder = tmp_path / "source", tmp_path / "lake"
    lake = Lake(str(folder))
    registry = SubscriptionRegistry(lake)
    registry.add("first", QUERY)
    gateways = list(_gateways(draw if seed else None))
    added = draw.randrange(1, DAYS)
    for day in range(DAYS):
        for one in gateways:
            one.ship(source, day, draw.randint(1, 4))
        if day == added:
            registry.add("now", QUERY)
            registry.add("all", QUERY, begin="all")
        moment = (BEGIN + timedelta(days=day)).timestamp()
        with Collector(LocalFolder(source), folder, wall=lambda moment=moment: moment) as collector:
            collector.collect(full=True)
            assert collector.problems == []
        if draw.random() < 0.5:
            ingest(spark, lake)
    ingest(spark, lake)

    # Each record is in bronze once, with the time of its landing.
    landed = {(one.name, seq): BEGIN + timedelta(days=day) for one in gateways for seq, day in one.landed}
    rows = tables.read(spark, lake, "bronze").selectExpr("gw", "seq", "unix_micros(landed) AS us").collect()
    assert len(rows) == len(landed)
    assert {(row["gw"], row["seq"]): row["us"] / 1e6 for row in rows} == {
        key: time.timestamp() for key, time in landed.items()
    }

    matcher = Matcher(spark, lake, order_wait_s=0)
    while matcher.advance() is not None:
        pass
    seen: dict[str, set[tuple[str, int]]] = {"first": set(), "now": set(), "all": set()}
    matches = tables.table(lake, "matches").frame(spark).collect()
    for row in matches:
        seen[row["subscription"]].add((row["gw"], row["seq"]))
    assert sum(map(len, seen.values())) == len(matches), "a match is there once"
    assert seen["first"] == seen["all"] == landed.keys()
    assert seen["now"] == {key for key, time in landed.items() if time >= BEGIN + timedelta(days=added)}

    Silver(spark, lake).update()
    last = max(landed.values())
    judged = _judged(spark, lake)
    with local_session() as local:
        assert _judged(local, lake) == judged, "both engines judge alike"
    as_of, clocks, health = judged
    assert as_of == last
    for one in gateways:
        if not one.landed:
            assert one.name not in clocks
            continue
        assert clocks[one.name]["quality"] == one.quality, one
        assert clocks[one.name]["ahead"] == sum(one.days[day] == AHEAD for _, day in one.landed)
        quiet = last - max(landed[one.name, seq] for seq, _ in one.landed) > timedelta(days=1)
        assert (health[one.name]["health"] == "silent") == quiet, one


def _judged(engine: Session, lake: Lake) -> tuple[datetime, dict[str, Any], dict[str, Any]]:
    """The time of the last landing; quality of the clock and health by gateway."""
    names = ("streams", "observations", "actuations", "gateway_health")
    with Analysis(*(tables.read(engine, lake, name) for name in names), short_plans=True) as found:
        clocks, health = (
            {row["gw"]: row.asDict() for row in one.collect()} for one in (found.clock_quality, found.fleet_health)
        )
        return found.as_of, clocks, health
