"""Parts of the change log in bounded form: ranges, what is missing, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.history import log_page
from lamplighter.gateway.history.log_page import LogPage, LogRange, page_of
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.log.tail import LINE_BYTES_MAX, TAIL_BYTES_MAX, LogTail
from lamplighter.gateway.settings import LogSettings, Settings
from tests.support.gateway_parts import FakeClock, recovered_runner, update

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))
CRAMPED = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=1))


async def filled(data: Path, count: int, settings: Settings = SMALL) -> Place:
    """A log of so many commits, each in a segment of its own."""
    async with recovered_runner(data, settings=settings) as runner:
        for number in range(count):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
            await runner.log_keeper.turn()
        return runner.log.tail.acknowledged


def found(data: Path, newest: Place, **wanted: Any) -> LogPage:
    return page_of(History(data, FakeClock()), LogRange(**wanted), newest)


def names(page: LogPage) -> list[str]:
    return [json.loads(bytes(record))["record"] for record in page.records]


def sequences(page: LogPage) -> list[int]:
    return [int(name.partition("/")[2]) for name in names(page)]


async def test_a_range_has_the_records_from_one_place_to_another(tmp_path: Path) -> None:
    newest = await filled(tmp_path, 25)
    assert newest == (1, 25)
    assert sequences(found(tmp_path, newest)) == list(range(1, 26))
    assert sequences(found(tmp_path, newest, begin=(1, 3), to=(1, 5))) == [3, 4, 5]
    assert sequences(found(tmp_path, newest, begin="3", to="1/5")) == [3, 4, 5]
    assert sequences(found(tmp_path, newest, after=(1, 23))) == [24, 25]
    assert sequences(found(tmp_path, newest, last=4)) == [22, 23, 24, 25]
    assert sequences(found(tmp_path, newest, last=4, to=(1, 9))) == [6, 7, 8, 9]
    assert sequences(found(tmp_path, newest, last=4, begin=(1, 24))) == [24, 25]
    with pytest.raises(ChangeLogError, match="no record 99 is kept"):
        found(tmp_path, newest, begin="99")


async def test_records_that_are_not_acknowledged_are_not_shown(tmp_path: Path) -> None:
    await filled(tmp_path, 9)
    page = found(tmp_path, (1, 7))
    assert (sequences(page), page.newest, page.next) == (list(range(1, 8)), "1/7", None)
    assert sequences(found(tmp_path, (1, 7), last=2)) == [6, 7]
    assert sequences(found(tmp_path, (1, 7), begin=(1, 6), to=(1, 9))) == [6, 7]


async def test_a_page_ends_at_its_limits_and_tells_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = await filled(tmp_path, 12)
    monkeypatch.setattr(log_page, "RECORDS_MAX", 5)
    page = found(tmp_path, newest)
    assert (sequences(page), page.next) == ([1, 2, 3, 4, 5], "1/6")
    monkeypatch.setattr(log_page, "PAGE_BYTES_MAX", 2 * len(page.records[0]) + 50)
    page = found(tmp_path, newest, begin="1/6")
    assert (sequences(page), page.next) == ([6, 7], "1/8")
    assert sequences(found(tmp_path, newest, last=5)) == [11, 12]
    monkeypatch.setattr(log_page, "PAGE_BYTES_MAX", 1)
    page = found(tmp_path, newest, after=(1, 7))
    assert (sequences(page), page.next) == ([8], "1/9")


async def test_removed_records_are_told(tmp_path: Path) -> None:
    newest = await filled(tmp_path, 35, CRAMPED)
    oldest = segments(tmp_path / "log")[0].begin
    assert oldest > (1, 1)
    page = found(tmp_path, newest, begin=(1, 1))
    [missing] = page.missing
    assert (missing.first, missing.last) == ("1/1", f"1/{oldest[1] - 1}")
    assert missing.reason.startswith(
        f"the records behind 1/0 were removed to free space; the oldest that is kept is 1/{oldest[1]}"
    )
    assert sequences(page) == list(range(oldest[1], newest[1] + 1))
    assert found(tmp_path, newest, last=2).missing == ()
    assert found(tmp_path, newest, last=999).missing == page.missing


async def test_the_records_on_both_sides_of_damage_are_shown(tmp_path: Path) -> None:
    newest = await filled(tmp_path, 25)
    [damaged] = [one for one in segments(tmp_path / "log") if one.begin == (1, 6)]
    data = bytearray(damaged.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.path.write_bytes(data)
    for wanted in ({}, {"last": 25}):
        page = found(tmp_path, newest, **wanted)
        assert sequences(page) == [*range(1, 6), *range(7, 26)]
        [missing] = page.missing
        assert (missing.first, missing.last) == ("1/6", "1/6")
        assert missing.reason.startswith("damaged behind record 1/5")
        assert str(tmp_path) not in missing.reason
    page = found(tmp_path, newest, last=3)
    assert (sequences(page), page.missing) == ([23, 24, 25], ())


async def test_a_new_epoch_continues_the_page(tmp_path: Path) -> None:
    await filled(tmp_path, 5)
    [newest] = [one for one in segments(tmp_path / "log") if one.begin == (1, 5)]
    newest.path.write_bytes(b"x" * 100)
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 'new' }")
        page = found(tmp_path, runner.log.tail.acknowledged)
        assert names(page)[-2:] == ["2/1", "2/2"]
        gap = json.loads(bytes(page.records[-2]))
        assert (gap["type"], gap["gap"]["epoch"]) == ("gap", 1)


# --- in memory ----------------------------------------------------------------------------------------------


def tail(*sizes: int) -> LogTail:
    made = LogTail()
    for number, size in enumerate(sizes, 1):
        made.append((1, number), b"x" * size)
    made.acknowledge((1, len(sizes)))
    return made


def test_lines_in_memory_are_those_behind_a_place() -> None:
    made = tail(1, 2, 3)
    assert made.behind((1, 0), 9) == [b"x", b"xx", b"xxx"]
    assert made.behind((1, 1), 1) == [b"xx"]
    assert made.behind((1, 3), 9) == []
    assert made.newest(2) == [b"xx", b"xxx"]
    assert made.newest(4) is None


def test_lines_that_are_not_acknowledged_are_not_told() -> None:
    made = tail(1, 2, 3)
    made.append((1, 4), b"later")
    assert made.behind((1, 2), 9) == [b"xxx"]
    assert made.newest(1) == [b"xxx"]


def test_the_lines_in_memory_are_bounded() -> None:
    size = LINE_BYTES_MAX
    made = tail(*[size] * (TAIL_BYTES_MAX // size + 3))
    assert made.behind((1, 2), 9) is None
    found = made.behind((1, 3), 1_000)
    assert found is not None
    assert sum(map(len, found)) == TAIL_BYTES_MAX


def test_a_long_line_is_not_kept_and_neither_is_what_is_before_it() -> None:
    made = tail(1, LINE_BYTES_MAX + 1, 3)
    assert made.behind((1, 1), 9) is None
    assert made.behind((1, 2), 9) == [b"xxx"]
    assert made.newest(2) is None


def test_a_record_that_was_written_again_is_there_once() -> None:
    made = LogTail()
    made.append((2, 1), b"first")
    made.append((2, 1), b"again")
    made.acknowledge((2, 1))
    assert made.behind((2, 0), 9) == [b"again"]
