"""The gateway's state besides the dataset, all of it from records.

`Knowledge.follow` is the only way to apply a record. A running gateway follows each record that it appends, recovery
those behind the snapshot, and history those up to the requested place. So all three have the same state at a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from lamplighter.engine.change_log import Count, Record
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import ApplicationRegistry
from lamplighter.gateway.state.delayed import DelayedState, DelayedUpdates
from lamplighter.gateway.state.instant import Instant
from lamplighter.gateway.state.request_ids import REMOVED, RequestIds
from lamplighter.gateway.state.resumption import Retained


class SnapshotState(msgspec.Struct, frozen=True):
    """What a snapshot has besides the dataset. requests: (id, sequence, id of the delayed update, client), oldest
    first; applications: name -> digest; instant: of comparisons with the clock."""

    delayed: DelayedState = DelayedState()
    requests: list[tuple[str, Count, str | None, str]] = []
    applications: dict[str, str] = {}
    resumable: list[Retained] = []
    instant: str = ""


def snapshot_state(head: Record) -> SnapshotState:
    """The state in the first record of a snapshot. Raises ValueError, which names the place."""
    assert head.snapshot is not None
    found = msgspec.json.decode(head.snapshot.state, type=SnapshotState)
    found.delayed.check()
    return found


class ResumableFollower(Protocol):
    """The resumable subscriptions. They need an engine, so each kind of follower has its own class."""

    def follow(self, record: Record, begun: tuple[str, Any] | None = None) -> None:
        """Follows a record, before its delta is matched. begun: as in `Knowledge.follow`."""
        ...

    def restore(self, retained: Sequence[Retained], boot: str) -> None:
        """Restores the content of a snapshot. boot: of the machine that wrote it."""
        ...

    def state(self) -> list[Retained]: ...


class Knowledge:
    """The state at a record. Use: `restore` a snapshot, then `follow` the records behind it in order."""

    def __init__(self, clock: Clock, subscriptions: ResumableFollower) -> None:
        self.delayed = DelayedUpdates(clock)
        self.register = ApplicationRegistry()
        self.request_ids = RequestIds()
        self.instant = Instant()
        self._subscriptions = subscriptions
        self._boot = ""  # of the last record

    def follow(self, record: Record, begun: tuple[str, Any] | None = None) -> None:
        """Follows the next record. For a commit: before its delta is matched.

        begun: the engine's name and the sink of the subscription that the record is about, if it has begun already: a
        live one begins first, since that may fail, and is recorded then.
        """
        kind = None if record.cause is None else record.cause.kind
        # Each record tells of clocks; the other parts are asked for those that may concern them.
        self.delayed.follow(record)
        self.instant.follow(record)
        if kind == APPLICATION:
            self.register.follow(record)
        if record.request is not None or kind == REMOVED:
            self.request_ids.follow(record)
        if record.type != "commit" or record.boot != self._boot:
            self._boot = record.boot
            self._subscriptions.follow(record, begun)

    def restore(self, head: Record) -> None:
        """Restores the first record of a snapshot. The engine must have the dataset already."""
        state = snapshot_state(head)
        self.delayed.restore(state.delayed)
        self.request_ids.restore(state.requests)
        self.register.restore(state.applications)
        self.instant.restore(state.instant)
        self._subscriptions.restore(state.resumable, head.boot)

    def state(self) -> SnapshotState:
        return SnapshotState(
            self.delayed.state(),
            self.request_ids.state(),
            self.register.digests(),
            self._subscriptions.state(),
            self.instant.text,
        )
