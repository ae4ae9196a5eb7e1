"""The only place of the running gateway that appends to the change log, and that has the dataset changed.

::

    record(entry)           append ─▶ Knowledge
    commit(delta, cause)    append ─▶ Knowledge ─▶ engine ─▶ notifications
    replay(record)                    Knowledge ─▶ engine ─▶ notifications     recovery, which never appends

A failed append changes nothing. What follows a record that was appended must succeed; where it does not,
BrokenEngineError ends the process, and the next start recovers from the log. The gap record that begins an epoch is the
exception: the log writes it itself, and recovery has drawn its conclusions already.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import perf_counter
from typing import Any, Protocol

from lamplighter.engine.change_log import Cause, Record
from lamplighter.engine.core import Commit
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.gateway.clock import moment
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.loop.dataset import LiveDataset
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.state.knowledge import Knowledge, passage, passed_instant

logger = EventLogger(__name__)


class Distributor(Protocol):
    """Sends what comes of a commit on its way (`gateway.loop.executor`)."""

    def distribute(self, commit: Commit, record: Record) -> None: ...

    def deliver(self, commit: Commit, record: Record) -> None:
        """The same in recovery, for what nobody else has found out since."""
        ...


class Ledger:
    """log: for its place and its head; nobody else appends to it. knowledge: the state at its last record.

    distribution: is set when its parts are made, which record here. since: what was committed since a backup was
    compared with the dataset, None while none is.
    """

    distribution: Distributor

    def __init__(
        self,
        dataset: LiveDataset,
        knowledge: Knowledge,
        evaluations: Evaluations,
        timings: Timings,
        counters: Counters,
    ) -> None:
        self.log = dataset.log
        self.knowledge = knowledge
        self.engine = dataset.engine
        self.slicer = dataset.slicer
        self.evaluations = evaluations
        self.clock = dataset.clock
        self._time = dataset.time
        self._timings = timings
        self._counters = counters
        self.since: list[QuadDelta] | None = None

    def record(self, entry: LogEntry, begun: tuple[str, Any] | None = None) -> Record:
        """Appends a record that has no delta. begun: as in `Knowledge.follow`.

        Raises ChangeLogError and LimitExceededError when nothing was appended, BrokenEngineError when the record
        cannot be followed.
        """
        record = self.log.append(entry)
        try:
            self.knowledge.follow(record, begun)
        except Exception as error:
            raise behind_its_log(error) from error
        return record

    def commit(
        self,
        delta: QuadDelta,
        cause: Cause,
        request: str | None = None,
        client: str | None = None,
        instant: datetime | None = None,
    ) -> Commit:
        """Appends, applies, matches and distributes, in this order; whether that takes long is known before.

        request, client: the request id, and who sent it. instant: to which the commit lets time come. Raises as
        `record`.
        """
        evaluations, engine = self.evaluations, self.engine
        cost = engine.cost(delta)
        if cost.long or (cost.re_evaluated and evaluations.are_slow(cost.re_evaluated)):
            self.slicer.begin(LONG)
        begun, clocks = perf_counter(), self.clock.sample()
        differing = ""  # the instant that the commit is followed with, if that does not follow from its time
        if instant is None and engine.timetable.conditions:
            known = self.knowledge.instant
            differing = known.differing(clocks.wall, engine.instant, engine.due, cause, trusted=clocks.trusted)
        record = self.log.append(LogEntry("commit", cause, request, client, delta, instant=differing), clocks)
        try:
            self.knowledge.follow(record)
            stored, times = perf_counter(), self._timings.group
            times.append((self._timings.store_update, evaluations.evaluated_s + stored - begun))
            evaluations.evaluated_s = 0.0
            commit = self._apply(record, delta, clocks.wall, instant, self.distribution.distribute)
            self._counters.commits += 1
            if self.since is not None:
                self.since.append(commit.delta)
            times.append((self._timings.spu_manager, perf_counter() - stored))
        except Exception as error:
            raise behind_its_log(error) from error
        while engine.faults:
            logger.error("engine fault repaired", sequence=commit.sequence, fault=engine.faults.popleft())
        return commit

    def skip(self) -> int:
        """The sequence for an update that has changed nothing, and leaves no record."""
        self._timings.group.append((self._timings.store_update, self.evaluations.evaluated_s))
        self.evaluations.evaluated_s = 0.0
        return self.log.sequence

    def advance_clock(self, instant: datetime) -> Commit:
        """The commit with which time comes to an instant. Raises as `record`."""
        if self.engine.changes_until(instant) > LONG:
            self.slicer.begin(LONG)
        return self.commit(QuadDelta(), passage(instant), instant=instant)

    def replay(self, record: Record) -> None:
        """Has a record followed that recovery reads, at its time."""
        self.knowledge.follow(record)
        if record.type == "commit":
            instant = passed_instant(record.cause)
            self.evaluations.replaying = True
            try:
                self._apply(record, record.delta, moment(record.ts), instant, self.distribution.deliver)
            finally:
                self.evaluations.replaying = False

    def _apply(
        self,
        record: Record,
        delta: QuadDelta,
        now: datetime,
        instant: datetime | None,
        distribute: Callable[[Commit, Record], None],
    ) -> Commit:
        """Applies and matches what a record says, which `Knowledge` has followed."""
        engine, reached = self.engine, self.knowledge.instant.text
        self.evaluations.following, self._time.now = True, now
        self.evaluations.changes.note(delta)
        try:
            if instant is not None:
                commit = engine.advance(instant, record.seq)
            else:
                if reached:
                    engine.reach(moment(reached))
                commit = engine.commit(delta, record.seq)
            distribute(commit, record)  # what fails here is behind the log, too
            return commit
        finally:
            self.evaluations.following, self._time.now = False, None
