"""The compound events of records are those that a loop over the records finds."""

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.events.events import COLUMNS, EVENT, events
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.engine.change_log import Cause, Gap, GraphChanges, Record
from tests.support.fleet_events import START, PlainEvent, collected, commit, event_frame, plain_events, record_frame
from tests.support.small_lake import SmallFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = [
    commit(1, a=":s :p 1, 2 .", k=":s :p 3 ."),
    commit(2, a=":s :p 4 . GRAPH :g {:s :p 5}", k="GRAPH :g {:s :p 6} GRAPH :h {:s :p 7}", d="GRAPH :g {:s :p 8}"),
    commit(3, k=":s :p 1 ."),
    commit(4, k="GRAPH :g { :s :p 6 } :s :p 1 ."),
    commit(5, d="GRAPH :g { :s :p 5, 6 } GRAPH :h { :s :p 7 } :s :p 4 .", graphs=GraphChanges(dropped=(":g", ":h"))),
    commit(6),
    commit(7, graphs=GraphChanges(created=("<http://example.org/empty>",))),
    commit(8, d=":s :p 1 .", a="GRAPH :g { :s :p 1 }", request="once"),
    commit(9, a="GRAPH :g { :s :p 2 } GRAPH :h { :s :p 2 }", cause=None),
    commit(10, a="GRAPH :g { :s :p 3 }", k="GRAPH :h { :s :p 2 }", cause=Cause("timer", "t", 9)),
    commit(11, d="GRAPH :h { :s :p 2 }", k="GRAPH :g { :s :p 3 }"),
    Record(1, "gap", "gw-1", 2, 1, "2026-06-01T00:00:00.000000Z", True, "boot", 1, gap=Gap(1, 12, "lost")),
]


def test_a_record_gives_an_event_for_each_graph_that_it_changes(spark: "SparkSession") -> None:
    for deleted in (False, True):
        expected = plain_events(RECORDS, deleted=deleted)
        assert len(expected) == (13 if deleted else 7)
        assert collected(events(record_frame(spark, RECORDS), deleted=deleted)) == expected


def test_events_of_a_simulated_fleet(spark: "SparkSession", silver_lake: tuple[SmallFleet, Lake]) -> None:
    fleet, lake = silver_lake
    records = [record for gateway in fleet.gateways for record in fleet.records(gateway)]
    expected = plain_events(records, deleted=True)
    assert max(map(len, expected.values())) > 40
    assert collected(events(tables.read(spark, lake, "bronze"), deleted=True)) == expected


def test_an_event_has_what_the_record_says_of_itself(spark: "SparkSession") -> None:
    frame = events(record_frame(spark, RECORDS), deleted=True)
    assert tuple(frame.columns) == COLUMNS
    assert frame.schema.simpleString() == event_frame(spark, []).schema.simpleString()
    rows = {(row["seq"], row["change"], row["graph"]): row for row in frame.collect()}
    row = rows[10, "added", "<http://example.org/g>"]
    assert (row["gw"], row["epoch"], row["trusted"]) == ("gw-1", 1, True)
    assert (row["cause_kind"], row["cause_id"], row["cause_seq"], row["request"]) == ("timer", "t", 9, None)
    assert int(row["ts"].timestamp()) == int(START.timestamp()) + 10
    row = rows[8, "deleted", None]
    assert (row["cause_kind"], row["request"]) == ("mqtt", "once")
    assert rows[9, "added", "<http://example.org/g>"]["cause_kind"] is None


def test_a_record_with_thousands_of_graphs_takes_no_time_by_their_square(spark: "SparkSession") -> None:
    """By the square, this would take minutes."""
    count = 5_000
    text = "".join(f"GRAPH :g{number} {{ :s{number} :p 1, 2 }}\n" for number in range(count))
    old = "".join(f"GRAPH :g{number} {{ :s{number} :p 3 }}\n" for number in range(0, count, 2))
    records = [commit(1, a=text, k=old, d=text)]
    assert collected(events(record_frame(spark, records), deleted=True)) == plain_events(records, deleted=True)


def test_event_frames_for_tests_have_the_schema(spark: "SparkSession") -> None:
    frame = event_frame(spark, [PlainEvent(1, ":s :p 1 .", ":s :p 2 ."), PlainEvent(1, "", graph="<http://g>")])
    assert frame.schema == spark.createDataFrame([], EVENT).schema
    assert [len(row["triples"]) for row in frame.orderBy("graph").collect()] == [2, 0]
