"""Runs a long step of the engine in slices, so that the loop and its gates go on.

::

    loop    ──┤ waits ├── gates, sockets ──┤ waits ├── gates, sockets ──┤ waits ├── releases the outcome
    thread    └─slice─┘      waits         └─slice─┘  beside, reading   └─slice─┘

A long step is run by a thread, but never at the same time as the loop: one of the two waits for the other, and the
engine says where it may be interrupted (`engine.slices`). So nothing of the engine needs a lock. The exception is what
only reads and cannot be interrupted, a native query or a plan: it runs beside the loop, which leaves the engine alone.
Until the step has ended nothing else is done with the engine; `steady` is for those who fork.

A short step is run in the loop as ever. One that turns out to be long before it has appended anything is run again in
slices, from its beginning (`gateway.loop.requests`).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, thread_time
from types import FrameType
from typing import TypeVar

from lamplighter.engine import slices
from lamplighter.gateway.monitoring.timings import LoopHoldTimer, count_durations
from lamplighter.gateway.sharing import Steady

SLICE_S = 0.02
"""How long the loop is held at a time, but for what cannot be interrupted."""
LATE_S = 0.05
"""How much longer a slice takes before it is looked up where it stopped."""
_NAMED_MAX = 6
LONG_S = 0.1
"""A longer work makes so much that the garbage collector is not to look at it."""
_YOUNG = 1
"""The generations that are collected before."""

_Outcome = TypeVar("_Outcome")


def _caller() -> str:
    """Names the functions that called for a pause, the innermost first."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(names) < _NAMED_MAX:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return "slice until " + " < ".join(names)


class LongError(BaseException):
    """A step that is run in the loop is too long for that. Not an Exception: nobody but the executor deals with it."""


class TimeSlicer(slices.Slices):
    """held: is told how long the loop was held by each slice. whole: whether a task is being run in the loop."""

    def __init__(self, held: LoopHoldTimer) -> None:
        self.held = held
        self.whole = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._worker: int | None = None  # the thread that runs a long step
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._until = 0.0
        self._begun_s = self._busy_s = 0.0  # of the slice: the thread's clock at its start, and its processor time
        self._beside = False
        self._late: str | None = None  # where a slice stopped that took too long
        self._back = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.steady = Steady()
        """Whether nobody is in the middle of changing the engine."""
        self.steady.set()
        self.between: Callable[[], bool] = lambda: False
        """Called by the loop between two slices of a long step. Returns whether it did anything; then it is called
        again, after sockets. It must not raise."""
        self.ended: Callable[[], None] = lambda: None
        """Called when a long step has ended."""

    # --- what the engine calls ---

    @property
    def elsewhere(self) -> bool:
        return self._worker == threading.get_ident()

    def begin(self, size: int) -> None:
        """Raises LongError in a step that is run in the loop."""
        if self.whole:
            raise LongError

    def pause(self) -> None:
        if self._worker == threading.get_ident() and not self._beside:
            late_s = perf_counter() - self._until
            if late_s >= 0:
                if late_s > LATE_S:
                    self._late = _caller()
                self._give_way()

    def beside(self) -> AbstractContextManager[None]:
        return (
            self._running_beside() if self._worker == threading.get_ident() and not self._beside else super().beside()
        )

    @contextmanager
    def _running_beside(self) -> Iterator[None]:
        self._beside = True
        self._stop()
        try:
            yield
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._back.set)
            self._start()
            self._beside = False

    def _give_way(self) -> None:
        self._stop()
        self._start()

    def _start(self) -> None:
        """Waits for the loop to grant a slice."""
        self._go.acquire()
        self._until, self._begun_s = perf_counter() + SLICE_S, thread_time()

    def _stop(self) -> None:
        """Ends a slice."""
        self._busy_s = thread_time() - self._begun_s
        self._stopped.release()

    # --- what the loop calls ---

    async def run(self, work: Callable[[], _Outcome]) -> _Outcome:
        """Does a work in slices. Raises what it raises.

        If the caller is cancelled meanwhile the work is done to its end nevertheless, without letting anybody else go
        on: what was begun must not be left in the middle.
        """
        self._loop = asyncio.get_running_loop()
        cancelled: asyncio.CancelledError | None = None
        collecting, long = gc.isenabled(), False
        self.steady.clear()
        self._back.clear()
        begun = perf_counter()
        ended = self._thread.submit(self._life, work)
        try:
            while not self._slice(work):
                if not long and perf_counter() - begun > LONG_S:
                    long = True
                    gc.collect(_YOUNG)
                    gc.disable()  # it would look at all that the work makes, again and again
                again = True
                while again:
                    if cancelled is None:
                        try:
                            await (self._back.wait() if self._beside else asyncio.sleep(0))
                        except asyncio.CancelledError as error:
                            cancelled = error
                    again = not self._beside and self._between()
                self._back.clear()
        finally:
            self._worker = None
            self.steady.set()
            if long:
                gc.freeze()  # what the work has left is data, mostly; `Upkeep` collects the rest
                if collecting:
                    gc.enable()
            self.ended()
        if cancelled is not None:
            raise cancelled
        return ended.result()

    def _between(self) -> bool:
        begun = perf_counter(), thread_time()
        again = self.between()
        if again:
            self.held.count_work(begun, self.between)
        return again

    def _slice(self, work: Callable[[], object]) -> bool:
        """Waits for one slice of a work; whether it was the last one."""
        self._late = None
        begun = perf_counter()
        self._go.release()
        self._stopped.acquire()
        count_durations(((self.held, perf_counter() - begun),))
        if self._busy_s > self.held.busiest:
            self.held.note_busiest(self._busy_s, self._late or work)
        return self._worker is None

    def _life(self, work: Callable[[], _Outcome]) -> _Outcome:
        self._start()
        self._worker = threading.get_ident()
        try:
            return work()
        finally:
            self._worker = None
            self._stop()

    def close(self) -> None:
        """No work may be under way."""
        self._thread.shutdown()
