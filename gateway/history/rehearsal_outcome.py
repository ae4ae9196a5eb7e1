"""What a rehearsal of an application comes to: for the command `try` and for requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lamplighter.engine.errors import ConfigurationError, GatewayError, MalformedRequestError
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.history.names import Names, plain
from lamplighter.gateway.history.records import Found, History
from lamplighter.gateway.history.rehearsal import Act, Rehearsal
from lamplighter.gateway.log.snapshots import label
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.delayed import delay_us

_QUADS_SHOWN_MAX = 10


@dataclass(frozen=True)
class RehearsalOutcome:
    """begin: the record behind which it begins; records: that were followed; reactions: all; delayed: delayed updates
    that were set; without_effect: of these, those that changed nothing when they were due; last: the last reactions."""

    application: str
    begin: Found
    records: int
    reactions: int
    delayed: int
    without_effect: int
    last: Sequence[Act]

    def members(self, names: Names) -> dict[str, Any]:
        """As JSON."""
        return {
            "application": self.application,
            "since": {"record": label(self.begin.place), "time": self.begin.ts},
            "records": self.records,
            "reactions": self.reactions,
            "delayed": self.delayed,
            "without_effect": self.without_effect,
            "last": [_members(act, names) for act in self.last],
        }


def rehearse(
    history: History,
    application: Application,
    begin: Found,
    last: int,
    passed_over: Callable[[GatewayError], None] = lambda error: None,
) -> RehearsalOutcome:
    """What an application would have done since a record. last: how many reactions are kept; passed_over: called with
    each file that was skipped. Raises ConfigurationError, ChangeLogError."""
    rehearsal = Rehearsal(history.replay(begin.place, passed_over), application, moment(begin.ts))
    count, acts = 0, deque[Act](maxlen=last)
    for act in rehearsal.rehearse(history.records(begin.place, history.last()), datetime.now(UTC)):
        count += 1
        acts.append(act)
    return RehearsalOutcome(
        application.name, begin, rehearsal.records, count, rehearsal.delayed, rehearsal.idle, tuple(acts)
    )


def begin_of(history: History, since: str, option: str = "--since") -> Found:
    """The last record before a time or a span, or a named one. option: where it is from, for errors. Raises
    ConfigurationError, ChangeLogError."""
    if not since.startswith("P"):
        try:
            found = history.record_of(since)
        except (ConfigurationError, MalformedRequestError) as error:
            raise ConfigurationError(f"{option}: {error}") from error
        if not found.ts:
            raise ConfigurationError(f"{option} {since}: that record is no longer kept; name a later one")
        return found
    try:
        span = timedelta(microseconds=delay_us(since))
    except MalformedRequestError as error:
        raise ConfigurationError(f"{option} {since}: write a duration such as PT1H, a record or a time") from error
    wanted = iso(datetime.now(UTC) - span)
    oldest = history.oldest()
    if oldest is None:
        raise ConfigurationError("the log has no records yet")
    first = history.record_of(label(oldest))
    # A young log does not go back that far.
    return first if first.ts > wanted else history.record_of(wanted)


def act_lines(act: Act, names: Names) -> list[str]:
    what = f"{act.update}, {act.reaction}"
    if act.set_at:
        what += f", set at {act.set_at[11:19]}"
    lines = [f"{act.ts[:19].replace('T', ' ')}  {plain(what)}, after record {label(act.place)}"]
    if act.failure:
        return [*lines, f"    fails: {plain(act.failure)}"]
    changed = [("-", quad) for quad in act.delta.removed] + [("+", quad) for quad in act.delta.added]
    lines += [f"    {sign} {names.quad(quad)}" for sign, quad in changed[:_QUADS_SHOWN_MAX]]
    if len(changed) > _QUADS_SHOWN_MAX:
        lines.append(f"    and {len(changed) - _QUADS_SHOWN_MAX} more")
    return lines if changed else [*lines, "    changes nothing"]


def _members(act: Act, names: Names) -> dict[str, Any]:
    return {
        "time": act.ts,
        "record": label(act.place),
        "reaction": act.reaction,
        "update": act.update,
        "rows": act.rows,
        "set_at": act.set_at or None,
        "failure": act.failure or None,
        "removed": [quad.to_nquads() for quad in act.delta.removed],
        "added": [quad.to_nquads() for quad in act.delta.added],
        "text": [line.strip() for line in act_lines(act, names)[1:]],
    }
