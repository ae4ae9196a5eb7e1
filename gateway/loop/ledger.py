"""The only place of the running gateway that appends to the change log, and that has the dataset changed.

::

    record(entry)           append ─▶ Knowledge
    commit(entry, delta)    append ─▶ Knowledge ─▶ engine ─▶ notifications
    replay(record)                    Knowledge ─▶ engine ─▶ notifications     recovery, which never appends

A failed append changes nothing. What follows a record that was appended must succeed; where it does not,
BrokenEngineError ends the process, and the next start recovers from the log. The gap record that begins an epoch is the
exception: the log writes it itself, and recovery has drawn its conclusions already.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import perf_counter
from typing import Any

import msgspec

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Commit
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import RecordClocks, moment
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.loop.dataset import LiveDataset
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.state.instant import passed_instant
from lamplighter.gateway.state.knowledge import Knowledge

logger = EventLogger(__name__)

Distribute = Callable[[Commit, Record], None]
"""Sends what came of a commit on its way."""


class Ledger:
    """log: for its place and its head; nobody else appends to it. knowledge: the state at its last record."""

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
        self._clock = dataset.clock
        self._time = dataset.time
        self._evaluations = evaluations
        self._timings = timings
        self._counters = counters

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

    def commit(self, entry: LogEntry, delta: QuadDelta, distribute: Distribute) -> Commit:
        """Appends, applies, matches and distributes, in this order. Raises as `record`."""
        evaluations, begun, clocks = self._evaluations, perf_counter(), self._clock.sample()
        if self.engine.timetable.conditions:
            entry = self._with_instant(entry, clocks)
        record = self.log.append(entry, clocks)
        try:
            self.knowledge.follow(record)
            stored = perf_counter()
            self._timings.store_update.took(evaluations.evaluated_s + stored - begun)
            evaluations.evaluated_s = 0.0
            commit = self._applied(record, delta, clocks.wall, distribute)
            self._counters.commits += 1
            self._timings.spu_manager.took(perf_counter() - stored)
        except Exception as error:
            raise behind_its_log(error) from error
        while self.engine.faults:
            logger.error("engine fault repaired", sequence=commit.sequence, fault=self.engine.faults.popleft())
        return commit

    def replay(self, record: Record, distribute: Distribute) -> None:
        """Has a record followed that recovery reads, at its time."""
        self.knowledge.follow(record)
        if record.type == "commit":
            self._applied(record, record.delta, moment(record.ts), distribute)

    def _applied(self, record: Record, delta: QuadDelta, now: datetime, distribute: Distribute) -> Commit:
        """Applies and matches what a record says, which `Knowledge` has followed."""
        self._evaluations.following, self._time.now = True, now
        try:
            instant = passed_instant(record.cause)
            if instant is not None:
                commit = self.engine.advance(instant, record.seq)
            else:
                reached = self.knowledge.instant.reached_instant
                if reached is not None:
                    self.engine.reach(reached)
                commit = self.engine.commit(delta, record.seq)
            distribute(commit, record)
            return commit
        finally:
            self._evaluations.following, self._time.now = False, None

    def _with_instant(self, entry: LogEntry, clocks: RecordClocks) -> LogEntry:
        """The entry of a commit, with the instant that it is followed with if that does not follow from its time."""
        engine, known = self.engine, self.knowledge.instant
        if passed_instant(entry.cause) is not None:
            return entry
        text = known.differing(clocks.wall, engine.instant, engine.due, entry.cause, trusted=clocks.trusted)
        return msgspec.structs.replace(entry, instant=text) if text else entry
