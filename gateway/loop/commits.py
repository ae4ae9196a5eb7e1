"""Commits: append, apply, match, deliver, in this order. A failed append changes nothing.

What follows a record that was appended must succeed; where it does not, BrokenEngineError ends the process, and the
next start recovers from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from typing import Any

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Cause, Record
from lamplighter.engine.core import Commit, Ended, Engine, Takeover
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import RequestError, StoreError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Results, is_long
from lamplighter.engine.slices import LONG
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.clock import Clock, moment
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.current import AccessOf
from lamplighter.gateway.loop.dataset import StepTime
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.failures import behind_its_log, not_registered
from lamplighter.gateway.loop.journal import Journal
from lamplighter.gateway.loop.slices import LoopSlices
from lamplighter.gateway.loop.subscribers import Subscribers
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.state.instant import passed, passed_instant
from lamplighter.gateway.state.resumption import SPUID, digits

logger = EventLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Commits:
    """Changes the dataset.

    since: what was committed since a backup was compared with the dataset, None while none is. unwritten: long results
    whose text is not made yet.
    """

    _engine: Engine
    _time: StepTime
    _journal: Journal
    _evaluations: Evaluations
    _aggregators: Aggregators
    _subscribers: Subscribers
    _slices: LoopSlices
    _clock: Clock
    _timings: Timings
    _counters: Counters
    _access_of: AccessOf
    unwritten: list[Results] = field(default_factory=list, init=False)
    since: list[QuadDelta] | None = field(default=None, init=False)

    def access(self, client: str | None) -> Access | None:
        """What a client may do now, None if it is no longer registered. The gateway itself may do everything."""
        return FULL if client is None else self._access_of(client)

    def effect(
        self,
        request: Request,
        event: str,
        ids: Mapping[str, Any],
        failed: Callable[[Exception], None],
        client: str | None = None,
    ) -> QuadDelta:
        """The delta of an update whose requester does not wait. One that fails is logged, and has an empty delta.

        event, ids: for the log. failed: called with the error. client: who asked for it; its permissions of now count.
        """
        try:
            access = self.access(client)
            if access is None:
                raise not_registered(client or "")
            return self._evaluations.prepare(request, access)
        except (RequestError, StoreError) as error:
            logger.error(event, **ids, reason=error)
            failed(error)
            return QuadDelta()

    def commit(self, delta: QuadDelta, cause: Cause, request: str | None = None, client: str | None = None) -> Commit:
        """The commit of a delta, with its notifications on their way.

        Raises ChangeLogError and LimitExceededError; nothing has changed then. BrokenEngineError.
        """
        if self._evaluations.is_long(delta):
            self._slices.begin(LONG)
        return self._commit(entries.commit(delta, cause, request, client), delta)

    def let_pass(self, instant: datetime) -> Commit:
        """The commit with which time comes to an instant. Raises as `commit`."""
        if self._engine.changes_until(instant) > LONG:
            self._slices.begin(LONG)
        return self._commit(entries.commit(QuadDelta(), passed(instant), None, None), QuadDelta())

    def _commit(self, entry: entries.LogEntry, delta: QuadDelta) -> Commit:
        evaluations = self._evaluations
        begun, now, trusted = perf_counter(), self._clock.wall(), self._clock.trusted()
        if self._engine.compares_clock:
            entry = self._with_instant(entry, now, trusted=trusted)
        record = self._journal.append(entry, now, trusted)
        try:
            stored = perf_counter()
            self._timings.store_update.took(evaluations.evaluated_s + stored - begun)
            evaluations.evaluated_s = 0.0
            evaluations.following, self._time.now = True, now
            commit = self._applied(record, delta)
            self._counters.commits += 1
            if self.since is not None:
                self.since.append(delta)
            self._deliver(commit, record)
            self._timings.spu_manager.took(perf_counter() - stored)
            if commit.ended:
                self._end_failed(commit.ended)
            if commit.takeovers:
                self._subscribers.takeovers = True
                self._log_takeovers(commit.takeovers)
            self._end_slow()
        except Exception as error:
            raise behind_its_log(error) from error
        finally:
            evaluations.following, self._time.now = False, None
        while self._engine.faults:
            logger.error("engine fault repaired", sequence=commit.sequence, fault=self._engine.faults.popleft())
        return commit

    def _with_instant(self, entry: entries.LogEntry, now: datetime, *, trusted: bool) -> entries.LogEntry:
        """The entry of a commit, with the instant that it is followed with if that does not follow from its time."""
        engine, known = self._engine, self._journal.knowledge.instant
        if passed_instant(entry.cause) is not None:
            return entry
        text = known.differing(now, engine.instant, engine.due, entry.cause, trusted=trusted)
        return msgspec.structs.replace(entry, instant=text) if text else entry

    def again(self, record: Record) -> None:
        """Applies and matches a commit that recovery reads, at the time of its record."""
        self._evaluations.following, self._time.now = True, moment(record.ts)
        try:
            commit = self._applied(record, record.delta)
        finally:
            self._evaluations.following, self._time.now = False, None
        self._deliver(commit, record)
        if commit.ended:
            self._end_failed(commit.ended)

    def _applied(self, record: Record, delta: QuadDelta) -> Commit:
        """Applies and matches what a record says, which `Knowledge` has followed."""
        instant = passed_instant(record.cause)
        if instant is not None:
            return self._engine.advance(instant, record.seq)
        reached = self._journal.knowledge.instant.reached
        if reached is not None:
            self._engine.reach(reached)
        return self._engine.commit(delta, record.seq)

    def _deliver(self, commit: Commit, record: Record) -> None:
        """Sorts the notifications: to the triggers of applications, or to the sinks of clients on release."""
        shared: dict[tuple[int, int], Results] = {}
        place = record.epoch, record.seq
        for notification in commit.notifications:
            if self._aggregators.owe(notification, commit.sequence):
                continue
            key = (id(notification.added), id(notification.removed))  # the commit keeps them alive
            results = shared.get(key)
            if results is None:
                results = shared[key] = Results(notification.added, notification.removed, place)
                if is_long(notification.added) or is_long(notification.removed):
                    self.unwritten.append(results)
            self._subscribers.deliver(notification, results)

    def _end_failed(self, ended: Sequence[Ended]) -> None:
        """Tells those whose subscriptions the engine has ended."""
        self._subscribers.end_failed([one for one in ended if one.spuid not in self._aggregators.subscriptions])
        for spuid, error in ended:
            self._aggregators.lost(spuid, error)

    def _log_takeovers(self, takeovers: Sequence[Takeover]) -> None:
        """Logs which subscriptions, those of applications too, the store evaluates from now on, or a plan follows."""
        for takeover in takeovers:
            resumable = self._subscribers.resumables.spuid(takeover.spuid)
            spuid = digits(resumable) if resumable else takeover.spuid.removeprefix(SPUID)
            if takeover.reason:
                logger.warning("subscription taken over by the store", spuid=spuid, reason=takeover.reason)
            else:
                logger.info("subscription has a plan again", spuid=spuid, spu_class=takeover.spu_class)

    def _end_slow(self) -> None:
        """Ends the subscriptions that slow down all others. Those of applications are the operator's to look after."""
        for text, ms in self._evaluations.take_slow():
            error = self._evaluations.slow_error()
            self._aggregators.slow(text, ms)
            self._subscribers.end_slow(text, ms, error)

    def write_results(self) -> None:
        """Makes the text of long results, while others go on."""
        with self._slices.beside():
            self.unwritten.pop().members  # noqa: B018 - it is kept
