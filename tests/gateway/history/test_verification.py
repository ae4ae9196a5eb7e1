"""Verification reports each fault with its place and a cure, and reports nothing in a good folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard

from lamplighter.engine.change_log import SegmentName, decode, encode, seal_name
from lamplighter.engine.terms import Quad
from lamplighter.gateway.history.findings import Report
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.log import snapshots as writing
from lamplighter.gateway.log.reader import seal_of, segments
from lamplighter.gateway.log.snapshots import read_snapshot, snapshots
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import LogSettings, Settings
from lamplighter.gateway.state.knowledge import snapshot_state
from tests.support.amounts import Amounts
from tests.support.commands import command
from tests.support.gateway_parts import FakeClock, lines, recovered_runner, update
from tests.support.seeds import seeds

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))
CRAMPED = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=1))


def verified(data: Path) -> Report:
    return verify(data, FakeClock())


async def fill(runner: Runner, first: int, count: int) -> None:
    for number in range(first, first + count):
        await update(runner, f"INSERT DATA {{ GRAPH <urn:g{number % 3}> {{ <urn:s> <urn:p> {number} }} }}")
        if number % 5 == 0:
            await update(runner, "CLEAR ALL", delay="PT1H", request_id=f"r-{number}")
        await runner.log_keeper.turn()


@pytest.fixture(scope="module")
async def whole(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sealed segments, two snapshots, and a segment that is being written with some frames.

    anyio_backend: coroutine fixtures of tests that are no coroutines name it.
    """
    data = tmp_path_factory.mktemp("whole")
    async with recovered_runner(data, settings=SMALL) as runner:
        await fill(runner, 1, 25)
        for number in range(40):
            await update(runner, f"INSERT DATA {{ <urn:live> <urn:p> {number} , '{number * 7919:x}' }}")
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(whole, tmp_path / "data")


def good(report: Report) -> bool:
    return not report.problems and not report.notes


def test_a_whole_folder_is_good_and_its_figures_are_told(data: Path) -> None:
    read: list[tuple[str, int, int]] = []
    report = verify(data, FakeClock(), lambda *progress: read.append(progress))
    assert good(report), (report.problems, report.notes)
    assert (report.records, report.first, report.last) == (70, (1, 1), (1, 70))
    assert (report.segments, report.sealed) == (len(segments(data / "log")), len(segments(data / "log")) - 1)
    assert report.snapshots == [snapshot.place for snapshot in snapshots(data / "snapshots")]
    assert (report.replayed, report.quads) == (70, 25 + 80)
    assert {name.partition("/")[0] for name, _, _ in read} == {"log", "snapshots", "replay log"}
    assert all(0 <= done <= total for _, done, total in read)
    assert [done for _, done, _ in read] == sorted(done for _, done, _ in read)


async def test_an_empty_folder_is_good(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path):
        pass
    assert good(verified(tmp_path))


async def test_a_folder_is_good_while_the_gateway_works_and_after_it_was_killed(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await fill(runner, 1, 13)
        assert good(verified(tmp_path))
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 'live' }")
        assert good(verified(tmp_path))
    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        await fill(runner, 14, 12)
    assert good(verified(tmp_path))


async def test_evicted_beginnings_are_fine_and_gaps_are_listed(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=CRAMPED) as runner:
        await fill(runner, 1, 35)
    report = verified(tmp_path)
    assert report.problems == []
    assert report.first is not None and report.first > (1, 1)
    assert any("the records from 1/" in note and "bytes_max" in note for note in report.notes)


def kinds(data: Path) -> dict[str, list[Path]]:
    sealed = [segment for segment in segments(data / "log") if segment.is_sealed]
    return {
        "identity": [data / "identity"],
        "sealed segment": [sealed[0].path, sealed[10].path],
        "seal": [data / "log" / seal_name(sealed[0].name), data / "log" / seal_name(sealed[10].name)],
        "live segment": [segments(data / "log")[-1].path],
        "snapshot": [snapshot.path for snapshot in snapshots(data / "snapshots")],
    }


def read(path: Path) -> object:
    """What a file says to whoever reads it; None if that cannot be told."""
    if "snapshots" in path.parts:
        head, quads = writing.read_snapshot(path)
        return encode(head), list(quads)
    return lines(path) if path.name.endswith(".zst") else path.read_bytes()


@pytest.mark.parametrize("kind", ["identity", "sealed segment", "seal", "live segment", "snapshot"])
def test_a_flipped_bit_is_told_with_its_file_wherever_it_is(data: Path, kind: str, amounts: Amounts) -> None:
    seed = Random().randrange(10**9)
    print(f"\nseed {seed}")
    chance = Random(seed)
    told = tried = 0

    def check() -> None:
        assert tried > 5 and told > 0.9 * tried

    for path in kinds(data)[kind]:
        content = path.read_bytes()
        says = read(path)
        ends = [0, len(content) - 1]
        for _ in seeds(amounts.of(22), check):
            place = ends.pop() if ends else chance.randrange(len(content))
            tried += 1
            flipped = bytearray(content)
            flipped[place] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            report = verified(data)
            named = [problem for problem in report.problems if path.stem in str(problem) or path.name in str(problem)]
            if named:
                told += 1
                assert all(problem.cure and problem.what for problem in report.problems)
                continue
            if kind == "live segment" and any(path.name in note and "unreadable tail" in note for note in report.notes):
                told += 1
                continue
            # zstd has bits that nobody reads; then no record is another one.
            assert kind in ("live segment", "snapshot"), (place, report)
            assert read(path) == says, (place, report)
        path.write_bytes(content)
        assert good(verified(data))


def test_a_file_that_is_cut_short_is_told(data: Path) -> None:
    for kind, paths in kinds(data).items():
        for path in paths:
            content = path.read_bytes()
            for size in (0, len(content) // 2, len(content) - 1):
                path.write_bytes(content[:size])
                report = verified(data)
                if kind == "live segment" and size == 0:
                    # An empty file is what a start may leave; that records were there is nowhere else.
                    assert report.last == (1, 30)
                else:
                    assert not good(report), (path, size)
            path.write_bytes(content)


def missing_segment(data: Path) -> None:
    segment = segments(data / "log")[7]
    segment.path.unlink()
    (data / "log" / seal_name(segment.name)).unlink()


def missing_seal(data: Path) -> None:
    (data / "log" / seal_name(segments(data / "log")[7].name)).unlink()


def another_name(data: Path) -> None:
    segment = segments(data / "log")[7]
    segment.path.rename(data / "log" / str(SegmentName(1, 500, 500)))


def forged_segment(data: Path) -> None:
    """As whole as any other, with a record that says something else; only the chain tells."""
    segment = segments(data / "log")[7]
    [record] = [msgspec.json.decode(line, type=dict) for line in lines(segment.path)]
    changed = next(decode(line) for line in lines(segment.path))
    changed = msgspec.structs.replace(changed, ts="2026-11-21T03:00:00.000000Z")
    assert record["ts"] != changed.ts
    content = zstandard.compress(encode(changed))
    seal = seal_of(segment)
    assert seal is not None
    segment.path.write_bytes(content)
    forged = msgspec.structs.replace(seal, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (data / "log" / seal_name(segment.name)).write_bytes(msgspec.json.encode(forged) + b"\n")


def foreign_identity(data: Path) -> None:
    (data / "identity").write_text("gw-00000000\n")


def cursor_beyond_the_end(data: Path) -> None:
    (data / "shipped.json").write_text('{"epoch":1,"last":71}')


def broken_cursor(data: Path) -> None:
    (data / "shipped.json").write_text('{"epoch":1,')


def snapshot_of_the_future(data: Path) -> None:
    newest = snapshots(data / "snapshots")[-1]
    rewritten(newest.path, lambda quads: quads, place=(1, 99))
    newest.path.rename(newest.path.with_name(str(SegmentName(1, 99))))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (missing_segment, "the records behind 1/8 are missing"),
        (missing_seal, "the seal of a sealed segment is missing"),
        (another_name, "it begins with record 1/9"),
        (forged_segment, "the chain is broken"),
        (foreign_identity, "it says 'gw-00000000'"),
        (cursor_beyond_the_end, "1/71 was shipped, and the log ends before"),
        (broken_cursor, "shipped.json: cannot be read"),
        (snapshot_of_the_future, "the log ends with record 1/70, before this snapshot"),
    ],
)
def test_what_is_wrong_is_said(data: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(data)
    told = [str(problem) for problem in verified(data).problems]
    assert any(said in problem for problem in told), told


def rewritten(
    path: Path, change: Callable[[list[Quad]], list[Quad]], state: object = None, place: tuple[int, int] | None = None
) -> None:
    """Makes a snapshot another one that is as whole."""
    head, batches = read_snapshot(path)
    quads = change([quad for batch in batches for quad in batch])
    assert head.snapshot is not None
    if place is not None:
        head = msgspec.structs.replace(head, epoch=place[0], seq=place[1])
    names = head.graphs.created if head.graphs else ()
    bare = msgspec.structs.replace(head, snapshot=None, graphs=None)
    told = head.snapshot.state if state is None else msgspec.json.encode(state)
    with path.open("wb") as out:
        writing.write(out, bare, names, bytes(told), [quads])


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda quads: quads[1:], "it lacks"),
        (lambda quads: [*quads, Quad("<urn:x>", "<urn:p>", '"never said"')], 'it has <urn:x> <urn:p> "never said"'),
        (lambda quads: [*quads[1:], Quad("<urn:x>", "<urn:p>", '"1"', "<urn:h>")], "it has other graphs"),
    ],
)
def test_a_snapshot_that_is_whole_and_lies_is_found_out(
    data: Path, which: int, change: Callable[[list[Quad]], list[Quad]], said: str
) -> None:
    path = snapshots(data / "snapshots")[which].path
    rewritten(path, change)
    found = [problem for problem in verified(data).problems if problem.path == path]
    assert any(said in problem.what for problem in found), found


def test_delayed_updates_request_ids_and_applications_are_compared_too(data: Path) -> None:
    path = snapshots(data / "snapshots")[1].path
    state = snapshot_state(read_snapshot(path)[0])
    assert len(state.delayed.pending) > 2 and state.requests
    fewer = msgspec.structs.replace(state.delayed, pending=state.delayed.pending[1:])
    for changed, said in (
        (msgspec.structs.replace(state, delayed=fewer), "other delayed updates"),
        (msgspec.structs.replace(state, requests=state.requests[:-1]), "other request ids"),
        (msgspec.structs.replace(state, applications={"a": "1"}), "the applications"),
    ):
        rewritten(path, lambda quads: quads, changed)
        [problem] = verified(data).problems
        assert said in problem.what
    rewritten(path, lambda quads: quads, state)
    assert good(verified(data))


async def test_torn_tails_are_told_as_such_and_so_is_what_a_start_made_of_them(data: Path) -> None:
    live = segments(data / "log")[-1].path
    live.write_bytes(live.read_bytes()[:-3])
    report = verified(data)
    assert report.problems == []
    [note] = report.notes
    assert live.name in note and "unreadable tail" in note and "behind record 1/69" in note

    async with recovered_runner(data, settings=Settings()) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 'again' }")
    report = verified(data)
    assert report.problems == []
    [note] = report.notes
    assert live.name in note and "goes on behind record 1/69" in note


async def test_damage_in_the_middle_is_told_before_a_start_and_its_gap_after_it(data: Path) -> None:
    live = segments(data / "log")[-1].path
    content = bytearray(live.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 3] = b"\x00\xff\x00"
    live.write_bytes(content)
    [problem] = verified(data).problems
    assert problem.path == live and "behind record 1/" in problem.place and "new epoch" in problem.cure

    async with recovered_runner(data, settings=Settings()) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 'again' }")
    report = verified(data)
    assert report.problems == []
    assert report.last == (2, 2)
    assert any("the records from 1/" in note and "on are lost" in note for note in report.notes)
    assert any("set aside by an earlier start" in note for note in report.notes)


def test_behind_damage_the_next_snapshot_and_what_follows_are_checked_all_the_same(data: Path) -> None:
    segment = segments(data / "log")[3].path
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 4
    segment.write_bytes(content)
    older, newer = snapshots(data / "snapshots")
    report = verified(data)
    [problem] = report.problems
    assert problem.path == segment and "restore the shipped copy" in problem.cure
    assert (report.quads, report.replayed) == (25 + 80, 3 + 70 - older.sequence)
    rewritten(newer.path, lambda quads: quads[1:])
    [_, lie] = verified(data).problems
    assert lie.path == newer.path and "it lacks" in lie.what
    older.path.write_bytes(b"")
    newer.path.write_bytes(b"")
    assert any(
        "next start" in problem.cure and "behind record 1/3" in problem.place for problem in verified(data).problems
    )


def test_a_lasting_problem_is_accepted_until_its_file_has_another(data: Path, tmp_path: Path) -> None:
    sealed = segments(data / "log")
    flip(sealed[3].path)
    (data / "log" / seal_name(sealed[12].name)).unlink()
    (data / "shipped.json").write_text("{")  # this one has a cure
    done = command("verify", "--data", data)
    assert done.returncode == 1 and "accept that it stays lost with `lamplighter verify --accept`" in done.stdout, done
    done = command("verify", "--accept", "--yes", "--data", data)
    assert done.returncode == 1 and "accepted 2 lasting problems\n" in done.stdout, "one is left to mend"
    (data / "shipped.json").unlink()

    moved = Path(shutil.move(data, tmp_path / "moved"))
    done = command("verify", "--data", moved)
    [segment, seal] = [line for line in done.stdout.splitlines() if line.startswith("accepted")]
    assert sealed[3].path.name in segment and f"on {datetime.now(UTC).date()}" in segment and "missing" in seal
    assert done.returncode == 0 and done.stdout.endswith("verdict    good\n"), done
    report = verified(moved)
    assert report.problems == [] and report.accepted_problems[0].path == f"log/{sealed[3].path.name}"

    log = moved / "log"
    flip(log / sealed[5].path.name)
    done = command("verify", "--accept", "--yes", "--json", "--data", moved)
    assert done.returncode == 0 and len(json.loads(done.stdout)["accepted_now"]) == 1, done
    assert len(verified(moved).accepted_problems) == 3, "those of before, too"
    again = log / sealed[3].path.name
    again.write_bytes(again.read_bytes()[:1])
    assert [problem.path.name for problem in verified(moved).problems] == [again.name], "it has other damage now"

    (moved / "damage-accepted.json").write_text("{")
    report = verified(moved)
    assert len(report.problems) == 3 and any("damage-accepted.json: cannot be read" in note for note in report.notes)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_an_identity_without_a_log_is_a_problem(data: Path, tmp_path: Path) -> None:
    for folder in ("log", "snapshots"):
        shutil.rmtree(data / folder)
        (data / folder).mkdir()
    [problem] = verified(data).problems
    assert "its log is gone" in str(problem) and "restore a backup" in str(problem)
