"""A backup is complete and checked. A restore is one commit that subscribers can follow."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard

from lamplighter.engine.change_log import decode, encode
from lamplighter.engine.errors import (
    ChangeLogError,
    ConfigurationError,
    GatewayError,
    LimitExceededError,
    QueueFullError,
)
from lamplighter.engine.terms import Quad
from lamplighter.gateway.disk import TEMPORARY
from lamplighter.gateway.history import backup
from lamplighter.gateway.history.restoring import Difference, Restored, difference
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.log import snapshots as writing
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import DelayedSettings, LogSettings, Settings
from tests.properties.sparql_texts import Script, Writer
from tests.support.amounts import Amounts
from tests.support.gateway_parts import (
    START,
    FakeClock,
    FullDisk,
    application,
    dump,
    opened_log,
    reactions,
    records,
    recovered_runner,
    rewritten,
    running,
    snapshot_lines,
    time_passes,
    update,
)
from tests.support.seeds import seeds

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))


async def saved(runner: Runner, path: Path) -> backup.Backup:
    """A backup of a running gateway without gates."""
    taken = await runner.backups.take_snapshot()
    return backup.save(path, [chunk async for chunk in taken.content.chunks()])


async def compared(runner: Runner, path: Path) -> Difference:
    return await difference(await runner.backups.begin(path))


async def restored(runner: Runner, path: Path) -> Restored:
    try:
        return await runner.backups.restore(await compared(runner, path))
    finally:
        runner.backups.end()


def graphs(runner: Runner) -> list[str]:
    return sorted(runner._engine.store.graphs())


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.faults)])
async def test_the_dataset_is_that_of_the_backup_whatever_is_committed_meanwhile(
    tmp_path: Path, part: int, amounts: Amounts
) -> None:
    seed = Random().randrange(10**9)
    print(f"\nseed {seed}")
    chance = Random(seed)

    async def some(runner: Runner, script: Script, count: int) -> None:
        for _ in range(count):
            step = script.change()
            if step.kind == "update" and step.graphs is None:
                with suppress(GatewayError):
                    await update(runner, step.text)

    def check() -> None:
        assert changed > 1

    changed = 0
    async with recovered_runner(tmp_path / "data") as runner:
        script = Script(Writer(chance.choice))  # without new blank nodes, so that the dataset stays small
        script.subscriptions()
        for number in seeds(amounts.of(6), check):
            await some(runner, script, chance.randrange(20))
            path = tmp_path / f"{number}.ndjson.zst"
            await saved(runner, path)
            wanted = dump(runner), graphs(runner)
            await some(runner, script, chance.randrange(20))
            found = await compared(runner, path)
            await some(runner, script, chance.randrange(20))
            before = runner._log.sequence
            done = await runner.backups.restore(found)
            runner.backups.end()
            assert (dump(runner), graphs(runner)) == wanted
            assert (done.sequence, runner._log.sequence) == (before + 1, before + 1), "one commit"
            changed += done.removed + done.added > 0
        [last] = [record for record in records(tmp_path / "data") if record.seq == done.sequence]
        assert last.cause is not None and last.cause.kind == "restore" and not last.k
    assert verify(tmp_path / "data", FakeClock()).problems == []
    async with recovered_runner(tmp_path / "data") as runner:
        assert (dump(runner), graphs(runner)) == wanted


async def test_delayed_updates_are_those_of_the_backup_with_what_they_had_left(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path / "data", clock) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }", delay="PT60S", missed="skip")
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 2 }", at="2026-11-21T02:10:00Z")
        fired = await update(runner, "INSERT DATA { <urn:s> <urn:p> 3 }", delay="PT30S")
        clock.advance(20)
        await saved(runner, tmp_path / "b")
        await time_passes(runner, clock, 20)
        assert len(runner._delayed) == 2, "one has fired since"
        later = await update(runner, "INSERT DATA { <urn:s> <urn:p> 4 }", delay="PT1S")

        done = await restored(runner, tmp_path / "b")
        assert (done.removed, done.added, done.cancelled, done.delayed) == (1, 0, 3, 3)
        left = {p.timer.update[-4:-2]: p for p in runner._delayed.pending.values()}
        now_us = clock.boottime_us()
        assert [left[n].due_us and left[n].due_us - now_us for n in (" 1", " 2", " 3")] == [40e6, None, 10e6]
        assert left[" 2"].at == START + timedelta(minutes=10)
        assert [left[n].timer.missed for n in (" 1", " 3")] == ["skip", "run"]
        assert not {fired.delayed, later.delayed} & set(runner._delayed.pending), "new ids"
        [commit, *others] = [r for r in records(tmp_path / "data") if r.cause and r.cause.kind == "restore"]
        assert [r.type for r in others] == ["cancel"] * 3 + ["timer"] * 3
        assert {r.cause for r in others} == {commit.cause}
        await time_passes(runner, clock, 10)
        assert dump(runner) == [b'<urn:s> <urn:p> "3"^^<http://www.w3.org/2001/XMLSchema#integer> .']
        await time_passes(runner, clock, 30)
        assert len(dump(runner)) == 2


async def test_applications_react_to_a_restore_behind_it_and_before_its_delayed_updates(tmp_path: Path) -> None:
    mirror = application(
        "mirror",
        {
            "updates": {
                "COPY": {"sparql": "INSERT DATA { ?s <urn:copy> 1 }", "forcedBindings": {"s": {"type": "uri"}}}
            },
            "queries": {"Q": {"sparql": "SELECT ?s { ?s <urn:p> 1 }"}},
            "extended": {"lamplighter": {"aggregators": {"m": {"query": "Q", "added": "COPY"}}}},
        },
    )
    async with recovered_runner(tmp_path / "data", applications=[mirror]) as runner:
        await update(runner, "CLEAR ALL", delay="PT1H")
        await update(runner, "INSERT DATA { <urn:a> <urn:p> 1 }")
        await saved(runner, tmp_path / "b")
        await update(runner, "DELETE DATA { <urn:a> <urn:p> 1 }")
        before = runner._log.sequence
        done = await restored(runner, tmp_path / "b")
        kinds = [(r.type, r.cause.kind) for r in records(tmp_path / "data")[before:] if r.cause]
        assert kinds == [
            ("commit", "restore"),
            ("commit", "application"),
            ("cancel", "restore"),
            ("timer", "restore"),
        ]
        assert reactions(tmp_path / "data")[-1] == ("mirror/m/added", done.sequence)
        expected = dump(runner)
    async with recovered_runner(tmp_path / "data", applications=[mirror]) as runner:
        assert dump(runner) == expected
        assert len(reactions(tmp_path / "data")) == 2


async def test_a_delayed_reaction_of_many_rows_is_in_a_backup_too(tmp_path: Path) -> None:
    """Its text is longer than that of one request may be."""
    rows, clock = 900, FakeClock()
    copying = application(
        "copying",
        {
            "updates": {
                "COPY": {
                    "sparql": "INSERT { ?s <urn:copy> ?o } WHERE { ?s <urn:p> ?o }",
                    "forcedBindings": {"s": {"type": "uri"}},
                    "delay": "PT5S",
                }
            },
            "queries": {"Q": {"sparql": "SELECT ?s { ?s <urn:p> 1 }"}},
            "extended": {"lamplighter": {"aggregators": {"c": {"query": "Q", "added": "COPY"}}}},
        },
    )
    async with recovered_runner(tmp_path / "data", clock, [copying]) as runner:
        await update(runner, f"INSERT DATA {{ {' '.join(f'<urn:s{number}> <urn:p> 1 .' for number in range(rows))} }}")
        await saved(runner, tmp_path / "b")
        await restored(runner, tmp_path / "b")
        await time_passes(runner, clock, 5)
        assert len(dump(runner)) == 2 * rows


async def test_a_file_is_checked_to_its_end(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        await update(runner, "INSERT DATA { <urn:a> <urn:p> 1 , 2 }")
        await saved(runner, tmp_path / "b")
    content = (tmp_path / "b").read_bytes()
    for size in range(len(content)):
        (tmp_path / "b").write_bytes(content[:size])
        with pytest.raises(ChangeLogError, match="damaged: "):
            backup.check(tmp_path / "b")
    with pytest.raises(ChangeLogError, match="damaged"):
        backup.save(tmp_path / "c", [content[:-2]])
    assert not list(tmp_path.glob("c*")), "neither the file nor a part of it"
    (tmp_path / "c").write_bytes(b"another")
    with pytest.raises(ChangeLogError, match="damaged"):
        backup.save(tmp_path / "c", [content[:-2]])
    assert (tmp_path / "c").read_bytes() == b"another"
    assert backup.save(tmp_path / "c", [content[:9], content[9:]]).quads == 2
    with pytest.raises(ChangeLogError, match="No such file"):
        backup.save(tmp_path / "none" / "c", [content])
    rewritten(tmp_path / "c", [], v=2)
    with pytest.raises(ConfigurationError, match="newer program"):
        backup.check(tmp_path / "c")


async def test_lines_that_do_not_belong_together_are_no_backup(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        for number in range(300):
            await update(runner, f"INSERT DATA {{ <urn:a> <urn:p> {number} }}")
        await saved(runner, tmp_path / "b")
    head, one, two, end = (decode(line) for line in snapshot_lines(tmp_path / "b"))
    assert end.snapshot is not None
    foreign = msgspec.structs.replace(two, seq=two.seq + 1)
    fewer = msgspec.structs.replace(end, snapshot=msgspec.structs.replace(end.snapshot, quads=299))
    for found, said in (
        ([head, one, two, end], ""),
        ([head, two, one, end], "line 2 is not the one that belongs there"),
        ([head, one, end], "line 3 is not"),
        ([one, two, end], "line 1 is not"),
        ([head, one, two], "breaks off"),
        ([head, one, foreign, end], "line 3 is of another snapshot"),
        ([head, one, two, fewer], "it has 300 quads and should have 299"),
        ([head, one, two, end, end], "there is data after its end"),
    ):
        (tmp_path / "b").write_bytes(zstandard.compress(b"".join(map(encode, found))))
        if said:
            with pytest.raises(ChangeLogError, match=said):
                backup.check(tmp_path / "b")
        else:
            assert backup.check(tmp_path / "b").quads == 300


async def test_terms_are_taken_as_the_store_knows_them(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        await update(runner, "INSERT DATA { <urn:a> <urn:p> 1 }")
        await saved(runner, tmp_path / "b")
        integer = "http://www.w3.org/2001/XMLSchema#integer"
        rewritten(tmp_path / "b", [Quad("<urn:a>", "<urn:p>", f'"{text}"^^<{integer}>') for text in ("01", "02")])
        done = await restored(runner, tmp_path / "b")
        assert (done.removed, done.added) == (0, 1)
        assert dump(runner)[1] == f'<urn:a> <urn:p> "2"^^<{integer}> .'.encode()
        rewritten(tmp_path / "b", [Quad("<urn:a>", "<urn:p>", "no term")])
        with pytest.raises(GatewayError):
            await restored(runner, tmp_path / "b")
        assert len(dump(runner)) == 2


async def test_without_a_gateway_the_backup_is_made_from_the_folder_which_stays_as_it_is(tmp_path: Path) -> None:
    clock = FakeClock()
    data = tmp_path / "data"

    async with recovered_runner(data, clock, settings=SMALL) as runner:
        for number in range(25):
            await update(runner, f"INSERT DATA {{ GRAPH <urn:g> {{ <urn:s> <urn:p> {number} }} }}", request_id="r")
            await update(runner, f"INSERT DATA {{ GRAPH <urn:g> {{ <urn:s> <urn:p> {number} }} }}")
            await runner.log_keeper.turn()
        await update(runner, "CLEAR ALL", delay="PT60S")
        await update(runner, "CREATE GRAPH <urn:empty>")
        with pytest.raises(ConfigurationError, match="a gateway is using it"):
            list(backup.offline(data, clock, print))
        expected = dump(runner)

    clock.reboot("boot-2", off_s=10, uptime_s=5)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    told: list[str] = []
    made = backup.save(tmp_path / "b", backup.offline(data, clock, told.append))
    assert (made.quads, made.timers, told) == (25, 1, [])
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    clock.advance(1000)
    async with recovered_runner(tmp_path / "other", clock) as runner:
        await update(runner, "INSERT DATA { <urn:x> <urn:p> 1 . GRAPH <urn:h> { <urn:x> <urn:p> 1 } }")
        await restored(runner, tmp_path / "b")
        assert dump(runner) == expected
        assert graphs(runner) == ["<urn:empty>", "<urn:g>"]
        [pending] = runner._delayed.pending.values()
        assert pending.due_us == clock.boottime_us() + 45_000_000


async def test_from_a_damaged_folder_what_is_left_is_saved_and_the_damage_told(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async with recovered_runner(data, settings=SMALL) as runner:
        for number in range(8):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
            await runner.log_keeper.turn()
    segments(data / "log")[5].path.write_bytes(b"")
    told: list[str] = []
    made = backup.save(tmp_path / "b", backup.offline(data, FakeClock(), told.append))
    assert made.quads == 5 and made.place.endswith("/1/5")
    assert len(told) == 1 and "damaged behind record 1/5" in told[0]


async def test_only_one_backup_at_a_time_is_restored_and_too_many_delayed_updates_are_refused(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        for _ in range(3):
            await update(runner, "CLEAR ALL", delay="PT1H")
        await saved(runner, tmp_path / "b")
        found = await compared(runner, tmp_path / "b")
        with pytest.raises(QueueFullError, match="another backup"):
            await runner.backups.begin(tmp_path / "b")
        runner.backups.end()
        assert (await runner.backups.restore(await compared(runner, tmp_path / "b"))).delayed == 3
        runner.backups.end()
        assert len(found.timers) == 3
    few = Settings(delayed=DelayedSettings(pending_max=2))
    async with recovered_runner(tmp_path / "other", settings=few) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        with pytest.raises(LimitExceededError, match=r"delayed\.pending_max = 2"):
            await restored(runner, tmp_path / "b")
        assert runner._log.sequence == 1


async def test_a_restore_that_the_disk_did_not_take_is_done_by_the_next_one(tmp_path: Path) -> None:
    for writes in range(5):
        data, disk, clock = tmp_path / f"data-{writes}", FullDisk(), FakeClock()
        runner = Runner(Settings(), opened_log(data, clock, disk=disk))
        runner.recover()
        async with running(runner):
            await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
            for _ in range(2):
                await update(runner, "CLEAR ALL", delay="PT1H")
            await saved(runner, tmp_path / "b")
            wanted = dump(runner)
            await update(runner, "INSERT DATA { <urn:s> <urn:p> 2 }")
            found = await compared(runner, tmp_path / "b")
            disk.left = writes
            with pytest.raises(ChangeLogError, match="No space"):
                await runner.backups.restore(found)
            runner.backups.end()
            if writes == 0:
                assert (len(dump(runner)), len(runner._delayed)) == (2, 2), "nothing was changed"
            disk.left = None
            await restored(runner, tmp_path / "b")
            assert (dump(runner), len(runner._delayed)) == (wanted, 2)


async def test_a_crash_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        left = tmp_path / "data" / "snapshots" / f"restore-1{TEMPORARY}"
        left.write_bytes(b"x")
        assert not writing.snapshots(left.parent)
    async with recovered_runner(tmp_path / "data"):
        assert not left.exists()
