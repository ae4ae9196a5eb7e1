"""An exception in a step, a trial, a release or a reaction fails its request only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

import pytest

import lamplighter
from lamplighter.engine.change_log import Cause
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import BrokenEngineError, GatewayError, StoreError
from lamplighter.engine.protocol import Results
from lamplighter.gateway.loop import runner as runner_module
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.state.applications import Trigger
from lamplighter.gateway.state.resumption import AttachedSubscription
from lamplighter.gateway.workers.dry_runs import DryRun
from tests.gateway.state.test_applications import copier
from tests.support.event_loops import until
from tests.support.garbage import no_garbage_collection
from tests.support.gateway_parts import (
    FakeClock,
    dump,
    idle,
    reactions,
    records,
    recovered_runner,
    runner_over,
    time_passes,
    update,
)

ERRORS = (ValueError, RecursionError, MemoryError, KeyError, AssertionError)


class PanicException(BaseException):
    """As the native store raises it; its class cannot be imported."""


class Client:
    """Takes what it is told, until it fails."""

    client = "somebody"
    identity: str | None = None
    since: datetime | None = None

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.told: list[object] = []

    @property
    def connection(self) -> object:
        return self

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self.told.append(subscription.first)

    def resumed(self, spuid: str, attached: AttachedSubscription[Any]) -> None:
        raise AssertionError("not here")

    def taken_over(self, spuid: str, by: object) -> None:
        raise AssertionError("not here")

    def notify(self, notification: Notification, results: Results) -> None:
        if self.failing:
            raise KeyError("a client")
        self.told.append(notification.sequence)

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.told.append(error)


async def subscribed(runner: Runner, sink: Client, text: str = "SELECT * { ?s <http://p> ?o }") -> str:
    return await runner.subscribe(text, sink, None, None)


def insert(number: int) -> str:
    return f"INSERT DATA {{ <http://s{number}> <http://p> {number} }}"


def failing(error: type[BaseException]) -> Callable[..., NoReturn]:
    def fail(*arguments: Any, **members: Any) -> NoReturn:
        raise error("on purpose")

    return fail


@pytest.mark.parametrize("error", [*ERRORS, PanicException])
async def test_a_step_that_raises_fails_its_request_alone(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with recovered_runner(tmp_path) as runner:
        sink = Client()
        await subscribed(runner, sink)
        for owner, name in ((runner._log, "append"), (runner._engine, "readable"), (runner._dry_runs, "of_update")):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, failing(error))
                text = "INSERT { <http://s> <http://p> ?o } WHERE { ?s <http://p> ?o }"
                asked: list[Any] = [
                    runner.updates.update(_call(insert(1) if name == "append" else text)),
                    runner.queries.query(_parsed(), "application/json"),
                ]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert any(isinstance(answer, StoreError) for answer in answers)
                for answer in answers:
                    if not isinstance(answer, BaseException):
                        getattr(answer, "abandon", lambda: None)()
        await update(runner, insert(2))
        assert sink.told[-1] == len(sink.told) - 1
        assert len(records(tmp_path)) == len(sink.told) - 1
    assert "Traceback" in caplog.text


def _call(text: str) -> Any:
    return UpdateCall(text, Cause("http", "test"))


def _parsed() -> Any:
    from lamplighter.engine.sparql.requests import parse_query

    return parse_query("SELECT * { ?s ?p ?o }")


@pytest.mark.parametrize("error", ERRORS)
async def test_a_trial_that_raises_fails_its_request_alone(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(trial: DryRun, client: str) -> None:
        raise error("on purpose")

    monkeypatch.setattr(DryRun, "perform", run)
    text = "INSERT { ?s <http://q> ?o } WHERE { ?s <http://p>+ ?o . ?o <http://p> ?x }"
    async with recovered_runner(tmp_path) as runner:
        with pytest.raises(StoreError, match="on purpose"):
            await update(runner, text)
        await update(runner, insert(1))


async def test_a_client_that_cannot_be_told_loses_its_subscription_and_no_one_else_anything(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        good, bad, last = Client(), Client(failing=True), Client()
        for sink in (good, bad, last):
            await subscribed(runner, sink)
        assert (await update(runner, insert(1))).sequence == 1
        await idle(runner)
        await update(runner, insert(2))
        assert good.told[1:] == last.told[1:] == [1, 2]
        [_, error] = bad.told
        assert isinstance(error, StoreError)
        assert "could not be delivered" in str(error)
        assert runner._engine.subscription_count == 2


async def test_a_notification_that_cannot_be_made_ends_its_subscription_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recovered_runner(tmp_path) as runner:
        good, bad = Client(), Client()
        await subscribed(runner, good)
        spuid = await subscribed(runner, bad)
        deliver = runner._subscribers._deliver

        def failing_for_one(notification: Notification, results: Results) -> None:
            if notification.spuid == spuid:
                raise MemoryError
            deliver(notification, results)

        monkeypatch.setattr(runner._subscribers, "_deliver", failing_for_one)
        await update(runner, insert(1))
        await update(runner, insert(2))
        assert good.told[1:] == [1, 2]
        assert isinstance(bad.told[1], StoreError)
        assert len(bad.told) == 2


@pytest.mark.parametrize("error", ERRORS)
async def test_a_reaction_that_raises_is_recorded_as_done_without_effect(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications = [copier("one", "p", "q")]
    async with recovered_runner(tmp_path, applications=applications) as runner:
        with monkeypatch.context() as patched:
            patched.setattr(Trigger, "reaction", failing(error))
            await update(runner, "INSERT DATA { <http://e/s> <http://e/p> 1 }")
        await update(runner, "INSERT DATA { <http://e/t> <http://e/p> 1 }")
        assert len([quad for quad in dump(runner) if b"<http://e/q>" in quad]) == 1
    done = reactions(tmp_path)
    assert len(done) == len(set(done)) == 2
    async with recovered_runner(tmp_path, applications=applications) as runner:
        assert reactions(tmp_path) == done


@pytest.mark.parametrize("goes_on", [False, True], ids=["begins", "goes on"])
async def test_an_application_that_cannot_be_subscribed_is_stopped_and_the_others_react(
    goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications = [copier("one", "p", "q"), copier("two", "p", "r")]
    if goes_on:
        async with recovered_runner(tmp_path, applications=applications) as runner:
            await update(runner, "INSERT DATA { <http://e/s> <http://e/p> 1 }")
    subscribe = Aggregators.subscribe

    def failing_for_one(aggregators: Aggregators, application: Any) -> Any:
        if application.name == "one":
            raise KeyError("one")
        return subscribe(aggregators, application)

    with monkeypatch.context() as patched:
        patched.setattr(Aggregators, "subscribe", failing_for_one)
        async with recovered_runner(tmp_path, applications=applications) as runner:
            await update(runner, "INSERT DATA { <http://e/t> <http://e/p> 1 }")
            [problem] = runner.figures.status()["problems"]
            assert problem.startswith("application/one failed: it was stopped: ")
            lines = dump(runner)
    assert len([line for line in lines if b"<http://e/r>" in line]) == 1 + goes_on
    assert len([line for line in lines if b"<http://e/q>" in line]) == goes_on


async def test_a_delayed_update_that_makes_the_store_panic_is_done_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, insert(1), delay="PT5S")
        with monkeypatch.context() as patched:
            patched.setattr(runner._engine, "prepare", failing(PanicException))
            await time_passes(runner, clock, 6)
        assert runner.delayed_count == 0
        assert dump(runner) == []


async def test_upkeep_that_raises_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def turn(upkeep: object, quiet: bool) -> float:
        nonlocal calls
        calls += 1
        raise StoreError("the disk")

    monkeypatch.setattr(runner_module, "PAUSE_S", 0.001)
    monkeypatch.setattr("lamplighter.gateway.loop.upkeep.Upkeep.turn", turn)
    async with recovered_runner(tmp_path) as runner:
        await until(lambda: calls > 2)
        await update(runner, insert(1))


def test_what_fails_behind_the_log_names_its_cause_and_is_named_once() -> None:
    broken = behind_its_log(ValueError("x"))
    assert "ValueError('x')" in str(broken)
    assert behind_its_log(broken) is broken


async def test_an_engine_that_is_broken_ends_the_gateway_and_the_next_start_has_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_over(tmp_path)
    runner.recover()
    task = asyncio.create_task(runner.run())
    await update(runner, insert(1))
    with monkeypatch.context() as patched:
        patched.setattr(runner._engine.store, "apply", failing(MemoryError))
        asked = asyncio.ensure_future(runner.updates.update(_call(insert(2))))
        with pytest.raises(ExceptionGroup) as raised:
            await task
    assert raised.group_contains(BrokenEngineError)
    assert not asked.done(), "nobody knows before the next start whether it stands"
    asked.cancel()
    runner.close()
    async with recovered_runner(tmp_path) as runner:
        assert len(dump(runner)) == 2


# -- at every call outside of the loop ---------------------------------------------------------------------------------


class Interrupted:
    """Raises an error at the n-th call of a function of the project that is not in the loop's room."""

    def __init__(self, number: int, error: type[Exception]) -> None:
        self._left = number
        self._error = error
        self.place = ""
        """Where it was raised."""

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        file = code.co_filename
        if event != "call" or self.place or file.startswith(LOOP) or not file.startswith(PROJECT):
            return
        self._left -= 1
        if self._left == 0:
            self.place = f"{code.co_qualname} line {frame.f_lineno}"
            raise self._error("injected")


PROJECT = f"{Path(lamplighter.__file__).parent}/"
LOOP = f"{PROJECT}gateway/loop/"


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators that are closed
async def test_an_update_that_raises_at_any_call_stands_or_does_not_as_it_was_answered(tmp_path: Path) -> None:
    """With an application that reacts to it, exactly once, also across the restarts that it makes necessary."""
    applications = [copier("one", "p", "q")]
    clock = FakeClock()

    @asynccontextmanager
    async def started() -> AsyncIterator[tuple[Runner, asyncio.Task[None]]]:
        runner = runner_over(tmp_path, clock, applications)
        runner.recover()
        task = asyncio.create_task(runner.run())
        try:
            await subscribed(runner, Client(), "SELECT ?s { ?s <http://e/p> ?o }")
            yield runner, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            runner.close()

    async def test() -> None:
        number, call, broken, stood, failed, survived = 0, 0, 0, set(), set(), 0
        over = False
        while not over:
            async with started() as (runner, task):
                for _ in range(3):  # until its shape is known, so that it does not have to be read each time
                    number += 1
                    await update(runner, f"INSERT DATA {{ <http://e/s{number}> <http://e/p> 1 }}")
                    stood.add(f"<http://e/s{number}>")
                while True:
                    number += 1
                    call += 1
                    name = f"<http://e/s{number}>"
                    with no_garbage_collection(), Interrupted(call, ERRORS[call % len(ERRORS)]) as interrupted:
                        asked = asyncio.create_task(update(runner, f"INSERT DATA {{ {name} <http://e/p> 1 }}"))
                        await asyncio.wait([asked, task], return_when=asyncio.FIRST_COMPLETED)
                    over = not interrupted.place
                    if task.done():
                        broken += 1
                        asked.cancel()
                        break
                    if asked.exception():
                        failed.add(name)
                    else:
                        stood.add(name)
                        survived += not over
                    if over:
                        break
                    there = {line.split()[0].decode() for line in dump(runner) if b"<http://e/p>" in line}
                    assert stood <= there, interrupted.place
                    assert not failed & there, interrupted.place
        assert {record.epoch for record in records(tmp_path)} == {1}, "the log has no damage"
        print(f"{call} calls: {len(failed)} failed, {survived} stood all the same, {broken} ended the gateway")
        assert failed and survived and broken
        async with recovered_runner(tmp_path, clock, applications) as runner:
            lines = dump(runner)
            there = {line.split()[0].decode() for line in lines if b"<http://e/p>" in line}
            assert stood <= there
            assert not failed & there
            reacted = [line.split()[0].decode() for line in lines if b"<http://e/q>" in line]
            assert len(reacted) == len(set(reacted))
        done = reactions(tmp_path)
        assert len(done) == len(set(done)) == len(there), "each trigger has its reaction once"

    await asyncio.wait_for(test(), 600)
