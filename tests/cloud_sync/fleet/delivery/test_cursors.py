"""The cursors of sinks: durable, and never ahead."""

import zlib
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from lamplighter.cloud_sync.fleet.delivery.cursors import CURSORS, Cursors, SinkCursor
from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError

PLACE = MatchPosition("000000000007", 3)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def kept(cursors: Cursors, *, moved: bool = False) -> bool:
    changes = cursors.changes(moved=moved)
    if changes is not None:
        cursors.write(changes)
    return changes is not None


def test_cursors_are_read_again(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursor = msgspec.structs.replace(cursors.begin("hot", "files", whole=False), position=PLACE, delivered=4)
    cursors.replace(cursor)
    assert kept(cursors)
    assert not kept(cursors)
    assert Cursors(lake).by_name.get(("hot", "files")) == cursor


def test_each_damage_of_the_file_begins_again_and_none_advances(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.replace(SinkCursor(subscription="hot", sink="files", position=PLACE, delivered=4))
    kept(cursors)
    path = Path(lake.path(*CURSORS))
    sound = path.read_bytes()
    for place in range(len(sound) - 1):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        found = Cursors(lake).by_name.get(("hot", "files"))
        assert found is None or found.position <= PLACE, sound[place : place + 20]
    for content in (b"", sound[:-9], b"\xff\xfe", b"[]"):
        path.write_bytes(content)
        assert Cursors(lake).all() == []


def test_a_cursor_behind_the_table_begins_again(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.replace(SinkCursor(subscription="hot", sink="files", position=PLACE))
    kept(cursors)
    assert Cursors(lake, "000000000006").all() == []
    assert len(Cursors(lake, "000000000007").all()) == len(Cursors(lake, "").all()) == 1


def test_a_second_sink_begins_where_the_first_is_or_at_the_begin(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.replace(SinkCursor(subscription="hot", sink="files", position=PLACE))
    cursors.replace(SinkCursor(subscription="other", sink="files", position=MatchPosition("000000000099", 0)))
    assert cursors.begin("hot", "second", whole=False).position == PLACE
    assert cursors.begin("hot", "third", whole=True).position == START


def test_removed_sinks_are_forgotten_and_ids_begin_after_their_former_life(lake: Lake) -> None:
    cursors = Cursors(lake)
    for sink in ("files", "webhook"):
        cursors.replace(SinkCursor(subscription="hot", sink=sink, position=PLACE))
    cursors.remove_sinks("hot", ["files"])
    assert [cursor.sink for cursor in cursors.all()] == ["files"]
    cursors.remove_subscription("hot", MatchPosition("000000000009", 0))
    cursors.remove_subscription("hot", MatchPosition("000000000012", 0))
    kept(cursors)
    again = Cursors(lake)
    assert again.all() == []
    assert again.begin("hot", "files", whole=True).position == MatchPosition("000000000009", 0)


def test_moves_wait_and_failed_writes_are_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    cursors = Cursors(lake)
    cursor = cursors.begin("hot", "files", whole=False)
    assert kept(cursors)
    cursors.move(cursor.at(PLACE))
    assert not kept(cursors)
    assert kept(cursors, moved=True)
    cursors.replace(cursor)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "write", full)
        with pytest.raises(OSError, match="space"):
            kept(cursors)
    assert kept(cursors)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"cursors":5}',
        b'{"cursors":[{"subscription":1,"sink":"files"}]}',
        b'{"cursors":[{"subscription":"hot","sink":"files","position":["../../secret",0]}]}',
        b'{"cursors":[{"subscription":"hot","sink":"files","position":["999999999999",0]}]}',
        b'{"cursors":[{"subscription":"hot","sink":"files","position":["000000000001",1e300]}]}',
        b'{"cursors":[{"subscription":"hot","sink":"files","position":["\\u0000",0]}]}',
    ],
)
def test_a_forged_file_begins_again(lake: Lake, content: bytes) -> None:
    lake.write(b'{"crc32":%d,"content":%s}' % (zlib.crc32(content), content), *CURSORS)
    assert Cursors(lake, "000000000007").all() == []
    lake.write(content, *CURSORS)
    assert Cursors(lake, "000000000007").all() == []


def test_a_huge_file_is_not_read_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    cursors = Cursors(lake)
    cursors.replace(SinkCursor(subscription="hot", sink="files", position=PLACE, delivered=4))
    kept(cursors)
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.cursors.CURSORS_BYTES_MAX", 20)
    assert Cursors(lake).all() == []


# --- on object storage, where a lock is a lease


@pytest.fixture
def bucket(s3: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake in a bucket of a real S3 server."""
    monkeypatch.setitem(fsspec.config.conf, "s3", s3)
    return Lake(f"s3://fleet/{tmp_path.name}")


def moved(cursors: Cursors, position: MatchPosition) -> None:
    cursors.replace(SinkCursor(subscription="hot", sink="files", position=position))
    kept(cursors)


def test_a_process_that_lost_its_lease_moves_no_cursor_back(bucket: Lake) -> None:
    """It wakes up after another one has begun: before that one has written anything, and later."""
    older = Cursors(bucket, lease=1)
    moved(older, PLACE)
    newer = Cursors(bucket, lease=2)
    assert [one.position for one in newer.all()] == [PLACE]
    with pytest.raises(LockLostError, match=r"cursors\.json: another process delivers now"):
        moved(older, MatchPosition("000000000003"))
    later = MatchPosition("000000000009", 1)
    moved(newer, later)
    moved(newer, later)
    with pytest.raises(LockLostError):
        moved(older, MatchPosition("000000000003"))
    assert [one.position for one in Cursors(bucket, lease=3).all()] == [later]
    with pytest.raises(LockLostError):
        Cursors(bucket, lease=2)


def test_a_write_between_reading_and_claiming_is_not_lost(bucket: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Cursors(bucket, lease=1)
    mark = Lake.mark
    late = [lambda: moved(older, PLACE)]

    def marked(self: Lake, *parts: str) -> str | None:
        found = mark(self, *parts)
        if late:
            late.pop()()
        return found

    monkeypatch.setattr(Lake, "mark", marked)
    assert [one.position for one in Cursors(bucket, lease=2).all()] == [PLACE]


def test_a_write_whose_answer_is_lost_is_not_taken_for_that_of_another(
    bucket: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats the request, and the server refuses it: the object is the one that it has just written."""
    cursors = Cursors(bucket, lease=1)
    pipe_file = bucket.fs.pipe_file

    def twice(path: str, data: bytes, **options: Any) -> Any:
        pipe_file(path, data, **options)
        return pipe_file(path, data, **options)

    with monkeypatch.context() as patched:
        patched.setattr(bucket.fs, "pipe_file", twice)
        moved(cursors, PLACE)
    moved(cursors, MatchPosition("000000000008"))
    assert [one.position.batch for one in Cursors(bucket, lease=2).all()] == ["000000000008"]
