"""The cursors of sinks: durable, and never ahead."""

import zlib
from pathlib import Path

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.delivery.cursors import CURSORS, Cursors, SinkCursor
from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake

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
    cursors.set(cursor)
    assert kept(cursors)
    assert not kept(cursors)
    assert Cursors(lake).get(("hot", "files")) == cursor


def test_each_damage_of_the_file_begins_again_and_none_advances(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.set(SinkCursor(subscription="hot", sink="files", position=PLACE, delivered=4))
    kept(cursors)
    path = Path(lake.path(*CURSORS))
    sound = path.read_bytes()
    for place in range(len(sound) - 1):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        found = Cursors(lake).get(("hot", "files"))
        assert found is None or found.position <= PLACE, sound[place : place + 20]
    for content in (b"", sound[:-9], b"\xff\xfe", b"[]"):
        path.write_bytes(content)
        assert Cursors(lake).all() == []


def test_a_cursor_behind_the_table_begins_again(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.set(SinkCursor(subscription="hot", sink="files", position=PLACE))
    kept(cursors)
    assert Cursors(lake, "000000000006").all() == []
    assert len(Cursors(lake, "000000000007").all()) == len(Cursors(lake, "").all()) == 1


def test_a_second_sink_begins_where_the_first_is_or_at_the_begin(lake: Lake) -> None:
    cursors = Cursors(lake)
    cursors.set(SinkCursor(subscription="hot", sink="files", position=PLACE))
    cursors.set(SinkCursor(subscription="other", sink="files", position=MatchPosition("000000000099", 0)))
    assert cursors.begin("hot", "second", whole=False).position == PLACE
    assert cursors.begin("hot", "third", whole=True).position == START


def test_removed_sinks_are_forgotten_and_ids_begin_after_their_former_life(lake: Lake) -> None:
    cursors = Cursors(lake)
    for sink in ("files", "webhook"):
        cursors.set(SinkCursor(subscription="hot", sink=sink, position=PLACE))
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
    cursors.move(cursor, PLACE)
    assert not kept(cursors)
    assert kept(cursors, moved=True)
    cursors.set(cursor)

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
    cursors.set(SinkCursor(subscription="hot", sink="files", position=PLACE, delivered=4))
    kept(cursors)
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.cursors.CURSORS_BYTES_MAX", 20)
    assert Cursors(lake).all() == []
