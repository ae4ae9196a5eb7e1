"""Packs of landed segments: nothing is lost or comes twice, whatever is killed, and the collector still compares."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.collection.ledger import FILE, set_packed
from lamplighter.cloud_sync.fleet.deletion import landed, removal
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake import landed_segments as module
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.local.session import local_session
from lamplighter.cloud_sync.fleet.tables.bronze import ingest, unread
from lamplighter.cloud_sync.fleet.tables.compact import compact
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.engine.change_log import SUFFIX
from lamplighter.engine.errors import UpstreamError
from tests.cloud_sync.fleet.deletion.test_removal import killed_at
from tests.support.lake_files import files_with
from tests.support.shipped_logs import Written, lines_of, memory_folder, segments, snapshot

DAY_S = 86_400.0
BEGIN = 1796126400.0
"""Noon of a day, behind the records."""
LOG = segments("gw-1", 1, [2] * 8)


class _Site:
    """A lake in which two segments land each day."""

    def __init__(self, folder: Path) -> None:
        self.source, self.folder = folder / "source", folder / "lake"
        self.lake = Lake(str(self.folder))
        self.landed = LandedSegments(self.lake)

    def land(self, *some: Written, day: int = 0, stem: str | None = None) -> dict[str, int]:
        for one in some:
            one.put(self.source / "gw-1", stem)
        with Collector(LocalFolder(self.source), self.folder, wall=lambda: BEGIN + day * DAY_S) as collector:
            found = collector.collect(full=True)
            assert collector.problems == []
            return {name: found[name] for name in ("landed", "known", "quarantined")}

    def land_all(self) -> None:
        for day in range(4):
            self.land(*LOG[2 * day : 2 * day + 2], day=day)

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "segments/gw-1").iterdir())

    def content(self) -> list[bytes]:
        """Each segment once, in order."""
        landed = LandedSegments(self.lake)
        return [landed.read(name) for name in sorted(landed.names())]

    def lines(self) -> list[bytes]:
        return [line for data in self.content() for line in lines_of(data)]

    def pack(self, day: int = 3) -> None:
        LandedSegments(self.lake).pack([f"gw-1/{one.name}" for one in LOG], BEGIN + day * DAY_S)


@pytest.fixture
def site() -> Iterator[_Site]:
    with memory_folder() as folder:
        yield _Site(folder)


PACKED = ["2026-12-01-1.zip", "2026-12-02-1.zip", "2026-12-03-1.zip", *(str(one.name) for one in LOG[6:])]


def test_a_pack_has_the_segments_of_a_day_as_they_were(site: _Site) -> None:
    site.land_all()
    site.pack()
    assert site.names() == sorted(PACKED)
    assert site.content() == [one.data for one in LOG]
    site.pack()
    assert site.names() == sorted(PACKED), "nothing is left to be packed"


def test_what_is_not_in_bronze_is_large_or_alone_stays_a_file(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land_all()
    monkeypatch.setattr(module, "SEGMENT_BYTES_MAX", len(LOG[1].data) - 1)
    few = [f"gw-1/{one.name}" for one in LOG[:3]]
    LandedSegments(site.lake).pack(few, BEGIN + 9 * DAY_S)
    small = [one for one in LOG[:2] if len(one.data) < len(LOG[1].data)]
    assert len(small) < 2 and site.names() == [str(one.name) for one in LOG]
    monkeypatch.undo()
    monkeypatch.setattr(module, "PACK_BYTES_MAX", len(LOG[0].data) + len(LOG[1].data) - 1)
    LandedSegments(site.lake).pack(few, BEGIN + 9 * DAY_S)
    assert site.names() == [str(one.name) for one in LOG], "no pack has more than its bound"
    monkeypatch.setattr(module, "PACK_BYTES_MAX", len(LOG[0].data) + len(LOG[1].data))
    LandedSegments(site.lake).pack(few, BEGIN + 9 * DAY_S)
    assert site.names() == sorted(["2026-12-01-1.zip", *(str(one.name) for one in LOG[2:])])


def test_later_deliveries_are_compared_with_what_is_packed(site: _Site) -> None:
    site.land_all()
    site.pack()
    assert site.land(LOG[1], day=4, stem="again") == {"landed": 0, "known": 1, "quarantined": 0}
    other = segments("gw-1", 1, [2], previous=LOG[0].seal.sha256, begin=3, seed=7)
    assert site.land(*other, day=4, stem="other") == {"landed": 1, "known": 0, "quarantined": 0}
    assert [path.name for path in (site.folder / "segments/gw-1~2").iterdir()] == [str(LOG[1].name)]


@pytest.mark.parametrize("change", ["pack", "drop", "unpack"])
def test_a_change_that_is_killed_anywhere_loses_nothing_and_is_completed_by_a_repetition(
    site: _Site, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land_all()
    times = _times(site)
    if change != "pack":
        site.pack()
    leaves = {str(LOG[0].name), str(LOG[2].name), str(LOG[3].name)}

    def run(root: _Site) -> None:
        if change == "pack":
            root.pack()
        elif change == "drop":
            LandedSegments(root.lake).drop("gw-1", leaves.__contains__)
        else:
            LandedSegments(root.lake).unpack_all(lambda line: None)

    kept = [one.data for one in LOG if change != "drop" or str(one.name) not in leaves]
    step = 1
    while True:
        broken = _Site(tmp_path / str(step))
        shutil.copytree(site.folder, broken.folder)
        shutil.copytree(site.source, broken.source)
        killed = killed_at(step, monkeypatch, lambda broken=broken: run(broken))
        content = broken.content()
        assert [one for one in content if one in kept] == kept and set(content) <= {one.data for one in LOG}
        # A collector works meanwhile, and a later delivery is the same.
        assert broken.land(LOG[4], day=4, stem="again")["known"] == 1
        run(broken)
        assert broken.content() == kept
        assert [name for name in broken.names() if name in PACKED[3:]] == PACKED[3:]
        assert len(broken.names()) == {"pack": 5, "drop": 4, "unpack": 8}[change], "nothing is there twice"
        assert change != "unpack" or _times(broken) == times
        if not killed:
            break
        step += 1
    assert step > 3


def test_a_collector_that_works_at_any_moment_of_a_packing_knows_each_segment(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land_all()
    moments = 0

    def between(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal moments
            moments += 1
            found = LandedSegments(site.lake)
            for one in LOG:
                assert found.read(f"gw-1/{one.name}") == one.data
            return change(*arguments, **options)

        return changed

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "write", between(Lake.write))
        patched.setattr(Lake, "remove", between(Lake.remove))
        site.pack()
    assert moments == 9


def test_a_file_that_is_packed_between_two_looks_is_found(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land_all()
    found = LandedSegments(site.lake)
    pack_of = found._pack_of

    def late(gateway: str, name: str) -> str | None:
        """The file is put back, as by `ingest`, after the collector has not found it."""
        monkeypatch.undo()
        shutil.move(aside, path)
        return None if pack_of(gateway, name) is None else ""

    path = site.folder / "segments/gw-1" / str(LOG[0].name)
    aside = site.folder / "aside"
    shutil.move(path, aside)
    monkeypatch.setattr(found, "_pack_of", late)
    assert found.read(f"gw-1/{LOG[0].name}") == LOG[0].data


@pytest.mark.parametrize("log", ["landing log", "listing"])
def test_a_lost_table_is_made_again_from_packs_with_the_times_of_landing(site: _Site, log: str) -> None:
    site.land_all()
    with local_session() as engine:
        ingest(engine, site.lake)
        before = _rows(site.lake)
        compact(engine, site.lake, now=BEGIN + 3 * DAY_S)
        assert site.names() == sorted(PACKED)
        assert unread(site.lake) == []
        shutil.rmtree(site.folder / "bronze")
        if log == "listing":
            shutil.rmtree(site.folder / "landings")
        assert len(unread(site.lake)) == len(LOG)
        ingest(engine, site.lake)
    after = _rows(site.lake)
    assert [row[:3] for row in after] == [row[:3] for row in before]
    if log == "landing log":
        assert after == before, "also the times of landing"
    compact_again = LandedSegments(site.lake)
    compact_again.pack(unread(site.lake, set()), BEGIN + 3 * DAY_S)
    assert site.names() == sorted(PACKED), "the files that were made again are in their packs"


def _rows(lake: Lake) -> list[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    live = table(lake, "bronze").live()
    found = [
        row for batch in live for name in batch.files for row in pq.read_table(lake.path("bronze", name)).to_pylist()
    ]
    return sorted((row["gw"], row["seq"], row["segment"], row["landed"]) for row in found)


def _times(site: _Site) -> dict[str, float]:
    return {path.name: path.stat().st_mtime for path in (site.folder / "segments/gw-1").iterdir()}


def _files(site: _Site) -> list[str]:
    return [one for one in files_with(site.folder, "") if not one.startswith("locks/")]


def _set_version(site: _Site, version: int) -> None:
    with contextlib.closing(sqlite3.connect(site.folder / FILE)) as db:
        db.execute(f"PRAGMA user_version={version}")


def _ledger_version(site: _Site) -> int:
    with contextlib.closing(sqlite3.connect(site.folder / FILE)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_an_earlier_version_refuses_a_lake_with_packs_until_they_are_unpacked(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land_all()
    folder = site.folder / "segments/gw-1"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime) for path in folder.iterdir()}
    with local_session() as engine:
        ingest(engine, site.lake)
        compact(engine, site.lake, now=BEGIN)
        assert _ledger_version(site) == 1, "nothing was packed"
        # It refuses already when the first pack is there, wherever the command is killed.
        monkeypatch.setattr(LandedSegments, "_write", lambda *parts: pytest.fail(str(_ledger_version(site))))
        with pytest.raises(pytest.fail.Exception, match=r"^2$"):
            compact(engine, site.lake, now=BEGIN + 3 * DAY_S)
        monkeypatch.undo()
        compact(engine, site.lake, now=BEGIN + 3 * DAY_S)
    assert site.names() == sorted(PACKED)
    assert site.land(*LOG[:2], day=4)["landed"] == 0
    assert main(["status", site.lake.url]) == 0
    assert _ledger_version(site) == 2, "the collector leaves it as it is"
    for _ in range(2):
        assert main(["compact", site.lake.url, "--unpack"]) == 0
        assert {path.name: (path.read_bytes(), path.stat().st_mtime) for path in folder.iterdir()} == before
        assert _ledger_version(site) == 1


def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(
    site: _Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.land_all()
    site.pack()
    _set_version(site, 3)
    before = _files(site)
    commands = ["status"], ["collect", str(site.source)], ["retain", "--days", "1", "--yes"], ["compact", "--unpack"]
    for command in commands:
        assert main([*command, site.lake.url]) == 2
        error = capsys.readouterr().err
        assert "a newer version of Lamplighter wrote it" in error
        assert "install the newer version again" in error
    assert _files(site) == before
    assert _ledger_version(site) == 3


def test_a_ledger_that_was_restored_from_before_the_packs_says_so_again(site: _Site) -> None:
    site.land_all()
    with local_session() as engine:
        ingest(engine, site.lake)
        compact(engine, site.lake, now=BEGIN + 3 * DAY_S)
        _set_version(site, 1)
        compact(engine, site.lake, now=BEGIN + 3 * DAY_S)
    assert site.names() == sorted(PACKED), "nothing was left to be packed"
    assert _ledger_version(site) == 2


def test_a_file_has_its_time_of_landing_before_it_counts(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land_all()
    times = _times(site)
    site.pack()
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", lambda *parts: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception, match="killed"):
            LandedSegments(site.lake).unpack_all(lambda line: None)
    LandedSegments(site.lake).unpack_all(lambda line: None)
    assert _times(site) == times


@pytest.mark.parametrize("part", ["member", "list"])
def test_no_pack_of_a_gateway_is_removed_if_one_is_damaged(site: _Site, part: str) -> None:
    site.land_all()
    site.pack()
    pack = site.folder / "segments/gw-1" / PACKED[1]
    data = pack.read_bytes()
    place = data.index(LOG[2].data) + 9 if part == "member" else len(data) - 1
    pack.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    set_packed(site.folder, True)
    assert main(["compact", site.lake.url, "--unpack"]) == 2
    assert set(PACKED[:3]) <= set(site.names())
    assert _ledger_version(site) == 2
    pack.write_bytes(data)
    assert main(["compact", site.lake.url, "--unpack"]) == 0
    assert site.content() == [one.data for one in LOG]


def test_unpacking_looks_into_a_folder_once(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for each segment took 13 times the time for 4,000 of them, and 40 minutes would be for 100,000."""
    site.land_all()
    site.pack()
    looks: list[tuple[str, ...]] = []
    names = Lake.names
    monkeypatch.setattr(Lake, "names", lambda lake, *parts: looks.append(parts) or names(lake, *parts))
    LandedSegments(site.lake).unpack_all(lambda line: None)
    assert looks.count(("segments", "gw-1")) == 1


def test_a_file_that_is_unpacked_between_two_looks_is_there(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land_all()
    site.pack()
    found = LandedSegments(site.lake)
    pack_of = found._pack_of

    def late(gateway: str, name: str) -> str | None:
        LandedSegments(site.lake).unpack_all(lambda line: None)
        return pack_of(gateway, name)

    monkeypatch.setattr(found, "_pack_of", late)
    assert found.has(f"gw-1/{LOG[0].name}")


def test_a_lake_without_a_ledger_has_none_afterwards(site: _Site) -> None:
    site.folder.mkdir()
    set_packed(site.folder, True)
    assert list(site.folder.iterdir()) == []


def test_a_landing_log_that_is_written_again_names_what_is_packed(site: _Site) -> None:
    site.land_all()
    before = (site.folder / "landings/000000000001.ndjson").read_bytes()
    site.pack()
    shutil.rmtree(site.folder / "landings")
    site.land(day=4)
    assert (site.folder / "landings/000000000001.ndjson").read_bytes() == before


def test_a_damaged_pack_is_named_with_its_cure(site: _Site) -> None:
    site.land_all()
    site.pack()
    pack = site.folder / "segments/gw-1" / PACKED[0]
    pack.write_bytes(pack.read_bytes()[:-9])
    with pytest.raises(UpstreamError, match=r"2026-12-01-1\.zip: the pack is damaged: .*; restore it from a b"):
        list(LandedSegments(site.lake).names())


@pytest.mark.parametrize("seed", range(6))
def test_each_damaged_bit_of_a_pack_is_found_and_tells_no_lie(site: _Site, seed: int) -> None:
    """A segment whose name is damaged must not look like one that retention has removed."""
    site.land_all()
    site.pack()
    pack = site.folder / "segments/gw-1" / PACKED[0]
    good, random = pack.read_bytes(), Random(seed)
    begin = good.index(b"PK\x01\x02")  # of the list of members, which has no checksum of its own
    for place in (*random.sample(range(begin), 10), *random.sample(range(begin, len(good)), 20)):
        bad = bytearray(good)
        bad[place] ^= 1 << random.randrange(8)
        pack.write_bytes(bad)
        found = LandedSegments(site.lake)
        try:
            assert list(found.names()) == [f"gw-1/{one.name}" for one in LOG], place
        except UpstreamError:
            continue
        for one in LOG[:2]:
            try:
                assert found.read(f"gw-1/{one.name}") == one.data, place
            except UpstreamError as error:
                assert f"{one.name} in the pack is damaged" in str(error)


def test_a_damaged_segment_of_a_pack_costs_only_itself(site: _Site) -> None:
    site.land_all()
    site.pack()
    pack = site.folder / "segments/gw-1" / PACKED[0]
    pack.write_bytes(pack.read_bytes().replace(LOG[0].data, LOG[0].data[::-1]))
    found = LandedSegments(site.lake)
    with pytest.raises(UpstreamError, match=f"{LOG[0].name} in the pack is damaged: .*; restore it from a backup, or"):
        found.read(f"gw-1/{LOG[0].name}")
    assert found.read(f"gw-1/{LOG[1].name}") == LOG[1].data


def test_names_in_packs_are_remembered_up_to_a_bound(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land_all()
    site.pack()
    shutil.copytree(site.folder / "segments/gw-1", site.folder / "segments/gw-2")
    found, names = LandedSegments(site.lake), [f"{gw}/{one.name}" for one in LOG[:6] for gw in ("gw-1", "gw-2")]
    opened = 0
    real = found._open

    def counting(gateway: str, name: str) -> Any:
        nonlocal opened
        opened += name.endswith(".zip")
        return real(gateway, name)

    monkeypatch.setattr(found, "_open", counting)
    assert all(map(found.has, names)) and opened == 6, "each pack once, in the order in which segments land"
    monkeypatch.setattr(module, "KNOWN_MAX", 3)
    found._forget_known()
    assert all(map(found.has, names))
    assert found._known_count <= 3


def test_a_process_that_was_paused_does_not_replace_a_pack_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease is lost, and the other one has packed more."""
    memory = fsspec.filesystem("memory")
    lake, names = Lake("memory://paused"), [f"gw-1/{one.name}" for one in LOG]
    try:
        for one in LOG:
            memory.pipe_file(f"/paused/segments/gw-1/{one.name}", one.data)
        later = memory.modified(f"/paused/segments/{names[0]}").timestamp() + 2 * DAY_S
        write_if = Lake.write_if

        def paused(*arguments: Any) -> str | None:
            monkeypatch.undo()
            LandedSegments(lake).pack(names, later)
            return write_if(*arguments)

        monkeypatch.setattr(Lake, "write_if", paused)
        with pytest.raises(LockLostError, match="another process has written it; run the command again"):
            LandedSegments(lake).pack(names[:3], later)
        found = LandedSegments(lake)
        assert [found.read(name) for name in found.names()] == [one.data for one in LOG]

        def lost() -> None:
            raise LockLostError("lost")

        memory.pipe_file(f"/paused/segments/gw-1/{LOG[0].name}", b"other")
        memory.pipe_file(f"/paused/segments/gw-1/{LOG[1].name}", b"other")
        with pytest.raises(LockLostError):
            LandedSegments(lake).pack(names, later, check=lost)
        assert len([one for one in lake.names("segments", "gw-1") if one.endswith(".zip")]) == 1
    finally:
        memory.rm("/paused", recursive=True)


def test_packs_on_object_storage(site: _Site) -> None:
    """A file system that has no folders and tells the times of its objects."""
    memory = fsspec.filesystem("memory")
    lake = Lake("memory://packs")
    names = [f"gw-1/{one.name}" for one in LOG]
    try:
        for one in LOG:
            memory.pipe_file(f"/packs/segments/gw-1/{one.name}", one.data)
        LandedSegments(lake).pack(names, memory.modified(f"/packs/segments/{names[0]}").timestamp() + 2 * DAY_S)
        assert [name.endswith(".zip") for name in lake.names("segments", "gw-1")] == [True]
        found = LandedSegments(lake)
        assert list(found.names()) == names
        for one, name in zip(LOG, names, strict=True):
            assert found.read(name) == one.data
        assert found.unpack(names[2]) and lake.fs.cat_file(lake.path("segments", names[2])) == LOG[2].data
        found.drop("gw-1", lambda name: name != str(LOG[5].name))
        assert list(LandedSegments(lake).names()) == [names[2], names[5]]
    finally:
        memory.rm("/packs", recursive=True)


def test_a_removal_that_was_killed_leaves_nothing_in_packs_if_others_were_made_before_its_repetition(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land_all()
    with local_session() as engine:
        ingest(engine, site.lake)
        Silver(engine, site.lake).update()
    site.pack()
    command = ["forget", site.lake.url, "--subject", "http://e/3", "--yes"]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(LandedSegments, "drop", lambda *_: _raise(KeyboardInterrupt()))
        landed.rewrite_landed(site.lake, removal.trace_subject(site.lake, "http://e/3"))
    for one in LOG[6], LOG[1]:  # on one day, so that they are packed
        os.utime(site.folder / "segments/gw-1" / str(one.name), (BEGIN + 4 * DAY_S,) * 2)
    site.pack(day=9)
    assert main(command) == 0
    assert files_with(site.folder / "segments", "<http://e/3>") == []
    assert len(site.lines()) == 16


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("command", "gone", "left"),
    [
        (["forget", "--gateway", "gw-1"], "gw-1", 0),
        (["forget", "--subject", "http://e/5"], "http://e/5", 16),
        (["retain", "--before", "2027-01-01T00:00:00Z"], "", 6),
    ],
    ids=["gateway", "subject", "retain"],
)
def test_what_is_removed_is_removed_from_packs(site: _Site, command: list[str], gone: str, left: int) -> None:
    site.land_all()
    site.lake.write(snapshot("gw-1", 1, 10), "snapshots", "gw-1", f"1-000000000010{SUFFIX}")
    with local_session() as engine:
        ingest(engine, site.lake)
        Silver(engine, site.lake).update()
    packed = _Site(site.folder.parent / "packed")
    shutil.copytree(site.folder, packed.folder)
    packed.pack(day=9)
    assert len(packed.names()) == 4
    for one in (site, packed):
        assert main([command[0], one.lake.url, *command[1:], "--yes"]) == 0
    assert packed.lines() == site.lines()
    assert len(site.lines()) == left
    assert not gone or files_with(packed.folder / "segments", f"<{gone}>" if "//" in gone else gone) == []
    assert not gone or files_with(packed.folder, gone) == files_with(site.folder, gone)
