"""Gateways that are killed while comparisons with the clock come true: each boundary has one commit, each of its rows
one reaction, and clients that resume have the rows of a fresh evaluation."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.faults.killed_gateway import APPLY, HALF, PASS, RELEASE
from tests.support.gateway_parts import records
from tests.support.gateway_process import GatewayProcess
from tests.support.kills import MOMENT, Gateways, eager_clients
from tests.support.timed_house import House, applications, check_log

pytestmark = pytest.mark.faults

KILLS, KILLS_OF_THE_COMMAND = 90, 12
ALIVE_S = 1.0
LOG_BYTES_MAX = 100_000_000
"""The log keeps everything, for `check_log`."""
PLACES = {
    PASS: 8,
    APPLY: 30,
    RELEASE: 30,
    "write log": 30,
    f"{HALF} log": 30,
    "sync log": 30,
    "write snapshots temporary": 3,
    "rename snapshots": 2,
    MOMENT: 1,
}
"""Where gateways die, and after how many times at most that they came there."""


async def test_each_boundary_has_its_effect_once_wherever_the_gateway_is_killed(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random, kills = Random(seed), Counter[str]()
    with eager_clients():
        async with Gateways(tmp_path / "gateway", applications(), LOG_BYTES_MAX) as gateways:
            house = House(gateways.websocket_port, random)
            async with house.lived_in():
                points: list[str] = []
                while kills.total() < KILLS:
                    points = points or random.sample(list(PLACES), len(PLACES))
                    point = points.pop()
                    await gateways.start(point, random.randint(1, PLACES[point]))
                    if await gateways.ready():
                        await gateways.dead(random.uniform(0, ALIVE_S) if point == MOMENT else ALIVE_S)
                    kills[gateways.place] += 1
                await gateways.start("nowhere", 1)
                assert await gateways.ready()
            await gateways.dead(0)
    _check(house, tmp_path / "gateway" / "data", KILLS)
    print(dict(kills))
    assert kills[PASS] > 0
    assert kills[MOMENT] > 0


async def test_each_boundary_has_its_effect_once_when_the_command_is_killed(tmp_path: Path) -> None:
    """The process is `lamplighter run` itself, killed at any moment."""
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    gateway = GatewayProcess(
        tmp_path / "gateway",
        gateway={"clock_trusted": "always"},
        log={"segment_bytes_max": 10_000, "snapshot_records": 100, "bytes_max": LOG_BYTES_MAX},
    )
    (gateway.folder / "apps").mkdir()
    for name, application in applications().items():
        (gateway.folder / "apps" / f"{name}.jsap").write_text(json.dumps(application))
    with eager_clients(), gateway:
        house = House(gateway.websocket_port, random)
        async with house.lived_in():
            for _ in range(KILLS_OF_THE_COMMAND):
                await asyncio.sleep(random.uniform(0, ALIVE_S))
                await asyncio.to_thread(gateway.end, signal.SIGKILL)
                await asyncio.to_thread(gateway.start)
        await asyncio.to_thread(gateway.end, signal.SIGKILL)
        _check(house, gateway.folder / "data", KILLS_OF_THE_COMMAND)
        gateway.start()


def _check(house: House, data: Path, kills: int) -> None:
    house.check_copies()
    tally = check_log(records(data))
    print(f"{kills} kills, {house.updates} updates, {dict(tally)}")
    assert tally["added by time"] > kills / 10
    assert tally["removed by time"] > kills / 10
    assert tally["reactions"] > kills
