"""What the workers of a delivery share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from lamplighter.cloud_sync.fleet.delivery.cursors import Cursors
from lamplighter.cloud_sync.fleet.delivery.dead_letters import DeadLetters
from lamplighter.cloud_sync.fleet.delivery.match_table import MatchTable
from lamplighter.cloud_sync.fleet.delivery.sent_orders import OrderDesk
from lamplighter.cloud_sync.fleet.delivery.sinks import MakeSink
from lamplighter.cloud_sync.fleet.lake import Lake

GIVE_UP_S = 24 * 3600.0
# Sinks that may occupy a thread at the same time.
BLOCKING_MAX = 16

T = TypeVar("T")


@dataclass(frozen=True)
class DeliveryClock:
    """wall: seconds since 1970; monotonic: seconds; sleep: waits."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep


@dataclass(frozen=True)
class DeliveryParts:
    """What all workers share. reading: an executor of one thread, for the table; writing: of one, for the lake;
    answering: of one, for the answers to orders, whose destination may be slow.

    check_lock: raises LockLostError if another process may deliver; it is called before each delivery. desk: of orders
    to gateways. letters: the dead letters of the lake.
    """

    lake: Lake
    table: MatchTable
    cursors: Cursors
    make: MakeSink
    reading: Executor
    writing: Executor
    clock: DeliveryClock = DeliveryClock()
    chance: Random = field(default_factory=Random)
    give_up_s: float = GIVE_UP_S
    check_lock: Callable[[], None] = lambda: None
    desk: OrderDesk | None = None
    letters: DeadLetters = field(default_factory=DeadLetters)
    answering: Executor = field(default_factory=lambda: ThreadPoolExecutor(1))
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BLOCKING_MAX))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def in_reader_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.reading, lambda: function(*args))

    async def in_answer_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.answering, lambda: function(*args))

    async def write(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.writing, lambda: function(*args))
