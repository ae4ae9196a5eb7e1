"""The history of a data folder: each record, and the dataset and state as of that record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from lamplighter.engine.change_log import Cause, Gap, Record
from lamplighter.engine.change_log.rdf_patch import patches
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, GatewayError
from lamplighter.gateway.history.records import Found, History, Place
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.log.snapshots import snapshots
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import LogSettings, Settings
from tests.properties.sparql_texts import Script, Writer
from tests.support.amounts import Amounts
from tests.support.gateway_parts import START, FakeClock, dump, records, recovered_runner, runner_over, update
from tests.support.oracle import REFUSALS, Oracle, parsed_dump
from tests.support.rdf_patch_reader import applied

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))
CRAMPED = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=1))


def history(data: Path) -> History:
    return History(data, FakeClock())


def contents(data: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time, so that a reader that writes is found out."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(data.rglob("*"))}


def places(found: list[Record]) -> list[Place]:
    return [(record.epoch, record.seq) for record in found]


async def insert(runner: Runner, first: int, count: int) -> None:
    """So many updates, and a turn of the log keeper after each."""
    for number in range(first, first + count):
        await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}", request_id=f"r-{number}")
        await runner.log_keeper.turn()


async def filled(data: Path, count: int, settings: Settings = SMALL) -> None:
    """A log of so many commits, each in a segment of its own, with snapshots."""

    async with recovered_runner(data, settings=settings) as runner:
        await insert(runner, 1, count)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.faults) for part in (1, 2))])
async def test_the_dataset_as_of_every_record_is_the_one_that_the_oracle_had(
    tmp_path: Path, part: int, amounts: Amounts
) -> None:
    seed = Random().randrange(10**9)
    print(f"\nseed {seed}")
    chance = Random(seed)
    oracle = Oracle()
    expected: dict[Place, tuple[set[object], set[object]]] = {}

    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        script = Script(Writer(chance.choice))
        script.subscriptions()
        while len(expected) < amounts.of(60) or len(snapshots(tmp_path / "snapshots")) < 2:
            step = script.change()
            if step.kind != "update" or step.graphs is not None:
                continue
            with suppress(GatewayError):
                await update(runner, step.text)
            with suppress(*REFUSALS):
                oracle.update(step.text)
            expected[runner._log.epoch, runner._log.sequence] = (set(oracle.quads()), set(oracle.graphs()))
            if chance.random() < 0.5:
                await runner.log_keeper.turn()
    expected.pop((1, 0), None)
    past = history(tmp_path)
    for place, (quads, graphs) in expected.items():
        replay = past.replay(place)
        assert set(parsed_dump(replay.engine.dump())) == quads, place
        assert set(map(str, replay.engine.store.graphs())) == graphs, place
    last = max(expected)
    assert applied("".join(patches(past.records()))) == expected[last][0]
    assert [place for place in places(list(past.records())) if place in expected] == sorted(expected)


async def test_everything_else_that_was_known_is_known_again(tmp_path: Path) -> None:
    seen: dict[Place, object] = {}

    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        for number in range(1, 25):
            pending = await update(runner, "CLEAR ALL", delay="PT1H", request_id=f"d-{number}")
            if number % 3 == 0:
                await runner.updates.cancel(pending.delayed or "", Cause("http", "test"))
            requests = runner._knowledge.request_ids.state()
            timers = [record for record, _ in runner._delayed.state().pending]
            seen[runner._log.epoch, runner._log.sequence] = timers, requests, {"app": "1"}
            await runner.log_keeper.turn()
            if number == 1:
                runner._knowledge.register.restore({"app": "1"})
    past = history(tmp_path)
    for place, expected in seen.items():
        known = past.replay(place).knowledge.state()
        applications = known.applications if place > snapshots(tmp_path / "snapshots")[0].place else {"app": "1"}
        assert ([record for record, _ in known.delayed.pending], known.requests, applications) == expected, place


async def test_reading_changes_nothing(tmp_path: Path) -> None:
    await filled(tmp_path, 25)
    before = contents(tmp_path)
    past = history(tmp_path)
    list(past.records())
    past.replay((1, 13))
    past.at(START)
    past.newest(3, lambda record: True)
    assert contents(tmp_path) == before


async def test_records_from_a_place_to_a_place(tmp_path: Path) -> None:
    await filled(tmp_path, 12)
    past = history(tmp_path)
    assert places(list(past.records())) == [(1, number) for number in range(1, 13)]
    assert places(list(past.records((1, 3), (1, 7)))) == [(1, number) for number in range(4, 8)]
    assert places(past.newest(3, lambda record: record.seq % 2 == 0)) == [(1, 8), (1, 10), (1, 12)]
    assert places(past.newest(3, lambda record: record.seq % 2 == 0, (1, 9), (1, 11))) == [(1, 10)]
    assert places(past.newest(99, lambda record: True)) == [(1, number) for number in range(1, 13)]


async def test_the_latest_record_that_holds_a_text(tmp_path: Path) -> None:
    await filled(tmp_path, 12)
    past = history(tmp_path)
    decoded: list[int] = []

    def wanted(record: Record) -> bool:
        decoded.append(record.seq)
        return record.seq != 11

    def latest(holding: str, *range_: Place | None) -> Place | None:
        decoded.clear()
        found = past.latest(holding, wanted, *range_)
        return None if found is None else (found.epoch, found.seq)

    assert latest("<urn:s>") == (1, 12)
    assert decoded == [12]
    assert latest('"r-7"') == (1, 7)
    assert decoded == [7], "the others do not hold it"
    assert latest("<urn:s>", (1, 3), (1, 11)) == (1, 10)
    assert decoded == [11, 10]
    assert latest("<urn:s>", (1, 10), (1, 11)) is None
    assert decoded == [11]
    assert latest("<urn:other>") is None


async def test_a_log_that_is_sealed_while_its_latest_record_is_looked_for_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path, 3)
    past = history(tmp_path)
    listed = past.segments()
    stale = [*listed[:-1], replace(listed[-1], path=tmp_path / "log" / "gone")]
    answers = iter([stale, listed])
    monkeypatch.setattr(past, "segments", lambda: next(answers))
    found = past.latest("<urn:s>", lambda record: True)
    assert found is not None and found.seq == 3


async def test_a_log_that_is_sealed_and_goes_on_under_the_reader_s_hands_is_read_once_and_whole(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        found = []
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        runner._log.end_segment()
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 2 }")
        for record in history(tmp_path).records():
            found.append(record)
            if len(found) < 10:
                await insert(runner, 10 + len(found), 1)  # what was listed is sealed, and more comes
        assert places(found) == [(1, number) for number in range(1, len(found) + 1)]
        assert len(found) >= 3


async def test_what_went_to_make_room_is_an_error_that_names_what_is_left(tmp_path: Path) -> None:
    await filled(tmp_path, 35, CRAMPED)
    past = history(tmp_path)
    first = past.first()
    assert first is not None and first > (1, 1)
    with pytest.raises(ChangeLogError, match=f"were removed to free space; the oldest that is kept is 1/{first[1]}"):
        list(past.records((1, 0)))
    assert places(list(past.records()))[0] == first
    oldest = snapshots(tmp_path / "snapshots")[0].place
    assert past.oldest() == oldest
    assert past.replay(oldest).place == oldest
    with pytest.raises(ChangeLogError, match=f"the oldest record that can be restored is 1/{oldest[1]}"):
        past.replay((1, oldest[1] - 1))
    assert any(record.gap for record in past.records())


async def test_eviction_under_the_reader_s_hands_is_no_silent_gap(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await insert(runner, 1, 30)
    async with recovered_runner(tmp_path, settings=CRAMPED) as runner:
        reading = history(tmp_path).records()
        assert next(reading).seq == 1
        await runner.log_keeper.turn()
        with pytest.raises(ChangeLogError, match="were removed to free space"):
            list(reading)


async def test_a_damaged_snapshot_is_told_and_the_one_before_it_taken(tmp_path: Path) -> None:
    await filled(tmp_path, 25)
    older, newer = snapshots(tmp_path / "snapshots")
    told: list[ChangeLogError] = []

    def quads() -> list[bytes]:
        return sorted(history(tmp_path).replay((1, 22), told.append).engine.dump().splitlines())

    expected = quads()
    assert not told
    content = bytearray(newer.path.read_bytes())
    content[len(content) // 2] ^= 4
    newer.path.write_bytes(content)
    assert quads() == expected
    assert [error.path for error in told] == [newer.path]
    older.path.write_bytes(content)
    assert quads() == expected, "from the beginning of the log"


async def test_damage_ends_the_reading_with_its_place(tmp_path: Path) -> None:
    await filled(tmp_path, 12)
    segment = segments(tmp_path / "log")[5].path
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 4
    segment.write_bytes(content)
    past = history(tmp_path)
    found = []
    with pytest.raises(ChangeLogError, match=r"damaged behind record 1/5.*lamplighter verify"):
        found.extend(past.records())
    assert places(list(past.records(None, (1, 5)))) == [(1, number) for number in range(1, 6)]
    assert past.replay((1, 11)).place == (1, 11), "a snapshot stands behind the damage"


async def two_epochs(data: Path) -> None:
    """Epoch 1 lost what was behind its record 3; epoch 2 has the gap record and one more."""
    sizes: list[int] = []

    async with recovered_runner(data) as runner:
        for number in range(1, 8):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
            sizes.append(runner._log.size)
    [segment] = segments(data / "log")
    content = bytearray(segment.path.read_bytes())
    content[(sizes[2] + sizes[3]) // 2] ^= 0xFF
    segment.path.write_bytes(content)
    async with recovered_runner(data) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 100 }")


async def test_a_number_is_that_of_the_newest_epoch_that_has_it(tmp_path: Path) -> None:
    await two_epochs(tmp_path)
    past = history(tmp_path)
    assert places(list(past.records())) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert [past.place(text) for text in ("1", "1/1", "3", "2/2")] == [(2, 1), (1, 1), (1, 3), (2, 2)]
    assert [past.replay(place).engine.quad_count for place in ((1, 2), (1, 3), (2, 1), (2, 2))] == [2, 3, 3, 4]
    with pytest.raises(ChangeLogError, match=r"no record 99 is kept; the log has 1/1 to 2/2"):
        past.place("99")
    with pytest.raises(ChangeLogError, match=r"there is no record 1/99; the log has 1/1 to 2/2"):
        past.replay((1, 99))
    with pytest.raises(ChangeLogError, match=r"there is no record 2/99"):
        past.replay((2, 99))
    for text in ("", "x", "1/", "-1", "1/2/3", "١"):
        with pytest.raises(ConfigurationError, match="is not a record"):
            past.place(text)


async def test_a_time_is_that_of_the_last_record_not_after_it(tmp_path: Path) -> None:
    clock = FakeClock()

    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        for number in range(1, 6):
            await insert(runner, number, 1)
            clock.advance(10)
        clock.synchronised = False
        await insert(runner, 6, 1)
        clock.advance(10)
        clock.synchronised = True
        await insert(runner, 7, 1)
        runner._log.end_segment()
        runner.log_keeper._end_segment = lambda: None  # type: ignore[method-assign]
        clock.step(timedelta(hours=2))
        await insert(runner, 8, 1)
        clock.step(timedelta(hours=-2))
        await insert(runner, 9, 1)
    past = history(tmp_path)

    def at(seconds: float) -> Found:
        return past.at(START + timedelta(seconds=seconds))

    assert [at(seconds).place[1] for seconds in (0, 9.9, 10, 25, 30)] == [1, 1, 2, 3, 4]
    assert at(25).doubt == ""
    assert at(25).ts == "2026-11-21T02:00:20.000000Z"
    assert "not synchronised" in at(50).doubt
    assert "not synchronised" in at(45).doubt, "the next one was written by a clock that is not to be trusted"
    assert at(61).place == (1, 9)
    assert "set back" in at(61).doubt
    with pytest.raises(
        ChangeLogError, match=r"nothing from 2026-11-21T01:59:59.000000Z or before.*1/1 of 2026-11-21T02"
    ):
        at(-1)


async def test_what_was_cut_short_at_the_end_is_passed_over(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        for number in range(5):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
    [segment] = segments(tmp_path / "log")
    content = segment.path.read_bytes()
    for size in range(len(content)):
        segment.path.write_bytes(content[:size])
        past = history(tmp_path)
        found = places(list(past.records()))
        assert found == [(1, number) for number in range(1, len(found) + 1)]
        assert past.last() == (found[-1] if found else None)
        assert past.replay().place == (found[-1] if found else (1, 0))
    assert len(found) == 4


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path}: it has no change log"):
        history(tmp_path)
    runner_over(tmp_path).close()
    past = history(tmp_path)
    assert list(past.records()) == [] and past.first() is None and past.last() is None
    with pytest.raises(ChangeLogError, match="it has no records"):
        past.at(START)
    assert past.replay().place == (1, 0)


async def test_the_state_at_the_end_is_that_of_the_gateway(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await insert(runner, 1, 24)
        assert sorted(history(tmp_path).replay().engine.dump().splitlines()) == dump(runner)
        runner.backups.note_gap(Gap(1, 1, "test", 1))
        await insert(runner, 25, 1)
        assert history(tmp_path).replay().place == (1, 26)
    assert len(records(tmp_path)) == 26
    assert not list((tmp_path / "damaged").iterdir())
