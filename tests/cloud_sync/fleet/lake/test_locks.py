"""One writer of a table at a time: processes on a folder, leases on a real S3 server."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, locks
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.matching import match_table
from lamplighter.engine.errors import BusyError, UpstreamError
from tests.cloud_sync.fleet.delivery.made_up_matches import match
from tests.support import odd_gateway
from tests.support.places import ROOT
from tests.support.small_lake import write_segment

HOLD = """
import sys
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, locks
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.matching import match_table
with locks.writing(Lake(sys.argv[1]), "ingest", locks.BRONZE):
    print("held", flush=True)
    sys.stdin.read()
"""
OTHER = locks.Holder("silver", "elsewhere", 17, "2026-06-01T00:00:00+00:00")


def holding(lake: Path) -> subprocess.Popen[str]:
    """Another process that has the lock of bronze until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lake)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("words", [["ingest"], ["compact"]])
def test_a_second_writer_is_told_who_has_the_lake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It ends before Spark starts, with EX_TEMPFAIL. The lock ends with its process, even if that is killed."""
    write_segment(tmp_path / "segments" / odd_gateway.NAME, odd_gateway.segments()[0])
    with holding(tmp_path) as process:
        assert main([*words, str(tmp_path), "--master", "nowhere"]) == os.EX_TEMPFAIL == 75
        said = capsys.readouterr().err
        assert (
            f"bronze is being written by lamplighter-fleet ingest on {os.uname().nodename}, process {process.pid}"
            in said
        )
        with locks.writing(Lake(str(tmp_path)), "silver", locks.SILVER):
            pass
        process.kill()
        process.wait()
    with locks.writing(Lake(str(tmp_path)), "ingest", locks.BRONZE):
        pass
    assert (tmp_path / "locks" / "bronze.lock").read_bytes() == b""


def test_a_lock_that_says_nothing_is_a_lock(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        (tmp_path / "locks" / "bronze.lock").write_text("{")
        with (
            pytest.raises(BusyError, match="written by another process"),
            locks.writing(Lake(str(tmp_path)), "ingest", locks.BRONZE),
        ):
            pass
        process.kill()


@pytest.fixture
def bucket(s3: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake in a bucket of a real S3 server."""
    monkeypatch.setitem(fsspec.config.conf, "s3", s3)
    return Lake(f"s3://fleet/{tmp_path.name}")


class WallClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def records(lake: Lake) -> list[dict[str, Any]]:
    return [json.loads(lake.fs.cat_file(lake.path("locks", "bronze", name))) for name in lake.names("locks", "bronze")]


def test_a_lease_is_refused_until_it_is_released_or_stale(bucket: Lake) -> None:
    clock = WallClock()
    with locks.lease(bucket, "bronze", OTHER, wall=clock):
        said = "lamplighter-fleet silver on elsewhere, process 17, since 2026-06"
        with pytest.raises(BusyError, match=said), locks.lease(bucket, "bronze", OTHER, wall=clock):
            pass
    with locks.lease(bucket, "bronze", OTHER, wall=clock):
        clock.now += locks.LEASE_S + 1
        with locks.lease(bucket, "bronze", OTHER, wall=clock):
            assert [one["until"] for one in records(bucket)] == [clock.now - 1, clock.now + locks.LEASE_S]
    assert records(bucket)[-1]["until"] == 0.0


def test_one_of_two_that_create_a_lease_has_it(bucket: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that it is free."""
    clock = WallClock()
    numbers = locks._numbers
    with locks.lease(bucket, "bronze", OTHER, wall=clock):
        seen: list[list[int]] = [[]]
        monkeypatch.setattr(locks, "_numbers", lambda *place: seen.pop() if seen else numbers(*place))
        with pytest.raises(BusyError, match="that has just begun"), locks.lease(bucket, "bronze", OTHER, wall=clock):
            pass


def test_a_lease_is_renewed_and_its_loss_is_said(bucket: Lake) -> None:
    clock = WallClock()
    with locks.lease(bucket, "bronze", OTHER, renew_s=0.01, wall=clock):
        clock.now += 50
        wait = threading.Event()
        while records(bucket)[0]["until"] != clock.now + locks.LEASE_S:
            wait.wait(0.01)
    lease = locks.lease(bucket, "bronze", OTHER, renew_s=0.01, wall=clock)
    with pytest.raises(UpstreamError, match="was not renewed for 120 s"), lease:
        bucket.fs.pipe_file(bucket.path("locks", "bronze", "000000000099.json"), b"{}")
        while any(thread.name == "lease of bronze" for thread in threading.enumerate()):
            wait.wait(0.01)


def test_a_paused_process_finds_out_whether_it_still_has_the_lease(bucket: Lake) -> None:
    """It looks before a step that another one must not repeat, since its thread that renews was paused too."""
    clock, elapsed = WallClock(), WallClock()
    hold = {"renew_s": 3600.0, "wall": clock, "elapsed": elapsed}
    with locks.lease(bucket, "bronze", OTHER, **hold) as held:
        held.check()
        before = records(bucket)
        clock.now += locks.LEASE_S + 1
        elapsed.now += locks.LEASE_S + 1
        held.check()  # nobody else took it, so it takes it again, under a number of its own
        assert (held.number, records(bucket)) == (2, [*before, {**before[0], "until": clock.now + locks.LEASE_S}])
    for is_released in (False, True):
        lease = locks.lease(bucket, "bronze", OTHER, **hold)
        with pytest.raises(LockLostError, match="another process has it; run the command again"), lease as held:
            clock.now += locks.LEASE_S + 1
            elapsed.now += locks.LEASE_S + 1
            with locks.lease(bucket, "bronze", OTHER, wall=clock) as other:
                assert other.number == held.number + 1
                if not is_released:
                    held.check()
            held.check()


def test_a_second_matcher_cannot_write_a_batch_that_is_there(bucket: Lake) -> None:
    """It has lost its lease and not noticed; the files of the other one stay."""
    matches = table(bucket, "matches")
    batch = TableBatch(id="000000000001", files=[], rows=0)
    row = match("hot")
    staged = [matches.stage_rows(match_table([{**row, "seq": seq}]), batch) for seq in (1, 2)]
    matches.commit(staged[0], new=True)
    with pytest.raises(LockLostError, match=r"000000000001\.json: another process has written this batch"):
        matches.commit(staged[1], new=True)
    rows = matches.few_rows(matches.live(), ["seq"], rows_max=9, members_max=9)
    assert rows is not None and list(rows) == [{"seq": 1}]
    folder = "subscriptions", "matches", "batch=000000000001"
    assert len(bucket.names(*folder)) == 2
    matches.sweep()
    assert [f"{folder[-1]}/{name}" for name in bucket.names(*folder)] == staged[0].files
