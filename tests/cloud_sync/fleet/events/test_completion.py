"""Completed events have the descriptions that a replay of the change log into a store finds at their records."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import zstandard

from lamplighter.cloud_sync.fleet.events import completion
from lamplighter.cloud_sync.fleet.events.completion import Descriptions
from lamplighter.cloud_sync.fleet.events.events import events
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, tables
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.engine.change_log import Record, SegmentName, encode
from tests.cloud_sync.fleet.events.description_oracle import completed_events
from tests.support.fleet_events import Key, Triple, collected, commit, record_frame, triples_of
from tests.support.small_lake import SmallFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = dict[Key, list[Triple]]

LIVE = ":s gateway:liveObservation :o ."
STREAM = ":s a gateway:Stream ; rdfs:label 'one' ; gateway:mqttTopic 't' ." + LIVE
OBSERVED = ":o a sosa:Observation ; sosa:madeBySensor :n ; sosa:observedProperty :p ; sosa:hasFeatureOfInterest :f ."
AROUND = ":h sosa:hosts :n . :f lighting:hasLatitude 44.5 ; lighting:hasLongitude 11.3 ."
EVENTS = ":e a gateway:Stream ; sosa:madeBySensor :n ; sosa:hasFeatureOfInterest :f ; rdfs:label 'e', 'e2'@en ."
UNIT = ":s qudt:hasUnit unit:DEG_C ."


def reading(value: int) -> str:
    return f":o sosa:hasSimpleResult {value} ."


HISTORY = [
    commit(1, a=reading(1)),
    commit(2, a=STREAM + OBSERVED + AROUND + UNIT),
    commit(3, d=reading(1), a=reading(2)),
    # The unit changes, in a record that also has a reading.
    commit(4, d=UNIT + reading(2), a=":s qudt:hasUnit unit:K ." + reading(3)),
    commit(5, d=reading(3), a=reading(4), k=STREAM),
    # The feature moves, and another platform hosts the sensor.
    commit(6, d=":f lighting:hasLatitude 44.5 .", a=":f lighting:hasLatitude 45.5 . :h2 sosa:hosts :n ."),
    commit(7, d=reading(4), a=reading(5)),
    # Another live observation.
    commit(8, d=LIVE + OBSERVED, a=":s gateway:liveObservation :o2 . :o2 sosa:madeBySensor :n ."),
    commit(9, d=reading(5), a=reading(6) + ":o2 sosa:hasSimpleResult 1 ."),
    # In graphs, the one with the observation's name included; the same triples there describe nothing.
    commit(10, a="GRAPH :g { :o2 sosa:hasSimpleResult 2 . :s qudt:hasUnit unit:PERCENT } GRAPH :h { :x :y :z }"),
    commit(11, d="GRAPH :g { :o2 sosa:hasSimpleResult 2 . :s qudt:hasUnit unit:PERCENT }", a=":x :y :z ."),
    # Model `event`.
    commit(12, a=EVENTS),
    commit(13, a="GRAPH :g1 { :r a sosa:Observation ; sosa:hasSimpleResult 7 . :e gateway:liveObservation :r }"),
    commit(14, d="GRAPH :g1 { :r a sosa:Observation ; sosa:hasSimpleResult 7 . :e gateway:liveObservation :r }"),
    # One observation of two streams, then the readings of many.
    commit(15, a=":e gateway:liveObservation :o2 ."),
    commit(16, d=":o2 sosa:hasSimpleResult 1 .", a=":o2 sosa:hasSimpleResult 2 ."),
    commit(17, a=":a :p :e . :b :p 1 . :c :p 1 . :o2 sosa:resultTime 1 . :s :p 2 . :e :p 3 ."),
    # The stream is no more, and comes back.
    commit(18, d=":s a gateway:Stream ."),
    commit(19, d=":o2 sosa:hasSimpleResult 2 .", a=":o2 sosa:hasSimpleResult 3 . :s :p 4 ."),
    commit(20, a=":s a gateway:Stream . :o2 sosa:hasSimpleResult 4 ."),
    commit(1, epoch=2, a=":o2 sosa:hasSimpleResult 5 ."),
    commit(2, epoch=2, d=":s rdfs:label 'one' .", a=":s rdfs:label 'two' ."),
    commit(3, epoch=2, a=":o2 sosa:hasSimpleResult 6 ."),
    commit(3, gw="gw-2", a=":o2 sosa:hasSimpleResult 6 . :s :p 1 ."),
]  # fmt: skip


def ingested(spark: "SparkSession", lake: Lake, name: str, records: Iterable[Record]) -> TableBatch:
    """A batch of bronze."""
    return tables.table(lake, "bronze").write(
        record_frame(spark, records), TableBatch(id=name, files=[], rows=0), files=1
    )


def completed(spark: "SparkSession", descriptions: Descriptions, records: Iterable[Record]) -> Found:
    return collected(descriptions.complete(events(record_frame(spark, records), deleted=True)))


def by_replay(records: Iterable[Record]) -> Found:
    gateways: dict[str, list[Record]] = {}
    for record in records:
        gateways.setdefault(record.gw, []).append(record)
    return {key: one for of_it in gateways.values() for key, one in completed_events(of_it).items()}


@pytest.fixture(scope="module")
def expected() -> Found:
    found = by_replay(HISTORY)
    assert max(sum(not triple[3] for triple in triples) for triples in found.values()) >= 13
    return found


def test_descriptions_change_with_their_records(spark: "SparkSession", tmp_path: Path, expected: Found) -> None:
    lake = Lake(str(tmp_path))
    descriptions = Descriptions(spark, lake)
    assert completed(spark, descriptions, HISTORY[:3]) == collected(
        events(record_frame(spark, HISTORY[:3]), deleted=True)
    )
    batches = []
    # The second part comes late.
    parts = {"1": HISTORY[:2], "3": HISTORY[9:], "2": HISTORY[2:9]}
    for name, records in parts.items():
        batches.append(ingested(spark, lake, name, records))
        descriptions.advance(batches)
        descriptions.advance(batches)
    assert completed(spark, descriptions, HISTORY) == expected
    # Another process finds them in the lake, also by what `silver` wrote.
    Silver(spark, lake).update()
    assert completed(spark, Descriptions(spark, lake), HISTORY) == expected


def test_what_silver_knows_is_not_read_again(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Found
) -> None:
    lake = Lake(str(tmp_path))
    batch = ingested(spark, lake, "1", HISTORY)
    Silver(spark, lake).update()
    descriptions = Descriptions(spark, lake)
    before = [one.id for one in tables.table(lake, "facts").all()]
    descriptions.advance([batch])
    assert [one.id for one in tables.table(lake, "facts").all()] == before
    assert completed(spark, descriptions, HISTORY) == expected
    # The other plans give the same.
    monkeypatch.setattr(completion, "SUBJECTS_MAX", 1)
    monkeypatch.setattr(completion, "BROADCAST_VERSIONS_MAX", 1)
    assert completed(spark, descriptions, HISTORY) == expected


def test_batches_without_descriptions_get_no_manifest_each(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "UNNAMED_MAX", 3)
    lake = Lake(str(tmp_path))
    descriptions = Descriptions(spark, lake)
    batches, manifests = [], []
    for number, record in enumerate([HISTORY[0], HISTORY[1], *[HISTORY[2]] * 4]):
        batches.append(ingested(spark, lake, str(number), [record]))
        descriptions.advance(batches)
        manifests.append([batch.sources for batch in tables.table(lake, "facts").all()])
    first = ["0", "1"]
    assert manifests == [[], [first], [first], [first], [first, ["2", "3", "4"]], [first, ["2", "3", "4"]]]
    assert len(tables.table(lake, "facts").lake.names("silver/facts")) <= 4


def test_events_of_a_simulated_fleet_are_completed(spark: "SparkSession", silver_lake: tuple[SmallFleet, Lake]) -> None:
    fleet, lake = silver_lake
    found = collected(Descriptions(spark, lake).complete(events(tables.read(spark, lake, "bronze"), deleted=True)))
    wanted = by_replay(record for gateway in fleet.gateways for record in fleet.records(gateway))
    assert sum(not triple[3] for triples in wanted.values() for triple in triples) > 5_000
    assert found == wanted


def test_a_removal_of_what_is_not_known_ends_what_missing_records_replaced() -> None:
    described = completion.DescribedStreams()
    for place, added, unit in (((1, 2), True, "K"), ((1, 9), False, "C"), ((1, 9), True, "F")):
        described.learn(place, added, ("s", "<http://qudt.org/schema/qudt/hasUnit>", unit))
    stream = ("s", f"<{completion.streams.v.RDF_TYPE}>", f"<{completion.streams.v.STREAM}>")
    described.learn((1, 1), True, stream)
    versions = described.versions()["s"]
    assert [[triple[2] for triple in one.triples if triple != stream] for one in versions] == [[], ["K"], ["F"]]
    assert [one.valid.since for one in versions] == [(1, 1), (1, 2), (1, 9)]
    # When the missing records come, it is exact.
    described.learn((1, 5), False, ("s", "<http://qudt.org/schema/qudt/hasUnit>", "K"))
    described.learn((1, 5), True, ("s", "<http://qudt.org/schema/qudt/hasUnit>", "C"))
    versions = described.versions()["s"]
    assert [[triple[2] for triple in one.triples if triple != stream] for one in versions] == [[], ["K"], ["C"], ["F"]]


def test_a_snapshot_has_what_missing_records_said() -> None:
    described = completion.DescribedStreams()
    stream = ("s", f"<{completion.streams.v.RDF_TYPE}>", f"<{completion.streams.v.STREAM}>")
    label = f"<{completion.streams.v.RDFS_LABEL}>"
    for place, said in ((1, stream), (1, ("s", label, "old")), (7, stream), (7, ("s", label, "new"))):
        described.learn((2, place), True, said)
    described.learn_snapshot((2, 7))
    described.learn_snapshot((1, 5))
    versions = described.versions()["s"]
    assert [(one.valid.since, [triple[2] for triple in one.triples if triple != stream]) for one in versions] == [
        ((2, 1), ["old"]),
        ((2, 7), ["new"]),
    ]
    # A snapshot without the stream ends it.
    described.learn_snapshot((2, 9))
    assert described.versions()["s"][-1].valid.until == (2, 9)


def test_missing_segments_are_described_by_a_snapshot(spark: "SparkSession", tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    folder = Path(lake.path("snapshots", "gw-1"))
    folder.mkdir(parents=True)
    quads = commit(20, a=STREAM + OBSERVED + UNIT)
    lines = encode(msgspec.structs.replace(quads, type="snapshot"))
    descriptions = Descriptions(spark, lake)
    (folder / str(SegmentName(1, 20, None))).write_bytes(zstandard.ZstdCompressor().compress(lines))
    records = [commit(21, a=reading(1))]
    bronze = tables.table(lake, "bronze")
    written = bronze.write(
        record_frame(spark, records), TableBatch(id="1", files=[], rows=0, segments=[f"gw-1/{SegmentName(1, 21, 21)}"])
    )
    descriptions.advance([written])
    [found] = completed(spark, descriptions, records).values()
    assert {triple[:3] for triple in found if not triple[3]} == set(triples_of(STREAM + OBSERVED + UNIT))
    assert completed(spark, Descriptions(spark, lake), records) == completed(spark, descriptions, records)
