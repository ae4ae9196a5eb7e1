"""Upkeep: what the gateway does for its dataset while nobody waits.

A renewal of the store goes on, a replaced store is let go, garbage and memory that large work has left are given back,
and the auditor compares index and store (design 4.7).
All of it in turns so short that a request which comes meanwhile does not notice.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from time import perf_counter

from lamplighter.engine.core import Engine
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.store.audit import Auditor

logger = EventLogger(__name__)

PAUSE_S = 1.0
"""Between two turns, unless a renewal is under way: with `AUDIT_S`, a thousandth of a core."""
RENEWAL_PAUSE_S = 0.05
TURN_S = 0.002
"""Longest turn, but for what a single slice takes."""
AUDIT_S = 0.001
AUDITED_MAX = 500
"""Quads of the index, and of the store, that are compared in one turn: about `AUDIT_S`."""
RETIRED_MAX = 1
"""Replaced stores that wait for a quiet moment. Each takes as much memory as the dataset."""
QUIET_TURNS_MAX = 30
"""Turns that a replaced store, or the garbage of long works, waits for a quiet moment."""
TRIM_TURNS_MIN = 10
"""Turns between two times that memory is given back."""
COLLECTED_AFTER = 10_000
"""Additional container objects between two collections of garbage in the gateway's process: a few MB."""
COLLECTION_SHARE = 0.02
"""Of a core, at most, for the search of long works' garbage. It takes 5 ms, and 350 ms with 1,000 subscriptions of as
many plans, which are 400,000 objects."""
EXEMPT_MAX = 50_000
"""Additional container objects that long works may exempt from collection, or half as many as there are, until the
search does not wait for a quiet moment any more: it holds the loop for 0.1 to 0.25 s, since it looks at all of the
program too. They are some MB."""
FINDINGS_MAX = 10
"""Findings that are told; one fault may have thousands."""


class Upkeep:
    """The turns. failed: is told what the auditor has found, for people."""

    def __init__(self, engine: Engine, failed: Callable[[str], None]) -> None:
        self._store = engine.store
        self._cts = engine.cts
        self._auditor = Auditor(engine.store, engine.cts)
        self._failed = failed
        self._count = 16
        self._retired: list[object] = []
        self._retired_turns = 0
        self._trim_after = 0  # turns
        self._loose = False
        self._frozen = False
        self._frozen_turns = self._collect_after = 0
        self._exempt: int | None = None  # container objects behind the last search, None before the first long work
        self.findings = 0
        self._store.retire = self._retired.append

    @property
    def rounds(self) -> int:
        """How often the whole store was audited."""
        return self._auditor.rounds

    @property
    def backlog(self) -> int:
        """How much waits for its turn: a renewal, replaced stores, a search for garbage, memory to give back."""
        return self._store.renewing + len(self._retired) + self._frozen + self._loose

    def large_work_ended(self) -> None:
        """Much memory may be free and still belong to the process."""
        self._loose = True
        if self._exempt is None:
            self._exempt = gc.get_freeze_count()
        self._frozen = gc.get_threshold()[0] >= COLLECTED_AFTER  # else it is not the gateway's own process

    def between(self) -> bool:
        """Does what must not wait until a long step has ended; for `TimeSlicer.between`."""
        try:
            if len(self._retired) > RETIRED_MAX:
                self._release()
                return True
            return self._store.catch_up()
        except Exception:
            logger.exception("upkeep failed")
            return False

    def _release(self) -> None:
        # Blocks for 0.25 us a quad, while the memory is freed: one at a time.
        self._retired.pop(0)
        self._retired_turns = 0
        self._loose = True

    def turn(self, quiet: bool) -> float:
        """Does a little; returns the seconds until the next turn. quiet: nobody has asked for anything of late."""
        start = perf_counter()
        self._cts.forget_filled()
        self._retired_turns += bool(self._retired)
        many = len(self._retired) > RETIRED_MAX
        if self._retired and (quiet or many or self._retired_turns >= QUIET_TURNS_MAX):
            self._release()
            return PAUSE_S
        while self._store.renewing and perf_counter() - start < TURN_S:
            self._store.step()
        if self._store.renewing:
            return RENEWAL_PAUSE_S
        self._trim_after -= 1
        self._collect_after -= 1
        self._frozen_turns += self._frozen
        if self._frozen and self._collect_after <= 0 and (quiet or self._has_waited_long()):
            self._collect()
            return PAUSE_S
        if self._loose and self._trim_after <= 0:
            self._loose, self._trim_after = False, TRIM_TURNS_MIN
            give_back_memory()
            return PAUSE_S
        self._audit()
        return PAUSE_S

    def _has_waited_long(self) -> bool:
        """Whether there may be so much garbage of long works that others wait for its search."""
        if self._frozen_turns < QUIET_TURNS_MAX:
            return False
        self._frozen_turns = 0  # counting them takes milliseconds
        known = self._exempt or 0
        return gc.get_freeze_count() - known > max(EXEMPT_MAX, known // 2)

    def _collect(self) -> None:
        """Collects garbage also among what long works have exempted from collection, which is all that lived when they
        ended (`loop.time_slicer`): connections, for example, leave cycles when they end."""
        start = perf_counter()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._exempt = gc.get_freeze_count()
        self._frozen, self._loose = False, True
        self._frozen_turns = 0
        self._collect_after = max(TRIM_TURNS_MIN, int((perf_counter() - start) / COLLECTION_SHARE / PAUSE_S))

    def _audit(self) -> None:
        start = perf_counter()
        found = self._auditor.step(self._count)
        seconds = perf_counter() - start
        # Adapts to the machine, and to what else it has to do.
        self._count = max(4, min(2 * self._count, int(self._count * AUDIT_S / max(seconds, 1e-6)), AUDITED_MAX))
        for finding in found:
            self.findings += 1
            if self.findings <= FINDINGS_MAX:
                logger.error("audit finding", finding=finding)
        if found and self.findings == len(found):
            self._failed(f"index and store differ: {found[0]}")


def give_back_memory() -> None:
    """Returns free pages to the system (glibc, malloc_trim(3)), which free(3) does at the end of the heap only: 700,000
    quads that were dropped had left 259 MB resident where 65 MB are needed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
