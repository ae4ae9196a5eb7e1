"""Recovery: replaying the change log gives the state from before the kill."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine.errors import ChangeLogError, GatewayError, UnknownDelayedError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.damage import Acceptance, accept_damage, read_damage
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import LogSettings, Settings
from lamplighter.gateway.state.request_ids import Accepted
from tests.properties.sparql_texts import Case, cases
from tests.support.amounts import AMOUNTS
from tests.support.event_loops import run_in_new_loop
from tests.support.gateway_parts import (
    CLIENT,
    START,
    FakeClock,
    due_times,
    dump,
    lines,
    put_lines,
    records,
    recovered_runner,
    runner_over,
    segments,
    time_passes,
    update,
)

P = "<http://e/p>"


def state(runner: Runner) -> dict[str, object]:
    """All that a restart must not change. Damage and cut tails are other tests' business."""
    status = runner.figures.status()
    return {
        "dump": dump(runner),
        "graphs": sorted(str(graph) for graph in runner._engine.store.native.named_graphs()),
        "pending": due_times(runner),
        "table": runner.delayed_updates(),
        "requests": runner._knowledge.request_ids.state(),
        **{name: status[name] for name in ("gateway", "epoch", "sequence", "quads", "delayed", "problems")},
    }


def restarted(data: Path, clock: FakeClock) -> dict[str, object]:
    """The state after a start over that folder, which adds nothing to the log."""
    before = [path.read_bytes() for path in segments(data)]
    runner = runner_over(data, clock)
    runner.recover()
    found = state(runner)
    runner.close()
    assert [path.read_bytes() for path in segments(data)] == before
    return found


async def test_dataset_sequence_and_graphs(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(
            runner,
            f'INSERT DATA {{ <http://e/a> {P} 1.50, "x\\ny"@en GRAPH <http://e/g> {{ <http://e/b> {P} 2 }} }}',
        )
        await update(runner, "CREATE GRAPH <http://e/empty> ; CREATE GRAPH <http://e/gone>")
        await update(runner, "DROP GRAPH <http://e/gone>")
        await update(runner, f"DELETE {{ GRAPH <http://e/g> {{ ?s {P} 2 }} }} WHERE {{ GRAPH ?g {{ ?s {P} 2 }} }}")
        before = state(runner)
    assert before["sequence"] == 4
    assert before["graphs"] == ["<http://e/empty>", "<http://e/g>"]
    assert restarted(tmp_path, clock) == before
    async with recovered_runner(tmp_path, clock) as runner:
        assert (await update(runner, f"INSERT DATA {{ <http://e/c> {P} 3 }}")).sequence == 5


async def test_blank_nodes_and_the_values_of_functions_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, f"INSERT DATA {{ _:a {P} _:b . _:b {P} [] }}")
        await update(
            runner,
            f"INSERT {{ [] {P} ?v }} WHERE {{ VALUES ?f {{ 1 2 }} "
            "BIND(CONCAT(STRUUID(), STR(NOW()), STR(RAND())) AS ?v) }",
        )
        before = dump(runner)
    assert len(before) == 4
    assert restarted(tmp_path, clock)["dump"] == before
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, f"INSERT DATA {{ _:a {P} 1 }}")
        assert len(dump(runner)) == 5, "a new blank node, not one that was there"


async def test_a_retry_after_the_restart_has_no_second_effect_and_the_same_answer(tmp_path: Path) -> None:
    count = (
        "DELETE { <http://e/n> <http://e/p> ?n } INSERT { <http://e/n> <http://e/p> ?m } "
        "WHERE { OPTIONAL { <http://e/n> <http://e/p> ?n } BIND(COALESCE(?n, 0) + 1 AS ?m) }"
    )
    at = "2030-01-01T00:00:00Z"
    clock = FakeClock()

    async def ask(runner: Runner) -> list[Accepted]:
        return [
            await update(runner, count, request_id="now"),
            await update(runner, count, request_id="later", delay="PT10S"),
            await update(runner, count, request_id="at", at=at),
            await update(runner, "DELETE DATA { <http://e/no> <http://e/p> 1 }", request_id="nothing"),
        ]

    async with recovered_runner(tmp_path, clock) as runner:
        answers = await ask(runner)
        assert await ask(runner) == answers
        written = records(tmp_path)
    assert [answer.sequence for answer in answers] == [1, 2, 3, 4]
    for _ in range(2):
        async with recovered_runner(tmp_path, clock) as runner:
            assert await ask(runner) == answers
            assert records(tmp_path) == written
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock, 10)
        assert await ask(runner) == answers, "also when it has happened"
    async with recovered_runner(tmp_path, clock) as runner:
        assert await ask(runner) == answers
        assert [line.split()[2] for line in dump(runner)] == [b'"2"^^<http://www.w3.org/2001/XMLSchema#integer>']


async def test_a_refused_request_may_be_sent_again_with_its_id(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        with pytest.raises(GatewayError):
            await update(runner, "DROP GRAPH <http://e/g>", request_id="r")
        await update(runner, "CREATE GRAPH <http://e/g>")
        assert (await update(runner, "DROP GRAPH <http://e/g>", request_id="r")).sequence == 2


async def test_pending_cancelled_and_fired_timers(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for name, delay in (("fired", "PT1S"), ("pending", "PT1H"), ("cancelled", "PT1H"), ("later", "PT20S")):
            accepted = await update(runner, f"INSERT DATA {{ <http://e/{name}> {P} 1 }}", delay=delay)
            if name == "cancelled":
                assert accepted.delayed
                await runner.updates.cancel(accepted.delayed, CLIENT)
        at = await update(runner, f"INSERT DATA {{ <http://e/at> {P} 1 }}", at="2026-11-21T02:00:10Z")
        await time_passes(runner, clock, 5)
        before = state(runner)
    assert [sequence for sequence, _, _ in due_times_of(before)] == [2, 5, at.sequence]
    assert restarted(tmp_path, clock) == before
    clock.advance(3600)
    async with recovered_runner(tmp_path, clock) as runner:
        await time_passes(runner, clock)
        causes = Counter((r.cause.kind, r.cause.seq) for r in records(tmp_path) if r.cause and r.cause.seq)
        assert causes == {("timer", 1): 1, ("timer", 2): 1, ("timer", 5): 1, ("timer", at.sequence): 1}
        assert len(dump(runner)) == 4
        before = state(runner)
    assert before["pending"] == []
    assert restarted(tmp_path, clock) == before


def due_times_of(found: dict[str, object]) -> list[tuple[int, object, object]]:
    pending = found["pending"]
    assert isinstance(pending, list)
    return pending


async def test_an_update_without_effect_and_id_leaves_no_record(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        assert (await update(runner, f"DELETE DATA {{ <http://e/a> {P} 1 }}")).sequence == 0
        assert (await update(runner, f"INSERT DATA {{ <http://e/a> {P} 1 }}")).sequence == 1
        assert (await update(runner, f"INSERT DATA {{ <http://e/a> {P} 1 }}")).sequence == 2, "asserted again: kept"
        assert [(len(r.a), len(r.k)) for r in records(tmp_path)] == [(1, 0), (0, 1)]


async def test_a_torn_tail_costs_only_the_update_that_nobody_was_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, f"INSERT DATA {{ <http://e/a> {P} 1 }}", request_id="a")
        before = state(runner)
        await update(runner, f"INSERT DATA {{ <http://e/b> {P} 1 }}", request_id="b")
    assert "torn tail" not in caplog.text
    (segment,) = segments(tmp_path)
    segment.write_bytes(segment.read_bytes()[:-3])
    runner = runner_over(tmp_path, clock)
    recovery = runner.recover()
    assert recovery.cut_bytes > 0
    assert "torn tail cut off" in caplog.text
    assert state(runner) == before
    runner.close()
    async with recovered_runner(tmp_path, clock) as runner:
        assert (await update(runner, f"INSERT DATA {{ <http://e/b> {P} 1 }}", request_id="b")).sequence == 2


async def test_damage_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, f"INSERT DATA {{ <http://e/a> {P} 1 }}", delay="PT10S")
        for number in range(3):
            await update(runner, f"INSERT DATA {{ <http://e/b> {P} {number} }}")
    (segment,) = segments(tmp_path)
    content = lines(segment)
    put_lines(tmp_path, [*content[:2], content[2].replace(b"1", b"2"), content[3]])
    async with recovered_runner(tmp_path, clock) as runner:
        status = runner.figures.status()
        assert (status["status"], status["epoch"], status["sequence"]) == ("damaged", 2, 1)
        assert "damaged" in status["problems"][0]
        assert len(dump(runner)) == 1
        await time_passes(runner, clock, 10)
        assert len(dump(runner)) == 2, "a timer of the old epoch"
        before = state(runner)
    found = restarted(tmp_path, clock)
    assert "damaged" in found["problems"][0], "until an operator accepts it"
    assert found == before
    accept_damage(tmp_path, Disk(), Acceptance("2026-11-23T10:00:00Z", "root", read_damage(tmp_path)))
    assert restarted(tmp_path, clock)["problems"] == []


async def test_strict_recovery_refuses_to_start_and_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        for number in range(4):
            await update(runner, f"INSERT DATA {{ <http://e/b> {P} {number} }}")
    (segment,) = segments(tmp_path)
    content = lines(segment)
    put_lines(tmp_path, [*content[:2], content[2].replace(b"2", b"3"), content[3]])
    before = {path: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    strict = Settings(log=LogSettings(recovery="strict"))
    for _ in range(2):
        runner = runner_over(tmp_path, clock, settings=strict)
        with pytest.raises(ChangeLogError, match="strict"):
            runner.recover()
        runner.close()
        assert {path: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before


@pytest.mark.faults
@settings(max_examples=AMOUNTS.of(60))
@given(
    case=cases(),
    choices=st.lists(st.sampled_from(["now", "id", "delay", "at", "cancel", "pass"]), min_size=8, max_size=8),
    data=st.data(),
)
def test_a_restart_at_any_point_changes_nothing(case: Case, choices: list[str], data: st.DataObject) -> None:
    texts = [step.text for step in case.steps if step.kind == "update"]
    cut = data.draw(st.integers(0, len(texts)), label="restart before")

    async def scenario(folder: Path) -> None:
        clock = FakeClock()

        async def play(runner: Runner, first: int, last: int) -> None:
            for number in range(first, last):
                choice, text = choices[number % len(choices)], texts[number]
                clock.advance(1)
                members: dict[str, str] = {}
                if choice == "id":
                    members["request_id"] = f"r-{number}"
                elif choice == "delay":
                    members["delay"] = "PT2S"
                elif choice == "at":
                    members["at"] = START.replace(hour=START.hour + 1, second=number).isoformat()  # not due here
                elif choice == "cancel" and runner.delayed_updates():
                    with suppress(UnknownDelayedError):  # it is due, and may be done before this has its turn
                        await runner.updates.cancel(runner.delayed_updates()[0]["id"], CLIENT)
                elif choice == "pass":
                    await time_passes(runner, clock, 1)
                try:
                    await runner.updates.update(UpdateCall(text, CLIENT, **members))  # type: ignore[arg-type]
                except GatewayError:
                    continue  # refused, without effect

        async with recovered_runner(folder, clock) as runner:
            await play(runner, 0, cut)
            await time_passes(runner, clock)  # so that nothing happens between the look and the end
            before = state(runner)
        assert restarted(folder, clock) == before
        async with recovered_runner(folder, clock) as runner:
            await play(runner, cut, len(texts))
            await time_passes(runner, clock, 30)
            after = state(runner)
        assert restarted(folder, clock) == after

    with tempfile.TemporaryDirectory() as folder:
        run_in_new_loop(scenario(Path(folder)))
