"""A start sets aside records and snapshots that are intact but cannot be applied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.change_log import encode
from lamplighter.engine.core import Commit, Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ChangeLogError, LimitExceededError, StoreError
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.history.records import History
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.log import writer as log_writer
from lamplighter.gateway.log.reader import ends
from lamplighter.gateway.log.reader import segments as all_segments
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import LogSettings, Settings, StoreSettings
from tests.support.gateway_parts import (
    FakeClock,
    dump,
    lines,
    put_lines,
    records,
    recovered,
    recovered_runner,
    segments,
    time_passes,
    update,
)
from tests.support.unfollowable_log import BAD, Breaks, insert, is_bad, play
from tests.support.unfollowable_log import breaks as breaks

ON_DISK = Settings(store=StoreSettings(path="store"))
STRICT = Settings(log=LogSettings(recovery="strict"))


ERRORS = [MemoryError("x"), RecursionError(), ValueError("x"), KeyError("x"), AssertionError(), OSError(5, "x")]


def subjects(runner: Runner) -> set[Term]:
    return {quad.s for quad in runner._engine.store.quads(None)}


def values(runner: Runner) -> list[int]:
    return sorted(int(quad.o[1:].partition('"')[0]) for quad in runner._engine.store.quads(None))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("settings", [Settings(), ON_DISK], ids=["memory", "disk"])
@pytest.mark.parametrize("again", ["boot-1", "boot-2"])
async def test_a_record_that_cannot_be_applied_is_set_aside_and_the_gateway_goes_on(
    tmp_path: Path, settings: Settings, again: str, error: Exception, breaks: Breaks
) -> None:
    clock = FakeClock()
    await play(tmp_path, clock, settings)
    breaks(error)

    report = verify(tmp_path, clock)
    [problem] = report.problems
    assert problem.place == "record 1/4"
    assert "cannot be applied" in problem.what
    clock.boot = again
    async with recovered_runner(tmp_path, clock, settings=settings) as runner:
        status = runner.figures.status()
        assert (status["status"], status["epoch"]) == ("damaged", 2)
        [told] = status["problems"]
        assert f"record 1/4 cannot be applied: {error!r}" in told
        assert "damaged" in told
        assert values(runner) == [2, 3]
        await update(runner, insert(7))
        await time_passes(runner, clock, 86_400)
        assert values(runner) == [2, 3, 7, 99], "a timer of the old epoch"
    [aside] = (tmp_path / "damaged").iterdir()
    assert [json.loads(line)["seq"] for line in lines(aside)] == [1, 2, 3, 4, 5, 6]
    # What is set aside is so for good, also where it could be applied again.
    for _ in range(2):
        async with recovered_runner(tmp_path, clock, settings=settings) as runner:
            assert runner.figures.status()["problems"] == [told]
            assert runner.figures.status()["epoch"] == 2
            assert values(runner) == [2, 3, 7, 99]
            await runner.log_keeper.turn()
        places = [(record.epoch, record.seq) for record in records(tmp_path)]
        assert places[:4] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert verify(tmp_path, clock).problems == []


async def test_what_is_set_aside_is_sealed_by_nobody(tmp_path: Path, breaks: Breaks) -> None:
    clock = FakeClock()
    settings = Settings(log=LogSettings(segment_bytes_max=1))
    await play(tmp_path, clock)
    breaks(MemoryError())

    async with recovered_runner(tmp_path, clock, settings=settings) as runner:
        await update(runner, insert(7))
        await runner.log_keeper.turn()
        await update(runner, insert(8))
        await runner.log_keeper.turn()
        assert runner.figures.status()["problems"][1:] == []
    found = all_segments(tmp_path / "log")
    assert [segment.name.last for segment in found if segment.name.epoch == 1] == [3]
    assert ends(found) == {1: 4}
    assert verify(tmp_path, clock).problems == []


async def test_a_record_that_cannot_be_applied_in_a_sealed_segment(tmp_path: Path, breaks: Breaks) -> None:
    clock = FakeClock()

    await play(tmp_path, clock)
    async with recovered_runner(tmp_path, clock, settings=Settings(log=LogSettings(segment_bytes_max=1))) as runner:
        await runner.log_keeper.turn()
        await update(runner, insert(7))
        await runner.log_keeper.turn()
    assert [segment.name.last for segment in all_segments(tmp_path / "log")] == [6, 7]
    breaks(MemoryError())
    async with recovered_runner(tmp_path, clock) as runner:
        assert values(runner) == [2, 3]
        await update(runner, insert(8))
    async with recovered_runner(tmp_path, clock) as runner:
        assert values(runner) == [2, 3, 8]
    assert verify(tmp_path, clock).problems == []


async def test_strict_recovery_names_record_and_cure_and_changes_nothing(tmp_path: Path, breaks: Breaks) -> None:
    clock = FakeClock()
    await play(tmp_path, clock)
    breaks(RecursionError())
    for _ in range(2):
        with pytest.raises(ChangeLogError) as caught:
            recovered(tmp_path, clock, settings=STRICT)
        assert "record 1/4 cannot be applied: RecursionError()" in str(caught.value)
        assert 'log.recovery = "strict" allows no start after damage' in str(caught.value)
    assert not list((tmp_path / "damaged").iterdir())
    assert sum(len(lines(path)) for path in segments(tmp_path)) == 6


async def test_what_fails_once_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    await play(tmp_path, clock)
    commit, left = Engine.commit, [1]

    def fails(self: Engine, delta: QuadDelta, sequence: int | None = None) -> Commit:
        if is_bad(delta) and left:
            left.pop()
            raise MemoryError
        return commit(self, delta, sequence)

    monkeypatch.setattr(Engine, "commit", fails)
    runner = recovered(tmp_path, clock)
    assert (values(runner), runner.figures.status()["problems"]) == ([2, 3, 4, 5, 6], [])
    runner.close()


async def test_a_record_that_only_the_store_cannot_write_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is written behind: the error comes records later."""
    clock = FakeClock()
    await play(tmp_path, clock)
    flush = QuadStore.flush

    def fails(self: QuadStore) -> None:
        if any(quad.s == BAD for quad in self._pending):
            raise MemoryError("Reached the buffer maximal size of 16777216")
        flush(self)

    monkeypatch.setattr(QuadStore, "flush", fails)
    runner = recovered(tmp_path, clock)
    assert values(runner) == [2, 3]
    assert "record 1/4 cannot be applied: MemoryError" in runner.figures.status()["problems"][0]
    runner.close()


async def test_a_full_disk_sets_nothing_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    await play(tmp_path, clock, ON_DISK)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lamplighter.engine.store.quad_store.write", full)
    monkeypatch.setattr(
        "lamplighter.engine.store.quad_store.disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0)
    )
    runner = recovered(tmp_path, clock, settings=ON_DISK)
    assert runner.figures.status()["problems"] == []
    assert not list((tmp_path / "damaged").iterdir())
    monkeypatch.undo()
    runner.close()


# --- terms of earlier versions ---


def nested(levels: int) -> Term:
    return "<<( <a:s> <a:p> " * levels + "<a:o>" + " )>>" * levels


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize(
    "term", [f'"{"x" * (17 * 1024 * 1024)}"', nested(720), nested(30_000)], ids=["long", "deep", "very deep"]
)
async def test_a_log_of_an_earlier_version_does_not_keep_the_gateway_from_starting(
    tmp_path: Path, term: Term, boot: str
) -> None:
    clock = FakeClock()
    await play(tmp_path, clock)
    good = records(tmp_path)
    worse = msgspec.structs.replace(good[3], a=(Quad(BAD, "<urn:p>", term),))
    put_lines(tmp_path, [encode(record).rstrip(b"\n") for record in (*good[:3], worse)])
    clock.boot = boot
    [problem] = verify(tmp_path, clock).problems
    assert "behind record 1/3" in problem.place

    with pytest.raises(ChangeLogError, match=r"after sequence 3: damaged: .* the most.*strict"):
        recovered(tmp_path, clock, settings=STRICT)
    async with recovered_runner(tmp_path, clock, settings=Settings(log=LogSettings(segment_bytes_max=1))) as runner:
        assert runner.figures.status()["status"] == "damaged"
        assert values(runner) == [2, 3]
        await update(runner, insert(7))
        await runner.log_keeper.turn()
    for _ in range(2):
        async with recovered_runner(tmp_path, clock) as runner:
            assert (runner.figures.status()["status"], values(runner)) == ("damaged", [2, 3, 7])
    assert verify(tmp_path, clock).problems == []


async def test_terms_that_earlier_versions_took_are_taken_back(tmp_path: Path) -> None:
    clock = FakeClock()
    await play(tmp_path, clock)
    good = records(tmp_path)
    deep = msgspec.structs.replace(good[3], a=(Quad(BAD, "<urn:p>", nested(200)),))
    long = msgspec.structs.replace(good[4], a=(Quad(BAD, "<urn:p>", f'"{"x" * (15 * 1024 * 1024)}"'),))
    put_lines(tmp_path, [encode(record).rstrip(b"\n") for record in (*good[:3], deep, long)])
    runner = recovered(tmp_path, clock)
    assert runner.figures.status()["problems"] == []
    assert len(dump(runner)) == 4
    runner.close()


# --- snapshots ---


@pytest.mark.parametrize("settings", [Settings(), ON_DISK], ids=["memory", "disk"])
async def test_a_snapshot_that_cannot_be_applied_is_set_aside(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()

    async with recovered_runner(tmp_path, clock, settings=settings) as runner:
        for number in (1, 2):
            await update(runner, insert(number))
            await runner.log_keeper.take_snapshot()
    fill = QuadStore.fill
    monkeypatch.setattr(QuadStore, "fill", _failing(fill, times=2))
    runner = recovered(tmp_path, clock, settings=settings)
    assert values(runner) == [1, 2]
    if settings is not ON_DISK:  # a store on disk is led back to the snapshot, and built anew only where that fails
        assert any("snapshot 1/2 cannot be applied" in problem for problem in runner.figures.status()["problems"])
        assert [path.name for path in (tmp_path / "damaged").iterdir()] == ["snapshot-1-000000000002.ndjson.zst"]
    runner.close()


def _failing(function: Callable[..., None], times: int) -> Callable[..., None]:
    left = list(range(times))

    def fails(*arguments: object) -> None:
        if left:
            left.pop()
            raise RecursionError
        function(*arguments)

    return fails


async def test_a_snapshot_has_no_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.gateway.log.snapshots._LINE_CHARACTERS", 300_000)
    monkeypatch.setattr("lamplighter.gateway.log.snapshots.LINE_BYTES_MAX", 400_000)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for number in range(12):
            await update(runner, f'INSERT DATA {{ <urn:s{number}> <urn:p> "{"x" * 100_000}" }}')
        await runner.log_keeper.take_snapshot()
    async with recovered_runner(tmp_path, clock) as runner:
        assert runner.figures.status()["problems"] == []
        assert len(dump(runner)) == 12
    assert verify(tmp_path, clock).problems == []


# --- records that would be too long ---


async def test_a_record_that_no_reader_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RECORD_BYTES_MAX", 1000)
    monkeypatch.setattr(log_writer, "RECORD_REST_BYTES_MAX", 600)
    clock = FakeClock()
    many = " ".join(f"<urn:s{number}> <urn:p> {number} ." for number in range(30))
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert(1))
        with pytest.raises(LimitExceededError, match="1000 is the most; change fewer quads"):
            await update(runner, f"INSERT DATA {{ {many} }}")
        product = "INSERT { ?s <urn:p> ?n } WHERE { ?s ?p ?o VALUES ?n { 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 } }"
        await update(runner, product, delay="PT1S")
        await time_passes(runner, clock, 1)
        assert values(runner) == [1]
        assert runner.delayed_updates() == [], "it was tried, and that is recorded"
        with pytest.raises(LimitExceededError, match="besides its quads, and 600 is the most"):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> 1 }} # {'x' * 550}", delay="PT1S")
        await update(runner, insert(2))
    async with recovered_runner(tmp_path, clock) as runner:
        assert values(runner) == [1, 2]


# --- the past, for people ---


async def test_the_past_is_told_up_to_the_record_before(tmp_path: Path, breaks: Breaks) -> None:
    clock = FakeClock()
    await play(tmp_path, clock)
    breaks(MemoryError())
    history = History(tmp_path, clock)
    with pytest.raises(StoreError, match=r"record 1/4 cannot be applied: MemoryError.*start the gateway"):
        history.replay()
    assert history.replay((1, 3)).engine.quad_count == 2
