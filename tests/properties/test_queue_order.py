"""Random interleavings of the loop's queue: each step is run once, and those of a lane in the order they came in."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random

from lamplighter.engine.protocol import Priority
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue, Task
from lamplighter.gateway.monitoring.figures import Counters, HighWaterMarks
from lamplighter.gateway.settings import Settings
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 300
STEPS = 120
LANES = 4


class _DryRun:
    """A dry run that ends when the case says so."""

    passed = False

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def perform(self, client: str) -> None:
        await self.end.wait()

    def took(self, seconds: float) -> None:
        pass


class _Case:
    """One interleaving. ran: numbers of steps, in the order in which they ran."""

    def __init__(self, seed: int, tasks: asyncio.TaskGroup) -> None:
        self._chance = Random(seed)
        self._tasks = tasks
        self.queue = Queue(LiveSettings(Settings()), Counters(), HighWaterMarks())
        self._lanes = [OrderedLane() for _ in range(LANES)]
        self.lane_of: dict[int, OrderedLane | None] = {}
        self._outcomes: dict[int, asyncio.Future[int]] = {}
        self._tried: set[int] = set()
        self._dry_runs: list[_DryRun] = []
        self.cancelled: set[int] = set()
        self.ran: list[int] = []
        self.tally: Counter[str] = Counter()

    async def play(self) -> None:
        while len(self.lane_of) < STEPS or not self.queue.empty or self._dry_runs:
            await self._something_happens()
            if not self.queue.empty and self._chance.random() < 0.5:
                await self._group()
            elif len(self.lane_of) == STEPS and self.queue.empty and self._dry_runs:
                await self._end_a_dry_run()

    async def _something_happens(self) -> None:
        kind = self._chance.choice(("arrival", "arrival", "arrival", "cancelled", "dry run"))
        if kind == "arrival":
            for _ in range(self._chance.randint(1, 6)):
                self._arrive()
        elif kind == "cancelled" and self._outcomes:
            number = self._chance.choice(list(self._outcomes))
            if number not in self.ran and number not in self._tried:
                self._outcomes[number].cancel()
                self.cancelled.add(number)
        elif kind == "dry run" and self._dry_runs:
            await self._end_a_dry_run()

    def _arrive(self) -> None:
        number = len(self.lane_of)
        if number == STEPS:
            return
        lane = self._chance.choice([None, *self._lanes])
        priority = self._chance.choice(list(Priority))
        self.lane_of[number] = lane
        self._outcomes[number] = self.queue.post(lambda: number, lane, priority=priority)
        self.tally["demoted"] += lane is not None and lane.priority > priority

    async def _end_a_dry_run(self) -> None:
        self._dry_runs.pop(self._chance.randrange(len(self._dry_runs))).end.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _group(self) -> None:
        for step in self.queue.in_turn():
            self._take(step)
            if self._chance.random() < 0.3:
                await self._something_happens()  # while the group runs

    def _take(self, step: Task) -> None:
        number = step.run()
        if step.dry_run is None and self._chance.random() < 0.1:
            dry_run = _DryRun()
            self._dry_runs.append(dry_run)
            self._tried.add(number)
            self.queue.hold(step, dry_run, self._tasks)  # type: ignore[arg-type]
            self.tally["dry runs"] += 1
            return
        self.ran.append(number)


async def test_each_step_runs_once_and_lanes_keep_their_order(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally: Counter[str] = Counter()

    def check() -> None:
        assert min(tally["overtaken"], tally["demoted"], tally["dry runs"]) > cases / 2, tally

    for number in seeds(cases, check):
        async with asyncio.TaskGroup() as tasks:
            case = _Case(number, tasks)
            await case.play()
        assert sorted(case.ran) == sorted(set(range(STEPS)) - case.cancelled), f"seed {number}"
        of_lane: dict[OrderedLane | None, list[int]] = defaultdict(list)
        for step in case.ran:
            of_lane[case.lane_of[step]].append(step)
        for lane, ran in of_lane.items():
            assert lane is None or ran == sorted(ran), f"seed {number}"
            tally["overtaken"] += lane is None and ran != sorted(ran)
        assert case.queue.waiting_by_class == (0, 0, 0, 0), f"seed {number}"
        tally.update(case.tally)
