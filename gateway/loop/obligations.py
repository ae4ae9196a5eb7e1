"""Obligations: what the change log still lacks, in the order in which it is recorded.

A commit, a step or a start enqueues; `Reactions.flush_pending` looks at the first one of a kind, records it, and only
then removes it: what the log did not take stays pending. There is no heap, since recovery strikes out of the middle,
and the end of a stopped application stands behind all reactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from lamplighter.engine.change_log import Record
from lamplighter.gateway.state.applications import Application, Trigger

Item = TypeVar("Item")


@dataclass(slots=True, eq=False, repr=False)
class Obligations:
    """One queue for each kind, in their order.

    reactions: triggers of applications. stopped: applications, behind all reactions. starts: what begins once, before
    any other step: inference, validation. ending: names of applications that are not declared any more. beginning:
    applications. takeovers: whether the store may have taken over resumable subscriptions. subscriptions: resumable
    ones that the gateway has ended. clients: that were removed. recorders: record these last three kinds. pending:
    whether there may be any, which is asked before and behind each step; nothing clears it but `Reactions`.
    """

    reactions: deque[Trigger] = field(default_factory=deque)
    stopped: deque[Application] = field(default_factory=deque)
    starts: deque[Callable[[], None]] = field(default_factory=deque)
    ending: deque[str] = field(default_factory=deque)
    beginning: deque[Application] = field(default_factory=deque)
    takeovers: bool = False
    subscriptions: deque[str] = field(default_factory=deque)
    clients: deque[str] = field(default_factory=deque)
    recorders: tuple[Callable[[], None], ...] = ()
    pending: bool = True

    def add(self, queue: deque[Item], items: Iterable[Item]) -> None:
        """Enqueues, in the queue of a kind."""
        queue.extend(items)
        self.pending = True

    def expect_takeovers(self) -> None:
        """The store may have taken over resumable subscriptions."""
        self.takeovers = self.pending = True

    def strike_out(self, record: Record) -> None:
        """Strikes out the reaction that a record is, if it is one. Their order may differ from that of the log:
        an application that was added later is subscribed in its place since the last start."""
        for place, trigger in enumerate(self.reactions):
            if trigger.cause == record.cause:
                del self.reactions[place]
                return

    def drop(self, application: Application) -> None:
        """Strikes out the reactions of an application that is stopped."""
        self.reactions = deque(trigger for trigger in self.reactions if trigger.application != application)
