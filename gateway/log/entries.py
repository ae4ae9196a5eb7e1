"""The content of a change-log record, with a constructor for each type. `LogWriter.append` adds place and clocks."""

from __future__ import annotations

import msgspec

from lamplighter.engine.change_log import Cause, Followed, Gap, Timer
from lamplighter.engine.delta import QuadDelta

_NOTHING = QuadDelta()


class LogEntry(msgspec.Struct, frozen=True):
    """A record without its place. The members are those of `Record`; delta has its quads and graphs."""

    type: str
    cause: Cause | None = None
    request: str | None = None
    client: str | None = None
    delta: QuadDelta = _NOTHING
    timer: Timer | None = None
    cancel: str | None = None
    subscribe: Followed | None = None
    unsubscribe: str | None = None
    gap: Gap | None = None
    instant: str = ""


def commit(
    delta: QuadDelta, cause: Cause | None = None, request: str | None = None, client: str | None = None
) -> LogEntry:
    """The dataset changes by a delta, which may be empty. request, client: the request id, and who sent it."""
    return LogEntry("commit", cause, request, client, delta)


def timer(timer: Timer, cause: Cause | None = None, request: str | None = None, client: str | None = None) -> LogEntry:
    """A delayed update becomes pending."""
    return LogEntry("timer", cause, request, client, timer=timer)


def cancel(name: str, cause: Cause) -> LogEntry:
    """The delayed update with that id is no longer pending and had no effect."""
    return LogEntry("cancel", cause, cancel=name)


def subscribe(followed: Followed, cause: Cause | None = None) -> LogEntry:
    """A resumable subscription begins, or a plan does not follow it any more."""
    return LogEntry("subscribe", cause, subscribe=followed)


def unsubscribe(spuid: str) -> LogEntry:
    """A resumable subscription ends."""
    return LogEntry("unsubscribe", unsubscribe=spuid)


def gap(lost: Gap) -> LogEntry:
    """A part of the history is lost."""
    return LogEntry("gap", gap=lost)
