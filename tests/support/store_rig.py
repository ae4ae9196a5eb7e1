"""Programs that meet at one object store, whose calls are put between each other as a seed says.

Each program runs in a thread of its own, and one of them at a time: at each call of the store it stops, until the
scheduler lets it go on. So every order of the calls of two programs can occur, and the same seed gives the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from random import Random

from lamplighter.cloud_sync.destinations import Destination, StoredObject

STALLED_S = 60.0
"""No program computes for so long between two calls."""


class Program:
    """What one side does. calls: so far; error: that ended it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.calls: list[str] = []
        self.over = False
        self.error: BaseException | None = None
        self._thread.start()

    def step(self) -> None:
        """Lets it go on up to its next call."""
        self._go.release()
        assert self._stopped.acquire(timeout=STALLED_S), f"it does not go on behind {self.calls[-3:]}"

    def stop_before(self, call: str) -> None:
        """Called by the store, in the thread of the program."""
        self.calls.append(call)
        self._stopped.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._stopped.release()


class InterleavedStore(Destination):
    """A store as one program sees it. Each of its requests waits for its turn."""

    def __init__(self, inner: Destination) -> None:
        self._inner = inner
        self.url = inner.url
        self.lists_from = inner.lists_from
        self.program: Program | None = None

    def _turn(self, call: str) -> None:
        if self.program is not None:
            self.program.stop_before(call)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        self._turn(f"create {name}")
        return self._inner.create(name, chunks)

    def put(self, name: str, data: bytes) -> None:
        self._turn(f"put {name}")
        self._inner.put(name, data)

    def open(self, name: str) -> AbstractContextManager[Iterator[bytes] | None]:
        self._turn(f"read {name}")
        return self._inner.open(name)

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        self._turn(f"entries {folder}")
        return self._inner.entries(folder, after, most)

    def folders(self) -> list[str]:
        self._turn("folders")
        return self._inner.folders()

    def close(self) -> None:
        pass


def interleave(random: Random, *sides: tuple[InterleavedStore, Callable[[], None]]) -> list[Program]:
    """Runs the programs to their ends. Returns them; the error of one is raised."""
    programs = []
    for store, work in sides:
        store.program = Program(work)
        programs.append(store.program)
    # Some orders let one side do much at once, others change it at each call.
    eager = random.choice((0.1, 0.5, 0.9))
    going = random.randrange(len(programs))
    while waiting := [number for number, one in enumerate(programs) if not one.over]:
        if going not in waiting or random.random() < eager:
            going = random.choice(waiting)
        programs[going].step()
    for (store, _), one in zip(sides, programs, strict=True):
        store.program = None
        if one.error is not None:
            raise one.error
    return programs
