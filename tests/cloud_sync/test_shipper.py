"""The shipper: what it sends and when, what counts as shipped, and what it says of what it could not do."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from lamplighter.cloud_sync import shipper
from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.files import open_plain
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.cloud_sync.settings import SyncSettings
from lamplighter.cloud_sync.shipper import NAMES_MAX, Shipper
from lamplighter.cloud_sync.status import Status, read_status
from lamplighter.engine.change_log import EPOCH_REQUEST, SUFFIX, EpochRequest, Gap, encode, seal_name
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, UpstreamError
from tests.support.shipped_logs import (
    DataFolder,
    Written,
    landed_records,
    lines_of,
    memory_folder,
    record,
    records_of,
    segments,
    written,
)
from tests.support.tables import each_row

LOG = segments("gw-1", 1, [3, 2, 4])


class Time:
    """Clocks that go by themselves only while somebody sleeps."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 11, 21, 12).timestamp()
        self.steady = 0.0
        self.trusted = True
        self.clock = PaceClock(
            wall=lambda: self.wall, trusted=lambda: self.trusted, steady=lambda: self.steady, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.steady += seconds


class Recorded(LocalFolder):
    """A folder that remembers what was created in it, and may be out of reach."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.created: list[str] = []
        self.away = False

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        self._reached()
        self.created.append(name)
        return super().create(name, chunks)

    def open(self, name: str) -> AbstractContextManager[Iterator[bytes] | None]:
        self._reached()
        return super().open(name)

    def _reached(self) -> None:
        if self.away:
            raise UpstreamError("no route to the cloud")


class Ship:
    """A gateway's data folder, what is at the destination, and the lake behind it."""

    def __init__(self, folder: Path) -> None:
        self.data = DataFolder(folder / "data")
        self.to = folder / "to"
        self.to.mkdir()
        self.lake = folder / "lake"
        self.recorded = Recorded(self.to)
        self.time = Time()
        self.settings = SyncSettings(destination=str(self.to))

    def run(self, **settings: Any) -> Status:
        chosen = msgspec.structs.replace(self.settings, **settings)
        return Shipper(self.data.path, self.recorded, chosen, self.time.clock).run()

    def collect(self) -> None:
        with Collector(LocalFolder(self.to), self.lake) as collector:
            collector.collect()

    def there(self, folder: str = "gw-1") -> list[str]:
        """Names of the segments or snapshots at the destination."""
        found = (path.name for path in (self.to / folder).iterdir() if path.name.endswith(SUFFIX))
        return sorted(name.removesuffix(SUFFIX) for name in found)

    def answer(self, stem: str, kind: str, sha256: str, **more: str) -> None:
        (self.to / "gw-1" / f"{stem}.{kind}.json").write_text(json.dumps({"sha256": sha256, "at": "2026", **more}))

    @property
    def shipped(self) -> tuple[int, int] | None:
        path = self.data.path / "shipped.json"
        if not path.exists():
            return None
        said = json.loads(path.read_text())
        return said["epoch"], said["last"]


@pytest.fixture
def ship() -> Iterator[Ship]:
    with memory_folder() as folder:
        yield Ship(folder)


# --- what is sent ---


def test_the_oldest_goes_first_and_each_before_its_seal(ship: Ship) -> None:
    ship.data.add(*LOG)
    status = ship.run()
    assert ship.recorded.created == [f"gw-1/{one.stem}{end}" for one in LOG for end in (SUFFIX, ".json")]
    for one in LOG:
        assert (ship.to / "gw-1" / str(one.name)).read_bytes() == one.data
        assert (ship.to / "gw-1" / seal_name(one.name)).read_bytes() == one.seal_bytes
    assert (status.sent, status.sent_segments, status.sent_bytes) == ((1, 9), 3, sum(len(one.data) for one in LOG))


def test_what_was_sent_is_not_sent_again(ship: Ship) -> None:
    ship.data.add(*LOG[:2])
    ship.run()
    ship.recorded.created.clear()
    ship.data.add(LOG[2])
    ship.run()
    assert ship.recorded.created == [f"gw-1/{LOG[2].stem}{end}" for end in (SUFFIX, ".json")]


def test_a_shipper_that_forgot_everything_finds_what_is_there(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.run()
    before = {path: path.stat().st_mtime_ns for path in (ship.to / "gw-1").glob("1-*")}
    (ship.data.path / "sync.json").unlink()
    assert ship.run().sent == (1, 9)
    assert {path: path.stat().st_mtime_ns for path in (ship.to / "gw-1").glob("1-*")} == before


@pytest.mark.parametrize("sealed", [True, False])
def test_something_else_of_that_name_stays_and_the_segment_gets_another(ship: Ship, sealed: bool) -> None:
    ship.data.add(LOG[0])
    other = segments("gw-1", 1, [3], seed=1)[0]
    other.put(ship.to / "gw-1")
    if not sealed:
        (ship.to / "gw-1" / seal_name(LOG[0].name)).unlink()
    ship.run()
    assert ship.there() == [LOG[0].stem, f"{LOG[0].stem}.r1"]
    assert (ship.to / "gw-1" / str(LOG[0].name)).read_bytes() == other.data


def test_when_every_name_is_taken_it_is_said(ship: Ship) -> None:
    ship.data.add(LOG[0])
    for number, other in enumerate(segments("gw-1", 1, [3], seed=seed)[0] for seed in range(1, NAMES_MAX + 1)):
        other.put(ship.to / "gw-1", f"{LOG[0].stem}.r{number}" if number else None)
    with pytest.raises(UpstreamError, match="another gateway has the same identity"):
        ship.run()
    assert "another gateway" in read_status(ship.data.path).last_error


def test_another_destination_gets_what_is_not_confirmed(ship: Ship) -> None:
    ship.data.add(*LOG[:2])
    ship.run()
    ship.collect()
    ship.data.add(LOG[2])
    ship.run()
    elsewhere = ship.to.with_name("elsewhere")
    elsewhere.mkdir()
    status = Shipper(ship.data.path, LocalFolder(elsewhere), ship.settings, ship.time.clock).run()
    assert sorted(path.name for path in (elsewhere / "gw-1").glob("1-*")) == [seal_name(LOG[2].name), str(LOG[2].name)]
    assert status.confirmed == (1, 5)


def test_the_segment_that_is_being_sealed_waits(ship: Ship) -> None:
    ship.data.add(*LOG[:2])
    seal = ship.data.path / "log" / seal_name(LOG[1].name)
    seal.unlink()
    assert ship.run().sent == (1, 3)
    seal.write_bytes(LOG[1].seal_bytes)
    assert ship.run().sent == (1, 5)


def test_a_seal_that_cannot_be_read_holds_nothing_up(ship: Ship) -> None:
    ship.data.add(*LOG)
    (ship.data.path / "log" / seal_name(LOG[1].name)).write_bytes(b"\0")
    status = ship.run()
    assert status.sent == (1, 9)
    assert "the seal cannot be read" in status.problem
    ship.collect()
    assert ship.run().confirmed == (1, 9)
    assert landed_records(ship.lake) == records_of(LOG)


def test_what_is_behind_an_unsealed_segment_waits_and_it_is_said(ship: Ship) -> None:
    ship.data.add(LOG[0], LOG[2])
    (ship.data.path / "log" / f"1-000000000004{SUFFIX}").write_bytes(LOG[1].data)
    status = ship.run()
    assert status.sent == (1, 3)
    assert "the gateway has not sealed it" in status.problem
    ship.data.add(LOG[1])  # and what it was made from is still there
    assert ship.run().sent == (1, 9)


def test_the_segment_that_is_being_written_is_not_sent(ship: Ship) -> None:
    ship.data.add(*LOG[:1])
    (ship.data.path / "log" / f"1-000000000004{SUFFIX}").write_bytes(b"")
    status = ship.run()
    assert (status.sent, status.problem) == ((1, 3), "")


def test_a_large_segment_is_never_in_memory(ship: Ship) -> None:
    size = 48 * 1024 * 1024
    data = random.Random(1).randbytes(size)
    seal = msgspec.structs.replace(LOG[0].seal, bytes=size)
    ship.data.add(Written(seal, data))
    del data
    tracemalloc.start()
    try:
        assert ship.run().sent == (1, 3)
        (ship.data.path / "sync.json").unlink()
        assert ship.run().sent == (1, 3)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_card_that_cannot_be_read_is_not_blamed_on_the_destination(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship.data.add(LOG[0])
    # Reading its beginning is an EIO.
    monkeypatch.setattr(shipper, "open_plain", lambda path: open_plain(Path("/proc/self/mem")))
    with pytest.raises(ChangeLogError, match="Input/output error; the card may be failing"):
        ship.run()


def test_a_folder_that_is_no_gateways_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="start the gateway once"):
        Shipper(tmp_path, LocalFolder(tmp_path), SyncSettings())


# --- what counts as shipped ---


def test_only_what_is_confirmed_counts_as_shipped(ship: Ship) -> None:
    ship.data.add(*LOG)
    status = ship.run()
    assert ship.shipped is None
    assert (status.confirmed, status.lag_segments, status.lag_records) == ((0, 0), 3, 9)
    assert status.lag_bytes == sum(len(one.data) for one in LOG)
    ship.collect()
    status = ship.run()
    assert ship.shipped == (1, 9)
    assert (status.confirmed, status.lag_segments, status.lag_records, status.lag_bytes) == ((1, 9), 0, 0, 0)
    assert landed_records(ship.lake) == records_of(LOG)


def test_it_counts_without_a_break(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.run()
    ship.answer(LOG[0].stem, "landed", LOG[0].seal.sha256)
    ship.answer(LOG[2].stem, "landed", LOG[2].seal.sha256)
    ship.run()
    assert ship.shipped == (1, 3)
    ship.answer(LOG[1].stem, "landed", LOG[1].seal.sha256)
    ship.run()
    assert ship.shipped == (1, 9)


def test_a_confirmation_with_another_hash_is_none_and_it_is_told(ship: Ship, caplog: pytest.LogCaptureFixture) -> None:
    ship.data.add(*LOG[:2])
    ship.run()
    ship.answer(LOG[0].stem, "landed", "0" * 64)
    status = ship.run()
    assert ship.shipped is None
    assert f"the collector confirms sha256 {'0' * 64}, but the segment here has {LOG[0].seal.sha256}" in status.problem
    assert f"shipping problem reason={json.dumps(status.problem)}" in caplog.messages
    assert f"{LOG[0].stem}.r1" in ship.there()
    ship.answer(f"{LOG[0].stem}.r1", "landed", LOG[0].seal.sha256)
    ship.run()
    assert ship.shipped == (1, 3)
    assert len(caplog.messages) == 1, "it is told once"


def test_what_arrived_damaged_is_sent_again(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.run()
    (ship.to / "gw-1" / str(LOG[1].name)).write_bytes(LOG[1].data[:-3])
    ship.collect()
    ship.run()
    assert ship.shipped == (1, 3)
    ship.collect()
    ship.run()
    assert ship.shipped == (1, 9)
    assert landed_records(ship.lake) == records_of(LOG)


def test_what_the_collector_keeps_in_quarantine_is_told_and_does_not_hold_up_the_rest(ship: Ship) -> None:
    bad = Written(LOG[0].seal, LOG[0].data[:-3])
    ship.data.add(bad, *LOG[1:])
    ship.run()
    ship.collect()
    status = ship.run()
    assert (status.refused, status.confirmed) == (1, (1, 9))
    assert "the collector keeps it in quarantine: it has" in status.problem
    assert (ship.lake / "quarantine/gw-1" / str(bad.name)).read_bytes() == bad.data


def test_what_vanished_from_the_destination_is_sent_again(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.run()
    for path in (ship.to / "gw-1").glob("1-*"):
        path.unlink()
    ship.run()
    assert ship.there() == [one.stem for one in LOG]
    ship.collect()
    ship.run()
    assert ship.shipped == (1, 9)


@pytest.mark.parametrize("what", ["data", "seal", "noise for a seal"])
def test_half_of_what_was_sent_is_sent_again(ship: Ship, what: str) -> None:
    ship.data.add(*LOG)
    ship.run()
    folder = ship.to / "gw-1"
    if what == "data":
        (folder / str(LOG[1].name)).unlink()
    elif what == "seal":
        (folder / seal_name(LOG[1].name)).unlink()
    else:
        (folder / seal_name(LOG[1].name)).write_bytes(b"{")
    for _ in range(3):
        ship.collect()
        ship.run()
    assert (ship.shipped, read_status(ship.data.path).refused) == ((1, 9), 0)
    assert landed_records(ship.lake) == records_of(LOG)


def test_an_answer_that_is_none_is_named(ship: Ship) -> None:
    ship.data.add(LOG[0])
    ship.run()
    (ship.to / "gw-1" / f"{LOG[0].stem}.landed.json").write_text("<html>")
    with pytest.raises(UpstreamError, match=r"landed\.json: not a collector.s answer"):
        ship.run()


def test_after_weeks_offline_everything_follows(ship: Ship) -> None:
    log = segments("gw-1", 1, [2] * 130)
    ship.recorded.away = True
    for number in range(0, 130, 10):
        ship.data.add(*log[number : number + 10])
        with pytest.raises(UpstreamError):
            ship.run()
    away = read_status(ship.data.path)
    assert (away.lag_segments, away.last_error, away.last_success) == (130, "no route to the cloud", None)
    ship.recorded.away = False
    ship.run()
    ship.collect()
    status = ship.run()
    assert (status.lag_segments, status.confirmed, status.last_error) == (0, (1, 260), "")
    assert landed_records(ship.lake) == records_of(log)


class Killed(BaseException):
    pass


def test_a_kill_at_any_moment_loses_and_doubles_nothing() -> None:
    for moment in itertools.count(1):
        with memory_folder() as folder:
            ship = Ship(folder)
            ship.data.add(*LOG[:2])
            ship.data.add_snapshot(1, 5)
            died = _killed(ship, moment)
            ship.run()
            ship.collect()
            ship.run()
            assert ship.shipped == (1, 5), moment
            assert landed_records(ship.lake) == records_of(LOG[:2]), moment
            assert ship.there() == [one.stem for one in LOG[:2]], moment
            assert ship.there("gw-1/snapshots") == ["1-000000000005"], moment
            if not died:
                break
    assert moment > 30


def _killed(ship: Ship, moment: int) -> bool:
    """Whether a shipper died at the so-manieth thing that it did to a disk."""
    left = moment

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            result = plain(*arguments, **options)
            left -= 1
            if left == 0:
                raise Killed
            return result

        return step

    with (
        mock.patch.object(os, "fsync", around(os.fsync)),
        mock.patch.object(os, "link", around(os.link)),
        mock.patch.object(os, "rename", around(os.rename)),
        contextlib.suppress(Killed),
    ):
        ship.run()
        return False
    return True


# --- snapshots and holes ---


def test_snapshots_go_at_intervals(ship: Ship) -> None:
    ship.data.add_snapshot(1, 3)
    assert ship.run(snapshot_s=100).snapshot is not None, "the first one at once"
    ship.data.add_snapshot(1, 6)
    ship.time.wall += 99
    ship.run(snapshot_s=100)
    assert ship.there("gw-1/snapshots") == ["1-000000000003"]
    ship.time.wall += 1
    ship.run(snapshot_s=100)
    assert ship.there("gw-1/snapshots") == ["1-000000000003", "1-000000000006"]
    ship.collect()
    snapshot = ship.run(snapshot_s=100).snapshot
    assert snapshot is not None and snapshot.landed
    assert len(list((ship.lake / "snapshots/gw-1").iterdir())) == 2


def test_a_snapshot_of_a_new_epoch_goes_at_once(ship: Ship) -> None:
    ship.data.add_snapshot(1, 3)
    ship.run()
    ship.data.add_snapshot(2, 1)
    ship.run()
    assert ship.there("gw-1/snapshots") == ["1-000000000003", "2-000000000001"]


def test_after_a_hole_the_next_snapshot_behind_it_goes(ship: Ship, caplog: pytest.LogCaptureFixture) -> None:
    ship.data.add(LOG[0])
    ship.data.add_snapshot(1, 3)
    ship.run()
    ship.data.add(LOG[2])  # the one between has gone before it could be sent
    ship.data.add_snapshot(1, 4)
    ship.run()
    assert caplog.messages == ["records removed before they were sent epoch=1 first=4 last=5"]
    assert ship.there("gw-1/snapshots") == ["1-000000000003"], "one within the hole does not make up for it"
    ship.data.add_snapshot(1, 7)
    assert ship.run().wanted == (0, 0)
    assert ship.there("gw-1/snapshots") == ["1-000000000003", "1-000000000007"]


def test_a_damaged_snapshot_is_not_shipped(ship: Ship) -> None:
    ship.data.add_snapshot(1, 3)
    (path,) = (ship.data.path / "snapshots").iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    assert "damaged and is not shipped" in ship.run().problem
    assert not (ship.to / "gw-1").exists()


def test_what_the_gateway_removes_before_it_is_confirmed_holds_nothing_up(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.run()
    ship.data.evict(LOG[0])
    ship.answer(LOG[1].stem, "landed", LOG[1].seal.sha256)
    ship.run()
    assert ship.shipped == (1, 5)


# --- when and how fast ---


@each_row(
    ("window", "hours"),
    [
        ("", range(24)),
        ("01:00-05:00", range(1, 5)),
        ("22:00-03:00", [*range(3), 22, 23]),
        ("00:00-00:00", range(24)),
    ],
)
def test_the_window_is_open_by_local_time(window: str, hours: Iterable[int]) -> None:
    settings = SyncSettings(window=window)
    assert [hour for hour in range(24) if settings.open_at(datetime(2026, 11, 21, hour))] == list(hours)


def test_outside_of_the_window_nothing_is_sent(ship: Ship) -> None:
    ship.data.add(*LOG)
    status = ship.run(window="01:00-05:00")
    assert (ship.recorded.created, status.lag_segments, status.last_success) == ([], 3, None)
    ship.time.wall += 13.5 * 3600
    assert ship.run(window="01:00-05:00").sent == (1, 9)


def test_a_window_that_closes_ends_the_run(ship: Ship) -> None:
    ship.data.add(*LOG)
    create = ship.recorded.create

    def slow(name: str, chunks: Iterable[bytes]) -> bool:
        ship.time.wall += 1000
        return create(name, chunks)

    with mock.patch.object(ship.recorded, "create", slow):
        assert ship.run(window="12:00-13:00").sent == (1, 5)


def test_without_a_trusted_clock_the_window_is_not_kept(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.time.trusted = False
    assert ship.run(window="01:00-05:00").sent == (1, 9)


def test_bandwidth_is_kept_on_average(ship: Ship) -> None:
    data = random.Random(1).randbytes(1_000_000)
    ship.data.add(Written(msgspec.structs.replace(LOG[0].seal, bytes=len(data)), data))
    ship.run(bytes_per_s_max=50_000)
    assert ship.time.steady == pytest.approx(20, rel=0.01)
    ship.data.add(*segments("gw-1", 1, [4], begin=4))
    ship.run()
    assert ship.time.steady == pytest.approx(20, rel=0.01), "0: as fast as it goes"


# --- lineage ---


def requested(data: DataFolder) -> EpochRequest | None:
    path = data.path / EPOCH_REQUEST
    return msgspec.json.decode(path.read_bytes(), type=EpochRequest) if path.exists() else None


def test_a_log_that_continues_its_history_asks_for_nothing(ship: Ship) -> None:
    ship.data.add(*LOG[:2])
    ship.run()
    ship.collect()
    ship.run()
    ship.data.evict(LOG[0])
    ship.data.evict(LOG[1])
    ship.data.add(LOG[2])
    assert ship.run().problem == ""
    (ship.data.path / "sync.json").unlink()
    assert ship.run().problem == ""
    assert requested(ship.data) is None


@pytest.mark.parametrize("kept", [1, 2], ids=["it ends before", "it has another segment there"])
def test_an_older_image_and_a_copy_ask_for_a_new_epoch(ship: Ship, kept: int) -> None:
    ship.data.add(LOG[0])
    ship.run()
    shutil.copytree(ship.data.path, ship.data.path.with_name("image"))
    ship.data.add(*LOG[1:])
    ship.run()
    shutil.rmtree(ship.data.path)
    shutil.copytree(ship.data.path.with_name("image"), ship.data.path)
    if kept == 2:
        ship.data.add(*segments("gw-1", 1, [6], previous=LOG[0].seal.sha256, begin=4, seed=7))
    problem = ship.run().problem
    assert "put back to an older state, or copied" in problem
    request = requested(ship.data)
    assert request is not None
    assert request.epoch == 1
    # In its new epoch it continues its history again.
    gap = record("gw-1", 2, 1, gap=Gap(1, 10 if kept == 2 else 4, request.reason))
    ship.data.add(written([encode(gap)], gap, None))
    (ship.data.path / EPOCH_REQUEST).unlink()
    ship.run()
    ship.run()
    assert requested(ship.data) is None
    assert sorted(path.name for path in (ship.to / "gw-1/lineage").iterdir()) == ["1.json", "2.json"]


@pytest.mark.parametrize("named", [True, False])
def test_a_copy_that_has_removed_the_place_of_the_head_is_known_by_the_id_of_its_epoch(ship: Ship, named: bool) -> None:
    """Both copies began an epoch 2, and this one has removed what the other one has shipped of it."""
    for copy in ("a", "b"):
        first = record("gw-1", 2, 1 if copy == "a" else 6, epoch_id=copy if named else "", seed=ord(copy))
        sealed = written([encode(first)], first, LOG[0].seal.sha256)
        ship.data.add(sealed)
        problem = ship.run().problem
        ship.data.evict(sealed)
        (ship.data.path / "sync.json").unlink()
    assert ("another epoch 2: this gateway was put back" in problem) == named
    assert (requested(ship.data) == EpochRequest(2, problem.partition("; its next start")[0])) == named


def test_a_snapshot_names_the_hash_of_its_record(ship: Ship) -> None:
    ship.data.add(*LOG)
    ship.data.add_snapshot(1, 5)
    ship.run()
    seal = json.loads((ship.to / "gw-1/snapshots/1-000000000005.json").read_text())
    assert seal["record"] == hashlib.sha256(lines_of(LOG[1].data)[1]).hexdigest()


def test_a_snapshot_names_the_id_of_its_epoch(ship: Ship) -> None:
    first = record("gw-1", 1, 4, epoch_id="a1")
    ship.data.add(written([encode(first)], first, None))
    ship.data.add_snapshot(1, 3)
    ship.run()
    seal = json.loads((ship.to / "gw-1/snapshots/1-000000000003.json").read_text())
    assert (seal["epoch_id"], seal.get("record")) == ("a1", None)
