"""The gateway's state besides the dataset, all of it from records.

`Knowledge.follow` is the only way to apply a record. A running gateway follows each record that it appends, recovery
those behind the snapshot, and history those up to the requested place. So all three have the same state at a record.

The instant of comparisons with the clock is part of it. A subscription whose FILTER compares the clock changes as time
goes by. Its changes are commits without quads, whose cause is the clock: ``{"kind": "clock", "id": "<the instant>"}``.
Between two of them the instant follows the commits with a trusted clock, but for reactions, which stand right behind
their trigger. A commit that is followed with another instant has it in its record: a boundary became due within its
step, or a first result was made with a later time before the clock was set back a little. So each record has one
instant, and recovery computes the notifications that were computed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from lamplighter.engine.change_log import Cause, Count, Record
from lamplighter.gateway.clock import Clock, iso, moment
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import ApplicationRegistry
from lamplighter.gateway.state.delayed import CLOCK, STEP_US, DelayedState, DelayedUpdates, checked_moment
from lamplighter.gateway.state.request_ids import REMOVED, RequestIds
from lamplighter.gateway.state.resumption import Retained
from lamplighter.gateway.state.stored_applications import StoredApplication, StoredApplications

_MICROSECOND = timedelta(microseconds=1)


class SnapshotState(msgspec.Struct, frozen=True):
    """What a snapshot has besides the dataset. requests: (id, sequence, id of the delayed update, client), oldest
    first; applications: name -> digest; instant: of comparisons with the clock; stored: the stored applications, which
    are not from records but belong into a backup; None in those of versions that had none."""

    delayed: DelayedState = DelayedState()
    requests: list[tuple[str, Count, str | None, str]] = []
    applications: dict[str, str] = {}
    resumable: list[Retained] = []
    instant: str = ""
    stored: list[StoredApplication] | None = None


def snapshot_state(head: Record) -> SnapshotState:
    """The state in the first record of a snapshot. Raises ValueError, which names the place."""
    assert head.snapshot is not None
    found = msgspec.json.decode(head.snapshot.state, type=SnapshotState)
    found.delayed.check()
    return found


def passage(instant: datetime) -> Cause:
    """The cause of the commit with which time has come to an instant."""
    return Cause(CLOCK, iso(instant))


def passed_instant(cause: Cause | None) -> datetime | None:
    """The instant to which time has come with a commit of that cause, None for another cause."""
    if cause is None or cause.kind != CLOCK or not cause.id[:1].isdigit():
        return None  # or it logs the clocks, and its id is a word
    return moment(cause.id)


def follows_clock(cause: Cause | None, *, trusted: bool) -> bool:
    """Whether the instant follows the time of a commit. trusted: whether its clock was."""
    return trusted and not (cause is not None and cause.kind == APPLICATION and cause.seq is not None)


class Instant:
    """The instant behind the last record. text: in the notation of `clock.iso`, empty if no record had one."""

    def __init__(self) -> None:
        self.text = ""

    def follow(self, record: Record) -> None:
        cause = record.cause
        if cause is not None and cause.kind == CLOCK and cause.id[:1].isdigit():
            self.text = cause.id
        elif record.instant:
            self.text = record.instant
        elif record.type == "commit" and record.ts > self.text and follows_clock(record.cause, trusted=record.trusted):
            self.text = record.ts

    def differing(
        self, now: datetime, instant: datetime, due: datetime | None, cause: Cause | None, *, trusted: bool
    ) -> str:
        """The instant that a commit records; empty if it follows from now, its time. instant, due: the engine's."""
        follows = follows_clock(cause, trusted=trusted)
        if follows and now > instant:
            instant = now if due is None or now < due else due - _MICROSECOND
        text, time = iso(instant), iso(now)
        return "" if text == (time if follows and time > self.text else self.text) else text

    def restore(self, text: str) -> None:
        """Restores the text of a snapshot. Raises ValueError, because a file may contain anything."""
        if text:
            checked_moment("instant", text)
        self.text = text

    def before(self, record: Record | None) -> datetime | None:
        """The instant with which the next record is followed, None if it is not known."""
        # A boundary may have been due within the step of an earlier commit. Then the commit had a later time, and the
        # boundary is the next record.
        if not self.text:
            return None
        reached = moment(self.text)
        instant = None if record is None else passed_instant(record.cause)
        if instant is not None and instant <= reached and reached - instant < timedelta(microseconds=STEP_US):
            return instant - _MICROSECOND
        return reached


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
    """The state at a record. Use: `restore` a snapshot, then `follow` the records behind it in order. stored: the
    applications beside the records, for snapshots; None where they are not known."""

    stored: StoredApplications | None = None

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
            None if self.stored is None else list(self.stored.applications),
        )
