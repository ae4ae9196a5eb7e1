"""The collector after `forget` and `retain`: nothing comes back, and what was removed is no gap."""

import contextlib
from pathlib import Path

import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import CollectionSummary, Collector
from lamplighter.cloud_sync.fleet.collection.manifest import FILE, Manifest
from lamplighter.cloud_sync.fleet.deletion.landed import remove_landed
from lamplighter.cloud_sync.fleet.deletion.selection import Cut, OutdatedRecords
from lamplighter.cloud_sync.fleet.lake import Lake
from tests.support.shipped_logs import landed_records, records_of, recut, segments

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
