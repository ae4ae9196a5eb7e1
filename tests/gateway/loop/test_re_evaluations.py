"""What the store evaluates again in one commit: its sum is bounded, and each client has a share of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.access import FULL
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.store.quad_store import Asked, SelectRun
from lamplighter.engine.terms import Bag
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.re_evaluations import LastTimes
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import application, recovered_runner, update
from tests.support.recording_sink import RecordingSink

ALICE, BOB, CAROL = (Caller(name, FULL, operator=False, registered=True) for name in ("alice", "bob", "carol"))
OF_THE_OPERATOR = {
    "queries": {"Q": {"sparql": "SELECT ?a { ?a <http://p> ?b } LIMIT 999"}},
    "updates": {"U": {"sparql": "INSERT { ?a <http://r> 1 } WHERE {}"}},
    "extended": {"lamplighter": {"aggregators": {"a": {"query": "Q", "added": "U"}}}},
}


class Sink(RecordingSink):
    error: GatewayError | None = None

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.error = error

    @property
    def sequences(self) -> list[int]:
        return [sequence for sequence, _, _ in self.told]


class Clock:
    """The processor's time, in which only evaluations take any. ms: by the number in the query; all: how often each was
    evaluated."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ms: dict[str, float] = {}
        self.evaluated: Counter[str] = Counter()

    def __call__(self) -> float:
        return self.now

    def through(self, runner: Runner) -> None:
        measure = runner._ledger.evaluations.measure_select

        def timed(asked: Asked, select: SelectRun) -> Bag:
            [number] = re.findall(r"LIMIT ([0-9]{3})\b", asked.name) or ["none"]

            def run(*check: Any) -> Bag:
                self.now += self.ms[number] / 1000
                self.evaluated[number] += 1
                found = select(*check)
                for interrupt in check:  # as between two portions of rows
                    interrupt()
                return found

            return measure(asked, run)

        runner._engine.store.around_select = timed


@asynccontextmanager
async def timed_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *apps: Any
) -> AsyncIterator[tuple[Runner, Clock]]:
    clock = Clock()
    clock.ms = {"999": 450.0, "none": 0.0}
    monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", clock)
    monkeypatch.setattr("lamplighter.gateway.workers.dry_runs.DryRuns.of_subscription", lambda *asked: None)
    settings = msgspec.convert({"limits": {"evaluation_ms_max": 500}}, Settings)
    async with recovered_runner(tmp_path, applications=list(apps), settings=settings) as runner:
        clock.through(runner)
        yield runner, clock


async def subscribe(runner: Runner, number: int, caller: Caller = ANYBODY, path: str = "p") -> Sink:
    """Nothing bounds the rows of a test but LIMIT, and the store evaluates what has it without ORDER BY."""
    sink = Sink()
    await runner.subscribe(f"SELECT ?a {{ ?a <http://{path}> ?b }} LIMIT {number}", sink, None, None, caller=caller)
    return sink


async def change(runner: Runner, number: int, path: str = "p") -> None:
    await update(runner, f"INSERT DATA {{ <http://{number}> <http://{path}> {number} }}")


async def test_a_subscription_is_refused_where_one_commit_would_wait_for_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        clock.ms |= {str(number): 60.0 for number in range(100, 110)}
        kept = [await subscribe(runner, number) for number in (100, 101, 102)]
        with pytest.raises(LimitExceededError, match=r"for 60 ms; of the 200 ms .* = 500\) this client uses 180"):
            await subscribe(runner, 103)
        assert runner.figures.status()["subscriptions"] == 3
        # The query of somebody else costs nothing more, and one that no such commit touches neither.
        kept.append(await subscribe(runner, 102))
        await subscribe(runner, 104, path="q")
        await change(runner, 1)
        assert [sink.sequences for sink in kept] == [[1]] * 4
        assert clock.evaluated["104"] == 1


async def test_a_client_may_use_as_much_as_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        clock.ms |= {str(number): 50.0 for number in range(100, 110)}
        await subscribe(runner, 100, ALICE)
        await subscribe(runner, 101, ALICE)
        with pytest.raises(LimitExceededError, match="this client uses 100, and 100 are free"):
            await subscribe(runner, 102, ALICE)
        await subscribe(runner, 103, BOB)
        await subscribe(runner, 104)


async def test_the_dearest_of_the_client_that_uses_most_ends_when_the_data_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        clock.ms |= {"100": 20.0, "101": 30.0, "102": 1.0, "103": 60.0}
        alice = [await subscribe(runner, 100, ALICE), await subscribe(runner, 101, ALICE)]
        shared = await subscribe(runner, 100, BOB)
        bob, carol = await subscribe(runner, 102, BOB), await subscribe(runner, 103, CAROL)
        await change(runner, 1)
        clock.ms["101"] = 140.0
        await change(runner, 2)  # once may be the machine
        await change(runner, 3)
        assert alice[1].sequences == [1, 2, 3]
        await change(runner, 4)
        assert [sink.sequences for sink in (alice[0], shared, bob, carol)] == [[1, 2, 3, 4]] * 4
        assert alice[1].sequences == [1, 2, 3] and clock.evaluated["101"] == 4
        assert isinstance(alice[1].error, LimitExceededError)
        assert "more than two fifths of limits.evaluation_ms_max = 500" in str(alice[1].error)
        assert [sink.error for sink in (alice[0], shared, bob, carol)] == [None] * 4
        await change(runner, 5)
        assert clock.evaluated["101"] == 4, "it has ended"
        assert sum("subscription ended" in record.getMessage() for record in caplog.records) == 1


async def test_one_commit_waits_for_no_more_than_half_of_the_limit_and_one_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it has made of what was cheap before."""
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        numbers = range(100, 130)
        clock.ms |= {str(number): 1.0 for number in numbers}
        honest = await subscribe(runner, 100, BOB)
        sinks = [await subscribe(runner, number, ALICE) for number in numbers[1:]]
        clock.ms |= {str(number): 100.0 for number in numbers}
        clock.now = 0.0
        await change(runner, 1)
        assert 0.25 <= clock.now < 0.35
        assert honest.sequences == [1] and honest.error is None
        assert [sink.error is None for sink in sinks].count(True) == 1
        assert all(bool(sink.told) is (sink.error is None) for sink in sinks), "no notification of it follows"


async def test_what_the_operator_s_applications_have_evaluated_is_not_a_client_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed_runner(tmp_path, monkeypatch, application("app", OF_THE_OPERATOR)) as (runner, clock):
        await change(runner, 0)
        clock.ms |= {"100": 60.0, "999": 600.0}
        sink = await subscribe(runner, 100, ALICE)
        for number in range(1, 5):
            await change(runner, number)
        assert sink.sequences == [1, 2, 3, 4] and sink.error is None
        assert runner.counters.reactions == 5
        [problem] = runner.figures.status()["problems"]
        assert problem.startswith("application/app degraded: a query takes longer than limits.evaluation_ms_max")


async def test_what_was_interrupted_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the loop, and in a fork."""
    numbers = range(100, 120)
    for name, risky in (("loop", False), ("fork", True)):
        async with timed_runner(tmp_path / name, monkeypatch) as (runner, clock):
            clock.ms |= {str(number): 1.0 for number in numbers}
            sinks = [await subscribe(runner, number, ALICE) for number in numbers]
            clock.ms |= {str(number): 300.0 for number in numbers}
            clock.now, tried = 0.0, 0

            def exceeds(*asked: Any, **how: Any) -> bytes:
                nonlocal tried
                tried += 1
                raise LimitExceededError("too much")

            with monkeypatch.context() as patched:
                if risky:
                    patched.setattr("lamplighter.gateway.workers.dry_runs.DryRuns.risky", lambda *asked: True)
                    patched.setattr("lamplighter.gateway.workers.ad_hoc.Reader.try_here", exceeds)
                await change(runner, 1)
            assert clock.now + tried * 0.2 < 0.45, name
            assert not any(sink.error is None for sink in sinks)


async def test_the_same_text_over_other_graphs_is_another_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cheap one does not make a dear one cheap."""
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        clock.ms |= {"100": 90.0, "101": 120.0}
        await subscribe(runner, 100, ALICE)
        clock.ms["100"] = 1.0
        sparql = "SELECT ?a { ?a <http://p> ?b } LIMIT 100"
        await runner.subscribe(sparql, Sink(), ("http://g",), None, caller=ALICE)
        with pytest.raises(LimitExceededError, match=r"uses 0, and 1(10|0[89]) are free"):
            await subscribe(runner, 101, BOB)


async def test_a_query_of_an_application_is_the_operator_s_however_many_clients_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed_runner(tmp_path, monkeypatch, application("app", OF_THE_OPERATOR)) as (runner, clock):
        clock.ms["999"] = 1.0
        sinks = [await subscribe(runner, 999, ALICE) for _ in range(20)]
        aggregators = runner._aggregators
        [(owner, _)] = aggregators.subscriptions.values()
        aggregators._leave(owner)
        aggregators.subscribe(owner)
        await change(runner, 0)
        clock.ms["999"] = 600.0
        for number in range(1, 5):
            await change(runner, number)
        assert all(sink.error is None and sink.sequences == [1, 2, 3, 4, 5] for sink in sinks)
        assert runner.counters.reactions == 5


async def test_recovery_ends_nothing_and_knows_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with timed_runner(tmp_path, monkeypatch) as (runner, clock):
        clock.ms |= {str(number): 1.0 for number in range(100, 110)}
        for number in range(100, 110):
            sparql = f"SELECT ?a {{ ?a !<http://q>+ ?b FILTER(?b != {number}) }}"
            await runner.subscribe(sparql, Sink(), None, None, resume=Resume("PT5M"))
        for number in range(3):
            await change(runner, number)
    slow = Clock()
    monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", slow)
    measure = Evaluations.measure_select

    def cold(self: Evaluations, asked: Asked, select: SelectRun) -> Bag:
        def run(*check: Any) -> Bag:
            slow.now += 0.1
            return select(*check)

        return measure(self, asked, run)

    monkeypatch.setattr(Evaluations, "measure_select", cold)
    async with recovered_runner(tmp_path) as runner:
        assert len(runner._subscribers.resumables) == 10
        again = runner._ledger.evaluations.again
        handles = [handle for handle, _ in runner._subscribers.resumables.attachments()]
        prices = [again.times.price(runner._engine.describe(handle).text) for handle in handles]
        assert prices == [pytest.approx(100.0)] * 10


def test_what_is_remembered_of_evaluations_is_bounded_whatever_the_length_of_the_texts() -> None:
    times = LastTimes(3)
    texts = [f"SELECT * {{ ?s ?p {number} }} # {'long ' * 10_000}" for number in range(4)]
    for number, text in enumerate(texts[:3]):
        times.note(text, number)
    assert [times.price(text) for text in texts] == [0, 1, 2, None]
    times.note(texts[0], 5)
    assert times.price(texts[0]) == 0, "the shorter one of two"
    times.note(texts[0], 4)
    assert times.price(texts[0]) == 4
    times.begin(texts[3], 7)
    assert [times.price(text) for text in texts] == [4, None, 2, 7]
    assert all(len(key) < 100 for key in times._found)
