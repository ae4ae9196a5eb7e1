"""The log writer: appended records can be read again; damage is detected, reported and survived."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lamplighter.cloud_sync.lineage import request_new_epoch
from lamplighter.engine.change_log import EPOCH_REQUEST, Cause, Gap, Record, Timer, codec, decode
from lamplighter.engine.change_log.frames import FrameReader, FrameWriter
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.terms import Quad
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.sealing import seal, unsealed_segments
from lamplighter.gateway.log.writer import LogWriter, Recovery
from tests.support.gateway_parts import FakeClock, opened_log, records, segments
from tests.support.places import ROOT
from tests.support.tables import each_row


def quad(number: int) -> Quad:
    return Quad(
        f"<http://e/{number}>", "<http://e/p>", f'"tab\\t, line\\n, quote \\" and ü 🙂 {number}"', "<http://e/g>"
    )


def commit(log: LogWriter, number: int) -> Record:
    return log.append(entries.commit(QuadDelta(added=(quad(number),)), Cause("http", "test")))


def replayed(data: Path, boot: str = "boot-1") -> tuple[list[Record], Recovery, LogWriter]:
    """What stands in a log. boot: of the machine that reads it; they are written in boot-1."""
    log = opened_log(data, FakeClock(boot=boot))
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
    """The lines of the only segment, with their newlines."""
    (segment,) = segments(data)
    return [line + b"\n" for line in FrameReader(segment.read_bytes())]


def rewrite(data: Path, content: list[bytes], *, frame_of: int = 1000) -> None:
    """Puts other lines into the only segment. frame_of: how many lines a frame has."""
    (segment,) = segments(data)
    frames = FrameWriter()
    chunks = []
    for number, line in enumerate(content):
        if number % frame_of == 0:
            chunks.append(frames.end())
        chunks.append(frames.add(line))
    segment.write_bytes(b"".join(chunks))


def test_what_was_appended_is_replayed_in_order(tmp_path: Path) -> None:
    _, recovery, log = replayed(tmp_path)
    assert recovery == Recovery(0, 0, None)
    delta = QuadDelta(
        (quad(1),), (quad(2), quad(2)._replace(g=None)), (quad(3),), ("<http://e/new>",), ("<http://e/old>",)
    )
    appended = [
        log.append(entries.commit(delta, Cause("mqtt", "street/1"), "r-1")),
        log.append(entries.timer(Timer("t-1", "CLEAR ALL", delay_us=5))),
        log.append(entries.cancel("t-1", Cause("http", "somebody", 2))),
        log.append(entries.commit(QuadDelta())),
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


def written_and_cut(data: Path, count: int, left: int) -> tuple[list[Record], Path, bytes]:
    """A log of so many records in one segment, of which the first few are left; the segment's whole content."""
    appended = written(data, count)
    (segment,) = segments(data)
    whole = segment.read_bytes()
    rewrite(data, lines(data)[:left])
    return appended, segment, whole


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path, boot: str) -> None:
    appended, segment, whole = written_and_cut(tmp_path, 3, 2)
    before = segment.read_bytes()
    assert whole.startswith(before)
    for length in range(len(before) + 1, len(whole)):
        segment.write_bytes(whole[:length])
        found, recovery, log = replayed(tmp_path, boot)
        assert (found, recovery) == (appended[:2], Recovery(2, length - len(before), None)), length
        again = commit(log, 9)
        log.close()
        assert again.seq == 3
        found, recovery, log = replayed(tmp_path, boot)
        log.close()
        assert (found, recovery) == ([*appended[:2], again], Recovery(3, 0, None)), "what follows shows that it was"
        segments(tmp_path)[1].unlink()
    assert not list((tmp_path / "damaged").iterdir())


@each_row("filling", [b"\0" * 4096, b"\xff" * 10, b"\n", b"{}\n", b'{"v":1}\n\n\n'])
def test_a_tail_that_is_not_a_record_is_cut_off(tmp_path: Path, filling: bytes) -> None:
    appended = written(tmp_path, 2)
    with segments(tmp_path)[0].open("ab") as file:
        file.write(filling)
    found, recovery, log = replayed(tmp_path, "boot-2")
    log.close()
    assert (found, recovery) == (appended, Recovery(2, len(filling), None))


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_zeros_behind_the_last_record_are_no_blocks_and_are_cut_off(tmp_path: Path, boot: str) -> None:
    """What ext4 leaves after a power cut. As empty blocks they would cost a loop for each three bytes."""
    appended = written(tmp_path, 2)
    (segment,) = segments(tmp_path)
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(bytes(300_000))
    reader = FrameReader(segment.read_bytes())
    assert len(list(reader)) == 2 and (reader.tail.offset, reader.tail.blocks) == (size, 0)
    found, recovery, log = replayed(tmp_path, boot)
    log.close()
    assert (found, recovery) == (appended, Recovery(2, 300_000, None))


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_flipped_bit_is_never_read_over(tmp_path: Path, boot: str) -> None:
    """In the last record: a power cut may do that, but not without the machine starting again."""
    appended, segment, whole = written_and_cut(tmp_path, 2, 1)
    start = segment.stat().st_size
    kinds = set()
    for place in range(start, len(whole)):
        for path in (tmp_path / "log").iterdir():
            path.unlink()
        segment.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found, recovery, log = replayed(tmp_path, boot)
        log.close()
        if found == appended:
            continue  # some bits of zstd mean nothing
        assert found == appended[:1], place
        assert recovery.set_aside or recovery.cut_bytes == len(whole) - start, place
        kinds.add(recovery.set_aside is not None)
    assert kinds == ({False, True} if boot == "boot-1" else {False})


def test_a_record_further_on_tells_damage_from_a_torn_tail(tmp_path: Path) -> None:
    """After a power cut what was not synced may be missing from the middle; what was synced may not."""
    _, _, log = replayed(tmp_path)
    for number in range(600):
        commit(log, number)
        if number % 10 == 9:
            log.sync(always=True)
    log.close()
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    frames = [place for place in range(len(whole)) if whole.startswith(b"\x28\xb5\x2f\xfd", place)]
    assert len(frames) > 2
    for frame, damaged in ((frames[0], True), (frames[-2], True), (frames[-1], False)):
        for path in (tmp_path / "log").iterdir():
            path.unlink()
        segment.write_bytes(whole[: frame + 100] + b"\0" * 50 + whole[frame + 150 :])
        _, recovery, log = replayed(tmp_path, "boot-2")
        log.close()
        assert (recovery.set_aside is not None) == damaged
        assert (records(tmp_path)[-1].type == "gap") == damaged
        assert bool(recovery.cut_bytes) != damaged


def test_what_was_closed_properly_has_no_torn_tail(tmp_path: Path) -> None:
    _, _, log = replayed(tmp_path)
    appended = [commit(log, number) for number in range(3)]
    log.finish()
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    found, recovery, log = replayed(tmp_path, "boot-2")
    log.close()
    assert (found, recovery) == (appended, Recovery(3, 0, None))
    segment.write_bytes(whole[:-60] + b"\0" + whole[-59:])
    found, recovery, log = replayed(tmp_path, "boot-3")
    log.close()
    assert recovery.set_aside is not None
    assert records(tmp_path)[-1].type == "gap"


def flip_a_byte(content: list[bytes]) -> list[bytes]:
    middle = len(content[2]) // 2
    content[2] = content[2][:middle] + bytes([content[2][middle] ^ 4]) + content[2][middle + 1 :]
    return content


def lose_a_line(content: list[bytes]) -> list[bytes]:
    return content[:2] + content[3:]


def lose_the_line_before_the_last(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[-1]]


def swap_lines(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[3], content[2], *content[4:]]


def lose_a_line_break(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[2][:-1], *content[3:]]


# Bad bytes in the last frame alone cannot be told from a torn tail after a power cut.
@each_row(
    ("damage", "boot"),
    [
        (flip_a_byte, "boot-1"),
        (lose_a_line, "boot-1"),
        (lose_a_line, "boot-2"),
        (lose_the_line_before_the_last, "boot-2"),
        (swap_lines, "boot-2"),
        (lose_a_line_break, "boot-1"),
    ],
)
def test_damage_is_set_aside_and_begins_an_epoch(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], boot: str
) -> None:
    appended = written(tmp_path, 5)
    (segment,) = segments(tmp_path)
    rewrite(tmp_path, damage(lines(tmp_path)))
    damaged = segment.read_bytes()

    found, recovery, log = replayed(tmp_path, boot)
    assert found == appended[:2]
    assert recovery.records == 2
    assert recovery.set_aside == tmp_path / "damaged"
    (aside,) = recovery.set_aside.iterdir()
    assert aside.read_bytes() == damaged
    gap = records(tmp_path)[-1]
    assert (gap.type, gap.epoch, gap.seq) == ("gap", 2, 1)
    assert gap.gap is not None
    assert (gap.gap.epoch, gap.gap.first, gap.gap.last, gap.gap.aside) == (1, 3, None, "damaged")
    assert gap.gap.reason
    after = commit(log, 9)
    assert (after.epoch, after.seq) == (2, 2)
    log.close()

    again, recovery, log = replayed(tmp_path, boot)
    assert again == [*appended[:2], gap, after]
    assert recovery == Recovery(4, 0, None)
    assert (log.epoch, log.sequence) == (2, 2)
    log.close()


def test_a_record_that_stands_there_twice_counts_once(tmp_path: Path) -> None:
    appended = written(tmp_path, 5)
    rewrite(tmp_path, [*lines(tmp_path)[:2], *lines(tmp_path)[1:]])
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert (found, recovery) == (appended, Recovery(5, 0, None))


class FullDisk(Disk):
    """Takes so many more bytes, and names of new files only while there are some."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(file, data[: self.room])
        self.room -= taken
        return taken


def test_the_gap_is_not_lost_when_it_cannot_be_written_at_once(tmp_path: Path) -> None:
    """It must not go between setting the rest aside and saying so, or a sequence would come twice."""
    appended = written(tmp_path, 5)
    rewrite(tmp_path, flip_a_byte(lines(tmp_path)))
    disk = FullDisk(0)
    log = opened_log(tmp_path, disk=disk)
    assert log.replay(lambda record: None).set_aside is not None
    with pytest.raises(ChangeLogError, match="No space left"):
        commit(log, 1)
    assert log.refusing
    log.close()
    log = opened_log(tmp_path, disk=disk)
    assert log.replay(lambda record: None).set_aside is not None, "it is found again"
    disk.room = 1_000_000
    assert commit(log, 6).seq == 2
    log.close()
    found, _, log = replayed(tmp_path)
    log.close()
    assert found[:2] == appended[:2]
    assert [(record.type, record.epoch, record.seq) for record in found[2:]] == [("gap", 2, 1), ("commit", 2, 2)]


def test_no_epoch_comes_twice(tmp_path: Path) -> None:
    """Damage in the first segment sets the second one aside too; the numbers of that one are used up."""
    written(tmp_path, 5)
    seen = {(record.epoch, record.seq) for record in records(tmp_path)[:3]}
    for good in (3, 2, 1):
        first = segments(tmp_path)[0]
        content = [line + b"\n" for line in FrameReader(first.read_bytes())]
        frames = FrameWriter()
        first.write_bytes(b"".join(map(frames.add, [*content[:good], b"#\n", *content[good + 1 :]])))
        found, _, log = replayed(tmp_path)
        log.close()
        new = records(tmp_path)[good:]
        assert [record.type for record in new] == ["gap"], good
        assert (new[0].epoch, new[0].seq) not in seen
        seen.add((new[0].epoch, new[0].seq))
        again, recovery, log = replayed(tmp_path)
        log.close()
        assert again == [*found, *new]
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


@each_row("place", ["/proc/nowhere/data", "file", "file/data"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigurationError, match=place):
        opened_log(tmp_path / place)


def test_a_segment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "log" / "1-000000000001.ndjson.zst").mkdir(parents=True)
    log = opened_log(tmp_path)
    with pytest.raises(ChangeLogError, match=r"1-000000000001\.ndjson\.zst"):
        log.replay(lambda record: None)
    log.close()


@each_row("room", [0, 1, 20])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    disk = FullDisk(1_000_000)
    log = opened_log(tmp_path, disk=disk)
    log.replay(lambda record: None)
    first = commit(log, 1)
    disk.room = room
    for _ in range(3):
        with pytest.raises(ChangeLogError, match="No space left") as caught:
            commit(log, 2)
        assert caught.value.sequence == 1
        assert caught.value.retriable
        assert log.sequence == 1
    disk.room = 1_000_000
    second = commit(log, 2)
    assert not log.refusing
    log.close()
    assert second.seq == 2
    assert records(tmp_path) == [first, second]
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert (found, recovery) == ([first, second], Recovery(2, 0, None))


LIMITED = """
import resource, signal, sys
from pathlib import Path
from lamplighter.engine.errors import ChangeLogError
from tests.gateway.log.test_writer import commit, replayed

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
data = Path(sys.argv[1])
found, recovery, log = replayed(data)
commit(log, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        commit(log, 1)
    except ChangeLogError as error:
        print(log.sequence)
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
    assert done.stdout.split() == ["1", "1", "1", "2"], done.stderr
    found, recovery, log = replayed(tmp_path)
    log.close()
    assert recovery.cut_bytes == 0
    assert [record.seq for record in found] == [1, 2]


class CountingDisk(Disk):
    """Notes what is synced. broken: nothing can be."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.synced: list[str] = []

    def sync(self, file: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        super().sync(file)

    def sync_folder(self, path: Path) -> None:
        self.synced.append(path.name)
        super().sync_folder(path)


def counted_log(folder: Path) -> tuple[CountingDisk, LogWriter]:
    """A log that is ready for append, and its disk."""
    disk = CountingDisk()
    log = opened_log(folder, durability="fsync", disk=disk)
    log.replay(lambda record: None)
    return disk, log


def test_sync_makes_durable_what_was_appended(tmp_path: Path) -> None:
    disk, log = counted_log(tmp_path)
    disk.synced.clear()
    commit(log, 1)
    assert disk.synced == []
    log.sync()
    assert disk.synced == ["1-000000000001.ndjson.zst", "log"], "the name of a new file too"
    log.sync()
    commit(log, 2)
    log.sync()
    assert disk.synced[2:] == ["1-000000000001.ndjson.zst"], "once for what was written, and not for nothing"
    log.close()


def test_what_is_synced_when_is_a_matter_of_policy(tmp_path: Path) -> None:
    for durability, synced in (("fsync", 1), ("interval", 1), ("off", 0)):
        disk = CountingDisk()
        log = opened_log(tmp_path / durability, durability=durability, disk=disk)  # type: ignore[arg-type]
        log.replay(lambda record: None)
        commit(log, 1)
        disk.synced.clear()
        log.sync()
        assert disk.synced.count("1-000000000001.ndjson.zst") == synced, durability
        assert log.waits == (durability == "fsync")
        log.close()


def test_what_a_killed_gateway_wrote_is_made_durable_before_it_counts(tmp_path: Path) -> None:
    """It may have been killed between write and sync, and what is replayed is shown to clients."""
    written(tmp_path, 2)
    disk, log = counted_log(tmp_path)
    expected = ["1-000000000001.ndjson.zst.new", "log", tmp_path.name, tmp_path.parent.name]
    assert disk.synced == expected, "and all names that it may have made"
    log.sync()
    log.close()


def test_a_segment_that_ends_is_durable_before_the_next_one_begins(tmp_path: Path) -> None:
    disk, log = counted_log(tmp_path)
    commit(log, 1)
    log.end_segment()
    disk.synced.clear()
    commit(log, 2)
    assert disk.synced == ["1-000000000001.ndjson.zst", "log"]
    log.sync()
    assert disk.synced[2:] == ["1-000000000002.ndjson.zst", "log"]
    log.close()


def test_a_disk_that_cannot_sync_is_said(tmp_path: Path) -> None:
    disk, log = counted_log(tmp_path)
    commit(log, 1)
    disk.broken = True
    for _ in range(2):
        with pytest.raises(ChangeLogError, match="check the disk"):
            log.sync()
        disk.broken = False  # the kernel takes the pages for clean now, and would say that all is well
    with pytest.raises(ChangeLogError, match="check the disk"):
        commit(log, 2)
    log.close()


def test_a_segment_that_cannot_be_synced_when_it_ends_is_the_end(tmp_path: Path) -> None:
    disk, log = counted_log(tmp_path)
    commit(log, 1)
    log.end_segment()
    disk.broken = True
    for _ in range(2):
        with pytest.raises(ChangeLogError):
            commit(log, 2)
        disk.broken = False
    assert log.broken is not None
    log.close()


def test_no_line_is_longer_than_its_record(tmp_path: Path) -> None:
    """A line break inside a literal must not end the record's line."""
    _, _, log = replayed(tmp_path)
    log.append(entries.commit(QuadDelta(added=(Quad("<http://e/s>", "<http://e/p>", '"a\u2028b\u0085c\x0bd"'),))))
    log.close()
    (line,) = lines(tmp_path)
    assert decode(line[:-1]).a[0].o == '"a\u2028b\u0085c\x0bd"'
    found, _, log = replayed(tmp_path)
    log.close()
    assert len(found) == 1


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    log = opened_log(tmp_path)
    log.replay(lambda record: None)
    log.append(entries.commit(QuadDelta()))
    log.close()
    stray = tmp_path / "log" / "copy of 1-000000000001.ndjson.zst"
    stray.write_text("not ours")
    log = opened_log(tmp_path)
    assert log.replay(lambda record: None).records == 1
    assert stray.read_text() == "not ours"
    log.close()


def test_a_start_that_writes_nothing_leaves_no_file_behind(tmp_path: Path) -> None:
    for _ in range(3):
        _, _, log = replayed(tmp_path)
        log.finish()
    assert len(list((tmp_path / "log").iterdir())) == 1


def test_a_segment_may_end_while_a_long_record_is_encoded(tmp_path: Path) -> None:
    _, _, log = replayed(tmp_path)
    first = commit(log, 0)

    class Ending(Slices):
        def pause(self) -> None:
            log.slices = Slices()
            log.end_segment()

    log.slices = Ending()
    many = QuadDelta(added=tuple(map(quad, range(LONG + 1))))
    second = log.append(entries.commit(many, Cause("http", "test")))
    third = commit(log, LONG + 1)
    log.sync()
    log.close()
    assert len(segments(tmp_path)) == 2
    assert replayed(tmp_path)[0] == [first, second, third]


def test_sealing_reads_no_quads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To decode a long record keeps all threads waiting."""
    _, _, log = replayed(tmp_path)
    for number in range(3):
        commit(log, number)
    log.end_segment()
    log.sync(always=True)
    (segment,) = unsealed_segments(log.path, None, log.epoch, log.sequence)

    def not_to_be_read(body: bytes) -> Record:
        raise AssertionError(body)

    monkeypatch.setattr(codec, "_decode", not_to_be_read)
    sealed = seal(log.disk, log.path, segment)
    assert sealed is not None
    assert (sealed.epoch, sealed.first, sealed.last, sealed.count) == (1, 1, 3, 3)
    log.close()


def test_a_requested_epoch_begins_once_with_a_gap_record(tmp_path: Path) -> None:
    written(tmp_path, 3)
    request_new_epoch(tmp_path, 1, "a backup was restored")
    found, recovery, log = replayed(tmp_path)
    assert (len(found), recovery.set_aside, (log.epoch, log.sequence)) == (3, None, (2, 1))
    commit(log, 9)
    log.close()
    assert not (tmp_path / EPOCH_REQUEST).exists()
    request_new_epoch(tmp_path, 1, "an epoch that has ended")
    found, _, log = replayed(tmp_path)
    log.close()
    assert [(one.epoch, one.seq) for one in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert found[3].gap == Gap(1, 4, "a backup was restored")
    assert log.epoch == 2


def test_the_first_record_of_each_segment_names_its_epoch(tmp_path: Path) -> None:
    def ids() -> list[str]:
        lines = (next(iter(FrameReader(path.read_bytes()))) for path in segments(tmp_path))
        return [decode(line).epoch_id for line in lines]

    log = opened_log(tmp_path)
    log.replay(lambda record: None)
    for number in range(4):
        commit(log, number)
        if number % 2:
            log.end_segment()
    log.close()
    _, _, log = replayed(tmp_path)
    commit(log, 9)
    log.close()
    assert sum(bool(record.epoch_id) for record in records(tmp_path)) == 3
    assert len(ids()) == 3 and len(set(ids())) == 1
    request_new_epoch(tmp_path, 1, "a copy")
    _, _, log = replayed(tmp_path)
    log.close()
    assert len(set(ids())) == 2


def test_an_epoch_of_an_earlier_version_has_no_id(tmp_path: Path) -> None:
    written(tmp_path, 3)
    rewrite(tmp_path, [codec.encode(msgspec.structs.replace(one, epoch_id="")) for one in records(tmp_path)])
    _, _, log = replayed(tmp_path)
    commit(log, 9)
    log.close()
    assert {one.epoch_id for one in records(tmp_path)} == {""}


def test_a_request_for_an_epoch_that_cannot_be_read_does_not_stop_the_start(tmp_path: Path) -> None:
    written(tmp_path, 3)
    (tmp_path / EPOCH_REQUEST).write_text("noise")
    found, _, log = replayed(tmp_path)
    log.close()
    assert (len(found), log.epoch) == (3, 1)
