"""The queue alone: order of lanes around dry runs, room, and what is released together."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from lamplighter.engine.errors import GatewayError, LimitExceededError, QueueFullError
from lamplighter.engine.protocol import Priority
from lamplighter.gateway.loop.queue import WEIGHTS, LiveSettings, OrderedLane, Queue, RequestKind, Task
from lamplighter.gateway.monitoring.figures import Counters, HighWaterMarks
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import GatewaySettings, Settings

ALARM, CONTROL, NORMAL, BULK = Priority


class Asked(msgspec.Struct):
    """What a client asks for."""

    lane: OrderedLane | None = None
    priority: Priority = NORMAL
    caller: Caller = ANYBODY


class Checked:
    """A dry run that passes, or fails, when it is let go."""

    has_passed = again = False

    def __init__(self, error: GatewayError | None = None) -> None:
        self.go_on = asyncio.Event()
        self.error = error

    async def perform(self, client: str) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error

    def took(self, seconds: float) -> None:
        pass


def queue(room: int = 1000) -> Queue:
    found = Queue(LiveSettings(Settings(gateway=GatewaySettings(queue_max=room))), Counters(), HighWaterMarks())
    found.kinds[Asked] = RequestKind(lambda asked: "client")
    return found


def put(
    to: Queue, *names: str, lane: OrderedLane | None = None, priority: Priority = NORMAL
) -> list[asyncio.Future[Any]]:
    """Steps that return their names."""
    return [to.post(lambda name=name: name, lane, priority=priority) for name in names]


async def taken(of: Queue) -> list[str]:
    await of.wait_filled()
    return [step.run() for step in of.in_turn()]


async def test_tasks_behind_a_dry_run_wait_in_order_and_other_lanes_go_on() -> None:
    steps, one, other, trial = queue(), OrderedLane(), OrderedLane(), Checked()
    async with asyncio.TaskGroup() as tasks:
        put(steps, "first", "second", lane=one)
        put(steps, "other", lane=other)
        ran: list[str] = []
        for step in steps.in_turn():
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


async def test_a_dry_run_that_fails_marks_its_task_alone() -> None:
    steps, lane, trial = queue(), OrderedLane(), Checked(LimitExceededError("too long"))
    async with asyncio.TaskGroup() as tasks:
        put(steps, "first", "second", lane=lane)
        turn = steps.in_turn()
        steps.hold(next(turn), trial, tasks)  # type: ignore[arg-type]
        assert list(turn) == []
        trial.go_on.set()
        await steps.wait_filled()
        found: list[Task] = list(steps.in_turn())
        assert [(step.run(), str(step.error or "")) for step in found] == [("first", "too long"), ("second", "")]


async def test_a_step_whose_requester_is_gone_is_not_run() -> None:
    steps = queue()
    [gone, _] = put(steps, "gone", "there")
    gone.cancel()
    assert await taken(steps) == ["there"]


async def test_clients_are_refused_beyond_the_room_and_the_gateway_is_not() -> None:
    steps = queue(room=2)
    for _ in range(2):
        steps.submit(Asked())
    with pytest.raises(QueueFullError, match="queue_max = 2"):
        steps.submit(Asked())
    put(steps, "gateway")
    assert await taken(steps) == ["client", "client", "gateway"]
    steps.submit(Asked())


# --- classes ---


async def test_an_alarm_overtakes_what_waits_and_what_is_left_of_the_group() -> None:
    steps = queue()
    put(steps, *(f"bulk {number}" for number in range(100)), priority=BULK)
    put(steps, "alarm", priority=ALARM)
    turn = steps.in_turn()
    assert [next(turn).run() for _ in range(2)] == ["alarm", "bulk 0"]
    put(steps, "control", priority=CONTROL)
    put(steps, "another", priority=ALARM)
    assert steps.has(ALARM) and steps.has(CONTROL)
    assert [next(turn).run() for _ in range(2)] == ["control", "another"]
    assert not steps.has(CONTROL) and steps.has(BULK)
    assert next(turn).run() == "bulk 1"


async def test_classes_that_wait_get_their_shares_and_each_is_first_in_first_out() -> None:
    steps = queue()
    rounds = 5
    for priority in Priority:
        put(steps, *(f"{priority.word} {number}" for number in range(1000)), priority=priority)
    turn = steps.in_turn()
    found = [next(turn).run().split() for _ in range(rounds * sum(WEIGHTS.values()))]
    for priority, weight in WEIGHTS.items():
        numbers = [int(number) for word, number in found if word == priority.word]
        assert numbers == list(range(len(numbers)))
        assert abs(len(numbers) - rounds * weight) <= 1
    waits = [at for at, (word, _) in enumerate(found) if word == "bulk"]
    assert max(after - before for before, after in pairwise(waits)) <= sum(WEIGHTS.values()) + 1


async def test_a_class_does_not_save_up_what_it_did_not_use() -> None:
    steps = queue()
    put(steps, *map(str, range(1000)))
    assert len(await taken(steps)) == 1000
    put(steps, *("bulk" for _ in range(200)), priority=BULK)
    put(steps, *("normal" for _ in range(200)))
    first = (await taken(steps))[:50]
    assert abs(first.count("bulk") - 10) <= 1


async def test_a_request_does_not_overtake_those_before_it_on_its_lane() -> None:
    steps, lane = queue(), OrderedLane()
    put(steps, "first", "second", lane=lane, priority=BULK)
    put(steps, "alarm of the lane", lane=lane, priority=ALARM)
    put(steps, "other alarm", priority=ALARM)
    assert steps.waiting_by_class == (1, 0, 0, 3)
    assert await taken(steps) == ["other alarm", "first", "second", "alarm of the lane"]
    put(steps, "alarm of the idle lane", lane=lane, priority=ALARM)
    put(steps, "normal")
    assert steps.waiting_by_class == (1, 0, 1, 0)
    assert await taken(steps) == ["alarm of the idle lane", "normal"]


async def test_a_lower_request_whose_turn_comes_first_waits_for_those_before_it_on_its_lane() -> None:
    steps, lane = queue(), OrderedLane()
    put(steps, *(f"alarm {number}" for number in range(40)), lane=lane, priority=ALARM)
    put(steps, "control", lane=lane, priority=CONTROL)
    put(steps, "normal", lane=lane)
    put(steps, "other")
    found = await taken(steps)
    of_lane = [*(f"alarm {number}" for number in range(40)), "control", "normal"]
    assert [name for name in found if name != "other"] == of_lane
    assert found.index("other") < 40, "it got the share of its class"
    assert (steps.waiting, steps.empty) == (0, True)


async def test_an_alarm_behind_a_dry_run_of_its_lane_waits_in_the_class_of_that() -> None:
    steps, lane, trial = queue(), OrderedLane(), Checked()
    async with asyncio.TaskGroup() as tasks:
        put(steps, "tried", lane=lane, priority=BULK)
        for step in steps.in_turn():
            steps.hold(step, trial, tasks)  # type: ignore[arg-type]
        put(steps, "behind", lane=lane, priority=ALARM)
        put(steps, "alarm", priority=ALARM)
        assert steps.waiting_by_class == (1, 0, 0, 2)
        assert await taken(steps) == ["alarm"]
        trial.go_on.set()
        assert await taken(steps) == ["tried", "behind"]
        assert steps.waiting == 0


async def test_a_full_queue_has_room_for_higher_classes() -> None:
    steps = queue(room=40)
    for priority, room in ((BULK, 20), (NORMAL, 20), (CONTROL, 10), (ALARM, 10)):
        assert steps.free(priority) == room
        for _ in range(room):
            steps.submit(Asked(priority=priority))
        with pytest.raises(QueueFullError, match=r"queue_max = 40"):
            steps.submit(Asked(priority=priority))
        assert steps.free(priority) == 0
    assert steps.waiting == 60
    with pytest.raises(QueueFullError, match=r"10 alarm requests are waiting, and .* room for 10 of this class"):
        steps.check_room(1, ALARM)


async def test_normal_requests_may_fill_the_room_that_they_share_with_bulk() -> None:
    steps = queue(room=40)
    for _ in range(40):
        steps.submit(Asked())
    with pytest.raises(QueueFullError, match=r"^gateway.queue_max = 40 requests are waiting; try again later$"):
        steps.submit(Asked(priority=BULK))
    steps.submit(Asked(priority=ALARM))


async def test_the_room_of_a_request_is_that_of_the_class_in_which_it_would_wait() -> None:
    steps, lane = queue(room=4), OrderedLane()
    for _ in range(2):
        steps.submit(Asked(lane, BULK))
    with pytest.raises(QueueFullError, match="2 bulk requests"):
        steps.submit(Asked(lane, ALARM))
    steps.submit(Asked(OrderedLane(), ALARM))
