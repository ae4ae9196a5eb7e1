"""The queue alone: order of lanes around trials, room, and what is released together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lamplighter.engine.errors import GatewayError, LimitExceededError, QueueFullError
from lamplighter.gateway.loop.current import Current
from lamplighter.gateway.loop.queue import Lane, Queue, Step
from lamplighter.gateway.monitoring.figures import Counters, Peaks
from lamplighter.gateway.settings import GatewaySettings, Settings


class Tried:
    """A trial that passes, or fails, when it is let go."""

    passed = False

    def __init__(self, error: GatewayError | None = None) -> None:
        self.go_on = asyncio.Event()
        self.error = error

    async def run(self) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error

    def took(self, seconds: float) -> None:
        pass


def queue(room: int = 1000) -> Queue:
    return Queue(Current(Settings(gateway=GatewaySettings(queue_max=room))), Counters(), Peaks())


def put(to: Queue, *names: str, lane: Lane | None = None) -> list[asyncio.Future[Any]]:
    """Steps that return their names."""
    return [to.put(lambda name=name: name, lane) for name in names]


async def taken(of: Queue) -> list[str]:
    return [step.run() for step in of.in_turn(await of.next())]


async def test_steps_behind_a_trial_wait_in_order_and_other_lanes_go_on() -> None:
    steps, one, other, trial = queue(), Lane(), Lane(), Tried()
    async with asyncio.TaskGroup() as tasks:
        put(steps, "first", "second", lane=one)
        put(steps, "other", lane=other)
        ran: list[str] = []
        for step in steps.in_turn(await steps.next()):
            if step.run() == "first":
                steps.hold(step, trial, tasks)  # type: ignore[arg-type]
            else:
                ran.append(step.run())
        assert ran == ["other"]
        assert steps.waiting == 2
        put(steps, "third", lane=one)
        trial.go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await taken(steps) == ["first", "second", "third"]
        assert steps.waiting == 0


async def test_a_trial_that_fails_marks_its_step_alone() -> None:
    steps, lane, trial = queue(), Lane(), Tried(LimitExceededError("too long"))
    async with asyncio.TaskGroup() as tasks:
        put(steps, "first", "second", lane=lane)
        turn = steps.in_turn(await steps.next())
        steps.hold(next(turn), trial, tasks)  # type: ignore[arg-type]
        assert list(turn) == []
        trial.go_on.set()
        found: list[Step] = list(steps.in_turn(await steps.next()))
        assert [(step.run(), str(step.error or "")) for step in found] == [("first", "too long"), ("second", "")]


async def test_a_step_whose_requester_is_gone_is_not_run() -> None:
    steps = queue()
    [gone, _] = put(steps, "gone", "there")
    gone.cancel()
    assert await taken(steps) == ["there"]


async def test_clients_are_refused_beyond_the_room_and_the_gateway_is_not() -> None:
    steps = queue(room=2)
    for _ in range(2):
        steps.submit(lambda: "client")
    with pytest.raises(QueueFullError, match="queue_max = 2"):
        steps.submit(lambda: "client")
    put(steps, "gateway")
    assert await taken(steps) == ["client", "client", "gateway"]
    steps.submit(lambda: "client")


async def test_a_group_has_what_was_released_since_the_last_one() -> None:
    steps, told = queue(), list[int]()
    steps.release(lambda: told.append(1))
    steps.time(0.5)
    first = steps.end_group()
    steps.release(lambda: told.append(2))
    for release in first.releases:
        release()
    assert (told, first.begun, len(steps.end_group().releases)) == ([1], [0.5], 1)
