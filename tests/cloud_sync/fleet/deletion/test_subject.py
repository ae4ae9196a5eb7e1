"""`forget --subject`: nothing of it is found, and all else is as if the gateways had never said it."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.push import PUSHED, read_pushed
from lamplighter.cloud_sync.fleet.tables.bronze import ingest
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast
from tests.cloud_sync.fleet.deletion.test_removal import ahead_object, ahead_of, order_of
from tests.cloud_sync.fleet.delivery.made_up_matches import match, write_batch
from tests.cloud_sync.fleet.tables.silver_oracle import differences, of_lake
from tests.support.lake_files import files_with, rows
from tests.support.small_lake import SmallFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GW = "gw-000001"
SENSOR = "http://lamplighter.local/sensor/1/temperature"


@pytest.fixture
def lake(silver_lake: tuple[SmallFleet, Lake], tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    shutil.copytree(silver_lake[1].path(), root)
    return root


def _forget(lake: Path, *options: str) -> int:
    return main(["forget", str(lake), "--subject", SENSOR, *options])


def test_nothing_of_a_subject_is_found_and_the_tables_are_those_of_the_other_quads(
    spark: "SparkSession", lake: Path, tmp_path: Path
) -> None:
    found = Lake(str(lake))
    end = max((row["epoch"], row["seq"]) for row in rows(lake, "bronze") if row["gw"] == GW)
    before = {tuple(row) for row in GatewayPast(spark, found, GW).dataset(end).collect()}
    observations = rows(lake, "silver/observations")
    about = {f"<{row['observation']}>" for row in observations if row["sensor"] == SENSOR}
    about |= {f"<{row['stream']}>" for row in rows(lake, "silver/streams") if row["sensor"] == SENSOR}
    assert about
    assert _forget(lake, "--yes") == 0
    assert files_with(lake, SENSOR) == []

    after = {tuple(row) for row in GatewayPast(spark, found, GW).dataset(end).collect()}
    assert after == {quad for quad in before if not about.union([f"<{SENSOR}>"]).intersection(quad)}
    assert len(after) < len(before)
    assert rows(lake, "silver/observations") == [row for row in observations if row["sensor"] != SENSOR]
    again = Lake(str(tmp_path / "again"))
    for kind in ("segments", "snapshots"):
        shutil.copytree(lake / kind, again.path(kind))
    ingest(spark, again)
    Silver(spark, again).update()
    for name in ("bronze", "streams", "observations", "actuations"):
        assert differences(of_lake(found, name), of_lake(again, name)) == ([], []), name


def test_notifications_of_its_events_go_even_if_they_do_not_name_it(lake: Path) -> None:
    row = next(row for row in rows(lake, "silver/observations") if row["sensor"] == SENSOR)
    of = {"gw": row["gw"], "epoch": row["epoch"], "rows": [['"21"']], "graph": row["graph"] and f"<{row['graph']}>"}
    told = [match(seq=row["seq"], **of), match(seq=10**6, **of), match(seq=7, rows=[[f"<{SENSOR}>"], [None]], gw="x")]
    write_batch(Lake(str(lake)), 1, told)
    notification = {"gateway": row["gw"], "epoch": row["epoch"], "sequence": row["seq"], "graph": row["graph"]}
    lines = [
        {"notification": {**notification, "results": {"head": {}, "boolean": True}}},
        {"notification": {**notification, "sequence": 10**6}},
        {"match": {**told[2], "ts": 0}},
    ]
    dead = lake / "subscriptions" / "dead" / "a" / "s" / "1"
    dead.parent.mkdir(parents=True)
    dead.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert _forget(lake, "--yes") == 0
    graph_stays = row["graph"] is None  # otherwise the graph was about the sensor only
    kept = [bool(one["subscription"]) for one in rows(lake, "subscriptions/matches")]
    assert kept == [False, graph_stays, False]
    assert json.loads(dead.read_text().splitlines()[0]) == lines[1]


def test_what_gateways_sent_ahead_and_orders_that_name_it_go_too(lake: Path, tmp_path: Path) -> None:
    row = next(row for row in rows(lake, "silver/observations") if row["sensor"] == SENSOR)
    place = {"commit": [row["epoch"], row["seq"]]}
    named = {"results": {"bindings": [{"o": {"type": "triple", "value": {"subject": {"value": SENSOR}}}}]}}
    other = {"results": {"bindings": [{"o": {"type": "uri", "value": f"{SENSOR}x"}}]}}
    told = [ahead_of(row["gw"], None, **place), ahead_of(row["gw"], 10**6, removed=named)]
    kept = [ahead_of(row["gw"], 10**6, added=other), ahead_of(row["gw"], None)]
    path = ahead_object(tmp_path, row["gw"], 1, told + kept)
    orders = [order_of("a", f"ASK {{ <{SENSOR}> ?p ?o }}"), order_of("b", "ASK { ?s ?p 1 }", f"not <{SENSOR}>")]
    Lake(str(lake)).write(msgspec.json.encode({"orders": orders}), *PUSHED)
    assert _forget(lake, "--yes", "--orders", str(tmp_path)) == 0
    assert files_with(lake, SENSOR) == []
    assert [json.loads(line) for line in path.read_text().splitlines()] == kept
    assert [(one.query, one.reason) for one in read_pushed(Lake(str(lake)))] == [("", ""), ("ASK { ?s ?p 1 }", "")]


def test_a_lake_that_cannot_be_looked_through_is_left_as_it_is(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_with(lake, SENSOR)
    assert _forget(lake) == 2
    assert _forget(lake, "--lift") == 2
    (lake / "quarantine" / GW).mkdir(parents=True)
    (lake / "quarantine" / GW / "1.ndjson").write_text(f"<{SENSOR}>")
    capsys.readouterr()
    assert _forget(lake, "--yes") == 2
    assert "1.ndjson: it has the subject; remove it" in capsys.readouterr().err
    shutil.rmtree(lake / "quarantine")
    segment = min((lake / "segments" / GW).iterdir())
    shutil.copy(segment, segment.parent / "9-000000000001-000000000002.ndjson.zst")
    assert _forget(lake, "--yes") == 2
    assert "1 landed segments are not in bronze" in capsys.readouterr().err
    assert set(before) <= set(files_with(lake, SENSOR))
    assert main(["forget", str(lake), "--subject", "not an iri", "--yes"]) == 2


def test_one_deletion_is_completed_before_another_begins(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _forget(lake, "--dry-run") == 0
    Lake(str(lake)).write(b'{"subject": "0"}', "deletions", "subject.json")
    capsys.readouterr()
    assert _forget(lake, "--yes") == 2
    assert "the deletion of another subject is not complete; repeat that one first" in capsys.readouterr().err
