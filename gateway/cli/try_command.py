"""The command `try`: what an application would have done in the past, before it is switched on.

It reads the data folder, with or without a running gateway, and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lamplighter.engine.errors import ConfigurationError, MalformedRequestError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.commands import opened_history
from lamplighter.gateway.cli.console import print_json
from lamplighter.gateway.cli.options import add_json, config_folder
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.history.names import Names, plain
from lamplighter.gateway.history.records import Found, History
from lamplighter.gateway.history.rehearsal import Act, Rehearsal
from lamplighter.gateway.log.snapshots import label
from lamplighter.gateway.state.applications import Application, load_application
from lamplighter.gateway.state.delayed import delay_us

_QUADS_SHOWN_MAX = 10


def add_try_command(command: Adder) -> None:
    trying = command("try", _try)
    trying.add_argument("file", help="a JSAP file, or the name of one in apps/")
    trying.add_argument(
        "--since",
        default="P1D",
        metavar="WHEN",
        help="how far back, such as PT1H; a record such as 17; a time such as 2026-11-21T10:00:00Z (default: P1D)",
    )
    trying.add_argument("--last", type=int, default=20, metavar="N", help="show the last N reactions (default: 20)")
    add_json(trying, "the reactions and the counts")


def _try(options: argparse.Namespace) -> int:
    if options.last < 1:
        raise ConfigurationError(f"--last {options.last}: it must be 1 or more")
    history, settings = opened_history(options)
    application = _application(options)
    begin = _begin(history, options.since)
    replay = history.replay(begin.place, lambda error: print(f"lamplighter: {error}", file=sys.stderr))
    rehearsal = Rehearsal(replay, application, moment(begin.ts))
    count, acts = 0, deque[Act](maxlen=options.last)
    for act in rehearsal.rehearse(history.records(begin.place, history.last()), datetime.now(UTC)):
        count += 1
        acts.append(act)
    if options.json:
        print_json(
            {
                "application": application.name,
                "since": {"record": label(begin.place), "time": begin.ts},
                "records": rehearsal.records,
                "reactions": count,
                "delayed": rehearsal.delayed,
                "without_effect": rehearsal.idle,
                "last": [_members(act) for act in acts],
            }
        )
        return 0
    names = Names(settings.gateway.base_iri)
    if count > len(acts):
        print(f"({count_text(count - len(acts), 'earlier reaction', ',')} not shown; --last N shows more)")
    for act in acts:
        print("\n".join(_lines(act, names)))
    since = begin.ts[:19].replace("T", " ")
    print(
        f"{application.name} would have reacted {count_text(count, 'time', ',')} since {since} UTC, in "
        f"{count_text(rehearsal.records, 'record', ',')}"
    )
    if rehearsal.idle:
        print(f"{count_text(rehearsal.idle, 'delayed update', ',')} would have changed nothing when due")
    return 0


def _application(options: argparse.Namespace) -> Application:
    """Raises ConfigurationError."""
    named = config_folder(options) / "apps" / f"{options.file}.jsap"
    path = Path(options.file)
    if not path.is_file() and named.is_file():
        path = named
    if not path.is_file():
        raise ConfigurationError(f"{options.file}: there is no such file, and no {named}")
    return load_application(path)


def _begin(history: History, since: str) -> Found:
    """The last record before a time or a span, or a named one. Raises ConfigurationError, ChangeLogError."""
    if not since.startswith("P"):
        try:
            found = history.record_of(since)
        except (ConfigurationError, MalformedRequestError) as error:
            raise ConfigurationError(f"--since: {error}") from error
        if not found.ts:
            raise ConfigurationError(f"--since {since}: that record is no longer kept; name a later one")
        return found
    try:
        span = timedelta(microseconds=delay_us(since))
    except MalformedRequestError as error:
        raise ConfigurationError(f"--since {since}: write a duration such as PT1H, a record or a time") from error
    wanted = iso(datetime.now(UTC) - span)
    oldest = history.oldest()
    if oldest is None:
        raise ConfigurationError("the log has no records yet")
    first = history.record_of(label(oldest))
    # A young log does not go back that far.
    return first if first.ts > wanted else history.record_of(wanted)


def _lines(act: Act, names: Names) -> list[str]:
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


def _members(act: Act) -> dict[str, Any]:
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
    }
