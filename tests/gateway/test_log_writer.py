"""The change log on disk: what is appended is there again, and what breaks is noticed, reported and survived."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.change_log import Cause, Record, Timer, decode, encode
from engine.delta import QuadDelta
from engine.errors import ChangeLogError, ConfigurationError
from engine.terms import Quad
from gateway.log_writer import LogWriter, Recovery
from tests.gateway_parts import FakeClock, opened_log, records, segments

ROOT = Path(__file__).resolve().parents[2]


def quad(number: int) -> Quad:
    return Quad(
        f"<http://e/{number}>", "<http://e/p>", f'"tab\\t, line\\n, quote \\" and ü 🙂 {number}"', "<http://e/g>"
    )


def commit(log: LogWriter, number: int) -> Record:
    return log.append("commit", cause=Cause("http", "test"), delta=QuadDelta(added=(quad(number),)))


def replayed(data: Path) -> tuple[list[Record], Recovery, LogWriter]:
    log = opened_log(data)
    found: list[Record] = []
    return found, log.replay(found.append), log


def written(data: Path, count: int) -> list[Record]:
    """A log with so many records, closed."""
    _, _, log = replayed(data)
    result = [commit(log, number) for number in range(count)]
    log.sync()
    log.close()
    return result


def lines(data: Path) -> list[bytes]:
    (segment,) = segments(data)
    return segment.read_bytes().splitlines(keepends=True)


def test_what_was_appended_is_replayed_in_order(tmp_path: Path) -> None:
    _, recovery, log = replayed(tmp_path)
    assert recovery == Recovery(0, 0, None)
    delta = QuadDelta(
        (quad(1),), (quad(2), quad(2)._replace(g=None)), (quad(3),), ("<http://e/new>",), ("<http://e/old>",)
    )
    appended = [
        log.append("commit", cause=Cause("mqtt", "street/1"), request="r-1", delta=delta),
        log.append("timer", timer=Timer("t-1", "CLEAR ALL", delay_us=5)),
        log.append("cancel", cause=Cause("http", "somebody", 2), cancel="t-1"),
        log.append("commit", delta=QuadDelta()),
    ]
    log.sync()
    log.close()
    found, recovery, log = replayed(tmp_path)
    assert found == appended
    assert recovery == Recovery(4, 0, None)
    assert found[0].delta == delta
    assert [record.seq for record in found] == [1, 2, 3, 4]
    assert commit(log, 5).seq == 5
    log.close()


def test_records_carry_the_clocks(tmp_path: Path) -> None:
    clock = FakeClock(boot="boot-7", trusted=False)
    log = opened_log(tmp_path, clock)
    log.replay(lambda record: None)
    clock.advance(1.5)
    record = commit(log, 1)
    log.close()
    assert (record.boot, record.trusted) == ("boot-7", False)
    assert (record.boottime_us, record.ts) == (61_500_000, "2026-11-21T02:00:01.500000Z")


def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    appended = written(tmp_path, 3)
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    before = b"".join(lines(tmp_path)[:2])
    for length in range(len(before) + 1, len(whole)):
        segment.write_bytes(whole[:length])
        found, recovery, log = replayed(tmp_path)
        assert (found, recovery) == (appended[:2], Recovery(2, length - len(before), None)), length
        again = commit(log, 9)
        log.close()
        assert again.seq == 3
        assert segment.read_bytes() == before + encode(again), length
    assert not list((tmp_path / "damaged").iterdir())


@pytest.mark.parametrize("filling", [b"\0" * 4096, b"\xff" * 10, b"\n", b"{}\n", b'{"v":1}\n\n\n'])
def test_a_tail_that_is_not_a_record_is_cut_off(tmp_path: Path, filling: bytes) -> None:
    appended = written(tmp_path, 2)
    with segments(tmp_path)[0].open("ab") as file:
        file.write(filling)
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert (found, recovery) == (appended, Recovery(2, len(filling), None))


def test_a_flipped_byte_is_never_read_over(tmp_path: Path) -> None:
    appended = written(tmp_path, 2)
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    start = len(lines(tmp_path)[0])
    for place in range(start, len(whole)):
        segment.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found, recovery, log = replayed(tmp_path)
        log.close()
        assert found == appended[:1], place
        assert recovery.cut_bytes == len(whole) - start, place


def flip_a_byte(content: list[bytes]) -> list[bytes]:
    middle = len(content[2]) // 2
    content[2] = content[2][:middle] + bytes([content[2][middle] ^ 4]) + content[2][middle + 1 :]
    return content


def lose_a_line(content: list[bytes]) -> list[bytes]:
    return content[:2] + content[3:]


def lose_the_line_before_the_last(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[-1]]


def repeat_a_line(content: list[bytes]) -> list[bytes]:
    return [*content[:2], *content[1:]]


def swap_lines(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[3], content[2], *content[4:]]


def lose_a_line_break(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[2][:-1], *content[3:]]


@pytest.mark.parametrize(
    "damage",
    [flip_a_byte, lose_a_line, lose_the_line_before_the_last, repeat_a_line, swap_lines, lose_a_line_break],
)
def test_damage_is_set_aside_and_begins_an_epoch(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    appended = written(tmp_path, 5)
    damaged = damage(lines(tmp_path))
    segments(tmp_path)[0].write_bytes(b"".join(damaged))

    found, recovery, log = replayed(tmp_path)
    assert found[:-1] == appended[:2]
    assert recovery.records == 2
    assert recovery.set_aside is not None
    assert recovery.set_aside.parent == tmp_path / "damaged"
    assert recovery.set_aside.read_bytes() == b"".join(damaged[2:])
    gap = found[-1]
    assert (gap.type, gap.epoch, gap.seq) == ("gap", 2, 1)
    assert gap.gap is not None
    assert (gap.gap.epoch, gap.gap.seq, gap.gap.aside) == (1, 2, recovery.set_aside.name)
    assert gap.gap.reason
    after = commit(log, 9)
    assert (after.epoch, after.seq) == (2, 2)
    log.close()

    again, recovery, log = replayed(tmp_path)
    assert again == [*appended[:2], gap, after]
    assert recovery == Recovery(4, 0, None)
    assert (log.epoch, log.sequence) == (2, 2)
    log.close()


def test_damage_is_found_again_when_its_recovery_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap must not be lost between setting the rest aside and saying so, or a sequence would come twice."""
    appended = written(tmp_path, 5)
    segments(tmp_path)[0].write_bytes(b"".join(flip_a_byte(lines(tmp_path))))
    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "append", disk_full_at_once)
        log = opened_log(tmp_path)
        with pytest.raises(ChangeLogError, match="No space left"):
            log.replay(lambda record: None)
        log.close()
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert found[:-1] == appended[:2]
    assert (found[-1].type, found[-1].seq) == ("gap", 1)
    assert found[-1].epoch > 1
    assert recovery.set_aside is not None


def disk_full_at_once(log: LogWriter, kind: str, **members: object) -> Record:
    raise ChangeLogError("No space left on device", path=Path("log"), hint="free some space")


def test_no_epoch_comes_twice(tmp_path: Path) -> None:
    """Damage in the first segment sets the second one aside too; the numbers of that one are used up."""
    written(tmp_path, 5)
    seen = {(record.epoch, record.seq) for record in records(tmp_path)[:3]}
    for good in (3, 2, 1, 0):
        first = segments(tmp_path)[0]
        content = first.read_bytes().splitlines(keepends=True)
        first.write_bytes(b"".join([*content[:good], b"#\n", *content[good + 1 :]]))
        found, _, log = replayed(tmp_path)
        new = found[good:]
        assert [record.type for record in new] == ["gap"], good
        assert (new[0].epoch, new[0].seq) not in seen
        seen.add((new[0].epoch, new[0].seq))
        log.close()
        again, recovery, log = replayed(tmp_path)
        log.close()
        assert again == found
        assert recovery.set_aside is None


def test_a_second_gateway_is_refused(tmp_path: Path) -> None:
    first = opened_log(tmp_path)
    with pytest.raises(ConfigurationError, match="another gateway"):
        opened_log(tmp_path)
    first.close()
    opened_log(tmp_path).close()


def test_identity_is_made_once(tmp_path: Path) -> None:
    first = opened_log(tmp_path / "a")
    first.close()
    again = opened_log(tmp_path / "a")
    again.close()
    other = opened_log(tmp_path / "b")
    other.close()
    assert first.gateway.startswith("gw-")
    assert first.gateway == again.gateway != other.gateway


@pytest.mark.parametrize("place", ["/proc/nowhere/data", "file", "file/data"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigurationError, match=place):
        opened_log(tmp_path / place)


def test_a_segment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "log" / "1-000000000001.ndjson").mkdir(parents=True)
    log = opened_log(tmp_path)
    with pytest.raises(ChangeLogError, match=r"1-000000000001\.ndjson"):
        log.replay(lambda record: None)
    log.close()


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    _, _, log = replayed(tmp_path)
    first = commit(log, 1)
    (segment,) = segments(tmp_path)
    before = segment.read_bytes()
    really_write = os.write

    def disk_full(descriptor: int, line: bytes) -> int:
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(descriptor, line[:room])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full)
        with pytest.raises(ChangeLogError, match="No space left") as caught:
            commit(log, 2)
        assert caught.value.sequence == 1
        assert caught.value.retriable
    assert segment.read_bytes() == before
    assert log.sequence == 1
    second = commit(log, 2)
    log.close()
    assert second.seq == 2
    assert records(tmp_path) == [first, second]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from engine.errors import ChangeLogError
from tests.gateway.test_log_writer import commit, replayed

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
data = Path(sys.argv[1])
found, recovery, log = replayed(data)
commit(log, 0)
size = next((data / "log").iterdir()).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        commit(log, 1)
    except ChangeLogError as error:
        print(log.sequence, next((data / "log").iterdir()).stat().st_size == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(commit(log, 2).seq)
"""


def test_a_file_that_may_not_grow_leaves_the_log_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["1", "True"] * 3 + ["2"], done.stderr
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert [record.seq for record in found] == [1, 2]
    assert recovery.cut_bytes == 0


def test_sync_makes_durable_what_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    log.replay(lambda record: None)
    commit(log, 1)
    assert synced == []
    log.sync()
    log.sync()
    assert len(synced) == 1, "once for what was written, and not for nothing"
    log.close()


def test_what_a_killed_gateway_wrote_is_made_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed between write and sync, and what is replayed is shown to clients."""
    written(tmp_path, 2)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    log.replay(lambda record: None)
    log.sync()
    assert len(synced) == 1
    log.close()


def test_a_disk_that_cannot_sync_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    log.replay(lambda record: None)
    commit(log, 1)
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(ChangeLogError, match="check the disk"):
        log.sync()
    log.close()


def test_no_line_is_longer_than_its_record(tmp_path: Path) -> None:
    """A line break inside a literal must not end the record's line."""
    _, _, log = replayed(tmp_path)
    log.append("commit", delta=QuadDelta(added=(Quad("<http://e/s>", "<http://e/p>", '"a\u2028b\u0085c\x0bd"'),)))
    log.close()
    (line,) = segments(tmp_path)[0].read_bytes().split(b"\n")[:-1]
    assert decode(line).a[0].o == '"a\u2028b\u0085c\x0bd"'
    found, _, log = replayed(tmp_path)
    log.close()
    assert len(found) == 1


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    log = opened_log(tmp_path)
    log.replay(lambda record: None)
    log.append("commit")
    log.close()
    stray = tmp_path / "log" / "copy of 1-000000000001.ndjson"
    stray.write_text("not ours")
    log = opened_log(tmp_path)
    assert log.replay(lambda record: None).records == 1
    assert stray.read_text() == "not ours"
    log.close()
