"""The index of past values is made beside the requests, and never in their way."""

from __future__ import annotations

import shutil
from pathlib import Path

from lamplighter.engine.access import EVERY
from lamplighter.gateway.clock import since_1970_us
from lamplighter.gateway.history.charts import Chart, ChartRange, chart_of
from lamplighter.gateway.history.series_index import FOLDER
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import LogSettings, Settings
from lamplighter.ontology import vocabulary as v
from tests.support.gateway_parts import FakeClock, recovered_runner, update

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=3))
CRAMPED = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=3, bytes_max=1))


async def write(runner: Runner, count: int, first: int = 0) -> None:
    """So many values, each in a segment of its own."""
    for number in range(first, first + count):
        text = f"DELETE {{ <urn:o> <{v.HAS_SIMPLE_RESULT}> ?x }} INSERT {{ <urn:o> <{v.HAS_SIMPLE_RESULT}> {number} }} "
        await update(runner, f"{text} WHERE {{ OPTIONAL {{ <urn:o> <{v.HAS_SIMPLE_RESULT}> ?x }} }}")
        await runner.log_keeper.turn()


def chart(data: Path, clock: FakeClock) -> Chart:
    now = since_1970_us(clock.now)
    found = chart_of(data, ChartRange("<urn:o>", now - 10**9, now + 10**6, 100, EVERY, (9, 0), now))
    assert found is not None
    return found


def indexed(data: Path) -> int:
    return len(list((data / FOLDER).iterdir())) if (data / FOLDER).exists() else 0


async def test_sealed_segments_get_an_index_and_nothing_else_is_done(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        await write(runner, 5)
        before = chart(tmp_path, clock)
        assert indexed(tmp_path) == 0
        for _ in range(3):
            await runner.history_keeper.turn()
        assert indexed(tmp_path) == 1  # of all that were sealed
        assert chart(tmp_path, clock) == before and [point[1] for point in before.points] == [0, 1, 2, 3, 4]
        started = runner._reader
        runner.history_keeper._reader = None  # type: ignore[assignment] - a turn with nothing to do starts no process
        await runner.history_keeper.turn()
        runner.history_keeper._reader = started
        await write(runner, 1)
        await runner.history_keeper.turn()
        assert indexed(tmp_path) == 2


async def test_a_start_makes_what_an_older_version_or_a_kill_has_not(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        await write(runner, 4)
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        await runner.log_keeper.turn()
        (tmp_path / FOLDER).mkdir()
        (tmp_path / FOLDER / "1-000000000001-000000000001.idx.new").write_bytes(b"half of it")
        await runner.history_keeper.turn()
        assert indexed(tmp_path) == 1
        assert [point[1] for point in chart(tmp_path, clock).points] == [0, 1, 2, 3]


async def test_an_index_goes_with_the_segments_that_retention_removes(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=CRAMPED) as runner:
        for number in range(12):
            await write(runner, 1, number)
            await runner.history_keeper.turn()
        for _ in range(3):
            await runner.history_keeper.turn()
        kept = [segment for segment in segments(tmp_path / "log") if segment.is_sealed]
        assert runner.log_keeper.evicted and 0 < indexed(tmp_path) <= len(kept)
        values = [point[1] for point in chart(tmp_path, clock).points]
        assert values and values[0] > 0 and values[-1] == 11
        assert [gap["reason"] for gap in chart(tmp_path, clock).gaps] == ["removed"]


async def test_a_start_does_not_need_the_folder_which_is_made_again_where_it_is_lost(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=SMALL) as runner:
        assert not (tmp_path / FOLDER).exists()  # on a full or broken disk it could not be made
        for number in range(2):
            await write(runner, 3, 3 * number)
            await runner.history_keeper.turn()
            assert indexed(tmp_path) == 1
            shutil.rmtree(tmp_path / FOLDER)
        await write(runner, 1, 6)
        assert runner.log_keeper.used > 0
        assert [point[1] for point in chart(tmp_path, clock).points] == list(range(7))
