"""Matches that gateways send ahead: notified once, and compared with what Spark finds in the segments."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.early_notifications import EarlyNotification, line
from lamplighter.cloud_sync.fleet.lake.batches import comparison_counts
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.cloud_sync.fleet.subscriptions.matcher import FEW_RECORDS, Matcher
from lamplighter.cloud_sync.fleet.subscriptions.push import PUSHED, PushedOrder, order_version
from lamplighter.cloud_sync.fleet.subscriptions.pushdown import gateway_query
from lamplighter.cloud_sync.fleet.tables.merged_matches import merge_matches
from lamplighter.engine import Engine
from lamplighter.engine.change_log import Record
from tests.cloud_sync.fleet.subscriptions.test_matcher import NEVER_OLD_ENOUGH, _found, _Site
from tests.support.fleet_events import commit
from tests.support.fleet_matches import QUERIES, expected_matches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHED_DOWN = ("warm", "hot", "graphs")
NAMES = (*PUSHED_DOWN, "placed")
GW = "gw-1"


class _Gateway:
    """The engine of a gateway, which tells its rows ahead of its records."""

    def __init__(self, folder: Path) -> None:
        self.to = LocalFolder(folder)
        self.records: list[Record] = []
        self._engine = Engine()
        spuids = {name: self._engine.subscribe(gateway_query(fleet_query(QUERIES[name])).text) for name in PUSHED_DOWN}
        self._names = {one.spuid: name for name, one in spuids.items()}
        self._objects = 0

    def commits(self, draw: random.Random, number: int) -> list[EarlyNotification]:
        """Some more records; their notifications."""
        found = []
        while number:
            texts = [_quads(draw) for _ in range(2)]
            made = self._engine.update(f"PREFIX : <http://example.org/> DELETE DATA {{ {texts[0]} }}; "
                                       f"INSERT DATA {{ {texts[1]} }}")  # fmt: skip
            if not made.delta.changes:
                continue
            number -= 1
            record = commit(len(self.records) + 1, gw=GW)
            removed, added, kept = (tuple(quads) for quads in made.delta[:3])
            self.records.append(msgspec.structs.replace(record, a=added, d=removed, k=kept))
            for one in made.notifications:
                name, place = self._names[one.spuid], (1, record.seq)
                results = one.added.to_json(), one.removed.to_json()
                version = order_version(1, 1_800_000_000)
                found.append(EarlyNotification(1, GW, name, version, "i", one.sequence, place, *results))
        return found

    def tell(self, notifications: list[EarlyNotification]) -> None:
        self._objects += 1
        self.to.create(f"ahead/{GW}/{self._objects:012d}.ndjson", [b"".join(map(line, notifications))])


def _quads(draw: random.Random) -> str:
    found = []
    for _ in range(draw.randrange(1, 4)):
        triple = f":s{draw.randrange(3)} :value {draw.choice([7, 60, 95, draw.randrange(100)])} ."
        graph = draw.choice(["", "", ":g1", ":g2"])
        found.append(f"GRAPH {graph} {{ {triple} }}" if graph else triple)
    return " ".join(found)


class _AheadSite(_Site):
    def __init__(self, spark: SparkSession, folder: Path, few_records: int) -> None:
        super().__init__(spark, folder / "lake", few_records)
        (folder / "to").mkdir()
        (folder / "lake" / "segments" / GW).mkdir(parents=True)
        self.gateway = _Gateway(folder / "to")
        for name in NAMES:
            self.registry.add(name, QUERIES[name])
        orders = [
            PushedOrder(subscription=name, gateway=GW, kind="subscribe", version=1, number=1, at=0)
            for name in PUSHED_DOWN
        ]
        self.lake.write(msgspec.json.encode({"orders": orders}), *PUSHED)

    def matcher(self, order_wait_s: float = NEVER_OLD_ENOUGH) -> Matcher:
        to = self.gateway.to
        return Matcher(
            self.spark,
            self.lake,
            order_wait_s=order_wait_s,
            say=self.said.append,
            ahead=to,
            few_records=self.few_records,
        )

    def advance(self, matcher: Matcher) -> None:
        while matcher.advance() is not None:
            pass

    def compared(self) -> dict[str, int]:
        return comparison_counts(table(self.lake, "matches").live())


@pytest.fixture(params=[0, FEW_RECORDS], ids=["on Spark", "in the driver"])
def site(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> _AheadSite:
    return _AheadSite(spark, tmp_path, request.param)


def test_rows_ahead_are_matches_at_once_and_spark_does_not_repeat_them(site: _AheadSite) -> None:
    draw, gateway = random.Random(5), site.gateway
    told = gateway.commits(draw, 12)
    gateway.tell(told[:-1])
    gateway.tell([told[-1], *told[:3]])  # at least once
    matcher = site.matcher()
    site.advance(matcher)
    assert _found(site.matches()) == expected_matches(gateway.records, PUSHED_DOWN), "before a segment has landed"
    site.land(gateway.records[:6])
    matcher = site.matcher()  # a new process knows what came ahead
    site.advance(matcher)
    later = gateway.commits(draw, 6)
    site.land(gateway.records[6:])
    site.advance(matcher)
    gateway.tell(later)  # too late: Spark has matched their records
    site.advance(matcher)
    assert _found(site.matches()) == expected_matches(gateway.records, NAMES)
    same = sum(expected_matches(gateway.records[:12], PUSHED_DOWN).values())
    assert site.compared() == {"equal": same, "different": 0, "unfound": 0}


def test_differences_are_counted_and_nothing_is_delivered_twice(site: _AheadSite) -> None:
    draw, gateway = random.Random(6), site.gateway
    told = [one for one in gateway.commits(draw, 12) if one.subscription == "warm" and len(_bindings(one)) == 1]
    assert len(told) > 2
    wrong, right, *_ = told
    _bindings(wrong)[0]["v"]["value"] = "51"
    false = msgspec.structs.replace(right, subscription="graphs", commit=(1, 11), added=deepcopy(right.added))
    false.added["head"]["vars"] = sorted(gateway_query(fleet_query(QUERIES["graphs"])).projected)
    other = msgspec.structs.replace(right, version=order_version(2, 1))
    unknown = [msgspec.structs.replace(right, commit=None), msgspec.structs.replace(right, sequence=0)]
    absent = ("graphs", GW, 1, 11, "added", None) not in {
        key[:6] for key in expected_matches(gateway.records, ["graphs"])
    }
    assert absent
    _bindings(false)[0].pop("event_graph", None)
    gateway.tell([wrong, false, other, *unknown])
    site.land(gateway.records)
    site.advance(site.matcher())
    assert site.compared() == {"equal": 0, "different": 1, "unfound": 1}
    rows = site.matches()
    keys = Counter((row["subscription"], row["seq"], row["graph"]) for row in rows)
    assert set(keys.values()) == {1}
    expected = {(name, seq, graph) for name, _, _, seq, _, graph, _ in expected_matches(gateway.records, NAMES)}
    assert set(keys) == expected | {("graphs", 11, None)}


def test_a_match_behind_later_ones_is_late_and_rows_ahead_have_their_time(site: _AheadSite) -> None:
    draw, gateway = random.Random(7), site.gateway
    told = [one for one in gateway.commits(draw, 20) if one.subscription == "warm"]
    untold, last = told[1], told[-2]
    noon = datetime(2026, 6, 1, 12, tzinfo=UTC)
    ahead = [msgspec.structs.replace(one, at=noon, trusted=True) for one in told[:-1] if one is not untold]
    gateway.tell(ahead)
    site.advance(site.matcher())
    times = {(row["ts"], row["trusted"], row["late"]) for row in site.matches()}
    assert times == {(noon.replace(tzinfo=None), True, False)}, "Spark's times have no zone"
    assert merge_matches(table(site.lake, "matches")) == []
    site.land(gateway.records[:10])
    site.land(gateway.records[10:])
    site.advance(site.matcher())  # a new process knows what came ahead, also of a merged batch
    rows = site.matches()
    assert _found(rows) == expected_matches(gateway.records, NAMES)
    late = {(row["subscription"], row["seq"]) for row in rows if row["late"]}
    assert untold.commit is not None and last.commit is not None
    assert late == {("warm", untold.commit[1])}, "other subscriptions, and what is behind the last row, are in order"
    assert untold.commit[1] < last.commit[1] < gateway.records[-1].seq


def test_rows_ahead_behind_a_matched_segment_are_late(site: _AheadSite) -> None:
    gateway = site.gateway
    told = gateway.commits(random.Random(8), 12)
    early = [one for one in told if one.commit is not None and one.commit[1] <= 6]
    site.land(gateway.records[6:])  # the segment before it does not come
    site.advance(site.matcher(order_wait_s=0))
    gateway.tell(early)
    site.advance(site.matcher(order_wait_s=0))
    late = {row["seq"]: row["late"] for row in site.matches()}
    assert {seq for seq, flag in late.items() if flag} == {one.commit[1] for one in early if one.commit is not None}


def _bindings(one: EarlyNotification) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one.added["results"]["bindings"]
    return found
