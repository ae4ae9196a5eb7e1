"""The machine of a simulated gateway: its clock, its reboots, its dataset, and the records of its change log."""

from __future__ import annotations

import hashlib
import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from lamplighter.demo.fleet.truth import StateTruth, Truth
from lamplighter.engine.change_log import VERSION, Cause, Gap, GraphChanges, Record
from lamplighter.engine.terms import XSD, Quad, Term, literal

START = datetime(2026, 6, 1, tzinfo=UTC)
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START_US = (START - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class FleetPlan:
    """Parameters of all gateways. interval_s: of temperatures; gap_share: share of gateways that lose an epoch."""

    days: float
    posts: int = 4
    interval_s: float = 60.0
    visits_per_day: float = 60.0
    heartbeat_s: float = 1800.0
    event_share: float = 0.25
    gap_share: float = 0.1
    states: int = 3


class SimulatedMachine(ABC):
    """Plays events in order of time. A subclass schedules them by `_at`, and describes its streams after a boot."""

    def __init__(self, number: int, seed: int, plan: FleetPlan) -> None:
        self._random = random.Random(f"{seed}/{number}")
        self._plan = plan
        self.name = f"gw-{number:06d}"
        self.model = "event" if self._random.random() < plan.event_share else "latest"
        self._end = int(plan.days * DAY)
        self._quads: set[Quad] = set()
        self._heap: list[tuple[int, int, Callable[[], Iterator[Record]]]] = []
        self._order = 0
        self._now = 0
        self._epoch, self._seq = 1, 0
        self._booted_us = -int(self._random.uniform(60, 1e6)) * SECOND
        self._boot = self._new_boot()
        self._skew_us, self._trusted = 0, True
        self._down_until = 0
        self.truth = Truth(gw=self.name, model=self.model)

    @abstractmethod
    def _describe(self) -> Iterator[Record]:
        """The stream descriptions that the MQTT adapter sends when it starts."""

    def _at(self, at: int, act: Callable[[], Iterator[Record]]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, act))

    def _events(self) -> Iterator[Record]:
        """The records of all events up to the end, with the reboots; states are noted on the way."""
        places = [int(self._end * (n + 1) / (self._plan.states + 1)) for n in range(self._plan.states)]
        self._plan_reboots()
        while self._heap and self._heap[0][0] < self._end:
            at, _, act = heapq.heappop(self._heap)
            while places and at >= places[0]:
                places.pop(0)
                self._note_state()
            self._now = max(self._now + 40, at)
            yield from act()

    def _plan_reboots(self) -> None:
        loses = self._random.random() < self._plan.gap_share
        for number in range(max(1, round(self._plan.days / 2)) if self._random.random() < 0.6 or loses else 0):
            at = int(self._random.uniform(0.05, 0.95) * self._end)
            self._at(at, self._reboot(loses and number == 0))

    def _reboot(self, lost: bool) -> Callable[[], Iterator[Record]]:
        def up() -> Iterator[Record]:
            self._boot, self._booted_us = self._new_boot(), self._now - 20 * SECOND
            # Without a hardware clock, the time continues from about where it stopped, until it is synchronised.
            self._skew_us = -outage - self._random.randrange(0, 1800 * SECOND)
            self._trusted = False
            self.truth.boots += 1
            if lost:
                gap = Gap(self._epoch, self._seq + 1, "a segment could not be read to its end", aside="damaged")
                self._epoch, self._seq = self._epoch + 1, 0
                yield self._record("gap", gap=gap)
            yield from self._describe()
            self._at(self._now + int(self._random.uniform(30, 300) * SECOND), synchronised)

        def synchronised() -> Iterator[Record]:
            self._skew_us, self._trusted = 0, True
            yield from ()

        outage = int(self._random.uniform(30, 120) * SECOND)

        def down() -> Iterator[Record]:
            if self._down_until <= self._now:  # not down already
                self._down_until = self._now + outage
                # Events during the down-time happen at its end.
                self._heap = [(max(at, self._down_until), order, act) for at, order, act in self._heap]
                heapq.heapify(self._heap)
                self._at(self._down_until - 1, up)
            yield from ()

        return down

    def _new_boot(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def _wall(self) -> int:
        return self._now + self._skew_us

    def _wall_term(self) -> Term:
        # In the store's canonical form, without trailing zeros.
        text = timestamp(self._wall()).removesuffix("Z").rstrip("0").removesuffix(".")
        return literal(f"{text}Z", datatype=f"{XSD}dateTime")

    def _commit(
        self,
        cause: Cause,
        removed: Iterable[Quad],
        asserted: Iterable[Quad],
        *,
        graphs: GraphChanges | None = None,
        request: str | None = None,
    ) -> Record:
        quads, wanted = self._quads, dict.fromkeys(asserted)
        gone = tuple(quad for quad in removed if quad in quads and quad not in wanted)
        new = tuple(quad for quad in wanted if quad not in quads)
        kept = tuple(quad for quad in wanted if quad in quads)
        quads.difference_update(gone)
        quads.update(new)
        self.truth.commits += 1
        self.truth.quads_added += len(new)
        self.truth.quads_deleted += len(gone)
        return self._record("commit", cause=cause, d=gone, a=new, k=kept, graphs=graphs, request=request)

    def _record(self, kind: str, **members: object) -> Record:
        self._seq += 1
        self.truth.records += 1
        self.truth.untrusted += not self._trusted
        return Record(
            v=VERSION,
            type=kind,
            gw=self.name,
            epoch=self._epoch,
            seq=self._seq,
            ts=timestamp(self._wall()),
            trusted=self._trusted,
            boot=self._boot,
            boottime_us=self._now - self._booted_us,
            **members,  # type: ignore[arg-type]
        )

    def snapshot_quads(self) -> list[Quad]:
        """The current dataset."""
        return sorted(self._quads, key=Quad.to_nquads)

    def _note_state(self) -> None:
        self.truth.states.append(
            StateTruth(self._epoch, self._seq, timestamp(self._wall()), len(self._quads), nquads_hash(self._quads))
        )


def nquads_hash(quads: Iterable[Quad]) -> str:
    """SHA-256 of the sorted N-Quads lines."""
    return nquads_lines_hash(quad.to_nquads() for quad in quads)


def nquads_lines_hash(lines: Iterable[str]) -> str:
    """SHA-256 of sorted N-Quads lines, which have no newlines."""
    return hashlib.sha256("".join(sorted(line + "\n" for line in lines)).encode()).hexdigest()


def timestamp(us: int) -> str:
    """xsd:dateTime of microseconds since the fleet's start, as the change log writes it."""
    moment = _EPOCH + timedelta(microseconds=_START_US + us)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
