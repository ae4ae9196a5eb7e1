"""Long steps run in slices, one at a time. Nothing of an unfinished step is visible."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import LimitExceededError, RequestSyntaxError, StoreError
from lamplighter.engine.matching import following
from lamplighter.engine.matching.query_texts import QueryTextCache
from lamplighter.engine.protocol import Priority, Results
from lamplighter.engine.terms import XSD, Quad
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.loop import time_slicer
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.time_slicer import LongError, TimeSlicer
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.monitoring.timings import LoopHoldTimer
from lamplighter.gateway.settings import LimitSettings, Settings
from tests.support.gateway_parts import CLIENT, idle, recovered_runner, runner_over, running, update
from tests.support.long_work import LONG
from tests.support.long_work import soon_long as soon_long

MANY = LONG + LONG // 10
P = "<http://p>"


@pytest.fixture(autouse=True)
def thin(monkeypatch: pytest.MonkeyPatch, soon_long: None) -> None:
    """Every pause is taken."""
    monkeypatch.setattr(time_slicer, "SLICE_S", 0.0)


@pytest.fixture
def sliced() -> Iterator[TimeSlicer]:
    found = TimeSlicer(LoopHoldTimer())
    yield found
    found.close()


def data(count: int = MANY, predicate: str = P, graph: str | None = None) -> str:
    quads = "\n".join(f"<http://s{number}> {predicate} {number} ." for number in range(count))
    return quads if graph is None else f"GRAPH {graph} {{ {quads} }}"


def insert(*parts: str) -> str:
    return f"INSERT DATA {{ {' '.join(parts or (data(),))} }}"


def contents(runner: Runner) -> set[Quad]:
    return {quad for batch in runner._engine.snapshot() for quad in batch}


class Listener:
    """A sink that adds up what it is told."""

    def __init__(self) -> None:
        self.client, self.identity, self.since, self.connection = "test", "", None, self
        self.rows: set[Any] = set()
        self.told = 0

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self.rows = set(subscription.first)

    def notify(self, notification: Notification, results: Results) -> None:
        assert results.members
        self.rows = self.rows - set(notification.removed) | set(notification.added)
        self.told += 1

    def ended(self, spuid: str, error: Exception) -> None:
        raise AssertionError(error)


async def subscribed(runner: Runner, text: str) -> Listener:
    listener = Listener()
    await runner.subscribe(text, listener, None, None)  # type: ignore[arg-type]
    return listener


# --- the mechanism ----------------------------------------------------------------------------------


async def test_loop_and_work_take_turns_and_are_never_at_it_together(sliced: TimeSlicer) -> None:
    log: list[str] = []

    def work() -> int:
        for number in range(5):
            log.append(f"work {number}")
            sliced.pause()
        return threading.get_ident()

    async def others() -> None:
        while True:
            assert not sliced.steady.is_set()
            log.append("loop")
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    assert await sliced.run(work) != threading.get_ident()
    beside.cancel()
    assert sliced.steady.is_set()
    assert [entry for entry in log if entry != "loop"] == [f"work {number}" for number in range(5)]
    assert all("loop" in pair for pair in pairwise(log))


async def test_whoever_waits_for_the_end_of_a_step_does_not_come_into_the_middle_of_the_next(
    sliced: TimeSlicer,
) -> None:
    inside = threading.Event()

    def work() -> None:
        inside.set()
        for _ in range(5):
            sliced.pause()
        inside.clear()

    found: list[bool] = []

    async def wait() -> None:
        await sliced.steady.wait()
        found.append(inside.is_set())

    async def steps() -> None:
        for _ in range(3):
            await sliced.run(work)

    stepping = asyncio.create_task(steps())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(wait())
    await asyncio.gather(stepping, waiting)
    assert found == [False]


async def test_upkeep_has_its_turns_between_two_slices_and_the_loop_between_two_turns(sliced: TimeSlicer) -> None:
    log: list[str] = []
    owed = 0

    def between() -> bool:
        nonlocal owed
        assert threading.get_ident() == loop
        log.append(f"owed {owed}")
        owed -= 1
        return owed >= 0

    def work() -> None:
        nonlocal owed
        for number in range(3):
            log.append(f"work {number}")
            owed = number
            sliced.pause()
        with sliced.beside():
            log.append("beside")

    async def others() -> None:
        while True:
            log.append("loop")
            await asyncio.sleep(0)

    loop, sliced.between = threading.get_ident(), between
    beside = asyncio.create_task(others())
    await sliced.run(work)
    beside.cancel()
    assert [entry for entry in log if entry != "loop"] == [
        *("work 0", "owed 0"),
        *("work 1", "owed 1", "owed 0"),
        *("work 2", "owed 2", "owed 1", "owed 0"),
        "beside",
    ]
    turns = log[: log.index("beside")]
    assert all("loop" in pair for pair in pairwise(turns) if pair[1].startswith("owed"))


async def test_a_slice_is_measured_by_the_clock_of_its_own_thread(
    sliced: TimeSlicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is sealed meanwhile, in a third thread, takes nothing from the loop."""
    took = dict.fromkeys([threading.get_ident()], 1000.0)
    monkeypatch.setattr(time_slicer, "thread_time", lambda: took.setdefault(threading.get_ident(), 0.0))

    def work() -> None:
        for seconds in (0.2, 0.7, 0.1):
            took[threading.get_ident()] += seconds
            sliced.pause()

    await sliced.run(work)
    assert sliced.held.busiest == pytest.approx(0.7)


async def test_the_loop_goes_on_beside_what_cannot_pause(sliced: TimeSlicer) -> None:
    went_on = threading.Event()

    def work() -> bool:
        with sliced.beside(), sliced.beside():
            return went_on.wait(60)

    running = asyncio.create_task(sliced.run(work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    went_on.set()
    assert await running


async def test_errors_come_out_and_the_next_work_is_done(sliced: TimeSlicer) -> None:
    def fails() -> None:
        sliced.pause()
        with sliced.beside():
            raise StoreError("as it is")

    for _ in range(2):
        with pytest.raises(StoreError, match="as it is"):
            await sliced.run(fails)
        assert await sliced.run(lambda: 7) == 7


async def test_a_cancelled_caller_leaves_nothing_in_the_middle(sliced: TimeSlicer) -> None:
    done: list[int] = []

    def work() -> None:
        for number in range(50):
            with sliced.beside():
                sliced.pause()
            sliced.pause()
            done.append(number)

    caller = asyncio.create_task(sliced.run(work))
    while not done:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(done) == 50
    assert sliced.steady.is_set()
    assert await sliced.run(lambda: 7) == 7


async def test_the_garbage_collector_is_as_it_was(sliced: TimeSlicer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slicer, "LONG_S", 0.0)
    seen: list[bool] = []

    def work() -> None:
        for _ in range(3):
            sliced.pause()
            seen.append(gc.isenabled())

    await sliced.run(work)
    assert seen[-1] is False
    assert gc.isenabled()
    gc.unfreeze()


def test_a_step_in_the_loop_is_told_that_it_is_too_long(sliced: TimeSlicer) -> None:
    sliced.whole = True
    with pytest.raises(LongError):
        sliced.begin(LONG + 1)
    sliced.pause()
    sliced.whole = False
    sliced.begin(LONG + 1)


# --- what the gateway does ------------------------------------------------------------------------------


def reference(*texts: str) -> set[Quad]:
    with Engine() as engine:
        for text in texts:
            engine.update(text)
        return {quad for batch in engine.snapshot() for quad in batch}


@pytest.mark.parametrize(
    "texts",
    [
        [insert()],
        [insert(), insert(data(MANY // 2))],
        [insert(), f"DELETE DATA {{ {data(MANY - 1)} }}"],
        [insert(), "DELETE WHERE { ?s ?p ?o }", insert("<http://x> <http://p> 1")],
        [insert(), *[f"DELETE {{ ?s ?p ?o }} INSERT {{ ?s <http://q{n}> ?o }} WHERE {{ ?s ?p ?o }}" for n in range(3)]],
        [
            insert(data(), data(graph="<http://g>")),
            "DROP GRAPH <http://g>",
            "COPY DEFAULT TO <http://h>",
            "CLEAR DEFAULT",
        ],
        [insert() + f"; DELETE DATA {{ {data(MANY - 1)} }}; {insert(data(7))}"],
        [insert(data(MANY, "<http://q>")), f"DELETE {{ ?s ?p 7 }} INSERT {{ {data()} }} WHERE {{ ?s ?p 7 }}"],
    ],
    ids=["insert", "again", "delete", "where", "plans", "graphs", "several", "template"],
)
async def test_long_steps_do_what_short_ones_do(tmp_path: Path, texts: list[str]) -> None:
    async with recovered_runner(tmp_path) as runner:
        plain = await subscribed(runner, "SELECT ?s ?o { ?s <http://p> ?o }")
        counted = await subscribed(runner, "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }")
        again = await subscribed(runner, "SELECT (COUNT(*) AS ?n) { ?s <http://p>|<http://q> ?o }")
        for text in texts:
            await update(runner, text)
        here = contents(runner)
        assert here == reference(*texts)
        assert plain.rows == {(quad.s, quad.o) for quad in here if quad.p == P and quad.g is None}
        [(count,)] = counted.rows
        assert count is not None and count.startswith(f'"{sum(quad.g is None for quad in here)}"')
        assert again.told
        late = await subscribed(runner, "SELECT ?s ?o { ?s <http://p> ?o }")
        assert late.rows == plain.rows
        assert not runner.figures.status()["problems"]
    async with recovered_runner(tmp_path) as runner:
        assert contents(runner) == here


async def test_nothing_is_done_in_the_middle_of_a_long_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, forks of trials and other updates see all of it or nothing."""
    seen: list[int] = []
    async with recovered_runner(tmp_path) as runner:
        await subscribed(runner, "SELECT ?s ?o { ?s <http://p> ?o }")

        async def look() -> None:
            while True:
                delta = await runner.queue.post(lambda: runner.quad_count)
                seen.append(delta)

        looking = [asyncio.create_task(look()) for _ in range(3)]
        await update(runner, insert())
        await update(runner, "CLEAR ALL")
        for task in looking:
            task.cancel()
        assert set(seen) <= {0, MANY}
        assert runner.timings.loop_held.count > 3


async def test_gates_go_on_while_a_long_step_is_under_way(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        turns, long = 0, asyncio.ensure_future(update(runner, insert()))
        while not long.done():
            turns += not runner._slicer.steady.is_set()
            await asyncio.sleep(0)
        await long
        assert turns > 3


@pytest.mark.parametrize(("subscriptions", "quads", "in_slices"), [(20, 50, True), (1, 50, False), (20, 5, False)])
async def test_few_quads_that_many_subscriptions_match_are_followed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscriptions: int, quads: int, in_slices: bool
) -> None:
    monkeypatch.setattr(following, "LONG_MATCHINGS", 100)
    monkeypatch.setattr(following, "SLICE_MATCHINGS", 20)
    async with recovered_runner(tmp_path) as runner:
        listeners = [
            await subscribed(runner, f"SELECT ?s ?o {{ ?s {P} ?o OPTIONAL {{ ?s <http://q{number}> ?x }} }}")
            for number in range(subscriptions)
        ]
        elsewhere: list[bool] = []
        follower = runner._engine._subscriptions._follower
        match = follower._match

        def noted(*arguments: Any) -> None:
            elsewhere.append(runner._slicer.elsewhere)
            match(*arguments)

        monkeypatch.setattr(follower, "_match", noted)
        for text in (insert(data(quads)), insert(data(quads)).replace("INSERT", "DELETE"), insert(data(quads))):
            await update(runner, text)
        assert elsewhere == 3 * ([True] * quads if in_slices else [False])
        rows = {(f"<http://s{number}>", f'"{number}"^^<{XSD}integer>') for number in range(quads)}
        assert all(listener.rows == rows for listener in listeners)


async def test_an_end_in_the_middle_of_a_long_step_loses_nothing(tmp_path: Path) -> None:
    runner = runner_over(tmp_path)
    runner.recover()
    async with running(runner, orderly=True):
        await subscribed(runner, "SELECT ?s ?o { ?s <http://p> ?o }")
        asked = runner.updates.update(UpdateCall(insert(), CLIENT))
        while runner._slicer.steady.is_set() or not runner.log.sequence:
            await asyncio.sleep(0)
        assert not asked.done()
    async with recovered_runner(tmp_path) as runner:
        assert contents(runner) == reference(insert())


@pytest.mark.parametrize("store", ["", "store"])
async def test_a_graph_is_replaced_in_slices_and_the_store_is_renewed_by_the_loop(tmp_path: Path, store: str) -> None:
    def graph(start: int) -> tuple[Quad, ...]:
        return tuple(Quad(f"<http://s{n}>", P, f'"{n}"', "<http://g>") for n in range(start, start + 2 * MANY))

    settings = Settings(store=Settings().store.__class__(path=store))
    async with recovered_runner(tmp_path, settings=settings) as runner:
        for start in range(0, 6 * LONG, LONG):
            await runner.updates.write_graph(GraphWrite(GraphVerb.REPLACE, "<http://g>", graph(start)), CLIENT)
            while runner._engine.store.step():
                pass
            await update(runner, f"INSERT DATA {{ <http://x> <http://p> {start} }}")
        runner._engine.store.flush()
        named = {quad for quad in contents(runner) if quad.g}
        assert named == set(graph(5 * LONG))
        assert runner._upkeep.findings == 0


async def test_blank_nodes_of_large_texts_are_never_the_same(tmp_path: Path) -> None:
    text = insert(data(), "_:x <http://q> _:x .")
    async with recovered_runner(tmp_path) as runner:
        for _ in range(3):
            await update(runner, text)
        nodes = {quad.s for quad in contents(runner) if quad.p == "<http://q>"}
        assert len(nodes) == 3
        assert {quad.o for quad in contents(runner) if quad.p == "<http://q>"} == nodes


async def test_what_is_wrong_with_a_large_text_is_told(tmp_path: Path) -> None:
    settings = Settings(limits=LimitSettings(parse_ms_max=1))
    async with recovered_runner(tmp_path / "one") as runner:
        with pytest.raises(RequestSyntaxError, match=r"line \d+, column \d+"):
            await update(runner, insert(data(), "<http://s> <http://p> ."))
        accepted = await update(runner, insert(), delay="PT1H")
        assert accepted.delayed
        with pytest.raises(RequestSyntaxError):
            await update(runner, insert(data(), "<http://s> <http://p> ."), delay="PT1H")
    async with recovered_runner(tmp_path / "two", settings=settings) as runner:
        with pytest.raises(LimitExceededError, match="parse_ms_max = 1;"):
            await update(runner, insert(data(20 * MANY)))
        assert await update(runner, "INSERT DATA { <http://s> <http://p> 1 }")


async def test_a_long_subscription_is_analysed_beside_the_loop(tmp_path: Path) -> None:
    values = " ".join(f"<http://s{number}>" for number in range(2000))
    async with recovered_runner(tmp_path) as runner:
        beside: list[bool] = []
        analysed = QueryTextCache._analyse

        def noted(*arguments: Any) -> Any:
            beside.append(runner._slicer._beside)
            return analysed(*arguments)

        with mock.patch.object(QueryTextCache, "_analyse", noted):
            listener = await subscribed(runner, f"SELECT ?s ?o {{ VALUES ?s {{ {values} }} ?s <http://p> ?o }}")
        assert beside == [True, True], "for what a trial needs to know, and for its first result"
        await update(runner, "INSERT DATA { <http://s7> <http://p> 1 }")
        await idle(runner)
        assert len(listener.rows) == 1


async def test_a_long_reaction_of_a_step_is_done_in_slices(tmp_path: Path) -> None:
    """The delta of a delayed update is long, though its text is short."""
    async with recovered_runner(tmp_path) as runner:
        await update(runner, insert())
        before = runner.timings.loop_held.count
        await update(runner, "DELETE WHERE { ?s ?p ?o }")
        await idle(runner)
        assert contents(runner) == set()
        assert runner.timings.loop_held.count - before > 3


async def test_forks_wait_until_the_dataset_is_steady(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        runner._slicer.steady.clear()
        trial = asyncio.create_task(runner._reader.trial(lambda: None))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not trial.done()
        runner._slicer.steady.set()
        await trial


async def test_a_group_ends_when_its_steps_have_taken_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for group_s, answered in ((-1.0, True), (1000.0, False)):
        monkeypatch.setattr("lamplighter.gateway.loop.executor.GROUP_S", (group_s,) * len(Priority))
        async with recovered_runner(tmp_path / str(group_s)) as runner:
            first = runner.queue.post(lambda: None)
            assert await runner.queue.post(first.done) is answered
