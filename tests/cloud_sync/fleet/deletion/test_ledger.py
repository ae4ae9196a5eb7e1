"""The collector after `forget` and `retain`: nothing comes back, and what was removed is no gap."""

import contextlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import CollectionSummary, Collector
from lamplighter.cloud_sync.fleet.collection.ledger import FILE
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.deletion.landed import remove_landed
from lamplighter.cloud_sync.fleet.deletion.selection import Cut, OfGateway, OutdatedRecords
from lamplighter.cloud_sync.fleet.delivery.cursors import Cursors, GatewayBehind, SinkCursor
from lamplighter.cloud_sync.fleet.delivery.dead_letters import DeadLetters
from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.runner import STATES
from lamplighter.cloud_sync.fleet.delivery.sent_orders import DeadOrder, OrderDesk, SentOrder
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.forgotten import ForgottenGateways
from lamplighter.cloud_sync.orders import Orders
from tests.cloud_sync.fleet.delivery.made_up_matches import match
from tests.support.shipped_logs import (
    landed_records,
    records_of,
    recut,
    segments,
    snapshot,
    snapshot_seal,
)

MINE, OTHERS = segments("gw-mine", 1, [3, 2, 4]), segments("gw-other", 1, [2, 2])


class _Site:
    def __init__(self, folder: Path) -> None:
        self.source, self.lake = folder / "source", folder / "lake"
        for name, sealed in (("gw-mine", MINE), ("gw-other", OTHERS)):
            for one in sealed:
                one.put(self.source / name)

    def collect(self) -> CollectionSummary:
        with Collector(LocalFolder(self.source), self.lake) as collector:
            summary = collector.collect(full=True)
            assert collector.problems == []
        return summary

    def gaps(self) -> list[object]:
        with contextlib.closing(Manifest(self.lake)) as manifest:
            return [*manifest.gaps()]


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    found = _Site(tmp_path)
    found.collect()
    return found


def test_a_forgotten_gateway_is_not_collected_again_until_that_is_lifted(site: _Site) -> None:
    damaged = site.source / "gw-mine" / f"{MINE[2].stem}.ndjson.zst"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    site.collect()
    assert b"gw-mine" in (site.lake / FILE).read_bytes()
    assert main(["forget", str(site.lake), "--gateway", "gw-mine", "--yes"]) == 0
    left = [path for path in site.lake.rglob("*") if path.is_file() and b"gw-mine" in path.read_bytes()]
    assert left == []
    summary = site.collect()
    assert (summary["forgotten"], summary["landed"]) == (1, 0)
    assert str(summary).endswith("0 landed, 1 forgotten")
    assert landed_records(site.lake) == records_of(OTHERS)
    assert site.gaps() == []
    MINE[2].put(site.source / "gw-mine")
    assert main(["forget", str(site.lake), "--gateway", "gw-mine", "--lift"]) == 0
    assert site.collect()["landed"] == 3
    assert landed_records(site.lake) == records_of([*MINE, *OTHERS])


def _fall_behind(lake: Lake, *gateways: str) -> None:
    """What `deliver` keeps of gateways that a sink has passed."""
    place = MatchPosition("000000000001", 1)
    cursors = Cursors(lake)
    behind = [GatewayBehind(gateway, place, 0.0) for gateway in gateways]
    cursors.replace(SinkCursor(subscription="a", sink="s", position=place, behind=behind))
    cursors.write(cursors.changes(moved=True) or b"")
    row = {**match("a", "gw-third"), "ts": 0}
    for gateway in gateways:
        DeadLetters().write(lake, ("a", "s"), [MatchNotification(Match(**row), place)], "given up", 0, gateway)
    lake.write(json.dumps({"at": 0, "sinks": [], "damaged": list(gateways)}).encode(), *STATES)


def test_a_gateway_is_forgotten_with_all_its_histories(site: _Site, capsys: pytest.CaptureFixture[str]) -> None:
    segments("gw-mine", 1, [4, 2], seed=1)[0].put(site.source / "gw-mine", "z")
    content = snapshot("gw-mine", 1, 2)
    folder = site.source / "gw-mine/snapshots"
    folder.mkdir()
    (folder / "1-000000000002.ndjson.zst").write_bytes(content)
    (folder / "1-000000000002.json").write_bytes(snapshot_seal("gw-mine", 1, 2, content))
    assert site.collect()["landed"] == 1
    assert (site.lake / "segments/gw-mine~2").is_dir()
    lake = Lake(str(site.lake))
    of = {"subscription": "a", "sink": "s", "id": "a/gw-mine~2/1/3", "epoch": 1, "sequence": 3, "expires": 9}
    orders = [
        SentOrder(gateway="gw-other", number=1, source="gw-mine~2", **of),
        SentOrder(gateway="gw-mine", number=1, source="gw-other", **{**of, "id": "a/gw-other/1/3"}),
        SentOrder(gateway="gw-other", number=2, source="gw-other", **{**of, "id": "a/gw-other/1/3"}),
    ]
    desk = OrderDesk(Orders(LocalFolder(site.source), Ed25519PrivateKey.generate()), lake)
    for one in orders:
        DeadLetters().write_order(lake, DeadOrder(one, "refused"), 0)
        desk._waiting[one.gateway, one.number] = one
    desk._changed = True
    desk.write()
    _fall_behind(lake, "gw-mine", "gw-other")
    assert main(["forget", str(site.lake), "--gateway", "gw-mine~2", "--yes"]) == 2
    assert "gw-mine is forgotten with all of them" in capsys.readouterr().err
    assert main(["forget", str(site.lake), "--gateway", "gw-mine", "--yes"]) == 0
    left = [path for path in site.lake.rglob("*") if "gw-mine" in f"{path} {path.is_file() and path.read_bytes()}"]
    assert left == []
    assert OrderDesk(desk._orders, lake)._waiting == {("gw-other", 2): orders[2]}
    assert len(list((site.lake / "subscriptions/dead").rglob("*.ndjson"))) == 2
    assert [one.gateway for one in Cursors(lake).by_name["a", "s"].behind] == ["gw-other"]
    assert site.collect()["forgotten"] == 1
    assert landed_records(site.lake) == records_of(OTHERS)
    assert "gw-mine~2" in ForgottenGateways.of(lake), "ingest leaves out its segments"


def test_records_that_retention_removed_are_no_gap_and_do_not_land_again(site: _Site) -> None:
    remove_landed(Lake(str(site.lake)), "segments", OutdatedRecords({"gw-mine": Cut((1, 3), (1, 3))}))
    assert landed_records(site.lake) == records_of([*MINE[1:], *OTHERS])
    recut(MINE, 1, 5).put(site.source / "gw-mine")  # the gateway ships them once more, cut in another way
    assert site.collect()["known"] == 1
    assert landed_records(site.lake) == records_of([*MINE[1:], *OTHERS])
    assert site.gaps() == []


def test_a_running_collector_is_not_disturbed(site: _Site) -> None:
    with Collector(LocalFolder(site.source), site.lake):
        assert main(["forget", str(site.lake), "--gateway", "gw-mine", "--yes"]) == 75
    assert landed_records(site.lake) == records_of([*MINE, *OTHERS])


def test_a_damaged_list_of_forgotten_gateways_stops_the_collector(
    site: _Site, capsys: pytest.CaptureFixture[str]
) -> None:
    Lake(str(site.lake)).write(b"{", "deletions", "forgotten.json")
    assert main(["collect", str(site.source), str(site.lake)]) == 2
    assert "restore it from a backup, because without it their data would come back" in capsys.readouterr().err


def test_rows_of_all_histories_of_a_gateway_are_selected() -> None:
    import pyarrow as pa

    rows = pa.table({"gw": ["gw-1", "gw-1~2", "gw-1~12", "gw-12", "gw", None]})
    assert OfGateway("gw-1").removal_mask("bronze", rows).to_pylist() == [True, True, True, False, False, False]
