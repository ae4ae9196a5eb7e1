"""Commits: what they may do, whether they are long, and where their notifications go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Cause, Record
from lamplighter.engine.core import Commit, Ended
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import RequestError, StoreError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol import Results, is_long
from lamplighter.engine.slices import LONG
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.current import AccessOf
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.failures import not_registered
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.slices import LoopSlices
from lamplighter.gateway.loop.subscribers import Subscribers
from lamplighter.gateway.state.instant import passage

logger = EventLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Commits:
    """Changes the dataset.

    since: what was committed since a backup was compared with the dataset, None while none is. unwritten: long results
    whose text is not made yet.
    """

    ledger: Ledger
    _evaluations: Evaluations
    _aggregators: Aggregators
    _subscribers: Subscribers
    _slices: LoopSlices
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
        return self.ledger.commit(entries.commit(delta, cause, request, client), delta, self._distribute)

    def advance_clock(self, instant: datetime) -> Commit:
        """The commit with which time comes to an instant. Raises as `commit`."""
        if self.ledger.engine.changes_until(instant) > LONG:
            self._slices.begin(LONG)
        entry = entries.commit(QuadDelta(), passage(instant))
        return self.ledger.commit(entry, QuadDelta(), self._distribute)

    def replay(self, record: Record) -> None:
        """Has a record followed that recovery reads."""
        self.ledger.replay(record, self._deliver)

    def _distribute(self, commit: Commit, record: Record) -> None:
        """Sends what came of a commit on its way. A part of it: the ledger turns what fails here into the end."""
        if self.since is not None:
            self.since.append(commit.delta)
        if commit.notifications or commit.ended:
            self._deliver(commit, record)
        if commit.takeovers:
            self._subscribers.note_takeovers(commit.takeovers)
        if self._evaluations.too_slow:
            self._end_slow()

    def _deliver(self, commit: Commit, record: Record) -> None:
        """Sorts the notifications: to the triggers of applications, or to the sinks of clients on release. Ends what
        the engine has ended."""
        shared: dict[tuple[int, int], Results] = {}
        place = record.epoch, record.seq
        for notification in commit.notifications:
            if self._aggregators.enqueue(notification, commit.sequence):
                continue
            key = (id(notification.added), id(notification.removed))  # the commit keeps them alive
            results = shared.get(key)
            if results is None:
                results = shared[key] = Results(notification.added, notification.removed, place)
                if is_long(notification.added) or is_long(notification.removed):
                    self.unwritten.append(results)
            self._subscribers.deliver(notification, results)
        if commit.ended:
            self._end_failed(commit.ended)

    def _end_failed(self, ended: Sequence[Ended]) -> None:
        """Tells those whose subscriptions the engine has ended."""
        self._subscribers.end_failed([one for one in ended if one.spuid not in self._aggregators.subscriptions])
        for spuid, error in ended:
            self._aggregators.lost(spuid, error)

    def _end_slow(self) -> None:
        """Ends the subscriptions that slow down all others. Those of applications are the operator's to look after."""
        error = self._evaluations.slow_error()
        for text, ms in self._evaluations.take_slow():
            self._aggregators.slow(text, ms)
            self._subscribers.end_slow(text, ms, error)

    def write_results(self) -> None:
        """Makes the text of long results, while others go on."""
        with self._slices.beside():
            self.unwritten.pop().members  # noqa: B018 - it is kept
