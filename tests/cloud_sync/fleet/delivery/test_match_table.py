"""The matches in the order of their batches."""

from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.delivery.match_table import LISTED_S, ChunkBounds, MatchTable
from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.engine.errors import UpstreamError
from tests.cloud_sync.fleet.delivery.made_up_matches import match, write_batch

MANY = ChunkBounds(1000, 10**9)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def sequences(
    table: MatchTable, subscription: str, bounds: ChunkBounds, position: MatchPosition = START
) -> list[list[int]]:
    """The sequences of each chunk up to the end."""
    found = []
    while chunk := table.chunk(subscription, position, bounds):
        if chunk.notifications:
            found.append([one.match.seq for one in chunk.notifications])
            position = chunk.notifications[-1].next
        elif chunk.position == position:
            return found
        else:
            position = chunk.position
    raise AssertionError


def test_chunks_are_in_order_and_begin_anywhere(lake: Lake) -> None:
    rows = [match("hot" if seq % 3 else "warm", seq=seq) for seq in range(30)]
    write_batch(lake, 1, rows, files=3, group=4)
    write_batch(lake, 2, [match("cold")])
    write_batch(lake, 3, [match("hot", seq=seq) for seq in (30, 31)])
    table = MatchTable(lake, lambda: 0.0)
    hot = [seq for seq in range(30) if seq % 3]
    assert sequences(table, "hot", MANY) == [hot, [30, 31]]
    small = sequences(table, "hot", ChunkBounds(7, 10**9))
    assert small == [hot[:7], hot[7:14], hot[14:], [30, 31]]
    whole = table.chunk("hot", START, MANY).notifications
    for number, one in enumerate(whole):
        assert sequences(table, "hot", MANY, one.next) == [rest for rest in (hot[number + 1 :], [30, 31]) if rest]
        assert table.waiting("hot", one.next, "000000000003") == len(hot) - number - 1 + 2
    assert table.waiting("hot", START, "000000000001") == len(hot)
    assert sequences(table, "nobody", MANY) == []


def test_chunks_are_bounded_by_their_text(lake: Lake) -> None:
    rows = [match(seq=seq, rows=[['"' + "x" * (5000 if seq == 2 else 100) + '"']]) for seq in range(5)]
    write_batch(lake, 1, rows)
    assert sequences(MatchTable(lake, lambda: 0.0), "hot", ChunkBounds(1000, 1100)) == [[0, 1], [2], [3, 4]]


def test_new_batches_are_found_without_a_listing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write_batch(lake, 7, [match(seq=7)])
    now = 0.0
    table = MatchTable(lake, lambda: now)
    assert table.last() == "000000000007"
    listings = []
    names = Lake.names
    monkeypatch.setattr(Lake, "names", lambda self, *parts: listings.append(parts) or names(self, *parts))
    assert table.after("000000000007") is None
    write_batch(lake, 8, [match(seq=8)])
    assert table.after("000000000007") == "000000000008"
    assert listings == []
    write_batch(lake, 11, [match(seq=11)])  # a hole
    assert table.after("000000000008") is None
    now = LISTED_S
    assert table.after("000000000008") == "000000000011"
    assert len(listings) == 1


def test_an_empty_table_is_looked_at_each_time(lake: Lake) -> None:
    table = MatchTable(lake, lambda: 0.0)
    assert table.last() == ""
    assert table.after("") is None
    write_batch(lake, 0, [])
    write_batch(lake, 1, [match()])
    assert table.after("") == "000000000000"
    assert sequences(table, "hot", MANY) == [[1]]


def test_removed_batches_are_passed(lake: Lake) -> None:
    for number in (1, 2, 3):
        write_batch(lake, number, [match(seq=number)])
    table = MatchTable(lake, lambda: 0.0)
    assert table.last()
    for number in (1, 2):
        Path(lake.path(table._batches.name, "_batches", f"{number:012d}.json")).unlink()
    assert sequences(table, "hot", MANY, MatchPosition("000000000001", 0)) == [[3]]


def test_decoded_row_groups_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from lamplighter.cloud_sync.fleet.delivery import match_table

    monkeypatch.setattr(match_table, "DECODED_BYTES_MAX", 10_000)
    write_batch(lake, 1, [match(seq=seq) for seq in range(2000)], group=50)
    table = MatchTable(lake, lambda: 0.0)
    assert [seq for chunk in sequences(table, "hot", ChunkBounds(30, 10**9)) for seq in chunk] == list(range(2000))
    assert sum(rows.nbytes for rows in table._decoded.values()) < 20_000


def test_damaged_files_are_named(lake: Lake) -> None:
    write_batch(lake, 1, [match()])
    path = Path(lake.path("subscriptions", "matches", "batch=000000000001", "part-0.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UpstreamError, match=r"part-0\.parquet: the matches cannot be read: .*; restore the file"):
        MatchTable(lake, lambda: 0.0).chunk("hot", START, MANY)
    path.unlink()
    with pytest.raises(UpstreamError, match=r"part-0\.parquet: the matches cannot be read"):
        MatchTable(lake, lambda: 0.0).chunk("hot", START, MANY)
    Path(lake.path("subscriptions", "matches", "_batches", "000000000001.json")).write_text("{")
    with pytest.raises(UpstreamError, match="not a manifest"):
        MatchTable(lake, lambda: 0.0).chunk("hot", START, MANY)
