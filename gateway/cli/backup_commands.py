"""`lamplighter backup` and `lamplighter restore`: dataset and delayed updates of a gateway as one file."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import ProgressBar, ReadFile, confirm, print_result
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway, url_option
from lamplighter.gateway.cli.options import add_confirmation, settings_and_data
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.history import backup

_CHUNK = 64 * 1024


def add_backup_commands(command: Adder) -> None:
    saving = command("backup", _backup)
    saving.add_argument("file", type=Path, help="backup file, such as home.ndjson.zst")
    restore = command("restore", _restore)
    restore.add_argument("file", type=Path, help="a file of `lamplighter backup`")
    for parser in (saving, restore):
        parser.add_argument("--json", action="store_true", help="print the counts as JSON")
        add_reach_options(parser)
        add_confirmation(parser)


def _say(text: str) -> None:
    print(f"lamplighter: {text}", file=sys.stderr)


def _backup(options: argparse.Namespace) -> int:
    settings, data = settings_and_data(options)
    if options.file.exists() and not confirm(f"Replace the existing file {options.file}?", yes=options.yes):
        return 1
    try:
        answer = call_gateway(options, "GET", "/backup")
    except UpstreamError as error:
        if url_option(options) is not None:
            raise
        _say(f"the backup is made from {data}, since {error}")
        clock = MachineClock(settings.gateway.clock_trusted)
        made = backup.save(options.file, backup.offline(data, clock, _say))
    else:
        with answer, ProgressBar(f"backup {options.file.name}", "bytes") as bar:
            made = backup.save(options.file, bar.through(_chunks(answer)))
    line = f"backup of {made.place}: {_content(made)}, {count_text(made.bytes, 'byte')}, checked"
    print_result(options, vars(made), line)
    return 0


def _restore(options: argparse.Namespace) -> int:
    if not options.file.exists():
        raise ConfigurationError(f"{options.file}: there is no such file; name one of `lamplighter backup`")
    made = backup.check(options.file)
    if not options.json:
        print(f"backup of {made.place} from {made.ts[:19]}Z: {_content(made)}")
    if not confirm("Replace the gateway's dataset and delayed updates with this backup?", yes=options.yes):
        return 1
    headers = {"Content-Type": "application/zstd", "Content-Length": str(made.bytes)}
    with (
        ProgressBar(f"restore {options.file.name}", "bytes sent", made.bytes) as bar,
        ReadFile(options.file, bar) as content,
        call_gateway(options, "POST", "/restore", content, headers) as answer,
    ):
        done = json.load(answer)
    line = (
        f"restored by record {done['sequence']}: {count_text(done['removed'], 'quad')} removed, {done['added']} added, "
        f"{count_text(done['cancelled'], 'delayed update')} cancelled, {done['delayed']} set"
    )
    if done["applications"] is not None:
        line += f", {count_text(done['applications'], 'stored application')}"
    print_result(options, done, line)
    return 0


def _content(made: backup.Backup) -> str:
    found = f"{count_text(made.quads, 'quad')}, {count_text(made.timers, 'delayed update')}"
    return found if not made.applications else f"{found}, {count_text(made.applications, 'stored application')}"


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := answer.read(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise UpstreamError(f"the backup was interrupted: {error!r}; try again") from error
