"""Merged batches of `matches`: every position and every chunk is what it was, also after a kill at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.deletion import rewriting
from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway
from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds, MatchTable
from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Batches, Lake
from lamplighter.cloud_sync.fleet.lake.match_batches import following_id, match_span, match_spans
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.tables import merged_matches
from lamplighter.cloud_sync.fleet.tables.merged_matches import merge_matches
from tests.cloud_sync.fleet.delivery.made_up_matches import match, write_batch

NAMES = ("hot", "cold", "warm")
Row = tuple[MatchPosition, int]
"""The position behind a match, and its sequence."""


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few batches already show groups, row groups and files that end within a batch."""
    for name, value in {"BATCHES_MAX": 6, "ROWS_MAX": 40, "GROUP_ROWS_MAX": 7, "_ROWS_AT_ONCE": 3}.items():
        monkeypatch.setattr(merged_matches, name, value)


class _Made:
    """A table of random batches, and what it has."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.lake = Lake(str(folder))
        self.draw = draw
        self.rows: dict[str, list[Row]] = {name: [] for name in NAMES}
        self.segments: set[str] = set()
        self._number = self._sequence = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self._number += self.draw.choice((1, 1, 1, 2))  # an empty batch was replaced by the next one
            rows = []
            for row in range(self.draw.choice((0, 1, 1, 2, 3, 9, 25))):
                self._sequence += 1
                name = self.draw.choice(NAMES)
                rows.append(match(name, f"gw-{self.draw.randrange(3)}", self._sequence))
                self.rows[name].append((MatchPosition(f"{self._number:012d}", row + 1), self._sequence))
            group = self.draw.choice((1, 4, 100))
            write_batch(self.lake, self._number, rows, files=1 if len(rows) < 9 else 2, group=group)
            matches = table(self.lake, "matches")
            batch = matches.find(f"{self._number:012d}")
            assert batch is not None
            segment = f"gw-1/1-{self._number:012d}-{self._number:012d}.ndjson.zst"
            self.segments.add(segment)
            told = {"compared": {"equal": 1}, "ahead": {"gw-1": self._number}, "caught_up": [f"hot/{self._number}"]}
            matches.commit(msgspec.structs.replace(batch, segments=[segment], **told))

    def check(self) -> None:
        """Whether the table has these matches, from every begin, in chunks that end where they ended before."""
        reader = MatchTable(self.lake, lambda: 0.0)
        last = reader.last()
        assert last == f"{self._number:012d}"
        for name, rows in self.rows.items():
            begins = [START, *self.draw.sample([position for position, _ in rows], min(4, len(rows)))]
            for begin in begins:
                wanted = [one for one in rows if one[0] > begin]
                most = self.draw.choice((1, 3, 1000))
                assert self.read(reader, name, begin, most) == chunked(wanted, most)
                assert reader.waiting(name, begin, last) == len(wanted)

    @staticmethod
    def read(reader: MatchTable, name: str, position: MatchPosition, most: int) -> list[list[Row]]:
        found = []
        while True:
            chunk = reader.chunk(name, position, ChunkBounds(most, 10**9))
            if chunk.notifications:
                found.append([(one.next, one.match.seq) for one in chunk.notifications])
                position = chunk.notifications[-1].next
            elif chunk.position == position:
                return found
            else:
                position = chunk.position

    def check_manifests(self) -> None:
        live = table(self.lake, "matches").live()
        assert {segment for batch in live for segment in batch.segments} == self.segments
        assert sum(batch.compared["equal"] for batch in live) == len(self.segments)
        assert max(batch.ahead["gw-1"] for batch in live) == self._number
        assert sum(len(batch.caught_up) for batch in live) == len(self.segments)
        assert sum(batch.rows for batch in live) == sum(map(len, self.rows.values()))
        assert following_id(batch.id for batch in live) == f"{self._number + 1:012d}"


def chunked(rows: list[Row], most: int) -> list[list[Row]]:
    """Chunks of at most so many rows, each from one batch."""
    found: list[list[Row]] = []
    for row in rows:
        if found and found[-1][-1][0].batch == row[0].batch and len(found[-1]) < most:
            found[-1].append(row)
        else:
            found.append([row])
    return found


@pytest.mark.parametrize("seed", range(6))
def test_each_position_and_chunk_is_what_it_was(tmp_path: Path, seed: int) -> None:
    made = _Made(tmp_path, random.Random(seed))
    for _ in range(4):
        made.write(made.draw.randrange(1, 12))
        before = len(table(made.lake, "matches").live())
        assert merge_matches(table(made.lake, "matches")) == []
        after = table(made.lake, "matches").all()
        assert len(after) <= before
        made.check()
        made.check_manifests()
        assert merge_matches(table(made.lake, "matches")) == []
        assert table(made.lake, "matches").all() == after, "nothing is left to merge"
    assert any(batch.merged for batch in after)
    folders = {name for name in made.lake.names("subscriptions", "matches") if name.startswith("batch=")}
    assert folders == {f"batch={batch.id}" for batch in after if batch.rows}, "what was merged is gone"


def test_a_kill_at_any_moment_changes_no_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Made(tmp_path, random.Random(7))
    made.write(14)
    steps = [0, 0]  # how many operations may pass, and how many have passed

    def dying(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if steps[1] >= steps[0]:
                raise KeyboardInterrupt
            steps[1] += 1
            return operation(*args, **options)

        return run

    fs = made.lake.fs
    for name in ("rm", "rm_file"):
        monkeypatch.setattr(fs, name, dying(getattr(fs, name)), raising=False)
    for name in ("commit", "stage_parts"):
        monkeypatch.setattr(Batches, name, dying(getattr(Batches, name)))
    kills = 0
    while True:
        steps[:] = [made.draw.randrange(4), 0]
        try:
            merge_matches(table(made.lake, "matches"))
            break
        except KeyboardInterrupt:
            kills += 1
            made.check()
            made.check_manifests()
    assert kills > 10
    made.check()


def test_rows_are_removed_from_merged_batches_without_moving_others(tmp_path: Path) -> None:
    made = _Made(tmp_path, random.Random(3))
    made.write(12)
    merge_matches(table(made.lake, "matches"))
    reader = MatchTable(made.lake, lambda: 0.0)
    others = {name: _of_others(reader, name) for name in NAMES}
    assert rewriting.rewrite(made.lake, "matches", OfGateway("gw-1"))
    reader = MatchTable(made.lake, lambda: 0.0)
    assert {name: _of_others(reader, name) for name in NAMES} == others
    merge_matches(table(made.lake, "matches"))
    reader = MatchTable(made.lake, lambda: 0.0)
    for name in NAMES:
        assert [row for chunk in made.read(reader, name, START, 5) for row in chunk] == others[name]


def _of_others(reader: MatchTable, name: str) -> list[Row]:
    bounds = ChunkBounds(1, 10**9)
    position, found = START, []
    while (chunk := reader.chunk(name, position, bounds)).notifications or chunk.position != position:
        position = chunk.notifications[0].next if chunk.notifications else chunk.position
        found += [(one.next, one.match.seq) for one in chunk.notifications if one.match.gw != "gw-1"]
    return found


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_file_that_cannot_be_read_stays_alone_and_is_named(tmp_path: Path, damage: str) -> None:
    lake = Lake(str(tmp_path))
    for number in range(1, 6):
        write_batch(lake, number, [match(seq=number)])
    path = tmp_path / "subscriptions" / "matches" / "batch=000000000003" / "part-0.parquet"
    content = path.read_bytes()
    if damage == "other":
        path.write_bytes((path.parents[1] / "batch=000000000002" / path.name).read_bytes())
        write_batch(lake, 3, [match(seq=3), match(seq=3)])
        path.write_bytes(content)
    else:
        path.unlink()
        if damage == "cut":
            path.write_bytes(content[:-20])
    (line,) = merge_matches(table(lake, "matches"))
    assert "000000000003" in line
    assert "restore the file, or remove the manifest" in line
    assert [batch.id for batch in table(lake, "matches").live()] == [
        "000000000001-000000000002",
        "000000000003",
        "000000000004-000000000005",
    ]
    if damage != "other":
        path.write_bytes(content)
        assert merge_matches(table(lake, "matches")) == []
        assert [batch.id for batch in table(lake, "matches").live()] == ["000000000001-000000000005"]


def test_ids() -> None:
    one, two = "000000000001", "000000000002"
    assert match_span(one) == (one, one, one)
    assert match_span(f"{one}-{two}") == (one, two, f"{one}-{two}")
    for id in ("abc", "1", "9" * 12, "compact-1", "\u0663" * 12, f"{two}-{one}", f"{one}-{one}", f"{one}-", f"{one}-x"):
        assert match_span(id) is None, id
    spans = match_spans([one, two, f"{one}-{two}", "000000000003", "compact-1"])
    assert [span.id for span in spans] == [f"{one}-{two}", "000000000003"]
