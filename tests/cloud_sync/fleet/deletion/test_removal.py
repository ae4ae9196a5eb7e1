"""`forget` and `retain` over a lake with every table, matches, dead letters and delivered files."""

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.deletion import removal
from lamplighter.cloud_sync.fleet.deletion.cuts import Cuts, cuts_before
from lamplighter.cloud_sync.fleet.deletion.selection import Cut, OutdatedRecords, Place
from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds, MatchTable
from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake, locks
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.push import PUSHED, PushedOrder, read_pushed
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.fleet.tables.bronze import ingest, unread
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast
from tests.cloud_sync.fleet.delivery.made_up_matches import match, write_batch
from tests.support import odd_gateway
from tests.support.lake_files import files_with, rows
from tests.support.small_lake import SmallFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENSOR = "http://lamplighter.local/sensor/1/temperature"
GW, OTHER = "gw-000001", "gw-000002"
TABLES = {
    "bronze": ("epoch", "seq"),
    "silver/observations": ("epoch", "seq"),
    "silver/actuations": ("epoch", "seq"),
    "silver/gateway_health": ("epoch", "last_seq"),
    "silver/streams": ("until_epoch", "until_seq"),
}
BOUNDS = ChunkBounds(3, 10**6)


@pytest.fixture
def lake(silver_lake: tuple[SmallFleet, Lake], tmp_path: Path) -> Path:
    """A lake of its own, in which two subscriptions had matches of two gateways."""
    root = tmp_path / "lake"
    shutil.copytree(silver_lake[1].path(), root)
    (tmp_path / "out").mkdir()
    found = Lake(str(root))
    registry = SubscriptionRegistry(found)
    registry.add("hot", "ASK {?s ?p ?o}", deliver=(FilesSink(url=str(tmp_path / "out")),))
    for number in (1, 2):
        told = [
            match(gw=gw, seq=seq, subscription=one) for gw in (GW, OTHER) for seq in range(4) for one in ("a", "hot")
        ]
        write_batch(found, number, random.Random(number).sample(told, len(told)), files=2, group=3)
    line = {"gateway": GW, "epoch": 1, "sequence": 3}
    (tmp_path / "out" / "hot").mkdir()
    kept = json.dumps({**line, "gateway": OTHER}) + "\n"
    (tmp_path / "out" / "hot" / "000000000001-000000000.ndjson").write_text(json.dumps(line) + "\n" + kept)
    found.write((json.dumps({"id": "x", "notification": line}) + "\n").encode(), "subscriptions", "dead", "a", "s", "1")
    found.write(
        (json.dumps({"id": "x", "match": match(gw=OTHER)}, default=str) + "\n").encode(),
        "subscriptions",
        "dead",
        "a",
        "s",
        "2",
    )
    found.write(b"{}", "quarantine", GW, "1-000000000009-000000000010.reason.json")
    found.write(b"x", "results", "health", "gateway_health.csv")
    pushed = [order_of(gw, 'ASK { ?s <http://e/p> "x" }') for gw in (GW, OTHER)]
    found.write(msgspec.json.encode({"orders": pushed}), *PUSHED)
    matches = table(found, "matches")
    matches.commit(msgspec.structs.replace(matches.all()[0], ahead={GW: 2, OTHER: 1}))
    for gw in (GW, OTHER):
        ahead_object(tmp_path / "to", gw, 1, [ahead_of(gw, seq) for seq in range(4)] + [ahead_of(gw, None)])
    ahead_object(tmp_path / "to", GW, 2, [ahead_of(GW, 10**6)])
    # Half of what has landed is packed.
    landed = sorted(LandedSegments(found).names())
    LandedSegments(found).pack(landed[::2], datetime(2100, 1, 1, tzinfo=UTC).timestamp())
    assert list(root.glob("segments/*/*.zip")) and sorted(LandedSegments(found).names()) == landed
    # A crash left these.
    found.write(GW.encode(), "bronze", "batch=none", "part.tmp")
    return root


def order_of(gateway: str, query: str, reason: str = "") -> PushedOrder:
    return PushedOrder(
        subscription="hot", gateway=gateway, kind="subscribe", version=1, query=query, number=1, at=0, reason=reason
    )


def ahead_of(gateway: str, seq: int | None, **members: Any) -> dict[str, Any]:
    place = {} if seq is None else {"commit": [1, seq]}
    told = {"v": 1, "gateway": gateway, "subscription": "hot", "version": 1, "incarnation": "i", "sequence": 1}
    return {**told, **place, **members}


def ahead_object(to: Path, gateway: str, number: int, told: list[dict[str, Any]]) -> Path:
    path = to / "ahead" / gateway / f"{number:012d}.ndjson"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in told))
    return path


def _run(*arguments: str) -> int:
    return main(list(arguments))


def _others(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in found if row["gw"] != GW]


def _delivered(lake: Path, subscription: str, position: MatchPosition = START) -> list[tuple[str, int]]:
    """Gateway and sequence of each match that a sink gets from a position on."""
    table, found = MatchTable(Lake(str(lake)), lambda: 0.0), []
    while (chunk := table.chunk(subscription, position, BOUNDS)).notifications:
        found += [(one.match.gw, one.match.seq) for one in chunk.notifications]
        position = chunk.notifications[-1].next
    return found


def test_nothing_of_a_forgotten_gateway_is_found_in_the_lake_and_all_else_stays(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {table: _others(rows(lake, table)) for table in (*TABLES, "silver/facts")}
    matches = rows(lake, "subscriptions/matches")
    assert len(files_with(lake, GW)) > 10  # the search finds it in what is compressed too

    assert _run("forget", str(lake), "--gateway", GW) == 2
    assert "look with --dry-run, then add --yes" in capsys.readouterr().err
    assert _run("forget", str(lake), "--gateway", GW, "--dry-run") == 0
    shown = {line[:16].strip(): int(line[16:].replace(",", "")) for line in capsys.readouterr().out.splitlines()}
    assert (shown["matches"], shown["dead letters"], shown["delivered files"], shown["quarantine"]) == (16, 1, 1, 1)
    assert len(files_with(lake, GW)) > 10

    to = tmp_path / "to"
    assert _run("forget", str(lake), "--gateway", GW, "--yes", "--orders", str(to)) == 0
    assert files_with(lake, GW) == []
    assert [one.gateway for one in read_pushed(Lake(str(lake)))] == [OTHER]
    assert [batch.ahead for batch in table(Lake(str(lake)), "matches").all()] == [{OTHER: 1}, {}]
    assert [path.read_text() for path in sorted((to / "ahead" / GW).iterdir())] == ["", ""]
    assert len(files_with(to / "ahead" / OTHER, OTHER)) == 1
    assert {table: rows(lake, table) for table in before} == before
    assert [row["gw"] for row in rows(lake, "subscriptions/matches")] == [
        None if row["gw"] == GW else row["gw"] for row in matches
    ]
    assert GW not in (tmp_path / "out" / "hot" / "000000000001-000000000.ndjson").read_text()
    assert OTHER in (tmp_path / "out" / "hot" / "000000000001-000000000.ndjson").read_text()
    assert not (lake / "subscriptions" / "dead" / "a" / "s" / "1").exists()
    assert (lake / "subscriptions" / "dead" / "a" / "s" / "2").exists()
    (audit,) = [json.loads(path.read_text()) for path in (lake / "deletions").glob("2*.json")]
    assert (audit["removed"]["bronze"], audit["complete"]) == (shown["bronze"], True)
    assert audit["ended"]

    assert _run("forget", str(lake), "--gateway", GW, "--yes") == 0
    assert {table: rows(lake, table) for table in before} == before


def test_what_gateways_sent_ahead_goes_with_its_records_and_only_there(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "to"
    command = ["forget", str(lake), "--gateway", GW, "--yes"]
    before = [path.read_bytes() for path in sorted((to / "ahead" / GW).iterdir())]
    assert _run(*command) == 0
    assert "rows ahead of segments at the destination of sync stay; name it with --orders" in capsys.readouterr().err
    assert [path.read_bytes() for path in sorted((to / "ahead" / GW).iterdir())] == before
    cuts = {OTHER: Cut((1, 2), None)}
    selection, opened = OutdatedRecords(cuts), LocalFolder(to)
    found = Lake(str(lake))
    assert removal.counts(found, selection, destination=opened)["rows ahead"] == 3
    assert len(files_with(to, '"commit": [1, 2]')) == 2
    late = datetime(2100, 1, 1, tzinfo=UTC)
    record = removal.retain(found, selection, late, print, lambda: late, opened)
    assert record.removed["rows ahead"] == 3
    left = [json.loads(line) for line in (to / "ahead" / OTHER / "000000000001.ndjson").read_text().splitlines()]
    assert [one.get("commit") for one in left] == [[1, 3], None]
    (to / "ahead" / OTHER / "000000000002.ndjson").write_bytes(b"[" * 100_000)
    assert removal.retain(found, selection, late, print, lambda: late, opened).removed["rows ahead"] == 0
    with locks.writing(found, "test", locks.PUSH):
        assert _run(*command) == 75


def test_a_cursor_of_delivery_stays_where_it_was(lake: Path) -> None:
    table = MatchTable(Lake(str(lake)), lambda: 0.0)
    positions = [MatchPosition()]
    while chunk := table.chunk("hot", positions[-1], ChunkBounds(1, 1)).notifications:
        positions.append(chunk[0].next)
    assert len(positions) == 17
    before = [_delivered(lake, "hot", position) for position in positions]
    _run("forget", str(lake), "--gateway", GW, "--yes")
    assert [_delivered(lake, "hot", position) for position in positions] == [_others_of(one) for one in before]
    assert MatchTable(Lake(str(lake)), lambda: 0.0).waiting("hot", MatchPosition(), "9") == 8


def _others_of(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [one for one in found if one[0] != GW]


def test_a_forgotten_gateway_stays_out_until_that_is_lifted(
    spark: "SparkSession", silver_lake: tuple[SmallFleet, Lake], lake: Path
) -> None:
    found = Lake(str(lake))
    _run("forget", str(lake), "--gateway", GW, "--yes")
    before = {table: rows(lake, table) for table in TABLES}
    silver_lake[0].land(found, gateways=[GW])
    shutil.rmtree(lake / "snapshots" / GW)
    said: list[str] = []
    ingest(spark, found, say=said.append)
    Silver(spark, found, said.append).update()
    assert {table: rows(lake, table) for table in TABLES} == before
    assert said == []
    assert unread(found) == []

    assert _run("forget", str(lake), "--gateway", GW, "--lift") == 0
    assert _run("forget", str(lake), "--gateway", GW, "--lift") == 2
    assert len(unread(found)) == len(silver_lake[0].truths[GW].segments)


def _middle(lake: Path) -> datetime:
    times = sorted(row["ts"] for row in rows(lake, "bronze") if row["gw"] != odd_gateway.NAME)
    return times[len(times) * 3 // 4]


def _after(found: list[dict[str, Any]], cuts: Cuts, epoch: str, seq: str) -> list[dict[str, Any]]:
    def place(row: dict[str, Any]) -> Place:
        return (row[epoch], row[seq]) if row[epoch] is not None else (10**9, 0)

    return [row for row in found if row["gw"] not in cuts.cuts or place(row) > cuts.cuts[row["gw"]].records]


def test_old_records_go_with_all_that_was_made_from_them_and_the_state_stays(
    spark: "SparkSession", lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, time = Lake(str(lake)), _middle(lake)
    cuts = cuts_before(found, time, without_state=False)
    assert len(cuts.cuts) >= 2
    assert all(cut.records > (1, 1) for cut in cuts.cuts.values())
    before = {table: rows(lake, table) for table in TABLES}
    gateway = min(cuts.cuts)
    past = GatewayPast(spark, found, gateway)
    end = max((row["epoch"], row["seq"]) for row in before["bronze"] if row["gw"] == gateway)
    dataset = set(past.dataset(end).collect())

    assert _run("retain", str(lake), "--before", time.isoformat(), "--yes") == int(bool(cuts.kept))
    after = {table: rows(lake, table) for table in TABLES}
    for one, (epoch, seq) in TABLES.items():
        if one != "silver/streams":
            assert after[one] == _after(before[one], cuts, epoch, seq), one
            assert len(after[one]) < len(before[one]), one
    old = [row for row in after["bronze"] if row["ts"] < time and row["gw"] in cuts.cuts]
    kept_since = {row["gw"]: (row["epoch"], row["seq"]) for row in after["bronze"][::-1]}
    assert all((row["epoch"], row["seq"]) >= kept_since[row["gw"]] for row in old)
    assert set(GatewayPast(spark, found, gateway).dataset(end).collect()) == dataset

    said: list[str] = []
    ingest(spark, found, say=said.append)
    Silver(spark, found, said.append).update()
    assert [line for line in said if not line.startswith("streams: ")] == []  # nothing is written again
    assert {table: rows(lake, table) for table in TABLES if table != "silver/streams"} == {
        table: found for table, found in after.items() if table != "silver/streams"
    }
    order = sorted(map(repr, after["silver/streams"]))
    assert sorted(map(repr, rows(lake, "silver/streams"))) == order
    assert _run("retain", str(lake), "--before", time.isoformat(), "--yes") == int(bool(cuts.kept))
    assert sorted(map(repr, rows(lake, "silver/streams"))) == order


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> bool:
    """Whether a change of a file was the one that did not happen, and ended the run."""
    left = [step]

    class Killed(BaseException):
        pass

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return change(*arguments, **options)

        return changed

    fs = type(Lake("/tmp").fs)
    with monkeypatch.context() as patched:
        for name in ("write", "remove"):
            patched.setattr(Lake, name, counting(getattr(Lake, name)))
        for name in ("rm", "rm_file", "_open"):
            patched.setattr(fs, name, counting(getattr(fs, name)))
        try:
            run()
        except Killed:
            return True
    return False


@pytest.mark.faults
@pytest.mark.fleet_faults
@pytest.mark.parametrize("what", ["gateway", "subject", "retain"])
def test_a_removal_that_is_killed_anywhere_is_completed_by_a_repetition(
    lake: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = _middle(lake)
    given = {
        "retain": ["retain", "--before", time.isoformat()],
        "gateway": ["forget", "--gateway", GW],
        "subject": ["forget", "--subject", SENSOR],
    }

    def run(root: Path) -> int:
        command, *options = given[what]
        return _run(command, str(root), *options, "--yes")

    whole = tmp_path / "whole"
    shutil.copytree(lake, whole)
    assert run(whole) < 2
    tables = (*TABLES, "silver/facts", "subscriptions/matches")
    expected = {table: rows(whole, table) for table in tables}
    step, draw, killed = 1, random.Random(3), 0
    while True:
        broken = tmp_path / f"broken-{step}"
        shutil.copytree(lake, broken)
        if not killed_at(step, monkeypatch, partial(run, broken)):
            break
        assert run(broken) < 2
        assert {table: rows(broken, table) for table in tables} == expected, step
        assert what == "retain" or files_with(broken, given[what][2]) == []
        shutil.rmtree(broken)
        killed += 1
        step += draw.randrange(1, 120)
    assert killed > 2


def test_other_commands_are_kept_away_and_a_missing_lake_is_not_made(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for held in (locks.BRONZE, locks.SILVER, locks.MATCHES, locks.DELIVERY):
        with locks.writing(Lake(str(lake)), "test", held):
            assert _run("forget", str(lake), "--gateway", GW, "--yes") == 75
            assert _run("retain", str(lake), "--days", "1", "--yes") == 75
    capsys.readouterr()
    for command in (["forget", "--gateway", GW, "--yes"], ["retain", "--days", "3", "--yes"], ["compact"]):
        assert _run(command[0], str(tmp_path / "none"), *command[1:]) == 2
        assert "there is no lake; correct the path" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert _run("forget", str(lake), "--gateway", "../x", "--yes") == 2


def test_without_a_trusted_time_or_a_snapshot_nothing_is_called_old(lake: Path) -> None:
    late = datetime(2100, 1, 1, tzinfo=UTC)
    found = Lake(str(lake))
    assert GW in cuts_before(found, late, without_state=False).cuts
    shutil.rmtree(lake / "snapshots" / GW)
    cuts = cuts_before(found, late, without_state=False)
    assert GW in cuts.kept
    assert GW not in cuts.cuts
    whole = cuts_before(found, late, without_state=True).cuts
    removal.retain(found, OutdatedRecords(whole), late, print, lambda: late)
    assert [row for row in rows(lake, "bronze") if row["gw"] == GW and row["trusted"]] == []
