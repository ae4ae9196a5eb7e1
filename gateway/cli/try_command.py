"""The command `try`: what an application would have done in the past, before it is switched on.

It reads the data folder, with or without a running gateway, and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.commands import opened_history
from lamplighter.gateway.cli.console import print_json
from lamplighter.gateway.cli.options import add_json, config_folder
from lamplighter.gateway.history.names import Names
from lamplighter.gateway.history.rehearsal_outcome import act_lines, begin_of, rehearse
from lamplighter.gateway.state.applications import Application, load_application


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
    begin = begin_of(history, options.since)
    names = Names(settings.gateway.base_iri)
    outcome = rehearse(
        history,
        application,
        begin,
        options.last,
        lambda error: print(f"lamplighter: {error}", file=sys.stderr),
    )
    if options.json:
        print_json(outcome.members(names))
        return 0
    count, acts = outcome.reactions, outcome.last
    if count > len(acts):
        print(f"({count_text(count - len(acts), 'earlier reaction', ',')} not shown; --last N shows more)")
    for act in acts:
        print("\n".join(act_lines(act, names)))
    since = begin.ts[:19].replace("T", " ")
    print(
        f"{application.name} would have reacted {count_text(count, 'time', ',')} since {since} UTC, in "
        f"{count_text(outcome.records, 'record', ',')}"
    )
    if outcome.without_effect:
        print(f"{count_text(outcome.without_effect, 'delayed update', ',')} would have changed nothing when due")
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
