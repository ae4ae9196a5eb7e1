"""The collector: what it takes, what it keeps out and says why, what it tells gateways and people."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard

from lamplighter.cloud_sync.destinations import LocalFolder, StoredObject
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import FULL_S, CollectionSummary, Collector
from lamplighter.cloud_sync.fleet.collection.ledger import FILE, Arrivals
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.missing import MissingRecords
from lamplighter.cloud_sync.fleet.collection.segment_check import Bounds
from lamplighter.engine.change_log import SUFFIX, Gap, decode, encode
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, UpstreamError
from tests.support.shipped_logs import (
    Written,
    landed_records,
    lines_of,
    memory_folder,
    record,
    records_of,
    recut,
    segments,
    snapshot,
    snapshot_seal,
    written,
)

LOG = segments("gw-1", 1, [3, 2, 4])


class Fleet:
    """What gateways have shipped, and the lake that it is collected into. now: seconds since 1970."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.lake = folder / "lake"
        self.source.mkdir()
        self.from_ = LocalFolder(self.source)
        self.now = 1_700_000_000.0

    def collect(self, *, full: bool = False, bounds: Bounds | None = None) -> CollectionSummary:
        """A round. Raises UpstreamError if anything could not be read or answered."""
        with Collector(self.from_, self.lake, bounds=bounds, wall=lambda: self.now) as collector:
            summary = collector.collect(full=full)
            if collector.problems:
                raise UpstreamError(collector.problems[0])
            return summary

    def answer(self, name: str) -> dict[str, str]:
        return json.loads((self.source / name).read_text())  # type: ignore[no-any-return]

    def gaps(self) -> list[MissingRecords]:
        with contextlib.closing(Manifest(self.lake)) as manifest:
            return manifest.gaps()

    def quarantined(self) -> dict[str, str]:
        """Reasons by file."""
        with contextlib.closing(Manifest(self.lake)) as manifest:
            return {one.file: one.reason for one in manifest.quarantined_objects()}

    def arrivals(self) -> list[Arrivals]:
        with contextlib.closing(Manifest(self.lake)) as manifest:
            return manifest.arrivals()

    def put_snapshot(self, epoch: int, sequence: int, content: bytes, folder: str = "gw-1") -> str:
        path = self.source / folder / "snapshots"
        path.mkdir(parents=True, exist_ok=True)
        stem = f"{epoch}-{sequence:012d}"
        (path / f"{stem}{SUFFIX}").write_bytes(content)
        (path / f"{stem}.json").write_bytes(snapshot_seal(folder, epoch, sequence, content))
        return stem


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with memory_folder() as folder:
        yield Fleet(folder)


# --- what lands ---


def test_good_segments_land_under_their_names_and_are_confirmed(fleet: Fleet) -> None:
    for one in LOG:
        one.put(fleet.source / "gw-1")
    assert fleet.collect() == CollectionSummary(gateways=1, landed=3, bytes=sum(len(one.data) for one in LOG))
    assert sorted(path.name for path in (fleet.lake / "segments/gw-1").iterdir()) == [str(one.name) for one in LOG]
    assert landed_records(fleet.lake) == records_of(LOG)
    for one in LOG:
        assert fleet.answer(f"gw-1/{one.stem}.landed.json") == {"sha256": one.seal.sha256, "at": "2023-11-14T22:13:20Z"}


def test_orders_and_notifications_are_no_gateways(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    for folder in ("orders/gw-1", "ahead/gw-1"):
        (fleet.source / folder).mkdir(parents=True)
        (fleet.source / folder / "000000000001.json").write_text("{}")
    assert fleet.collect() == CollectionSummary(gateways=1, landed=1, bytes=len(LOG[0].data))


def test_a_round_in_which_nothing_has_come_reads_nothing(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    assert fleet.collect() == CollectionSummary(gateways=1)


def test_a_segment_under_another_name_is_confirmed_and_lands_once(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    LOG[0].put(fleet.source / "gw-1", "a copy (2)")
    summary = fleet.collect()
    assert (summary["landed"], summary["known"]) == (1, 1)
    assert landed_records(fleet.lake) == records_of(LOG[:1])
    assert fleet.answer("gw-1/a copy (2).landed.json")["sha256"] == LOG[0].seal.sha256


def test_of_an_overlapping_segment_the_rest_lands(fleet: Fleet) -> None:
    LOG[1].put(fleet.source / "gw-1")
    fleet.collect()
    recut(LOG, 2, 8).put(fleet.source / "gw-1")
    fleet.collect()
    names = sorted(path.name for path in (fleet.lake / "segments/gw-1").iterdir())
    assert names == [f"1-{a:012d}-{b:012d}{SUFFIX}" for a, b in ((2, 3), (4, 5), (6, 8))]
    assert landed_records(fleet.lake) == records_of(LOG)[1:8]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_records_cut_in_another_way_fit_between_segments_that_name_each_other(
    fleet: Fleet, order: tuple[int, int]
) -> None:
    log = segments("gw-1", 1, [3, 2, 4])
    pair = (recut(log, 4, 5), log[2])
    for number in order:
        pair[number].put(fleet.source / "gw-1")
        assert fleet.collect()["landed"] == 1
    assert landed_records(fleet.lake) == records_of(log[1:])


def test_what_comes_late_and_in_another_order_lands(fleet: Fleet) -> None:
    for one in (LOG[2], LOG[0], LOG[1]):
        one.put(fleet.source / "gw-1")
        assert fleet.collect()["landed"] == 1
    assert landed_records(fleet.lake) == records_of(LOG)
    assert fleet.gaps() == []


def test_a_segment_without_its_seal_waits(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    seal = fleet.source / "gw-1" / f"{LOG[0].stem}.json"
    content = seal.read_bytes()
    seal.unlink()
    assert fleet.collect() == CollectionSummary(gateways=1, incomplete=1)
    seal.write_bytes(content)
    assert fleet.collect()["landed"] == 1


def test_a_confirmation_that_somebody_removed_is_given_again(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    answer = fleet.source / "gw-1" / f"{LOG[0].stem}.landed.json"
    content = answer.read_bytes()
    answer.unlink()
    fleet.collect()
    assert answer.read_bytes() == content


def test_snapshots_land_and_are_confirmed(fleet: Fleet) -> None:
    content = snapshot("gw-1", 1, 9)
    stem = fleet.put_snapshot(1, 9, content)
    assert fleet.collect()["snapshots"] == 1
    assert (fleet.lake / "snapshots/gw-1" / f"{stem}{SUFFIX}").read_bytes() == content
    assert "sha256" in fleet.answer(f"gw-1/snapshots/{stem}.landed.json")
    assert fleet.collect() == CollectionSummary(gateways=1)


# --- what does not ---


def _replaced(one: Written, data: bytes | None = None, seal: bytes | None = None) -> tuple[bytes, bytes]:
    return data or one.data, seal or one.seal_bytes


def _holed(one: Written) -> tuple[bytes, bytes]:
    lines = lines_of(one.data)
    bad = written([lines[0] + b"\n", lines[2] + b"\n", lines[2] + b"\n"], record("gw-1", 1, 1), None)
    return bad.data, bad.seal_bytes


def _rewritten(one: Written, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    lines = [line.replace(old, new) + b"\n" for line in lines_of(one.data)]
    bad = written(lines, record("gw-1", 1, 1), None)
    return bad.data, bad.seal_bytes


def _with_type(kind: str) -> tuple[bytes, bytes]:
    bad = written([encode(msgspec.structs.replace(record("gw-1", 1, 1), type=kind))], record("gw-1", 1, 1), None)
    return bad.data, bad.seal_bytes


def _short(one: Written) -> tuple[bytes, bytes]:
    seal = msgspec.structs.replace(one.seal, last=one.seal.last + 1, count=one.seal.count + 1)
    return one.data, msgspec.json.encode(seal)


def _plain(one: Written) -> tuple[bytes, bytes]:
    data = b"\n".join(lines_of(one.data)) + b"\n"
    seal = msgspec.structs.replace(one.seal, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return data, msgspec.json.encode(seal)


def _sealed(data: bytes) -> tuple[bytes, bytes]:
    seal = msgspec.structs.replace(LOG[0].seal, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return data, msgspec.json.encode(seal)


HARMS: dict[str, tuple[Callable[[], tuple[bytes, bytes]], str]] = {
    "cut off": (lambda: _replaced(LOG[0], LOG[0].data[:-9]), r"it has \d+ bytes, but its seal says \d+"),
    "a bit": (
        lambda: _replaced(LOG[0], LOG[0].data[:40] + bytes([LOG[0].data[40] ^ 1]) + LOG[0].data[41:]),
        "its sha256 is [0-9a-f]{64}, but its seal says",
    ),
    "a record less": (lambda: _holed(LOG[0]), "record gw-1/1/3 is at the place of gw-1/1/2"),
    "fewer than sealed": (lambda: _short(LOG[0]), "it has 3 records, but its seal says 4"),
    "a changed line": (
        lambda: _rewritten(LOG[0], b"street", b"strait"),
        "line 1: the checksum of a line does not match",
    ),
    "no checksum": (lambda: _rewritten(LOG[0], b'"crc"', b'"crx"'), "line 1: a line has no checksum"),
    "not JSON": (lambda: _rewritten(LOG[0], b'{"v"', b'"v"'), "line 1: "),
    "another type": (lambda: _with_type("gossip"), "has the unknown type 'gossip'"),
    "a snapshot's line": (lambda: _with_type("snapshot"), "has the unknown type 'snapshot'"),
    "not compressed": (lambda: _plain(LOG[0]), "it cannot be decompressed"),
    "more behind it": (lambda: _sealed(LOG[0].data + b"x"), "there is data after its end"),
    "broken off": (lambda: _sealed(LOG[0].data[:-9]), "it breaks off|cannot be decompressed"),
    "a seal of noise": (lambda: _replaced(LOG[0], seal=b"{"), "its seal cannot be read"),
    "a seal too large": (lambda: _replaced(LOG[0], seal=LOG[0].seal_bytes + b" " * 70_000), "its seal cannot be read"),
    "another gateway's": (
        lambda: _replaced(LOG[0], seal=msgspec.json.encode(msgspec.structs.replace(LOG[0].seal, gw="gw-2"))),
        "its seal is of gateway gw-2, but it is in the folder of gw-1",
    ),
    "impossible numbers": (
        lambda: _replaced(LOG[0], seal=msgspec.json.encode(msgspec.structs.replace(LOG[0].seal, count=7))),
        "the numbers in its seal contradict each other",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_bad_is_kept_apart_with_a_reason_and_the_rest_goes_on(fleet: Fleet, harm: str) -> None:
    make, reason = HARMS[harm]
    data, seal = make()
    folder = fleet.source / "gw-1"
    for one in LOG[1:]:
        one.put(folder)
    (folder / f"{LOG[0].stem}{SUFFIX}").write_bytes(data)
    (folder / f"{LOG[0].stem}.json").write_bytes(seal)
    summary = fleet.collect()
    assert (summary["landed"], summary["quarantined"]) == (2, 1)
    assert landed_records(fleet.lake) == records_of(LOG[1:])
    kept = fleet.lake / "quarantine/gw-1"
    assert (kept / f"{LOG[0].stem}{SUFFIX}").read_bytes() == data
    told = json.loads((kept / f"{LOG[0].stem}.reason.json").read_text())
    assert re.search(reason, told["reason"]), told["reason"]
    assert told["source"] == f"gw-1/{LOG[0].stem}{SUFFIX}"
    assert fleet.answer(f"gw-1/{LOG[0].stem}.refused.json")["reason"] == told["reason"]
    assert [seq for gap in fleet.gaps() for seq in range(gap.first, (gap.last or 0) + 1)] == [1, 2, 3]


def test_a_bad_segment_that_is_sent_again_lands(fleet: Fleet) -> None:
    folder = fleet.source / "gw-1"
    LOG[0].put(folder)
    (folder / f"{LOG[0].stem}{SUFFIX}").write_bytes(LOG[0].data[:-5])
    fleet.collect()
    assert fleet.gaps() == [MissingRecords("gw-1", 1, 1, 3, False, "in quarantine")]
    LOG[0].put(folder, f"{LOG[0].stem}.r1")
    assert fleet.collect()["landed"] == 1
    assert landed_records(fleet.lake) == records_of(LOG[:1])
    assert fleet.answer(f"gw-1/{LOG[0].stem}.r1.landed.json")["sha256"] == LOG[0].seal.sha256
    assert fleet.gaps() == []
    assert len(fleet.quarantined()) == 1, "what was wrong with the other one can still be looked into"


def test_a_bad_segment_that_is_mended_in_its_place_lands(fleet: Fleet) -> None:
    folder = fleet.source / "gw-1"
    LOG[0].put(folder)
    (folder / f"{LOG[0].stem}{SUFFIX}").write_bytes(LOG[0].data[:-5])
    fleet.collect()
    LOG[0].put(folder)
    assert fleet.collect()["landed"] == 1
    assert landed_records(fleet.lake) == records_of(LOG[:1])


def test_a_segment_of_a_newer_program_waits_for_one_that_reads_it(fleet: Fleet) -> None:
    newer = msgspec.json.encode(msgspec.structs.replace(LOG[0].seal, v=2))
    LOG[0].put(fleet.source / "gw-1")
    (fleet.source / "gw-1" / f"{LOG[0].stem}.json").write_bytes(newer)
    fleet.collect()
    (reason,) = fleet.quarantined().values()
    assert "this program reads version 1" in reason
    assert not (fleet.source / "gw-1" / f"{LOG[0].stem}.refused.json").exists(), "the gateway is to keep it"


def test_another_record_under_a_sequence_that_has_landed_begins_another_history(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    LOG[0].put(fleet.source / "gw-1")
    other = segments("gw-1", 1, [3], seed=1)[0]
    other.put(fleet.source / "gw-1", "z")
    assert fleet.collect()["landed"] == 2
    assert landed_records(fleet.lake, "segments/gw-1") == records_of(LOG[:1])
    mine = [decode(line) for line in landed_records(fleet.lake, "segments/gw-1~2")]
    assert mine == [msgspec.structs.replace(decode(line), gw="gw-1~2") for line in records_of([other])]
    assert main(["status", str(fleet.lake)]) == 0
    assert "gw-1 at 1/0" in capsys.readouterr().out


@pytest.mark.parametrize("first", ["the one before", "the one behind"])
def test_segments_that_do_not_name_each_other_do_not_land_beside_each_other(fleet: Fleet, first: str) -> None:
    copied_card = segments("gw-1", 1, [3, 2, 4], seed=1)
    one, other = (LOG[0], copied_card[1]) if first == "the one before" else (copied_card[1], LOG[0])
    one.put(fleet.source / "gw-1")
    fleet.collect()
    other.put(fleet.source / "gw-1")
    assert fleet.collect()["quarantined"] == 1
    assert landed_records(fleet.lake) == records_of([one])
    assert "previous" in fleet.quarantined()[f"gw-1/{other.stem}{SUFFIX}"]


def test_what_is_in_quarantine_is_judged_once_more_on_request(fleet: Fleet) -> None:
    for one in LOG:
        one.put(fleet.source / "gw-1")
    fleet.collect(bounds=Bounds(line_bytes_max=10))
    assert len(fleet.quarantined()) == 3
    for path in (fleet.lake / "quarantine/gw-1").iterdir():
        os.utime(path, (0, 0))
    with Collector(fleet.from_, fleet.lake) as collector:
        assert collector.retry() == 3
    assert landed_records(fleet.lake) == records_of(LOG)
    for path in (fleet.lake / "segments/gw-1").iterdir():
        assert path.stat().st_mtime > 0, "the stream would pass by a file that looks old"
    assert fleet.quarantined() == {}
    assert list((fleet.lake / "quarantine/gw-1").iterdir()) == []
    assert fleet.answer(f"gw-1/{LOG[0].stem}.landed.json")["sha256"] == LOG[0].seal.sha256


def test_of_what_is_too_large_the_beginning_is_kept(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect(bounds=Bounds(bytes_max=len(LOG[0].data) - 1))
    assert fleet.quarantined() == {f"gw-1/{LOG[0].stem}{SUFFIX}": f"it has more than {len(LOG[0].data) - 1} bytes"}


@pytest.mark.parametrize(
    ("content", "bounds", "told"),
    [
        (bytes(50_000_000), Bounds(line_bytes_max=1_000_000), "a line is longer than 1000000 bytes"),
        (b"\n" * 50_000_000, Bounds(content_bytes_max=1_000_000), "it unpacks to more than 1000000 bytes"),
    ],
    ids=["one line", "many lines"],
)
def test_a_bomb_is_not_unpacked(fleet: Fleet, content: bytes, bounds: Bounds, told: str) -> None:
    data, seal = _sealed(zstandard.ZstdCompressor(level=3).compress(content))
    (fleet.source / "gw-1").mkdir()
    (fleet.source / "gw-1" / f"{LOG[0].stem}{SUFFIX}").write_bytes(data)
    (fleet.source / "gw-1" / f"{LOG[0].stem}.json").write_bytes(seal)
    fleet.collect(bounds=bounds)
    assert fleet.quarantined() == {f"gw-1/{LOG[0].stem}{SUFFIX}": told}


@pytest.mark.parametrize("name", ["..", ".hidden", "a\nb", "gw 1", "x" * 101])
def test_a_folder_that_is_no_gateways_is_passed_over(fleet: Fleet, name: str) -> None:
    if name != "..":
        LOG[0].put(fleet.source / name)
    assert fleet.collect()["landed"] == 0


def test_a_damaged_snapshot_and_another_one_of_the_same_record_are_kept_apart(fleet: Fleet) -> None:
    fleet.put_snapshot(1, 9, snapshot("gw-1", 1, 9))
    fleet.put_snapshot(1, 12, snapshot("gw-1", 1, 12)[:-7])
    fleet.put_snapshot(1, 13, snapshot("gw-1", 1, 14))
    summary = fleet.collect()
    assert (summary["snapshots"], summary["quarantined"]) == (1, 2)
    path = fleet.source / "gw-1/snapshots"
    content = snapshot("gw-1", 1, 9, quads=4)
    (path / f"other{SUFFIX}").write_bytes(content)
    (path / "other.json").write_bytes(snapshot_seal("gw-1", 1, 9, content))
    fleet.collect()
    assert "another snapshot of record 1/9 has landed" in fleet.quarantined()[f"gw-1/snapshots-other{SUFFIX}"]


# --- what is missing ---


def test_gaps_are_told_exactly_and_why(fleet: Fleet) -> None:
    log = segments("gw-1", 1, [3, 2, 4, 1])
    folder = fleet.source / "gw-1"
    log[1].put(folder)
    recut(log, 10, 10).put(folder)  # its seal names no predecessor, so it does not wait for one
    reason = "the log was over its size before these records were shipped"
    gap = record("gw-1", 1, 11, gap=Gap(1, 1, reason, 3))
    written([encode(gap)], gap, log[3].seal.sha256).put(folder)
    restart = record("gw-1", 3, 1, gap=Gap(2, 5, "the card was damaged"))
    written([encode(restart)], restart, None).put(folder)
    fleet.collect()
    assert fleet.gaps() == [
        MissingRecords("gw-1", 1, 1, 3, True, reason),
        MissingRecords("gw-1", 1, 6, 9, False, "not here yet"),
        MissingRecords("gw-1", 2, 1, 4, False, "not here yet"),
        MissingRecords("gw-1", 2, 5, None, True, "the card was damaged"),
    ]
    (found,) = fleet.arrivals()
    assert (found.records, found.epoch, found.last, found.missing, found.lost) == (5, 3, 1, 8, 3)
    log[0].put(folder)
    log[2].put(folder)
    fleet.collect()
    assert [(gap.epoch, gap.first, gap.last) for gap in fleet.gaps()] == [(2, 1, 4), (2, 5, None)]


# --- listings that begin where everything is settled ---


class Bucket(LocalFolder):
    """A folder that is listed as S3 is. listed: from where, by folder."""

    lists_from = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.listed: dict[str, str] = {}

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        self.listed[folder] = after
        return super().entries(folder, after, most)


@pytest.fixture
def bucket(fleet: Fleet) -> Bucket:
    fleet.from_ = Bucket(fleet.source)
    return fleet.from_


def test_a_listing_begins_behind_what_is_settled(fleet: Fleet, bucket: Bucket) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    LOG[1].put(fleet.source / "gw-1")
    assert fleet.collect()["landed"] == 1
    assert bucket.listed["gw-1"] == str(LOG[0].name)
    fleet.collect()
    assert bucket.listed["gw-1"] == str(LOG[1].name)


def test_while_something_is_missing_all_is_listed(fleet: Fleet, bucket: Bucket) -> None:
    LOG[1].put(fleet.source / "gw-1")
    fleet.collect()
    LOG[0].put(fleet.source / "gw-1")
    assert fleet.collect()["landed"] == 1


def test_after_a_while_or_on_request_all_is_listed(fleet: Fleet, bucket: Bucket) -> None:
    LOG[0].put(fleet.source / "gw-1", "z")
    fleet.collect()
    LOG[1].put(fleet.source / "gw-1", "a")
    assert fleet.collect()["landed"] == 0
    fleet.now += FULL_S
    assert fleet.collect()["landed"] == 1
    LOG[2].put(fleet.source / "gw-1", "b")
    assert fleet.collect()["landed"] == 0
    assert fleet.collect(full=True)["landed"] == 1


def test_the_tenth_epoch_is_found_though_its_names_come_before_the_ninths(fleet: Fleet, bucket: Bucket) -> None:
    previous = None
    for epoch in range(1, 12):
        for one in segments("gw-1", epoch, [2, 2], previous=previous):
            one.put(fleet.source / "gw-1")
            assert fleet.collect()["landed"] == 1, one.name
            previous = one.seal.sha256
    assert fleet.gaps() == [], "else all would have been listed for that"


def test_epochs_of_two_lengths_are_all_listed(fleet: Fleet, bucket: Bucket) -> None:
    for epoch in range(1, 9):
        segments("gw-1", epoch, [2])[0].put(fleet.source / "gw-1")
    gap = record("gw-1", 10, 1, gap=Gap(9, 1, "the card was damaged"))
    written([encode(gap)], gap, None).put(fleet.source / "gw-1")
    assert fleet.collect()["landed"] == 9
    segments("gw-1", 10, [2], begin=2)[0].put(fleet.source / "gw-1")
    assert fleet.collect()["landed"] == 1
    assert all(gap.said for gap in fleet.gaps()), "else all would have been listed for that"


# --- the lake ---


def test_one_collector_works_in_a_lake_at_a_time(fleet: Fleet) -> None:
    with Collector(fleet.from_, fleet.lake), pytest.raises(UpstreamError, match="another collector is running"):
        fleet.collect()


def test_a_lake_whose_manifest_is_gone_is_not_filled_twice(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    (fleet.lake / FILE).unlink()
    with pytest.raises(ConfigurationError, match="restore it from a backup, or collect into a new lake"):
        fleet.collect()


@pytest.mark.parametrize("begun", [False, True])
def test_a_lake_that_nothing_was_collected_into_is_named(fleet: Fleet, begun: bool) -> None:
    """begun: the collector was killed before it had made its tables."""
    fleet.lake.mkdir(exist_ok=True)
    if begun:
        (fleet.lake / FILE).touch()
    with pytest.raises(ConfigurationError, match="collect into this lake first"):
        Manifest(fleet.lake)
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    Manifest(fleet.lake).close()


def test_a_full_disk_is_told_and_what_follows_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, told = os.fsync, set()
    calls = moment = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    for moment in range(1, 100):
        calls = 0
        with memory_folder() as folder:
            fleet = Fleet(folder)
            for one in LOG:
                one.put(fleet.source / "gw-1")
            (fleet.source / "gw-1" / f"{LOG[2].stem}{SUFFIX}").write_bytes(b"noise")
            monkeypatch.setattr(os, "fsync", fsync)
            try:
                fleet.collect()
                break
            except (ChangeLogError, UpstreamError) as error:
                told.add(str(error).partition(": ")[2])
            finally:
                monkeypatch.undo()
            fleet.collect()
            assert landed_records(fleet.lake) == records_of(LOG[:2]), moment
    assert moment > 20
    assert told == {"No space left on device; check the lake's disk", "No space left on device; free disk space there"}


def test_a_source_that_is_away_is_named_and_nothing_is_lost(fleet: Fleet) -> None:
    LOG[0].put(fleet.source / "gw-1")
    fleet.collect()
    fleet.source.rename(fleet.source.with_name("elsewhere"))
    with pytest.raises(UpstreamError, match="there is no such folder"):
        fleet.collect()
    assert landed_records(fleet.lake) == records_of(LOG[:1])


# --- the command ---


def test_the_commands_for_people_and_programs(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fleet.source / "gw-1"
    LOG[0].put(folder)
    LOG[2].put(folder)
    (folder / f"{LOG[2].stem}{SUFFIX}").write_bytes(b"noise")
    fleet.put_snapshot(1, 3, snapshot("gw-1", 1, 3))
    source, lake = str(fleet.source), str(fleet.lake)

    assert main(["collect", source, f"file://{lake}"]) == 0
    assert "1 gateway, 0.0 MB read: 1 landed, 1 quarantined, 1 snapshot\n" in capsys.readouterr().out

    assert main(["status", lake]) == 0
    heading, row, total = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "GATEWAY"
    assert row.split()[:2] == ["gw-1", "1/3"]
    assert row.split()[-5:] == ["3", "6", "0", "1", "1/3"]
    assert total == "1 gateway, 3 records"
    assert main(["status", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == 6

    assert main(["gaps", lake]) == 0
    table = [line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines()]
    assert table[1:-1] == [["gw-1", "1", "4", "5", "2", "not here yet"], ["gw-1", "1", "6", "9", "4", "in quarantine"]]
    assert main(["gaps", lake, "--json", "--gateway", "gw-1"]) == 0
    assert [json.loads(line)["first"] for line in capsys.readouterr().out.splitlines()] == [4, 6]

    assert main(["quarantine", lake, "--retry", source]) == 0
    out, error = capsys.readouterr()
    assert "it has 5 bytes" in out
    assert error == "released: 0\n"


def test_errors_of_the_command_name_place_and_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path / "none")]) == 2
    assert "collect into this lake first" in capsys.readouterr().err
    assert main(["collect", str(tmp_path / "none"), str(tmp_path / "lake")]) == 2
    assert "there is no such folder; create it, or mount it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["collect", str(tmp_path), "s3://bucket/lake"])
    assert "the collector needs a folder" in capsys.readouterr().err
