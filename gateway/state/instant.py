"""The instant of comparisons with the clock in subscriptions, as the change log has it.

A subscription whose FILTER compares the clock changes as time goes by. Its changes are commits without quads, whose
cause is the clock: ``{"kind": "clock", "id": "<the instant>"}``. Between two of them the instant follows the commits
with a trusted clock, but for reactions, which stand right behind their trigger. A commit that is followed with another
instant has it in its record: a boundary became due within its step, or a first result was made with a later time before
the clock was set back a little. So each record has one instant, and recovery computes the notifications that were
computed before.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from lamplighter.engine.change_log import Cause, Record
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.delayed import CLOCK, STEP_US, checked_moment

_MICROSECOND = timedelta(microseconds=1)


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
