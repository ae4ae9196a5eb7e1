"""In the driver, records give the same events, descriptions and facts as on Spark, which has oracles of its own."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.events.completion import PastDescriptions
from lamplighter.cloud_sync.fleet.events.events import events
from lamplighter.cloud_sync.fleet.events.single_events import RECORD, complete, single_events
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.tables import facts, streams
from tests.support.small_lake import SmallFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME = ("gw", "epoch", "seq", "ts", "trusted", "change", "graph", "request")


def _records(lake: Lake, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    bronze = table(lake, "bronze")
    found = bronze.few_rows(bronze.live(), columns, rows_max=10**6, members_max=10**7)
    assert found is not None
    return list(found)


def test_the_events_and_descriptions_of_a_simulated_fleet(
    spark: "SparkSession", silver_lake: tuple[SmallFleet, Lake]
) -> None:
    _, lake = silver_lake
    bronze = table(lake, "bronze")
    descriptions = PastDescriptions(spark, lake, bronze.live())
    frame = descriptions.complete(events(bronze.frame(spark), deleted=True))
    expected = Counter(
        (
            *(row[name] for name in SAME if name != "ts"),
            row["ts"].timestamp(),
            frozenset(tuple(triple) for triple in row["triples"]),
        )
        for row in frame.collect()
    )
    found: Counter[Any] = Counter()
    for record in _records(lake, RECORD):
        for event in single_events(record, deleted=True):
            whole = complete(event, descriptions.gateways.get(event.gw))
            triples = frozenset((*((*one, True) for one in whole.new), *((*one, False) for one in whole.old)))
            said = (getattr(whole, name) for name in SAME if name != "ts")
            found[(*said, whole.ts.timestamp(), triples)] += 1
    assert found == expected
    assert sum(found.values()) > 1000


def test_the_facts_of_a_simulated_fleet(spark: "SparkSession", silver_lake: tuple[SmallFleet, Lake]) -> None:
    _, lake = silver_lake
    names = [name for name in facts.Fact._fields if name != "ts"]
    expected = Counter(
        tuple(row[name] for name in names) for row in streams.facts(table(lake, "bronze").frame(spark)).collect()
    )
    records = _records(lake, facts.RECORD)
    assert (
        Counter(
            tuple(getattr(fact, name) for name in names) for record in records for fact in facts.single_facts(record)
        )
        == expected
    )
    assert expected
    rows = facts.fact_table(records)
    assert rows.num_rows == sum(expected.values()) and rows.schema.names == list(facts.Fact._fields)
