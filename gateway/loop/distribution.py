"""Distributes what comes of a commit: to the triggers of applications, and to the sinks of clients on release."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Commit
from lamplighter.engine.protocol import Results, is_long
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.subscribers import Subscribers
from lamplighter.gateway.loop.time_slicer import TimeSlicer


@dataclass(slots=True, eq=False, repr=False)
class Distribution:
    """unwritten: long results whose text is not made yet."""

    _evaluations: Evaluations
    _aggregators: Aggregators
    _subscribers: Subscribers
    _slicer: TimeSlicer
    unwritten: list[Results] = field(default_factory=list, init=False)

    def distribute(self, commit: Commit, record: Record) -> None:
        """Sends what came of a commit on its way."""
        if commit.notifications or commit.ended:
            self.deliver(commit, record)
        if commit.takeovers:
            self._subscribers.note_takeovers(commit.takeovers)
        if self._evaluations.too_slow:
            # Subscriptions that slow down all others end. Those of applications are the operator's to look after.
            error = self._evaluations.slow_error()
            for text, ms in self._evaluations.take_slow():
                self._aggregators.slow(text, ms)
                self._subscribers.end_slow(text, ms, error)

    def deliver(self, commit: Commit, record: Record) -> None:
        """Sorts the notifications, and ends what the engine has ended."""
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
            self._subscribers.end_failed(
                [one for one in commit.ended if one.spuid not in self._aggregators.subscriptions]
            )
            for spuid, error in commit.ended:
                self._aggregators.end_lost(spuid, error)

    def write_results(self) -> None:
        """Makes the text of long results, while others go on."""
        with self._slicer.beside():
            self.unwritten.pop().members  # noqa: B018 - it is kept
