"""The landing log: numbers of what has landed, for readers that remember how far they are."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection import landing_numbers
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.collection.ledger import FILE
from lamplighter.cloud_sync.fleet.lake import Lake, landings
from lamplighter.cloud_sync.fleet.lake.landings import LandingLog
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from tests.support.shipped_logs import segments

ONE, TWO = segments("gw-1", 1, [1] * 7), segments("gw-2", 1, [1] * 7)


class _Site:
    def __init__(self, folder: Path) -> None:
        self.source, self.folder = folder / "source", folder / "lake"
        self.lake = Lake(str(self.folder))

    def land(self, *numbers: int) -> None:
        for number in numbers:
            ONE[number].put(self.source / "gw-1")
            TWO[number].put(self.source / "gw-2")
        with Collector(LocalFolder(self.source), self.folder) as collector:
            collector.collect(full=True)

    def log(self, after: int = 0) -> list[str]:
        return [
            one.segment.partition(".")[0].replace("00000000000", "") for one in LandingLog(self.lake).after(after, 99)
        ]


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    return _Site(tmp_path)


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of three lines."""
    monkeypatch.setattr(landings, "LINES_A_FILE", 3)
    monkeypatch.setattr(landing_numbers, "LINES_A_FILE", 3)


def test_numbers_ascend_over_rounds_and_starts(site: _Site) -> None:
    site.land(0)
    site.land(1, 2)
    assert site.log() == ["gw-1/1-1-1", "gw-2/1-1-1", "gw-1/1-2-2", "gw-1/1-3-3", "gw-2/1-2-2", "gw-2/1-3-3"]
    log = LandingLog(site.lake)
    assert [one.number for one in log.after(4, 9)] == [5, 6]
    assert (log.after(6, 9), log.last(), log.exists()) == ([], 6, True)
    site.land(3)
    assert [one.number for one in log.after(6, 9)] == [7, 8]


@pytest.mark.usefixtures("few_lines")
def test_a_long_log_is_in_several_files(site: _Site) -> None:
    log = LandingLog(site.lake)
    assert (log.exists(), log.last(), log.after(0, 9)) == (False, 0, [])
    read = 0
    for number in range(6):
        site.land(number)
        found = log.after(read, 99)
        assert [one.number for one in found] == [read + 1, read + 2]
        assert log.after(read + 2, 99) == []
        read += 2
    assert site.lake.names("landings") == [f"{first:012d}.ndjson" for first in (1, 4, 7, 10)]
    assert [one.number for one in LandingLog(site.lake).after(1, 7)] == [2, 3, 4, 5, 6, 7, 8]
    assert (LandingLog(site.lake).last(), LandingLog(site.lake).after(12, 9)) == (12, [])


def test_what_an_earlier_version_has_landed_gets_numbers(site: _Site) -> None:
    site.land(0, 1)
    _without_numbers(site.folder)
    site.land(2)
    assert site.log() == ["gw-1/1-1-1", "gw-1/1-2-2", "gw-2/1-1-1", "gw-2/1-2-2", "gw-1/1-3-3", "gw-2/1-3-3"]
    # That version has worked on the lake once more, and retention has removed a file.
    with contextlib.closing(sqlite3.connect(site.folder / FILE)) as db, db:
        for epoch in (2, 3):
            db.execute(
                "INSERT INTO segments SELECT gw, ?, 1, 1, source, at, ts FROM segments "
                "WHERE gw = 'gw-1' AND epoch = 1 AND first = 1",
                (epoch,),
            )
    shutil.copy(*(site.folder / f"segments/gw-1/{epoch}-{1:012d}-{1:012d}.ndjson.zst" for epoch in (1, 2)))
    site.land(3)
    assert site.log(6) == ["gw-1/2-1-1", "", "gw-1/1-4-4", "gw-2/1-4-4"]


def _without_numbers(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("DROP TABLE landings")
    shutil.rmtree(folder / "landings")


def test_a_lost_log_is_written_again_with_the_same_numbers(site: _Site) -> None:
    site.land(0, 1)
    before = (site.folder / "landings/000000000001.ndjson").read_bytes()
    shutil.rmtree(site.folder / "landings")
    site.land()
    assert (site.folder / "landings/000000000001.ndjson").read_bytes() == before


def test_a_ledger_from_a_backup_gives_out_no_number_again(site: _Site) -> None:
    site.land(0)
    shutil.copy(site.folder / FILE, site.folder / "backup")
    site.land(1)
    shutil.move(site.folder / "backup", site.folder / FILE)
    site.land(2)
    assert site.log(4) == ["gw-1/1-2-2", "gw-1/1-3-3", "gw-2/1-2-2", "gw-2/1-3-3"]


def test_a_file_that_an_error_kept_out_of_its_place_gets_there_before_its_number_is_told(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    site.land(0)
    ONE[1].put(site.source / "gw-1")
    plain: Callable[..., None] = os.rename

    def failing(source: object, target: object, **options: int) -> None:
        raise OSError(5, "Input/output error", str(source))

    with Collector(LocalFolder(site.source), site.folder) as collector:
        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(ChangeLogError, match="Input/output"):
            collector.collect()
        assert site.log() == ["gw-1/1-1-1", "gw-2/1-1-1"]
        monkeypatch.setattr(os, "rename", plain)
        collector.collect()
    assert site.log(2) == ["gw-1/1-2-2"]


def test_a_forgotten_gateway_leaves_its_numbers_without_names(site: _Site) -> None:
    site.land(0, 1)
    assert main(["forget", str(site.folder), "--gateway", "gw-1", "--yes"]) == 0
    assert site.log() == ["", "", "gw-2/1-1-1", "gw-2/1-2-2"]
    site.land(2)
    assert site.log(4) == ["gw-2/1-3-3"]


def test_a_damaged_log_is_named(site: _Site) -> None:
    site.land(0)
    path = site.folder / "landings/000000000001.ndjson"
    content = path.read_bytes()
    for damage in (b"not JSON\n", content.replace(b'"number":2', b'"number":3')):
        path.write_bytes(damage)
        with pytest.raises(ConfigurationError, match=r"000000000001\.ndjson.*remove the folder"):
            LandingLog(site.lake).after(0, 9)
    path.write_bytes(content[:-3])
    assert [one.number for one in LandingLog(site.lake).after(0, 9)] == [1], "the collector is writing the rest"


def test_a_copy_on_object_storage_is_read_as_it_grows(
    site: _Site, s3: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", s3)
    lake = Lake(f"s3://fleet/{tmp_path.name}")
    log = LandingLog(lake)
    assert (log.exists(), log.after(0, 9)) == (False, [])
    for number in range(3):
        site.land(number)
        lake.write((site.folder / "landings/000000000001.ndjson").read_bytes(), "landings", "000000000001.ndjson")
        assert lake.names("landings")  # s3fs remembers the sizes of a listing
        assert [one.number for one in log.after(2 * number, 9)] == [2 * number + 1, 2 * number + 2]
        assert log.after(2 * number + 2, 9) == []
    assert LandingLog(lake).last() == 6


def test_a_collector_that_stays_writes_a_log_again_that_is_lost_or_not_whole(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [1, 2]

    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with Collector(LocalFolder(site.source), site.folder) as collector:
        ONE[0].put(site.source / "gw-1")
        collector.collect()
        reader = LandingLog(site.lake)
        assert [one.number for one in reader.after(0, 9)] == [1]
        shutil.rmtree(site.folder / "landings")
        collector.collect()
        assert [one.number for one in LandingLog(site.lake).after(0, 9)] == [1]
        shutil.rmtree(site.folder / "landings")
        ONE[1].put(site.source / "gw-1")
        collector.collect()
        assert [one.number for one in LandingLog(site.lake).after(0, 9)] == numbers
        ONE[2].put(site.source / "gw-1")
        with monkeypatch.context() as patch, pytest.raises(ChangeLogError, match="Input/output"):
            plain = landing_numbers.sync_folder
            patch.setattr(
                landing_numbers, "sync_folder", lambda path: failing(path) if path.name == "landings" else plain(path)
            )
            collector.collect()
        collector.collect()
        assert [one.number for one in LandingLog(site.lake).after(0, 9)] == [*numbers, 3]
        assert [one.number for one in reader.after(1, 9)] == [2, 3]
        # Retention has removed the files, so the log is shorter when it is written again.
        shutil.rmtree(site.folder / "segments")
        shutil.rmtree(site.folder / "landings")
        ONE[3].put(site.source / "gw-1")
        collector.collect()
        assert [(one.number, bool(one.segment)) for one in reader.after(3, 9)] == [(4, True)]


def test_a_gateway_that_an_earlier_version_has_forgotten_lands_again(site: _Site) -> None:
    site.land(0)
    # That version knows no numbers.
    with contextlib.closing(sqlite3.connect(site.folder / FILE)) as db, db:
        for table in ("objects", "segments", "seals", "listed"):
            db.execute(f"DELETE FROM {table}")
    shutil.rmtree(site.folder / "segments")
    site.land(1)
    assert site.log(2) == ["gw-1/1-1-1", "gw-1/1-2-2", "gw-2/1-1-1", "gw-2/1-2-2"]
    assert not (site.folder / "quarantine").exists()


def test_what_a_gateway_has_landed_is_in_the_log_before_the_turns_of_the_others(site: _Site) -> None:
    ONE[0].put(site.source / "gw-1")
    TWO[0].put(site.source / "gw-2")
    seen: list[list[str]] = []

    class Source(LocalFolder):
        def entries(self, folder: str, *args: Any, **options: Any) -> Any:
            if folder == "gw-2":
                seen.append(site.log())
            return super().entries(folder, *args, **options)

    with Collector(Source(site.source), site.folder) as collector:
        collector.collect()
    assert seen == [["gw-1/1-1-1"]]
