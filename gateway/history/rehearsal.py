"""Rehearses an application on the past: what it would have done, had it been there.

::

    state at the begin ─▶ records, in order ─▶ engine with the application's queries ─▶ triggers ─▶ its updates, at once
                                                                                          or when their delay is over

The effects stay in the rehearsal's own dataset, beside what really happened; nobody else reacts to them. What another
version of the application did then is left out. Time is that of the records, so a delay is exact to the microsecond.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Commit
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.slices import Slices
from lamplighter.engine.terms import Bag
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.history.records import Replay
from lamplighter.gateway.log.snapshots import Place, place_of
from lamplighter.gateway.state.applications import (
    KIND,
    REACTIONS_MAX,
    Application,
    Trigger,
    aggregator_queries,
    triggers,
)
from lamplighter.gateway.state.delayed import at_moment, delay_us

NO_CHANGE: Final = QuadDelta()
_SOON: Final = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Act:
    """What the application would have done. ts: when; place: the record that it follows; reaction: ``lamp/added``;
    update: its name in the profile; rows: for how many; delta: the effect; set_at: when a delayed update was set, ""
    for one without a delay; failure: why there is no effect."""

    ts: str
    place: Place
    reaction: str
    update: str
    rows: int
    delta: QuadDelta = NO_CHANGE
    set_at: str = ""
    failure: str = ""


@dataclass(order=True, frozen=True)
class _Due:
    """A delayed update. depth: how many others led to it, each one `_SOON` after the one before."""

    at: datetime
    number: int
    trigger: Trigger
    text: str
    set_at: datetime
    depth: int


class Rehearsal:
    """records: those that were followed; delayed: delayed updates that were set; idle: of these, those that changed
    nothing when they were due."""

    def __init__(self, replay: Replay, application: Application, begin: datetime) -> None:
        """replay: the state at the begin. Raises ConfigurationError for a query that cannot be followed."""
        self.records = 0
        self.delayed = 0
        self.idle = 0
        self._engine = replay.engine
        self._application = application
        self._place = replay.place
        self._now = begin
        self._due: list[_Due] = []
        self._depth = 0  # of the delayed update that runs
        self._own_timers = {
            pending.timer.id for pending in replay.delayed_updates.pending.values() if self._is_own(pending.record)
        }
        self._aggregators: dict[str, str] = {}
        self._pending: deque[Trigger] = deque()
        self._engine.advance(begin)  # its clock is that of this machine, which is later
        for aggregator, text in aggregator_queries(application):
            try:
                subscription = self._engine.subscribe(text)
            except GatewayError as error:
                raise ConfigurationError(f"{application.name}: the query of {aggregator}: {error}") from error
            self._aggregators[subscription.spuid] = aggregator
            if application.profile.aggregators[aggregator].first_results:
                first = subscription.first
                self._pending += triggers(application, aggregator, 0, first, first - first)

    def rehearse(self, records: Iterable[Record], end: datetime) -> Iterator[Act]:
        """What it would have done up to the end, in order. records: those behind the begin."""
        yield from self._react()
        for record in records:
            yield from self._pass_time(moment(record.ts))
            self._place = place_of(record)
            self.records += 1
            if record.timer is not None and self._is_own(record):
                self._own_timers.add(record.timer.id)
            elif record.type == "commit" and not self._is_own(record):
                self._take(self._engine.converge(record.delta))
                yield from self._react()
        yield from self._pass_time(end)

    def _is_own(self, record: Record) -> bool:
        """Whether another version of the application wrote it, by itself or by a delayed update."""
        cause = record.cause
        if cause is None:
            return False
        if cause.kind == KIND:
            return cause.id.startswith(f"{self._application.name}/")
        return cause.kind == "timer" and cause.id in self._own_timers

    def _pass_time(self, to: datetime) -> Iterator[Act]:
        """Whatever is due by then, in order. A clock that was set back stands still here."""
        while True:
            due, instant = self._due[0].at if self._due else None, self._engine.due
            moments = [one for one in (due, instant) if one is not None and one <= to]
            if not moments:
                break
            self._now = max(self._now, min(moments))
            if instant is not None and instant == min(moments):
                self._take(self._engine.advance(instant))
                yield from self._react()
            else:
                yield from self._run_due(heapq.heappop(self._due))
        self._now = max(self._now, to)

    def _run_due(self, due: _Due) -> Iterator[Act]:
        act = self._act(due.trigger, due.text, iso(due.set_at))
        if act.failure or act.delta.changes:
            yield act
        else:
            self.idle += 1
        self._depth = due.depth + 1
        yield from self._react()
        self._depth = 0

    def _take(self, commit: Commit) -> None:
        for told in commit.notifications:
            aggregator = self._aggregators.get(told.spuid)
            if aggregator is not None:
                self._pending += triggers(self._application, aggregator, self._place[1], told.added, told.removed)

    def _react(self) -> Iterator[Act]:
        for _ in range(REACTIONS_MAX):
            if not self._pending:
                return
            trigger = self._pending.popleft()
            try:
                reaction = trigger.reaction(Slices())
                if reaction.delay is None and reaction.at is None:
                    yield self._act(trigger, reaction.sparql)
                    continue
                at = (
                    self._now + timedelta(microseconds=delay_us(reaction.delay))
                    if reaction.delay is not None
                    else at_moment(reaction.at or "")
                )
            except GatewayError as error:
                yield self._failing_act(trigger, error)
                continue
            self.delayed += 1
            depth = self._depth if at - self._now < _SOON else 0
            if depth == REACTIONS_MAX:  # time would stand still
                raise self._error(
                    f"{REACTIONS_MAX} reactions follow from each other, each at once", "give their delay more time"
                )
            heapq.heappush(self._due, _Due(at, self.delayed, trigger, reaction.sparql, self._now, depth))
        self._pending.clear()
        raise self._error(f"{REACTIONS_MAX} reactions follow from one record", "the gateway would stop it")

    def _error(self, what: str, then: str) -> ConfigurationError:
        return ConfigurationError(f"{self._application.name}: {what} at {iso(self._now)}; {then}")

    def _act(self, trigger: Trigger, text: str, set_at: str = "") -> Act:
        try:
            delta = self._engine.prepare(text, now=self._now)
        except GatewayError as error:
            return self._failing_act(trigger, error, set_at)
        self._take(self._engine.commit(delta))
        return Act(*self._of(trigger), delta, set_at)

    def _failing_act(self, trigger: Trigger, error: GatewayError, set_at: str = "") -> Act:
        return Act(*self._of(trigger), set_at=set_at, failure=" ".join(str(error).split()))

    def _of(self, trigger: Trigger) -> tuple[str, Place, str, str, int]:
        declared = self._application.profile.aggregators[trigger.aggregator]
        update = declared.added if trigger.member == "added" else declared.removed
        rows: Bag = trigger.rows
        return iso(self._now), self._place, f"{trigger.aggregator}/{trigger.member}", update or "", len(rows)
