"""What `ingest` finds new in the landing log, without Spark; and what it costs while nothing lands."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.tables.bronze import Ingest, NewSegments, unread
from lamplighter.cloud_sync.fleet.tables.export import write_delta
from tests.support.shipped_logs import segments

ONE = segments("gw-1", 1, [1] * 9)


class _Site:
    """A lake with a collector. Batches are written without their rows."""

    def __init__(self, folder: Path) -> None:
        self.source, self.folder = folder / "source", folder / "lake"
        self.lake = Lake(str(self.folder))

    def land(self, *numbers: int) -> None:
        for number in numbers:
            ONE[number].put(self.source / "gw-1")
        with Collector(LocalFolder(self.source), self.folder) as collector:
            collector.collect(full=True)

    def ingest(self, *, files_per_batch: int = 99, dies: str = "") -> list[str]:
        """The sequences that one run ingests. dies: where it is killed."""
        found: list[str] = []
        landing = Ingest(self.lake, files_per_batch=files_per_batch)
        while (new := landing.pending()) is not None:
            if dies == "before the manifest":
                break
            found += [one.rpartition("-")[2].partition(".")[0].lstrip("0") for one in new.segments]
            batch = TableBatch(id=f"b{len(self.lake.names('bronze', '_batches'))}", files=[], rows=0)
            table(self.lake, "bronze").commit(msgspec.structs.replace(batch, segments=new.segments))
            if dies == "before the frontier":
                break
            landing._segments().update(new.segments)
            landing.frontier.advance(new.until, ())
        return found


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    return _Site(tmp_path)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "of_arguments", refused)


def test_each_landed_segment_is_new_once(site: _Site) -> None:
    site.land(0, 1, 2)
    assert site.ingest(files_per_batch=2) == ["1", "2", "3"]
    assert site.ingest() == []
    site.land(3)
    assert site.ingest() == ["4"]
    assert unread(site.lake) == []


@pytest.mark.parametrize("dies", ["before the manifest", "before the frontier"])
def test_a_kill_repeats_nothing_and_loses_nothing(site: _Site, dies: str) -> None:
    site.land(0, 1)
    found = site.ingest(dies=dies)
    site.land(2)
    found += site.ingest(dies=dies)
    assert sorted(found + site.ingest()) == ["1", "2", "3"]


def _lose_frontier(site: _Site) -> None:
    (site.folder / "bronze/frontier.json").unlink()


def _lose_log(site: _Site) -> None:
    shutil.rmtree(site.folder / "landings")


def _lose_both(site: _Site) -> None:
    _lose_frontier(site)
    _lose_log(site)


def _older_ledger(site: _Site) -> None:
    """The lake's ledger and log come from a backup, its tables do not."""
    for name in ("manifest.sqlite", "landings"):
        target = site.folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        backup = site.folder.parent / "backup" / name
        shutil.copytree(backup, target) if backup.is_dir() else shutil.copy(backup, target)


@pytest.mark.parametrize("harm", [_lose_frontier, _lose_log, _lose_both, _older_ledger])
def test_what_is_lost_beside_the_tables_repeats_nothing_and_loses_nothing(
    site: _Site, harm: Callable[[_Site], None]
) -> None:
    site.land(0)
    shutil.copytree(site.folder, site.folder.parent / "backup")
    site.land(1, 2, 3)
    assert site.ingest() == ["1", "2", "3", "4"]
    harm(site)
    assert site.ingest() == []
    # Another order, so that the old numbers are those of other segments.
    for number in (3, 1, 2, 4, 5):
        site.land(number)
    assert site.ingest() == ["5", "6"]
    assert site.ingest() == []


def test_a_lake_of_an_earlier_version_goes_on(site: _Site) -> None:
    site.land(0, 1)
    shutil.rmtree(site.folder / "landings")
    assert site.ingest() == ["1", "2"], "listed: its collector gives no numbers"
    site.lake.write(b"x", "checkpoint", "ingest", "offsets", "0")
    site.land(2)
    assert site.ingest() == ["3"]


def test_nothing_new_costs_no_spark_and_no_listing(
    site: _Site, no_spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.land(0, 1)
    site.ingest()
    landing = Ingest(site.lake)
    assert landing.pending() is None
    monkeypatch.setattr(Lake, "names", lambda *_: pytest.fail("a folder was listed"))
    assert [landing.pending() for _ in range(3)] == [None] * 3
    monkeypatch.undo()
    assert main(["ingest", str(site.folder)]) == 0
    assert capsys.readouterr().out == "nothing new has landed\n"


def test_segments_that_were_left_out_are_named_and_keep_their_numbers(site: _Site, no_spark: None) -> None:
    site.land(0, 1)
    landing = Ingest(site.lake)
    new = landing.pending()
    assert new is not None
    landing.frontier.advance(new.until, new.landed[1:])
    assert main(["ingest", str(site.folder)]) == 1
    site.land(2)
    assert Ingest(site.lake).missing_segments() == [new.landed[1].segment]
    assert Ingest(site.lake).left_out() == NewSegments(new.landed, None)._replace(
        landed=[msgspec.structs.replace(new.landed[0], number=0, at=""), new.landed[1]]
    )


def test_a_table_with_files_of_an_earlier_version_is_exported_with_the_later_columns(tmp_path: Path) -> None:
    deltalake = import_module("deltalake")
    lake = Lake(str(tmp_path))
    bronze = table(lake, "bronze")
    for number, columns in enumerate(({"seq": [1]}, {"seq": [2], "landed": [datetime(2026, 6, 1, tzinfo=UTC)]})):
        batch = TableBatch(id=f"b{number}", files=[], rows=0)
        bronze.commit(bronze.stage_rows(pa.table(columns), batch))
    assert write_delta(lake, "bronze", tmp_path / "delta") == 2
    rows = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
    assert {row["seq"]: row["landed"] and row["landed"].year for row in rows} == {1: None, 2: 2026}


def test_a_segment_whose_file_comes_behind_its_line_is_named_and_read_again(
    site: _Site, no_spark: None, capsys: pytest.CaptureFixture[str]
) -> None:
    site.land(0)
    segments_folder = site.folder / "segments"
    segments_folder.rename(site.folder / "away")
    landing = Ingest(site.lake)
    new = landing.pending()
    assert new is not None
    landing.take(None, new)  # type: ignore[arg-type]
    assert (landing.pending(), landing.missing_segments()) == (None, [])
    (site.folder / "away").rename(segments_folder)
    assert main(["ingest", str(site.folder)]) == 1
    assert f"not in bronze: {new.segments[0]}" in capsys.readouterr().err
    assert Ingest(site.lake).left_out() == NewSegments(new.landed, None)
