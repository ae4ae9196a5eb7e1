"""Plays: updates and time at known moments, for gateways that are killed anywhere in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lamplighter.engine.change_log import Record
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.state.applications import Application
from tests.support.amounts import Amounts
from tests.support.gateway_parts import (
    START,
    FakeClock,
    due_times,
    idle,
    lines,
    put_lines,
    reactions,
    records,
    recovered_runner,
    runner_over,
    segments,
    time_passes,
    update,
)


@dataclass(frozen=True)
class Step:
    """At so many seconds after the start an update, or nothing but the time."""

    at_s: float
    sparql: str | None = None
    delay: str | None = None


async def play(runner: Runner, clock: FakeClock, steps: Sequence[Step]) -> None:
    """Takes the steps; those that were taken already, as clock and request ids tell, change nothing."""
    await time_passes(runner, clock)
    for number, step in enumerate(steps):
        left = step.at_s - (clock.now - START).total_seconds()
        await time_passes(runner, clock, max(left, 0.0))
        if step.sparql is not None:
            await update(runner, step.sparql, request_id=f"step-{number}", delay=step.delay)
            await idle(runner)


def essence(log: Sequence[Record]) -> list[object]:
    """The records without what is drawn at random: ids of timers, labels of blank nodes, order of rows."""
    set_by = {record.timer.id: record.seq for record in log if record.timer}
    found: list[object] = []
    for record in log:
        cause, timer = record.cause, record.timer
        found.append(
            (
                (record.type, record.epoch, record.seq, record.boottime_us, record.request, record.graphs),
                cause and (cause.kind, set_by.get(cause.id, cause.id), cause.seq),
                [
                    sorted(" ".join("_:" if t and t[0] == "_" else t or "" for t in q) for q in part)
                    for part in (record.d, record.a, record.k)
                ],
                timer and (sorted(timer.update.split(";\n")), timer.delay_us, timer.at),
                record.cancel and set_by[record.cancel],
            )
        )
    return found


def cut(source: Path, target: Path, count: int) -> FakeClock:
    """A data folder as a kill behind the first `count` records leaves it, and the clock of that moment."""
    put_lines(target, [line for segment in segments(source) for line in lines(segment)][:count])
    (target / "identity").write_bytes((source / "identity").read_bytes())
    clock = FakeClock()
    if count:
        clock.advance((records(source)[count - 1].boottime_us - clock.boottime_us()) / 1_000_000)
    return clock


async def killed_anywhere(
    tmp_path: Path,
    applications: Sequence[Application],
    steps: Sequence[Step],
    total: int,
    amounts: Amounts,
    kind: str | None = None,
) -> list[Record]:
    """Plays once as a whole, and once for a kill behind each record, or some of them; the log comes to be the same.

    total: the reactions of applications. kind: only kills around records with a cause of this kind. Returns the log.
    """
    clock, whole = FakeClock(), tmp_path / "whole"
    async with recovered_runner(whole, clock, applications) as runner:
        await play(runner, clock, steps)
        assert runner.figures.status()["status"] in ("ok", "degraded"), "some applications have a reaction that fails"
        pending = due_times(runner)
    log = records(whole)
    expected = essence(log)
    assert len(reactions(whole)) == total
    assert max(Counter(reactions(whole)).values()) == 1
    causes = [record.cause and record.cause.kind for record in log]
    counts = range(len(log) + 1)
    for count in amounts.some(
        [count for count in counts if kind is None or kind in causes[max(count - 2, 0) : count + 1]]
    ):
        part = tmp_path / str(count)
        clock = cut(whole, part, count)
        for _ in range(2):
            runner = runner_over(part, clock, applications)
            runner.recover()
            runner.close()
            recovered = essence(records(part))
            assert recovered == expected[: len(recovered)], f"recovered from {count} records"
        following = log[len(recovered)] if len(recovered) < len(log) else None
        assert following is None or following.cause is None or following.cause.kind != "application", (
            f"a reaction is missing after the recovery from {count} records"
        )
        async with recovered_runner(part, clock, applications) as runner:
            assert essence(records(part)) == recovered, f"a second recovery adds nothing, {count} records"
            await play(runner, clock, steps)
            assert due_times(runner) == pending
        assert essence(records(part)) == expected, f"went on from {count} records"
    return log
