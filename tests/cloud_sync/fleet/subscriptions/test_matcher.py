"""The properties of fleet subscriptions (Pellegrino 2013, 3.2), over arrivals in any order, crashes and restarts."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.lake import Batches, Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.landings import FOLDER, LandingLine, file_name
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.cloud_sync.fleet.subscriptions import matcher, matching
from lamplighter.cloud_sync.fleet.subscriptions.matcher import FEW_RECORDS, Matcher
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.fleet.tables.bronze import ingest
from lamplighter.engine.change_log import Record, SegmentName
from tests.support.fleet_events import commit
from tests.support.fleet_matches import EX, QUERIES, Row, expected_matches, in_segments, random_commits
from tests.support.small_lake import write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEVER_OLD_ENOUGH, AT_ONCE = 1e12, 0.0
DELETED = EX + "SELECT ?s ?v { ?s :value ?v }"


class _Site:
    """A lake whose segments land as the test says."""

    def __init__(self, spark: "SparkSession", folder: Path, few_records: int = FEW_RECORDS) -> None:
        self.spark = spark
        self.few_records = few_records
        self.folder = folder
        self.lake = Lake(str(folder))
        self.registry = SubscriptionRegistry(self.lake)
        self.said: list[str] = []

    def matcher(self, order_wait_s: float = NEVER_OLD_ENOUGH) -> Matcher:
        return Matcher(
            self.spark, self.lake, order_wait_s=order_wait_s, say=self.said.append, few_records=self.few_records
        )

    def land(self, *segments: list[Record]) -> None:
        for records in segments:
            write_segment(self.folder / "segments" / records[0].gw, records)
        ingest(self.spark, self.lake)

    def matches(self) -> list[Any]:
        """Rows in the order of the table."""
        matches = table(self.lake, "matches")
        return [row for batch in matches.live() for row in matches.frame(self.spark, [batch]).collect()]


def _found(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (row["subscription"], *(row[name] for name in ("gw", "epoch", "seq", "change", "graph")), _rows_of(row))
        for row in rows
    )


def _rows_of(row: Any) -> tuple[Row, ...]:
    return tuple(map(tuple, row["rows"]))


@pytest.fixture
def site(
    spark: "SparkSession", tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> _Site:
    """Batches are matched in the driver, or where the parameter says."""
    where = getattr(request, "param", "in the driver")
    if where.endswith("two shapes at a time"):
        monkeypatch.setattr(matching, "SHAPES_TOGETHER", 2)
    return _Site(spark, tmp_path, FEW_RECORDS if where == "in the driver" else 0)


BOTH_WAYS = pytest.mark.parametrize("site", ["on Spark", "in the driver"], indirect=True)


@pytest.mark.parametrize("site", ["on Spark", "on Spark, two shapes at a time", "in the driver"], indirect=True)
def test_every_matching_event_is_matched_once_in_order_and_nothing_else(site: _Site) -> None:
    """Segments of three gateways arrive in any order; the matcher starts again in between."""
    assert len({fleet_query(query).shape for query in QUERIES.values()}) > 2
    draw = random.Random(11)
    records = {gateway: random_commits(draw, gateway, 24) for gateway in ("gw-1", "gw-2", "gw-3")}
    arriving = [segment for of_gateway in records.values() for segment in in_segments(draw, of_gateway)]
    draw.shuffle(arriving)
    for name, query in QUERIES.items():
        site.registry.add(name, query)
    matcher = site.matcher()
    for begin in range(0, len(arriving), 9):
        site.land(*arriving[begin : begin + 9])
        matcher.advance()
        if draw.random() < 0.5:
            matcher = site.matcher()
    while matcher.advance():
        pass
    found = site.matches()
    assert _found(found) == expected_matches([record for of_gateway in records.values() for record in of_gateway])
    for gateway in records:
        places = [(row["epoch"], row["seq"]) for row in found if row["gw"] == gateway]
        assert places == sorted(places), "the order of the gateway's log"
    assert not any(row["late"] for row in found)


def test_a_crash_before_or_behind_a_write_neither_loses_nor_repeats_a_match(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = random_commits(random.Random(12), "gw-1", 12)
    for name in ("warm", "placed"):
        site.registry.add(name, QUERIES[name])
    crashes: Iterator[str | None] = iter(["before", "behind", None, "before", "before", "behind"])
    commit_batch = Batches.commit

    def crashing(self: Batches, batch: TableBatch, *, new: bool = False) -> TableBatch:
        crash = next(crashes, None) if self.name.endswith("matches") else None
        if crash == "before":
            raise KeyboardInterrupt
        done = commit_batch(self, batch, new=new)
        if crash == "behind":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Batches, "commit", crashing)
    stopped = 0
    for segment in in_segments(random.Random(13), records):
        site.land(segment)
        done = False
        while not done:
            try:
                done = site.matcher().advance() is None
            except KeyboardInterrupt:
                stopped += 1
    assert stopped == 5 and next(crashes, "all were tried") == "all were tried"
    assert _found(site.matches()) == expected_matches(records, ("warm", "placed"))


@BOTH_WAYS
def test_a_subscription_is_honoured_for_all_that_lands_after_it(site: _Site) -> None:
    """Pellegrino 2013, 3.2: issued before a matching event by the same client."""
    first, second, third = (
        random_commits(random.Random(seed), "gw-1", 30)[10 * seed : 10 * seed + 10] for seed in range(3)
    )
    matcher = site.matcher()
    site.land(first)
    matcher.advance()
    site.registry.add("warm", QUERIES["warm"])
    site.registry.add("everything", QUERIES["everything"], begin="all")
    site.land(second)
    matcher.advance()
    site.registry.pause("warm")
    site.registry.replace("everything", query=QUERIES["placed"])
    site.land(third)
    matcher.advance()
    found = site.matches()
    versions = {(row["subscription"], row["version"]) for row in found}
    assert versions == {("warm", 1), ("everything", 1), ("everything", 2)}
    assert _of(found, "warm", 1) == expected_matches(second, ["warm"])
    assert _of(found, "everything", 1) == expected_matches([*first, *second], ["everything"])
    again = expected_matches([*first, *second, *third], ["placed"])
    assert _of(found, "everything", 2, "placed") == again, "a new query begins with all, as its subscription does"


def _of(found: list[Any], name: str, version: int, called: str | None = None) -> Counter[tuple[Any, ...]]:
    own = _found([row for row in found if (row["subscription"], row["version"]) == (name, version)])
    return Counter({(called or name, *key[1:]): count for key, count in own.items()})


@BOTH_WAYS
def test_what_comes_after_later_records_were_matched_is_late(site: _Site) -> None:
    records = random_commits(random.Random(14), "gw-1", 15)
    site.registry.add("everything", QUERIES["everything"])
    site.land(records[:5], records[10:])
    waiting = site.matcher()
    waiting.advance()
    assert waiting.advance() is None and waiting.waiting == 1
    site.matcher(AT_ONCE).advance()
    site.land(records[5:10])
    site.matcher().advance()
    found = site.matches()
    assert {row["seq"] for row in found if row["late"]} == set(range(6, 11))
    assert _found(found) == expected_matches(records, ["everything"])


@BOTH_WAYS
def test_deleted_quads_gateways_and_requests(site: _Site) -> None:
    records = [
        commit(1, a=":s1 :value 1 . :g1 { :s2 :value 2 }", request="r-1", gw="gw-a"),
        commit(2, a=":s1 :value 3 .", d=":s1 :value 1 . :g1 { :s2 :value 2 }", gw="gw-a"),
    ]
    other = [commit(1, a=":s1 :value 9 .", gw="gw-b")]
    site.registry.add("gone", DELETED, changes="deleted")
    site.registry.add("both", DELETED, changes="both", gateways=["gw-[a]"])
    site.land(records, other)
    site.matcher().advance()
    found = site.matches()
    told = [(row["subscription"], row["seq"], row["change"], row["graph"]) for row in found]
    graph = "<http://example.org/g1>"
    assert told == [
        ("both", 1, "added", None),
        ("both", 1, "added", graph),
        ("both", 2, "deleted", None),
        ("gone", 2, "deleted", None),
        ("both", 2, "added", None),
        ("both", 2, "deleted", graph),
        ("gone", 2, "deleted", graph),
    ]
    assert {row["request"] for row in found if row["seq"] == 1} == {"r-1"}
    assert {(row["form"], tuple(row["variables"])) for row in found} == {("SELECT", ("s", "v"))}


def test_a_broken_record_is_told_of_once_and_the_others_go_on(site: _Site) -> None:
    site.registry.add("warm", QUERIES["warm"])
    site.registry.add("older", QUERIES["hot"])
    records = site.folder / "subscriptions" / "records"
    written = records / "older.json"
    written.write_text(written.read_text().replace("SELECT ?s ?v", "SELECT DISTINCT ?s ?v"))
    broken = records / "broken.json"
    broken.write_text("{")
    matcher = site.matcher()
    commits = random_commits(random.Random(15), "gw-1", 6)
    for begin in (0, 3):
        site.land(commits[begin : begin + 3])
        matcher.advance()
    assert sum(str(broken) in line for line in site.said) == 1
    assert sum("subscription older" in line for line in site.said) == 1
    assert _found(site.matches()) == expected_matches(commits, ["warm"])


def test_an_idle_matcher_does_not_pile_up_manifests(site: _Site) -> None:
    site.registry.add("hot", EX + "SELECT * { ?s :nothing ?v }")
    matcher = site.matcher()
    records = random_commits(random.Random(16), "gw-1", 6)
    for record in records:
        site.land([record])
        matcher.advance()
    (only,) = table(site.lake, "matches").all()
    assert len(only.segments) == 6 and only.id == "000000000006"
    assert site.matcher().advance() is None, "all of them are matched, also for a matcher that starts again"


def test_one_gateway_with_odd_terms_does_not_slow_down_the_others(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver cannot match its events. Spark does, in their order, and not more often than its time allows."""
    site.registry.add("everything", QUERIES["everything"])
    now = [0.0]
    matcher = Matcher(
        site.spark, site.lake, say=site.said.append, spark_pauses=9.0, elapsed=lambda: now[0], order_wait_s=AT_ONCE
    )
    odd = [_with_odd_term(commit(seq, a=":s1 :value 1 .", gw="gw-1")) for seq in range(1, 5)]
    plain = random_commits(random.Random(17), "gw-2", 4)

    def following(number: int) -> list[tuple[str, int]]:
        site.land([odd[number]])
        site.land([plain[number]])
        had = len(site.matches())
        while matcher.advance() is not None:
            pass
        return sorted({(row["gw"], row["seq"]) for row in site.matches()[had:]})

    seconds = iter([0.0, 2.0, 0.0])
    staged = matcher._staged_by_spark

    def timed(*args: Any) -> TableBatch:
        now[0] += next(seconds)
        return staged(*args)

    monkeypatch.setattr(matcher, "_staged_by_spark", timed)
    assert following(0) == [("gw-1", 1), ("gw-2", 1)], "at first Spark has time, which took none by this clock"
    assert following(1) == [("gw-1", 2), ("gw-2", 2)]
    assert following(2) == [("gw-2", 3)], "Spark has taken 2 s, so it has to wait for 18 s"
    assert matcher.waiting == 1
    now[0] += 17.9
    assert matcher.advance() is None
    now[0] += 0.2
    assert following(3) == [("gw-1", 3), ("gw-1", 4), ("gw-2", 4)]
    found = site.matches()
    assert {row["rows"][0][1] for row in found if row["gw"] == "gw-1"} == {ODD}
    assert [row["seq"] for row in found if row["gw"] == "gw-1"] == [1, 2, 3, 4]
    assert _found([row for row in found if row["gw"] == "gw-2"]) == expected_matches(plain, ["everything"])
    assert sum("are matched on Spark, which takes longer" in line for line in site.said) == 1


ODD = '"01"^^<http://www.w3.org/2001/XMLSchema#integer>'


def _with_odd_term(record: Record) -> Record:
    """A record that no gateway writes: the store would have written the number in another way."""
    (quad,) = record.a
    return msgspec.structs.replace(record, a=(quad._replace(o=ODD),))


def test_batches_of_a_stream_that_is_behind_stay_in_the_driver(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spark, a batch would take so long that the next one were no shorter."""

    def on_spark(*_: object) -> None:
        raise AssertionError("on Spark")

    monkeypatch.setattr(matcher, "matches", on_spark)
    records = random_commits(random.Random(14), "gw-1", 20)
    for name, query in QUERIES.items():
        site.registry.add(name, query)
    site.land(records)
    site.few_records = 1
    with pytest.raises(AssertionError, match="on Spark"):
        site.matcher().advance()
    site.few_records = 10
    site.matcher().advance()
    assert _found(site.matches()) == expected_matches(records)


def test_who_begins_now_sees_what_landed_later_though_it_was_ingested_without_the_log(site: _Site) -> None:
    records = random_commits(random.Random(14), "gw-1", 12)
    before, later, last = records[:4], records[4:8], records[8:]
    lines = [
        msgspec.json.encode(LandingLine(number, f"gw-1/{SegmentName(some[0].epoch, some[0].seq, some[-1].seq)}"))
        for number, some in enumerate((before, later), 1)
    ]

    def write_log(count: int) -> None:
        site.lake.write(b"".join(line + b"\n" for line in lines[:count]), FOLDER, file_name(1))

    site.land(before)  # by an earlier version, whose collector gave no numbers
    write_log(1)
    for name, query in QUERIES.items():
        assert site.registry.add(name, query).landing == 1
    site.lake.fs.rm(site.lake.path(FOLDER), recursive=True)  # as the text of a damaged log says
    site.land(later)
    write_log(2)
    matcher = site.matcher()
    while matcher.advance():
        pass
    assert _found(site.matches()) == expected_matches(later)
    site.lake.fs.rm(site.lake.path(FOLDER), recursive=True)
    site.land(last)
    while matcher.advance():
        pass
    assert _found(site.matches()) == expected_matches([*later, *last])
