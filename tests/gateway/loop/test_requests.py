"""The table of requests: each kind can be run again, from its beginning, until its own first append."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pytest

import lamplighter
from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause, Receiver
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import AccessDeniedError, GatewayError, StoreError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.sparql.requests import parse_query
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.clock import iso
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.delivered import QueuedRenewal
from lamplighter.gateway.loop.queries import QueuedGraph, QueuedQuery, QueuedResource
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import QueuedEnd, QueuedSubscription
from lamplighter.gateway.loop.time_slicer import LongError
from lamplighter.gateway.loop.timers import DueUpdate
from lamplighter.gateway.loop.updates import Cancellation, QueuedUpdate, QueuedWrite, UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.workers.ad_hoc import Answer, Reader
from lamplighter.gateway.workers.resources import ResourceRequest
from tests.gateway.state.test_applications import copier
from tests.support.garbage import no_garbage_collection
from tests.support.gateway_parts import CLIENT, START, dump, idle, reactions, records, recovered_runner, update
from tests.support.recording_sink import RecordingSink

ALL = "SELECT ?s ?o { ?s <http://e/p> ?o }"
HOOK = Receiver("webhook", "one", "http://e/hook", iso(START + timedelta(days=1)), "hall")


class Ear(RecordingSink):
    """A sink whose subscription may be ended."""

    def ended(self, spuid: str, error: GatewayError) -> None:
        pass


class Restarted:
    """Says that a task is too long, at the n-th call of a function of the project before it has appended anything,
    entered a plain subscription, or begun to read by a fork. Within `Engine.subscribe`, which asks before it changes
    anything, only where it asks."""

    def __init__(self, runner: Runner, number: int) -> None:
        self._slicer, self._sinks, self._before = (
            runner._slicer,
            runner._subscribers.sinks,
            len(runner._subscribers.sinks),
        )
        self._left = number
        self.place = ""

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PROJECT) or not self._slicer.whole or self.place:
            return
        if code is APPEND or code.co_filename == READER or len(self._sinks) != self._before:
            sys.setprofile(None)
            return
        if code.co_filename != SLICER and _is_within(frame.f_back, Engine.subscribe.__code__):
            return
        self._left -= 1
        if self._left == 0:
            self.place = f"{code.co_qualname} line {frame.f_lineno}"
            raise LongError


PROJECT = f"{Path(lamplighter.__file__).parent}/"
READER = sys.modules[Reader.__module__].__file__
APPEND = LogWriter.append.__code__

SLICER = sys.modules[LongError.__module__].__file__


def _is_within(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


Ask = Callable[[], Awaitable[Any]]
Prepare = Callable[[Runner, int], Awaitable[Ask]]


def insert(number: int) -> str:
    return f"INSERT DATA {{ <http://e/s{number}> <http://e/p> {number} }}"


async def an_update(runner: Runner, number: int) -> Ask:
    return lambda: update(runner, insert(number), request_id=str(number))


async def an_update_by_the_store(runner: Runner, number: int) -> Ask:
    """It has had its dry run, so it runs in slices; the check itself is run again."""
    return lambda: update(
        runner, f"INSERT {{ <http://e/s{number}> <http://e/p> ?o }} WHERE {{ <http://e/a> <http://q> ?o }}"
    )


async def a_delayed_update(runner: Runner, number: int) -> Ask:
    return lambda: update(runner, insert(number), delay="PT1H")


async def a_due_update(runner: Runner, number: int) -> Ask:
    name = (await update(runner, insert(number), delay="PT1H")).delayed
    assert name is not None
    return lambda: runner._timers.fire(name)


async def a_cancellation(runner: Runner, number: int) -> Ask:
    name = (await update(runner, insert(number), delay="PT1H")).delayed
    assert name is not None
    return lambda: runner.updates.cancel(name, CLIENT)


async def a_graph(runner: Runner, number: int) -> Ask:
    quads = runner._engine.prepare(
        f"INSERT DATA {{ GRAPH <http://e/g> {{ <http://e/s> <http://e/p> {number} }} }}"
    ).added
    await idle(runner)
    return lambda: runner.updates.write_graph(GraphWrite(GraphVerb.REPLACE, "<http://e/g>", tuple(quads)), CLIENT)


async def a_query(runner: Runner, number: int) -> Ask:
    return lambda: runner.queries.query(runner.queries.outline(ALL), "application/sparql-results+json")


async def a_query_by_a_fork(runner: Runner, number: int) -> Ask:
    return lambda: runner.queries.query(parse_query("SELECT * { ?s ?p ?o . ?x ?y ?z }"), "text/csv")


async def a_reading_of_a_graph(runner: Runner, number: int) -> Ask:
    return lambda: runner.queries.graph(None, "text/turtle")


async def a_description(runner: Runner, number: int) -> Ask:
    return lambda: runner.queries.resource(ResourceRequest(["http://e/a"], "text/turtle", "http://e/"))


async def a_subscription(runner: Runner, number: int) -> Ask:
    return lambda: runner.subscribe(ALL, Ear(), None, None)


async def a_resumable_subscription(runner: Runner, number: int) -> Ask:
    return lambda: runner.subscribe(ALL, Ear(), None, None, resume=Resume("PT1H"))


async def an_end(runner: Runner, number: int) -> Ask:
    sink = Ear()
    spuid = await runner.subscribe(ALL, sink, None, None, resume=Resume("PT1H"))
    return lambda: runner.unsubscribe(spuid, sink)


async def a_renewal(runner: Runner, number: int) -> Ask:
    if not runner.delivered.has(HOOK.id):
        await runner.subscribe(ALL, Ear(), None, None, resume=Resume("PT0S"), delivery=HOOK)
    return lambda: runner.renew_delivery(HOOK, CLIENT)


CASES: dict[str, tuple[type, Prepare, int]] = {
    "update": (QueuedUpdate, an_update, 1),
    "update by the store": (QueuedUpdate, an_update_by_the_store, 1),
    "delayed update": (QueuedUpdate, a_delayed_update, 1),
    "due update": (DueUpdate, a_due_update, 1),
    "cancellation": (Cancellation, a_cancellation, 1),
    "graph": (QueuedWrite, a_graph, 1),
    "query": (QueuedQuery, a_query, 0),
    "query by a fork": (QueuedQuery, a_query_by_a_fork, 0),
    "reading of a graph": (QueuedGraph, a_reading_of_a_graph, 0),
    "description": (QueuedResource, a_description, 0),
    "subscription": (QueuedSubscription, a_subscription, 0),
    "resumable subscription": (QueuedSubscription, a_resumable_subscription, 1),
    "end": (QueuedEnd, an_end, 1),
    "renewal": (QueuedRenewal, a_renewal, 1),
}
"""What is asked for -> type of the request, how it is prepared, and how many records it appends by itself."""


@asynccontextmanager
async def at_work(data: Path, applications: list[Application]) -> AsyncIterator[Runner]:
    async with recovered_runner(data, applications=applications) as runner:
        await update(runner, "INSERT DATA { <http://e/a> <http://q> 1 }")
        yield runner


async def test_each_kind_is_restarted_below(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        assert {kind for kind, _, _ in CASES.values()} == set(runner.queue.kinds)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators that are closed
@pytest.mark.parametrize("name", CASES)
async def test_a_request_that_is_run_again_at_any_call_before_its_first_append_has_one_effect(
    name: str, tmp_path: Path
) -> None:
    """With an application that reacts to what is inserted, once."""
    _, prepare, appends = CASES[name]
    applications, places = [copier("one", "p", "q")], list[str]()
    async with at_work(tmp_path, applications) as runner:
        number = 0
        while True:
            number += 1
            ask = await prepare(runner, number)
            await idle(runner)
            subscriptions = runner._engine.subscription_count
            before, reacted = runner._log.sequence, len(reactions(tmp_path))
            with no_garbage_collection(), Restarted(runner, number) as restarted:
                answer = await ask()
                await idle(runner)
            if isinstance(answer, Answer):
                answer.abandon()
            more = len(reactions(tmp_path)) - reacted
            assert runner._log.sequence - before == appends + more, restarted.place
            assert more <= 1, restarted.place
            begun = runner._engine.subscription_count - subscriptions
            assert begun == ("subscription" in name) - (name == "end"), restarted.place
            if not restarted.place:
                break
            places.append(restarted.place)
        lines = dump(runner)
    assert len(places) > 2, "nothing was interrupted"
    done = reactions(tmp_path)
    assert len(done) == len(set(done))
    sequences = [record.seq for record in records(tmp_path)]
    assert sequences == list(range(1, len(sequences) + 1))
    async with recovered_runner(tmp_path, applications=applications) as runner:
        assert dump(runner) == lines


async def test_a_request_holds_its_caller_and_is_asked_for_its_permission_when_its_turn_comes(tmp_path: Path) -> None:
    anna = Caller("anna", FULL, operator=False, registered=True)
    async with recovered_runner(tmp_path) as runner:
        waiting = [
            runner.updates.update(UpdateCall(insert(1), CLIENT, caller=anna)),
            runner.updates.write_graph(GraphWrite(GraphVerb.DROP, None), CLIENT, anna),
            runner.queries.query(runner.queries.outline(ALL), "text/csv", caller=anna),
            runner.queries.graph(None, "text/turtle", anna),
            runner.queries.resource(ResourceRequest(["http://e/a"], "text/turtle", "http://e/"), anna),
            runner.subscribe(ALL, Ear(), None, None, caller=anna),
        ]
        runner.current.access_of = lambda client: None  # she is removed while they wait
        for outcome in waiting:
            with pytest.raises(AccessDeniedError, match="no longer registered"):
                await outcome
        assert runner._log.sequence == 0
        assert runner._engine.subscription_count == 0


async def test_a_request_whose_check_fails_is_told_and_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(queued: object) -> None:
        raise StoreError("no")

    async with recovered_runner(tmp_path) as runner:
        for kind in (QueuedUpdate, QueuedSubscription):
            monkeypatch.setitem(runner.queue.kinds, kind, replace(runner.queue.kinds[kind], check=check))
        for refused in (update(runner, insert(1)), runner.subscribe(ALL, Ear(), None, None)):
            with pytest.raises(StoreError, match="no"):
                await refused
        assert runner.counters.refused == 2
        assert records(tmp_path) == []


async def test_a_due_update_whose_check_fails_is_recorded_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recovered_runner(tmp_path) as runner:
        kind = runner.queue.kinds[DueUpdate]

        def check(due: DueUpdate) -> None:
            raise StoreError("no")

        monkeypatch.setitem(runner.queue.kinds, DueUpdate, replace(kind, check=check))
        name = (await update(runner, insert(1), delay="PT1H")).delayed
        assert name is not None
        await runner._timers.fire(name)
        assert runner.delayed_count == 0
        assert dump(runner) == []
        assert records(tmp_path)[-1].cause == Cause("timer", name, 1)
