"""Sealing, snapshots and retention keep the content of the log and bound its size."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.change_log import Record, SegmentName, decode
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Quad
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log import retention
from lamplighter.gateway.log.reader import Segment, seal_of, segments
from lamplighter.gateway.log.sealing import seal, unsealed_segments
from lamplighter.gateway.log.snapshots import newest, read_snapshot, snapshots
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import LogSettings, Settings
from lamplighter.gateway.workers.ad_hoc import StuckError
from tests.support.forks import stuck_streams
from tests.support.gateway_parts import FakeClock, dump, records, recovered_runner, runner_over, update
from tests.support.gateway_parts import lines as lines_of

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))


async def insert(runner: Runner, first: int, count: int) -> None:
    for number in range(first, first + count):
        await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}", request_id=f"r-{number}")


async def turns(runner: Runner, first: int, count: int) -> None:
    """So many updates, and a turn of the log keeper after each."""
    for number in range(first, first + count):
        await insert(runner, number, 1)
        await runner.log_keeper.turn()


def folder(data: Path) -> Path:
    return data / "snapshots"


async def test_sealed_segments_are_whole_and_chained(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await turns(runner, 0, 5)
        await insert(runner, 5, 1)
    found = segments(tmp_path / "log")
    assert [segment.is_sealed for segment in found] == [True] * 5 + [False]
    previous = None
    for segment in found[:5]:
        sealed = seal_of(segment)
        assert sealed is not None
        data = segment.path.read_bytes()
        assert (sealed.sha256, sealed.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
        assert sealed.previous == previous
        content = [decode(line) for line in lines_of(segment.path)]
        assert [record.seq for record in content] == list(range(sealed.first, sealed.last + 1))
        assert sealed.count == len(content)
        previous = sealed.sha256
    assert [record.seq for record in records(tmp_path)] == list(range(1, 7))


async def test_a_start_from_a_snapshot_knows_what_a_replay_of_everything_knows(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        await turns(runner, 0, 25)
        await update(runner, "CREATE GRAPH <urn:empty>")
        await update(runner, 'INSERT DATA { GRAPH <urn:g> { _:b <urn:p> "a\\u2028\\n" , 1.50 , "x"@en } }')
        pending = await update(runner, "CLEAR ALL", delay="PT1H", missed="skip")
        await runner.log_keeper.take_snapshot()
        await insert(runner, 100, 2)
        before, delayed = dump(runner), runner.delayed_updates()
        place = runner.log_keeper.snapshot
    assert [snapshot.place for snapshot in snapshots(folder(tmp_path))][-1] == place
    assert len(snapshots(folder(tmp_path))) == 2
    replayed = len(records(tmp_path))
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        assert runner.figures.status()["sequence"] == replayed
        assert (dump(runner), runner.delayed_updates()) == (before, delayed)
        assert runner.log_keeper.snapshot == place
        again = await update(runner, "INSERT DATA { <urn:s> <urn:p> 3 }", request_id="r-3")
        assert again.sequence == 4, "known from the snapshot"
        assert runner.delayed_updates()[0]["id"] == pending.delayed
    for snapshot in snapshots(folder(tmp_path)):
        snapshot.path.unlink()
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        assert (dump(runner), runner.delayed_updates()) == (before, delayed)


async def test_a_snapshot_whose_fork_waits_for_a_lock_is_taken_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        begun = stuck_streams(monkeypatch, 2)
        await insert(runner, 0, 2)
        await runner.log_keeper.take_snapshot()
        assert (begun, runner.log_keeper.snapshot) == ([True, True, False], (1, 2))
        begun = stuck_streams(monkeypatch, 9)
        await insert(runner, 2, 1)
        with pytest.raises(StuckError):
            await runner.log_keeper.take_snapshot()
        assert (begun, runner.log_keeper.snapshot) == (6 * [True], (1, 2))
    assert [snapshot.place for snapshot in snapshots(folder(tmp_path))] == [(1, 2)]


async def test_only_what_follows_the_snapshot_is_read(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await turns(runner, 0, 25)
        before = dump(runner)
    runner = runner_over(tmp_path, settings=SMALL)
    assert runner.recover().records == 5
    assert dump(runner) == before
    runner.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swapped names"])
async def test_a_damaged_snapshot_is_said_and_the_older_one_taken(tmp_path: Path, damage: str) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await turns(runner, 0, 25)
        before = dump(runner)
    older, newer = snapshots(folder(tmp_path))
    whole = newer.path.read_bytes()
    middle = len(whole) // 2
    newer.path.write_bytes(
        {
            "flip": whole[:middle] + bytes([whole[middle] ^ 16]) + whole[middle + 1 :],
            "cut": whole[:-5],
            "empty": b"",
            "swapped names": older.path.read_bytes(),
        }[damage]
    )
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        assert dump(runner) == before
        assert runner.figures.status()["status"] == "damaged"
        assert str(newer.path) in runner.figures.status()["problems"][0]
        assert [path.name for path in (tmp_path / "damaged").iterdir()] == [f"snapshot-{newer.path.name}"]
        await turns(runner, 25, 12)
    assert older.path not in [snapshot.path for snapshot in snapshots(folder(tmp_path))]
    assert newest(folder(tmp_path)).errors == ()


def read_all(path: Path) -> tuple[Record, list[tuple[Quad, ...]]]:
    first, quads = read_snapshot(path)
    return first, list(quads)


async def test_every_flipped_bit_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await insert(runner, 0, 3)
        await runner.log_keeper.take_snapshot()
    (snapshot,) = snapshots(folder(tmp_path))
    whole, expected = snapshot.path.read_bytes(), read_all(snapshot.path)
    noticed = 0
    for place in range(len(whole)):
        snapshot.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = read_all(snapshot.path)
        except ChangeLogError:
            noticed += 1
        else:
            assert found == expected, place
    assert noticed > 0.9 * len(whole)


async def test_the_oldest_go_first_and_what_was_not_shipped_leaves_a_gap_record(tmp_path: Path) -> None:
    roomy = await_used = 0
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await turns(runner, 0, 30)
        roomy = retention.used_bytes(tmp_path)
    (tmp_path / "shipped.json").write_bytes(msgspec.json.encode(retention.Shipped(1, 5)))
    tight = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=roomy * 2 // 3))
    async with recovered_runner(tmp_path, settings=tight) as runner:
        before = dump(runner)
        await runner.log_keeper.turn()
        await_used = retention.used_bytes(tmp_path)
        gone = segments(tmp_path / "log")[0].name.first - 1
        assert gone > 5
        (gap,) = [record.gap for record in records_behind(tmp_path, gone) if record.gap]
        assert (gap.epoch, gap.first, gap.last) == (1, 6, gone)
        assert "log.bytes_max" in gap.reason
    assert await_used <= roomy * 2 // 3 + 500
    async with recovered_runner(tmp_path, settings=tight) as runner:
        assert dump(runner) == before
        assert runner.figures.status()["status"] == "ok"


def records_behind(data: Path, sequence: int) -> list:  # type: ignore[type-arg]
    found = []
    for segment in segments(data / "log"):
        found += [decode(line) for line in FrameReader(segment.path.read_bytes())]
    assert found[0].seq == sequence + 1
    return found


async def test_what_a_start_needs_never_goes(tmp_path: Path) -> None:
    cramped = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=1))
    async with recovered_runner(tmp_path, settings=cramped) as runner:
        await turns(runner, 0, 35)
        before = dump(runner)
    older, newer = snapshots(folder(tmp_path))
    assert segments(tmp_path / "log")[0].begin <= (1, older.sequence + 1)
    newer.path.unlink()
    async with recovered_runner(tmp_path, settings=cramped) as runner:
        assert dump(runner) == before


async def test_a_segment_that_lost_records_is_not_sealed(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await insert(runner, 0, 4)
        runner._log.end_segment()
        await insert(runner, 4, 1)
        (segment, _) = segments(tmp_path / "log")
        segment.path.write_bytes(segment.path.read_bytes()[:-3])
        await runner.log_keeper.turn()
        log = runner._log
        waiting = unsealed_segments(log.path, log.current, log.epoch, log.sequence)
        assert [found.path for found in waiting] == [segment.path]
        assert runner.figures.status()["status"] == "damaged"
        assert "missing" in runner.figures.status()["problems"][0]


async def test_an_unfinished_sealing_is_made_again(tmp_path: Path) -> None:
    class Interrupted(Disk):
        def __init__(self, operations: int) -> None:
            self.left = operations

        def create(self, path: Path) -> int:
            self._count()
            return super().create(path)

        def rename(self, source: Path, target: Path) -> None:
            self._count()
            super().rename(source, target)

        def remove(self, path: Path) -> None:
            self._count()
            super().remove(path)

        def _count(self) -> None:
            if self.left == 0:
                raise OSError(5, "interrupted")
            self.left -= 1

    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await insert(runner, 0, 4)
        runner._log.end_segment()
        await insert(runner, 4, 1)
        expected = records(tmp_path)
        live = tmp_path / "log" / str(SegmentName(1, 1))
        for operations in range(5):
            with pytest.raises(OSError, match="interrupted"):
                seal(Interrupted(operations), tmp_path / "log", Segment(live, SegmentName(1, 1)))
            assert records(tmp_path) == expected, operations
        await runner.log_keeper.turn()
        assert not live.exists()
        assert records(tmp_path) == expected


# --- a log that is removed under a running gateway ---


def remove_all(data: Path) -> Path:
    """The data folder, as after `rm -r`; where it can be put back from."""
    kept = data.with_name("kept")
    data.rename(kept)
    return kept


def cover(data: Path) -> Path:
    """The same, as after another disk was mounted there."""
    kept = remove_all(data)
    (data / "log").mkdir(parents=True)
    return kept


def remove_files(data: Path) -> Path:
    kept = data.with_name("kept")
    (data / "log").rename(kept)
    (data / "log").mkdir()
    return kept


def remove_segment(data: Path) -> Path:
    (current,) = (data / "log").glob("*.zst")
    kept = data.with_name("kept")
    current.rename(kept)
    return kept


@pytest.mark.parametrize("remove", [remove_all, cover, remove_files, remove_segment])
async def test_what_a_start_would_not_find_is_refused(
    tmp_path: Path, remove: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = tmp_path / "data"
    async with recovered_runner(data) as runner:
        await insert(runner, 0, 3)
        await runner.log_keeper.turn()
        kept = remove(data)
        await runner.log_keeper.turn()
        for number in (10, 11):
            with pytest.raises(ChangeLogError, match="the change log was removed") as refused:
                await insert(runner, number, 1)
        assert "lamplighter backup" in str(refused.value)
        status = runner.figures.status()
        assert status["status"] == "refusing"
        assert "lamplighter restore" in runner.figures.health.own.components()[1].cure
        assert len(dump(runner)) == 3, "reading goes on, and a backup has all of it"
        # It is put back.
        if remove is remove_segment:
            kept.rename(data / "log" / str(runner.figures.health.own._log.current))
        elif remove is remove_files:
            (data / "log").rmdir()
            kept.rename(data / "log")
        else:
            shutil.rmtree(data, ignore_errors=True)
            kept.rename(data)
        await runner.log_keeper.turn()
        await insert(runner, 3, 2)
        assert runner.figures.status()["status"] != "refusing"
    assert caplog.text.count("change log gone") == caplog.text.count("change log is back") == 1
    async with recovered_runner(data) as runner:
        assert len(dump(runner)) == 5
